"""Finds hints in the numbers of two arrays to the cause of their difference.

`array_hint` tries the content of an array in another order. `program_hint` evaluates
the lines of a layer again with other equations: another epsilon, another GELU, a
transposed square matrix. `fitted_hint` fits a factor or an offset, and `few_hint` says
that few numbers differ. A hint is given only where nothing but noise is left.
"""

import functools
import itertools
import math
from collections.abc import Callable, Iterator, Sequence

import jax
import numpy as np
from jax import numpy as jnp

from prednet_jax.noise.leaves import rms, subtract
from prednet_jax.noise.questions.segments import Node, Program

EPSILONS = (0.0, 1e-12, 1e-8, 1e-7, 1e-6, 1e-5, 1e-4, 1e-3, 1e-2)
# Blocks of an axis, such as gates, whose orders are tried; longest axis split in two.
BLOCKS, LONGEST = (2, 3, 4), 4096
# A number differs if it is so many times further than under noise.
FEW = 3.0


def array_hint(ours: np.ndarray, theirs: np.ndarray, explains: Callable) -> str:
    """Returns the first change that makes `ours` the reference, in words, or "".

    `explains(changed, part)` returns whether only noise is left, within a part.
    """
    broken = ~np.isfinite(ours), ~np.isfinite(theirs)
    for here, there, where in ((*broken, "here"), (*broken[::-1], "in the reference")):
        count = int(np.sum(here & ~there))
        if count:
            return f"NaN or infinite {where} alone, in {count} of {here.size} elements"
    everywhere = (...,)
    for text, changed in _reordered(ours):
        if explains(changed, everywhere):
            return f"the same numbers in another order: {text}"
    for axis, step in itertools.product(range(ours.ndim), (1, -1)):
        inner = (*[slice(None)] * axis, slice(1, None) if step > 0 else slice(-1))
        if ours.shape[axis] > 3 and explains(np.roll(ours, step, axis), inner):
            return f"shifted by one along axis {axis}"
    return ""


def fitted_hint(ours: np.ndarray, theirs: np.ndarray, explains: Callable) -> str:
    """Returns the factor or offset that gives the reference, in words, or "".

    It is one number, or one for each index of an axis.
    """
    if np.iscomplexobj(ours) or np.iscomplexobj(theirs):
        return ""
    x, r = ours.astype(float), theirs.astype(float)
    with np.errstate(all="ignore"):
        # A mask such as -1e9 is left as it is.
        size = np.abs(r)
        numbers = size[np.isfinite(size) & (size > 0)]
        if not numbers.size:
            return ""
        usual = size <= 1e4 * np.median(numbers)
        x0, r0 = np.where(usual, x, 0), np.where(usual, r, 0)
        for axis in (None, *(d for d, n in enumerate(x.shape) if 1 < n < x.size)):
            along = tuple(d for d in range(x.ndim) if d != axis)
            sums = functools.partial(np.sum, axis=along, keepdims=True)
            # Of one number, or equal ones, any factor would explain the difference.
            differs = x0 != r0
            least = np.min(np.where(differs, x0, np.inf), along)
            most = np.max(np.where(differs, x0, -np.inf), along)
            if np.any(least == most):
                continue
            factor = np.nan_to_num(sums(x0 * r0) / sums(x0 * x0), nan=1.0)
            offset = sums(r0 - x0) / sums(usual)
            for what, values, changed in (
                ("factor", factor, x * factor),
                ("offset", offset, x + offset),
            ):
                adjusted = np.where(usual, changed, x)
                nearer = 2 * rms(subtract(adjusted, r)) < rms(subtract(x, r))
                if nearer and explains(adjusted, (...,)):
                    return _fitted_text(what, values, axis)
    return ""


def _fitted_text(what: str, values: np.ndarray, axis: int | None) -> str:
    """Describes a factor or an offset."""
    article = "an" if what == "offset" else "a"
    if axis is None:
        constant = "a constant" if what == "factor" else "an"
        return f"{constant} {what} of {values.item():.6g}"
    values = values.ravel()
    away = np.abs(values - (what == "factor"))
    changed = np.flatnonzero(away > 1e-3 * away.max())
    if changed.size == 1:
        at = f"at {changed[0]} of axis {axis}"
        return f"{article} {what} of {values[changed[0]]:.6g} {at}"
    low, high = values.min(), values.max()
    return f"{article} {what} for each index of axis {axis}, {low:.3g} to {high:.3g}"


def few_hint(
    ours: np.ndarray, theirs: np.ndarray, noise: np.ndarray, explains: Callable
) -> str:
    """Returns that few of the numbers differ, and where, or "".

    `noise` is the largest difference that noise makes in each number.
    """
    with np.errstate(all="ignore"):
        away = np.abs(ours * 1.0 - theirs * 1.0)
        size = np.abs(theirs * 1.0)
    differs = away > FEW * np.maximum(noise, 2.0**-23 * size)
    count = int(np.count_nonzero(differs))
    if not 0 < count <= ours.size // 2:
        return ""
    if not explains(np.where(differs, theirs, ours), (...,)):
        return ""
    places = np.argwhere(differs)
    text = f"in {count} of {ours.size} numbers alone"
    if count == 1:
        return f"{text}, at {tuple(places[0].tolist())}"
    same = [
        d for d, size in enumerate(ours.shape) if size > 1 and not np.ptp(places[:, d])
    ]
    return f"{text}, at {places[0, same[0]]} of axis {same[0]}" if same else text


