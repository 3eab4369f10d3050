"""Numerical noise, injected into any JAX function.

    noisy = inject(fn, parse("reduction_order:partials=8,granularity=element"))
    noisy(jax.random.key(0), *args)

`specs` says what noise there is, `inject` how it enters a function, `coverage` what it
reaches, `localize` which of it matters, `register_rule` adds a primitive of your own.
"""

from prednet_jax.noise.coverage import Entry, Report, coverage
from prednet_jax.noise.errors import (
    NoiseError,
    UncoveredReductionError,
    UnsupportedPrimitiveError,
)
from prednet_jax.noise.inject import inject
from prednet_jax.noise.rules.registry import FirstOrder, HigherOrder, register_rule
from prednet_jax.noise.specs import (
    BitFlip,
    Composition,
    Gaussian,
    GradientGaussian,
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
from prednet_jax.noise.trees import perturb_tree

__all__ = [
    "BitFlip",
    "Composition",
    "Entry",
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
    "UlpPerturbation",
    "UncoveredReductionError",
    "UnsupportedPrimitiveError",
    "at",
    "compose",
    "coverage",
    "format",
    "inject",
    "parse",
    "perturb_tree",
    "register_rule",
]
