"""compare_logits: ratios, KL and flips against those of noise."""

import jax
import numpy as np
import pytest
from jax import numpy as jnp

from prednet_jax import noise

KEY = jax.random.key(0)
rng = np.random.default_rng(1)
X = rng.standard_normal((2, 6, 16)).astype(np.float32)
W = rng.standard_normal((16, 30)).astype(np.float32)


def logits(w, x):
    return jnp.tanh(x) @ w


def chosen(w, x):
    return jax.nn.log_softmax(logits(w, x))[..., 3]


PLAIN = np.asarray(logits(W, X))
ORDER = noise.inject(logits, noise.ReductionOrder(granularity="element"))
BF16 = noise.inject(logits, noise.ReducedPrecision("bf16"))


def test_what_noise_makes_is_noise():
    report = noise.compare_logits(logits, ORDER(jax.random.key(5), W, X), PLAIN)(
        KEY, W, X
    )
    assert not any(m.beyond for m in (report.ratio, report.kl, report.flips))
    assert 1 < report.ratio.found < 1 + 1e-5
    assert 0 < report.kl.typical < 1e-9
    assert report.rung in ("order", "rounding")


def test_logits_that_were_stored_in_bfloat16_are_named():
    stored = PLAIN.astype(jnp.bfloat16)
    for pair in ((stored, PLAIN), (PLAIN, stored.astype(np.float32))):
        report = noise.compare_logits(logits, *pair)(KEY, W, X)
        assert report.ratio.beyond
        assert report.rung == "bf16"
    hotter = (1.01 * PLAIN).astype(jnp.bfloat16)
    assert noise.compare_logits(logits, hotter, PLAIN)(KEY, W, X).rung == "beyond"


def test_bfloat16_is_beyond_and_named():
    report = noise.compare_logits(logits, BF16(KEY, W, X), PLAIN)(KEY, W, X)
    assert report.ratio.beyond
    assert report.kl.beyond
    assert report.rung == "bf16"
    la, lb = (jax.nn.log_softmax(x) for x in (BF16(KEY, W, X), PLAIN))
    best = jnp.argmax(lb, -1)[..., None]
    ratios = jnp.exp(jnp.take_along_axis(la - lb, best, -1))
    low, high = float(ratios.min()), float(ratios.max())
    assert report.ratio.found == pytest.approx(max(high, 1 / low), rel=1e-5)
    assert report.mean[1:] == pytest.approx((low, high), rel=1e-5)
    kl = jnp.mean(jnp.sum(jnp.exp(la) * (la - lb), -1))
    assert report.kl.found == pytest.approx(float(kl), rel=1e-2)
    assert "cause of the difference: bf16" in str(report)


def test_flips_of_the_most_likely_token():
    swapped = PLAIN.copy()
    swapped[0, 0] = np.roll(PLAIN[0, 0], 1)
    report = noise.compare_logits(logits, swapped, PLAIN)(KEY, W, X)
    assert report.flips.found == pytest.approx(1 / 12)
    assert report.flips.beyond
    assert report.top.found == pytest.approx(1 / 12)
    assert report.worst == (0, 0)


def test_a_set_as_large_as_the_vocabulary_never_changes():
    report = noise.compare_logits(logits, -PLAIN, PLAIN, top=40)(KEY, W, X)
    assert report.flips.found == 1
    assert report.top.found == 0


def test_log_probabilities_are_logits_of_themselves():
    other = PLAIN * np.float32(1.01)
    pairs = [
        (other, PLAIN),
        tuple(np.asarray(jax.nn.log_softmax(x)) for x in (other, PLAIN)),
    ]
    first, second = (noise.compare_logits(logits, *p)(KEY, W, X) for p in pairs)
    assert first.ratio.found == pytest.approx(second.ratio.found, rel=1e-4)
    assert first.kl.found == pytest.approx(second.kl.found, rel=1e-3)


