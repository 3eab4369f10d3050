"""`GpuOrder`: sums added on this machine in the order that a GPU would have used.

A sum (`reduce_sum`) is compiled for the GPU by itself, its order is read from the
kernel (`replay`), and the sum is written here as gathers and additions in that order.
What is read is kept: for PredNet's own sums on the GTX 1080 in `schedules.npz` beside
this file, which needs no compiler; for all others in the user's cache.

Products go to libraries whose order nobody publishes. They follow a model, "fused":
each output has one accumulator, to which the terms are added in rising order of k by
fused multiply-add; a convolution is the product of its patches (k counts features
first, then rows, then columns of the window: Chetlur et al., "cuDNN: efficient
primitives for deep learning", 2014). On GPUs with TF32 (since sm_80) the operands are
rounded to it first, to nearest, ties away, as `cvt.rna.tf32` does, unless the program
asks for a higher precision.
"""

from __future__ import annotations

import functools
import hashlib
import math
import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
from jax import Array, lax
from jax import numpy as jnp

from prednet_jax.noise import compat
from prednet_jax.noise.gpu import compilation, programs, replay, targets
from prednet_jax.noise.gpu.ptx import PtxError
from prednet_jax.noise.gpu.replay import Schedule
from prednet_jax.noise.order.partials import NoOrder, too_few
from prednet_jax.noise.specs import GpuOrder

# Types whose sums are added in float32.
TYPES = ("float32", "bfloat16", "float16")
# Orders that come with the package (tools/gpu_schedules.py).
# With this environment variable they are read anew.
IGNORED = "PREDNET_READ_ORDERS"
COMMITTED = Path(__file__).with_name("schedules.npz")


class Sum(NamedTuple):
    """A sum, as it is compiled."""

    gpu: str
    shape: tuple[int, ...]
    dtype: str
    axes: tuple[int, ...]

    def __str__(self) -> str:
        numbers = ",".join(map(str, self.shape))
        over = ",".join(map(str, self.axes))
        return f"{self.gpu}:{self.dtype}[{numbers}]:{over}"


class Replay(NamedTuple):
    """How an equation is evaluated.

    Attributes:
        evaluate: of its operands, to its result.
        reason: what coverage says of it.
    """

    evaluate: Callable[..., Array]
    reason: str


def replayed(spec: GpuOrder, equation: Any) -> Replay | str:
    """How a first-order equation is replayed, or why it is not."""
    name, params = equation.primitive.name, equation.params
    operands = [atom.aval for atom in equation.invars]
    if name == "reduce_sum":
        return _replayed_sum(spec, operands[0], tuple(sorted(params["axes"])))
    if name in ("dot_general", "conv_general_dilated"):
        return _replayed_product(spec, name, params, operands, equation.outvars[0].aval)
    if name == "add_any":
        return NoOrder("two cotangents, added as the program says on every machine")
    return "not replayed: its order on a GPU was not read from a kernel"


def prepare(spec: GpuOrder, jaxpr: Any) -> None:
    """Read the orders of all sums of a program, several at a time."""
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        list(pool.map(order_of, dict.fromkeys(_sums(spec, jaxpr))))


def _sums(spec: GpuOrder, jaxpr: Any) -> Iterator[Sum]:
    opened, _ = compat.open_jaxpr(jaxpr)
    for equation in opened.eqns:
        if equation.primitive.name == "reduce_sum":
            x, axes = equation.invars[0].aval, equation.params["axes"]
            if x.dtype.name in TYPES and x.size and _terms(x.shape, axes) > 2:
                yield Sum(spec.gpu, x.shape, x.dtype.name, tuple(sorted(axes)))
        for body in compat.sub_jaxprs(equation.params):
            yield from _sums(spec, body)


def _terms(shape: Sequence[int], axes: Sequence[int]) -> int:
    return math.prod(shape[d] for d in axes)


def _replayed_sum(spec: GpuOrder, x: Any, axes: tuple[int, ...]) -> Replay | str:
    if x.dtype.name not in TYPES:
        return f"not replayed: a sum in {x.dtype}"
    if _terms(x.shape, axes) < 3:
        return too_few(_terms(x.shape, axes))
    key = Sum(spec.gpu, x.shape, x.dtype.name, axes)
    found = order_of(key)
    if isinstance(found, str):
        return f"not replayed: {found}"
    evaluate = functools.partial(in_order, found, axes)
    return Replay(evaluate, f"in the order of {spec.gpu}'s kernel for this sum")


