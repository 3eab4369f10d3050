"""Where two runs first differ: a recording of one against the same program here.

For each value v of the program: its difference from the recorded one, and what noise
makes of it,

    d = |v - r| / |r|,     e_k = |v_k - v| / |v|,    k = 1 .. draws,

Euclidean norms over the value, one number for each execution in a loop; of integers and
booleans the fraction that differs. v_k is the value under noise: sums in another order,
every operation an ulp off. A difference is beyond noise if

    d > max(MARGIN q(e, f), TWICE max(e, f))

q is the upper quartile over the draws: of one number, few draws tell the noise badly,
hence the wide margin. Rare jumps (a later rounding to a narrow format that goes the
other way) are in the largest alone. f is a floor: one element moved by an ulp, or of
integers one in a thousand.

*Programs that differ* are aligned (docs/noise/first_difference.md): of several ways the
one is taken in which most values are near (Needleman & Wunsch, J. Mol. Biol. 48, 1970).
"""

import difflib
import itertools
import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np
from jax import Array

from prednet_jax.noise import random_bits
from prednet_jax.noise.errors import NoiseError, expect, integer
from prednet_jax.noise.questions.recording import Recorded, Recording, Watch
from prednet_jax.noise.questions.sampling import (
    with_routines,
)
from prednet_jax.noise.specs import NoiseSpec, ReductionOrder, UlpPerturbation, compose

MARGIN, TWICE = 10.0, 2.0
# Of a discrete value, the fraction of elements that any noise may flip.
FLIPS = 1e-3
# Relative distance below which two values are taken for the same one.
NEAR = 0.05
# Beyond so many pairs of equations, values are not looked at to align programs.
PAIRS = 4_000_000
SHOWN = 12
# Primitives of values that no equation computed.
GIVEN = ("argument", "constant")


