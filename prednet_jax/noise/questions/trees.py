"""Matches the weights of two frameworks, up to the order of their axes.

Two arrays are paired if they hold the same numbers, whatever their names and axes; of
several such pairs, the names decide. Weights that one framework keeps in one array and
another in several (gates, the projections of attention) are paired block by block, and
two that one framework adds (the biases of a recurrent cell) with their sum. The
remaining weights are paired by shape, nearness and name, and differ.
"""

import functools
import hashlib
import itertools
import math
import os
import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import jax
import numpy as np
from jax import numpy as jnp

from prednet_jax.noise.leaves import equal_elements, rms, subtract, wide_leaves
from prednet_jax.noise.questions import layouts, names
from prednet_jax.noise.questions.exchanges import exchanged
from prednet_jax.noise.questions.hints import array_hint, fitted_hint
from prednet_jax.noise.tables import format_table, unmatched_lines
from prednet_jax.noise.types import PyTree

# The largest distance of sorted numbers of equal weights: bfloat16 keeps 8 bits.
CONTENT = 2.0**-7
# Arrays of other numbers are paired by the distance of so many of them, since every
# array is compared with all of its size.
SAMPLE = 4096
_EXTREMES = (np.fmax, np.fmin)
# A weight differs no more than by rounding: in units of the last place of float32.
ULPS = 4.0 * 2.0**-23
_EXCHANGED = (
    "exchanged: the port is right if it also uses these weights in each other's place; "
    "then only their names differ"
)
_TURNED = (
    "layers are numbered from the other end: {} is {}; the port is right if it also "
    "runs them in the other order"
)


class WeightPair(NamedTuple):
    """Two weights that belong together.

    Attributes:
        name: the name here.
        reference: the name in the reference, with the block if it is a part.
        rung: `identical`, `rounding`, `bf16`, `fp16` or `beyond`.
        difference: RMS relative to the reference.
        layout: the order of axes of the reference here.
        hint: a hint in the numbers to the cause of a difference.
    """

    name: str
    reference: str
    rung: str
    difference: float
    layout: str
    hint: str = ""


class Trees(NamedTuple):
    """The result of `compare_trees`.

    Attributes:
        pairs: the pairs in the order of the weights here.
        unmatched: names here, and names of the reference, without a counterpart.
        counters: single integers without a counterpart, which are no weights.
        notes: what only a reader of the port can judge.
    """

    pairs: tuple[WeightPair, ...]
    unmatched: tuple[tuple[str, ...], tuple[str, ...]]
    counters: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def first(self) -> WeightPair | None:
        """The first pair that is not equal up to rounding and the order of axes."""
        equal = ("identical", "rounding")
        return next((p for p in self.pairs if p.rung not in equal or p.hint), None)

    @property
    def equal(self) -> bool:
        """Whether all weights have a counterpart and are equal up to the layout."""
        return not (self.first or any(self.unmatched))

    def __str__(self) -> str:
        head = ["here", "reference", "cause", "difference", "order of axes", ""]
        text = format_table(head, self.pairs, "<<<><<") if self.pairs else []
        text += unmatched_lines(self.unmatched)
        if self.counters:
            text.append(f"counters, no weights: {', '.join(self.counters)}")
        text += self.notes
        equal = "all weights are equal up to the order of axes"
        if not self.first and any(self.unmatched):
            equal = "all pairs are equal, but not every weight has a counterpart"
        if not self.pairs:
            equal = "no weight has a counterpart, so none was compared"
        text.append("not all weights are equal" if self.first else equal)
        return "\n".join(text)


