"""Which tolerance a test should have, from the noise of the function that it tests.

For each leaf: rtol and atol so that for a fresh run under noise, all elements e obey

    |noisy_e - R_e| <= atol + rtol |R_e|                    (numpy.allclose)

but with probability at most `failure`. R is the result without noise, compiled or not.
Sums that cancel have noise of the size of their terms, not of the result. So with
atol = rho rtol rms(R), rho out of `BALANCES`, errors are in units u_e = |R_e| + rho
rms(R); the rho is taken that makes the tolerance smallest in the geometric mean. Where
several elements share the largest size, as those of a mask do, rms(R) is also tried
without them.

Let m_e and s_e be mean and standard deviation (divisor d = n - 1) of element e over n
runs, in those units. An element is taken as normal, and rtol is the t at which

    sum over e of P(|N(m_e - R_e, sigma_e^2)| > t)  =  failure

(elements may depend on each other, so their probabilities are added), with

    sigma_e^2 = (1 + 1/n) max(F^2 w_e^2, (GRID g_e)^2)
    w_e^2 = max(s_e^2, (d0 v + d s_e^2) / (d0 + d))

v, d0  the mean of s_e^2, and how alike the elements are: by an empirical Bayes estimate
       (G. K. Smyth, Stat. Appl. Genet. Mol. Biol. 3, 2004), from the variance of the
       s_e^2, where they follow a scaled F distribution with d and d0 degrees
F      sqrt(k / chi2(1 %; k)): sigma_e is a bound with 99 % confidence. k = d0 + d, but
       no more than the runs have together: n - 1 times 2 v^2 / (variance, from run to
       run, of the mean square error), which is small where all elements move together
g_e    results lie on a grid, of which few runs may all meet one point: the distance
       from |R_e| to the next number of its type, at most
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import numpy as np
from jax import Array

from prednet_jax.noise import quantiles
from prednet_jax.noise._inject import inject
from prednet_jax.noise.errors import NoiseError, expect, integer
from prednet_jax.noise.questions.leaves import (
    Leaf,
    check_same_structure,
    describe_leaves,
    named_leaves,
    rms,
    subtract,
    wide_leaves,
)
from prednet_jax.noise.questions.sampling import (
    BoundCall,
    sample_moments,
    with_routines,
)
from prednet_jax.noise.specs import NoiseSpec, ReductionOrder

# Failure rates below this were not tested against draws.
EXTRAPOLATED = 1e-3
# atol in units of rtol * rms(R).
BALANCES = (1e-3, 1e-2, 1e-1, 1.0, 10.0)
# That the true standard deviation of an element is below its bound.
CONFIDENCE = 0.99
# The least standard deviation, in distances to the next number.
GRID = 0.75
# Of a spread with more degrees of freedom the bound is as good as it gets.
FREE = 1000.0


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
            (`equal_nan=True`); integers and booleans that never change have zeros.

    Raises:
        NoiseError: as for `inject`, `spec` acts on no computation, or an element is
            finite in some runs alone.
    """
    integer("draws", draws, 2)
    inside = isinstance(failure, int | float) and 0 < failure < 1
    expect(inside, "failure", failure, "a number between 0 and 1")
    spec = with_routines(spec)
    noisy, compiled = inject(fn, spec), inject(fn, spec, only=())

    def measure(key: Array, /, *args: Any, **kwargs: Any) -> Any:
        call = BoundCall(fn, args, kwargs)
        results = call.result(), call._replace(fn=compiled).result(key)
        pairs = zip(*map(wide_leaves, results), strict=True)
        errors = [_Errors(np.stack(pair)) for pair in pairs]

        def seen() -> Iterator[Any]:
            for result in call.draw(noisy, key, draws):
                for leaf, x in zip(errors, wide_leaves(result), strict=True):
                    leaf.see(x)
                yield result

        tree, means, spreads = sample_moments(seen())
        described = zip(errors, describe_leaves(tree), means, spreads, strict=True)
        tolerances = [e.tolerance(leaf, m, s, failure) for e, leaf, m, s in described]
        return jax.tree.unflatten(jax.tree.structure(tree), tolerances)

    return measure


def tolerance_table(tolerances: Any) -> str:
    """A line of text for each leaf of what `tolerance` gives."""
    leaves = named_leaves(tolerances)
    width = max((len(name) for name, _ in leaves), default=0)
    return "\n".join(f"{name:{width}}  {one}" for name, one in leaves)


