"""Noise on single operations, against exact rational and extended arithmetic.

Keys are fixed. Statistical bounds are z scores of 5 unless said otherwise.
"""

from fractions import Fraction

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest

from prednet_jax import noise
from prednet_jax.noise import random_bits, specs
from prednet_jax.noise.rounding import elementwise, error_free, steps
from prednet_jax.noise.specs import (
    Composition,
    Gaussian,
    MonteCarlo,
    ReducedPrecision,
    StochasticRounding,
    UlpPerturbation,
)

WORDS = random_bits.words(jax.random.key(11))
# Of each its NumPy function of the same name.
OPERATIONS = {
    "add": jnp.add,
    "sub": jnp.subtract,
    "mul": jnp.multiply,
    "div": jnp.divide,
    "sqrt": jnp.sqrt,
    "tanh": jnp.tanh,
}
FLOATS = ["float16", "bfloat16", "float32", "float64"]
ONES = [(dtype, 1) for dtype in FLOATS]
MANY = 1 << 16
POOL = random_bits.make_pool(WORDS, MANY)


def x64(dtype):
    return jax.enable_x64(dtype == "float64")


def numbers(seed, n, dtype="float32", spread=2.0):
    rng = np.random.default_rng(seed)
    x = rng.standard_normal(n) * np.exp2(rng.uniform(-spread, spread, n))
    return jnp.asarray(x, dtype)


def repeated(x, n=MANY):
    return jnp.full((n,), x)


def ulps(a, b):
    """How many ulps the magnitude of `b` lies above that of `a`, same sign."""
    wide = f"int{8 * a.dtype.itemsize}"
    ints = [
        np.asarray(jax.lax.bitcast_convert_type(abs(v), wide)).astype(np.int64)
        for v in (a, b)
    ]
    np.testing.assert_array_equal(jnp.signbit(a), jnp.signbit(b))
    return ints[1] - ints[0]


def test_two_sum_and_two_product_are_exact_also_after_products():
    """A compiler would contract the products upstream; the guards forbid it."""

    def upstream(a, b, c):
        zero = error_free.run_time_zero(WORDS)
        p, q = a * b, c * b
        return p, q, error_free.residual("add", p + q, (p, q), zero)

    def product(a, b, c):
        zero = error_free.run_time_zero(WORDS)
        d = a * b + c
        return d, b, error_free.residual("mul", d * b, (d, b), zero)

    a, b, c = (numbers(seed, 500) for seed in range(3))
    for function, exact in ((upstream, Fraction.__add__), (product, Fraction.__mul__)):
        for run in (function, jax.jit(function)):
            p, q, (s, e) = run(a, b, c)
            assert np.count_nonzero(e) > 100
            for values in zip(*(np.asarray(v, float) for v in (p, q, s, e)), strict=1):
                x, y, rounded, error = map(Fraction, values)
                assert exact(x, y) == rounded + error


def apply(spec, name, *operands):
    value = OPERATIONS[name](*operands)
    return elementwise.apply(spec, value, operands, POOL, primitive=name), value


@pytest.mark.parametrize(("dtype", "most"), [*ONES, ("float32", 100)])
def test_ulps_are_uniform_integers(dtype, most):
    with x64(dtype):
        x = repeated(jnp.asarray(-1.375, dtype))
        moved = elementwise.apply(UlpPerturbation(most), x, (), POOL)
        counts = np.bincount(ulps(x, moved) + most, minlength=2 * most + 1)
    assert len(counts) == 2 * most + 1
    expected = MANY / (2 * most + 1)
    assert np.max(np.abs(counts - expected)) < 5 * np.sqrt(expected)


def share_moved(name, dtype, *numbers):
    """The share of results that `ulp` with `keep_exact` moves inside one program."""
    count = error_free.ERROR_FREE.get(name, 1)
    noisy = noise.inject(OPERATIONS[name], UlpPerturbation(keep_exact=True))
    with x64(dtype):
        operands = [jnp.asarray(a, dtype) for a in numbers[:count]]
        value = jax.jit(OPERATIONS[name])(*operands)
        moved = [noisy(key, *operands) != value for key in KEYS]
    return np.mean(moved)


KEYS = jax.random.split(jax.random.key(3), 12)


@pytest.mark.parametrize("name", sorted(OPERATIONS))
@pytest.mark.parametrize("dtype", FLOATS)
def test_ulps_leave_exact_results_alone_if_asked(dtype, name):
    rng = np.random.default_rng(2)
    inexact = rng.uniform(1, 2, 64), rng.uniform(0.3, 0.9, 64)
    assert share_moved(name, dtype, *inexact) > 0.1
    exact = np.array([4.0, 64, 0.25]), np.array([2.0, 1, 0.5])
    assert (share_moved(name, dtype, *exact) == 0) == (name in error_free.ERROR_FREE)


