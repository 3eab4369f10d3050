import collections
import functools
import json

import jax
import jax.numpy as jnp
import lineax
import numpy as np
import pytest
from jax import lax

from prednet_jax import noise
from prednet_jax.noise.__main__ import plain_data
from prednet_jax.noise.questions.elements import ElementNoise
from prednet_jax.noise.questions.explain import NOT_MODELLED
from prednet_jax.noise.questions.reference import NoiseReference
from prednet_jax.noise.questions.sampling import (
    BoundCall,
)
from prednet_jax.noise.questions.widening import exact
from tests.accuracy import accuracy, gpu_tools, noise_programs

KEY = jax.random.key(4)


def test_two_results_of_a_wider_type_than_the_functions_are_noted():
    """Results of float64, 1e-9 apart, were `rounding` of float32 without a word."""
    x = jnp.linspace(0.1, 1, 20)
    here = np.asarray(jnp.tanh(x))
    wide = np.tanh(np.asarray(x, float))
    note = "a and b have more digits than float32"
    for a, b, noted in ((wide, wide * (1 + 1e-9), True), (here, wide, False)):
        (leaf,) = noise.explain(jnp.tanh, a, b)(KEY, x).leaves
        assert leaf.rung in ("order", "rounding")
        assert (note in leaf.reason) == noted


def test_two_complex_results_of_a_wider_type_are_noted():
    x = jnp.linspace(0.1, 1, 20)
    wide, narrow = np.fft.fft(np.asarray(x, float)), np.asarray(jnp.fft.fft(x))
    note = "a and b have more digits than complex64"
    for a, noted in ((wide * (1 + 1e-9), True), (narrow, False)):
        assert (note in str(noise.explain(jnp.fft.fft, a, wide)(KEY, x))) == noted
    # Complex numbers of which a real function has the real parts were a warning.
    real = wide.real.astype(complex)
    report = noise.explain(lambda x: jnp.fft.fft(x).real, real * (1 + 1e-9), real)
    assert "more digits than float32" in str(report(KEY, x))


def test_constructed_cases():
    assert accuracy.explained(["covariance"]) == {"cases": 10, "wrong": []}


# Another formula of a derivative in a scan; a fused multiply-add; a product that the
# card keeps in float32.
_QUICK = ("gated", "horner", "pooled")


@pytest.mark.optimized
@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=() if name in _QUICK else pytest.mark.slow)
        for name in gpu_tools.PROGRAMS
    ],
)
def test_results_of_an_h200(name):
    """Recorded on the card, at the highest precision and at its default, TF32.

    Of Horner's scheme, an order of sums alone allowed a fifth of the difference.
    """
    (row,) = gpu_tools.on_h200([name])
    unrounded = {"identical", "order", "rounding"}
    assert set(row["highest"]) <= unrounded
    assert row["first_highest"] == ""
    assert row["first_default"] == row["rounded"]
    assert row["rounded"] == "" or row["default"] == ["tf32"]
    assert row["rounded"] or set(row["default"]) <= unrounded
    assert row["tolerance"] <= 1


def test_the_report_of_a_tree():
    def fn(x, w):
        return {"product": x @ w, "sum": [jnp.sum(x), x[0]]}

    x = noise_programs.normal(0, 16, 300)
    w = noise_programs.normal(1, 300, 4)
    here = fn(x, w)
    there = {"product": accuracy.noisy(jnp.matmul, (x, w), "bf16", 1)}
    there["sum"] = [jnp.sum(x[:, :-1]), x[0]]
    report = noise.explain(fn, here, there, draws=3)(KEY, x, w)
    expected = {"product": "bf16", "sum": ["beyond", "identical"]}
    assert report.rung == expected
    by_path = {leaf.path: leaf for leaf in report.leaves}
    product = by_path["['product']"]
    assert product.ratios["bf16"] == pytest.approx(1, abs=0.01)
    assert product.ratios["tf32"] > 4
    total = by_path["['sum'][0]"]
    assert total.ratios["tf32"] is None
    assert total.ratios["order"] is None or total.ratios["order"] > 4
    assert total.reason == "larger than all"
    text = str(report)
    assert NOT_MODELLED in text
    assert all(path in text for path in by_path)
    json.dumps(plain_data(report), allow_nan=False)


def test_every_kind_of_program_has_a_float64():
    """Loops, branches, rules, random numbers, casts, reductions by a function."""

    def fn(key, x):
        h = x.astype(jnp.float32) + jax.random.normal(key, x.shape)
        h = lax.cond(h[0, 0] > 0, lambda h: h * 2.0, lambda h: h * 3.0, h)
        h = lax.fori_loop(0, 3, lambda i, c: c * h[i, 0], h)
        h = lax.while_loop(lambda c: jnp.sum(c) > 1.0, lambda c: c * 0.7, jnp.abs(h))
        h = jax.nn.relu(jax.checkpoint(jnp.tanh)(h))
        h = h.at[jnp.array([0, 1, 1])].add(h[:3])
        product = lax.reduce(1.0 + h, np.float32(1), lambda a, b: a * b, (1,))
        seen = jax.pure_callback(np.sin, jax.ShapeDtypeStruct((8,), x.dtype), product)
        return jnp.linalg.solve(h @ h.T + jnp.eye(8), seen), jnp.argsort(h)

    args = jax.random.key(2), noise_programs.normal(1, 8, 16)
    truth = exact(BoundCall(fn, args, {}), KEY)
    value, order = fn(*args)
    np.testing.assert_allclose(truth.values[0], value, rtol=1e-3)
    assert np.any(truth.values[0] != np.asarray(value))
    # The callback takes and gives float32.
    assert 1e-12 < truth.errors[0] < 1e-7
    np.testing.assert_array_equal(truth.values[1], order)


@pytest.mark.parametrize("name", ["mlp", "lstm", "gram_schmidt"])
def test_small_noise_shows_the_error_of_float64(name):
    """Up to a factor: a few runs, and the largest of them. Chaos and hosts are run."""
    fn, args = (noise_programs.SEEN | noise_programs.LATER)[name]()
    call = BoundCall(fn, args, {})
    relative = NoiseReference(call, KEY, draws=4).relative()
    (run,), (scaled,) = exact(call, KEY).errors, exact(call, KEY, noise=relative).errors
    assert run < 10 * scaled < 100 * run
    assert scaled != run
    assert exact(call, KEY, noise=[0.02]).errors == [run]

    def on_host(x):
        return jax.pure_callback(np.sin, jax.ShapeDtypeStruct((3,), x.dtype), x) * 3

    call = BoundCall(on_host, (jnp.arange(3.0),), {})
    assert exact(call, KEY, noise=[0.0]).errors[0] > 1e-12


def test_the_nearer_of_two_is_named_and_by_how_much():
    fn, args = noise_programs.mlp()
    plain = jax.jit(fn)(*args)
    low = accuracy.noisy(fn, args, "bf16", 1)
    report = noise.explain(fn, low, plain, draws=2)(KEY, *args)
    assert report.closer == "b"
    truth = noise_programs.in_float64(fn, args)
    for found, x in ((report.error_a, low), (report.error_b, plain)):
        far = np.asarray(x, np.float64) - truth
        expected = np.linalg.norm(far) / np.linalg.norm(truth)
        assert found == pytest.approx(expected, rel=1e-6)
    (leaf,) = report.leaves
    ulps = report.error_a * 2**23, report.error_b * 2**23
    assert leaf.ulps == pytest.approx(ulps, rel=1e-6)
    swapped = noise.explain(fn, plain, low, draws=2)(KEY, *args)
    assert (swapped.closer, swapped.error_a) == ("a", report.error_b)
    broken = noise.explain(fn, plain, plain.at[0, 0].set(jnp.nan), draws=2)
    report = broken(KEY, *args)
    assert (report.closer, report.error_b) == ("a", None)


