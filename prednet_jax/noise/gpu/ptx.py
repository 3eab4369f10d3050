"""Interprets PTX, the assembly language of NVIDIA's GPUs, on NumPy.

It runs the kernels that XLA writes, bit for bit. All threads of many blocks advance in
lockstep. Where they diverge, the threads at the lowest address run first until the
others have caught up. A `PtxError` is raised for operations that PTX does not define to
the bit, for those that a kernel must not do (docs/noise/gpu_order.md) and for unknown
instructions.

In addition to their bits, registers may carry tags: integers that identify the term of
a sum, or the sum of terms, that a number is. `replay` reads the order of sums from
them.

Source: NVIDIA, "PTX ISA", version 8.8, chapters 7 (operands) and 9 (instructions).
"""

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from prednet_jax.noise.gpu.instructions import (
    OPERATIONS,
    TYPES,
    Array,
    Instruction,
    PtxError,
    unknown,
)

# Threads that are interpreted at once.
_AT_ONCE = 1 << 19
# The instructions that make up a sum of float32.
ADDITION = "add.rn.f32"

# Combines tags in arithmetic. Given an opcode such as "add.rn.f32", the operands' tags
# (int32 [threads]; 0: none) and the operands, it returns the tags of the result.
Combine = Callable[[str, Sequence[Array], Sequence[Array]], Array]


@dataclass(frozen=True)
class Kernel:
    """A kernel's text, parsed: parameters of 64 bits, types of registers by prefix.

    `shared` is the size of shared memory in bytes, `symbols` the start of each variable
    in it, and `labels` the positions in `code` that branches jump to.
    """

    parameters: tuple[str, ...]
    registers: Mapping[str, str]
    shared: int
    symbols: Mapping[str, int]
    code: tuple[Instruction, ...]
    labels: Mapping[str, int]


def parse(text: str) -> dict[str, Kernel]:
    """Parses the kernels of a PTX module by name; raises a PtxError for others."""
    kernels: dict[str, Kernel] = {}

    def read(match: re.Match[str]) -> str:
        name, parameters, body = match.groups()
        names = tuple(part.split()[-1] for part in parameters.split(",") if part)
        kernels[name] = _kernel(names, body)
        return ""

    text = re.sub(r"//[^\n]*|\.(pragma|version|target|address_size)[^\n]*", "", text)
    tail = _ENTRY.sub(read, text).strip()
    if tail:
        raise PtxError(f"ptx={tail[:80]!r}: expected kernels (.visible .entry) alone")
    return kernels


_ENTRY = re.compile(
    r"\.visible\s+\.entry\s+(\w+)\s*\(([^)]*)\)[^{]*\{(.*?)\n\}", re.DOTALL
)


def _kernel(parameters: tuple[str, ...], body: str) -> Kernel:
    registers, symbols, labels = dict[str, str](), dict[str, int](), dict[str, int]()
    code: list[Instruction] = []
    shared = 0
    body = re.sub(r"^(\$\w+):", r"label \1;", body, flags=re.MULTILINE)
    for statement in filter(None, (part.strip() for part in body.split(";"))):
        if match := re.fullmatch(r"\.reg \.(\w+)\s+(%\w+)<\d+>", statement):
            registers[match[2]] = match[1]
        elif match := re.fullmatch(
            r"\.shared \.align (\d+) \.b8 (\w+)\[(\d+)\]", statement
        ):
            shared = math.ceil(shared / int(match[1])) * int(match[1])
            symbols[match[2]] = shared
            shared += int(match[3])
        elif match := re.fullmatch(r"label (\$\w+)", statement):
            labels[match[1]] = len(code)
        elif match := re.fullmatch(
            r"(?:@(!?%\w+)\s+)?([a-z][\w.:]*)\s*(.*)", statement, re.DOTALL
        ):
            # At commas that are not inside of brackets.
            parts = re.split(r",(?![^{\[]*[}\]])", match[3])
            operands = tuple(_operand(x.strip()) for x in parts if x.strip())
            code.append(Instruction(match[2], operands, match[1] or "", statement))
        else:
            raise PtxError(f"ptx={statement!r}: not understood")
    return Kernel(parameters, registers, shared, symbols, tuple(code), labels)


