import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from jax import lax
from jax.experimental import pallas

from prednet_jax import noise
from prednet_jax.noise.questions.tolerance import _exceeded
from tests.processes import python

KEY = jax.random.key(0)
DEFAULT = noise.parse("reduction_order+stochastic_rounding")
ORDER = noise.ReductionOrder(granularity="element")
RNG = np.random.default_rng(0)
# A symmetric positive matrix of condition 6e3.
Q, _ = np.linalg.qr(RNG.standard_normal((24, 24)))
MATRIX = ((Q * np.logspace(0, 3.8, 24)) @ Q.T).astype(np.float32)
MATRIX = (MATRIX + MATRIX.T) / 2
ROUTINES = {
    "inv": (jnp.linalg.inv, np.linalg.inv),
    "cholesky": (jnp.linalg.cholesky, np.linalg.cholesky),
    "eigh": (jnp.linalg.eigvalsh, np.linalg.eigvalsh),
}


def product(a, b):
    return jnp.tanh(a @ b)


def test_rounding_follows_the_type():
    """Digits of float64 were 7.6 of 16; a defect of 1e-8 was called rounding."""
    with jax.enable_x64(True):
        a, b = (jnp.asarray(RNG.standard_normal((8, 8))) for _ in range(2))
        assert noise.digits(product, DEFAULT)(KEY, a, b).mean() > 15
        for mode in ("rr", "pb", "mca"):
            assert noise.digits(product, noise.MonteCarlo(mode))(KEY, a, b).mean() > 14
        narrow = noise.parse("stochastic_rounding:mantissa_bits=23")
        assert noise.digits(product, narrow)(KEY, a, b).mean() < 8.5
        right = product(a, b)
        defect = noise.explain(product, right, right * (1 + 1e-8))(KEY, a, b)
        assert defect.rung == "beyond"
        other = np.tanh(np.asarray(a) @ np.asarray(b))
        rung = noise.explain(product, right, other)(KEY, a, b).rung
        assert rung in ("identical", "order", "rounding")


@pytest.mark.parametrize("power", [-900, 900])
def test_squares_of_small_and_large_numbers(power):
    """Digits of 1e-192 were 15.95 of 13; a tolerance of 1e290 was refused."""
    scale = 2.0**power
    with jax.enable_x64(True):
        a, b = (jnp.asarray(RNG.standard_normal((8, 8))) for _ in range(2))

        def scaled(a, b):
            return jnp.exp(a @ b) * scale

        def plain(a, b):
            return jnp.exp(a @ b)

        digits, same = (noise.digits(fn)(KEY, a, b) for fn in (scaled, plain))
        np.testing.assert_allclose(digits, same, rtol=1e-6)
        bound, other = (noise.tolerance(fn)(KEY, a, b) for fn in (scaled, plain))
        np.testing.assert_allclose(bound.rtol, other.rtol, rtol=1e-6)
        np.testing.assert_allclose(bound.atol / scale, other.atol, rtol=1e-6)


@pytest.mark.parametrize("name", ROUTINES)
def test_linear_algebra(name):
    """Digits were 7.2 for 2.4 to 4.6; NumPy's inverse was 9000 tolerances off."""
    fn, exact = ROUTINES[name]
    truth = exact(MATRIX.astype(np.float64))
    result = np.asarray(fn(MATRIX), np.float64)
    some = truth != 0
    right = -np.log10(np.max(np.abs(result - truth)[some] / np.abs(truth[some])))
    for spec in (DEFAULT, ORDER):
        table = noise.digits_table(fn, spec)(KEY, MATRIX)
        assert table.rows[0].worst == pytest.approx(right, abs=1)
        assert "routines, perturbed by a rounding of their operands" in str(table)
    assert noise.digits(fn, noise.MonteCarlo("mca"))(KEY, MATRIX).min() < right + 1
    other = np.asarray(exact(MATRIX))
    noise.noise_reference(fn, MATRIX).assert_close(other)
    report = noise.explain(fn, fn(MATRIX), other)(KEY, MATRIX)
    assert report.rung in ("order", "rounding")
    assert "a rounding of their operands" in str(report)


