"""The programs whose bits under noise are recorded; see `record_bits`.

They are small and use only public JAX, so that their results change with JAX or
`prednet_jax.noise`, but not with the networks of this package. Operands are
dyadic fractions from NumPy's integers, the same on every machine.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import numpy as np
from jax import lax
from jax import numpy as jnp
from jax.sharding import PartitionSpec

from prednet_jax import noise


class Program(NamedTuple):
    """One recorded program: what `inject` is given, and its operands.

    `around(function, spec)(key, *arguments)` is recorded; `inject` itself, or a
    transform of the noisy function. `double`: whether it is traced in 64 bits.
    """

    function: Callable[..., Any]
    arguments: tuple[Any, ...]
    around: Callable[..., Callable[..., Any]] = noise.inject
    double: bool = False


def array(seed: int, *shape: int, bits: int = 24) -> Any:
    """Float32 multiples of 2^(1 - bits) in (-2, 2): with 24 bits, sums are rounded."""
    whole = np.random.default_rng(seed).integers(-(2**bits) + 1, 2**bits, shape)
    return (whole * 2.0 ** (1 - bits)).astype(np.float32)


# For the networks, and where NumPy computes with them: short products are exact.
coarse = partial(array, bits=11)


def positive_definite(n: int) -> Any:
    a = coarse(50, n, n)
    return (a @ a.T + n * np.eye(n)).astype(np.float32)


def conv(x, k, strides=(1, 1), padding="SAME", **options):
    numbers = ("NHWC", "HWIO", "NHWC")
    return lax.conv_general_dilated(
        x, k, strides, padding, dimension_numbers=numbers, **options
    )


def mlp(params, x, y):
    hidden = jnp.tanh(x @ params["w"] + params["b"])
    return jnp.mean((hidden @ params["v"] - y) ** 2)


MLP = (
    {"w": coarse(1, 24, 16), "b": coarse(2, 16), "v": coarse(3, 16, 5)},
    coarse(4, 12, 24),
    coarse(5, 12, 5),
)


def attention(params, x):
    """One block: two heads, layer norm and a gated feed-forward layer."""
    t, d = x.shape
    mean = x.mean(-1, keepdims=True)
    x = (x - mean) * lax.rsqrt(jnp.var(x, -1, keepdims=True) + 1e-6)
    q, k, v = (
        (x @ params[n]).reshape(t, 2, d // 2).transpose(1, 0, 2)
        for n in ("q", "k", "v")
    )
    scores = jnp.where(jnp.tril(jnp.ones((t, t), bool)), q @ k.swapaxes(1, 2), -1e9)
    heads = jax.nn.softmax(scores, axis=-1) @ v
    x = x + heads.transpose(1, 0, 2).reshape(t, d) @ params["o"]
    return jnp.sum(jax.nn.gelu(x @ params["up"]) @ params["up"].T * x) / x.size


ATTENTION = (
    {n: coarse(i, 16, 16) for i, n in enumerate("qkvo", 10)}
    | {"up": coarse(14, 16, 32)},
    coarse(15, 9, 16),
)


@jax.custom_jvp
def custom_jvp(x):
    return jnp.log1p(jnp.exp(x)).sum(-1)


custom_jvp.defjvp(lambda p, t: (custom_jvp(*p), (jax.nn.sigmoid(p[0]) * t[0]).sum(-1)))


@jax.custom_vjp
def custom_vjp(x):
    return jnp.sum(x * jnp.tanh(x))


custom_vjp.defvjp(
    lambda x: (custom_vjp(x), x), lambda x, g: (g * jnp.clip(x, -1.0, 1.0),)
)


def loop(x, w):
    """A scan whose body holds a nested jit and a branch."""

    def body(carry, row):
        carry = jax.jit(jnp.tanh)(carry @ w + row)
        carry = lax.cond(carry.sum() > 0, lambda c: c @ w, lambda c: c * 0.5, carry)
        return carry, carry.sum()

    return lax.scan(body, x[0], x)


def newton(x):
    def going(state):
        return (state[0] < 6) & (jnp.sum(jnp.abs(state[1])) > 1e-3)

    def body(state):
        return state[0] + 1, state[1] - 0.1 * jnp.tanh(state[1] @ state[1].T)

    return lax.while_loop(going, body, (0, x))[1]


ROWS, WHOLE = PartitionSpec("d"), PartitionSpec()


def over_devices(fn, out_specs):
    def run(x):
        # Made when called: only the recorder's process has four devices.
        mesh = jax.make_mesh((4,), ("d",), axis_types=(jax.sharding.AxisType.Auto,))
        return jax.shard_map(fn, mesh=mesh, in_specs=(ROWS,), out_specs=out_specs)(x)

    return run


def scatter(x, updates):
    return x.at[np.array([0, 2, 2, 1, 0, 2, 3, 2])].add(updates)


def max_pool(x):
    return lax.reduce_window(x, -jnp.inf, lax.max, (1, 3, 3, 1), (1, 1, 1, 1), "SAME")


def sum_gradient(fn):
    """The gradient of the sum of squares of what `fn` gives, in all arguments."""

    def gradient(*args):
        return jax.grad(lambda a: jnp.sum(fn(*a) ** 2))(args)

    return gradient


def of_noisy(transform):
    """`around`: a transform of the noisy function, the key being its first argument."""
    return lambda fn, spec: transform(noise.inject(fn, spec))


def only_every_other(fn, spec):
    def run(key, *args):
        found = noise.coverage(fn, spec)(*args).perturbed
        return noise.inject(fn, spec, only=[e.path for e in found[::2]])(key, *args)

    return run


def over_keys(noisy):
    def run(key, *args):
        keys = jax.random.split(key, 3)
        return jax.vmap(noisy, (0, *[None] * len(args)))(keys, *args)

    return run


BF16, F16 = jnp.bfloat16, np.float16
X, W = array(60, 40, 96), array(61, 96, 33)
IMAGE, KERNEL = array(62, 2, 9, 11, 12), array(63, 3, 3, 12, 6)
contract = partial(lax.dot_general, dimension_numbers=(((1, 2), (0, 1)), ((), ())))
grouped = partial(conv, feature_group_count=3)
strided = partial(conv, strides=(2, 2), padding="VALID")
dilated = partial(conv, rhs_dilation=(2, 2), lhs_dilation=(2, 1), padding=[(2, 1)] * 2)
solve_lower = partial(lax.linalg.triangular_solve, left_side=True, lower=True)
switch = [lambda x: x @ W, lambda x: jnp.exp(x[:, :33]), lambda x: x[:, :33] * 2]

PROGRAMS: dict[str, Program] = {
    "dot": Program(jnp.matmul, (X, W)),
    "dot_many_outputs": Program(jnp.matmul, (array(64, 80, 700), array(65, 700, 70))),
    "dot_short": Program(jnp.matmul, (X[:, :5], W[:5])),
    "dot_vector": Program(jnp.matmul, (X[0], W[:, 0])),
    "dot_batched": Program(jnp.matmul, (array(66, 3, 7, 20), array(67, 3, 20, 9))),
    "dot_two_axes": Program(contract, (array(68, 5, 4, 6), array(69, 4, 6, 7))),
    "dot_twos": Program(contract, (array(68, 5, 2, 2), array(69, 2, 2, 7))),
    "dot_bfloat16": Program(jnp.matmul, (X.astype(BF16), W.astype(BF16))),
    "dot_float16": Program(jnp.matmul, (X.astype(F16), W.astype(F16))),
    "dot_complex": Program(jnp.matmul, (X + 1j * X[::-1], W - 1j * W[::-1])),
    "dot_gradient": Program(sum_gradient(jnp.matmul), (X, W)),
    "einsum": Program(
        partial(jnp.einsum, "bij,bjk,k->bi"),
        (array(70, 2, 5, 8), array(71, 2, 8, 9), array(72, 9)),
    ),
    "conv": Program(conv, (IMAGE, KERNEL)),
    "conv_narrow": Program(conv, (IMAGE[..., :3], KERNEL[:, :, :3])),
    "conv_wide": Program(conv, (array(73, 1, 6, 7, 80), array(74, 3, 3, 80, 40))),
    "conv_grouped": Program(grouped, (IMAGE, KERNEL[:, :, :4])),
    "conv_dilated": Program(dilated, (IMAGE, KERNEL)),
    "conv_strided": Program(strided, (IMAGE, KERNEL)),
    "conv_bfloat16": Program(conv, (IMAGE.astype(BF16), KERNEL.astype(BF16))),
    "conv_gradient": Program(sum_gradient(conv), (IMAGE, KERNEL)),
    "sum": Program(jnp.sum, (X,)),
    "sum_axis": Program(partial(jnp.sum, axis=0), (X,)),
    "sum_small_axes": Program(partial(jnp.sum, axis=(0, 1)), (array(75, 2, 3, 9),)),
    "sum_bfloat16": Program(lambda x: lax.reduce_sum(x, (1,)), (X.astype(BF16),)),
    "mean_variance": Program(lambda x: (x.mean(0), x.var(0), jnp.linalg.norm(x)), (X,)),
    "window_sum": Program(
        lambda x: lax.reduce_window(
            x, 0.0, lax.add, (1, 3, 3, 1), (1, 2, 2, 1), "SAME"
        ),
        (IMAGE,),
    ),
    "cumsum": Program(lambda x: (jnp.cumsum(x, 0), lax.cumsum(x, 1, True)), (X,)),
    "cumprod_logsumexp": Program(
        lambda x: (lax.cumlogsumexp(x, 1), lax.cumprod(x, 0), jnp.prod(x)), (X,)
    ),
    "scatter_add": Program(scatter, (X[:5], array(76, 8, 96))),
    "gather_gradient": Program(
        jax.grad(lambda x: jnp.sum(x[np.array([1, 1, 1, 0, 4])] ** 2)), (X,)
    ),
    "max_pool_gradient": Program(sum_gradient(max_pool), (IMAGE,)),
    "cotangent_chain": Program(
        jax.grad(lambda x: jnp.sum(x * jnp.tanh(x) + jnp.exp(x) * jnp.sin(x) * x)), (X,)
    ),
    "elementwise": Program(
        lambda x: (x / (1 + x * x), lax.rsqrt(jnp.abs(x) + 1), x**3, jnp.arctan2(x, 2)),
        (X,),
    ),
    "transcendental": Program(
        lambda x: (jnp.exp(x), jnp.log1p(x * x), lax.erf(x), lax.lgamma(x * x + 1)),
        (X,),
    ),
    "elementwise_float16": Program(
        lambda x: (x + x * x, x / (x * x + 1), jnp.sqrt(jnp.abs(x))), (X.astype(F16),)
    ),
    "complex": Program(
        lambda x: (jnp.exp(x), x * x, jnp.sum(x)), (X[:3] + 1j * X[3:6],)
    ),
    "integers": Program(lambda x: (x * 3 + jnp.sum(x), x.max()), (np.arange(60),)),
    "float64": Program(
        lambda x, w: jnp.tanh(x @ w).sum(0),
        (X.astype(np.float64), W.astype(np.float64)),
        double=True,
    ),
    "float64_gradient": Program(
        jax.grad(mlp), jax.tree.map(lambda x: x.astype(np.float64), MLP), double=True
    ),
    "scan": Program(loop, (X[:4, :33], W[:33])),
    "scan_gradient": Program(
        jax.grad(lambda x, w: loop(x, w)[1].sum(), argnums=1), (X[:4, :33], W[:33])
    ),
    "scan_reverse": Program(
        lambda x: lax.scan(lambda c, r: (c * 0.5 + r, c @ r), x[0], x, reverse=True),
        (X[:6],),
    ),
    "associative_scan": Program(partial(lax.associative_scan, jnp.multiply), (X[:9],)),
    "map": Program(lambda x: lax.map(lambda r: jnp.sum(jnp.sin(r)), x), (X[:5],)),
    "while": Program(newton, (X[:, :40],)),
    "while_vmap": Program(jax.vmap(newton), (array(77, 3, 6, 6),)),
    "fori": Program(
        lambda x: lax.fori_loop(0, 4, lambda i, c: jnp.sin(c @ x), x), (X[:, :40],)
    ),
    "cond": Program(
        lambda x: lax.cond(x[0, 0] < 9, lambda x: x @ W, lambda x: x[:, :33], x), (X,)
    ),
    "switch": Program(lambda i, x: lax.switch(i, switch, x), (np.int32(1), X)),
    "remat_gradient": Program(
        jax.grad(jax.checkpoint(lambda x: jnp.sum(jnp.sin(jnp.sin(x @ W))))), (X,)
    ),
    "custom_jvp": Program(lambda x: jax.jvp(custom_jvp, (x,), (x[::-1],)), (X,)),
    "custom_vjp": Program(jax.value_and_grad(custom_vjp), (X,)),
    "custom_kept": Program(lambda x: (custom_jvp(x), custom_vjp(x)), (X,)),
    "vmap": Program(jax.vmap(lambda x, w: jnp.tanh(x @ w), (0, None)), (X, W)),
    "vmap_scatter": Program(
        jax.vmap(scatter), (array(78, 3, 5, 6), array(79, 3, 8, 6))
    ),
    "nested_jit": Program(jax.jit(lambda x: jax.jit(jnp.dot)(x, W) * jnp.sum(x)), (X,)),
    "hessian_vector": Program(
        lambda p, x, y: jax.jvp(jax.grad(lambda p: mlp(p, x, y)), (p,), (p,))[1], MLP
    ),
    "mlp_gradient": Program(jax.value_and_grad(mlp), MLP),
    "attention_gradient": Program(jax.value_and_grad(attention), ATTENTION),
    "psum": Program(over_devices(lambda x: lax.psum(x @ W, "d"), WHOLE), (X,)),
    "shard_map": Program(
        over_devices(lambda x: (jnp.tanh(x).sum(1), lax.pmean(x, "d")), (ROWS, WHOLE)),
        (X,),
    ),
    "cholesky": Program(jnp.linalg.cholesky, (positive_definite(6),)),
    "triangular_solve": Program(solve_lower, (positive_definite(6), X[:6, :4])),
    "qr_svd": Program(
        lambda x: (jnp.linalg.qr(x)[1], jnp.linalg.svd(x, compute_uv=False)),
        (X[:8, :5],),
    ),
    "fft": Program(lambda x: jnp.fft.rfft(x).real, (X[:4, :32],)),
    "sort_and_compare": Program(lambda x: (jnp.sort(x * 2), jnp.argmax(x, 1)), (X,)),
    "random_numbers": Program(
        lambda seed: jax.random.normal(jax.random.key(seed), (70,)), (np.uint32(3),)
    ),
    "of_noisy_jit": Program(mlp, MLP, of_noisy(jax.jit)),
    "of_noisy_gradient": Program(
        mlp, MLP, of_noisy(partial(jax.value_and_grad, argnums=1))
    ),
    "of_noisy_keys": Program(jax.grad(mlp), MLP, of_noisy(over_keys)),
    "of_noisy_twice": Program(
        lambda x: jnp.tanh(x @ W),
        (X,),
        lambda fn, spec: noise.inject(
            lambda x: noise.inject(fn, spec)(jax.random.key(1), x), spec
        ),
    ),
    "only_every_other": Program(jax.grad(mlp), MLP, only_every_other),
    "only_in_loop": Program(loop, (X[:4, :33], W[:33]), only_every_other),
}
