import json

import jax
import jax.numpy as jnp
import lineax
import numpy as np
import pytest
from jax import lax
from jax.experimental import io_callback

from prednet_jax import noise
from prednet_jax.noise.__main__ import plain_data
from tests.accuracy.noise_programs import line_of

X = jax.random.normal(jax.random.key(0), (6, 40))
W = jax.random.normal(jax.random.key(1), (40, 3))


def variants(fn, *args, **options):
    report = noise.invariance(fn, draws=2, **options)(*args)
    return {v.name: v for v in report.variants}


def exact(x):
    return {"y": [jnp.maximum(x, 0.0) * 2.0, x > 0.5]}


def test_a_function_without_rounding_has_the_same_bits_in_every_variant():
    found = variants(exact, X)
    assert set(found) == {
        *("not compiled", "all arguments as constants", "one row at a time"),
        *("2 rows at a time", "3 rows at a time", "padded to 8 rows"),
        *("rows in reverse", "vmap over rows", "loop over rows"),
    }
    for v in found.values():
        assert v[1:] == (True, 0.0, "identical", (), "")


def test_another_order_of_sums_is_no_bug_and_mixed_rows_are():
    """A sum whose order depends on the number of rows, and a mean over the rows."""

    def ordered(x):
        axes = (1,) if len(x) == 1 else ()
        total = lax.fori_loop(
            0, x.shape[1], lambda i, s: s + lax.rev(x, axes)[:, i], x[:, 0] * 0.0
        )
        return jnp.stack([total, -total], 1)

    found = variants(ordered, 1e3 + X)
    for name, v in found.items():
        alone = name in ("one row at a time", "vmap over rows", "loop over rows")
        assert v.same_bits == (not alone), v
        if alone:
            assert v.rung in ("order", "rounding")
            assert 0 < v.difference < 1e-6
            assert v.flipped_rows == ()

    (line,) = {v.source for v in found.values()} - {""}
    assert line.startswith("test_invariance.py:")

    mixed = variants(lambda x: x - jnp.mean(x, 0), X)
    assert mixed["one row at a time"].rung == "beyond"
    assert mixed["padded to 8 rows"].rung == "beyond"
    assert mixed["one row at a time"].difference == pytest.approx(1, abs=0.2)


def planted(x, w):
    """Exact but for one line, which depends on the number of rows."""
    h = jnp.maximum(x, 0.0) * 2.0
    h = jax.nn.relu(h) - 4.0
    h = h * np.float32(1.0 if len(x) > 1 else 1 + 2.0**-23)  # here
    h = jnp.where(h > w[0, 0], h, -h)
    return h * 0.5


def test_the_line_that_makes_the_first_difference_is_named():
    found = variants(planted, X, W)
    assert all(v.same_bits for v in variants(exact, X[:, :0], batch=0).values())
    lines = [v.source for v in found.values() if v.source]
    assert lines == [f"{line_of(planted, 'here')}planted"]
    for name in ("one row at a time", "vmap over rows", "loop over rows"):
        assert not found[name].same_bits
    assert found["2 rows at a time"].same_bits
    assert found["others as constants"].same_bits


def test_a_line_that_noise_changes_is_not_named_for_a_difference_beyond_noise():
    """Neither are loops, nor arrays without rows, and empty ones are left out."""

    def rounded(x, w):
        third = np.float32(1 / 3)
        y = x * (third if len(x) > 1 else np.nextafter(third, np.float32(1)))
        y = lax.fori_loop(0, 3, lambda i, y: jnp.tanh(y) + y[:, :0].sum(), y)
        first, scale = y[:, 0] * y[:, 1], jnp.sum(w[:, :0], 0)
        y = y + 0.1 * jnp.mean(y, 0)  # mixed
        return y * (1 + jnp.sum(scale)) + first[:, None]

    (source,) = {v.source for v in variants(rounded, X, W).values()} - {""}
    assert source == f"{line_of(rounded, 'mixed')}rounded"


def test_a_sum_over_the_batch_that_only_a_gradient_needs_is_not_named():
    """It is what `jax.grad` differentiates, and no result depends on its value."""

    def forces(x):
        forces = jax.grad(lambda x: jnp.sum(jnp.sin(x) * x))(x)
        return forces - jnp.mean(forces, 0)  # over the batch

    lines = {v.source for v in variants(forces, X).values()} - {""}
    assert [line.startswith(line_of(forces, "over the batch")) for line in lines] == [
        True
    ]


@pytest.mark.parametrize("axis", [0, 1])
def test_a_line_whose_batch_is_folded_is_named_where_rows_are_slower(axis):
    def folded(x):  # [B, T, D]
        h = jnp.moveaxis(x, 0, axis)
        h = h.reshape(-1, 10)
        h = h * np.float32(1.0 if len(x) > 1 else 1 + 2.0**-23)  # folded
        h = h.reshape(-1, 4, 10) if axis == 0 else h.reshape(4, -1, 10)  # unfolded
        return jnp.moveaxis(h, axis, 0) * 0.5

    (found,) = (v for v in variants(folded, X.reshape(6, 4, 10)).values() if v.source)
    # Of other folds the next line that can be compared.
    line = line_of(folded, "unfolded" if axis else "folded")
    assert found.source == f"{line}folded"


