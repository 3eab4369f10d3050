import json
import math
import re
import tracemalloc
from collections import OrderedDict

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import significantdigits
from scipy import special, stats

from prednet_jax import noise
from prednet_jax.noise import quantiles
from prednet_jax.noise.__main__ import plain_data
from prednet_jax.noise.questions import sampling
from prednet_jax.noise.questions.sampling import BoundCall
from prednet_jax.noise.questions.signs import signs
from tests.accuracy import accuracy, noise_programs

KEY = jax.random.key(0)
FLOAT32 = noise_programs.FLOAT32


def test_the_formula_is_that_of_significantdigits():
    fn, args = noise_programs.mlp()
    spec, draws = noise.Gaussian(1e-4), 12
    ours = noise.digits(fn, spec, draws=draws)(KEY, *args)
    noisy = noise.inject(fn, spec)
    keys = jax.random.split(KEY, draws)
    drawn = np.stack([noisy(key, *args) for key in keys], dtype="f8")
    options = {"basis": 10, "error": "relative", "method": "CNH", "probability": 0.5}
    options["confidence"] = 0.9  # two-sided: 5 % below
    theirs = significantdigits.significant_digits(
        drawn, reference=drawn.mean(0), **options
    )
    # They divide by n, we by n - 1; their bound on the spread is applied to all.
    bound = math.log10(((draws - 1) / draws) ** 0.5)
    bound += math.log10(quantiles.spread_bound(draws, 0.95))
    inside = (ours > 0) & (ours < FLOAT32)
    assert inside.mean() > 0.9
    np.testing.assert_allclose(ours[inside], (theirs + bound)[inside], atol=1e-6)


@pytest.mark.parametrize("name", list(noise_programs.HELD_OUT)[:3])
def test_digits_agree_with_float64_on_held_out_programs(name):
    assert max(accuracy.digits_errors(name)) < 0.5


def running_sum(x):
    return jax.lax.scan(lambda total, y: (total + y, None), jnp.float32(0), x)[0]


def repeated_sum(step):
    return jax.lax.fori_loop(0, 10_000, lambda _, t: t + step, jnp.float32(0))


@pytest.mark.parametrize(
    ("fn", "x", "truth"),
    [
        (running_sum, np.full(50_000, 0.1, np.float32), 50_000),
        (repeated_sum, np.float32(0.1), 10_000),
        (lambda x: jnp.exp(x) * x, noise_programs.normal(9, 300), None),
    ],
)
def test_systematic_errors_are_counted(fn, x, truth):
    table = noise.digits_table(fn)(KEY, x)
    if truth is None:  # No loop, and no error that noise does not show.
        assert not any("every run" in note for note in table.notes)
        return
    error = float(fn(x)) / (truth * float(np.float32(0.1))) - 1
    assert abs(float(table.elements) + math.log10(abs(error))) < 0.1
    assert "1 of 1 elements have the same error in every run" in str(table)
    # Another noise may leave out what rounds.
    other = noise.digits(fn, noise.parse("ulp"))(KEY, x)
    assert other > table.elements + 1


def test_errors_of_a_special_function_are_counted():
    """They are several ulps in all elements, but no element stands out."""
    x = np.random.default_rng(1).uniform(0.3, 3, 40).astype(np.float32)
    truth = special.polygamma(2, x.astype(np.float64))
    fn = jax.jit(lambda x: jax.scipy.special.polygamma(2, x))
    table = noise.digits_table(fn)(KEY, x)
    error = np.asarray(fn(x)) - truth
    digits = -math.log10(np.linalg.norm(error) / np.linalg.norm(truth))
    assert abs(table.rows[0].whole - digits) < 0.3  # It was 0.8.
    assert "40 of 40 elements have the same error in every run" in str(table)


@pytest.mark.parametrize("spec", [None, noise.UlpPerturbation()])
def test_a_nan_that_no_noisy_run_has_leaves_no_digits(monkeypatch, spec):
    """XLA may fuse a program so that it makes one; the noisy program is another."""
    monkeypatch.setattr(sampling.BoundCall, "plain", np.float32([1, np.nan]))
    table = noise.digits_table(jnp.exp, spec)(KEY, np.float32([0, 1]))
    assert table.elements[0] > 6
    assert table.elements[1] == table.rows[0].whole == 0
    assert "1 of 2 elements are NaN or infinite, but in no run" in str(table)


