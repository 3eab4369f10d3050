"""compare_trees: which weights are the same, up to layout."""

import jax
import numpy as np
import pytest
from jax import numpy as jnp

from prednet_jax import noise
from prednet_jax.noise.questions import weight_pairs
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


def test_a_hint_holds_for_every_number():
    """Some numbers of a large array are tried first."""
    w = np.random.default_rng(0).standard_normal((128, 128)).astype(np.float32)
    turned = w[::-1].copy()
    (pair,) = noise.compare_trees({"w": turned}, {"w": w}).pairs
    assert "reversed along axis 0" in pair.hint
    turned[1, 1] += 1
    (pair,) = noise.compare_trees({"w": turned}, {"w": w}).pairs
    assert not pair.hint


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


def test_a_block_without_a_counterpart_is_not_equal():
    fused = np.random.default_rng(0).normal(size=(12, 5))
    q, k, v = np.split(fused, 3)
    report = noise.compare_trees({"q": q, "v": v}, {"qkv": fused})
    assert not report.equal
    assert report.unmatched == ((), ("qkv[block 1 of 3]",))
    report = noise.compare_trees({"q": q, "k": -k, "v": v}, {"qkv": fused})
    assert (report.first.name, report.first.reference) == ("k", "qkv[block 1 of 3]")
    assert report.first.hint == "a constant factor of -1"


def test_blocks_of_several_sizes_are_found():
    """Four heads of queries share one of keys and values."""
    fused = np.random.default_rng(0).normal(size=(24, 5))
    q, k, v = np.split(fused, (16, 20))
    assert noise.compare_trees({"q": q, "k": k, "v": v}, {"qkv": fused}).equal
    report = noise.compare_trees({"q": q, "v": v}, {"qkv": fused})
    assert report.unmatched == ((), ("qkv[block 4 of 6]",))
    padded = noise.compare_trees({"q": q}, {"q": np.pad(q, ((0, 3), (0, 0)))})
    assert padded.unmatched == ((), ("q[16:19 of axis 0]",))


def test_every_array_of_equal_blocks_is_used():
    separate = {f"{i}.{n}": np.zeros(4) for i in range(2) for n in "qkv"}
    fused = {f"{i}.qkv": np.zeros(12) for i in range(2)}
    assert noise.compare_trees(separate, fused).equal
    assert noise.compare_trees(fused, separate).equal


@pytest.mark.parametrize("order", [(0, 2, 1), (2, 1, 0), (1, 2, 0)])
def test_layers_in_another_order_are_told(order):
    layers = np.random.default_rng(0).normal(size=(3, 4, 6))
    there = {f"h.{i}.fc.weight": x.T for i, x in enumerate(layers)}
    assert noise.compare_trees({"blocks": {"kernel": layers}}, there).equal
    moved = layers[np.array(order)]
    stacked = noise.compare_trees({"blocks": {"kernel": moved}}, there)
    apart = noise.compare_trees(
        {f"h_{i}": {"fc": {"kernel": x}} for i, x in enumerate(moved)}, there
    )
    first = min(i for i in range(3) if order[i] != i)
    for report in (stacked, apart):
        assert not report.equal
        named = f"h.{first}.fc.weight"
        assert report.first.hint == f"exchanged: by its name this is {named}"


def test_names_that_count_from_another_number_are_no_exchange():
    rng = np.random.default_rng(0)
    arrays = [(rng.normal(size=(3, 3, 4, 4)), rng.normal(size=4)) for _ in range(3)]
    here = {f"Conv_{i}": {"kernel": k, "bias": b} for i, (k, b) in enumerate(arrays)}
    there = {}
    for i, (k, b) in enumerate(arrays):
        there |= {
            f"conv{i + 1}.weight": k.transpose(3, 2, 0, 1),
            f"conv{i + 1}.bias": b,
        }
    assert noise.compare_trees(here, there).equal


def test_exchanged_layers_of_equal_shapes_are_told():
    q, k = np.random.default_rng(0).normal(size=(2, 4, 4))
    here = {"attention": {"query": {"kernel": k}, "key": {"kernel": q}}}
    there = {"attention.query.weight": q.T, "attention.key.weight": k.T}
    report = noise.compare_trees(here, there)
    assert not report.equal
    assert "exchanged" in str(report)


