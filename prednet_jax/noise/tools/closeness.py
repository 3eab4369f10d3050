"""Comparison of results within tolerances; a failure says how far they are apart."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import numpy as np

from prednet_jax.noise.errors import NoiseError
from prednet_jax.noise.specs import NoiseSpec, ReductionOrder
from prednet_jax.noise.tools import runs
from prednet_jax.noise.tools.runs import Leaf
from prednet_jax.noise.tools.tolerance import Tolerance, tolerance


def assert_close(actual: Any, expected: Any, tolerances: Any) -> None:
    """Raise unless every element is within its tolerance of the expected one.

    Args:
        actual: pytree of arrays.
        expected: pytree of the same structure and shapes, such as `fn(*args)`.
        tolerances: what `tolerance(fn, spec)(key, *args)` gave.

    Raises:
        AssertionError: some leaf is outside. For each such leaf: its path, how many
            times the expected noise the difference of the worst element is, how many
            times what is allowed, the element's index and both values.
        NoiseError: structures or shapes differ.
    """
    allowed = jax.tree.leaves(tolerances)
    described = check_alike("actual", actual, "expected", expected)
    if len(allowed) != len(described) or not all(
        isinstance(t, Tolerance) for t in allowed
    ):
        raise NoiseError(
            f"tolerances={tolerances!r}: expected one Tolerance for each of "
            f"{len(described)} leaves"
        )
    lines = []
    for leaf, one, x, y in zip(
        described, allowed, runs.values(actual), runs.values(expected), strict=True
    ):
        lines += _outside(leaf, one, x, y)
    if lines:
        head = f"{len(lines)} of {len(described)} leaves outside the noise"
        raise AssertionError("\n".join([head, *lines]))


class Reference(NamedTuple):
    """A result, and how far other correct results may be from it.

    Attributes:
        expected: pytree of arrays, without noise.
        tolerances: a `Tolerance` for each leaf.
    """

    expected: Any
    tolerances: Any

    def assert_close(self, actual: Any) -> None:
        """As `assert_close(actual, expected, tolerances)`."""
        assert_close(actual, self.expected, self.tolerances)


def noise_reference(
    fn: Callable,
    *args: Any,
    spec: NoiseSpec | None = None,
    draws: int = 16,
    failure: float = 1e-6,
    seed: int = 0,
) -> Reference:
    """Run `fn` with and without noise: what the pytest fixture `noise_tolerance` is.

    Args:
        fn: the reference that a test trusts.
        *args: its arguments.
        spec: the noise; None: sums added in another order, drawn for each element.
        draws: as for `tolerance`.
        failure: as for `tolerance`.
        seed: of the noise.

    Raises:
        NoiseError: as for `tolerance`.
    """
    spec = ReductionOrder(granularity="element") if spec is None else spec
    measure = tolerance(fn, spec, draws=draws, failure=failure)
    tolerances = measure(jax.random.key(seed), *args)
    return Reference(runs.plain(fn, args, {}), tolerances)


def check_alike(name: str, a: Any, other: str, b: Any) -> list[Leaf]:
    """The leaves of `b`, refusing an `a` of other structure or shapes."""
    left: Any = jax.tree.structure(a)
    right: Any = jax.tree.structure(b)
    if left != right:
        raise NoiseError(f"{name} is {left} and {other} {right}: expected the same")
    described = runs.leaves(b)
    for mine, yours in zip(runs.leaves(a), described, strict=True):
        if mine.shape != yours.shape:
            raise NoiseError(
                f"{yours.path}: {name} has shape {mine.shape} and {other} "
                f"{yours.shape}: expected the same"
            )
    return described


def _outside(leaf: Leaf, one: Tolerance, x: np.ndarray, y: np.ndarray) -> list[str]:
    """A line if an element is outside, none otherwise."""
    with np.errstate(invalid="ignore"):
        far = np.abs(runs.difference(x, y))
        far = np.where(np.isnan(far), np.inf, far)
        allowed = np.where(np.isfinite(y), one.atol + one.rtol * np.abs(y), 0.0)
    count = int(np.count_nonzero(far > allowed))
    if not count:
        return []
    with np.errstate(divide="ignore", invalid="ignore"):
        times = np.where(far > allowed, far / allowed, 0.0)
    worst = np.unravel_index(int(np.argmax(times)), times.shape)
    ratio = float(times[worst])
    noise = "no noise was seen here"
    if one.noise:
        noise = f"{ratio / one.noise:.3g} times the expected noise"
    place = ", ".join(map(str, worst))
    return [
        f"{leaf.path}: {noise}, {ratio:.3g} times the tolerance ({one}); worst element "
        f"[{place}]: {x[worst]:.9g}, expected {y[worst]:.9g}; {count} of {x.size} "
        "elements outside"
    ]
