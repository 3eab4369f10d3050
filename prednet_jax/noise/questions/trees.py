"""Matches the weights of two frameworks, up to the order of their axes.

Two arrays are paired if they hold the same numbers, whatever their names and axes; of
several such pairs, the names decide. Weights that one framework keeps in one array and
another in several (gates, the projections of attention) are paired block by block, and
two that one framework adds (the biases of a recurrent cell) with their sum. The
remaining weights are paired by shape, nearness and name, and differ.
"""

import os
from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

import jax
import numpy as np
from jax import numpy as jnp

from prednet_jax.noise.leaves import equal_elements, rms, subtract, wide_leaves
from prednet_jax.noise.questions import layouts, names, weight_pairs
from prednet_jax.noise.questions.exchanges import exchanged
from prednet_jax.noise.questions.hints import array_hint, fitted_hint
from prednet_jax.noise.questions.weight_blocks import blocks, sums
from prednet_jax.noise.questions.weight_pairs import Found, Weights
from prednet_jax.noise.tables import format_table, unmatched_lines
from prednet_jax.noise.types import PyTree

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
    index = {name: i for i, name in enumerate(here)}
    sides = (dict(here), dict(there))
    pairs = weight_pairs.pairs_of(*sides, content=True)
    for take in (blocks, sums):
        pairs += take(*sides) + [(n, t, v, r) for t, n, r, v in take(*sides[::-1])]
    pairs += weight_pairs.pairs_of(*sides, content=False)
    # Only those that no weight was paired with.
    counters = tuple(
        n for side in sides for n, x in side.items() if weight_pairs.is_counter(x)
    )
    mine, yours = (
        tuple(n for n, x in side.items() if not weight_pairs.is_counter(x))
        for side in sides
    )
    swaps, turned = exchanged(
        [p[:2] for p in pairs],
        [p[2].size for p in pairs],
        [p[2].ndim != p[3].ndim and 1 in (*p[2].shape, *p[3].shape) for p in pairs],
    )
    named = {
        i: pairs[j][1]
        for i, j in swaps.items()
        if not weight_pairs.same_content(pairs[i][2], pairs[j][3])
    }
    judged = [
        _judged(pair, *order, named.get(i, ""))
        for i, (pair, order) in enumerate(zip(pairs, _orders(pairs), strict=True))
    ]

    def position(pair: WeightPair) -> tuple[int, int, str]:
        # A block has its place by the name of the whole array.
        whole = pair.name.rpartition("[")[0]
        return index.get(pair.name, index.get(whole, 0)), len(pair.name), pair.name

    judged.sort(key=position)
    notes = [_EXCHANGED] if named else []
    if turned:
        one, other, *_ = pairs[min(turned)]
        notes.append(_TURNED.format(one, other))
    return Trees(tuple(judged), (mine, yours), counters, tuple(notes))


def _flat(what: str, tree: PyTree) -> Weights:
    """Returns the arrays of a pytree, or of an .npz file, by name."""
    if not isinstance(tree, str | os.PathLike):
        leaves, _ = jax.tree_util.tree_flatten_with_path(tree)
        tree = {names.path_name(keys): x for keys, x in leaves}
    return names.arrays_of(what, tree)


def _orders(pairs: Sequence[Found]) -> list[tuple[layouts.Layout, bool]]:
    """Returns the order of axes of each pair, and whether the others have another.

    Of the orders that give a pair its shape, more of the others may have another one.
    """
    by_pair = [weight_pairs.distances_of(v, r) for _, _, v, r in pairs]
    own: list[layouts.Layout | None] = []
    votes: Counter[layouts.Layout] = Counter()
    for distances in by_pair:
        nearest = min(distances, key=lambda fit: round(distances[fit], 6))
        # Among unequal weights the nearest order of axes means little.
        spread = max(distances.values()) - distances[nearest]
        is_clear = spread > layouts.CLEARLY or len(distances) == 1
        own.append(nearest if is_clear else None)
        # Two weights that disagree accuse neither, but a shape that fits alone does.
        votes[nearest] += is_clear * (len(pairs) if len(distances) == 1 else 1)
    orders = []
    for order, distances in zip(own, by_pair, strict=True):
        usual = max(distances, key=lambda fit: votes[fit])
        order = order or usual
        orders.append((order, votes[usual] > votes[order]))
    return orders


def _judged(
    pair: Found, order: layouts.Layout, is_other: bool, named: str
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
    exact = all(x.dtype.kind in "biu" for x in (v, moved))
    rung, hint = "beyond", ""
    if (v == moved).all() if exact else not away.any():
        rung = "identical"
    elif not exact and (away <= ULPS * np.fmin(size, np.abs(wide))).all():
        rung = "rounding"
    elif not (exact or np.iscomplexobj(wide) or np.iscomplexobj(other)):
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
            sample = weight_pairs.spaced(mine.shape, weight_pairs.SAMPLE)
            return all(
                np.allclose(a, b, 1e-5, atol, True)
                for a, b in ((mine[sample], yours[sample]), (mine, yours))
            )

        hint = array_hint(wide, other, explains) or fitted_hint(wide, other, explains)
    layout = "the same" if order.is_plain else str(order)
    return WeightPair(name, reference, rung, rms(away) / (rms(size) or 1), layout, hint)
