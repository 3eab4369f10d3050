"""benchmark.py: what it refuses, and its last line."""

import json
import math

import jax
import pytest

from prednet_jax import PredNetConfig
from prednet_jax.models.parameters import parameter_shapes


def test_bad_flags_are_named(refused):
    refused("--repeats=0: expected", "benchmark.py", "--repeats=0")
    rnn = ("--suite=foreign", "--networks=rnn")
    refused("networks='rnn': expected", "benchmark.py", *rnn)
    absent = "--torch_python=/nowhere/python"
    refused(f"{absent}: expected a Python", "benchmark.py", absent)


def test_the_last_line_is_an_object(forked):
    sizes = ("--channels=2", "--height=4", "--width=4", "--window=2", "--repeats=1")
    done = forked("benchmark.py", "--suite=step", *sizes)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["seconds_per_window"] * found["frames_per_second"] == pytest.approx(2)
    assert found["compile_seconds"] > 0
    config = PredNetConfig(channels=(2,), height=4, width=4)
    shapes = parameter_shapes(config)
    leaves = jax.tree.leaves(shapes, is_leaf=lambda x: type(x) is tuple)
    assert found["parameters"] == sum(map(math.prod, leaves))
