"""XLA's CUDA compiler is looked for once; without it these tests are skipped."""

import jax
import pytest

from prednet_jax.noise.errors import NoiseError
from prednet_jax.noise.gpu.compilation import found_wheels


@pytest.fixture(scope="session")
def compiler():
    try:
        return found_wheels()
    except NoiseError as error:
        pytest.skip(str(error))


@pytest.fixture(autouse=True)
def _default_precision():
    """As a user's process has it, whatever another test of this process has set."""
    with jax.default_matmul_precision("default"):
        yield
