"""One paired contrast: treatment minus control, with the seed as the unit.

The difference d_i of seed i is taken after averaging over the draws of the noise. The
contrast has the mean of the d_i, and from the exact sign-flip test (`sign_flip`) an
interval, the p-value of no difference and the p-value of equivalence. The metric is a
loss, so a negative difference is an improvement.
"""

import dataclasses
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from prednet_jax import errors
from prednet_jax.statistics import sign_flip

_CONFIDENCE = 0.95
_LABELS = ("model", "treatment", "control", "metric")


@dataclasses.dataclass(frozen=True, kw_only=True)
class PairedResult:
    """A paired contrast, in units of the metric (a loss).

    Attributes:
        n: number of seeds.
        mean_difference: mean over the seeds of treatment minus control.
        ci_low: lower end of the interval; -inf if there are too few seeds for one.
        ci_high: upper end of the interval; inf if there are too few seeds.
        p_value: two-sided sign-flip p-value, in (0, 1].
        p_holm: `p_value` after Holm's correction; None: not corrected yet.
        tost_p: p-value of the equivalence test at `margin`, in (0, 1].
        margin: largest difference that counts as none, > 0.
        verdict: "lower loss", "higher loss", "equivalent" or "inconclusive".
        sd_difference: standard deviation of the differences over the seeds (n - 1 in
            the denominator); nan for one seed.
        max_abs_difference: largest |difference| of a seed.
        treatment_mean: mean of the treatment over the seeds.
        control_mean: mean of the control.
        seeds_lower: number of seeds on which the treatment has the lower loss.
        seeds_higher: number of seeds on which it has the higher loss.
        seeds_gaining: number of seeds whose loss is lower by more than the margin.
        seeds_losing: number of seeds whose loss is higher by more than the margin.
        confidence: level of the interval.
        alpha: level of the tests behind `verdict`.
        p_method: how the sign-flip p-value was computed.
        ci_method: how the interval was computed.
        tost_method: how the equivalence p-value was computed.
        model: name of the model.
        treatment: name of the treatment arm.
        control: name of the control arm.
        metric: name of the metric.
        p_holm_family: the contrasts that `p_holm` is corrected over, in words.
    """

    n: int
    mean_difference: float
    ci_low: float
    ci_high: float
    p_value: float
    p_holm: float | None
    tost_p: float
    margin: float
    verdict: str
    sd_difference: float
    max_abs_difference: float
    treatment_mean: float
    control_mean: float
    seeds_lower: int
    seeds_higher: int
    seeds_gaining: int
    seeds_losing: int
    confidence: float
    alpha: float
    p_method: str
    ci_method: str
    tost_method: str
    model: str | None = None
    treatment: str | None = None
    control: str | None = None
    metric: str | None = None
    p_holm_family: str | None = None

    @property
    def bitwise_equal(self) -> bool:
        """Whether the metric has the same bits in both arms, on every seed."""
        return self.max_abs_difference == 0

    def labelled(self, **labels: str) -> "PairedResult":
        """The same result with `model`, `treatment`, `control` or `metric` set."""
        for name in labels:
            errors.one_of("label", name, _LABELS)
        return dataclasses.replace(self, **labels)  # type: ignore[arg-type]

    def reversed(self) -> "PairedResult":
        """The contrast with the arms exchanged: control minus treatment."""
        swapped = dataclasses.replace(
            self,
            mean_difference=-self.mean_difference,
            ci_low=-self.ci_high,
            ci_high=-self.ci_low,
            treatment_mean=self.control_mean,
            control_mean=self.treatment_mean,
            seeds_lower=self.seeds_higher,
            seeds_higher=self.seeds_lower,
            seeds_gaining=self.seeds_losing,
            seeds_losing=self.seeds_gaining,
            treatment=self.control,
            control=self.treatment,
        )
        return dataclasses.replace(swapped, verdict=classify(swapped))

    def as_dict(self) -> dict[str, Any]:
        """A JSON object with all fields; numbers that are not finite become null."""
        record = dataclasses.asdict(self)
        return {
            name: None
            if isinstance(value, float) and not math.isfinite(value)
            else value
            for name, value in record.items()
        }


