import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from prednet_jax import noise
from prednet_jax.noise import BitFlip, Composition, Identity, specs, trees

KEYS = jax.random.split(jax.random.key(3), 2)


def test_constructors_name_the_value_and_what_is_accepted():
    for make, message in (
        (
            lambda: noise.ReductionOrder(partials=2),
            "partials=2: expected a whole number",
        ),
        (lambda: noise.ReductionOrder(granularity="row"), "'row': .*tile, element"),
        (lambda: noise.UlpPerturbation(primitives=()), r"primitives=\(\): expected"),
        (lambda: noise.UlpPerturbation(primitives="add"), "primitives='add': expected"),
        (lambda: noise.UlpPerturbation(deterministic=1), "deterministic=1: .*True or"),
        (lambda: noise.Gaussian(0.0), "scale=0.0: expected a finite"),
        (lambda: noise.BitFlip(leaf=""), "leaf='': expected None or part of a path"),
        (
            lambda: noise.BitFlip(index=1),
            "index=1 counts the elements of a leaf: expected leaf too",
        ),
        (lambda: noise.Composition((noise.BitFlip(),)), "a tuple of two or more"),
        (lambda: Composition((Identity(), BitFlip())), r"holds Identity\(\)"),
        (lambda: noise.parse("reduction_order+reduction_order:partials=4"), "one of a"),
        (lambda: noise.parse("tf32") + noise.parse("bf16"), "at most one of a kind"),
        (lambda: noise.at(noise.Identity(), "data"), "site='data': expected one of"),
        (lambda: noise.inject(jnp.sum, "ulp"), "spec='ulp': expected a noise spec"),
        (lambda: noise.parse(7), "noise=7: expected a text"),
    ):
        with pytest.raises(ValueError, match=message) as caught:
            make()
        assert "\n" not in str(caught.value)


def test_a_text_that_is_wrong_is_quoted():
    for text, message in (
        ("quake", "unknown kind 'quake': expected one of identity, reduction_order"),
        ("ulp:", "'ulp:': expected options after the colon"),
        ("ulp:ulps=1", "unknown option 'ulps=1' of ulp: .*max_ulps"),
        ("ulp:max_ulps=1,max_ulps=2", "option 'max_ulps' of ulp is given twice"),
        ("ulp:max_ulps=1.5", "ulp:max_ulps='1.5': expected a whole number"),
        ("gaussian", "gaussian needs scale, as in 'gaussian:scale=...'"),
        ("tf32:format=bf16", "unknown option 'format=bf16' of tf32: no options"),
        (
            "reduction_order:partials=2",
            "partials=2: .* number, from 3 to 64",
        ),
        ("ulp:primitives=tahn", "no primitive 'tahn': expected names such as tan, ta"),
    ):
        with pytest.raises(ValueError, match=message) as caught:
            noise.parse(text)
        assert str(caught.value).startswith(f"noise={text!r}: ")
        assert "\n" not in str(caught.value)


SIMPLE = [
    noise.ReductionOrder(
        partials=3, granularity="shared", tile=1, schedule="run", profile="xla_gpu"
    ),
    noise.ReductionOrder(shortest=1, accumulate="operand", collectives="ring"),
    noise.GpuOrder(gpu="rtx4090", products="plain"),
    noise.StochasticRounding(3, primitives=("add", "scatter-add"), routines=True),
    noise.MonteCarlo("mca", 53),
    noise.UlpPerturbation(1 << 20, deterministic=True),
    noise.Gaussian(1e-30, relative=False),
    noise.Gaussian(1e30, primitives=("mul",)),
    noise.ReducedPrecision("fp16"),
    noise.GradientGaussian(2.0**-20),
    noise.BitFlip(63, "3a", 1 << 40),
]


@pytest.mark.parametrize("spec", SIMPLE, ids=noise.format)
@pytest.mark.parametrize("others", [(), (noise.UlpPerturbation(2),) * 2])
def test_what_is_written_is_read_back(spec, others):
    whole = noise.compose(spec, *others)
    text = noise.format(whole)
    assert noise.parse(text) == whole
    assert noise.parse(noise.format(whole, defaults=True)) == whole
    assert noise.parse(f"  {text.replace(',', ' , ').replace('=', ' = ')} ") == whole
    # Specs meet in the order in which they are written.
    assert specs.parts(whole) == (spec, *others)


