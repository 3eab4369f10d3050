"""Paired comparisons over seeds, equivalence, power, and the rule of the verdict.

scipy and statsmodels do the mathematics; what is here is the design: the seed is the
unit, the margin is fixed before the results exist, and every degenerate case says what
was done with it.
"""

from prednet_jax.statistics.margins import Margin, margin
from prednet_jax.statistics.multiplicity import holm, holm_p_values
from prednet_jax.statistics.paired import PairedResult, paired, sign_flip, tost
from prednet_jax.statistics.power import (
    sign_flip_floor,
    sign_flip_power,
    sign_flip_seeds,
    tost_power,
    tost_seeds,
)
from prednet_jax.statistics.survival import (
    LogRank,
    SurvivalCurve,
    logrank,
    survival_curve,
)
from prednet_jax.statistics.verdict import Evidence, Stall, Verdict, decide

__all__ = [
    "Evidence",
    "LogRank",
    "Margin",
    "PairedResult",
    "Stall",
    "SurvivalCurve",
    "Verdict",
    "decide",
    "holm",
    "holm_p_values",
    "logrank",
    "margin",
    "paired",
    "sign_flip",
    "sign_flip_floor",
    "sign_flip_power",
    "sign_flip_seeds",
    "survival_curve",
    "tost",
    "tost_power",
    "tost_seeds",
]
