"""What each PTX instruction computes: functions of NumPy arrays, exact to the bit.

`OPERATIONS` has them by opcode, modifiers included; what is not there is unknown to the
interpreter. Memory, shuffles and branches are `ptx`'s.

Source: NVIDIA, "PTX ISA", version 8.8, chapter 9.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np

from prednet_jax.noise.errors import NoiseError

Array = np.ndarray[Any, np.dtype[Any]]

TYPES: Mapping[str, Any] = MappingProxyType(
    {
        "pred": np.dtype(bool),
        **{f"{k}{n}": np.dtype(f"uint{n}") for k in "bu" for n in (8, 16, 32, 64)},
        **{f"s{n}": np.dtype(f"int{n}") for n in (8, 16, 32, 64)},
        "f16": np.dtype("float16"),
        "f32": np.dtype("float32"),
        "f64": np.dtype("float64"),
        "bf16": np.dtype("uint16"),
    }
)


class PtxError(NoiseError):
    """What the interpreter does not know, or a kernel must not do."""


class Instruction(NamedTuple):
    """One instruction: `@guard opcode operands`."""

    opcode: str
    operands: tuple[Any, ...]
    guard: str
    text: str


def unknown(instruction: Instruction) -> PtxError:
    """The error of an instruction that is not in the tables."""
    return PtxError(
        f"ptx={instruction.text!r}: expected an instruction that this interpreter "
        "knows and that PTX defines to the bit"
    )


def fused_multiply_add(a: Array, b: Array, c: Array) -> Array:
    """The float32 a * b + c, rounded once, to nearest even.

    The product is exact in float64. The sum is rounded there to odd, by its exact error
    (TwoSum), so that rounding it again, to float32, gives what one rounding would
    (S. Boldo and G. Melquiond, "Emulation of FMA and correctly rounded sums", IEEE
    Trans. Computers 57, 2008).
    """
    product, addend = a.astype(np.float64) * b, c.astype(np.float64)
    total = np.asarray(product + addend)
    back = total - product
    error = (product - (total - back)) + (addend - back)
    inexact = np.isfinite(total) & (error != 0) & (total.view(np.int64) & 1 == 0)
    outwards = np.where((error > 0) == (total > 0), 1, -1)
    odd = np.where(inexact, total.view(np.int64) + outwards, total.view(np.int64))
    return odd.view(np.float64).astype(np.float32)


def to_bfloat16(x: Array) -> Array:
    """The bits of float32 numbers rounded to bfloat16, to nearest even."""
    bits = x.view(np.uint32)
    rounded = (bits + np.uint32(0x7FFF) + ((bits >> 16) & 1)) >> 16
    return np.where(np.isnan(x), 0x7FFF, rounded).astype(np.uint16)


def _shift(left: bool) -> Callable[[Array, Array], Array]:
    def shift(x: Array, by: Array) -> Array:
        width = 8 * x.dtype.itemsize
        near = np.minimum(by, width - 1).astype(x.dtype)
        if left:
            return np.where(by < width, x << near, 0).astype(x.dtype)
        signed = x.dtype.kind == "i"
        return np.where(signed | (by < width), x >> near, 0).astype(x.dtype)

    return shift


def _extremum(
    pick: Callable[..., Array], zeros: Callable[..., Array], nan: bool
) -> Any:
    """The min or max; zeros go by sign, a number comes before a NaN."""

    def extremum(a: Array, b: Array) -> Array:
        unsigned = f"uint{8 * a.dtype.itemsize}"
        equal = zeros(a.view(unsigned), b.view(unsigned)).view(a.dtype)
        found = np.where(a == b, equal, pick(a, b))
        return np.where(np.isnan(a) | np.isnan(b), np.nan, found) if nan else found

    return extremum


def _wide(a: Array, b: Array) -> Array:
    wide = np.dtype(f"{a.dtype.kind}{2 * a.dtype.itemsize}")
    return a.astype(wide) * b.astype(wide)


def _high(a: Array, b: Array) -> Array:
    return (_wide(a, b) >> 8 * a.dtype.itemsize).astype(a.dtype)


def _canonical(function: Callable[..., Array]) -> Callable[..., Array]:
    """With the one NaN that a GPU makes."""

    def canonical(*operands: Array) -> Array:
        result = np.asarray(function(*operands))
        nan = 0x7FFFFFFF if result.dtype == np.float32 else 0x7FFFFFFFFFFFFFFF
        bits = result.view(f"uint{8 * result.dtype.itemsize}")
        return np.where(np.isnan(result), bits.dtype.type(nan), bits).view(result.dtype)

    return canonical


def _extract(x: Array, position: Array, length: Array) -> Array:
    """Bits of an unsigned number: `length` of them, from `position`."""
    mask = (np.uint64(1) << np.minimum(length, 32).astype(np.uint64)) - np.uint64(1)
    return _shift(left=False)(x, position) & mask.astype(np.uint32)


def _select(a: Array, b: Array, chosen: Array) -> Array:
    return np.where(chosen, a, b)


def _cast(kind: str) -> Callable[[Array], Array]:
    return lambda x: x.astype(TYPES[kind])


def _ordered(
    compare: Callable[..., Array], of_nan: bool
) -> Callable[[Array, Array], Array]:
    """A comparison of floats, and what it gives if one is a NaN."""
    return lambda a, b: np.where(np.isnan(a) | np.isnan(b), of_nan, compare(a, b))


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
}
_FLOAT: Mapping[str, Callable[..., Array]] = {
    "add.rn": np.add,
    "sub.rn": np.subtract,
    "mul.rn": np.multiply,
    "div.rn": np.divide,
    "sqrt.rn": np.sqrt,
    "rcp.rn": lambda x: np.divide(x.dtype.type(1), x),
    "neg": np.negative,
    "abs": np.abs,
    "min": _extremum(np.fmin, np.bitwise_or, nan=False),
    "max": _extremum(np.fmax, np.bitwise_and, nan=False),
    "min.NaN": _extremum(np.minimum, np.bitwise_or, nan=True),
    "max.NaN": _extremum(np.maximum, np.bitwise_and, nan=True),
}
_COMPARE: Mapping[str, Callable[..., Array]] = {
    "eq": np.equal,
    "ne": np.not_equal,
    "lt": np.less,
    "le": np.less_equal,
    "gt": np.greater,
    "ge": np.greater_equal,
}
# Of unsigned numbers.
_UNSIGNED = {"lo": np.less, "ls": np.less_equal, "hi": np.greater}
_UNSIGNED["hs"] = np.greater_equal


class Operation(NamedTuple):
    """What an instruction computes.

    Attributes:
        function: of its operands.
        kinds: types of the operands; the last holds for all that follow.
    """

    function: Callable[..., Any]
    kinds: tuple[str, ...]


def _operations() -> dict[str, Operation]:
    """All instructions that are functions of their operands, by opcode."""
    table: dict[str, Operation] = {}

    def add(opcode: str, function: Callable[..., Any], *kinds: str) -> None:
        table[opcode] = Operation(function, kinds)

    for kind in (f"{k}{n}" for k in "bus" for n in (16, 32, 64)):
        for name, function in _INTEGER.items():
            add(f"{name}.{kind}", function, kind)
        for name, function in {**_COMPARE, **_UNSIGNED}.items():
            add(f"setp.{name}.{kind}", function, kind)
        for to in (f"{k}{n}" for k in "us" for n in (8, 16, 32, 64)):
            add(f"cvt.{to}.{kind}", _cast(to), kind)
        add(f"selp.{kind}", _select, kind, kind, "pred")
        add(f"shl.{kind}", _shift(left=True), kind, "u32")
        add(f"shr.{kind}", _shift(left=False), kind, "u32")
        if not kind.endswith("64"):
            wide = f"{kind[0]}{2 * int(kind[1:])}"
            add(f"mul.wide.{kind}", _wide, kind)
            add(f"mad.wide.{kind}", lambda a, b, c: _wide(a, b) + c, kind, kind, wide)
            add(f"mul.hi.{kind}", _high, kind)
    for kind in ("f32", "f64"):
        for name, function in _FLOAT.items():
            add(f"{name}.{kind}", _canonical(function), kind)
        for name, function in _COMPARE.items():
            add(f"setp.{name}.{kind}", _ordered(function, False), kind)
            add(f"setp.{name}u.{kind}", _ordered(function, True), kind)
        add(f"setp.nan.{kind}", _ordered(lambda a, b: False, True), kind)
        add(f"setp.num.{kind}", _ordered(lambda a, b: True, False), kind)
        add(f"selp.{kind}", _select, kind, kind, "pred")
    for name, function in _LOGIC.items():
        add(f"{name}.pred", function, "pred")
    add("fma.rn.f32", _canonical(fused_multiply_add), "f32")
    add("bfe.u32", _extract, "u32")
    add("cvt.f32.bf16", lambda x: (x.astype(np.uint32) << 16).view(np.float32), "bf16")
    add("cvt.rn.bf16.f32", to_bfloat16, "f32")
    for opcode in ("cvt.f32.f16", "cvt.rn.f16.f32", "cvt.f64.f32", "cvt.rn.f32.f64"):
        to, kind = opcode.split(".")[-2:]
        add(opcode, _cast(to), kind)
    add("cvt.rn.f32.s32", _cast("f32"), "s32")
    add("cvt.rn.f32.u32", _cast("f32"), "u32")
    return table


OPERATIONS: Mapping[str, Operation] = MappingProxyType(_operations())
