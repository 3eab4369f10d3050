"""Paired comparisons over seeds, redraws, and what a comparison may claim.

The unit of every comparison is the seed. Margins are fixed before there are results.
One exact test gives p-values, intervals and equivalence. The module `redraws` states
the rule.
"""

from prednet_jax.statistics.claims import (
    Answered,
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
from prednet_jax.statistics.contrasts import (
    MARGIN_FRACTION,
    Arms,
    Losses,
    PairedResult,
    comparable,
    contrasts_from_losses,
    holm,
    holm_p_values,
    margins_from_losses,
    match,
    paired,
)
from prednet_jax.statistics.redraws import (
    FIXED_ORDERS,
    Effect,
    Redraws,
    answer,
    effect,
    fixed_orders,
    gather,
)
from prednet_jax.statistics.scatter import predicted, redraw_interval

__all__ = [
    "FIXED_ORDERS",
    "MARGIN_FRACTION",
    "Answered",
    "Arms",
    "Check",
    "Claim",
    "Effect",
    "Losses",
    "Manipulation",
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
    "margins_from_losses",
    "match",
    "noise_claim",
    "paired",
    "predicted",
    "redraw_interval",
    "saddle_claim",
    "stale_claim",
    "verdict",
]
