"""Noise reaches every output of every algorithm of the networks' convolutions."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from prednet_jax import noise
from prednet_jax.models import convolution
from prednet_jax.noise.order import partials, products


@pytest.mark.parametrize("algorithm", convolution.ALGORITHMS)
def test_every_place_of_a_convolution_has_noise(algorithm):
    """No algorithm hides outputs from noise, at borders or by zeros in its kernel."""
    rng = np.random.default_rng(0)
    upsampled = algorithm == "folded"
    x = rng.standard_normal((1, 6, 8, 8)).astype(np.float32)
    kernel = rng.standard_normal((3, 3, 8, 8)).astype(np.float32)

    def run(x, kernel):
        return convolution.conv2d(x, kernel, algorithm, upsampled)

    noisy = jax.jit(noise.inject(run, noise.ReductionOrder(granularity="element")))
    runs = np.stack([noisy(jax.random.key(i), x, kernel) for i in range(8)])
    # Over 8 features and 8 keys no place stays silent by chance.
    assert ((runs != runs[0]).any(axis=(0, 1, 4))).all()


# Forward, strided, dilated, the input gradient of a strided one, and one whose batch is
# the contracted axis, as in filter gradients.
CONVOLUTIONS = {
    "plain": dict(window_strides=(1, 1), padding="SAME"),
    "strided": dict(window_strides=(2, 1), padding=((1, 2), (0, 1))),
    "dilated": dict(window_strides=(1, 1), padding="VALID", rhs_dilation=(2, 1)),
    "holes": dict(window_strides=(1, 1), padding=((2, 2), (2, 1)), lhs_dilation=(2, 2)),
    "filter": dict(
        window_strides=(1, 1),
        padding=((1, 1), (1, 1)),
        dimension_numbers=("CHWN", "IHWO", "HWNC"),
    ),
}


@pytest.mark.parametrize("count", [3, 8])
@pytest.mark.parametrize("name", CONVOLUTIONS)
def test_pieces_made_at_once_are_those_made_one_by_one(name, count, monkeypatch):
    params = {"dimension_numbers": ("NHWC", "HWIO", "NHWC")} | CONVOLUTIONS[name]
    rng = np.random.default_rng(1)
    # Small integers: every sum is exact, whatever its order.
    x = rng.integers(-8, 9, (6, 7, 8, 6)).astype(np.float32)
    shape = (6, 3, 3, 4) if name == "filter" else (3, 3, 6, 4)
    kernel = rng.integers(-8, 9, shape).astype(np.float32)
    (equation,) = jax.make_jaxpr(
        lambda x, k: jax.lax.conv_general_dilated(x, k, **params)
    )(x, kernel).jaxpr.eqns
    spec = noise.ReductionOrder(partials=count, shortest=1)
    found = []
    for limit in (products.SMALL_CONVOLUTION, 0):
        monkeypatch.setattr(products, "SMALL_CONVOLUTION", limit)
        cut = products.cut_conv(spec, equation.params, x, kernel)
        calls = jax.make_jaxpr(cut.split)(x, kernel).jaxpr.eqns
        convolutions = [e for e in calls if e.primitive is equation.primitive]
        assert len(convolutions) == (1 if limit else cut.pieces)
        found.append(cut.split(x, kernel)[1])
    np.testing.assert_array_equal(*found)
    whole = jax.lax.conv_general_dilated(x, kernel, **params)
    np.testing.assert_array_equal(sum(found[0]), whole)


@pytest.mark.parametrize(("features", "calls"), [(24, 1), (47, 1), (48, 3), (144, 3)])
def test_wide_pieces_are_made_one_by_one(features, calls):
    """Where a piece has 16 features, all in one call would be three times the work."""
    x, kernel = jnp.ones((1, 12, 16, features)), jnp.ones((3, 3, features, 16))
    (equation,) = jax.make_jaxpr(
        lambda x, k: jax.lax.conv_general_dilated(
            x, k, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC")
        )
    )(x, kernel).jaxpr.eqns
    cut = products.cut_conv(noise.ReductionOrder(), equation.params, x, kernel)
    split = jax.make_jaxpr(cut.split)(x, kernel).jaxpr.eqns
    assert cut.pieces == 3
    assert sum(e.primitive is equation.primitive for e in split) == calls


@pytest.mark.parametrize("low", [0, 5])
@pytest.mark.parametrize("high", [0, 4])
@pytest.mark.parametrize("stride", [1, 3])
@pytest.mark.parametrize("step", [1, 7])
@pytest.mark.parametrize("size", [6, 12])
def test_a_piece_of_the_window_is_everywhere_if_each_output_has_a_term(
    low, high, stride, step, size
):
    """Against counting, for each piece, the terms of every output."""
    window, n = 6, 3
    beyond = max(0, (window - 1) * step + 1 - size)
    x, kernel = jnp.ones((1, size, 1)), jnp.ones((window, 1, 1))
    params = {
        "window_strides": (stride,),
        "padding": ((low, high + beyond),),
        "rhs_dilation": (step,),
        "lhs_dilation": (1,),
        "dimension_numbers": jax.lax.ConvDimensionNumbers(
            (0, 2, 1), (2, 1, 0), (0, 2, 1)
        ),
    }

    def terms(kernel):
        return jax.lax.conv_general_dilated(x, kernel, **params)

    shape = terms(kernel).shape
    held = all(
        (terms(kernel.at[:a].set(0).at[b:].set(0)) > 0).all()
        for a, b in partials.bounds(window, n)
    )
    assert products._is_everywhere(params, x, kernel, shape, 0, n) == held
