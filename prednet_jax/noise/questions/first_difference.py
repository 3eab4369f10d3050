"""Finds where two runs first differ: a recording and the same program here.

`alignment` pairs the values, `distances` measures their distances and the effect of
noise, and `causes` finds which of the differences are faults.
"""

import itertools
import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any

from jax import Array

from prednet_jax.noise.errors import check_draws, expect
from prednet_jax.noise.questions.alignment import (
    UnmatchedEquations,
    align_recording,
    same_up_to_a_factor,
)
from prednet_jax.noise.questions.causes import (
    Difference,
    Found,
    first_execution,
    split_by_downstream_agreement,
    with_causes,
)
from prednet_jax.noise.questions.distances import (
    Distance,
    NoiseEffect,
    distance,
    effect_of_noise,
    is_discrete,
)
from prednet_jax.noise.questions.elements import STEPS
from prednet_jax.noise.questions.own_rounding import format_notes, rounded_products
from prednet_jax.noise.questions.recording import Recorded, Recording, Watch
from prednet_jax.noise.questions.sampling import (
    BoundCall,
    draw_keys,
    keyed,
    with_routines,
)
from prednet_jax.noise.specs import NoiseSpec, default

MAX_ROWS = 12


class Differences(tuple[Difference, ...]):
    """The values whose difference is beyond noise, in the order of execution.

    Attributes:
        differing: the other values that differ at all, in order.
        parted: where the programs have equations without a counterpart.
        compared: number of values compared.
        recording: a description of the recording.
        notes: the format in which this device rounds by default.
    """

    differing: tuple[Difference, ...]
    parted: tuple[UnmatchedEquations, ...]
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


# What other machines and versions do.
NOISE = default()


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
    reaching = with_routines(NOISE if spec is None else spec)

    def compare(call: BoundCall, key: Array) -> Differences:
        clean, under_noise = (Watch(call, spec) for spec in (None, reaching))
        noisy = map(under_noise.run, draw_keys(key, draws))
        found = against(recording, clean.run(key), noisy, clean.name)
        found.notes = format_notes(rounded_products(call.steps()))
        return found

    return keyed(fn, compare)


def against(
    recording: Recording,
    values: Sequence[Recorded],
    noisy: Iterable[Sequence[Recorded]],
    name: str = "this function",
) -> Differences:
    """Compares the values of a run here with a recording, and with runs under noise."""
    there = recording.equations
    # Before the noisy runs, since it may refuse.
    pairs, unmatched = align_recording(recording, values, name)
    index = {one.path: i for i, one in enumerate(values)}
    effects = [effect_of_noise(one) for one in values]
    for value in itertools.chain.from_iterable(noisy):
        i = index.get(value.path)
        if i is not None:
            effects[i].see(*distance(value, values[i])[::2])
    distances = {j: distance(there[i], values[j]) for i, j in pairs}
    flipped = _flipped(values, distances, effects)
    beyond: list[Found] = []
    differing: list[Found] = []
    agreeing: set[int] = set()
    compared = 0
    for i, j in pairs:
        far, both, away = distances[j]
        compared += bool(both.any())
        judged = effects[j].judge(far, away, j in flipped)
        over, changed = judged.over > 1, _changed(there[i], values[j])
        if judged.agrees.all() and not changed:
            agreeing.add(j)
        if changed:
            over = both
        if not far.any() and not over.any():
            continue
        if far.max() == math.inf:
            changed = changed or "not finite in the same way"
        note = changed or judged.note
        chosen, when = (beyond, over) if over.any() else (differing, far > 0)
        found = first_execution(values[j], (i, j), far, effects[j].expected, when, note)
        chosen.append(found)

    def may_differ(pair: tuple[int, int]) -> bool:
        recorded, here = there[pair[0]], values[pair[1]]
        # A value with another factor is the same value, and wrong.
        other = bool(unmatched) and not same_up_to_a_factor(recorded, here)
        return other or is_discrete(here)

    beyond, recovered = split_by_downstream_agreement(
        values, beyond, agreeing, may_differ
    )
    differing += recovered
    beyond.sort(key=lambda f: f.order)
    differing.sort(key=lambda f: f.order)
    only = [*_only("only here", values, {j for _, j in pairs})]
    only += _only("only in the recorded program", there, {i for i, _ in pairs})
    report = Differences([*with_causes(there, values, pairs, beyond), *only])
    report.differing = tuple(f.entry for f in differing)
    report.parted, report.compared = unmatched, compared
    report.recording = str(recording)
    return report


def _only(
    note: str, values: Sequence[Recorded], paired: Collection[int]
) -> Iterator[Difference]:
    """Yields the results of one program that the other does not have."""
    for i, one in enumerate(values):
        if one.primitive == "result" and i not in paired:
            yield Difference(one.path, "result", "", math.inf, 0.0, note=note)


def _flipped(
    values: Sequence[Recorded],
    distances: Mapping[int, Distance],
    effects: Sequence[NoiseEffect],
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
