"""Finds where two runs first differ: a recording and the same program here.

`alignment` pairs the values, and `distances` measures their distances and the effect of
noise. A value that differs is a fault only if something computed from it differs too,
up to a result. It is not a fault if two paired equations compute different things
(permuted weights, another formula), or if noise flips a decision without further
effect.
"""

import itertools
import math
import operator
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from jax import Array

from prednet_jax.noise import random_bits
from prednet_jax.noise.errors import check_draws, expect
from prednet_jax.noise.questions import alignment, sampling
from prednet_jax.noise.questions.alignment import Pairs, Values
from prednet_jax.noise.questions.distances import (
    Distance,
    Judged,
    NoiseEffect,
    distance,
    effect_of_noise,
    is_discrete,
)
from prednet_jax.noise.questions.elements import STEPS
from prednet_jax.noise.questions.precision import format_notes, rounded_products
from prednet_jax.noise.questions.recording import (
    SAMPLE,
    WHOLE,
    Recorded,
    Recording,
    Watch,
)
from prednet_jax.noise.questions.signs import FREE_SIGNS, MOVED, choices
from prednet_jax.noise.specs import NoiseSpec
from prednet_jax.noise.tables import bracketed
from prednet_jax.noise.watch import execution_order

# Rows of each part of a printed report.
MAX_ROWS = 12
# Further runs, in units of `draws`, where a result leaves open whether it agrees.
_MORE = 3
_STEP = "within a step of its type, but not what is computed of it"
_SUMS = (
    f"values of more than {WHOLE} elements are compared by sums of their elements, and "
    f"by up to {SAMPLE} of them if the recording has these: an error in a few elements "
    "far smaller than the others may not be seen"
)


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


class Differences(tuple[Difference, ...]):
    """The values whose difference is beyond noise, in the order of execution.

    Attributes:
        differing: the other values that differ at all, in order.
        parted: where the programs have equations without a counterpart.
        compared: number of values compared.
        recording: a description of the recording.
        notes: what was not seen, and the format in which this device rounds by default.
    """

    differing: tuple[Difference, ...]
    parted: tuple[alignment.UnmatchedEquations, ...]
    compared: int
    recording: str
    notes: tuple[str, ...] = ()

    def __str__(self) -> str:
        lines = [f"compared {self.compared} values with {self.recording}"]
        for title, entries in (
            ("beyond noise", self),
            ("within noise, but not the same bits", self.differing),
        ):
            lines.append(f"{title}: {len(entries) or 'none'}")
            if entries:
                lines.append(f"{'difference':>11}  {'of noise':>9}")
            lines += [f"  {entry}" for entry in entries[:MAX_ROWS]]
            hidden = len(entries) - MAX_ROWS
            lines += [f"  and {hidden} more"] * (hidden > 0)
        if self.parted:
            lines.append("the programs part:")
            lines += [f"  {unmatched}" for unmatched in self.parted[:MAX_ROWS]]
        return "\n".join([*lines, *self.notes])

    def to_json(self) -> dict[str, Any]:
        """Returns everything that the report holds."""
        return {"beyond": list(self), **vars(self)}


def first_difference(
    fn: Callable, recording: Recording, *, spec: NoiseSpec | None = None, draws: int = 8
) -> Callable[..., Differences]:
    """Compares what `fn` computes here with a recording.

    Args:
        fn: the function that was recorded, or another version of it.
        recording: the result of `record` or of `load_recording`.
        spec: the noise that does not count as a difference. Defaults to
            `specs.default()`.
        draws: number of noisy runs, 2 or more.

    Returns:
        `compare(key, *args, **kwargs)`, which returns the `Differences`: a sequence of
            the differences beyond noise, which may be empty.

    Raises:
        NoiseError: as for `inject`, and when the recording is of another program or of
            arguments of other shapes.
    """
    check_draws(draws, 2)
    accepted = "what noise.record(fn)(*args) or noise.load_recording(path) gave"
    expect(isinstance(recording, Recording), "recording", recording, accepted)
    reaching = sampling.with_routines(spec)

    def compare(call: sampling.BoundCall, key: Array) -> Differences:
        clean, under_noise = (Watch(call, spec) for spec in (None, reaching))
        first, second = random_bits.split(key, 2)
        noisy = map(under_noise.run, sampling.draw_keys(first, draws))
        further = map(under_noise.run, sampling.draw_keys(second, _MORE * draws))
        found = against(recording, clean.run(key), noisy, clean.name, further)
        found.notes += format_notes(rounded_products(call.equations()))
        far = {x.primitive for x in (*found, *found.differing) if x.difference > MOVED}
        found.notes += tuple(
            f"{x}: {choices([x])}" for x in sorted(far & FREE_SIGNS.keys())
        )
        return found

    return sampling.keyed(fn, compare)


class _Found(NamedTuple):
    """A difference, its place in the order of execution and its pair of values."""

    order: tuple[int, ...]
    entry: Difference
    pair: tuple[int, int]


