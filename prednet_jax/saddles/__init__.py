"""Functions with known saddles, and runs that test the theory of escape times."""

from collections.abc import Callable

from prednet_jax.saddles.base import (
    SaddleFunction,
    StationaryPoint,
    random_rotation,
)
from prednet_jax.saddles.controls import (
    PositiveControls,
    positive_controls,
    theory_checks,
    unit_check,
)
from prednet_jax.saddles.dynamics import (
    Escape,
    escape_runs,
    rotated_gradient,
)
from prednet_jax.saddles.elementary import monkey, phase_retrieval, quadratic_quartic
from prednet_jax.saddles.factorisation import (
    asymmetric_factorisation,
    deep_linear,
    identical_units,
    split_units,
    symmetric_factorisation,
)
from prednet_jax.saddles.octopus import octopus, octopus_function
from prednet_jax.saddles.optimizers import (
    Rule,
    adam,
    gradient_descent,
    heavy_ball,
    perturbed_gradient_descent,
)

#: Constructor of each test function with its usual parameters, by name.
CATALOGUE: dict[str, Callable[[], SaddleFunction]] = {
    "octopus": octopus_function,
    "quadratic_quartic": quadratic_quartic,
    "monkey": monkey,
    "symmetric_factorisation": symmetric_factorisation,
    "asymmetric_factorisation": asymmetric_factorisation,
    "deep_linear": deep_linear,
    "phase_retrieval": phase_retrieval,
    "identical_units": identical_units,
}

__all__ = [
    "CATALOGUE",
    "Escape",
    "PositiveControls",
    "Rule",
    "SaddleFunction",
    "StationaryPoint",
    "adam",
    "asymmetric_factorisation",
    "deep_linear",
    "escape_runs",
    "gradient_descent",
    "heavy_ball",
    "identical_units",
    "monkey",
    "octopus",
    "octopus_function",
    "perturbed_gradient_descent",
    "phase_retrieval",
    "positive_controls",
    "quadratic_quartic",
    "random_rotation",
    "rotated_gradient",
    "split_units",
    "symmetric_factorisation",
    "theory_checks",
    "unit_check",
]
