"""Pairs the values of two versions of a program.

Two equations correspond if the loops around them, the primitive, the shape and the type
are the same. Of all ways to pair them in order, the one with the largest score is
chosen (Needleman & Wunsch, J. Mol. Biol. 48, 1970): a pair of nearby values counts
`NEAR`, another one `FAR`, and 1 more if the texts of their source lines are the same.
Arguments and results are paired by name, in any order, because a dictionary may have
its keys in another order than the recorded one.
"""

import difflib
import itertools
import math
import operator
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from prednet_jax.noise.errors import NoiseError
from prednet_jax.noise.questions.recording import Recorded, Recording

# Relative distance below which two values are taken for the same value.
SAME_VALUE_DISTANCE = 0.05
# Scores of a pair of nearby values and of another one; equal source lines add 1.
NEAR, FAR = 9, 3
# Above so many pairs of equations, the values are not used to align the programs.
MAX_PAIRS = 4_000_000
# Primitives of values that no equation computed.
INPUT_PRIMITIVES = ("argument", "constant")
# Primitives of values with names, which come first and last.
_NAMED = ("argument", "result")

# The values of one program.
Values = Sequence[Recorded]
# Positions of a recorded value and of a value here.
Pairs = list[tuple[int, int]]


class UnmatchedEquations(NamedTuple):
    """Equations of one program without a counterpart in the other.

    `here` and `recorded` are the path and the source of the first such equation, or
    empty. `equations` counts these equations, here and in the recording.
    """

    here: str
    recorded: str
    equations: tuple[int, int]

    def __str__(self) -> str:
        return (
            f"here {self.equations[0]} equations [{self.here or '-'}], recorded "
            f"{self.equations[1]} [{self.recorded or '-'}]"
        )


def align_recording(
    recording: Recording, here: Values, name: str
) -> tuple[Pairs, tuple[UnmatchedEquations, ...]]:
    """Returns pairs of a recorded value and one here, and the programs' differences.

    Args:
        recording: the recording of the other program.
        here: values of this program.
        name: what this program is called in messages.

    Raises:
        NoiseError: the shapes of arguments differ, or the programs have too little in
            common.
    """
    there = recording.equations
    shapes = {x.path: x.shape for x in there if x.primitive == "argument"}
    for value in here:
        expected = shapes.get(value.path, value.shape)
        if value.primitive == "argument" and expected != value.shape:
            raise NoiseError(
                f"{value.path} has the shape {value.shape}, and {expected} in the "
                "recording: expected the arguments that were recorded"
            )
    pairs = align(there, here)
    uncomputed = (*INPUT_PRIMITIVES, "result")
    computed, recorded = (
        {i for i, x in enumerate(values) if x.primitive not in uncomputed}
        for values in (here, there)
    )
    matched = computed.intersection(j for _, j in pairs)
    results = [[x for x in v if x.primitive == "result"] for v in (there, here)]
    shapes_of_results = ([x.shape for x in values] for values in results)
    asked_alike = operator.eq(*shapes_of_results)
    fewest = min(len(computed), len(recorded))
    if 4 * len(matched) < fewest and not asked_alike:
        raise NoiseError(
            f"{recording.function}: a recording of another program: "
            f"{len(matched)} of the {len(computed)} values of "
            f"{name} at these arguments have a counterpart there; expected one of the "
            "same function, or of another version of it, at arguments of these shapes"
        )
    unmatched = []
    sides = there, here
    alone = [
        set(range(len(values))) - {pair[side] for pair in pairs}
        for side, values in enumerate(sides)
    ]
    edges = [(-1, -1), *pairs, (len(there), len(here))]
    for start, end in itertools.pairwise(edges):
        gaps = [
            [
                v
                for i, v in enumerate(values[x + 1 : y], x + 1)
                if i in free and not v.unread
            ]
            for values, x, y, free in zip(sides, start, end, alone, strict=True)
        ]
        # Pairs of the same names are in no order.
        for free, x, y in zip(alone, start, end, strict=True):
            free.difference_update(range(x + 1, y))
        if any(gaps):
            theirs, ours = (f"{v[0].path} {v[0].source}" if v else "" for v in gaps)
            counts = len(gaps[1]), len(gaps[0])
            unmatched.append(UnmatchedEquations(ours, theirs, counts))
    return pairs, tuple(unmatched)


def align(a: Values, b: Values) -> Pairs:
    """Returns the pairs of values of two programs that correspond, in order."""
    kinds_a, kinds_b = list(map(_kind, a)), list(map(_kind, b))
    if kinds_a == kinds_b:
        return [(i, i) for i in range(len(a))]
    inner = [[i for i, x in enumerate(v) if x.primitive not in _NAMED] for v in (a, b)]
    pairs = _align_equations([a[i] for i in inner[0]], [b[j] for j in inner[1]])
    equations = [(inner[0][i], inner[1][j]) for i, j in pairs]
    arguments, results = (_pair_named(a, b, primitive) for primitive in _NAMED)
    return [*arguments, *equations, *results]


