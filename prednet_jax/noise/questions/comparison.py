"""Compares the values of a recording with those of a run here and under noise.

`distances` measures their distances and the effect of noise. A value that differs is a
fault only if something computed from it differs too, up to a result. It is not a fault
if two paired equations compute different things (permuted weights, another formula), or
if noise flips a decision without further effect.
"""

import itertools
import math
import operator
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from prednet_jax.noise.questions.alignment import (
    Pairs,
    Values,
    same_up_to_a_factor,
)
from prednet_jax.noise.questions.distances import (
    Distance,
    Judged,
    NoiseEffect,
    distance,
    effect_of_noise,
    is_discrete,
)
from prednet_jax.noise.questions.elements import STEPS
from prednet_jax.noise.questions.recording import Recorded
from prednet_jax.noise.rules.primitives import EXACT
from prednet_jax.noise.tables import bracketed, joined
from prednet_jax.noise.watch import execution_order

_STEP = "within a step of its type, but not what is computed of it"
# The note of a value whose difference has no effect.
AGREES = "what is computed of it agrees"
# What `distance` returns for numbers above 1e18 that differ in their bits.
_TINY = np.finfo(float).tiny
_UNKNOWN = "numbers above 1e18 differ, by how much is not known"


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


class Comparison:
    """The values of a recording and of a run here, which noise moves.

    Attributes:
        distances: the distance of each value here that has a counterpart, by number.
        judged: how each of them compares with noise.
        flipped: the values computed after a decision that differs.
    """

    def __init__(self, there: Values, values: Values, pairs: Pairs) -> None:
        self.there, self.values, self.pairs = there, values, pairs
        self._index = {value.path: i for i, value in enumerate(values)}
        rounded = _rounded_there(there, values, pairs)
        self._effects = [effect_of_noise(x, i in rounded) for i, x in enumerate(values)]
        self.distances = {j: distance(there[i], values[j]) for i, j in pairs}
        self.judged: dict[int, Judged] = {}
        self.flipped: set[int] = set()

    def see(self, noisy: Iterable[Values]) -> None:
        """Adds runs under noise."""
        for value in itertools.chain.from_iterable(noisy):
            i = self._index.get(value.path)
            if i is not None:
                relative, compared, away = distance(value, self.values[i])
                self._effects[i].see(relative, away, compared)

    def judge(self) -> None:
        """Compares all distances with those of the runs so far."""
        self.flipped = _flipped(self.values, self.distances, self._effects)
        for j, (relative, _, away) in self.distances.items():
            self.judged[j] = self._effects[j].judge(relative, away, j in self.flipped)

    def is_unsettled(self, *, programs_differ: bool) -> bool:
        """Returns whether more runs are needed.

        A decision that noise takes in few runs looks like a fault.
        """
        beyond = (j for j, x in self.judged.items() if (x.over > 1).any())
        after_a_decision = next(beyond, None) in self.flipped
        is_open = programs_differ and _is_open(self.values, self.judged)
        return after_a_decision or is_open

    def differences(self, *, programs_differ: bool) -> tuple[list[Found], list[Found]]:
        """Returns the differences beyond noise and the others, in order."""
        changes = {j: _changed(self.there[i], self.values[j]) for i, j in self.pairs}
        same = (j for j, change in changes.items() if not change)
        agreeing = {j for j in same if self.judged[j].agrees.all()}
        alive = _reaching_results(self.values, agreeing)
        faults: list[Found] = []
        differing: list[Found] = []
        for i, j in self.pairs:
            dist, both, away = self.distances[j]
            own, value = self.judged[j], self.values[j]
            over = both if changes[j] else own.over > 1
            if not dist.any() and not over.any():
                continue
            note = "not finite in the same way" if dist.max() == math.inf else own.note
            if dist.max() == _TINY and value.unbounded.any():
                note = _UNKNOWN
            note, chosen = changes[j] or note, faults if over.any() else differing
            if over.any() and j not in alive:
                # A value with another factor is the same value, and perhaps wrong.
                x = value.values[np.argmax(over)]
                y = x + away[np.argmax(over), : x.size]
                alike = value.size > 1 and same_up_to_a_factor(x, y)
                other = programs_differ and not alike
                harmless = other or j in self.flipped or is_discrete(value)
                note = joined(changes[j], AGREES)
                chosen = differing if harmless else faults
            when = over if over.any() else dist > 0
            numbers = dist, self._effects[j].expected, when
            chosen.append(_first_execution(value, (i, j), *numbers, note))
        faults += _causes_within_a_step(self.values, faults, differing)
        beyond = {fault.pair for fault in faults}
        differing = [f for f in differing if f.pair not in beyond]
        order = operator.attrgetter("order")
        return sorted(faults, key=order), sorted(differing, key=order)


