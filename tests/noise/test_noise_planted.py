"""localize finds the line that loses digits, in programs where one was planted.

Each program is a small, ordinary computation with one ill-conditioned line, which is
marked. The search knows nothing of the marks.
"""

from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from prednet_jax import noise
from prednet_jax.noise.localize import localize

X = jnp.linspace(0.5, 1.5, 24)
W = jax.random.normal(jax.random.key(0), (24, 24)) / 5


def cancelled_constant(x):
    h = jnp.tanh(W @ x)
    h = (h + 8192.0) - 8192.0  # planted
    return jnp.tanh(W @ h)


def variance_of_large_numbers(x):
    x = jnp.tanh(x)
    variance = jnp.mean((x + 500.0) ** 2) - jnp.mean(x + 500.0) ** 2  # planted
    return jnp.sqrt(jnp.abs(variance) + 1.0)


def smaller_root(x):
    b = 200.0 + jnp.sin(x)
    root = (-b + jnp.sqrt(b * b - 4.0 * x)) / 2.0  # planted
    return jnp.cos(root)


def logarithm_near_one(x):
    small = jnp.tanh(x) * 1e-5
    y = jnp.log(1.0 + small) * 1e5  # planted
    return jnp.exp(-y)


def exponential_minus_one(x):
    small = jnp.sin(x) * 1e-4
    y = (jnp.exp(small) - 1.0) / small  # planted
    return jnp.tanh(y) * jnp.cos(x)


def finite_difference(x):
    scale = jnp.cos(x)
    slope = (jnp.sin(x + 1e-3) - jnp.sin(x)) / 1e-3  # planted
    return jnp.tanh(slope * scale)


def step_of_a_loop(x):
    def step(h, row):
        h = jnp.tanh(h + row)
        h = (h * 3000.0 + 1e5) / 3000.0 - 1e5 / 3000.0  # planted
        return h, jnp.sin(h)

    return jnp.sum(lax.scan(step, x, W[:4])[1], axis=0)


def branch(x):
    def far(x):
        return jnp.sqrt(x * x + 1e8) - 1e4  # planted

    def near(x):
        return x * 0.5

    return jnp.tanh(lax.cond(jnp.sum(x) > 1.0, far, near, jnp.cos(x)))


def residual(x):
    b = jnp.sin(x)
    r = 1e4 * ((b * 1.001) - b)  # planted
    return jnp.mean(jnp.tanh(r * x))


def helper(x):
    return jnp.cos((x + 1e4) - 1e4)  # planted


def called_under_vmap_and_jit(x):
    y = jax.vmap(jax.jit(helper))(jnp.tanh(x) * x)
    return jnp.sum(y * W[0])


PROGRAMS = [
    cancelled_constant, variance_of_large_numbers, smaller_root, logarithm_near_one,
    exponential_minus_one, finite_difference, step_of_a_loop, branch, residual,
    called_under_vmap_and_jit,
]  # fmt: skip
TEXT = Path(__file__).read_text().splitlines()


def planted_line(program):
    """Number of the first marked line from the program on, or of the helper's."""
    name = "helper" if program is called_under_vmap_and_jit else program.__name__
    start = next(i for i, line in enumerate(TEXT) if line.startswith(f"def {name}("))
    return next(i for i in range(start, len(TEXT)) if "# planted" in TEXT[i]) + 1


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda p: p.__name__)
def test_the_planted_line_is_found(program):
    report = localize(program, noise.UlpPerturbation())(jax.random.key(1), X)
    worst = report.culprits[0]
    where = f"{Path(__file__).name}:{planted_line(program)} in "
    assert worst.source.startswith(where), (worst, report)
    # One line is to blame, and the rest of the program is not.
    assert {c.source for c in report.sets[0]} == {worst.source}
    assert report.rest < report.effect
    assert np.isfinite(report.effect)
