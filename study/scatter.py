"""Statistics that are reported with an answer of the study and do not decide it.

All functions take the result of `statistics.collect_redraws`, work on log losses and
return relative changes of the loss. study/pages/rule.md explains them.
"""

import itertools
import math
import warnings
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike
from scipy import special
from statsmodels.regression.mixed_linear_model import MixedLM

from prednet_jax import errors
from prednet_jax.statistics import Effect, Redraws, paired, sign_flip
from prednet_jax.statistics.sign_flip import Floats

_RESAMPLES = 20_000
_MOST_SUBSETS = 5000


def secondary_statistics(runs: Redraws) -> dict[str, Any]:
    """Returns statistics that are reported with the answer and do not decide it."""
    # Where the model's optimiser ends differs between machines in the fourth digit.
    mixed = {
        name: round(value, 4) if isinstance(value, float) else value
        for name, value in mixed_model(runs).items()
    }
    return {
        "permutation_p": permutation_p(runs),
        "mixed_model": mixed,
        "seed_spread": seed_spread(runs),
        "scatter_ratio": scatter_ratio(runs),
        "redraw_interval": redraw_interval(together(runs))._asdict(),
    }


def effect_record(effect: Effect) -> dict[str, Any]:
    """Returns an effect as JSON, with the 90 % interval of the equivalence test.

    `raw` is the contrast of the mean losses, over the mean loss of the control.
    """
    runs, contrast = effect.runs, effect.contrast
    first, second = runs.logs
    low_90, high_90 = map(math.expm1, sign_flip.interval(first - second, 0.9))
    groups = runs.treatment, runs.control
    means = [np.asarray([losses.mean() for losses in group]) for group in groups]
    scale = means[1].mean()
    raw = paired(means[0] / scale, means[1] / scale, margin=effect.margin)
    record = {"seeds": contrast.n, **effect.measured.to_json()}
    record["low_90"], record["high_90"] = _known(low_90, high_90)
    record["raw"] = raw.mean_difference
    record["raw_low"], record["raw_high"] = _known(raw.ci_low, raw.ci_high)
    return record | {
        "margin": effect.margin,
        "scatter": runs.scatter,
        "excluded": len(runs.excluded),
        "p_value": contrast.p_value,
        "tost_p": contrast.tost_p,
    }


def _known(low: float, high: float) -> tuple[float | None, float | None]:
    """Returns both ends of an interval, or None with too few seeds."""
    return (low, high) if math.isfinite(high) else (None, None)


def together(runs: Redraws) -> list[Floats]:
    """Returns the losses of both groups' runs, one array per seed."""
    both = zip(runs.treatment, runs.control, strict=True)
    return [np.concatenate(groups) for groups in both]


class Limit(NamedTuple):
    """How far two runs of one seed may differ; relative changes of the loss.

    At least 95 in 100 pairs of runs of a new seed differ by less than `limit`, which is
    infinite for too few seeds; 95 in 100 pairs at hand by less than `observed`.
    `seeds` is the number of seeds with two runs or more.
    """

    limit: float
    observed: float
    seeds: int


def redraw_interval(runs: Sequence[ArrayLike], confidence: float = 0.95) -> Limit:
    """Returns the largest difference of two runs of one seed that rounding explains.

    The limit holds for two runs of a seed that is not among those given, whatever the
    distribution of the scatter: every seed has equal weight, and the new one counts as
    the widest (Lee, Barber & Willett 2023, arXiv 2306.06342, hierarchical conformal
    prediction). So 95 % needs 19 seeds.

    Args:
        runs: losses of runs that differ in nothing but their order of sums, one array
            `[runs]` per seed. `together` has this form.
        confidence: share of the pairs that the limit holds for, in (0, 1).
    """
    errors.open_unit("confidence", confidence)
    pairs, weights = [], []
    for losses in runs:
        losses = np.asarray(losses, np.float64)
        if not ((losses > 0) & (losses < np.inf)).all():
            raise errors.UserError(f"losses={losses}: expected finite ones, above 0")
        logs = np.log(losses)
        i, j = np.triu_indices(logs.size, 1)
        if i.size:
            pairs.append(np.abs(logs[i] - logs[j]))
            weights.append(np.full(i.size, 1 / i.size))
    if not pairs:
        raise errors.UserError(
            "redraw_interval: no seed has two runs; expected at least one"
        )
    distance = np.concatenate(pairs)
    order = np.argsort(distance)
    mass = np.cumsum(np.concatenate(weights)[order])

    def quantile(of: float) -> float:
        rank = int(np.searchsorted(mass, of - 1e-9))
        return math.expm1(distance[order][rank]) if rank < mass.size else math.inf

    n = len(pairs)
    return Limit(quantile(confidence * (n + 1)), quantile(confidence * n), n)


