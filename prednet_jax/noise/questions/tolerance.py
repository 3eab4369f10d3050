"""Computes the tolerance of a test from the noise of the function that it tests.

For each leaf: rtol and atol so that for a fresh run under noise, all elements e obey

    |noisy_e - R_e| <= atol + rtol |R_e|                    (numpy.allclose)

with a probability of at least 1 - `failure`. R is the result without noise, compiled or
not. Sums that cancel have noise of the size of their terms, not of the result. So with
atol = rho rtol rms(R), rho out of `BALANCES`, errors are in units u_e = |R_e| + rho
rms(R); the chosen rho makes the tolerance smallest in the geometric mean. Where several
elements share the largest size, as in a mask, rms(R) is also
tried without them.

Let m_e and s_e be mean and standard deviation (divisor d = n - 1) of element e over n
runs, in those units. An element is taken as normal, and rtol is the t at which

    sum over e of P(|N(m_e - R_e, sigma_e^2)| > t)  =  failure

(elements may depend on each other, so their probabilities are added), with

    sigma_e^2 = (1 + 1/n) max(F^2 w_e^2, (GRID g_e)^2)
    w_e^2 = max(s_e^2, (d0 v + d s_e^2) / (d0 + d))

v, d0  the mean of s_e^2, and the similarity of the elements: by an empirical Bayes
       estimate
       (G. K. Smyth, Stat. Appl. Genet. Mol. Biol. 3, 2004), from the variance of the
       s_e^2, where they follow a scaled F distribution with d and d0 degrees
F      sqrt(k / chi2(1 %; k)): sigma_e is a bound with 99 % confidence. k = d0 + d, but
       no more than the runs have together: n - 1 times 2 v^2 / (variance, from run to
       run, of the mean square error), which is small where all elements move together
g_e    results lie on a grid, of which few runs may all meet one point: the distance
       from |R_e| to the next number of its type, at most
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable, Iterator, Sequence

import jax
import numpy as np
from jax import Array

from prednet_jax.noise import leaves, quantiles
from prednet_jax.noise.errors import (
    NoiseError,
    check_draws,
    check_int,
    expect,
    open_unit,
)
from prednet_jax.noise.leaves import (
    Leaf,
    Result,
    equal_elements,
    rms,
    subtract,
    wide_leaves,
)
from prednet_jax.noise.questions import sampling
from prednet_jax.noise.questions.assertions import Reference, Tolerance
from prednet_jax.noise.questions.elements import (
    ElementNoise,
    small_elements,
    takes_decisions,
)
from prednet_jax.noise.questions.precision import CASTS, OwnRounding, own_rounding
from prednet_jax.noise.questions.sampling import BoundCall, with_routines
from prednet_jax.noise.questions.signs import MOVED, signs
from prednet_jax.noise.specs import NoiseSpec, ReductionOrder, UlpPerturbation, compose
from prednet_jax.noise.text import format
from prednet_jax.noise.types import Function, PyTree

# Smaller probabilities are below the resolution of the normal tail.
LEAST_FAILURE = 1e-300
# The largest distance of eager and compiled results, in units of elements' noise.
COMPILED_FACTOR = 16.0
# Failure rates below this were not tested against draws.
EXTRAPOLATED = 1e-3
# atol in units of rtol * rms(R).
BALANCES = (1e-3, 1e-2, 1e-1, 1.0, 10.0)
# That the true standard deviation of an element is below its bound.
CONFIDENCE = 0.99
# The least standard deviation, in distances to the next number.
GRID = 0.75
# A bound is found to this fraction, far finer than a few runs determine it.
RESOLUTION = 1e-4
# More degrees of freedom do not improve the bound of a spread.
MAX_DEGREES_OF_FREEDOM = 1000.0


def default_noise() -> NoiseSpec:
    """Returns the noise of a tolerance: the default, and chains of all terms.

    A test has to pass a kernel that adds all terms of a sum one after another.
    """
    chained = ReductionOrder(granularity="element", chain="terms")
    return compose(chained, UlpPerturbation(keep_exact=True))


def tolerance(
    fn: Function,
    spec: NoiseSpec | None = None,
    *,
    draws: int = 16,
    failure: float = 1e-6,
) -> Callable[..., PyTree]:
    """Returns a function that measures tolerances which almost all runs of `fn` meet.

    Args:
        fn: the function, as for `inject`.
        spec: the noise. Defaults to another order of sums, with the error of long
            chains, and the rounding of the last place (`default_noise`).
        draws: number of runs, 2 or more.
        failure: probability, per leaf, that a fresh run is outside; in (0, 1).

    Returns:
        `measure(key, *args, **kwargs)`, which gives a pytree like the result of `fn`
            with a `Tolerance` in the place of each leaf, for these arguments and this
            device. Elements that are always NaN or the same infinity need none
            (`equal_nan=True`); integers and booleans that never change have zeros.

    Raises:
        NoiseError: as for `inject`, `spec` acts on no computation, an element is finite
            in only some of the runs, noise decides about the sign, the order or
            the basis of vectors, or the function gives another result when it is
            compiled or called again.

    Example:
        >>> import jax, numpy as np
        >>> from prednet_jax import noise
        >>> x = np.ones(1000, np.float32) / 3
        >>> bound = noise.tolerance(lambda x: x.sum(), None)(jax.random.key(0), x)
        >>> bool(0 < bound.rtol < 1e-4)
        True
    """
    check_draws(draws, 2)
    open_unit("failure", failure)
    expect(failure >= LEAST_FAILURE, "failure", failure, f"{LEAST_FAILURE} or more")
    spec = default_noise() if spec is None else spec
    text, noise = format(spec), with_routines(spec)

    def measure(call: BoundCall, key: Array) -> PyTree:
        own = own_rounding(call)
        compiled = own.call.plain
        leaves.check_some(compiled)
        there = wide_leaves(compiled)
        references = [wide_leaves(call.eager()), there]
        widened = [name for name in own.effects if name != CASTS]
        for name in widened:
            references.append(list(map(np.add, there, own.effects[name])))
        described = leaves.describe_leaves(compiled)
        pairs = zip(described, zip(*references, strict=True), strict=True)
        errors = [_Errors(xs, leaf) for leaf, xs in pairs]
        moments = sampling.sample_moments(
            own.call.draw(noise, key, draws), lambda i, part, x: errors[i].see(part, x)
        )
        for i, error in enumerate(errors):
            error.end(moments, i)
        _check_vectors(own.call, errors)
        eager = references[0] if own.call is call else wide_leaves(own.call.result())
        decides = takes_decisions(call)
        _check_compilation(own, noise, key, errors, eager, decides)
        about: dict = {"widened": "".join(widened[-1:]), "spec": text}
        about["casts"] = CASTS in own.effects
        about |= {"noises": None} if decides else {}
        tolerances = [
            dataclasses.replace(error.tolerance(failure), **about) for error in errors
        ]
        return leaves.rebuilt(moments.tree, tolerances)

    return sampling.keyed(fn, measure)


def _check_compilation(
    own: OwnRounding,
    spec: NoiseSpec,
    key: Array,
    errors: Sequence[_Errors],
    eager: Result,
    decides: bool,
) -> None:
    """Refuses a function whose compiled result differs from the eager one.

    A compiler may leave out casts, and add terms in a chain. A difference as large as
    theirs, or as rounding, is allowed. `decides` is whether the function takes
    decisions, which rounding may flip.
    """
    compiled, casts = wide_leaves(own.call.plain), own.effects.get(CASTS)

    def suspects(noises: Sequence[ElementNoise]) -> Iterator[tuple[int, np.ndarray]]:
        for i, noise in enumerate(noises):
            gap = subtract(eager[i], compiled[i])
            gap = np.where(np.isfinite(gap), np.abs(gap), 0)
            if not gap.any() or not noise.outside(gap, COMPILED_FACTOR, decides).number:
                continue
            if casts is None or not noise.within_effect(gap, casts[i], COMPILED_FACTOR):
                yield i, gap

    if not any(suspects([e.elements for e in errors])):
        return
    # The order of sums says nothing of rounding, and a long chain moves all runs alike.
    noisy = compose(spec, with_routines(UlpPerturbation(keep_exact=True)))
    pairs = zip(compiled, errors, strict=True)
    rounding = [ElementNoise(x, error.leaf.epsilon) for x, error in pairs]
    for result in own.call.draw(noisy, key, 5):
        for noise, x, y in zip(rounding, wide_leaves(result), compiled, strict=True):
            noise.see(subtract(x, y))
    for i, gap in suspects(rounding):
        worst = np.unravel_index(int(np.argmax(gap)), gap.shape)
        raise NoiseError(
            f"{errors[i].leaf.path}{list(map(int, worst))}: the function gives "
            f"{compiled[i][worst]:.9g} when it is compiled and {eager[i][worst]:.9g} "
            "when it is called, more than rounding makes; expected a pure function "
            "that gives the same result called and compiled"
        )


def _check_vectors(call: BoundCall, errors: Sequence[_Errors]) -> None:
    """Refuses vectors of which noise decides the sign, the order or the basis.

    A tolerance that allows for this would allow for any vectors.
    """
    moved = {i: rms(e.spread) / (rms(e.size) or 1) for i, e in enumerate(errors)}
    if max(moved.values(), default=0) > MOVED:
        for i, note in signs(call).notes.items():
            if moved[i] > MOVED:
                path, size = errors[i].leaf.path, f"{moved[i]:.2g}"
                raise NoiseError(
                    f"{path}: noise moves it by {size} of its size; {note}"
                )


class _Errors:
    """The errors of one leaf, in the units of each balance.

    `references` are the results without noise; `floors` are all rho rms(R), and
    `squares` the mean square error of each run in their units, [runs, floors].
    """

    def __init__(self, references: Sequence[np.ndarray], leaf: Leaf) -> None:
        self.leaf, self.special = leaf, references[0]
        self.finite = np.isfinite(self.special)
        self.settled = np.ones(self.finite.shape, bool)
        for other in references[1:]:
            same = self.finite & np.isfinite(other)
            if not same.all():
                same |= equal_elements(other, self.special)
            self.settled &= same
        sizes = [np.abs(x) for x in references]
        self.sizes = functools.reduce(np.minimum, sizes)
        self.size = self._finite_of(self.sizes)
        self.largest = self._finite_of(functools.reduce(np.maximum, sizes))
        self.references = list(map(self._finite_of, references))
        self.elements = ElementNoise(self.special, leaf.epsilon)
        scales = {rms(self.size)}
        masked = self.size == self.size.max(initial=0)
        if np.count_nonzero(masked) > 1:
            scales.add(rms(self.size[~masked]))
        scales = scales - {0.0} or {0.0}
        self.floors = sorted({rho * scale for rho in BALANCES for scale in scales})
        self.squares = np.zeros((0, len(self.floors)))

    def _finite_of(self, x: np.ndarray) -> np.ndarray:
        """Returns the elements that are finite without noise, [N]."""
        return x.reshape(-1) if self.finite.all() else x[self.finite]

    def see(self, part: slice, x: np.ndarray) -> None:
        """Adds elements `part` of runs under noise, [n, m], from the first element."""
        if part.start == 0:
            new = np.zeros((len(x), len(self.floors)))
            self.squares = np.concatenate([self.squares, new])
        finite, special, size = (
            of_all.reshape(-1)[part]
            for of_all in (self.finite, self.special, self.sizes)
        )
        if not finite.all():
            same = equal_elements(x, special).all(0)
            self.settled.reshape(-1)[part] &= finite | same
            x, special, size = x[:, finite], special[finite], size[finite]
        # Squares of the sizes themselves may underflow.
        scale = self.floors[-1] or 1.0
        weights = [np.square(scale / _units(size, floor)) for floor in self.floors]
        squares = np.square(np.abs(x - special) / scale) @ np.transpose(weights)
        self.squares[-len(x) :] += squares / max(1, self.size.size)

    def end(self, moments: sampling.Moments, i: int) -> None:
        """Takes the moments of all runs, in which the leaf is number `i`.

        Raises:
            NoiseError: an element is finite in only some of the runs.
        """
        mean, spread = moments.means[i], moments.deviations[i]
        settled = self.settled & (np.isfinite(mean) == self.finite)
        if not np.all(settled & np.isfinite(spread)):
            raise NoiseError(
                f"{self.leaf.path}: an element is finite in some of the runs only, or "
                "NaN in some and infinite in others; expected the same in all runs "
                "(noise.nan_rate counts them)"
            )
        self.mean, self.spread = map(self._finite_of, (mean, spread))
        self.elements.see_sums(moments.runs, moments.roots[i], moments.largest[i])

    def tolerance(self, failure: float) -> Tolerance:
        """Returns the tolerance that errors exceed with probability `failure`."""
        bias = functools.reduce(
            np.maximum, [np.abs(self.mean - x) for x in self.references]
        )
        grid = GRID * self.leaf.epsilon * self.largest
        rtol = atol = 0.0
        least = math.inf
        for i, floor in enumerate(self.floors if self.mean.size else ()):
            unit, squares = _units(self.size, floor), self.squares[:, i]
            sigma = np.maximum(_spread_bound(self.spread / unit, squares), grid / unit)
            sigma *= math.sqrt(1 + 1 / len(squares))
            bound = _exceeded(bias / unit, sigma, failure)
            cost = math.log(bound or 1) + float(np.mean(np.log(unit)))
            # Among equally good ones, take the one with the least atol.
            if cost < least - 0.01:
                least, rtol, atol = cost, bound, floor * bound
        if not np.any(self.size):
            rtol, atol = 0.0, rtol
        allowed = atol + rtol * self.size
        positive = allowed > 0
        noise = rms(self.spread[positive] / allowed[positive])
        limits, (own, farthest) = self.elements.limits(), self.elements.own()
        hidden = small_elements(self.special, atol, limits)
        # The difference between the references is not noise.
        between = np.zeros(self.finite.shape)
        between[self.finite] = bias
        return Tolerance(
            *(rtol, atol, noise, failure < EXTRAPOLATED, hidden),
            noises=(limits + between, own + between, farthest),
        )


def _units(size: np.ndarray, floor: float) -> np.ndarray:
    """Returns the unit in which the error of each element is measured."""
    return size + floor if floor else np.ones_like(size)


def _spread_bound(spread: np.ndarray, squares: np.ndarray) -> np.ndarray:
    """Returns upper bounds of deviations [N], for runs of mean squares [n]."""
    free, variances = len(squares) - 1, np.square(spread)
    typical = float(variances.mean())
    if not typical:
        return spread
    unlike = free * float(variances.var()) / typical**2
    prior = math.inf if unlike <= 2 else (2 * (free - 2) + 4 * unlike) / (unlike - 2)
    alike = free * 2 * typical**2 / max(float(np.var(squares, ddof=1)), 1e-300)
    degrees = min(
        prior + free, max(free, min(alike, free * spread.size)), MAX_DEGREES_OF_FREEDOM
    )
    weight = 1 if prior == math.inf else prior / (prior + free)
    bound = quantiles.spread_bound(degrees + 1, CONFIDENCE)
    drawn_up = np.maximum(variances, weight * typical + (1 - weight) * variances)
    return bound * np.sqrt(drawn_up)


def _exceeded(bias: np.ndarray, sigma: np.ndarray, failure: float) -> float:
    """Returns the value that no normal error [N] exceeds, except at `failure`."""
    from scipy.special import ndtr

    count = bias.size
    high = float(np.max(bias + quantiles.two_sided(failure / count) * sigma))
    if not high:
        return 0.0
    # The other elements add less than a thousandth.
    low = float(np.max(bias + quantiles.two_sided(min(2 * failure, 1)) * sigma))
    near = bias + quantiles.two_sided(failure / count / 1000) * sigma >= low
    bias, sigma = bias[near], np.maximum(sigma[near], high * 1e-12)

    low, least = 0.0, math.ulp(0.0)
    # Bisection of what falls as it grows.
    while high - low > max(RESOLUTION * high, least):
        bound = (low + high) / 2
        beyond = np.sum([ndtr((x - bound) / sigma) for x in (bias, -bias)])
        low, high = (bound, high) if beyond > failure else (low, bound)
    return high


def noise_reference(
    fn: Function,
    *args: PyTree,
    spec: NoiseSpec | None = None,
    draws: int = 16,
    failure: float = 1e-6,
    seed: int = 0,
) -> Reference:
    """Runs `fn` with and without noise, as the pytest fixture `noise_tolerance` does.

    The options and errors are documented in `tolerance`; `seed` seeds the noise.
    """
    measure = tolerance(fn, spec, draws=draws, failure=failure)
    check_int("seed", seed, -(2**63), 2**63 - 1)
    tolerances = measure(jax.random.key(seed), *args)
    return Reference(BoundCall(fn, args, {}).result(), tolerances)