@pytest.mark.parametrize(
    ("fn", "truth"),
    [
        (lambda x: jax.scipy.special.expn(2, x), lambda x: special.expn(2, x)),
        (jax.scipy.special.exp1, special.exp1),
        (lambda x: jnp.where(x * 4 / 4 == x, x, jnp.nan), lambda x: x),
    ],
)
def test_exact_arithmetic_has_no_noise(fn, truth):
    """The n - 1 of a whole number n moved: no digit was left, and NaN were made."""
    x = np.linspace(0.1, 5, 40, dtype=np.float32)
    error, right = np.asarray(fn(x)) - truth(x.astype(float)), truth(x.astype(float))
    error = max(np.linalg.norm(error) / np.linalg.norm(right), np.finfo("f4").eps / 2)
    (row,) = noise.digits_table(fn)(KEY, x).rows
    assert abs(row.whole + math.log10(error)) < 1
    assert noise.nan_rate(fn)(KEY, x).fraction == 0


def test_another_order_of_eigenvalues_in_float64_is_no_error():
    """`eig` lists them in another order there, which left no digit."""
    matrix = np.random.default_rng(1).normal(size=(10, 10)).astype(np.float32)
    assert noise.digits(jnp.linalg.eigvals)(KEY, matrix).min() > 5


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
    assert len(table.rows) == 10  # no row for the empty leaf
    assert "runs under ulp" in str(table)
    json.dumps(plain_data(table), allow_nan=False)


def test_options_are_checked():
    for tool, options, message in (
        (noise.digits, {"draws": 1}, "draws=1: expected a whole number, from 2"),
        (noise.tolerance, {"failure": 0}, "failure=0: expected a number between 0"),
        (noise.decisions, {"draws": 0}, "draws=0: expected a whole number"),
        (noise.digits, {"spec": noise.GradientGaussian(0.1)}, "acts on a computation"),
        (noise.digits, {"spec": noise.ReducedPrecision("bf16")}, "differs from run to"),
    ):
        with pytest.raises(noise.NoiseError, match=message):
            tool(jnp.sum, **options)


ORDER = noise.ReductionOrder()


@pytest.mark.optimized
@pytest.mark.parametrize("name", ["density", "segments"])
def test_failure_rates_on_held_out_programs(name):
    for row in accuracy.failure_rates(name, "reduction_order", (0,)):
        # What 10,000 runs may show where the true rate is that asked for.
        most = stats.binom.ppf(0.999, accuracy.FRESH, row["failure"])
        assert row["worst"] * accuracy.FRESH <= most, row
        # Not bought by looseness: within 8 times what the runs need.
        assert row["excess"] < 8, row


def test_wrong_kernels_are_caught_and_another_order_is_not():
    wanted = {name: name != "another order" for name in accuracy.KERNELS}
    assert accuracy.kernels_caught() == wanted


def test_the_failure_names_the_leaf_the_element_and_the_ratio():
    fn, args = noise_programs.mlp()
    reference = noise.noise_reference(fn, *args)
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
    ratio = re.search(r"([\d.]+) times the expected noise", line)[1]
    assert float(ratio) == pytest.approx(50 / allowed.noise, rel=0.01)
    assert "worst element [3, 5]" in line
    assert "2 of 128 elements outside" in line


@pytest.mark.parametrize("masked", [-1e9, np.finfo("f4").min])
def test_the_constant_of_a_mask_is_no_size_of_sums(masked):
    """finfo.min allowed any finite number, -1e9 errors of 0.28."""
    x, w = noise_programs.normal(1, 16, 64), noise_programs.normal(2, 64, 20)
    mask = noise_programs.normal(3, 16, 20) > 0.5

    def fn(x, w):
        return jnp.where(mask, masked, x @ w)

    found = noise.tolerance(fn, ORDER)(KEY, x, w)
    assert max(found.atol, found.rtol) < 1e-5


def test_assured_digits_are_fewer_where_hardly_any_noise_was_seen():
    """23 % of fresh runs had fewer; 5 % were promised."""
    (row,) = noise.digits_table(jnp.exp)(KEY, np.float32(0.7)).rows
    assert row.whole == row.precision > row.assured


