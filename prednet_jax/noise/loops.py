"""Stops while loops that do not end under noise.

A loop that iterates until two numbers are equal, or nearly so, may never end once they
are rounded at random. A loop whose predicate depends on floating-point numbers is
therefore stopped after `loop_limit` times the number of steps that it takes without
noise from the same start, and the call raises an error that names the loop's line.
Loops that only count are not changed.
"""

import contextlib
import logging
import re
from collections.abc import Iterator, Sequence
from contextvars import ContextVar

import jax
import numpy as np
from jax import Array, lax
from jax import numpy as jnp

from prednet_jax.noise import compat
from prednet_jax.noise.errors import NoiseError, check_int
from prednet_jax.noise.types import Params, Values

_LIMIT = ContextVar("loop_limit", default=100)


class LoopError(NoiseError):
    """A while loop did not end under noise."""


@contextlib.contextmanager
def loop_limit(factor: int) -> Iterator[None]:
    """Lets while loops run at most `factor` times as many steps as without noise.

    It affects noisy functions that are called inside the block, and all tools. The
    default is 100.
    """
    check_int("factor", factor, 1, 1 << 20)
    token = _LIMIT.set(factor)
    try:
        yield
    finally:
        _LIMIT.reset(token)


def current_limit() -> int:
    """Returns the current factor."""
    return _LIMIT.get()


def may_not_end(params: Params) -> bool:
    """Returns whether the predicate of a while loop depends on floats."""
    cond, _ = compat.open_jaxpr(params["cond_jaxpr"])
    body, _ = compat.open_jaxpr(params["body_jaxpr"])
    n_cond, n_body = params["cond_nconsts"], params["body_nconsts"]
    floats, reads = _read(cond, [0])
    carry = {i - n_cond for i in reads if i >= n_cond}
    seen: set[int] = set()
    while not floats and carry - seen:
        seen |= carry
        floats, reads = _read(body, sorted(carry))
        carry |= {i - n_body for i in reads if i >= n_body}
    return floats


def _read(jaxpr: compat.Jaxpr, results: Sequence[int]) -> tuple[bool, set[int]]:
    """Returns whether results depend on floats, and on which arguments."""
    wanted = {
        jaxpr.outvars[i] for i in results if not compat.is_literal(jaxpr.outvars[i])
    }
    floats = False
    for equation in reversed(jaxpr.eqns):
        if wanted.isdisjoint(equation.outvars):
            continue
        atoms = [*equation.invars, *equation.outvars]
        floats |= any(jnp.issubdtype(a.aval.dtype, jnp.inexact) for a in atoms)
        wanted.update(a for a in equation.invars if not compat.is_literal(a))
    invars = {i for i, var in enumerate(jaxpr.invars) if var in wanted}
    return floats, invars


def plain_steps(params: Params, operands: Values) -> Array:
    """Returns the number of steps that a while loop takes without noise."""
    n_cond, n_body = params["cond_nconsts"], params["body_nconsts"]
    start = [lax.stop_gradient(x) for x in operands]
    cond_consts, body_consts = start[:n_cond], start[n_cond : n_cond + n_body]
    cond, body = (compat.as_function(params[f"{n}_jaxpr"]) for n in ("cond", "body"))

    def goes_on(carry: tuple[Array, list[Array]]) -> Array:
        return jnp.any(cond(*cond_consts, *carry[1])[0])

    def step(carry: tuple[Array, list[Array]]) -> tuple[Array, list[Array]]:
        return carry[0] + np.uint32(1), body(*body_consts, *carry[1])

    zero = jnp.zeros((), jnp.uint32)
    return lax.while_loop(goes_on, step, (zero, start[n_cond + n_body :]))[0]


def refuse(source: str, limit: int, stopped: Array, plain: Array) -> None:
    """Fails the program where it runs, if `stopped`."""

    def fail(stopped: Array, plain: Array) -> None:
        if np.any(stopped):
            steps = int(np.max(plain))
            raise LoopError(
                f"under this noise the loop at {source or 'an unknown line'} does not "
                f"converge: it ran {limit} times the {steps} steps that it takes "
                "without noise; expected a tolerance above the noise, or a larger "
                "noise.loop_limit(factor)"
            )

    def report() -> None:
        jax.debug.callback(fail, stopped, plain)

    lax.cond(stopped, report, lambda: None)


@contextlib.contextmanager
def naming_loops() -> Iterator[None]:
    """Raises a `LoopError` where a program failed by `refuse`."""
    try:
        yield
    except jax.errors.JaxRuntimeError as error:
        named = re.search(r"LoopError: (under this noise .*)", str(error))
        if named is None:
            raise
        raise LoopError(named[1]) from None


def _is_no_loop_error(record: logging.LogRecord) -> bool:
    raised = record.exc_info[0] if record.exc_info else None
    return raised is None or not issubclass(raised, LoopError)


# JAX logs whatever a callback raises; this is raised again, in one line.
logging.getLogger("jax._src.debugging").addFilter(_is_no_loop_error)
