"""compare_trees: which weights are the same, up to layout."""

import jax
import numpy as np
import pytest
from jax import numpy as jnp

from prednet_jax import noise
from tests.accuracy.port_accuracy import load
from tests.processes import ROOT

RECORDED = ROOT / "tests" / "golden" / "ports"


@pytest.fixture
def weights():
    return load(RECORDED / "vit_0.npz")[1]


def ported(w):
    query, key, value = (
        x.T.reshape(24, 3, 8) for x in np.split(w["attention.in_proj_weight"], 3)
    )
    biases = np.split(w["attention.in_proj_bias"], 3)
    tree = {
        "patches": {"kernel": w["patches.weight"].transpose(2, 3, 1, 0)},
        "attention": {
            "query": {"kernel": query, "bias": biases[0].reshape(3, 8)},
            "key": {"kernel": key, "bias": biases[1].reshape(3, 8)},
            "value": {"kernel": value, "bias": biases[2].reshape(3, 8)},
            "out": {"kernel": w["attention.out_proj.weight"].T},
        },
        "cls": w["cls"],
        "positions": w["positions"],
        "layer_scale": w["scale"],
    }
    tree["patches"]["bias"] = w["patches.bias"]
    tree["attention"]["out"]["bias"] = w["attention.out_proj.bias"]
    for name in ("norm1", "norm2"):
        tree[name] = {"scale": w[f"{name}.weight"], "bias": w[f"{name}.bias"]}
    for name in ("fc1", "fc2", "head"):
        tree[name] = {"kernel": w[f"{name}.weight"].T, "bias": w[f"{name}.bias"]}
    return tree


def test_a_whole_port_is_equal_up_to_layout(weights):
    report = noise.compare_trees(ported(weights), weights)
    assert report.equal
    assert report.first is None
    assert {p.rung for p in report.pairs} == {"identical"}
    pairs = {p.name: p.reference for p in report.pairs}
    assert pairs["patches/kernel"] == "patches.weight"
    assert pairs["attention/key/kernel"] == "attention.in_proj_weight[block 1 of 3]"
    assert pairs["norm2/scale"] == "norm2.weight"
    layouts = {p.name: p.layout for p in report.pairs}
    assert layouts["patches/kernel"] == "4 axes: reference.transpose(2, 3, 1, 0)"
    assert str(report).endswith("all weights are equal up to the order of axes")


FAULTS = {
    "transposed: the others have": ("attention", "out", lambda x: x.T),
    "a constant factor of 0.5": ("fc1", "kernel", lambda x: 2 * x),
    "reversed along axis 0": ("fc2", "bias", lambda x: x[::-1]),
}


@pytest.mark.parametrize("hint", FAULTS)
def test_a_wrong_weight_is_named_with_a_hint(weights, hint):
    tree = ported(weights)
    *path, change = FAULTS[hint]
    branch = tree[path[0]]
    branch = branch if path[1] in branch and path[0] != "attention" else branch["out"]
    leaf = "kernel" if path[0] == "attention" else path[1]
    branch[leaf] = change(branch[leaf])
    report = noise.compare_trees(tree, weights)
    assert not report.equal
    assert hint in report.first.hint
    assert report.first.name.startswith(path[0])


def test_rounded_weights_have_their_format(weights):
    tree = ported(weights)
    tree["head"]["kernel"] = jnp.asarray(tree["head"]["kernel"], jnp.bfloat16)
    tree["fc1"]["kernel"] = tree["fc1"]["kernel"].astype(np.float16)
    tree["fc2"]["kernel"] = tree["fc2"]["kernel"] * np.float32(1 + 1e-7)
    rungs = {p.name: p.rung for p in noise.compare_trees(tree, weights).pairs}
    found = [rungs[f"{name}/kernel"] for name in ("head", "fc1", "fc2", "patches")]
    assert found == ["bf16", "fp16", "rounding", "identical"]


def test_other_weights_of_a_name_are_paired_and_differ(weights):
    tree = ported(weights)
    tree["fc1"]["kernel"] = np.random.default_rng(5).standard_normal((24, 48))
    del tree["cls"]
    report = noise.compare_trees(tree, weights)
    assert report.first.reference == "fc1.weight"
    assert report.first.rung == "beyond"
    assert report.unmatched == ((), ("cls",))
    assert "unmatched there: cls" in str(report)


@pytest.mark.parametrize(
    ("params", "reference", "message"),
    [
        ({}, {"a": np.ones(2)}, "params: empty"),
        ({"a": np.ones(2)}, {}, "reference: empty"),
        ({"a": np.ones(2)}, "absent.npz", "expected a file of arrays"),
        (
            {"a": np.zeros(2, "V2")},
            {"a": np.ones(2)},
            "params: a is .*expected numbers",
        ),
        ({"a": np.ones(2)}, {"a": np.array(["x"])}, "reference: a is .*expected num"),
    ],
)
def test_what_is_refused(params, reference, message):
    with pytest.raises(noise.NoiseError, match=message):
        noise.compare_trees(params, reference)


