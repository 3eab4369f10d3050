"""Curvature of a loss at given weights: is there a saddle, and would noise matter?

Everything here takes a loss and a pytree of weights and knows no model.
`extreme_eigenpairs` finds the lowest and highest curvature, raw or in the coordinates
of Adam (`adam_scale`); `certify` does so with more steps, several starts and a check by
finite differences. `project` and the theory in `prednet_jax.escape` say what the lowest
curvature means for the optimiser. `probe` does all of this at one stop of a training.
`divergence` follows two trainings that differ by one ulp at the start.
"""

from prednet_jax.curvature.certify import (
    Certificate,
    FiniteDifference,
    certify,
    finite_difference,
)
from prednet_jax.curvature.divergence import (
    Exponent,
    fit_exponent,
    log_distances,
    perturb_one_ulp,
    saturation,
    weight_distance,
)
from prednet_jax.curvature.hessian import (
    Eigenpairs,
    adam_scale,
    extreme_eigenpairs,
    hessian_operator,
    hvp,
)
from prednet_jax.curvature.probe import Moments, Projections, Stop, probe, project

__all__ = [
    "Certificate",
    "Eigenpairs",
    "Exponent",
    "FiniteDifference",
    "Moments",
    "Projections",
    "Stop",
    "adam_scale",
    "certify",
    "extreme_eigenpairs",
    "finite_difference",
    "fit_exponent",
    "hessian_operator",
    "hvp",
    "log_distances",
    "perturb_one_ulp",
    "probe",
    "project",
    "saturation",
    "weight_distance",
]
