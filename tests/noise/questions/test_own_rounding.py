"""Devices that round float32 products by default, and functions that cast."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from prednet_jax import noise
from prednet_jax.noise.questions.own_rounding import own_rounding
from prednet_jax.noise.questions.sampling import BoundCall
from tests.accuracy import accuracy, noise_programs
from tests.noise.rounding_cpu import multiplying

KEY = jax.random.key(0)
X = noise_programs.normal(0, 16, 64)
W = noise_programs.normal(1, 64, 64, scale=0.15)
V = noise_programs.normal(2, 64, 5)


def right_digits(fn, args):
    """Digits of each element of a result, against float64."""
    truth, given = accuracy.in_float64(fn, args), np.asarray(jax.jit(fn)(*args), "f8")
    with np.errstate(divide="ignore"):
        right = -np.log10(np.abs(given - truth) / np.abs(truth))
    return np.clip(right, 0, accuracy.FLOAT32)


def residual(x, w, v):
    return jnp.sin(x + jnp.tanh(x @ w)) @ v


def recurrent(x, w, v):
    step = lambda h, now: (jnp.tanh(now + h @ w), None)  # noqa: E731
    return lax.scan(step, jnp.zeros(64), x)[0] @ v


def gradient(x, w, v):
    return jax.grad(lambda w: jnp.mean(jax.nn.silu(x @ w) @ v))(w)


def explicit(x, w, v):
    return jnp.matmul(jnp.cos(x @ w), v, precision=lax.Precision.DEFAULT)


def branch(x, w, v):
    narrow = lambda h: h @ v  # noqa: E731
    return lax.cond(x[0, 0] > 9, lambda h: narrow(-h), narrow, jax.jit(jnp.dot)(x, w))


def filtered(x, w, v):
    image, kernel = x.reshape(2, 16, 16, 2), w[:18, :4].reshape(3, 3, 2, 4)
    return noise_programs.convolve(image, kernel).mean((1, 2)) @ v[:4]


PROGRAMS = residual, recurrent, gradient, explicit, branch, filtered


@pytest.mark.parametrize(
    ("fn", "name"), [*((fn, "tf32") for fn in PROGRAMS), (residual, "bf16")]
)
def test_digits_count_what_the_device_rounds(fn, name):
    """Digits were 7.2 where three are right."""
    with multiplying(name):
        table = noise.digits_table(fn)(KEY, X, W, V)
        right = right_digits(fn, (X, W, V))
        assert np.mean(np.abs(table.elements - right)) < 0.6
        assert table.rows[0].median < 5
    assert f"rounds float32 products to {name} by default" in str(table)
    assert ".py:" in table.notes[0]
    assert 'jax.default_matmul_precision("highest")' in str(table)


def test_the_format_is_named_and_harmless_ways_of_calling_are_no_bugs():
    with multiplying("tf32"):
        args = X, W, V
        plain = jax.jit(residual)(*args)
        with jax.default_matmul_precision("highest"):
            full = jax.jit(residual)(*args)
        report = noise.explain(residual, plain, full, draws=3)(KEY, *args)
        assert (report.rung, report.closer) == ("tf32", "b")
        # Another order of sums moves what is then rounded.
        noisy = noise.inject(residual, noise.parse("reduction_order+ulp"))(KEY, *args)
        report = noise.explain(residual, noisy, plain, draws=3)(KEY, *args)
        assert report.rung in ("order", "rounding", "tf32")
        wrong = residual(X, W * np.float32(1.01), V)
        assert noise.explain(residual, wrong, plain, draws=3)(KEY, *args).rung == (
            "beyond"
        )

        # A device may round a product of many rows, and not of one.
        def mixed(x):
            precision = "highest" if len(x) == 1 else "default"
            with jax.default_matmul_precision(precision):
                return residual(x, W, V)

        rungs = {v.name: v.rung for v in noise.invariance(mixed, draws=3)(X).variants}
        assert rungs["one row at a time"] == "tf32"
        assert "beyond" not in rungs.values()


def test_a_tolerance_includes_the_format():
    """One row alone, in float32, was a thousand tolerances away."""
    with multiplying("tf32"):
        reference = noise.noise_reference(residual, X, W, V)
        with jax.default_matmul_precision("highest"):
            full = residual(X, W, V)
        reference.assert_close(full)
        assert "products in tf32 included" in str(reference.tolerances)
    plain = noise.noise_reference(residual, X, W, V)
    assert plain.tolerances.widened == ""
    assert plain.tolerances.atol < reference.tolerances.atol / 30


def test_a_device_that_does_not_round_is_left_alone():
    call = BoundCall(residual, (X, W, V), {})
    own = own_rounding(call)
    assert own == (call, (), {}, ())


CASTS = {"bfloat16": 2.6, "float16": 3.5, "float8_e4m3fn": 1.5}


@pytest.mark.parametrize("dtype", CASTS)
def test_casts_of_its_own_are_counted_and_named(dtype):
    """Weights cast, sums in float32: digits were 7.2, and `explain` said `beyond`."""

    def fn(x, w, v):
        low = lambda a: a.astype(dtype).astype(jnp.float32)  # noqa: E731
        return jnp.tanh(low(x) @ low(w)) @ low(v)

    def full(x, w, v):
        return jnp.tanh(x @ w) @ v

    table = noise.digits_table(fn)(KEY, X, W, V)
    right = np.asarray(right_digits(full, (X, W, V)))
    given, truth = np.asarray(fn(X, W, V), "f8"), accuracy.in_float64(full, (X, W, V))
    with np.errstate(divide="ignore"):
        right = np.clip(-np.log10(np.abs(given / truth - 1)), 0, accuracy.FLOAT32)
    assert np.mean(np.abs(table.elements - right)) < 0.6
    assert table.rows[0].median == pytest.approx(CASTS[dtype], abs=0.6)
    assert "casts of its own (first: test_own_rounding.py" in str(table)
    report = noise.explain(fn, fn(X, W, V), full(X, W, V), draws=3)(KEY, X, W, V)
    assert report.rung == "casts"
    # From elsewhere, without casts in the function here, the format is named.
    narrow = {"bfloat16": "bf16", "float16": "tf32", "float8_e4m3fn": "fp8"}[dtype]
    report = noise.explain(full, fn(X, W, V), full(X, W, V), draws=3)(KEY, X, W, V)
    assert report.rung == narrow
    assert narrow != "tf32" or "fp16" in report.leaves[0].plausible


def test_decisions_that_the_format_flips_are_counted_and_a_product_named():
    def fn(x, w):
        return jnp.argmax(x @ w, 1)

    near = jnp.stack([X[:, 0], X[:, 0] + np.float32(3e-6)], 1)
    x, w = jnp.ones((16, 64)) + X / 9, jnp.tile(near[:1], (64, 1)) / 7
    recording = noise.record(lambda x, w: x @ w)(x, w)
    with multiplying("tf32"):
        report = noise.decisions(fn, draws=3)(KEY, x, w)
        assert report[0].flipped > 0.5
        assert "rounds float32 products to tf32" in str(report)
        compare = noise.first_difference(lambda x, w: x @ w, recording, draws=3)
        found = compare(KEY, x, w)
        assert found[0].primitive == "dot_general"
        assert "rounds float32 products to tf32" in str(found)
    assert noise.decisions(fn, draws=3)(KEY, x, w)[0].flipped < 0.5
