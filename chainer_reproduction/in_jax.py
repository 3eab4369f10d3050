"""What is measured in JAX: agreement with Chainer, and what follows from stale targets.

Agreement: Chainer and JAX train the same network from the same weights on the same
frames (64x48, channels 3,12,24,48, window 20), with true targets (in Chainer: copied)
and with stale targets (as published). The two libraries round differently, so the
distance between their weights grows. It is divided by the distance that training has
travelled, and compared with the distance between Chainer's trainings with true and
stale targets. That has to be much larger if results in JAX are to hold for Chainer.

Stale targets are later frames of the window, so a network trained on them predicts
something between the next frame and later ones. The fingerprint of a model shows it a
walk and compares its predictions of frame t with frame t and with frame t + 4
(`judgement.slope`). A network that has hardly learned predicts blur, which is equally
far from every frame, so only models that were trained about as well as the reference
models can be judged.
"""

import functools
import hashlib
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
import optax
import pandas as pd

from chainer_reproduction import environments, judgement, plans, runs
from prednet_jax import (
    PredNetConfig,
    init_params,
    optimizers,
    predict,
    records,
    train_windows,
    weights,
)
from prednet_jax.data import open_source
from prednet_jax.errors import UserError

CONFIG = PredNetConfig(channels=(3, 6, 12), height=24, width=32)
# Positions of frames relative to the last one seen: 1 is the frame that is predicted, 0
# and below are frames that were seen.
HORIZONS = range(-3, 6)
# Added to a seed to get the walk on which horizons are measured; no run trains on it.
UNSEEN = 100_000
# Number of walks of a fingerprint; every model and every reference is shown the same.
WALKS = 4
Arrays = dict[str, np.ndarray]
Rows = list[dict[str, Any]]


class Condition(NamedTuple):
    """A condition of the study of stale targets.

    Attributes:
        window: frames per update.
        speed: only every `speed`-th frame of the walk is shown; 0: always the first.
        rate: learning rate of Adam.
    """

    window: int = 10
    speed: int = 1
    rate: float = 1e-3


CONDITIONS = (
    Condition(),
    *(Condition(window=window) for window in (1, 2, 5, 20)),
    *(Condition(speed=speed) for speed in (0, 2)),
    *(Condition(rate=rate) for rate in (3e-4, 3e-3)),
)


