"""Which tolerance a test should have, from the noise of the function that it tests.

For each leaf: rtol and atol so that for a fresh run under noise, all elements e obey

    |noisy_e - R_e| <= atol + rtol |R_e|                    (numpy.allclose)

but with probability at most `failure`. R is the result without noise, compiled or not.
Let m_e and s_e be mean and standard deviation (divisor n - 1) of element e over n runs,
N the number of elements. An element is taken as normal, its distance bounded by

    B_e = max over R of |m_e - R_e| + z sqrt(1 + 1/n) F max(s_e, l_e)
    l_e = sqrt(rms(s)^2 + (u_e / 4)^2)

z      a normal error exceeds z standard deviations with probability failure / N
       (Bonferroni's bound: elements may depend on each other)
F      sqrt((n - 1) / chi2(1 %; n - 1)): the true standard deviation is below F s with
       99 % confidence
l_e    results lie on a grid, of which few runs may all meet one point: no element
       counts as quieter than the leaf as a whole (RMS of s over its elements) and a
       quarter of u_e, the distance from |R_e| to the next number of its type, at most

16 runs show nothing of what happens once in a million: a bound below `EXTRAPOLATED` is
an extrapolation of that model. At 1e-2 and 1e-3 it is tested with 10,000 runs.

Sums that cancel have noise of the size of their terms, not of the result. So with
atol = rho rtol rms(R), rho out of `BALANCES`, rtol is the smallest that covers all B_e;
the rho is taken that makes the tolerance smallest in the geometric mean.
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import numpy as np
from jax import Array

from prednet_jax.noise.errors import NoiseError, integer, unit_interval
from prednet_jax.noise.inject import inject
from prednet_jax.noise.questions import runs
from prednet_jax.noise.questions.runs import Call, Leaf
from prednet_jax.noise.specs import NoiseSpec, ReductionOrder

# Failure rates below this were not tested against draws.
EXTRAPOLATED = 1e-3
# atol in units of rtol * rms(R).
BALANCES = (1e-3, 1e-2, 1e-1, 1.0, 10.0)
# That the true standard deviation of an element is below its bound.
CONFIDENCE = 0.99


@dataclass(frozen=True)
class Tolerance:
    """Tolerances of one leaf, for `numpy.allclose(actual, expected, *tolerance)`.

    Attributes:
        rtol: relative to the expected value, 0 or more.
        atol: absolute, 0 or more, in the units of the leaf.
        noise: standard deviation of the noise (RMS over the elements) in units of the
            tolerance of each; 0 if none was seen.
        extrapolated: whether `failure` is smaller than what was tested with draws.
    """

    rtol: float
    atol: float
    noise: float
    extrapolated: bool

    def __iter__(self) -> Iterator[float]:
        return iter((self.rtol, self.atol))

    def __str__(self) -> str:
        note = ", extrapolated" if self.extrapolated else ""
        return f"rtol {self.rtol:.2g}, atol {self.atol:.2g}{note}"


def tolerance(
    fn: Callable, spec: NoiseSpec, *, draws: int = 16, failure: float = 1e-6
) -> Callable[..., Any]:
    """Tolerances that a run of `fn` under noise meets, but rarely.

    Args:
        fn: as for `inject`.
        spec: the noise, such as `ReductionOrder(granularity="element")`.
        draws: number of runs, 2 or more.
        failure: probability, per leaf, that a fresh run is outside; in (0, 1).

    Returns:
        `measure(key, *args, **kwargs)`, which gives a pytree like the result of `fn`
            with a `Tolerance` in the place of each leaf, for these arguments and this
            device. Elements that are always NaN or the same infinity need none
            (`equal_nan=True`); integers and booleans that noise does not change have
            zeros.

    Raises:
        NoiseError: as for `inject`, `spec` acts on no computation, or an element is
            finite in some runs alone.
    """
    integer("draws", draws, 2)
    unit_interval("failure", failure)
    spec = runs.reaching(spec)
    noisy, compiled = inject(fn, spec), inject(fn, spec, only=())

    def measure(key: Array, /, *args: Any, **kwargs: Any) -> Any:
        call = Call(fn, args, kwargs)
        clean = runs.values(call.result())
        other = runs.values(call._replace(fn=compiled).result(key))
        tree, means, spreads = runs.moments(call.draw(noisy, key, draws))
        found = [
            _of_leaf(leaf, np.stack(references), mean, spread, draws, failure)
            for leaf, *references, mean, spread in zip(
                runs.leaves(tree), clean, other, means, spreads, strict=True
            )
        ]
        return jax.tree.unflatten(jax.tree.structure(tree), found)

    return measure


def tolerance_table(tolerances: Any) -> str:
    """A line of text for each leaf of what `tolerance` gives."""
    found = runs.named_leaves(tolerances)
    width = max((len(name) for name, _ in found), default=0)
    return "\n".join(f"{name:{width}}  {one}" for name, one in found)


def _of_leaf(
    leaf: Leaf,
    references: np.ndarray,
    mean: np.ndarray,
    spread: np.ndarray,
    draws: int,
    failure: float,
) -> Tolerance:
    """The tolerance of a leaf; `references` [2, ...] are the results without noise."""
    finite = np.isfinite(references[0])
    settled = [np.isfinite(x) == finite for x in (references[1], mean)]
    if not np.all([*settled, np.isfinite(spread)]):
        raise NoiseError(
            f"{leaf.path}: an element is finite in some runs alone; expected one that "
            "is finite, or is not, in all"
        )
    references, mean, spread = references[:, finite], mean[finite], spread[finite]
    extrapolated = failure < EXTRAPOLATED
    if not mean.size:
        return Tolerance(0.0, 0.0, 0.0, extrapolated)
    sizes = np.abs(references)
    z = runs.two_sided(failure / mean.size)
    factor = z * math.sqrt(1 + 1 / draws) * runs.spread_bound(draws, CONFIDENCE)
    # An element that met one point of its grid in all draws may still leave it.
    least = np.hypot(runs.rms(spread), sizes.max(0) * leaf.epsilon / 4)
    bound = np.abs(mean - references).max(0) + factor * np.maximum(spread, least)
    size = sizes.min(0)
    rtol, atol = _cover(bound, size)
    allowed = atol + rtol * size
    seen = allowed > 0
    noise = runs.rms(spread[seen] / allowed[seen])
    return Tolerance(rtol, atol, noise, extrapolated)


def _cover(bound: np.ndarray, size: np.ndarray) -> tuple[float, float]:
    """The smallest rtol and atol with bound <= atol + rtol * size."""
    scale = runs.rms(size)
    if scale == 0:
        return 0.0, float(bound.max())
    best = math.inf, 0.0, 0.0
    for balance in BALANCES:
        unit = size + balance * scale
        rtol = float(np.max(bound / unit))
        if rtol == 0:
            return 0.0, 0.0
        cost = math.log(rtol) + float(np.mean(np.log(unit)))
        # Where several serve alike, the one with the least atol.
        if cost < best[0] - 0.01:
            best = cost, rtol, balance * scale * rtol
    return best[1:]


def assert_close(actual: Any, expected: Any, tolerances: Any) -> None:
    """Raise unless every element is within its tolerance of the expected one.

    `expected` is such as `fn(*args)`; `tolerances` what `tolerance(fn, spec)(key,
    *args)` gave.

    Raises:
        AssertionError: some leaf is outside. A line for each says by how much, in units
            of the expected noise and of what is allowed, and at which element.
        NoiseError: structures or shapes differ.
    """
    allowed = jax.tree.leaves(tolerances)
    described = runs.check_alike("actual", actual, "expected", expected)
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
    """A result, and how far others may be from it: a `Tolerance` for each leaf."""

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

    `spec=None` adds sums in another order, drawn for each element; the other options
    are those of `tolerance`, and the `seed` of the noise.

    Raises:
        NoiseError: as for `tolerance`.
    """
    spec = ReductionOrder(granularity="element") if spec is None else spec
    measure = tolerance(fn, spec, draws=draws, failure=failure)
    tolerances = measure(jax.random.key(seed), *args)
    return Reference(Call(fn, args, {}).result(), tolerances)


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