@functools.lru_cache(maxsize=1024)
def order_of(key: Sum) -> Schedule | str:
    """The order of a sum, kept or read from the kernel; why it cannot be read.

    Raises:
        NoiseError: it is not kept, and no compiler is installed.
    """
    found = _committed().get(str(key)) or _kept(key)
    if found is not None:
        return found
    try:
        schedule = read_order(key)
    except PtxError as error:
        return str(error)
    _keep(key, schedule)
    return schedule


def read_order(key: Sum) -> Schedule:
    """Compile a sum by itself and read its order."""
    shape = jax.ShapeDtypeStruct(key.shape, key.dtype)
    module = compilation.lower(lambda x: lax.reduce_sum(x, key.axes), shape)
    program = programs.assemble(compilation.compiled_for(module, key.gpu))
    return replay.read(program, key.shape, jnp.dtype(key.dtype), key.axes)


@functools.cache
def _committed() -> dict[str, Schedule]:
    if os.environ.get(IGNORED):
        return {}
    with np.load(COMMITTED) as file:
        return unpack({name: file[name] for name in file.files})


def _kept(key: Sum) -> Schedule | None:
    """The order of a sum as it was read before, from the user's cache."""
    path = _path(key)
    if not path.exists():
        return None
    with np.load(path) as file:
        return unpack({name: file[name] for name in file.files}).get(str(key))


def _path(key: Sum) -> Path:
    root = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    digest = hashlib.sha256(str(key).encode()).hexdigest()[:24]
    return Path(root) / "prednet_jax" / "gpu_order" / f"{jax.__version__}-{digest}.npz"


def _keep(key: Sum, schedule: Schedule) -> None:
    """Write an order to the user's cache, whole or not at all."""
    path = _path(key)
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_suffix(f".{os.getpid()}.part")
    with part.open("wb") as file:
        np.savez_compressed(file, **pack({str(key): schedule}))
    part.replace(path)


def pack(schedules: dict[str, Schedule]) -> dict[str, Any]:
    """Schedules as named arrays, one a round."""
    return {
        f"{name}#{i}": table
        for name, schedule in schedules.items()
        for i, table in enumerate(schedule.rounds)
    }


def unpack(arrays: dict[str, Any]) -> dict[str, Schedule]:
    """The inverse of `pack`."""
    found: dict[str, list[Any]] = {}
    for name, table in arrays.items():
        found.setdefault(name.rpartition("#")[0], []).append(table)
    return {name: Schedule(tuple(rounds)) for name, rounds in found.items()}


def in_order(schedule: Schedule, axes: tuple[int, ...], x: Array) -> Array:
    """The sum of an array over axes, in the order of a schedule."""
    kept = [d for d in range(x.ndim) if d not in axes]
    shape = [x.shape[d] for d in kept]
    columns = lax.transpose(x, (*axes, *kept))
    columns = lax.reshape(columns, (_terms(x.shape, axes), math.prod(shape)))
    columns = lax.convert_element_type(columns, jnp.float32)
    zeros = np.array([[0.0], [-0.0]], np.float32)
    for table in schedule.rounds:
        zero = jnp.broadcast_to(zeros, (2, columns.shape[1]))
        padded = lax.concatenate([columns, zero], 0)
        columns = _chains(padded, np.where(table < 0, table + len(padded), table))
    return lax.convert_element_type(lax.reshape(columns, shape), x.dtype)


def _chains(columns: Array, table: np.ndarray) -> Array:
    """columns[table[0]] + columns[table[1]] + ..., from left to right."""

    def column(indices: Any) -> Array:
        return columns.at[indices].get(mode="promise_in_bounds")

    def step(total: Array, indices: Array) -> tuple[Array, None]:
        return total + column(indices), None

    unroll = min(len(table), 8)
    return lax.scan(step, column(table[0]), jnp.asarray(table[1:]), unroll=unroll)[0]


