import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from prednet_jax import noise
from prednet_jax.noise import facts
from tests.accuracy.noise_programs import convolve

X = jax.ShapeDtypeStruct((6, 40), jnp.float32)
KEY = jax.random.key(0)
W = jax.ShapeDtypeStruct((40, 40), jnp.float32)


def network(x, w):
    def step(h, x):
        h = lax.cond(h[0] > 0, lambda h: jnp.tanh(h @ w + x), lambda h: h, h)
        return h, jnp.sum(h)

    h, sums = lax.scan(step, jnp.zeros(40), x)
    grown = lax.while_loop(lambda h: jnp.sum(h) < 9, lambda h: h + 1.0, h)
    best = jnp.sum(jnp.argmax(x, axis=1)).astype(jnp.float32)
    return jax.jit(jnp.prod)(grown) + jnp.sum(sums) + best


def test_every_float_reduction_is_listed_with_its_path_and_reason():
    report = noise.coverage(network, noise.ReductionOrder())(X, W)
    found = {(e.primitive, e.path.split("/")[-1].split(":")[0]): e for e in report[0]}
    assert len(found) == len(report.perturbed)
    scan = next(e.path for e in report.perturbed if e.primitive == "dot_general")
    parts = [part.split(":")[1] for part in scan.split("/")]
    assert parts == ["scan", "cond[1]", "dot_general"]
    places = [e.path.split("/")[0].split(":")[1] for e in report.perturbed]
    # The dot and the sum of a step, the sum of the predicate, the sum of the sums.
    assert sorted(places) == ["reduce_sum", "scan", "scan", "while[cond]"]
    assert all("pieces in random order, tile" in e.reason for e in report.perturbed)
    # The product, and no integer sum, no argmax.
    (product,) = report.untouched
    assert product.primitive == "reduce_prod"
    assert product.path.endswith(":reduce_prod")
    assert product.reason == "a reduction, but not a sum"
    assert product.has_order
    assert f"  {product.path}  {product.reason}" in str(report)


def test_paths_are_those_that_inject_takes():
    x = jnp.asarray(np.random.default_rng(0).standard_normal((6, 40)), jnp.float32)

    def fn(x):
        return jnp.sum(x, axis=1), jnp.cumsum(x, axis=1)

    spec = noise.ReductionOrder()
    plain = jax.jit(fn)(x)
    whole = noise.inject(fn, spec)(jax.random.key(0), x)
    for entry in noise.coverage(fn, spec)(x).perturbed:
        only = noise.inject(fn, spec, only=[entry.path])(jax.random.key(0), x)
        moved = [bool(np.any(a != b)) for a, b in zip(only, plain, strict=True)]
        assert moved == [entry.primitive == "reduce_sum", entry.primitive == "cumsum"]
        # An equation's noise does not depend on the company it is in.
        place = moved.index(True)
        np.testing.assert_array_equal(only[place], whole[place])


def test_each_of_two_joined_sums_is_perturbed_alone():
    """A sum read the numbers before the other sum, which alone had no noise."""
    x = jnp.linspace(0.1, 0.101, 10_000).reshape(16, 625)

    def fn(x):
        return jnp.sum(jnp.sum(x, axis=1))

    spec = noise.ReductionOrder(granularity="element", chain="terms")
    entries = noise.coverage(fn, spec)(x).perturbed
    assert len(entries) == 2
    for entry in entries:
        noisy = noise.inject(fn, spec, only=[entry.path])
        assert len({float(noisy(jax.random.key(i), x)) for i in range(4)}) > 1


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_sum_of_sums_has_the_axes_of_all(dtype):
    """Sums in bfloat16 round to it, and remain several."""

    def fn(x):
        return lax.reduce_sum(lax.reduce_sum(lax.reduce_sum(x, (0, 2)), (0,)), (0,))

    jaxpr = jax.make_jaxpr(fn)(jnp.zeros((2, 3, 4, 5), dtype)).jaxpr
    joined = facts.joined_sums(jaxpr)
    axes = {i: equation.params["axes"] for i, equation in joined.items()}
    assert axes == ({1: (0, 1, 2), 2: (0, 1, 2, 3)} if dtype == "float32" else {})
    assert all(equation.invars == jaxpr.invars for equation in joined.values())


