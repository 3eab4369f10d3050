"""A network as one object: all that training, comparison and studies ask of it.

A third network is one new file with a subclass of `Task`, which needs `init_params` and
`outputs`; everything else has a default. It may lie outside this package: `train.py
--model` and `compare_backends.py --models` take an instance as `module:object`.
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
    """The task of a configuration; a task itself."""
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
    """The task that a manifest names.

    Args:
        model: `prednet`, `autoencoder` or `module:object`.
        network: what `Task.network` gave.

    Raises:
        UserError: the name is none of these.
    """
    if model not in NAMED:
        return load(model)
    task, config = NAMED[model]
    lists = {k: tuple(v) for k, v in network.items() if isinstance(v, list)}
    return task(config(**{**network, **lists}))


def load(name: str) -> Task:
    """A task that was written elsewhere.

    Args:
        name: `module:object`; the module is looked for where Python looks, and in the
            working directory.

    Raises:
        UserError: there is no such module or object, or it is no `Task`. An error
            inside the module is raised as it is.
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