def against(
    recording: Recording,
    values: Values,
    noisy: Iterable[Values],
    name: str = "this function",
    further: Iterable[Values] = (),
) -> Differences:
    """Compares the values of a run here with a recording, and with runs under noise.

    `further` are runs that are only made if the first value beyond noise comes after a
    decision that differs, or if the programs differ, and a result differs by more than
    in the first runs but not beyond noise.
    """
    # Before the noisy runs, since it may refuse.
    pairs, unmatched = alignment.align_recording(recording, values, name)
    compared = _Comparison(recording.equations, values, pairs)
    compared.see(noisy)
    compared.judge()
    if compared.is_unsettled(programs_differ=bool(unmatched)):
        compared.see(further)
        compared.judge()
    faults, differing = compared.differences(programs_differ=bool(unmatched))
    there = recording.equations
    only = [*_only("only here", values, {j for _, j in pairs})]
    only += _only("only in the recorded program", there, {i for i, _ in pairs})
    report = Differences([*_with_causes(there, values, pairs, faults), *only])
    report.differing = tuple(f.entry for f in differing)
    report.parted = unmatched
    report.compared = sum(bool(x.compared.any()) for x in compared.distances.values())
    report.recording = str(recording)
    if any(values[f.pair[1]].size > WHOLE for f in differing):
        report.notes = (_SUMS,)
    return report


class _Comparison:
    """The values of a recording and of a run here, which noise moves.

    Attributes:
        distances: the distance of each value here that has a counterpart, by number.
        judged: how each of them compares with noise.
        flipped: the values computed after a decision that differs.
    """

    def __init__(self, there: Values, values: Values, pairs: Pairs) -> None:
        self.there, self.values, self.pairs = there, values, pairs
        self._index = {one.path: i for i, one in enumerate(values)}
        self._effects = [effect_of_noise(one) for one in values]
        self.distances = {j: distance(there[i], values[j]) for i, j in pairs}
        self.judged: dict[int, Judged] = {}
        self.flipped: set[int] = set()

    def see(self, noisy: Iterable[Values]) -> None:
        """Adds runs under noise."""
        for value in itertools.chain.from_iterable(noisy):
            i = self._index.get(value.path)
            if i is not None:
                far, compared, away = distance(value, self.values[i])
                self._effects[i].see(far, away, compared)

    def judge(self) -> None:
        """Compares all distances with those of the runs so far."""
        self.flipped = _flipped(self.values, self.distances, self._effects)
        for j, (far, _, away) in self.distances.items():
            self.judged[j] = self._effects[j].judge(far, away, j in self.flipped)

    def is_unsettled(self, *, programs_differ: bool) -> bool:
        """Returns whether more runs are needed.

        A decision that noise takes in few runs looks like a fault.
        """
        beyond = (j for j, one in self.judged.items() if (one.over > 1).any())
        after_a_decision = next(beyond, None) in self.flipped
        is_open = programs_differ and _is_open(self.values, self.judged)
        return after_a_decision or is_open

    def differences(
        self, *, programs_differ: bool
    ) -> tuple[list[_Found], list[_Found]]:
        """Returns the differences beyond noise and the others, in order."""
        changes = {j: _changed(self.there[i], self.values[j]) for i, j in self.pairs}
        same = (j for j, change in changes.items() if not change)
        agreeing = {j for j in same if self.judged[j].agrees.all()}
        alive = _reaching_results(self.values, agreeing)
        faults: list[_Found] = []
        differing: list[_Found] = []
        for i, j in self.pairs:
            far, both, _ = self.distances[j]
            one, here = self.judged[j], self.values[j]
            over = both if changes[j] else one.over > 1
            if not far.any() and not over.any():
                continue
            note = "not finite in the same way" if far.max() == math.inf else one.note
            note, chosen = changes[j] or note, faults if over.any() else differing
            if over.any() and j not in alive:
                # A value with another factor is the same value, and perhaps wrong.
                alike = alignment.same_up_to_a_factor(self.there[i], here)
                if programs_differ:
                    note = "what is computed of it agrees"
                if (
                    (programs_differ and not alike)
                    or j in self.flipped
                    or is_discrete(here)
                ):
                    note, chosen = "what is computed of it agrees", differing
            when = over if over.any() else far > 0
            numbers = far, self._effects[j].expected, when
            chosen.append(_first_execution(here, (i, j), *numbers, note))
        faults += _causes_within_a_step(self.values, faults, differing)
        beyond = {fault.pair for fault in faults}
        differing = [f for f in differing if f.pair not in beyond]
        order = operator.attrgetter("order")
        return sorted(faults, key=order), sorted(differing, key=order)