@pytest.mark.parametrize("kind", [bool, np.uint8])
def test_masks_and_unsigned_numbers_are_subtracted_as_numbers(kind):
    mask = np.eye(3, 4).astype(kind)
    assert noise.compare_trees({"a": mask}, {"a": mask}).equal
    assert not noise.compare_trees({"a": mask}, {"a": 1 - mask.astype(int)}).equal
    key = {"a": jax.random.key(0)}
    assert noise.compare_trees(key, key).equal


@pytest.mark.parametrize(
    ("here", "there"),
    [
        (np.ones(3) + 1j, np.ones(3) - 1j),
        (np.array([1.0, 2.0]), np.array([1.0, np.inf])),
        (np.array([1.0, np.inf]), np.array([1.0, 2.0])),
        (np.array([2**60 + 1, 3]), np.array([2**60, 3])),
        (np.array([20_000_001, 3]), np.array([20_000_000, 3])),
    ],
    ids=["conjugate", "infinite there", "infinite here", "large", "next"],
)
def test_what_differs_is_never_rounding(here, there):
    report = noise.compare_trees({"a": here}, {"a": there})
    assert report.first.rung == "beyond"
    assert noise.compare_trees({"a": here}, {"a": here}).equal


def test_rounding_elsewhere_leaves_the_order_of_axes_alone():
    random = np.random.default_rng(1)
    shapes = {"a": (3, 4), "b": (4, 6), "square": (5, 5)}
    tree = {name: random.normal(size=shape) for name, shape in shapes.items()}
    there = {name: x.T for name, x in tree.items()}
    table = random.normal(size=(7, 2))
    moved = {"table": table * (1 + 1e-7)}
    report = noise.compare_trees(tree | {"table": table}, there | moved)
    assert report.equal


def test_a_pytree_against_a_pytree():
    tree = {"a": jax.numpy.arange(6.0).reshape(2, 3), "b": [np.ones(3), np.zeros(2)]}
    report = noise.compare_trees(tree, jax.tree.map(np.asarray, tree))
    assert report.equal


def test_a_nan_on_both_sides_gives_no_warning():
    here, there = np.array([np.nan, 1, 2]), np.array([np.nan, 1, 3])
    assert noise.compare_trees({"a": here}, {"a": here}).equal
    assert noise.compare_trees({"a": here}, {"a": there}).first.rung == "beyond"


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_an_equal_nan_or_infinity_spoils_no_cause(value):
    x = np.random.default_rng(0).normal(size=(6, 6)).astype(np.float32)
    moved, narrow = np.nextafter(x, np.float32(9)), x.astype(jnp.bfloat16)
    doubled = 2 * x
    for one in (x, doubled, moved, narrow):
        one[2, 3] = value
    cases = [("rounding", x, moved), ("bf16", narrow, x), ("beyond", x, doubled)]
    for rung, here, there in cases:
        (pair,) = noise.compare_trees({"a": here}, {"a": there}).pairs
        assert pair.rung == rung
        assert (0 < pair.difference < 1e-2) == (rung != "beyond")
    assert pair.difference == pytest.approx(0.5)
    assert pair.hint == "a constant factor of 2"


def test_weights_without_a_counterpart_are_not_equal():
    report = noise.compare_trees({"a": np.ones((2, 3))}, {"b": np.ones((4, 5))})
    assert not report.equal
    assert str(report).endswith("no weight has a counterpart, so none was compared")


def test_counters_are_no_weights_and_exchanged_axes_of_a_kernel_are_told():
    kernels = {
        f"conv{i}": np.random.default_rng(i).normal(size=(4, 3, 3, 3)) for i in (1, 2)
    }
    there = {**kernels, "bn.num_batches_tracked": np.array(7)}
    right = {n: k.transpose(2, 3, 1, 0) for n, k in kernels.items()}
    report = noise.compare_trees(right, there)
    assert report.equal
    assert report.counters == ("bn.num_batches_tracked",)
    assert str(report).endswith("all weights are equal up to the order of axes")
    report = noise.compare_trees(
        right | {"conv2": kernels["conv2"].transpose(3, 2, 1, 0)}, there
    )
    assert not report.equal
    assert report.first.name == "conv2"
    both = {n: k.transpose(3, 2, 1, 0) for n, k in kernels.items()}
    assert "height and width" in str(noise.compare_trees(both, there))
    wrong = noise.compare_trees({"scale": np.int32(3)}, {"scale": np.ones(7, "f4")})
    assert not wrong.equal
    assert wrong.unmatched == ((), ("scale",))
    counted = noise.compare_trees({"n": np.int32(3)}, {"n": np.int32(4)})
    assert not counted.counters


def test_two_square_weights_in_different_orders_accuse_neither():
    """An embedding is stored as here, and a dense kernel transposed."""
    embedding, kernel = np.random.default_rng(0).normal(size=(2, 8, 8))
    here = {"embed": embedding, "dense": kernel}
    there = {"embed.weight": embedding, "dense.weight": kernel.T}
    assert noise.compare_trees(here, there).equal
