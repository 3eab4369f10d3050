import jax
import jax.numpy as jnp
import numpy as np
import pytest

from prednet_jax.noise import trees
from prednet_jax.noise.specs import Composition, Identity
from prednet_jax.noise.trees import BitFlip, GradientGaussian

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
    noisy = trees.perturb_tree(GradientGaussian(0.3), KEY, tree)
    noise = jax.tree.map(jnp.subtract, noisy, tree)
    # A chi variable with 5007 degrees of freedom: standard deviation 1 %.
    assert abs(norm(noise) / norm(tree) / 0.3 - 1) < 0.04
    # One size for the whole tree: every leaf's elements get the same.
    assert abs(float(noise["w"].std() / noise["v"].std()) - 1) < 0.06
    assert np.all(noise["bias"] != 0)
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
    jax.tree.map(
        np.testing.assert_array_equal,
        flip(BitFlip(), KEY, tree),
        trees.perturb_tree(BitFlip(), KEY, tree),
    )
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
    both = Composition((GradientGaussian(0.1), GradientGaussian(0.1)))
    noise = jax.tree.map(jnp.subtract, trees.perturb_tree(both, KEY, tree), tree)
    assert abs(norm(noise) / norm(tree) / (0.1 * np.sqrt(2)) - 1) < 0.04
