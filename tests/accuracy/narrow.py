"""Compares what the tools say of narrow formats with what is right.

    python -m tests.accuracy.accuracy products rows casts

`DEVICE` are programs for a CPU that multiplies float32 as an accelerator does by
default (`tests.noise.rounding_cpu`). `MIXED` are programs that cast. A mixed program is
made of a type: with None it does not cast, and gives the truth. No constant of a tool
was chosen on any of them.
"""

import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import lax

from prednet_jax import noise
from prednet_jax.noise.questions.explain import classify
from prednet_jax.noise.questions.reference import NoiseReference
from prednet_jax.noise.questions.sampling import BoundCall
from tests.accuracy.noise_programs import (
    convolve,
    in_float64,
    layer_norm,
    listed,
    normal,
    right_digits,
    whole,
)
from tests.noise.rounding_cpu import multiplying

KEY = jax.random.key(11)
NOISE = "reduction_order:granularity=element+ulp"
X, W = normal(300, 8, 48), normal(301, 48, 48, scale=0.18)
U, V = normal(302, 48, 48, scale=0.12), normal(303, 48, 6, scale=0.3)
IMAGE, KERNEL = normal(304, 2, 9, 9, 4), normal(305, 3, 3, 4, 8, scale=0.2)

DEVICE: dict[str, Callable[[], tuple]] = {}
MIXED: dict[str, Callable[[], tuple]] = {}
#: Those of `DEVICE` whose rows do not depend on each other.
ROWS = ("normalised", "strided", "experts", "u_net", "masked_attention", "runge_kutta")


@listed(DEVICE, X, W, V)
def heads(x, w, v):
    q, k = (jnp.reshape(x @ m, (8, 4, 12)) for m in (w, w.T))
    scores = jnp.einsum("qhd,khd->hqk", q, k) / np.float32(3.5)
    mixed = jnp.einsum("hqk,khd->qhd", jax.nn.softmax(scores), q)
    return mixed.reshape(8, 48) @ v


@listed(DEVICE, X, W, V)
def normalised(x, w, v):
    return layer_norm(jax.nn.gelu(layer_norm(x) @ w)) @ v


@listed(DEVICE, X, W, U)
def gru(x, w, u):
    def step(h, now):
        z = jax.nn.sigmoid(now @ w + h @ u)
        return (np.float32(1) - z) * h + z * jnp.tanh(now @ u), None

    return lax.scan(step, jnp.zeros(48), x)[0]


@listed(DEVICE, X, W)
def power(x, w):
    """Runs an iteration until its change is small."""

    def step(state):
        v, _, n = state
        new = w @ (w.T @ v)
        new = new / jnp.linalg.norm(new)
        return new, jnp.linalg.norm(new - v), n + 1

    going = lambda state: (state[1] > np.float32(0.1)) & (state[2] < 30)  # noqa: E731
    return lax.while_loop(going, step, (x[0], jnp.ones_like(x[0, 0]), 0))[0]


@listed(DEVICE, X, W, V, whole(306, 6, 8))
def cross_entropy(x, w, v, labels):
    def loss(weights):
        logits = jnp.tanh(x @ weights[0]) @ weights[1]
        logs = jax.nn.log_softmax(logits)
        return -jnp.mean(jnp.take_along_axis(logs, labels[:, None], 1))

    return jax.value_and_grad(loss)((w, v))


@listed(DEVICE, IMAGE, KERNEL)
def strided(x, w):
    y = lax.conv_general_dilated(
        x, w, (2, 2), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC")
    )
    return jax.nn.softplus(y).mean((1, 2))


@listed(DEVICE, IMAGE, KERNEL)
def filter_gradient(x, w):
    return jax.grad(lambda w: jnp.sum(jnp.sin(convolve(x, w))) / np.float32(50))(w)


@listed(DEVICE, X, W, U, V)
def per_example(x, w, u, v):
    """Gradients of each example, by vmap of grad."""
    loss = lambda v, x: jnp.sum(jnp.tanh(jnp.cos(x @ w) @ u @ v))  # noqa: E731
    return jax.vmap(jax.grad(loss), (None, 0))(v, x).mean(0)


@listed(DEVICE, X, W)
def solved(x, w):
    gram = w.T @ w + jnp.eye(48, dtype=jnp.float32)
    return jnp.linalg.solve(gram, x.T).T


