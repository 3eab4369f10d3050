"""Survival curves and the log-rank test, for escape times of runs of limited length.

A run that has not left the saddle at its last step is censored. To leave it out, or to
count its length as its escape time, would bias every mean. The methods are those of
Kaplan & Meier 1958 (J. Am. Stat. Assoc. 53:457) and Mantel 1966 (Cancer Chemother. Rep.
50:163), both from scipy.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import stats

from prednet_jax import errors


class LogRank(NamedTuple):
    """Two-sided log-rank test.

    Attributes:
        statistic: standardised difference between the groups; 0 if undefined.
        p_value: two-sided, in [0, 1].
        method: how it was computed, or why the groups cannot differ.
    """

    statistic: float
    p_value: float
    method: str


class SurvivalCurve(NamedTuple):
    """Kaplan-Meier estimate.

    Attributes:
        times: [k] distinct times at which runs escaped or ended, ascending.
        surviving: [k] fraction that has not escaped just after each time.
    """

    times: NDArray[np.float64]
    surviving: NDArray[np.float64]


def logrank(
    first: ArrayLike,
    second: ArrayLike,
    *,
    first_escaped: ArrayLike,
    second_escaped: ArrayLike,
) -> LogRank:
    """Do two groups leave the saddle at the same rate?

    Args:
        first: [n] steps to escape, or the length of a run that did not escape, > 0.
        second: [m] the same for the other group.
        first_escaped: [n] bool; False: the run is censored.
        second_escaped: [m] the same for the other group.

    Returns:
        The test. If no run escaped, or all escaped at the same step, the groups cannot
        differ: p = 1, and `method` says which of the two it is.

    Raises:
        UserError: shapes differ, a group is empty, or a time is not positive and
            finite.
    """
    a = _censored("first", first, first_escaped)
    b = _censored("second", second, second_escaped)
    if a.num_censored() == len(a) and b.num_censored() == len(b):
        return LogRank(0.0, 1.0, "no escape in either group: nothing to compare")
    everything = np.concatenate([np.ravel(first), np.ravel(second)])
    everyone = np.concatenate([np.ravel(first_escaped), np.ravel(second_escaped)])
    if np.ptp(everything) == 0 and everyone.all():
        return LogRank(0.0, 1.0, "every run of both groups escaped at the same step")
    found = stats.logrank(a, b)
    return LogRank(float(found.statistic), float(found.pvalue), "log-rank")


def survival_curve(times: ArrayLike, escaped: ArrayLike) -> SurvivalCurve:
    """Kaplan-Meier curve of censored escape times.

    Args:
        times: [n] steps to escape, or the length of a run that did not escape.
        escaped: [n] bool; False: the run is censored.

    Returns:
        The curve.

    Raises:
        UserError: as `logrank`.
    """
    fitted = stats.ecdf(_censored("times", times, escaped)).sf
    return SurvivalCurve(
        np.asarray(fitted.quantiles, np.float64),
        np.asarray(fitted.probabilities, np.float64),
    )


def _censored(name: str, times: ArrayLike, escaped: ArrayLike) -> stats.CensoredData:
    steps = np.asarray(times, np.float64)
    left = np.asarray(escaped, bool)
    if steps.ndim != 1 or steps.size == 0 or steps.shape != left.shape:
        raise errors.UserError(
            f"{name} has times of shape {steps.shape} and escapes of shape "
            f"{left.shape}; expected two equal shapes [n] with n >= 1"
        )
    if not (np.isfinite(steps).all() and (steps > 0).all()):
        raise errors.UserError(
            f"{name} holds {steps.min()}..{steps.max()}; expected times that are "
            "finite and above 0"
        )
    return stats.CensoredData(uncensored=steps[left], right=steps[~left])
