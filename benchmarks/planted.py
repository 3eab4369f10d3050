"""Ten small programs with one ill-conditioned line each, which is marked.

Ordinary computations; a search for the line knows nothing of the marks.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax import lax

from benchmarks.noise_programs import line_of

X = jnp.linspace(0.5, 1.5, 24)
W = jax.random.normal(jax.random.key(0), (24, 24)) / 5


def cancelled_constant(x):
    """A large constant, added and taken away."""
    h = jnp.tanh(W @ x)
    h = (h + 8192.0) - 8192.0  # planted
    return jnp.tanh(W @ h)


def variance_of_large_numbers(x):
    """Variance as a difference of squares."""
    x = jnp.tanh(x)
    variance = jnp.mean((x + 500.0) ** 2) - jnp.mean(x + 500.0) ** 2  # planted
    return jnp.sqrt(jnp.abs(variance) + 1.0)


def smaller_root(x):
    """The smaller root of a quadratic equation, by the school formula."""
    b = 200.0 + jnp.sin(x)
    root = (-b + jnp.sqrt(b * b - 4.0 * x)) / 2.0  # planted
    return jnp.cos(root)


def logarithm_near_one(x):
    """log(1 + x) for small x."""
    small = jnp.tanh(x) * 1e-5
    y = jnp.log(1.0 + small) * 1e5  # planted
    return jnp.exp(-y)


def exponential_minus_one(x):
    """exp(x) - 1 for small x."""
    small = jnp.sin(x) * 1e-4
    y = (jnp.exp(small) - 1.0) / small  # planted
    return jnp.tanh(y) * jnp.cos(x)


def finite_difference(x):
    """A derivative by differences."""
    scale = jnp.cos(x)
    slope = (jnp.sin(x + 1e-3) - jnp.sin(x)) / 1e-3  # planted
    return jnp.tanh(slope * scale)


def step_of_a_loop(x):
    """The same inside a scan."""

    def step(h, row):
        h = jnp.tanh(h + row)
        h = (h * 3000.0 + 1e5) / 3000.0 - 1e5 / 3000.0  # planted
        return h, jnp.sin(h)

    return jnp.sum(lax.scan(step, x, W[:4])[1], axis=0)


def branch(x):
    """The same inside a branch."""

    def far(x):
        return jnp.sqrt(x * x + 1e8) - 1e4  # planted

    def near(x):
        return x * 0.5

    return jnp.tanh(lax.cond(jnp.sum(x) > 1.0, far, near, jnp.cos(x)))


def residual(x):
    """A difference of near equal products."""
    b = jnp.sin(x)
    r = 1e4 * ((b * 1.001) - b)  # planted
    return jnp.mean(jnp.tanh(r * x))


def helper(x):
    """What `called_under_vmap_and_jit` calls."""
    return jnp.cos((x + 1e4) - 1e4)  # planted


def called_under_vmap_and_jit(x):
    """The same in a function that is mapped and compiled."""
    y = jax.vmap(jax.jit(helper))(jnp.tanh(x) * x)
    return jnp.sum(y * W[0])


PROGRAMS = [cancelled_constant, variance_of_large_numbers, smaller_root, branch]
PROGRAMS += [logarithm_near_one, exponential_minus_one, finite_difference]
PROGRAMS += [step_of_a_loop, residual, called_under_vmap_and_jit]


def marked(program: Callable) -> str:
    """The marked line of a program, as the beginning of a source."""
    inner = helper if program is called_under_vmap_and_jit else program
    return line_of(inner, "planted")
