"""Tasks: a network and how it is trained, as one object.

Training, comparison and studies know a network through its `Task` only. A new network
is one file with a subclass of `Task`. The subclass needs `init_params` and `outputs`;
everything else has a default. The file may lie outside this package: `train.py --model`
and `compare_backends.py --models` take an instance as `module:object`.
"""

import importlib
import os
import sys
from collections.abc import Mapping
from typing import Any

from prednet_jax.config import AutoencoderConfig, PredNetConfig
from prednet_jax.errors import UserError
from prednet_jax.tasks.autoencoder import AutoencoderTask
from prednet_jax.tasks.base import Adam, Task
from prednet_jax.tasks.prednet import PredNetTask

__all__ = ["NAMED", "Adam", "AutoencoderTask", "Network", "PredNetTask", "Task"]

Network = Task | PredNetConfig | AutoencoderConfig
NAMED = {
    "prednet": (PredNetTask, PredNetConfig),
    "autoencoder": (AutoencoderTask, AutoencoderConfig),
}


def of(network: Network) -> Task:
    """The task of a configuration; a task is returned as it is."""
    if isinstance(network, Task):
        return network
    for task, config in NAMED.values():
        if isinstance(network, config):
            return task(network)
    raise TypeError(
        f"network of type {type(network).__name__}: expected a Task, PredNetConfig or "
        "AutoencoderConfig"
    )


def recorded(model: str, network: Mapping[str, Any]) -> Task:
    """The task that a run's manifest names.

    Args:
        model: `prednet`, `autoencoder` or `module:object`.
        network: the settings, as `Task.network` returned them.

    Raises:
        UserError: there is no such task.
    """
    if model not in NAMED:
        return load(model)
    task, config = NAMED[model]
    lists = {k: tuple(v) for k, v in network.items() if isinstance(v, list)}
    return task(config(**{**network, **lists}))


def load(name: str) -> Task:
    """Imports a task from outside this package.

    Args:
        name: `module:object`; the module is searched for on Python's path and in the
            working directory.

    Raises:
        UserError: there is no such module or object, or the object is not a `Task`. An
            error inside the module is raised unchanged.
    """
    module, _, attribute = name.partition(":")
    accepted = f"expected {', '.join(NAMED)} or module:object, a prednet_jax.tasks.Task"
    if not (module and attribute):
        raise UserError(f"model={name!r}: {accepted}")
    if os.getcwd() not in sys.path:
        sys.path.append(os.getcwd())
    try:
        found = getattr(importlib.import_module(module), attribute, None)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{module}.".startswith(f"{error.name}."):
            raise
        raise UserError(f"model={name!r}: no module {module}; {accepted}") from None
    if not isinstance(found, Task):
        raise UserError(f"model={name!r}: found {found!r}; {accepted}")
    found.name = name
    return found
