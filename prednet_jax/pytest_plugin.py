"""A pytest plugin: the fixture `noise_tolerance`.

    def test_kernel(noise_tolerance):
        reference = noise_tolerance(softmax, x)
        reference.assert_close(my_softmax(x))

The tolerance is measured: how far the reference moves when its sums are added in
another order. pytest loads the plugin by its entry point. JAX is imported when the
fixture is first used, not with the plugin, so that a conftest.py can still choose the
platform.
"""

from collections.abc import Callable
from typing import Any

import pytest


@pytest.fixture(scope="session")
def noise_tolerance() -> Callable[..., Any]:
    """`noise_tolerance(fn, *args)` gives what `assert_close(actual)` compares with.

    Further arguments, by keyword: `spec` (the noise), `draws`, `failure` (probability
    of a false alarm per leaf), `seed`; see `prednet_jax.noise.noise_reference`.
    """
    from prednet_jax.noise import noise_reference

    return noise_reference
