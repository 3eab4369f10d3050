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
    identical_units,
    monkey,
    octopus,
    octopus_function,
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
    "escape_runs",
    "gradient_descent",
    "heavy_ball",
    "identical_units",
    "monkey",
    "octopus",
    "octopus_function",
    "perturbed_gradient_descent",
    "positive_controls",
    "quadratic_quartic",
    "rotated_gradient",
    "split_units",
    "symmetric_factorisation",
    "unit_check",
]