def _replayed_product(
    spec: GpuOrder, name: str, params: Any, operands: Sequence[Any], out: Any
) -> Replay | str:
    if not all(x.dtype.name in TYPES for x in (*operands, out)):
        return f"not replayed: a product in {out.dtype}"
    if spec.products == "plain":
        return "not replayed: products=plain leaves products as they are"
    tf32 = targets.CARDS[spec.gpu].capability >= (8, 0) and _default(params)
    rounding = "TF32 operands, " if tf32 else ""
    reason = f"by the model 'fused' ({rounding}rising k)"
    if name == "dot_general":
        evaluate = functools.partial(_dot, params["dimension_numbers"], tf32, out.dtype)
        return Replay(evaluate, reason)
    if params["feature_group_count"] > 1 or params["batch_group_count"] > 1:
        return "not replayed: a convolution in groups"
    return Replay(functools.partial(_conv, dict(params), tf32, out.dtype), reason)


def _default(params: Any) -> bool:
    """Whether a product may round its operands to TF32."""
    precision = params["precision"]
    values = precision if isinstance(precision, tuple) else (precision,)
    return all(p in (None, lax.Precision.DEFAULT) for p in values)


def _tf32(x: Array) -> Array:
    """Float32 with 10 bits of mantissa, to nearest, ties away from zero."""
    bits = lax.bitcast_convert_type(x, jnp.uint32)
    rounded = (bits + np.uint32(1 << 12)) & np.uint32(0xFFFFE000)
    number = lax.bitcast_convert_type(rounded, jnp.float32)
    return jnp.where(jnp.isfinite(x), number, x)


def _dot(numbers: Any, tf32: bool, dtype: Any, a: Array, b: Array) -> Array:
    (lc, rc), (lb, rb) = numbers

    def arranged(x: Array, contracted: Any, batch: Any) -> tuple[Array, tuple]:
        """As [k, batch, rest], and the shape of the rest."""
        rest = [d for d in range(x.ndim) if d not in (*contracted, *batch)]
        shape = tuple(x.shape[d] for d in rest)
        x = lax.transpose(x, (*contracted, *batch, *rest))
        sizes = (
            math.prod(x.shape[: len(contracted)]),
            math.prod(x.shape[len(contracted) : len(contracted) + len(batch)]),
            math.prod(shape),
        )
        return lax.reshape(x, sizes), shape

    left, rows = arranged(a, lc, lb)
    right, columns = arranged(b, rc, rb)
    batch = tuple(a.shape[d] for d in lb)
    product = _product(left, right, tf32)
    return lax.convert_element_type(
        lax.reshape(product, (*batch, *rows, *columns)), dtype
    )


def _product(a: Array, b: Array, tf32: bool) -> Array:
    """Float32 [batch, m, n] from [k, batch, m] and [k, batch, n], by rising k.

    XLA's CPU compiler makes one fused multiply-add of each product and its addition, on
    processors that have it. The loop stays a loop: where all steps are joined, the
    compiler may fuse the first product, not the second, into their sum.
    """
    a, b = (lax.convert_element_type(x, jnp.float32) for x in (a, b))
    if tf32:
        a, b = _tf32(a), _tf32(b)

    def step(total: Array, terms: tuple[Array, Array]) -> tuple[Array, None]:
        x, y = terms
        return total + x[:, :, None] * y[:, None, :], None

    start = jnp.zeros((*a.shape[1:], b.shape[2]), jnp.float32)
    return lax.scan(step, start, (a, b), unroll=8 if len(a) >= 16 else 1)[0]


def _conv(params: dict[str, Any], tf32: bool, dtype: Any, a: Array, b: Array) -> Array:
    numbers = params["dimension_numbers"]
    window = [b.shape[d] for d in numbers.rhs_spec[2:]]
    patches = lax.conv_general_dilated_patches(
        a,
        window,
        params["window_strides"],
        params["padding"],
        lhs_dilation=params["lhs_dilation"],
        rhs_dilation=params["rhs_dilation"],
        dimension_numbers=numbers,
        precision=lax.Precision.HIGHEST,
    )
    feature = numbers.out_spec[1]
    kept = [d for d in range(patches.ndim) if d != feature]
    left = lax.transpose(patches, (feature, *kept))
    left = lax.reshape(left, (left.shape[0], 1, math.prod(left.shape[1:])))
    out, into, *space = numbers.rhs_spec
    right = lax.transpose(b, (into, *space, out))
    right = lax.reshape(right, (math.prod(right.shape[:-1]), 1, b.shape[out]))
    product = _product(left, right, tf32)
    product = lax.reshape(product, (*(patches.shape[d] for d in kept), b.shape[out]))
    back = np.argsort([*kept, feature])
    return lax.convert_element_type(lax.transpose(product, back), dtype)
