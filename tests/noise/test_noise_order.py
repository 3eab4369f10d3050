"""What decides whether an injected reduction order is one (facts of summation).

Integers below 2^24 have one float32 sum whatever the order; powers of two and signs
commute with rounding; two orders differ by at most 2 gamma_h sum|x| (Higham 2002, sec.
4.2); a sum with few partials has few values; masking by +-M tells which partials meet
first (FPRev, ATC 2025).
"""

import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from prednet_jax import noise

GRANULARITIES = ("shared", "tile", "element")
KEYS = jax.random.split(jax.random.key(7), 24)
U = 2.0**-24


def conv(x, k):
    return lax.conv_general_dilated(
        x, k, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC")
    )


def conv_gradient(argument):
    def gradient(x, k):
        return jax.grad(lambda *a: jnp.sum(conv(*a) * conv(*a)), argument)(x, k)

    return gradient


X, K = (1, 5, 6, 16), (3, 3, 16, 5)
CASES = {
    "dot_general": (lambda a, b: a @ b, (7, 96), (96, 5)),
    "conv": (conv, X, K),
    "reduce_sum": (lambda a, b: jnp.sum(a * b, axis=1), (6, 200), (6, 200)),
    "cumsum": (lambda a, b: jnp.cumsum(a * b, axis=0), (64, 4), (64, 4)),
    "reduce_window_sum": (
        lambda a, b: lax.reduce_window(a * b, 0.0, lax.add, (8, 1), (4, 1), "VALID"),
        (40, 4),
        (40, 4),
    ),
    "scatter_add": (
        lambda a, b: jnp.zeros((3, 4)).at[jnp.arange(60) % 3].add(a * b),
        (60, 4),
        (60, 4),
    ),
}


def operands(name, integers=False):
    _, *shapes = CASES[name]
    draws = [jax.random.normal(k, s) for k, s in zip(KEYS, shapes, strict=False)]
    return [jnp.round(4 * d) if integers else d for d in draws]


def noisy(name, granularity="element", **options):
    spec = noise.ReductionOrder(granularity=granularity, tile=2, **options)
    return jax.jit(noise.inject(CASES[name][0], spec))


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("granularity", GRANULARITIES)
def test_exact_identities(name, granularity):
    run, plain = noisy(name, granularity), jax.jit(CASES[name][0])
    whole = operands(name, integers=True)
    np.testing.assert_array_equal(run(KEYS[0], *whole), plain(*whole))
    a, b = operands(name)
    base = run(KEYS[0], a, b)
    np.testing.assert_array_equal(run(KEYS[0], 8 * a, -b / 2), -4 * base)
    np.testing.assert_array_equal(run(KEYS[0], a, b), base)
    results = {run(k, a, b).tobytes() for k in KEYS[:8]}
    assert len(results) > 1, "every key gave the same bits"


@pytest.mark.parametrize("name", ["dot_general", "conv", "reduce_sum", "scatter_add"])
def test_within_the_bound_of_float64_and_on_few_values(name):
    run = noisy(name, "element", partials=4)
    a, b = operands(name)
    found = np.stack([run(k, a, b) for k in KEYS])
    with jax.enable_x64(True):
        wide = [jnp.asarray(x, jnp.float64) for x in (a, b)]
        exact = np.asarray(CASES[name][0](*wide))
        size = np.asarray(CASES[name][0](*[jnp.abs(x) for x in wide]))
    # Height of any summation tree of fewer than 200 products, plus the product itself.
    h = 201
    gamma = h * U / (1 - h * U)
    assert np.all(np.abs(found - exact) <= gamma * size)
    counts = [len(np.unique(column)) for column in found.reshape(len(KEYS), -1).T]
    # Four partials added in any of 24 orders: addition of the first two commutes, so
    # at most 12 values; a continuum would give as many values as keys.
    assert max(counts) <= 12
    assert max(counts) > 1


@pytest.mark.parametrize("granularity", GRANULARITIES)
def test_key_decides_whether_jitted_eager_or_mapped(granularity):
    fn = CASES["dot_general"][0]
    spec = noise.ReductionOrder(granularity=granularity, tile=2)
    run = noise.inject(fn, spec)
    a, b = operands("dot_general")
    each = np.stack([jax.jit(run)(k, a, b) for k in KEYS[:6]])
    mapped = jax.jit(jax.vmap(run, (0, None, None)))(KEYS[:6], a, b)
    np.testing.assert_array_equal(mapped, each)
    np.testing.assert_array_equal(run(KEYS[0], a, b), each[0])