@pytest.mark.parametrize(("dtype", "rows"), [("float16", 12), ("bfloat16", 16)])
def test_what_is_zero_by_luck_may_be_a_rounding_error(dtype, rows):
    """Five constant columns, whose mean another sum rounds otherwise, were beyond."""

    def centred(x, rounded_up=False):
        mean = jnp.mean(x, 0)
        up = rounded_up & (jnp.arange(20) % 4 == 0)
        return x - jnp.where(up, jnp.nextafter(mean, jnp.ones_like(mean)), mean)

    x = noise_programs.normal(0, rows, 20).at[:, ::4].set(0.1).astype(dtype)
    here, there = centred(x), centred(x, rounded_up=True)
    assert not here[:, ::4].any()
    assert there[:, ::4].all()
    report = noise.explain(centred, here, there, draws=4)(KEY, x)
    assert report.rung == "rounding", report
    leak = here.at[:, ::4].set(here[:, 1::4])
    assert noise.explain(centred, here, leak, draws=4)(KEY, x).rung == "beyond"


def trained(factor, params, x):
    """Eight updates by signs, of three layers, the first of which has a factor."""

    def loss(params):
        h = jnp.tanh(jnp.tanh(x @ params[0]) * factor @ params[1])
        return jnp.mean(jnp.square(h @ params[2] - x[:, :2]))

    for _ in range(8):
        slopes = jax.grad(loss)(params)
        params = [p - 0.01 * jnp.sign(g) for p, g in zip(params, slopes, strict=True)]
    return params


def test_a_format_explains_the_arrays_of_a_program_or_none():
    """A factor of 1.03 was fp8 in one array, whose signs fp8 changes alike."""
    shapes = (3, 6, 8), (103, 8, 4), (203, 4, 2)
    params = [jax.random.normal(jax.random.key(s), d) / 2 for s, *d in shapes]
    x = jax.random.normal(jax.random.key(303), (16, 6))
    right, faulty = (functools.partial(trained, factor) for factor in (1, 1.03))
    here, wrong = (jax.jit(fn)(params, x) for fn in (right, faulty))
    explained = noise.explain(right, here, wrong, draws=4)
    report = explained(KEY, params, x)
    assert report.rung == ["beyond", "beyond", "identical"]
    assert "like fp8, which cannot explain [0]" in str(report)


def test_noise_on_the_effects_of_formats_is_compiled_once(monkeypatch):
    """It was compiled for each format, a quarter of the time of `explain`."""
    x = noise_programs.normal(1, 4, 4)
    reference = NoiseReference(BoundCall(lambda x: x @ x, (x,), {}), KEY, draws=2)
    made = []
    monkeypatch.setattr(
        BoundCall,
        "hooked",
        lambda *args, hooked=BoundCall.hooked: made.append(args) or hooked(*args),
    )
    assert all(0 < reference.residual(name, 0) < 1e-5 for name in ("bf16", "fp8"))
    assert len(made) == 1


def test_a_fault_in_one_array_leaves_the_format_of_the_others():
    """Products in bfloat16 move all three; only the first one is wrong, too."""

    def fn(x, a, b, c):
        return x @ a, jnp.tanh(x @ b), x @ c

    args = [noise_programs.normal(i, 16, 16) for i in range(4)]
    here, other = (
        fn(*args),
        noise.inject(fn, noise.ReducedPrecision("bf16"))(KEY, *args),
    )
    wrong = (other[0] + 0.1 * jnp.roll(here[0], 1), *other[1:])
    report = noise.explain(fn, here, wrong, draws=2)(KEY, *args)
    assert report.rung == ("beyond", "bf16", "bf16")


def test_signs_of_vectors_are_free_and_nothing_else_is():
    """Opposite eigenvectors were an error of 1, and further from float64."""

    def fn(m):
        values, vectors = jnp.linalg.eigh(m)
        u, s, vt = jnp.linalg.svd(m)
        free = {"vectors": vectors, "first": vectors[:, 0], "vt": vt}
        free["pair"] = jnp.linalg.eigh(m[:2, :2])[1]
        return free | {"values": values, "again": (u * s) @ vt}

    m = noise_programs.normal(8, 12, 12)
    here = fn(m + m.T)
    signs = np.float32([1, -1, -1] * 4)
    other = here | {
        "vectors": here["vectors"] * signs,
        "first": -here["first"],
        "pair": here["pair"] * signs[:2],
        "vt": here["vt"] * signs[:, None],
        "values": here["values"] * signs,
        "again": here["again"] * signs,
    }
    report = noise.explain(fn, here, other, draws=2)(KEY, m + m.T)
    free = {"vectors", "first", "vt", "pair"}
    assert {name for name, rung in report.rung.items() if rung == "identical"} == free
    assert {report.rung["values"], report.rung["again"]} == {"beyond"}
    assert max(report.error_b[name] for name in free) < 1e-4
    said = [leaf.path[2:-2] for leaf in report.leaves if "signs of" in leaf.reason]
    assert set(said) == free


@pytest.mark.parametrize("out_axes", [0, -1])
def test_signs_belong_to_vectors_and_not_to_their_components(out_axes):
    """Eigenvectors with one component negated were identical, as rows have no sign.

    The vectors of a batch whose axis is the last were beyond with other signs.
    """

    def fn(m):
        return {"v": jnp.linalg.eigh(m)[1]}

    batched = jax.vmap(fn, out_axes=out_axes)
    m = noise_programs.normal(8, 3, 6, 6)
    args = (m + m.transpose(0, 2, 1),)
    here = batched(*args)
    signs = np.sign(noise_programs.normal(9, 3, 6))
    several = np.moveaxis(signs[:, None, :], 0, out_axes)
    component = np.moveaxis(signs[:, :, None], 0, out_axes)
    assert np.ptp(signs) == 2
    for turned, rung in ((several, "identical"), (component, "beyond")):
        other = {"v": here["v"] * turned}
        report = noise.explain(batched, other, here, draws=2)(KEY, *args)
        assert report.rung["v"] == rung


def top(m):
    return jnp.linalg.eigh(m)[1][:, -1]


@pytest.mark.parametrize(
    ("fn", "vectors", "components"),
    [
        (lambda m: lax.map(top, m), (4, 1), (1, 4)),
        (lambda m: jnp.stack([top(one) for one in m]), (4, 1), (1, 4)),
        (lambda m: jnp.stack([top(one) for one in m], -1), (1, 4), (4, 1)),
        (lambda m: jnp.linalg.eigh(m[0])[1][:, ::2], (1, 2), (4, 1)),
    ],
)
def test_each_factorization_has_signs_of_its_own(fn, vectors, components):
    """Steps of a loop and calls had the same signs when others were tried."""
    m = noise_programs.normal(8, 4, 4, 4)
    m += m.transpose(0, 2, 1)
    here = fn(m)
    for shape, rung in ((vectors, "identical"), (components, "beyond")):
        signs = np.float32([1, -1, -1, 1])[: max(shape)].reshape(shape)
        assert noise.explain(fn, here * signs, here, draws=2)(KEY, m).rung == rung


@pytest.mark.parametrize(
    "fn",
    [
        lambda m: jnp.linalg.svd(m)[0] @ jnp.linalg.svd(m)[2],
        lambda m: jnp.linalg.solve(jnp.linalg.qr(m)[1], jnp.linalg.qr(m)[0].T),
        lambda m: jnp.linalg.svd(jnp.stack([m + 1, m]))[0][1] @ jnp.linalg.svd(m)[2],
    ],
)
def test_two_calls_with_one_matrix_have_the_same_signs(fn):
    """A result with a wrong sign was identical: each call had signs of its own."""
    m = noise_programs.normal(8, 5, 5)
    wrong = fn(m) * np.float32([1, -1, 1, -1, 1])
    assert noise.explain(fn, wrong, fn(m), draws=2)(KEY, m).rung == "beyond"


def test_a_component_of_each_vector_has_a_sign_of_its_own():
    def components(m):
        return jnp.linalg.eigh(m)[1][..., 0, :]

    for shape in (6,), (8, 6):
        m = noise_programs.normal(8, *shape, 6)
        m += jnp.swapaxes(m, -1, -2)
        y = components(m)
        other = y * np.sign(noise_programs.normal(9, *shape))
        for factor, rung in ((1.0, "identical"), (1.01, "beyond")):
            report = noise.explain(components, other * np.float32(factor), y, draws=2)
            assert report(KEY, m).rung == rung


def test_rows_and_columns_may_have_signs_of_two_matrices():
    def turned(a, b):
        return jnp.linalg.qr(jnp.triu(a))[0].T @ jnp.linalg.qr(b)[0]

    args = noise_programs.normal(1, 5, 5), noise_programs.normal(2, 5, 5)
    y, signs = turned(*args), np.float32([1, -1, 1, 1, -1])
    right = y * signs * signs[::-1, None]
    assert noise.explain(turned, right, y, draws=2)(KEY, *args).rung == "identical"
    wrong = y.at[1, 2].multiply(-1)
    assert noise.explain(turned, wrong, y, draws=2)(KEY, *args).rung == "beyond"