def near(a: Recorded, b: Recorded) -> bool:
    """Returns whether two values of a kind may be the same, by first executions."""
    x, y = (v.values[:1] for v in (a, b))
    gap = np.linalg.norm(x - y)
    return bool(gap <= SAME_VALUE_DISTANCE * max(np.linalg.norm(x), np.linalg.norm(y)))


def same_up_to_a_factor(x: np.ndarray, y: np.ndarray) -> bool:
    """Returns whether a factor makes two arrays near, and much nearer than they are."""
    norms = float(np.linalg.norm(x) * np.linalg.norm(y))
    cosine = float(x @ y) / norms if norms else 0.0
    largest = max(float(np.linalg.norm(x)), float(np.linalg.norm(y)))
    if not largest:
        return False
    # What the best factor leaves of the larger one, the sine of the angle, and what the
    # factor 1 leaves.
    by_factor = math.sqrt(max(0.0, 1 - cosine**2))
    distance = float(np.linalg.norm(x - y)) / largest
    return bool(by_factor <= min(SAME_VALUE_DISTANCE, distance / 2))


def _kind(value: Recorded) -> tuple:
    """Returns the properties that two values must share to be the same one."""
    name = value.path if value.primitive in _NAMED else ""
    return value.within, value.primitive, value.shape, value.dtype, name


def _pair_named(a: Values, b: Values, primitive: str) -> Pairs:
    """Returns pairs of arguments or results of the same names.

    If as many others are left, of the same shapes, those of nearby values are paired,
    and the rest in order.
    """
    sides = [
        {x.path: i for i, x in enumerate(v) if x.primitive == primitive} for v in (a, b)
    ]
    pairs = [
        (sides[0].pop(name), sides[1].pop(name))
        for name in [*sides[1]]
        if name in sides[0]
    ]
    left, right = (list(names.values()) for names in sides)
    if sorted(a[i].shape for i in left) != sorted(b[j].shape for j in right):
        return pairs
    for fits in (near, lambda x, y: True):
        for j in list(right):
            alike = (i for i in left if a[i].shape == b[j].shape and fits(a[i], b[j]))
            if (i := next(alike, None)) is not None:
                pairs.append((i, j))
                left.remove(i)
                right.remove(j)
    return pairs


def _align_equations(a: Values, b: Values) -> Pairs:
    """Returns the pairs of the values that are neither arguments nor results."""
    kinds_a, kinds_b = list(map(_kind, a)), list(map(_kind, b))

    def score(i: int, j: int) -> int:
        if kinds_a[i] != kinds_b[j]:
            return 0
        return (NEAR if near(a[i], b[j]) else FAR) + _same_line(a[i], b[j])

    def is_certain(i: int, j: int) -> bool:
        # Nearby values of lines with other texts may be those of other equations.
        have_texts = bool(a[i].text and b[j].text)
        return score(i, j) >= NEAR + have_texts

    shorter = min(len(a), len(b))
    start = next((i for i in range(shorter) if not is_certain(i, i)), shorter)
    most, n, m = shorter - start, len(a), len(b)
    ends = (i for i in range(most) if not is_certain(n - 1 - i, m - 1 - i))
    end = next(ends, most)
    n, m = n - end, m - end
    if (n - start) * (m - start) > MAX_PAIRS:
        match = difflib.SequenceMatcher(None, kinds_a, kinds_b, autojunk=False)
        blocks = match.get_matching_blocks()
        return [(x.a + i, x.b + i) for x in blocks for i in range(x.size)]
    scores = np.array(
        [[score(i, j) for j in range(start, m)] for i in range(start, n)], int
    ).reshape(n - start, m - start)
    pairs = [(i, i) for i in range(start)]
    pairs += [(start + i, start + j) for i, j in _best_pairs(scores)]
    pairs += [(n + k, m + k) for k in range(end)]
    neighbours = {(-1, -1), *pairs, (len(a), len(b))}
    # A single distant pair among equations without counterparts is a coincidence,
    # unless the arguments or the results are next to it or its source line is the same.
    return [
        (i, j)
        for i, j in pairs
        if {(i - 1, j - 1), (i + 1, j + 1)} & neighbours
        or near(a[i], b[j])
        or _same_line(a[i], b[j])
    ]


def _same_line(a: Recorded, b: Recorded) -> bool:
    """Returns whether the texts of two source lines are known and the same."""
    return bool(a.text) and a.text == b.text


def _best_pairs(scores: np.ndarray) -> list[tuple[int, int]]:
    """Returns pairs of rows and columns, in order, of the largest sum of scores."""
    n, m = scores.shape
    # The largest sum from each row and column on.
    total = np.zeros((n + 1, m + 1), int)
    for i in range(n - 1, -1, -1):
        paired = np.where(scores[i] > 0, total[i + 1, 1:] + scores[i], 0)
        best = np.maximum(total[i + 1, :-1], paired)
        total[i, :-1] = np.maximum.accumulate(best[::-1])[::-1]
    pairs, i, j = [], 0, 0
    while i < n and j < m:
        if scores[i, j] and total[i, j] == total[i + 1, j + 1] + scores[i, j]:
            pairs.append((i, j))
            i, j = i + 1, j + 1
        elif total[i, j] == total[i + 1, j]:
            i += 1
        else:
            j += 1
    return pairs
