"""Each suite at a tiny size: its result is complete and finite."""

import json
import math
import time

import jax
import numpy as np
import pytest

from benchmarks import conv, cost, harness, speed
from prednet_jax import PredNetConfig
from prednet_jax.models.parameters import parameter_shapes
from prednet_jax.models.shapes import Convolution

TINY = PredNetConfig(channels=(2, 3), height=4, width=4, convolution="shifted")
ONE = PredNetConfig(channels=(2,), height=4, width=4, convolution="shifted")


def numbers(tree):
    if isinstance(tree, dict):
        tree = list(tree.values())
    if isinstance(tree, (list, tuple)):
        return [n for entry in tree for n in numbers(entry)]
    return [tree] if isinstance(tree, (int, float)) else []


def checked(result):
    assert np.isfinite(numbers(result)).all()
    return json.loads(json.dumps(result))


def test_step():
    settings = {"noise": "none", "precision": "float32"}
    result = checked(speed.step(ONE, window=2, batch=1, repeats=1, **settings))
    per_second = result["frames_per_second"]
    assert result["seconds_per_window"] * per_second == pytest.approx(2)
    assert result["compile_seconds"] > 0
    shapes = jax.tree.leaves(parameter_shapes(ONE), is_leaf=lambda x: type(x) is tuple)
    assert result["parameters"] == sum(map(math.prod, shapes))
    assert set(result["convolutions"].values()) == {"shifted"}


@pytest.mark.parametrize(
    ("size", "upsampled", "special"),
    [
        (1, False, set()),
        (3, False, {"strip2", "strip4"}),
        (3, True, {"strip2", "strip4", "folded"}),
    ],
)
def test_conv_measures_every_algorithm_that_can_do_it(size, upsampled, special):
    shape = Convolution(
        height=4,
        width=4,
        in_channels=2,
        out_channels=3,
        filter_size=size,
        upsampled=upsampled,
    )
    general = {"xla", "direct", "im2col", "shifted", "wide4"}
    assert set(conv.programs(shape)) == general | special


def test_conv_marks_one_choice_for_each_convolution(monkeypatch):
    sleep = (lambda _: time.sleep(0.001)), None
    monkeypatch.setattr(conv, "programs", lambda _: {"xla": sleep, "wide4": sleep})
    result = checked(conv.conv(TINY, repeats=1))
    chosen = [row["convolution"] for row in result["rows"] if row["chosen"]]
    # The upsampled one is `folded`, which was not measured here.
    names = {"features_0", "gates_0", "gates_1", "prediction_0", "prediction_1"}
    assert set(chosen) == names
    assert len(chosen) == len(names)
    assert all(row["gflops"] > 0 for row in result["rows"])


def test_replicas_are_compared_with_the_single_run():
    rows = checked(speed.replicas(ONE, (2,), 2, 1, "none", "float32"))["rows"]
    modes = [(r["replicas"], r["mode"]) for r in rows if r["devices"] == 1]
    assert modes == [(1, "single"), (2, "map"), (2, "vmap")]
    assert rows[0]["ratio_to_single"] == 1


@pytest.mark.slow
def test_tools_are_compared_with_the_plain_step():
    # As other people's programs have it; optax's Adam is one of them.
    with jax.numpy_dtype_promotion("standard"):
        result = cost.tools(["mlp"], repeats=1, searches=False)
    rows = checked(result)["rows"]
    assert [row["tool"] for row in rows] == ["digits", "tolerance", "explain"]
    # Sixteen runs and a compilation are more than one of each.
    assert all(row["first_processor"] > 1 for row in rows)


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

    rows = checked(cost.compare("squares", program, ("ulp", "gaussian"), 3))
    # Each noise directly after the clean step; the very first compilation is not used.
    turns = ["none", "ulp"] * 2 + ["none", "gaussian"] * 2
    assert compiled == ["none", *turns]
    assert [row["noise"] for row in rows] == ["ulp", "gaussian"]
    for row in rows:
        assert row["time_ratio"] > 0 < row["compile_ratio"]


def test_cases_cover_both_kinds_of_work_and_feed():
    rows = checked(speed.cases(ONE, (2,), 2, 1, "float32"))["rows"]
    assert [(r["work"], r["batch"], r["feed"]) for r in rows] == [
        ("inference", 2, "device"),
        ("inference", 2, "host"),
        ("training", 2, "device"),
        ("training", 2, "host"),
    ]


def test_programs_take_turns_and_warm_up_rounds_do_not_count():
    calls = []

    def program(name, seconds):
        def advance(state):
            calls.append((name, state))
            # The first call is slow, as one that compiles.
            time.sleep(seconds if state else 0.2)
            return state + 1

        return advance, 0

    programs = {"a": program("a", 0.02), "b": program("b", 0.0)}
    found = harness.medians(programs, 3)
    assert calls == [(n, i) for i in range(4) for n in "ab"]
    assert found["b"] < 0.02 <= found["a"]
    assert programs["a"][1] == 4  # the state that was reached
