"""Part G: seeds of other parts, trained on a GPU, all of them in one program.

Updates of part H are many small kernels, so a GPU trains a hundred seeds in little more
time than one. Frames and weights come from `seed_trainings`, which makes them on the
CPU; the loop over updates runs on the device. study/pages/on_gpu.md has plan and
result.
"""

import dataclasses
import hashlib
import multiprocessing
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd

from prednet_jax import data, errors, files, records, statistics
from prednet_jax.objectives import Method
from prednet_jax.report import numbers
from prednet_jax.report.numbers import change, significant
from prednet_jax.report.tables import markdown
from prednet_jax.training import loop, truncated
from study import judgement, scatter
from study.judgement import MODEL, PRIMARY, Records
from study.parts import CONTROL, FIXED_ORDERS, PARTS, Part, StudyArm
from study.seed_trainings import frames, initial_state, optimizer

# Updates that are one dispatch.
CHUNK = 50


def _arm(targets: str = "true", convolution: str = "im2col", **more: Any) -> StudyArm:
    """Returns float32 under a device's convolutions.

    They are `im2col`, products of matrices, as in Chainer without cuDNN, or `xla`,
    cuDNN's on a GPU.
    """
    return StudyArm(name=CONTROL, targets=targets, convolution=convolution, **more)


_CUDNN = _arm(convolution="xla", mode="map")
ARMS = {
    "gpu": _arm(),
    "gpu_again": _arm(),
    "gpu_deterministic": _arm(deterministic=True),
    "gpu_tf32": _arm(products="default"),
    "gpu_stale": _arm(targets="stale"),
    "gpu_cudnn": _CUDNN,
    "gpu_cudnn_again": _CUDNN,
    "gpu_cudnn_stale": _arm("stale", convolution="xla", mode="map"),
    # The same by the CPU, from which distances are measured.
    "cpu": _arm(convolution="auto", mode="map"),
}


def rendered(part: Part, seed: int, updates: int) -> np.ndarray:
    """Renders the frames of the first updates, `[updates * window, H, W, C]`."""
    source, _ = frames(part, seed)
    return source.read(0, updates * part.window)


def train(
    part: Part, arm: StudyArm, seeds: Sequence[int], shown: Any, updates: int
) -> tuple[dict[str, np.ndarray], np.ndarray]:
    """Trains seeds on their frames `[N, T, H, W, C]` uint8, of `rendered`.

    Returns the curves `last_frame_loss` and `window_loss` `[N, updates]`, and the final
    weights `[N, size]`, as in `records.vector`.
    """
    states = [initial_state(part, arm, seed) for seed in seeds]
    state = jax.tree.map(lambda *leaves: jnp.stack(leaves), *states)
    advance, shown = _program(part, arm), jnp.asarray(shown)
    chunks = []
    for start in range(0, updates, CHUNK):
        numbers = jnp.arange(start, min(start + CHUNK, updates))
        state, losses = advance(state, shown, numbers)
        chunks.append(jax.device_get(losses))
    curves = {
        name: np.concatenate([chunk[name] for chunk in chunks]).T for name in chunks[0]
    }
    final = jax.device_get(state.params)
    weights = [
        records.vector(jax.tree.map(lambda leaf, i=i: leaf[i], final))
        for i in range(len(seeds))
    ]
    return curves, np.stack(weights)


def _program(part: Part, arm: StudyArm) -> Callable:
    """Compiles `(state, frames, updates) -> (state, losses)`, with the axis N first."""
    network = dataclasses.replace(part.network, convolution=arm.convolution)
    method = Method(targets=arm.targets, truncation_leak=part.truncation_leak)
    step = truncated.make_step(network, optimizer(part, arm), method)
    key = jax.random.key(0)
    plan = data.schedule(part.updates * part.window, (0,), part.window, part.updates)
    starts, opens = jnp.asarray(plan.start[:, 0]), jnp.asarray(plan.first)

    def one(inputs: tuple) -> tuple:
        state, window, first = inputs
        state, metrics = step(state, window[:, None], first, key)
        last = metrics.frame_losses[-1]
        return state, {"last_frame_loss": last, "window_loss": metrics.loss}

    def update(shown: jax.Array, state: Any, number: jax.Array) -> tuple:
        places = starts[number] + jnp.arange(part.window + 1)
        windows = shown[:, jnp.maximum(places, 0)]
        first = jnp.full(len(shown), opens[number])
        inputs = state, windows, first
        return jax.vmap(one)(inputs) if arm.mode == "vmap" else jax.lax.map(one, inputs)

    def advance(state: Any, shown: jax.Array, numbers: jax.Array) -> tuple:
        with jax.default_matmul_precision(arm.products):
            return jax.lax.scan(lambda s, n: update(shown, s, n), state, numbers)

    options = {"xla_gpu_deterministic_ops": True} if arm.deterministic else None
    return jax.jit(advance, donate_argnums=0, compiler_options=options)


