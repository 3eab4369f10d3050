"""Hides the differences between JAX 0.10 and 0.11, and uses of JAX's internals.

Sources: `jax/_src/core.py` (`JaxprEqn`), `jax/_src/lax/control_flow/loops.py`
(`scan_p`) and `jax/_src/checkify.py`, JAX's own interpreter with a rule for each
higher-order primitive.
"""

import contextlib
import functools
import linecache
import os
import sysconfig
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import CodeType
from typing import Any, TypeAlias

import jax
from jax import Array
from jax._src import source_info_util
from jax._src.core import AbstractValue, extend_axis_env_nd
from jax._src.interpreters import mlir
from jax._src.interpreters.batching import BatchTracer as BatchTracer
from jax._src.lax.lax import _convert_element_type
from jax._src.lax.parallel import all_gather_invariant as all_gather_invariant
from jax._src.state.types import AbstractRef
from jax.extend import core
from jax.extend.core import primitives
from jax.extend.core.primitives import get_p as get_p
from jax.extend.core.primitives import swap_p as swap_p
from jax.interpreters import partial_eval

from prednet_jax.noise.types import Atom, Params, PyTree

Equation = Any  # jax.extend.core.JaxprEqn, whose attributes are not typed
# jax.extend.core.Jaxpr or ClosedJaxpr, whose atoms are not typed.
Jaxpr: TypeAlias = Any


def open_jaxpr(jaxpr: Jaxpr) -> tuple[Jaxpr, Sequence[Array]]:
    """Returns a jaxpr and its constants; since 0.11 closed and open are one class."""
    consts = tuple(getattr(jaxpr, "consts", ()))
    return getattr(jaxpr, "jaxpr", jaxpr), consts


def is_jaxpr(value: object) -> bool:
    """Returns whether a value is a jaxpr, open or closed."""
    return isinstance(value, core.Jaxpr | core.ClosedJaxpr)


def is_literal(atom: object) -> bool:
    """Returns whether an atom is a literal number, not a variable."""
    return isinstance(atom, core.Literal)


def is_ref(aval: object) -> bool:
    """Returns whether an abstract value is a mutable array."""
    return isinstance(aval, AbstractRef)


def as_function(jaxpr: Jaxpr) -> Callable[..., list[Array]]:
    """Returns a function of arrays that evaluates a jaxpr, closed or without consts.

    It keeps the lines and scopes of the equations.
    """
    is_closed = isinstance(jaxpr, core.ClosedJaxpr)
    return core.jaxpr_as_fun(jaxpr if is_closed else core.ClosedJaxpr(jaxpr, ()))


def sub_jaxprs(params: Params) -> list[Jaxpr]:
    """Returns every jaxpr among the parameters of an equation, open or closed."""
    return [
        item
        for value in params.values()
        for item in (value if isinstance(value, tuple | list) else (value,))
        if is_jaxpr(item)
    ]


def needed(jaxpr: Jaxpr) -> Jaxpr:
    """Returns a jaxpr, open, with what its results and effects depend on alone."""
    opened, _ = open_jaxpr(jaxpr)
    return partial_eval.dce_jaxpr(opened, [True] * len(opened.outvars))[0]


def unread(jaxpr: Jaxpr) -> frozenset[int]:
    """Returns the ids of the variables that no result and no effect depends on."""
    opened, kept = open_jaxpr(jaxpr)[0], needed(jaxpr)
    outvars, kept_outvars = (
        {id(x) for p in _programs(program) for e in p.eqns for x in e.outvars}
        for program in (opened, kept)
    )
    read = {
        id(x)
        for p in _programs(kept)
        for atoms in (p.outvars, *(e.invars for e in p.eqns))
        for x in atoms
    }
    if (kept_outvars & read) - outvars:  # JAX has traced a program anew.
        return frozenset()
    return frozenset({*outvars, *map(id, opened.invars)} - read)


def constants(jaxpr: Jaxpr) -> Iterator[Array]:
    """Yields the constants of a jaxpr, and of those inside."""
    opened, consts = open_jaxpr(jaxpr)
    yield from consts
    for equation in opened.eqns:
        for inside in sub_jaxprs(equation.params):
            yield from constants(inside)


def _programs(jaxpr: Jaxpr) -> Iterator[Jaxpr]:
    """Yields a jaxpr, and those inside."""
    opened, _ = open_jaxpr(jaxpr)
    yield opened
    for equation in opened.eqns:
        for inside in sub_jaxprs(equation.params):
            yield from _programs(inside)


def is_check(jaxpr: Jaxpr) -> bool:
    """Returns whether a branch raises an error of Equinox, as `error_if` does."""
    callbacks = (e.params.get("callback") for e in open_jaxpr(jaxpr)[0].eqns)
    raised = (getattr(callback, "callback_func", None) for callback in callbacks)
    return any(getattr(f, "__module__", "") == "equinox._errors" for f in raised)