def _rounded_there(there: Values, values: Values, pairs: Pairs) -> set[int]:
    """Returns the values here that come from wider ones, there from narrow ones.

    The recorded program rounds numbers to the type of such a value that have no
    counterpart here, where a port computes in a wider type inside. Each rounding is an
    error of the size of one of the value's larger elements.
    """

    def sources(values: Values, paired: Collection[int]) -> list[set[str]]:
        types: list[set[str]] = []
        for i, value in enumerate(values):
            alone = i not in paired and value.primitive not in EXACT
            own = {value.dtype} if alone and not is_discrete(value) else set()
            types.append(own.union(*(types[k] for k in value.operands)))
        return types

    theirs = sources(there, {i for i, _ in pairs})
    ours = sources(values, {j for _, j in pairs})
    narrow = ((i, j) for i, j in pairs if values[j].dtype in ("bfloat16", "float16"))
    wide = {"float32", "float64"}
    return {j for i, j in narrow if values[j].dtype in theirs[i] and wide & ours[j]}


def _causes_within_a_step(
    values: Values, faults: Sequence[Found], differing: Sequence[Found]
) -> list[Found]:
    """Returns the differences of values that made a fault, and that noise did not move.

    A value may differ by one step of its type. In a narrow type such a step is large,
    and a value computed from it in a wider type is then beyond noise. A difference of
    two nearby numbers is exact, and the step of one of them is large in it.
    """

    def absolute(finding: Found) -> float:
        value, entry = values[finding.pair[1]], finding.entry
        when = np.argmax((value.steps == np.array(entry.step)).all(1))
        return entry.difference * float(value.norms[when])

    unmoved = {
        f.pair[1]: f for f in differing if not (f.entry.expected or f.entry.note)
    }
    causes: list[Found] = []
    todo = [(x.pair[1], x.entry.difference, absolute(x)) for x in faults]
    while todo:
        j, difference, size = todo.pop()
        for i in unmoved.keys() & set(values[j].operands):
            # A much smaller difference did not make this one.
            enough = unmoved[i].entry.difference >= difference / 2
            if values[j].primitive in ("add", "sub"):
                enough |= absolute(unmoved[i]) >= size / 2
            if enough:
                cause = unmoved.pop(i)
                causes.append(cause._replace(entry=cause.entry._replace(note=_STEP)))
                todo.append((i, difference, size))
    return causes


def _is_open(values: Values, judged: Mapping[int, Judged]) -> bool:
    """Returns whether results differ by more than in the runs, but within noise."""
    results = [x for j, x in judged.items() if values[j].primitive == "result"]
    within = all((x.over <= 1).all() for x in results)
    return within and not all(x.agrees.all() for x in results)


def _flipped(
    values: Values, distances: Mapping[int, Distance], effects: Sequence[NoiseEffect]
) -> set[int]:
    """Returns the values computed after a decision that differs from the recorded one.

    A decision without a counterpart counts if noise flips it.
    """
    flipped: set[int] = set()
    for j, value in enumerate(values):
        floats = [i for i in value.operands if not is_discrete(values[i])]
        step = value.primitive in STEPS or is_discrete(value)
        differs = distances[j].relative if j in distances else effects[j].expected
        if floats and step and differs.any():
            flipped.add(j)
    # What a loop's earlier steps pass on is not among the operands.
    loops = {values[j].starts[0] for j in flipped if values[j].starts}
    for j, value in enumerate(values):
        inside = bool(value.starts) and value.starts[0] in loops
        if inside or flipped.intersection(value.operands):
            flipped.add(j)
            loops.update(value.starts[:1])
    return flipped


def _changed(there: Recorded, here: Recorded) -> str:
    """Returns how a result has another shape or type than the recorded one."""
    kinds = [
        f"{value.dtype}[{','.join(map(str, value.shape))}] {where}"
        for value, where in ((here, "here"), (there, "in the recording"))
    ]
    same = (there.shape, there.dtype) == (here.shape, here.dtype)
    return "" if same else ", ".join(kinds)


def _reaching_results(values: Values, agreeing: Collection[int]) -> set[int]:
    """Returns the values that differ up to a result, or the end of known values.

    `agreeing` are the positions of the values that are the same in both programs.
    """
    readers: dict[int, list[int]] = {}
    for j, value in enumerate(values):
        for i in value.operands:
            readers.setdefault(i, []).append(j)
    results = {j for j, value in enumerate(values) if value.primitive == "result"}
    # Nothing depends on a value without readers, or it is not known what does.
    ends = results if results and results <= set(agreeing) else set(range(len(values)))
    alive: set[int] = set()
    # An equation without a counterpart passes on what its readers say.
    for j in reversed(range(len(values))):
        read = alive.intersection(readers[j]) if j in readers else j in ends
        if j not in agreeing and read:
            alive.add(j)
    return alive


def _first_execution(
    value: Recorded,
    pair: tuple[int, int],
    relative: np.ndarray,
    expected: np.ndarray,
    over: np.ndarray,
    note: str,
) -> Found:
    """Returns the difference of the first of the executions that are `over`."""
    orders = [
        execution_order(value.starts, step, pair[1]) for step in value.steps.tolist()
    ]
    when = min(np.flatnonzero(over), key=orders.__getitem__)
    step = tuple(value.steps[when].tolist())
    numbers = float(relative[when]), float(expected[when])
    entry = Difference(value.path, value.primitive, value.source, *numbers, step, note)
    return Found(orders[when], entry, pair)