def test_exchanged_layers_of_other_names_are_told_by_most_numbers():
    """Two layers of a conversion from `h.1` to `layers_1` were exchanged, and equal."""
    layers = np.random.default_rng(0).normal(size=(5, 4, 4))
    here = {f"layers_{i}": {"kernel": x} for i, x in enumerate(layers)}
    there = {f"h.{i}.weight": x.T for i, x in enumerate(layers[[0, 3, 2, 1, 4]])}
    report = noise.compare_trees(here, there)
    assert not report.equal
    assert report.first.hint == "exchanged: by its name this is h.1.weight"
    for numbers in (range(0, 10, 2), [0, 2, 1, 4, 3]):  # Most have another number.
        pairs = zip(numbers, layers, strict=True)
        assert noise.compare_trees(here, {f"h.{i}.weight": x.T for i, x in pairs}).equal


def test_one_layer_whose_names_say_nothing_is_paired_as_the_others():
    rng = np.random.default_rng(0)
    layers = [dict(zip("qv", rng.normal(size=(2, 4, 4)), strict=True)) for _ in "123"]
    there = {f"h.{i}.{n}": x.T for i, w in enumerate(layers) for n, x in w.items()}

    def tree(layers):
        return [{"query": w["q"], "value": w["v"]} for w in layers]

    assert noise.compare_trees(tree(layers), there).equal
    layers[1] = {"q": layers[1]["v"], "v": layers[1]["q"]}
    report = noise.compare_trees(tree(layers), there)
    assert not report.equal
    assert report.first.hint == "exchanged: by its name this is h.1.q"


@pytest.mark.parametrize("name", ["query", "out"])
def test_a_transposed_square_among_split_heads_is_told(name):
    """Heads are first in one kernel and last in another, and both are squares."""
    rng = np.random.default_rng(0)
    layers = [dict(zip(("query", "out"), rng.normal(size=(2, 8, 8)), strict=True))]
    layers += [{n: rng.normal(size=(8, 8)) for n in layers[0]} for _ in range(2)]
    there = {f"{i}.{n}.weight": x.T for i, w in enumerate(layers) for n, x in w.items()}

    def tree(layers):
        return [
            {"query": w["query"].reshape(8, 2, 4), "out": w["out"].reshape(2, 4, 8)}
            for w in layers
        ]

    assert noise.compare_trees(tree(layers), there).equal
    layers[1][name] = layers[1][name].T
    report = noise.compare_trees(tree(layers), there)
    assert not report.equal
    assert report.first.name == f"1/{name}"
    assert report.first.hint == "transposed: the others have another order of axes"


def test_a_scalar_is_paired_with_an_array_of_one_number():
    assert noise.compare_trees(
        {"scale": np.float32(4.6)}, {"scale": np.full(1, 4.6, "f4")}
    ).equal


def test_weights_without_elements_are_equal():
    tree = {"empty": np.zeros((0, 3), "f4"), "w": np.ones((2, 3), "f4")}
    assert noise.compare_trees(tree, dict(tree)).equal


def test_bfloat16_in_a_file_of_arrays_is_refused(tmp_path):
    path = tmp_path / "weights.npz"
    np.savez(path, w=np.asarray(jnp.ones(3, jnp.bfloat16)))
    with pytest.raises(noise.NoiseError, match=r"w is of type .*bfloat16 as float32"):
        noise.compare_trees({"w": np.ones(3, "f4")}, path)


@pytest.mark.parametrize("stacked", [False, True])
def test_scales_that_are_nearly_one_are_paired_by_their_numbers(stacked):
    """`LayerNorm_1` here resembles `norm1` there, which is another layer."""
    scales = 1 + 1e-3 * np.random.default_rng(0).normal(size=(12, 8))
    there = {f"norm{i + 1}.weight": x for i, x in enumerate(scales)}
    here = {f"LayerNorm_{i}": {"scale": x} for i, x in enumerate(scales)}
    assert noise.compare_trees({"scale": scales} if stacked else here, there).equal


@pytest.mark.parametrize("sizes", [(8, 8, 8, 8), (16, 8, 8, 4)])
def test_a_decoder_that_counts_from_the_other_end_is_no_exchange(sizes):
    rng = np.random.default_rng(0)
    layers = [rng.normal(size=(2, n, n)) for n in sizes]
    here = {
        f"decoder_{i}": {f"conv_{j}": {"kernel": x} for j, x in enumerate(both)}
        for i, both in enumerate(layers)
    }
    there = {
        f"decoder.{i}.conv.{j}.weight": x.T
        for i, both in enumerate(layers[::-1])
        for j, x in enumerate(both)
    }
    report = noise.compare_trees(here, there)
    assert report.equal
    assert "decoder_0/conv_0/kernel is decoder.3.conv.0.weight; the port is" in str(
        report
    )