def _operand(text: str) -> Any:
    """Parses an operand as a Python value; an address is a list [base, offset]."""
    if text.startswith("{"):
        return tuple(_operand(part.strip()) for part in text[1:-1].split(","))
    if text.startswith("["):
        base, _, offset = text[1:-1].partition("+")
        return [base.strip(), int(offset or 0)]
    if match := re.fullmatch(r"0[fd]([0-9a-fA-F]+)", text):
        return int(match[1], 16)  # the bits of a float
    if re.fullmatch(r"-?(0x[0-9a-fA-F]+|\d+)", text):
        return int(text, 0)
    return text


class Memory:
    """Bytes `data`, the tags of each pair of bytes, and the variables' positions."""

    def __init__(self, sizes: Sequence[int], *, tagged: bool = False) -> None:
        starts, end = [], 256
        for size in sizes:
            starts.append(end)
            end = (end + size + 511) // 256 * 256
        self.starts = np.array(starts, np.int64)
        self.stops = self.starts + np.array(sizes, np.int64)
        self.data: Array = np.zeros(end, np.uint8)
        self.tags: Array | None = np.zeros(end // 2, np.int32) if tagged else None

    def view(self, position: int, dtype: np.dtype) -> Array:
        """Returns the variable at that position, to be read and written."""
        start, stop = int(self.starts[position]), int(self.stops[position])
        return self.data[start:stop].view(dtype)

    def tags_of(self, position: int, dtype: np.dtype) -> Array:
        """Returns the tags of a variable's numbers, of two bytes or more."""
        assert self.tags is not None
        start, stop = int(self.starts[position]), int(self.stops[position])
        return self.tags[start // 2 : stop // 2 : dtype.itemsize // 2]

    def _index(self, address: Array, size: int, text: str) -> Array:
        inside = np.searchsorted(self.starts, address, "right") - 1
        good = (inside >= 0) & (address + size <= self.stops[inside])
        if not np.all(good & (address % size == 0)):
            raise PtxError(f"ptx={text!r}: an address outside of memory or not aligned")
        return address // size

    def load(self, address: Array, dtype: np.dtype, text: str) -> "Register":
        """Returns bits at addresses, and their tags."""
        index, size = self._index(address, dtype.itemsize, text), dtype.itemsize
        tags = _UNTAGGED
        if self.tags is not None and size > 1:
            tags = self.tags[index * (size // 2)]
        return Register(self.data.view(dtype)[index], tags)

    def store(self, address: Array, value: "Register", text: str) -> None:
        """Writes bits and tags; refuses threads that disagree about an address."""
        bits, size = value.bits, value.bits.dtype.itemsize
        index, cells = self._index(address, size, text), self.data.view(bits.dtype)
        cells[index] = bits
        if np.any(cells[index] != bits):
            raise PtxError(f"ptx={text!r}: a race, two values for one address")
        if self.tags is not None and size > 1:
            self.tags[index * (size // 2)] = value.tags


class Register(NamedTuple):
    """A number in each thread: its bits, [n] or [] for a constant, and its tags."""

    bits: Array
    tags: Array


# The tag of a number that is not a term.
_UNTAGGED: Array = np.zeros((), np.int32)


class InterpreterLaunch(NamedTuple):
    """A kernel's launch: blocks and threads in x, y, z, and variables of `Memory`."""

    kernel: Kernel
    grid: tuple[int, ...]
    block: tuple[int, ...]
    arguments: tuple[int, ...]


def run(
    launch: InterpreterLaunch, memory: Memory, combine: Combine | None = None
) -> None:
    """Runs a kernel on global memory; without `combine` there are no tags.

    A PtxError is raised for unknown instructions and for operations that a kernel must
    not do.
    """
    blocks = math.prod(launch.grid)
    chunk = max(1, _AT_ONCE // math.prod(launch.block))
    with np.errstate(all="ignore"):
        for first in range(0, blocks, chunk):
            numbers = np.arange(first, min(first + chunk, blocks))
            _Threads(launch, memory, combine, numbers).run()


@dataclass(eq=False)
class _Threads:
    """Threads of some blocks in execution; arrays are over all of them, [n]."""

    launch: InterpreterLaunch
    memory: Memory
    combine: Combine | None
    blocks: Array

    def __post_init__(self) -> None:
        self.kernel = self.launch.kernel
        self.per_block = math.prod(self.launch.block)
        self.block = np.repeat(np.arange(self.blocks.size), self.per_block)
        self.thread = np.tile(np.arange(self.per_block), self.blocks.size)
        sizes = [self.kernel.shared] * self.blocks.size
        self.shared = Memory(sizes, tagged=self.combine is not None)
        self.registers: dict[str, Register] = {}
        for name, linear, shape in (
            ("tid", self.thread, self.launch.block),
            ("ctaid", self.blocks[self.block], self.launch.grid),
        ):
            for axis, size in zip("xyz", shape, strict=True):
                for prefix, value in (("%", linear % size), ("%n", np.array(size))):
                    bits = value.astype(np.uint32)
                    self.registers[f"{prefix}{name}.{axis}"] = Register(bits, _UNTAGGED)
                linear = linear // size
        # Each block has a copy; `_move` adds its offset.
        for name, start in self.kernel.symbols.items():
            self.registers[name] = Register(np.array(start, np.uint64), _UNTAGGED)

    def run(self) -> None:
        # By position in the code, the threads at that position; those at a barrier.
        ready, waiting = {0: np.ones(self.block.size, bool)}, dict[int, Array]()
        special = {"ld": self._move, "st": self._move, "shfl": self._shuffle}
        special |= {"mov": self._copy, "cvta": self._copy}
        while ready or waiting:
            if not ready:
                ready, waiting = waiting, {}
            current = min(ready)
            mask = ready.pop(current)
            if not mask.any():
                continue
            instruction = self.kernel.code[current]
            acting = mask
            if instruction.guard:
                guard = self.registers[instruction.guard.lstrip("!")].bits
                acting = mask & (guard ^ instruction.guard.startswith("!"))
            goes = [(current + 1, mask & ~acting)]
            name = instruction.opcode.partition(".")[0]
            if name == "bra":
                goes.append((self.kernel.labels[instruction.operands[0]], acting))
            elif name == "bar":
                if instruction.opcode != "bar.sync" or instruction.operands != (0,):
                    raise unknown(instruction)
                waiting[current + 1] = acting
            elif name != "ret":
                goes = [(current + 1, mask)]
                # Kernels run one after another here, so they never wait for each other.
                if acting.any() and name != "griddepcontrol":
                    special.get(name, self._calculate)(instruction, acting)
            for position, threads in goes:
                ready[position] = ready.get(position, False) | threads

    def read(self, operand: Any, kind: str) -> Register:
        dtype = TYPES[kind]
        if isinstance(operand, int):
            bits = np.array(operand % (1 << 8 * dtype.itemsize), f"u{dtype.itemsize}")
            return Register(bits.view(dtype), _UNTAGGED)
        bits, tags = self.registers[operand]
        return Register(bits if bits.dtype == bool else bits.view(dtype), tags)

    def write(self, name: str, value: Register, mask: Array) -> None:
        if name == "_":
            return
        bits, tags = value
        if bits.dtype != bool:
            dtype = TYPES[self.kernel.registers[name.rstrip("0123456789")]]
            bits = bits.view(f"u{bits.itemsize}").astype(dtype)
        current: Register = self.registers.get(name, Register(bits, _UNTAGGED))
        before, old = current
        if tags is not old:
            tags = np.where(mask, tags, old)
        self.registers[name] = Register(np.where(mask, bits, before), tags)

    def _acting(self, operand: Any, kind: str, mask: Array) -> Register:
        value = self.read(operand, kind)
        return Register(*(np.broadcast_to(x, mask.shape)[mask] for x in value))

    def _calculate(self, instruction: Instruction, mask: Array) -> None:
        """Executes the instructions that are functions of their operands."""
        target, *sources = instruction.operands
        opcode = instruction.opcode
        if opcode not in OPERATIONS or isinstance(target, tuple):
            raise unknown(instruction)
        function, kinds = OPERATIONS[opcode]
        kinds += kinds[-1:] * len(sources)
        values = [self.read(*x) for x in zip(sources, kinds, strict=False)]
        tags = _UNTAGGED
        if self.combine and (opcode == ADDITION or any(x.tags.any() for x in values)):
            acting = [self._acting(*x, mask) for x in zip(sources, kinds, strict=False)]
            bits, old = zip(*acting, strict=True)
            tags = np.zeros(mask.shape, np.int32)
            tags[mask] = self.combine(opcode, old, bits)
        result = np.asarray(function(*(x.bits for x in values)))
        self.write(target, Register(result, tags), mask)

    def _copy(self, instruction: Instruction, mask: Array) -> None:
        """Executes mov, also on halves of a register, and cvta (one address space)."""
        target, source = instruction.operands
        kind = instruction.opcode.rpartition(".")[2]
        if isinstance(source, tuple):
            raise unknown(instruction)
        if not isinstance(target, tuple):
            self.write(target, self.read(source, kind), mask)
            return
        value, width = self.read(source, kind), int(kind[1:]) // len(target)
        for i, name in enumerate(target):
            bits = value.bits >> np.asarray(i * width, value.bits.dtype)
            self.write(name, Register(bits.astype(f"u{width // 8}"), value.tags), mask)

    def _move(self, instruction: Instruction, mask: Array) -> None:
        """Executes loads and stores (ld, st), of one number or a vector."""
        match = re.fullmatch(
            r"(ld|st)\.(param|global|shared)(?:::entry)?(\.nc)?(?:\.v([24]))?\.([bus]\d+|f\d+)",
            instruction.opcode,
        )
        if match is None:
            raise unknown(instruction)
        name, space, _, count, kind = match.groups()
        kind = f"u{kind[1:]}"
        (base, offset), other = instruction.operands[:: 1 if name == "st" else -1]
        registers = other if isinstance(other, tuple) else (other,)
        if space == "param":
            argument = self.launch.arguments[self.kernel.parameters.index(base)]
            start = self.memory.starts[argument].astype(TYPES[kind])
            self.write(registers[0], Register(start, _UNTAGGED), mask)
            return
        memory = self.memory if space == "global" else self.shared
        address = self._acting(base, "s64", mask).bits + offset
        if space == "shared":
            address = address + memory.starts[self.block[mask]]
        size = TYPES[kind].itemsize
        if count and np.any(address % (size * int(count))):
            raise PtxError(f"ptx={instruction.text!r}: a vector that is not aligned")
        for i, register in enumerate(registers):
            there = address + i * size
            if name == "st":
                value = self._acting(register, kind, mask)
                memory.store(there, value, instruction.text)
                continue
            bits, tags = (np.zeros(mask.shape, t) for t in (TYPES[kind], np.int32))
            bits[mask], tags[mask] = memory.load(there, TYPES[kind], instruction.text)
            self.write(register, Register(bits, tags), mask)

    def _shuffle(self, instruction: Instruction, mask: Array) -> None:
        """Executes shfl.sync.down, which reads a later lane's register."""
        target, source, *options = instruction.operands
        if instruction.opcode != "shfl.sync.down.b32" or options[1:] != [31, -1]:
            raise unknown(instruction)
        warp = self.block * -(-self.per_block // 32) + self.thread // 32
        # The last warp of a block may have fewer lanes.
        acting, lanes = np.bincount(warp, mask), np.bincount(warp)
        if np.any((acting > 0) & (acting < lanes)):
            raise PtxError(f"ptx={instruction.text!r}: lanes of a warp are missing")
        lane = self.thread % 32
        there = np.where(lane + options[0] < lanes[warp], lane + options[0], lane)
        # Lanes that do not act are in warps that do not.
        origin = np.where(mask, np.arange(mask.size) - lane + there, 0)
        value = self.read(source, "u32")
        moved = (np.broadcast_to(x, mask.shape)[origin] for x in value)
        self.write(target, Register(*moved), mask)
