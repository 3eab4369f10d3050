"""Devices that round float32 products by default, and functions that cast."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from prednet_jax import noise
from prednet_jax.noise.questions.explain import classify
from prednet_jax.noise.questions.precision import OwnRounding, own_rounding
from prednet_jax.noise.questions.reference import NoiseReference
from prednet_jax.noise.questions.sampling import BoundCall
from tests.accuracy import narrow, noise_programs
from tests.noise.rounding_cpu import multiplying

KEY = jax.random.key(0)
X = noise_programs.normal(0, 16, 64)
W = noise_programs.normal(1, 64, 64, scale=0.15)
V = noise_programs.normal(2, 64, 5)


def slowly(names, quick):
    """Names of programs, of which all but a few are slow tests."""
    marks = {True: (), False: pytest.mark.slow}
    return [pytest.param(name, marks=marks[name in quick]) for name in names]


def residual(x, w, v):
    return jnp.sin(x + jnp.tanh(x @ w)) @ v


@pytest.mark.parametrize("name", slowly(narrow.DEVICE, ("gru",)))
def test_where_products_round(name):
    """Digits were 7.2 where three are right, and `explain` said `beyond`."""
    for row in narrow.on_device([name]):
        assert row["error"] < 0.6
        assert row["explain"] == [row["format"]]
        assert set(row["under noise"]) <= {"order", "rounding", row["format"]}
        assert row["tolerance"]
        assert row["first"] in ("dot_general", "conv_general_dilated")
        assert row["told"] == [True, True]


def test_a_jump_that_no_draw_shows_is_of_the_device_s_format():
    """An operand crossed the middle of two numbers of TF32: it was `beyond`."""
    fn, args = narrow.DEVICE["heads"]()
    with multiplying("tf32"):
        noisy = jax.jit(noise.inject(fn, noise.parse(narrow.NOISE)))
        reference = NoiseReference(BoundCall(fn, args, {}), narrow.KEY, draws=8)
        for seed in (1, 10, 12):
            result = noisy(jax.random.key(seed), *args)
            (leaf,) = classify(reference, result, jax.jit(fn)(*args)).leaves
            assert leaf.rung == "tf32"
            assert "two runs that both multiply in tf32" in leaf.reason


def explicit(x, w, v):
    return jnp.matmul(jnp.cos(x @ w), v, precision=lax.Precision.DEFAULT)


def branch(x, w, v):
    narrow = lambda h: h @ v  # noqa: E731
    return lax.cond(x[0, 0] > 9, lambda h: narrow(-h), narrow, jax.jit(jnp.dot)(x, w))


def solve(x, w, v):
    """Its equation holds jaxprs in a named tuple."""
    return jnp.linalg.solve(jnp.eye(64) + w.T @ w, x.T).T @ v


@pytest.mark.parametrize("fn", [explicit, branch, solve])
def test_products_in_branches_and_of_a_precision_are_counted(fn):
    with multiplying("tf32"):
        table = noise.digits_table(fn)(KEY, X, W, V)
    assert 2 < table.rows[0].median < 5
    assert "rounds float32 products to tf32 by default" in str(table)
    assert 'jax.default_matmul_precision("highest")' in str(table)


@pytest.mark.parametrize("name", slowly(narrow.ROWS, ()))
def test_rows_alone_that_are_not_rounded(name):
    for row in narrow.rows([name]):
        assert row["rungs"]["one row at a time"] == row["format"]
        assert "beyond" not in row["rungs"].values()


@pytest.mark.parametrize("name", slowly(narrow.MIXED, ("flax_dtype", "vmap_of_grad")))
def test_casts(name):
    """Digits were 7.2; a compiler that leaves out a cast was taken for a bug."""
    (row,) = narrow.with_casts([name])
    assert row["error"] < 0.6
    assert set(row["explain"]) <= {"casts", "order", "rounding"}
    assert row["tolerance"]
    assert row["told"]


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
    assert own == OwnRounding(call, {}, {}, ())


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float8_e4m3fn"])
def test_a_narrow_format_of_another_program_is_named(dtype):
    def narrow(x, w, v):
        low = lambda a: a.astype(dtype).astype(jnp.float32)  # noqa: E731
        return jnp.tanh(low(x) @ low(w)) @ low(v)

    def full(x, w, v):
        return jnp.tanh(x @ w) @ v

    report = noise.explain(full, narrow(X, W, V), full(X, W, V), draws=3)(KEY, X, W, V)
    name = {"bfloat16": "bf16", "float16": "tf32", "float8_e4m3fn": "fp8"}[dtype]
    assert report.rung == name
    assert name != "tf32" or "fp16" in report.leaves[0].plausible


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
