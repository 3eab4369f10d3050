"""The hash generator, tested as a generator: keys are fixed, so nothing can flake.

Bounds are written as z scores: with K independent statistics the largest |z| exceeds 5
with probability below K * 6e-7, so a bound of 5 fails only for a faulty generator.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from prednet_jax.noise import random_bits

KEYS, LENGTH = 128, 1 << 15


@pytest.fixture(scope="module")
def neighbours():
    """Words of 128 neighbouring raw keys, uint32 [128, 2]."""
    raw = jnp.stack([jnp.array([0, i], jnp.uint32) for i in range(KEYS)])
    return jax.jit(jax.vmap(random_bits.words))(raw)


@pytest.fixture(scope="module")
def drawn(neighbours):
    """Bits of each of those keys, uint32 [128, LENGTH]."""
    draw = jax.jit(jax.vmap(lambda w: random_bits.bits(w, (LENGTH,))))
    return np.asarray(draw(neighbours))


def centred(bits):
    """Bits as numbers of mean 0 and variance 1."""
    return (bits.astype(np.float64) / 2.0**32 - 0.5) * np.sqrt(12.0)


def test_each_byte_is_uniform(drawn):
    values = drawn.reshape(-1).view(np.uint8).reshape(-1, 4)
    for place in range(4):
        counts = np.bincount(values[:, place], minlength=256)
        assert stats.chisquare(counts).pvalue > 1e-4


def test_neighbouring_counters_are_uncorrelated(drawn):
    u = centred(drawn)
    for lag in (1, 2, 3, 4, 7, 8, 16, 64, 256, 4096):
        z = (u[:, :-lag] * u[:, lag:]).mean(axis=1) * np.sqrt(LENGTH - lag)
        assert abs(z.mean()) * np.sqrt(KEYS) < 5
        # 128 values of variance 1: their variance has standard deviation 0.125.
        assert 0.5 < z.var() < 1.6


def test_neighbouring_keys_salts_and_folds_are_uncorrelated(neighbours, drawn):
    w = neighbours[7]
    folds = jax.vmap(lambda i: random_bits.fold(w, i))(jnp.arange(48))
    salted = [random_bits.bits(w, (LENGTH,), s) for s in range(48)]
    folded = jax.vmap(lambda w: random_bits.bits(w, (LENGTH,)))(folds)
    for rows in (drawn, np.stack(salted), np.asarray(folded)):
        u = centred(rows)
        z = (u @ u.T)[np.triu_indices(len(rows), 1)] / np.sqrt(LENGTH)
        assert np.abs(z).max() < 5.5
        assert 0.85 < z.var() < 1.15


def test_draws_of_a_pool_are_uniform_and_uncorrelated(neighbours):
    """Between draws, elements and three draws at once; by the 16 upper bits."""
    pool = random_bits.make_pool(neighbours[5], LENGTH)
    longer = random_bits.make_pool(neighbours[5], 2 * LENGTH)
    np.testing.assert_array_equal(longer[1][:LENGTH], pool[1])
    factors = [random_bits.factor((salt, 1)) for salt in range(48)]
    draws = [random_bits.Draws(pool, factor) for factor in factors]
    rows = np.stack([one.bits((LENGTH,), i % 3) for i, one in enumerate(draws)]) >> 16
    counts = np.bincount((rows >> 8).reshape(-1), minlength=256)
    assert stats.chisquare(counts).pvalue > 1e-4
    u = centred(rows << 16)
    for others in (u, np.roll(u, 1, axis=1), u[::-1] * u[24]):
        z = (u @ others.T)[np.triu_indices(len(rows), 1)] / np.sqrt(LENGTH)
        assert np.abs(z).max() < 5.5
        assert 0.85 < z.var() < 1.15


@pytest.mark.parametrize("what", ["counter", "word"])
def test_avalanche(neighbours, what):
    """Flipping any input bit flips each output bit with probability 1/2."""
    n = 1 << 15
    w0, w1 = neighbours[3]
    # Spread over the whole range of the counter.
    index = jnp.arange(n, dtype=jnp.uint32) * jnp.uint32(2654435761)
    flipped = jax.jit(
        lambda flip: (
            random_bits.hash_counter(index ^ flip, w0, w1)
            if what == "counter"
            else random_bits.hash_counter(index, w0 ^ flip, w1)
        )
    )
    base = flipped(jnp.uint32(0))
    for bit in range(32):
        changed = np.asarray(base ^ flipped(jnp.uint32(1 << bit)))
        rates = [((changed >> b) & 1).mean() for b in range(32)]
        # 2^15 pairs have standard deviation 0.0028; the bias of lowbias32 adds to it.
        assert np.abs(np.array(rates) - 0.5).max() < 0.03


def test_uniform_and_normal_have_their_distributions(neighbours):
    w = neighbours[1]
    u = np.asarray(random_bits.unit(random_bits.bits(w, (1 << 17,))), np.float64)
    assert stats.kstest(u, "uniform").pvalue > 1e-3
    assert u.min() >= 0
    assert u.max() < 1
    x = np.asarray(random_bits.gauss(random_bits.bits(w, (1 << 17,))), np.float64)
    assert stats.kstest(x, "norm").pvalue > 1e-3
    # Skewness and kurtosis have standard deviations sqrt(6/n) and sqrt(24/n).
    assert abs(stats.skew(x)) < 5 * np.sqrt(6 / x.size)
    assert abs(stats.kurtosis(x)) < 5 * np.sqrt(24 / x.size)
    ends = jnp.array([0, 0xFFFFFFFF], jnp.uint32)
    low, high = random_bits.gauss(ends)
    assert 5.3 < high == -low < 5.43
    assert random_bits.unit(ends).max() < 1


def test_reference_values():
    """The definition in the docstring, computed with Python integers."""
    w0, w1, salt = 123, 456, 9
    s0, s1 = random_bits.salt_words(salt)
    got = random_bits.bits(jnp.array([w0, w1], jnp.uint32), (2, 3), salt)
    mask = 0xFFFFFFFF
    for i, value in enumerate(np.asarray(got).ravel()):
        x = (i + (w0 ^ s0)) & mask
        x = ((x ^ (x >> 16)) * 0x7FEB352D) & mask
        x = ((x ^ (x >> 15)) + (w1 ^ s1)) & mask
        x = (x * 0x846CA68B) & mask
        assert int(value) == x ^ (x >> 16)


def test_words_take_typed_and_raw_keys():
    typed = random_bits.words(jax.random.key(5))
    np.testing.assert_array_equal(typed, random_bits.words(jax.random.PRNGKey(5)))
    rbg = random_bits.words(jax.random.key(5, impl="rbg"))
    assert rbg.shape == (2,)
    assert rbg.dtype == jnp.uint32
    # A fold is a path.
    one_by_one = random_bits.fold(random_bits.fold(typed, 1), jnp.int32(2))
    np.testing.assert_array_equal(random_bits.fold(typed, 1, 2), one_by_one)
    assert not np.array_equal(random_bits.fold(typed, 2, 1), one_by_one)


@pytest.mark.parametrize("count", [1, 2, 3, 6, 7, 1000, 65536])
def test_integers_below_a_bound_are_the_high_word_of_the_product(count):
    edges = [0, 1, 0xFFFF, 0x10000, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF]
    others = np.random.default_rng(0).integers(0, 2**32, 1000, np.uint32)
    random = np.concatenate([np.array(edges, np.uint32), others])
    expected = (random.astype(np.uint64) * np.uint64(count)) >> np.uint64(32)
    found = random_bits.below(count, jnp.asarray(random))
    np.testing.assert_array_equal(found, expected)
