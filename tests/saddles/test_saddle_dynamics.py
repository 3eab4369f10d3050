import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import optax
from scipy import stats

from prednet_jax import saddles
from prednet_jax.noise import ReductionOrder, inject
from prednet_jax.saddles import dynamics

OCTOPUS = saddles.octopus_function()
RATE = 1 / (2 * OCTOPUS.smoothness)
DESCENT = [saddles.gradient_descent(RATE)]
GRADIENT = saddles.rotated_gradient(OCTOPUS)
update = jax.jit(dynamics.update)


def plain(key, x, rotation):
    return GRADIENT(x, rotation)


def test_rules_equal_optax():
    curvatures = jnp.array([1.0, -0.5, 3.0])
    for rule, reference in (
        (saddles.gradient_descent(0.1), optax.sgd(0.1)),
        (saddles.heavy_ball(0.1, 0.8), optax.sgd(0.1, momentum=0.8)),
        (saddles.adam(0.1, 0.8, 0.99, 1e-6), optax.adam(0.1, 0.8, 0.99, 1e-6)),
    ):
        x = y = jnp.array([0.3, 1e-3, -2.0])
        state = dynamics.RuleState(jnp.zeros_like(x), jnp.zeros_like(x), jnp.int32(0))
        other = reference.init(y)
        for _ in range(6):
            x, state = update(rule, x, curvatures * x, state)
            # Optax raises to an integer power.
            with jax.numpy_dtype_promotion("standard"):
                change, other = reference.update(curvatures * y, other, y)
            y = optax.apply_updates(y, change)
        # Six float32 steps in another order of operations.
        np.testing.assert_allclose(x, y, rtol=5e-6)


def test_a_run_stands_still_when_no_bit_changes():
    # From the origin of a quadratic no step leads away; from beside it each one does.
    function = dataclasses.replace(OCTOPUS, start=lambda rng: np.zeros(OCTOPUS.dim))
    for slope, still in ((0.0, True), (1e-3, False)):

        def sloping(key, x, rotation, slope=slope):
            return 0 * x - slope

        runs = saddles.escape_runs(sloping, function, DESCENT, seeds=2, steps=20)
        assert (runs.still == still).all()


def test_aligned_never_leaves_and_rotated_by_rounding_alone():
    noisy = inject(GRADIENT, ReductionOrder(granularity="element"))
    options = {"seeds": 12, "steps": 300}
    rounding, order = (
        saddles.escape_runs(run, OCTOPUS, DESCENT, **options) for run in (plain, noisy)
    )
    for runs in (rounding, order):
        assert not runs.escaped[0, 0].any()
        assert runs.escaped[0, 1].all()
    # Seeds are the same however many run.
    options = {"seeds": 2, "first_seed": 10, "steps": 300}
    runs = saddles.escape_runs(plain, OCTOPUS, DESCENT, **options)
    np.testing.assert_array_equal(runs.steps, rounding.steps[:, :, 10:])
    assert (rounding.x[0, 1] != order.x[0, 1]).any()  # the noise did act
    times = rounding.steps[0, 1], order.steps[0, 1]
    # Growth by 7/6 a step: a factor of two in the projection is 4.5 steps.
    assert abs(np.median(times[0]) - np.median(times[1])) < 10
    assert stats.logrank(*times).pvalue > 0.01
    with jax.enable_x64(True):
        options = {"seeds": 12, "steps": 400, "dtype": "float64"}
        double = saddles.escape_runs(plain, OCTOPUS, DESCENT, **options)
    assert not double.escaped[0, 0].any()
    assert double.escaped[0, 1].all()
    ratio = np.median(double.steps[0, 1]) / np.median(times[0])
    assert 1.7 < ratio < 2.6  # ln(2^53)/ln(2^24) = 2.2 but for the constants


def test_noise_separates_identical_units_if_its_granularity_allows_it():
    pairs = 4
    function = saddles.identical_units(pairs)
    rate = 1 / (2 * function.smoothness)
    rules = [saddles.gradient_descent(rate), saddles.heavy_ball(rate)]
    for granularity in (None, "shared", "tile", "element"):
        noisy = lambda key, x: jax.grad(function.fn)(x)  # noqa: E731
        if granularity:
            spec = ReductionOrder(granularity=granularity, tile=4)
            noisy = inject(jax.grad(function.fn), spec)
        runs = saddles.escape_runs(
            lambda key, x, rotation, noisy=noisy: noisy(key, x),
            function,
            rules,
            forms=("aligned",),
            seeds=4,
            steps=300,
        )
        same = [
            all(np.array_equal(*np.split(w, 2)) for w in x.reshape(2, 2 * pairs, -1))
            for x in np.concatenate(runs.x[:, 0])
        ]
        together = granularity in (None, "shared")
        assert all(same) if together else not any(same)
        assert together or runs.escaped.all()