def test_blocks_of_zeros_leave_signs_to_rows_and_columns():
    """One negated element, and the absolute values of all, were identical."""

    def turned(a, b):
        q, r = jnp.linalg.qr(a)[0], jnp.linalg.qr(b)[0]
        return jax.scipy.linalg.block_diag(q.T @ r, r.T @ jnp.triu(q))

    args = noise_programs.normal(1, 3, 3), noise_programs.normal(2, 3, 3)
    y, signs = turned(*args), np.float32([1, -1, 1, -1, -1, 1])
    right = y * signs * signs[::-1, None]
    assert noise.explain(turned, right, y, draws=2)(KEY, *args).rung == "identical"
    for wrong in (y.at[0, 1].multiply(-1), jnp.abs(y)):
        assert noise.explain(turned, wrong, y, draws=2)(KEY, *args).rung == "beyond"


def test_a_matrix_and_its_rows_in_another_order_have_signs_of_their_own():
    def squares(x):
        u, v = jnp.linalg.eigh(x)[1], jnp.linalg.eigh(x[::-1, ::-1])[1]
        return u * v[::-1]

    x = noise_programs.normal(1, 5, 5)
    x = x + x.T
    y = squares(x)
    turned = y * np.float32([1, -1, 1, 1, -1])
    assert noise.explain(squares, turned, y, draws=2)(KEY, x).rung != "beyond"


def test_a_gradient_with_a_free_sign_has_one():
    """One row of the gradient of an eigenvector, negated, was identical."""

    def fn(m):
        return jax.grad(lambda m: jnp.sum(jnp.linalg.eigh(m)[1][:, -1]))(m)

    m = noise_programs.normal(8, 6, 6)
    here = fn(m + m.T)
    for other, rung in ((-here, "identical"), (here.at[2].multiply(-1), "beyond")):
        report = noise.explain(fn, other, here, draws=2)(KEY, m + m.T)
        assert report.rung == rung


@pytest.mark.parametrize("shape", [(6, 4), (4, 6)])
def test_a_product_with_a_factor_has_its_signs(shape):
    """The opposite of a solution by QR was identical, its signs called free.

    Tall matrices multiply by Q*, wide ones by Q.
    """
    a = lineax.MatrixLinearOperator(jax.random.normal(KEY, shape))

    def fn(x):
        return lineax.linear_solve(a, x, lineax.QR()).value

    x = jax.random.normal(jax.random.key(2), shape[:1])
    report = noise.explain(fn, -fn(x), fn(x), draws=2)(KEY, x)
    assert report.rung == "beyond", report
    assert "signs" not in report.leaves[0].reason


def test_float64_is_right_about_whole_numbers():
    """Noise moved 2 n + 1 below a whole number in float64: it erred by one itself."""

    def fn(n):
        return jnp.floor(n * 2 + 1)

    n = jnp.arange(1.0, 9)
    report = noise.explain(fn, fn(n).at[3].add(1), fn(n), draws=2)(KEY, n)
    assert (report.closer, report.error_b) == ("b", 0)


def test_where_float64_is_no_better_it_says_so():
    def chaotic(x):
        step = lambda x, _: (np.float32(3.9) * x * (np.float32(1) - x), None)  # noqa: E731
        return lax.scan(step, x, length=200)[0]

    x = jnp.linspace(0.1, 0.8, 16)
    a, b = (accuracy.noisy(chaotic, (x,), "ulp", seed) for seed in (1, 2))
    report = noise.explain(chaotic, a, b, draws=2)(KEY, x)
    assert report.closer == "neither"
    assert "float64 is no better" in report.leaves[0].reason

    def casts(x):
        return jnp.sum(x.astype(jnp.bfloat16).astype(jnp.float32) ** 2)

    y = noise_programs.normal(3, 900)
    a, b = casts(y), casts(y) * np.float32(1 + 1e-6)
    report = noise.explain(casts, a, b, draws=2)(KEY, y)
    assert report.closer == "neither"
    # A function that is in float64 already has no better.
    with jax.enable_x64(True):
        z = jnp.asarray(np.random.default_rng(0).standard_normal(3000))
        a, b = jnp.sum(z), jnp.sum(z[::-1]) + 1e-14
        assert noise.explain(jnp.sum, a, b, draws=2)(KEY, z).closer == "neither"


def test_one_leaf_gives_a_string_and_equal_results_are_identical():
    x = jnp.asarray([1.0, np.nan, -0.0, np.inf])
    fn = lambda x: x * np.float32(2.0)  # noqa: E731
    same = noise.explain(fn, fn(x), np.asarray([2.0, np.nan, 0.0, np.inf]), draws=2)
    report = same(KEY, x)
    assert report.rung == "identical"
    assert report.leaves[0].difference == 0
    assert report.closer == "neither"
    broken = noise.explain(fn, fn(x), jnp.asarray([2.0, 1.0, 0.0, np.inf]), draws=2)
    report = broken(KEY, x)
    assert report.rung == "beyond"
    assert "infinite in one of the two alone: 1 of 4" in report.leaves[0].reason
    json.dumps(plain_data(report), allow_nan=False)


def test_what_is_no_result_is_refused():
    for a, b, message in (
        (np.ones(3), np.ones(4), "a has shape"),
        (np.ones(3), [np.ones(3)], "a is"),
        (np.ones(3), np.ones(3), "b has shape"),
    ):
        with pytest.raises(noise.NoiseError, match=message):
            noise.explain(jnp.sum, a, b)(KEY, jnp.ones(8))


@pytest.mark.parametrize("fault", ["gelu", "factor", "term"])
def test_a_bug_of_the_size_of_a_format_in_one_number_is_no_format(fault):
    """14 of 18 such bugs in scalar losses were `tf32` or `bf16`."""
    x, w = noise_programs.normal(0, 32, 64), noise_programs.normal(1, 64, 1, scale=0.2)

    def loss(x, w, fault=""):
        h = x @ w * np.float32(1.0005 if fault == "factor" else 1)
        h = h[1:] if fault == "term" else h
        return jnp.mean(jax.nn.gelu(h, approximate=fault != "gelu"))

    report = noise.explain(loss, loss(x, w, fault), loss(x, w), draws=2)(KEY, x, w)
    assert report.rung == "beyond"


@pytest.mark.parametrize("rows", [40, 4000])
def test_few_weights_are_no_pattern_at_any_number_of_rows(rows):
    x = noise_programs.normal(2, rows, 64)
    w = noise_programs.normal(3, 64, 1, scale=0.2)
    y = x @ w
    wrong = y * np.float32(1.0005)
    assert noise.explain(jnp.matmul, wrong, y, draws=2)(KEY, x, w).rung == "beyond"
    low = accuracy.noisy(jnp.matmul, (x, w), "tf32", 1)
    assert noise.explain(jnp.matmul, low, y, draws=2)(KEY, x, w).rung == "tf32"


def test_elements_are_judged_at_the_noise_that_they_have():
    """Half of a leaf, a thousand times smaller and wrong by 50 %, was `order`."""
    x, w = noise_programs.normal(4, 32, 64), noise_programs.normal(5, 64, 64)
    sizes = np.where(np.arange(64) < 32, 1, 1e-3).astype(np.float32)
    fn = lambda x, w: (x @ w) * sizes  # noqa: E731
    y = fn(x, w)
    wrong = y.at[:, 32:].multiply(1.5)
    report = noise.explain(fn, wrong, y, draws=3)(KEY, x, w)
    assert report.rung == "beyond"
    another = accuracy.noisy(fn, (x, w), "reduction_order", 1)
    report = noise.explain(fn, another, y, draws=3)(KEY, x, w)
    assert report.rung in ("order", "rounding")
    reference = noise.noise_reference(fn, x, w)
    with pytest.raises(AssertionError, match="1024 of 2048 elements outside"):
        reference.assert_close(wrong)
    reference.assert_close(another)


