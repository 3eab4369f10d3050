"""Tests of what the questions share: one trace, counted loops, progress."""

import re

import jax
import pytest
from jax import lax
from jax import numpy as jnp

from prednet_jax import noise
from prednet_jax.noise import loops, specs
from prednet_jax.noise.questions import sampling

KEY, X = jax.random.key(0), jnp.linspace(1.0, 2.0, 8)


@pytest.mark.parametrize("tool", ["explain", "tolerance", "decisions"])
def test_a_question_traces_its_function_once(tool):
    """One trace for all programs, and at most one call of the function itself."""
    calls = []

    def fn(x):
        calls.append(x)
        return jnp.tanh(x) @ jnp.outer(x, x)

    a = fn(X)
    calls.clear()
    args = (a, 1.001 * a) if tool == "explain" else ()
    getattr(noise, tool)(fn, *args, draws=2)(KEY, X)
    assert len(calls) <= 2


def nested(x):
    """Has an inner loop of two steps at most, and an outer one of four."""

    def inner(x):
        return lax.while_loop(lambda y: y > 1, lambda y: y / 2, x)

    def step(carry):
        i, y = carry
        return i + 1, y + inner(i)

    return lax.while_loop(lambda c: c[0] < 5, step, (jnp.float32(1), x))[1]


def test_the_steps_of_loops_are_counted_once(monkeypatch):
    call = sampling.BoundCall(nested, (X,), {})
    call.check_ends()
    assert sorted(call.steps.values()) == [2, 4]
    # Programs under noise do not count them again.
    monkeypatch.delattr(loops, "plain_steps")
    assert len(list(call.draw(specs.default(), KEY, 2))) == 2


@pytest.mark.parametrize("tool", ["explain", "tolerance", "decisions", "digits"])
def test_a_loop_that_noise_lets_start_elsewhere_counts_its_own_steps(tool):
    """It takes no step for these numbers, and many after the noise before it."""

    def refine(a, b):
        def step(carry):
            x, i = carry
            return x + 1e-3 * (b - a @ x), i + 1

        def goes_on(carry):
            x, i = carry
            return (jnp.abs(b - a @ x).max() > 2e-7) & (i < 3000)

        return lax.while_loop(goes_on, step, (jnp.linalg.solve(a, b), 0))[0]

    a, b = jnp.diag(jnp.array([1.0, 2.0, 4.0])), jnp.ones(3)
    x = refine(a, b)
    results = (x, 1.001 * x) if tool == "explain" else ()
    assert getattr(noise, tool)(refine, *results, draws=4)(KEY, a, b) is not None


def test_a_question_says_what_it_does(monkeypatch, capfd):
    """It does so before its first noisy run as well."""
    monkeypatch.setattr(sampling, "_SILENCE", 0.02)
    noise.explain(jnp.sin, X, 2 * X, draws=64)(KEY, X)
    shown = capfd.readouterr().err
    assert re.search(r"^after \d+ s: compiling the function under ulp", shown, re.M)
    assert re.search(r"^after \d+ s: \d+ of 64 noisy runs", shown, re.M)


def test_trainings_and_recordings_say_what_they_do(monkeypatch, capfd):
    """They were silent, and a training may take hours."""
    monkeypatch.setattr(sampling, "_SILENCE", 0.02)

    def step(x, batch):
        return x - 0.1 * (x - batch), jnp.sum((x - batch) ** 2)

    noise.training(step, X, [X] * 9, draws=4)(KEY)
    noise.record(jnp.tanh)(X)
    shown = capfd.readouterr().err
    assert re.search(r"^after \d+ s: update \d of 4 noisy trainings", shown, re.M)
    assert re.search(r"^after \d+ s: compiling tanh so that", shown, re.M)


def test_the_ranks_that_a_user_forbids_to_promote_are_promoted_in_noise():
    """Nearly all tools ended in JAX's traceback about shapes that the user lacks."""

    def fn(x):
        return jax.nn.softmax(x @ x.T)

    x = jax.random.normal(KEY, (4, 6))
    with jax.numpy_rank_promotion("raise"):
        noise.inject(fn, specs.default())(KEY, x)
        result = fn(x)
        assert noise.explain(fn, result, result)(KEY, x).rung == "identical"


def test_a_question_moves_numbers_where_a_user_forbids_it():
    with jax.transfer_guard("disallow"):
        assert noise.first_nan(jnp.tanh)(X) is None
        assert noise.decisions(jnp.tanh, draws=2)(KEY, X) == ()
