"""A pytest plugin: the fixture `noise_tolerance`, and the flag `--noise-update`.

docs/noise/tolerance.md describes the plugin. pytest loads it by its entry point. The
plugin imports JAX only when the fixture is first used, so that a conftest.py can still
choose the platform.
"""

from collections.abc import Callable
from typing import Any

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    """Adds the flag."""
    parser.addoption(
        "--noise-update",
        action="store_true",
        help="measure the tolerances of noise_tolerance anew and renew their files",
    )


@pytest.fixture
def noise_tolerance(request: pytest.FixtureRequest) -> Callable[..., Any]:
    """Provides `noise_tolerance(fn, *args).assert_close(actual)`, against `fn(*args)`.

    Keyword arguments: `spec` (the noise), `draws`, `failure` (probability of a false
    alarm per leaf), `seed`; see `prednet_jax.noise.noise_reference`.
    """
    from prednet_jax.noise.questions.kept import StoredTolerance

    test = request.node.nodeid.partition("::")[2]
    return StoredTolerance(
        request.path, test, request.config.getoption("--noise-update")
    )
