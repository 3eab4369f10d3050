"""A small interpreter of PTX, the assembly language of NVIDIA's GPUs, on NumPy.

It runs the kernels that XLA writes itself, bit for bit: IEEE arithmetic rounded to
nearest, fused multiply-add with one rounding, shuffles, shared memory, barriers,
branches, vector loads. All threads of many blocks advance in lockstep. Where they
diverge, those at the lowest address go first until the others have caught up. What PTX
does not define to the bit (`ex2.approx`, `mma`), what a kernel must not do (a race
within one store, a shuffle from a lane that is not there), and every instruction and
modifier that is not known (`instructions`) is a `PtxError`.

Registers may carry tags beside their bits: integers that say which term of a sum, or
which sum of terms, a number is (`Tags`). `replay` reads the order of sums from them.

Source: NVIDIA, "PTX ISA", version 8.8, chapters 7 (operands) and 9 (instructions).
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

import numpy as np

from prednet_jax.noise.gpu.instructions import (
    TYPES,
    Array,
    Instruction,
    PtxError,
    function_of,
    unknown,
)

# Threads that are interpreted at once.
_AT_ONCE = 1 << 19


class Tags(Protocol):
    """What becomes of tags in arithmetic; 0 stands for none."""

    def combine(
        self, opcode: str, tags: Sequence[Array | None], values: Sequence[Array]
    ) -> Array:
        """The tags of a result.

        Args:
            opcode: such as "add.rn.f32".
            tags: of its operands: int32 [threads], or None for none.
            values: of the same, of the instruction's type.
        """
        ...


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
    grid: tuple[int, ...]
    block: tuple[int, ...]
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
                    raise unknown(instruction)
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
            # Each block has a copy; `_move` adds where it lies.
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
        dtype = np.dtype(TYPES[self.launch.kernel.registers[prefix]])
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
        function, kinds = function_of(instruction, name, kind)
        if isinstance(target, tuple) or len(kinds) != len(sources):
            raise unknown(instruction)
        values = [self.read(x, TYPES[k]) for x, k in zip(sources, kinds, strict=True)]
        tags = None
        tagged = [self._tags(x) for x in sources]
        if self.rules is not None and any(t is not None for t in tagged):
            tags = np.zeros(mask.shape, np.int32)
            tags[mask] = self.rules.combine(
                instruction.opcode,
                [None if t is None else t[mask] for t in tagged],
                [np.broadcast_to(v, mask.shape)[mask] for v in values],
            )
        self.write(target, np.asarray(function(*values)), tags, mask, full)

    def _copy(self, instruction: Instruction, mask: Array, full: bool) -> None:
        """mov, with halves of a register in braces, and cvta (one address space)."""
        if not re.fullmatch(
            r"mov\.([bus]\d+|f32|f64|pred)|cvta\.to\.global\.u64", instruction.opcode
        ):
            raise unknown(instruction)
        target, source = instruction.operands
        kind = instruction.opcode.rpartition(".")[2]
        if isinstance(target, tuple):
            whole, width = self.read(source, TYPES[kind]), int(kind[1:]) // len(target)
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
        value = self.read(source, TYPES[kind])
        self.write(target, value, self._tags(source), mask, full)

    def _move(self, instruction: Instruction, mask: Array, full: bool) -> None:
        """Loads and stores (ld, st), of one number or a vector."""
        found = re.fullmatch(
            r"(ld|st)\.(param|global|shared)(\.nc)?(?:\.v([24]))?\.([bus]\d+|f\d+)",
            instruction.opcode,
        )
        if found is None:
            raise unknown(instruction)
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
            raise unknown(instruction)
        distance, clamp, members = rest
        if members % (1 << 32) != (1 << 32) - 1 or clamp not in (0, 31):
            raise unknown(instruction)
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