@pytest.mark.parametrize(
    ("name", "first", "second"),
    [("mul", 0.45, 0.45), ("div", 0.9, 0.9), ("div", 0, -0.8), ("sqrt", 0.9, 0)],
)
@pytest.mark.parametrize("dtype", ["bfloat16", "float32", "float64"])
def test_an_error_too_small_for_a_number_is_not_taken_for_zero(
    dtype, name, first, second
):
    tiny, rng = float(jnp.finfo(dtype).tiny), np.random.default_rng(2)
    pair = (rng.uniform(1, 2, 64) * tiny**power for power in (first, second))
    assert share_moved(name, dtype, *pair) > 0.3


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("spec", [UlpPerturbation(3), StochasticRounding(4)])
def test_special_values_stay_and_nothing_overflows(spec, dtype):
    with x64(dtype):
        info = jnp.finfo(dtype)
        special = jnp.asarray([0.0, -0.0, np.inf, -np.inf, np.nan], dtype)
        kept = elementwise.apply(spec, special, (), POOL)
        kept = error_free.to_bits(kept)
        np.testing.assert_array_equal(error_free.to_bits(special), kept)
        large = repeated(-jnp.asarray(info.max, dtype), 512)
        assert np.isfinite(elementwise.apply(spec, large, (), POOL)).all()
        small = repeated(jnp.asarray(info.smallest_subnormal, dtype), 512)
        kept = error_free.to_bits(elementwise.apply(spec, small, (), POOL))
        assert not np.any(kept & kept.dtype.type(1 << (8 * kept.dtype.itemsize - 1)))


@pytest.mark.parametrize("bits", [5, 1])
@pytest.mark.parametrize("dtype", FLOATS)
def test_fewer_bits_are_unbiased_exact_values_fixed_ties_right(dtype, bits):
    spec = StochasticRounding(bits)
    with x64(dtype):
        grid = 2.0**-bits
        exact = repeated(jnp.asarray(-(1 + grid), dtype), 512)
        np.testing.assert_array_equal(elementwise.apply(spec, exact, (), POOL), exact)
        for part in (0.5, 0.25):
            x = repeated(jnp.asarray(1 + part * grid, dtype))
            y = np.asarray(elementwise.apply(spec, x, (), POOL), np.float64)
            assert set(np.unique(y)) == {1.0, 1 + grid}
            z = ((y > 1).mean() - part) / np.sqrt(part * (1 - part) / MANY)
            assert abs(z) < 5


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("name", ["add", "sub", "mul", "div", "sqrt"])
def test_full_precision_is_unbiased_over_random_operands(name, dtype):
    """The sum of the errors is zero to within its standard deviation."""
    operation, count = OPERATIONS[name], 1 if name == "sqrt" else 2
    with x64(dtype):
        spec = StochasticRounding(52)
        a, b = (abs(numbers(seed, MANY, dtype)) for seed in (3, 4))
        # Quotients stay in the range of float16.
        operands = (a, jnp.maximum(b, jnp.asarray(2.0**-6, dtype)))[:count]
        y, value = apply(spec, name, *operands)
        whole = jnp.asarray(
            np.arange(-99, 99) if count == 2 else 4.0 ** np.arange(-6, 7)
        )
        whole = (whole.astype(dtype), jnp.full(whole.shape, 4, dtype))[:count]
        np.testing.assert_array_equal(*apply(spec, name, *whole))
        wide = np.longdouble if dtype == "float64" else np.float64
        operands = [np.asarray(x, wide) for x in operands]
        exact = getattr(np, operation.__name__)(*operands)
        gap = np.asarray(jnp.spacing(abs(value)), wide)
        errors = (np.asarray(y, wide) - exact) / gap
    assert np.abs(errors).max() <= 1
    # SR's standard deviation is at most half an ulp; nearest rounding's errors are
    # fixed by the operands and would fail the second bound.
    assert abs(errors.mean()) < 5 * 0.5 / np.sqrt(MANY)
    assert errors.std() > 0.3


@pytest.mark.parametrize("dtype", FLOATS)
def test_unknown_results_move_by_an_ulp_with_probability_one_in_eight(dtype):
    with x64(dtype):
        x = repeated(jnp.asarray(0.7, dtype))
        y, value = apply(StochasticRounding(52), "tanh", x)
        moves = ulps(value, y)
    for move, share in ((1, 0.125), (-1, 0.125), (0, 0.75)):
        found = (moves == move).mean()
        assert abs(found - share) < 5 * np.sqrt(share * (1 - share) / MANY)


def check_size(noise, deviation):
    """Standard errors of the deviation are below 1 %; bfloat16 rounds to 0.4 % of x."""
    assert abs(noise.std() / deviation - 1) < 0.02
    assert abs(noise.mean()) < 5 * deviation / np.sqrt(MANY)


