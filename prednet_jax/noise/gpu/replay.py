"""The order in which a GPU's kernels add, read from them, as a schedule.

A compiled sum (`Program`) is run by the interpreter of `ptx` with a tag on each number:
which term it is, or which earlier additions made it. So the tree of each output falls
out of the kernel's own instructions, whatever its vectors, strides, shuffles and loops
are; no pattern is assumed. A `Schedule` is that tree in few steps, the same for all
outputs:

    columns = terms, and two constants, -0.0 and 0.0
    for each round, int [steps, chains]:
        columns = columns[round[0]] + columns[round[1]] + ... (from left to right)

A round joins the longest chains whose links are columns: the loop of a thread is one
round, each level of a tree of shuffles another. Short chains are filled up with -0.0,
which changes no number when added. That all outputs have one tree is checked by hashes,
and the schedule on random terms against the bits that the kernel wrote.
"""

import math
import re
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from prednet_jax.noise.gpu import hlo, ptx
from prednet_jax.noise.gpu.compilation import Compiled
from prednet_jax.noise.gpu.ptx import Array, PtxError


class Program(NamedTuple):
    """Launches over numbered variables, whose bytes are `sizes`: a compiled program."""

    launches: tuple[ptx.Launch, ...]
    sizes: tuple[int, ...]
    parameters: tuple[int, ...]
    result: int

    def run(self, memory: ptx.Memory, combine: ptx.Combine | None = None) -> Array:
        """The float32 result, flat, from the arguments in a memory."""
        for launch in self.launches:
            ptx.run(launch, memory, combine)
        return memory.view(self.result, np.float32)

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
        PtxError: it has several results, or does more than launch kernels of XLA's own.
    """
    kernels: dict[str, ptx.Kernel] = {}
    for text in dict.fromkeys(compiled.ptx.values()):
        kernels |= ptx.parse(text)
    # Each slice of an allocation is a variable, which values may share.
    sizes: dict[tuple[str, str], int] = {}
    places: dict[str, int] = {}
    parameters: dict[int, int] = {}
    results: set[int] = set()
    for part in re.split(r"^allocation ", compiled.buffers, flags=re.MULTILINE)[1:]:
        head, *lines = part.splitlines()
        number = re.search(r"parameter (\d+)", head)
        for value in map(_VALUE.match, lines):
            if value is None:
                break
            name, size, offset = value.groups()
            here = head, offset
            sizes[here] = max(sizes.get(here, 0), int(size))
            places[name] = place = list(sizes).index(here)
            if number:
                parameters[int(number[1])] = place
            if "output shape is" in head:
                results.add(place)
    if len(results) != 1:
        raise PtxError("program: expected one result")
    *_, entry = hlo.read(compiled.hlo).computations.values()
    fusions = {}
    for each in entry:
        if each.opcode == "bitcast":
            places.setdefault(each.name, places[each.operands[0]])
        elif each.opcode == "fusion":
            fusions[each.name] = (*each.operands, each.name)
    launches = []
    for kind, instruction, kernel, grid, threads in compiled.launches:
        if kernel not in kernels or instruction not in fusions:
            raise PtxError(
                f"program: {kind} {instruction!r}: expected kernels of XLA's own alone"
            )
        arguments = tuple(places[name] for name in fusions[instruction])
        launches.append(ptx.Launch(kernels[kernel], grid, threads, arguments))
    ordered = tuple(parameters[i] for i in sorted(parameters))
    return Program(tuple(launches), tuple(sizes.values()), ordered, results.pop())


# " value: <10 input_reduce_fusion @0> (size=1000,offset=0): f32[250]{0}"
_VALUE = re.compile(r" value: <\d+ (\S+) @\d+> \(size=(\d+),offset=(\d+)\)")

# Columns that every round has beside its chains.
MINUS_ZERO, ZERO = -1, -2


class Schedule(NamedTuple):
    """How terms are added: int32 [steps, chains] each, the last with one chain.

    They are columns of the round before, MINUS_ZERO or ZERO.
    """

    rounds: tuple[Array, ...]

    def sum(self, terms: Array) -> Array:
        """The sums of float32 terms [terms, outputs]."""
        columns = terms
        zeros = np.array([[0.0], [-0.0]], np.float32).repeat(terms.shape[1], 1)
        for indices in self.rounds:
            columns = np.concatenate([columns, zeros])
            total = columns[indices[0]]
            for step in indices[1:]:
                total = total + columns[step]
            columns = total
        return columns[0]


class _Sums:
    """Tags of sums: terms from 1, then 0.0, then additions as they are made.

    Attributes:
        terms: how many, over all sums.
        additions: for each addition that was executed, the tags of its two operands,
            int32 [threads]; the tags of its results follow each other.
        count: of tags.
    """

    def __init__(self, terms: int) -> None:
        self.zero = terms + 1
        self.additions: list[tuple[Array, Array]] = []
        self.count = terms + 2

    def combine(
        self, opcode: str, tags: Sequence[Array], values: Sequence[Array]
    ) -> Array:
        """See `ptx.Combine`.

        An addition of two different tags is a step of the sum, and so is that of a
        constant zero. Everything else may only bring together numbers of one tag: a
        conversion of one term before it is added.
        """
        if opcode.startswith("setp"):
            return np.zeros_like(tags[0])
        if opcode.startswith("selp"):
            return np.where(values[2], tags[0], tags[1])
        either = np.max(tags, axis=0)
        if opcode != "add.rn.f32":
            if any(np.any((tag != 0) & (tag != either)) for tag in tags):
                raise PtxError(f"sum: {opcode} joins two terms, and is no addition")
            return either
        for tag, value in zip(tags, values, strict=True):
            bits = value.view(f"u{value.dtype.itemsize}")
            if np.any((tag == 0) & (bits != 0) & (either != 0)):
                raise PtxError(f"sum: {opcode} of a term and a number that is none")
        left, right = tags
        real = left != right
        self.additions.append(
            tuple(np.where(tag == 0, self.zero, tag)[real] for tag in tags)
        )
        result = np.where(real, 0, left)
        result[real] = np.arange(self.count, self.count + real.sum())
        self.count += int(real.sum())
        return result


def read(program: Program, shape: Sequence[int], axes: Sequence[int]) -> Schedule:
    """The order in which a compiled sum of a float32 array over axes adds.

    Raises:
        PtxError: the program is no sum whose outputs all have one tree.
    """
    size = math.prod(shape)
    # For each element, its output and its place among that output's terms.
    owner, place = (
        np.broadcast_to(np.arange(math.prod(sizes)).reshape(sizes), shape).reshape(-1)
        for sizes in (
            [1 if d in axes else n for d, n in enumerate(shape)],
            [n if d in axes else 1 for d, n in enumerate(shape)],
        )
    )
    # Of several magnitudes, so that each order has bits of its own.
    generator = np.random.default_rng(29)
    terms = generator.normal(size=size) * 2.0 ** generator.integers(-8, 9, size)
    terms = terms.astype(np.float32)
    sums = _Sums(size)
    memory = program.memory([terms], tagged=True)
    memory.tags_of(program.parameters[0])[:] = np.arange(1, size + 1)
    result = program.run(memory, sums.combine)
    roots = memory.tags_of(program.result)
    _check_trees(sums, roots, place)
    schedule = Schedule(_rounds(sums, int(roots[0]), place))
    by_output = terms[np.lexsort((owner, place))].reshape(place.max() + 1, -1)
    if schedule.sum(by_output).tobytes() != result.tobytes():
        raise PtxError("sum: the schedule does not give the kernel's bits")
    return schedule


def _mix(x: Array) -> Array:
    """A hash of 64 bits (S. Vigna's splitmix64)."""
    x = x * np.uint64(0x9E3779B97F4A7C15) + np.uint64(0xD1B54A32D192ED03)
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


def _check_trees(sums: _Sums, roots: Array, place: Array) -> None:
    """Refuses outputs with other trees, by hashes of the places of their terms."""
    hashes = np.zeros(sums.count, np.uint64)
    hashes[1 : sums.zero] = _mix(place.astype(np.uint64))
    hashes[sums.zero] = np.uint64(0x123456789ABCDEF)
    first = sums.zero + 1
    for left, right in sums.additions:
        # Addition commutes.
        hashes[first : first + left.size] = _mix(hashes[left] + hashes[right])
        first += left.size
    if np.any(hashes[roots] != hashes[roots[0]]):
        raise PtxError("sum: its outputs are added in different orders")


def _rounds(sums: _Sums, root: int, place: Array) -> tuple[Array, ...]:
    """The rounds of a tree; see the module."""
    left, right = (np.zeros(sums.count, np.int64) for _ in range(2))
    needed = np.zeros(sums.count, bool)
    needed[root] = True
    first = sums.count
    batches: list[Array] = []
    for a, b in reversed(sums.additions):
        first -= a.size
        here = first + np.flatnonzero(needed[first : first + a.size])
        left[here], right[here] = a[here - first], b[here - first]
        needed[left[here]] = needed[right[here]] = True
        if here.size:
            batches.insert(0, here)
    terms = np.flatnonzero(needed[: sums.zero])
    numbers = place[terms - 1]
    if not np.array_equal(np.sort(numbers), np.arange(place.max() + 1)):
        raise PtxError("sum: an output that lacks some of its terms")
    rounds: list[Array] = []
    while True:
        # For each tag its column in a round.
        column = np.full(sums.count, _NONE, np.int64)
        column[terms], column[sums.zero] = numbers, ZERO
        if not batches:
            # Of one term there is nothing to add.
            return tuple(rounds or [np.array([[column[root]]], np.int32)])
        terms, table, batches = _chains(batches, left, right, column)
        rounds.append(table.astype(np.int32))
        numbers = np.arange(terms.size)


_NONE = -9


def _chains(
    batches: Sequence[Array], left: Array, right: Array, column: Array
) -> tuple[Array, Array, list[Array]]:
    """One round: the longest chains of columns.

    Of `batches`, the additions still to be made, operands come first; all else is by
    tag. Returns the tags of the columns that the round makes, its table
    [steps, chains], and the additions that are left.
    """
    is_chain = np.zeros(column.size, bool)
    before, link = np.zeros_like(column), np.zeros_like(column)
    for batch in batches:
        a, b = left[batch], right[batch]
        other_way = is_chain[b] & (column[a] != _NONE)
        here = other_way | ((column[b] != _NONE) & (is_chain[a] | (column[a] != _NONE)))
        before[batch] = np.where(other_way, b, a)
        link[batch] = np.where(other_way, a, b)
        is_chain[batch[here]] = True
    rest = [some for batch in batches if (some := batch[~is_chain[batch]]).size]
    chains = np.flatnonzero(is_chain)
    inside = np.zeros_like(is_chain)
    inside[before[chains]] = True
    operands = [side[batch] for batch in rest for side in (left, right)]
    kept = np.unique(np.concatenate([np.zeros(0, np.int64), *operands]))
    heads = np.concatenate([chains[~inside[chains]], kept[column[kept] >= 0]])
    steps, current = [], heads
    while is_chain[current].any():
        on = is_chain[current]
        steps.append(np.where(on, column[link[current]], _NONE))
        current = np.where(on, before[current], current)
    steps.append(column[current])
    # From the last addition back to the first column: turned round, each chain begins
    # at the top.
    table = np.full((len(steps), heads.size), MINUS_ZERO)
    length = np.zeros(heads.size, np.int64)
    for row in reversed(steps):
        here = np.flatnonzero(row != _NONE)
        table[length[here], here] = row[here]
        length[here] += 1
    return heads, table, rest
