"""The text of XLA's optimised program, read: instructions, what they call, where from.

Only what an audit needs is read: names, types, operands and attributes of instructions,
and the tables of files and stack frames at the head of the text.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple

from prednet_jax.noise import compat


class Instruction(NamedTuple):
    """One instruction.

    Attributes:
        name: unique in the program.
        type: of the result, such as `f32[64,64]{1,0}` or a tuple in parentheses.
        opcode: such as `reduce`, `fusion`, `custom-call`.
        operands: names of instructions in the same computation.
        attributes: the rest of the line.
        computation: the name of the computation it stands in.
    """

    name: str
    type: str
    opcode: str
    operands: tuple[str, ...]
    attributes: str
    computation: str

    @property
    def operation(self) -> str:
        """JAX's name of the operation with all scopes; "" if XLA dropped it."""
        found = re.search(r'op_name="((?:[^"\\]|\\.)*)"', self.attributes)
        return found[1] if found else ""

    @property
    def frame(self) -> int:
        """Number of the stack frame; 0 if there is none."""
        found = re.search(r"stack_frame_id=(\d+)", self.attributes)
        return int(found[1]) if found else 0

    def attribute(self, name: str) -> str:
        """The value of an attribute up to the next comma or blank; "" without it."""
        found = re.search(rf"\b{name}=%?([^,\s]+)", self.attributes)
        return found[1] if found else ""


@dataclass(frozen=True)
class Program:
    """A compiled program.

    Attributes:
        computations: instructions of each, in order, by the computation's name.
        frames: for each stack frame the file, line, function and the frame around it.
    """

    computations: dict[str, tuple[Instruction, ...]]
    frames: dict[int, tuple[str, int, str, int]]
    _roots: dict[str, Instruction] = field(default_factory=dict)

    @cached_property
    def instructions(self) -> dict[str, Instruction]:
        """All instructions by name."""
        return {x.name: x for body in self.computations.values() for x in body}

    def inside(self, instruction: Instruction) -> Iterator[Instruction]:
        """An instruction, and those of the fusion that it stands for."""
        yield instruction
        called = instruction.attribute("calls")
        for each in self.computations.get(called, ()):
            yield from self.inside(each)

    def root(self, computation: str) -> Instruction | None:
        """The instruction that a computation gives back."""
        return self._roots.get(computation)

    def operand_types(self, instruction: Instruction) -> list[str]:
        """Types of the operands."""
        return [
            self.instructions[name].type
            for name in instruction.operands
            if name in self.instructions
        ]

    def source(self, frame: int) -> str:
        """The user's line of a stack frame, as `coverage` gives it; "" without one.

        The innermost frame of a file that is no library's. Frames outside of the
        audited function, which this package called, do not count.
        """
        while frame in self.frames:
            file, line, function, parent = self.frames[frame]
            if file == _BOUNDARY:
                break
            if compat.is_users(file):
                return f"{os.path.basename(file)}:{line} in {function}"
            frame = parent
        return ""


def read(text: str) -> Program:
    """Reads the text that XLA prints of a module."""
    tables: dict[str, dict[int, str]] = {}
    computations: dict[str, list[Instruction]] = {}
    roots: dict[str, Instruction] = {}
    table: dict[int, str] | None = None
    computation = ""
    for line in text.splitlines():
        if line in _TABLES:
            table = tables.setdefault(line, {})
        elif opened := _COMPUTATION.match(line):
            table, computation = None, opened[1]
            computations[computation] = []
        elif table is not None and line:
            number, _, rest = line.partition(" ")
            table[int(number)] = rest
        elif (each := _instruction(line, computation)) is not None:
            computations[computation].append(each)
            if line.lstrip().startswith("ROOT "):
                roots[computation] = each
    return Program(
        {k: tuple(v) for k, v in computations.items()}, _frames(tables), roots
    )


_BOUNDARY = os.path.join(os.path.dirname(__file__), "compilation.py")
_TABLES = ("FileNames", "FunctionNames", "FileLocations", "StackFrames")
_COMPUTATION = re.compile(r"(?:ENTRY )?%(\S+) \(.*\{$")
_HEAD = re.compile(r"\s+(?:ROOT )?%(\S+) = ")
_OPCODE = re.compile(r" ([a-z][\w-]*)\(")


def _instruction(line: str, computation: str) -> Instruction | None:
    head = _HEAD.match(line)
    if head is None:
        return None
    rest = line[head.end() :]
    end = _closing(rest, 0) + 1 if rest.startswith("(") else rest.index(" ")
    opcode = _OPCODE.match(rest, end)
    if opcode is None:
        return None
    close = _closing(rest, opcode.end() - 1)
    operands = tuple(re.findall(r"%([\w.-]+)", rest[opcode.end() : close]))
    return Instruction(
        head[1], rest[:end], opcode[1], operands, rest[close + 1 :], computation
    )


def _closing(text: str, start: int) -> int:
    """Where the parenthesis that opens at `start` is closed."""
    depth = 0
    for i in range(start, len(text)):
        depth += (text[i] == "(") - (text[i] == ")")
        if depth == 0:
            return i
    return len(text)


def _frames(
    tables: dict[str, dict[int, str]],
) -> dict[int, tuple[str, int, str, int]]:
    """Stack frames; the number of the frame around each is one less than its text."""

    def quoted(table: str, number: int) -> str:
        return tables.get(table, {}).get(number, "").strip('"')

    def field_of(text: str, name: str) -> int:
        found = re.search(rf"\b{name}=(\d+)", text)
        return int(found[1]) if found else 0

    found = {}
    for number, text in tables.get("StackFrames", {}).items():
        place = tables["FileLocations"][field_of(text, "file_location_id")]
        file = quoted("FileNames", field_of(place, "file_name_id"))
        function = quoted("FunctionNames", field_of(place, "function_name_id"))
        parent = field_of(text, "parent_frame_id") - 1
        name = function.rsplit(".", 1)[-1]
        found[number] = (file, field_of(place, "line"), name, parent)
    return found