def test_products_of_groups_have_the_noise_of_their_sums():
    """Another order of 3000 terms was four tolerances off, and bfloat16 `beyond`."""
    x, w = (
        RNG.standard_normal(s).astype(np.float32) for s in ((12, 3000), (3, 3000, 6))
    )
    sizes = np.int32([3, 5, 4])

    def grouped(x, w):
        return lax.ragged_dot(x, w, sizes)

    other = sum(grouped(x[:, i::100], w[:, i::100]) for i in range(100))
    right = grouped(x, w)
    noise.assert_close(other, right, noise.tolerance(grouped)(KEY, x, w))
    assert noise.explain(grouped, right, other)(KEY, x, w).rung == "rounding"
    narrow = grouped(*(v.astype(jnp.bfloat16).astype(np.float32) for v in (x, w)))
    assert noise.explain(grouped, right, narrow)(KEY, x, w).rung == "bf16"
    assert noise.explain(grouped, right, right * 1.001)(KEY, x, w).rung == "beyond"


def test_operands_of_routines_are_perturbed_on_demand_only():
    for text in ("stochastic_rounding", "gaussian:scale=1e-6", "mca"):
        plain = noise.parse(text)
        asked = noise.parse(f"{text}{',' if ':' in text else ':'}routines=true")
        inverse = jnp.linalg.inv
        one, other = (noise.inject(inverse, s)(KEY, MATRIX) for s in (plain, asked))
        assert np.any(one != other)
        entries = noise.coverage(inverse, asked)(MATRIX).perturbed
        lu = next(e for e in entries if e.primitive == "lu")
        assert lu.reason.endswith("on the operands too")


def test_what_noise_does_not_reach_has_no_digits():
    """It was said to have all."""

    def fn(x):
        return {
            "scan": lax.associative_scan(jnp.add, x),
            "sine": jnp.sin(x),
            "sum": jnp.sum(x),
            "same": x[::-1],
            "loop": lax.fori_loop(0, 3, lambda i, x: x * x, x),
            "called": jax.jit(jnp.exp)(x),
        }

    x = jnp.linspace(0.1, 1.0, 40)
    table = noise.digits_table(fn, ORDER)(KEY, x)
    rows = {row.path.strip("[']"): row for row in table.rows}
    reached = {name for name, row in rows.items() if row.reached}
    assert reached == {"sum", "same"}
    assert rows["same"].worst == rows["same"].precision
    elements = table.elements
    assert not any(elements[name].any() for name in rows.keys() - reached)
    text = str(table)
    assert text.count("  -  ") >= 4
    assert "not reached by this noise: " in text
    assert "test_wrong_answers.py:" in text
    # The additions of the scan come first: they are a sum.
    assert "add" in text.split("not reached by this noise: ")[1].split(",")[0]
    both = noise.digits_table(fn, DEFAULT)(KEY, x)
    assert all(row.reached for row in both.rows)
    assert not both.notes


def kernel(x_ref, o_ref):
    o_ref[...] = x_ref[...] - jnp.float32(1.0)


def test_every_tool_goes_past_a_pallas_kernel():
    called = pallas.pallas_call(
        kernel, jax.ShapeDtypeStruct((8,), jnp.float32), interpret=True
    )

    def fn(x):
        return called(x) * np.float32(0.3)

    x = 1 + jnp.linspace(0.1, 1.0, 8) / 512
    table = noise.digits_table(fn, DEFAULT)(KEY, x)
    # The kernel cancels three digits; a rounding of its operand shows them.
    assert 3.5 < table.rows[0].worst < 5.5
    assert "pallas_call" in "".join(table.notes)
    for spec in (ORDER, noise.UlpPerturbation()):
        report = noise.coverage(fn, spec)(x)
        (entry,) = [e for e in report.untouched if e.primitive == "pallas_call"]
        assert entry.reason
        assert entry.source.endswith(" in fn")
        assert noise.localize(fn, spec)(KEY, x).equations == len(report.perturbed)
    noise.noise_reference(fn, x).assert_close(fn(x))
    assert noise.explain(fn, fn(x), fn(x))(KEY, x).rung == "identical"
    assert noise.decisions(fn, noise.UlpPerturbation(), draws=2)(KEY, x) == ()


