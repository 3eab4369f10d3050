"""Finds hints in the numbers of two arrays to the cause of their difference.

`array_hint` tries the content of an array in another order. `Lines.program_hint`
evaluates the lines of a layer again with other equations: another epsilon or another
place for it, another GELU, a transposed square matrix. `fitted_hint` fits a factor, an
offset or both, for the array or for each element of an axis, and `Lines.epsilon_hint`
fits an epsilon. A hint is given only where nothing but noise is left.
"""

import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple

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

    def total(values: np.ndarray) -> np.ndarray:
        return np.sum(values, others, keepdims=True)

    count = total(usual)
    if axis is not None and (x.shape[axis] < 2 or count.min() < FITTED):
        return
    factor, offset = total(x0 * r0) / total(x0 * x0), total(r0 - x0) / count
    one, each = axis is None, f" for each element of axis {axis}"
    text = f"a constant factor of {factor.flat[0]:.6g}" if one else f"a factor{each}"
    yield text, np.where(usual, x * factor, x)
    text = f"an offset of {offset.flat[0]:.6g}" if one else f"an offset{each} (a bias?)"
    yield text, np.where(usual, x + offset, x)
    if count.min() < 2 * FITTED:
        return
    x_mean, r_mean = total(x0) / count, total(r0) / count
    x1, r1 = np.where(usual, x - x_mean, 0), np.where(usual, r - r_mean, 0)
    factor = total(x1 * r1) / total(x1 * x1)
    offset = r_mean - factor * x_mean
    text = f"a factor and an offset{each} (a scale before a bias?)"
    if one:
        numbers = factor.flat[0], offset.flat[0]
        text = "a factor of {:.6g} and an offset of {:.6g}".format(*numbers)
    yield text, np.where(usual, (x - x_mean) * factor + r_mean, x)


# For a node, by `id`, another function.
Change = dict[int, Callable]


