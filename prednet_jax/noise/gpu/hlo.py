"""Parses the text of XLA's optimised program into instructions and calls."""

import math
import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

from prednet_jax.noise import compat


class Instruction(NamedTuple):
    """One instruction.

    Attributes:
        type: type of the result, such as `f32[64,64]{1,0}` or a tuple in parentheses.
        opcode: the opcode, such as `reduce`, `fusion`, `custom-call`.
        operands: names of instructions in the computation; for a parameter its number.
        attributes: the rest of the line.
    """

    name: str
    type: str
    opcode: str
    operands: tuple[str, ...]
    attributes: str

    @property
    def operation(self) -> str:
        """JAX's name of the operation, without scopes; "" if XLA dropped it."""
        return self._attribute(r'op_name="((?:[^"\\]|\\.)*)"').rsplit("/", 1)[-1]

    @property
    def frame(self) -> int:
        """Returns the number of the stack frame, or 0 without one."""
        return int(self._attribute(r"stack_frame_id=(\d+)") or 0)

    @property
    def arrays(self) -> list[tuple[str, int]]:
        """The type, such as `f32`, and the bytes of each array of the result."""
        arrays = []
        for name, sizes in re.findall(r"(\w+)\[([\d,]*)\]", self.type):
            bits = re.search(r"\d+", name)
            count = math.prod(int(n) for n in sizes.split(",") if n)
            arrays.append((name, count * (int(bits[0]) if bits else 8) // 8))
        return arrays

    def attribute(self, name: str) -> str:
        """Returns an attribute's value up to the next comma or blank, or ""."""
        return self._attribute(rf"\b{name}=%?([^,\s]+)").strip('"')

    def _attribute(self, pattern: str) -> str:
        match = re.search(pattern, self.attributes)
        return match[1] if match else ""


@dataclass(frozen=True)
class Program:
    """A compiled program: instructions by computation; the last one is the entry.

    `frames` maps each stack frame to its file, line, function and parent frame.
    """

    computations: Mapping[str, list[Instruction]]
    frames: Mapping[int, tuple[str, int, str, int]]

    @cached_property
    def instructions(self) -> dict[str, Instruction]:
        """Returns all instructions by name."""
        return {x.name: x for body in self.computations.values() for x in body}

    def inside(self, instruction: Instruction) -> Iterator[Instruction]:
        """Yields an instruction, and the instructions of its fusion, if it is one."""
        yield instruction
        for each in self.computations.get(instruction.attribute("calls"), ()):
            yield from self.inside(each)

    def source(self, frame: int) -> str:
        """Returns the user's line of a stack frame, as `coverage` gives it, or "".

        It is the innermost frame in a file that does not belong to a library. Frames
        outside of the audited function, which this package called, do not count.
        """
        while frame in self.frames:
            file, line, function, frame = self.frames[frame]
            if file == _BOUNDARY:
                break
            if compat.is_users(file):
                return f"{os.path.basename(file)}:{line} in {function}"
        return ""


def read(text: str) -> Program:
    """Parses the text of a module as XLA prints it."""
    tables: dict[str, dict[int, str]] = {name: {} for name in _TABLES}
    computations: dict[str, list[Instruction]] = {}
    table: dict[int, str] = {}
    name = ""
    for line in text.splitlines():
        if line in _TABLES:
            table = tables[line]
        elif opened := _COMPUTATION.match(line):
            name = opened[1]
            computations[name] = []
        elif not name and (row := re.match(r"(\d+) (.*)", line)):
            table[int(row[1])] = row[2]
        elif head := _HEAD.match(line):
            computations[name].append(_instruction(head, line[head.end() :]))
    return Program(computations, _frames(tables))


_BOUNDARY = os.path.join(os.path.dirname(__file__), "compilation.py")
_TABLES = ("FileNames", "FunctionNames", "FileLocations", "StackFrames")
_COMPUTATION = re.compile(r"(?:ENTRY )?%(\S+) \(.*\{$")
_HEAD = re.compile(r"\s+(?:ROOT )?%(\S+) = (?=.* [a-z][\w-]*\()")
_OPCODE = re.compile(r" ([a-z][\w-]*)\(")


def _instruction(head: re.Match[str], rest: str) -> Instruction:
    end = _closing(rest, 0) if rest.startswith("(") else rest.index(" ")
    opcode = _OPCODE.search(rest, end)
    assert opcode is not None
    close = _closing(rest, opcode.end() - 1)
    inside = rest[opcode.end() : close - 1]
    return Instruction(
        name=head[1],
        type=rest[:end],
        opcode=opcode[1],
        operands=tuple(re.findall(r"(?<=%)[\w.-]+|^\d+$", inside)),
        attributes=rest[close:],
    )


def _closing(text: str, start: int) -> int:
    """Returns the position after the parenthesis that closes the one at `start`."""
    depth = 0
    for i in range(start, len(text)):
        depth += (text[i] == "(") - (text[i] == ")")
        if depth == 0:
            return i + 1
    return len(text)


def _frames(
    tables: Mapping[str, Mapping[int, str]],
) -> dict[int, tuple[str, int, str, int]]:
    """Parses stack frames; the text numbers parent frames from one, not zero."""

    def numbers(text: str) -> dict[str, int]:
        return {name: int(n) for name, n in re.findall(r"(\w+)=(\d+)", text)}

    files, functions, locations, texts = (tables[name] for name in _TABLES)
    frames = {}
    for frame, text in texts.items():
        fields = {"file_name_id": 0, "function_name_id": 0, "parent_frame_id": 0}
        fields |= numbers(text)
        fields |= numbers(locations[fields["file_location_id"]])
        file = files.get(fields["file_name_id"], "").strip('"')
        function = functions.get(fields["function_name_id"], "").strip('"')
        name, around = function.rpartition(".")[2], fields["parent_frame_id"] - 1
        frames[frame] = file, fields.get("line", 0), name, around
    return frames