def test_a_single_number_is_named_as_a_format_only_if_it_repeats_its_effect():
    """A fault of .8 to 1.25 times the effect had its name."""
    x, w = noise_programs.normal(7, 24, 32), noise_programs.normal(8, 32, 16)
    fn = lambda x, w: jnp.mean(jnp.tanh(x @ w / 4) ** 2)  # noqa: E731
    y = fn(x, w)
    ordered = noise.parse("bf16+reduction_order")
    bf16 = np.asarray(noise.inject(fn, ordered)(KEY, x, w))
    assert noise.explain(fn, bf16, y, draws=3)(KEY, x, w).rung == "bf16"
    for share in (0.85, 1.15):
        wrong = np.float32(y + share * (bf16 - y))
        assert noise.explain(fn, wrong, y, draws=3)(KEY, x, w).rung == "beyond"


@pytest.mark.parametrize(
    "last",
    [jax.nn.softplus, lambda y: jax.nn.logsumexp(y.reshape(6, 4, 2), -1)],
    ids=["softplus", "logsumexp"],
)
def test_a_search_for_nan_and_an_unused_sign_are_no_decisions(last):
    """They let 5 % of the elements differ: one that is wrong by 30 % was `order`."""
    drawn = np.random.default_rng(3)
    x, w = (drawn.standard_normal(s).astype("f4") for s in ((6, 64), (64, 8)))
    x *= np.float32([[1e4]] * 3 + [[0.1]] * 3)
    fn = lambda x, w: last(x @ w)  # noqa: E731
    y = np.asarray(fn(x, w))
    wrong = y.copy()
    wrong[4, 0] *= np.float32(1.3)
    assert noise.explain(fn, wrong, y, draws=3)(KEY, x, w).rung == "beyond"


def test_all_terms_added_one_after_another_are_another_order():
    x = noise_programs.normal(6, 64, 4096, mean=0.5)
    fn = lambda x: jnp.sum(x, 1)  # noqa: E731
    add = lambda total, now: (total + now, None)  # noqa: E731
    chain = lax.scan(add, jnp.zeros(64), x.T)[0]
    report = noise.explain(fn, chain, fn(x), draws=4)(KEY, x)
    assert report.rung == "order"
    assert "a longer chain of additions" in report.leaves[0].reason
    reference = noise.noise_reference(fn, x)
    reference.assert_close(chain)
    reference.assert_close(np.sum(np.asarray(x), 1))  # NumPy's pairs.
    with pytest.raises(AssertionError):
        reference.assert_close(jnp.sum(x[:, 1:], 1))


@pytest.mark.parametrize(
    ("x", "fn"),
    [
        (np.full(4097, 0.1), jnp.mean),
        (np.full(150_000, 0.9), jnp.mean),
        (np.full(1000, 0.1), jnp.sum),
        (np.r_[1e4, np.full(5000, 1e-2)], lambda x: x @ x),
        (noise_programs.normal(6, 8, 3000), lambda x: jnp.sum(jnp.exp(5 * x), 1)),
    ],
    ids=["equal_mean", "equal_long", "equal", "small_after_large", "heavy_tails"],
)
def test_a_chain_that_loses_the_same_at_every_term_is_another_order(x, fn):
    x = jnp.asarray(x, jnp.float32)
    if fn in (jnp.mean, jnp.sum):
        terms = x
    else:
        terms = x * x if x.ndim == 1 else jnp.exp(5 * x).T
    add = lambda total, now: (total + now, None)  # noqa: E731
    reference = noise.noise_reference(fn, x)
    for order in (terms, terms[::-1]):
        chain = lax.scan(add, jnp.zeros(terms.shape[1:]), order)[0]
        chain = chain / x.size if fn is jnp.mean else chain
        report = noise.explain(fn, chain, fn(x), draws=4)(KEY, x)
        assert report.rung != "beyond", report
        reference.assert_close(chain)
    with pytest.raises(AssertionError):
        reference.assert_close(fn(x) * 1.02)


def convolved(x, kernel):
    return lax.conv_general_dilated(x, kernel, (2,), [(0, 0)], rhs_dilation=(1,))


EQUAL = np.full((20, 4096), 0.1, np.float32)
NEARLY_EQUAL = np.linspace(0.1, 0.101, 10_000, dtype=np.float32)
LONG_SUMS = {
    "running": (jnp.cumsum, (EQUAL[0],), np.add.accumulate(EQUAL[0])),
    "sum of sums": (
        lambda x: jnp.sum(jnp.sum(x, 1)),
        (NEARLY_EQUAL.reshape(16, 625),),
        np.add.accumulate(NEARLY_EQUAL)[-1],
    ),
    "product": (
        jnp.matmul,
        (EQUAL, np.ones((4096, 20), np.float32)),
        np.full((20, 20), np.add.accumulate(EQUAL[0])[-1]),
    ),
    "convolution": (
        convolved,
        (EQUAL.reshape(2, 10, 4096)[:, :4], np.ones((3, 4, 1025), np.float32)),
        np.full((2, 3, 1536), np.add.accumulate(np.full(4100, EQUAL[0, 0]))[-1]),
    ),
    "segments": (
        lambda x: jax.ops.segment_sum(x, jnp.zeros(4096, int), 2),
        (EQUAL[0],),
        np.r_[EQUAL[0].sum(dtype=float), 0].astype("f4"),
    ),
}


@pytest.mark.parametrize("kind", LONG_SUMS)
def test_every_kind_of_sum_knows_what_a_chain_of_all_terms_loses(kind):
    """Only sums and small products lost anything."""
    fn, args, chain = LONG_SUMS[kind]
    report = noise.explain(fn, chain, fn(*args), draws=2)(KEY, *args)
    assert report.rung in ("order", "rounding"), report
    reference = noise.noise_reference(fn, *args, draws=4)
    reference.assert_close(chain)
    with pytest.raises(AssertionError):
        reference.assert_close(fn(*args) * 1.02)


def test_a_running_sum_that_returns_to_zero_has_the_error_of_its_terms():
    """No draw moved element 111, which XLA's order makes exactly 0."""
    drawn = np.random.default_rng(9)
    drawn.choice([-1.0, 1.0], 472)
    x = np.round(drawn.standard_normal(472), 1).astype("f4")
    reference = noise.noise_reference(jnp.cumsum, x)
    for order in (np.cumsum(x), np.cumsum(x, dtype=float).astype("f4")):
        reference.assert_close(order)
    wrong = np.cumsum(x)
    wrong[111] = 1e-4
    with pytest.raises(AssertionError):
        reference.assert_close(wrong)


def test_windows_that_cancel_have_the_error_of_their_terms():
    """One of 486 means was 315 times the tolerance off: no draw moved it."""
    x = jax.random.normal(jax.random.key(3), (2, 12, 12, 3))

    def pooled(x, height=4, width=4):
        window = (1, height, width, 1)
        return lax.reduce_window(x, 0.0, lax.add, window, (1,) * 4, "VALID")

    tolerance = noise.tolerance(lambda x: pooled(x) / 16)(jax.random.key(103), x)
    for other in (
        pooled(pooled(x, width=1), height=1),
        jnp.flip(pooled(jnp.flip(x, (1, 2))), (1, 2)),
    ):
        noise.assert_close(other / 16, pooled(x) / 16, tolerance)
    wrong = (pooled(x) / 16).at[0, 4, 4, 1].add(1e-5)
    with pytest.raises(AssertionError):
        noise.assert_close(wrong, pooled(x) / 16, tolerance)


SCATTERS = {
    "segments": lambda x, i: jax.ops.segment_sum(x, i, 100),
    "two axes of indices": lambda x, i: (
        jnp.zeros((100, 4)).at[i.reshape(30, 10)].add(x.reshape(30, 10, 4))
    ),
    "windows": lambda x, i: jax.vmap(lambda x: jax.ops.segment_sum(x, i, 100), 1, 1)(x),
    "batches": lambda x, i: jax.vmap(lambda x, i: jax.ops.segment_sum(x, i, 50))(
        x.reshape(2, 150, 4), i.reshape(2, 150) // 2
    ),
    "outside": lambda x, i: jnp.zeros((80, 4)).at[i].add(x, mode="drop"),
}


