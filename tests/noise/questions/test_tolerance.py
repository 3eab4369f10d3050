import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from benchmarks import accuracy, noise_programs
from prednet_jax import noise
from prednet_jax.noise.__main__ import plain_data

KEY = jax.random.key(0)
ORDER = noise.ReductionOrder()
QUICK = ("density", "segments")


def check_rates(name, text, seeds):
    for row in accuracy.failure_rates(name, text, seeds):
        # What 10,000 runs may show where the true rate is that asked for.
        most = stats.binom.ppf(0.999, accuracy.FRESH, row["failure"])
        assert row["worst"] * accuracy.FRESH <= most, row
        # Not bought by looseness: within 8 times what the runs need.
        assert row["excess"] < 8, row


@pytest.mark.parametrize("name", QUICK)
def test_failure_rates_on_held_out_programs(name):
    check_rates(name, "reduction_order", seeds=(0,))


def test_wrong_kernels_are_caught_and_another_order_is_not():
    wanted = {name: not right for name, (_, right) in accuracy.KERNELS.items()}
    assert accuracy.kernels_caught() == wanted


@pytest.fixture(scope="module")
def noise_reference():
    fn, args = noise_programs.mlp()
    return fn, args, noise.noise_reference(fn, *args)


def test_the_failure_names_the_leaf_the_element_and_the_ratio(noise_reference):
    fn, args, reference = noise_reference
    expected = {"a": [fn(*args)]}
    tolerances = {"a": [reference.tolerances]}
    wrong = np.array(fn(*args))
    allowed = reference.tolerances
    scale = allowed.atol + allowed.rtol * abs(wrong[3, 5])
    wrong[3, 5] += 50 * scale
    wrong[1, 1] += 2 * (allowed.atol + allowed.rtol * abs(wrong[1, 1]))
    with pytest.raises(AssertionError) as caught:
        noise.assert_close({"a": [wrong]}, expected, tolerances)
    line = str(caught.value).splitlines()[1]
    assert line.startswith("['a'][0]: ")
    assert "50 times the tolerance" in line
    assert f"{50 / allowed.noise:.3g} times the expected noise" in line
    assert "worst element [3, 5]" in line
    assert "2 of 128 elements outside" in line


def test_sums_that_cancel_get_an_atol_and_zeros_no_noise():
    fn, args = noise_programs.cancelling()
    found = noise.tolerance(fn, ORDER)(KEY, *args)
    # The noise is that of terms of size 1, summed to 512 and subtracted.
    assert found.atol > 1e-5
    nothing = noise.tolerance(lambda x: x @ x.T, ORDER)(KEY, jnp.zeros((4, 512)))
    assert tuple(nothing) == (0, 0)
    assert nothing.noise == 0


def test_every_kind_of_leaf_has_one_tolerance():
    def fn(x):
        return {
            "sum": jnp.sum(x),
            "count": jnp.sum(x > 0),
            "nan": jnp.sum(x) * np.float32("nan"),
            "infinite": jnp.sum(x) / np.float32(0.0),
            "low": jnp.sum(x.astype(jnp.bfloat16)),
            "empty": x[:0],
        }

    x = noise_programs.normal(0, 3000, mean=1.0)
    found, plain = noise.tolerance(fn, ORDER, draws=4)(KEY, x), fn(x)
    assert jax.tree.structure(found) == jax.tree.structure(plain)
    json.dumps(plain_data(found), allow_nan=False)
    assert tuple(found["count"]) == tuple(found["nan"]) == (0, 0)
    assert found["low"].rtol > 1e3 * found["sum"].rtol
    with np.errstate(invalid="ignore"):
        for name, one in found.items():
            assert np.allclose(plain[name], plain[name], *one, equal_nan=True)
    text = noise.tolerance_table(found).splitlines()
    assert ["extrapolated" in line for line in text] == [True] * 6


def test_what_is_finite_in_some_runs_alone_has_no_tolerance():
    """1 / 0 in the plain run, and something finite under noise."""
    fn = lambda x: np.float32(1.0) / (jnp.exp(x) - jnp.exp(x[0]))  # noqa: E731
    with pytest.raises(noise.NoiseError, match="result: an element is finite in some"):
        noise.tolerance(fn, noise.UlpPerturbation())(KEY, jnp.ones(4))


def test_a_smaller_failure_has_a_larger_tolerance():
    x = jnp.linspace(1, 2, 512)
    found = [
        noise.tolerance(lambda x: jnp.sum(x * x), noise.UlpPerturbation(), failure=p)
        for p in (1e-17, 1e-6, 0.4, 0.9)
    ]
    sizes = [one.rtol for one in (measure(KEY, x) for measure in found)]
    assert sizes == sorted(sizes, reverse=True)
    # The mean of the runs is not the plain result: 0 would be exceeded always.
    assert sizes[-1] > 1e-10


@pytest.mark.parametrize(
    ("actual", "tolerances", "message"),
    [
        ([1.0, 2.0], [noise.Tolerance(0.0, 0.0, 0.0, False)], "actual is"),
        ([np.ones(3)], [noise.Tolerance(0.0, 0.0, 0.0, False)], r"\[0\]: actual has"),
        ([1.0], [1e-6], "one Tolerance for each of 1 leaves"),
    ],
)
def test_a_comparison_of_unlike_trees_is_refused(actual, tolerances, message):
    with pytest.raises(noise.NoiseError, match=message):
        noise.assert_close(actual, [2.0], tolerances)
