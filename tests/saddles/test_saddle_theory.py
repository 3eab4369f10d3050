"""Escape-time formulas against the recursions they describe, in plain numpy."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from prednet_jax.saddles import theory


def iterate(c, delta, rate, curvature, momentum):
    """Whole steps of heavy ball on -curvature x^2 / 2 until |x| >= delta."""
    previous = x = c
    steps = 0
    while abs(x) < delta:
        moved = x + rate * curvature * x + momentum * (x - previous)
        previous, x = x, moved
        steps += 1
    return steps


@settings(max_examples=60, deadline=None)
@given(
    st.floats(1e-12, 1e-2),
    st.floats(0.05, 3.0),
    st.floats(0.01, 0.5),
    st.floats(0.2, 3.0),
    st.sampled_from([0.0, 0.5, 0.9]),
)
def test_gradient_descent_and_heavy_ball_to_a_step(c, delta, rate, curvature, momentum):
    predicted = theory.escape_time(
        c, delta, learning_rate=rate, curvature=curvature, momentum=momentum
    )
    measured = iterate(c, delta, rate, curvature, momentum)
    # The first whole step outside; the decaying mode may cost or save one more.
    assert measured - 1 <= predicted + 1e-6
    assert predicted <= measured + 1e-6 or momentum


def test_published_forms():
    # ln(delta/c)/ln(1 + eta gamma), and the heavy-ball formula written out.
    assert theory.escape_time(
        1e-8, 1.0, learning_rate=0.1, curvature=2.0
    ) == pytest.approx(math.log(1e8) / math.log(1.2))
    a = 1 + 0.9 + 0.2
    plus, minus = ((a + s * math.sqrt(a * a - 3.6)) / 2 for s in (1, -1))
    assert theory.growth_factors(0.1, 2.0, 0.9) == pytest.approx((plus, minus))
    expected = math.log((plus - minus) / (1e-8 * (plus - 0.9))) / math.log(plus)
    assert theory.escape_time(
        1e-8, 1.0, learning_rate=0.1, curvature=2.0, momentum=0.9
    ) == pytest.approx(expected)


def test_frozen_adam_is_adam_with_a_constant_second_moment():
    hessian = np.array([[1.0, 0.4], [0.4, -0.5]])
    v, eps, rate, b1 = np.array([0.25, 1e-4]), 1e-8, 1e-3, 0.9
    scale = np.sqrt(v) + eps
    curvature = theory.preconditioned_curvature(hessian, v, eps=eps)
    spectrum, vectors = np.linalg.eigh(hessian / np.sqrt(np.outer(scale, scale)))
    assert curvature == pytest.approx(-spectrum[0])
    direction = vectors[:, 0]
    x = direction / np.sqrt(scale) * 1e-9
    m, steps = np.zeros(2), 0
    while abs(direction @ (np.sqrt(scale) * x)) < 1e-2:
        m = b1 * m + (1 - b1) * hessian @ x
        x = x - rate * m / scale
        steps += 1
    predicted = theory.adam_frozen_escape_time(
        1e-9, 1e-2, learning_rate=rate, preconditioned_curvature=curvature, b1=b1
    )
    assert predicted == pytest.approx(steps, abs=1)


def test_fresh_adam_walks():
    assert theory.adam_fresh_escape_time(0.5, learning_rate=1e-2) == pytest.approx(50)


@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_noise_acts_like_a_projection(momentum):
    rng = np.random.default_rng(0)
    rate, curvature, sigma, runs = 0.05, 1.0, 1e-4, 4000
    x = previous = np.zeros(runs)
    plus, minus = theory.growth_factors(rate, curvature, momentum)
    for _ in range(200):
        moved = x + momentum * (x - previous) + rate * curvature * x
        previous, x = x, moved + rate * sigma * rng.normal(size=runs)
    # The growing mode, referred to step 0: amplitude x (r+ - r-)/(r+ - beta).
    amplitude = (x - minus * previous) * plus / (plus - minus) / plus**200
    equivalent = amplitude * (plus - minus) / (plus - momentum)
    predicted = theory.noise_projection(
        learning_rate=rate, curvature=curvature, noise=sigma, momentum=momentum
    )
    # The standard deviation of 4000 draws is known to 1.1 %; three of these.
    assert equivalent.std() == pytest.approx(predicted, rel=0.035)


def test_median_with_projection_and_noise():
    # The quadrature rule is an interpolation between two exact ends.
    for c in (0.0, 0.3, 1.0, 3.0, 30.0):
        exact = stats.foldnorm.median(c)
        size = math.hypot(c, theory.MEDIAN_NORMAL)
        assert size == pytest.approx(exact, rel=0.2)
    assert abs(theory.MEDIAN_NORMAL - stats.norm.ppf(0.75)) < 1e-15


def test_noise_saves_a_step_only_below_its_own_projection():
    settings = {"learning_rate": 0.05, "curvature": 1.0, "noise": 1e-4}
    c_sigma = theory.MEDIAN_NORMAL * theory.noise_projection(**settings)
    edge = c_sigma / math.sqrt(1.05**2 - 1)
    assert theory.steps_saved(edge, **settings) == pytest.approx(1.0)
    assert theory.steps_saved(10 * edge, **settings) < 0.02
    assert theory.steps_saved(0.0, **settings) == math.inf
    assert theory.steps_saved(0.0, **(settings | {"noise": 0.0})) == 0.0


def test_remaining_time_continues_a_run():
    rate, curvature, momentum, c, delta = 0.1, 1.0, 0.9, 1e-7, 0.1
    whole = theory.escape_time(
        c, delta, learning_rate=rate, curvature=curvature, momentum=momentum
    )
    previous = x = c
    for _ in range(10):
        moved = x + rate * curvature * x + momentum * (x - previous)
        previous, x = x, moved
    rest = theory.remaining_time(
        previous, x, delta, learning_rate=rate, curvature=curvature, momentum=momentum
    )
    assert 10 + rest == pytest.approx(whole, abs=1e-6)


def test_never_and_already():
    still = theory.escape_time(0.0, 1.0, learning_rate=0.1, curvature=1.0)
    assert still == math.inf
    assert theory.escape_time(2.0, 1.0, learning_rate=0.1, curvature=1.0) == 0.0


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"learning_rate": 0.0}, "learning_rate=0.0"),
        ({"curvature": -1.0}, "curvature=-1.0"),
        ({"momentum": 1.0}, "momentum=1.0"),
        ({"noise": -1.0}, "noise=-1.0"),
        ({"projection": -1.0}, "projection=-1.0"),
        ({"radius": 0.0}, "radius=0.0"),
    ],
)
def test_bad_input_is_named(change, message):
    arguments = {
        "projection": 1e-3,
        "radius": 1.0,
        "learning_rate": 0.1,
        "curvature": 1.0,
    }
    with pytest.raises(ValueError, match=message):
        theory.escape_time(**(arguments | change))
