import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from prednet_jax import noise
from prednet_jax.studies import dose

X = jax.random.normal(jax.random.key(0), (4096, 6))
SPEC = noise.ReductionOrder(granularity="element", tile=1, shortest=1)


def gradient(w):
    """A sum of many terms for each coordinate but the last, which has none."""
    terms = X * jnp.tanh(w) * jnp.array([1, 1, 1, 1, 1, 0.0])
    return {"w": jnp.sum(terms, 0)}, "result"


@functools.cache
def draws(kind, factor, n=256):
    noisy = dose.amplified(SPEC, factor, kind)(lambda w: (gradient(w)[0], None))
    keys = jax.random.split(jax.random.key(1), n)
    w = jnp.ones(6)
    found = jax.jit(jax.vmap(lambda key: noisy(key, w)[0]["w"]))(keys)
    return np.asarray(found, np.float64), np.asarray(gradient(w)[0]["w"], np.float64)


@pytest.mark.parametrize("kind", dose.KINDS)
def test_noise_has_mean_zero_and_the_size_asked_for(kind):
    found, plain = draws(kind, 1e3)
    # Isotropic noise alone reaches a coordinate without noise.
    assert (found[:, 5] != plain[5]).any() == (kind == "isotropic")
    xi, _ = draws("order", 1e3)
    deviations = found - plain
    size = np.sqrt((deviations**2).sum(1).mean())
    expected = np.sqrt(((xi - plain) ** 2).sum(1).mean())
    assert expected > 0
    np.testing.assert_allclose(size, expected, rtol=0.2)
    standard_error = size / np.sqrt(len(found))
    assert np.linalg.norm(deviations.mean(0)) < 4 * standard_error
    tenfold, _ = draws(kind, 1e4)
    ratio = np.linalg.norm(tenfold - plain) / np.linalg.norm(deviations)
    np.testing.assert_allclose(ratio, 10, rtol=0.05)


def test_the_result_is_that_of_the_plain_call():
    noisy = dose.amplified(SPEC, 1.0, "order")(gradient)
    assert noisy(jax.random.key(2), jnp.ones(6))[1] == "result"