def test_log_probabilities_of_chosen_tokens():
    plain = np.asarray(chosen(W, X))
    report = noise.compare_logits(chosen, plain + np.float32(0.01), plain, axis=None)(
        KEY, W, X
    )
    assert report.ratio.found == pytest.approx(np.exp(0.01), rel=1e-4)
    assert report.ratio.beyond
    assert report.kl.found == pytest.approx(np.expm1(0.01) - 0.01, rel=1e-2)
    tokens = np.full((2, 6), 3)
    other = PLAIN.copy()
    other[1, 2, 3] += 0.01
    report = noise.compare_logits(logits, other, PLAIN, tokens=tokens)(KEY, W, X)
    assert report.worst == (1, 2)


def test_what_cannot_be_is_minus_infinity_on_both_sides():
    mask = np.where(np.arange(30) == 4, -np.inf, 0).astype(np.float32)

    def masked(w, x):
        return logits(w, x) + mask

    report = noise.compare_logits(masked, PLAIN + mask, PLAIN + mask)(KEY, W, X)
    assert report.ratio.found == 1
    assert report.kl.found == 0


BROKEN = PLAIN.copy()
BROKEN[1, 2, 3] = np.nan


@pytest.mark.parametrize(
    ("a", "options", "message"),
    [
        (BROKEN, {}, r"a is nan at \(1, 2, 3\): expected numbers, or -inf"),
        (PLAIN[0], {}, "expected the same"),
        (np.full_like(PLAIN, -np.inf), {}, r"a is -inf at \(0, 0, 0\)"),
        ({"x": PLAIN}, {}, "expected the same"),
        (PLAIN > 0, {}, "expected one array of logits"),
        (PLAIN, {"axis": 1.5}, "axis=1.5: expected the axis of the vocabulary"),
        (PLAIN, {"axis": 3}, "axis=3: expected one of the 3 axes of a, or None"),
        (PLAIN, {"top": 0}, "top=0"),
        (PLAIN, {"tokens": np.ones((2, 6))}, "tokens have the shape .* whole numbers"),
        (
            PLAIN,
            {"tokens": np.full((2, 6), 30)},
            "tokens outside of the vocabulary: expected 0 to 29",
        ),
    ],
)
def test_what_is_refused(a, options, message):
    with pytest.raises(noise.NoiseError, match=message):
        noise.compare_logits(logits, a, PLAIN, **options)(KEY, W, X)


def test_no_logits_are_refused():
    for shape in ((0, 3), (3, 0)):
        with pytest.raises(noise.NoiseError, match="expected one array of logits"):
            noise.compare_logits(logits, np.ones(shape), np.ones(shape))


def test_of_equal_tokens_the_first_are_the_most_likely():
    allowed = jnp.arange(1000) % 400 == 7

    def masked(x):
        return jnp.where(allowed, x, -jnp.inf)

    a = np.random.default_rng(0).normal(size=(8, 1000)).astype(np.float32)
    report = noise.compare_logits(masked, masked(a), masked(a[:, ::-1]))(KEY, a)
    assert report.top.found == 0


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_a_function_whose_result_is_no_number_is_refused(value):
    broken = {"a": PLAIN, "b": PLAIN * 2}
    compare = noise.compare_logits(lambda w, x: logits(w, x) + value, **broken)
    with pytest.raises(noise.NoiseError, match=f"the result is {value}"):
        compare(KEY, W, X)


def test_a_temperature_is_seen_in_bfloat16():
    """The noise of a softmax in bfloat16 is no noise of the logits."""

    def narrow(w, x):
        return logits(w.astype(jnp.bfloat16), x.astype(jnp.bfloat16))

    a = narrow(W, X)
    b = (a * 1.05).astype(jnp.bfloat16)
    assert noise.compare_logits(narrow, a, b)(KEY, W, X).rung == "beyond"
    assert noise.compare_logits(narrow, a, a)(KEY, W, X).rung == "identical"


def test_a_refusal_of_arrays_has_one_line():
    two = (PLAIN, PLAIN)
    with pytest.raises(noise.NoiseError) as caught:
        noise.compare_logits(lambda w, x: two, two, two)
    assert len(str(caught.value).splitlines()) == 1