def scan_counts(params: Params) -> tuple[int, int]:
    """Returns the numbers of constants and of carried values of a scan equation."""
    if "num_consts" in params:
        return params["num_consts"], params["num_carry"]
    consts, carry, _ = params["ft_in"].unpack()
    return len(tuple(consts)), len(tuple(carry))


def branch(
    params: Params, index: Array, branches: Sequence[Callable], *args: PyTree
) -> PyTree:
    """Rebuilds a cond equation, platform-dependent or not, with other branches."""
    platforms = params.get("branches_platforms")
    if platforms is None:
        return jax.lax.switch(index, branches, *args)
    named = {
        platform: function
        for function, names in zip(branches, platforms, strict=True)
        for platform in names or ("default",)
    }
    return jax.lax.platform_dependent(*args, **named)


def bind(equation: Equation, *operands: Array) -> list[Array]:
    """Evaluates one equation without change, including its custom derivative rules."""
    params = equation.primitive.get_bind_params(equation.params)
    out = equation.primitive.bind(*operands, **params)
    return list(out) if equation.primitive.multiple_results else [out]


_HIGHEST = (jax.lax.Precision.HIGHEST, jax.lax.Precision.HIGHEST)


def is_highest(precision: object) -> bool:
    """Returns whether a product's precision is the highest for both operands."""
    return precision in (jax.lax.Precision.HIGHEST, _HIGHEST)


def highest_of(equation: Equation) -> Equation:
    """Returns an equation with the highest precision, also in its inner programs."""

    def rewritten(value: PyTree) -> PyTree:
        return with_highest_precision(value) if is_jaxpr(value) else value

    params = {
        name: jax.tree.map(rewritten, value, is_leaf=is_jaxpr)
        if sub_jaxprs({"": value})
        else value
        for name, value in equation.params.items()
    }
    if "precision" in params:
        params["precision"] = _HIGHEST
    return equation.replace(params=params)


def with_highest_precision(jaxpr: Jaxpr) -> Jaxpr:
    """Returns a jaxpr, open or closed, whose products have the highest precision."""
    opened, _ = open_jaxpr(jaxpr)
    if opened is not jaxpr:
        return jaxpr.replace(jaxpr=with_highest_precision(opened))
    return opened.replace(eqns=list(map(highest_of, opened.eqns)))


def donated(jaxpr: Jaxpr) -> tuple[int, ...]:
    """Returns the positions of the arguments that a program's compiled call donates."""
    opened, _ = open_jaxpr(jaxpr)
    atoms: set[Atom] = set()
    for equation in opened.eqns:
        donates = equation.params.get("donated_invars", ())
        pairs = zip(equation.invars, donates, strict=False)
        atoms |= {atom for atom, gives in pairs if gives and not is_literal(atom)}
    return tuple(i for i, var in enumerate(opened.invars) if var in atoms)


def primitive_names() -> frozenset[str]:
    """Returns the names of all primitives that JAX can compile or trace."""
    public = [p for p in vars(primitives).values() if isinstance(p, core.Primitive)]
    tables = public, mlir._lowerings, *mlir._platform_specific_lowerings.values()
    return frozenset(p.name for table in tables for p in table)


def scope(equation: Equation) -> str:
    """Returns the named scopes and transformations of an equation, joined by `/`."""
    return str(equation.source_info.name_stack)


_WIDE = ("float64", "complex128", "int64", "uint64")


@contextlib.contextmanager
def settings(equation: Equation) -> Iterator[None]:
    """Enters the settings under which an equation was traced.

    A function may enable types of 64 bits inside, by `jax.enable_x64`.
    """
    atoms = *equation.invars, *equation.outvars
    is_wide = any(str(getattr(x.aval, "dtype", "")) in _WIDE for x in atoms)
    types = jax.enable_x64(True) if is_wide else contextlib.nullcontext()
    with equation.ctx.manager, types:
        yield


@contextlib.contextmanager
def context(equation: Equation) -> Iterator[None]:
    """Enters an equation's settings and its scope, which later traces record."""
    with contextlib.ExitStack() as stack:
        stack.enter_context(settings(equation))
        for name in filter(None, scope(equation).split("/")):
            stack.enter_context(jax.named_scope(name))
        yield


def varying_axes(*operands: Array) -> tuple[str, ...]:
    """Returns the mesh axes over which operands vary, in shard_map with check_vma."""
    axes: set[str] = set()
    for operand in operands:
        # The manual axis type, `mat`; before, its axes were a separate attribute.
        aval = operand if isinstance(operand, AbstractValue) else jax.typeof(operand)
        varying = getattr(getattr(aval, "mat", None), "varying", None)
        axes |= set(getattr(aval, "vma", ()) if varying is None else varying)
    return tuple(sorted(axes))


