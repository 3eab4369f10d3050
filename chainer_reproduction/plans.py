"""The trainings in Chainer, as data, and what was predicted of their final weights.

The explanation under test: since some release Chainer's loss reads its inputs again in
the backward pass, and the published script overwrites the target before that. So an
intervention changes the weights only if it protects the target or makes overwriting it
harmless, and all such interventions lead to the same bits.
"""

import itertools
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from chainer_reproduction.environments import IDEEP, RELEASES
from chainer_reproduction.runs import FULL, QUICK, Run, Size


class Arm(NamedTuple):
    """A change of the published loop: flags of in_chainer/run.py, and their meaning."""

    flags: tuple[str, ...]
    meaning: str


PUBLISHED, COPIED = "published", "target copied"
_COPY = "--target=copied"
ARMS = {
    PUBLISHED: Arm((), "one buffer for the input, one for the target"),
    "input copied": Arm(("--input=copied",), "a new array for every input"),
    "remade": Arm(
        ("--remake",),
        "new arrays for parameters and state after every update, as a transfer makes",
    ),
    COPIED: Arm((_COPY,), "a new array for every target, as a transfer to a GPU makes"),
    "both copied": Arm(("--input=copied", _COPY), "new arrays for input and target"),
    "difference kept": Arm(
        ("--loss=difference_kept",),
        "the loss keeps x0 - x1, as Chainer did before 3.0.0rc1",
    ),
    "remade, target copied": Arm(
        ("--remake", _COPY), "both together: all that a GPU run copies"
    ),
    "static": Arm(("--static",), "published, every frame the same"),
    "static, target copied": Arm(("--static", _COPY), "the same, target copied"),
    "window 1": Arm(("--window=1",), "published, an update after every frame"),
    "window 1, target copied": Arm(("--window=1", _COPY), "the same, target copied"),
}
# The two arms that all other studies compare.
PAIR = (PUBLISHED, COPIED)
# (one arm, another, whether their final weights are predicted to be equal).
PREDICTIONS = (
    ("input copied", PUBLISHED, True),
    ("remade", PUBLISHED, True),
    (COPIED, PUBLISHED, False),
    ("both copied", COPIED, True),
    ("difference kept", COPIED, True),
    ("remade, target copied", COPIED, True),
    ("static", "static, target copied", True),
    ("window 1", "window 1, target copied", True),
)
# The first release whose mean squared error reads its inputs again: commit 0cb47d99f1
# of Chainer ("Do not hold diff in forward_xxx", 28 August 2017).
CHANGED_IN = "3.0.0rc1"
# Updates after which the long runs of the first seed keep their weights, to be compared
# with those in JAX.
SNAPSHOTS = (1, 2, 3, 5, 8, 12, 20, 30, 40, 50)
# Frames that the long runs predict: 50 updates.
LONG = 1000


def _runs(
    prefix: str,
    size: Size,
    frames: int,
    arms: Iterable[str] = ARMS,
    flags: tuple[str, ...] = (),
    **options: Any,
) -> list[Run]:
    """One run per arm; `options` are further fields of `Run`."""
    names = {arm: arm.replace(", ", "-").replace(" ", "_") for arm in arms}
    return [
        Run(f"{prefix}-{name}", arm, size, frames, ARMS[arm].flags + flags, **options)
        for arm, name in names.items()
    ]


def quick() -> list[Run]:
    """Every arm, one seed at 24x32, 200 frames."""
    return _runs("quick-0", QUICK, 200)


def full() -> list[Run]:
    """Every arm, five seeds at 64x48, 200 frames."""
    seeds = (_runs(f"full-{seed}", FULL, 200, seed=seed) for seed in range(5))
    return list(itertools.chain(*seeds))


def long(
    folder: Path, frames: int = LONG, seeds: Iterable[int] = range(5)
) -> list[Run]:
    """Published and copied at 64x48 for many frames.

    The folder is for the weights of the first seed at `SNAPSHOTS`.
    """
    plan: list[Run] = []
    for seed in seeds:
        for arm in PAIR:
            flags: tuple[str, ...] = ()
            if seed == 0:
                updates = ",".join(map(str, (0, *SNAPSHOTS)))
                flags = (f"--weights={weights(folder, arm)}", f"--snapshots={updates}")
            plan += _runs(f"long-{seed}", FULL, frames, [arm], flags, seed=seed)
    return plan


