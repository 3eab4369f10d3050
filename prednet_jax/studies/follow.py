"""Trains all arms of one seed of a part, and writes their record.

    results/<part>/seed_<n>.csv    curves: one row per arm, draw and 25 updates
    results/<part>/seed_<n>.json   endpoints, distances, fingerprints, versions

The record is written when the last arm of the seed has ended. Until then finished
trainings are kept (`kept_runs`), and an interrupted study continues with the others.
All seeds of a part need the same arithmetic. Each record therefore holds what
determines the bits of its trainings, including hashes of the programs, and a seed that
differs in one of these is refused.
"""

import dataclasses
import functools
import hashlib
import os
import time
from collections.abc import Callable, Container, Mapping
from pathlib import Path
from typing import Any

import jax
import numpy as np
import optax

from prednet_jax import data, noise, optimizers, records
from prednet_jax.models import prednet
from prednet_jax.objectives import Method
from prednet_jax.studies import dose, seed_records
from prednet_jax.studies.endpoints import (
    CURVES,
    Trajectory,
    apart,
    distances,
    endpoints,
)
from prednet_jax.studies.kept_runs import KeptRuns
from prednet_jax.studies.parts import THREADS, Part, Treatment
from prednet_jax.training import loop, truncated
from prednet_jax.training.trainer import Trainer

# Seed, first frame and number of the held-out frames, and of warm-up frames before.
HELD_OUT_SEED, HELD_OUT_START, HELD_OUT_FRAMES, WARM_UP = 999_999, 400, 100, 10
# Learning rate and momentum of gradient descent with momentum.
MOMENTUM = (0.1, 0.9)


def optimizer(name: str) -> optax.GradientTransformation:
    """Chainer's Adam, or gradient descent with momentum."""
    if name == "adam":
        return optimizers.chainer_adam()
    return optax.sgd(MOMENTUM[0], momentum=MOMENTUM[1])


@functools.lru_cache(maxsize=64)
def _trainer(part: Part, kind: Treatment) -> Trainer:
    """Makes the updates of all draws and seeds of a treatment."""
    spec = noise.parse(kind.noise)
    plain = kind.dose is not None or spec == noise.Identity()
    return Trainer(
        dataclasses.replace(part.network, convolution=kind.convolution),
        optimizer(kind.optimizer),
        Method(targets=kind.targets, truncation_leak=part.truncation_leak),
        noise=None if plain else spec,
        amplify=dose.amplified(spec, *kind.dose) if kind.dose is not None else None,
    )


def train(part: Part, treatment: Treatment, seed: int) -> Trajectory:
    """Trains one arm of one seed to the end, or until its loss is not finite."""
    started = time.perf_counter()
    with jax.enable_x64(treatment.precision == "float64"):
        source, schedule = _frames(part, seed)
        state = _initial_state(part, treatment, seed)
        curves: dict[str, list[float]] = {name: [] for name in CURVES}
        weights = {0: records.vector(state.params)}
        steps = loop.train(
            _trainer(part, _kind(treatment)),
            state,
            source,
            schedule,
            seed=seed,
            draw=treatment.draw,
        )
        for state, record in steps:
            for name in CURVES:
                curves[name].append(getattr(record, name))
            if record.update in part.snapshots:
                weights[record.update] = records.vector(state.params)
            if not np.isfinite(record.loss):
                break
        return Trajectory(
            curves={name: np.asarray(found) for name, found in curves.items()},
            weights=weights,
            held_out_loss=_held_out(part, state.params),
            sha256=records.fingerprint(jax.device_get(state.params)),
            seconds=time.perf_counter() - started,
        )


def programs(part: Part, seed: int) -> dict[str, str]:
    """SHA-256 of the program of each arm that a seed is trained with.

    Equal programs give equal bits if the version of jaxlib, the XLA flags, the number
    of threads and the kind of processor are the same too.
    """
    return {t.arm: _program(part, _kind(t)) for t in part.of_seed(seed)}


@functools.lru_cache(maxsize=64)
def _program(part: Part, kind: Treatment) -> str:
    with jax.enable_x64(kind.precision == "float64"):
        source, schedule = _frames(part, part.seeds[0])
        frames, first = next(iter(data.chunks(source, schedule, 1)))
        key = jax.random.key(0)
        state = _initial_state(part, kind, part.seeds[0])
        lowered = _trainer(part, kind).program.lower(
            state, frames[0][:, None], np.bool_(first[0]), key
        )
        return hashlib.sha256(lowered.as_text().encode()).hexdigest()


def _kind(treatment: Treatment) -> Treatment:
    """The treatment without what differs between draws and seeds of an arm."""
    return dataclasses.replace(treatment, draw=0, seeds=None)


def _initial_state(part: Part, treatment: Treatment, seed: int) -> truncated.TrainState:
    params = loop.prepare_params(
        loop.initial_params(part.network, seed),
        np.dtype(treatment.precision),
        None,
        seed,
    )
    return truncated.initial_train_state(
        part.network, params, optimizer(treatment.optimizer)
    )


def _frames(part: Part, seed: int) -> tuple[data.FrameSource, data.Schedule]:
    source = _source(part, seed)
    schedule = loop.frame_schedule(
        part.network, source, window=part.window, updates=part.updates
    )
    return source, schedule


