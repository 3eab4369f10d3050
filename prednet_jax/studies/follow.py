"""One seed of a part: all its arms trained, measured and written as one record.

    results/<part>/seed_<n>.csv    curves: a row per arm, draw and 25 updates
    results/<part>/seed_<n>.json   endpoints, distances, fingerprints, versions

A record appears when the last arm of its seed has ended, whole or not at all, so that
an interrupted study goes on with the seeds that have none.

Endpoints of a run (docs/study/plan.md):

    last_frame_loss   mean over the last fifth of the updates of the loss of the
                      window's last frame, as the article's script logs it (primary)
    window_loss       the same of the mean over the window
    over_copy         window_loss over that of copying the last frame, same frames
    held_out_loss     mean squared error on 100 frames of a walk that no seed trains on
    plateau_left      first update at which the mean loss of 20 updates is below the
                      geometric mean of the control's start (its first 20 updates) and
                      end (its last fifth); null where that never comes
    parity            first update from which the mean loss of 250 updates stays below
                      that of copying the last frame; null where that never comes
"""

import csv
import dataclasses
import functools
import io
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import numpy as np
import optax

from prednet_jax import data, noise, optimizers, records
from prednet_jax.models import prednet
from prednet_jax.objectives import Method
from prednet_jax.studies import dose
from prednet_jax.studies.parts import Part, Treatment
from prednet_jax.training import loop, truncated

# Updates per row of a curve.
BIN = 25
PLATEAU_WIDTH, PARITY_WIDTH = 20, 250
# Seed, first frame and number of the held-out frames; a warm-up comes before them.
HELD_OUT_SEED, HELD_OUT_START, HELD_OUT_FRAMES, WARM_UP = 999_999, 400, 100, 10
# Momentum's rate and factor (plain Adam is Chainer's).
MOMENTUM = (0.1, 0.9)
CURVES = ("loss", "last_frame_loss", "grad_norm")


@dataclasses.dataclass(frozen=True)
class Trajectory:
    """One training.

    Attributes:
        curves: by name of `CURVES`, [updates]; shorter where it diverged.
        weights: weights after each of the part's snapshots, flat, float64 [n].
        held_out_loss: of the final weights.
        sha256: of the final weights.
        seconds: wall time.
    """

    curves: dict[str, np.ndarray]
    weights: dict[int, np.ndarray]
    held_out_loss: float
    sha256: str
    seconds: float


def optimizer(name: str) -> optax.GradientTransformation:
    """Chainer's Adam, or gradient descent with momentum."""
    if name == "adam":
        return optimizers.chainer_adam()
    return optax.sgd(MOMENTUM[0], momentum=MOMENTUM[1])


@functools.lru_cache(maxsize=64)
def _update(part: Part, kind: Treatment) -> Callable:
    """One update as a compiled program, for all draws and seeds of a treatment."""
    spec = noise.parse(kind.noise)
    plain = kind.dose is not None or spec == noise.Identity()
    step = truncated.make_step(
        dataclasses.replace(part.network, convolution=kind.convolution),
        optimizer(kind.optimizer),
        Method(targets=kind.targets, truncation_leak=part.truncation_leak),
        noise=None if plain else spec,
        amplify=dose.amplified(spec, *kind.dose) if kind.dose is not None else None,
    )

    def update(state, chunk, k, first, key):
        return step(state, chunk[k][:, None], first, key)

    return truncated.jit_update(update)


