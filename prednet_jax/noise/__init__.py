"""Numerical noise, injected into any JAX function.

    noisy = inject(fn, parse("reduction_order:partials=8,granularity=element"))
    noisy(jax.random.key(0), *args)

`specs` defines the noises, `inject` adds noise to a function, `coverage` lists which
equations it reaches, `localize` finds the equations whose noise matters, `decisions`
counts decisions that noise flips, `audit` lists what would vary on a GPU, and
`register_rule` adds a primitive of your own.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from prednet_jax.noise._public import *  # noqa: F403

#: The public names, which are imported together when the first of them is used. So the
#: project can import `prednet_jax.noise.errors` without JAX.
_NAMES = (  # noqa: SIM905 (fifteen lines, not eighty)
    "Band BitFlip Cancellation Cancellations Comparison Composition CoverageEntry "
    "CoverageReport Culprit CurvesComparison Decision Decisions Difference "
    "Differences Findings FirstOrder Gaussian GpuOrder GradientGaussian HigherOrder "
    "Identity Invariance Layer Layers Logits MonteCarlo NanRate NoiseError "
    "NoiseSpec NotFinite Recording ReducedPrecision ReductionOrder "
    "StochasticRounding Tolerance Trees UlpPerturbation UnsupportedPrimitiveError "
    "Variant assert_close at audit cancellations compare_layers compare_logits "
    "compare_trees compose coverage curves decisions devices devices_table digits "
    "digits_table explain first_difference first_nan format inject invariance "
    "load_recording localize loop_limit nan_rate noise_reference parse perturb_tree "
    "record register_rule tolerance tolerance_table training "
).split()


def __getattr__(name: str) -> Any:
    if name not in _NAMES:
        raise AttributeError(f"module 'prednet_jax.noise' has no attribute {name!r}")
    public = importlib.import_module("prednet_jax.noise._public")
    globals().update({known: getattr(public, known) for known in _NAMES})
    return globals()[name]


def __dir__() -> list[str]:
    return sorted({*globals(), *_NAMES})
