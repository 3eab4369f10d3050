"""A program that was compiled for a GPU, put together so that it can be run here.

`compilation` gives the PTX of the kernels, their launches, where each value lies and
the compiled program. `assemble` joins them; `Program.run` executes the launches with
the interpreter of `ptx`. A program that does anything but launch kernels of XLA's own,
such as a call of a library, is a `PtxError`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from prednet_jax.noise.gpu import ptx
from prednet_jax.noise.gpu.compilation import Compiled
from prednet_jax.noise.gpu.ptx import Array, PtxError


@dataclass(frozen=True, eq=False)
class Program:
    """Launches over numbered variables.

    Attributes:
        launches: in order.
        sizes: bytes of each variable.
        parameters: variable of each parameter.
        result: variable of the result.
    """

    launches: tuple[ptx.Launch, ...]
    sizes: tuple[int, ...]
    parameters: tuple[int, ...]
    result: int

    def run(
        self, memory: ptx.Memory, dtype: Any, tags: ptx.Tags | None = None
    ) -> Array:
        """The result, flat, from the arguments in a memory."""
        for launch in self.launches:
            ptx.run(launch, memory, tags)
        return memory.view(self.result, dtype)

    def memory(self, arguments: Sequence[Any], *, tagged: bool = False) -> ptx.Memory:
        """Memory that holds the arguments."""
        memory = ptx.Memory(self.sizes, tagged=tagged)
        for position, value in zip(self.parameters, arguments, strict=True):
            flat = np.ascontiguousarray(value).reshape(-1)
            memory.view(position, np.uint8)[:] = flat.view(np.uint8)
        return memory


def assemble(compiled: Compiled) -> Program:
    """What was compiled, as a program to be run.

    Raises:
        PtxError: it has several results, or does more than launch kernels.
    """
    kernels: dict[str, ptx.Kernel] = {}
    for text in dict.fromkeys(compiled.ptx.values()):
        kernels |= ptx.parse(text)
    sizes, places, parameters, result = _variables(compiled.buffers)
    operands = dict(_kernel_calls(compiled.hlo))
    launches = []
    for launch in compiled.launches:
        if launch.kernel not in kernels or launch.instruction not in operands:
            raise PtxError(
                f"program: {launch.kind} {launch.instruction!r}: expected kernels of "
                "XLA's own alone"
            )
        names = (*operands[launch.instruction], launch.instruction)
        arguments = tuple(places[name] for name in names)
        kernel = kernels[launch.kernel]
        launches.append(ptx.Launch(kernel, launch.grid, launch.threads, arguments))
    return Program(tuple(launches), sizes, parameters, result)


def _variables(
    text: str,
) -> tuple[tuple[int, ...], dict[str, int], tuple[int, ...], int]:
    """Variables: their sizes, which values they hold, parameters and result.

    Each slice of an allocation is a variable, which values may share.
    """
    slices: dict[tuple[str, str], int] = {}
    sizes: list[int] = []
    places: dict[str, int] = {}
    parameters: dict[int, int] = {}
    results = []
    for part in re.split(r"^allocation ", text, flags=re.MULTILINE)[1:]:
        head, *lines = part.splitlines()
        for line in lines:
            value = _VALUE.match(line)
            if value is None:
                break
            name, size, offset = value.groups()
            place = slices.setdefault((head, offset), len(sizes))
            if place == len(sizes):
                sizes.append(0)
            sizes[place] = max(sizes[place], int(size))
            places[name] = place
            if number := re.search(r"parameter (\d+)", head):
                parameters[int(number[1])] = place
            if "output shape is" in head:
                results.append(place)
    if len(set(results)) != 1:
        raise PtxError("program: expected one result")
    ordered = tuple(parameters[i] for i in sorted(parameters))
    return tuple(sizes), places, ordered, results[0]


# " value: <10 input_reduce_fusion @0> (size=1000,offset=0): f32[250]{0}"
_VALUE = re.compile(r" value: <\d+ (\S+) @\d+> \(size=(\d+),offset=(\d+)\)")
_INSTRUCTION = re.compile(r"\s+(?:ROOT )?%?(\S+) = \S+ ([\w-]+)\((.*?)\)(?:,|$)")


def _kernel_calls(hlo: str) -> Iterator[tuple[str, list[str]]]:
    """Each instruction of the entry that computes: its name and its operands."""
    entry = hlo[hlo.index("\nENTRY ") :]
    alias: dict[str, str] = {}
    for line in entry.splitlines()[2:]:
        found = _INSTRUCTION.match(line)
        if found is None:
            continue
        name, kind, operands = found.groups()
        names = [re.sub(r".*%", "", x).strip() for x in operands.split(",")]
        names = [alias.get(x, x) for x in names]
        if kind == "bitcast":
            alias[name] = names[0]
        elif kind == "fusion":
            yield name, names
