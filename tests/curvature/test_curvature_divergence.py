import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from prednet_jax.curvature import (
    fit_exponent,
    log_distances,
    perturb_one_ulp,
    saturation,
    weight_distance,
)


@pytest.mark.parametrize("x64", [False, True])
def test_one_ulp_is_the_neighbouring_number(x64):
    with jax.enable_x64(x64):
        dtype = jnp.float64 if x64 else jnp.float32
        params = {"w": jax.random.normal(jax.random.key(0), (100,), dtype)}
        params["zero"] = jnp.zeros(3, dtype)
        moved = perturb_one_ulp(params, jax.random.key(1))
        before, after = np.array(params["w"]), np.array(moved["w"])
        up = np.nextafter(before, np.array(np.inf, before.dtype))
        down = np.nextafter(before, np.array(-np.inf, before.dtype))
        assert after.dtype == before.dtype
        assert ((after == up) | (after == down)).all()
        assert 20 < (after == up).sum() < 80  # both signs
        assert (np.array(moved["zero"]) == 0).all()
        again = perturb_one_ulp(params, jax.random.key(1))
        assert (np.array(again["w"]) == after).all()


def test_distance_is_over_all_leaves():
    a = {"u": jnp.array([3.0, 0.0]), "v": jnp.array([[4.0]])}
    assert weight_distance(a, jax.tree.map(jnp.zeros_like, a)) == 5.0


def test_a_linear_map_grows_at_its_eigenvalue():
    with jax.enable_x64(True):
        logs = log_distances(
            lambda x, a: a * x, jnp.array(1.0), jnp.array(1.5), [jnp.array(1.1)] * 20
        )
        found = fit_exponent(logs)
        np.testing.assert_allclose(logs[0], math.log(0.5))
        np.testing.assert_allclose(found.rate, math.log(1.1), rtol=1e-12)
        assert (found.first, found.last) == (0, 20)
        # Nothing varies: the interval has no width but that of rounding.
        assert found.high - found.low < 1e-12


def test_the_logistic_map_has_exponent_ln_2():
    """Known exactly for x -> 4x(1-x) (Ulam and von Neumann 1947)."""
    with jax.enable_x64(True):
        inside, rates = 0, []
        step = jax.jit(lambda x, _: 4.0 * x * (1.0 - x))
        for start in np.random.default_rng(0).uniform(0.1, 0.9, 20):
            # 1e-13 reaches order one after some 40 iterations: stop at 36.
            logs = log_distances(
                step, jnp.array(start), jnp.array(start + 1e-13), [0] * 36
            )
            found = fit_exponent(logs)
            rates.append(found.rate)
            inside += found.low <= math.log(2.0) <= found.high
        # Mean of 20 runs; the spread of one is about 0.03.
        assert abs(np.mean(rates) - math.log(2.0)) < 0.03
        assert inside >= 16


def test_the_second_training_may_step_differently():
    logs = log_distances(
        lambda s, b: {"w": s["w"] + b, "t": s["t"]},
        {"w": jnp.array(0.0), "t": 0},
        {"w": jnp.array(0.0), "t": 5},
        [1.0, 1.0],
        step_b=lambda s, b: {"w": s["w"] + b + 1.0, "t": s["t"]},
        weights=lambda s: s["w"],
    )
    np.testing.assert_allclose(logs, [-np.inf, 0.0, math.log(2.0)], rtol=1e-6)


def test_saturation_is_the_last_update_before_the_fraction():
    logs = np.log([1e-9, 1e-3, 1e-2, 0.3, 0.05, 0.9])
    travelled = np.array([0.0, 1.0, 1.0, 2.0, 2.0, 2.0])
    assert saturation(logs, travelled) == 2
    assert saturation(logs, travelled, fraction=0.2) == 4
    assert saturation(logs, travelled, fraction=1.0) == 5
    assert saturation(np.full(3, -np.inf), np.array([0.0, 1.0, 1.0])) == 2


@pytest.mark.parametrize("correlation", [0.0, 0.5, -0.4])
def test_interval_covers_under_dependent_growths(correlation):
    rng = np.random.default_rng(1)
    covered = 0
    for _ in range(400):
        x = rng.standard_normal(260)
        for t in range(1, 260):
            x[t] += correlation * x[t - 1]
        found = fit_exponent(np.cumsum(0.05 + 0.1 * x[10:]))
        covered += found.low <= 0.05 <= found.high
    # 95 % nominal; Newey-West is known to fall some points short under positive
    # dependence, and binomial error is 1.1 points.
    assert 0.86 <= covered / 400 <= 1.0 if correlation else covered / 400 >= 0.90


@pytest.mark.parametrize(
    ("logs", "arguments", "message"),
    [
        (np.arange(10.0), {"first": 8}, r"range 8\.\.9.*4 updates"),
        (np.arange(10.0), {"last": 12}, r"range 0\.\.12"),
        (np.r_[-np.inf, np.arange(9.0)], {}, "-inf at update 0"),
    ],
)
def test_fit_refuses(logs, arguments, message):
    with pytest.raises(ValueError, match=message):
        fit_exponent(logs, **arguments)
