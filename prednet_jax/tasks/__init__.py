"""Tasks: a network and how it is trained, as one object.

Training, comparison and studies know a network through its `Task` only. A new network
is one file with a subclass of `Task`, perhaps outside this package: `train.py --model`
and `compare_backends.py --models` take an instance as `module:object`.
"""

import importlib
import importlib.machinery
import os
import re
import sys
from collections.abc import Mapping
from typing import Any

from prednet_jax.config import AutoencoderConfig, PredNetConfig
from prednet_jax.errors import UserError
from prednet_jax.tasks.networks import Adam, AutoencoderTask, PredNetTask, Task

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
    """The task that a manifest names, with settings as `Task.network` gave them."""
    check_recorded(model)
    if model not in NAMED:
        return load(model)
    if not isinstance(network, Mapping):
        raise UserError(f"network={network!r}: expected the settings of {model}")
    task, config = NAMED[model]
    lists = {k: tuple(v) for k, v in network.items() if isinstance(v, list)}
    return task(config(**{**network, **lists}))


def check_recorded(model: str) -> None:
    """Refuses the name of a task, from a manifest, if its module may not be imported.

    A manifest may come from somebody else, and must not have any installed module run.
    So the module has to import this package. Its source is read; nothing is imported.
    """
    if model in NAMED:
        return
    module, _ = _parts(model)
    parts, place, spec = module.split("."), None, None
    for end in range(1, len(parts) + 1):
        # importlib.util.find_spec would import the packages above it.
        find = importlib.machinery.PathFinder.find_spec
        spec = find(".".join(parts[:end]), place)
        place = (spec and spec.submodule_search_locations) or []
    loader: Any = spec and spec.loader
    try:
        source = loader.get_source(module) or ""
    except (AttributeError, ImportError, SyntaxError, ValueError):  # It has no text.
        source = ""
    package = __name__.partition(".")[0]
    if not re.search(rf"^\s*(from|import)\b.*\b{package}\b", source, re.MULTILINE):
        raise UserError(
            f"model={model!r}: expected {', '.join(NAMED)} or an object of a module "
            f"that imports {package}; a record cannot have another one imported"
        )


def load(name: str) -> Task:
    """Imports a task, `module:object`, from Python's path or the working directory.

    An error inside the module is raised unchanged.
    """
    module, attribute = _parts(name)
    try:
        found = getattr(importlib.import_module(module), attribute, None)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{module}.".startswith(f"{error.name}."):
            raise
        raise UserError(f"model={name!r}: no module {module}; {_ACCEPTED}") from None
    if not isinstance(found, Task):
        raise UserError(f"model={name!r}: found {found!r}; {_ACCEPTED}")
    found.name = name
    return found


_ACCEPTED = f"expected {', '.join(NAMED)} or module:object, a prednet_jax.tasks.Task"


def _parts(name: str) -> tuple[str, str]:
    """Module and object of a name; the working directory is looked at from now on."""
    module, _, attribute = str(name).partition(":")
    if not all(part.isidentifier() for part in (*module.split("."), attribute)):
        raise UserError(f"model={name!r}: {_ACCEPTED}")
    if os.getcwd() not in sys.path:
        sys.path.append(os.getcwd())
    return module, attribute