def test_sums_without_an_order():
    """Two terms: the order does not matter. Three: it does. No outputs: none."""

    def short(x):
        windows = lax.reduce_window(x[None], 0.0, lax.add, (20, 4), (1, 1), "VALID")
        return jnp.sum(x[:2]), jnp.zeros(3).at[0].add(x[0]), windows

    line = jax.ShapeDtypeStruct((40,), jnp.float32)
    entries = noise.coverage(short, noise.ReductionOrder())(line).untouched
    reasons = {e.primitive: e.reason for e in entries}
    assert set(reasons) == {"reduce_sum", "scatter-add", "reduce_window_sum"}
    assert not any(e.has_order for e in entries)
    assert "addition commutes" in reasons["reduce_sum"]
    assert reasons["reduce_window_sum"] == "an empty result"
    assert noise.inject(short, noise.ReductionOrder())(KEY, jnp.ones(40))[2].size == 0
    (entry,) = noise.coverage(jnp.sum, noise.Identity())(line).untouched
    assert entry.has_order
    assert entry.reason.startswith("not among what")
    half = jax.ShapeDtypeStruct((8, 600), jnp.bfloat16)
    in_halves = noise.ReductionOrder(accumulate="operand")
    (entry,) = noise.coverage(lambda x: x @ x.T, in_halves)(half).perturbed
    assert "partial sums in bfloat16" in entry.reason


def every_kind(x, k, w, index):
    y = convolve(x, k)
    pooled = lax.reduce_window(y, -jnp.inf, lax.max, (1, 3, 3, 1), (1, 1, 1, 1), "SAME")
    rows = pooled.reshape(-1, 4)[index]
    return jnp.sum(jnp.cumsum(rows @ w, axis=0))


# Primitives of the gradient of `every_kind`; forward convolution apart.
CUDNN = {"conv_general_dilated", "scatter-add", "select_and_scatter_add"}
XLA = CUDNN | {"conv_general_dilated forward", "dot_general"}
PERTURBED = {
    "uniform_worst_case": XLA | {"reduce_sum", "cumsum"},
    "xla_gpu": XLA,
    "chainer_cudnn": CUDNN,
}


@pytest.mark.parametrize("profile", PERTURBED)
def test_profiles_perturb_what_varied_there(profile):
    shapes = [(1, 6, 6, 4), (3, 3, 4, 4), (4, 4)]
    arguments = [jax.ShapeDtypeStruct(shape, jnp.float32) for shape in shapes]
    index = jax.ShapeDtypeStruct((30,), jnp.int32)
    spec = noise.ReductionOrder(profile=profile)
    gradient = jax.value_and_grad(every_kind, (0, 1, 2))
    report = noise.coverage(gradient, spec)(*arguments, index)
    both = (*report.perturbed, *report.untouched)
    paths = [e.path for e in both if e.primitive == "conv_general_dilated"]
    # The first convolution in the program is the forward one.
    forward = min(paths, key=lambda path: int(path.split(":")[0]))

    def names(entries):
        return {e.primitive + " forward" * (e.path == forward) for e in entries}

    assert names(report.perturbed) == PERTURBED[profile]
    left = [e for e in report.untouched if e.has_order]
    assert names(left) == PERTURBED["uniform_worst_case"] - PERTURBED[profile]
    assert all(e.reason.startswith(f"profile {profile}: ") for e in left)


def test_formats_are_not_said_to_round_what_they_do_not():
    """Operands of no more bits than the format, integers and complex numbers."""
    tf32 = noise.ReducedPrecision("tf32")
    for dtype, perturbed in (("float32", 1), ("bfloat16", 0), ("complex64", 0)):
        x = jnp.ones((4, 4), dtype)
        report = noise.coverage(jnp.dot, tf32)(x, x)
        assert len(report.perturbed) == perturbed, dtype
    x = jnp.ones((4, 4), "float16")
    # fp16 has fewer exponent bits than bfloat16, and that fewer mantissa bits.
    assert noise.coverage(jnp.dot, noise.ReducedPrecision("bf16"))(x, x).perturbed
    x = jnp.ones((4, 4), "bfloat16")
    assert noise.coverage(jnp.dot, noise.ReducedPrecision("fp16"))(x, x).perturbed


def test_coverage_says_what_became_of_partials():
    for shape, pieces, reason in (
        ((40, 400), 3, "became 3: 400 terms are fewer than 8 x shortest=256"),
        ((40, 2048), 8, "8 pieces in random order, tile"),
        ((4, 5), 5, "partials=8 became 5: there are 5 terms"),
    ):
        x = jax.ShapeDtypeStruct(shape, jnp.float32)
        report = noise.coverage(lambda x: x @ x.T, noise.ReductionOrder())(x)
        (entry,) = report.perturbed
        assert entry.partials == pieces
        assert reason in entry.reason
        assert ("became" in entry.reason) == (pieces != 8)
