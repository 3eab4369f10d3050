"""`cancellations`: planted subtractions are found, harmless ones are not blamed."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.experimental import io_callback
from jax.sharding import Mesh, PartitionSpec

from prednet_jax import noise

RANDOM = np.random.default_rng(0)


def test_a_subtraction_of_large_numbers_is_the_worst_and_carries_the_error():
    def loss(x):
        variance = jnp.mean(x * x) - jnp.mean(x) ** 2
        return jnp.sqrt(variance) + jax.nn.softmax(x - jnp.max(x))[0]

    x = jnp.float32(100 + RANDOM.standard_normal(256))
    worst, *others = report = noise.cancellations(loss)(x)
    assert (worst.primitive, worst.source[-7:]) == ("sub", "in loss")
    # 10^4 against 1.
    assert worst.digits_lost == pytest.approx(4.2, abs=0.3)
    assert worst.share > 0.95
    assert all(c.share < 0.05 for c in others)
    assert "of the error" in str(report)


@pytest.mark.parametrize("scale", [1e-200, 1.0, 1e200])
def test_numbers_of_float64_beyond_float32_lose_digits_too(scale):
    """A subtraction of numbers of 1e200 was not listed."""
    with jax.enable_x64(True):
        x = jnp.asarray(scale * RANDOM.standard_normal(256))
        (worst, *_) = noise.cancellations(lambda x: x.sum() - 0.9999 * x.sum())(x)
    assert worst.primitive == "sub"
    assert worst.digits_lost == pytest.approx(4.3, abs=0.1)


def test_equal_equations_are_one_and_lose_their_noise_together():
    """Each of two equal differences had 74 % of the error that both carry."""

    def squared(x):
        a, b = ((x + np.float32(1024.0)) - np.float32(1024.0) for _ in range(2))
        return jnp.sum((a + 2 * x) * (b + 3 * x))

    (found,) = noise.cancellations(squared)(jnp.linspace(0.1, 1.0, 50))
    assert found.path == "1:sub"
    assert found.share > 0.9


def test_zero_has_lost_all_digits_only_where_noise_moves_it():
    def difference(x):
        return 1 - jnp.cos(x)

    (found,) = noise.cancellations(difference)(jnp.float32(1e-5))
    assert found.digits_lost == pytest.approx(6.9, abs=0.1)
    assert not noise.cancellations(lambda x: x - x)(jnp.arange(1.0, 9))


def test_the_step_of_a_loop_is_told():
    def loop(x):
        def body(carry, _):
            return carry + 0.5, (carry - 3.0) * 2

        return lax.scan(body, x, length=5)[1]

    worst = noise.cancellations(jax.jit(loop))(jnp.float32(1.5001))[0]
    assert (worst.primitive, worst.step) == ("sub", (3,))
    assert worst.digits_lost == pytest.approx(4.8, abs=0.3)


def test_the_step_of_a_loop_inside_of_a_while_loop_is_told():
    def loop(x):
        def body(state):
            step, y = state
            steps = jnp.arange(4.0)
            return step + 1, lax.scan(lambda y, t: (y - t * 0.75, None), y, steps)[0]

        return lax.while_loop(lambda state: state[0] < 1, body, (0, x))[1]

    worst = noise.cancellations(loop)(jnp.float32(2.2501))[0]
    assert (worst.primitive, worst.step) == ("sub", (0, 2))


def test_sums_of_mixed_sign_count_and_random_ones_do_not():
    ones = np.tile(np.float32([1, -1]), 512)
    x = jnp.asarray(ones + np.float32(1e-4 * RANDOM.standard_normal(1024)))
    w = jnp.stack([jnp.ones(1024)] * 3, 1)
    for total in (jnp.sum, lambda x: x @ w):
        assert noise.cancellations(total)(x)[0].digits_lost > 4
    shape = (64, 64)
    a, b = (jnp.float32(RANDOM.standard_normal(shape)) for _ in range(2))
    lost = noise.cancellations(lambda a, b: jnp.tanh(a @ b) + a)(a, b)
    assert all(c.digits_lost < 2 for c in lost)


def test_sums_on_several_devices_are_looked_at():
    mesh, spec = Mesh(np.array(jax.devices()[:1]), ("d",)), PartitionSpec("d")

    def local(x):
        return lax.psum(jnp.sum((x + 1000) - 1000), "d")

    total = jax.shard_map(local, mesh=mesh, in_specs=spec, out_specs=PartitionSpec())
    report = noise.cancellations(total)(jnp.linspace(0.5, 1, 8))
    assert report[0].primitive == "sub"
    assert report[0].digits_lost == pytest.approx(3.4, abs=0.2)


def test_an_ordered_callback_is_refused_in_one_line():
    def loss(x):
        io_callback(lambda _: None, None, jnp.sum(x), ordered=True)
        return jnp.sum(x) - 1

    with pytest.raises(
        noise.NoiseError, match="be mapped: Cannot `vmap` ordered"
    ) as told:
        noise.cancellations(loss)(jnp.ones(3))
    assert "\n" not in str(told.value)