@pytest.mark.parametrize("dtype", ["int32", "int64", "uint8"])
def test_scattered_sums_take_indices_of_every_type_in_64_bits(dtype):
    with jax.enable_x64(True):
        x = np.random.default_rng(0).normal(size=(60, 2))
        ids = np.arange(60).astype(dtype) % 7

        def summed(x, ids):
            return jax.ops.segment_sum(x, ids, 7)

        tolerance = noise.tolerance(summed)(KEY, x, ids)
        result = summed(x, ids)
        noise.assert_close(summed(x[::-1], ids[::-1]), result, tolerance)
        with pytest.raises(AssertionError):
            noise.assert_close(result * (1 + 1e-12), result, tolerance)


@pytest.mark.parametrize("name", SCATTERS)
def test_scattered_sums_that_cancel_have_the_error_of_their_terms(name):
    """A sum of a few terms that cancel did not move in any draw."""
    x = jax.random.normal(jax.random.key(3), (300, 4))
    i = jax.random.randint(jax.random.key(53), (300,), 0, 100)
    fn = SCATTERS[name]
    result, size = fn(x, i), 150 if name == "batches" else 300
    tolerance = noise.tolerance(fn)(jax.random.key(103), x, i)
    for seed in range(10):
        order = np.random.default_rng(seed).permutation(size)
        order = (np.arange(0, 300, size)[:, None] + order).ravel()
        noise.assert_close(fn(x[order], i[order]), result, tolerance)
    with pytest.raises(AssertionError):
        noise.assert_close(result.at[..., 26, 0].add(3e-5), result, tolerance)


@pytest.mark.parametrize(
    ("seed", "part"), [(3, np.s_[4]), (3, np.s_[:, 3:5]), (4, np.s_[:, 1])]
)
def test_a_factor_of_a_part_is_no_format(seed, part):
    """Rows and columns times 1.001 had the size of TF32, and some of its pattern."""
    drawn = np.random.default_rng(seed)
    x = drawn.standard_normal((14, 18)).astype("f4")
    w = (drawn.standard_normal((18, 22)) / 4).astype("f4")

    def fn(x):
        if seed == 3:
            return jax.nn.softmax((x @ w) @ (x @ w).T * 0.8)
        return jax.nn.sigmoid(x @ w) @ w.T

    wrong = fn(x).at[part].multiply(1.001)
    report = noise.explain(fn, wrong, fn(x), draws=4)(KEY, x)
    assert report.rung == "beyond", report
    narrow = noise.inject(fn, noise.parse("tf32"))(KEY, x)
    half = narrow.at[:, 7:].set(fn(x)[:, 7:])
    for right in (narrow, half):
        assert noise.explain(fn, right, fn(x), draws=4)(KEY, x).rung == "tf32"


def test_a_factor_of_a_column_with_one_large_number_is_no_format():
    """A format's effect on such a column is nearly a factor, too."""
    drawn = np.random.default_rng(1)
    x = drawn.standard_normal((14, 18)).astype("f4")
    w = (drawn.standard_normal((18, 22)) / 4).astype("f4")

    def fn(x):
        return jax.nn.softmax((x @ w) @ (x @ w).T * 0.8)

    for factor in (1.001, 1.01, 1.1):
        wrong = fn(x).at[:, 0].multiply(factor)
        assert noise.explain(fn, wrong, fn(x), draws=4)(KEY, x).rung == "beyond"
    narrow = noise.inject(fn, noise.parse("tf32"))(KEY, x)
    assert noise.explain(fn, narrow, fn(x), draws=4)(KEY, x).rung == "tf32"


@pytest.mark.parametrize(
    ("name", "seed", "factor"),
    [("norm", 2, 1.003), ("gelu", 4, 1.003), ("gelu", 1, 1.05), ("gradient", 4, 1.05)],
)
def test_a_weak_likeness_to_the_effect_is_no_format(name, seed, factor):
    """A factor inside of a function had a cosine of .2 to .3 with a format's effect."""
    drawn = np.random.default_rng(seed)
    x, w, v = (
        drawn.standard_normal(n).astype("f4") for n in [(12, 24), *[(24, 24)] * 2]
    )
    w, v = w / 5, v / 5

    def fn(x, factor=1.0):
        factor = np.float32(factor)
        if name == "norm":
            return jax.nn.standardize(jax.nn.relu(x)) * factor @ w + x
        if name == "gelu":
            return jax.nn.gelu(x @ w * factor) @ v
        loss = lambda w: jnp.mean(jnp.tanh(jnp.sin(x @ w) * factor @ v) ** 2)  # noqa: E731
        return jax.grad(loss)(w)

    y = np.asarray(fn(x))
    wrong = fn(x, factor)
    assert noise.explain(fn, wrong, y, draws=2)(KEY, x).rung == "beyond"
    for spec in ("bf16", "fp8"):
        narrow = np.asarray(noise.inject(fn, noise.parse(spec))(KEY, x))
        half = np.where(np.arange(len(y))[:, None] % 2, narrow, y)
        for right in (narrow, half):
            assert noise.explain(fn, right, y, draws=2)(KEY, x).rung == spec


@pytest.mark.parametrize(
    ("seed", "factors"),
    [(0, (1.001, 1.003, 1.05, 0.95)), (1, (1.001, 1.003, 1.2)), (4, (1.05, 1.2))],
)
def test_a_likeness_that_noise_has_too_is_no_format(seed, factors):
    """A factor in an attention had a cosine of .5 to .6 with a format's effect."""
    drawn = np.random.default_rng(seed)
    x, w = (drawn.standard_normal(n).astype("f4") for n in [(12, 24), (24, 24)])
    w = w / 5

    def fn(x, factor=1.0):
        return jax.nn.softmax((x @ w) @ x.T / 5 * np.float32(factor)) @ x

    y = np.asarray(fn(x))
    for factor in factors:
        assert noise.explain(fn, fn(x, factor), y)(KEY, x).rung == "beyond"
    for spec in ("bf16", "fp8"):
        narrow = np.asarray(noise.inject(fn, noise.parse(spec))(KEY, x))
        half = np.where(np.arange(len(y))[:, None] % 2, narrow, y)
        for right in (narrow, half):
            assert noise.explain(fn, right, y)(KEY, x).rung == spec


def test_a_format_of_one_product_is_named():
    """The cosine with the effect in all four products was .5, by chance or not."""
    drawn = np.random.default_rng(0)
    x, *layers = drawn.standard_normal((5, 24, 24)).astype("f4") / 5

    def fn(x, narrow=None):
        for i, w in enumerate(layers):
            if i == narrow:
                x, w = (v.astype(jnp.bfloat16).astype(np.float32) for v in (x, w))
            x = jnp.tanh(x @ w)
        return x

    for narrow in range(4):
        report = noise.explain(fn, jax.jit(fn, static_argnums=1)(x, narrow), fn(x))
        assert report(KEY, x).rung == "bf16"


@pytest.mark.parametrize("last", [6, 24])
def test_a_format_of_some_operands_is_named(last):
    """A sum of effects of single products differs from their effect together."""
    drawn = np.random.default_rng(0)
    x, *layers = drawn.standard_normal((5, 24, 24)).astype("f4") / 5
    layers[-1] = layers[-1][:, 0] if last == 6 else layers[-1]

    def fn(x, layers):
        for w in layers:
            x = jnp.tanh(x @ w)
        return x

    def cast(w):
        return w.astype(jnp.bfloat16).astype(np.float32)

    y = np.asarray(fn(x, layers))
    paths = [f"{i}:dot_general" for i in (0, 4)]
    some = noise.inject(fn, noise.parse("bf16"), only=paths)(KEY, x, layers)
    weights = [jax.jit(fn)(x, [*map(cast, layers[:n]), *layers[n:]]) for n in (2, 4)]
    for result in (some, *weights):
        assert noise.explain(fn, result, y)(KEY, x, layers).rung == "bf16"


