import json
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import significantdigits
from scipy import stats

from benchmarks import accuracy, noise_programs
from prednet_jax import noise
from prednet_jax.noise import quantiles
from prednet_jax.noise.__main__ import plain_data

KEY = jax.random.key(0)
BOTH = noise.parse(accuracy.BOTH)
FLOAT32 = accuracy.FLOAT32


def samples(fn, spec, key, draws, *args):
    noisy = noise.inject(fn, spec)
    return np.stack([noisy(k, *args) for k in jax.random.split(key, draws)])


def test_the_formula_is_that_of_significantdigits():
    fn, args = noise_programs.mlp()
    spec, draws = noise.Gaussian(1e-4), 12
    ours = noise.digits(fn, spec, draws=draws)(KEY, *args)
    drawn = samples(fn, spec, KEY, draws, *args).astype(np.float64)
    theirs = significantdigits.significant_digits(
        drawn,
        reference=drawn.mean(0),
        basis=10,
        error="relative",
        method="CNH",
        probability=0.5,
        confidence=0.9,  # two-sided: 5 % below
    )
    # They divide by n, we by n - 1; their bound on the spread is applied to all.
    bound = 0.5 * math.log10((draws - 1) / draws) + math.log10(
        quantiles.spread_bound(draws, 0.95)
    )
    inside = (ours > 0) & (ours < FLOAT32)
    assert inside.mean() > 0.9
    np.testing.assert_allclose(ours[inside], (theirs + bound)[inside], atol=1e-6)


@pytest.mark.parametrize("name", list(noise_programs.HELD_OUT)[:3])
def test_digits_agree_with_float64_on_held_out_programs(name):
    """Half a digit on average."""
    assert max(accuracy.digits_errors(name)) < 0.5


def test_every_kind_of_leaf_is_finite_and_of_its_shape():
    def fn(x):
        return {
            "nan": x * np.float32("nan"),
            "infinite": x / np.float32(0.0),
            "sometimes": jnp.where(jnp.sum(x * x) > 0, x, -x) / (x - x),
            "zero": x * np.float32(0.0),
            "mean zero": jnp.sin(x * np.float32(math.pi)) * np.float32(1e9),
            "half": x.astype(jnp.bfloat16) * x.astype(jnp.bfloat16),
            "complex": jax.lax.complex(x, x) * jax.lax.complex(x, -x),
            "integer": jnp.argmax(x),
            "boolean": x > 1,
            "empty": x[:0] * np.float32(2.0),
            "key": jax.random.key(3),
        }

    x = jnp.linspace(1.0, 2.0, 5)
    table = noise.digits_table(fn, noise.UlpPerturbation(), draws=5)(KEY, x)
    found, plain = table.elements, fn(x)
    assert jax.tree.structure(found) == jax.tree.structure(plain)
    for name, leaf in found.items():
        assert leaf.dtype == np.float64, name
        assert np.isfinite(leaf).all(), name
        assert name == "key" or leaf.shape == plain[name].shape, name
    assert (found["nan"] == 0).all()
    assert found["integer"] == pytest.approx(31 * math.log10(2))
    assert found["boolean"] == pytest.approx(math.log10(2))
    assert (found["zero"] == FLOAT32).all()
    assert (found["half"] <= 8 * math.log10(2)).all()
    assert len(str(table).splitlines()) == 2 + 10  # no row for the empty leaf
    json.dumps(plain_data(table), allow_nan=False)


def test_quantiles_are_those_of_scipy():
    for tail in (0.5, 0.05, 1e-6, 1e-30):
        assert quantiles.two_sided(tail) == pytest.approx(stats.norm.isf(tail / 2))
    for degrees in (1, 2, 15, 200):
        for probability in (1e-3, 0.01, 0.5, 0.99):
            assert quantiles.chi_squared(probability, degrees) == pytest.approx(
                stats.chi2.ppf(probability, degrees)
            )


@pytest.mark.parametrize(
    ("tool", "options", "message"),
    [
        (noise.digits, {"draws": 1}, "draws=1: expected an integer of at least 2"),
        (noise.tolerance, {"failure": 0}, "failure=0: expected a number between 0"),
        (noise.decisions, {"draws": 0}, "draws=0: expected an integer"),
        (noise.digits, {"spec": noise.GradientGaussian(0.1)}, "acts on a computation"),
    ],
)
def test_options_are_checked(tool, options, message):
    with pytest.raises(noise.NoiseError, match=message):
        tool(jnp.sum, **{"spec": BOTH, **options})
