"""Holm's step-down correction over a family of contrasts.

Holm 1979, Scand. J. Stat. 6:65: with p_(1) <= ... <= p_(m), the corrected value is
max over j <= i of min(1, (m - j + 1) p_(j)).
"""

import dataclasses
from collections.abc import Sequence

import numpy as np

from prednet_jax.statistics.paired import PairedResult, classify


def holm(
    results: Sequence[PairedResult], family: str | None = None
) -> list[PairedResult]:
    """Corrects a family of contrasts: sets `p_holm`, and `verdict` by it.

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