@pytest.mark.parametrize("temperature", [0.9, 0.99, 1.002])
def test_a_temperature_is_no_format(temperature):
    """Log-probabilities are no multiples of each other, as the logits are."""
    random = np.random.default_rng(1)
    w, x = random.normal(size=(32, 50)) / 4, random.normal(size=(8, 32))
    args = w.astype(np.float32), x.astype(np.float32)

    def linear(w, x):
        return x @ w

    a, b = (linear(*args) / np.float32(t) for t in (1, temperature))
    assert noise.compare_logits(linear, a, b, draws=4)(KEY, *args).rung == "beyond"


@pytest.mark.parametrize("dtype", [np.float32, jnp.bfloat16])
def test_a_unit_in_the_last_place_is_noise_where_there_is_no_other(dtype):
    """It was beyond noise, although the cause was `identical` or `rounding`."""
    a = PLAIN.astype(dtype)
    one = np.nextafter(a, np.asarray(np.inf, dtype))
    for b in (one, a.astype(float) + 1e-9):
        report = noise.compare_logits(lambda x: x, a, b)(KEY, a)
        assert not any(m.beyond for m in report[:4]), report
        assert report.rung != "beyond" or dtype != np.float32
    b = a * np.asarray(1.3, dtype)
    assert noise.compare_logits(lambda x: x, a, b)(KEY, a).ratio.beyond
    large = (2 * a).astype(dtype)
    b = (large.astype(float) / 1.2).astype(dtype)
    assert noise.compare_logits(lambda x: x, large, b)(KEY, large).kl.beyond
    # A mask does not widen what counts as noise.
    b[..., 3] = a[..., 3] = -1e9
    assert noise.compare_logits(lambda x: x, a, b)(KEY, a).ratio.beyond


@pytest.mark.parametrize("which", [0, 1])
def test_a_mask_in_one_result_alone_is_a_divergence(which):
    """A probability that underflows made the divergence NaN."""
    pair = [PLAIN.copy(), PLAIN.copy()]
    pair[which][..., 3] = -1e9
    kl = noise.compare_logits(logits, *pair)(KEY, W, X).kl
    assert kl.beyond
    assert np.isfinite(kl.found)


def test_a_mask_of_large_numbers_is_one_of_minus_infinity():
    """The probabilities were equal, and the cause of the difference was `beyond`."""
    a, b = PLAIN.copy(), PLAIN * np.float32(1 + 1e-7)
    a[..., 3], b[..., 3] = -1e9, -np.inf
    report = noise.compare_logits(logits, a, b)(KEY, W, X)
    assert report.rung in ("order", "rounding")
    assert noise.compare_logits(logits, a, b * 1.01)(KEY, W, X).rung == "beyond"


@pytest.mark.parametrize("mask", [-1e9, -np.inf])
def test_a_mask_in_the_function_hides_no_difference(mask):
    """The mean of a row with -1e9 was rounded to 64, so all causes were `rounding`."""

    def masked(w, x):
        return {"logits": logits(w, x).at[..., 3].set(np.float32(mask))}

    a = masked(W, X)
    hotter = {"logits": a["logits"] * np.float32(1.1)}
    assert noise.compare_logits(masked, hotter, a)(KEY, W, X).rung == "beyond"
    tokens = np.zeros(X.shape[:-1], int)
    # What is measured is compared, even if its probability is 0.
    a, b = (PLAIN.copy() for _ in range(2))
    a[..., 0], b[..., 0] = -900, -1000
    report = noise.compare_logits(logits, a, b, tokens=tokens)(KEY, W, X)
    assert report.rung == "beyond"


def test_a_small_divergence_in_float64_is_beyond():
    """Everything below 1e-12 counted as rounding."""
    with jax.enable_x64(True):
        w, x = W.astype(float), X.astype(float)
        a = np.asarray(logits(w, x))
        report = noise.compare_logits(logits, a, a * (1 + 1e-6))(KEY, w, x)
        assert report.ratio.beyond
        assert report.kl.beyond
        assert not noise.compare_logits(logits, a, np.tanh(x) @ w)(KEY, w, x).kl.beyond
