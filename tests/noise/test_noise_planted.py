"""localize finds the line that loses digits, in programs where one was planted."""

import jax
import numpy as np
import pytest

from benchmarks import planted
from prednet_jax import noise
from prednet_jax.noise.localize import localize


@pytest.mark.parametrize("program", planted.PROGRAMS, ids=lambda p: p.__name__)
def test_the_planted_line_is_found(program):
    report = localize(program, noise.UlpPerturbation())(jax.random.key(1), planted.X)
    # In the order of discovery: the last line may round as much as the planted one.
    worst = report.sets[0][0]
    assert worst.source.startswith(planted.marked(program)), (worst, report)
    # One line is to blame, and the rest of the program is not.
    assert {c.source for c in report.sets[0]} == {worst.source}
    assert report.rest < report.effect
    assert np.isfinite(report.effect)
