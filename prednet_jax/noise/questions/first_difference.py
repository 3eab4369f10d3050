"""Finds where two runs first differ: a recording and the same program here.

`alignment` pairs the values, `comparison` tells which pairs differ by more than noise,
and `causes` adds the equations of one program alone that made them differ.
"""

import math
from collections.abc import Callable, Collection, Iterable, Iterator
from typing import Any

from jax import Array

from prednet_jax.noise import random_bits
from prednet_jax.noise.errors import check_draws, expect
from prednet_jax.noise.questions import alignment, sampling
from prednet_jax.noise.questions.alignment import Values
from prednet_jax.noise.questions.causes import with_causes
from prednet_jax.noise.questions.comparison import Comparison, Difference
from prednet_jax.noise.questions.precision import format_notes, rounded_products
from prednet_jax.noise.questions.recorder import Watch
from prednet_jax.noise.questions.recording import SAMPLE, WHOLE, Recording
from prednet_jax.noise.questions.signs import FREE_SIGNS, MOVED, choices
from prednet_jax.noise.specs import NoiseSpec

# Rows of each part of a printed report.
MAX_ROWS = 12
# Further runs, in units of `draws`, where a result leaves open whether it agrees.
_MORE = 3
_SUMS = (
    f"values of more than {WHOLE} elements are compared by sums of their elements, and "
    f"by up to {SAMPLE} of them if the recording has these: an error in a few elements "
    "far smaller than the others may not be seen"
)


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
        report = against(recording, clean.run(key), noisy, clean.name, further)
        report.notes += format_notes(rounded_products(call.equations()))
        moved = {
            x.primitive for x in (*report, *report.differing) if x.difference > MOVED
        }
        report.notes += tuple(
            f"{x}: {choices([x])}" for x in sorted(moved & FREE_SIGNS.keys())
        )
        return report

    return sampling.keyed(fn, compare)


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
    read = [(i, j) for i, j in pairs if not values[j].unread]
    compared = Comparison(recording.equations, values, read)
    compared.see(noisy)
    compared.judge()
    if compared.is_unsettled(programs_differ=bool(unmatched)):
        compared.see(further)
        compared.judge()
    faults, differing = compared.differences(programs_differ=bool(unmatched))
    there = recording.equations
    only = [*_only("only here", values, {j for _, j in pairs})]
    only += _only("only in the recorded program", there, {i for i, _ in pairs})
    report = Differences([*with_causes(there, values, pairs, faults), *only])
    report.differing = tuple(f.entry for f in differing)
    report.parted = unmatched
    report.compared = sum(bool(x.compared.any()) for x in compared.distances.values())
    report.recording = str(recording)
    if any(values[f.pair[1]].size > WHOLE for f in differing):
        report.notes = (_SUMS,)
    return report


def _only(note: str, values: Values, paired: Collection[int]) -> Iterator[Difference]:
    """Yields the results of one program that the other does not have."""
    for i, value in enumerate(values):
        if value.primitive == "result" and i not in paired:
            yield Difference(value.path, "result", "", math.inf, 0.0, note=note)
