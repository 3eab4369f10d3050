"""Finds hints in the numbers of two arrays to the cause of their difference.

`array_hint` tries the content of an array in another order. `program_hint` evaluates
the lines of a layer again with other equations: another epsilon or another place for
it, another GELU, a transposed square matrix. `fitted_hint` fits a factor, an offset or
both, for the array or for each element of an axis, and `epsilon_hint` fits an epsilon.
A hint is given only where nothing but noise is left.
"""

import itertools
import math
from collections.abc import Callable, Iterable, Iterator

import jax
import numpy as np
from jax import numpy as jnp

from prednet_jax.noise.questions.segments import Node, Program

EPSILONS = (0.0, 1e-12, 1e-8, 1e-7, 1e-6, 1e-5, 1e-4, 1e-3, 1e-2)
# Blocks of an axis, such as gates, whose orders are tried; longest axis split in two.
BLOCKS, LONGEST = (2, 3, 4), 4096
# Per number fitted to an element of an axis, this many elements at least.
FITTED = 4
# Range in which an epsilon is searched.
SEARCHED = (1e-14, 100.0)


def array_hint(ours: np.ndarray, theirs: np.ndarray, explains: Callable) -> str:
    """Returns the first change that makes `ours` the reference, in words, or "".

    `explains(changed, part)` returns whether only noise is left, within a part.
    """
    broken = ~np.isfinite(ours), ~np.isfinite(theirs)
    for here, there, where in ((*broken, "here"), (*broken[::-1], "in the reference")):
        count = int(np.sum(here & ~there))
        if count:
            return f"NaN or infinite {where} alone, in {count} of {here.size} elements"
    whole = (...,)
    for text, changed in _reordered(ours):
        if explains(changed, whole):
            return f"the same numbers in another order: {text}"
    for axis, step in itertools.product(range(ours.ndim), (1, -1)):
        inner = (*[slice(None)] * axis, slice(1, None) if step > 0 else slice(-1))
        if ours.shape[axis] > 3 and explains(np.roll(ours, step, axis), inner):
            return f"shifted by one along axis {axis}"
    return ""


def fitted_hint(
    ours: np.ndarray, theirs: np.ndarray, explains: Callable, axes: Iterable[int | None]
) -> str:
    """Returns the factor and offset, of all or of an axis, that give the reference."""
    if ours.size < 2:
        return ""  # Of one number each factor would explain the difference.
    with np.errstate(all="ignore"):
        for axis in axes:
            for text, changed in _fitted(
                ours.astype(float), theirs.astype(float), axis
            ):
                if explains(changed, (...,)):
                    return text
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


def _fitted(
    x: np.ndarray, r: np.ndarray, axis: int | None
) -> Iterator[tuple[str, np.ndarray]]:
    """Yields the array with a factor or an offset that is fitted to the reference."""
    size = np.abs(r)
    usual = size <= 1e4 * np.median(size)
    x0, r0 = np.where(usual, x, 0), np.where(usual, r, 0)
    others = tuple(i for i in range(x.ndim) if i != axis)
    count = np.sum(usual, others, keepdims=True)
    if axis is not None and (x.shape[axis] < 2 or count.min() < FITTED):
        return
    factor = np.sum(x0 * r0, others, keepdims=True)
    factor = factor / np.sum(x0 * x0, others, keepdims=True)
    offset = np.sum(r0 - x0, others, keepdims=True) / count
    one, each = axis is None, f" for each element of axis {axis}"
    text = f"a constant factor of {factor.flat[0]:.6g}" if one else f"a factor{each}"
    yield text, np.where(usual, x * factor, x)
    text = f"an offset of {offset.flat[0]:.6g}" if one else f"an offset{each} (a bias?)"
    yield text, np.where(usual, x + offset, x)
    if count.min() < 2 * FITTED:
        return
    means = [np.sum(a, others, keepdims=True) / count for a in (x0, r0)]
    x1, r1 = (np.where(usual, a - m, 0) for a, m in zip((x, r), means, strict=True))
    factor = np.sum(x1 * r1, others, keepdims=True)
    factor = factor / np.sum(x1 * x1, others, keepdims=True)
    changed = np.where(usual, (x - means[0]) * factor + means[1], x)
    if one:
        offset = (means[1] - factor * means[0]).flat[0]
        yield f"a factor of {factor.flat[0]:.6g} and an offset of {offset:.6g}", changed
    else:
        yield f"a factor and an offset{each} (a scale before a bias?)", changed


