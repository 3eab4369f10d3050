"""Stops while loops that do not end under noise.

A loop that iterates until two numbers are equal, or nearly so, may never end once they
are rounded at random, or from another start, or in float64. A loop whose predicate
depends on floating-point numbers is therefore stopped after `loop_limit` times the
number of steps that it takes without noise, and the call raises an error that names
the loop's line. If it does not end without noise either, the steps count until its
values repeat. Loops that only count are not changed. A question counts the steps once
for all its programs (`Evaluation.counted`); a program that would be stopped then counts
them from the start that noise gave the loop.

`naming_failures` turns this error, and the errors of checks that the user's program
makes while it runs, into errors of one line.
"""

import contextlib
import functools
import logging
import re
from collections.abc import Callable, Iterator, Sequence
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


def deciding(params: Params) -> list[int] | None:
    """Returns the carried values on which the predicate of a while loop depends.

    These values, by their positions, depend on no other carried value. None stands for
    a predicate that depends on no float: its loop only counts. It also stands for a
    loop that may change the host by `io_callback`, which must not run twice.
    """
    programs = [params[f"{name}_jaxpr"] for name in ("cond", "body")]
    if any(calls_host(program, ("io_callback",)) for program in programs):
        return None
    (cond, _), (body, _) = map(compat.open_jaxpr, programs)
    n_cond, n_body = params["cond_nconsts"], params["body_nconsts"]
    floats, reads = _read(cond, [0])
    carry = {i - n_cond for i in reads if i >= n_cond}
    seen: set[int] = set()
    while carry - seen:
        seen |= carry
        more, reads = _read(body, sorted(carry))
        floats |= more
        carry |= {i - n_body for i in reads if i >= n_body}
    return sorted(carry) if floats else None


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


class PlainSteps(NamedTuple):
    """How many steps a while loop takes without noise.

    `repeats` is whether it never ends: after these steps its values repeat themselves.
    """

    steps: Array
    repeats: Array


def plain_steps(
    params: Params,
    operands: Values,
    carried: list[int],
    cond: Callable[..., Values],
    body: Callable[..., Values],
) -> tuple[PlainSteps, list[Array]]:
    """Runs a while loop without noise, in its own types, until it ends or repeats.

    A loop whose values are those of an earlier step never ends. Each step is compared
    with the last one whose number is a power of two (Brent, "An improved Monte Carlo
    factorization algorithm", BIT 20, 1980). `carried` is what `deciding` gives; `cond`
    and `body` evaluate the programs, in which loops end in the same way. The second
    result are the values at the end.
    """
    n_cond, n_body = params["cond_nconsts"], params["body_nconsts"]
    programs = [params[f"{name}_jaxpr"] for name in ("cond", "body")]
    (of_cond, _), (of_body, _) = map(compat.open_jaxpr, programs)
    types = [v.aval for v in (*of_cond.invars[:n_cond], *of_body.invars)]
    start = [
        x if compat.is_ref(t) else lax.stop_gradient(jnp.asarray(x, t.dtype))
        for x, t in zip(operands, types, strict=True)
    ]
    cond_consts, body_consts = start[:n_cond], start[n_cond : n_cond + n_body]
    # The state of a mutable array is no carried value.
    comparable = not any(map(compat.is_ref, types))

    def goes_on(carry: tuple) -> Array:
        _, going, _, _, repeats = carry
        return jnp.any(going) & ~repeats

    def step(carry: tuple) -> tuple:
        number, going, old, kept, _ = carry
        new = stopping(going, body([*body_consts, *old]), old)
        number = number + np.uint32(1)
        going = going & cond([*cond_consts, *new])[0]
        now = bits_of(new)
        repeats = are_same(now, kept)
        keeps = number & (number - np.uint32(1)) == 0
        kept = [jnp.where(keeps, x, y) for x, y in zip(now, kept, strict=True)]
        return number, going, new, kept, repeats

    def bits_of(values: Values) -> list[Array]:
        return [b for i in carried for b in _bits(values[i])] if comparable else []

    def are_same(now: list[Array], kept: list[Array]) -> Array:
        pairs = zip(now, kept, strict=True)
        same = (jnp.all(x == y) for x, y in pairs)
        return functools.reduce(jnp.logical_and, same, jnp.array(comparable))

    init = start[n_cond + n_body :]
    first, bits = jnp.zeros((), jnp.uint32), bits_of(init)
    # False, but in a shard_map it varies as it will in the loop.
    never = are_same(bits, bits) & jnp.array(False)
    carry = first, cond([*cond_consts, *init])[0], init, bits, never
    with jax.named_scope(PLAIN):
        steps, going, end, *_ = lax.while_loop(goes_on, step, carry)
    return PlainSteps(steps, jnp.any(going)), end


