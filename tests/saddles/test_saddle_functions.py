"""Values, gradients and spectra of the test functions against their closed forms."""

import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from prednet_jax import saddles

# Closed forms against automatic derivatives in float64, at values up to 1e3.
TIGHT = 1e-9
DIM, TAU, L, GAMMA = 4, math.e, 2.0, 1.0
NU = (37 * L + 13 * GAMMA) * TAU**2 / 6


@pytest.fixture(autouse=True)
def float64():
    with jax.enable_x64(True):
        yield


@pytest.mark.parametrize("name", sorted(saddles.CATALOGUE))
def test_saddles_and_their_spectra(name):
    function = saddles.CATALOGUE[name]()

    assert np.abs(jax.grad(function.fn)(function.saddle)).max() < TIGHT
    hessian = np.asarray(jax.jit(jax.hessian(function.fn))(function.saddle))
    spectrum = np.linalg.eigvalsh(hessian)
    np.testing.assert_allclose(spectrum, function.eigenvalues, atol=TIGHT)

    # The rows of `escape` are orthonormal eigenvectors of the lowest eigenvalue.
    rows = function.escape
    np.testing.assert_allclose(rows @ rows.T, np.eye(len(rows)), atol=TIGHT)
    np.testing.assert_allclose(rows @ hessian, -function.curvature * rows, atol=TIGHT)
    assert spectrum[0] == pytest.approx(-function.curvature, abs=TIGHT)
    assert spectrum[0] < -TIGHT
    assert np.abs(hessian).max() <= function.smoothness * (1 + TIGHT)

    # Runs start on the stable side, above the exit value.
    start = function.start(np.random.default_rng(0))
    assert np.abs(rows @ (start - function.saddle)).max() < 1e-15
    assert function.fn(jnp.asarray(start)) > function.exit_value


@functools.cache
def compiled_octopus():
    fn = saddles.octopus(DIM, TAU, L, GAMMA)
    return jax.jit(lambda x: (fn(x), jax.grad(fn)(x), jax.hessian(fn)(x)))


def reference(x):
    """The published cases, one after another."""
    a = np.abs(x)
    i = 0
    while i < DIM and a[i] >= 2 * TAU:
        i += 1
    value = sum(L * (a[j] - 4 * TAU) ** 2 for j in range(i)) - i * NU
    if i == DIM:
        return value
    if a[i] <= TAU:
        return value - GAMMA * a[i] ** 2 + sum(L * a[j] ** 2 for j in range(i + 1, DIM))
    x, s = a[i], (a[i] - 2 * TAU) / TAU
    value += -GAMMA * x**2 + (-14 * L + 10 * GAMMA) / (3 * TAU) * (x - TAU) ** 3
    value += (5 * L - 3 * GAMMA) / (2 * TAU**2) * (x - TAU) ** 4
    if i + 1 < DIM:
        g2 = -GAMMA - (L + GAMMA) * (10 * s**3 + 15 * s**4 + 6 * s**5)
        value += g2 * a[i + 1] ** 2
    return value + sum(L * a[j] ** 2 for j in range(i + 2, DIM))


@st.composite
def on_the_path(draw):
    """A point where gradient descent may be: some grown, one growing, rest small."""
    grown = draw(st.integers(0, DIM))
    unit = st.floats(0, 1)
    x = np.array([TAU * draw(unit) for _ in range(DIM)])
    x[:grown] = [2 * TAU + 4 * TAU * draw(unit) for _ in range(grown)]
    if grown < DIM:
        x[grown] = 2 * TAU * draw(unit)
    signs = [draw(st.sampled_from([-1, 1])) for _ in range(DIM)]
    return x * signs


@settings(max_examples=60, deadline=None)
@given(on_the_path())
def test_octopus_equals_the_published_cases(x):
    value, gradient, _ = compiled_octopus()(jnp.asarray(x))
    assert float(value) == pytest.approx(reference(x), rel=1e-12, abs=1e-9)
    assert np.isfinite(gradient).all()


@pytest.mark.parametrize("seam", [TAU, 2 * TAU])
@pytest.mark.parametrize("coordinate", range(DIM))
def test_octopus_is_twice_differentiable_across_its_seams(seam, coordinate):
    rng = np.random.default_rng(coordinate)
    x = rng.uniform(-0.9 * TAU, 0.9 * TAU, DIM)
    x[:coordinate] = rng.uniform(2.5 * TAU, 5 * TAU, coordinate)
    step = 1e-9
    below, above = x.copy(), x.copy()
    below[coordinate], above[coordinate] = seam - step, seam + step
    sides = [compiled_octopus()(jnp.asarray(p)) for p in (below, above)]
    # The third derivative is bounded by 1e2, the gradient by 1e2: 2e-9 times these.
    for one, other in zip(*sides, strict=True):
        np.testing.assert_allclose(one, other, atol=1e-6)


def test_octopus_types_and_finite_gradients_everywhere():
    fn = saddles.octopus(DIM, TAU, L, GAMMA)
    rng = np.random.default_rng(3)
    wild = rng.choice([0.0, TAU, 2 * TAU, 4 * TAU, 1e3, -1e-30, -5.0], (200, DIM))
    for dtype in (jnp.float32, jnp.float64):
        gradients = jax.jit(jax.vmap(jax.grad(fn)))(jnp.asarray(wild, dtype))
        assert gradients.dtype == dtype
        assert np.isfinite(gradients).all()
        assert fn(jnp.zeros(DIM, dtype)).dtype == dtype
    found = saddles.octopus(3, smoothness=1.5)(jnp.full(3, 4 * math.e))
    assert found == pytest.approx(-3 * (37 * 1.5 + 13) * math.e**2 / 6)