def record(
    part: Part,
    seeds: Sequence[int],
    curves: Mapping[str, np.ndarray],
    weights: np.ndarray,
    controls: Mapping[int, np.ndarray],
) -> dict[str, dict[str, Any]]:
    """Returns the record of an arm's trainings, by seed, from `train`'s arrays.

    A loss is the mean over the last fifth of the updates. The distance from the CPU's
    final weights, `controls` by seed, is divided by the distance that the CPU's
    training moved them.
    """
    rows: dict[str, dict[str, Any]] = {}
    for i, seed in enumerate(seeds):
        row: dict[str, Any] = {
            name: float(curve[i, -(curve.shape[1] // 5) :].mean(dtype=np.float64))
            for name, curve in curves.items()
        }
        final = weights[i].astype(np.float32)
        row["weights_sha256"] = hashlib.sha256(final.tobytes()).hexdigest()
        if seed in controls:
            start = records.vector(loop.initial_params(part.network, seed))
            travelled = np.linalg.norm(controls[seed] - start)
            distances = np.linalg.norm(weights[i] - controls[seed])
            row["distance_over_travelled"] = float(distances / travelled)
        rows[str(seed)] = row
    return rows


def check_device(arms: Sequence[str]) -> None:
    """Refuses arms of another kind of device than the one that JAX runs on."""
    backend, wanted = jax.default_backend(), {arm[:3] for arm in arms}
    if wanted != {backend}:
        raise errors.UserError(
            f"--arms={','.join(arms)}: JAX runs on {backend}; expected a GPU, or "
            "JAX_PLATFORMS=cpu for the arm cpu alone"
        )


def train_arms(
    part: Part,
    arms: Sequence[str],
    seeds: Sequence[int],
    updates: int,
    folder: Path,
    facts: Mapping[str, Any],
) -> None:
    """Renders the frames, trains the arms, in threads, and writes their records."""
    folder.mkdir(parents=True, exist_ok=True)
    controls = final_weights(folder / f"{part.name}_cpu.npz", updates)
    shown = jax.device_put(rendered_by_all(part, seeds, updates))

    def follow(arm: str) -> None:
        started = time.perf_counter()
        curves, weights = train(part, ARMS[arm], seeds, shown, updates)
        seconds = time.perf_counter() - started
        runs = record(part, seeds, curves, weights, controls)
        made = {**facts, "arm": arm, "seconds": seconds, "runs": runs}
        arrays: dict[str, Any] = {"seeds": seeds, "weights": weights, **curves}
        records.write_tree(folder / f"{part.name}_{arm}.npz", arrays)
        records.write_json(folder / f"{part.name}_{arm}.json", made)
        size = f"{len(seeds)} seeds, {updates} updates"
        print(f"{part.name} {arm}: {size}, {seconds:.0f} s", flush=True)

    # XLA compiles on one thread each. An interrupt does not wait for them.
    list(ThreadPoolExecutor(len(arms)).map(follow, arms))


def final_weights(path: Path, updates: int) -> dict[int, np.ndarray]:
    """Reads the weights after a number of updates from a file of an arm, by seed."""
    if not path.exists():
        return {}
    arrays = files.read_npz(path, names=("seeds", "weights", "window_loss"))
    with files.broken_as(f"{path}: damaged", "; expected what the arm cpu wrote"):
        if arrays["window_loss"].shape[1] != updates:
            return {}
        return dict(zip(arrays["seeds"].tolist(), arrays["weights"], strict=True))


def rendered_by_all(part: Part, seeds: Sequence[int], updates: int) -> np.ndarray:
    """Returns the frames [N, T, H, W, C] of the seeds, rendered by all processors."""
    spawn = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(mp_context=spawn) as pool:
        every = [pool.submit(rendered, part, seed, updates) for seed in seeds]
        return np.stack([each.result() for each in every])


def read(folder: Path, part: str) -> dict[str, dict[str, dict[str, Any]]]:
    """Returns the rows of `record` by arm, of a part's records in results/study/G.

    A record with other updates than the part is a UserError.
    """
    rows = {}
    for path in sorted(folder.glob(f"{part}_*.json")):
        found = records.read_json(path)
        errors.one_of(f"{path}: updates", found["updates"], (PARTS[part].updates,))
        rows[found["arm"]] = found["runs"]
    return rows


def answers(folder: Path, seeds: Mapping[str, Records]) -> dict[str, Any]:
    """Returns the rule's answers for parts H and J, against a CPU's fixed orders."""
    measured = dict(judgement.losses((*seeds["H"], *seeds["J"]), PRIMARY))
    trained, more = read(folder, "H"), read(folder, "J")
    found = {}
    for arm in more:
        rows = trained[arm] | more[arm]
        losses = {seed: [row[PRIMARY]] for seed, row in rows.items()}
        known = [row for row in rows.values() if "distance_over_travelled" in row]
        distances = [row["distance_over_travelled"] for row in known]
        check = statistics.manipulation([x > 0 for x in distances], distances)
        found[arm] = statistics.evaluate_claim(
            MODEL,
            measured | {arm: losses},
            check,
            treatment=arm,
            control=FIXED_ORDERS,
        )
    return found


def table(answers: Mapping[str, statistics.Answered]) -> str:
    """Returns the table of study/pages/on_gpu.md, of the result of `answers`."""
    rows = []
    for arm, answered in answers.items():
        effect = scatter.effect_record(answered.effect)
        row = {"arm": arm, "seeds": effect["seeds"]}
        for level, ends in (("95 %", ("low", "high")), ("90 %", ("low_90", "high_90"))):
            row[level] = change(*(100 * effect[x] for x in ("estimate", *ends)))
        row["left out"] = effect["excluded"]
        row["p (equivalence)"] = numbers.probability(effect["tost_p"])
        assert answered.check is not None
        row["distance / travelled"] = significant(
            answered.check.distance_over_travelled, 2
        )
        # No noise is added here.
        rows.append(row | {"answer": answered.answer.removeprefix("noise ")})
    return markdown(pd.DataFrame(rows))


def value(effect: statistics.Effect) -> str:
    """Returns an effect in percent, with its interval."""
    return change(*(100 * x for x in (effect.estimate, effect.low, effect.high)))


def same(folder: Path, part: str) -> str:
    """Returns the number of seeds in which deterministic algorithms give equal bits."""
    runs = read(folder, part)
    one, other = (
        {(seed, row["weights_sha256"]) for seed, row in runs[arm].items()}
        for arm in ("gpu", "gpu_deterministic")
    )
    return f"{len(one & other)} of {len(one)}"
