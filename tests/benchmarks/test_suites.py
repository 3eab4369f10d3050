import json

import jax
import numpy as np

from benchmarks import speed


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
