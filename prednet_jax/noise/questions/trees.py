"""Matches the weights of two frameworks, up to the order of their axes.

Two arrays are paired if they hold the same numbers, whatever their names and axes; of
several such pairs, the names decide. Weights that one framework keeps in one array and
another in several (gates, the projections of attention) are paired block by block. The
remaining weights are paired by shape, nearness and name, and differ.
"""

import itertools
import os
from collections import Counter
from collections.abc import Callable, Sequence
from typing import NamedTuple

import jax
import numpy as np
from jax import numpy as jnp

from prednet_jax.noise.leaves import equal_elements, rms, subtract, wide_leaves
from prednet_jax.noise.questions import layouts, names
from prednet_jax.noise.questions.hints import array_hint, fitted_hint
from prednet_jax.noise.tables import format_table, unmatched_lines
from prednet_jax.noise.types import PyTree

# The largest distance of sorted numbers of equal weights: bfloat16 keeps 8 bits.
CONTENT = 2.0**-7
# A weight differs no more than by rounding: in units of the last place of float32.
ULPS = 4.0 * 2.0**-23


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
    """

    pairs: tuple[WeightPair, ...]
    unmatched: tuple[tuple[str, ...], tuple[str, ...]]
    counters: tuple[str, ...] = ()

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
        text += [f"counters, no weights: {', '.join(self.counters)}"][
            : bool(self.counters)
        ]
        equal = "all weights are equal up to the order of axes"
        if not self.first and any(self.unmatched):
            equal = "all pairs are equal, but not every weight has a counterpart"
        if not self.pairs:
            equal = "no weight has a counterpart, so none was compared"
        text.append("not all weights are equal" if self.first else equal)
        return "\n".join(text)


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
    here, there = (
        names.arrays_of(
            what, tree if isinstance(tree, str | os.PathLike) else _flat(tree)
        )
        for what, tree in (("params", params), ("reference", reference))
    )
    place = {name: i for i, name in enumerate(here)}
    rest = (dict(here), dict(there))
    pairs = _pairs(*rest, lambda v, r: 0.0 if _same_content(v, r) else None)
    pairs += _blocks(*rest) + [(n, t, v, r) for t, n, r, v in _blocks(*rest[::-1])]
    pairs += _pairs(*rest, _nearness)
    # Only those that no weight was paired with.
    counters = tuple(n for side in rest for n, x in side.items() if _is_counter(x))
    for side in rest:
        for name in [n for n, x in side.items() if _is_counter(x)]:
            del side[name]
    judged = [
        _judged(*pair, *order)
        for pair, order in zip(pairs, _orders(pairs), strict=True)
    ]
    judged.sort(key=lambda p: place.get(p.name, place.get(p.name.partition("[")[0], 0)))
    return Trees(tuple(judged), (tuple(rest[0]), tuple(rest[1])), counters)


Weights = dict[str, np.ndarray]
_Found = tuple[str, str, np.ndarray, np.ndarray]


def _flat(tree: PyTree) -> dict[str, PyTree]:
    leaves, _ = jax.tree_util.tree_flatten_with_path(tree)
    return {names.leaf_name(keys): x for keys, x in leaves}


def _same_content(x: np.ndarray, y: np.ndarray) -> bool:
    """Returns whether two arrays hold the same numbers in any order."""
    if x.size != y.size:
        return False
    a, b = (np.sort(v, axis=None) for v in wide_leaves([x, y]))
    sizes = np.abs(b)
    least = CONTENT**2 * float(np.max(sizes, initial=0, where=np.isfinite(sizes)))
    return bool(np.allclose(a, b, CONTENT, least, equal_nan=True))


def _is_counter(x: np.ndarray) -> bool:
    """Returns whether an array is a count, such as of the batches seen."""
    return x.size == 1 and x.dtype.kind in "iu"


def _similarity(a: str, b: str) -> float:
    return names.similarity(*("".join(names.canonical(name)) for name in (a, b)))


def _nearness(v: np.ndarray, r: np.ndarray) -> float:
    return min(_distance(v, r, fit) for fit in layouts.fitting(r, v.shape))


def _pairs(
    here: Weights, there: Weights, cost: Callable[..., float | None]
) -> list[_Found]:
    """Takes pairs whose shapes fit, by cost and similar names; a cost None is none."""
    costs = [
        (price - _similarity(n, t), n, t)
        for n, v in here.items()
        for t, r in there.items()
        if layouts.fitting(r, v.shape) and (price := cost(v, r)) is not None
    ]
    found = []
    for _, n, t in sorted(costs, key=lambda x: x[0]):
        if n in here and t in there:
            found.append((n, t, here.pop(n), there.pop(t)))
    return found


def _blocks(small: Weights, large: Weights) -> list[_Found]:
    """Takes the weights that are a block of a larger one."""
    found, used = [], set()
    for n, t in itertools.product(list(small), large):
        v, r = small.get(n), large[t]
        count = r.size // v.size if v is not None and v.size else 0
        if count < 2 or v is None:
            continue
        for axis in (i for i, size in enumerate(r.shape) if size % count == 0):
            for i, block in enumerate(np.split(r, count, axis)):
                if (
                    n in small
                    and _same_content(v, block)
                    and layouts.fitting(block, v.shape)
                ):
                    label = f"{t}[block {i} of {count}]"
                    found.append((n, label, small.pop(n), block))
                    used.add(t)
    for t in used:
        del large[t]
    return found


def _distance(v: np.ndarray, r: np.ndarray, layout: layouts.Layout) -> float:
    arranged = layout.arrange(r, v.shape)
    return 1.0 if arranged is None else layouts.distance(arranged, v)


def _orders(pairs: Sequence[_Found]) -> list[tuple[layouts.Layout, bool]]:
    """Returns the order of axes of each pair, and whether the others have another."""
    far = [
        {fit: _distance(v, r, fit) for fit in layouts.fitting(r, v.shape)}
        for _, _, v, r in pairs
    ]
    shared = layouts.find(
        [(r, v.shape) for _, _, v, r in pairs],
        lambda orders: np.array([x[o] for x, o in zip(far, orders, strict=True)]),
    )
    own = []
    votes: Counter[layouts.Layout] = Counter()
    for distances, usual in zip(far, shared, strict=True):
        nearest = min(distances, key=lambda fit: round(distances[fit], 6))
        # Among unequal weights the nearest order of axes means little.
        clear = distances[nearest] < distances[usual] - layouts.CLEARLY
        own.append(nearest if clear else usual)
        # Two weights that disagree accuse neither, but a shape that fits alone does.
        votes[own[-1]] += len(pairs) if len(distances) == 1 else 1
    return [(o, votes[u] > votes[o]) for o, u in zip(own, shared, strict=True)]


def _judged(
    name: str,
    reference: str,
    v: np.ndarray,
    r: np.ndarray,
    order: layouts.Layout,
    is_other: bool,
) -> WeightPair:
    """Compares two weights and returns the pair.

    `order` is the order of axes, and `is_other` whether the others have another one.
    """
    moved = order.arrange(r, v.shape)
    assert moved is not None
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
    if is_other:
        hint = "transposed: the others have another order of axes"
    elif order.ours == order.theirs > 3 and order.axes == (*range(order.ours),)[::-1]:
        hint = "all axes reversed: height and width of a kernel are exchanged"
    elif rung == "beyond":
        atol = 1e-6 * float(np.max(size, initial=0))

        def explains(x: np.ndarray, part: tuple[slice, ...]) -> bool:
            return bool(np.allclose(x[part], other[part], 1e-5, atol, True))

        hint = array_hint(wide, other, explains) or fitted_hint(wide, other, explains)
    layout = "the same" if order.is_plain else str(order)
    return WeightPair(name, reference, rung, rms(away) / (rms(size) or 1), layout, hint)