@listed(DEVICE, X, W, U)
def rematerialised(x, w, u):
    layer = jax.checkpoint(lambda h: h + jnp.tanh(h @ w) @ u)
    return jax.grad(lambda x: jnp.sum(layer(layer(layer(x))) ** 2))(x)


@listed(DEVICE, X, W, U, V)
def experts(x, w, u, v):
    gate = jax.nn.softmax(x @ v[:, :2])
    both = jnp.einsum("bi,eio->beo", x, jnp.stack([w, u]))
    return jnp.einsum("be,beo->bo", gate, jax.nn.relu(both))


@listed(DEVICE, X, W, V)
def tangent(x, w, v):
    return jax.jvp(lambda w: jnp.log1p(jnp.square(x @ w)) @ v, (w,), (w[::-1],))


A, B, C = (normal(711 + i, 40, 40, scale=0.17) for i in range(3))


@listed(DEVICE, normal(720, 6, 8, 40), A, B, C)
def gated_unit(xs, a, b, c):
    def step(h, x):
        z, r = (jax.nn.sigmoid(s) for s in (x @ a + h @ b, x @ b - h @ c))
        return z * h + (np.float32(1) - z) * jnp.tanh(x @ c + (r * h) @ a), None

    return lax.scan(step, jnp.zeros((8, 40)), xs)[0]


@listed(DEVICE, normal(721, 24, 3), normal(722, 24), normal(723, 8, 3))
def gaussian_process(x, y, new):
    def kernel(a, b):
        far = jnp.sum(a**2, 1)[:, None] + jnp.sum(b**2, 1)[None] - 2 * a @ b.T
        return jnp.exp(np.float32(-0.25) * far)

    lower = jnp.linalg.cholesky(
        kernel(x, x) + np.float32(0.3) * jnp.eye(24, dtype=jnp.float32)
    )
    half = jax.scipy.linalg.solve_triangular(lower, kernel(x, new), lower=True)
    weights = jax.scipy.linalg.cho_solve((lower, True), y)
    return kernel(new, x) @ weights, jnp.diag(kernel(new, new) - half.T @ half)


@listed(
    DEVICE,
    normal(724, 4, 12, 12, 3),
    normal(725, 3, 3, 3, 6, scale=0.25),
    normal(726, 3, 3, 6, 6, scale=0.18),
    normal(727, 3, 3, 12, 2, scale=0.15),
)
def u_net(x, down, low, up):
    fine = jax.nn.relu(convolve(x, down))
    coarse = fine.reshape(-1, 6, 2, 6, 2, 6).mean((2, 4))
    coarse = jax.nn.relu(convolve(coarse, low))
    coarse = jnp.repeat(jnp.repeat(coarse, 2, 1), 2, 2)
    return convolve(jnp.concatenate([fine, coarse], -1), up)


@listed(DEVICE, normal(728, 4, 10, 40), A, B, normal(715, 40, 5, scale=0.3))
def masked_attention(x, a, b, v):
    scores = jnp.einsum("bqd,bkd->bqk", x @ a, x @ b) / np.float32(6.3)
    seen = jnp.tril(jnp.ones((10, 10), bool))
    shares = jax.nn.softmax(jnp.where(seen, scores, np.float32(-1e9)))
    return (x + shares @ x) @ v


@listed(DEVICE, normal(710, 8, 40), A, B)
def runge_kutta(x, a, b):
    def slope(h):
        return jnp.tanh(h @ a) @ b - h

    dt = np.float32(0.1)

    def step(_, h):
        one = slope(h)
        two = slope(h + dt / 2 * one)
        three = slope(h + dt / 2 * two)
        four = slope(h + dt * three)
        return h + dt / 6 * (one + 2 * two + 2 * three + four)

    return lax.fori_loop(0, 5, step, x)


@listed(DEVICE, normal(730, 48, 12), normal(731, 5, 12))
def k_means(x, centres):
    far = jnp.sum(centres**2, 1)[None] - 2 * x @ centres.T
    nearest = jax.nn.one_hot(jnp.argmin(far, 1), 5, dtype=jnp.float32)
    return (nearest.T @ x) / jnp.maximum(nearest.sum(0), 1)[:, None]


def mixed(*arguments: Any, dtype: str = "bfloat16") -> Callable:
    """Lists a program that is made of a type, with its arguments and that type."""

    def add(make: Callable) -> Callable:
        MIXED[make.__name__] = lambda: (make(dtype), make(None), arguments)
        return make

    return add