def program_hint(
    program: Program,
    nodes: Sequence[Node],
    evaluate: Callable[[dict[int, Callable]], np.ndarray],
    theirs: np.ndarray,
    explains: Callable,
) -> str:
    """Returns the change of an equation that gives the reference, or "".

    Args:
        program: the program.
        nodes: the nodes that compute one layer.
        evaluate: returns the layer with other functions for some nodes, by their `id`.
        theirs: the reference's value of the layer.
        explains: `explains(changed, part)`, as for `array_hint`.
    """
    for node in nodes:
        hints = []
        for text, apply in _changes(program, node):
            result = evaluate({id(node): apply})
            if explains(result, (...,)):
                distance = float(np.linalg.norm(np.nan_to_num(result - theirs)))
                hints.append((distance, text))
        if hints:
            return min(hints)[1] + (f", at {node.sources[0]}" if node.sources else "")
    return ""


def _reordered(x: np.ndarray) -> Iterator[tuple[str, np.ndarray]]:
    """Yields arrays with the same content in another order, described."""
    for axis, size in enumerate(x.shape):
        if size < 2:
            continue
        yield f"reversed along axis {axis}", np.flip(x, axis)
        for count in (n for n in BLOCKS if size % n == 0):
            parts = np.split(x, count, axis)
            for order in itertools.permutations(range(count)):
                if list(order) != sorted(order):
                    what = "halves" if count == 2 else f"{count} blocks (gates)"
                    text = f"{what} of axis {axis} swapped: {order}"
                    yield text, np.concatenate([parts[i] for i in order], axis)
        for count in range(2, size // 2 + 1 if size <= LONGEST else 0):
            if size % count == 0:
                shape = (*x.shape[:axis], count, size // count, *x.shape[axis + 1 :])
                moved = x.reshape(shape).swapaxes(axis, axis + 1).reshape(x.shape)
                text = f"axis {axis} interleaved, {size // count} by {count}"
                yield text, moved
    for i, j in itertools.combinations(range(x.ndim), 2):
        if x.shape[i] == x.shape[j]:
            yield f"axes {i} and {j} transposed", x.swapaxes(i, j)


def _changes(program: Program, node: Node) -> Iterator[tuple[str, Callable]]:
    """Yields other functions for a node, described."""
    name, apply = node.step.name, node.apply
    kinds = [program.types[number] for number in node.operands]
    if name == "dot_general":
        for i, kind in enumerate(kinds):
            if len(kind.shape) == 2 and kind.shape[0] == kind.shape[1]:
                text = "a transposed square matrix"
                yield text, lambda *x, i=i: apply(*_with(x, i, x[i].T))
    elif any(jnp.issubdtype(kind.dtype, jnp.complexfloating) for kind in kinds):
        return  # The other formulas are of real numbers.
    elif name == "add":
        for i, kind in enumerate(kinds):
            value = program.constants.get(node.operands[i])
            # A small number that no argument changes.
            if value is None or kind.shape or not 0 < abs(float(value)) <= 0.1:
                continue
            for there in EPSILONS:
                text = f"another epsilon: {float(value):.2g} here, {there:.2g} there"
                epsilon = np.asarray(there, kind.dtype)
                yield text, lambda *x, i=i, e=epsilon: apply(*_with(x, i, e))
    elif name in ("erf", "erfc"):
        yield "another GELU: exact here, by tanh there", _erf_by_tanh(name)
    elif name == "tanh":
        yield "another GELU: by tanh here, exact there", _exact_erf


_TANH = math.sqrt(2 / math.pi)


def _erf_by_tanh(name: str) -> Callable[[jax.Array], list[jax.Array]]:
    """Returns erf or erfc, as the approximate GELU computes it."""

    def apply(x: jax.Array) -> list[jax.Array]:
        u = np.sqrt(2) * x
        y = jnp.tanh(_TANH * (u + 0.044715 * u**3))
        return [(y if name == "erf" else 1 - y).astype(x.dtype)]

    return apply


def _exact_erf(x: jax.Array) -> list[jax.Array]:
    """Returns erf in place of the tanh of the approximate GELU."""
    t, u = np.asarray(x, float) / _TANH, np.asarray(x, float) / _TANH
    for _ in range(60):
        u = u - (u + 0.044715 * u**3 - t) / (1 + 3 * 0.044715 * u**2)
    return [jax.lax.erf(jnp.asarray(u / math.sqrt(2), x.dtype))]


def _with(operands: tuple, i: int, value: object) -> list:
    """Returns operands with another one at a place."""
    return [value if k == i else x for k, x in enumerate(operands)]
