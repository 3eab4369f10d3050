"""One paired contrast: treatment minus control, the seed of the weights as the unit.

With d_i the difference of seed i (replicates of the noise averaged inside the seed):

* estimate: mean(d), with a bias-corrected and accelerated bootstrap interval
  (Efron 1987, J. Am. Stat. Assoc. 82:171; `scipy.stats.bootstrap`);
* test of no effect: sign flip, p = #{s in {-1, 1}^n : |sum s_i d_i| >= |sum d_i|} / 2^n
  (Fisher 1935, The Design of Experiments, section 21). Its floor is 2 / 2^n;
* test of equivalence: two one-sided t tests at +-margin (Schuirmann 1987,
  J. Pharmacokinet. Biopharm. 15:657; statsmodels `ttost_paired`).

The loss is what is compared, so a negative difference is an improvement.
"""

import dataclasses
import math
import warnings
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import stats
from statsmodels.stats.weightstats import ttost_paired

from prednet_jax.statistics import _checks

#: Up to this many seeds all 2^n sign patterns are enumerated.
EXACT_LIMIT = 20
MONTE_CARLO_DRAWS = 99_999
# The interval and the Monte Carlo p-value must not change from one reading of the same
# records to the next, so their generator is fixed.
_RESAMPLING_SEED = 19870301