def test_monte_carlo_has_the_size_it_says():
    """Of inexact(x): uniform noise, of standard deviation 2^(e - t) / sqrt(12)."""
    a, b, t = 1.7, -2.6, 12
    na, nb = 2.0 ** (1 - t) / np.sqrt(12), 2.0 ** (2 - t) / np.sqrt(12)
    result = 2.0**-t / np.sqrt(12)  # of tanh, below 1
    for mode, name, deviation in (
        ("rr", "tanh", result),
        ("mca", "tanh", result),
        # The noise of operands enters to first order.
        ("pb", "add", np.hypot(na, nb)),
        ("pb", "sub", np.hypot(na, nb)),
        ("pb", "mul", np.hypot(a * nb, b * na)),
        ("pb", "div", np.hypot(na / b, a / b**2 * nb)),
    ):
        operands = [repeated(jnp.float32(x)) for x in (a, b)]
        operands = operands[: 1 if name == "tanh" else 2]
        y, value = apply(MonteCarlo(mode, t), name, *operands)
        noise = np.asarray(y, np.float64) - float(value[0])
        check_size(noise, deviation)
        assert name != "tanh" or np.abs(noise).max() <= 2.0**-t / 2


@pytest.mark.parametrize("dtype", FLOATS)
def test_gaussian_has_the_size_it_says(dtype):
    with x64(dtype):
        x = numbers(1, MANY, dtype)
        rms = float(np.sqrt(np.mean(np.square(np.asarray(x, np.float64)))))
        for spec, size in ((Gaussian(0.1), 0.1 * rms), (Gaussian(0.5, False), 0.5)):
            y = elementwise.apply(spec, x, (), POOL)
            check_size(np.asarray(y, np.float64) - np.asarray(x, np.float64), size)


SPECS = [
    UlpPerturbation(2),
    UlpPerturbation(2, keep_exact=True),
    StochasticRounding(23),
    MonteCarlo("mca", 20),
    Gaussian(1e-4),
    Composition((StochasticRounding(23), UlpPerturbation(1))),
]


@pytest.mark.parametrize("spec", SPECS, ids=str)
def test_derivatives_pass_straight_through(spec):
    a, b = numbers(0, 30), numbers(1, 30)
    grads = jax.grad(lambda a, b: apply(spec, "mul", a, b)[0].sum(), (0, 1))(a, b)
    np.testing.assert_array_equal(grads[0], b)
    np.testing.assert_array_equal(grads[1], a)
    tangent = jax.jvp(lambda a: apply(spec, "mul", a, b)[0], (a,), (b,))[1]
    np.testing.assert_array_equal(tangent, b * b)


def test_tf32_rounds_to_nearest_even():
    name, keep = "tf32", 10
    ties = 1 + jnp.float32([1, 3]) * np.float32(2.0 ** -(keep + 1))
    x = jnp.concatenate([ties, numbers(0, 4000)])
    got = elementwise.round_operand(ReducedPrecision(name), x)
    assert got.dtype == x.dtype
    # Rounding a float64 mantissa by hand: exact, numpy.rint ties to even.
    mantissa, exponent = np.frexp(np.asarray(x, np.float64))
    expected = np.ldexp(np.rint(mantissa * 2.0 ** (keep + 1)), exponent - keep - 1)
    np.testing.assert_array_equal(np.asarray(got, np.float64), expected)
    np.testing.assert_array_equal(got[:2], [1, 1 + 4 * 2.0 ** -(keep + 1)])


@pytest.mark.parametrize(
    ("name", "format", "type"),
    [
        ("fp16", None, "float16"),
        ("bf16", None, "bfloat16"),
        ("fp8", None, "float8_e4m3fn"),
        # One line of FORMATS adds such formats.
        ("e5m2", specs.Format(5, 2, 57344.0), "float8_e5m2"),
        ("e3m2", specs.Format(3, 2, 28.0), "float6_e3m2fn"),
        ("e2m1", specs.Format(2, 1, 6.0), "float4_e2m1fn"),
    ],
)
def test_formats_round_as_ml_dtypes(monkeypatch, name, format, type):
    """All numbers of float16, of every size, and those between them."""
    if format is not None:
        monkeypatch.setitem(specs.FORMATS, name, format)
    halves = np.arange(1 << 16, dtype=np.uint16).view(np.float16).astype(np.float32)
    halves = halves[np.isfinite(halves)]
    x = np.concatenate([halves, halves * np.float32(1.0003), halves / 3])
    largest = float(specs.FORMATS[name].largest or np.inf)
    with np.errstate(over="ignore"):
        expected = np.clip(x, -largest, largest).astype(getattr(ml_dtypes, type, type))
    got = steps.to_format(name, jnp.asarray(x))
    np.testing.assert_array_equal(got, expected.astype(np.float32))
    zero = got == 0
    np.testing.assert_array_equal(np.signbit(got[zero]), np.signbit(x[zero]))


def test_fp16_has_the_range_of_binary16_in_bfloat16_too():
    big = jnp.asarray([1e30, 1e-30], jnp.bfloat16)
    got = elementwise.round_operand(ReducedPrecision("fp16"), big)
    np.testing.assert_array_equal(got, jnp.asarray([np.inf, 0], jnp.bfloat16))
