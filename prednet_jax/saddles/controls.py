"""Positive controls: could this instrument detect an escape if there were one?

Two conditions have to hold before the answer "no effect" can be trusted. Measured
escape times follow the theory. And noise separates identical hidden units if, and only
if, its granularity allows it.
"""

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from prednet_jax.saddles import escape, functions
from prednet_jax.saddles.runs import (
    escape_runs,
    gradient_descent,
    heavy_ball,
    rotated_gradient,
)

#: Maps a gradient function of x and a granularity to noisy(key, x).
NoisyFactory = Callable[
    [Callable[[jax.Array], jax.Array], str], Callable[[jax.Array, jax.Array], jax.Array]
]
_PROJECTION = 1e-5
# An escape takes about 1200 steps, so that 5 % is much more than one step.
_SLOW, _NOISE = 0.005, 1e-3
Check = dict[str, Any]


def positive_controls(make_noisy: NoisyFactory, *, pairs: int = 32) -> dict[str, Any]:
    """Runs both controls; takes some seconds on two cores.

    Args:
      make_noisy: injects the noise under test into a gradient, with the granularity
        that it is given: `lambda fn, g: inject(fn, ReductionOrder(granularity=g))`.
      pairs: number of pairs of identical units, which lie as many rows apart: at least
        the edge of a tile of the noise, since units in one tile stay identical.

    Returns:
      A JSON object: whether each control holds, and its checks.
    """
    granularities = ("shared", "tile", "element")
    units = [unit_check(make_noisy, g, pairs) for g in granularities]
    theory = _theory_checks()
    return {
        "theory_matched": all(check["passed"] for check in theory),
        "units_separated": all(check["passed"] for check in units),
        "theory": theory,
        "units": units,
    }


def _theory_checks() -> list[Check]:
    """Compares escape times with the theory at the first saddle of the octopus.

    It is exactly quadratic there. Gradient descent and heavy ball have to agree within
    one step, gradient descent under normal noise within 5 %, in float32. Times are
    steps, medians over the seeds.
    """
    function = functions.octopus_function()
    plain = rotated_gradient(function)
    near = dataclasses.replace(
        function,
        start=lambda rng: function.start(rng) + _PROJECTION * function.escape[0],
    )

    def shaken(key, x, q):
        return plain(x, q) + _NOISE * jax.random.normal(key, x.shape, x.dtype)

    def check(name, rule, gradient, start, noise, **run):
        runs = escape_runs(gradient, start, [rule], forms=("aligned",), **run)
        measured = float(np.median(runs.steps))
        growth = escape.growth(
            function.curvature,
            learning_rate=float(rule.learning_rate),
            momentum=float(rule.momentum),
        )
        shift = escape.noise_projection(noise, growth)
        at = 0.0 if noise else _PROJECTION
        predicted = escape.escape_time(at, function.radius, growth, noise=shift)
        tolerance = 0.05 * predicted if noise else 1.0
        found = {"name": name, "predicted": predicted, "measured": measured}
        passed = abs(measured - predicted) <= tolerance
        return found | {"tolerance": tolerance, "passed": passed}

    def quiet(key, x, q):
        return plain(x, q)

    rate = 1 / (2 * function.smoothness)
    short, long = {"seeds": 1, "steps": 200}, {"seeds": 64, "steps": 2500}
    descent, slow = gradient_descent(rate), gradient_descent(_SLOW)
    return [
        check("gradient descent", descent, quiet, near, 0.0, **short),
        check("heavy ball", heavy_ball(rate), quiet, near, 0.0, **short),
        check("noisy gradient descent", slow, shaken, function, _NOISE, **long),
    ]


def unit_check(make_noisy: NoisyFactory, granularity: str, pairs: int) -> Check:
    """Tests on four seeds whether noise of one granularity separates identical units.

    Gradient descent and heavy ball run for 300 steps from a symmetric start, twice the
    time in which rounding errors of 1e-8 grow to the radius. The arguments are those of
    `positive_controls`.

    Returns:
      `granularity`; fractions of the runs whose paired units are `identical` still, bit
      for bit, and that `escaped` from the symmetric saddle; `passed`: whether all units
      are identical under "shared", and none is and all escaped under the others.
    """
    function = functions.identical_units(pairs)
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
    same = [
        all(np.array_equal(w[:pairs], w[pairs:]) for w in x.reshape(2, 2 * pairs, -1))
        for x in np.concatenate(runs.x[:, 0])
    ]
    escaped = runs.escaped[:, 0]
    passed = all(same) if granularity == "shared" else escaped.all() and not any(same)
    found = {"granularity": granularity, "identical": float(np.mean(same))}
    return found | {"escaped": float(escaped.mean()), "passed": bool(passed)}
