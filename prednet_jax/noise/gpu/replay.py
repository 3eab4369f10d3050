"""Reads the order in which a GPU's kernels add, as a schedule.

docs/noise/gpu_order.md explains the method: the interpreter of `ptx` runs a compiled
sum (`Program`) with a tag on each number. A `Schedule` is the tree of the additions in
few steps, the same for all outputs:

    columns = terms, and two constants, -0.0 and 0.0
    for each round, int [steps, chains]:
        columns = columns[round[0]] + columns[round[1]] + ... (from left to right)

A round joins the longest chains whose links are columns: the loop of a thread is one
round, each level of a tree of shuffles another. Short chains are filled up with -0.0,
which changes no number when added. The schedule is checked on random terms of several
magnitudes: all outputs must have the bits that the kernel wrote.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

import jax
import numpy as np
from jax import lax
from jax import numpy as jnp

from prednet_jax.noise.gpu import hlo, ptx
from prednet_jax.noise.gpu.compilation import Compiled
from prednet_jax.noise.gpu.ptx import Array, PtxError


class Program(NamedTuple):
    """A compiled program: launches over numbered variables.

    `sizes` are the variables' sizes in bytes; `parameters` and `result` are variables
    with types.
    """

    launches: tuple[ptx.InterpreterLaunch, ...]
    sizes: tuple[int, ...]
    parameters: tuple[tuple[int, np.dtype], ...]
    result: tuple[int, np.dtype]

    def run(self, memory: ptx.Memory, combine: ptx.Combine | None = None) -> Array:
        """Returns the result, flat, computed from the arguments in a memory."""
        for launch in self.launches:
            ptx.run(launch, memory, combine)
        return memory.view(*self.result)

    def memory(self, arguments: Sequence[Array], *, tagged: bool = False) -> ptx.Memory:
        """Returns memory that holds the arguments."""
        memory = ptx.Memory(self.sizes, tagged=tagged)
        for parameter, value in zip(self.parameters, arguments, strict=True):
            memory.view(*parameter)[:] = np.ravel(value)
        return memory


def assemble(compiled: Compiled) -> Program:
    """Returns a compiled program in a form that can be run.

    A PtxError is raised if it has several results, or does more than launch kernels
    that XLA wrote.
    """
    kernels: dict[str, ptx.Kernel] = {}
    for text in dict.fromkeys(compiled.ptx.values()):
        kernels |= ptx.parse(text)
    *_, entry = hlo.read(compiled.hlo).computations.values()
    # The variable of each value, with its type.
    variables: dict[str, tuple[int, np.dtype]] = {}
    sizes: list[int] = []
    parameters, launches = {}, []
    for each in entry:
        if each.opcode == "bitcast":
            variables[each.name] = variables[each.operands[0]]
            continue
        ((kind, size), *more) = each.arrays
        if more or kind not in _FLOATS:
            raise PtxError("program: expected one result, and floats alone")
        variables[each.name] = len(sizes), _FLOATS[kind]
        sizes.append(size)
        if each.opcode == "parameter":
            parameters[int(each.operands[0])] = variables[each.name]
    instructions = {each.name: each for each in entry if each.opcode == "fusion"}
    for kind, name, kernel, grid, threads in compiled.launches:
        if kernel not in kernels or name not in instructions:
            raise PtxError(
                f"program: {kind} {name!r}: expected kernels of XLA's own alone"
            )
        arguments = [variables[x][0] for x in (*instructions[name].operands, name)]
        launches.append(
            ptx.InterpreterLaunch(kernels[kernel], grid, threads, tuple(arguments))
        )
    ordered = tuple(parameters[i] for i in sorted(parameters))
    return Program(tuple(launches), tuple(sizes), ordered, variables[entry[-1].name])


# Types of terms, by XLA's names.
_FLOATS: dict[str, np.dtype] = {
    "f32": jnp.dtype("float32"),
    "f16": jnp.dtype("float16"),
    "bf16": jnp.dtype("bfloat16"),
}
# Columns that every round has in addition to its chains.
MINUS_ZERO, ZERO = -1, -2


class Schedule(NamedTuple):
    """The order of additions: int32 [steps, chains] each, the last with one chain.

    The numbers are columns of the round before, MINUS_ZERO or ZERO.
    """

    rounds: tuple[Array, ...]

    def sum(self, terms: jax.Array) -> jax.Array:
        """Returns the sums of float32 terms [terms, outputs]."""
        zeros = jnp.broadcast_to(
            np.array([[0.0], [-0.0]], np.float32), (2, terms.shape[1])
        )
        columns = terms
        for table in self.rounds:
            columns = lax.concatenate([columns, zeros], 0)
            table = np.where(table < 0, table + len(columns), table)
            columns = _added(columns, table)
        return columns[0]


def _added(columns: jax.Array, table: Array) -> jax.Array:
    """Adds columns[table[0]] + columns[table[1]] + ..., from left to right."""

    def column(indices: jax.Array) -> jax.Array:
        return columns.at[indices].get(mode="promise_in_bounds")

    def step(total: jax.Array, indices: jax.Array) -> tuple[jax.Array, None]:
        return total + column(indices), None

    unroll = min(len(table), 8)
    return lax.scan(step, column(table[0]), jnp.asarray(table[1:]), unroll=unroll)[0]


class _Sums:
    """Tags of sums: terms from 1, then 0.0, then additions in order of execution.

    Attributes:
        zero: the tag of 0.0.
        count: the number of tags.
        values: float32 [`count` or more] by tag; NaN if not seen yet.
        additions: for each executed addition, the first tag of its results, which are
            consecutive, and the tags of its operands, int [threads].
    """

    def __init__(self, terms: int) -> None:
        self.zero = terms + 1
        self.count = terms + 2
        self.values = np.full(2 * self.count, np.nan, np.float32)
        self.values[self.zero] = 0
        self.additions: list[tuple[int, Array, Array]] = []

    def combine(
        self, opcode: str, tags: Sequence[Array], values: Sequence[Array]
    ) -> Array:
        """Combines tags; see `ptx.Combine`.

        An addition of two different tags is a step of the sum, and so is the addition
        of a constant zero. All other operations must combine only numbers of one tag: a
        conversion, or arithmetic on one term before it is added.
        """
        if opcode.startswith("setp"):
            return np.zeros_like(tags[0])
        if opcode.startswith("selp"):
            return np.where(values[2], tags[0], tags[1])
        either = np.max(tags, axis=0)
        if opcode != ptx.ADDITION:
            joined = np.any([(tag != 0) & (tag != either) for tag in tags], axis=0)
            if joined.any():
                raise PtxError(f"sum: {opcode} joins two terms, and is no addition")
            return either
        real = tags[0] != tags[1]
        left, right = (self._operand(tags[i][real], values[i][real]) for i in (0, 1))
        self.additions.append((self.count, left, right))
        result = np.where(real, 0, tags[0])
        result[real] = self._new(values[0][real] + values[1][real])
        return result

    def _operand(self, tag: Array, value: Array) -> Array:
        """Returns the tags of numbers that are added."""
        if ((tag == 0) & (value.view(np.uint32) != 0)).any():
            raise PtxError("sum: an addition of a term and a number that is none")
        first = (tag != 0) & np.isnan(self.values[tag])
        self.values[tag[first]] = value[first]
        return np.where(tag == 0, self.zero, tag)

    def _new(self, values: Array) -> Array:
        first, self.count = self.count, self.count + values.size
        if self.count > self.values.size:
            more = np.full(2 * self.count - self.values.size, np.nan, np.float32)
            self.values = np.concatenate([self.values, more])
        self.values[first : self.count] = values
        return np.arange(first, self.count)

    def rounds(self, root: int) -> tuple[Array, list[Array]]:
        """Returns a sum's term tags, and the rounds that add the terms in order."""
        left, right = (np.zeros(self.count, np.int64) for _ in range(2))
        needed, summed = (np.zeros(self.count, bool) for _ in range(2))
        needed[root] = True
        batches: list[Array] = []
        for first, a, b in reversed(self.additions):
            summed[first : first + a.size] = True
            batch = first + np.flatnonzero(needed[first : first + a.size])
            left[batch], right[batch] = a[batch - first], b[batch - first]
            needed[left[batch]] = needed[right[batch]] = True
            if batch.size:
                batches.insert(0, batch)
        summed[self.zero] = True
        terms = kept = np.flatnonzero(needed & ~summed)
        # With one term there is nothing to add.
        rounds = [] if batches else [np.zeros((1, 1), np.int32)]
        while batches:
            # For each tag, its column in a round.
            column = np.full(self.count, _NONE, np.int64)
            column[kept], column[self.zero] = np.arange(kept.size), ZERO
            kept, table, batches = _chains(batches, left, right, column)
            rounds.append(table.astype(np.int32))
        return terms, rounds


