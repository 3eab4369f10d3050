"""Reads the functions and the arrays that a command names."""

import contextlib
import importlib
import inspect
import itertools
from typing import Any

import numpy as np

from prednet_jax.noise.errors import NoiseError
from prednet_jax.noise.questions.names import read_arrays
from prednet_jax.noise.questions.sampling import BoundCall
from prednet_jax.noise.types import PyTree


def bound_call(name: str, file: str | None) -> BoundCall:
    """Returns the function MODULE:FUNCTION with the arrays of a file as arguments."""
    module, _, attribute = name.partition(":")
    if not all(part.isidentifier() for part in f"{module}.{attribute}".split(".")):
        raise NoiseError(
            f"{name!r}: expected MODULE:FUNCTION, such as model:loss of ./model.py"
        )
    try:
        fn: Any = importlib.import_module(module)
    except SyntaxError as error:
        raise NoiseError(f"{name!r}: {error}; expected Python") from None
    except ModuleNotFoundError as error:
        # Not a missing module that this one imports.
        if not f"{module}.".startswith(f"{error.name}."):
            raise
        raise NoiseError(
            f"{name!r}: {error}: expected a module in the current directory (without "
            ".py), or installed"
        ) from None
    for part in attribute.split("."):
        if not hasattr(fn, part):
            own = getattr(fn, "__dict__", {}).items()
            there = [n for n, x in own if callable(x) and n[0] != "_"]
            accepted = f"one of {', '.join(there[:12])}" if there else "a function"
            raise NoiseError(f"{name!r}: no {part!r} there; expected {accepted}")
        fn = getattr(fn, part)
    if not callable(fn):
        raise NoiseError(f"{name!r} is {type(fn).__name__}: expected a function")
    args, kwargs = read_arguments("args", file) if file else ((), {})
    signature = None
    with contextlib.suppress(ValueError):  # Some of C have no signature.
        signature = inspect.signature(fn)
    try:
        if signature is not None:
            signature.bind(*args, **kwargs)
    except TypeError as error:
        given = f"with the names {sorted(kwargs)} of --args={file}"
        raise NoiseError(
            f"{name}{signature} {given if file else 'without --args'}: {error}"
        ) from None
    return BoundCall(fn, args, kwargs)


def read_arguments(
    flag: str, file: str
) -> tuple[tuple[np.ndarray, ...], dict[str, PyTree]]:
    """Returns the arrays of --flag=file: by position, and by name, nested."""
    arrays = read_arrays(f"--{flag}", file)
    count = next(i for i in itertools.count() if f"arr_{i}" not in arrays)
    positional = tuple(arrays.pop(f"arr_{i}") for i in range(count))
    nested: dict[str, PyTree] = {}
    for name, array in arrays.items():
        *around, last = name.split("/")
        branch: PyTree = nested
        for part in around:
            branch = branch.setdefault(part, {}) if isinstance(branch, dict) else None
        if not isinstance(branch, dict) or last in branch:
            raise NoiseError(
                f"--{flag}={file}: {name} is the name of an array and of a folder of "
                "arrays; rename one of them"
            )
        branch[last] = array
    return positional, nested
