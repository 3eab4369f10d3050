"""Small programs on which digits, tolerance and explanation are tried.

Each name stands for a function without arguments that gives the program and its
arguments, floats in float32.
"""

import inspect
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

# Decimal digits of float32.
FLOAT32 = 24 * math.log10(2)

# Looked at while the constants of the tools were chosen; not before those of `digits`
# and `explain` stood; not before any stood.
SEEN: dict[str, Callable[[], tuple]] = {}
HELD_OUT: dict[str, Callable[[], tuple]] = {}
LATER: dict[str, Callable[[], tuple]] = {}
# Programs of both, with products of matrices and with other sums.
PRODUCTS = ("mlp", "attention", "convolution", "recurrent", "block")
PRODUCTS += ("similarity", "gated", "pooled", "covariance", "mixture")
SUMS = ("norm", "softmax", "total", "density", "segments")


def normal(seed, *shape, scale=1.0, mean=0.0):
    """Fixed normal numbers, float32."""
    drawn = np.random.default_rng(seed).standard_normal(shape)
    return jnp.asarray(mean + scale * drawn, jnp.float32)


def whole(seed, below, count):
    """Fixed whole numbers from 0, int32."""
    drawn = np.random.default_rng(seed).integers(0, below, count)
    return jnp.asarray(drawn, jnp.int32)


def line_of(program: Callable, mark: str) -> str:
    """The line of a function that ends in `# mark`, as the beginning of a source."""
    lines, first = inspect.getsourcelines(program)
    number = next(i for i, x in enumerate(lines, first) if x.endswith(f"# {mark}\n"))
    return f"{Path(inspect.getfile(program)).name}:{number} in "


def listed(table: dict[str, Callable], *arguments: Any) -> Callable:
    """Lists a program with its arguments in a table."""

    def add(fn: Callable) -> Callable[[], tuple]:
        table[fn.__name__] = lambda: (fn, arguments)
        return table[fn.__name__]

    return add


def in_float64(fn: Callable, args: Sequence[Any]) -> Any:
    """Returns the result of a function called with float64 in place of float32."""

    def wide(x: Any) -> jax.Array:
        x = np.asarray(x)
        return jnp.asarray(x.astype(np.float64) if x.dtype == np.float32 else x)

    with jax.enable_x64(True), jax.numpy_dtype_promotion("standard"):
        return jax.tree.map(np.asarray, fn(*jax.tree.map(wide, args)))


def right_digits(result: Any, truth: Any) -> list[np.ndarray]:
    """Returns the decimal digits of each element that agree with float64, by leaf."""
    digits = []
    for x, right in zip(*map(jax.tree.leaves, (result, truth)), strict=True):
        assert right.dtype == np.float64
        error = np.abs(np.asarray(x, np.float64) - right)
        with np.errstate(divide="ignore", invalid="ignore"):
            counted = np.clip(-np.log10(error / np.abs(right)), 0, FLOAT32)
        digits.append(np.where(error == 0, FLOAT32, counted))
    return digits


def layer_norm(x):
    """Each row, to mean 0 and variance 1."""
    centred = x - jnp.mean(x, -1, keepdims=True)
    return centred * lax.rsqrt(jnp.mean(centred**2, -1, keepdims=True) + 1e-5)


def convolve(x, w):
    """A convolution of images."""
    return lax.conv_general_dilated(
        x, w, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC")
    )


@listed(SEEN, normal(0, 16, 64), normal(1, 64, 48, scale=0.2), normal(2, 48, 8))
def mlp(x, w, v):
    return jnp.tanh(x @ w) @ v


@listed(SEEN, normal(0, 12, 32), normal(1, 12, 32), normal(2, 12, 32))
def attention(q, k, v):
    return jax.nn.softmax(q @ k.T / np.float32(6.0)) @ v


@listed(SEEN, normal(3, 8, 128, mean=2.0))
def norm(x):
    return layer_norm(x)


@listed(SEEN, normal(4, 8, 128, scale=2.0))
def softmax(x):
    return jax.nn.softmax(x)


@listed(SEEN, normal(5, 4096, mean=0.5))
def total(x):
    return jnp.sum(x)


@listed(SEEN, normal(7, 2, 8, 8, 8), normal(8, 3, 3, 8, 8, scale=0.1))
def convolution(x, w):
    return jax.nn.relu(convolve(x, w))


@listed(
    SEEN,
    normal(20, 10, 24),
    normal(21, 24, 24, scale=0.2),
    normal(22, 24, 24, scale=0.2),
)
def recurrent(x, w, u):
    def step(h, now):
        h = jnp.tanh(now @ w + h @ u)
        return h, jnp.sum(h)

    return lax.scan(step, jnp.zeros(24), x)


@listed(SEEN, normal(25, 8, 64), normal(26, 64, 96, scale=0.1), normal(27, 96, 64))
def block(x, w, v):
    y = x * lax.rsqrt(jnp.mean(x**2, -1, keepdims=True) + 1e-6)
    return x + jax.nn.gelu(y @ w) @ v


@listed(
    HELD_OUT, [normal(50 + i, 16, 16, scale=0.25) for i in range(3)], normal(53, 8, 16)
)
def gated(weights, x):
    def loss(weights):
        def step(h, now):
            z = jax.nn.sigmoid(now @ weights[0] + h @ weights[1])
            h = (np.float32(1.0) - z) * h + z * jnp.tanh(now @ weights[2])
            return h, None

        h, _ = lax.scan(step, jnp.zeros(16), x)
        return jnp.sum(h**2)

    return jax.grad(loss)(weights)


