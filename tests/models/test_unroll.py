"""The scan with late kernel gradients compared with an ordinary scan."""

from dataclasses import replace
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from prednet_jax import init_params
from prednet_jax.config import Convolution, PredNetConfig
from prednet_jax.models import convolution, prednet
from prednet_jax.models import unroll as unroll_lib
from prednet_jax.objectives import Method, window_loss


def shape(inputs, **options):
    sizes = {"height": 4, "width": 6, "out_channels": 3, "filter_size": 3}
    return Convolution(in_channels=inputs, **sizes, **options)


SHAPES = {"across": shape(3, algorithm="strip2"), "down": shape(2, upsampled=True)}


def body(conv, others, carry, x):
    frame, keep, index = x
    z = conv({"across": carry, "down": frame}) + others["bias"]
    carry = jnp.where(keep, jnp.tanh(z), 0.5 * carry)
    return carry, (carry * others["scale"]).sum() * (index + 1).astype(carry.dtype)


def plain(kernels, others, carry, xs):
    def conv(inputs):
        return sum(
            convolution.conv2d(x, kernels[n], "xla", SHAPES[n].upsampled)
            for n, x in inputs.items()
        )

    return jax.lax.scan(lambda c, x: body(conv, others, c, x), carry, xs)


def late(*args, shapes=SHAPES, **options):
    return unroll_lib.unroll(body, *args, convolutions=shapes, **options)


def loss_of(run):
    def loss(variables, xs):
        kernels, others, carry, frames = variables
        carry, ys = run(kernels, others, carry, (frames, *xs))
        return jnp.square(ys).sum() + jnp.sin(carry).sum()

    return loss


def draw(seed):
    rng = np.random.default_rng(seed)

    def normal(*shape):
        return (0.3 * rng.normal(size=shape)).astype(np.float32)

    kernels = {"across": normal(3, 3, 3, 3), "down": normal(3, 3, 2, 3)}
    others = {"bias": normal(3), "scale": normal(3)}
    variables = (kernels, others, normal(2, 4, 6, 3), normal(5, 2, 2, 3, 2))
    return variables, (np.array([True, True, False, True, True]), np.arange(5))


def assert_trees_near(actual, expected, bound):
    def near(a, e):
        np.testing.assert_allclose(a, e, 0, bound * max(np.abs(e).max(), 1e-3))

    jax.tree.map(near, actual, expected)


# Float32 through five steps of small convolutions: some ten roundings of 1.2e-7.
BOUND = 3e-6


def test_value_and_every_gradient():
    variables, xs = draw(0)
    expected = jax.jit(jax.value_and_grad(loss_of(plain)))(variables, xs)
    actual = jax.jit(jax.value_and_grad(loss_of(late)))(variables, xs)
    assert_trees_near(actual, expected, BOUND)


def test_hessian_products():
    """Forward over reverse, against a central difference of gradients."""
    variables, xs = draw(1)
    shapes = {n: replace(s, algorithm="auto") for n, s in SHAPES.items()}
    run = loss_of(partial(late, shapes=shapes))
    gradient = jax.jit(lambda v: jax.grad(run)(v, xs))
    with jax.enable_x64(True):
        variables = jax.tree.map(lambda x: jnp.asarray(x, jnp.float64), variables)
        product = jax.jvp(gradient, (variables,), (variables,))[1]
        # Scaling by 1 +- h moves along the variables themselves.
        h = 1e-5
        up = gradient(jax.tree.map(lambda x: x * (1 + h), variables))
        down = gradient(jax.tree.map(lambda x: x * (1 - h), variables))
        expected = jax.tree.map(lambda a, b: (a - b) / (2 * h), up, down)
    # The difference is exact to h^2 and to rounding over h, 1e-11.
    assert_trees_near(product, expected, 1e-6)


def test_each_kernel_is_used_once_a_step():
    (kernels, others, carry, frames), xs = draw(4)

    def loss(kernels, odd_body):
        args = (kernels, others, carry, (frames, *xs))
        return unroll_lib.unroll(odd_body, *args, convolutions=SHAPES)[1].sum()

    def twice(conv, others, carry, x):
        carry, y = body(conv, others, carry, x)
        return conv({"across": carry}), y

    def never(conv, others, carry, x):
        return carry, x[0].sum()

    for odd_body in (twice, never):
        with pytest.raises(ValueError, match="expected"):
            jax.grad(loss)(kernels, odd_body)


def test_frames_that_are_computed_again_give_the_same_gradients_in_a_third_of_memory():
    sizes = {"channels": (3, 8), "height": 16, "width": 16, "convolution": "xla"}
    config = PredNetConfig(variant="lotter", **sizes)
    params = init_params(config, jax.random.key(0))
    state = prednet.initial_state(config, 2)
    frames = jax.random.uniform(jax.random.key(1), (21, 2, 16, 16, 3))
    assert unroll_lib.segment_length(20) == 2

    def gradient(rematerialize, steps):
        method = Method(objective="errors", rematerialize=rematerialize)
        first = jnp.asarray(True)
        run = jax.value_and_grad(window_loss, has_aux=True)
        shown = frames[: steps + 1]
        compiled = jax.jit(lambda p: run(p, config, state, shown, first, method)).lower(
            params
        )
        return compiled.compile()

    again, kept = (gradient(rematerialize, 20) for rematerialize in (True, False))
    used, before = (c.memory_analysis().temp_size_in_bytes for c in (again, kept))
    assert used < before / 3
    (value, _), found = again(params)
    (expected, _), gradients = kept(params)
    np.testing.assert_allclose(value, expected, rtol=1e-6)
    assert_trees_near(found, gradients, 1e-5)


def test_steps_that_are_computed_together_are_equal_parts(monkeypatch):
    assert [unroll_lib.segment_length(n) for n in (1, 10, 15, 20, 54)] == [
        1,
        1,
        1,
        2,
        3,
    ]
    variables, xs = draw(0)
    steps = len(jax.tree.leaves(xs)[0])
    monkeypatch.setattr(unroll_lib, "segment_length", lambda _: steps)
    again = partial(late, rematerialize=True)
    expected = jax.jit(jax.value_and_grad(loss_of(plain)))(variables, xs)
    actual = jax.jit(jax.value_and_grad(loss_of(again)))(variables, xs)
    assert_trees_near(actual, expected, BOUND)
