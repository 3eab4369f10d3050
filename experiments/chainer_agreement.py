"""How closely a training in JAX follows the same training in Chainer.

    .venv/bin/python experiments/chainer_agreement.py

Chainer and JAX train the same network from the same weights on the same frames (64x48,
channels 3,12,24,48, window 20), with true targets (in Chainer: copied) and with stale
targets (as published). The two libraries round differently, so the distance between
their weights grows. It is divided by the distance that training has travelled, and
compared with the distance between Chainer's trainings with true and stale targets. That
has to be much larger if results in JAX are to hold for Chainer.
"""

import sys
from pathlib import Path
from typing import Any

import _rows
import chainer_plans as plans
import environments
import jax
import numpy as np
import optax
from chainer_runs import FULL, execute

from prednet_jax import optimizers, train_windows, weights

# Names of the two kinds of target: those of train.py, and those of `chainer_plans`.
ARMS = {"true": "target copied", "stale": "published"}
FIELDS = ("targets", "update", "distance", "worst_tensor", "gap", "travelled", "loss")
Arrays = dict[str, np.ndarray]


def main() -> int:
    """Trains in Chainer and in JAX, compares, writes the table; the exit status."""
    parser = _rows.parser(__doc__)
    parser.add_argument("--workdir", type=Path, default=Path("runs/chainer"))
    parser.add_argument(
        "--frames", type=int, default=plans.LONG, help="transitions to train on"
    )
    parser.add_argument("--record", type=Path, help="CSV to write the rows to")
    args = parser.parse_args()
    jax.config.update("jax_compilation_cache_dir", str(args.workdir / "cache"))
    try:
        python = environments.ensure(environments.chainer())
    except environments.EnvironmentsError as error:
        print(error, file=sys.stderr)
        return 2
    # If the length is that of the full study, its runs are used.
    name = "long" if args.frames == plans.LONG else f"agreement_{args.frames}"
    folder = args.workdir / name
    kept = [u for u in plans.SNAPSHOTS if u <= args.frames // FULL.window]
    theirs: dict[str, dict[int, Arrays]] = {}
    losses: dict[str, list[float]] = {}
    frames_at = args.workdir / "frames"
    for run in plans.long(frames_at, folder, args.frames, seeds=range(1)):
        losses[run.arm] = execute(run, python, folder)["losses"]
        stem = plans.weights_file(run.arm).removesuffix(".npz")
        theirs[run.arm] = {
            update: dict(np.load(folder / f"{stem}.{update}.npz"))
            for update in (0, *kept)
        }
    frames = np.load(run.data)["frames"]
    rows = []
    for targets, arm in ARMS.items():
        start = folder / f"{plans.weights_file(arm).removesuffix('.npz')}.0.npz"
        ours, our_losses = replica(start, frames, targets)
        other = theirs[next(a for a in ARMS.values() if a != arm)]
        rows += compare(
            targets, kept, ours, theirs[arm], other, our_losses, losses[arm]
        )
    _rows.write(args.record or args.workdir / "agreement.csv", rows, FIELDS)
    for row in rows:
        print(*(f"{name}={row[name]}" for name in FIELDS))
    return 0


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

    trained, losses = train_windows(
        params,
        config,
        frames,
        window=FULL.window,
        targets=targets,
        truncation_leak=True,
        optimizer=watched(optimizers.chainer_adam(), keep),
    )
    jax.effects_barrier()
    seen[len(frames) // FULL.window] = jax.tree.map(np.asarray, trained)
    named = {k: weights.chainer.to_chainer(config, p) for k, p in seen.items()}
    return named, np.asarray(losses)


def watched(optimizer: optax.GradientTransformation, keep) -> Any:
    """An optimiser that calls a function on the host before each update.

    Args:
        optimizer: an optax transformation whose state has `step`, the number of updates
            made.
        keep: called with that number and the weights.
    """

    def update(gradients, state, params=None):
        jax.debug.callback(keep, state.step, params)
        return optimizer.update(gradients, state, params)

    return optax.GradientTransformation(optimizer.init, update)


def compare(
    targets: str,
    updates: list[int],
    ours: dict[int, Arrays],
    theirs: dict[int, Arrays],
    other: dict[int, Arrays],
    our_losses: np.ndarray,
    their_losses: list[float],
) -> list[dict]:
    """One row per update in `updates`.

    Args:
        targets: `true` or `stale`.
        updates: the updates after which the weights were kept.
        ours: weights in JAX, by update.
        theirs: weights in Chainer with the same targets; update 0 is the start.
        other: weights in Chainer with the other targets.
        our_losses: losses in JAX, one per frame.
        their_losses: losses in Chainer, one per frame.
    """
    rows = []
    for update in updates:
        stop = update * FULL.window - 1
        a, b = our_losses[:stop], np.float32(their_losses[:stop])
        travelled = norm(difference(theirs[update], theirs[0]))
        apart = difference(ours[update], theirs[update])
        moved = difference(theirs[update], theirs[0])
        values = {
            "distance": norm(apart) / travelled,
            "worst_tensor": max(
                np.linalg.norm(apart[k]) / np.linalg.norm(moved[k]) for k in apart
            ),
            "gap": norm(difference(theirs[update], other[update])) / travelled,
            "travelled": travelled,
            "loss": np.max(np.abs(a - b) / b),
        }
        row = {k: f"{v:.4g}" for k, v in values.items()}
        rows.append({"targets": targets, "update": update, **row})
    return rows


def difference(one: Arrays, other: Arrays) -> Arrays:
    """The differences of arrays of equal names, in double precision."""
    return {k: one[k].astype(np.float64) - other[k] for k in one}


def norm(arrays: Arrays) -> float:
    """L2 norm of all arrays together."""
    return float(np.sqrt(sum(np.sum(x**2) for x in arrays.values())))


if __name__ == "__main__":
    sys.exit(main())