def program_hint(
    program: Program,
    nodes: list[Node],
    evaluate: Callable[[dict[int, Callable]], np.ndarray],
    theirs: np.ndarray,
    explains: Callable,
) -> str:
    """Returns the change of an equation that gives the reference, in words, or "".

    `evaluate({id(node): apply})` is the layer with other functions for some nodes.
    """
    for node in nodes:
        for similar in _changes(program, nodes, node):
            found = []
            for text, changed in similar:
                result = evaluate(changed)
                if explains(result, (...,)):
                    found.append((_distance(result, theirs), text))
            if found:
                return min(found)[1] + _at(node)
    return ""


def _distance(result: np.ndarray, theirs: np.ndarray) -> float:
    with np.errstate(all="ignore"):
        return float(np.sum((result.astype(float) - theirs) ** 2))


def epsilon_hint(
    program: Program,
    nodes: list[Node],
    evaluate: Callable[[dict[int, Callable]], np.ndarray],
    theirs: np.ndarray,
    explains: Callable,
) -> str:
    """Returns the epsilon below a square root that gives the reference, or "".

    The distance to the reference rises in both directions from the right epsilon.
    """
    for node in nodes:
        for i, here in _epsilons(program, node):
            if not _root(nodes, node.results[0], read=True):
                continue

            def result(log: float, node=node, i=i) -> np.ndarray:
                return evaluate({id(node): _given(node.apply, i, math.exp(log))})

            best = _least(lambda log: _distance(result(log), theirs))
            if explains(result(best), (...,)):
                return _epsilon_text(here, math.exp(best), rooted=True) + _at(node)
    return ""


def _least(function: Callable[[float], float]) -> float:
    """Returns where a function with one valley is least, by golden-section search."""
    share = (math.sqrt(5) - 1) / 2
    low, high = map(math.log, SEARCHED)
    x = [high - share * (high - low), low + share * (high - low)]
    y = [function(log) for log in x]
    for _ in range(36):
        if y[0] < y[1]:
            high, x, y = x[1], [x[1] - share * (x[1] - low), x[0]], [0.0, y[0]]
            y[0] = function(x[0])
        else:
            low, x, y = x[0], [x[1], x[0] + share * (high - x[0])], [y[1], 0.0]
            y[1] = function(x[1])
    return x[y.index(min(y))]


def _at(node: Node) -> str:
    return f", at {node.sources[0]}" if node.sources else ""


Changes = list[tuple[str, dict[int, Callable]]]


def _changes(program: Program, nodes: list[Node], node: Node) -> Iterator[Changes]:
    """Yields other functions for a node and the root next to it, described.

    Those that may give the same numbers up to noise are in one list.
    """
    for text, apply in _others(program, node):
        yield [(text, {id(node): apply})]
    for i, here in _epsilons(program, node):
        reader = _root(nodes, node.results[0], read=True)
        root = reader or _root(nodes, node.operands[1 - i], read=False)
        yield [
            (
                _epsilon_text(here, there, rooted=reader is not None),
                {id(node): _given(node.apply, i, there)},
            )
            for there in EPSILONS
        ]
        if root is None:
            continue
        where = "below the root here, added to it there"
        if not reader:
            where = "added to the root here, below it there"
        for some in ((here,), EPSILONS[1:]):
            yield [
                (
                    f"epsilon {where} ({here:.2g} here, {there:.2g} there)",
                    {
                        id(node): lambda *x, i=i: [x[1 - i]],
                        id(root): _rooted(root, there, outside=reader is not None),
                    },
                )
                for there in some
            ]


def _rooted(root: Node, epsilon: float, *, outside: bool) -> Callable:
    """Returns a square root with an epsilon outside of the root or below it."""

    def apply(x: jax.Array) -> list[jax.Array]:
        small = jnp.asarray(epsilon, x.dtype)
        y = jnp.sqrt(x) + small if outside else jnp.sqrt(x + small)
        return [1 / y if root.step.name == "rsqrt" else y]

    return apply