class Lines(NamedTuple):
    """The lines that compute one layer, and the reference's value of it.

    Attributes:
        program: the program.
        nodes: the nodes of these lines.
        evaluate: returns the layer with other functions for some nodes.
        theirs: the reference's value.
        explains: `explains(changed, part)`, as for `array_hint`.
    """

    program: Program
    nodes: Sequence[Node]
    evaluate: Callable[[Change], np.ndarray]
    theirs: np.ndarray
    explains: Callable

    def program_hint(self) -> str:
        """Returns the change of an equation that gives the reference, or ""."""
        for node in self.nodes:
            for similar in self._changes(node):
                found = []
                for text, changed in similar:
                    result = self.evaluate(changed)
                    if self.explains(result, (...,)):
                        found.append((self._distance(result), text))
                if found:
                    return min(found)[1] + _at(node)
        return ""

    def epsilon_hint(self) -> str:
        """Returns the epsilon below a square root that gives the reference, or "".

        The distance to the reference rises in both directions from the right epsilon.
        """
        from scipy.optimize import minimize_scalar

        low, high = map(math.log, SEARCHED)
        for node in self.nodes:
            for i, here in self._epsilons(node):
                if not self._root_of(node):
                    continue

                def result(log: float, node=node, i=i) -> np.ndarray:
                    return self.evaluate(
                        {id(node): _given(node.apply, i, math.exp(log))}
                    )

                best = minimize_scalar(
                    lambda log: self._distance(result(log)),
                    bounds=(low, high),
                    options={"xatol": 1e-6},
                ).x
                if self.explains(result(best), (...,)):
                    return _epsilon_text(here, math.exp(best), rooted=True) + _at(node)
        return ""

    def _distance(self, result: np.ndarray) -> float:
        """Returns the squared distance to the reference, a finite number."""
        with np.errstate(all="ignore"):
            squares = (result.astype(float) - self.theirs) ** 2
        return min(1e300, float(np.sum(squares)))

    def _changes(self, node: Node) -> Iterator[list[tuple[str, Change]]]:
        """Yields other functions for a node and the root next to it, described.

        Those that may give the same numbers up to noise are in one list.
        """
        for text, apply in self._others(node):
            yield [(text, {id(node): apply})]
        for i, here in self._epsilons(node):
            reader = self._root_of(node)
            yield [
                (
                    _epsilon_text(here, there, rooted=reader is not None),
                    {id(node): _given(node.apply, i, there)},
                )
                for there in EPSILONS
            ]
            root = reader or self._root_before(node.operands[1 - i])
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

    def _epsilons(self, node: Node) -> Iterator[tuple[int, float]]:
        """Yields the place and the value of a small constant that a node adds."""
        for i, value in self._constants(node) if node.step.name == "add" else ():
            if 0 < abs(value) <= 0.1:
                yield i, value

    def _constants(self, node: Node) -> Iterator[tuple[int, float]]:
        """Yields the place and the value of each operand that is a constant number."""
        for i, number in enumerate(node.operands):
            kind, value = self.program.types[number], self.program.constants.get(number)
            is_number = not kind.shape and jnp.issubdtype(kind.dtype, jnp.floating)
            if value is not None and is_number:
                yield i, float(value)

    def _root_of(self, node: Node) -> Node | None:
        """Returns the square root that reads what a node computes, or None."""
        roots = (n for n in self.nodes if n.step.name in ("sqrt", "rsqrt"))
        return next((n for n in roots if node.results[0] in n.operands), None)

    def _root_before(self, number: int) -> Node | None:
        """Returns the square root that computes a value, or None."""
        roots = (n for n in self.nodes if n.step.name == "sqrt")
        return next((n for n in roots if number in n.results), None)

    def _others(self, node: Node) -> Iterator[tuple[str, Callable]]:
        """Yields other functions for a node, described."""
        name, apply = node.step.name, node.apply
        if name == "dot_general":
            for i, number in enumerate(node.operands):
                shape = self.program.types[number].shape
                if len(shape) == 2 and shape[0] == shape[1]:
                    text = "a transposed square matrix"
                    yield text, lambda *x, i=i: apply(*_with(x, i, x[i].T))
        elif name == "div":
            n = dict(self._constants(node)).get(1, 0.5)
            for there in (n - 1, n + 1) if n > 2 and n % 1 == 0 else ():
                text = f"a sum divided by {n:g} here, by {there:g} there (a variance?)"
                yield text, _given(apply, 1, there)
        elif name == "sub":  # As jnp.var computes its divisor.
            constants = dict(self._constants(node))
            if len(constants) == 2 and constants[1] in (0, 1):
                ours, theirs = ("n", "n - 1") if constants[1] == 0 else ("n - 1", "n")
                other = _given(apply, 1, 1 - constants[1])
                yield f"a variance over {ours} here, over {theirs} there", other
        elif name in ("erf", "erfc"):
            yield "another GELU: exact here, by tanh there", _erf_by_tanh(name)
        elif name == "tanh":
            yield "another GELU: by tanh here, exact there", _exact_erf


def _at(node: Node) -> str:
    return f", at {node.sources[0]}" if node.sources else ""


def _epsilon_text(here: float, there: float, *, rooted: bool) -> str:
    text = f"another epsilon: {here:.2g} here, {there:.2g} there"
    if not rooted:
        return text
    # (c x - c m) / sqrt(c^2 v + e) = (x - m) / sqrt(v + e / c^2)
    size = "far larger"
    if there:
        size = f"{math.sqrt(abs(here / there)):.3g} times as large"
    return f"{text} (or an input {size} there)"


def _rooted(root: Node, epsilon: float, *, outside: bool) -> Callable:
    """Returns a square root with an epsilon outside of the root or below it."""

    def apply(x: jax.Array) -> list[jax.Array]:
        small = jnp.asarray(epsilon, x.dtype)
        y = jnp.sqrt(x) + small if outside else jnp.sqrt(x + small)
        return [1 / y if root.step.name == "rsqrt" else y]

    return apply


def _given(apply: Callable, i: int, value: float) -> Callable:
    """Returns a function that takes another value for one of its operands."""
    return lambda *x: apply(*_with(x, i, np.asarray(value, x[1 - i].dtype)))


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