def test_a_reversed_stack_is_told():
    layers = np.random.default_rng(0).normal(size=(5, 4, 6))
    there = {f"h.{i}.fc.weight": x.T for i, x in enumerate(layers)}
    report = noise.compare_trees({"blocks": {"kernel": layers[::-1]}}, there)
    assert report.first.hint.startswith("exchanged")


def test_parts_of_a_joined_weight_may_be_in_any_order():
    """Some kernels read the third weight of Llama's MLP before the first."""
    first, third = np.random.default_rng(0).normal(size=(2, 4, 6))
    here = {"w31": np.concatenate([third, first], 1)}
    assert noise.compare_trees(here, {"w1.weight": first.T, "w3.weight": third.T}).equal


@pytest.mark.parametrize("count", [2, 3])
def test_an_exchange_in_every_layer_is_left_to_the_reader(count):
    """Two layers that count from the other end look like an exchange of two layers."""
    layers = np.random.default_rng(0).normal(size=(count, 4, 4))
    here = {f"block_{i}": {"kernel": x} for i, x in enumerate(layers)}
    there = {f"block.{count - 1 - i}.weight": x.T for i, x in enumerate(layers)}
    report = noise.compare_trees(here, there)
    assert report.first.hint.startswith("exchanged")
    assert "the port is right if it also uses these weights in each" in str(report)
    renamed = {f"block.{i}.weight": x.T for i, x in enumerate(layers)}
    assert not noise.compare_trees(here, renamed).notes


def test_numbers_whose_squares_overflow_are_compared():
    square, bias = np.random.default_rng(0).normal(size=(2, 3, 3)) * 1e200
    here = {"a": {"kernel": square}, "b": {"kernel": bias}}
    there = {"a.weight": square.T, "b.weight": bias.T}
    report = noise.compare_trees(here, there)
    assert report.equal
    assert {p.layout for p in report.pairs} == {"2 axes: reference.transpose(1, 0)"}


def test_only_weights_of_nearly_equal_extremes_are_sorted(monkeypatch):
    """Every weight was sorted with every other: 400 weights took half a minute."""
    sorted_pairs = []
    same = weight_pairs.same_content
    monkeypatch.setattr(
        weight_pairs, "same_content", lambda x, y: sorted_pairs.append(1) or same(x, y)
    )
    kernels = np.random.default_rng(0).normal(size=(50, 4, 4))
    here = {
        f"layers_{i}": {"kernel": x, "bias": np.zeros(4)} for i, x in enumerate(kernels)
    }
    there = {f"layers.{i}.weight": x.T for i, x in enumerate(kernels)}
    there |= {f"layers.{i}.bias": np.zeros(4) for i in range(50)}
    assert noise.compare_trees(here, there).equal
    assert len(sorted_pairs) < 3 * 50


def cell(kinds, *layers):
    """PyTorch's weights of a recurrent network with 3 gates of 4 units."""
    rng = np.random.default_rng(3)
    shapes = {"weight_ih": (12, 5), "weight_hh": (12, 4), "bias_ih": 12, "bias_hh": 12}
    return {
        f"rnn.{kind}_{layer}": rng.normal(size=shapes[kind])
        for layer in layers
        for kind in kinds
    }


def test_biases_that_a_port_has_added_are_paired_with_their_sum():
    """PyTorch's recurrent cells have two biases, which others keep as their sum.

    The third gate of a GRU has both.
    """
    there = cell(["weight_ih", "weight_hh", "bias_ih", "bias_hh"], "l0")
    ih, hh = (np.split(there[f"rnn.bias_{kind}_l0"], 3) for kind in ("ih", "hh"))
    here = {
        "wi": there["rnn.weight_ih_l0"].T,
        "wh": there["rnn.weight_hh_l0"].T,
        **{"ir": ih[0] + hh[0], "iz": ih[1] + hh[1], "in": ih[2], "hn": hh[2]},
    }
    report = noise.compare_trees(here, there)
    assert report.equal
    sums = {p.name: p.reference for p in report.pairs}
    assert sums["ir"] == "(rnn.bias_hh_l0[block 0 of 3] + rnn.bias_ih_l0[block 0 of 3])"
    assert noise.compare_trees(there, here).equal
    whole = {"wi": here["wi"], "bias": np.concatenate(ih) + np.concatenate(hh)}
    halves = {k: x for k, x in there.items() if k != "rnn.weight_hh_l0"}
    assert noise.compare_trees(whole, halves).equal
    here["ir"] = here["ir"] * 1.02
    report = noise.compare_trees(here, there)
    assert report.first.name == "ir"
    assert not report.equal


