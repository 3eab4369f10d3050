"""How often the rule gives each verdict, in simulated studies with a known truth.

Losses are in units of the control's mean loss; the margin is 0.02. A study is built
like part C of docs/study: arms without noise, with a random order (two draws) and with
a fixed order (two draws), and the three contrasts between them in question; one A/A
null, stale targets, and Gaussian noise of one scale. Every study is judged by the
conditions of `decide`, without its sentences.

Up to 10 seeds all subsets of the seeds are enumerated. Above that, `SUBSETS` random
subsets stand for all 2^n. That is a valid sign-flip test too, with slightly more random
p-values than the exact one.
"""

import math
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from prednet_jax.statistics.decision import corrected, word
from prednet_jax.statistics.evidence import Check, Evidence, Manipulation, Question
from prednet_jax.statistics.paired import PairedResult
from prednet_jax.statistics.truths import TRUTHS, Truth, draw
from prednet_jax.statistics.verdict import unmet

MARGIN = 0.02
SEEDS = (10, 20, 40)
SUBSETS = 999
COLUMNS = (
    "truth",
    "shape",
    "answer",
    "seeds",
    "studies",
    "supported",
    "refuted",
    "inconclusive",
)
_CHUNK = 250
Floats = NDArray[np.float64]


def simulate(
    studies: int,
    *,
    truths: Sequence[Truth] = TRUTHS,
    seeds: Sequence[int] = SEEDS,
    seed: int = 0,
) -> list[dict[str, Any]]:
    """Rates of the three verdicts, one record per truth and number of seeds.

    Args:
        studies: simulated studies per record, >= 1.
        truths: what is true in the studies.
        seeds: numbers of seeds.
        seed: seed of the random numbers; each record has a generator of its own.

    Returns:
        Records with `truth`, `shape`, `answer`, `seeds`, `studies` and the rate of each
        verdict, in [0, 1].
    """
    records = []
    for index, truth in enumerate(truths):
        for n in seeds:
            rng = np.random.default_rng([seed, index, n])
            found = [
                word(*unmet(e, corrected(e))) for e in _studies(rng, truth, studies, n)
            ]
            records.append(
                {
                    "truth": truth.name,
                    "shape": truth.shape,
                    "answer": truth.answer,
                    "seeds": n,
                    "studies": studies,
                }
                | {
                    name: found.count(name) / studies
                    for name in ("supported", "refuted", "inconclusive")
                }
            )
    return records


def _studies(
    rng: np.random.Generator, truth: Truth, studies: int, n: int
) -> Iterator[Evidence]:
    # The difference between the mean of two draws and the run without noise has the
    # standard deviation `truth.spread`.
    runs = truth.spread * draw(rng, truth.shape, (6, studies, n))
    if truth.shape.startswith("skewed"):
        runs[0] = 0
        runs[2:] *= math.sqrt(2)
    else:
        runs /= math.sqrt(1.5)
    runs = runs * (rng.random((studies, n)) >= truth.quiet_share)
    affected = rng.random((studies, n)) < truth.affected_share
    clean, null, *noisy = runs
    random_order, fixed_order = np.asarray(noisy[:2]), np.asarray(noisy[2:])
    random_order = random_order + truth.effect + truth.affected_by * affected
    if truth.one_draw_only:
        random_order += truth.effect * np.asarray([1, -1])[:, None, None]
    fixed_order = fixed_order + truth.fixed_effect
    stale = truth.stale_effect + draw(rng, "normal", (studies, n))
    rung = 5.0 + draw(rng, "normal", (studies, n))

    def judged(d: Floats) -> list[PairedResult]:
        return batch(rng, MARGIN * d, margin=MARGIN)

    def asked(arm: Floats, other: Floats, *names: str) -> list[Question]:
        treatment, control = names
        columns = [judged(d - other) for d in (arm.mean(axis=0), *arm)]
        return [
            Question(
                result=mean.labelled(treatment=treatment, control=control),
                manipulation=acted,
                draws=tuple(draws),
            )
            for mean, *draws in zip(*columns, strict=True)
        ]

    acted = Manipulation(
        bits_differ=truth.distance > 0, distance_over_travelled=truth.distance
    )
    for *questions, aa, stale_one, rung_one in zip(
        asked(random_order, clean, "random", "none"),
        asked(fixed_order, clean, "fixed", "none"),
        asked(random_order, fixed_order.mean(axis=0), "random", "fixed"),
        judged(null + truth.null_effect - clean),
        judged(stale),
        judged(rung),
        strict=True,
    ):
        yield Evidence(
            model="simulated",
            questions=tuple(questions),
            nulls=(aa,),
            gaussian_ladder=((0.1, rung_one),),
            stale=stale_one,
            theory_matched=True,
            units_separated=True,
            noise_can_help=Check(passed=truth.noise_can_help, figure="simulated"),
        )


