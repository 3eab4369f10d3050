"""Growth at a saddle against the recursions that it describes, in float64."""

import math
from fractions import Fraction

import numpy as np
import pytest

from prednet_jax.saddles import escape_theory

OPTIMISERS = {
    "gradient descent": {"momentum": 0.0, "averaged": False},
    "heavy ball": {"momentum": 0.9, "averaged": False},
    "adam": {"momentum": 0.9, "averaged": True},
}
every_optimiser = pytest.mark.parametrize("kind", OPTIMISERS.values(), ids=OPTIMISERS)


def follow(z, steps, gamma, learning_rate, momentum, averaged, noise=None):
    z, m, trail = np.array(z, float), 0.0, []
    for t in range(steps):
        gradient = -gamma * z + (0.0 if noise is None else noise[t])
        m = momentum * m + (1.0 - momentum if averaged else 1.0) * gradient
        z = z - learning_rate * m
        trail.append(z)
    return np.array(trail)


@pytest.mark.parametrize("x", [1e-3, 1e-18])
@pytest.mark.parametrize("momentum", [0.0, 0.999])
def test_slow_escapes_lose_no_digits(x, momentum):
    """E = r - 1 solves e^2 + (1 - beta - x) e = x, checked in rational numbers."""
    g = escape_theory.growth(x, learning_rate=1.0, momentum=momentum)
    beta, root, small = (Fraction(v) for v in (momentum, g.excess, Fraction(x)))
    assert abs(root * root + (1 - beta - small) * root - small) < 1e-15 * small
    assert g.excess_of_square == pytest.approx(2 * g.excess, rel=2 * g.excess + 1e-15)


@every_optimiser
@pytest.mark.parametrize("gamma", [1e-3, 2.0])
def test_growth_is_that_of_the_optimiser(kind, gamma):
    g = escape_theory.growth(gamma, learning_rate=0.1, **kind)
    trail = follow(1.0, 400, gamma, 0.1, **kind)
    np.testing.assert_allclose(trail[-1] / trail[-2], g.fast, rtol=1e-10)
    # The two roots solve r^2 - A r + beta = 0.
    a = 1.0 + g.momentum + g.kick * gamma
    slow = g.momentum / g.fast
    np.testing.assert_allclose(g.fast + slow, a, rtol=1e-14)
    np.testing.assert_allclose(g.fast - slow, g.gap, rtol=1e-14)


def test_frozen_adam_is_adam_with_a_constant_second_moment():
    hessian = np.array([[1.0, 0.4], [0.4, -0.5]])
    v, eps, rate, b1 = np.array([0.25, 1e-4]), 1e-8, 1e-3, 0.9
    scale = np.sqrt(v) + eps
    spectrum, vectors = np.linalg.eigh(hessian / np.sqrt(np.outer(scale, scale)))
    direction = vectors[:, 0]
    x = direction / np.sqrt(scale) * 1e-9
    m, steps = np.zeros(2), 0
    while abs(direction @ (np.sqrt(scale) * x)) < 1e-2:
        m = b1 * m + (1 - b1) * hessian @ x
        x = x - rate * m / scale
        steps += 1
    g = escape_theory.growth(
        -spectrum[0], learning_rate=rate, momentum=b1, averaged=True
    )
    expected = math.log(1e7 * g.gap / g.ahead) / math.log1p(g.excess)
    assert expected == pytest.approx(steps, abs=1)


@every_optimiser
def test_a_run_with_momentum_continues(kind):
    """From any moment of a run, c predicts the rest of it."""
    gamma, rate = 0.5, 0.05
    g = escape_theory.growth(gamma, learning_rate=rate, **kind)
    trail = follow(1e-7, 300, gamma, rate, **kind)
    c = escape_theory.growing_projection(trail[9], trail[9] - trail[8], g)
    # c (r - beta) / (r - s) r^n: the growing mode alone, which is all that is left.
    ahead = c * g.ahead / g.gap * g.fast**290
    assert ahead == pytest.approx(trail[299], rel=1e-9)


@every_optimiser
def test_noise_projection_is_the_median_of_many_runs(kind):
    gamma, rate, sigma, steps, runs = 0.5, 0.05, 0.3, 600, 4000
    noise = sigma * np.random.default_rng(0).standard_normal((steps, runs))
    ends = follow(np.zeros(runs), steps, gamma, rate, **kind, noise=noise)[-1]
    g = escape_theory.growth(gamma, learning_rate=rate, **kind)
    c = escape_theory.noise_projection(sigma, g)
    predicted = c * g.ahead / g.gap * g.fast**steps
    # Median of 4000: its standard error is 1.86 % of the median here (density .4277).
    assert abs(np.median(np.abs(ends)) / predicted - 1.0) < 4 * 0.0186
    # The standard deviation of 4000 draws is known to 1.1 %; three of these.
    deviation = predicted / escape_theory.MEDIAN_NORMAL
    assert ends.std() == pytest.approx(deviation, rel=0.035)


def test_noise_saves_one_update_exactly_at_the_useful_projection():
    g = escape_theory.growth(1e-3, learning_rate=1e-2, momentum=0.9, averaged=True)
    c = escape_theory.useful_projection(1e-6, g)
    assert escape_theory.updates_saved(c, 1e-6, g) == pytest.approx(1.0, rel=1e-12)
    assert escape_theory.updates_saved(2 * c, 1e-6, g) < 1.0
    assert escape_theory.updates_saved(c / 2, 1e-6, g) > 1.0
    # The usual form for slow escapes.
    assert c == pytest.approx(1e-6 / math.sqrt(2 * math.log(g.fast)), rel=1e-3)
    # Starts that add in squares are sqrt(10) times as large.
    earlier = 0.5 * math.log(10) / math.log1p(g.excess)
    assert escape_theory.updates_saved(1e-6, 3e-6, g) == pytest.approx(earlier)
    assert escape_theory.updates_saved(0.0, 1e-6, g) == math.inf
    assert escape_theory.updates_saved(0.0, 0.0, g) == 0.0
