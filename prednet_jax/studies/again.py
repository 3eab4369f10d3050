"""The study made again: on another machine, and in small by `make compare`.

The same bits are to be expected on the same kind of processor alone. Elsewhere sums are
rounded in other ways, and trajectories separate. Then a loss agrees if it differs by no
more than another rounding changed the loss of any published seed.
"""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from prednet_jax import errors, records, runs, statistics
from prednet_jax.studies import judgement, seed_records, symmetric_findings
from prednet_jax.studies.judgement import NULL, PRIMARY
from prednet_jax.studies.parts import CONTROL, PARTS
from prednet_jax.studies.symmetric_findings import Row
from prednet_jax.tasks import Task

#: The part that `make compare` repeats.
PART = PARTS["C"]
#: The part with an exact saddle, and its runs that are repeated: float32, a fresh order
#: at every call, and one order for the whole run. Twins have different orders.
SADDLE = "A"
SADDLE_ARMS = (CONTROL, "tile", "run")
_TWINS = "order_between_twins"
#: Pairs of arms from a symmetric start that differ in rounding only: both keep twins
#: equal, or both separate them. The second pair has runs at delta 0 alone.
ROUNDING = ((symmetric_findings.NULL, symmetric_findings.CONTROL), ("tile", "run"))


class Agreement(NamedTuple):
    """A run that was made again, beside the published one.

    Attributes:
        run: which one, in words.
        again: the new loss; None where it diverged.
        published: the published one.
        error: by which factor the two may differ, at least 1.
        bits: whether the final weights are the same in every bit.
        holds: same bits, both diverged, or losses within `error` (and, from a symmetric
            start, both separated or neither did).
    """

    run: str
    again: float | None
    published: float | None
    error: float
    bits: bool
    holds: bool

    def __str__(self) -> str:
        outcome = "same bits" if self.bits else "agrees" if self.holds else "DIFFERS"
        return (
            f"{self.run}: {self.again}, {self.published}, {self.error:.3f}: {outcome}"
        )


def of_seeds(
    again: Iterable[Mapping[str, Any]], published: Sequence[Mapping[str, Any]]
) -> list[Agreement]:
    """Every run of the seeds of a part beside the published one; records of seeds.

    Raises:
        UserError: as `check_seeds`.
    """
    again = list(again)
    error = check_seeds(published, [record["seed"] for record in again])
    by_seed = {record["seed"]: record for record in published}
    agreements = []
    for record in again:
        pairs = zip(record["runs"], by_seed[record["seed"]]["runs"], strict=True)
        for new, old in pairs:
            bits = new["final_params_sha256"] == old["final_params_sha256"]
            losses = new.get(PRIMARY), old.get(PRIMARY)
            holds = bits or losses == (None, None) or _factor(*losses) <= error
            run = f"{record['seed']}, {new['arm']}, {new['draw']}"
            agreements.append(Agreement(run, *losses, error, bits, holds))
    return agreements


def check_seeds(published: Sequence[Mapping[str, Any]], seeds: Iterable[int]) -> float:
    """By which factor a loss may differ: the largest of the A/A null and the control.

    Args:
        published: the part's published records.
        seeds: those that are to be made again.

    Raises:
        UserError: a seed that was never published, or a part without A/A null.
    """
    factors = []
    for record in published:
        losses = {run["arm"]: run.get(PRIMARY) for run in record["runs"]}
        # A diverged run says nothing about the size of rounding's effect.
        if losses.get(NULL) is not None and losses.get(CONTROL) is not None:
            factors.append(_factor(losses[NULL], losses[CONTROL]))
    if not factors:
        raise errors.UserError(
            f"no published seed has the arm {NULL}, from which the error is taken; "
            "expected part C"
        )
    for seed in seeds:
        errors.one_of("seed", seed, tuple(record["seed"] for record in published))
    return max(factors)