class Difference(NamedTuple):
    """A value that differs, by path, primitive and line as in a `Recorded`.

    Attributes:
        difference: relative to the recorded value; infinite if numbers are NaN,
            infinite or above 1e18 in other numbers.
        expected: the same for noise, RMS over the draws.
        step: of the loops around, outermost first, when it first differs so much.
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
        where = f"  [{self.source}]" if self.source else ""
        note = f"  ({self.note})" if self.note else ""
        numbers = f"{self.difference:>9.2g}  {self.expected:>9.2g}"
        return f"{numbers}  {self.path}{step}{where}{note}"


class Parting(NamedTuple):
    """Equations of one program without a counterpart in the other.

    `here` and `recorded` are path and source of the first of them, empty if there is
    none; `equations` is how many there are, here and recorded.
    """

    here: str
    recorded: str
    equations: tuple[int, int]

    def __str__(self) -> str:
        return (
            f"here {self.equations[0]} equations [{self.here or '-'}], recorded "
            f"{self.equations[1]} [{self.recorded or '-'}]"
        )


class Differences(tuple[Difference, ...]):
    """The values whose difference is beyond noise, in the order of execution.

    Attributes:
        differing: the others that differ at all, in order.
        parted: where the programs part.
        compared: number of values compared.
        recording: what it was compared with, in words.
    """

    differing: tuple[Difference, ...]
    parted: tuple[Parting, ...]
    compared: int
    recording: str

    def __str__(self) -> str:
        lines = [f"compared {self.compared} values with {self.recording}"]
        for title, entries in (
            ("beyond noise", self),
            ("within noise, but not the same bits", self.differing),
        ):
            lines.append(f"{title}: {len(entries) or 'none'}")
            if entries:
                lines.append(f"{'difference':>11}  {'of noise':>9}")
            lines += [f"  {entry}" for entry in entries[:SHOWN]]
            lines += [f"  and {len(entries) - SHOWN} more"] * (len(entries) > SHOWN)
        if self.parted:
            lines.append("the programs part:")
            lines += [f"  {parting}" for parting in self.parted[:SHOWN]]
        return "\n".join(lines)

    def to_json(self) -> dict[str, Any]:
        """All that it tells."""
        return {"beyond": list(self), **vars(self)}


# An order for each element, and an ulp: what other machines and versions do.
NOISE = compose(ReductionOrder(granularity="element"), UlpPerturbation())


def first_difference(
    fn: Callable, recording: Recording, *, spec: NoiseSpec = NOISE, draws: int = 8
) -> Callable[..., Differences]:
    """Compare what `fn` computes here with a recording.

    Args:
        fn: the function that was recorded, or another version of it.
        recording: of `record`, or of `load_recording`.
        spec: the noise that is no difference.
        draws: number of noisy runs, 2 or more.

    Returns:
        `compare(key, *args, **kwargs)`, which gives the `Differences`: a sequence of
            those beyond noise, empty if there are none.

    Raises:
        NoiseError: as for `inject`, and when the recording is of another program or of
            arguments of other shapes.
    """
    integer("draws", draws, 2)
    accepted = "what noise.record(fn)(*args) or noise.load_recording(path) gave"
    expect(isinstance(recording, Recording), "recording", recording, accepted)
    reaching = with_routines(spec)

    def compare(key: Array, /, *args: Any, **kwargs: Any) -> Differences:
        keys = random_bits.split(key, draws)
        clean, under_noise = (Watch(fn, args, kwargs, x) for x in (None, reaching))
        noisy = map(under_noise.run, keys)
        return against(recording, clean.run(key), noisy, clean.name)

    return compare


Pairs = list[tuple[int, int]]


def against(
    recording: Recording,
    values: Sequence[Recorded],
    noisy: Iterable[Sequence[Recorded]],
    name: str = "this function",
) -> Differences:
    """Compare the values of a run here with a recording, and with runs under noise."""
    there = recording.equations
    # Before the noisy runs, since it may refuse.
    pairs, partings = _aligned(recording, values, name)
    index = {one.path: i for i, one in enumerate(values)}
    noises: list[list[np.ndarray]] = [[] for _ in values]
    for value in itertools.chain.from_iterable(noisy):
        i = index.get(value.path)
        if i is not None:
            noises[i].append(_distance(value, values[i])[0])
    beyond: list[_Found] = []
    differing: list[_Found] = []
    compared = 0
    for i, j in pairs:
        far, both = _distance(there[i], values[j])
        compared += bool(both.any())
        if far.any():
            bound, expected = _bound(values[j], noises[j])
            chosen, over = (beyond, far > bound)
            if not over.any():
                chosen, over = (differing, far > 0)
            note = "" if noises[j] else "not judged: noise makes no such value"
            chosen.append(_found(values[j], (i, j), far, expected, over, note))
    if partings:
        beyond, healed = _inherited(values, pairs, beyond)
        differing += healed
    beyond.sort(key=lambda f: f.order)
    differing.sort(key=lambda f: f.order)
    report = Differences(_blamed(there, values, pairs, beyond))
    report.differing = tuple(f.entry for f in differing)
    report.parted, report.compared = partings, compared
    report.recording = str(recording)
    return report


def _bound(value: Recorded, drawn: list[np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    """The difference that noise does not exceed, and what it makes: [executions]."""
    count = len(value.steps)
    if not drawn:
        # A value that noise never made (a part of a longer sum) is not judged.
        return np.full(count, math.inf), np.zeros(count)
    if _discrete(value):
        floor = np.full(count, FLIPS / MARGIN if value.size > 1 else 0.0)
    else:
        norm = np.where(value.norms > 0, value.norms, 1)
        floor = float(jax.numpy.finfo(value.dtype).eps) * value.largest / norm
    levels = np.maximum(drawn, floor)
    quartile = np.quantile(levels, 0.75, axis=0, method="lower")
    bound = np.maximum(MARGIN * quartile, TWICE * levels.max(0))
    return bound, np.sqrt(np.mean(np.square(drawn), 0))


class _Found(NamedTuple):
    order: tuple[int, ...]
    entry: Difference
    pair: tuple[int, int]


def _found(
    value: Recorded,
    pair: tuple[int, int],
    far: np.ndarray,
    expected: np.ndarray,
    over: np.ndarray,
    note: str,
) -> _Found:
    """The first of the executions that are `over`."""
    number = pair[1]
    orders = [
        (*itertools.chain.from_iterable(zip(value.starts, step, strict=True)), number)
        for step in value.steps.tolist()
    ]
    when = min(np.flatnonzero(over), key=orders.__getitem__)
    step = tuple(value.steps[when].tolist())
    if far.max() == math.inf:
        note = "not finite in the same way"
    numbers = float(far[when]), float(expected[when])
    entry = Difference(value.path, value.primitive, value.source, *numbers, step, note)
    return _Found(orders[when], entry, pair)


def _distance(a: Recorded, b: Recorded) -> tuple[np.ndarray, np.ndarray]:
    """Relative distance of two values, 0 where they have the same bits.

    Two arrays over the executions of `b`: the distance, 0 where `a` has none, and which
    of them were compared.
    """
    known = {tuple(step): i for i, step in enumerate(a.steps.tolist())}
    theirs = np.array([known.get(tuple(step), -1) for step in b.steps.tolist()], int)
    rows = np.flatnonzero(theirs >= 0)
    mine = theirs[rows]
    x, y = b.values[rows], a.values[mine]
    with np.errstate(all="ignore"):
        if _discrete(b):
            far = np.sum(x != y, 1)
            if b.size > x.shape[1]:
                # A sketch holds sums. Where few differ, their number counts; else their
                # sum of squares, since whole numbers differ by 1 or more.
                many = np.minimum(np.sum(np.square(x - y), 1), b.size)
                far = np.where(far > x.shape[1] // 32, many, far)
            far = far / max(1, b.size)
        else:
            scale = np.maximum(b.norms[rows], a.norms[mine])
            far = np.sqrt(np.sum(np.square(x - y), 1)) / np.where(scale > 0, scale, 1)
    far = np.where(a.unbounded[mine] == b.unbounded[rows], far, math.inf)
    distance, compared = np.zeros(len(b.steps)), np.zeros(len(b.steps), bool)
    # Numbers that a sketch does not hold differ where their bits do. -0 is 0, and the
    # sign of NaN means nothing.
    kinds = b.unbounded[rows]
    hidden = (x != y).any(1) | (kinds & 1023 > 0) | (kinds >> 20 > 0) | _discrete(b)
    far = np.where(hidden, np.maximum(far, np.finfo(float).tiny), far)
    distance[rows] = np.where(a.hashes[mine] != b.hashes[rows], far, 0.0)
    compared[rows] = True
    return distance, compared


def _discrete(value: Recorded) -> bool:
    return not value.dtype.startswith(("float", "bfloat", "complex"))


def _aligned(
    recording: Recording, here: Sequence[Recorded], name: str
) -> tuple[Pairs, tuple[Parting, ...]]:
    """Pairs of a recorded value and one here, in order, and where programs part."""
    there = recording.equations
    shapes = {one.path: one.shape for one in there if one.primitive == "argument"}
    for one in here:
        known = shapes.get(one.path, one.shape)
        if one.primitive == "argument" and known != one.shape:
            raise NoiseError(
                f"{one.path} has the shape {one.shape}, and {known} in the "
                "recording: expected the arguments that were recorded"
            )
    pairs = align(there, here)
    computed = {i for i, one in enumerate(here) if one.primitive not in GIVEN}
    matched = computed.intersection(j for _, j in pairs)
    if 4 * len(matched) < len(computed):
        raise NoiseError(
            f"{recording.function}: a recording of another program: "
            f"{len(matched)} of the {len(computed)} values of "
            f"{name} at these arguments have a counterpart there; expected one of the "
            "same function, or of another version of it, at arguments of these shapes"
        )
    partings = []
    edges = [(-1, -1), *pairs, (len(there), len(here))]
    for (i, j), (k, n) in itertools.pairwise(edges):
        ours, theirs = here[j + 1 : n], there[i + 1 : k]
        if ours or theirs:
            mine, other = (
                f"{v[0].path} {v[0].source}" if v else "" for v in (ours, theirs)
            )
            partings.append(Parting(mine, other, (len(ours), len(theirs))))
    return pairs, tuple(partings)


def _kind(value: Recorded) -> tuple:
    """What two values must have in common to be the same one."""
    name = value.path if value.primitive == "argument" else ""
    return value.within, value.primitive, value.shape, value.dtype, name


def align(a: Sequence[Recorded], b: Sequence[Recorded]) -> Pairs:
    """Which values of two programs belong together: pairs of positions, in order."""
    kinds_a, kinds_b = list(map(_kind, a)), list(map(_kind, b))
    if kinds_a == kinds_b:
        return [(i, i) for i in range(len(a))]

    def score(i: int, j: int) -> int:
        return 0 if kinds_a[i] != kinds_b[j] else 3 if near(a[i], b[j]) else 1

    shorter = min(len(a), len(b))
    start = next((i for i in range(shorter) if score(i, i) < 3), shorter)
    most = shorter - start
    end = next((i for i in range(most) if score(-1 - i, -1 - i) < 3), most)
    n, m = len(a) - end, len(b) - end
    if (n - start) * (m - start) > PAIRS:
        match = difflib.SequenceMatcher(None, kinds_a, kinds_b, autojunk=False)
        blocks = match.get_matching_blocks()
        return [(x.a + i, x.b + i) for x in blocks for i in range(x.size)]
    scores = [[score(i, j) for j in range(start, m)] for i in range(start, n)]
    whole = [(i, i) for i in range(start)]
    whole += [(start + i, start + j) for i, j in _best(scores)]
    whole += [(n + k, m + k) for k in range(end)]
    known = set(whole)
    # A far pair alone among equations without a counterpart is there by chance.
    return [
        (i, j)
        for i, j in whole
        if {(i - 1, j - 1), (i + 1, j + 1)} & known or near(a[i], b[j])
    ]


def near(a: Recorded, b: Recorded) -> bool:
    """Whether two values of a kind may be the same one, by their first executions."""
    x, y = (one.values[:1] for one in (a, b))
    far = np.linalg.norm(x - y)
    return bool(far <= NEAR * max(np.linalg.norm(x), np.linalg.norm(y)))


def _best(scores: Sequence[Sequence[int]]) -> list[tuple[int, int]]:
    """Pairs of rows and columns, in order, of the largest sum; none where it is 0."""
    if not scores or not scores[0]:
        return []
    n, m = len(scores), len(scores[0])
    total = [[0] * (m + 1) for _ in range(n + 1)]
    for i in range(n - 1, -1, -1):
        for j in range(m - 1, -1, -1):
            total[i][j] = max(
                total[i + 1][j],
                total[i][j + 1],
                total[i + 1][j + 1] + scores[i][j] if scores[i][j] else 0,
            )
    pairs, i, j = [], 0, 0
    while i < n and j < m:
        if scores[i][j] and total[i][j] == total[i + 1][j + 1] + scores[i][j]:
            pairs.append((i, j))
            i, j = i + 1, j + 1
        elif total[i][j] == total[i + 1][j]:
            i += 1
        else:
            j += 1
    return pairs


def _inherited(
    here: Sequence[Recorded], pairs: Pairs, beyond: list[_Found]
) -> tuple[list[_Found], list[_Found]]:
    """Differences that some reader inherits, or that none reads; and the others."""
    # Where programs differ, two equations that correspond may compute another thing,
    # such as permuted weights. If all that is computed of them agrees, the programs do.
    readers: dict[int, list[int]] = {}
    for j, one in enumerate(here):
        for i in one.operands:
            readers.setdefault(i, []).append(j)
    agree = {j for _, j in pairs} - {f.pair[1] for f in beyond}
    alive: set[int] = set()
    # An equation without a counterpart passes on what its readers say.
    for j in reversed(range(len(here))):
        if j not in agree and (j not in readers or alive.intersection(readers[j])):
            alive.add(j)
    note = "what is computed of it agrees"
    inherited = [f for f in beyond if f.pair[1] in alive]
    healed = [f for f in beyond if f.pair[1] not in alive]
    return inherited, [f._replace(entry=f.entry._replace(note=note)) for f in healed]


def _blamed(
    there: Sequence[Recorded],
    here: Sequence[Recorded],
    pairs: Pairs,
    beyond: Sequence[_Found],
) -> list[Difference]:
    """The entries, those without a counterpart among them that made a difference."""
    sides = (there, here)
    matched = [{pair[side] for pair in pairs} for side in (0, 1)]

    def roots(find: Callable, pair: tuple[int, int]) -> list[tuple[int, int]]:
        return [
            (side, one)
            for side in (1, 0)
            for one in find(sides[side], matched[side], pair[side])
        ]

    # Of values here. What a loop brings back differs later than what it came from.
    earlier: set[int] = set()
    functions = {one.source.partition(" in ")[2] for one in here}
    listed: set[tuple[int, int]] = set()
    entries: list[Difference] = []
    for _, entry, pair in beyond:
        causes: list[tuple[int, int]] = []
        if not earlier.intersection(here[pair[1]].operands):
            causes = roots(_without, pair)
        if not causes and not entries:
            # What a loop reads from outside is not known: it may have been these.
            causes = roots(_unread, pair)
        for side, one in causes:
            value = sides[side][one]
            known = side or value.source.partition(" in ")[2] in functions
            if (side, one) in listed or not value.source or not known:
                continue
            listed.add((side, one))
            where = "here" if side else "in the recorded program"
            note = f"only {where}; the difference is that of {entry.path}"
            numbers = entry.difference, entry.expected, entry.step
            cause = value.path, value.primitive, value.source
            entries.append(Difference(*cause, *numbers, note))
        entries.append(entry)
        earlier.add(pair[1])
    return entries


def _without(values: Sequence[Recorded], matched: set[int], start: int) -> list[int]:
    """The first equation without a counterpart that a value was computed from."""
    seen: set[int] = set()
    todo = list(values[start].operands)
    while todo:
        i = todo.pop()
        if i not in matched and i not in seen:
            seen.add(i)
            todo += values[i].operands
    return [min(seen)] if seen else []


def _unread(values: Sequence[Recorded], matched: set[int], stop: int) -> list[int]:
    """The last equation before `stop` with neither counterpart nor reader, if any."""
    read = {i for one in values for i in one.operands}
    free = [i for i in range(stop) if i not in matched and i not in read]
    return [i for i in free[-1:] if values[i].primitive not in GIVEN]
