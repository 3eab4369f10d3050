"""How often intervals hold the true mean, and how often equivalence is claimed wrongly.

Three methods are simulated: the inverted sign-flip test (`sign_flip`), Student's t, and
for comparison the bootstrap BCa (Efron 1987, J. Am. Stat. Assoc. 82:171). The
distributions are those of `truths.draw`. The level of an equivalence test is the rate
at which it passes although the true mean lies exactly at the margin, four standard
deviations from 0. It is taken on the worse of the two sides and should be at most .05.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from prednet_jax.statistics.rates import batch
from prednet_jax.statistics.truths import draw

SHAPES = (
    "normal",
    "lognormal 1",
    "lognormal 2",
    "lognormal 3",
    "skewed 1",
    "skewed 2",
)
SEEDS = (6, 10, 20, 40)
COLUMNS = (
    "differences",
    "seeds",
    "studies",
    "sign_flip_coverage",
    "t_coverage",
    "bca_coverage",
    "sign_flip_level",
    "t_level",
)
_MARGIN = 4.0
_RESAMPLES = 999


def simulate(
    studies: int,
    *,
    shapes: Sequence[str] = SHAPES,
    seeds: Sequence[int] = SEEDS,
    seed: int = 1,
) -> list[dict[str, Any]]:
    """Coverage of the 95 % intervals and level of the equivalence tests.

    Args:
        studies: simulated studies per record, >= 1.
        shapes: distributions of the differences.
        seeds: numbers of seeds.
        seed: seed of the random numbers; each record has a generator of its own.

    Returns:
        Records with the names `COLUMNS`; rates in [0, 1].
    """
    records = []
    for index, shape in enumerate(shapes):
        for n in seeds:
            rng = np.random.default_rng([seed, index, n])
            d = draw(rng, shape, (studies, n))
            found = batch(rng, d, margin=_MARGIN)
            low, high = _t(d, 0.975)
            bca = _bca(d, rng)
            edges = (d + _MARGIN, d - _MARGIN)
            passed = [batch(rng, edge, margin=_MARGIN) for edge in edges]
            limits = [_t(edge, 0.95) for edge in edges]
            records.append(
                {
                    "differences": shape,
                    "seeds": n,
                    "studies": studies,
                    "sign_flip_coverage": np.mean(
                        [r.ci_low <= 0 <= r.ci_high for r in found]
                    ),
                    "t_coverage": np.mean((low <= 0) & (high >= 0)),
                    "bca_coverage": np.mean((bca[0] <= 0) & (bca[1] >= 0)),
                    "sign_flip_level": max(
                        np.mean([r.tost_p < r.alpha for r in side]) for side in passed
                    ),
                    "t_level": max(
                        np.mean((a > -_MARGIN) & (b < _MARGIN)) for a, b in limits
                    ),
                }
            )
    return records


def _t(d: np.ndarray, quantile: float) -> tuple[np.ndarray, np.ndarray]:
    from scipy import special

    n = d.shape[1]
    reach = special.stdtrit(n - 1, quantile) * d.std(axis=1, ddof=1) / np.sqrt(n)
    return d.mean(axis=1) - reach, d.mean(axis=1) + reach


def _bca(d: np.ndarray, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    from scipy import stats

    found = [
        stats.bootstrap(
            (rows,),
            np.mean,
            axis=-1,
            n_resamples=_RESAMPLES,
            method="BCa",
            rng=rng,
        ).confidence_interval
        for rows in np.split(d, range(100, len(d), 100))
    ]
    return (
        np.concatenate([ends.low for ends in found]),
        np.concatenate([ends.high for ends in found]),
    )