def test_sums_that_cancel_get_an_atol_and_zeros_no_noise():
    x = noise_programs.normal(6, 8, 512, mean=3.0)
    centred = lambda x: jnp.sum(x - jnp.mean(x, -1, keepdims=True), -1)  # noqa: E731
    found = noise.tolerance(centred, ORDER)(KEY, x)
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
    *text, last = noise.tolerance_table(found).splitlines()
    assert last == "under reduction_order"
    assert len(text) == 6
    assert all(one.extrapolated for one in found.values())


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


def test_a_comparison_of_unlike_trees_is_refused():
    for actual, tolerances, message in (
        ([1.0, 2.0], [noise.Tolerance(0.0, 0.0, 0.0, False)], "actual is"),
        ([np.ones(3)], [noise.Tolerance(0.0, 0.0, 0.0, False)], r"\[0\]: actual has"),
        ([1.0], [1e-6], "one Tolerance for each of 1 leaves"),
    ):
        with pytest.raises(noise.NoiseError, match=message):
            noise.assert_close(actual, [2.0], tolerances)


def test_tolerances_of_other_names_are_refused():
    """They were used in their order: an error passed with another leaf's tolerance."""
    wide, narrow = (noise.Tolerance(0.0, atol, 0.0, False) for atol in (1.0, 1e-6))
    expected = OrderedDict(z=np.ones(3), a=np.ones(3))
    actual = OrderedDict(z=np.full(3, 1.01), a=np.ones(3))
    noise.assert_close(dict(expected), dict(expected), {"a": wide, "z": narrow})
    with pytest.raises(noise.NoiseError, match="2 leaves, of the same names"):
        noise.assert_close(actual, expected, {"a": wide, "z": narrow})


def test_signs_of_factors_are_free():
    """One draw with another sign left 0.7 digits of a Schur form."""
    x = jax.random.normal(jax.random.key(7), (12, 12))

    def form(x):
        return jax.scipy.linalg.schur(x)

    symmetric = x @ x.T
    noisy = noise.digits(form, noise.UlpPerturbation(), draws=8)
    found = noisy(jax.random.key(0), symmetric)
    assert all(np.median(leaf) > 4 for leaf in jax.tree.leaves(found))
    flip = jnp.where(jnp.arange(12) % 2 == 0, -1.0, 1.0)
    # The form of a symmetric matrix is diagonal, so that its signs do not show.
    for matrix in (symmetric, x):
        t, q = form(matrix)
        turned = [t * flip[:, None] * flip, q * flip]
        report = noise.explain(form, turned, [t, q])(jax.random.key(1), matrix)
        assert "beyond" not in jax.tree.leaves(report.rung)


def low_rank(x):
    return x[:, :3] @ x[:3]


def symmetric_with_equal_values(x):
    q, _ = jnp.linalg.qr(x)
    return (q * jnp.array([1.0, 1, 1, 2, 2, 3, 4, 5])) @ q.T


@pytest.mark.parametrize(
    ("fn", "make", "free"),
    [
        (jax.scipy.linalg.schur, lambda x: x, "a rotation in each 2x2 block"),
        (jnp.linalg.svd, low_rank, "equal or no singular values"),
        (jnp.linalg.qr, low_rank, "columns beyond the rank"),
        (jnp.linalg.eigh, symmetric_with_equal_values, "equal eigenvalues"),
        (jnp.linalg.eig, lambda x: x, "the order of eigenvalues"),
    ],
)
def test_bases_of_vectors_are_free(fn, make, free):
    """Their vectors had 0.2 to 0.6 digits, without a word that they are not unique."""
    x = make(jax.random.normal(jax.random.key(1), (8, 8)))
    table = noise.digits_table(fn, draws=8)(KEY, x)
    vectors = [row for row in table.rows if row.shape == (8, 8)]
    assert all(row.whole > 5.5 for row in vectors), table
    notes = [note for note in table.notes if free in note]
    assert {note.partition(":")[0] for note in notes} >= {row.path for row in vectors}


def test_many_rows_of_vectors_are_aligned_without_comparing_all_pairs():
    """All pairs of 1500 rows took minutes, and the memory of several square arrays."""
    args = [
        jax.random.normal(jax.random.key(i), (n, 8)) for i, n in ((0, 8), (1, 1500))
    ]
    call = BoundCall(
        lambda a, x: x.astype("complex64") @ jnp.linalg.eig(a)[1], args, {}
    )
    tracemalloc.start()
    free = signs(call)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 1.8e7  # Half of 1500 x 1500 numbers.
    (known,) = free.known
    (aligned,) = free.settled([-known[:, ::-1]])
    np.testing.assert_allclose(aligned, known, rtol=1e-6)