def nnx_step(model, x):
    loss, grads = nnx.value_and_grad(lambda m: jnp.mean(m(x) ** 2))(model)
    model.kernel[...] -= 0.1 * grads.kernel[...]
    return loss


TOOLS = {
    "explain": lambda fn, loss: noise.explain(fn, loss, loss, draws=2),
    "tolerance": lambda fn, loss: noise.tolerance(fn, ORDER, draws=2),
    "decisions": lambda fn, loss: noise.decisions(fn, ORDER, draws=2),
    "localize": lambda fn, loss: noise.localize(fn, ORDER, samples=2),
    "digits": lambda fn, loss: noise.digits(fn, ORDER, draws=2),
    "coverage": lambda fn, loss: lambda key, *args: noise.coverage(fn, ORDER)(*args),
    "first_difference": lambda fn, loss: (
        lambda key, *args: noise.first_difference(fn, noise.record(fn)(*args), draws=2)(
            key, *args
        )
    ),
}


@pytest.mark.parametrize("tool", TOOLS)
def test_no_tool_trains_the_users_model_or_consumes_what_it_is_given(tool):
    """`explain` trained it, two steps, and ended on donated arguments."""
    model = nnx.Linear(8, 1, rngs=nnx.Rngs(0))
    x = jax.random.normal(jax.random.key(1), (64, 8))
    before = np.asarray(model.kernel[...])
    loss = nnx_step(nnx.clone(model), x)
    ask = TOOLS[tool]
    report = ask(nnx_step, loss)(KEY, model, x)
    np.testing.assert_array_equal(np.asarray(model.kernel[...]), before)
    if hasattr(report, "rung"):
        assert report.rung in ("identical", "order", "rounding")

    step = jax.jit(lambda w, x: w - 0.1 * (x.T @ (x @ w)), donate_argnums=0)
    weights = jax.random.normal(jax.random.key(2), (8, 4))
    ask(step, step(jnp.copy(weights), x))(KEY, weights, x)
    assert not weights.is_deleted()
    assert np.isfinite(np.asarray(weights)).all()


ONE_PROCESSOR = """
import os
os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
import jax, jax.numpy as jnp
from prednet_jax import noise
x = jax.random.normal(jax.random.key(1), (100_000, 64))
found = noise.decisions(lambda x: jnp.argmax(x * 0.3, axis=1) + (x > 0).sum(1),
                        noise.UlpPerturbation(), draws=1)(jax.random.key(0), x)
print([(d.primitive, d.elements) for d in found])
"""


def test_decisions_end_on_one_processor():
    """Large arrays waited in a callback for the thread that the callback ran in."""
    printed = python("-c", ONE_PROCESSOR, JAX_PLATFORMS="cpu").stdout
    assert "('argmax', 100000)" in printed
    assert "('gt', 6400000)" in printed


def test_a_routine_on_the_host_is_perturbed_whatever_else_is():
    """Digits were 7.2 beside a noise on results, 3.6 without it."""

    def inverse(a):
        like = jax.ShapeDtypeStruct(a.shape, a.dtype)
        return jax.pure_callback(np.linalg.inv, like, a) * np.float32(1.5)

    alone, beside = (
        noise.digits_table(inverse, spec)(KEY, MATRIX).rows[0].whole
        for spec in (ORDER, DEFAULT)
    )
    assert beside == pytest.approx(alone, abs=0.5)
    assert beside < 5