def test_a_factor_that_a_format_of_an_operand_resembles_is_no_format():
    """Rounding c to fp8 explained 39 % of the gradient of a, and 64 % of that of c."""

    def normal(i, *shape):
        return np.random.default_rng(i).normal(size=shape).astype("f4")

    def quantised(v, scale):
        v = jnp.clip(v / scale, -127.0, 127.0)
        return (v + jax.lax.stop_gradient(jnp.round(v) - v)) * scale

    def step(params, factor=1.0):
        def loss(params):
            h = jax.nn.relu(x @ quantised(params["a"], params["s"]) + params["b"])
            h = h * np.float32(factor)
            return jnp.mean((quantised(h, params["t"]) @ params["c"] - y) ** 2)

        gradient = jax.grad(loss)(params)
        return jax.tree.map(lambda p, g: p - np.float32(0.1) * g, params, gradient)

    x, y = normal(3, 32, 12), normal(4, 32, 3)
    params = {
        "a": normal(0, 12, 24) * np.float32(0.3),
        "b": normal(1, 24) * np.float32(0.1),
        "c": normal(2, 24, 3) * np.float32(0.3),
        "s": np.full(24, 0.01, "f4"),
        "t": np.float32(0.02),
    }
    wrong = jax.jit(functools.partial(step, factor=1.03))(params)
    report = noise.explain(step, wrong, jax.jit(step)(params))(KEY, params)
    assert {leaf.rung for leaf in report.leaves} == {"beyond"}


@pytest.mark.parametrize("name", ["expn", "exp1"])
def test_whole_numbers_held_in_floats_have_no_noise(name):
    """Their n - 1 moved by an ulp, so that an error of 30 % was `rounding`."""
    special = getattr(jax.scipy.special, name)
    fn = (lambda x: special(2, x)) if name == "expn" else special
    x = np.linspace(0.1, 5, 40, dtype="f4")
    y = np.asarray(jax.jit(fn)(x))
    for i in (0, 10, 35):
        wrong = y.copy()
        wrong[i] *= 1.3
        assert noise.explain(fn, wrong, y)(KEY, x).rung == "beyond", i
    assert noise.explain(fn, fn(x), y)(KEY, x).rung != "beyond"


@pytest.mark.parametrize(("large", "times"), [(1, 1.1), (20, 2)])
def test_one_wrong_element_is_no_format(large, times):
    """It was compared with the effect of a format on this element alone.

    If one element is `large`, the effect on it is nearly the whole effect. The sum
    makes most of the noise, so that noise is no likely cause of such a pattern.
    """
    x = noise_programs.normal(0, 6, 20)
    terms = 100 * noise_programs.normal(2, 1000)
    w = noise_programs.normal(1, 20, 10) / 5
    size = np.ones((6, 10), "f4")
    size[2, 3] = large

    def fn(x):
        return (jnp.tanh(x @ w) * size).at[0, 0].add(jnp.sum(terms))

    y = np.asarray(fn(x))
    for spec in ("tf32", "bf16"):
        effect = noise.inject(fn, noise.parse(spec))(KEY, x) - y
        worst = np.unravel_index(np.argmax(np.abs(effect)), y.shape)
        wrong = y.copy()
        wrong[worst] += np.float32(times) * effect[worst]
        assert noise.explain(fn, wrong, y)(KEY, x).rung == "beyond"
        assert noise.explain(fn, y + effect, y)(KEY, x).rung == spec


def test_one_number_is_no_sum_of_effects():
    """Some sum of the effects of single products was always within a quarter of it."""
    drawn = np.random.default_rng(0)
    x, *layers = drawn.standard_normal((7, 24, 24)).astype("f4") / 5

    def fn(x, layers):
        for w in layers:
            x = jnp.tanh(x @ w)
        return jnp.mean(x**2)

    y, narrow = fn(x, layers), noise.inject(fn, noise.parse("bf16"))(KEY, x, layers)
    for times in (0.3, 0.5, 1.5, 2.0):
        wrong = y + times * (narrow - y)
        assert noise.explain(fn, wrong, y)(KEY, x, layers).rung == "beyond"
    assert noise.explain(fn, narrow, y)(KEY, x, layers).rung == "bf16"


def test_a_fault_along_the_only_direction_of_all_changes_is_no_format():
    """An ill-conditioned system answers to every change by nearly the same vector."""
    drawn = np.random.default_rng(2)
    u, v = (np.linalg.qr(drawn.standard_normal((24, 24)))[0] for _ in range(2))
    a = (u * np.r_[np.ones(23), 0.1] @ v).astype("f4")
    b = drawn.standard_normal(24)
    b = (b - 0.99 * u[:, -1] * (u[:, -1] @ b)).astype("f4")

    def fn(a, b):
        return jnp.linalg.solve(a.T @ a, a.T @ b)

    for factor in (1.01, 1.03, 1.1, 0.9):
        wrong = fn(a, np.r_[b[:5] * np.float32(factor), b[5:]])
        report = noise.explain(fn, wrong, fn(a, b))(KEY, a, b)
        assert report.rung == "beyond"
        assert ("other errors have this pattern" in str(report)) == (factor != 1.03)
    for spec in ("tf32", "bf16"):
        narrow = noise.inject(fn, noise.parse(spec))(KEY, a, b)
        assert noise.explain(fn, narrow, fn(a, b))(KEY, a, b).rung == spec


def test_decisions_elsewhere_hide_no_wrong_column():
    """Under a decision, 5 % of all elements could be wrong by anything."""
    x = noise_programs.normal(3, 8, 28)
    scale = np.ones(28, "f4")
    scale[4] = 1e-5

    def fn(x):
        return jnp.where(x > 0, jnp.exp(x), 1 + x) * scale

    report = noise.explain(fn, fn(x).at[:, 4].multiply(1.01), fn(x))(KEY, x)
    assert report.rung == "beyond"
    assert "8 of 224 elements" in report.leaves[0].reason


def test_the_count_in_a_variance_is_no_decision():
    """Under a decision, a wrong element among few small ones was not seen."""
    x = noise_programs.normal(3, 40, 30)
    scale = np.ones(30, "f4")
    scale[4] = 1e-6

    def fn(x):
        centred = x - x.mean(1, keepdims=True)
        return centred / jnp.sqrt(x.var(1, keepdims=True) + 1e-5) * scale

    wrong = fn(x).at[7, 4].multiply(1.3)
    report = noise.explain(fn, wrong, fn(x), draws=4)(KEY, x)
    assert "1 of 1200 elements" in report.leaves[0].reason
    with pytest.raises(AssertionError):
        noise.noise_reference(fn, x).assert_close(wrong)


def test_wider_numbers_than_float64_are_refused():
    """They were judged in float64."""
    wide = np.ones(2, np.longdouble)
    for args in ((jnp.sin, wide, wide), (lambda x: x, np.ones(2), wide)):
        with pytest.raises(noise.NoiseError, match=r"longdouble|float128"):
            noise.explain(*args)(KEY, np.ones(2))
    with pytest.raises(noise.NoiseError, match="or a narrower type"):
        noise.digits(jnp.sin)(KEY, wide)


def test_a_nan_that_noise_alone_makes_is_rounding():
    def fn(x):
        return jnp.sqrt(jnp.mean(x * x) - jnp.mean(x) ** 2)

    x = jnp.full(100, 1.5, jnp.float32)
    assert fn(x) == 0
    report = noise.explain(fn, np.float32("nan"), fn(x), draws=6)(KEY, x)
    assert report.rung == "rounding"
    assert "rounding alone does that in runs here" in report.leaves[0].reason
    table = noise.digits_table(fn)(KEY, x)
    assert "noise alone makes 1 of 1 elements NaN or infinite" in str(table)
    wrong = noise.explain(jnp.sum, np.float32("nan"), jnp.sum(x), draws=2)(KEY, x)
    assert wrong.rung == "beyond"


def test_runs_with_a_nan_show_the_noise_of_other_elements():
    """They were left out, so that the noise that makes the NaN was no cause."""

    def powers(x, n):  # Under noise n / 3 * 3 is no whole number.
        return jnp.concatenate([jnp.power(-x, n / 3 * 3), jnp.exp(x)])

    args = jnp.linspace(1, 2, 30), jnp.full(30, 2.0)
    noisy = noise.inject(powers, noise.UlpPerturbation())(KEY, *args)
    assert np.isfinite(powers(*args)).all()
    assert np.isnan(noisy).any()
    report = noise.explain(powers, powers(*args), noisy)(KEY, *args)
    assert report.rung == "rounding"


def test_an_infinity_that_noise_alone_makes_warns_of_nothing():
    """Its pattern was cast to bfloat16, which overflows."""

    def fn(x, y):
        return jnp.stack([x * np.float32(1.5), 1 / (x * np.float32(1.1) - y)])

    x = jnp.linspace(1, 2, 50, dtype=jnp.float32)
    y = jnp.nextafter(x * np.float32(1.1), np.float32(9))
    wrong = fn(x, y).at[:, ::2].multiply(np.float32(1.02))
    report = noise.explain(fn, fn(x, y), wrong)(KEY, x, y)
    assert report.rung == "beyond"
    with jax.enable_x64(True):
        large = jnp.linspace(1e200, 2e200, 50, dtype=jnp.float64)
        triple = lambda x: x * 3.0  # noqa: E731
        wrong = triple(large).at[::2].multiply(1.02)
        report = noise.explain(triple, triple(large), wrong)(KEY, large)
        assert report.rung == "beyond"


