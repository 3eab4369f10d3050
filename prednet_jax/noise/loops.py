"""Stops while loops that do not end under noise.

A loop that iterates until two numbers are equal, or nearly so, may never end once they
are rounded at random. A loop whose predicate depends on floating-point numbers is
therefore stopped after `loop_limit` times the number of steps that it takes without
noise from the same start, and the call raises an error that names the loop's line.
Loops that only count are not changed.

`naming_failures` turns this error, and the errors of checks that the user's program
makes while it runs, into errors of one line.
"""

import contextlib
import logging
import re
from collections.abc import Iterator, Sequence
from contextvars import ContextVar
from typing import NamedTuple

import jax
import numpy as np
from jax import Array, lax
from jax import numpy as jnp

from prednet_jax.noise import compat
from prednet_jax.noise.errors import NoiseError, check_int
from prednet_jax.noise.types import Params, Values


class Options(NamedTuple):
    """How the programs of noisy functions end.

    Attributes:
        factor: see `loop_limit`.
        checks: whether checks of Equinox, such as `error_if`, are made.
    """

    factor: int = 100
    checks: bool = True


_DEFAULT = Options()
_OPTIONS = ContextVar("options", default=_DEFAULT)


class LoopError(NoiseError):
    """A while loop did not end under noise."""


class CheckError(NoiseError):
    """A function that the program calls on the host raised an error."""


@contextlib.contextmanager
def loop_limit(factor: int) -> Iterator[None]:
    """Lets while loops run at most `factor` times as many steps as without noise.

    It affects noisy functions that are called inside the block, and all tools. The
    default is 100.
    """
    check_int("factor", factor, 1, 1 << 20)
    with using(current()._replace(factor=factor)):
        yield


@contextlib.contextmanager
def using(options: Options) -> Iterator[None]:
    """Uses these options inside the block."""
    token = _OPTIONS.set(options)
    try:
        yield
    finally:
        _OPTIONS.reset(token)


@contextlib.contextmanager
def without_checks() -> Iterator[None]:
    """Leaves out the checks of Equinox inside the block, and JAX's search for NaN.

    Noise may move a number beyond the limit of a check, such as a time beyond the end
    of a differential equation, and a check has no answer.
    """
    options = using(current()._replace(checks=False))
    with options, jax.debug_nans(False), jax.debug_infs(False):
        yield


@contextlib.contextmanager
def asking() -> Iterator[None]:
    """Prepares the run of a program whose values a tool reads.

    Errors get one line, and checks of Equinox are left out. So is JAX's search for
    leaks: a tool keeps values of its own trace until the trace ends, and JAX would need
    minutes to say why they are alive.
    """
    with naming_failures(), without_checks(), jax.check_tracer_leaks(False):
        yield


def current() -> Options:
    """Returns the current options."""
    return _OPTIONS.get()


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


def calls_host(jaxpr: compat.Jaxpr) -> bool:
    """Returns whether a program calls functions of the host, which may raise errors."""
    return any(
        e.primitive.name in ("pure_callback", "io_callback", "debug_callback")
        or any(map(calls_host, compat.sub_jaxprs(e.params)))
        for e in compat.open_jaxpr(jaxpr)[0].eqns
    )


@contextlib.contextmanager
def naming_failures() -> Iterator[None]:
    """Raises a NoiseError in one line where a program fails while it runs.

    Programs fail by `refuse`, or by an error of a function that they call on the host,
    such as a check of Equinox.
    """
    _NAMING.append(True)
    try:
        yield
    except (jax.errors.JaxRuntimeError, ValueError) as error:
        # The last line of a traceback that is not indented names the error.
        text = str(error)
        raised = re.search(r"^([\w.]+)(: .*)?$", text.rpartition("  File ")[2], re.M)
        if raised is None or "Traceback" not in text:
            raise
        message = (raised[2] or "")[2:].strip()
        if raised[1].endswith(LoopError.__name__):
            raise LoopError(message) from None
        raise CheckError(
            "a check of the function itself failed while it ran: "
            f"{message or raised[1]} (noise may move a number beyond the limit of a "
            "check: give the check room, pass exact numbers as arguments, or choose "
            "the equations that are perturbed)"
        ) from None
    finally:
        _NAMING.pop()


# One entry for each block of `naming_failures` that is active, in any thread.
_NAMING: list[bool] = []


def _is_not_named(record: logging.LogRecord) -> bool:
    raised = record.exc_info[0] if record.exc_info else None
    return raised is None or not (_NAMING or issubclass(raised, LoopError))


# JAX logs whatever a callback raises; this is raised again, in one line.
for _module in ("callback", "debugging"):
    logging.getLogger(f"jax._src.{_module}").addFilter(_is_not_named)
