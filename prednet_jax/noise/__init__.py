"""Numerical noise, injected into any JAX function.

    noisy = inject(fn, parse("reduction_order:partials=8,granularity=element"))
    noisy(jax.random.key(0), *args)

`specs` says what noise there is, `inject` how it enters a function, `coverage` what it
reaches, `localize` which of it matters, `decisions` what it flips, `worst_case` how far
it can go, `register_rule` adds a primitive of your own.
"""

from prednet_jax.noise.coverage import Entry, Report, coverage
from prednet_jax.noise.errors import (
    NoiseError,
    UncoveredReductionError,
    UnsupportedPrimitiveError,
)
from prednet_jax.noise.inject import inject
from prednet_jax.noise.localize import Culprit, Findings, localize
from prednet_jax.noise.rules.registry import FirstOrder, HigherOrder, register_rule
from prednet_jax.noise.specs import (
    Composition,
    Gaussian,
    Identity,
    MonteCarlo,
    NoiseSpec,
    ReducedPrecision,
    ReductionOrder,
    StochasticRounding,
    UlpPerturbation,
    at,
    compose,
)
from prednet_jax.noise.text import format, parse
from prednet_jax.noise.tools.closeness import assert_close, noise_reference
from prednet_jax.noise.tools.decisions import Decision, Decisions, decisions
from prednet_jax.noise.tools.digits import digits, digits_table
from prednet_jax.noise.tools.effects import Effect, effects
from prednet_jax.noise.tools.explain import explain
from prednet_jax.noise.tools.tolerance import Tolerance, tolerance, tolerance_table
from prednet_jax.noise.tools.worst_case import WorstCase, replay, worst_case
from prednet_jax.noise.trees import BitFlip, GradientGaussian, perturb_tree

__all__ = [
    "BitFlip",
    "Composition",
    "Culprit",
    "Decision",
    "Decisions",
    "Effect",
    "Entry",
    "Findings",
    "FirstOrder",
    "Gaussian",
    "GradientGaussian",
    "HigherOrder",
    "Identity",
    "MonteCarlo",
    "NoiseError",
    "NoiseSpec",
    "ReducedPrecision",
    "ReductionOrder",
    "Report",
    "StochasticRounding",
    "Tolerance",
    "UlpPerturbation",
    "UncoveredReductionError",
    "UnsupportedPrimitiveError",
    "WorstCase",
    "assert_close",
    "at",
    "compose",
    "coverage",
    "decisions",
    "digits",
    "digits_table",
    "effects",
    "explain",
    "format",
    "inject",
    "localize",
    "noise_reference",
    "parse",
    "perturb_tree",
    "register_rule",
    "replay",
    "tolerance",
    "tolerance_table",
    "worst_case",
]
