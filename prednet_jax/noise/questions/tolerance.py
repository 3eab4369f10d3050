"""Which tolerance a test should have, from the noise of the function that it tests.

For each leaf: rtol and atol so that for a fresh run under noise, all elements e obey

    |noisy_e - R_e| <= atol + rtol |R_e|                    (numpy.allclose)

but with probability at most `failure`. R is the result without noise, compiled or not:
both are run, and the tolerance holds for either.

The tail. Let m_e and s_e be mean and standard deviation (divisor n - 1) of element e
over n runs, a_e the largest |m_e - R_e| over both R, and u_e the tolerance of element e
in units of rtol. Elements are taken as normal, and rtol = T is the smallest with

    sum over e of  Q((T u_e - a_e) / t_e) + Q((T u_e + a_e) / t_e)  <=  failure

Q, the upper tail of the normal distribution, is bounded from above by H. O. Pollak's
formula; the sum over elements, however they depend on each other, by G. Boole's. t_e is
what s_e may be at most:

    t_e^2 = (1 + 1/n) F(d)^2 (w s0^2 + (1 - w) max(s_e, s0)^2) u_e^2,  w = 1 - (n-1)/d

all s in units of u_e. No element counts as quieter than the leaf's s0 (RMS): few runs
may miss what it does rarely. Sixteen runs say little of one element, much of a leaf. As
G. K. Smyth ("Linear models and empirical Bayes methods ...", Stat. Appl. Genet. Mol.
Biol. 3(1), 2004) does with genes, each is drawn towards s0 the more, the less the s_e
differ beyond what n runs explain: d0 degrees of freedom are those at which the variance
of log s_e^2 is psi'((n - 1) / 2) + psi'(d0 / 2), and d = n - 1 + d0. But elements that
move together are one: d is at most (n - 1) N_eff / 2, where N_eff = 2 mean(q)^2 /
var(q), q the mean square distance of a run from R, over the runs.

F(d)  sqrt(d / chi2(1 %; d)): the true standard deviation is below F times the estimate
      with 99 % confidence
s_e   holds a quarter of the distance from |R_e| to the next number of its type (added
      in squares): results lie on a grid, and few runs may all meet one point of it

Noise in the order of sums is bounded, and its tail lighter than the normal one. But 16
runs show nothing of what happens once in a million: a bound below `EXTRAPOLATED` is an
extrapolation of that model, and the result says so. At 1e-2 and 1e-3 it is tested with
10,000 runs (tests/noise/questions/test_tolerance.py).

The shape. Sums that cancel have noise of the size of their terms, not of the result, so
rtol alone would not do. u_e = |R_e| + rho rms(R), rho out of `BALANCES`: atol is rho
rtol rms(R). The rho is taken that makes the tolerance smallest in the geometric mean
over the elements.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from statistics import NormalDist
from typing import Any, NamedTuple

import jax
import numpy as np
from jax import Array

from prednet_jax.noise.errors import NoiseError, integer, unit_interval
from prednet_jax.noise.inject import inject
from prednet_jax.noise.questions import runs
from prednet_jax.noise.questions.runs import Leaf
from prednet_jax.noise.specs import NoiseSpec, ReductionOrder

# Failure rates below this were not tested against draws.
EXTRAPOLATED = 1e-3
# atol in units of rtol * rms(R).
BALANCES = (1e-3, 1e-2, 1e-1, 1.0, 10.0)
# That the true standard deviation of an element is below its bound.
CONFIDENCE = 0.99
# Degrees of freedom above which the bound is as good as it needs to be.
MOST = 300.0


@dataclass(frozen=True)
class Tolerance:
    """Tolerances of one leaf, for `numpy.allclose(actual, expected, *tolerance)`.

    A leaf of a pytree: `jax.tree.map(compare, tolerances, actual, expected)` works.

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

    def to_json(self) -> dict[str, Any]:
        """The attributes by name."""
        return asdict(self)


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
        with a `Tolerance` in the place of each leaf. They hold for these arguments and
        this device. Elements that are always NaN or the same infinity need none
        (`equal_nan=True` compares NaNs). Integers and booleans that noise does not
        change have zeros.

    Raises:
        NoiseError: when an option is outside what is accepted, or `spec` acts on no
            computation; on a call, as for `inject`, and when an element is finite in
            some runs alone.
    """
    integer("draws", draws, 2)
    unit_interval("failure", failure)
    spec = runs.reaching(spec)
    noisy, compiled = inject(fn, spec), runs.without_noise(fn, spec)

    def measure(key: Array, /, *args: Any, **kwargs: Any) -> Any:
        clean = [
            runs.values(runs.plain(fn, args, kwargs)),
            runs.values(compiled(key, *args, **kwargs)),
        ]
        results = runs.draw(noisy, key, draws, args, kwargs)
        far: list[list[float]] = []

        def see(values: runs.Result) -> None:
            far.append(list(map(_distance, values, clean[0])))

        tree, means, spreads = runs.moments(results, see)
        found = [
            _of_leaf(leaf, list(references), mean, spread, np.array(q), failure)
            for leaf, *references, mean, spread, q in zip(
                runs.leaves(tree),
                *clean,
                means,
                spreads,
                zip(*far, strict=True),
                strict=True,
            )
        ]
        return jax.tree.unflatten(jax.tree.structure(tree), found)

    return measure


def tolerance_table(tolerances: Any) -> str:
    """A line of text for each leaf of what `tolerance` gives."""
    found = jax.tree_util.tree_flatten_with_path(tolerances)[0]
    names = [jax.tree_util.keystr(path) or "result" for path, _ in found]
    width = max(map(len, names), default=0)
    lines = [f"{n:{width}}  {t}" for n, (_, t) in zip(names, found, strict=True)]
    return "\n".join(lines)


def _of_leaf(
    leaf: Leaf,
    references: list[np.ndarray],
    mean: np.ndarray,
    spread: np.ndarray,
    distances: np.ndarray,
    failure: float,
) -> Tolerance:
    """The tolerance of a leaf; `distances` are those of each run, see `_distance`."""
    finite = np.isfinite(references[0])
    settled = [np.isfinite(x) == finite for x in [*references[1:], mean]]
    if not np.all([*settled, np.isfinite(spread)]):
        raise NoiseError(
            f"{leaf.path}: an element is finite in some runs alone; expected one that "
            "is finite, or is not, in all"
        )
    references = [x[finite] for x in references]
    mean, spread = mean[finite], spread[finite]
    extrapolated = failure < EXTRAPOLATED
    if not mean.size:
        return Tolerance(0.0, 0.0, 0.0, extrapolated)
    size = np.min([np.abs(x) for x in references], axis=0)
    shift = np.max([np.abs(mean - x) for x in references], axis=0)
    largest = np.max([np.abs(x) for x in references], axis=0)
    # An element that met one point of its grid in all draws may still leave it.
    spread_here = np.hypot(spread, largest * leaf.epsilon / 4)
    rtol, atol = _cover(shift, spread_here, size, distances, failure)
    allowed = atol + rtol * size
    seen = allowed > 0
    noise = runs.rms(spread[seen] / allowed[seen])
    return Tolerance(rtol, atol, noise, extrapolated)


def _distance(x: np.ndarray, reference: np.ndarray) -> float:
    """Mean square distance of a run from the reference, in units of its size."""
    seen = np.isfinite(reference) & np.isfinite(x)
    reference, x = reference[seen], x[seen]
    unit = np.abs(reference) + runs.rms(reference)
    with np.errstate(divide="ignore", invalid="ignore"):
        ratios = np.where(unit > 0, np.abs(x - reference) / unit, np.abs(x))
    return runs.rms(ratios) ** 2


def _cover(
    shift: np.ndarray,
    spread: np.ndarray,
    size: np.ndarray,
    distances: np.ndarray,
    failure: float,
) -> tuple[float, float]:
    """The smallest rtol and atol that runs exceed with probability `failure`."""
    scale = runs.rms(size)
    if not np.any(spread) and not np.any(shift):
        return 0.0, 0.0
    if scale == 0:
        return 0.0, _threshold(shift, _upper(spread, distances), failure)
    best = math.inf, 0.0, 0.0
    for balance in BALANCES:
        unit = size + balance * scale
        rtol = _threshold(shift / unit, _upper(spread / unit, distances), failure)
        cost = math.log(rtol) + float(np.mean(np.log(unit)))
        # Where several serve alike, the one with the least atol.
        if cost < best[0] - 0.01:
            best = cost, rtol, balance * scale * rtol
    return best[1:]


def _upper(spread: np.ndarray, distances: np.ndarray) -> np.ndarray:
    """t_e: what the standard deviation of each element may be."""
    draws = len(distances)
    free = draws - 1
    square = np.square(spread)
    pooled = float(np.mean(square))
    prior = 0.0
    if square.size >= 4 and pooled > 0:
        logs = np.log(np.maximum(square, 1e-4 * pooled))
        excess = float(np.var(logs, ddof=1)) - _trigamma(free / 2)
        prior = 2 * _inverse_trigamma(excess)
    middle = float(np.mean(distances))
    varying = float(np.var(distances, ddof=1))
    together = free * middle**2 / varying if varying > 0 else math.inf
    degrees = max(free, min(free + prior, together, MOST))
    weight = 1 - free / degrees
    factor = math.sqrt(1 + 1 / draws) * runs.spread_bound(int(degrees) + 1, CONFIDENCE)
    # No element counts as quieter than the leaf: few runs may miss what it does rarely.
    more = np.maximum(square - pooled, 0)
    return factor * np.sqrt(pooled + (1 - weight) * more)


def _threshold(shift: np.ndarray, spread: np.ndarray, failure: float) -> float:
    """The smallest T that |N(shift_e, spread_e)| exceeds with probability `failure`."""
    low = float(np.max(shift + NormalDist().inv_cdf(1 - failure) * spread))
    rare = runs.two_sided(failure / shift.size)
    high = float(np.max(shift + rare * spread))
    # Others exceed even the lower bound less often than once in a thousand failures.
    near = low - shift < runs.two_sided(1e-3 * failure / shift.size) * spread
    shift, spread = shift[near], spread[near]
    for _ in range(40):
        middle = (low + high) / 2
        above = _tail((middle - shift) / spread) + _tail((middle + shift) / spread)
        low, high = (middle, high) if np.sum(above) > failure else (low, middle)
    return high


def _tail(z: np.ndarray) -> np.ndarray:
    """An upper bound of P(N(0, 1) > z), tight for large z; 1 below 0."""
    above = np.maximum(z, 0)
    bound = math.sqrt(2 / math.pi) / (above + np.sqrt(above**2 + 8 / math.pi))
    return np.where(z > 0, bound * np.exp(-(above**2) / 2), 1.0)


def _trigamma(x: float) -> float:
    """psi'(x), by its recurrence and Stirling's series."""
    y = x + 12
    return (
        sum(1 / (x + k) ** 2 for k in range(12))
        + 1 / y + 1 / (2 * y**2) + 1 / (6 * y**3)
    )  # fmt: skip


def _inverse_trigamma(value: float) -> float:
    """The x with psi'(x) = value; `MOST` where that is larger, or value not above 0."""
    low, high = 1e-3, MOST
    for _ in range(60):
        middle = math.sqrt(low * high)
        low, high = (middle, high) if _trigamma(middle) > value else (low, middle)
    return high


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
