"""Finds which of the differences between two programs are faults, and their causes.

A value that differs is a fault only if something computed from it differs too, up to a
result. It is not a fault if two paired equations compute different things (permuted
weights, another formula), or if noise flips a decision without further effect.
"""

from collections.abc import Callable, Collection, Sequence
from typing import NamedTuple

import numpy as np

from prednet_jax.noise.questions.alignment import INPUT_PRIMITIVES, Pairs
from prednet_jax.noise.questions.recording import Recorded
from prednet_jax.noise.questions.tables import bracketed


class Difference(NamedTuple):
    """A value that differs, by path, primitive and line as in a `Recorded`.

    Attributes:
        difference: relative to the recorded value; infinite if numbers are NaN,
            infinite or above 1e18 in other numbers, or if the shapes differ.
        expected: the same for noise, RMS over the draws.
        step: the step of each loop around, outermost first, of that difference.
    """

    path: str
    primitive: str
    source: str
    difference: float
    expected: float
    step: tuple[int, ...] = ()
    note: str = ""

    def __str__(self) -> str:
        step = f" at step {', '.join(map(str, self.step))}" if self.step else ""
        note = f"  ({self.note})" if self.note else ""
        numbers = f"{self.difference:>9.2g}  {self.expected:>9.2g}"
        return f"{numbers}  {self.path}{step}{bracketed(self.source)}{note}"


class Found(NamedTuple):
    """A difference, its place in the order of execution and its pair of values."""

    order: tuple[int, ...]
    entry: Difference
    pair: tuple[int, int]


def split_by_downstream_agreement(
    here: Sequence[Recorded],
    beyond: Sequence[Found],
    agreeing: Collection[int],
    may_differ: Callable[[tuple[int, int]], bool],
) -> tuple[list[Found], list[Found]]:
    """Splits differences by whether they reach a result, or the end of known values.

    Args:
        here: values of this program.
        beyond: its differences beyond noise.
        agreeing: positions of the values that are the same in both programs.
        may_differ: which pairs may differ without being a fault.
    """
    readers: dict[int, list[int]] = {}
    for j, one in enumerate(here):
        for i in one.operands:
            readers.setdefault(i, []).append(j)
    results = {j for j, one in enumerate(here) if one.primitive == "result"}
    # Nothing depends on a value without readers, or it is not known what does.
    ends = results if results and results <= set(agreeing) else set(range(len(here)))
    alive: set[int] = set()
    # An equation without a counterpart passes on what its readers say.
    for j in reversed(range(len(here))):
        read = alive.intersection(readers[j]) if j in readers else j in ends
        if j not in agreeing and read:
            alive.add(j)
    note = "what is computed of it agrees"
    faults, recovered = [], []
    for found in beyond:
        if found.pair[1] in alive or not may_differ(found.pair):
            faults.append(found)
        else:
            recovered.append(found._replace(entry=found.entry._replace(note=note)))
    return faults, recovered


def with_causes(
    there: Sequence[Recorded],
    here: Sequence[Recorded],
    pairs: Pairs,
    beyond: Sequence[Found],
) -> list[Difference]:
    """Returns the entries, each after the unmatched equation that made it differ."""
    sides = (there, here)
    matched = [{pair[side] for pair in pairs} for side in (0, 1)]

    def roots(find: Callable, pair: tuple[int, int]) -> list[tuple[int, int]]:
        return [
            (side, one)
            for side in (1, 0)
            for one in find(sides[side], matched[side], pair[side])
        ]

    # For values here. The results of a loop differ later than their sources.
    earlier: set[int] = set()
    functions = {one.source.partition(" in ")[2] for one in here}
    listed: set[tuple[int, int]] = set()
    entries: list[Difference] = []
    for _, entry, pair in beyond:
        causes: list[tuple[int, int]] = []
        if not earlier.intersection(here[pair[1]].operands):
            causes = roots(_first_unmatched_ancestor, pair)
        if not causes and not entries:
            # What a loop reads from outside is not known: it may have been these.
            causes = roots(_last_unused_unmatched, pair)
        for side, one in causes:
            value = sides[side][one]
            known = side or value.source.partition(" in ")[2] in functions
            if (side, one) in listed or not value.source or not known:
                continue
            listed.add((side, one))
            where = "here" if side else "in the recorded program"
            note = f"only {where}; it has the difference of {entry.path}"
            numbers = entry.difference, entry.expected, entry.step
            cause = value.path, value.primitive, value.source
            entries.append(Difference(*cause, *numbers, note))
        entries.append(entry)
        earlier.add(pair[1])
    return entries


def first_execution(
    value: Recorded,
    pair: tuple[int, int],
    far: np.ndarray,
    expected: np.ndarray,
    over: np.ndarray,
    note: str,
) -> Found:
    """Returns the difference of the first of the executions that are `over`."""
    orders = [
        (*(x for at in zip(value.starts, step, strict=True) for x in at), pair[1])
        for step in value.steps.tolist()
    ]
    when = min(np.flatnonzero(over), key=orders.__getitem__)
    step = tuple(value.steps[when].tolist())
    numbers = float(far[when]), float(expected[when])
    entry = Difference(value.path, value.primitive, value.source, *numbers, step, note)
    return Found(orders[when], entry, pair)


def _first_unmatched_ancestor(
    values: Sequence[Recorded], matched: set[int], start: int
) -> list[int]:
    """Returns the first equation without a counterpart that a value was made from."""
    seen: set[int] = set()
    todo = list(values[start].operands)
    while todo:
        i = todo.pop()
        if i not in matched and i not in seen:
            seen.add(i)
            todo += values[i].operands
    return [min(seen)] if seen else []


def _last_unused_unmatched(
    values: Sequence[Recorded], matched: set[int], stop: int
) -> list[int]:
    """Returns the last equation before `stop` with neither counterpart nor reader."""
    read = {i for one in values for i in one.operands}
    free = [i for i in range(stop) if i not in matched and i not in read]
    return [i for i in free[-1:] if values[i].primitive not in INPUT_PRIMITIVES]