def test_records_write_every_option_out():
    assert noise.format(noise.Identity(), defaults=True) == "none"
    spec = noise.ReductionOrder(granularity="element") + noise.UlpPerturbation()
    assert noise.format(spec, defaults=True) == (
        "reduction_order:partials=8,granularity=element,tile=32,schedule=call,"
        "profile=uniform_worst_case,shortest=256,accumulate=float32,collectives=none,"
        "chain=pieces"
        "+ulp:primitives=none,deterministic=false,routines=false,max_ulps=1,"
        "keep_exact=false"
    )
    # Older records name fewer options, and mean the same noise.
    old = "ulp:primitives=none,deterministic=false,max_ulps=1"
    assert noise.parse(old) == noise.UlpPerturbation()


def test_short_forms():
    assert noise.parse("none") == noise.parse("identity") == noise.Identity()
    assert noise.parse("gaussian:1e+3") == noise.Gaussian(1e3)
    assert noise.parse("gaussian:1e-3,false") == noise.Gaussian(1e-3, relative=False)
    assert noise.parse("mca:pb,10") == noise.MonteCarlo("pb", 10)
    assert noise.parse("bf16") == noise.ReducedPrecision("bf16")
    assert noise.parse("ulp:primitives=add|mul").primitives == ("add", "mul")
    assert noise.parse("none+ulp+none") == noise.UlpPerturbation()
    # Primitives without a public name of their own, and a name that ends as a number.
    assert noise.parse("ulp:primitives=split|composite").primitives[0] == "split"
    bessel, half = specs.parts(noise.parse("ulp:primitives=bessel_i0e+bf16"))
    assert bessel == noise.UlpPerturbation(primitives=("bessel_i0e",))
    assert half == noise.ReducedPrecision("bf16")


@pytest.mark.parametrize("leaf", ["a+b", "a,b", "None", " a"])
def test_a_leaf_that_no_text_can_name_is_refused(leaf):
    for spec in (noise.BitFlip(leaf=leaf), noise.UlpPerturbation(primitives=(leaf,))):
        with pytest.raises(ValueError, match="cannot be written in a text"):
            noise.format(spec)
    other = noise.BitFlip(leaf="['gate=kernel']", index=3)
    assert noise.parse(noise.format(other)) == other


def test_sums_of_specs_are_flat_and_split_by_site():
    ulp, flip = noise.UlpPerturbation(), noise.BitFlip()
    gradient = noise.GradientGaussian(0.1)
    assert noise.Identity() + ulp == ulp
    whole = (ulp + gradient) + (noise.Identity() + flip)
    assert whole == noise.Composition((ulp, gradient, flip))
    assert noise.at(whole, "computation") == ulp
    assert noise.at(whole, "gradient") == gradient
    assert noise.at(whole, "weights") == flip
    assert noise.at(ulp, "weights") is None
    # `inject` would do nothing; the message says what does something.
    for spec in (gradient, ulp + gradient, flip, ulp + flip):
        with pytest.raises(noise.NoiseError, match=r"noise\.perturb_tree"):
            noise.inject(jnp.tanh, spec)


A = jnp.asarray(np.random.default_rng(0).standard_normal((6, 40)), jnp.float32)
B = jnp.asarray(np.random.default_rng(1).standard_normal((40, 5)), jnp.float32)


def rounded(x, bits):
    """To nearest-even at a number of explicit mantissa bits, by hand."""
    mantissa, exponent = np.frexp(np.asarray(x, np.float64))
    out = np.ldexp(np.rint(mantissa * 2.0 ** (bits + 1)), exponent - bits - 1)
    return jnp.asarray(out, jnp.float32)


@pytest.mark.parametrize(("name", "bits"), [("tf32", 10), ("bf16", 7), ("fp16", 10)])
def test_reduced_precision_rounds_the_operands_of_dots_forward_and_backward(name, bits):
    def loss(a, b, g):
        # The sum is elementwise: what it adds is not rounded.
        return jnp.sum((a @ b) * g + g)

    g = A[:, :5] + 2
    run = noise.inject(jax.value_and_grad(loss, (0, 1)), noise.parse(name))
    value, (da, db) = run(KEYS[0], A, B, g)
    a, b, narrow = rounded(A, bits), rounded(B, bits), rounded(g, bits)
    # Two programs of the same float32 sums of 40 and 6 terms.
    np.testing.assert_allclose(value, jnp.sum((a @ b) * g + g), 1e-5)
    np.testing.assert_allclose(da, narrow @ b.T, 1e-5, 1e-5)
    np.testing.assert_allclose(db, a.T @ narrow, 1e-5, 1e-5)
    # Sums without the rounding are further away.
    assert np.max(np.abs(db - A.T @ g)) > 1e-4


