"""PredNet in JAX, and tools that test whether a GPU's numerical noise helps training.

This module holds the public names. Everything else is reached through its own module,
such as `prednet_jax.noise.inject` or `prednet_jax.curvature.extreme_eigenpairs`.

A name is imported when it is first used. So `import prednet_jax.noise` loads only JAX
and NumPy, and a training process does not load the statistics.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from prednet_jax import (
        curvature,
        data,
        noise,
        objectives,
        optimizers,
        process,
        saddles,
        statistics,
        tasks,
        weights,
    )
    from prednet_jax.config import AutoencoderConfig, PredNetConfig
    from prednet_jax.models.parameters import init_params, resize
    from prednet_jax.models.prednet import forecast, predict
    from prednet_jax.models.sequences import unit_times, units
    from prednet_jax.training.trainer import Trainer, train_windows, windows
    from prednet_jax.weights import pretrained

from prednet_jax import errors

__version__ = "0.1.0"

errors.quieten_cuda_plugin()

__all__ = [
    "AutoencoderConfig",
    "PredNetConfig",
    "Trainer",
    "curvature",
    "data",
    "forecast",
    "init_params",
    "noise",
    "objectives",
    "optimizers",
    "predict",
    "pretrained",
    "process",
    "resize",
    "saddles",
    "statistics",
    "tasks",
    "train_windows",
    "unit_times",
    "units",
    "weights",
    "windows",
]

# The module that defines each public name. Names that are not listed are modules.
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


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module 'prednet_jax' has no attribute {name!r}")
    try:
        module = importlib.import_module(f"prednet_jax.{_DEFINED_IN.get(name, name)}")
    except ModuleNotFoundError as error:
        if (said := errors.missing_extra(error)) is None:
            raise
        raise ModuleNotFoundError(said, name=error.name) from error
    found = getattr(module, name) if name in _DEFINED_IN else module
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
