import jax
import numpy as np
import pytest

from prednet_jax import noise
from prednet_jax.models import convolution


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