class _Errors:
    """The errors of one leaf, in the units of each balance.

    `references` [2, ...] are the results without noise; `squares` has for each rho
    rms(R) the mean square error of each run.
    """

    def __init__(self, references: np.ndarray) -> None:
        self.finite = np.isfinite(references[0])
        self.settled = np.isfinite(references[1]) == self.finite
        self.references = references[:, self.finite]
        sizes = np.abs(self.references)
        self.size, self.largest = sizes.min(0), sizes.max(0)
        masked = self.size == self.size.max(initial=0)
        rest = self.size[~masked] if masked.sum() > 1 else self.size
        scales = {s for s in (rms(self.size), rms(rest)) if s} or {0.0}
        floors = sorted({rho * scale for rho in BALANCES for scale in scales})
        self.squares: dict[float, list[float]] = {floor: [] for floor in floors}

    def units(self, floor: float) -> np.ndarray:
        """What errors are measured in."""
        return self.size + floor if floor else np.ones(1)

    def see(self, x: np.ndarray) -> None:
        far = np.abs(x[self.finite] - self.references[0])
        for floor, squares in self.squares.items():
            squares.append(rms(far / self.units(floor)) ** 2)

    def tolerance(
        self, leaf: Leaf, mean: np.ndarray, spread: np.ndarray, failure: float
    ) -> Tolerance:
        """What covers the errors but with probability `failure`."""
        settled = self.settled & (np.isfinite(mean) == self.finite)
        if not np.all(settled & np.isfinite(spread)):
            raise NoiseError(
                f"{leaf.path}: an element is finite in some runs alone; expected one "
                "that is finite, or is not, in all"
            )
        mean, spread = mean[self.finite], spread[self.finite]
        far = np.abs(mean - self.references).max(0)
        grid = GRID * leaf.epsilon * self.largest
        rtol = atol = 0.0
        least = math.inf
        for floor, squares in self.squares.items() if mean.size else ():
            unit = self.units(floor)
            sigma = np.maximum(_spread_bound(spread / unit, squares), grid / unit)
            sigma *= math.sqrt(1 + 1 / len(squares))
            bound = _exceeded(far / unit, sigma, failure)
            cost = math.log(bound or 1) + float(np.mean(np.log(unit)))
            # Where several serve alike, the one with the least atol.
            if cost < least - 0.01:
                least, rtol, atol = cost, bound, floor * bound
        if not np.any(self.size):
            rtol, atol = 0.0, rtol
        allowed = atol + rtol * self.size
        some = allowed > 0
        noise = rms(spread[some] / allowed[some])
        return Tolerance(rtol, atol, noise, failure < EXTRAPOLATED)


def _spread_bound(spread: np.ndarray, squares: list[float]) -> np.ndarray:
    """Upper bounds of standard deviations [N], of runs with these mean squares [n]."""
    free, variances = len(squares) - 1, np.square(spread)
    typical = float(variances.mean())
    if not typical:
        return spread
    unlike = free * float(variances.var()) / typical**2
    prior = math.inf if unlike <= 2 else (2 * (free - 2) + 4 * unlike) / (unlike - 2)
    alike = free * 2 * typical**2 / max(float(np.var(squares, ddof=1)), 1e-300)
    known = min(prior + free, max(free, min(alike, free * spread.size)), FREE)
    weight = 1 if prior == math.inf else prior / (prior + free)
    bound = quantiles.spread_bound(known + 1, CONFIDENCE)
    drawn_up = np.maximum(variances, weight * typical + (1 - weight) * variances)
    return bound * np.sqrt(drawn_up)


def _exceeded(far: np.ndarray, sigma: np.ndarray, failure: float) -> float:
    """What any of normal errors [N] exceeds with a probability of at most `failure`."""
    from scipy.special import ndtr

    count = far.size
    high = float(np.max(far + quantiles.two_sided(failure / count) * sigma))
    if not high:
        return 0.0
    # What the others add is less than a thousandth.
    low = float(np.max(far + quantiles.two_sided(min(2 * failure, 1)) * sigma))
    near = far + quantiles.two_sided(failure / count / 1000) * sigma >= low
    far, sigma = far[near], np.maximum(sigma[near], high * 1e-12)

    low = 0.0
    for _ in range(100):  # Bisection of what falls as the bound grows.
        bound = (low + high) / 2
        beyond = np.sum([ndtr((x - bound) / sigma) for x in (far, -far)])
        low, high = (bound, high) if beyond > failure else (low, bound)
    return (low + high) / 2


def assert_close(actual: Any, expected: Any, tolerances: Any) -> None:
    """Raise unless every element is within its tolerance of the expected one.

    `expected`: as `fn(*args)`; `tolerances`: of `tolerance(fn, spec)(key, *args)`.

    Raises:
        AssertionError: some leaf is outside. A line for each says by how much, in units
            of the expected noise and of what is allowed, and at which element.
        NoiseError: structures or shapes differ.
    """
    allowed = jax.tree.leaves(tolerances)
    described = check_same_structure("actual", actual, "expected", expected)
    typed = all(isinstance(one, Tolerance) for one in allowed)
    wanted = f"one Tolerance for each of {len(described)} leaves"
    fits = typed and len(allowed) == len(described)
    expect(fits, "tolerances", tolerances, wanted)
    values = map(wide_leaves, (actual, expected))
    lines = list(filter(None, map(_outside, described, allowed, *values)))
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
    are those of `tolerance`, with its errors; `seed` is that of the noise.
    """
    spec = ReductionOrder(granularity="element") if spec is None else spec
    measure = tolerance(fn, spec, draws=draws, failure=failure)
    tolerances = measure(jax.random.key(seed), *args)
    return Reference(BoundCall(fn, args, {}).result(), tolerances)


def _outside(leaf: Leaf, one: Tolerance, x: np.ndarray, y: np.ndarray) -> str:
    """What is outside, in a line; "" if nothing is."""
    with np.errstate(invalid="ignore"):
        far = np.abs(subtract(x, y))
        far = np.where(np.isnan(far), np.inf, far)
        allowed = np.where(np.isfinite(y), one.atol + one.rtol * np.abs(y), 0.0)
    count = int(np.count_nonzero(far > allowed))
    if not count:
        return ""
    with np.errstate(divide="ignore", invalid="ignore"):
        times = np.where(far > allowed, far / allowed, 0.0)
    worst = np.unravel_index(int(np.argmax(times)), times.shape)
    ratio = float(times[worst])
    noise = "no noise was seen here"
    if one.noise:
        noise = f"{ratio / one.noise:.3g} times the expected noise"
    element = ", ".join(map(str, worst))
    return (
        f"{leaf.path}: {noise}, {ratio:.3g} times the tolerance ({one}); worst element "
        f"[{element}]: {x[worst]:.9g}, expected {y[worst]:.9g}; {count} of {x.size} "
        "elements outside"
    )
