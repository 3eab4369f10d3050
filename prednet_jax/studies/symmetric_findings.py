"""What the trainings from a symmetric start show, from their table.

The criteria are those of docs/study/plan.md, part A. An arm, at one delta of one
program, separates earlier than float32 if in every seed it needs less than 95 % of
float32's updates. It lowers the loss if in every seed its loss is lower by more than
the margin. "Later" and "higher" are the same with the sign changed. A run that never
separates counts as separating one update after the last.
"""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from prednet_jax import errors, records
from prednet_jax.statistics import MARGIN_FRACTION

#: How much earlier separation has to be, as a fraction of the control's update.
EARLIER = 0.05
#: How much higher the loss of the symmetric network has to be than that of the free
#: one, as a fraction.
WORSE = 0.2
CONTROL, TREATMENT, NULL = "float32", "tile", "shared"
#: Split at which twins are separate before the first update.
FREE = 0.1


class Check(NamedTuple):
    """A check of the plan: whether it passed, and what was measured, in words."""

    passed: bool
    figure: str


class Row(NamedTuple):
    """One run: program, arm, split and seed as in `symmetric_runs.Run`, and its end.

    Attributes:
        program: `ordinary` or `symmetric`.
        arm: one of `symmetric_runs.ARMS`.
        delta: relative split of the twins at the start.
        seed: root seed.
        separated_at: update of separation; updates + 1: never.
        equal: whether every weight always had the same bits as its twin.
        loss: mean loss over the last fifth of the updates.
        updates: number of updates.
        sha256: SHA-256 of the final weights.
    """

    program: str
    arm: str
    delta: float
    seed: int
    separated_at: int
    equal: bool
    loss: float
    updates: int
    sha256: str = ""


def read(path: Path) -> list[Row]:
    """The rows of runs.csv.

    Raises:
        RecordError: there is no such file.
        UserError: a run occurs twice, or diverged (its loss is not finite), so that it
            says nothing about separation.
    """
    rows = [
        Row(
            program=row["program"],
            arm=row["arm"],
            delta=float(row["delta"]),
            seed=int(row["seed"]),
            separated_at=int(row["separated_at"] or int(row["updates"]) + 1),
            equal=not row["unequal_at"],
            loss=float(row["final_loss"]),
            updates=int(row["updates"]),
            sha256=row["final_params_sha256"],
        )
        for row in records.read_csv(path)
    ]
    for row in rows:
        if not np.isfinite(row.loss):
            raise errors.UserError(f"{path}: {row} diverged; expected finite losses")
    names = [row[:4] for row in rows]
    if twice := {name for name in names if names.count(name) > 1}:
        raise errors.UserError(f"{path}: {sorted(twice)} twice; expected one row each")
    return rows


def runs(rows: Iterable[Row], program: str, arm: str, delta: float) -> list[Row]:
    """The runs of one arm at one delta of one program, in the order of the seeds."""
    mine = [r for r in rows if (r.program, r.arm, r.delta) == (program, arm, delta)]
    return sorted(mine, key=lambda row: row.seed)


def effects(rows: Sequence[Row]) -> list[dict[str, Any]]:
    """Every arm against float32, by program, delta and arm, if all seeds were run.

    Returns:
        For each `program`, `delta` and `arm`; one number per seed: `separated_at`,
        `losses`, and `over_control`, final loss over that of float32; and in a word
        `separation` ("earlier", "later") and `loss` ("lower", "higher"; both "no
        effect" or "control").
    """
    seeds = {row.seed for row in rows}
    keys = dict.fromkeys((row.program, row.delta, row.arm) for row in rows)
    order = {"symmetric": 0, "ordinary": 1}
    made = []
    for program, delta, arm in sorted(keys, key=lambda k: (order[k[0]], k[1])):
        mine = runs(rows, program, arm, delta)
        control = runs(rows, program, CONTROL, delta)
        if not {r.seed for r in mine} == seeds == {r.seed for r in control}:
            continue
        at, at_control = (
            np.array([r.separated_at for r in of]) for of in (mine, control)
        )
        ratio = _ratios(mine, control)
        separation = _word(at / at_control, EARLIER, "earlier", "later")
        loss = _word(np.array(ratio), MARGIN_FRACTION, "lower", "higher")
        effect = {
            "program": program,
            "delta": delta,
            "arm": arm,
            "separated_at": at.tolist(),
            "losses": [row.loss for row in mine],
            "over_control": ratio,
            "separation": "control" if arm == CONTROL else separation,
            "loss": "control" if arm == CONTROL else loss,
        }
        made.append(effect)
    return made


def _ratios(mine: Sequence[Row], control: Sequence[Row]) -> list[float]:
    return [a.loss / b.loss for a, b in zip(mine, control, strict=False)]


def _word(ratios: np.ndarray, margin: float, less: str, more: str) -> str:
    """The finding from one ratio per seed."""
    if (ratios < 1 - margin).all():
        return less
    return more if (ratios > 1 + margin).all() else "no effect"


def checks(rows: Sequence[Row]) -> dict[str, Check]:
    """The checks of the plan; if one of the first two fails, part A has no result."""
    quiet, null, noisy = (
        runs(rows, "symmetric", arm, 0.0) for arm in (CONTROL, NULL, TREATMENT)
    )
    kept = quiet + null
    equal = sum(row.equal for row in kept)
    worse = _ratios(quiet, runs(rows, "symmetric", CONTROL, FREE))
    lower = _ratios(noisy, quiet)
    left = sum(row.separated_at <= row.updates for row in noisy)
    return {
        "stays symmetric without noise": Check(
            passed=bool(kept) and equal == len(kept),
            figure=f"{equal} of {len(kept)} runs without noise, or with one order "
            "shared by all outputs, keep every bit of the twins equal at every update",
        ),
        "the symmetric solution is worse": Check(
            passed=len(worse) == len(quiet) and min(worse, default=0.0) > 1 + WORSE,
            figure="loss of the symmetric network over that of the free one: "
            f"{_numbers(worse)}",
        ),
        "noise separates and lowers the loss": Check(
            passed=0 < left == len(quiet)
            and max(lower, default=1) < 1 - MARGIN_FRACTION,
            figure=f"tile order leaves the exact saddle in {left} of {len(noisy)} "
            f"seeds; its loss over that without noise: {_numbers(lower)}",
        ),
    }


def _numbers(values: Sequence[float]) -> str:
    return ", ".join(f"{value:.2f}" for value in values) or "not run"


def largest_delta(found: Iterable[Mapping[str, Any]], program: str) -> float | None:
    """The largest delta of a program at which tile order lowers the loss, or None."""
    helped = (program, TREATMENT, "lower")
    return max(
        (e["delta"] for e in found if (e["program"], e["arm"], e["loss"]) == helped),
        default=None,
    )