def permutation_p(runs: Redraws) -> float:
    """Returns the p-value of the sharp null: no run's loss depends on its group.

    Runs change groups within their seed. Up to 20 000 relabellings are all counted; if
    there are more, 20 000 are drawn. Used alone, the test is overconfident if the
    effect differs between seeds.
    """
    means = _permuted(runs, np.random.default_rng(0))[:, 0]
    return _share(np.abs(means), abs(_observed(runs)[0]))


def seed_spread(runs: Redraws) -> dict[str, float]:
    """Measures how far the effect differs between seeds, beyond what redraws explain.

    Each seed contributes its squared deviation from the mean effect, less the variance
    that the scatter of its runs explains. `sd`, of the log loss, is the root of their
    mean, and `upper` its 95 % bound, Student's for a mean; at 97.5 %, since the
    contributions are skewed (study/pages/rule.md). They are NaN and infinite if a group
    has one run per seed, or if there is one seed.
    """
    variances, n = _variances(runs), len(runs.seeds)
    if n < 2 or variances is None:
        return {"sd": math.nan, "upper": math.inf}
    treatment, control = runs.logs
    sizes = [np.asarray(list(map(len, g))) for g in (runs.treatment, runs.control)]
    explained = variances[0] / sizes[0] + variances[1] / sizes[1]
    d = treatment - control
    parts = (d - d.mean()) ** 2 * n / (n - 1) - explained
    reach = special.stdtrit(n - 1, 0.975) * parts.std(ddof=1) / math.sqrt(n)
    ends = parts.mean(), parts.mean() + reach
    sd, upper = (math.sqrt(max(0.0, float(variance))) for variance in ends)
    return {"sd": sd, "upper": upper}


def scatter_ratio(runs: Redraws) -> dict[str, float]:
    """Returns whether a random order changes the scatter of the runs within a seed.

    The result has the `ratio` of the standard deviations, treatment over control, with
    the 95 % interval `low` to `high`, and `p_value` of "the same", by permutation. They
    are NaN if a group has one run per seed, or if the control's runs are equal.
    """
    variances = _variances(runs)
    if variances is None or not variances[1].any():
        return {"ratio": math.nan, "low": 0.0, "high": math.inf, "p_value": math.nan}
    rng = np.random.default_rng(0)
    chosen = rng.integers(0, len(runs.seeds), (_RESAMPLES, len(runs.seeds)))
    means = [v[chosen].mean(axis=1) for v in variances]
    with np.errstate(divide="ignore", invalid="ignore"):
        low, high = np.nanquantile(np.sqrt(means[0] / means[1]), (0.025, 0.975))
        permuted = _permuted(runs, rng)
        statistic = np.abs(np.log(permuted[:, 1] / permuted[:, 2]))
        _, first, second = _observed(runs)
        p = _share(statistic, abs(float(np.log(first / second))))
    ratio = math.sqrt(variances[0].mean() / variances[1].mean())
    return {"ratio": ratio, "low": float(low), "high": float(high), "p_value": p}