def test_what_is_no_number_is_refused_by_name():
    for thing in (
        jnp.sum,
        "x",
        np.array(["x"]),
        np.array([None]),
        np.datetime64("now"),
        np.zeros(2, [("a", "f4")]),
        np.zeros(2, "V2"),  # As NumPy reads bfloat16 from a file.
        np.ma.array(np.ones(2), mask=[True, False]),
    ):
        for ask in (
            lambda thing=thing: noise.explain(lambda: thing, thing, thing),
            lambda thing=thing: noise.assert_close({"a": thing}, {"a": thing}, {}),
            lambda thing=thing: noise.digits(lambda: thing)(KEY),
        ):
            with pytest.raises(noise.NoiseError, match=r"expected .*numbers"):
                ask()


@pytest.mark.parametrize("name", ["relu", "softmax", "gradient"])
def test_a_small_factor_is_no_format(name):
    """A weak pattern and a size like a format's were enough."""
    x = jax.random.normal(jax.random.key(1), (8, 32))
    w = jax.random.normal(jax.random.key(2), (32, 32)) / 6
    scale = jnp.logspace(-4, 0, 32)

    def energy(x):
        return jnp.sum(jnp.tanh(x @ w) ** 2)

    fn = {
        "relu": lambda x: scale * (jax.nn.relu(x @ w) @ w),
        "softmax": lambda x: jax.nn.softmax(3 * (x @ w)),
        "gradient": lambda x: scale * jax.grad(energy)(x),
    }[name]
    y = np.asarray(fn(x))
    for factor in (1.001, 1.01):
        wrong = y * np.float32(factor)
        assert noise.explain(fn, y, wrong)(KEY, x).rung == "beyond"
    for spec in ("tf32", "bf16"):
        other = noise.inject(fn, noise.parse(spec))(KEY, x)
        assert noise.explain(fn, y, other)(KEY, x).rung == spec


@pytest.mark.parametrize("thing", ["x", np.array(["x"]), np.datetime64("now"), b"x"])
def test_a_text_in_a_result_is_refused_by_the_tools_that_watch_values(thing):
    """Two functions that returned other texts had no difference."""

    def fn(x):
        return x * 2, thing

    for ask in (
        lambda: noise.record(fn)(np.ones(3)),
        lambda: noise.decisions(fn)(KEY, np.ones(3)),
        lambda: noise.cancellations(fn)(np.ones(3)),
    ):
        with pytest.raises(noise.NoiseError, match=r"expected .*numbers"):
            ask()


def test_results_of_another_function_are_told():
    """Variances times another number were `order`, and nothing else was said."""
    x = np.random.default_rng(0).standard_normal(4096).astype(np.float32)
    a, b = jnp.var(x), np.float32(x.astype(float).var())
    other = noise.explain(lambda v: jnp.var(v) * np.float32(1.1), a, b)(KEY, x)
    assert "other function or arguments?" in other.leaves[0].reason
    right = noise.explain(jnp.var, a, b)(KEY, x)
    assert "other function" not in right.leaves[0].reason
    # A cancellation is no longer chain.
    shifted = x + np.float32(5)
    fast = np.mean(shifted * shifted) - np.mean(shifted) ** 2
    wrong = noise.explain(jnp.var, jnp.var(shifted), fast)(KEY, shifted)
    assert "or another formula" in wrong.leaves[0].reason


def test_casts_that_are_the_whole_difference_are_plausible():
    x = np.random.default_rng(0).standard_normal((32, 64)).astype(np.float32)
    w = np.random.default_rng(1).standard_normal((64, 8)).astype(np.float32) / 8

    def loss(x, w, kind=jnp.bfloat16):
        y = (x.astype(kind) @ w.astype(kind)).astype(np.float32)
        return jnp.mean(jax.nn.logsumexp(y, -1))

    a = loss(x, w, np.float32)
    (leaf,) = noise.explain(loss, a, jax.jit(loss)(x, w))(KEY, x, w).leaves
    assert "casts" in leaf.plausible


@pytest.mark.parametrize(("factor", "said"), [(1.0, False), (1.003, True)])
def test_a_cause_of_only_a_part_of_the_difference_says_so(factor, said):
    def fn(x, w):
        return (x @ w).astype(jnp.bfloat16).astype(x.dtype)

    x, w = jax.random.normal(KEY, (2, 64, 64))
    there = x @ w if factor == 1 else fn(x * factor, w)

    report = noise.explain(fn, there, fn(x, w), draws=2)(KEY, x, w)

    assert report.rung == "casts"
    assert ("% of the difference (mean square)" in str(report)) == said


def test_a_format_that_explains_the_whole_difference_has_no_remark():
    x, w = jax.random.normal(KEY, (2, 64, 64))
    a, b = (y.astype(jnp.bfloat16).astype(y.dtype) for y in (x, w))

    report = noise.explain(jnp.matmul, a @ b, x @ w, draws=2)(KEY, x, w)

    assert report.rung == "bf16"
    assert report.leaves[0].reason == ""


def test_the_gradient_of_a_bfloat16_network_is_explained_by_its_own_program():
    def loss(dtype, params, x):
        for w, b in params:
            w, b = w.astype(dtype), b.astype(dtype)
            x = jax.nn.gelu(x.astype(dtype) @ w + b)
        return jnp.mean(x.astype(jnp.float32))

    def normal(i, *shape):
        return jax.random.normal(jax.random.key(i), shape)

    params = [
        (normal(1, 8, 16) / 3, normal(2, 16) / 9),
        (normal(3, 16, 4) / 4, normal(4, 4) / 9),
    ]
    x = normal(0, 16, 8)
    wide, narrow = (
        jax.grad(functools.partial(loss, t)) for t in (jnp.float32, jnp.bfloat16)
    )
    here, there = wide(params, x), narrow(params, x)

    by_wide = noise.explain(wide, here, there, draws=2)(KEY, params, x)
    by_narrow = noise.explain(narrow, here, there, draws=2)(KEY, params, x)

    rungs = {leaf.rung for leaf in by_narrow.leaves}
    assert rungs <= {"casts", "rounding", "order", "identical"}
    assert "narrow types, give it as fn" in str(by_wide)


def test_unlike_structures_are_described_in_words():
    with pytest.raises(noise.NoiseError) as caught:
        noise.explain(lambda x: x, (1.0, 2.0), 1.0)
    words = "a is a tuple of 2 arrays ([0], [1]) and b one array: expected the same"
    assert str(caught.value) == words


def test_a_product_of_no_elements_says_nothing_about_a_pattern():
    def fn(x):
        return lax.associative_scan(jnp.matmul, jnp.stack([x] * 4))

    x = jnp.float32([[1, 2], [3, 4]])
    assert noise.explain(fn, fn(x) * 1.01, fn(x))(KEY, x).rung == "beyond"


def test_one_flip_in_a_decade_of_few_elements_is_no_fault():
    """Of ten quiet elements among a thousand, one may have taken another branch."""
    epsilon = 2.0**-23
    sizes = np.where(np.arange(1010) < 1000, 1e-6, 1e-9)
    found = ElementNoise(np.zeros(1010), epsilon)
    random = np.random.default_rng(0)
    for _ in range(8):
        found.see(sizes * random.normal(size=1010))
    away = np.zeros(1010)
    away[1005] = 1e-2
    assert found.outside(away, 1.5, flips=True) == (0, "")
    assert found.outside(away, 1.5, flips=False) == (1, "")
    away[1000:] = 1e-2
    assert found.outside(away, 1.5, flips=True) == (10, "")