@np.errstate(over="ignore", invalid="ignore")
def compare_trees(params: PyTree, reference: PyTree) -> Trees:
    """Compares the weights of a port with the weights of its original.

    Args:
        params: a pytree of arrays.
        reference: arrays by name (such as a state_dict as NumPy arrays), an .npz file
            of them, or a pytree.

    Raises:
        NoiseError: one of them holds no arrays, or values that are not numbers.

    Example:
        >>> import numpy as np
        >>> from prednet_jax import noise
        >>> kernel = np.random.default_rng(0).normal(size=(4, 6)).astype(np.float32)
        >>> noise.compare_trees({"dense": kernel}, {"fc.weight": kernel.T}).equal
        True
    """
    here, there = _flat("params", params), _flat("reference", reference)
    place = {name: i for i, name in enumerate(here)}
    rest = (dict(here), dict(there))
    pairs = _pairs(*rest, content=True)
    for some in (_blocks, _sums):
        pairs += some(*rest) + [(n, t, v, r) for t, n, r, v in some(*rest[::-1])]
    pairs += _pairs(*rest, content=False)
    # Only those that no weight was paired with.
    counters = tuple(n for side in rest for n, x in side.items() if _is_counter(x))
    mine, yours = (
        tuple(n for n, x in side.items() if not _is_counter(x)) for side in rest
    )
    others, turned = exchanged(
        [p[:2] for p in pairs],
        [p[2].size for p in pairs],
        [p[2].ndim != p[3].ndim and 1 in (*p[2].shape, *p[3].shape) for p in pairs],
    )
    named = {
        i: pairs[j][1]
        for i, j in others.items()
        if not _same_content(pairs[i][2], pairs[j][3])
    }
    judged = [
        _judged(pair, *order, named.get(i, ""))
        for i, (pair, order) in enumerate(zip(pairs, _orders(pairs), strict=True))
    ]

    def position(pair: WeightPair) -> tuple[int, int, str]:
        # A block has its place by the name of the whole array.
        whole = pair.name.rpartition("[")[0]
        return place.get(pair.name, place.get(whole, 0)), len(pair.name), pair.name

    judged.sort(key=position)
    notes = [_EXCHANGED] if named else []
    if turned:
        one, other, *_ = pairs[min(turned)]
        notes.append(_TURNED.format(one, other))
    return Trees(tuple(judged), (mine, yours), counters, tuple(notes))


Weights = dict[str, np.ndarray]
_Found = tuple[str, str, np.ndarray, np.ndarray]


def _flat(what: str, tree: PyTree) -> Weights:
    """Returns the arrays of a pytree, or of an .npz file, by name."""
    if not isinstance(tree, str | os.PathLike):
        leaves, _ = jax.tree_util.tree_flatten_with_path(tree)
        tree = {names.path_name(keys): x for keys, x in leaves}
    return names.arrays_of(what, tree)


def _same_content(x: np.ndarray, y: np.ndarray) -> bool:
    """Returns whether two arrays hold the same numbers in any order."""
    if x.size != y.size or x.size == 0:
        return x.size == y.size
    a, b = (np.sort(v, axis=None) for v in wide_leaves([x, y]))
    return bool(np.allclose(a, b, CONTENT, _least(b), equal_nan=True))


def _millionths(v: np.ndarray, r: np.ndarray) -> float:
    """Returns the distance in whole millionths, in the nearest order of axes."""
    return round(1e6 * _nearness(v, r)) * 1.0


def _least(x: np.ndarray, axis: int | None = None) -> np.ndarray:
    """Returns the size below which the numbers of an array are not told apart.

    With `axis` each row of this axis has its own.
    """
    sizes, known = np.abs(x), np.isfinite(x)
    return CONTENT**2 * np.max(sizes, axis, initial=0, where=known, keepdims=True)


def _is_counter(x: np.ndarray) -> bool:
    """Returns whether an array is a count, such as of the batches seen."""
    return x.size == 1 and x.dtype.kind in "iu"


def _similarity(a: str, b: str) -> float:
    return names.similarity(_joined(a), _joined(b))


@functools.lru_cache(maxsize=100_000)
def _joined(name: str) -> str:
    return "".join(names.canonical(name))


def _nearness(v: np.ndarray, r: np.ndarray, most: float = math.inf) -> float:
    return min(_distances(v, r, most).values())