def read(program: Program, shape: Sequence[int], axes: Sequence[int]) -> Schedule:
    """Returns the order in which a compiled sum over axes adds, in float32.

    Its parameters are arrays of that shape; the sum may follow elementwise arithmetic.
    A PtxError is raised unless the program is a sum whose outputs all have one tree.
    """
    size = math.prod(shape)
    # For each element, its output and its index among that output's terms.
    owner, position = (
        np.broadcast_to(np.arange(math.prod(sizes)).reshape(sizes), shape).reshape(-1)
        for sizes in (
            [1 if d in axes else n for d, n in enumerate(shape)],
            [n if d in axes else 1 for d, n in enumerate(shape)],
        )
    )
    # Terms of several magnitudes, so that each order gives different bits.
    generator = np.random.default_rng(29)
    count = len(program.parameters), size
    drawn = generator.normal(size=count) * 2.0 ** generator.integers(-8, 9, count)
    tagged = _Sums(size)
    memory = program.memory([*drawn], tagged=True)
    for parameter in program.parameters:
        memory.tags_of(*parameter)[:] = np.arange(1, size + 1)
    result = program.run(memory, tagged.combine)
    roots = memory.tags_of(*program.result)
    terms, (first, *rest) = tagged.rounds(int(roots[0]))
    positions = position[terms - 1]
    if not np.array_equal(np.sort(positions), np.arange(position.max() + 1)):
        raise PtxError("sum: an output that lacks some of its terms")
    schedule = Schedule((np.where(first < 0, first, positions[first]), *rest))
    ordered = tagged.values[1 + np.lexsort((owner, position))]
    # A number, also where a function is being traced around.
    with jax.ensure_compile_time_eval():
        sums = schedule.sum(jnp.asarray(ordered.reshape(positions.size, -1)))
        recomputed = np.asarray(sums.astype(result.dtype))
    if recomputed.tobytes() != result.tobytes():
        raise PtxError("sum: the schedule does not give the kernel's bits")
    return schedule


