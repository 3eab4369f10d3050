"""The interventions on the Chainer training, and the predicted effect of each.

The explanation under test: since some release Chainer's loss reads its inputs again in
the backward pass, and the published script overwrites the target before that. So an
intervention changes the weights only if it protects the target or makes overwriting it
harmless, and all such interventions lead to the same bits.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from chainer_runs import FULL, QUICK, Run, Size, runs_of

# Flags of in_chainer/run.py for each arm.
ARMS: dict[str, tuple[str, ...]] = {
    "published": (),
    "input copied": ("--input=copied",),
    "remade": ("--remake",),
    "target copied": ("--target=copied",),
    "both copied": ("--input=copied", "--target=copied"),
    "difference kept": ("--loss=difference_kept",),
    "remade, target copied": ("--remake", "--target=copied"),
    "static": ("--static",),
    "static, target copied": ("--static", "--target=copied"),
    "window 1": ("--window=1",),
    "window 1, target copied": ("--window=1", "--target=copied"),
}
# The two arms that all other studies compare.
PAIR = {arm: ARMS[arm] for arm in ("published", "target copied")}
MEANING = {
    "published": "one buffer for the input, one for the target",
    "input copied": "a new array for every input",
    "remade": "new arrays for parameters and state after every update, as a transfer "
    "makes",
    "target copied": "a new array for every target, as a transfer to a GPU makes",
    "both copied": "new arrays for input and target",
    "difference kept": "the loss keeps x0 - x1, as Chainer did before 3.0.0rc1",
    "remade, target copied": "both together: all that a GPU run copies",
    "static": "published, every frame the same",
    "static, target copied": "the same, target copied",
    "window 1": "published, an update after every frame",
    "window 1, target copied": "the same, target copied",
}


class Prediction(NamedTuple):
    """A prediction about the final weights of two arms.

    Attributes:
        one: an arm.
        other: another arm.
        same: whether their final weights are predicted to be equal.
    """

    one: str
    other: str
    same: bool


PREDICTIONS = (
    Prediction("input copied", "published", True),
    Prediction("remade", "published", True),
    Prediction("target copied", "published", False),
    Prediction("both copied", "target copied", True),
    Prediction("difference kept", "target copied", True),
    Prediction("remade, target copied", "target copied", True),
    Prediction("static", "static, target copied", True),
    Prediction("window 1", "window 1, target copied", True),
)


def interventions(
    size: Size, frames: int, seeds: range, folder: Path, prefix: str
) -> list[Run]:
    """Every arm on every seed."""
    found = []
    for seed in seeds:
        found += runs_of(
            ARMS,
            folder,
            prefix=f"{prefix}-{seed}",
            size=size,
            frames=frames,
            seed=seed,
        )
    return found


def quick(folder: Path) -> list[Run]:
    """One seed at 24x32, 200 frames."""
    return interventions(QUICK, 200, range(1), folder, "quick")


def full(folder: Path) -> list[Run]:
    """Five seeds at 64x48, 200 frames."""
    return interventions(FULL, 200, range(5), folder, "full")


# Updates after which the long runs of the first seed keep their weights, to be compared
# with those in JAX.
SNAPSHOTS = (1, 2, 3, 5, 8, 12, 20, 30, 40, 50)
# Transitions of the long runs: 50 updates.
LONG = 1000


def long(
    folder: Path, weights: Path, frames: int = LONG, seeds: range = range(5)
) -> list[Run]:
    """Published and copied at 64x48 for many frames.

    Args:
        folder: folder of the frames.
        weights: folder for the weights of the first seed at `SNAPSHOTS`.
        frames: number of transitions.
        seeds: seeds of the initial weights.
    """
    found = []
    for seed in seeds:
        arms = dict(PAIR)
        if seed == 0:
            kept = "--snapshots=" + ",".join(map(str, SNAPSHOTS))
            for arm, flags in PAIR.items():
                arms[arm] = (*flags, f"--weights={weights / weights_file(arm)}", kept)
        found += runs_of(
            arms, folder, prefix=f"long-{seed}", size=FULL, frames=frames, seed=seed
        )
    return found


def weights_file(arm: str) -> str:
    """Name of the file of an arm's final weights."""
    return f"{arm.replace(' ', '_')}.npz"


def check(finals: Mapping[str, str]) -> list[tuple[Prediction, bool]]:
    """Each prediction that can be tested, and whether it came true.

    Args:
        finals: SHA-256 of the final weights by arm, for one seed.
    """
    return [
        (p, (finals[p.one] == finals[p.other]) == p.same)
        for p in PREDICTIONS
        if p.one in finals and p.other in finals
    ]