def train(part: Part, treatment: Treatment, seed: int) -> Trajectory:
    """Trains one arm of one seed to its end, or until its loss is not finite."""
    started = time.perf_counter()
    with jax.enable_x64(treatment.precision == "float64"):
        source = _source(part, seed)
        schedule = loop.frame_schedule(
            part.network, source, window=part.window, updates=part.updates
        )
        params = loop.prepare_params(
            loop.initial_params(part.network, seed),
            np.dtype(treatment.precision),
            None,
            seed,
        )
        state = truncated.initial_train_state(
            part.network, params, optimizer(treatment.optimizer)
        )
        curves: dict[str, list[float]] = {name: [] for name in CURVES}
        weights = {0: _flat(params)}
        steps = loop.train(
            _update(part, dataclasses.replace(treatment, draw=0, seeds=None)),
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
                weights[record.update] = _flat(state.params)
            if not np.isfinite(record.loss):
                break
        return Trajectory(
            curves={name: np.asarray(found) for name, found in curves.items()},
            weights=weights,
            held_out_loss=_held_out(part, state.params),
            sha256=records.fingerprint(jax.device_get(state.params)),
            seconds=time.perf_counter() - started,
        )


def _source(part: Part, seed: int) -> data.FrameSource:
    network = part.network
    return data.open_source(
        part.data,
        height=network.height,
        width=network.width,
        channels=network.channels[0],
        seed=seed,
    )


def _flat(params: Any) -> np.ndarray:
    leaves = [np.asarray(x, np.float64).ravel() for x in jax.tree.leaves(params)]
    return np.concatenate(leaves)


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


def copy_last_frame(part: Part, seed: int) -> np.ndarray:
    """Mean squared error of copying the last frame, per update, [updates]."""
    source = _source(part, seed)
    schedule = loop.frame_schedule(
        part.network, source, window=part.window, updates=part.updates
    )
    found = []
    for frames, first in data.chunks(source, schedule, 64):
        x = frames.astype(np.float64) / 255
        errors = np.square(np.diff(x, axis=1)).mean(axis=(2, 3, 4))
        # The first window of a sequence has a stand-in for its first frame.
        scored = np.ones_like(errors)
        scored[:, 0] = ~np.asarray(first, bool)
        found.append((errors * scored).sum(1) / scored.sum(1))
    return np.concatenate(found)


def trailing(curve: np.ndarray, width: int) -> np.ndarray:
    """Mean of the last `width` values at each place from the first full one on."""
    sums = np.cumsum(np.concatenate([[0.0], curve]))
    return (sums[width:] - sums[:-width]) / width


def first_below_for_good(curve: np.ndarray, width: int, level: Any) -> int | None:
    """First update from which the trailing mean stays below a level.

    Args:
        curve: loss of each update, [updates].
        width: updates that are averaged.
        level: a number, or one per trailing mean.

    Returns:
        The last update of the first such mean; None where the last mean is not below.
    """
    above = ~(trailing(curve, width) < level)
    if above[-1]:
        return None
    return width + (int(np.flatnonzero(above)[-1]) + 1 if above.any() else 0)


def first_below(curve: np.ndarray, width: int, level: float) -> int | None:
    """First update at which the trailing mean is below a level; None: never."""
    below = trailing(curve, width) < level
    return width + int(np.argmax(below)) if below.any() else None


def endpoints(
    run: Trajectory, control: Trajectory, copy: np.ndarray
) -> dict[str, float | int | None]:
    """The endpoints of the module's docstring; a diverged run has none.

    Args:
        run: the training.
        control: its control.
        copy: loss of copying the last frame, [updates].
    """
    updates = len(copy)
    loss = run.curves["loss"]
    if len(loss) < updates or not np.isfinite(loss).all():
        return {"diverged_at": len(loss)}
    last = -(updates // 5)
    reference = control.curves["loss"]
    # Without a control to its end there is no level to compare with.
    halfway = None
    if len(reference) == updates and np.isfinite(reference).all():
        halfway = np.sqrt(reference[:PLATEAU_WIDTH].mean() * reference[last:].mean())
    return {
        "last_frame_loss": float(run.curves["last_frame_loss"][last:].mean()),
        "window_loss": float(loss[last:].mean()),
        "over_copy": float(loss[last:].mean() / copy[last:].mean()),
        "held_out_loss": run.held_out_loss,
        "control_diverged": halfway is None,
        "plateau_left": None
        if halfway is None
        else first_below(loss, PLATEAU_WIDTH, halfway),
        "parity": first_below_for_good(loss, PARITY_WIDTH, trailing(copy, PARITY_WIDTH))
        if updates > PARITY_WIDTH
        else None,
        "diverged_at": None,
    }


def distances(run: Trajectory, control: Trajectory) -> dict[str, float]:
    """Distance from the control over the distance that the control has travelled."""
    start = control.weights[0]
    found = {}
    for update, weights in run.weights.items():
        if update and update in control.weights:
            travelled = np.linalg.norm(control.weights[update] - start)
            apart = np.linalg.norm(weights - control.weights[update])
            found[str(update)] = float(apart / travelled)
    return found


def follow_seed(part: Part, seed: int, folder: Path, manifest: dict[str, Any]) -> None:
    """Trains all arms of a seed and writes its record.

    Args:
        part: the part of the study.
        seed: one of its seeds.
        folder: where the records of the part lie.
        manifest: what is known of the process: versions, commit, device, flags.
    """
    copy = copy_last_frame(part, seed)
    source = _source(part, seed)
    schedule = loop.frame_schedule(
        part.network, source, window=part.window, updates=part.updates
    )
    controls: dict[str, Trajectory] = {}
    runs, rows = [], _curve_rows("copy_last_frame", 0, {"loss": copy})
    for treatment in part.of_seed(seed):
        run = train(part, treatment, seed)
        if treatment.arm == treatment.control:
            controls[treatment.arm] = run
        control = controls[treatment.control]
        rows += _curve_rows(treatment.arm, treatment.draw, run.curves)
        runs.append(
            dataclasses.asdict(treatment)
            | {"control": treatment.control}
            | endpoints(run, control, copy)
            | {
                "final_params_sha256": run.sha256,
                "distance_over_travelled": distances(run, control),
                "seconds": run.seconds,
            }
        )
    record = manifest | {
        "part": part.name,
        "seed": seed,
        "network": dataclasses.asdict(part.network),
        "data": part.data,
        "window": part.window,
        "updates": part.updates,
        "truncation_leak": part.truncation_leak,
        "initial_params_sha256": records.fingerprint(
            jax.device_get(loop.initial_params(part.network, seed))
        ),
        "data_order_sha256": data.order_fingerprint(source, schedule),
        "runs": runs,
    }
    folder.mkdir(parents=True, exist_ok=True)
    records.write_bytes(folder / f"seed_{seed}.csv", _table(rows).encode())
    records.write_json(folder / f"seed_{seed}.json", record)


def finished(part: Part, folder: Path) -> list[int]:
    """Seeds of a part whose records are there."""
    return [s for s in part.seeds if (folder / f"seed_{s}.json").exists()]


def _curve_rows(arm: str, draw: int, curves: dict[str, np.ndarray]) -> list[dict]:
    length = min(map(len, curves.values()))
    rows = []
    for start in range(0, length, BIN):
        stop = min(start + BIN, length)
        means = {name: c[start:stop].mean() for name, c in curves.items()}
        rows.append(
            {"arm": arm, "draw": draw, "update": stop}
            | {name: f"{mean:.6g}" for name, mean in means.items()}
        )
    return rows


def _table(rows: list[dict]) -> str:
    text = io.StringIO()
    writer = csv.DictWriter(
        text, ["arm", "draw", "update", *CURVES], lineterminator="\n"
    )
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()
