"""The draws that order partial sums, for every number of them."""

import collections
import itertools
import math

import jax
import numpy as np
import pytest

from prednet_jax.noise import random_bits
from prednet_jax.noise.order import permutations

DRAWS = 20_000


@pytest.fixture(scope="module", params=[2, 3, 4, 5, 8])
def drawn(request):
    """The number of partial sums, what was drawn, and the orders it stands for."""
    words = random_bits.words(jax.random.key(1))
    draw = jax.jit(lambda w: permutations.draw_orders(w, (DRAWS,), request.param, (7,)))
    found = draw(words)
    return request.param, found, permutations.listed(found, request.param)


def test_every_order_is_as_likely(drawn):
    n, _, orders = drawn
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


@pytest.mark.parametrize("begun", [False, True])
def test_sums_are_added_in_the_drawn_order(drawn, begun):
    """Bit for bit; a sum that was begun before does not let the first two commute."""
    n, words, orders = drawn
    rng = np.random.default_rng(n)
    terms = rng.standard_normal((n, DRAWS)).astype(np.float32)
    initial = rng.standard_normal(DRAWS).astype(np.float32) if begun else None
    actual = jax.jit(permutations.add_in_order)(words, tuple(terms), initial)
    in_order = np.take_along_axis(terms, orders.T, axis=0)
    expected = in_order[0] if initial is None else initial + in_order[0]
    for term in in_order[1:]:
        expected = expected + term
    np.testing.assert_array_equal(actual, expected)
