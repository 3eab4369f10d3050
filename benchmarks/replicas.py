"""The suite `replicas`: step time against the number of replicas."""

from typing import Any

import jax
import numpy as np

from benchmarks import workload
from prednet_jax import device, process
from prednet_jax.config import PredNetConfig
from prednet_jax.training import replicas
from prednet_jax.training.trainer import Trainer
from prednet_jax.training.truncated import Method


def run(
    config: PredNetConfig,
    counts: tuple[int, ...],
    *,
    window: int,
    repeats: int,
    noise: str = "none",
    precision: str = "float32",
    profile: str | None = None,
) -> dict[str, Any]:
    """Seconds per seed and update, with replicas in sequence (map) or at once (vmap).

    All programs take turns in one process. Ratios are to a run without replicas, the
    program of `train.py` without --replicas.

    Args:
        config: the PredNet.
        counts: numbers of replicas, each at least 1.
        window: frames per window; one stream per replica.
        repeats: rounds; medians are compared.
        noise: a noise spec.
        precision: float32 or float64.
        profile: directory for a trace of a few updates of the last program; None: no
            trace.
    """
    dtype = process.set_precision(precision)
    base = (1, 1, "single")
    subject = workload.training(config, dtype, noise=noise)
    programs: dict[Any, workload.Program] = {base: _single(subject, window)}
    for count in counts:
        most = replicas.most_devices(count, 1, len(jax.devices()))
        for devices in sorted({1, most}):
            for mode in ("map", "vmap") if count > 1 else ("map",):
                name = (count, devices, mode)
                programs[name] = _several(subject, window, *name)
                print(f"  compiled {count} x {mode}, {devices} device(s)", flush=True)
    medians = workload.medians(programs, repeats)
    per_seed = {name: seconds / name[0] for name, seconds in medians.items()}
    workload.trace(profile, list(programs.values())[-1])
    rows = [
        {
            "replicas": count,
            "devices": devices,
            "mode": mode,
            "seconds_per_seed_update": seconds,
            "ratio_to_single": seconds / per_seed[base],
        }
        for (count, devices, mode), seconds in per_seed.items()
    ]
    for row in rows:
        print(
            f"  {row['replicas']:4d} replicas, {row['mode']:6s} on {row['devices']} "
            f"device(s): {1e3 * row['seconds_per_seed_update']:8.2f} ms per seed and "
            f"update, {row['ratio_to_single']:.2f} of the single run",
            flush=True,
        )
    return {
        "suite": "replicas",
        "rows": rows,
        "noise": noise,
        "precision": precision,
        "device": device.description(),
    }


def _single(subject: workload.Training, window: int) -> workload.Program:
    """A run without replicas, after its first update."""
    trainer = Trainer(subject.config, subject.optimizer, noise=subject.noise)
    frames = jax.device_put(workload.random_frames(subject.config, window + 1, 1))
    state = jax.tree.map(lambda x: jax.numpy.array(x, copy=True), subject.state)

    def advance(state: Any) -> Any:
        return trainer.step(state, frames, False, subject.key)[0]

    return advance, jax.block_until_ready(advance(state))


def _several(
    subject: workload.Training, window: int, count: int, devices: int, mode: str
) -> workload.Program:
    """`count` replicas, after their first update."""
    place = replicas.layout(count, 1, jax.devices()[:devices])
    config = replicas.resolve_network(subject.config, mode).config
    update = replicas.compile_update(
        config, subject.optimizer, Method(), subject.noise, place, mode
    )
    states = place.place_states([subject.state] * count)
    shown = workload.random_frames(config, window + 1, 1)
    frames = place.place([shown] * count, replicas.BY_WINDOW)
    first = place.place([np.bool_(False)] * count, replicas.BY_REPLICA)
    noise = jax.random.key_data(subject.key)
    key_data = place.place([noise] * count, replicas.BY_REPLICA)

    def advance(states: Any) -> Any:
        return update(states, frames, first, key_data)[0]

    return advance, jax.block_until_ready(advance(states))