def cast(x: Any, dtype: Any) -> Any:
    """Casts to a narrow type and back: what a product with float32 sums takes."""
    return x if dtype is None else x.astype(dtype).astype(x.dtype)


def product(x: Any, w: Any, dtype: Any) -> Any:
    """Multiplies in a narrow type with sums in float32."""
    if dtype is None:
        return x @ w
    x, w = x.astype(dtype), w.astype(dtype)
    return jnp.matmul(x, w, preferred_element_type=jnp.float32)


@mixed(X, W, V)
def sums_in_float32(dtype):
    return lambda x, w, v: product(jax.nn.silu(product(x, w, dtype)), v, dtype)


@mixed(X, W, V, dtype="float16")
def layer_in_half(dtype):
    def fn(x, w, v):
        h = layer_norm(x @ w)
        h = h if dtype is None else h.astype(dtype)  # Kept in the narrow type.
        return jnp.tanh(h * 2).astype(v.dtype) @ v

    return fn


@mixed(X, W, V, dtype="float8_e4m3fn")
def scaled_float8(dtype):
    def scaled(x):
        if dtype is None:
            return x
        scale = jnp.max(jnp.abs(x)) / np.float32(448)
        return (x / scale).astype(dtype).astype(jnp.float32) * scale

    return lambda x, w, v: jnp.tanh(scaled(x) @ scaled(w)) @ v


@mixed(X, W, V, dtype="float8_e5m2")
def float8_activations(dtype):
    return lambda x, w, v: cast(jax.nn.gelu(x @ w), dtype) @ v


class _Network(nn.Module):
    dtype: Any

    @nn.compact
    def __call__(self, x):
        x = nn.gelu(nn.Dense(32, dtype=self.dtype)(x))
        x = nn.LayerNorm(dtype=self.dtype)(x)
        return nn.Dense(6, dtype=self.dtype)(x)


_PARAMS = _Network(None).init(jax.random.key(0), X)


@mixed(_PARAMS, X)
def flax_dtype(dtype):
    return lambda params, x: _Network(dtype).apply(params, x).astype(x.dtype)


@mixed([W, U, V], X)
def policy(dtype):
    """Casts all leaves of a pytree at the border, as a policy of jmp does."""

    def fn(weights, x):
        given = x.dtype
        if dtype is not None:
            weights, x = jax.tree.map(lambda a: a.astype(dtype), (weights, x))
        for w in weights[:-1]:
            x = jnp.tanh(x @ w)
        return (x @ weights[-1]).astype(given)

    return fn


@mixed({"w": W, "v": V}, X, whole(306, 6, 8))
def mixed_update(dtype):
    """One update of Adam on weights in float32, with gradients of narrow ones."""
    optimizer = optax.adamw(np.float32(1e-2))

    def fn(weights, x, labels):
        def loss(weights):
            logits = product(
                jnp.tanh(product(x, weights["w"], dtype)), weights["v"], dtype
            )
            return optax.softmax_cross_entropy_with_integer_labels(
                logits, labels
            ).mean()

        gradients = jax.tree.map(lambda g: cast(g, dtype), jax.grad(loss)(weights))
        state = optimizer.init(weights)
        updates, state = optimizer.update(gradients, state, weights)
        return optax.apply_updates(weights, updates), state[0].mu

    return fn


@mixed(X, W, U)
def scan_of_casts(dtype):
    def fn(x, w, u):
        def step(h, now):
            return jnp.tanh(product(now, w, dtype) + product(h, u, dtype)), None

        return lax.scan(step, jnp.zeros(48), x)[0]

    return fn


@mixed(X, W, dtype="float16")
def while_of_casts(dtype):
    def fn(x, w):
        def step(state):
            h, n = state
            return cast(jnp.sin(cast(h, dtype) @ cast(w, dtype)), dtype), n + 1

        return lax.while_loop(lambda state: state[1] < 4, step, (x, 0))[0]

    return fn


@mixed(X, W, V)
def vmap_of_grad(dtype):
    def fn(x, w, v):
        loss = lambda w, x: jnp.sum(product(jnp.tanh(product(x, w, dtype)), v, dtype))  # noqa: E731
        return jax.vmap(jax.grad(loss), (None, 0))(w, x).mean(0)

    return fn


