"""Numerical noise, injected into any JAX function.

    noisy = inject(fn, parse("reduction_order:partials=8,granularity=element"))
    noisy(jax.random.key(0), *args)

`specs` says what noise there is, `inject` how it enters a function, `coverage` what it
reaches, `localize` which of it matters, `decisions` what it flips, `audit` what would
vary on a GPU, `register_rule` adds a primitive of your own.
"""

from prednet_jax.noise.coverage import Entry as Entry
from prednet_jax.noise.coverage import Report as Report
from prednet_jax.noise.coverage import coverage as coverage
from prednet_jax.noise.errors import NoiseError as NoiseError
from prednet_jax.noise.errors import (
    UnsupportedPrimitiveError as UnsupportedPrimitiveError,
)
from prednet_jax.noise.gpu.audit import audit as audit
from prednet_jax.noise.inject import inject as inject
from prednet_jax.noise.localize import Culprit as Culprit
from prednet_jax.noise.localize import Findings as Findings
from prednet_jax.noise.localize import localize as localize
from prednet_jax.noise.questions.decisions import Decision as Decision
from prednet_jax.noise.questions.decisions import Decisions as Decisions
from prednet_jax.noise.questions.decisions import decisions as decisions
from prednet_jax.noise.questions.devices import devices as devices
from prednet_jax.noise.questions.digits import digits as digits
from prednet_jax.noise.questions.digits import digits_table as digits_table
from prednet_jax.noise.questions.explain import explain as explain
from prednet_jax.noise.questions.first_difference import Difference as Difference
from prednet_jax.noise.questions.first_difference import Differences as Differences
from prednet_jax.noise.questions.first_difference import (
    first_difference as first_difference,
)
from prednet_jax.noise.questions.invariance import Invariance as Invariance
from prednet_jax.noise.questions.invariance import Variant as Variant
from prednet_jax.noise.questions.invariance import invariance as invariance
from prednet_jax.noise.questions.recording import Recording as Recording
from prednet_jax.noise.questions.recording import load_recording as load_recording
from prednet_jax.noise.questions.recording import record as record
from prednet_jax.noise.questions.tolerance import Tolerance as Tolerance
from prednet_jax.noise.questions.tolerance import assert_close as assert_close
from prednet_jax.noise.questions.tolerance import noise_reference as noise_reference
from prednet_jax.noise.questions.tolerance import tolerance as tolerance
from prednet_jax.noise.questions.tolerance import tolerance_table as tolerance_table
from prednet_jax.noise.rules.registry import FirstOrder as FirstOrder
from prednet_jax.noise.rules.registry import HigherOrder as HigherOrder
from prednet_jax.noise.rules.registry import register_rule as register_rule
from prednet_jax.noise.specs import Composition as Composition
from prednet_jax.noise.specs import Gaussian as Gaussian
from prednet_jax.noise.specs import GpuOrder as GpuOrder
from prednet_jax.noise.specs import Identity as Identity
from prednet_jax.noise.specs import MonteCarlo as MonteCarlo
from prednet_jax.noise.specs import NoiseSpec as NoiseSpec
from prednet_jax.noise.specs import ReducedPrecision as ReducedPrecision
from prednet_jax.noise.specs import ReductionOrder as ReductionOrder
from prednet_jax.noise.specs import StochasticRounding as StochasticRounding
from prednet_jax.noise.specs import UlpPerturbation as UlpPerturbation
from prednet_jax.noise.specs import at as at
from prednet_jax.noise.specs import compose as compose
from prednet_jax.noise.text import format as format
from prednet_jax.noise.text import parse as parse
from prednet_jax.noise.trees import BitFlip as BitFlip
from prednet_jax.noise.trees import GradientGaussian as GradientGaussian
from prednet_jax.noise.trees import perturb_tree as perturb_tree
