"""The orders themselves: drawn, distributed, fresh or fixed."""

import collections
import functools
import itertools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from prednet_jax import noise
from prednet_jax.noise import random_bits
from prednet_jax.noise.order import permutations
from prednet_jax.noise.plan import plan

GRANULARITIES = ("shared", "tile", "element")
KEYS = jax.random.split(jax.random.key(7), 12)


def spec(granularity, **options):
    options |= {"partials": 4, "granularity": granularity, "tile": 2, "shortest": 1}
    return noise.ReductionOrder(**options)


# Outputs of a row of six: the second is in the tile of the first, the third is not.
TOGETHER = {"shared": (1, 2), "tile": (1,), "element": ()}


@pytest.mark.parametrize("granularity", GRANULARITIES)
def test_distribution_agrees_with_brute_force(granularity):
    """Support and shares, against NumPy adding in every order.

    Six outputs of the same terms: whether they agree tells whether their orders are
    one or independent.
    """
    single = jax.jit(jnp.sum)
    # The first draw for which the twelve trees have at least three values.
    for seed in range(200):
        x = np.random.default_rng(seed).standard_normal(40).astype(np.float32)
        partials = [np.float32(single(p)) for p in x.reshape(4, 10)]
        orders = itertools.permutations(partials)
        expected = np.array([functools.reduce(np.add, order) for order in orders])
        if len(set(expected)) >= 3:
            break
    values, counts = np.unique(expected, return_counts=True)
    assert len(values) >= 3
    draws = 2400
    noisy = noise.inject(lambda x: jnp.sum(x, axis=0), spec(granularity))
    keys = jax.random.split(jax.random.key(1), draws)
    columns = np.repeat(x[:, None], 6, axis=1)
    found = np.asarray(jax.jit(jax.vmap(noisy, (0, None)))(keys, columns))
    # Every bound is five standard errors over the draws.
    shares = counts / counts.sum()
    for column in found.T.astype(np.float64):
        assert set(np.unique(column)) == set(values.astype(np.float64))
        seen = np.array([np.mean(column == v) for v in values])
        error = 5 * np.sqrt(shares * (1 - shares) / draws)
        assert np.all(np.abs(seen - shares) < error)
    alike = np.sum(shares**2)
    for other in (1, 2):
        agreeing = np.mean(found[:, 0] == found[:, other])
        if other in TOGETHER[granularity]:
            assert agreeing == 1
        else:
            error = 5 * np.sqrt(alike * (1 - alike) / draws)
            assert abs(agreeing - alike) < error


@pytest.mark.parametrize("granularity", GRANULARITIES)
def test_what_is_computed_twice_has_the_same_noise(granularity):
    """XLA computes equal equations once, and routines are functions of their operands.

    Of a sum minus itself noise made a number that is not zero.
    """

    def polar(x):
        u, _, vt = jnp.linalg.svd(x[:20])
        return u[:, :2] @ vt

    def body(carry, _):
        return carry / 2 + jnp.sum(carry * x, 0), carry

    every = noise.compose(spec(granularity), noise.UlpPerturbation(routines=True))
    x = jax.random.normal(KEYS[0], (200, 2))
    sums = lambda x: jnp.sum(x * 1.1, axis=0)  # noqa: E731
    loop = lambda x: lax.scan(body, x[0], None, length=3)  # noqa: E731
    for fn in (sums, jax.jit(sums), polar, loop, jax.nn.logsumexp):

        def twice(x, fn=fn):
            return jax.tree.leaves(fn(x)), jax.tree.leaves(fn(x)), jnp.sum(x * 1.2, 0)

        one, other, _ = noise.inject(twice, every)(KEYS[0], x)
        jax.tree.map(np.testing.assert_array_equal, one, other)

    def differently(x):
        return jnp.sum(x, 0), jnp.sum(x + 0, 0), lax.sub(x, 0 * x), lax.sub(0 * x, x)

    one, other, left, right = noise.inject(differently, every)(KEYS[0], x)
    assert np.any(one != other)
    assert np.any(left != -right)


def test_only_what_computes_the_same_has_one_salt():
    """Parameters, literals, constants and what a mutable array holds are a part of it.

    A call is what its body computes.
    """
    x, one, two = jnp.arange(3.0), np.ones(3, np.float32), np.ones(3, np.float32)

    def reads(x):
        ref = jax.new_ref(x)
        first = ref[...]
        ref[...] = x + 1
        return first, ref[...]

    def calls(x):
        return jnp.sin(jax.jit(lambda x: x * 2)(x)), jnp.sin(x * 2)

    def calls_with_constants(x):
        return jax.jit(lambda x: x * one)(x), jax.jit(lambda x: x * one)(x)

    for name, count, fn in (
        ("cumsum", 2, lambda x: (lax.cumsum(x), lax.cumsum(x, reverse=True))),
        ("mul", 2, lambda x: (x * 1.1, x * 1.2)),
        ("mul", 2, lambda x: (x * one, x * two)),
        ("get", 2, reads),
        ("sin", 1, calls),
        ("mul", 1, calls_with_constants),
    ):
        planned = plan(jax.make_jaxpr(fn)(x), noise.UlpPerturbation())
        salts = [step.salt for step in planned.walk() if step.name == name]
        assert len(salts) == 2
        assert len(set(salts)) == count


