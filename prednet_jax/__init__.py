"""PredNet in JAX, and tools that explain why two numerical results differ.

This module holds the public names. Everything else is reached through its own module,
such as `prednet_jax.noise.inject` or `prednet_jax.curvature.extreme_eigenpairs`.

A name is imported when it is first used. So `import prednet_jax.noise` loads only JAX
and NumPy, and a training process does not load the statistics.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from prednet_jax import curvature as curvature
    from prednet_jax import data as data
    from prednet_jax import noise as noise
    from prednet_jax import objectives as objectives
    from prednet_jax import optimizers as optimizers
    from prednet_jax import process as process
    from prednet_jax import saddles as saddles
    from prednet_jax import statistics as statistics
    from prednet_jax import tasks as tasks
    from prednet_jax import weights as weights
    from prednet_jax.config import AutoencoderConfig as AutoencoderConfig
    from prednet_jax.config import PredNetConfig as PredNetConfig
    from prednet_jax.models.parameters import init_params as init_params
    from prednet_jax.models.parameters import resize as resize
    from prednet_jax.models.prednet import forecast as forecast
    from prednet_jax.models.prednet import predict as predict
    from prednet_jax.models.sequences import unit_times as unit_times
    from prednet_jax.models.sequences import units as units
    from prednet_jax.training.trainer import Trainer as Trainer
    from prednet_jax.training.trainer import train_windows as train_windows
    from prednet_jax.training.trainer import windows as windows
    from prednet_jax.weights import pretrained as pretrained

from prednet_jax import errors

__version__ = "0.1.0"

errors.quieten_cuda_plugin()

# The module that defines each public name; other public names are modules.
_DEFINED_IN = {
    "AutoencoderConfig": "config",
    "PredNetConfig": "config",
    "init_params": "models.parameters",
    "forecast": "models.prednet",
    "predict": "models.prednet",
    "resize": "models.parameters",
    "pretrained": "weights",
    "unit_times": "models.sequences",
    "units": "models.sequences",
    "Trainer": "training.trainer",
    "train_windows": "training.trainer",
    "windows": "training.trainer",
}
_MODULES = (
    *("curvature", "data", "noise", "objectives", "optimizers", "process"),
    *("saddles", "statistics", "tasks", "weights"),
)
__all__ = [*_DEFINED_IN, *_MODULES]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module 'prednet_jax' has no attribute {name!r}")
    try:
        module = importlib.import_module(f"prednet_jax.{_DEFINED_IN.get(name, name)}")
    except ModuleNotFoundError as error:
        if (said := errors.missing_extra(error)) is None:
            raise
        raise ModuleNotFoundError(said, name=error.name) from error
    value = getattr(module, name) if name in _DEFINED_IN else module
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
