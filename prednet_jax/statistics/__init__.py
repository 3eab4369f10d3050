"""Paired comparisons over seeds, redraws, and the claims that a comparison supports.

The unit of every comparison is the seed. Margins are fixed before there are results.
One exact test gives p-values, intervals and equivalence. `redraws` states the rule. A
redraw is a repeated run of a seed that differs only in its random order of sums.
"""

from prednet_jax.records.verdict import Answer as Answer
from prednet_jax.records.verdict import Arms as Arms
from prednet_jax.records.verdict import Claim as Claim
from prednet_jax.records.verdict import Contrast as Contrast
from prednet_jax.records.verdict import Kind as Kind
from prednet_jax.records.verdict import Manipulation as Manipulation
from prednet_jax.statistics.claims import Answered as Answered
from prednet_jax.statistics.claims import evaluate_claim as evaluate_claim
from prednet_jax.statistics.claims import manipulation as manipulation
from prednet_jax.statistics.claims import noise_claim as noise_claim
from prednet_jax.statistics.claims import saddle_claim as saddle_claim
from prednet_jax.statistics.claims import stale_claim as stale_claim
from prednet_jax.statistics.claims import verdict as verdict
from prednet_jax.statistics.contrasts import MARGIN_FRACTION as MARGIN_FRACTION
from prednet_jax.statistics.contrasts import comparable as comparable
from prednet_jax.statistics.contrasts import (
    contrasts_from_losses as contrasts_from_losses,
)
from prednet_jax.statistics.contrasts import holm_p_values as holm_p_values
from prednet_jax.statistics.contrasts import margin_from_losses as margin_from_losses
from prednet_jax.statistics.contrasts import pair_by_seed as pair_by_seed
from prednet_jax.statistics.contrasts import paired as paired
from prednet_jax.statistics.redraws import SEPARATED as SEPARATED
from prednet_jax.statistics.redraws import Effect as Effect
from prednet_jax.statistics.redraws import Group as Group
from prednet_jax.statistics.redraws import Redraws as Redraws
from prednet_jax.statistics.redraws import answer as answer
from prednet_jax.statistics.redraws import collect_redraws as collect_redraws
from prednet_jax.statistics.redraws import effect as effect
from prednet_jax.statistics.scatter import predicted as predicted