def with_own_refs(operands: Values) -> list:
    """Returns operands of a loop with copies of mutable arrays, to be written to."""
    return [
        jax.new_ref(x[...]) if compat.is_ref(jax.typeof(x)) else x for x in operands
    ]


def stopping(going: Array, new: Values, old: Values) -> list[Array]:
    """Returns the values after a step of a while loop that goes on where `going`.

    After vmap the predicate may have axes: each element then stops on its own.
    """
    if not going.ndim:
        return list(new)

    def keep(new: Array, old: Array) -> Array:
        axes = tuple(range(going.ndim))
        goes = lax.broadcast_in_dim(going, jnp.shape(new), axes)
        return jnp.where(goes, new, old)

    return list(map(keep, new, old))


def _bits(x: Array) -> list[Array]:
    """Returns the bits of an array as integers, so that an equal NaN is equal."""
    if jnp.issubdtype(x.dtype, jax.dtypes.prng_key):
        return [jax.random.key_data(x)]
    if jnp.issubdtype(x.dtype, jnp.complexfloating):
        return [bits for part in (x.real, x.imag) for bits in _bits(part)]
    if not jnp.issubdtype(x.dtype, jnp.floating):
        return [x]
    if jnp.finfo(x.dtype).bits < 8:
        x = x.astype(jnp.float32)
    return [lax.bitcast_convert_type(x, f"uint{jnp.finfo(x.dtype).bits}")]


# Scopes of loops that noise on the noisy program neither perturbs nor stops again.
PLAIN, BOUNDED = "noise_plain_loop", "noise_bounded_loop"


def refuse(
    source: str, limit: int, stopped: Array, plain: PlainSteps, where: str
) -> None:
    """Fails the program where it runs, if `stopped`; `where` says why it may."""

    def fail(stopped: Array, plain: PlainSteps) -> None:
        if np.any(stopped):
            after = "that it takes without noise"
            if np.any(plain.repeats):
                after = "after which its values repeat themselves without noise"
            raise LoopError(
                f"{where} the loop at {source or 'an unknown line'} does not "
                f"converge: it ran {limit} times the {int(np.max(plain.steps))} steps "
                f"{after}; expected a tolerance above the noise, or a larger "
                "noise.loop_limit(factor)"
            )

    def report() -> None:
        jax.debug.callback(fail, stopped, plain)

    lax.cond(stopped, report, lambda: None)


# Errors of Equinox' and of Chex' checks.
_CHECKS = ("_EquinoxRuntimeError", "AssertionError")
_HOST = ("pure_callback", "io_callback", "debug_callback")


def calls_host(jaxpr: compat.Jaxpr, names: Sequence[str] = _HOST) -> bool:
    """Returns whether a program calls functions of the host, which may raise errors."""
    return any(
        e.primitive.name in names
        or any(calls_host(inner, names) for inner in compat.sub_jaxprs(e.params))
        for e in compat.open_jaxpr(jaxpr)[0].eqns
    )


@contextlib.contextmanager
def naming_failures() -> Iterator[None]:
    """Raises a NoiseError in one line where a program fails while it runs.

    Programs fail by `refuse`, or by an error of a function that they call on the host,
    such as a check of Equinox. An interrupt of such a function is an interrupt again.
    """
    _NAMING.append(True)
    try:
        yield
    except (jax.errors.JaxRuntimeError, ValueError) as error:
        # The last line of a traceback that is not indented names the error.
        text = str(error)
        raised = re.search(r"^([\w.<>]+)(: .*)?$", text.rpartition("  File ")[2], re.M)
        if raised is None or "Traceback" not in text:
            raise
        message = (raised[2] or "")[2:].strip()
        if raised[1].endswith(LoopError.__name__):
            raise LoopError(message) from None
        kind = raised[1].rpartition(".")[2]
        if kind == "KeyboardInterrupt":
            raise KeyboardInterrupt from None
        if kind not in _CHECKS:
            raise CheckError(
                "a function that the program calls on the host raised "
                f"{kind}{message and ': '}{message} (noise may change what it is given)"
            ) from None
        raise CheckError(
            "a check of the function itself failed while it ran: "
            f"{message or kind} (noise may move a number beyond the limit of a "
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