def test_eigenvalues_have_no_order():
    """In three of eight runs they came in another order: they had 0.2 digits."""
    x = jax.random.normal(jax.random.key(51), (50, 50))
    assert np.median(noise.digits(jnp.linalg.eigvals, draws=8)(KEY, x)) > 5.5
    with pytest.raises(noise.NoiseError, match="the order of eigenvalues"):
        noise.tolerance(jnp.linalg.eigvals, draws=8)(KEY, x)


def test_vectors_of_another_basis_are_no_fault_and_wrong_ones_are():
    """Two vectors of a 2x2 block, exchanged, are another basis; others are not.

    The tolerance of a Schur form was 6 times its size, and hid all of it.
    """
    x = jax.random.normal(jax.random.key(1), (8, 8))

    def form(x):
        return jax.scipy.linalg.schur(x)

    t, q = form(x)
    for columns, is_free in (([4, 5], True), ([3, 4], False)):
        order = np.arange(8)
        order[columns] = order[columns[::-1]]
        other = [t[order][:, order], q[:, order]]
        report = noise.explain(form, other, [t, q], draws=2)(KEY, x)
        assert [rung != "beyond" for rung in report.rung] == [is_free] * 2
    wrong = noise.explain(form, [1.01 * t, q.at[0].mul(1.01)], [t, q], draws=2)
    assert wrong(KEY, x).rung == ["beyond"] * 2
    with pytest.raises(noise.NoiseError, match=r"noise moves it by .* in each 2x2"):
        noise.tolerance(form)(KEY, x)
    turned = noise.first_difference(form, noise.record(form)(x * (1 + 2e-7)), draws=4)
    assert "schur: a library routine chooses signs of vectors" in str(turned(KEY, x))


def test_another_basis_of_a_null_space_is_no_fault():
    """It was beyond noise if the result was the null space and no other vectors."""

    def null_space(x):
        return jnp.linalg.svd(x, full_matrices=True)[2][4:]

    x = jax.random.normal(jax.random.key(1), (4, 9))
    vectors = null_space(x)
    rotation = jnp.linalg.qr(jax.random.normal(KEY, (5, 5)))[0]
    for b, rungs in (
        (rotation @ vectors, {"order", "rounding"}),
        (vectors.at[0].set(x[0] / jnp.linalg.norm(x[0])), {"beyond"}),
        (vectors.at[0].mul(1.01), {"beyond"}),
    ):
        assert noise.explain(null_space, vectors, b)(KEY, x).rung in rungs


def test_what_depends_on_a_basis_has_its_digits_and_a_note():
    """A factor that is one in each basis of its own stays as it is."""
    x = low_rank(jax.random.normal(jax.random.key(1), (8, 8)))

    def polar(x):
        u, _, vt = jnp.linalg.svd(x)
        return u @ vt

    table = noise.digits_table(polar, draws=4)(KEY, x)
    assert table.rows[0].whole < 1
    assert "no singular values: compare what does not depend" in table.notes[-1]


def test_factors_of_one_matrix_have_the_same_signs_in_two_calls():
    """A polar factor had a note on signs, and its gradient a digit less than it has."""
    x = jax.random.normal(jax.random.key(1), (6, 4))

    def polar(x):
        u, vt = (jnp.linalg.svd(x, full_matrices=False)[i] for i in (0, 2))
        return jnp.sum(jnp.sin(u @ vt))

    table = noise.digits_table(jax.grad(polar))(KEY, x)
    assert table.rows[0].whole > 5.8
    assert not any("signs" in note for note in table.notes)


def test_random_numbers_are_the_same_in_float64():
    """Gamma numbers had 0.3 digits, since wider types draw other numbers."""
    x = jnp.linspace(0.1, 1.0, 8)

    def scaled(x):
        return x * jax.random.gamma(jax.random.key(4), 2.0, (8,))

    found = noise.digits(scaled, draws=4)(jax.random.key(0), x)
    assert np.median(found) > 5


