"""How closely a training in JAX follows the same training in Chainer.

Chainer and JAX train the same network from the same weights on the same frames (64x48,
channels 3,12,24,48, window 20), with true targets (in Chainer: copied) and with stale
targets (as published). The two libraries round differently, so the distance between
their weights grows. It is divided by the distance that training has travelled, and
compared with the distance between Chainer's trainings with true and stale targets. That
has to be much larger if results in JAX are to hold for Chainer.
"""

from pathlib import Path

import jax
import numpy as np
import optax

from chainer_reproduction import environments, plans, runs
from prednet_jax import optimizers, train_windows, weights

Arrays = dict[str, np.ndarray]


def measure(workdir: Path, frames: int = plans.LONG) -> list[dict[str, object]]:
    """Trains in Chainer and in JAX, and compares.

    Args:
        workdir: its folders `frames` and `long` hold what is there already.
        frames: number of frames that are predicted.

    Returns:
        One row per kind of target and update of `plans.SNAPSHOTS`.
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
    rows: list[dict[str, object]] = []
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
    """Distances after an update.

    Args:
        ours: weights in JAX.
        theirs: weights in Chainer with the same targets, by update; 0 is the start.
        other: weights in Chainer with the other targets, by update.
        update: number of the update.
    """
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


def difference(one: Arrays, other: Arrays) -> Arrays:
    """The differences of arrays of equal names, in double precision."""
    return {k: one[k].astype(np.float64) - other[k] for k in one}


def norm(arrays: Arrays) -> float:
    """L2 norm of all arrays together."""
    return float(np.sqrt(sum(np.sum(x**2) for x in arrays.values())))
