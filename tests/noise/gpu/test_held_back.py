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


@pytest.fixture(scope="module", params=["gtx1080", "h100"])
def lines(request, compiler):
    """Lines that vary by call by default, and under the flag."""
    found = []
    for flag in (False, True):
        ask = noise.audit(
            everything, gpu=request.param, deterministic=flag, advice=False
        )
        with jax.numpy_dtype_promotion("standard"):  # as a user has it
            entries = ask(*SHAPES).entries
        sources = {e.source for e in entries if e.varies == "call"}
        found.append({source.partition(" in ")[0] for source in sources})
    return found


def test_there_are_forty():
    with_marks = [name for name, found in marked().items() if found]
    assert len(with_marks) == 20
    assert len(CASES) == 40


@pytest.mark.slow
def test_the_right_lines_and_no_others(lines):
    assert lines[0] == set().union(*marked().values())


@pytest.mark.slow
def test_under_the_flag_none_is_left(lines):
    assert lines[1] == set()
