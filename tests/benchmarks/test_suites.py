import json

import jax
import numpy as np

from benchmarks import conv_lstm, speed


def test_noises_are_compared_with_the_clean_step():
    compiled = []

    def program(name):
        compiled.append(name)
        calls = 1 if name == "none" else 3

        def step(x):
            for _ in range(calls):
                x = x * x
            return x

        return step, (np.ones(2, np.float32),)

    rows = list(speed.compare("squares", program, ("ulp", "gaussian"), 3))
    # Each noise directly after the clean step; the very first compilation is not used.
    turns = ["none", "ulp"] * 2 + ["none", "gaussian"] * 2
    assert compiled == ["none", *turns]
    assert [row["noise"] for row in rows] == ["ulp", "gaussian"]
    for row in json.loads(json.dumps(rows)):
        assert row["time_ratio"] > 0 < row["compile_ratio"]


def test_each_network_has_a_step_that_is_traced():
    def loss(name):
        step, (_, *arguments) = speed.training_step(name)
        return step(*arguments)[-1]

    for name in speed.NETWORKS:
        with jax.numpy_dtype_promotion("standard"):
            assert jax.eval_shape(lambda name=name: loss(name)).shape == ()


def test_patches_are_cut_frames():
    x = jax.random.normal(jax.random.key(0), (2, 4, 6, 3))
    patches = conv_lstm.to_patches(x)
    assert patches.shape == (2, 2, 3, 12)
    np.testing.assert_array_equal(patches[1, 1, 2].ravel()[:6], x[1, 2, 4:6].ravel())
    np.testing.assert_array_equal(conv_lstm.to_frame(patches), x)


def test_the_conv_lstm_starts_a_sequence_from_the_zero_state():
    task = conv_lstm.ConvLstm(8, 8, 1, "moving_digits")
    params, outputs = task.init_params(jax.random.key(0)), jax.jit(task.outputs)
    frames = jax.random.uniform(jax.random.key(1), (4, 2, 8, 8, 1))
    zero = task.initial_carry(2, np.float32)
    for carry, stand_in in (
        (zero, 1.0),
        (outputs(params, zero, frames, False)[1], 0.0),
    ):
        other = outputs(params, carry, frames.at[0].set(stand_in), True)[0]
        expected = outputs(params, zero, frames, True)[0]
        np.testing.assert_array_equal(other[1:], expected[1:])