def test_infinities_are_no_size_to_measure_others_by():
    def rows(x):
        sums = jnp.sum(x, axis=1)
        return sums, sums.at[0].set(-jnp.inf)

    x = RNG.standard_normal((8, 999)).astype(np.float32)
    spec = noise.Gaussian(scale=1e-4)
    plain, masked = noise.digits_table(rows, spec)(KEY, x).rows
    assert masked.whole == pytest.approx(plain.whole, abs=0.5)
    assert masked.whole < 5
    a = np.float32([-np.inf, 1, 2])
    report = noise.explain(lambda x: x, a, a * np.float32([1, 1.1, 1]))(KEY, a)
    assert report.leaves[0].relative == pytest.approx(0.1 / np.hypot(1.1, 2))


@pytest.mark.parametrize("size", [3, 3000])
def test_infinities_of_other_signs_and_nan_are_different(size):
    zero = jnp.zeros(size)
    for one, other in (
        (lambda x: (x + 1) / x, lambda x: x / x),
        (lambda x: 1 / x, lambda x: -1 / x),
    ):
        known = noise.record(one)(zero)
        last = noise.first_difference(other, known)(KEY, zero)[-1]
        assert last.difference == np.inf
        assert noise.first_difference(one, known)(KEY, zero) == ()


def test_rows_that_have_stopped_stay_so():
    """Under a mapped loop each new step drew noise for their predicate again."""

    def steps(x, least):
        def goes_on(carry):
            return (carry[0] * 3 > np.float32(0.3)) | (carry[1][0] < least)

        start = x, jnp.zeros(2, int)
        return lax.while_loop(goes_on, lambda c: (c[0], c[1] + 1), start)[1]

    x, least = jnp.float32([0.1, 0, 0]), jnp.asarray([3, 200, 0])
    run = noise.inject(jax.vmap(steps), noise.UlpPerturbation())
    found = np.stack([run(jax.random.key(i), x, least) for i in range(8)])
    assert found[:, 0].max() < 20
    assert (found[:, 1:] == [[200], [0]]).all()


def test_what_nothing_is_added_to_is_a_copy():
    for add in ("add", "subtract"):
        fn = lambda x, v, add=add: getattr(x.at[jnp.asarray([0, 1, 1])], add)(v)  # noqa: E731
        for spec in (noise.UlpPerturbation(max_ulps=9), noise.MonteCarlo("mca", 20)):
            found = noise.inject(fn, spec)(KEY, jnp.ones(99), jnp.full(3, 0.1))
            assert (found[2:] == 1).all()
            assert (found[:2] != fn(jnp.ones(99), jnp.full(3, 0.1))[:2]).any()


def test_noise_of_operands_and_of_results_is_independent():
    """They were the same bits: exp had the sum of both, cos their difference."""
    x = jnp.full(1 << 15, 1.9)
    for fn in (jnp.exp, jnp.cos):
        spread = {}
        for mode in ("rr", "pb", "mca"):
            spec = noise.MonteCarlo(mode=mode, virtual_precision=12)
            spread[mode] = float(jnp.std(noise.inject(fn, spec)(KEY, x)))
        both = np.hypot(spread["rr"], spread["pb"])
        assert spread["mca"] == pytest.approx(both, rel=0.02)


def test_the_sign_of_a_complex_number_rounds_and_decides_nothing():
    z = lax.complex(jnp.arange(1.0, 50.0), jnp.ones(49))
    spec, fn = noise.UlpPerturbation(), lambda z: jnp.sign(z * z)
    assert [e.path for e in noise.coverage(fn, spec)(z).untouched] == ["1:sign"]
    assert noise.decisions(fn, spec)(KEY, z) == ()


def changing(x):
    x *= np.float32(2)
    return jnp.exp(-x)


def test_what_a_function_changes_in_place_is_a_copy():
    """Later runs had other arguments: rtol 0.08 for 3.5e-7."""
    x = RNG.random(64).astype(np.float32)
    before, result = x.copy(), np.exp(-2 * x)
    assert noise.tolerance(changing, noise.UlpPerturbation())(KEY, x).rtol < 1e-5
    assert noise.explain(changing, result, result)(KEY, x).error_a < 1e-6
    np.testing.assert_array_equal(x, before)


