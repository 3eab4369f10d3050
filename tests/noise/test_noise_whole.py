"""Tests that exact sums and products of whole numbers have no noise of rounding."""

import jax
import numpy as np
import pytest
from jax import lax
from jax import numpy as jnp

from prednet_jax import noise
from prednet_jax.noise.plan import plan

SQUARE = (20, 20)
OPERATIONS = {
    "reduce_sum": lambda x: x.sum(axis=1),
    "cumsum": lambda x: jnp.cumsum(x, axis=0),
    "dot_general": lambda x: x @ x.T,
    "reduce_window_sum": lambda x: lax.reduce_window(
        x, np.zeros((), x.dtype), lax.add, (3, 3), (1, 1), "SAME"
    ),
    "scatter-add": lambda x: jax.ops.segment_sum(x, jnp.arange(20) % 3, 3),
    "scatter-sub": lambda x: x[:3].at[jnp.arange(20) % 3].subtract(x),
    "integer_pow": lambda x: x**3,
    "reduce_prod": lambda x: jnp.prod(x[:, :3], axis=1),
    "cumprod": lambda x: jnp.cumprod(x[:, :3], axis=1),
    "add_any": jax.grad(lambda x: jnp.sum(x * 2 + x * 3) + jnp.sum(x * x)),
}
KEEPS = [
    "stochastic_rounding",
    "ulp:keep_exact=true",
    "reduction_order:granularity=element+ulp:max_ulps=16,keep_exact=true",
    "mca",
]
MOVES = ["ulp", "stochastic_rounding:mantissa_bits=6", "gaussian:scale=0.01"]


def moves(name, spec, x):
    noisy = noise.inject(OPERATIONS[name], noise.parse(spec))
    value = jax.jit(OPERATIONS[name])(x)
    return any(np.any(noisy(jax.random.key(i), x) != value) for i in range(3))


@pytest.mark.parametrize("name", OPERATIONS)
@pytest.mark.parametrize("spec", KEEPS)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_exact_results_do_not_move(dtype, spec, name):
    numbers = np.random.default_rng(0).integers(-3, 4, SQUARE)
    # In bfloat16 every whole number up to 256 has its own value.
    x = jnp.asarray(np.sign(numbers) if dtype == "bfloat16" else numbers, dtype)
    assert not moves(name, spec, x)


@pytest.mark.parametrize("name", OPERATIONS)
@pytest.mark.parametrize("spec", KEEPS)
def test_other_numbers_and_large_ones_move(spec, name):
    rng = np.random.default_rng(0)
    assert moves(name, spec, jnp.asarray(rng.normal(size=SQUARE), jnp.float32))
    large = 2**23 + rng.integers(0, 100, SQUARE)
    # Doubling and tripling are exact; so is a difference of neighbours.
    if name not in ("add_any", "scatter-sub"):
        assert moves(name, spec, jnp.asarray(large, jnp.float32))


@pytest.mark.parametrize("spec", MOVES)
def test_other_noises_move_exact_results(spec):
    assert moves("reduce_sum", spec, jnp.full(SQUARE, 37.0))


def test_each_sum_counts_alone():
    x = jnp.stack([jnp.ones(50), jnp.linspace(0.1, 0.7, 50)])
    noisy = noise.inject(lambda x: x.sum(axis=1), noise.parse("ulp:keep_exact=true"))
    drawn = np.stack([noisy(jax.random.key(i), x) for i in range(12)])
    assert np.all(drawn[:, 0] == 50)
    assert np.ptp(drawn[:, 1]) > 0


def over_capacity(chosen):
    """Positions of tokens in the buffers of their experts, and who is left out."""
    position = jnp.cumsum(chosen, axis=0) * chosen
    kept = jnp.where(position <= 4, chosen, 0)
    return kept.sum(axis=0), jnp.floor(position)


def test_counts_have_all_their_digits():
    choice = np.random.default_rng(1).integers(0, 4, 32)
    chosen = jax.nn.one_hot(choice, 4)
    key = jax.random.key(0)
    digits = jax.tree.leaves(noise.digits(over_capacity)(key, chosen))
    assert min(x.min() for x in digits) > 7
    counts = over_capacity(chosen)
    off = counts[0].at[1].add(1), counts[1]
    explained = noise.explain(over_capacity, off, counts)(key, chosen)
    assert [one.rung for one in explained.leaves] == ["beyond", "identical"]
    allowed = noise.tolerance(over_capacity)(key, chosen)
    assert max(one.rtol for one in jax.tree.leaves(allowed)) < 1e-5


def test_operands_may_be_literals_of_the_program():
    def shifted(x):
        return x + lax.integer_pow(3.0, 2)

    noisy = noise.inject(shifted, noise.parse("stochastic_rounding"))
    assert noisy(jax.random.key(0), jnp.ones(2)).tolist() == [10, 10]


@pytest.mark.parametrize(
    ("number", "expected"),
    [
        (jnp.exp, False),
        (jax.jit(jnp.exp), False),
        (lambda x: jax.nn.relu(x / 3), False),
        (lambda x: jnp.floor(jnp.exp(x)), True),
        (lambda x: jnp.where(jnp.exp(x) > 1, x, 0), True),
        (lambda x: lax.sort((x / 3, x))[1], True),
        (lambda x: lax.scan(lambda c, y: (c + y / 3, y), 0.0, x)[1], True),
    ],
)
def test_which_sums_may_be_counts(number, expected):
    """Sums inside of a call too: it is known what the call is given."""
    inside = jax.jit(lambda x: x.sum())
    program = jax.make_jaxpr(lambda x: inside(number(x)))(jnp.ones(3))
    steps = plan(program, noise.parse("ulp:keep_exact=true")).walk()
    assert [s.counts for s in steps if s.name == "reduce_sum"] == [expected]


@pytest.mark.parametrize("dtype", ["int4", "int8", "uint8", "bool"])
def test_operands_of_other_types(dtype):
    def product(x, w):
        sums = (((1,), (0,)), ((), ()))
        return lax.dot_general(x, w, sums, preferred_element_type=jnp.float32)

    w = jnp.full((3, 3), -128 if dtype == "int8" else 1).astype(dtype)
    noisy = noise.inject(product, noise.parse("ulp:keep_exact=true"))
    for number, exact in ((3.0, True), (0.3, False), (2.0**23 + 1, False)):
        x = jnp.full((9, 3), number)
        moved = noisy(jax.random.key(0), x, w) != jax.jit(product)(x, w)
        assert bool(np.any(moved)) != exact
