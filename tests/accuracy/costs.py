"""Measures what the tools of `noise` cost, in units of the plain function.

    python -m tests.accuracy.costs [NAME ...]

For each tool a program of its kind is called once with `jax.jit`, compilation included,
and once by the tool. Times are processor seconds of the whole process. Python modules
are imported before. The compilation cache of JAX has to be off.
"""

import sys
import time
from collections.abc import Callable
from typing import Any

import diffrax
import jax
from flax import nnx
from jax import numpy as jnp

from prednet_jax import noise

KEY = jax.random.key(0)


def normal(seed: int, *shape: int) -> jax.Array:
    """Returns normal numbers of unit variance."""
    return jax.random.normal(jax.random.key(seed), shape)


def layer(x: jax.Array, w: jax.Array) -> jax.Array:
    """Computes a layer with a million outputs."""
    return jnp.tanh(x @ w)


def solve(start: jax.Array) -> Any:
    """Solves the equations of Lotka and Volterra with adaptive steps."""

    def field(t: Any, y: jax.Array, args: Any) -> jax.Array:
        prey, predators = y
        return jnp.stack([prey * (1 - predators), predators * (prey - 1)])

    return diffrax.diffeqsolve(
        diffrax.ODETerm(field),
        diffrax.Tsit5(),
        t0=0.0,
        t1=10.0,
        dt0=0.1,
        y0=start,
        saveat=diffrax.SaveAt(ts=jnp.linspace(0.0, 10.0, 50)),
        stepsize_controller=diffrax.PIDController(rtol=1e-4, atol=1e-4),
    ).ys


def gradient(start: jax.Array) -> jax.Array:
    """Differentiates a solve by its start."""
    return jax.grad(lambda start: jnp.sum(solve(start)))(start)


def solved(a: jax.Array, b: jax.Array) -> jax.Array:
    """Solves a symmetric system by conjugate gradients."""
    return jax.scipy.sparse.linalg.cg(lambda x: a @ x, b, tol=1e-6)[0]


def scores(x: jax.Array, w: jax.Array) -> jax.Array:
    """Computes the probabilities of classes for each row."""
    return jax.nn.softmax(x @ w)


def transformer(weights: Any, x: jax.Array) -> jax.Array:
    """Computes blocks of a transformer with four heads."""

    def norm(x: jax.Array) -> jax.Array:
        x = x - jnp.mean(x, -1, keepdims=True)
        return x * jax.lax.rsqrt(jnp.mean(x * x, -1, keepdims=True) + 1e-5)

    for qkv, out, up, down in weights:
        heads = (norm(x) @ qkv).reshape(*x.shape[:2], 3, 4, -1)
        q, k, v = jnp.moveaxis(heads, 2, 0)
        weight = jax.nn.softmax(jnp.einsum("bthd,bshd->bhts", q, k) / 4, axis=-1)
        x = x + jnp.einsum("bhts,bshd->bthd", weight, v).reshape(x.shape) @ out
        x = x + jax.nn.gelu(norm(x) @ up) @ down
    return x


class Network(nnx.Module):
    """A network with batch normalization and dropout, in training mode."""

    def __init__(self, rngs: nnx.Rngs) -> None:
        self.first = nnx.Linear(32, 64, rngs=rngs)
        self.norm = nnx.BatchNorm(64, rngs=rngs)
        self.drop = nnx.Dropout(0.5, rngs=rngs)
        self.last = nnx.Linear(64, 10, rngs=rngs)

    def __call__(self, x: jax.Array) -> jax.Array:
        """Returns scores [B, 10] of rows [B, 32]."""
        return self.last(self.drop(nnx.relu(self.norm(self.first(x)))))


def trained(x: jax.Array, network: Network) -> jax.Array:
    """Calls a network in training mode."""
    return network(x)


def weights() -> list[list[jax.Array]]:
    """Returns the weights of two blocks."""
    shapes = ((64, 192), (64, 64), (64, 256), (256, 64))
    return [[normal(i, *s) / 8 for i, s in enumerate(shapes)] for _ in range(2)]


def cases() -> list[tuple[str, str, Callable, tuple, Callable[[], Any]]]:
    """Returns a tool, a program in words, the function, its arguments, and the call."""
    wide = normal(0, 1000, 64), normal(1, 64, 1000) / 8
    start = (jnp.array([2.0, 1.0]),)
    blocks = weights(), normal(9, 2, 16, 64)
    network = Network(nnx.Rngs(0))
    batch = normal(3, 16, 32), network
    rows = normal(3, 16, 32), normal(4, 32, 32)
    system = rows[1] @ rows[1].T + jnp.eye(32), normal(5, 32)

    def explain(words: str, fn: Callable, args: tuple) -> tuple:
        a, b = fn(*args), jax.jit(fn)(*args)
        return "explain", words, fn, args, lambda: noise.explain(fn, a, b)(KEY, *args)

    recording = noise.record(solve)(*start)

    return [
        (
            *("digits", "a layer of a million outputs", layer, wide),
            lambda: noise.digits(layer)(KEY, *wide),
        ),
        (
            *("tolerance", "a layer of a million outputs", layer, wide),
            lambda: noise.tolerance(layer)(KEY, *wide),
        ),
        (
            *("record", "a solve of diffrax", solve, start),
            lambda: noise.record(solve)(*start),
        ),
        (
            *("first_difference", "a solve of diffrax", solve, start),
            lambda: noise.first_difference(solve, recording)(KEY, *start),
        ),
        explain("two blocks of a transformer", transformer, blocks),
        explain("four blocks", transformer, (2 * blocks[0], blocks[1])),
        explain("a solve by conjugate gradients", solved, system),
        explain("the gradient of a solve of diffrax", gradient, start),
        (
            *("decisions", "two blocks of a transformer", transformer, blocks),
            lambda: noise.decisions(transformer)(KEY, *blocks),
        ),
        (
            *("first_nan", "two blocks of a transformer", transformer, blocks),
            lambda: noise.first_nan(transformer)(*blocks),
        ),
        (
            *("nan_rate", "two blocks of a transformer", transformer, blocks),
            lambda: noise.nan_rate(transformer)(KEY, *blocks),
        ),
        (
            *("invariance", "a Flax NNX network in training mode", trained, batch),
            lambda: noise.invariance(trained)(*batch),
        ),
        (
            *("invariance", "a softmax of a product", scores, rows),
            lambda: noise.invariance(scores)(*rows),
        ),
    ]


def seconds(call: Callable[[], Any]) -> float:
    """Returns the processor seconds of a call."""
    start = time.process_time()
    jax.block_until_ready(call())
    return time.process_time() - start


def main(names: list[str]) -> None:
    """Prints a table with a line for each tool."""
    noise.tolerance(jnp.sin)(KEY, jnp.ones(3))  # Imports what is imported when used.
    print("| tool | program | plain [s] | tool [s] | times |")
    print("| --- | --- | --- | --- | --- |")
    for name, words, fn, args, call in cases():
        if names and name not in names:
            continue
        fresh = lambda *a, fn=fn: fn(*a)  # noqa: E731
        compiled = nnx.jit(fresh) if fn is trained else jax.jit(fresh)
        jax.clear_caches()
        plain = seconds(lambda f=compiled, a=args: f(*a))
        tool = seconds(lambda call=call: [call(), None][1])
        print(f"| `{name}` | {words} | {plain:.2f} | {tool:.1f} | {tool / plain:.0f} |")
        sys.stdout.flush()


if __name__ == "__main__":
    main(sys.argv[1:])
