"""Runs from saddles: rules, escape times, and the decisive observations."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from scipy import stats

from prednet_jax import saddles
from prednet_jax.noise import ReductionOrder, inject
from prednet_jax.saddles.runs import initial
from prednet_jax.saddles.runs import update as uncompiled

OCTOPUS = saddles.octopus_function()
RATE = 1 / (2 * OCTOPUS.smoothness)
GRADIENT = saddles.rotated_gradient(OCTOPUS)
update = jax.jit(uncompiled)


def plain(key, x, rotation):
    return GRADIENT(x, rotation)


@pytest.mark.parametrize(
    ("rule", "reference"),
    [
        (saddles.gradient_descent(0.1), optax.sgd(0.1)),
        (saddles.heavy_ball(0.1, 0.8), optax.sgd(0.1, momentum=0.8)),
        (saddles.adam(0.1, 0.8, 0.99, 1e-6), optax.adam(0.1, 0.8, 0.99, 1e-6)),
    ],
)
def test_rules_equal_optax(rule, reference):
    curvatures = jnp.array([1.0, -0.5, 3.0])
    x = y = jnp.array([0.3, 1e-3, -2.0])
    state, other = initial(rule, x), reference.init(y)
    for _ in range(6):
        x, state = update(rule, x, curvatures * x, state, None)
        with jax.numpy_dtype_promotion("standard"):  # optax raises to an integer power
            change, other = reference.update(curvatures * y, other, y)
        y = optax.apply_updates(y, change)
    # Six float32 steps in another order of operations.
    np.testing.assert_allclose(x, y, rtol=5e-6)


def test_perturbed_gradient_descent_jolts_once_in_a_while():
    rule = saddles.perturbed_gradient_descent(0.1, radius=0.5, threshold=1e-3, wait=3)
    x, jolts = jnp.zeros(4), []
    state = initial(rule, x)
    for t in range(11):
        moved, state = update(rule, x, jnp.zeros(4), state, jax.random.key(t))
        jolts.append(float(jnp.linalg.norm(moved - x)))
        x = moved
    hits = np.flatnonzero(jolts)
    # More than `wait` gradient steps, the one from the perturbed point included.
    np.testing.assert_array_equal(hits, [0, 5, 10])
    assert max(jolts) <= 0.5 * (1 + 1e-6)
    # A large gradient is never perturbed.
    rule_state = initial(rule, x)
    moved, _ = update(rule, x, jnp.ones(4), rule_state, jax.random.key(0))
    np.testing.assert_allclose(moved, x - 0.1, rtol=1e-6)


def test_perturbations_fill_the_ball_uniformly():
    rule = saddles.perturbed_gradient_descent(0.1, radius=2.0, threshold=1.0, wait=0)
    x = jnp.zeros(3)
    state = initial(rule, x)
    jolt = jax.jit(jax.vmap(lambda k: uncompiled(rule, x, x, state, k)[0]))
    points = np.asarray(jolt(jax.random.split(jax.random.key(1), 2000)))
    radii = np.linalg.norm(points, axis=1) / 2
    assert stats.kstest(radii**3, "uniform").pvalue > 1e-3
    assert (
        stats.kstest(
            points[:, 0] / np.linalg.norm(points, axis=1), "uniform", args=(-1, 2)
        ).pvalue
        > 1e-3
    )  # Archimedes: uniform on a sphere


@pytest.fixture(scope="module")
def octopus_runs():
    """First saddle of the octopus, float32, with and without a random order."""
    noisy = inject(GRADIENT, ReductionOrder(granularity="element"))
    rules = [
        saddles.gradient_descent(RATE),
        saddles.perturbed_gradient_descent(RATE, radius=0.1, threshold=1e-3, wait=50),
    ]
    return {
        "plain": saddles.escape_runs(plain, OCTOPUS, rules, seeds=12, steps=300),
        "order": saddles.escape_runs(noisy, OCTOPUS, rules[:1], seeds=12, steps=300),
    }


def test_seeds_are_the_same_however_many_run(octopus_runs):
    rules = [saddles.gradient_descent(RATE)]
    noisy = inject(GRADIENT, ReductionOrder(granularity="element"))
    runs = saddles.escape_runs(noisy, OCTOPUS, rules, seeds=2, first_seed=10, steps=300)
    expected = octopus_runs["order"].x[:, :, 10:]
    np.testing.assert_allclose(runs.x, expected, rtol=1e-5, atol=1e-6)
    np.testing.assert_array_equal(runs.steps, octopus_runs["order"].steps[:, :, 10:])


def test_a_run_stands_still_when_no_bit_changes():
    # From the origin of a quadratic no step leads away; from beside it each one does.
    function = dataclasses.replace(OCTOPUS, start=lambda rng: np.zeros(OCTOPUS.dim))
    runs = saddles.escape_runs(
        lambda key, x, rotation: 0 * x,
        function,
        [saddles.gradient_descent(RATE)],
        seeds=2,
        steps=20,
    )
    assert runs.still.all()
    moving = saddles.escape_runs(
        lambda key, x, rotation: 0 * x - 1e-3,
        function,
        [saddles.gradient_descent(RATE)],
        seeds=2,
        steps=20,
    )
    assert not moving.still.any()


def test_aligned_never_leaves_without_a_jolt(octopus_runs):
    for runs in octopus_runs.values():
        assert not runs.escaped[0, 0].any()
    assert octopus_runs["plain"].escaped[1, 0].all()


def test_rotated_leaves_by_rounding_alone_and_order_adds_nothing(octopus_runs):
    rounding, order = (octopus_runs[k] for k in ("plain", "order"))
    assert rounding.escaped[0, 1].all()
    assert order.escaped[0, 1].all()
    assert (rounding.x[0, 1] != order.x[0, 1]).any()  # the noise did act
    times = rounding.steps[0, 1], order.steps[0, 1]
    # Growth by 7/6 a step: a factor of two in the projection is 4.5 steps.
    assert abs(np.median(times[0]) - np.median(times[1])) < 10
    assert stats.logrank(*times).pvalue > 0.01


def test_float64_takes_about_twice_as_long(octopus_runs):
    with jax.enable_x64(True):
        rule = saddles.gradient_descent(RATE)
        double = saddles.escape_runs(
            plain, OCTOPUS, [rule], seeds=12, steps=400, dtype="float64"
        )
    assert not double.escaped[0, 0].any()
    assert double.escaped[0, 1].all()
    ratio = np.median(double.steps[0, 1]) / np.median(octopus_runs["plain"].steps[0, 1])
    assert 1.7 < ratio < 2.6  # ln(2^53)/ln(2^24) = 2.2 but for the constants


def test_positive_controls():
    controls = saddles.positive_controls(
        lambda fn, g: inject(fn, ReductionOrder(granularity=g, tile=4)), pairs=4
    )
    # To a step for gradient descent and heavy ball, within 5 % with noise.
    record = controls.as_dict()
    assert record["theory_matched"] is record["units_separated"] is True, record
    assert [check["tolerance"] for check in record["theory"][:2]] == [1, 1]
    assert [check["identical"] for check in record["units"]] == [1, 0, 0]


def test_unit_control_can_fail():
    # Without noise, float32 keeps the units identical: nothing to find.
    check = saddles.unit_check(lambda fn, g: lambda key, x: fn(x), "element", 1)
    assert not check.passed
    assert (check.identical, check.escaped) == (1, 0)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"forms": ("tilted",)}, "tilted"),
        ({"dtype": "float16"}, "float16"),
        ({"dtype": "float64"}, "jax_enable_x64"),
        ({"seeds": 0}, "seeds=0"),
        ({"first_seed": -1}, "first_seed=-1"),
        ({"steps": 5}, "steps=5"),
    ],
)
def test_bad_input_is_named(change, message):
    arguments = {"seeds": 1, "steps": 20} | change
    with pytest.raises(ValueError, match=message):
        saddles.escape_runs(
            plain, OCTOPUS, [saddles.gradient_descent(RATE)], **arguments
        )


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: saddles.gradient_descent(0.0), "learning_rate=0.0"),
        (lambda: saddles.heavy_ball(0.1, 1.0), "momentum=1.0"),
        (lambda: saddles.adam(0.1, b2=1.5), "b2=1.5"),
        (
            lambda: saddles.perturbed_gradient_descent(
                0.1, radius=1.0, threshold=1.0, wait=-1
            ),
            "wait=-1",
        ),
    ],
)
def test_bad_rules_are_named(call, message):
    with pytest.raises(ValueError, match=message):
        call()
