"""PredNet in JAX, and an instrument that tests whether GPU noise helps training.

The public names; everything else is reached through its module, such as
`prednet_jax.noise.inject` or `prednet_jax.curvature.extreme_eigenpairs`.
"""

from prednet_jax import (
    curvature,
    noise,
    objectives,
    optimizers,
    saddles,
    statistics,
    weights,
)
from prednet_jax.config import AutoencoderConfig, PredNetConfig
from prednet_jax.models.parameters import init_params
from prednet_jax.models.prednet import predict
from prednet_jax.training.truncated import train_windows

__version__ = "0.1.0"

__all__ = [
    "AutoencoderConfig",
    "PredNetConfig",
    "curvature",
    "init_params",
    "noise",
    "objectives",
    "optimizers",
    "predict",
    "saddles",
    "statistics",
    "train_windows",
    "weights",
]