def test_prng_keys_are_rows_too():
    def fn(keys, x):
        draw = jax.vmap(lambda k: jax.random.uniform(k, (3,)))(keys)
        # A row alone is off, so that the difference is placed.
        return keys, draw * x * np.float32(1.0 if len(x) > 1 else 1 + 2.0**-23)

    keys = jax.random.split(jax.random.key(0), 4)
    found = variants(fn, keys, jnp.ones((4, 3)), batch=[0, 1])
    assert found["padded to 8 rows"].same_bits
    assert found["one row at a time"].difference < 1e-6


def test_narrow_integers_are_rows_too():
    """XLA ended the process where it joined arrays of two bits."""
    x = jnp.ones((6, 8), "int2")
    found = variants(lambda x: x.astype(jnp.float32) * 2, x)
    assert all(v.same_bits for v in found.values())


def test_the_rows_that_decide_otherwise_are_listed():
    def fn(other, x):
        # A tie in rows 1 and 4, which a lone row breaks.
        bonus = np.float32(2.0**-20 if len(x) == 1 else 0.0)
        scores = x.at[:, 1].set(x[:, 0] + bonus)
        return other * scores, jnp.argmax(scores, 1)

    x = jnp.zeros((6, 3)).at[:, 2].set(1.0).at[jnp.array([1, 4]), 0].set(2.0)
    found = variants(fn, np.float32(1), x, batch=(1,))
    assert found["one row at a time"].flipped_rows == (1, 4)
    assert found["2 rows at a time"].flipped_rows == ()


def test_calls_stay_as_they_are_and_the_report_is_read_by_machines_too():
    fn = jax.jit(lambda x, w: x * jnp.sum(x @ w, 1)[:, None], donate_argnums=0)
    report = noise.invariance(fn, draws=2)(X, w=W)
    assert np.isfinite(np.sum(X))
    assert "one row at a time" in str(report)
    json.dumps(plain_data(report), allow_nan=False)


def test_a_program_that_pads_its_rows_is_followed():
    """Shapes of other numbers of axes ended in zip()'s error."""

    def fn(x, w):
        rows = jnp.pad(x, ((0, -len(x) % 4), (0, 0)))
        rows = rows.reshape(-1, 4, x.shape[1]) if len(x) % 4 else rows
        return jnp.tanh(rows @ w).reshape(-1, w.shape[1])[: len(x)]

    assert len(noise.invariance(fn, draws=2)(jnp.tile(X, (2, 1))[:8], W).variants) > 8


def on_host(x):
    return jax.pure_callback(lambda x: x, jax.ShapeDtypeStruct(x.shape, x.dtype), x)


def eager_view(x):
    return jax.new_ref(x).at[:, :2][...]


def in_order(x):
    io_callback(lambda _: None, None, jnp.sum(x), ordered=True)
    return jnp.tanh(x)


def test_a_mutable_array_inside_is_followed():
    """The program that returns each line's values returned the mutable array too."""

    def centred(x):
        total = jax.new_ref(jnp.zeros(3))
        total[...] += jnp.tanh(x @ W).sum(0)  # over the batch
        return jnp.tanh(x @ W) - total[...] / len(x)

    found = variants(centred, X)
    assert found["one row at a time"].rung == "beyond"
    (line,) = {v.source for v in found.values()} - {""}
    assert line.startswith(line_of(centred, "over the batch"))


def test_wrong_input_is_named_in_one_line():
    for fn, args, batch, message in (
        (jnp.mean, (X,), (0,), r"result: shape \(\) of 6 rows: expected the batch"),
        (lambda x: {"b": x.T}, (X,), (0,), r"\['b'\]: shape \(40, 6\) of 6 rows: exp"),
        (lambda x: x.reshape(6, 2, 20)[:, 0], (X,), (0,), "takes 6 rows, but not 7"),
        (jnp.log, (X,), (0,), r"result\[0, \d+\] is NaN: expected a result without"),
        (on_host, (X,), (0,), r"called vmap over rows: vmap is only supported"),
        (eager_view, (X,), (0,), "called not compiled: NotImplementedError"),
        (in_order, (X,), (0,), "called vmap over rows: Cannot `vmap` ordered"),
        (exact, (np.float32(1),), (0,), r"shapes \[\(\)\]: expected arrays with"),
        (exact, (X,), (1,), "positions among the 1 positional arguments"),
        (exact, (X,), (True,), "batch=True: expected a whole number"),
        (lambda x, w: x @ w, (X, W), (0, 1), "of one size"),
    ):
        with pytest.raises(noise.NoiseError, match=message) as caught:
            noise.invariance(fn, batch=batch)(*args)
        assert "\n" not in str(caught.value)


def test_rows_of_zeros_may_fail_a_check_of_the_function():
    """Lineax refuses a singular matrix, which the padding is."""
    a = jax.random.normal(jax.random.key(0), (3, 3, 3)) + 4 * jnp.eye(3)

    def solve(a):
        def of(a):
            return lineax.linear_solve(lineax.MatrixLinearOperator(a), a[0]).value

        return jax.vmap(of)(a)

    with pytest.raises(noise.NoiseError, match="a check of the function itself"):
        noise.invariance(solve)(jnp.zeros_like(a))
    report = noise.invariance(solve)(a)
    padded = next(v for v in report.variants if v.name == "padded to 4 rows")
    assert padded.rung in ("identical", "order", "rounding")
