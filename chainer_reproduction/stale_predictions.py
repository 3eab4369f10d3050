"""Measures in JAX what the explanation by stale targets predicts.

The record of a run is `FOLDER/NAME.json`. A run that has a record is not repeated, so
that an interrupted study continues where it was.
"""

import functools
import hashlib
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

import jax
import numpy as np

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

CONFIG = PredNetConfig(channels=(3, 6, 12), height=24, width=32)
# Positions of frames relative to the last one seen: 1 is the frame that is predicted, 0
# and below are frames that were seen.
HORIZONS = range(-3, 6)
# Added to a seed to get the walk on which horizons are measured; no run trains on it.
UNSEEN = 100_000
Rows = list[dict[str, object]]


class Condition(NamedTuple):
    """A condition of the study.

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


def measure(folder: Path, seeds: Iterable[int], updates: int) -> dict[str, Rows]:
    """Makes the runs that have no record.

    Args:
        folder: folder of the records and of the trained models.
        seeds: seeds of weights and frames.
        updates: number of updates of a run.

    Returns:
        The rows of the tables `runs`, `positions` and `horizons`.
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
    """Every `speed`-th frame of the walk; speed 0 repeats the first.

    Returns:
        uint8 `[length, H, W, C]`.
    """
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
    """MSE of the prediction of frame t against frames t - 4, .., t + 4.

    Args:
        params: the weights.
        config: the network.
        seed: seed of the walk that is shown.
        length: number of frames that are shown.
        skip: number of frames at the start that are not counted.

    Returns:
        `[9]`, one MSE per entry of `HORIZONS`.
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
