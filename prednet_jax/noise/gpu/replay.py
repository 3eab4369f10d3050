"""The order in which a GPU's kernel adds, read from the kernel, as a schedule.

The interpreter of `ptx` runs a compiled sum with a tag on each number: which term it
is, or which earlier additions made it. So the tree of each output falls out of the
kernel's own instructions, whatever its vectors, strides, shuffles and loops are; no
pattern is assumed. A `Schedule` is that tree in few steps, the same for all outputs:

    columns = terms, and two constants, -0.0 and 0.0
    for each round, int [steps, chains]:
        columns = columns[round[0]] + columns[round[1]] + ... (from left to right)

A round joins the longest chains whose links are columns: the loop of a thread is one
round, each level of a tree of shuffles another. Short chains are filled up with -0.0,
which changes no number when added. That the schedule is the tree is checked by hashes
of both, and on random terms against the bits that the kernel wrote.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from prednet_jax.noise.gpu.programs import Program
from prednet_jax.noise.gpu.ptx import Array, PtxError

# Columns that every round has beside its chains.
MINUS_ZERO, ZERO = -1, -2


@dataclass(frozen=True, eq=False)
class Schedule:
    """How terms are added.

    Attributes:
        rounds: int32 [steps, chains] each: columns of the round before, MINUS_ZERO or
            ZERO. The last has one chain.
    """

    rounds: tuple[Array, ...]

    def fold(
        self, terms: Array, add: Callable[[Array, Array], Array], zeros: Array
    ) -> Array:
        """Any associative or other operation in this order.

        Args:
            terms: [terms, ...].
            add: of two arrays.
            zeros: [2, ...]: 0.0 and -0.0.
        """
        columns = terms
        for indices in self.rounds:
            columns = np.concatenate([columns, zeros])
            total = columns[indices[0]]
            for step in indices[1:]:
                # A number, not -0.0, whose addition `add` need not understand.
                more = (step != MINUS_ZERO).reshape(-1, *[1] * (total.ndim - 1))
                total = np.where(more, add(total, columns[step]), total)
            columns = total
        return columns[0]

    def sum(self, terms: Array) -> Array:
        """The sums of terms [terms, outputs], added in float32, in the terms' type."""
        zeros = np.zeros((2, *terms.shape[1:]), np.float32)
        zeros[1] = -0.0
        wide = terms.astype(np.float32)
        return self.fold(wide, np.add, zeros).astype(terms.dtype)


@dataclass(eq=False)
class SumTags:
    """Tags of sums: terms from 1, then 0.0, then additions as they are made.

    Attributes:
        terms: how many.
        additions: for each addition that was executed, the tags of its two operands,
            int32 [threads]; the tags of its results follow each other.
    """

    terms: int
    additions: list[tuple[Array, Array]]
    count: int

    @classmethod
    def of(cls, terms: int) -> SumTags:
        """Of a sum, or several, of so many terms in all."""
        return cls(terms, [], terms + 2)

    def combine(
        self, opcode: str, tags: Sequence[Array | None], values: Sequence[Array]
    ) -> Array:
        """See `ptx.Tags`.

        An addition of two different tags is a step of the sum, and so is that of a
        constant zero. Everything else may only bring together numbers of one tag: a
        conversion, or arithmetic on one term before it is added.
        """
        shape = values[0].shape
        if opcode.startswith("setp"):
            return np.zeros(shape, np.int32)
        full = [np.zeros(shape, np.int32) if t is None else t for t in tags]
        if opcode.startswith("selp"):
            return np.where(values[2], full[0], full[1])
        if opcode == "add.rn.f32":
            return self._added(opcode, full, values)
        return _one_tag(opcode, full)

    def _added(
        self, opcode: str, tags: Sequence[Array], values: Sequence[Array]
    ) -> Array:
        (a, b), (x, y) = tags, values
        for tag, value in ((a, x), (b, y)):
            bits = value.view(f"uint{8 * value.dtype.itemsize}")
            if np.any((tag == 0) & (bits != 0) & ((a != 0) | (b != 0))):
                raise PtxError(f"sum: {opcode} of a term and a number that is none")
        real = ((a != 0) | (b != 0)) & (a != b)
        zero = self.terms + 1
        left = np.where(a == 0, zero, a)[real]
        right = np.where(b == 0, zero, b)[real]
        result = np.where(a == b, a, 0)
        result[real] = np.arange(self.count, self.count + left.size)
        self.additions.append((left, right))
        self.count += left.size
        return result


