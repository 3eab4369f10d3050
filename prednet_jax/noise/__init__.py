"""Numerical noise, injected into any JAX function.

    noisy = inject(fn, parse("reduction_order:partials=8,granularity=element"))
    noisy(jax.random.key(0), *args)

`specs` defines the noises, `inject` adds noise to a function, `coverage` lists which
equations it reaches, `localize` finds the equations whose noise matters, `decisions`
counts decisions that noise flips, `audit` lists what would vary on a GPU, and
`register_rule` adds a primitive of your own.
"""

import importlib
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from prednet_jax.noise._public import *  # noqa: F403


def __getattr__(name: str) -> Any:
    """Returns a public name; the first one that is used imports them all.

    So the project can import `prednet_jax.noise.errors` without JAX.
    """
    # A module of this folder is not yet an attribute while it is imported.
    if not name.startswith("_") and find_spec(f"{__name__}.{name}") is None:
        globals().update(_public_names())
        if name in globals():
            return globals()[name]
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *_public_names()})


def _public_names() -> dict[str, Any]:
    public = vars(importlib.import_module(f"{__name__}._public"))
    return {name: value for name, value in public.items() if name[0] != "_"}