@dataclasses.dataclass(frozen=True, kw_only=True)
class PairedResult:
    """A paired contrast, in units of the metric (a loss).

    Attributes:
      n: number of seeds.
      mean_difference: mean over the seeds of treatment minus control.
      ci_low: lower end of the interval of the mean; nan where n < 2.
      ci_high: upper end of it.
      p_value: two-sided sign-flip p-value, in (0, 1].
      p_holm: the same after Holm's correction; None until `holm` has been called.
      tost_p: p-value of the equivalence test at `margin`; nan where n < 2.
      margin: largest difference that counts as none, > 0.
      verdict: "lower loss", "higher loss", "equivalent" or "inconclusive".
      sd_difference: standard deviation of the differences over the seeds (n - 1 in the
        denominator); nan where n < 2.
      confidence: level of the interval.
      alpha: level of the tests behind `verdict`.
      p_method: how the sign-flip p-value was computed.
      ci_method: how the interval was computed.
      tost_method: how the equivalence p-value was computed.
      model: label for the record, as are the next three.
      treatment: name of the arm that was compared.
      control: name of the arm it was compared with.
      metric: name of the quantity.
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

    def labelled(self, **labels: str) -> "PairedResult":
        """The same result with `model`, `treatment`, `control` or `metric` set."""
        unknown = set(labels) - {"model", "treatment", "control", "metric"}
        if unknown:
            raise ValueError(
                f"unknown labels {sorted(unknown)}; accepted: model, treatment, "
                "control, metric"
            )
        return dataclasses.replace(self, **labels)  # type: ignore[arg-type]

    def reversed(self) -> "PairedResult":
        """The contrast seen from the other side: control minus treatment."""
        swapped = dataclasses.replace(
            self,
            mean_difference=-self.mean_difference,
            ci_low=-self.ci_high,
            ci_high=-self.ci_low,
            treatment=self.control,
            control=self.treatment,
        )
        return dataclasses.replace(swapped, verdict=classify(swapped))

    def as_dict(self) -> dict[str, Any]:
        """A JSON object: the fields of verdict.json and more; nan becomes null."""
        record = dataclasses.asdict(self)
        return {
            name: None if isinstance(value, float) and math.isnan(value) else value
            for name, value in record.items()
        }


def paired(
    treatment: ArrayLike,
    control: ArrayLike,
    *,
    margin: float,
    alpha: float = 0.05,
    confidence: float = 0.95,
    n_resamples: int = 9999,
) -> PairedResult:
    """Compares two arms seed by seed.

    Degenerate data are answered, not hidden. One seed: no interval and no equivalence
    test (nan), p = 1, "inconclusive". Differences all equal to within the rounding of
    the subtraction: the interval is that one value, and the equivalence p-value takes
    its limit, 0 inside the margin and 1 outside; `ci_method` and `tost_method` say so.

    Args:
      treatment: metric of the treatment, [n] or [n, replicates], one row a seed.
        Replicates are averaged inside the seed.
      control: metric of the control, [n] or [n, replicates'], rows in the same order.
      margin: largest difference that counts as none, in units of the metric, > 0.
      alpha: level of the tests behind `verdict`, in (0, 1).
      confidence: level of the bootstrap interval, in (0, 1).
      n_resamples: bootstrap resamples, at least 100.

    Returns:
      The result; `p_holm` is None until `holm` corrects it.

    Raises:
      ValueError: shapes do not pair, a value is not finite, no seed at all, or an
        option is out of range.
    """
    _checks.positive("margin", margin)
    _checks.level("alpha", alpha)
    _checks.level("confidence", confidence)
    if n_resamples < 100:
        raise ValueError(f"n_resamples={n_resamples}; at least 100 are needed")
    difference, constant = differences(treatment, control)
    n = difference.size
    mean = float(difference.mean())
    p_value, p_method = sign_flip(difference)
    if constant is not None:
        mean = constant
    low, high, ci_method = _interval(difference, constant, confidence, n_resamples)
    tost_p, tost_method = _tost(difference, constant, margin)
    result = PairedResult(
        n=n,
        mean_difference=mean,
        ci_low=low,
        ci_high=high,
        p_value=p_value,
        p_holm=None,
        tost_p=tost_p,
        margin=float(margin),
        verdict="inconclusive",
        sd_difference=_spread(difference, constant),
        confidence=confidence,
        alpha=alpha,
        p_method=p_method,
        ci_method=ci_method,
        tost_method=tost_method,
    )
    return dataclasses.replace(result, verdict=classify(result))


def differences(
    treatment: ArrayLike, control: ArrayLike
) -> tuple[NDArray[np.float64], float | None]:
    """Differences of the seeds, [n], and their common value where they are all equal.

    "Equal" allows the rounding of the subtraction, 4 ulp of the larger operand: a
    spread below that says nothing about the data.

    Raises:
      ValueError: as `paired`.
    """
    a = per_seed("treatment", treatment)
    b = per_seed("control", control)
    if a.size != b.size:
        raise ValueError(
            f"treatment has {a.size} seeds and control {b.size}; a paired comparison "
            "needs the same seeds in the same order"
        )
    difference = a - b
    rounding = 4 * np.finfo(np.float64).eps * max(np.abs(a).max(), np.abs(b).max())
    constant = float(difference[0]) if np.ptp(difference) <= rounding else None
    return difference, constant


def per_seed(name: str, values: ArrayLike) -> NDArray[np.float64]:
    """One number a seed, [n], from [n] or [n, replicates].

    Raises:
      ValueError: another rank, no seed, no replicate, or a value that is not finite.
    """
    array = np.asarray(values, dtype=np.float64)
    if array.ndim not in (1, 2) or array.size == 0:
        raise ValueError(
            f"{name} has shape {array.shape}; accepted: [n] or [n, replicates] with at "
            "least one seed"
        )
    if not np.isfinite(array).all():
        bad = np.argwhere(~np.isfinite(array))[0].tolist()
        raise ValueError(
            f"{name}{bad} is {array[tuple(bad)]}; finite values are needed: leave a "
            "diverged seed out of both arms and report it as an exclusion"
        )
    return array if array.ndim == 1 else array.mean(axis=1)


def sign_flip(difference: ArrayLike) -> tuple[float, str]:
    """Two-sided sign-flip p-value of the differences [n], and how it was computed.

    All 2^n patterns up to `EXACT_LIMIT` seeds, else `MONTE_CARLO_DRAWS` random ones
    with the +1 correction of Phipson & Smyth 2010 (so p is never zero).

    Raises:
      ValueError: another rank, no seed, or a value that is not finite.
    """
    d = per_seed("difference", difference)
    n = d.size
    if n > EXACT_LIMIT:
        drawn = stats.permutation_test(
            (d,),
            lambda x, axis: np.mean(x, axis=axis),
            permutation_type="samples",
            vectorized=True,
            n_resamples=MONTE_CARLO_DRAWS,
            rng=np.random.default_rng(_RESAMPLING_SEED),
        )
        method = f"sign flip, Monte Carlo ({MONTE_CARLO_DRAWS} draws, +1 correction)"
        return min(float(np.asarray(drawn.pvalue)), 1.0), method
    # A pattern and its negative give the same |sum|: the first sign can stay fixed.
    sums = d[:1]
    for value in d[1:]:
        sums = np.concatenate([sums + value, sums - value])
    # Patterns that tie with the observed one in exact arithmetic may fall short of it
    # by the rounding of n additions.
    tie = n * np.finfo(np.float64).eps * np.abs(d).sum()
    p = float(np.mean(np.abs(sums) >= abs(d.sum()) - tie))
    return p, f"sign flip, exact (all {2**n} patterns)"


def tost(treatment: ArrayLike, control: ArrayLike, *, margin: float) -> float:
    """P-value of the paired equivalence test at +-margin; nan for one seed.

    Raises:
      ValueError: as `paired`.
    """
    _checks.positive("margin", margin)
    return _tost(*differences(treatment, control), margin)[0]


def classify(result: PairedResult) -> str:
    """The word for one contrast, from its corrected p-value where there is one.

    A difference that is significant and yet inside the margin is "equivalent": the
    margin was fixed beforehand as the largest difference that counts as none.
    """
    p = result.p_value if result.p_holm is None else result.p_holm
    if result.tost_p < result.alpha:
        return "equivalent"
    if p < result.alpha and result.mean_difference != 0:
        return "lower loss" if result.mean_difference < 0 else "higher loss"
    return "inconclusive"


def _spread(difference: NDArray[np.float64], constant: float | None) -> float:
    if difference.size < 2:
        return math.nan
    return 0.0 if constant is not None else float(difference.std(ddof=1))


def _interval(
    difference: NDArray[np.float64],
    constant: float | None,
    confidence: float,
    n_resamples: int,
) -> tuple[float, float, str]:
    if difference.size < 2:
        return math.nan, math.nan, "none: one seed has no spread"
    if constant is not None:
        return constant, constant, "the common value: all differences are equal"
    with warnings.catch_warnings():
        # BCa is undefined where the jackknife or the resamples do not vary; the check
        # below answers for it.
        warnings.simplefilter("ignore", stats.DegenerateDataWarning)
        found = stats.bootstrap(
            (difference,),
            np.mean,
            confidence_level=confidence,
            n_resamples=n_resamples,
            method="BCa",
            rng=np.random.default_rng(_RESAMPLING_SEED),
        )
    low, high = np.asarray(found.confidence_interval, np.float64).tolist()
    if math.isfinite(low) and math.isfinite(high):
        return low, high, f"BCa bootstrap ({n_resamples} resamples)"
    tails = [50 * (1 - confidence), 50 * (1 + confidence)]
    low, high = np.percentile(found.bootstrap_distribution, tails)
    method = f"percentile bootstrap ({n_resamples} resamples): BCa is undefined here"
    return float(low), float(high), method


def _tost(
    difference: NDArray[np.float64], constant: float | None, margin: float
) -> tuple[float, str]:
    if difference.size < 2:
        return math.nan, "none: one seed has no spread"
    if constant is not None:
        limit = 0.0 if abs(constant) < margin else 1.0
        return limit, "limit of no spread: all differences are equal"
    p = ttost_paired(difference, np.zeros_like(difference), -margin, margin)[0]
    return float(p), "two one-sided paired t tests"