def automatic(function: Callable, equation: Equation) -> Callable:
    """Wraps a function so that it can replace an equation with explicit shardings.

    XLA partitions arrays automatically inside; the result has the equation's sharding.
    An equation without explicit shardings gets `function` unchanged.
    """
    sharding = equation.outvars[0].aval.sharding
    mesh = sharding.mesh
    # Without the axes that a shard_map around made manual.
    kinds = zip(mesh.axis_names, mesh.axis_types, strict=True)
    wanted = jax.sharding.AxisType.Explicit
    explicit = tuple(name for name, kind in kinds if kind == wanted)
    if not explicit:
        return function

    def wrapped(*args: PyTree) -> PyTree:
        placed = (jax.typeof(x).sharding.mesh for x in jax.tree.leaves(args))
        if jax.sharding.get_abstract_mesh().empty and all(m.empty for m in placed):
            # Evaluated on one device; see `questions.device_by_device`.
            return function(*args)
        options: dict[str, Any] = {"axes": explicit, "out_sharding": sharding.spec}
        with jax.sharding.use_abstract_mesh(mesh):
            return jax.sharding.auto_axes(function, **options)(*args)

    return wrapped


def in_one_row(x: Array) -> Array:
    """Returns the elements of an array, which may be sharded over an explicit mesh."""
    sharding = jax.typeof(x).sharding
    if any(sharding.spec):
        spec = jax.sharding.PartitionSpec()
        x = jax.sharding.reshard(x, jax.sharding.NamedSharding(sharding.mesh, spec))
    return jax.numpy.ravel(x)


def weakly_typed(x: Array) -> Array:
    """Returns `x` with a weak type, as Python's numbers have."""
    return _convert_element_type(x, x.dtype, weak_type=True)


def manual_axis_sizes(params: Params) -> dict[str, int]:
    """Returns the sizes of the mesh axes that a shard_map equation makes manual."""
    manual = params["newly_manual_axes"]
    return {k: v for k, v in params["mesh"].shape.items() if k in manual}


def axes_in_scope(sizes: Mapping[str, int]) -> contextlib.AbstractContextManager:
    """Makes these axes available to `lax.axis_size`, as inside their shard_map."""
    return extend_axis_env_nd(list(sizes.items()))


def source(equation: Equation, jaxpr: Jaxpr) -> str:
    """Returns the user's line of an equation, as "file.py:12 in function", or "".

    See `sources`.
    """
    return next(sources(equation, jaxpr), "")


def source_text(equation: Equation, jaxpr: Jaxpr) -> str:
    """Returns the text of the user's line of an equation, or "" if it is not known."""
    for code, frame in _users_frames(equation, jaxpr):
        numbers = range(frame.start_line, max(frame.start_line, frame.end_line) + 1)
        lines = (linecache.getline(code.co_filename, n).strip() for n in numbers)
        return " ".join(lines).strip()
    return ""


def sources(equation: Equation, jaxpr: Jaxpr) -> Iterator[str]:
    """Yields the user's lines that were running when an equation was made, last first.

    Frames outside of the function from which the open `jaxpr` was traced are skipped.
    JAX caches traces, so these frames may belong to another caller.
    """
    for code, frame in _users_frames(equation, jaxpr):
        name = code.co_qualname.rsplit(".", 1)[-1]
        yield f"{os.path.basename(code.co_filename)}:{frame.start_line} in {name}"


def _users_frames(equation: Equation, jaxpr: Jaxpr) -> Iterator[tuple[CodeType, Any]]:
    """Yields the user's code objects and JAX's frames of the lines of `sources`."""
    traced = getattr(jaxpr.debug_info, "func_src_info", "") or ""
    for code, position in _frames(equation):
        if is_users(code.co_filename):
            yield code, source_info_util.raw_frame_to_frame(code, position)
        if traced.endswith(f" at {code.co_filename}:{code.co_firstlineno}"):
            return


def is_written_by(equation: Equation, function: str) -> bool:
    """Returns whether the JAX function of that name wrote an equation."""
    codes = (code for code, _ in _frames(equation))
    return any(c.co_name == function and not is_users(c.co_filename) for c in codes)


def _frames(equation: Equation) -> list[tuple[CodeType, int]]:
    """Returns the code objects, and positions in them, that were running in a trace."""
    traceback = equation.source_info.traceback
    return list(zip(*traceback.raw_frames(), strict=True)) if traceback else []


@functools.cache
def is_users(filename: str) -> bool:
    """Returns whether a file belongs neither to a library nor to this package."""
    if not source_info_util.is_user_filename(filename):
        return False
    if {"site-packages", "dist-packages"} & set(filename.split(os.sep)):
        return False
    return not filename.startswith(_NOT_USERS)


_NOT_USERS = (
    "<frozen",
    os.path.join(os.path.dirname(__file__), ""),
    os.path.join(sysconfig.get_path("stdlib"), ""),
)
