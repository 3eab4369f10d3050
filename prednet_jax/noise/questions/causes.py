"""Adds to differences the equations of one program alone that made them differ."""

import itertools
from collections.abc import Callable, Sequence

from prednet_jax.noise.questions.alignment import INPUT_PRIMITIVES, Pairs, Values
from prednet_jax.noise.questions.comparison import AGREES, Difference, Found


def with_causes(
    there: Values, here: Values, pairs: Pairs, beyond: Sequence[Found]
) -> list[Difference]:
    """Returns the entries, each after the unmatched equation that made it differ."""
    sides = (there, here)
    matched = [{pair[side] for pair in pairs} for side in (0, 1)]

    def roots(find: Callable, pair: tuple[int, int]) -> list[tuple[int, int]]:
        return [
            (side, index)
            for side in (1, 0)
            for index in find(sides[side], matched[side], pair[side])
        ]

    # For values here. The results of a loop differ later than their sources.
    earlier: set[int] = set()
    listed: set[tuple[int, int]] = set()
    entries: list[Difference] = []
    for _, entry, pair in beyond:
        causes: list[tuple[int, int]] = []
        if not earlier.intersection(here[pair[1]].operands):
            causes = roots(_first_unmatched_ancestor, pair)
            if not causes and any(entry.step):
                # An earlier step of the loop made what this one started from.
                causes = roots(_first_unmatched_in_loops, pair)
        if not causes and not entries:
            # What a loop reads from outside is not known: it may have been these.
            causes = roots(_last_unused_unmatched, pair)
        for side, index in causes:
            value = sides[side][index]
            if (side, index) in listed or not value.source:
                continue
            listed.add((side, index))
            where = "here" if side else "in the recorded program"
            note = f"only {where}; it has the difference of {entry.path}"
            note += f", and {AGREES}" * (entry.note == AGREES)
            numbers = entry.difference, entry.expected, entry.step
            cause = value.path, value.primitive, value.source
            entries.append(Difference(*cause, *numbers, note))
        entries.append(entry)
        earlier.add(pair[1])
    return entries


def _first_unmatched_ancestor(
    values: Values, matched: set[int], start: int
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


def _first_unmatched_in_loops(
    values: Values, matched: set[int], start: int
) -> list[int]:
    """Returns the first such equation that a loop around a value passes on."""
    path = values[start].path
    ancestors = [
        _first_unmatched_ancestor(values, matched, i)
        for i, value in enumerate(values)
        if value.primitive in ("scan", "while")
        and path.startswith((f"{(loop := value.path.rpartition('[')[0])}/", f"{loop}["))
    ]
    return sorted(itertools.chain.from_iterable(ancestors))[:1]


def _last_unused_unmatched(values: Values, matched: set[int], stop: int) -> list[int]:
    """Returns the last equation before `stop` with neither counterpart nor reader."""
    read = {i for value in values for i in value.operands}
    free = [i for i in range(stop) if i not in matched and i not in read]
    free = [i for i in free if not values[i].unread]
    return [i for i in free[-1:] if values[i].primitive not in INPUT_PRIMITIVES]
