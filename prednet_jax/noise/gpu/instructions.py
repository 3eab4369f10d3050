"""Computes PTX instructions as functions of NumPy arrays, exact to the bit.

`OPERATIONS` has the instructions in kernels of sums, by opcode with modifiers; the
interpreter knows no others. `ptx` handles memory, shuffles and branches.

Source: NVIDIA, "PTX ISA", version 8.8, chapter 9.
"""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from jax import numpy as jnp

from prednet_jax.noise.errors import NoiseError

Array = np.ndarray

TYPES: Mapping[str, np.dtype] = {
    "pred": np.dtype(bool),
    **{f"{k}{n}": np.dtype(f"uint{n}") for k in "bu" for n in (8, 16, 32, 64)},
    **{f"s{n}": np.dtype(f"int{n}") for n in (8, 16, 32, 64)},
    **{"f32": np.dtype("float32"), "f16": np.dtype("float16")},
    "bf16": jnp.dtype("bfloat16"),
}


class PtxError(NoiseError):
    """The interpreter does not know an instruction, or a kernel must not do it."""


class Instruction(NamedTuple):
    """One instruction: `@guard opcode operands`."""

    opcode: str
    operands: tuple[Any, ...]
    guard: str
    text: str


def unknown(instruction: Instruction) -> PtxError:
    """Returns the error of an instruction that is not in the tables."""
    return PtxError(
        f"ptx={instruction.text!r}: expected an instruction that this interpreter "
        "knows and that PTX defines to the bit"
    )


# The effect of an instruction: a function of its operands, and their types. The last
# type holds for all further operands.
Operation = tuple[Callable[..., Array], tuple[str, ...]]


def _shift(function: Callable[..., Array], x: Array, by: Array) -> Array:
    """Shifts bits; beyond their number only a right shift's sign is left."""
    near = function(x, np.minimum(by, 8 * x.itemsize - 1).astype(x.dtype))
    signs = function is np.right_shift and x.dtype.kind == "i"
    return np.where(signs | (by < 8 * x.itemsize), near, 0).astype(x.dtype)


def _extract(x: Array, position: Array, length: Array) -> Array:
    """Returns `length` bits of an unsigned number, from `position` on."""
    mask = (np.uint64(1) << np.minimum(length, 32).astype(np.uint64)) - np.uint64(1)
    return _shift(np.right_shift, x, position) & mask.astype(np.uint32)


def _wide(a: Array, b: Array) -> Array:
    wide = np.dtype(f"{a.dtype.kind}{2 * a.itemsize}")
    return a.astype(wide) * b.astype(wide)


def _canonical(function: Callable[..., Array], *operands: Array) -> Array:
    """Replaces each NaN of a result by the only NaN that a GPU makes."""
    result = np.asarray(function(*operands))
    bits = np.where(np.isnan(result), np.uint32(0x7FFFFFFF), result.view(np.uint32))
    return bits.view(np.float32)


def _select(a: Array, b: Array, chosen: Array) -> Array:
    return np.where(chosen, a, b)


def _cast(to: str, *kinds: str) -> Operation:
    return lambda x: x.astype(TYPES[to]), kinds


_LOGIC: Mapping[str, Callable[..., Array]] = {
    "and": np.bitwise_and,
    "or": np.bitwise_or,
    "xor": np.bitwise_xor,
    "not": np.invert,
}
_INTEGER: Mapping[str, Callable[..., Array]] = {
    **_LOGIC,
    "add": np.add,
    "sub": np.subtract,
    "mul.lo": np.multiply,
    "mad.lo": lambda a, b, c: a * b + c,
    "min": np.minimum,
    "max": np.maximum,
    "neg": np.negative,
    "setp.eq": np.equal,
    "setp.ne": np.not_equal,
    "setp.lt": np.less,
    "setp.le": np.less_equal,
    "setp.gt": np.greater,
    "setp.ge": np.greater_equal,
}
_FLOAT: Mapping[str, Callable[..., Array]] = {
    "add.rn": np.add,
    "sub.rn": np.subtract,
    "mul.rn": np.multiply,
    "neg": np.negative,
    "abs": np.abs,
}


def _integer_operations(kind: str) -> dict[str, Operation]:
    """Returns the instructions on integers of a type such as `u32`, by opcode."""
    table: dict[str, Operation] = {name: (f, (kind,)) for name, f in _INTEGER.items()}
    table["selp"] = _select, (kind, kind, "pred")
    table["shl"] = partial(_shift, np.left_shift), (kind, "u32")
    table["shr"] = partial(_shift, np.right_shift), (kind, "u32")
    table["cvt.rn.f32"] = _cast("f32", kind)
    for to in (f"{k}{n}" for k in "us" for n in (8, 16, 32, 64)):
        table[f"cvt.{to}"] = _cast(to, kind)
    bits = int(kind[1:])
    if bits < 64:
        wide = f"{kind[0]}{2 * bits}"
        table["mul.wide"] = _wide, (kind,)
        table["mul.hi"] = lambda a, b: (_wide(a, b) >> bits).astype(a.dtype), (kind,)
        table["mad.wide"] = lambda a, b, c: _wide(a, b) + c, (kind, kind, wide)
    return table


OPERATIONS: Mapping[str, Operation] = {
    **{
        f"{name}.{kind}": operation
        for kind in (f"{k}{n}" for k in "bus" for n in (16, 32, 64))
        for name, operation in _integer_operations(kind).items()
    },
    **{f"{name}.pred": (f, ("pred",)) for name, f in _LOGIC.items()},
    **{f"{n}.f32": (partial(_canonical, f), ("f32",)) for n, f in _FLOAT.items()},
    "setp.nan.f32": (lambda a, b: np.isnan(a) | np.isnan(b), ("f32",)),
    **{f"cvt.f32.{half}": _cast("f32", half) for half in ("f16", "bf16")},
    **{f"cvt.rn.{half}.f32": _cast(half, "f32") for half in ("f16", "bf16")},
    "bfe.u32": (_extract, ("u32",)),
    "selp.f32": (_select, ("f32", "f32", "pred")),
}