def test_a_function_that_computes_otherwise_when_compiled_has_no_tolerance():
    """An impure function had rtol 2, and an int64 that wraps atol 4.4e12."""
    calls = []

    def impure(x):
        calls.append(0)
        return jnp.sum(x) * np.float32(len(calls))

    x = noise_programs.normal(0, 300, mean=1.0)
    with pytest.raises(noise.NoiseError, match="expected a pure function"):
        noise.tolerance(impure)(KEY, x)
    wide = np.asarray([2**40, 3], np.int64)
    with pytest.raises(noise.NoiseError, match="expected a pure function"):
        noise.tolerance(lambda x: x * 1000)(KEY, wide)


def one_row_less(x, traced):
    return x[1:] if traced else x


def one_result_more(x, traced):
    return (x, x) if traced else (x,)


@pytest.mark.parametrize("other", [one_row_less, one_result_more])
def test_a_function_of_other_shapes_when_compiled_is_refused(other):
    """It ended in an error of NumPy, or of zip."""

    def fn(x):
        return other(x * np.float32(1.1), isinstance(x, jax.core.Tracer))

    x = noise_programs.normal(0, 4, 3)
    expected = "the result of a call .* and that of the traced function"
    for tool in (noise.tolerance, noise.nan_rate):
        with pytest.raises(noise.NoiseError, match=expected):
            tool(fn)(KEY, x)
    with pytest.raises(noise.NoiseError, match="expected the"):
        noise.invariance(fn)(x)


def test_a_function_of_the_host_that_changes_has_no_tolerance():
    """The change was taken for noise: rtol was 39."""
    calls = []

    def on_host(x):
        calls.append(0)
        return np.float32(x * len(calls))

    x = jnp.ones(3)
    with pytest.raises(noise.NoiseError, match="when it is called again"):
        noise.tolerance(lambda x: jax.pure_callback(on_host, x, x))(KEY, x)
    same = lambda x: jax.pure_callback(np.sin, x, x) * jnp.sum(x)  # noqa: E731
    assert noise.tolerance(same)(KEY, x).rtol < 1e-5


def test_a_result_that_refuses_comparison_does_not_spoil_the_next_one():
    """JAX compared it with the result of the next function: a ValueError."""
    for other in (np.void(b"abc"), range(3)):
        with pytest.raises(noise.NoiseError):
            noise.digits(lambda x, y=other: (jnp.sin(x), y))(KEY, jnp.ones(2))


def test_nan_and_infinity_are_not_the_same_result():
    """Tolerances were 0 and 0, and fresh runs infinite where the reference is NaN."""

    def fn(x):
        return np.float32(np.inf) * (jnp.mean(x * x) - jnp.mean(x) ** 2)

    x = jnp.full(100, 1.5, jnp.float32)
    with pytest.raises(noise.NoiseError, match="or NaN in some and infinite in others"):
        noise.tolerance(fn, noise.UlpPerturbation())(KEY, x)


def test_a_right_layer_is_sampled_once(monkeypatch):
    """An element of a million made `tolerance` suspect the compiler and draw anew."""
    drawn, draw = [], sampling.BoundCall.draw

    def counted(call, noisy, key, draws):
        drawn.append(draws)
        return draw(call, noisy, key, draws)

    monkeypatch.setattr(sampling.BoundCall, "draw", counted)
    x = jax.random.normal(jax.random.key(0), (1000, 64))
    w = jax.random.normal(jax.random.key(1), (64, 1000)) / 8
    noise.tolerance(lambda x, w: jnp.tanh(x @ w))(KEY, x, w)
    assert drawn == [16]


def test_moments_are_those_of_all_results():
    rng = np.random.default_rng(0)
    runs = (1e6 + rng.standard_normal((19, 3, 3000))).astype(np.float32)
    runs[:, 0, :2] = np.nan, np.inf
    runs[11, 1, 5] = np.nan
    found = sampling.sample_moments(iter(runs))
    wide = runs[:, 2].astype(float)
    np.testing.assert_allclose(found.means[0][2], wide.mean(0), rtol=1e-15)
    np.testing.assert_allclose(found.deviations[0][2], wide.std(0, ddof=1), rtol=1e-9)
    away = np.abs(wide - wide[0])
    np.testing.assert_array_equal(found.largest[0][2], away.max(0))
    assert found.finite[0][1, 5] == 18
    assert (found.finite[0][0, :3] == [0, 0, 19]).all()
    assert np.isposinf(found.means[0][0, 1])
    assert not np.isfinite(found.means[0][1, 5])