def _distances(
    v: np.ndarray, r: np.ndarray, most: float = math.inf
) -> dict[layouts.Layout, float]:
    """Returns the distance in each order of axes that gives `r` the shape of `v`.

    About `most` numbers are compared.
    """
    some, fits = _spaced(v.shape, most), layouts.fitting(r, v.shape)
    return {
        fit: layouts.distance(fit.arrange(r, v.shape)[some], v[some]) for fit in fits
    }


def _spaced(shape: Sequence[int], most: float) -> tuple[slice, ...]:
    """Returns slices of about `most` numbers, evenly spaced along each axis."""
    steps = [1] * len(shape)
    while math.prod(n // step for n, step in zip(shape, steps, strict=True)) > most:
        steps[max(range(len(shape)), key=lambda i: shape[i] / steps[i])] *= 2
    return tuple(slice(None, None, step) for step in steps)


def _pairs(here: Weights, there: Weights, *, content: bool) -> list[_Found]:
    """Takes pairs whose shapes fit, by their distance and the likeness of their names.

    With `content` they have the same numbers, and names decide between equally near
    arrays only: the scales of all normalisations, for instance, are nearly 1.
    """
    alike: dict[tuple, str] = {}
    same = [
        {n: alike.setdefault((i, *_digest(x)), n) for n, x in side.items()}
        for i, side in enumerate((here, there))
    ]

    @functools.cache  # Many arrays are all zeros or all ones.
    def distance(n: str, t: str) -> float | None:
        v, r = here[n], there[t]
        if not content:
            return _nearness(v, r, SAMPLE)
        return _millionths(v, r) if _same_content(v, r) else None

    costs = [
        (far - _similarity(n, t), n, t)
        for n, t in list(_candidates(here, there, content=content))
        if (far := distance(same[0][n], same[1][t])) is not None
    ]
    found = []
    for _, n, t in sorted(costs, key=lambda x: x[0]):
        if n in here and t in there:
            found.append((n, t, here.pop(n), there.pop(t)))
    return found


def _candidates(
    here: Weights, there: Weights, *, content: bool
) -> Iterator[tuple[str, str]]:
    """Yields names whose shapes fit, with `content` only those of equal extremes."""
    sizes: dict[int, list[str]] = {}
    for t, r in there.items():
        sizes.setdefault(r.size, []).append(t)
    extremes = {
        size: np.stack([_extremes(there[t]) for t in several])
        for size, several in sizes.items()
        if content and size
    }
    for n, v in here.items():
        several = sizes.get(v.size, [])
        if v.size in extremes:
            theirs = extremes[v.size]
            near = np.isclose(
                _extremes(v), theirs, CONTENT, _least(theirs, 1), equal_nan=True
            )
            several = [several[i] for i in np.flatnonzero(near.all(1))]
        yield from ((n, t) for t in several if layouts.fitting(there[t], v.shape))


def _digest(x: np.ndarray) -> tuple[object, ...]:
    """Returns what only equal arrays have in common."""
    return x.shape, x.dtype, hashlib.blake2b(x.tobytes()).digest()


def _blocks(small: Weights, large: Weights) -> list[_Found]:
    """Takes the weights that are a block of a larger one; the other blocks stay."""
    found: list[_Found] = []
    cuts: dict[str, list[_Cut]] = {}

    @functools.cache
    def rows_of(t: str, axis: int) -> np.ndarray:
        return _extremes(large[t], axis)

    for n in [n for n, v in small.items() if v.size]:
        v = small[n]
        larger = [t for t, r in large.items() if r.size > v.size]
        places = [
            (t, cut)
            for t in sorted(larger, key=lambda t: -_similarity(n, t))
            for cut in _places(
                v, large[t], cuts.get(t, []), functools.partial(rows_of, t)
            )
        ]
        if places:
            t, cut = min(places, key=lambda x: _millionths(v, x[1].of(large[x[0]])))
            found.append((n, cut.label(t, large[t]), v, cut.of(large[t])))
            cuts[t] = [*cuts.get(t, []), cut]
            del small[n]
    for t, made in cuts.items():
        r = large.pop(t)
        large |= {cut.label(t, r): cut.of(r) for cut in _rest(r, made)}
    return found


def _extremes(x: np.ndarray, axis: int | None = None) -> np.ndarray:
    """Returns the largest and the smallest number, or those of each row of an axis."""
    (wide,) = wide_leaves([x])
    real = np.abs(wide) if np.iscomplexobj(wide) else wide
    others = tuple(i for i in range(x.ndim) if i != axis)
    return np.stack([f.reduce(real, others) for f in _EXTREMES])


def _sums(whole: Weights, parts: Weights) -> list[_Found]:
    """Takes the weights that are the sum of two vectors, or a block of such a sum.

    The names of the two, such as `bias_ih_l0` and `bias_hh_l0`, differ in one word.
    """
    alike: dict[tuple, list[str]] = {}
    for t, r in parts.items():
        is_vector = r.ndim == 1 and r.size > 1
        words = re.split(r"[^a-zA-Z\d]+", t) if is_vector else []
        for i, word in enumerate(words):
            if not re.search(r"\d", word) and r.dtype.kind not in "biu":
                others = *words[:i], i, *words[i + 1 :]
                alike.setdefault((r.size, *others), []).append(t)
    added = {
        f"({a} + {b})": (a, b)
        for several in alike.values()
        for a, b in itertools.combinations(several, 2)
    }
    sums = {name: parts[a] + parts[b] for name, (a, b) in added.items()}
    found = _pairs(whole, sums, content=True) + _blocks(whole, sums)
    for name in added.keys() - sums.keys():
        for part in added[name]:
            parts.pop(part, None)
    parts |= {name: x for name, x in sums.items() if name not in added}
    return found


class _Cut(NamedTuple):
    """A block of an array: the rows `start` to `stop` of an axis."""

    axis: int
    start: int
    stop: int

    def of(self, x: np.ndarray) -> np.ndarray:
        return x[(*[slice(None)] * self.axis, slice(self.start, self.stop))]

    def label(self, name: str, x: np.ndarray) -> str:
        """Returns the name of the block of an array."""
        rows, length = self.stop - self.start, x.shape[self.axis]
        if length % rows or self.start % rows:
            return f"{name}[{self.start}:{self.stop} of axis {self.axis}]"
        return f"{name}[block {self.start // rows} of {length // rows}]"


def _places(
    v: np.ndarray,
    r: np.ndarray,
    made: Sequence[_Cut],
    rows_of: Callable[[int], np.ndarray],
) -> Iterator[_Cut]:
    """Yields the blocks of `r` that hold the numbers of `v`.

    `made` are cuts that are taken, and `rows_of` returns the extremes of an axis' rows.
    """
    if _is_counter(v) and r.dtype.kind not in "iu":
        return
    for axis, length in enumerate(r.shape):
        rows, rest = divmod(v.size * length, r.size)
        block = _Cut(axis, 0, rows)
        if rest or rows == 0 or any(cut.axis != axis for cut in made):
            continue
        if not layouts.fitting(block.of(r), v.shape):
            continue
        # Heads and gates are of one size, so that blocks begin at multiples of it.
        # Sorting each would take long, but its extremes tell most.
        step = math.gcd(rows, length)
        theirs, fits = rows_of(axis), np.array(True)
        least = _least(theirs)
        for extreme, ours, each in zip(_EXTREMES, _extremes(v), theirs, strict=True):
            windows = np.lib.stride_tricks.sliding_window_view(each, rows)[::step]
            there = extreme.reduce(windows, -1)
            fits = fits & np.isclose(ours, there, CONTENT, least, equal_nan=True)
        for start in (np.flatnonzero(fits) * step).tolist():
            cut = _Cut(axis, start, start + rows)
            free = all(cut.stop <= x.start or x.stop <= cut.start for x in made)
            if free and _same_content(v, cut.of(r)):
                yield cut


def _rest(r: np.ndarray, made: Sequence[_Cut]) -> Iterator[_Cut]:
    """Yields the blocks of an array that are left, of one size if the others are."""
    axis, length = made[0].axis, r.shape[made[0].axis]
    sizes = {cut.stop - cut.start for cut in made}
    whole = len(sizes) == 1 and not any(
        x % min(sizes) for x in (length, *(cut.start for cut in made))
    )
    start = 0
    for stop in [*sorted(cut.start for cut in made), length]:
        rows = min(sizes) if whole else max(1, stop - start)
        yield from (_Cut(axis, i, i + rows) for i in range(start, stop, rows))
        start = next((cut.stop for cut in made if cut.start == stop), length)


def _orders(pairs: Sequence[_Found]) -> list[tuple[layouts.Layout, bool]]:
    """Returns the order of axes of each pair, and whether the others have another.

    Of the orders that give a pair its shape, more of the others may have another one.
    """
    far = [_distances(v, r) for _, _, v, r in pairs]
    own: list[layouts.Layout | None] = []
    votes: Counter[layouts.Layout] = Counter()
    for distances in far:
        nearest = min(distances, key=lambda fit: round(distances[fit], 6))
        # Among unequal weights the nearest order of axes means little.
        spread = max(distances.values()) - distances[nearest]
        is_clear = spread > layouts.CLEARLY or len(distances) == 1
        own.append(nearest if is_clear else None)
        # Two weights that disagree accuse neither, but a shape that fits alone does.
        votes[nearest] += is_clear * (len(pairs) if len(distances) == 1 else 1)
    found = []
    for order, distances in zip(own, far, strict=True):
        usual = max(distances, key=lambda fit: votes[fit])
        order = order or usual
        found.append((order, votes[usual] > votes[order]))
    return found


def _judged(
    pair: _Found, order: layouts.Layout, is_other: bool, named: str
) -> WeightPair:
    """Compares two weights and returns the pair.

    `order` is the order of axes, `is_other` whether the others have another one, and
    `named` the name there that the name here says, or "".
    """
    name, reference, v, r = pair
    moved = order.arrange(r, v.shape)
    wide, other = wide_leaves([v, moved])
    away = np.abs(subtract(wide, other))
    size = np.abs(np.where(np.isfinite(other), other, 0))
    whole = all(x.dtype.kind in "biu" for x in (v, moved))
    rung, hint = "beyond", ""
    if (v == moved).all() if whole else not away.any():
        rung = "identical"
    elif not whole and (away <= ULPS * np.fmin(size, np.abs(wide))).all():
        rung = "rounding"
    elif not (whole or np.iscomplexobj(wide) or np.iscomplexobj(other)):
        for narrow, label in ((jnp.bfloat16, "bf16"), (np.float16, "fp16")):
            with np.errstate(over="ignore"):
                rounded = [x.astype(narrow).astype(float) for x in (wide, other)]
            both = zip(rounded, (other, wide), strict=True)
            if any(equal_elements(x, y).all() for x, y in both):
                rung = label
    if named:
        hint = f"exchanged: by its name this is {named}"
    elif is_other:
        hint = "transposed: the others have another order of axes"
    elif order.ours == order.theirs > 3 and order.axes == (*range(order.ours),)[::-1]:
        hint = "all axes reversed: height and width of a kernel are exchanged"
    elif rung == "beyond":
        atol = 1e-6 * float(np.max(size, initial=0))

        def explains(x: np.ndarray, part: tuple[slice, ...]) -> bool:
            mine, yours = x[part], other[part]
            # Most changes are refused by some of the numbers.
            some = _spaced(mine.shape, SAMPLE)
            return all(
                np.allclose(a, b, 1e-5, atol, True)
                for a, b in ((mine[some], yours[some]), (mine, yours))
            )

        hint = array_hint(wide, other, explains) or fitted_hint(wide, other, explains)
    layout = "the same" if order.is_plain else str(order)
    return WeightPair(name, reference, rung, rms(away) / (rms(size) or 1), layout, hint)
