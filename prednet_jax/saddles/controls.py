"""Positive controls: could this instrument detect an escape if there were one?

Two conditions have to hold before the answer "no effect" can be trusted. Measured
escape times follow the theory. And noise separates identical hidden units if, and only
if, its granularity allows it.
"""

import dataclasses
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import numpy as np
from numpy.typing import ArrayLike

from prednet_jax import escape
from prednet_jax.saddles.base import SaddleFunction
from prednet_jax.saddles.dynamics import escape_runs, rotated_gradient
from prednet_jax.saddles.factorisation import identical_units, split_units
from prednet_jax.saddles.octopus import octopus_function
from prednet_jax.saddles.optimizers import Rule, gradient_descent, heavy_ball

#: Maps a gradient function of x and a granularity to noisy(key, x).
NoisyFactory = Callable[
    [Callable[[jax.Array], jax.Array], str], Callable[[jax.Array, jax.Array], jax.Array]
]
_PROJECTION = 1e-5
# An escape takes about 1200 steps, so that 5 % is much more than one step.
_SLOW, _NOISE = 0.005, 1e-3


class TheoryCheck(NamedTuple):
    """One escape time: predicted and measured steps (medians), and the tolerance."""

    name: str
    predicted: float
    measured: float
    tolerance: float
    passed: bool


class UnitCheck(NamedTuple):
    """What became of identical units under noise of one granularity.

    Attributes:
      granularity: "shared", "tile" or "element".
      identical: fraction of the runs whose paired units are still bitwise equal.
      escaped: fraction of the runs that left the symmetric saddle.
      passed: whether all units are identical under "shared", or all runs have different
        units and escaped under the others.
    """

    granularity: str
    identical: float
    escaped: float
    passed: bool


@dataclasses.dataclass(frozen=True, kw_only=True)
class PositiveControls:
    """The two controls that the verdict needs, with the numbers behind them.

    Attributes:
      theory_matched: every escape time lies within its tolerance.
      units_separated: units separate under tile and element order, but not under a
        shared order.
      theory: the escape times.
      units: the granularities.
    """

    theory_matched: bool
    units_separated: bool
    theory: tuple[TheoryCheck, ...]
    units: tuple[UnitCheck, ...]

    def as_dict(self) -> dict[str, Any]:
        """A JSON object."""
        return {
            "theory_matched": self.theory_matched,
            "units_separated": self.units_separated,
            "theory": [check._asdict() for check in self.theory],
            "units": [check._asdict() for check in self.units],
        }


def positive_controls(
    make_noisy: NoisyFactory, *, seeds: int = 64, pairs: int = 32
) -> PositiveControls:
    """Runs both controls; takes some seconds on two cores.

    Args:
      make_noisy: injects the noise under test into a gradient, with the granularity
        that it is given: `lambda fn, g: inject(fn, ReductionOrder(granularity=g))`.
      seeds: runs over which the median of the noisy escape time is taken, >= 1.
      pairs: number of pairs of identical units. The two units of a pair lie `pairs`
        rows apart. That has to be at least the edge of a tile of the noise: units in
        one tile stay identical.

    Raises:
      UserError: seeds or pairs below 1.
    """
    checks = theory_checks(seeds)
    units = tuple(
        unit_check(make_noisy, granularity, pairs)
        for granularity in ("shared", "tile", "element")
    )
    return PositiveControls(
        theory_matched=all(check.passed for check in checks),
        units_separated=all(check.passed for check in units),
        theory=checks,
        units=units,
    )


def theory_checks(seeds: int = 64) -> tuple[TheoryCheck, ...]:
    """Compares escape times with the theory at the first saddle of the octopus.

    The neighbourhood of that saddle is exactly quadratic. Gradient descent and heavy
    ball have to agree within one step, noisy gradient descent within 5 %, in float32.
    The noise is normal with standard deviation 1e-3 per component of the gradient.
    """
    function = octopus_function()
    rate = 1 / (2 * function.smoothness)
    near = dataclasses.replace(
        function,
        start=lambda rng: function.start(rng) + _PROJECTION * function.escape[0],
    )
    plain = rotated_gradient(function)
    rules = [gradient_descent(rate), heavy_ball(rate)]
    quiet = escape_runs(
        lambda key, x, q: plain(x, q),
        near,
        rules,
        forms=("aligned",),
        seeds=1,
        steps=200,
    )
    names = ("gradient descent", "heavy ball")
    checks = [
        _check(name, function, rule, _PROJECTION, 0.0, steps, tolerance=1.0)
        for name, rule, steps in zip(names, rules, quiet.steps[:, 0], strict=True)
    ]
    slow = gradient_descent(_SLOW)

    def shaken(key, x, q):
        return plain(x, q) + _NOISE * jax.random.normal(key, x.shape, x.dtype)

    noisy = escape_runs(
        shaken, function, [slow], forms=("aligned",), seeds=seeds, steps=2500
    )
    steps, name = noisy.steps[0, 0], "noisy gradient descent"
    last = _check(name, function, slow, 0.0, _NOISE, steps, tolerance=0.05)
    return (*checks, last)


def unit_check(make_noisy: NoisyFactory, granularity: str, pairs: int) -> UnitCheck:
    """Tests on four seeds whether noise of one granularity separates identical units.

    Gradient descent and heavy ball run for 300 steps from a symmetric start. That is
    twice the time in which rounding errors of 1e-8 grow to the radius. The arguments
    are those of `positive_controls`.
    """
    function = identical_units(pairs)
    rate = 1 / (2 * function.smoothness)
    noisy = make_noisy(jax.grad(function.fn), granularity)
    runs = escape_runs(
        lambda key, x, q: noisy(key, x),
        function,
        [gradient_descent(rate), heavy_ball(rate)],
        forms=("aligned",),
        seeds=4,
        steps=300,
    )
    same = [_paired_units_equal(x, pairs) for x in np.concatenate(runs.x[:, 0])]
    escaped = runs.escaped[:, 0]
    passed = all(same) if granularity == "shared" else escaped.all() and not any(same)
    return UnitCheck(
        granularity, float(np.mean(same)), float(escaped.mean()), bool(passed)
    )


def _check(
    name: str,
    function: SaddleFunction,
    rule: Rule,
    projection: float,
    noise: float,
    steps: ArrayLike,
    *,
    tolerance: float,
) -> TheoryCheck:
    """Compares an escape time with its prediction.

    A `tolerance` of 1 or more is a number of steps, one below 1 a fraction of the
    prediction.
    """
    growth = escape.growth(
        function.curvature,
        learning_rate=float(rule.learning_rate),
        momentum=float(rule.momentum),
    )
    predicted = escape.escape_time(
        projection,
        function.radius,
        growth,
        noise=escape.noise_projection(noise, growth),
    )
    measured = float(np.median(np.asarray(steps)))
    allowed = tolerance if tolerance >= 1 else tolerance * predicted
    return TheoryCheck(
        name, predicted, measured, allowed, abs(measured - predicted) <= allowed
    )


def _paired_units_equal(x: jax.Array, pairs: int) -> bool:
    return all(
        np.array_equal(weights[:pairs], weights[pairs:])
        for weights in split_units(x, 2 * pairs)
    )
