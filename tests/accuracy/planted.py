"""Programs with one line to find, for three questions.

`ILL_CONDITIONED` have one that magnifies errors (`localize`). `FAULTY` take a `fault`,
one of `FAULTS`, whose line is then wrong (`first_difference`). `ROWS` compute each row
by itself, exactly up to a line that a fault, one of `ROW_FAULTS`, makes depend on the
number of rows (`invariance`). The line ends in the fault's name, or in "planted".
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from tests.accuracy.noise_programs import layer_norm, line_of, normal, whole

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


ILL_CONDITIONED = [cancelled_constant, variance_of_large_numbers, smaller_root, branch]
ILL_CONDITIONED += [logarithm_near_one, exponential_minus_one, finite_difference]
ILL_CONDITIONED += [step_of_a_loop, residual, called_under_vmap_and_jit]

FAULTS = ("dropped", "epsilon", "transpose", "tf32")


def _tf32(x: Array, fault: str) -> Array:
    return lax.reduce_precision(x, 8, 10) if fault == "tf32" else x  # tf32


def attention(p: Array, x: Array, fault: str) -> Array:
    """One head, with a residual and an RMS norm."""
    m = jnp.mean(x**2, axis=-1, keepdims=True)
    h = x * lax.rsqrt(m + (1e-3 if fault == "epsilon" else 1e-6))  # epsilon
    q, k = h @ p[0], h @ p[1]
    s = _tf32(q, fault) @ k.T / 4.0
    w = jax.nn.softmax(s, axis=-1)
    o = p[2] if fault == "transpose" else p[2].T  # transpose
    y = w @ h @ o
    y = y + (x if fault != "dropped" else 0.0)  # dropped
    return jnp.mean(jax.nn.gelu(y), axis=0)


def kernel(p: Array, x: Array, fault: str) -> Array:
    """A kernel density with a linear map of the points."""
    b = p[0] if fault == "transpose" else p[0].T  # transpose
    u = x @ b
    g = _tf32(u, fault) @ u.T
    n = jnp.diagonal(g)
    d = n[:, None] + (n[None, :] if fault != "dropped" else 0.0) - 2.0 * g  # dropped
    k = jnp.exp(-jnp.abs(d) / 8.0)
    t = jnp.sum(k, axis=1)
    return jnp.log(t + (1e-2 if fault == "epsilon" else 1e-6))  # epsilon


def mixture(p: Array, x: Array, fault: str) -> Array:
    """Two experts and a soft gate, the gradient of its loss."""

    def loss(p: Array) -> Array:
        gate = jax.nn.sigmoid(x @ p[0][:, :1])
        one = jnp.tanh(_tf32(x, fault) @ p[1])
        v = p[2] if fault == "transpose" else p[2].T  # transpose
        two = jnp.tanh(x @ v)
        y = gate * one + ((1 - gate) * two if fault != "dropped" else 0.0)  # dropped
        c = jnp.var(y, axis=1, keepdims=True)
        y = y / jnp.sqrt(c + (1e-3 if fault == "epsilon" else 1e-5))  # epsilon
        return jnp.mean(jnp.abs(y - x))

    return jax.grad(loss)(p)


def filtered(p: Array, x: Array, fault: str) -> Array:
    """A gated map and a convolution over rows and columns, normalised."""
    a = p[1] if fault == "transpose" else p[1].T  # transpose
    h = jax.nn.silu(_tf32(x, fault) @ a)
    y = lax.conv_general_dilated(h[None, None], p[:1, None, :3, :3], (1, 1), "SAME")
    y = y[0, 0] + (0.5 * h if fault != "dropped" else 0.0)  # dropped
    c = y - jnp.mean(y, axis=0)
    s = jnp.mean(c * c, axis=0)
    y = c * lax.rsqrt(s + (1e-2 if fault == "epsilon" else 1e-5))  # epsilon
    return jnp.tanh(y) @ p[2]


def kalman(p: Array, x: Array, fault: str) -> Array:
    """Means of a Kalman filter with a diagonal gain."""

    def step(carry: tuple[Array, Array], row: Array) -> tuple[tuple, Array]:
        m, c = carry
        f = p[0] if fault == "transpose" else p[0].T  # transpose
        m = _tf32(m, fault) @ f
        c = f.T @ c @ f + (0.1 * jnp.eye(16) if fault != "dropped" else 0.0)  # dropped
        d = jnp.diagonal(c)
        g = d / (d + (0.11 if fault == "epsilon" else 0.1))  # epsilon
        m = m + g * (row - m)
        return (m, c * (1 - g)), jnp.tanh(m)

    return lax.scan(step, (x[0], jnp.eye(16)), x)[1]


FAULTY: tuple[Callable, ...] = (attention, kernel, mixture, filtered, kalman)


def arguments(seed: int) -> tuple[Array, Array]:
    """Weights and data of `FAULTY`."""
    keys = jax.random.split(jax.random.key(seed), 2)
    p = jax.random.normal(keys[0], (3, 16, 16)) / 4
    return p, jax.random.normal(keys[1], (16, 16))


ROW_FAULTS = ("mixed", "counted", "order", "rounded")
MAP = np.asarray(normal(930, 16, 3))


def _of_rows(h: Array, x: Array, fault: str) -> Array:
    """A step of whole numbers; with a fault it depends on how many rows `x` has."""
    alone = len(x) == 1
    if fault == "mixed":
        return h - jnp.mean(h, axis=0)  # mixed
    if fault == "counted":
        return h * np.float32(8.0 / len(x))  # counted
    if fault == "order":
        way = np.arange(h.shape[-1])[:: -1 if alone else 1]
        return h[..., way] @ MAP[way]  # order
    scale = np.float32(1 + 2.0**-23 if fault == "rounded" and alone else 1)
    return h * scale  # rounded


# Products and sums of whole numbers, which are exact in any order.
WHOLE = whole(931, 9, 16 * 16).reshape(16, 16).astype(jnp.float32) - 4
TABLE = whole(932, 9, 40 * 16).reshape(40, 16).astype(jnp.float32) - 4
BATCH = whole(933, 40, 8 * 16).reshape(8, 16)


def two_layers(x: Array, fault: str) -> Array:
    """An MLP."""
    h = jax.nn.relu(x.astype(jnp.float32) @ WHOLE)
    h = _of_rows(h, x, fault)
    return jnp.tanh(h / 64) @ normal(934, h.shape[-1], 5)


def scores(x: Array, fault: str) -> Array:
    """Attention within a row."""
    q = x.astype(jnp.float32).reshape(len(x), 4, 4)
    s = jnp.einsum("bid,bjd->bij", q, q - 20)
    s = _of_rows(s, x, fault)
    return jax.nn.softmax(s / 99, axis=1).sum(2)


def looked_up(x: Array, fault: str) -> Array:
    """An embedding, a sum and a norm."""
    h = jnp.sum(TABLE[x], axis=1)
    h = _of_rows(h, x, fault)
    return layer_norm(h) * 3.0


def recurrence(x: Array, fault: str) -> Array:
    """Sums along a row, and a scan over what follows."""
    h = jnp.cumsum(x.astype(jnp.float32), axis=1)
    h = _of_rows(h, x, fault)
    step = lambda c, now: (jnp.sin(c + now), c)  # noqa: E731
    return lax.scan(step, h[:, 0] / 8, h.T / 32)[1].T


def filtered_rows(x: Array, fault: str) -> Array:
    """A filter along a row."""
    h = x.astype(jnp.float32)[:, None]
    h = lax.conv_general_dilated(h, WHOLE[:1, None, :3], (1,), "SAME")[:, 0]
    h = _of_rows(h, x, fault)
    return jax.nn.gelu(h / 100) ** 2


def ranked(x: Array, fault: str) -> Array:
    """Sorted numbers, and probabilities."""
    h = jnp.sort(x.astype(jnp.float32) * 3 - 40, axis=1)
    h = _of_rows(h, x, fault)
    return jax.nn.log_softmax(h / 16, axis=1)


ROWS: tuple[Callable, ...] = (two_layers, scores, looked_up, recurrence)
ROWS += (filtered_rows, ranked)


def marked(program: Callable, fault: str = "planted") -> str:
    """The line to find, as the beginning of a source."""
    inner = program
    if fault == "tf32":
        inner = _tf32
    elif program in ROWS:
        inner = _of_rows
    elif program is called_under_vmap_and_jit:
        inner = helper
    return line_of(inner, fault)
