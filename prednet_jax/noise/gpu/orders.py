"""Adds sums on this machine in the order that a GPU would use (`GpuOrder`).

A sum (`reduce_sum`) is compiled for the GPU alone. Its order is read from the kernel
(`replay`) and executed here as gathers and additions. Products follow the model
"fused" of docs/noise/gpu_order.md (patches of convolutions: Chetlur et al., "cuDNN:
efficient primitives for deep learning", 2014). Operands are rounded to TF32 to nearest,
ties away, as `cvt.rna.tf32` does.
"""

import dataclasses
import functools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import jax
import numpy as np
from jax import Array, lax
from jax import numpy as jnp

from prednet_jax.noise import compat, text
from prednet_jax.noise.gpu import compilation, replay, targets
from prednet_jax.noise.gpu.ptx import PtxError
from prednet_jax.noise.gpu.replay import Schedule
from prednet_jax.noise.order.partials import LeftAlone, too_few
from prednet_jax.noise.specs import FixedOrder, Replay, choice
from prednet_jax.noise.types import Params

# Types whose sums are kept in float32.
TYPES = ("float32", "bfloat16", "float16")
# Orders that need no compiler: those of both networks' trainings on the GTX 1080, made
# by tools/gpu_schedules.py of commit 09c1a23.
COMMITTED = Path(__file__).with_name("schedules.npz")


class SumSignature(NamedTuple):
    """A sum, as compiled alone."""

    gpu: str
    dtype: str
    shape: tuple[int, ...]
    axes: tuple[int, ...]

    def __str__(self) -> str:
        shape, axes = (",".join(map(str, x)) for x in (self.shape, self.axes))
        return f"{self.gpu}:{self.dtype}[{shape}]:{axes}"

    @property
    def terms(self) -> int:
        """The number of terms of each result."""
        return math.prod(self.shape[d] for d in self.axes)


@dataclass(frozen=True)
class GpuOrder(FixedOrder):
    """Sums added in the fixed order of a GPU's kernels; nothing is random.

    Attributes:
        gpu: the GPU, a name of `targets.CARDS`. The order of each `reduce_sum` is read
            from the kernel that XLA compiles for that sum alone.
        products: the model of dots and convolutions, which libraries compute.
            `"fused"` is the model of this module, `"plain"` this machine's own
            products.
    """

    gpu: str = choice(dataclasses.MISSING, *targets.CARDS)
    products: str = choice("fused", "fused", "plain")

    def prepare(self, jaxpr: compat.Jaxpr) -> None:
        """Reads the orders of all sums of a program, all at once."""
        _read_orders([key for key in _sums(self, jaxpr) if key.terms > 2])

    def replay(self, equation: compat.Equation) -> Replay | LeftAlone:
        """Returns how a first-order equation is replayed, or why it is not."""
        name, params = equation.primitive.name, equation.params
        types = [atom.aval.dtype for atom in (*equation.invars, *equation.outvars)]
        if name == "reduce_sum":
            if types[0].name not in TYPES:
                return LeftAlone(f"not replayed: a sum in {types[0]}")
            key = _sum(self, equation)
            if key.terms < 3:
                return too_few(key.terms)
            order = schedule_for(key)
            if isinstance(order, str):
                return LeftAlone(f"not replayed: {order}")
            evaluate = functools.partial(in_order, order, key.axes)
            return Replay(evaluate, f"in the order of {key.gpu}'s kernel for this sum")
        if name in ("dot_general", "conv_general_dilated"):
            return _replayed_product(self, name, params, types)
        if name == "add_any":
            reason = "two cotangents, added as the program says on every machine"
            return LeftAlone(reason, harmless=True)
        if name.startswith("scatter"):
            return LeftAlone(
                "not replayed: atomics add in the order of arrival, which none fixes"
            )
        return LeftAlone("not replayed: its order on a GPU was not read from a kernel")


text.KINDS["gpu_order"] = GpuOrder


def _sum(spec: GpuOrder, equation: compat.Equation) -> SumSignature:
    x, axes = equation.invars[0].aval, tuple(sorted(equation.params["axes"]))
    return SumSignature(spec.gpu, x.dtype.name, x.shape, axes)


def _sums(spec: GpuOrder, jaxpr: compat.Jaxpr) -> Iterator[SumSignature]:
    for equation in compat.open_jaxpr(jaxpr)[0].eqns:
        if equation.primitive.name == "reduce_sum":
            x = equation.invars[0].aval
            if x.size and x.dtype.name in TYPES:
                yield _sum(spec, equation)
        for body in compat.sub_jaxprs(equation.params):
            yield from _sums(spec, body)


def schedule_for(key: SumSignature) -> Schedule | str:
    """Returns a sum's order, from memory or its kernel, or why it cannot be read."""
    _read_orders([key])
    return _SCHEDULES[str(key)]


# By name of the sum, all orders that this process has requested.
_SCHEDULES: dict[str, Schedule | str] = {}


def _read_orders(keys: Sequence[SumSignature]) -> None:
    """Compiles each unknown sum alone, and reads its order from the kernel."""
    if not _SCHEDULES:
        _SCHEDULES.update(committed())
    missing = [key for key in dict.fromkeys(keys) if str(key) not in _SCHEDULES]
    if not missing:
        return
    modules = []
    for key in missing:
        fn = functools.partial(lax.reduce_sum, axes=key.axes)
        shape = jax.ShapeDtypeStruct(key.shape, key.dtype)
        modules.append(compilation.lower(fn, shape))
    programs = compilation.compiled_for(modules, missing[0].gpu)
    for key, compiled in zip(missing, programs, strict=True):
        try:
            program = replay.assemble(compiled)
            _SCHEDULES[str(key)] = replay.read(program, key.shape, key.axes)
        except PtxError as error:
            _SCHEDULES[str(key)] = str(error)


