"""Clopper-Pearson bounds against scipy and against published figures."""

import pytest
from scipy import stats

from prednet_jax.statistics import share_lower, share_seeds, share_upper


@pytest.mark.parametrize(("count", "n"), [(0, 10), (3, 17), (10, 10), (1, 40)])
def test_equals_scipy(count, n):
    upper = stats.binomtest(count, n, alternative="less").proportion_ci(0.95)
    lower = stats.binomtest(count, n, alternative="greater").proportion_ci(0.95)
    assert share_upper(count, n) == pytest.approx(upper.high, rel=1e-9)
    assert share_lower(count, n) == pytest.approx(lower.low, rel=1e-9, abs=1e-12)


def test_seeds_for_a_bound():
    assert share_upper(0, 10) == pytest.approx(1 - 0.05**0.1)
    assert [share_seeds(0.1, count=k) for k in range(3)] == [29, 46, 61]
    assert share_seeds(0.05) == 59


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: share_upper(3, 2), "count=3"),
        (lambda: share_upper(0, 0), "n=0"),
        (lambda: share_lower(0, 2, alpha=1.0), "alpha=1.0"),
        (lambda: share_seeds(0.0), "bound=0.0"),
    ],
)
def test_bad_input_is_named(call, message):
    with pytest.raises(ValueError, match=message):
        call()