def test_sums_of_cotangents_alone_have_the_noise_that_they_have_among_all():
    """Sums that `only` leaves alone shifted the orders of the others."""

    def loss(ws):
        return sum(jnp.sum(jnp.sin(w) * jnp.tanh(w) * jnp.exp(w) * w) for w in ws)

    ws = list(jax.random.normal(KEYS[0], (3, 50)))
    gradient, order = jax.grad(loss), spec("tile")
    entries = noise.coverage(gradient, order)(ws).perturbed
    paths = [entry.path for entry in entries if entry.primitive == "add_any"]
    assert len(paths) == 3
    noisy = noise.inject(gradient, order)(KEYS[0], ws)
    quiet = noise.inject(gradient, order, only=())(KEYS[0], ws)
    for path in paths:
        alone = noise.inject(gradient, order, only=(path,))(KEYS[0], ws)
        changed = [bool(np.any(x != y)) for x, y in zip(alone, quiet, strict=True)]
        assert sum(changed) == 1
        i = changed.index(True)
        np.testing.assert_array_equal(alone[i], noisy[i])


@pytest.mark.parametrize("granularity", GRANULARITIES)
def test_each_step_of_a_loop_draws_anew_or_not(granularity):
    """`call`: as atomics do. `run`: fixed by the key, at each step and each call."""

    def loops(x):
        def body(state):
            i, out = state
            return i + 1, out.at[i].set(jnp.sum(x, axis=0))

        def nested(c, _):
            return c, lax.scan(lambda c, _: (c, jnp.sum(x, 0)), c, None, length=2)[1]

        start = (0, jnp.zeros((16, 2)))
        return {
            "scan": lax.scan(lambda c, _: (c, jnp.sum(x, 0)), 0, None, length=16)[1],
            "nested": lax.scan(nested, 0, None, length=8)[1].reshape(16, 2),
            "while": lax.while_loop(lambda s: s[0] < 16, body, start)[1],
        }

    x = 100 * np.random.default_rng(3).standard_normal((200, 2)).astype(np.float32)
    for schedule, fresh in (("call", True), ("run", False)):
        run = jax.jit(noise.inject(loops, spec(granularity, schedule=schedule)))
        found = jax.device_get([run(key, x) for key in KEYS[:6]])
        again = jax.device_get(run(KEYS[0], x))
        for name, steps in found[0].items():
            np.testing.assert_array_equal(steps, again[name])
            assert (len(np.unique(steps[:, 0])) > 1) == fresh, (name, schedule)
            # Another run of autotuning, another key.
            assert len({other[name].tobytes() for other in found}) > 1


@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.float16])
def test_partial_sums_in_the_operands_precision(dtype):
    """Three pieces, each rounded, and rounded after each addition: a NumPy oracle."""
    x, y = jax.random.normal(jax.random.key(5), (2, 64, 512)).astype(dtype)
    y = y.T
    spec = noise.ReductionOrder(partials=3, accumulate="operand", granularity="element")
    wide = x.astype(jnp.float32), y.astype(jnp.float32)
    cuts = ((0, 171), (171, 342), (342, 512))
    pieces = [wide[0][:, a:b] @ wide[1][a:b] for a, b in cuts]
    pieces = [np.asarray(piece.astype(dtype)) for piece in pieces]
    # Rounded by NumPy's own types for halves after each addition.
    triples = ((0, 1, 2), (0, 2, 1), (1, 2, 0))
    orders = [np.asarray((pieces[i] + pieces[j]) + pieces[k]) for i, j, k in triples]
    found = np.asarray(noise.inject(jnp.dot, spec)(jax.random.key(0), x, y))
    assert found.dtype == dtype
    matches = [found == order for order in orders]
    assert np.all(np.any(matches, axis=0))
    # Each order is met where the three differ: about a third of the time.
    differ = (orders[0] != orders[1]) & (orders[1] != orders[2])
    differ &= orders[0] != orders[2]
    assert np.count_nonzero(differ) > 30
    for match in matches:
        assert 0.15 < np.mean(match[differ]) < 0.55


DRAWS = 20_000


@pytest.mark.parametrize("few", [False, True])
@pytest.mark.parametrize("n", [2, 3, 4, 5, 8])
def test_every_order_is_as_likely(n, few, monkeypatch):
    if few:
        monkeypatch.setattr(permutations, "FEW_OUTPUTS", DRAWS)
    words = random_bits.words(jax.random.key(1))

    @jax.jit
    def draw(words):
        orders = permutations.draw_orders(words, (DRAWS,), n, (7,), DRAWS)
        return permutations.encode(orders, n, DRAWS)

    found = draw(words)
    # Which partial sum comes when: int [DRAWS, n].
    ids = [jnp.full((DRAWS,), i, jnp.int32) for i in range(n)]
    orders = np.stack(permutations.permute(found, ids), axis=-1)
    assert (np.sort(orders, axis=1) == np.arange(n)).all()
    # Any three places: of 8! orders most are never seen.
    places = min(n, 3)
    seen = collections.Counter(map(tuple, orders[:, :places].tolist()))
    count = math.perm(n, places)
    assert set(seen) == set(itertools.permutations(range(n), places))
    # Chi-squared with count - 1 degrees of freedom; fixed key, five deviations of room.
    expected = DRAWS / count
    statistic = sum((k - expected) ** 2 / expected for k in seen.values())
    assert statistic < count - 1 + 5 * math.sqrt(2 * (count - 1))


@pytest.mark.parametrize("outputs", [6, 3000])
def test_the_same_orders_for_few_and_many_outputs(outputs, monkeypatch):
    words = random_bits.words(jax.random.key(3))
    sums = [jnp.full((outputs,), x) for x in (2.0, 1e8, 1.0, -1e8, 0.25, 3e-8)]

    def added(limit, sums):
        monkeypatch.setattr(permutations, "FEW_OUTPUTS", limit)
        orders = permutations.draw_orders(words, (outputs,), len(sums), (1,), outputs)
        return np.asarray(permutations.randomly_ordered_sum(orders, sums, 1))

    np.testing.assert_array_equal(added(outputs, sums), added(1, sums))
