"""Small programs on which digits, tolerance and explanation are tried.

Each makes a function and its arguments, floats in float32.
"""

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax


def normal(seed, *shape, scale=1.0, mean=0.0):
    """Fixed normal numbers, float32."""
    drawn = np.random.default_rng(seed).standard_normal(shape)
    return jnp.asarray(mean + scale * drawn, jnp.float32)


def layer_norm(x):
    """Each row, to mean 0 and variance 1."""
    centred = x - jnp.mean(x, -1, keepdims=True)
    return centred * lax.rsqrt(jnp.mean(centred**2, -1, keepdims=True) + 1e-5)


def mlp():
    """Two layers."""

    def fn(x, w, v):
        return jnp.tanh(x @ w) @ v

    return fn, (normal(0, 16, 64), normal(1, 64, 48, scale=0.2), normal(2, 48, 8))


def attention():
    """One head."""

    def fn(q, k, v):
        return jax.nn.softmax(q @ k.T / np.float32(6.0)) @ v

    return fn, (normal(0, 12, 32), normal(1, 12, 32), normal(2, 12, 32))


def norm():
    """Layer normalisation."""
    return layer_norm, (normal(3, 8, 128, mean=2.0),)


def softmax():
    """Softmax of rows."""
    return jax.nn.softmax, (normal(4, 8, 128, scale=2.0),)


def total():
    """A plain sum."""
    return jnp.sum, (normal(5, 4096, mean=0.5),)


def cancelling():
    """Sums that are zero but for rounding."""

    def fn(x):
        return jnp.sum(x - jnp.mean(x, -1, keepdims=True), -1)

    return fn, (normal(6, 8, 512, mean=3.0),)


def convolution():
    """A convolution and its ReLU."""

    def fn(x, w):
        y = lax.conv_general_dilated(
            x, w, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC")
        )
        return jax.nn.relu(y)

    return fn, (normal(7, 2, 8, 8, 8), normal(8, 3, 3, 8, 8, scale=0.1))


def gradient():
    """Gradient of two layers' squared error."""

    def loss(weights, x, y):
        w, v = weights
        return jnp.mean((jax.nn.gelu(x @ w) @ v - y) ** 2)

    weights = normal(9, 32, 24, scale=0.2), normal(10, 24, 4)
    return jax.grad(loss), (weights, normal(11, 64, 32), normal(12, 64, 4))


def recurrent():
    """A scan."""

    def fn(x, w, u):
        def step(h, now):
            h = jnp.tanh(now @ w + h @ u)
            return h, jnp.sum(h)

        return lax.scan(step, jnp.zeros(24), x)

    return fn, (
        normal(20, 10, 24),
        normal(21, 24, 24, scale=0.2),
        normal(22, 24, 24, scale=0.2),
    )


def cross_entropy():
    """A classifier's loss."""

    def fn(w, x, y):
        logits = jax.nn.log_softmax(x @ w)
        return -jnp.mean(jnp.take_along_axis(logits, y[:, None], 1))

    labels = jnp.asarray(np.random.default_rng(0).integers(0, 10, 64), jnp.int32)
    return fn, (normal(23, 48, 10, scale=0.3), normal(24, 64, 48), labels)


def block():
    """A residual block."""

    def fn(x, w, v):
        y = x * lax.rsqrt(jnp.mean(x**2, -1, keepdims=True) + 1e-6)
        return x + jax.nn.gelu(y @ w) @ v

    return fn, (normal(25, 8, 64), normal(26, 64, 96, scale=0.1), normal(27, 96, 64))


def power_iteration():
    """An eigenvector by iteration."""

    def fn(a, x):
        def step(x, _):
            x = a @ x
            return x / jnp.sqrt(jnp.sum(x**2)), jnp.dot(x, x)

        return lax.scan(step, x, None, length=6)

    a = normal(28, 40, 40)
    return fn, (a + a.T, normal(29, 40))


def likelihood():
    """Of a normal distribution."""

    def fn(x, mean, log_scale):
        z = (x - mean) * jnp.exp(-log_scale)
        return -jnp.sum(np.float32(0.5) * z**2 + log_scale, -1)

    return fn, (normal(30, 16, 200), normal(31, 200), normal(32, 200, scale=0.3))