@listed(HELD_OUT, normal(54, 12, 96), normal(55, 10, 96, mean=0.5))
def similarity(x, y):
    inner = x @ y.T
    lengths = jnp.sqrt(jnp.sum(x**2, -1)[:, None] * jnp.sum(y**2, -1)[None])
    return inner / lengths


@listed(HELD_OUT, normal(56, 20, 6), normal(57, 80, 6))
def density(points, centres):
    far = jnp.sum((points[:, None] - centres[None]) ** 2, -1)
    return jax.nn.logsumexp(-far / np.float32(2.0), axis=-1)


@listed(HELD_OUT, normal(58, 50, scale=0.7), normal(59, 12))
def horner(x, coefficients):
    return lax.scan(lambda y, c: (y * x + c, None), jnp.zeros_like(x), coefficients)[0]


@listed(HELD_OUT, normal(60, 2, 7, 7, 5), normal(61, 3, 3, 5, 16), normal(62, 16, 9))
def pooled(x, w, v):
    return jax.nn.gelu(layer_norm(convolve(x, w))).mean((1, 2)) @ v


@listed(HELD_OUT, normal(63, 400, 5), whole(1, 7, 400), normal(64, 400, 1, mean=1.0))
def segments(table, places, scale):
    return jax.ops.segment_sum(table * scale, places, num_segments=7)


@listed(HELD_OUT, normal(65, 150, 12, mean=2.0))
def covariance(x):
    centred = x - jnp.mean(x, 0)
    return centred.T @ centred / np.float32(len(x) - 1)


@listed(HELD_OUT, normal(66, 10, 32), normal(67, 32, 4), normal(68, 4, 32, 20))
def mixture(x, gates, experts):
    weights = jax.nn.softmax(x @ gates)
    return jnp.einsum("bg,gio,bi->bo", weights, experts, x)


@listed(LATER, normal(900, 12, 64), normal(901, 64, 64, scale=0.2))
def rotary(x, w):
    q = (x @ w).reshape(len(x), 4, 8, 2)
    angle = jnp.arange(4.0)[:, None] / jnp.arange(1.0, 9.0)
    turned = q[..., 0] * jnp.cos(angle) - q[..., 1] * jnp.sin(angle)
    scores = jnp.einsum("bip,bjp->bij", turned, turned)
    return jax.nn.softmax(scores).reshape(len(x), 16)


@listed(LATER, normal(900, 12, 64), normal(902, 32, 64, scale=0.3))
def lstm(x, w):
    steps = x.reshape(len(x), 4, 16).swapaxes(0, 1)

    def step(carry, now):
        h, c = carry
        i, f, o, g = jnp.split(jnp.concatenate([now, h], 1) @ w, 4, axis=1)
        c = jax.nn.sigmoid(f) * c + jax.nn.sigmoid(i) * jnp.tanh(g)
        return (jax.nn.sigmoid(o) * jnp.tanh(c), c), None

    zero = jnp.zeros((len(x), 16))
    return lax.scan(step, (zero, zero), steps)[0][0]


@listed(LATER, normal(900, 12, 64), normal(901, 64, 64, scale=0.2))
def sinkhorn(x, w):
    cost = jnp.abs(x @ w).reshape(len(x), 8, 8)

    def step(p, _):
        p = p / jnp.sum(p, 1, keepdims=True)
        return p / jnp.sum(p, 2, keepdims=True), None

    return lax.scan(step, jnp.exp(-cost), None, length=5)[0].reshape(len(x), 64)


@listed(LATER, normal(900, 12, 64), normal(901, 64, 64, scale=0.2))
def gram_schmidt(x, w):
    a, b = jnp.split((x @ w).reshape(len(x), 2, 32), 2, axis=1)
    a = a / jnp.sqrt(jnp.sum(a * a, -1, keepdims=True))
    b = b - jnp.sum(a * b, -1, keepdims=True) * a
    return (b / jnp.sqrt(jnp.sum(b * b, -1, keepdims=True)))[:, 0]


@listed(LATER, normal(900, 12, 64), normal(901, 64, 64, scale=0.2))
def rms_gated(x, w):
    y = x * lax.rsqrt(jnp.mean(x * x, -1, keepdims=True) + np.float32(1e-6))
    a, b = jnp.split(y @ w, 2, axis=1)
    return jax.nn.silu(a) * b


@listed(LATER, normal(900, 12, 64), normal(901, 64, 64, scale=0.2))
def wavelet(x, w):
    for _ in range(3):
        pairs = x.reshape(len(x), -1, 2)
        bands = [pairs.sum(2), pairs[:, :, 0] - pairs[:, :, 1]]
        x = jnp.concatenate(bands, 1) * np.float32(0.70710678)
    return x @ w


@listed(LATER, normal(900, 12, 64), normal(901, 64, 64, scale=0.2))
def bilinear(x, w):
    return jnp.tanh(x @ w @ x.T / np.float32(8.0))


@listed(LATER, normal(900, 12, 64), normal(901, 64, 64, scale=0.2))
def running(x, w):
    return jnp.cumsum(jax.nn.softplus(x @ w), 1) / jnp.arange(1.0, 65.0)


@listed(LATER, normal(900, 12, 64), normal(901, 64, 64, scale=0.2))
def harmonics(x, w):
    basis = jnp.cos(jnp.outer(jnp.arange(64.0) + 0.5, jnp.arange(16.0)) / 20.4)
    return jnp.log1p(jnp.square((x @ w) @ basis))