def _one_tag(opcode: str, tags: Sequence[Array]) -> Array:
    found = np.max(tags, axis=0)
    if any(np.any((tag != 0) & (tag != found)) for tag in tags):
        raise PtxError(f"sum: {opcode} joins two terms, and is no addition")
    return found


def read(
    program: Program,
    shape: Sequence[int],
    dtype: Any,
    axes: Sequence[int],
    term: Callable[..., Array] = lambda x: x,
) -> Schedule:
    """The order in which a compiled sum adds.

    Args:
        program: sums over the axes of what `term` makes of its parameters.
        shape: of each parameter.
        dtype: of each parameter. Sums are added in float32.
        axes: summed over.
        term: elementwise, of the parameters, in the type of the result.

    Raises:
        PtxError: the program is no sum whose outputs all have one tree.
    """
    dtype = np.dtype(dtype)
    size = math.prod(shape)
    kept = [d for d in range(len(shape)) if d not in axes]
    # For each element, its output and its place among that output's terms.
    owner = _linear(shape, kept)
    place = _linear(shape, sorted(axes))
    outputs = math.prod(shape[d] for d in kept)
    generator = np.random.default_rng(29)
    values = [_random(generator, size, dtype) for _ in program.parameters]
    terms = term(*values)
    tags = SumTags.of(size)
    memory = program.memory(values, tagged=True)
    for parameter in program.parameters:
        memory.tags_of(parameter, dtype.itemsize)[:] = np.arange(1, size + 1)
    result = program.run(memory, terms.dtype, tags)
    roots = memory.tags_of(program.result, terms.dtype.itemsize)
    root, tree = _same_tree(tags, roots, owner, place)
    schedule = Schedule(_rounds(tags, root, place))
    by_output = terms[np.lexsort((owner, place))].reshape(-1, outputs)
    _check(schedule, tree, by_output, result)
    return schedule


def _linear(shape: Sequence[int], axes: Sequence[int]) -> Array:
    """For each element, in order, its number within the given axes."""
    found = np.zeros(shape, np.int64)
    for d in axes:
        position = np.arange(shape[d]).reshape(
            [-1 if i == d else 1 for i in range(len(shape))]
        )
        found = found * shape[d] + position
    return found.reshape(-1)


def _mix(x: Array) -> Array:
    """A hash of 64 bits (S. Vigna's splitmix64)."""
    x = x * np.uint64(0x9E3779B97F4A7C15) + np.uint64(0xD1B54A32D192ED03)
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


def _joined(a: Array, b: Array) -> Array:
    """The hash of a sum of two: addition commutes."""
    return _mix(a + b)


def _same_tree(
    tags: SumTags, roots: Array, owner: Array, place: Array
) -> tuple[int, np.uint64]:
    """The first output's tag and its tree's hash, if all others have the same tree.

    Trees are compared by hashes of the places of their terms.
    """
    if np.any(roots == 0):
        raise PtxError("sum: an output that is no sum of the terms")
    hashes = np.zeros(tags.count, np.uint64)
    owners = np.full(tags.count, -1, np.int64)
    hashes[1 : tags.terms + 1] = _mix(place.astype(np.uint64))
    hashes[tags.terms + 1] = _ZERO_HASH
    owners[1 : tags.terms + 1] = owner
    first = tags.terms + 2
    for left, right in tags.additions:
        here = slice(first, first + left.size)
        hashes[here] = _joined(hashes[left], hashes[right])
        # That of 0.0 is -1; -2 where two outputs meet.
        a, b = owners[left], owners[right]
        owners[here] = np.where((a == b) | (b == -1), a, np.where(a == -1, b, -2))
        first += left.size
    if np.any(hashes[roots] != hashes[roots[0]]):
        raise PtxError("sum: its outputs are added in different orders")
    if not np.array_equal(owners[roots], np.arange(roots.size)):
        raise PtxError("sum: an output with terms of another")
    return int(roots[0]), hashes[roots[0]]


