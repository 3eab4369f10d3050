"""The choice of `auto` for each shape, platform and type."""

import itertools

import jax.numpy as jnp
import pytest

from prednet_jax.models import convolution, thresholds
from prednet_jax.models.shapes import Convolution


def shape(width, channels, filter_size, upsampled):
    return Convolution(
        height=width,
        width=width,
        in_channels=channels,
        out_channels=channels,
        filter_size=filter_size,
        upsampled=upsampled,
    )


SHAPES = [
    shape(*settings)
    for settings in itertools.product(
        (2, 8, 32, 160), (1, 48, 192), (1, 3, 5), (False, True)
    )
]


def test_auto_is_never_an_algorithm_that_cannot_do_the_shape():
    chosen = set()
    for one in SHAPES:
        name = thresholds.fastest(one, "cpu")
        algorithm = convolution.ALGORITHMS[name]
        assert one.filter_size == 3 or not algorithm.only_3x3
        assert one.upsampled or not algorithm.enlarges
        chosen.add(name)
        assert thresholds.fastest(one, "gpu") == "xla"
    # Each threshold parts the shapes above.
    assert chosen == {"direct", "folded", "wide4", "strip2", "strip4"}


def test_auto_is_a_matrix_product_in_double_precision_on_a_cpu():
    """XLA's own convolution there is a plain loop, and takes twice as long."""
    for one in SHAPES:
        assert thresholds.fastest(one, "cpu", jnp.float64) == "im2col"
        assert thresholds.fastest(one, "gpu", jnp.float64) == "xla"


@pytest.mark.parametrize(("pixels", "name"), [(24, "strip2"), (25, "strip4")])
def test_winograd_is_the_smaller_one_on_small_maps(pixels, name):
    assert thresholds.fastest(shape(pixels, 96, 3, False), "cpu") == name