def agreement(workdir: Path, frames: int = plans.LONG) -> Rows:
    """Trains in Chainer and in JAX: a row per kind of target and update.

    Args:
        workdir: its folders `frames` and `long` hold what is there already.
        frames: number of frames that are predicted.
    """
    jax.config.update("jax_compilation_cache_dir", str(workdir / "cache"))
    environments.ensure(environments.CHAINER)
    # If the length is that of the full study, its runs are used.
    folder = workdir / ("long" if frames == plans.LONG else f"agreement_{frames}")
    plan = plans.long(folder, frames, seeds=[0])
    trained = runs.train_all(plan, folder, workdir / "frames")
    losses = {row["arm"]: np.float32(row["losses"]) for row in trained}
    kept = [u for u in plans.SNAPSHOTS if u <= frames // runs.FULL.window]
    theirs = {
        arm: {u: dict(np.load(plans.weights(folder, arm, u))) for u in (0, *kept)}
        for arm in plans.PAIR
    }
    video = np.load(runs.frames_file(workdir / "frames", runs.FULL, frames + 1))
    rows: Rows = []
    for targets, arm, other in (
        ("true", plans.COPIED, plans.PUBLISHED),
        ("stale", plans.PUBLISHED, plans.COPIED),
    ):
        start = plans.weights(folder, arm, 0)
        ours, our_losses = replica(start, video["frames"], targets)
        for update in kept:
            stop = update * runs.FULL.window - 1
            a, b = our_losses[:stop], losses[arm][:stop]
            row = compare(ours[update], theirs[arm], theirs[other], update)
            row["loss"] = float(np.max(np.abs(a - b) / b))
            shown = {name: f"{value:.4g}" for name, value in row.items()}
            rows.append({"targets": targets, "update": update, **shown})
    return rows


def replica(
    start: Path, frames: np.ndarray, targets: str
) -> tuple[dict[int, Arrays], np.ndarray]:
    """The weights after each of `SNAPSHOTS`, under Chainer's names, and the losses.

    Args:
        start: Chainer's initial weights.
        frames: uint8 `[T, H, W, C]`.
        targets: `true` or `stale`.
    """
    config, params = weights.load_chainer(start)
    seen: dict[int, dict] = {}

    def keep(step: np.ndarray, params: dict) -> None:
        if int(step) in plans.SNAPSHOTS:
            seen[int(step)] = jax.tree.map(np.array, params)

    adam = optimizers.chainer_adam()

    def update(gradients, state, params=None):
        # The state counts the updates that were made; its weights are those after them.
        jax.debug.callback(keep, state.step, params)
        return adam.update(gradients, state, params)

    trained, losses = train_windows(
        params,
        config,
        frames,
        window=runs.FULL.window,
        targets=targets,
        truncation_leak=True,
        optimizer=optax.GradientTransformation(adam.init, update),
    )
    jax.effects_barrier()
    seen[len(frames) // runs.FULL.window] = jax.tree.map(np.asarray, trained)
    named = {k: weights.chainer.to_chainer(config, p) for k, p in seen.items()}
    return named, np.asarray(losses)


def compare(
    ours: Arrays, theirs: dict[int, Arrays], other: dict[int, Arrays], update: int
) -> dict[str, float]:
    """Distances after an update, in double precision.

    Args:
        ours: weights in JAX.
        theirs: weights in Chainer with the same targets, by update; 0 is the start.
        other: weights in Chainer with the other targets, by update.
        update: number of the update.
    """

    def difference(one: Arrays, other: Arrays) -> Arrays:
        return {k: one[k].astype(np.float64) - other[k] for k in one}

    def norm(arrays: Arrays) -> float:
        return float(np.sqrt(sum(np.sum(x**2) for x in arrays.values())))

    moved = difference(theirs[update], theirs[0])
    apart = difference(ours, theirs[update])
    travelled = norm(moved)
    return {
        "distance": norm(apart) / travelled,
        "worst_tensor": max(
            float(np.linalg.norm(apart[k]) / np.linalg.norm(moved[k])) for k in apart
        ),
        "gap": norm(difference(theirs[update], other[update])) / travelled,
        "travelled": travelled,
    }


def stale(folder: Path, seeds: Iterable[int], updates: int) -> dict[str, Rows]:
    """Rows of the tables `runs`, `positions` and `horizons` of every condition.

    The record of a run is `FOLDER/NAME.json`, beside its model. A run that has a record
    is not repeated, so that an interrupted study continues where it was.
    """
    folder.mkdir(parents=True, exist_ok=True)
    jax.config.update("jax_compilation_cache_dir", str(folder / "cache"))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0)
    tables: dict[str, Rows] = {"runs": [], "positions": [], "horizons": []}
    for seed in seeds:
        for condition in CONDITIONS:
            for targets in ("true", "stale"):
                name = "_".join(map(str, (seed, targets, *condition, updates)))
                path = folder / f"{name}.json"
                if not path.is_file():
                    made = train(folder, seed, condition, targets, updates)
                    records.write_json(path, made)
                    print(name, flush=True)
                for table, rows in records.read_json(path).items():
                    tables[table] += rows
    return tables


def train(
    folder: Path, seed: int, condition: Condition, targets: str, updates: int
) -> dict[str, Rows]:
    """The rows of one run, by table; its model is written to the folder."""
    window = condition.window
    frames = video(seed, condition.speed, transitions(window, updates) + 1)
    params, losses = train_windows(
        init_params(CONFIG, jax.random.key(seed)),
        CONFIG,
        frames,
        window=window,
        targets=targets,
        truncation_leak=True,
        optimizer=optimizers.chainer_adam(condition.rate),
    )
    losses = np.asarray(losses, np.float64)
    sha = hashlib.sha256()
    for leaf in jax.tree.leaves(params):
        sha.update(np.asarray(leaf).tobytes())
    where = {"seed": seed, "targets": targets, "window": window}
    row = {
        "speed": condition.speed,
        "rate": condition.rate,
        "updates": updates,
        "loss": f"{losses[-(len(losses) // 5) :].mean():.9g}",
        "final_sha256": sha.hexdigest(),
    }
    tables: dict[str, Rows] = {"runs": [where | row]}
    if condition == Condition(window=window) and window >= 10:
        tables["positions"] = [
            {**where, "position": i, "loss": f"{loss:.9g}"}
            for i, loss in enumerate(by_position(losses, window), 1)
        ]
    if condition.speed == 1:
        model = folder / f"{seed}_{targets}_{window}_{condition.rate}.model"
        weights.save_chainer(model, CONFIG, params)
        errors = horizon_errors(params, CONFIG, seed + UNSEEN)
        tables["horizons"] = [
            {**where, "rate": condition.rate, "horizon": k, "mse": f"{error:.9g}"}
            for k, error in zip(HORIZONS, errors, strict=True)
        ]
    return tables


def transitions(window: int, updates: int) -> int:
    """Number of transitions in `updates` updates; the first window has one less."""
    return updates * window - (window > 1)


def video(seed: int, speed: int, length: int) -> np.ndarray:
    """Every `speed`-th frame of the walk, uint8 `[length, H, W, C]`; 0 repeats one."""
    source = open_source("walk", height=CONFIG.height, width=CONFIG.width, seed=seed)
    if speed == 0:
        return np.repeat(source.read(0, 1), length, axis=0)
    return source.read(0, speed * (length - 1) + 1)[::speed]


def by_position(losses: np.ndarray, window: int) -> np.ndarray:
    """Mean loss at each position of the window, over the last half of the updates."""
    # The first window has one loss less.
    windows = losses[window - 1 :].reshape(-1, window)
    return windows[len(windows) // 2 :].mean(axis=0)


def horizon_errors(
    params: dict, config: PredNetConfig, seed: int, length: int = 400, skip: int = 20
) -> np.ndarray:
    """MSE `[9]` of the prediction of frame t against each of `HORIZONS`.

    Args:
        params: the weights.
        config: the network.
        seed: seed of the walk that is shown.
        length: number of frames that are shown.
        skip: number of frames at the start that are not counted.
    """
    source = open_source("walk", height=config.height, width=config.width, seed=seed)
    frames = source.read(0, length).astype(np.float32) / 255
    made = np.asarray(predicted(params, config, frames[:, None]))[:, 0]
    stop = length - max(HORIZONS) + 1
    return np.array(
        [
            np.square(made[skip:stop] - frames[skip + k - 1 : stop + k - 1]).mean()
            for k in HORIZONS
        ]
    )


@functools.partial(jax.jit, static_argnums=1)
def predicted(params: dict, config: PredNetConfig, frames: jax.Array) -> jax.Array:
    """The predictions of `frames`; all models of a size share one program."""
    return predict(params, config, frames)[0]


def errors_of(model: Path) -> dict[str, float]:
    """MSE of a Chainer model's predictions by horizon, over the common walks."""
    config, params = weights.load_chainer(model)
    errors = [horizon_errors(params, config, 2 * UNSEEN + i) for i in range(WALKS)]
    means = np.mean(errors, axis=0).tolist()
    return dict(zip(map(str, HORIZONS), means, strict=True))


def references(folder: Path) -> Rows:
    """The reference models of a fingerprint: those that `stale` left in its folder."""
    rows = []
    for model in sorted(folder.glob("*.model")):
        names = ("seed", "targets", "window", "rate")
        where = dict(zip(names, model.stem.split("_"), strict=True))
        for horizon, mse in errors_of(model).items():
            rows.append({**where, "horizon": horizon, "mse": f"{mse:.9g}"})
    if not rows:
        raise UserError(f"{folder}: expected files SEED_TARGETS_WINDOW_RATE.model")
    return rows


def fingerprint(model: Path, reference: Path) -> dict[str, object]:
    """`judgement.verdict` on a Chainer model, by the table that `references` made.

    Raises:
        UserError: the file is another table.
    """
    table = pd.DataFrame(records.read_csv(reference))
    if missing := [name for name in judgement.COLUMNS if name not in table]:
        raise UserError(
            f"{reference}: no column {', '.join(missing)}; expected what "
            "`chainer_reproduction references` writes"
        )
    known = judgement.errors_by_model(table)
    return judgement.verdict(errors_of(model), known)