def test_the_bound_of_the_smallest_numbers_of_float64_is_found():
    """Its search never ended: no number lies between two neighbours."""
    far, sigma = np.array([1e-320]), np.array([1e-321])
    with np.errstate(all="ignore"):
        assert 1e-320 < _exceeded(far, sigma, 1e-6) < 2e-320


def test_numpys_wide_types_are_those_that_were_computed_with():
    """An index of int64 has no float64 result, and a time of 1.7e9 was another."""
    ids, table = np.arange(6), RNG.standard_normal((6, 30)).astype(np.float32)
    for fn, args in (
        (lambda ids, w: jnp.tanh(w[ids] @ w.T), (ids, table)),
        (lambda t: jnp.sin((t - 1.7e9) * 1e-3), (1.7e9 + 1000 * RNG.random(9),)),
    ):
        here = fn(*map(jnp.asarray, args))
        report = noise.explain(fn, here, here * np.float32(1.01))(KEY, *args)
        assert (report.closer, report.notes) == ("a", ())


def test_numbers_that_a_sketch_cannot_hold_differ_all_the_same():
    x = jnp.linspace(1, 2, 16)
    known = noise.record(lambda x: jnp.sum(x * 1e20))(x)
    found = noise.first_difference(lambda x: jnp.sum(x * 3e20), known, draws=2)(KEY, x)
    assert [entry.path for entry in found.differing][-1] == "result"
    # -0 is 0, and NaN is NaN.
    for one, other in ((np.zeros(3), -np.zeros(3)), (np.full(3, np.nan),) * 2):
        known = noise.record(jnp.negative)(one.astype("f4"))
        other = np.copysign(other, -1).astype("f4")
        assert not noise.first_difference(jnp.negative, known, draws=2)(KEY, other)
    # One whole number of 2000, by 300 or of 1e8, is one in 2000.
    for one, other in ((0, 300), (10**8, 10**8 + 1)):
        x = np.full(2000, one, np.int32)
        known, y = noise.record(jnp.negative)(x), np.where(np.arange(2000), x, other)
        found = noise.first_difference(jnp.negative, known, draws=2)(KEY, y)
        assert found == ()
        assert found.differing[-1].difference <= 1 / 2000


def test_noise_that_makes_nan_is_localized():
    def deviation(x):
        return jnp.sqrt(jnp.mean(x * x) - jnp.mean(x) ** 2)

    x = np.float32(100) + np.float32(1e-4) * RNG.standard_normal(256, np.float32)
    found = noise.localize(deviation, noise.UlpPerturbation())(KEY, x)
    assert found.sets


def pooled(x):
    return jnp.sum(lax.reduce_window(x, -jnp.inf, lax.max, (4,), (4,), "VALID"))


HALF = jnp.full(5, 3e-3, jnp.float16)
# What was zero, of the other sign, moved or refused, though it has no noise or little.
KEPT = {
    "literal": (lambda x: x + jnp.sum(3.0), HALF.astype("f4"), "reduction_order"),
    "half sums": (lambda x: x @ x, HALF, "reduction_order:accumulate=operand"),
    "half products": (lambda x: x @ (1e-2 * x), HALF, "bf16"),
    "cuts": (lambda x: jnp.arctan2(-x, -jnp.ones(5)), jnp.zeros(5), "mca:mode=pb"),
    "results": (lambda x: jnp.copysign(1, -x * 1.5), jnp.zeros(5), "mca"),
    "half zeros": (lambda x: jnp.copysign(1, x * -1.5), 0 * HALF, DEFAULT),
    "multiplied": (
        lambda x: x.at[0].multiply(3.0)[1:],
        jnp.arange(5.0),
        "ulp:max_ulps=3",
    ),
    "pool": (lambda x: jax.grad(pooled)(x) > 0, jnp.ones(16), "mca:mode=pb"),
    "rem": (lambda x: x % 1.0, jnp.linspace(0, 9, 99), DEFAULT),
}


