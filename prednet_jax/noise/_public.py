"""Imports every public name of `prednet_jax.noise`, which loads JAX."""

# ruff: noqa: F401
from prednet_jax.noise._coverage import CoverageEntry, CoverageReport, coverage
from prednet_jax.noise._inject import inject
from prednet_jax.noise.errors import NoiseError, UnsupportedPrimitiveError
from prednet_jax.noise.gpu.audit import audit
from prednet_jax.noise.gpu.orders import GpuOrder
from prednet_jax.noise.loops import loop_limit
from prednet_jax.noise.questions.assertions import (
    Tolerance,
    assert_close,
    tolerance_table,
)
from prednet_jax.noise.questions.bands import Band, Comparison
from prednet_jax.noise.questions.cancellations import (
    Cancellation,
    Cancellations,
    cancellations,
)
from prednet_jax.noise.questions.curves import CurvesComparison, curves
from prednet_jax.noise.questions.decisions import Decision, Decisions, decisions
from prednet_jax.noise.questions.devices import devices, devices_table
from prednet_jax.noise.questions.digits import digits, digits_table
from prednet_jax.noise.questions.explain import explain
from prednet_jax.noise.questions.first_difference import (
    Difference,
    Differences,
    first_difference,
)
from prednet_jax.noise.questions.invariance import Invariance, Variant, invariance
from prednet_jax.noise.questions.layers import Layer, Layers, compare_layers
from prednet_jax.noise.questions.localize import Culprit, Findings, localize
from prednet_jax.noise.questions.logits import Logits, compare_logits
from prednet_jax.noise.questions.nan import NanRate, first_nan, nan_rate
from prednet_jax.noise.questions.nan_search import NotFinite
from prednet_jax.noise.questions.recorder import record
from prednet_jax.noise.questions.recording import Recording, load_recording
from prednet_jax.noise.questions.tolerance import noise_reference, tolerance
from prednet_jax.noise.questions.training import training
from prednet_jax.noise.questions.trees import Trees, compare_trees
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
