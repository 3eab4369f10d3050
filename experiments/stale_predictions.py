"""Measures in JAX what the explanation by stale targets predicts.

    .venv/bin/python experiments/stale_predictions.py

The predictions, results/chainer/predictions.json, were written before the runs. Each
run appends its rows to tidy tables in --workdir. Runs that are in the tables are not
repeated, so that an interrupted study continues where it was.
"""

import csv
import functools
import hashlib
import shutil
import sys
from pathlib import Path
from typing import NamedTuple

import _rows
import jax
import numpy as np

from prednet_jax import (
    PredNetConfig,
    init_params,
    optimizers,
    predict,
    train_windows,
    weights,
)
from prednet_jax.data import open_source

CONFIG = PredNetConfig(channels=(3, 6, 12), height=24, width=32)
SEEDS = range(7000, 7008)
UPDATES = 200
# Positions of frames relative to the last one seen: 1 is the frame that is predicted, 0
# and below are frames that were seen.
HORIZONS = range(-3, 6)
# Added to a seed to get the walk on which horizons are measured; no run trains on it.
UNSEEN = 100_000


class Condition(NamedTuple):
    """A condition of the study.

    Attributes:
        window: transitions per update.
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
TARGETS = ("true", "stale")
FIELDS = {
    "runs": "seed targets window speed rate updates loss final_sha256",
    "positions": "seed targets window position loss",
    "horizons": "seed targets window rate horizon mse",
}


def main() -> int:
    """Runs what is missing; the exit status."""
    parser = _rows.parser(__doc__)
    parser.add_argument("--workdir", type=Path, default=Path("runs/stale_predictions"))
    parser.add_argument("--seeds", type=int, default=len(SEEDS), help="how many")
    parser.add_argument("--updates", type=int, default=UPDATES)
    parser.add_argument("--first_seed", type=int, default=SEEDS[0])
    parser.add_argument(
        "--record", type=Path, help="folder to copy the tables to, as stale_*.csv"
    )
    args = parser.parse_args()
    args.workdir.mkdir(parents=True, exist_ok=True)
    jax.config.update("jax_compilation_cache_dir", str(args.workdir / "cache"))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0)
    done = {key(row) for row in _rows.read(args.workdir / "runs.csv")}
    for seed in range(args.first_seed, args.first_seed + args.seeds):
        for condition in CONDITIONS:
            for targets in TARGETS:
                name = (str(seed), targets, *map(str, condition))
                if name not in done:
                    one_run(args.workdir, seed, condition, targets, args.updates)
                    print(*name, flush=True)
    if args.record:
        for table in FIELDS:
            shutil.copy(
                args.workdir / f"{table}.csv", args.record / f"stale_{table}.csv"
            )
    return 0


def one_run(
    folder: Path, seed: int, condition: Condition, targets: str, updates: int
) -> None:
    """Trains once and appends the run's rows; that of the table `runs` comes last."""
    frames = video(seed, condition.speed, transitions(condition.window, updates) + 1)
    params = init_params(CONFIG, jax.random.key(seed))
    params, losses = train_windows(
        params,
        CONFIG,
        frames,
        window=condition.window,
        targets=targets,
        truncation_leak=True,
        optimizer=optimizers.chainer_adam(condition.rate),
    )
    losses = np.asarray(losses, np.float64)
    where = {"seed": seed, "targets": targets, "window": condition.window}
    if condition == Condition(window=condition.window) and condition.window >= 10:
        append(folder, "positions", where, by_position(losses, condition.window))
    if condition.speed == 1:
        rows = by_horizon(params, seed)
        append(folder, "horizons", where | {"rate": condition.rate}, rows)
        name = f"{seed}_{targets}_{condition.window}_{condition.rate}.model"
        weights.save_chainer(folder / name, CONFIG, params)
    sha = hashlib.sha256()
    for leaf in jax.tree.leaves(params):
        sha.update(np.asarray(leaf).tobytes())
    row = {
        "speed": condition.speed,
        "rate": condition.rate,
        "updates": updates,
        "loss": f"{losses[-(len(losses) // 5) :].mean():.9g}",
        "final_sha256": sha.hexdigest(),
    }
    append(folder, "runs", where, [row])


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


def by_position(losses: np.ndarray, window: int) -> list[dict]:
    """Mean loss at each position of the window, over the last half of the updates."""
    # The first window has one loss less.
    windows = losses[window - 1 :].reshape(-1, window)
    means = windows[len(windows) // 2 :].mean(axis=0)
    return [{"position": i + 1, "loss": f"{m:.9g}"} for i, m in enumerate(means)]


def by_horizon(params: dict, seed: int) -> list[dict]:
    """MSE of the predictions against earlier and later frames, one row per horizon."""
    errors = horizon_errors(params, CONFIG, seed + UNSEEN)
    return [
        {"horizon": k, "mse": f"{error:.9g}"}
        for k, error in zip(HORIZONS, errors, strict=True)
    ]


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


def key(row: dict) -> tuple[str, ...]:
    """The name of a run: its seed, targets and condition."""
    return tuple(row[name] for name in ("seed", "targets", *Condition._fields))


def append(folder: Path, table: str, where: dict, rows: list[dict]) -> None:
    """Appends rows to a table in one write."""
    path = folder / f"{table}.csv"
    begun = path.is_file()
    with open(path, "a", newline="") as file:
        out = csv.DictWriter(file, FIELDS[table].split(), lineterminator="\n")
        if not begun:
            out.writeheader()
        out.writerows([{**where, **row} for row in rows])


if __name__ == "__main__":
    sys.exit(main())
