"""What each PTX instruction computes: functions of NumPy arrays, exact to the bit.

`function_of` gives that of an instruction and the types of its operands. What is not in
the tables, modifiers included, is a `PtxError`. Memory, shuffles and branches are
`ptx`'s.

Source: NVIDIA, "PTX ISA", version 8.8, chapter 9.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np

from prednet_jax.noise.errors import NoiseError

Array = np.ndarray[Any, np.dtype[Any]]

TYPES: Mapping[str, Any] = MappingProxyType(
    {
        "pred": np.bool_,
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


_INTEGER: Mapping[str, Callable[..., Array]] = MappingProxyType(
    {
        "add": np.add,
        "sub": np.subtract,
        "mul.lo": np.multiply,
        "mad.lo": lambda a, b, c: a * b + c,
        "min": np.minimum,
        "max": np.maximum,
        "and": np.bitwise_and,
        "or": np.bitwise_or,
        "xor": np.bitwise_xor,
        "not": np.invert,
        "neg": np.negative,
        "mul.wide": _wide,
        "mad.wide": lambda a, b, c: _wide(a, b) + c,
        "mul.hi": lambda a, b: (_wide(a, b) >> 8 * a.dtype.itemsize).astype(a.dtype),
    }
)
_FLOAT: Mapping[str, Callable[..., Array]] = MappingProxyType(
    {
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
)
_COMPARE: Mapping[str, Callable[..., Array]] = MappingProxyType(
    {
        "eq": np.equal,
        "ne": np.not_equal,
        "lt": np.less,
        "le": np.less_equal,
        "gt": np.greater,
        "ge": np.greater_equal,
        # Of unsigned numbers.
        "lo": np.less,
        "ls": np.less_equal,
        "hi": np.greater,
        "hs": np.greater_equal,
    }
)
# Conversions beyond those between integers: (to, from) and how each is rounded.
_CONVERSIONS: Mapping[str, Callable[[Array], Array]] = MappingProxyType(
    {
        "cvt.f32.bf16": lambda x: (x.astype(np.uint32) << 16).view(np.float32),
        "cvt.rn.bf16.f32": to_bfloat16,
        "cvt.f32.f16": lambda x: x.astype(np.float32),
        "cvt.rn.f16.f32": lambda x: x.astype(np.float16),
        "cvt.f64.f32": lambda x: x.astype(np.float64),
        "cvt.rn.f32.f64": lambda x: x.astype(np.float32),
        "cvt.rn.f32.s32": lambda x: x.astype(np.float32),
        "cvt.rn.f32.u32": lambda x: x.astype(np.float32),
    }
)


def function_of(
    instruction: Instruction, name: str, kind: str
) -> tuple[Callable[..., Any], list[str]]:
    """What an instruction computes, and the types of its operands."""
    opcode = instruction.opcode
    is_float = kind in ("f32", "f64")
    integral = re.fullmatch(r"[bus](16|32|64)", kind) is not None
    if opcode in _CONVERSIONS:
        return _CONVERSIONS[opcode], [kind]
    if integral and (found := re.fullmatch(r"cvt\.([us](?:8|16|32|64))", name)):
        dtype = TYPES[found[1]]
        return (lambda x: x.astype(dtype)), [kind]
    if is_float and name in _FLOAT:
        function = _FLOAT[name]
        return _canonical(function), [kind] * (len(instruction.operands) - 1)
    if opcode == "fma.rn.f32":
        return _canonical(fused_multiply_add), [kind] * 3
    if name.startswith("setp."):
        return _comparison(instruction, name.removeprefix("setp."), kind)
    if name == "selp":
        return (lambda a, b, p: np.where(p, a, b)), [kind, kind, "pred"]
    if kind == "pred" and name in ("and", "or", "xor", "not"):
        return _INTEGER[name], [kind] * (len(instruction.operands) - 1)
    if not integral:
        raise unknown(instruction)
    if name in ("shl", "shr"):
        return _shift(name == "shl"), [kind, "u32"]
    if opcode == "bfe.u32":
        return _extract, [kind, "u32", "u32"]
    if name in ("mul.wide", "mad.wide", "mul.hi") and kind.endswith("64"):
        raise unknown(instruction)
    if name in _INTEGER:
        kinds = [kind] * (len(instruction.operands) - 1)
        if name == "mad.wide":
            kinds[2] = f"{kind[0]}{2 * int(kind[1:])}"
        return _INTEGER[name], kinds
    raise unknown(instruction)


def _extract(x: Array, position: Array, length: Array) -> Array:
    """Bits of an unsigned number: `length` of them, from `position`."""
    mask = (np.uint64(1) << np.minimum(length, 32).astype(np.uint64)) - np.uint64(1)
    return _shift(left=False)(x, position) & mask.astype(np.uint32)


def _canonical(function: Callable[..., Array]) -> Callable[..., Array]:
    """With the one NaN that a GPU makes."""

    def canonical(*operands: Array) -> Array:
        result = np.asarray(function(*operands))
        nan = 0x7FFFFFFF if result.dtype == np.float32 else 0x7FFFFFFFFFFFFFFF
        bits = result.view(f"uint{8 * result.dtype.itemsize}")
        return np.where(np.isnan(result), bits.dtype.type(nan), bits).view(result.dtype)

    return canonical


def _comparison(
    instruction: Instruction, name: str, kind: str
) -> tuple[Callable[..., Any], list[str]]:
    def unordered(a: Array, b: Array) -> Array:
        return np.isnan(a) | np.isnan(b)

    if kind not in ("f32", "f64"):
        if name not in _COMPARE or kind == "pred":
            raise unknown(instruction)
        return _COMPARE[name], [kind, kind]
    if name in ("nan", "num"):
        return (lambda a, b: unordered(a, b) ^ (name == "num")), [kind, kind]
    # Of floats, a "u" at the end says what a NaN gives.
    true_of_nan = name[-1] == "u"
    compare = _COMPARE.get(name.removesuffix("u"))
    if compare is None or name in ("lo", "ls", "hi", "hs"):
        raise unknown(instruction)
    return (
        lambda a, b: np.where(unordered(a, b), true_of_nan, compare(a, b)),
        [kind, kind],
    )
