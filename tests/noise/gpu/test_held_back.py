"""Forty functions on which the audit was not developed: which lines vary by call."""

import inspect
import os

import jax
import pytest

from prednet_jax import noise
from tests.noise.gpu.held_back import CASES

MARK = "  # call"


def marked():
    """Lines at which threads meet, as entries name them, by function."""
    found = {}
    for function, _ in CASES:
        lines, start = inspect.getsourcelines(function)
        file = os.path.basename(inspect.getsourcefile(function))
        found[function.__name__] = {
            f"{file}:{start + i}"
            for i, x in enumerate(lines)
            if x.rstrip().endswith(MARK)
        }
    return found


def everything(*arguments):
    """All functions as one program, so that they are compiled once."""
    arguments = list(arguments)
    return [function(*(arguments.pop(0) for _ in shapes)) for function, shapes in CASES]


SHAPES = [shape for _, shapes in CASES for shape in shapes]


def test_there_are_forty():
    with_marks = [name for name, found in marked().items() if found]
    assert len(with_marks) == 20
    assert len(CASES) == 40


@pytest.mark.slow
@pytest.mark.parametrize("gpu", ["gtx1080", "h100"])
def test_the_right_lines_and_no_others(compiler, gpu):
    """Those that vary by call; under the flag none is left."""
    for deterministic in (False, True):
        with jax.numpy_dtype_promotion("standard"):  # as a user has it
            ask = noise.audit(everything, gpu=gpu, deterministic=deterministic)
            entries = ask(*SHAPES).entries
        sources = {e.source for e in entries if e.varies == "call"}
        expected = set() if deterministic else set().union(*marked().values())
        assert {source.partition(" in ")[0] for source in sources} == expected