def mixed_model(runs: Redraws) -> dict[str, float]:
    """Returns the effect by a linear mixed model with a random slope of the treatment.

    log y = a + treatment (b + b_s) + a_s + e, with seeds as groups, by restricted
    maximum likelihood; it assumes normal scatter of one size for all seeds. Returns the
    `estimate` with its normal 95 % interval, relative changes; `sd` of the effect over
    the seeds, of the log loss; and whether the likelihood `converged` to a maximum.
    """
    if not (runs.scatter > 0 and len(runs.seeds) > 1):
        raise errors.UserError(
            f"mixed_model: {len(runs.seeds)} seeds, scatter {runs.scatter}; expected "
            "two seeds or more, with runs that differ"
        )
    both = enumerate(zip(runs.control, runs.treatment, strict=True))
    logs, treated, seeds = np.concatenate(
        [
            [np.log(losses), np.full(len(losses), half), np.full(len(losses), seed)]
            for seed, groups in both
            for half, losses in zip((-0.5, 0.5), groups, strict=True)
        ],
        axis=1,
    )
    # A mean of 0 and a scatter of about 1 help the optimiser. Its other methods end at
    # lower likelihoods on part C of the study.
    scale = runs.scatter
    design = np.stack([np.ones(len(treated)), treated], axis=1)
    with warnings.catch_warnings():
        # A variance of 0 lies on the edge of the allowed region, which is no fault.
        warnings.simplefilter("ignore")
        model = MixedLM((logs - logs.mean()) / scale, design, seeds, exog_re=design)
        fitted = model.fit(reml=True, method=["powell"])
    mean, reach = float(fitted.fe_params[1]), 1.959964 * float(fitted.bse_fe[1])
    ends = {"estimate": mean, "low": mean - reach, "high": mean + reach}
    sd = scale * math.sqrt(max(0.0, float(np.asarray(fitted.cov_re)[1, 1])))
    found = {name: math.expm1(scale * value) for name, value in ends.items()}
    return found | {"sd": sd, "converged": bool(fitted.converged)}


def _variances(runs: Redraws) -> list[Floats] | None:
    """Computes the log loss's variance by seed and group, or None for single runs."""
    groups = runs.treatment, runs.control
    if min(len(losses) for group in groups for losses in group) < 2:
        return None
    return [np.asarray([np.log(x).var(ddof=1) for x in group]) for group in groups]


def _statistics(first: Floats, second: Floats) -> Floats:
    """Computes d_s and both groups' sums of squares, for log losses `[..., runs]`."""
    values = [first.mean(axis=-1) - second.mean(axis=-1)]
    for group in (first, second):
        centred = group - group.mean(axis=-1, keepdims=True)
        values.append((centred**2).sum(axis=-1) / max(1, group.shape[-1] - 1))
    return np.stack(values, axis=-1)


def _observed(runs: Redraws) -> Floats:
    """Returns the mean over the seeds of `_statistics`, `[3]`."""
    both = zip(runs.treatment, runs.control, strict=True)
    found = [_statistics(np.log(first), np.log(second)) for first, second in both]
    return np.mean(found, axis=0)


def _permuted(runs: Redraws, rng: np.random.Generator) -> Floats:
    """Computes `_observed` of all relabellings within seeds, or many, `[many, 3]`."""
    tables = [
        _relabelled(np.log(losses), len(first), rng)
        for losses, first in zip(together(runs), runs.treatment, strict=True)
    ]
    if math.prod(len(table) for table in tables) <= _RESAMPLES:
        sums = np.zeros((1, 3))
        for table in tables:
            sums = (sums[:, None] + table[None]).reshape(-1, 3)
    else:
        # The observed labels are one of the relabellings, so no p-value is 0.
        sums = len(tables) * _observed(runs)[None]
        drawn = sum(table[rng.integers(0, len(table), _RESAMPLES)] for table in tables)
        sums = np.concatenate([sums, drawn])
    return sums / len(tables)


def _relabelled(logs: Floats, first: int, rng: np.random.Generator) -> Floats:
    """Computes `_statistics` of one seed for all relabellings, or many, `[many, 3]`."""
    if math.comb(logs.size, first) <= _MOST_SUBSETS:
        chosen = np.asarray(list(itertools.combinations(range(logs.size), first)))
        rest = np.asarray([np.setdiff1d(np.arange(logs.size), c) for c in chosen])
    else:
        order = np.argsort(rng.random((_MOST_SUBSETS, logs.size)), axis=1)
        chosen, rest = order[:, :first], order[:, first:]
    return _statistics(logs[chosen], logs[rest])


def _share(statistic: Floats, observed: float) -> float:
    """Returns the share of relabellings at least as extreme; rounded ties count."""
    # The error of a sum of logarithms is far below 1e-12.
    return float(np.mean(statistic >= observed - 1e-12))
