"""A pytest plugin: the fixture `noise_tolerance`.

    def test_kernel(noise_tolerance):
        reference = noise_tolerance(softmax, x)
        reference.assert_close(my_softmax(x))

The tolerance is measured: it is how far the reference moves when its sums are added in
another order. pytest loads the plugin by its entry point. The plugin imports JAX only
when the fixture is first used, so that a conftest.py can still choose the platform.
"""

from collections.abc import Callable
from typing import Any

import pytest


@pytest.fixture(scope="session")
def noise_tolerance() -> Callable[..., Any]:
    """`noise_tolerance(fn, *args).assert_close(actual)` compares with `fn(*args)`.

    Keyword arguments: `spec` (the noise), `draws`, `failure` (probability of a false
    alarm per leaf), `seed`; see `prednet_jax.noise.noise_reference`.
    """
    from prednet_jax.noise import noise_reference

    return noise_reference