def _epsilons(program: Program, node: Node) -> Iterator[tuple[int, float]]:
    """Yields the place and the value of a small constant that a node adds."""
    for i, value in _constants(program, node) if node.step.name == "add" else ():
        if 0 < abs(value) <= 0.1:
            yield i, value


def _constants(program: Program, node: Node) -> Iterator[tuple[int, float]]:
    """Yields the place and the value of each operand that is a constant number."""
    for i, number in enumerate(node.operands):
        kind, value = program.types[number], program.constants.get(number)
        if (
            value is not None
            and not kind.shape
            and jnp.issubdtype(kind.dtype, jnp.floating)
        ):
            yield i, float(value)


def _root(nodes: list[Node], number: int, *, read: bool) -> Node | None:
    """Returns the square root that reads a value, or that makes it, or None."""
    names = ("sqrt", "rsqrt") if read else ("sqrt",)
    roots = [n for n in nodes if n.step.name in names]
    sides = (n.operands if read else n.results for n in roots)
    return next(
        (n for n, side in zip(roots, sides, strict=True) if number in side), None
    )


def _epsilon_text(here: float, there: float, *, rooted: bool) -> str:
    text = f"another epsilon: {here:.2g} here, {there:.2g} there"
    if not rooted:
        return text
    # (c x - c m) / sqrt(c^2 v + e) = (x - m) / sqrt(v + e / c^2)
    size = "far larger"
    if there:
        size = f"{math.sqrt(abs(here / there)):.3g} times as large"
    return f"{text} (or an input {size} there)"


def _given(apply: Callable, i: int, value: float) -> Callable:
    """Returns a function that takes another value for one of its operands."""
    return lambda *x: apply(*_with(x, i, np.asarray(value, x[1 - i].dtype)))


def _others(program: Program, node: Node) -> Iterator[tuple[str, Callable]]:
    """Yields other functions for a node, described."""
    name, apply = node.step.name, node.apply
    if name == "dot_general":
        for i, number in enumerate(node.operands):
            shape = program.types[number].shape
            if len(shape) == 2 and shape[0] == shape[1]:
                text = "a transposed square matrix"
                yield text, lambda *x, i=i: apply(*_with(x, i, x[i].T))
    elif name == "div":
        count = dict(_constants(program, node)).get(1, 0.5)
        for there in (count - 1, count + 1) if count > 2 and count % 1 == 0 else ():
            text = f"a sum divided by {count:g} here, by {there:g} there (a variance?)"
            yield text, _given(apply, 1, there)
    elif name == "sub":  # As jnp.var computes its divisor.
        constants = dict(_constants(program, node))
        if len(constants) == 2 and constants[1] in (0, 1):
            ours, theirs = ("n", "n - 1") if constants[1] == 0 else ("n - 1", "n")
            other = _given(apply, 1, 1 - constants[1])
            yield f"a variance over {ours} here, over {theirs} there", other
    elif name in ("erf", "erfc"):

        def by_tanh(x: jax.Array) -> list[jax.Array]:
            u = np.sqrt(2) * x
            y = jnp.tanh(_TANH * (u + 0.044715 * u**3))
            return [(y if name == "erf" else 1 - y).astype(x.dtype)]

        yield "another GELU: exact here, by tanh there", by_tanh
    elif name == "tanh":

        def exact(x: jax.Array) -> list[jax.Array]:
            t, u = np.asarray(x, float) / _TANH, np.asarray(x, float) / _TANH
            for _ in range(60):
                u = u - (u + 0.044715 * u**3 - t) / (1 + 3 * 0.044715 * u**2)
            return [jax.lax.erf(jnp.asarray(u / math.sqrt(2), x.dtype))]

        yield "another GELU: by tanh here, exact there", exact


_TANH = math.sqrt(2 / math.pi)


def _with(operands: tuple, i: int, value: object) -> list:
    """Returns operands with another one at a place."""
    return [value if k == i else x for k, x in enumerate(operands)]
