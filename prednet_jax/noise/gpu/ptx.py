"""A small interpreter of PTX, the assembly language of NVIDIA's GPUs, on NumPy.

It runs the kernels that XLA writes itself, bit for bit: IEEE arithmetic rounded to
nearest, fused multiply-add with one rounding, shuffles, shared memory, barriers,
branches, vector loads. All threads of many blocks advance in lockstep. Where they
diverge, those at the lowest address go first until the others have caught up. What PTX
does not define to the bit (`ex2.approx`, `mma`), what a kernel must not do (a race
within one store, a shuffle from a lane that is not there), and every instruction and
modifier that is not in the tables below is a `PtxError`.

Registers may carry tags beside their bits: integers that say which term of a sum, or
which sum of terms, a number is (`Tags`). `replay` reads the order of sums from them.

Source: NVIDIA, "PTX ISA", version 8.8, chapters 7 (operands) and 9 (instructions).
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, NamedTuple, Protocol

import numpy as np

from prednet_jax.noise.errors import NoiseError

Array = np.ndarray[Any, np.dtype[Any]]

# Threads that are interpreted at once.
_AT_ONCE = 1 << 19

_TYPES: Mapping[str, Any] = MappingProxyType(
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


class Tags(Protocol):
    """What becomes of tags in arithmetic; 0 stands for none."""

    def combine(
        self, opcode: str, tags: Sequence[Array | None], values: Sequence[Array]
    ) -> Array | None:
        """The tags of a result.

        Args:
            opcode: such as "add.rn.f32".
            tags: of its operands: int32 [threads], or None for none.
            values: of the same, of the instruction's type.
        """
        ...


class Instruction(NamedTuple):
    """One instruction: `@guard opcode operands`."""

    opcode: str
    operands: tuple[Any, ...]
    guard: str
    text: str


@dataclass(frozen=True)
class Kernel:
    """A kernel's text, parsed.

    Attributes:
        name: of the entry.
        parameters: their names, in order; each holds 64 bits.
        registers: type by prefix, such as "%rd": "b64".
        shared: bytes of shared memory, and in `symbols` where each variable starts.
        symbols: by name.
        code: the instructions.
        labels: by name, the position in `code` that a branch goes to.
    """

    name: str
    parameters: tuple[str, ...]
    registers: Mapping[str, str]
    shared: int
    symbols: Mapping[str, int]
    code: tuple[Instruction, ...]
    labels: Mapping[str, int]


def parse(text: str) -> dict[str, Kernel]:
    """The kernels of a PTX module, by name.

    Raises:
        PtxError: naming what is not understood.
    """
    text = re.sub(r"//[^\n]*", "", text)
    head = re.compile(r"\.visible\s+\.entry\s+(\w+)\s*\(([^)]*)\)([^{]*)\{")
    kernels, position = {}, 0
    while found := head.search(text, position):
        _known_directives(text[position : found.start()])
        end = text.index("\n}", found.end())
        name, parameters, _ = found.groups()
        names = tuple(part.split()[-1] for part in parameters.split(",") if part)
        kernels[name] = _kernel(name, names, text[found.end() : end])
        position = end + 2
    _known_directives(text[position:])
    return kernels


def _known_directives(text: str) -> None:
    rest = re.sub(r"\.(version|target|address_size)[^\n]*", "", text).strip()
    if rest:
        raise PtxError(f"ptx={rest[:80]!r}: expected kernels (.visible .entry) alone")


def _kernel(name: str, parameters: tuple[str, ...], body: str) -> Kernel:
    registers, symbols, labels = dict[str, str](), dict[str, int](), dict[str, int]()
    code: list[Instruction] = []
    shared = 0
    body = re.sub(r"^(\$\w+):", r"label \1;", body, flags=re.MULTILINE)
    for statement in filter(None, (part.strip() for part in body.split(";"))):
        if found := re.fullmatch(r"\.reg \.(\w+)\s+(%\w+)<\d+>", statement):
            registers[found[2]] = found[1]
        elif found := re.fullmatch(
            r"\.shared \.align (\d+) \.b8 (\w+)\[(\d+)\]", statement
        ):
            shared = math.ceil(shared / int(found[1])) * int(found[1])
            symbols[found[2]] = shared
            shared += int(found[3])
        elif found := re.fullmatch(r"label (\$\w+)", statement):
            labels[found[1]] = len(code)
        elif found := re.fullmatch(
            r"(?:@(!?%\w+)\s+)?([a-z][\w.:]*)\s*(.*)", statement, re.DOTALL
        ):
            operands = tuple(_operand(part) for part in _split(found[3]))
            code.append(Instruction(found[2], operands, found[1] or "", statement))
        else:
            raise PtxError(f"ptx={statement!r}: not understood")
    return Kernel(name, parameters, registers, shared, symbols, tuple(code), labels)


def _split(operands: str) -> list[str]:
    parts = re.split(r",(?![^{\[]*[}\]])", operands)
    return [part.strip() for part in parts if part.strip()]


def _operand(text: str) -> Any:
    """An operand as Python has it.

    A number is an int (a float its bits), a vector a tuple, an address a list of base
    and offset, and all else a string.
    """
    if text.startswith("{"):
        return tuple(_operand(part.strip()) for part in text[1:-1].split(","))
    if text.startswith("["):
        base, _, offset = text[1:-1].partition("+")
        return [base.strip(), int(offset or 0)]
    if found := re.fullmatch(r"0[fd]([0-9a-fA-F]+)", text):
        return int(found[1], 16)
    if re.fullmatch(r"-?(0x[0-9a-fA-F]+|\d+)", text):
        return int(text, 0)
    return text


class Memory:
    """Bytes, the tags of each two of them, and where variables lie.

    Attributes:
        data: uint8 [size].
        tags: int32 [size / 2]; None: nothing is tagged.
    """

    def __init__(self, sizes: Sequence[int], *, tagged: bool = False) -> None:
        starts, end = [], 256
        for size in sizes:
            starts.append(end)
            end = (end + size + 511) // 256 * 256
        self.starts = np.array(starts, np.int64)
        self.stops = self.starts + np.array(sizes, np.int64)
        self.data: Array = np.zeros(end, np.uint8)
        self.tags: Array | None = np.zeros(end // 2, np.int32) if tagged else None

    def view(self, position: int, dtype: Any) -> Array:
        """The variable of that position, to be read and written."""
        start, stop = int(self.starts[position]), int(self.stops[position])
        return self.data[start:stop].view(dtype)

    def tags_of(self, position: int, size: int) -> Array:
        """Tags of a variable's elements of `size` bytes."""
        assert self.tags is not None
        start, stop = int(self.starts[position]), int(self.stops[position])
        return self.tags[start // 2 : stop // 2 : size // 2]

    def _index(self, address: Array, dtype: np.dtype[Any], text: str) -> Array:
        address = address.astype(np.int64)
        inside = np.searchsorted(self.starts, address, "right") - 1
        good = (inside >= 0) & (address + dtype.itemsize <= self.stops[inside])
        if not np.all(good & (address % dtype.itemsize == 0)):
            raise PtxError(f"ptx={text!r}: an address outside of memory or not aligned")
        return address // dtype.itemsize

    def load(
        self, address: Array, dtype: np.dtype[Any], text: str
    ) -> tuple[Array, Array | None]:
        """Bits at addresses, and their tags."""
        index = self._index(address, dtype, text)
        if self.tags is None or dtype.itemsize < 2:
            return self.data.view(dtype)[index], None
        return self.data.view(dtype)[index], self.tags[index * (dtype.itemsize // 2)]

    def store(
        self, address: Array, value: Array, tags: Array | None, text: str
    ) -> None:
        """Write bits and tags; threads that disagree about an address are an error."""
        index = self._index(address, value.dtype, text)
        self.data.view(value.dtype)[index] = value
        if np.any(self.data.view(value.dtype)[index] != value):
            raise PtxError(f"ptx={text!r}: a race, two values for one address")
        if self.tags is not None and value.dtype.itemsize >= 2:
            self.tags[index * (value.dtype.itemsize // 2)] = 0 if tags is None else tags


class Launch(NamedTuple):
    """How a kernel is started.

    Attributes:
        kernel: what.
        grid: blocks in x, y, z.
        block: threads of each in x, y, z.
        arguments: positions of variables in `Memory`, one for each parameter.
    """

    kernel: Kernel
    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    arguments: tuple[int, ...]


def run(launch: Launch, memory: Memory, tags: Tags | None = None) -> None:
    """Run a kernel.

    Args:
        launch: the kernel and its threads.
        memory: global memory, read and written.
        tags: what becomes of tags; None: there are none.

    Raises:
        PtxError: at what it does not know or must not happen.
    """
    if len(launch.arguments) != len(launch.kernel.parameters):
        raise PtxError(f"kernel={launch.kernel.name!r}: not as many arguments")
    blocks, threads = math.prod(launch.grid), math.prod(launch.block)
    chunk = max(1, _AT_ONCE // threads)
    with np.errstate(all="ignore"):
        for first in range(0, blocks, chunk):
            numbers = np.arange(first, min(first + chunk, blocks))
            _Threads(launch, memory, tags, numbers, threads).run()


@dataclass(eq=False)
class _Threads:
    """Threads of some blocks, while they run; arrays are over all of them, [n]."""

    launch: Launch
    memory: Memory
    rules: Tags | None
    blocks: Array
    per_block: int
    values: dict[str, Array] = field(default_factory=dict)
    tags: dict[str, Array | None] = field(default_factory=dict)

    def run(self) -> None:
        kernel, n = self.launch.kernel, self.blocks.size * self.per_block
        self.block = np.repeat(np.arange(self.blocks.size), self.per_block)
        self.thread = np.tile(np.arange(self.per_block), self.blocks.size)
        self.special = {
            **_axes("tid", self.thread, self.launch.block),
            **_axes("ctaid", self.blocks[self.block], self.launch.grid),
            **_sizes("ntid", self.launch.block),
            **_sizes("nctaid", self.launch.grid),
        }
        self.shared = Memory([kernel.shared] * self.blocks.size, tagged=True)
        if self.rules is None:
            self.shared.tags = None
        alive = np.ones(n, bool)
        # By position in the code, the threads that stand there; those at a barrier.
        ready, waiting = {0: alive.copy()}, dict[int, Array]()
        while ready or waiting:
            if not ready:
                ready, waiting = self._release(waiting, alive), {}
            here = min(ready)
            mask = ready.pop(here)
            if not mask.any():
                continue
            instruction = kernel.code[here]
            acting = mask
            if instruction.guard:
                guard = self.values[instruction.guard.lstrip("!")]
                acting = mask & (guard ^ instruction.guard.startswith("!"))
            goes = {here + 1: mask}
            name = instruction.opcode.split(".")[0]
            if name == "bra":
                there = kernel.labels[instruction.operands[0]]
                goes = {there: acting, here + 1: mask & ~acting}
            elif name == "ret":
                alive &= ~acting
                goes = {here + 1: mask & ~acting}
            elif name == "bar":
                if instruction.opcode != "bar.sync" or instruction.operands != (0,):
                    raise _unknown(instruction)
                waiting[here + 1], goes = acting, {here + 1: mask & ~acting}
            elif acting.any():
                self._execute(instruction, acting, bool(acting.all()))
            for position, some in goes.items():
                if some.any():
                    ready[position] = ready.get(position, False) | some

    def _release(self, waiting: dict[int, Array], alive: Array) -> dict[int, Array]:
        """Threads go on from a barrier where all of their block stand."""
        for some in waiting.values():
            present = np.bincount(self.block, some, self.blocks.size)
            whole = np.bincount(self.block, alive, self.blocks.size)
            if np.any((present > 0) & (present != whole)):
                raise PtxError(
                    f"kernel={self.launch.kernel.name!r}: threads of one block wait at "
                    "different barriers"
                )
        return waiting

    def _execute(self, instruction: Instruction, mask: Array, full: bool) -> None:
        parts = instruction.opcode.split(".")
        if parts[0] == "griddepcontrol":
            # Kernels run one after another here.
            return
        if parts[0] in ("ld", "st"):
            self._move(instruction, mask, full)
        elif parts[0] == "shfl":
            self._shuffle(instruction, mask, full)
        elif parts[0] in ("mov", "cvta"):
            self._copy(instruction, mask, full)
        else:
            self._calculate(instruction, mask, full)

    def read(self, operand: Any, dtype: Any) -> Array:
        """The value of an operand as that type: [n], or [] of a constant."""
        dtype = np.dtype(dtype)
        if isinstance(operand, int):
            bits = operand % (1 << 8 * dtype.itemsize)
            return np.array(bits, f"uint{8 * dtype.itemsize}").view(dtype)
        if operand in self.special:
            return np.asarray(self.special[operand])
        if operand in self.launch.kernel.symbols:
            # Each block has its own variables in `shared`, found by `_address`.
            return np.array(self.launch.kernel.symbols[operand], np.uint64)
        value = self.values[operand]
        return value if value.dtype == bool else value.view(dtype)

    def write(
        self, name: str, value: Array, tags: Array | None, mask: Array, full: bool
    ) -> None:
        """Give a register a value, in the threads of the mask."""
        if name == "_":
            return
        prefix = name.rstrip("0123456789")
        dtype = np.dtype(_TYPES[self.launch.kernel.registers[prefix]])
        if value.dtype != bool:
            value = value.view(f"uint{8 * value.dtype.itemsize}").astype(dtype)
        before, before_tags = self.values.get(name), self.tags.get(name)
        if full or before is None:
            self.values[name] = np.array(np.broadcast_to(value, mask.shape))
            self.tags[name] = tags
        else:
            self.values[name] = np.where(mask, value, before)
            if tags is None and before_tags is None:
                return
            now = 0 if tags is None else tags
            self.tags[name] = np.where(
                mask, now, 0 if before_tags is None else before_tags
            )

    def _tags(self, operand: Any) -> Array | None:
        return self.tags.get(operand) if isinstance(operand, str) else None

    def _calculate(self, instruction: Instruction, mask: Array, full: bool) -> None:
        """All instructions that are functions of their operands."""
        name, _, kind = instruction.opcode.rpartition(".")
        target, *sources = instruction.operands
        function, kinds = _function(instruction, name, kind)
        if isinstance(target, tuple) or len(kinds) != len(sources):
            raise _unknown(instruction)
        values = [self.read(x, _TYPES[k]) for x, k in zip(sources, kinds, strict=True)]
        tags = None
        if self.rules is not None and not name.startswith("setp"):
            tagged = [self._tags(x) for x in sources]
            if any(tag is not None for tag in tagged):
                shape = mask.shape
                tags = np.zeros(shape, np.int32)
                found = self.rules.combine(
                    instruction.opcode,
                    [None if t is None else t[mask] for t in tagged],
                    [np.broadcast_to(v, shape)[mask] for v in values],
                )
                tags = None
                if found is not None:
                    tags = np.zeros(shape, np.int32)
                    tags[mask] = found
        self.write(target, np.asarray(function(*values)), tags, mask, full)

    def _copy(self, instruction: Instruction, mask: Array, full: bool) -> None:
        """mov, with halves of a register in braces, and cvta (one address space)."""
        if not re.fullmatch(
            r"mov\.([bus]\d+|f32|f64|pred)|cvta\.to\.global\.u64", instruction.opcode
        ):
            raise _unknown(instruction)
        target, source = instruction.operands
        kind = instruction.opcode.rpartition(".")[2]
        if isinstance(target, tuple):
            whole, width = self.read(source, _TYPES[kind]), int(kind[1:]) // len(target)
            for i, name in enumerate(target):
                part = (whole >> np.asarray(i * width, whole.dtype)).astype(
                    f"uint{width}"
                )
                self.write(name, part, self._tags(source), mask, full)
            return
        if isinstance(source, tuple):
            width = int(kind[1:]) // len(source)
            dtype = np.dtype(f"uint{kind[1:]}")
            value = np.zeros((), dtype)
            for i, name in enumerate(source):
                part = self.read(name, np.dtype(f"uint{width}")).astype(dtype)
                value = value | (part << np.asarray(i * width, dtype))
            if any(self._tags(name) is not None for name in source):
                raise PtxError(f"ptx={instruction.text!r}: packs numbers of a sum")
            self.write(target, value, None, mask, full)
            return
        value = self.read(source, _TYPES[kind])
        self.write(target, value, self._tags(source), mask, full)

    def _move(self, instruction: Instruction, mask: Array, full: bool) -> None:
        """Loads and stores (ld, st), of one number or a vector."""
        found = re.fullmatch(
            r"(ld|st)\.(param|global|shared)(\.nc)?(?:\.v([24]))?\.([bus]\d+|f\d+)",
            instruction.opcode,
        )
        if found is None:
            raise _unknown(instruction)
        kind, space, _, count, name = found.groups()
        dtype = np.dtype(f"uint{name[1:]}")
        place, other = instruction.operands[:: 1 if kind == "st" else -1]
        names = other if isinstance(other, tuple) else (other,)
        base, offset = place
        if space == "param":
            number = self.launch.kernel.parameters.index(base)
            start = self.memory.starts[self.launch.arguments[number]]
            self.write(names[0], np.array(start, dtype), None, mask, full)
            return
        memory = self.memory if space == "global" else self.shared
        address = np.broadcast_to(self.read(base, np.uint64), mask.shape)[mask]
        address = address.astype(np.int64) + offset
        if space == "shared":
            if np.any((address < 0) | (address >= self.launch.kernel.shared)):
                raise PtxError(f"ptx={instruction.text!r}: outside of shared memory")
            address = address + memory.starts[self.block[mask]]
        if count and np.any(address % (dtype.itemsize * int(count))):
            raise PtxError(f"ptx={instruction.text!r}: a vector that is not aligned")
        for i, register in enumerate(names):
            there = address + i * dtype.itemsize
            if kind == "st":
                value = np.broadcast_to(self.read(register, dtype), mask.shape)[mask]
                tags = self._tags(register)
                memory.store(
                    there, value, None if tags is None else tags[mask], instruction.text
                )
                continue
            bits, found_tags = memory.load(there, dtype, instruction.text)
            value = np.zeros(mask.shape, dtype)
            value[mask] = bits
            tags = None
            if found_tags is not None and found_tags.any():
                tags = np.zeros(mask.shape, np.int32)
                tags[mask] = found_tags
            self.write(register, value, tags, mask, full)

    def _shuffle(self, instruction: Instruction, mask: Array, full: bool) -> None:
        """shfl.sync: a register of another lane of the warp."""
        found = re.fullmatch(r"shfl\.sync\.(down|up|bfly|idx)\.b32", instruction.opcode)
        target, source, *rest = instruction.operands
        if found is None or "|" in target or not all(isinstance(x, int) for x in rest):
            raise _unknown(instruction)
        distance, clamp, members = rest
        if members % (1 << 32) != (1 << 32) - 1 or clamp not in (0, 31):
            raise _unknown(instruction)
        warp = self.block * -(-self.per_block // 32) + self.thread // 32
        acting = np.bincount(warp, mask)
        if np.any((acting > 0) & (acting < 32)):
            raise PtxError(f"ptx={instruction.text!r}: lanes of a warp are missing")
        lane = self.thread % 32
        there = {
            "down": lane + distance,
            "up": lane - distance,
            "bfly": lane ^ distance,
            "idx": np.full_like(lane, distance),
        }[found[1]]
        there = np.where((there >= 0) & (there < 32), there, lane)
        origin = np.arange(mask.size) - lane + there
        value, tags = self.read(source, np.uint32), self._tags(source)
        value = np.broadcast_to(value, mask.shape)
        # Lanes that do not act are in warps that do not.
        origin = np.where(mask, origin, 0)
        moved = None if tags is None else tags[origin]
        self.write(target, value[origin], moved, mask, full)


def _axes(name: str, linear: Array, shape: tuple[int, ...]) -> dict[str, Array]:
    x, y, _ = shape
    return {
        f"%{name}.x": (linear % x).astype(np.uint32),
        f"%{name}.y": (linear // x % y).astype(np.uint32),
        f"%{name}.z": (linear // (x * y)).astype(np.uint32),
    }


def _sizes(name: str, shape: tuple[int, ...]) -> dict[str, Array]:
    return {
        f"%{name}.{a}": np.array(n, np.uint32)
        for a, n in zip("xyz", shape, strict=True)
    }


def _unknown(instruction: Instruction) -> PtxError:
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


def _function(
    instruction: Instruction, name: str, kind: str
) -> tuple[Callable[..., Any], list[str]]:
    """What an instruction computes, and the types of its operands."""
    opcode = instruction.opcode
    is_float = kind in ("f32", "f64")
    integral = re.fullmatch(r"[bus](16|32|64)", kind) is not None
    if opcode in _CONVERSIONS:
        return _CONVERSIONS[opcode], [kind]
    if integral and (found := re.fullmatch(r"cvt\.([us](?:8|16|32|64))", name)):
        dtype = _TYPES[found[1]]
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
        raise _unknown(instruction)
    if name in ("shl", "shr"):
        return _shift(name == "shl"), [kind, "u32"]
    if opcode == "bfe.u32":
        return _extract, [kind, "u32", "u32"]
    if name in ("mul.wide", "mad.wide", "mul.hi") and kind.endswith("64"):
        raise _unknown(instruction)
    if name in _INTEGER:
        kinds = [kind] * (len(instruction.operands) - 1)
        if name == "mad.wide":
            kinds[2] = f"{kind[0]}{2 * int(kind[1:])}"
        return _INTEGER[name], kinds
    raise _unknown(instruction)


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
            raise _unknown(instruction)
        return _COMPARE[name], [kind, kind]
    if name in ("nan", "num"):
        return (lambda a, b: unordered(a, b) ^ (name == "num")), [kind, kind]
    # Of floats, a "u" at the end says what a NaN gives.
    true_of_nan = name[-1] == "u"
    compare = _COMPARE.get(name.removesuffix("u"))
    if compare is None or name in ("lo", "ls", "hi", "hs"):
        raise _unknown(instruction)
    return (
        lambda a, b: np.where(unordered(a, b), true_of_nan, compare(a, b)),
        [kind, kind],
    )