def strided():
    """A convolution with strides."""

    def fn(x, w):
        y = lax.conv_general_dilated(
            x, w, (2, 2), "VALID", dimension_numbers=("NHWC", "HWIO", "NHWC")
        )
        return jnp.mean(jnp.abs(y), (1, 2))

    return fn, (normal(33, 4, 11, 11, 6), normal(34, 3, 3, 6, 12, scale=0.1))


def logistic_gradient():
    """Gradient of logistic regression."""

    def loss(w, x, y):
        return jnp.mean(jnp.log1p(jnp.exp(-y * (x @ w))))

    return jax.grad(loss), (
        normal(35, 32, scale=0.3),
        normal(36, 256, 32),
        jnp.sign(normal(37, 256)),
    )


def variance():
    """As a difference of squares."""
    return lambda x: jnp.mean(x**2, 0) - jnp.mean(x, 0) ** 2, (
        normal(38, 300, 16, mean=4.0),
    )


def gated():
    """Gradient of a gated recurrence."""

    def loss(weights, x):
        def step(h, now):
            z = jax.nn.sigmoid(now @ weights[0] + h @ weights[1])
            h = (np.float32(1.0) - z) * h + z * jnp.tanh(now @ weights[2])
            return h, None

        h, _ = lax.scan(step, jnp.zeros(16), x)
        return jnp.sum(h**2)

    weights = [normal(50 + i, 16, 16, scale=0.25) for i in range(3)]
    return jax.grad(loss), (weights, normal(53, 8, 16))


def similarity():
    """Cosines between rows."""

    def fn(x, y):
        inner = x @ y.T
        lengths = jnp.sqrt(jnp.sum(x**2, -1)[:, None] * jnp.sum(y**2, -1)[None])
        return inner / lengths

    return fn, (normal(54, 12, 96), normal(55, 10, 96, mean=0.5))


def density():
    """Kernel density."""

    def fn(points, centres):
        far = jnp.sum((points[:, None] - centres[None]) ** 2, -1)
        return jax.nn.logsumexp(-far / np.float32(2.0), axis=-1)

    return fn, (normal(56, 20, 6), normal(57, 80, 6))


def horner():
    """A polynomial."""

    def fn(x, coefficients):
        return lax.scan(lambda y, c: (y * x + c, None), jnp.zeros_like(x), coefficients)

    return lambda x, c: fn(x, c)[0], (normal(58, 50, scale=0.7), normal(59, 12))


def pooled():
    """Convolution, layer norm, mean."""

    def fn(x, w, v):
        y = lax.conv_general_dilated(
            x, w, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC")
        )
        return jax.nn.gelu(layer_norm(y)).mean((1, 2)) @ v

    shapes = (2, 7, 7, 5), (3, 3, 5, 16), (16, 9)
    return fn, tuple(normal(60 + i, *shape) for i, shape in enumerate(shapes))


def segments():
    """Sums of segments."""

    def fn(table, places, scale):
        return jax.ops.segment_sum(table * scale, places, num_segments=7)

    places = jnp.asarray(np.random.default_rng(1).integers(0, 7, 400), jnp.int32)
    return fn, (normal(63, 400, 5), places, normal(64, 400, 1, mean=1.0))


def covariance():
    """Of columns."""

    def fn(x):
        centred = x - jnp.mean(x, 0)
        return centred.T @ centred / np.float32(len(x) - 1)

    return fn, (normal(65, 150, 12, mean=2.0),)


def mixture():
    """Mixture of experts."""

    def fn(x, gates, experts):
        weights = jax.nn.softmax(x @ gates)
        return jnp.einsum("bg,gio,bi->bo", weights, experts, x)

    return fn, (normal(66, 10, 32), normal(67, 32, 4), normal(68, 4, 32, 20))


# Looked at while the constants of the tools were chosen.
SEEN = {
    f.__name__: f
    for f in (
        mlp,
        attention,
        norm,
        softmax,
        total,
        cancelling,
        convolution,
        gradient,
        recurrent,
        cross_entropy,
        block,
        power_iteration,
        likelihood,
        strided,
        logistic_gradient,
        variance,
    )
}
# Not looked at before the constants stood.
HELD_OUT = {
    f.__name__: f
    for f in (gated, similarity, density, horner, pooled, segments, covariance, mixture)
}
# Programs of both, with products of matrices and with other sums.
PRODUCTS = (
    "mlp", "attention", "convolution", "recurrent", "block",
    "similarity", "gated", "pooled", "covariance", "mixture",
)  # fmt: skip
SUMS = ("norm", "softmax", "total", "density", "segments")