_NONE = -9


def _chains(
    batches: Sequence[Array], left: Array, right: Array, column: Array
) -> tuple[Array, Array, list[Array]]:
    """Returns one round: the longest chains of columns.

    In `batches`, the additions that remain, operands come first; the other arguments
    are indexed by tag. It returns the tags of the columns that the round makes, its
    table [steps, chains], and the additions that remain.
    """
    is_chain = np.zeros(column.size, bool)
    before, link = np.zeros_like(column), np.zeros_like(column)
    for batch in batches:
        a, b = left[batch], right[batch]
        other_way = is_chain[b] & (column[a] != _NONE)
        grow = other_way | ((column[b] != _NONE) & (is_chain[a] | (column[a] != _NONE)))
        before[batch] = np.where(other_way, b, a)
        link[batch] = np.where(other_way, a, b)
        is_chain[batch[grow]] = True
    later = [free for batch in batches if (free := batch[~is_chain[batch]]).size]
    chains = np.flatnonzero(is_chain)
    inside = np.zeros_like(is_chain)
    inside[before[chains]] = True
    operands = [side[batch] for batch in later for side in (left, right)]
    kept = np.unique(np.concatenate([np.zeros(0, np.int64), *operands]))
    heads = np.concatenate([chains[~inside[chains]], kept[column[kept] >= 0]])
    steps, current = [], heads
    while is_chain[current].any():
        on = is_chain[current]
        steps.append(np.where(on, column[link[current]], _NONE))
        current = np.where(on, before[current], current)
    steps.append(column[current])
    # Backwards from the last addition: turned round, each chain begins at the top.
    table = np.full((len(steps), heads.size), MINUS_ZERO)
    length = np.zeros(heads.size, np.int64)
    for row in reversed(steps):
        active = np.flatnonzero(row != _NONE)
        table[length[active], active] = row[active]
        length[active] += 1
    return heads, table, later