def of_symmetric(again: Iterable[Row], published: Sequence[Row]) -> list[Agreement]:
    """Every run from a symmetric start beside the published one.

    Raises:
        UserError: a run was not published, or there are no published runs from which to
            take the error.
    """
    agreements = []
    for row in again:
        run = f"{row.program}, {row.arm}, {row.delta:g}, {row.seed}"
        old = [other for other in published if other[:4] == row[:4]]
        error = _rounding(published, row)
        if not old or error is None:
            raise errors.UserError(f"{run}: not among the published runs")
        bits = row.sha256 == old[0].sha256
        separated = [one.separated_at <= one.updates for one in (row, old[0])]
        near = _factor(row.loss, old[0].loss) <= error
        holds = bits or (separated[0] == separated[1] and near)
        agreements.append(Agreement(run, row.loss, old[0].loss, error, bits, holds))
    return agreements


def _rounding(rows: Sequence[Row], row: Row) -> float | None:
    """Largest factor between the losses of two arms that differ in rounding only."""
    # The pair that the arm belongs to, or the first where that pair was not run.
    for pair in sorted(ROUNDING, key=lambda pair: row.arm not in pair):
        first, second = (
            symmetric_findings.runs(rows, row.program, arm, row.delta) for arm in pair
        )
        if first and second:
            pairs = zip(first, second, strict=False)
            return max(_factor(a.loss, b.loss) for a, b in pairs)
    return None


def _factor(a: float | None, b: float | None) -> float:
    return max(a / b, b / a) if a and b else float("inf")


def published(design: runs.Design, folder: Path) -> dict[str, statistics.Arms]:
    """The losses of the study, by networks for which a comparison repeats it.

    Args:
        design: the comparison.
        folder: records of the study, a folder per part.

    Returns:
        `{network: {arm: {seed: [loss of each draw]}}}`; empty: another setting, or a
        part that is not complete.
    """
    same = [task.name for task in design.tasks if _repeats(design, task)]
    found = seed_records.read(PART, folder / PART.name) if same else []
    if not same or len(found) < len(PART.seeds):
        return {}
    losses = judgement.losses(found, PRIMARY)[judgement.MODEL]
    return dict.fromkeys(same, losses)


def _repeats(design: runs.Design, task: Task) -> bool:
    """Whether a network is trained and measured as in the study."""
    return (
        getattr(task, "config", None) == PART.network
        and design.data_of(task) == PART.data
        and (design.window, design.updates) == (PART.window, PART.updates)
        and design.metric_updates(task) == PART.updates // 5
    )


def saddle_control(rows: Sequence[Row]) -> dict[str, Any]:
    """`noise_can_help` of verdict.json: whether it passed, and the figure in words."""
    check = symmetric_findings.checks(rows)["noise separates and lowers the loss"]
    return check._asdict()


def saddle_claim(rows: Sequence[Row], folder: Path) -> statistics.Claim:
    """The claim about an exact saddle, against float32, which stays on it.

    Args:
        rows: runs of `SADDLE_ARMS` from a symmetric start.
        folder: records of the study, a folder per part.
    """
    left = [
        row.equal if row.arm == CONTROL else row.separated_at <= row.updates
        for row in rows
    ]
    study = [
        row
        for row in symmetric_findings.read(folder / SADDLE / "runs.csv")
        if (row.program, row.delta) == ("symmetric", 0) and row.arm in SADDLE_ARMS
    ]
    theory = records.read_json(folder / SADDLE / "theory.json")
    away = np.median([one["orders"] for one in theory["seeds"]])
    return statistics.saddle_claim(
        judgement.MODEL,
        statistics.effect(_losses(rows)),
        all(left),
        _losses(study) if study[0].updates == rows[0].updates else None,
        float(away),
    )


def _losses(rows: Sequence[Row]) -> statistics.Redraws:
    arms: dict[str, dict[str, list[float]]] = {CONTROL: {}, _TWINS: {}}
    for row in sorted(rows, key=lambda row: SADDLE_ARMS.index(row.arm)):
        name = CONTROL if row.arm == CONTROL else _TWINS
        arms[name].setdefault(str(row.seed), []).append(row.loss)
    return statistics.gather(arms, _TWINS, CONTROL)
