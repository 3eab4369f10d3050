"""Compares results with the tolerances that `tolerance` measures."""

import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from prednet_jax.noise import leaves
from prednet_jax.noise.errors import NoiseError, expect
from prednet_jax.noise.leaves import Leaf, subtract, wide_leaves
from prednet_jax.noise.questions.elements import own_ratios
from prednet_jax.noise.types import PyTree

# The largest distance of an element, in units of similar elements' largest deviation.
ELEMENT_FACTOR = 10.0


@dataclass(frozen=True)
class Tolerance:
    """Tolerances of one leaf, for `numpy.allclose(actual, expected, *tolerance)`.

    Attributes:
        rtol: tolerance relative to the expected value, 0 or more.
        atol: absolute tolerance, 0 or more, in the units of the leaf.
        noise: standard deviation of the noise (RMS over the elements) in units of the
            tolerance of each; 0 if no noise was seen.
        extrapolated: whether `failure` is below the rates that draws have tested.
        hidden: number of elements that are smaller than `atol` while their own noise is
            much smaller. `allclose` passes any error in them; `assert_close` does not
            if `noises` are there.
        widened: format in which this device multiplies by default, such as `tf32`, if
            the tolerance includes its effect.
        spec: text of the noise.
        casts: whether the function rounds by casts of its own. Their effect is left
            out, since they are in every run.
        noises: the largest deviation of elements similar to each, and what
            `own_ratios` takes of the noise of each itself. None if the function
            takes decisions, or if the tolerance was read from a file.
    """

    rtol: float
    atol: float
    noise: float
    extrapolated: bool
    hidden: int = 0
    widened: str = ""
    spec: str = ""
    casts: bool = False
    noises: tuple[np.ndarray, np.ndarray, np.ndarray] | None = field(
        default=None, repr=False, compare=False
    )

    def __iter__(self) -> Iterator[float]:
        return iter((self.rtol, self.atol))

    def to_json(self) -> dict[str, object]:
        """Returns the numbers and texts, without `noises`."""
        fields = (f.name for f in dataclasses.fields(self) if f.name != "noises")
        return {name: getattr(self, name) for name in fields}

    def __str__(self) -> str:
        notes: list[str] = []
        if self.widened:
            notes.append(f"products in {self.widened} included")
        if self.casts:
            notes.append("effect of the function's own casts left out")
        if self.hidden:
            notes.append(f"hides errors of {self.hidden} small elements")
        return ", ".join([f"rtol {self.rtol:.2g}, atol {self.atol:.2g}", *notes])


def tolerance_table(tolerances: PyTree) -> str:
    """Returns a line of text for each leaf, and one for the noise."""
    named = leaves.named_leaves(tolerances)
    for name, tolerance in named:
        if not isinstance(tolerance, Tolerance):
            kind = type(tolerance).__name__
            raise NoiseError(f"{name} is {kind}: expected what noise.tolerance gives")
    width = max((len(name) for name, _ in named), default=0)
    lines = [f"{name:{width}}  {tolerance}" for name, tolerance in named]
    texts = dict.fromkeys(tolerance.spec for _, tolerance in named if tolerance.spec)
    return "\n".join([*lines, *(f"under {text}" for text in texts)])


def assert_close(actual: PyTree, expected: PyTree, tolerances: PyTree) -> None:
    """Raises unless every element is within its tolerance of the expected one.

    Args:
        actual: a result.
        expected: the result of the reference, `fn(*args)`.
        tolerances: the result of `tolerance(fn)(key, *args)`.

    Raises:
        AssertionError: some leaf is outside. A line for each leaf gives the excess, in
            units of the expected noise and of the tolerance, and the element.
        NoiseError: structures or shapes differ.
    """
    named = leaves.named_leaves(tolerances)
    described = leaves.check_same_structure("actual", actual, "expected", expected)
    fits = [(name, type(tolerance)) for name, tolerance in named] == [
        (leaf.path, Tolerance) for leaf in described
    ]
    wanted = f"one Tolerance for each of {len(described)} leaves, of the same names"
    expect(fits, "tolerances", tolerances, wanted)
    allowed = [tolerance for _, tolerance in named]
    values = map(wide_leaves, (actual, expected))
    lines = list(filter(None, map(_outside, described, allowed, *values)))
    if lines:
        head = f"{len(lines)} of {len(described)} leaves outside the noise"
        raise AssertionError("\n".join([head, *lines]))


class Reference(NamedTuple):
    """A result, and how far others may be from it: a `Tolerance` for each leaf."""

    expected: PyTree
    tolerances: PyTree

    def assert_close(self, actual: PyTree) -> None:
        """Raises unless `assert_close(actual, expected, tolerances)` holds."""
        assert_close(actual, self.expected, self.tolerances)


def _outside(leaf: Leaf, tol: Tolerance, x: np.ndarray, y: np.ndarray) -> str:
    """Returns a line about elements outside their tolerance, or ""."""
    with np.errstate(divide="ignore", invalid="ignore"):
        gap = np.abs(subtract(x, y))
        gap = np.where(np.isnan(gap), np.inf, gap)
        allowed = np.where(np.isfinite(y), tol.atol + tol.rtol * np.abs(y), 0.0)
        times = np.divide(gap, allowed, where=gap > allowed, out=np.zeros(gap.shape))
        if tol.noises is not None and tol.noises[0].shape == y.shape:
            # Elements of much smaller noise than the leaf have limits of their own.
            limits, own, farthest = tol.noises
            size = np.where(np.isfinite(y), np.abs(y), 0)
            ratios = np.divide(gap, limits, where=limits > 0, out=np.zeros(gap.shape))
            own_times = own_ratios(gap, own, farthest, size)
            ratios = np.maximum(ratios / ELEMENT_FACTOR, own_times)
            times = np.fmax(times, np.where(np.isfinite(y), ratios, 0))
    count = int(np.count_nonzero(times > 1))
    if not count:
        return ""
    worst = np.unravel_index(int(np.argmax(times)), times.shape)
    ratio = float(times[worst])
    noise = "no noise was seen here"
    if tol.noise:
        noise = f"{ratio / tol.noise:.3g} times the expected noise"
    element = ", ".join(map(str, worst))
    return (
        f"{leaf.path}: {noise}, {ratio:.3g} times the tolerance ({tol}); worst element "
        f"[{element}]: {x[worst]:.9g}, expected {y[worst]:.9g}; {count} of {x.size} "
        "elements outside"
    )
