"""A program that XLA compiled for a GPU, from what the compiler dumped, to be run here.

`--xla_dump_to` writes for each module the PTX of its kernels, the sequence of launches
(`thunk_sequence.txt`), where each value lies (`buffer-assignment.txt`) and the compiled
program (`gpu_after_optimizations.txt`). `read` puts them together; `run` executes the
launches with the interpreter of `ptx`. A program that does anything but launch kernels
of its own, such as a call of a library, is a `PtxError`.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from prednet_jax.noise.gpu import ptx
from prednet_jax.noise.gpu.ptx import PtxError

_NUMPY = {"f32": "float32", "bf16": "uint16", "f16": "float16", "f64": "float64"}
# Instructions of a compiled program that compute nothing.
_NOTHING = ("parameter", "bitcast", "tuple", "get-tuple-element")


@dataclass(frozen=True)
class Program:
    """Launches over numbered allocations.

    Attributes:
        launches: in order.
        sizes: bytes of each allocation.
        parameters: allocation of each parameter.
        result: allocation of the result.
    """

    launches: tuple[ptx.Launch, ...]
    sizes: tuple[int, ...]
    parameters: tuple[int, ...]
    result: int

    def run(self, arguments: Sequence[Any], dtype: Any) -> np.ndarray[Any, Any]:
        """The result for arrays, flat."""
        memory = self.memory(arguments)
        for launch in self.launches:
            ptx.run(launch, memory)
        return memory.view(self.result, dtype).copy()

    def memory(self, arguments: Sequence[Any], *, tagged: bool = False) -> ptx.Memory:
        """Memory that holds the arguments."""
        memory = ptx.Memory(self.sizes, tagged=tagged)
        for position, value in zip(self.parameters, arguments, strict=True):
            flat = np.ascontiguousarray(value).reshape(-1)
            memory.view(position, np.uint8)[:] = flat.view(np.uint8)
        return memory


def read(directory: Path, name: str) -> Program:
    """The module of that name, such as "jit_f", from a directory of dumps.

    Raises:
        PtxError: it does more than launch kernels, or is not there.
    """

    def text(end: str) -> str:
        found = sorted(directory.glob(f"module_*.{name}.*{end}"))
        if not found:
            raise PtxError(f"dump={name!r}: expected a file *{end}")
        return "\n".join(path.read_text() for path in found)

    return parse(
        text(".ptx"),
        text("thunk_sequence.txt"),
        text("after_optimizations-buffer-assignment.txt"),
        text("gpu_after_optimizations.txt"),
    )


def parse(kernels: str, sequence: str, buffers: str, hlo: str) -> Program:
    """The same from the texts of the dump."""
    found = {}
    for module in kernels.split(".version")[1:]:
        found |= ptx.parse(".version" + module)
    sizes, places, parameters, result = _allocations(buffers)
    launches = []
    fusions = list(_fusions(hlo))
    thunks = [line for line in sequence.splitlines() if line.strip()]
    if len(thunks) != len(fusions):
        raise PtxError(f"program: {len(thunks)} steps for {len(fusions)} fusions")
    for thunk, (target, operands) in zip(thunks, fusions, strict=True):
        shape = re.search(
            r"kCustomKernel .*\] (\w+) grid: \[(.*?)\] threads: \[(.*?)\]  "
            r"shared_memory: 0 bytes",
            thunk,
        )
        if shape is None:
            raise PtxError(f"program={thunk.strip()!r}: expected a kernel of XLA's own")
        grid, block = (
            tuple(int(x) for x in numbers.split(",")) for numbers in shape.groups()[1:]
        )
        arguments = tuple(places[name] for name in (*operands, target))
        launches.append(ptx.Launch(found[shape[1]], grid, block, arguments))
    return Program(tuple(launches), tuple(sizes), tuple(parameters), result)


def _allocations(
    text: str,
) -> tuple[list[int], dict[str, int], list[int], int]:
    """Sizes of the variables, which is where, those of the parameters and the result.

    Each slice of an allocation that holds a value is a variable of its own; values
    share one where they share a slice.
    """
    slices: dict[tuple[int, int], int] = {}
    sizes: list[int] = []
    places: dict[str, int] = {}
    parameters: dict[int, int] = {}
    result = -1
    for part in re.split(r"^allocation ", text, flags=re.MULTILINE)[1:]:
        head, *values = part.splitlines()
        number = int(head.split(":")[0])
        for line in values:
            value = re.match(
                r" value: <\d+ (\S+) @\d+> \(size=(\d+),offset=(\d+)\)", line
            )
            if value is None:
                break
            key = number, int(value[3])
            if key not in slices:
                slices[key] = len(sizes)
                sizes.append(0)
            place = slices[key]
            sizes[place] = max(sizes[place], int(value[2]))
            places[value[1]] = place
            if found := re.search(r"parameter (\d+)", head):
                parameters[int(found[1])] = place
            if "output shape is" in head:
                result = place
    return sizes, places, [parameters[i] for i in sorted(parameters)], result


def _fusions(hlo: str) -> Any:
    """Each instruction of the entry that computes: its name and its operands."""
    entry = hlo[hlo.index("\nENTRY ") :]
    alias: dict[str, str] = {}
    for line in entry.splitlines()[2:]:
        found = re.match(r"\s+(?:ROOT )?%(\S+) = \S+ ([\w-]+)\((.*?)\)(?:,|$)", line)
        if found is None:
            continue
        name, kind, operands = found.groups()
        names = [re.sub(r".*%", "", x).strip() for x in operands.split(",")]
        if kind == "bitcast":
            alias[name] = alias.get(names[0], names[0])
        if kind in _NOTHING:
            continue
        if kind != "fusion":
            raise PtxError(f"program={line.strip()[:80]!r}: expected kernels alone")
        yield name, [alias.get(x, x) for x in names]