@mixed(X, W, V)
def custom_derivative(dtype):
    """Keeps its residual in the narrow type, to save memory."""

    @jax.custom_vjp
    def layer(x, w):
        return jax.nn.silu(x @ w)

    def forward(x, w):
        return layer(x, w), (cast(x, dtype), cast(w, dtype))

    def backward(residuals, g):
        return jax.vjp(lambda x, w: jax.nn.silu(x @ w), *residuals)[1](g)

    layer.defvjp(forward, backward)
    return lambda x, w, v: jax.grad(lambda w: jnp.sum(layer(x, w) @ v))(w)


@mixed(IMAGE, KERNEL)
def convolution_in_bfloat16(dtype):
    def fn(x, w):
        given = x.dtype
        if dtype is not None:
            x, w = x.astype(dtype), w.astype(dtype)
        return jax.nn.relu(convolve(x, w)).astype(given).mean((1, 2))

    return fn


@mixed(X, W, V)
def attention_in_bfloat16(dtype):
    def fn(x, w, v):
        q, k = product(x, w, dtype), product(x, w.T, dtype)
        weights = jax.nn.softmax(product(q, k.T, dtype) / np.float32(7))
        return product(product(weights, x, dtype), v, dtype)

    return fn


@mixed(normal(740, 12, 48), W, V, dtype="float16")
def scaled_loss(dtype):
    """Gradients in float16 of a loss times 1024, divided by it in float32."""

    def fn(x, w, v):
        def loss(weights):
            h = jax.nn.gelu(product(x, weights[0], dtype))
            return np.float32(1024) * jnp.mean(
                jnp.square(product(h, weights[1], dtype))
            )

        gradients = jax.tree.map(lambda g: cast(g, dtype), jax.grad(loss)((w, v)))
        return jax.tree.map(lambda g: g / np.float32(1024), gradients)

    return fn


@mixed(normal(741, 12, 48), W, V, dtype="float8_e4m3fn")
def two_float8s(dtype):
    """Multiplies in float8: e4m3 forward and e5m2 backward, each with its scale."""

    def scaled(x, dtype, largest):
        if dtype is None:
            return x
        scale = jnp.max(jnp.abs(x)) / np.float32(largest)
        return cast(x / scale, dtype) * scale

    @jax.custom_vjp
    def layer(x, w):
        return scaled(x, dtype, 448) @ scaled(w, dtype, 448)

    def backward(kept, g):
        x, w = (scaled(a, dtype, 448) for a in kept)
        g = scaled(g, dtype and "float8_e5m2", 57344)
        return g @ w.T, x.T @ g

    layer.defvjp(lambda x, w: (layer(x, w), (x, w)), backward)
    loss = lambda w, x, v: jnp.sum(jnp.tanh(layer(jnp.sin(layer(x, w)), v)))  # noqa: E731
    return lambda x, w, v: jax.grad(loss)(w, x, v)


@mixed(normal(742, 10, 32), *(normal(743 + i, 32, 32, scale=0.2) for i in range(3)))
def decoder(dtype):
    """Attends to keys and values that are kept in the narrow type."""

    def fn(x, q, k, v):
        def step(kept, now):
            place, token = now
            row = jnp.stack([token @ k, token @ v]).astype(kept.dtype)
            kept = lax.dynamic_update_slice(kept, row[:, None], (0, place, 0))
            keys, values = kept.astype(token.dtype)
            scores = jnp.where(jnp.arange(10) <= place, keys @ (token @ q), -1e9)
            return kept, jax.nn.softmax(scores / np.float32(5)) @ values

        kept = jnp.zeros((2, 10, 32), dtype or x.dtype)
        return lax.scan(step, kept, (jnp.arange(10), x))[1]

    return fn


@mixed(normal(746, 4, 8, 8, 4), normal(747, 3, 3, 4, 8, scale=0.2), normal(748, 8, 3))
def normalised_convolution(dtype):
    """A convolution in the narrow type, with statistics of the batch in float32."""

    def fn(x, w, v):
        y = convolve(cast(x, dtype), cast(w, dtype))
        y = (y - y.mean((0, 1, 2))) * lax.rsqrt(y.var((0, 1, 2)) + np.float32(1e-5))
        return cast(jax.nn.relu(y), dtype).mean((1, 2)) @ v

    return fn


