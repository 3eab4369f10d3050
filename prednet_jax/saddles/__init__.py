"""Functions with known saddles, and runs that test the theory of escape times."""

from collections.abc import Callable

from prednet_jax.saddles.controls import (
    PositiveControls,
    positive_controls,
    unit_check,
)
from prednet_jax.saddles.functions import (
    SaddleFunction,
    StationaryPoint,
    asymmetric_factorisation,
    deep_linear,
    identical_units,
    monkey,
    octopus,
    octopus_function,
    phase_retrieval,
    quadratic_quartic,
    split_units,
    symmetric_factorisation,
)
from prednet_jax.saddles.runs import (
    Escape,
    Rule,
    adam,
    escape_runs,
    gradient_descent,
    heavy_ball,
    perturbed_gradient_descent,
    rotated_gradient,
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
    "rotated_gradient",
    "split_units",
    "symmetric_factorisation",
    "unit_check",
]
