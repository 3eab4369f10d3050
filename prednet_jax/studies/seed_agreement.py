"""Whether long trainings that were made again agree with the published ones.

The same bits are to be expected on the same kind of processor alone. Elsewhere sums are
rounded in other ways, and trajectories separate; then a loss agrees if it differs by no
more than another fixed order of sums made of any published seed (the part's A/A null).
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from prednet_jax import errors
from prednet_jax.studies.judgement import NULL, PRIMARY
from prednet_jax.studies.parts import CONTROL


class Agreement(NamedTuple):
    """A run that was made again, beside the published one.

    Attributes:
        seed: root seed.
        arm: name of the arm.
        draw: number of the noise draw.
        again: the new loss; None where it diverged.
        published: the published one.
        error: by which factor the two may differ, at least 1.
        bits: whether the final weights are the same in every bit.
        holds: same bits, both diverged, or losses within `error`.
    """

    seed: int
    arm: str
    draw: int
    again: float | None
    published: float | None
    error: float
    bits: bool
    holds: bool


def agreement(
    again: Iterable[Mapping[str, Any]], published: Sequence[Mapping[str, Any]]
) -> list[Agreement]:
    """Every run of the seeds made again beside the published one.

    Args:
        again: records of seeds, of `judgement.read`.
        published: the part's published records; they have the A/A null.

    Raises:
        UserError: a seed that was never published, or a part without A/A null.
    """
    error = check(published, [record["seed"] for record in again])
    by_seed = {record["seed"]: record for record in published}
    found = []
    for record in again:
        pairs = zip(record["runs"], by_seed[record["seed"]]["runs"], strict=True)
        for new, old in pairs:
            bits = new["final_params_sha256"] == old["final_params_sha256"]
            losses = new.get(PRIMARY), old.get(PRIMARY)
            holds = bits or losses == (None, None) or _factor(*losses) <= error
            place = record["seed"], new["arm"], new["draw"]
            found.append(Agreement(*place, *losses, error, bits, holds))
    return found


def check(published: Sequence[Mapping[str, Any]], seeds: Iterable[int]) -> float:
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


def _factor(a: float | None, b: float | None) -> float:
    return max(a / b, b / a) if a and b else float("inf")
