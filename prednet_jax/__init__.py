"""PredNet in JAX, and an instrument that tests whether GPU noise helps training.

The public names; everything else is reached through its module, such as
`prednet_jax.noise.inject` or `prednet_jax.curvature.extreme_eigenpairs`.
"""

import importlib
from typing import TYPE_CHECKING, Any

from prednet_jax import noise, objectives, optimizers, saddles, weights
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

# Imported when first used: scipy.stats and pandas take a second and 120 MB, which a
# training process has no use for.
_ON_USE = ("curvature", "statistics")


if TYPE_CHECKING:
    from prednet_jax import curvature, statistics


def __getattr__(name: str) -> Any:
    if name in _ON_USE:
        return importlib.import_module(f"prednet_jax.{name}")
    raise AttributeError(f"module 'prednet_jax' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