def test_biases_of_two_layers_are_no_sum():
    there = cell(["bias_ih", "bias_hh"], "l0", "l0_reverse", "l1", "l1_reverse")

    def added(one, other):
        return there[f"rnn.bias_ih_{one}"] + there[f"rnn.bias_hh_{other}"]

    layers = ("l0", "l0_reverse", "l1", "l1_reverse")
    right = {f"bias_{layer}": added(layer, layer) for layer in layers}
    assert noise.compare_trees(right, there).equal
    for one, other in (("l0", "l1"), ("l0", "l0_reverse")):
        crossed = {f"bias_{one}": added(one, other), f"bias_{other}": added(other, one)}
        report = noise.compare_trees(right | crossed, there)
        wrong = {p.name for p in report.pairs if p.rung == "beyond"}
        assert wrong == set(crossed)
    both = {"bias": there["rnn.bias_ih_l0"] + there["rnn.bias_ih_l1"]}
    two = {name: there[name] for name in ("rnn.bias_ih_l0", "rnn.bias_ih_l1")}
    assert not noise.compare_trees(both, two).equal


@pytest.mark.parametrize("kind", [np.float32, np.int32])
def test_numbers_that_are_no_bias_have_no_sum(kind):
    """1 + 2 is 3 by chance."""
    size = 1 if kind == np.float32 else 3
    there = {"a.x": np.full(size, 1, kind), "a.y": np.full(size, 2, kind)}
    assert not noise.compare_trees({"z": np.full(size, 3, kind)}, there).equal


def test_distances_are_in_units_of_the_larger_norm():
    drawn = np.random.default_rng(0)
    x = [*drawn.normal(size=(3, 4, 5)), np.zeros((4, 5)), np.full((4, 5), 1e9)]
    x += [np.eye(4, 5, dtype=bool), np.ones((4, 5)) + 1j]
    y = [*drawn.normal(size=(3, 4, 5)), *(1.001 * v for v in x)]
    norm = np.linalg.norm
    expected = [
        [min(1, norm(a - b) / (max(norm(a), norm(b)) or 1)) for b in y] for a in x
    ]
    distances = weight_pairs.layouts.distances
    np.testing.assert_allclose(distances(x, y), expected, atol=1e-7)
    huge = [np.full(9, 1e200), np.full(9, np.nan)]
    np.testing.assert_allclose(distances(huge, huge), [[0, 1], [1, 0]], atol=1e-7)


def test_large_weights_of_other_numbers_are_paired_by_some_of_them(monkeypatch):
    """Every weight was compared in whole with every other: a large model took hours."""
    sizes, layouts = [], weight_pairs.layouts
    distances = layouts.distances
    monkeypatch.setattr(
        layouts, "distances", lambda x, y: sizes.append(x[0].size) or distances(x, y)
    )
    here, there = (
        {f"h{i}": x for i, x in enumerate(np.random.default_rng(k).normal(size=s))}
        for k, s in enumerate(((6, 200, 100), (6, 100, 200)))
    )
    report = noise.compare_trees(here, there)
    assert [(p.name, p.reference, p.rung) for p in report.pairs] == [
        (name, name, "beyond") for name in here
    ]
    assert sum(size > weight_pairs.SAMPLE for size in sizes) == len(here)


def test_equal_weights_are_paired_by_their_names():
    """12 of 20 weights of zeros were paired with those of other layers."""
    names = {f"conv2d_{i}/kernel:0": f"features.{i}.weight" for i in range(20)}
    shuffled = np.random.default_rng(0).permutation([*names.values()])
    here, there = ({n: np.zeros(8) for n in side} for side in (names, shuffled))
    pairs = noise.compare_trees(here, there).pairs
    assert {p.name: p.reference for p in pairs} == names