def paired(
    treatment: ArrayLike,
    control: ArrayLike,
    *,
    margin: float,
    alpha: float = 0.05,
) -> PairedResult:
    """Compares two arms seed by seed.

    Any number of seeds is accepted. With fewer than six the 95 % interval is unbounded,
    since no pattern of signs is rare enough; with fewer than five no equivalence can be
    shown.

    Args:
        treatment: metric of the treatment, `[n]` or `[n, draws]`, one row per seed.
            Draws are averaged.
        control: metric of the control for the same seeds in the same order; its number
            of draws may differ.
        margin: largest difference that counts as none, in units of the metric, > 0,
            fixed before the results exist.
        alpha: level of the tests that decide `verdict`, in (0, 1).

    Returns:
        The contrast, without Holm's correction.

    Raises:
        UserError: the shapes do not match, a value is not finite, or the margin or
            level is out of range.

    Example:
        Six seeds, all of which a treatment makes worse by more than the margin:

        >>> from prednet_jax import statistics
        >>> treated, control = [1.2, 1.3, 1.1, 1.2, 1.25, 1.15], [1.0] * 6
        >>> found = statistics.paired(treated, control, margin=0.05)
        >>> found.verdict, found.p_value
        ('higher loss', 0.03125)
    """
    errors.positive("margin", margin)
    errors.open_unit("alpha", alpha)
    a, b = per_seed("treatment", treatment), per_seed("control", control)
    d = differences(a, b)
    low, high = sign_flip.interval(d, _CONFIDENCE)
    exact = d.size <= sign_flip.EXACT_LIMIT
    how = f"exact, all 2^{d.size} patterns" if exact else "on a grid, never too small"
    result = PairedResult(
        n=d.size,
        mean_difference=float(d.mean()),
        ci_low=low,
        ci_high=high,
        p_value=sign_flip.two_sided(d),
        p_holm=None,
        tost_p=sign_flip.equivalence(d, margin),
        margin=float(margin),
        verdict="inconclusive",
        sd_difference=float(d.std(ddof=1)) if d.size > 1 else math.nan,
        max_abs_difference=float(np.abs(d).max()),
        treatment_mean=float(a.mean()),
        control_mean=float(b.mean()),
        seeds_lower=int((d < 0).sum()),
        seeds_higher=int((d > 0).sum()),
        seeds_gaining=int((d < -margin).sum()),
        seeds_losing=int((d > margin).sum()),
        confidence=_CONFIDENCE,
        alpha=alpha,
        p_method=f"sign flip ({how})",
        ci_method=f"sign-flip test inverted ({how})",
        tost_method=f"two one-sided sign-flip tests ({how})",
    )
    return dataclasses.replace(result, verdict=classify(result))


def differences(
    treatment: NDArray[np.float64], control: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Differences of the seeds `[n]`.

    Differences that differ from each other only by the rounding of the subtraction (4
    ulp of the larger operand) are made exactly equal.

    Raises:
        UserError: the arms have different numbers of seeds.
    """
    if treatment.size != control.size:
        raise errors.UserError(
            f"treatment has {treatment.size} seeds and control {control.size}; "
            "expected the same seeds in the same order"
        )
    d = treatment - control
    largest = max(np.abs(treatment).max(), np.abs(control).max())
    rounding = 4 * np.finfo(np.float64).eps * largest
    return np.full_like(d, d[0]) if 0 < np.ptp(d) <= rounding else d


def per_seed(name: str, values: ArrayLike) -> NDArray[np.float64]:
    """One number per seed, `[n]`, from `[n]` or `[n, draws]`.

    Raises:
        UserError: the shape is another or empty, or a value is not finite.
    """
    array = np.asarray(values, dtype=np.float64)
    if array.ndim not in (1, 2) or array.size == 0:
        raise errors.UserError(
            f"{name} has shape {array.shape}; expected [n] or [n, draws] with at least "
            "one seed"
        )
    if not np.isfinite(array).all():
        bad = np.argwhere(~np.isfinite(array))[0].tolist()
        raise errors.UserError(
            f"{name}{bad} is {array[tuple(bad)]}; expected finite values: leave a "
            "diverged seed out of both arms and report it as an exclusion"
        )
    return array if array.ndim == 1 else array.mean(axis=1)


def classify(result: PairedResult) -> str:
    """The verdict on one contrast; it uses the corrected p-value if there is one.

    A significant difference inside the margin is "equivalent", since the margin was
    fixed beforehand as the largest difference that counts as none.
    """
    p = result.p_value if result.p_holm is None else result.p_holm
    if result.tost_p < result.alpha:
        return "equivalent"
    if p < result.alpha and result.mean_difference != 0:
        return "lower loss" if result.mean_difference < 0 else "higher loss"
    return "inconclusive"


def holm(
    results: Sequence[PairedResult], family: str | None = None
) -> list[PairedResult]:
    """Corrects a family of contrasts: sets `p_holm`, and `verdict` by it.

    Holm 1979, Scand. J. Stat. 6:65: with p_(1) <= ... <= p_(m), the corrected value is
    max over j <= i of min(1, (m - j + 1) p_(j)).

    The equivalence p-values need no correction, since "every contrast is equivalent" is
    an intersection of tests (Berger 1982, Technometrics 24).

    Args:
        results: the contrasts of the family; may be empty.
        family: description of the family, for the record.

    Returns:
        New contrasts in the same order.
    """
    corrected = holm_p_values([r.p_value for r in results])
    updated = [
        dataclasses.replace(r, p_holm=q, p_holm_family=family)
        for r, q in zip(results, corrected, strict=True)
    ]
    return [dataclasses.replace(r, verdict=classify(r)) for r in updated]


def holm_p_values(p_values: Sequence[float]) -> list[float]:
    """Corrected p-values of one family of tests, in order.

    Args:
        p_values: [m] in [0, 1]; may be empty.

    Returns:
        [m], none below its original.
    """
    # multipletests of statsmodels gives the same numbers (a test compares them), but it
    # runs a full garbage collection at each call, which takes 0.1 s with JAX loaded.
    p = np.asarray(p_values, np.float64)
    order = np.argsort(p, kind="stable")
    stepped = np.minimum(1.0, p[order] * np.arange(p.size, 0, -1))
    corrected = np.empty_like(p)
    corrected[order] = np.maximum.accumulate(stepped)
    return corrected.tolist()