def weights(folder: Path, arm: str, update: int | None = None) -> Path:
    """File of an arm's weights in the long runs, final or after an update."""
    number = "" if update is None else f".{update}"
    return folder / f"{arm.replace(' ', '_')}{number}.npz"


def bisection() -> list[Run]:
    """Published and copied under releases before and after the change."""
    return [
        run
        for release, environment in RELEASES.items()
        for run in _runs(release, QUICK, 60, PAIR, environment=environment)
    ]


# What each study of another explanation varies: fields of `Run` by name of the value.
OTHERS: dict[str, dict[object, dict[str, Any]]] = {
    # The BLAS with 1, 4 and 6 threads, as on the article's CPUs.
    "threads": {count: {"threads": count} for count in (1, 4, 6)},
    # Chainer's iDeep back end; Chainer's default is off.
    "ideep": {
        use: {"flags": (f"--ideep={use}",), "environment": IDEEP}
        for use in ("never", "always")
    },
    # Other frames, same initial weights.
    "order": {seed: {"data_seed": seed} for seed in range(1, 5)},
    # Other initial weights, same frames; these seeds had not been used before.
    "seeds": {seed: {"seed": seed} for seed in range(100, 112)},
}


def others(study: str) -> list[Run]:
    """Published and copied at 24x32, 400 frames, for each value of a study."""
    return [
        run
        for value, options in OTHERS[study].items()
        for run in _runs(f"{study}-{value}", QUICK, 400, PAIR, study=study, **options)
    ]


Rows = Iterable[Mapping[str, Any]]
Checked = list[tuple[str, bool]]


def ends(rows: Rows, by: str, arm: str = "arm") -> dict[Any, dict[str, str]]:
    """SHA-256 of the final weights, by one column and then by arm."""
    finals: dict[Any, dict[str, str]] = {}
    for row in rows:
        finals.setdefault(row[by], {})[row[arm]] = row["final_sha256"]
    return finals


def check_interventions(rows: Rows) -> Checked:
    """Each of `PREDICTIONS` for each seed, and whether it came true."""
    words = {True: "the same weights as", False: "other weights than"}
    return [
        (f"seed {seed}: {arm}: {words[same]} {other}", (end[arm] == end[other]) == same)
        for seed, end in sorted(ends(rows, "seed").items())
        for arm, other, same in PREDICTIONS
    ]


def check_bisection(rows: Rows) -> Checked:
    """A gap from `CHANGED_IN` on, and whether that came true."""
    finals, order = ends(rows, "release"), list(RELEASES)
    checked: Checked = []
    for release, end in finals.items():
        gap = order.index(release) >= order.index(CHANGED_IN)
        held = (end[PUBLISHED] != end[COPIED]) == gap
        checked.append((f"Chainer {release}: {'a gap' if gap else 'no gap'}", held))
    # These releases differ, in what is used here, in this one file of Chainer.
    alike = [r for r in finals if order.index(r) <= order.index("5.0.0")]
    if len(alike) > 1:
        text = f"{', '.join(alike)}: the same weights with copied targets"
        checked.append((text, len({finals[r][COPIED] for r in alike}) == 1))
    return checked


def check_transplant(rows: Rows) -> Checked:
    """A gap with more than one loss per update, and whether that came true."""
    cases: dict[tuple[str, int], list] = {}
    for row in rows:
        case = (row["network"], int(row["losses_per_update"]))
        cases.setdefault(case, []).append(row)
    checked: Checked = []
    for (network, losses), chosen in cases.items():
        gap = losses > 1
        finals = ends(chosen, "seed", "target").values()
        held = all((end["shared"] != end["copied"]) == gap for end in finals)
        words = "a gap" if gap else "no gap"
        checked.append((f"{network}, {losses} losses per update: {words}", held))
    return checked