@mixed(normal(749, 10, 48), W, V, whole(750, 6, 10))
def narrow_logits(dtype):
    """Keeps its logits in the narrow type; the loss is computed in float32."""

    def fn(x, w, v, labels):
        logits = cast(jnp.square(product(x, w, dtype)) @ v, dtype)
        return optax.softmax_cross_entropy_with_integer_labels(logits, labels)

    return fn


def on_device(names: Iterable[str] = tuple(DEVICE)) -> Iterator[dict[str, Any]]:
    """Yields what the tools say of programs where products round to a format."""
    for name, format in itertools.product(names, ("tf32", "bf16")):
        fn, args = DEVICE[name]()
        truth, highest = in_float64(fn, args), _at_highest(fn)
        recording = noise.record(highest)(*args)
        with multiplying(format):
            plain, full = jax.jit(fn)(*args), jax.jit(highest)(*args)
            noisy = noise.inject(fn, noise.parse(NOISE))(KEY, *args)
            reference = NoiseReference(BoundCall(fn, args, {}), KEY, draws=8)
            tolerances = noise.tolerance(fn)(KEY, *args)
            found = noise.first_difference(fn, recording)(KEY, *args)
            decisions = noise.decisions(fn, draws=2)(KEY, *args)
            yield {
                "program": name,
                "format": format,
                **_digits(fn, args, plain, truth),
                "explain": _rungs(reference, plain, full),
                "under noise": _rungs(reference, noisy, plain),
                "tolerance": _within(tolerances, full, plain),
                "first": found[0].primitive if found else "",
                "told": [
                    format in str(said)
                    for said in (jax.tree.leaves(tolerances)[0], decisions)
                ],
            }


def _at_highest(fn: Callable) -> Callable:
    def call(*args: Any) -> Any:
        with jax.default_matmul_precision("highest"):
            return fn(*args)

    return call


def rows(names: Iterable[str] = ROWS) -> Iterator[dict[str, Any]]:
    """Yields the rungs of `invariance` where one row alone is not rounded."""
    for name, format in itertools.product(names, ("tf32", "bf16")):
        fn, (x, *rest) = DEVICE[name]()

        def call(x: Any, fn: Callable = fn, rest: Any = rest) -> Any:
            return (_at_highest(fn) if len(x) == 1 else fn)(x, *rest)

        with multiplying(format):
            variants = noise.invariance(call)(x).variants
        yield {
            "program": name,
            "format": format,
            "rungs": {variant.name: variant.rung for variant in variants},
        }


def _digits(
    fn: Callable, args: Sequence[Any], plain: Any, truth: Any
) -> dict[str, float]:
    """Returns the median digits as counted and as right, and the leaf's mean error."""
    counted = list(map(np.ravel, jax.tree.leaves(noise.digits(fn)(KEY, *args))))
    right = list(map(np.ravel, right_digits(plain, truth)))
    pairs = zip(counted, right, strict=True)
    return {
        "digits": float(np.median(np.concatenate(counted))),
        "right": float(np.median(np.concatenate(right))),
        "error": max(float(np.mean(np.abs(x - y))) for x, y in pairs),
    }


def _rungs(reference: NoiseReference, a: Any, b: Any) -> list[str]:
    return sorted({leaf.rung for leaf in classify(reference, a, b).leaves})


def _within(tolerances: Any, actual: Any, expected: Any) -> bool:
    leaves = map(jax.tree.leaves, (actual, expected, tolerances))
    triples = zip(*leaves, strict=True)
    return all(np.allclose(x, y, *tolerance) for x, y, tolerance in triples)


def with_casts(names: Iterable[str] = tuple(MIXED)) -> Iterator[dict[str, Any]]:
    """Yields what the tools say of programs that cast."""
    for name in names:
        fn, full, args = MIXED[name]()
        with jax.numpy_dtype_promotion("standard"):
            plain, without = jax.jit(fn)(*args), jax.jit(full)(*args)
            reference = NoiseReference(BoundCall(fn, args, {}), KEY, draws=4)
            tolerances = noise.tolerance(fn)(KEY, *args)
            yield {
                "program": name,
                **_digits(fn, args, plain, in_float64(full, args)),
                "explain": _rungs(reference, plain, without),
                "tolerance": _within(tolerances, fn(*args), plain),
                "told": "casts" in str(jax.tree.leaves(tolerances)[0]),
            }
