"""Paired comparisons over seeds, equivalence, power, and the rule of the verdict.

The unit of every comparison is the seed. Margins and bounds are fixed before there are
results. One exact test gives p-values, intervals and equivalence. The module `verdict`
states the rule.
"""

from prednet_jax.statistics.decision import Verdict, decide
from prednet_jax.statistics.evidence import (
    Check,
    Evidence,
    Manipulation,
    Question,
    Rule,
    manipulation,
)
from prednet_jax.statistics.losses import (
    Draws,
    Losses,
    comparable,
    contrasts_from_losses,
    contrasts_of_draws,
    margins_from_losses,
    match,
)
from prednet_jax.statistics.margins import MARGIN_FRACTION, Margin, margin
from prednet_jax.statistics.multiplicity import holm, holm_p_values
from prednet_jax.statistics.paired import PairedResult, paired
from prednet_jax.statistics.power import (
    sign_flip_floor,
    tost_power,
    tost_seeds,
)
from prednet_jax.statistics.proportions import (
    excess_seeds,
    excess_upper,
    share_lower,
    share_upper,
)
from prednet_jax.statistics.survival import (
    LogRank,
    SurvivalCurve,
    logrank,
    survival_curve,
)

__all__ = [
    "MARGIN_FRACTION",
    "Check",
    "Draws",
    "Evidence",
    "LogRank",
    "Losses",
    "Manipulation",
    "Margin",
    "PairedResult",
    "Question",
    "Rule",
    "SurvivalCurve",
    "Verdict",
    "comparable",
    "contrasts_from_losses",
    "contrasts_of_draws",
    "decide",
    "excess_seeds",
    "excess_upper",
    "holm",
    "holm_p_values",
    "logrank",
    "manipulation",
    "margin",
    "margins_from_losses",
    "match",
    "paired",
    "share_lower",
    "share_upper",
    "sign_flip_floor",
    "survival_curve",
    "tost_power",
    "tost_seeds",
]
