"""Every reduction, at every granularity, tested by facts about summation.

All cases are bilinear in two operands and stand in one program for each granularity,
which is compiled three times: called, jitted, and mapped over keys. Integers below 2^24
have one float32 sum whatever the order; powers of two and signs commute with rounding;
every order is within gamma_h sum|x| of the exact sum (Higham 2002, eq. 4.4); a sum of
four partials has at most twelve values, not a continuum.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from prednet_jax import noise
from tests.noise.bit_programs import conv, max_pool

PARTIALS = 4
# The first two of four partials commute.
MOST_VALUES = 12
KEYS = 24
U = 2.0**-24


def transposed(fn, like):
    """The transpose of a linear function of arrays of shape `like`."""
    # The default float type: the same function serves the float64 reference.
    like = jax.ShapeDtypeStruct(like, jnp.zeros(()).dtype)
    return lambda y: jax.linear_transpose(fn, like)(y)[0]


# Groups, strides, dilation and uneven padding at once.
GENERAL = {"strides": (2, 1), "padding": ((2, 1), (0, 3))}
GENERAL |= {"rhs_dilation": (1, 2), "feature_group_count": 2}
TRANSPOSED = {"lhs_dilation": (2, 1), "padding": ((1, 1), (1, 1))}
X, K, K_GENERAL = (2, 5, 6, 8), (3, 3, 8, 4), (3, 3, 4, 8)
Y, Y_GENERAL = (2, 5, 6, 4), (2, 3, 5, 8)


def input_gradient(**options):
    return lambda y, k: transposed(lambda x: conv(x, k, **options), X)(y)


def filter_gradient(like, **options):
    return lambda y, x: transposed(lambda k: conv(x, k, **options), like)(y)


def einsum(indices):
    return functools.partial(jnp.einsum, indices)


def scatter_add(a, b):
    return jnp.zeros((3, 4), a.dtype).at[jnp.arange(60) % 3].add(a * b)


def pool_gradient(a, b):
    """Windows of 3 x 3 at every pixel: nine of them may meet in one."""
    x = jnp.asarray(np.random.default_rng(5).random(a.shape), a.dtype)
    return jax.vjp(max_pool, x)[1](a * b)[0]


def cotangents(a, b):
    """The sum of the cotangents of four uses of one value."""

    def uses(x):
        return sum(jnp.vdot(x, piece) for piece in jnp.split(a * b, 4))

    return jax.grad(uses)(a[: a.shape[0] // 4])


CASES = {
    "dot_general": (lambda a, b: a @ b, (7, 96), (96, 5)),
    "dot_general batch": (einsum("bijk,bjkl->bil"), (2, 3, 2, 40), (2, 2, 40, 5)),
    # No contracted axis holds three pieces.
    "dot_general twos": (einsum("bihjk,bkhjl->bil"), (3, 9, 2, 2, 2), (3, 2, 2, 2, 5)),
    "conv": (conv, X, K),
    "conv general": (functools.partial(conv, **GENERAL), X, K_GENERAL),
    # Cut along a window that is dilated, each piece with its own padding.
    "conv window": (
        functools.partial(conv, padding=((0, 0), (3, 1)), rhs_dilation=(1, 2)),
        (1, 3, 14, 2),
        (1, 6, 2, 3),
    ),
    "conv transposed": (functools.partial(conv, **TRANSPOSED), X, K),
    "conv input gradient": (input_gradient(), Y, K),
    "conv input gradient general": (input_gradient(**GENERAL), Y_GENERAL, K_GENERAL),
    "conv filter gradient": (filter_gradient(K), Y, X),
    "conv filter gradient general": (
        filter_gradient(K_GENERAL, **GENERAL),
        Y_GENERAL,
        X,
    ),
    "reduce_sum": (lambda a, b: jnp.sum(a * b, axis=(0, 2)), (2, 6, 100), (2, 6, 100)),
    "cumsum": (lambda a, b: jnp.cumsum(a * b, axis=0), (64, 4), (64, 4)),
    "cumsum reverse": (lambda a, b: lax.cumsum(a * b, 1, True), (4, 50), (4, 50)),
    "reduce_window_sum": (
        lambda a, b: lax.reduce_window(
            a * b, 0.0, lax.add, (8, 2), (3, 1), ((4, 2), (0, 1)), (1, 2), (2, 1)
        ),
        (40, 4),
        (40, 4),
    ),
    "scatter-add": (scatter_add, (60, 4), (60, 4)),
    "select_and_scatter_add": (pool_gradient, (1, 9, 9, 2), (1, 9, 9, 2)),
    "add_any": (cotangents, (60, 4), (60, 4)),
    # Mapped over its first axis, which has a name, inside of the transform.
    "psum": (lambda a, b: lax.psum(a * b, "device"), (6, 5, 4), (6, 5, 4)),
}


def operands(integers=False):
    drawn = {}
    for i, (name, (_, *shapes)) in enumerate(CASES.items()):
        rng = np.random.default_rng(i)
        pair = [rng.standard_normal(shape).astype(np.float32) for shape in shapes]
        drawn[name] = [np.rint(4 * x) if integers else x for x in pair]
    return drawn


def all_cases(transform):
    """All cases as one function of a key and the operands, each under `transform`."""

    def unmapped(drawn):
        return {name: CASES[name][0](*drawn[name]) for name in drawn}

    def run(key, drawn):
        drawn = dict(drawn)
        pair = drawn.pop("psum")
        summed = transform(CASES["psum"][0])
        over_devices = jax.vmap(summed, (None, 0, 0), axis_name="device")
        return {**transform(unmapped)(key, drawn), "psum": over_devices(key, *pair)}

    return run


def plain(fn):
    return lambda key, *args: fn(*args)


def on_host(results):
    return {name: np.asarray(x) for name, x in results.items()}


@pytest.fixture(scope="module")
def reference():
    """Plain sums of integers in float32; sums, sums of sizes and terms in float64."""
    run = jax.jit(all_cases(plain))
    whole = on_host(run(None, operands(integers=True)))
    drawn = operands()
    with jax.enable_x64(True):
        run = jax.jit(all_cases(plain))
        wide = jax.tree.map(np.float64, drawn)
        exact, sizes, terms = (
            on_host(run(None, jax.tree.map(of, wide)))
            for of in (np.asarray, np.abs, np.ones_like)
        )
    return whole, exact, sizes, terms


@pytest.mark.parametrize(
    "granularity", [pytest.param("shared", marks=pytest.mark.slow), "tile", "element"]
)
def test_every_reduction(granularity, reference):
    spec = noise.ReductionOrder(
        partials=PARTIALS, granularity=granularity, tile=2, shortest=1
    )
    run = all_cases(lambda fn: noise.inject(fn, spec))
    jitted = jax.jit(run)
    keys = jax.random.split(jax.random.key(7), KEYS)
    drawn = operands()
    called, once = on_host(run(keys[0], drawn)), on_host(jitted(keys[0], drawn))
    every = on_host(jax.jit(jax.vmap(run, (0, None)))(keys, drawn))
    integers = on_host(jitted(keys[0], operands(integers=True)))
    scaled = {name: [8 * a, -0.5 * b] for name, (a, b) in drawn.items()}
    times = on_host(jitted(keys[0], scaled))
    whole, exact, sizes, terms = reference
    for name, mapped in every.items():
        same = functools.partial(np.testing.assert_array_equal, err_msg=name)
        same(integers[name], whole[name])
        # Powers of two and signs commute.
        same(times[name], np.float32(-4) * once[name])
        # The key decides, whether called, jitted or mapped.
        same(once[name], mapped[0])
        same(called[name], mapped[0])
        assert len({one.tobytes() for one in mapped}) > 1, f"{name}: the same bits"
        # Within gamma_h; one rounding of each product beside those of the sum.
        h = terms[name] + 1
        gamma = h * U / (1 - h * U)
        error = np.abs(mapped - exact[name])
        assert np.all(error <= gamma * sizes[name]), name
        assert np.any(error > 0), name
        # Few values and no continuum.
        counts = [len(np.unique(column)) for column in mapped.reshape(KEYS, -1).T]
        most = 6 * 5 * 4 * 3 if name == "psum" else MOST_VALUES
        assert 1 < max(counts) <= min(most, KEYS - 1), name