def batch(
    rng: np.random.Generator, d: Floats, *, margin: float, alpha: float = 0.05
) -> list[PairedResult]:
    """`paired` for many studies at once, with a control whose loss is 1.

    Args:
        rng: draws subsets of the seeds if there are too many to enumerate.
        d: differences `[studies, n]`.
        margin: as in `paired`.
        alpha: as in `paired`; the interval has the level 1 - alpha.
    """
    flipped = _subsets(rng, d.shape[1])
    weights = (flipped / flipped.sum(axis=1, keepdims=True)).T
    chunks = np.split(d, range(_CHUNK, len(d), _CHUNK))
    # The fields that differ between studies, as columns; `same` has the others.
    columns = [_columns(rows, rows @ weights, margin, alpha) for rows in chunks]
    same = {
        "n": d.shape[1],
        "p_holm": None,
        "margin": margin,
        "control_mean": 1.0,
        "confidence": 1 - alpha,
        "alpha": alpha,
        "p_method": "sign flip, simulated",
        "ci_method": "sign flip, simulated",
        "tost_method": "sign flip, simulated",
    }
    return [
        PairedResult(**same, **dict(zip(chunk, values, strict=True)))
        for chunk in columns
        for values in zip(*(c.tolist() for c in chunk.values()), strict=True)
    ]


def _columns(
    d: Floats, means: Floats, margin: float, alpha: float
) -> dict[str, NDArray[Any]]:
    """Fields of `PairedResult` from differences and the means of their subsets."""
    patterns = means.shape[1] + 1  # and the empty subset
    rank = math.ceil(alpha / 2 * patterns) - 1
    tie = 1e-12 * np.abs(d).max(axis=1, keepdims=True)

    def tail(x: Floats, mu: float) -> Floats:
        return (1 + np.count_nonzero(x <= mu + tie, axis=1)) / patterns

    p = np.minimum(1, 2 * np.minimum(tail(means, 0), tail(-means, 0)))
    tost = np.maximum(tail(means, -margin), tail(-means, -margin))
    low, high = np.full(len(d), -math.inf), np.full(len(d), math.inf)
    if rank > 0:
        ends = np.partition(means, (rank - 1, patterns - 1 - rank), axis=1)
        low, high = ends[:, rank - 1], ends[:, patterns - 1 - rank]
    mean = d.mean(axis=1)
    words = np.where(mean < 0, "lower loss", "higher loss")
    words = np.where((p < alpha) & (mean != 0), words, "inconclusive")
    return {
        "mean_difference": mean,
        "ci_low": low,
        "ci_high": high,
        "p_value": p,
        "tost_p": tost,
        "verdict": np.where(tost < alpha, "equivalent", words),
        "sd_difference": d.std(axis=1, ddof=1),
        "max_abs_difference": np.abs(d).max(axis=1),
        "treatment_mean": 1 + mean,
        "seeds_lower": np.count_nonzero(d < 0, axis=1),
        "seeds_higher": np.count_nonzero(d > 0, axis=1),
        "seeds_gaining": np.count_nonzero(d < -margin, axis=1),
        "seeds_losing": np.count_nonzero(d > margin, axis=1),
    }


def _subsets(rng: np.random.Generator, n: int) -> Floats:
    """Non-empty subsets of n seeds, `[subsets, n]` of 0 and 1."""
    if n <= 10:
        codes = np.arange(1, 2**n)[:, None] >> np.arange(n)
        return (codes & 1).astype(np.float64)
    found = rng.integers(0, 2, (2 * SUBSETS, n)).astype(np.float64)
    return found[found.any(axis=1)][:SUBSETS]