_ZERO_HASH = np.uint64(0x123456789ABCDEF)


def _rounds(tags: SumTags, root: int, place: Array) -> tuple[Array, ...]:
    """The rounds of a tree; see the module."""
    left, right = (np.zeros(tags.count, np.int64) for _ in range(2))
    needed = np.zeros(tags.count, bool)
    needed[root] = True
    first = tags.count
    batches = []
    for a, b in reversed(tags.additions):
        first -= a.size
        here = first + np.flatnonzero(needed[first : first + a.size])
        left[here], right[here] = a[here - first], b[here - first]
        needed[left[here]] = needed[right[here]] = True
        if here.size:
            batches.append(here)
    batches.reverse()
    zero = tags.terms + 1
    terms = np.flatnonzero(needed[:zero])
    if not np.array_equal(np.sort(place[terms - 1]), np.arange(place.max() + 1)):
        raise PtxError("sum: an output that lacks some of its terms")
    column = _columns(tags.count, terms, place[terms - 1], zero)
    rounds = []
    while batches:
        made, table, batches = _chains(batches, left, right, column)
        rounds.append(table.astype(np.int32))
        column = _columns(tags.count, made, np.arange(made.size), zero)
    # Of one term there is nothing to add.
    return tuple(rounds or [np.array([[column[root]]], np.int32)])


_NONE = -9


def _columns(count: int, tags: Array, numbers: Array, zero: int) -> Array:
    """For each tag its column in a round, or `_NONE`."""
    column = np.full(count, _NONE, np.int64)
    column[tags], column[zero] = numbers, ZERO
    return column


def _chains(
    batches: Sequence[Array], left: Array, right: Array, column: Array
) -> tuple[Array, Array, list[Array]]:
    """One round: the longest chains of columns.

    Args:
        batches: additions still to be made; operands come first.
        left: operand of each addition, by tag.
        right: the other.
        column: by tag.

    Returns:
        Tags of the columns that the round makes, its table [steps, chains], and the
        additions that are left.
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
    backwards = np.array(steps)
    table = np.full(backwards.shape, MINUS_ZERO)
    length = np.zeros(heads.size, np.int64)
    for row in backwards[::-1]:
        here = np.flatnonzero(row != _NONE)
        table[length[here], here] = row[here]
        length[here] += 1
    return heads, table, rest


def _random(generator: np.random.Generator, size: int, dtype: Any) -> Array:
    """Numbers of several magnitudes, so that each order has bits of its own."""
    x = generator.normal(size=size) * 2.0 ** generator.integers(-8, 9, size)
    return x.astype(dtype)


def _check(schedule: Schedule, tree: np.uint64, terms: Array, result: Array) -> None:
    """Whether a schedule is the tree of that hash, and gives the kernel's bits.

    Args:
        schedule: read from the tree.
        tree: its hash.
        terms: [terms, outputs].
        result: [outputs], as the kernel wrote it.
    """
    places = np.arange(len(terms), dtype=np.uint64)
    zeros = np.array([_ZERO_HASH, 0], np.uint64)
    if schedule.fold(_mix(places), _joined, zeros) != tree:
        raise PtxError("sum: the schedule is not the kernel's tree")
    if schedule.sum(terms).tobytes() != result.tobytes():
        raise PtxError("sum: the schedule does not give the kernel's bits")
