"""The barrier after results that are read twice: where it is put, and under vmap."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from prednet_jax import noise

pytestmark = pytest.mark.optimized
KEYS = jax.random.split(jax.random.key(3), 3)
X = jnp.asarray(np.random.default_rng(0).standard_normal((24, 24)), jnp.float32)
ULP = noise.UlpPerturbation()
HALF = np.float32(0.7)


def barriers(fn, *args):
    """How many calls stay calls in the program, without the pool of random words."""
    return str(jax.make_jaxpr(fn)(*args)).count("name=_computed_once") - 2


def twice(x):
    return jnp.flip(x, 0), x


# What stands between a noisy product and those who read it.
BETWEEN = {
    "nothing": lambda x: x * HALF,
    "reshape": lambda x: (x * HALF).reshape(-1),
    "maximum": lambda x: jnp.maximum(x * HALF, np.float32(0)),
    "call": jax.jit(lambda x: x * HALF),
    "custom_jvp": lambda x: jax.nn.relu(x * HALF),
}


@pytest.mark.parametrize("name", BETWEEN)
def test_a_noisy_result_is_held_where_it_has_several_readers(name):
    between, ulp = BETWEEN[name], ULP
    assert barriers(noise.inject(between, ulp), KEYS[0], X) == 0
    read_twice = noise.inject(lambda x: twice(between(x)), ulp)
    assert barriers(read_twice, KEYS[0], X) == 1
    read_inside = noise.inject(jax.jit(lambda x: twice(between(x))), ulp)
    assert barriers(read_inside, KEYS[0], X) == 1


def padded(parts):
    return lax.pad(parts[0][None], np.float32(0), [(1, 1, 0)])


@pytest.mark.parametrize("joined", [jnp.stack, jnp.hstack, padded])
def test_what_noisy_parts_are_put_together_to_is_held(joined):
    """A chain of such vectors took minutes to compile: each doubled the program."""
    noisy = noise.inject(lambda x: joined([x[0, 0] * HALF, x[0, 1]]) * HALF, ULP)
    assert barriers(noisy, KEYS[0], X) == 1


def network(x):
    """Values are read twice, and XLA's sums depend on what it fuses into them."""

    def step(x, _):
        # The absolute value keeps XLA from contracting the product with the sum.
        x = jnp.abs(x * jnp.tanh(x))
        return jnp.tanh(x * jnp.sum(x, axis=0)), None

    return lax.scan(step, step(x, None)[0], None, length=2)[0]


@pytest.mark.parametrize(
    "spec", ["reduction_order:granularity=element,shortest=1", "stochastic_rounding"]
)
def test_mapped_over_keys_the_barrier_and_the_bits_stay(spec):
    spec = noise.parse(spec)
    one = jax.jit(noise.inject(network, spec)).lower(KEYS[0], X).compile()
    mapped = jax.jit(jax.vmap(noise.inject(network, spec), (0, None)))
    mapped = mapped.lower(KEYS, X).compile()
    calls = [program.as_text().count(" call(") for program in (one, mapped)]
    assert calls[0] == calls[1]
    if not isinstance(spec, noise.ReductionOrder):
        # In each of the two copies of the step, outside the loop and inside.
        assert calls[0] >= 2
    found = np.asarray(mapped(KEYS, X))
    for key, result in zip(KEYS, found, strict=True):
        np.testing.assert_array_equal(result, one(key, X))
    assert (found[0] != found[1]).any()