def committed() -> dict[str, Schedule]:
    """Returns the orders that come with the package, by the name of the sum."""
    rounds: dict[str, list[np.ndarray]] = {}
    with np.load(COMMITTED) as file:
        for name, table in file.items():
            rounds.setdefault(name.rpartition("#")[0], []).append(table)
    return {name: Schedule(tuple(tables)) for name, tables in rounds.items()}


def in_order(schedule: Schedule, axes: tuple[int, ...], x: Array) -> Array:
    """Returns the sum of an array over axes, in the order of a schedule."""
    kept = [d for d in range(x.ndim) if d not in axes]
    shape = [x.shape[d] for d in kept]
    columns = lax.transpose(x, (*axes, *kept))
    terms = math.prod(x.shape[d] for d in axes)
    columns = lax.reshape(columns, (terms, math.prod(shape)))
    columns = lax.convert_element_type(columns, jnp.float32)
    return lax.convert_element_type(lax.reshape(schedule.sum(columns), shape), x.dtype)


def _replayed_product(
    spec: GpuOrder, name: str, params: Params, types: Sequence[np.dtype]
) -> Replay | LeftAlone:
    out = types[-1]
    if not all(x.name in TYPES for x in types):
        return LeftAlone(f"not replayed: a product in {out}")
    if spec.products == "plain":
        return LeftAlone("not replayed: products=plain leaves products as they are")
    groups = ("feature_group_count", "batch_group_count")
    if any(params.get(count, 1) > 1 for count in groups):
        return LeftAlone("not replayed: a convolution in groups")
    asked = {None, lax.Precision.DEFAULT}.issuperset(
        jax.tree.leaves(params["precision"], is_leaf=lambda p: p is None)
    )
    tf32 = targets.CARDS[spec.gpu].capability >= (8, 0) and asked
    rounding = "TF32 operands, " if tf32 else ""
    fused = _dot if name == "dot_general" else _conv
    evaluate = functools.partial(fused, dict(params), tf32, out)
    return Replay(evaluate, f"by the model 'fused' ({rounding}rising k, multiply-add)")


def _tf32(x: Array) -> Array:
    """Returns float32 with 10 bits of mantissa, to nearest, ties away from zero."""
    bits = lax.bitcast_convert_type(x, jnp.uint32)
    rounded = (bits + np.uint32(1 << 12)) & np.uint32(0xFFFFE000)
    number = lax.bitcast_convert_type(rounded, jnp.float32)
    return jnp.where(jnp.isfinite(x), number, x)


def _dot(params: Params, tf32: bool, dtype: np.dtype, a: Array, b: Array) -> Array:
    (lc, rc), (lb, rb) = params["dimension_numbers"]

    def arranged(
        x: Array, contracted: Sequence[int], batch: Sequence[int]
    ) -> tuple[Array, tuple]:
        """Reshapes to [k, batch, free]; also returns the shape of the free axes."""
        free = [d for d in range(x.ndim) if d not in (*contracted, *batch)]
        shape = tuple(x.shape[d] for d in free)
        groups = (contracted, batch, free)
        sizes = [math.prod(x.shape[d] for d in group) for group in groups]
        return lax.transpose(x, (*contracted, *batch, *free)).reshape(sizes), shape

    left, rows = arranged(a, lc, lb)
    right, columns = arranged(b, rc, rb)
    batch = tuple(a.shape[d] for d in lb)
    product = _product(left, right, tf32)
    product = lax.reshape(product, (*batch, *rows, *columns))
    return lax.convert_element_type(product, dtype)


def _product(a: Array, b: Array, tf32: bool) -> Array:
    """Multiplies float32 [k, batch, m] and [k, batch, n]; adds by rising k."""
    a, b = (lax.convert_element_type(x, jnp.float32) for x in (a, b))
    if tf32:
        a, b = _tf32(a), _tf32(b)

    def step(total: Array, terms: tuple[Array, Array]) -> tuple[Array, None]:
        x, y = terms
        return total + x[:, :, None] * y[:, None, :], None

    # XLA's CPU compiler makes one fused multiply-add of each product and its addition,
    # on processors that have it. The loop stays a loop: where all steps are joined, the
    # compiler may fuse the first product, not the second, into their sum.
    start = jnp.zeros((*a.shape[1:], b.shape[2]), jnp.float32)
    return lax.scan(step, start, (a, b), unroll=8 if len(a) >= 16 else 1)[0]


def _conv(params: Params, tf32: bool, dtype: np.dtype, a: Array, b: Array) -> Array:
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
    out, into, *space = numbers.rhs_spec
    kernel = lax.transpose(b, (into, *space, out)).reshape(-1, b.shape[out])
    contracted = {"dimension_numbers": (((feature,), (0,)), ((), ()))}
    product = _dot(contracted, tf32, dtype, patches, kernel)
    kept = [d for d in range(patches.ndim) if d != feature]
    return lax.transpose(product, np.argsort([*kept, feature]))