@pytest.mark.parametrize("name", KEPT)
def test_what_is_exact_or_small_stays(name):
    fn, x, spec = KEPT[name]
    spec = noise.parse(spec) if isinstance(spec, str) else spec
    with jax.numpy_dtype_promotion("standard"):
        for key in jax.random.split(KEY, 4):
            found, plain = noise.inject(fn, spec)(key, x), jax.jit(fn)(x)
            np.testing.assert_allclose(found, plain, rtol=0.02, atol=0, err_msg=name)
            if name in ("multiplied", "rem"):
                np.testing.assert_array_equal(found, plain)


def test_what_a_user_applies_is_covered_and_a_loop_is_no_path():
    def applied(x):
        return x.at[jnp.array([0, 1])].apply(jnp.sin)

    assert "scatter" in str(noise.coverage(applied, noise.UlpPerturbation())(HALF))
    loop = lambda x: lax.fori_loop(0, 9, lambda i, x: x * x, x)  # noqa: E731
    with pytest.raises(noise.NoiseError, match="0:scan"):
        noise.inject(loop, noise.UlpPerturbation(), only=("0:scan",))(KEY, HALF)


def test_arrays_sharded_over_an_explicit_mesh_are_watched_and_turned():
    """Each ended in an error of JAX: a row, an element or a sign had no sharding."""
    explicit = jax.make_mesh((1,), ("i",), axis_types=(jax.sharding.AxisType.Explicit,))
    values = RNG.standard_normal((3, 6, 6)).astype(np.float32)
    spec = jax.sharding.PartitionSpec("i")
    rows, columns = spec, jax.sharding.PartitionSpec(None, "i")
    with jax.set_mesh(explicit):
        x, y = (
            jax.device_put(values, jax.sharding.NamedSharding(explicit, s))
            for s in (rows, columns)
        )
        assert noise.first_nan(jnp.log)(x).primitive == "log"
        recording = noise.record(jnp.tanh)(y)
        (first, *_) = noise.first_difference(lambda y: jnp.tanh(y * 2), recording)(
            KEY, y
        )
        assert first.primitive == "mul"
        report = noise.decisions(lambda y: (jnp.round(y), jnp.sort(y, 2)))(KEY, y)
        assert {entry.primitive for entry in report} == {"round", "sort"}

        def vectors(x):
            return jnp.linalg.eigh(x)[1]

        here = vectors(x)
        turned = noise.explain(vectors, here, here * np.float32([1, -1] * 3), draws=2)
        assert turned(KEY, x).rung == "identical"


@pytest.mark.parametrize(
    "tool",
    [noise.digits, noise.tolerance, noise.decisions, noise.nan_rate, noise.localize],
)
def test_a_function_that_returns_and_changes_nothing_is_refused(tool):
    """It had no NaN and no decision: it forgot to return its result."""
    options = (ORDER,) if tool is noise.localize else ()

    def forgets(x):
        jnp.log(x)

    with pytest.raises(noise.NoiseError, match="the result is None"):
        tool(forgets, *options)(KEY, jnp.zeros(3))
    with pytest.raises(noise.NoiseError, match="<class 'int'>: expected numbers"):
        tool(lambda x: int, *options)(KEY, jnp.zeros(3))
    with pytest.raises(noise.NoiseError, match="the result is None"):
        noise.first_nan(forgets)(jnp.zeros(3))


def test_what_measures_results_refuses_a_step_that_changes_a_module_alone():
    """A step that made every weight NaN had none in 16 runs, and no noise."""

    def step(model):
        model.kernel[...] = jnp.sqrt(model.kernel[...] - 100)

    model, refused = nnx.Linear(2, 3, rngs=nnx.Rngs(0)), "the result is None"
    assert noise.first_nan(step)(model).primitive == "sqrt"
    for measure in (
        noise.nan_rate(step),
        noise.localize(step, ORDER),
        lambda key, model: noise.cancellations(step, key=key)(model),
    ):
        with pytest.raises(noise.NoiseError, match=refused):
            measure(KEY, model)