def pieces(n=40, partials=4):
    """Numbers whose partial sums are known: one value in each consecutive piece."""
    x = np.zeros(n, np.float32)
    x[:: n // partials] = 1.0
    return x


def masked_order(run, key, partials, n):
    """Which partials are added before which, found by masking with +-M.

    With +M in piece i, -M in piece j and ones elsewhere, the ones that were added while
    M was in the running sum are lost (M is 2^30): the result counts the pieces added
    outside the stretch between i and j.
    """
    counts = {}
    for i, j in itertools.combinations(range(partials), 2):
        x = pieces(n, partials)
        x[i * (n // partials)], x[j * (n // partials)] = 2.0**30, -(2.0**30)
        counts[i, j] = float(run(key, jnp.asarray(x)))
    return counts


def counts_of(order):
    """The same counts for a chain that adds the pieces in a given order."""
    counts = {}
    for i, j in itertools.combinations(range(len(order)), 2):
        total = np.float32(0)
        for piece in order:
            term = {i: 2.0**30, j: -(2.0**30)}.get(piece, 1.0)
            total = np.float32(total + np.float32(term))
        counts[i, j] = float(total)
    return counts


def test_masking_recovers_a_drawn_chain():
    spec = noise.ReductionOrder(partials=4, granularity="shared")
    run = jax.jit(noise.inject(jnp.sum, spec))
    chains = {order: counts_of(order) for order in itertools.permutations(range(4))}
    seen = set()
    for key in KEYS[:12]:
        found = masked_order(run, key, 4, 40)
        matching = [order for order, counts in chains.items() if counts == found]
        # The first two commute: two orders, one tree.
        assert len(matching) == 2, f"no chain of four partials gives {found}"
        seen.add(matching[0])
    # Twelve keys over twelve equally likely trees: fewer than four has p < 1e-5.
    assert len(seen) >= 4


def test_distribution_agrees_with_brute_force():
    """All values and their frequencies, against NumPy adding in every order."""
    single = jax.jit(jnp.sum)
    # The first draw for which the twelve trees have at least three values.
    for seed in range(200):
        x = np.random.default_rng(seed).standard_normal(40).astype(np.float32)
        partials = [np.float32(single(p)) for p in x.reshape(4, 10)]
        expected = [
            functools.reduce(np.add, order)
            for order in itertools.permutations(partials)
        ]
        if len(set(expected)) >= 3:
            break
    assert len(set(expected)) >= 3
    spec = noise.ReductionOrder(partials=4, granularity="shared")
    run = jax.jit(jax.vmap(noise.inject(jnp.sum, spec), (0, None)))
    found = np.asarray(run(jax.random.split(jax.random.key(1), 2400), jnp.asarray(x)))
    assert set(np.unique(found)) == set(expected)
    for value in set(expected):
        share = expected.count(value) / 24
        # Five standard errors of a share over 2400 draws.
        error = 5 * np.sqrt(share * (1 - share) / 2400)
        assert abs(np.mean(found == value) - share) < error


def test_each_step_of_a_loop_draws_anew_or_not():
    x = operands("reduce_sum")[0][0] * 100

    def scanned(x):
        return lax.scan(lambda c, _: (c, jnp.sum(x + 0 * c)), 0.0, None, length=16)[1]

    def looped(x):
        def body(state):
            i, out = state
            return i + 1, out.at[i].set(jnp.sum(x))

        return lax.while_loop(lambda s: s[0] < 16, body, (0, jnp.zeros(16)))[1]

    for loop in (scanned, looped):
        for schedule, fresh in (("call", True), ("run", False)):
            spec = noise.ReductionOrder(schedule=schedule)
            found = np.asarray(jax.jit(noise.inject(loop, spec))(KEYS[0], x))
            assert (len(np.unique(found)) > 1) == fresh, (loop.__name__, schedule)


@pytest.mark.parametrize(
    ("granularity", "same"), [("shared", True), ("tile", False), ("element", False)]
)
def test_identical_hidden_units(granularity, same):
    """One order for all outputs can never separate two identical units."""
    rng = np.random.default_rng(0)
    x = jnp.asarray(rng.standard_normal((64, 8)), jnp.float32)
    y = jnp.asarray(rng.standard_normal((64, 1)), jnp.float32)
    w = np.repeat(rng.standard_normal((8, 1)), 2, axis=1)
    params = (jnp.asarray(w, jnp.float32), jnp.ones((2, 1)) / 2)

    def loss(params):
        return jnp.mean((jnp.tanh(x @ params[0]) @ params[1] - y) ** 2)

    spec = noise.ReductionOrder(granularity=granularity, tile=1)
    step = jax.jit(noise.inject(jax.grad(loss), spec))
    for key in KEYS[:8]:
        grads = step(key, params)
        params = jax.tree.map(lambda p, g: p - 0.1 * g, params, grads)
    a, b = np.asarray(params[0]).T
    assert np.array_equal(a, b) == same


def test_identity_and_programs_without_float_sums_are_untouched():
    a, b = operands("dot_general")
    fn = jax.jit(lambda a, b: jnp.tanh(a @ b).sum())
    quiet = jax.jit(noise.inject(fn, noise.Identity()))
    np.testing.assert_array_equal(quiet(KEYS[0], a, b), fn(a, b))

    def integral(a):
        i = jnp.argmax(a, axis=1)
        return jnp.max(a), i, jnp.sum(i), jnp.sort(a, axis=0)

    run = jax.jit(noise.inject(integral, noise.ReductionOrder()))
    for found, expected in zip(run(KEYS[0], a), integral(a), strict=True):
        np.testing.assert_array_equal(found, expected)


def test_control_flow_and_custom_rules_compose():
    @jax.custom_vjp
    def square(x):
        return jnp.sum(x * x)

    square.defvjp(lambda x: (square(x), x), lambda x, g: (3 * g * x,))  # a wrong factor

    @jax.checkpoint
    def inner(x):
        return jax.nn.relu(x) @ jnp.ones(x.shape[-1])

    def fn(x):
        x = lax.cond(x[0, 0] > 0, lambda v: v * 2, lambda v: v - 1, x)
        x = lax.switch(1, [jnp.sin, jnp.cos], x)
        total = lax.fori_loop(0, 3, lambda i, t: t + jnp.sum(x), 0.0)
        return square(x) + inner(x).sum() + total

    x = operands("reduce_sum")[0]
    spec = noise.ReductionOrder()
    for run, plain in (
        (noise.inject(fn, spec), fn),
        (noise.inject(jax.grad(fn), spec), jax.grad(fn)),
        (
            lambda k, x: jax.grad(lambda x: noise.inject(fn, spec)(k, x))(x),
            jax.grad(fn),
        ),
    ):
        found = jax.jit(run)(KEYS[0], x)
        # The custom rule (3 x, not 2 x) survives; sums of 1200 terms of order one.
        np.testing.assert_allclose(found, plain(x), rtol=1e-4, atol=1e-4)


def test_coverage_names_what_is_left_alone():
    a, b = operands("dot_general")

    def fn(a, b):
        return jnp.sum(lax.scan(lambda c, x: (c + x @ b, None), jnp.zeros(5), a)[0])

    report = noise.coverage(fn, noise.ReductionOrder())(a, b)
    assert any("scan" in entry.path for entry in report.perturbed)
    assert {entry.primitive for entry in report.perturbed} >= {"dot_general"}
    profile = noise.ReductionOrder(profile="chainer_cudnn")
    left = noise.coverage(fn, profile)(a, b).untouched
    assert any(entry.primitive == "dot_general" and entry.reason for entry in left)
    with pytest.raises(noise.UncoveredReductionError):
        noise.coverage(fn, profile, strict=True)(a, b)


@pytest.mark.parametrize(
    "text",
    [
        "reduction_order:partials=4,granularity=element",
        "ulp:max_ulps=2",
        "gaussian:scale=0.001",
        "stochastic_rounding:mantissa_bits=10+gradient_gaussian:scale=0.001",
        "tf32",
        "mca:mode=rr",
    ],
)
def test_specs_are_parsed_and_written_alike(text):
    spec = noise.parse(text)
    assert noise.parse(noise.format(spec)) == spec


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("reduction_order:partials=2", "partials"),
        ("reduction_order:granularity=row", "granularity"),
        ("quake", "quake"),
        ("ulp:ulps=1", "ulps"),
        ("gaussian", "scale"),
    ],
)
def test_bad_specs_are_named(text, message):
    with pytest.raises(ValueError, match=message):
        noise.parse(text)
