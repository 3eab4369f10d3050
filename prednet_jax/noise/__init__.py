"""Numerical noise, injected into any JAX function.

    noisy = inject(fn, parse("reduction_order:partials=8,granularity=element"))
    noisy(jax.random.key(0), *args)

`specs` says what noise there is, `transform` how it enters a function, `coverage` what
it reaches.
"""

from prednet_jax.noise.coverage import Report, UncoveredReductionError, coverage
from prednet_jax.noise.parse import format, parse
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
from prednet_jax.noise.transform import Entry, UnsupportedPrimitiveError, inject
from prednet_jax.noise.trees import perturb_tree

__all__ = [
    "BitFlip",
    "Composition",
    "Entry",
    "Gaussian",
    "GradientGaussian",
    "Identity",
    "MonteCarlo",
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
]