def test_a_composition_acts_on_operands_order_and_results():
    spec = noise.parse("tf32+reduction_order:partials=3,shortest=1+ulp:100")
    report = noise.coverage(jnp.matmul, spec)(A, B)
    (entry,) = report.perturbed
    assert entry.reason == (
        "operands in tf32; 3 pieces in random order, tile; UlpPerturbation"
    )
    found = noise.inject(jnp.matmul, spec)(KEYS[0], A, B)
    exact = rounded(A, 10) @ rounded(B, 10)
    # A hundred ulps of each result, and 40 of the largest for the order.
    bound = 101 * 2.0**-23 * np.abs(exact) + 40 * 2.0**-23 * np.abs(exact).max()
    assert np.all(np.abs(found - exact) <= bound)
    assert np.max(np.abs(found - exact)) > 10 * 2.0**-23 * np.abs(exact).max()


def deterministic(kind, **options):
    return kind(**options, deterministic=True)


@pytest.mark.optimized  # Otherwise tanh of a loop has other bits than tanh of an array.
@pytest.mark.parametrize(
    "spec",
    [
        deterministic(noise.UlpPerturbation, max_ulps=50),
        deterministic(noise.StochasticRounding, mantissa_bits=8),
        deterministic(noise.MonteCarlo, mode="mca", virtual_precision=12),
        deterministic(noise.Gaussian, scale=1e-3, relative=False),
        deterministic(noise.UlpPerturbation, max_ulps=50)
        + deterministic(noise.UlpPerturbation, max_ulps=60),
    ],
    ids=lambda spec: noise.format(spec),
)
def test_deterministic_noise_knows_the_operation_and_the_operands_alone(spec):
    def fn(x):
        steps = lax.scan(lambda c, _: (c, jnp.tanh(x)), 0, None, length=2)[1]
        return steps, jnp.tanh(x[::-1])[::-1], jnp.concatenate([jnp.tanh(x[:9])] * 2)

    x = A.ravel()
    run = noise.inject(fn, spec)
    steps, reversed_, part = run(KEYS[0], x)
    # Neither the step, nor the place in the program or the array, nor the key matters.
    np.testing.assert_array_equal(steps[0], steps[1])
    np.testing.assert_array_equal(steps[0], reversed_)
    np.testing.assert_array_equal(part[:9], steps[0][:9])
    np.testing.assert_array_equal(run(KEYS[1], x)[0], steps)
    assert np.mean(steps[0] != jnp.tanh(x)) > 0.5


def test_deterministic_noise_tells_operations_apart():
    """The operands and the results of some operations may be the same."""
    spec = deterministic(noise.UlpPerturbation, max_ulps=1000)
    small = 1e-9 * A.ravel()

    def fn(x, zero, small):
        return (x + zero, x - zero), (jnp.cos(small), jnp.exp(small))

    for one, other in noise.inject(fn, spec)(KEYS[0], A.ravel(), np.float32(0), small):
        # Two of 2001 steps agree by chance for one in 2001 numbers.
        assert np.mean(one == other) < 0.05


KEY = jax.random.key(4)


def example():
    a, b = jax.random.split(jax.random.key(0))
    return {
        "w": jax.random.normal(a, (40, 50)),
        "v": 100.0 * jax.random.normal(b, (3000,)),
        "bias": jnp.zeros(7),
        "steps": jnp.arange(3),
    }


def norm(tree):
    floats = [np.asarray(x) for x in jax.tree.leaves(tree) if x.dtype == jnp.float32]
    return float(np.sqrt(sum(np.sum(np.square(x, dtype=np.float64)) for x in floats)))


