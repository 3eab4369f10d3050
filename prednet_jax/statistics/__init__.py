"""Paired comparisons over seeds, redraws, and what a comparison may claim.

The unit of every comparison is the seed. Margins are fixed before there are results.
One exact test gives p-values, intervals and equivalence. The module `redraws` states
the rule.
"""

from prednet_jax.statistics.claims import (
    Answered,
    Arms,
    Check,
    Claim,
    Manipulation,
    ask,
    beside,
    float32_claim,
    manipulation,
    noise_claim,
    saddle_claim,
    stale_claim,
    verdict,
)
from prednet_jax.statistics.losses import (
    Draws,
    Losses,
    comparable,
    contrasts_from_losses,
    margins_from_losses,
    match,
)
from prednet_jax.statistics.margins import MARGIN_FRACTION, Margin, margin
from prednet_jax.statistics.paired import PairedResult, holm, holm_p_values, paired
from prednet_jax.statistics.redraws import (
    FIXED_ORDERS,
    Effect,
    Redraws,
    answer,
    effect,
    fixed_orders,
    gather,
    word,
)
from prednet_jax.statistics.scatter import (
    mixed_model,
    permutation_p,
    predicted,
    redraw_interval,
    scatter_ratio,
    seed_spread,
)

__all__ = [
    "FIXED_ORDERS",
    "MARGIN_FRACTION",
    "Answered",
    "Arms",
    "Check",
    "Claim",
    "Draws",
    "Effect",
    "Losses",
    "Manipulation",
    "Margin",
    "PairedResult",
    "Redraws",
    "answer",
    "ask",
    "beside",
    "comparable",
    "contrasts_from_losses",
    "effect",
    "fixed_orders",
    "float32_claim",
    "gather",
    "holm",
    "holm_p_values",
    "manipulation",
    "margin",
    "margins_from_losses",
    "match",
    "mixed_model",
    "noise_claim",
    "paired",
    "permutation_p",
    "predicted",
    "redraw_interval",
    "saddle_claim",
    "scatter_ratio",
    "seed_spread",
    "stale_claim",
    "verdict",
    "word",
]