def _causes_within_a_step(
    values: Values, faults: Sequence[_Found], differing: Sequence[_Found]
) -> list[_Found]:
    """Returns the differences of values that made a fault, and that noise did not move.

    A value may differ by one step of its type. In a narrow type such a step is large,
    and a value computed from it in a wider type is then beyond noise.
    """
    unmoved = {
        f.pair[1]: f for f in differing if not (f.entry.expected or f.entry.note)
    }
    causes: list[_Found] = []
    todo = [(fault.pair[1], fault.entry.difference) for fault in faults]
    while todo:
        j, difference = todo.pop()
        for i in unmoved.keys() & set(values[j].operands):
            # A much smaller difference did not make this one.
            if unmoved[i].entry.difference >= difference / 2:
                cause = unmoved.pop(i)
                causes.append(cause._replace(entry=cause.entry._replace(note=_STEP)))
                todo.append((i, difference))
    return causes


def _is_open(values: Values, judged: Mapping[int, Judged]) -> bool:
    """Returns whether results differ by more than in the runs, but within noise."""
    results = [one for j, one in judged.items() if values[j].primitive == "result"]
    within = all((one.over <= 1).all() for one in results)
    return within and not all(one.agrees.all() for one in results)


def _only(note: str, values: Values, paired: Collection[int]) -> Iterator[Difference]:
    """Yields the results of one program that the other does not have."""
    for i, one in enumerate(values):
        if one.primitive == "result" and i not in paired:
            yield Difference(one.path, "result", "", math.inf, 0.0, note=note)


def _flipped(
    values: Values, distances: Mapping[int, Distance], effects: Sequence[NoiseEffect]
) -> set[int]:
    """Returns the values computed after a decision that differs from the recorded one.

    Of a decision without a counterpart, it counts whether noise flips it.
    """
    found: set[int] = set()
    for j, one in enumerate(values):
        floats = [i for i in one.operands if not is_discrete(values[i])]
        step = one.primitive in STEPS or is_discrete(one)
        differs = distances[j].relative if j in distances else effects[j].expected
        if floats and step and differs.any():
            found.add(j)
    # What a loop's earlier steps pass on is not among the operands.
    loops = {values[j].starts[0] for j in found if values[j].starts}
    for j, one in enumerate(values):
        inside = bool(one.starts) and one.starts[0] in loops
        if inside or found.intersection(one.operands):
            found.add(j)
            loops.update(one.starts[:1])
    return found


def _changed(there: Recorded, here: Recorded) -> str:
    """Returns how a result has another shape or type than the recorded one."""
    kinds = [
        f"{one.dtype}[{','.join(map(str, one.shape))}] {where}"
        for one, where in ((here, "here"), (there, "in the recording"))
    ]
    same = (there.shape, there.dtype) == (here.shape, here.dtype)
    return "" if same else ", ".join(kinds)


def _reaching_results(values: Values, agreeing: Collection[int]) -> set[int]:
    """Returns the values that differ up to a result, or the end of known values.

    `agreeing` are the positions of the values that are the same in both programs.
    """
    readers: dict[int, list[int]] = {}
    for j, one in enumerate(values):
        for i in one.operands:
            readers.setdefault(i, []).append(j)
    results = {j for j, one in enumerate(values) if one.primitive == "result"}
    # Nothing depends on a value without readers, or it is not known what does.
    ends = results if results and results <= set(agreeing) else set(range(len(values)))
    alive: set[int] = set()
    # An equation without a counterpart passes on what its readers say.
    for j in reversed(range(len(values))):
        read = alive.intersection(readers[j]) if j in readers else j in ends
        if j not in agreeing and read:
            alive.add(j)
    return alive


def _with_causes(
    there: Values, here: Values, pairs: Pairs, beyond: Sequence[_Found]
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
        for side, one in causes:
            value = sides[side][one]
            if (side, one) in listed or not value.source:
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


def _first_execution(
    value: Recorded,
    pair: tuple[int, int],
    far: np.ndarray,
    expected: np.ndarray,
    over: np.ndarray,
    note: str,
) -> _Found:
    """Returns the difference of the first of the executions that are `over`."""
    orders = [
        execution_order(value.starts, step, pair[1]) for step in value.steps.tolist()
    ]
    when = min(np.flatnonzero(over), key=orders.__getitem__)
    step = tuple(value.steps[when].tolist())
    numbers = float(far[when]), float(expected[when])
    entry = Difference(value.path, value.primitive, value.source, *numbers, step, note)
    return _Found(orders[when], entry, pair)


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
    found = [
        _first_unmatched_ancestor(values, matched, i)
        for i, one in enumerate(values)
        if one.primitive in ("scan", "while")
        and path.startswith((f"{(loop := one.path.rpartition('[')[0])}/", f"{loop}["))
    ]
    return sorted(itertools.chain.from_iterable(found))[:1]


def _last_unused_unmatched(values: Values, matched: set[int], stop: int) -> list[int]:
    """Returns the last equation before `stop` with neither counterpart nor reader."""
    read = {i for one in values for i in one.operands}
    free = [i for i in range(stop) if i not in matched and i not in read]
    return [
        i for i in free[-1:] if values[i].primitive not in alignment.INPUT_PRIMITIVES
    ]