def _source(part: Part, seed: int) -> data.FrameSource:
    network = part.network
    return data.open_source(
        part.data,
        height=network.height,
        width=network.width,
        channels=network.channels[0],
        seed=seed,
    )


def _held_out(part: Part, params: Any) -> float:
    source = _source(part, HELD_OUT_SEED)
    frames = source.read(HELD_OUT_START - WARM_UP, HELD_OUT_START + HELD_OUT_FRAMES)
    dtype = jax.tree.leaves(params)[0].dtype
    x = truncated.to_pixels(jax.numpy.asarray(frames), dtype)
    predictions = _predict(part.network)(params, x)
    error = np.asarray(predictions[WARM_UP:]) - np.asarray(x[WARM_UP:])
    return float(np.mean(np.square(error)))


@functools.cache
def _predict(network: Any) -> Callable:
    return jax.jit(lambda p, x: prednet.predict(p, network, x[:, None])[0][:, 0])


def follow_seed(part: Part, seed: int, folder: Path, manifest: dict[str, Any]) -> None:
    """Trains the arms of a seed that are left, and writes its record.

    Args:
        part: the part of the study.
        seed: one of its seeds.
        folder: directory of the part's records.
        manifest: facts about the process: versions, commit, device, flags.

    Raises:
        UserError: a record or a kept training in the folder was made with another
            arithmetic.
    """
    kept = train_arms(part, seed, folder, manifest)
    done = [(treatment, kept.read(treatment)) for treatment in part.of_seed(seed)]
    _write_record(part, seed, folder, kept.about, done)
    kept.remove()


def train_arms(
    part: Part,
    seed: int,
    folder: Path,
    manifest: dict[str, Any],
    arms: Container[str] | None = None,
) -> KeptRuns:
    """Trains arms of a seed and keeps them; `follow_seed` makes a record of them.

    Several processes can share a seed, each with arms of its own.

    Args:
        part: the part of the study.
        seed: one of its seeds.
        folder: directory of the part's records.
        manifest: facts about the process.
        arms: names of the arms; None: all.

    Returns:
        The kept trainings of the seed, also those of other processes.

    Raises:
        UserError: as in `follow_seed`.
    """
    about = manifest | _design(part, seed)
    for path in seed_records.finished(part, folder).values():
        seed_records.check(f"seed {seed}", about, path)
    kept = KeptRuns(folder / "unfinished" / f"seed_{seed}", about)
    for treatment in part.of_seed(seed):
        chosen = arms is None or treatment.arm in arms
        if chosen and not kept.has(treatment):
            kept.write(treatment, train(part, treatment, seed))
    return kept


def _write_record(
    part: Part,
    seed: int,
    folder: Path,
    about: Mapping[str, Any],
    done: list[tuple[Treatment, Trajectory]],
) -> None:
    copied = {"loss": done[0][1].curves["copy_last_frame_loss"]}
    rows = seed_records.curve_rows("copy_last_frame", 0, copied)
    for treatment, run in done:
        rows += seed_records.curve_rows(treatment.arm, treatment.draw, run.curves)
    controls = {
        treatment.arm: run
        for treatment, run in done
        if treatment.arm == treatment.control
    }
    runs = [
        dataclasses.asdict(treatment)
        | {"control": treatment.control}
        | endpoints(run, controls[treatment.control], part.updates)
        | {
            "final_params_sha256": run.sha256,
            "distance_over_travelled": distances(run, controls[treatment.control]),
            "final_distance_from": _final_distances(
                part, treatment, run, done, controls
            ),
            "seconds": run.seconds,
        }
        for treatment, run in done
    ]
    source, schedule = _frames(part, seed)
    record = {
        **about,
        "seed": seed,
        "initial_params_sha256": records.fingerprint(
            jax.device_get(loop.initial_params(part.network, seed))
        ),
        "data_order_sha256": data.order_fingerprint(source, schedule),
        "runs": runs,
    }
    records.write_bytes(folder / f"seed_{seed}.csv", seed_records.table(rows).encode())
    records.write_json(folder / f"seed_{seed}.json", record)


def _final_distances(
    part: Part,
    treatment: Treatment,
    run: Trajectory,
    done: list[tuple[Treatment, Trajectory]],
    controls: dict[str, Trajectory],
) -> dict[str, float]:
    """Final distance from every noisy run of the seed so far (see `apart`)."""
    if treatment.noise == "none" or treatment.dose is not None:
        return {}
    control = controls[treatment.control]
    return {
        f"{other.arm}.{other.draw}": apart(run, their_run, control, part.updates)
        for other, their_run in done
        if other.noise != "none"
        and other.dose is None
        and all(part.updates in one.weights for one in (run, their_run, control))
    }


def _design(part: Part, seed: int) -> dict[str, Any]:
    """What all seeds of a part must have in common."""
    return {
        "part": part.name,
        "network": dataclasses.asdict(part.network),
        "data": part.data,
        "window": part.window,
        "updates": part.updates,
        "truncation_leak": part.truncation_leak,
        "threads": THREADS,
        "xla_flags": os.environ.get("XLA_FLAGS", ""),
        "programs": programs(part, seed),
    }