def test_gradient_noise_has_the_norm_it_says():
    tree = example()
    noisy = trees.perturb_tree(noise.GradientGaussian(0.3), KEY, tree)
    drawn = jax.tree.map(jnp.subtract, noisy, tree)
    # A chi variable with 5007 degrees of freedom: standard deviation 1 %.
    assert abs(norm(drawn) / norm(tree) / 0.3 - 1) < 0.04
    # One size for the whole tree: every leaf's elements get the same.
    assert abs(float(drawn["w"].std() / drawn["v"].std()) - 1) < 0.06
    assert np.all(drawn["bias"] != 0)
    np.testing.assert_array_equal(noisy["steps"], tree["steps"])


def flipped(tree, spec, key):
    """Leaf name, flat index and XOR of the one weight that changed."""
    noisy = trees.perturb_tree(spec, key, tree)
    found = []
    for name in tree:
        before, after = (np.asarray(t[name]).ravel() for t in (tree, noisy))
        integer = f"uint{8 * before.dtype.itemsize}"
        change = before.view(integer) ^ after.view(integer)
        found += [(name, i, int(change[i])) for i in np.flatnonzero(change)]
    assert len(found) == 1
    return found[0]


def test_one_bit_of_one_weight_is_flipped():
    tree = {"a": jnp.ones((3, 4)), "b": 2 * jnp.ones(20), "zero": jnp.zeros(500)}
    flip = jax.jit(trees.perturb_tree, static_argnums=0)
    compiled, plain = (f(BitFlip(), KEY, tree) for f in (flip, trees.perturb_tree))
    jax.tree.map(np.testing.assert_array_equal, compiled, plain)
    changed = [flipped(tree, BitFlip(), jax.random.key(i)) for i in range(40)]
    assert {xor for _, _, xor in changed} == {1}
    names = [name for name, _, _ in changed]
    # 12 of 32 weights are in a; zeros are left out. Binomial: 15 +- 3.1.
    assert 3 <= names.count("a") <= 27
    assert "zero" not in names
    assert len({(name, i) for name, i, _ in changed}) > 15


def test_bit_leaf_and_index_can_be_chosen():
    tree = {"a": jnp.ones((3, 4)), "b": 2 * jnp.ones(20), "n": jnp.arange(4)}
    chosen = flipped(tree, BitFlip(bit=31, leaf="'a'", index=5), KEY)
    assert chosen == ("a", 5, 1 << 31)
    assert flipped(tree, BitFlip(bit=3, leaf="b"), KEY)[::2] == ("b", 8)
    assert flipped({"z": jnp.zeros(5)}, BitFlip(bit=30), KEY)[2] == 1 << 30


def test_what_is_not_there_is_named():
    for spec, names, message in (
        (BitFlip(leaf="c"), "abn", r"leaf='c' matches 0 leaves: .*\['a'\], \['b'\]"),
        (BitFlip(leaf="["), "abn", "matches 2 leaves"),
        (BitFlip(leaf="a", index=12), "abn", "index=12: expected 0 to 11"),
        (BitFlip(bit=32), "abn", "bit=32: expected 0 to 31"),
        (BitFlip(), "n", "no floating-point element"),
    ):
        tree = {"a": jnp.ones((3, 4)), "b": 2 * jnp.ones(20), "n": jnp.arange(4)}
        with pytest.raises(ValueError, match=message):
            trees.perturb_tree(spec, KEY, {name: tree[name] for name in names})


def test_other_specs_and_several():
    tree = example()
    assert trees.perturb_tree(Identity(), KEY, tree) is tree
    both = Composition((noise.GradientGaussian(0.1),) * 2)
    drawn = jax.tree.map(jnp.subtract, trees.perturb_tree(both, KEY, tree), tree)
    assert abs(norm(drawn) / norm(tree) / (0.1 * np.sqrt(2)) - 1) < 0.04


def test_no_more_noises_than_anybody_needs():
    with pytest.raises(
        noise.NoiseError, match="specs=3000: expected at most 32 noises"
    ):
        noise.parse("+".join(["ulp"] * 3000))


def test_a_noise_of_another_class_is_named():
    class Mine(noise.Gaussian):
        """A noise that has no text."""

    for ask in (noise.digits, noise.tolerance):
        with pytest.raises(noise.NoiseError, match=r"Mine.*expected noises of"):
            ask(jnp.sin, Mine(1e-3))(jax.random.key(0), np.float32(1))