def test_the_patterns_of_complex_numbers_have_both_parts():
    """They ended in a warning, and the noise in imaginary parts was left out."""
    x = jax.random.normal(KEY, (8, 96))
    w = jax.random.normal(jax.random.key(5), (96, 16)) / 10

    def fn(x, w):
        y = x @ w
        return lax.complex(y, -2 * y), jnp.fft.fft(y)

    here = fn(x, w)
    there = fn(*(a.astype(jnp.bfloat16).astype(jnp.float32) for a in (x, w)))
    turned = jax.tree.map(lambda y: y * np.exp(np.complex64(1e-3j)), here)
    measure = noise.explain(fn, there, here)
    assert measure(jax.random.key(0), x, w).rung == ("bf16", "bf16")
    measure = noise.explain(fn, turned, here)
    assert measure(jax.random.key(0), x, w).rung == ("beyond", "beyond")


def test_a_small_part_in_bfloat16_is_judged_by_its_own_noise():
    """An error of 50 times the noise was within that of the next decade of noise."""
    scale, factor = np.ones((2, 32, 64), np.float32)
    scale[::3, 1::4], factor[::3, 1::4] = 1e-3, 1.2
    x, w = noise_programs.normal(1, 32, 16), noise_programs.normal(2, 16, 64) / 4
    args = [jnp.asarray(a, jnp.bfloat16) for a in (scale, x, w)]

    def fn(scale, x, w):
        return jnp.tanh(x @ w) * scale

    right = fn(*args)
    wrong = right * jnp.asarray(factor, jnp.bfloat16)
    assert noise.explain(fn, right, wrong)(KEY, *args).rung == "beyond"
    reordered = fn(args[0], args[1][:, ::-1], args[2][::-1])
    assert noise.explain(fn, right, reordered)(KEY, *args).rung != "beyond"


@pytest.mark.parametrize(
    ("rung", "dtype"),
    [("fp16", "float16"), ("bf16", "bfloat16"), ("fp8", "float8_e4m3fn")],
)
def test_a_result_that_was_stored_in_a_format_is_named(rung, dtype):
    """A trainer may write in bfloat16 what a sampler writes in float32."""
    args = noise_programs.normal(1, 64, 50), noise_programs.normal(2, 6, 64)

    def product(w, x):
        return {"product": x @ w, "sums": jnp.sum(jnp.sin(x @ w), 0)}

    def stored(result):
        return jax.tree.map(lambda v: v.astype(dtype).astype(v.dtype), result)

    def rungs(a, b):
        return noise.explain(product, a, b)(KEY, *args).rung

    y = product(*args)
    other = noise.inject(product, noise.parse("reduction_order+ulp"))(KEY, *args)
    for a, b in ((stored(y), y), (y, stored(other)), (stored(y), other)):
        assert {*rungs(a, b).values()} == {rung}
    some = {"identical", "order", "rounding", rung}
    assert {*rungs(stored(other), stored(y)).values()} <= some
    narrow = jax.tree.map(lambda v: v.astype(dtype), y)
    assert {*rungs(narrow, y).values()} == {rung}
    # Most numbers keep their place in the format, and some of many do not.
    for factor in (1.003, 0.997):
        changed = jax.tree.map(lambda v, by=factor: v * by, y)
        assert rungs(stored(changed), y)["product"] == "beyond"
        assert rungs(stored(y), changed)["product"] == "beyond"


def test_a_complex_result_whose_parts_were_stored_is_named():
    x = noise_programs.normal(1, 32, 32)
    y = jnp.fft.fft(x)

    def stored(v):
        parts = (part.astype(jnp.bfloat16) for part in (v.real, v.imag))
        return lax.complex(*(part.astype(np.float32) for part in parts))

    for result, rung in ((stored(y), "bf16"), (stored(y * 1.003), "beyond")):
        assert noise.explain(jnp.fft.fft, result, y)(KEY, x).rung == rung
    # One part of one number is not rounded to the nearest.
    for factors in ((1 + 2**-7, 1), (1, 1 + 2**-7)):
        far = np.ones((2, 32, 32), np.float32)
        far[:, 3, 5] = factors
        parts = stored(y).real * far[0], stored(y).imag * far[1]
        wrong = noise.explain(jnp.fft.fft, lax.complex(*parts), y)
        assert wrong(KEY, x).rung == "beyond"


def test_a_result_of_rounded_noise_was_stored():
    """Noise moves some numbers over the middle of two numbers of the format."""
    x = noise_programs.normal(1, 64, 64)

    def shifted(x):
        return (x * np.float32(1.1) + np.float32(999)) - np.float32(999)

    noisy = noise.inject(shifted, noise.UlpPerturbation())(KEY, x)
    rounded = noisy.astype(jnp.bfloat16).astype(x.dtype)
    assert noise.explain(shifted, rounded, shifted(x))(KEY, x).rung == "bf16"


def test_numbers_of_a_format_that_the_function_returns_were_not_stored():
    x = noise_programs.normal(1, 64).astype(jnp.bfloat16).astype(np.float32)
    wrong = -x * np.float32(1 + 2**-23)
    assert noise.explain(jnp.negative, wrong, -x)(KEY, x).rung == "beyond"


def test_zeros_and_ones_are_no_rounded_result():
    """They are numbers of every format: a hard choice is no rounded softmax."""
    x = 20 * noise_programs.normal(1, 32, 10)
    y = jax.nn.softmax(x)
    for wrong in (jnp.zeros_like(y), jax.nn.one_hot(x.argmax(1), 10)):
        assert noise.explain(jax.nn.softmax, wrong, y)(KEY, x).rung == "beyond"


def test_an_overflow_of_a_format_explains_its_infinities_and_no_other_value():
    x, w = noise_programs.normal(1, 8, 64), noise_programs.normal(2, 64, 10)
    w = w.at[:, 3].multiply(1e6)

    def product(x, w):
        return x @ w

    y = product(x, w)
    there = noise.inject(product, noise.ReducedPrecision("fp16"))(KEY, x, w)
    assert not np.isfinite(there[:, 3]).any()
    assert noise.explain(product, there, y)(KEY, x, w).rung == "fp16"
    for wrong in (y.at[:, 3].set(1.0), y.at[:, 3].multiply(1.5)):
        assert noise.explain(product, there, wrong)(KEY, x, w).rung == "beyond"


@pytest.mark.parametrize("dtype", ["float16", "float8_e4m3fn"])
def test_casts_that_overflow_hide_no_other_value(dtype):
    """What the function loses is compared with its value without casts."""
    x = noise_programs.normal(3, 6, 40)

    def squares(x):
        return ((1e5 * x).astype(dtype).astype("float32") * x).sum(1)

    lost, wide = squares(x), (1e5 * x * x).sum(1)
    assert not np.isfinite(lost).any()
    assert noise.explain(squares, lost, wide)(KEY, x).rung == "casts"
    for wrong in (wide / 2, jnp.ones_like(wide)):
        assert noise.explain(squares, lost, wrong)(KEY, x).rung == "beyond"


@pytest.mark.parametrize("values", [[1], [1, 2, 3, 4], np.arange(1, 17), [1, 0, 0, 1]])
def test_few_round_numbers_are_no_rounded_result(values):
    """They are in every format: a wrong factor of 1.03 was said to be fp8."""
    right = jnp.asarray(values, jnp.float32)
    fn = lambda x: x * np.float32(1.03)  # noqa: E731
    assert noise.explain(fn, right, fn(right))(KEY, right).rung == "beyond"


def test_ten_logits_that_were_stored_in_bfloat16_are_named():
    y = noise_programs.normal(1, 10)
    fn = lambda x: x * np.float32(1.03)  # noqa: E731
    stored = fn(y).astype(jnp.bfloat16)
    assert noise.explain(fn, stored, fn(y))(KEY, y).rung == "bf16"


def test_a_tuple_stands_for_a_named_tuple_of_jax():
    x = jax.random.normal(KEY, (6, 4))
    q, r = np.linalg.qr(np.asarray(x))
    for pair in ((q, r), jnp.linalg.qr(x)), (jnp.linalg.qr(x), (q, r)):
        assert noise.explain(jnp.linalg.qr, *pair, draws=2)(KEY, x).rung != "beyond"
    with pytest.raises(noise.NoiseError, match="of 3 arrays"):
        noise.explain(jnp.linalg.qr, (q, r, r), jnp.linalg.qr(x))(KEY, x)
    swapped = collections.namedtuple("Swapped", "R Q")(q, r)
    with pytest.raises(noise.NoiseError, match="expected the same"):
        noise.explain(jnp.linalg.qr, swapped, jnp.linalg.qr(x))(KEY, x)
