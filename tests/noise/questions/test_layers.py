"""compare_layers: recorded PyTorch models, other namings, layouts, hints, refusals."""

import functools
import re

import equinox as eqx
import haiku as hk
import jax
import numpy as np
import pytest
from flax import linen as nn
from flax import nnx
from jax import numpy as jnp
from jax.ad_checkpoint import checkpoint_name

from prednet_jax import noise, weights
from prednet_jax.models import prednet
from prednet_jax.noise.__main__ import plain_data
from tests.accuracy import port_accuracy
from tests.processes import ROOT
from tests.weights import test_golden_keras, test_golden_pytorch

KEY = jax.random.key(0)
RECORDED = ROOT / "tests" / "golden" / "ports"
rng = np.random.default_rng(0)


@pytest.fixture(autouse=True)
def _same_numbers_whatever_ran_before():
    global rng
    rng = np.random.default_rng(0)


def normal(*shape):
    return rng.standard_normal(shape).astype(np.float32)


def reference_of(fn, *args):
    return {name: np.asarray(x) for name, x in fn(*args).items()}


# Networks that PyTorch 2.13.0 recorded, and the faults that are planted here.
@pytest.mark.parametrize(
    ("network", "fault", "first"),
    [
        ("mlp", "gelu", "act0"),
        pytest.param("cnn", "", None, marks=pytest.mark.slow),
        ("attention", "bfloat16", "mixed"),
        pytest.param("lstm", "gate order", "memory", marks=pytest.mark.slow),
        pytest.param("unet", "", None, marks=pytest.mark.slow),
        pytest.param("llama", "rms epsilon", "norm1", marks=pytest.mark.slow),
        pytest.param("vit", "positions shifted", "tokens", marks=pytest.mark.slow),
        pytest.param("gru", "update gate", "hidden", marks=pytest.mark.slow),
    ],
)
def test_a_recorded_pytorch_model(network, fault, first):
    report = port_accuracy.ask(network, RECORDED / f"{network}_0.npz", fault)
    assert (report.first and report.first.name) == first
    (lines,) = [x for name, x in port_accuracy.planted()[network] if name == fault] or [
        range(0)
    ]
    found = {int(re.match(r"ports\.py:(\d+) in ", x)[1]) for x in report.lines}
    assert bool(found & set(lines)) == bool(fault)


@pytest.mark.slow
def test_prednet_against_its_keras_original():
    gold, config, params, frames = test_golden_keras.load("B")
    names = [f"{kind}{layer}" for layer in range(3) for kind in ("R", "E", "A", "Ahat")]

    def fn(params, frames):
        return prednet.outputs(params, config, frames, [*names, "prediction"])[0]

    reference = {n: gold[f"seq/{n}"] for n in names}
    reference["prediction"] = gold["prediction"]
    report = noise.compare_layers(fn, reference)(KEY, params, frames)
    assert report.first is None
    assert report.layout == "5 axes: reference.transpose(1, 0, 2, 3, 4)"
    assert len(report.layers) == 13


@pytest.mark.slow
def test_prednet_against_its_pytorch_port():
    config, params = test_golden_pytorch.load("lotter_pytorch")
    recorded = np.load(test_golden_pytorch.GOLDEN / "lotter_pytorch.npz")
    largest = np.float32(weights.PORTS["lotter_pytorch"])

    def fn(params, frames):
        return prednet.outputs(params, config, frames)[0]

    there = {"prediction": recorded["predictions"] / largest}
    report = noise.compare_layers(fn, there)(KEY, params, recorded["frames"])
    assert report.first is None
    # The original's clipped predictions, a tenth of a per cent brighter.
    report = noise.compare_layers(fn, {"prediction": there["prediction"] * 1.001})(
        KEY, params, recorded["frames"]
    )
    assert report.first.hint == "a constant factor of 1.001"


def block(w, x):
    h = x @ w
    h = jax.nn.gelu(h)
    return {"up": x @ w, "act": h, "down": h @ w.T}


def wrong(w, x):
    up = x @ w
    act = jax.nn.gelu(up, approximate=False)
    return {"up": up, "act": act, "down": act @ w.T * 1.01}


def test_each_layer_is_judged_alone_and_both_faults_are_found():
    w, x = normal(8, 12), normal(5, 8)
    report = noise.compare_layers(wrong, reference_of(block, w, x))(KEY, w, x)
    assert [layer.is_beyond for layer in report.layers] == [False, True, True]
    up, act, down = report.layers
    assert up.rung in ("identical", "order", "rounding")
    assert report.first is act
    assert act.hint.startswith("another GELU: exact here, by tanh there")
    assert [line.split(" in ")[1] for line in act.lines] == ["wrong"]
    assert report.lines == act.lines
    assert down.hint == "a constant factor of 0.990099"
    assert down.difference == pytest.approx(0.0099, rel=0.02)
    assert act.ratio > 100
    assert "first layer beyond noise: act" in str(report)
    assert "arguments read: argument[0]" in str(report)
    assert plain_data(report)["first"]["name"] == "act"


def unclipped(w, x):
    h = x @ w
    return {"linear": h, "act": h, "down": h @ w.T}


@pytest.mark.parametrize("names", [("linear", "act"), ("act", "linear")])
def test_two_names_of_one_value_where_the_port_lacks_a_function(names):
    w, x = normal(8, 12), normal(5, 8)
    before, after = names
    reference = {before: x @ w, after: np.clip(x @ w, -1, 1)}
    reference["down"] = reference[after] @ w.T
    report = noise.compare_layers(unclipped, reference)(KEY, w, x)
    assert [layer.name for layer in report.layers if layer.is_beyond] == [after]
    assert "right up to: test_layers.py" in str(report)
    reference |= {after: reference[before], "down": reference[before] @ w.T}
    assert not noise.compare_layers(unclipped, reference)(KEY, w, x).first
    given = noise.compare_layers(lambda x: {"x": x, "y": x}, {"x": x, "y": x + 1})
    assert given(KEY, x).first.name == "y"


def test_a_mask_that_differs_is_beyond():
    def masked(w, x):
        return {"linear": x @ w, "mask": x @ w > 0}

    w, x = normal(8, 12), normal(5, 8)
    reference = masked(w, x) | {"mask": np.asarray(x @ w > 0.5)}
    assert noise.compare_layers(masked, reference)(KEY, w, x).first.name == "mask"


def test_a_layer_without_elements_agrees():
    def empty(w, x):
        return {"linear": x @ w, "rest": x[:0] @ w}

    w, x = normal(8, 12), normal(5, 8)
    report = noise.compare_layers(empty, empty(w, x))(KEY, w, x)
    assert [layer.rung for layer in report.layers] == ["identical"] * 2


def test_a_mutable_array_inside_of_a_layer_is_followed():
    """What was written to it was left out, so that right layers were beyond noise."""

    def port(w, x, factor=1.0):
        linear = x @ w
        kept = jax.new_ref(jnp.zeros_like(linear))
        jax.lax.fori_loop(0, 2, lambda i, _: kept.__setitem__(..., linear), None)
        act = jnp.tanh(kept[...])
        kept[:, 1] *= 2.0 * factor
        return {"linear": linear, "act": act, "out": jax.freeze(kept) + act}

    w, x = normal(8, 12), normal(5, 8)
    reference = reference_of(port, w, x)
    assert noise.compare_layers(port, reference)(KEY, w, x).first is None
    wrong = functools.partial(port, factor=1.1)
    report = noise.compare_layers(wrong, reference)(KEY, w, x)
    beyond = [layer.name for layer in report.layers if layer.rung == "beyond"]
    assert beyond == ["out"]


def test_no_alarm_for_another_order_of_sums():
    w, x = normal(64, 64) / 8, normal(32, 64)

    def deep(w, x):
        layers = {}
        for i in range(3):
            x = layers[f"h{i}"] = jnp.tanh(x @ w)
        return layers

    noisy = noise.inject(deep, noise.parse("reduction_order:granularity=element+ulp"))
    reference = reference_of(lambda *args: noisy(jax.random.key(7), *args), w, x)
    report = noise.compare_layers(deep, reference)(KEY, w, x)
    assert report.first is None
    assert report.lines == ()
    assert all(0 < layer.ratio < 4 for layer in report.layers)


class Linen(nn.Module):
    @nn.compact
    def __call__(self, x):
        x = nn.relu(nn.Dense(8, name="fc1")(x))
        self.sow("intermediates", "act", x)
        return nn.Dense(3, name="fc2")(x)


class Nnx(nnx.Module):
    def __init__(self):
        self.fc1 = nnx.Linear(6, 8, rngs=nnx.Rngs(0))
        self.fc2 = nnx.Linear(8, 3, rngs=nnx.Rngs(1))

    def __call__(self, x):
        for name in ("fc1", "fc2"):
            x = getattr(self, name)(x)
            self.sow(nnx.Intermediate, name, x)
        return x


def from_linen():
    model, x = Linen(), normal(4, 6)
    params = model.init(KEY, x)

    def fn(params, x):
        return model.apply(
            params, x, capture_intermediates=True, mutable=["intermediates"]
        )

    found = fn(params, x)[1]["intermediates"]
    reference = {n: found[n]["__call__"][0] for n in ("fc1", "fc2")}
    return fn, reference | {"act": found["act"][0]}, (params, x)


def from_nnx():
    model, x = Nnx(), normal(4, 6)

    def fn(model, x):
        return nnx.capture(model, nnx.Intermediate)(x)

    return fn, {"net.fc1": model.fc1(x), "net.fc2": model.fc2(model.fc1(x))}, (model, x)


def from_haiku():
    def forward(x):
        h = hk.Linear(8, name="fc1")(x)
        return {"net/~/fc1": h, "net/~/fc2": hk.Linear(3, name="fc2")(h)}

    model, x = hk.without_apply_rng(hk.transform(forward)), normal(4, 6)
    params = model.init(KEY, x)
    found = model.apply(params, x)
    reference = {"net.fc1": found["net/~/fc1"], "net.fc2": found["net/~/fc2"]}
    return model.apply, reference, (params, x)


def from_equinox():
    model, x = eqx.nn.MLP(6, 3, 8, 1, key=KEY), normal(4, 6)
    arrays, static = eqx.partition(model, eqx.is_array)

    def fn(arrays, x):
        model = eqx.combine(arrays, static)
        h = jax.vmap(model.layers[0])(x)
        return {".layers[0]": h, ".layers[1]": jax.vmap(model.layers[1])(h)}

    found = fn(arrays, x)
    reference = {"layers.0": found[".layers[0]"], "layers.1": found[".layers[1]"]}
    return fn, reference, (arrays, x)


@pytest.mark.parametrize("make", [from_linen, from_nnx, from_haiku, from_equinox])
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_names_of_every_library(make):
    fn, reference, args = make()
    last = list(reference)[-1 if make is not from_linen else 1]
    with jax.numpy_dtype_promotion("standard"):
        report = noise.compare_layers(fn, reference)(KEY, *args)
        assert report.first is None
        assert len(report.layers) == len(reference)
        assert report.unmatched[1] == ()
        wrong = {**reference, last: np.asarray(reference[last]) * np.float32(1.001)}
        report = noise.compare_layers(fn, wrong)(KEY, *args)
    assert report.first.reference == last
    assert report.first.hint == "a constant factor of 1.001"


def recurrent(w, xs):
    def step(h, x):
        h = checkpoint_name(jnp.tanh(w @ h + x), "h")
        return h, 2 * h

    return jax.lax.scan(step, jnp.zeros(4), xs)[1]


@pytest.mark.parametrize("stacked", [True, False])
def test_a_name_in_a_loop_has_a_value_for_each_step(stacked):
    w, xs = normal(4, 4), normal(6, 4)
    states = np.asarray(recurrent(w, xs)) / 2
    # What a fault at step 3 does to all later steps.
    h = states[2]
    for t in range(3, 6):
        h = np.tanh(w @ h + xs[t]) * (np.float32(1.001) if t == 3 else 1)
        states[t] = h
    reference = {f"h.{t}": state for t, state in enumerate(states)}
    reference = {"h": states} if stacked else reference
    report = noise.compare_layers(recurrent, reference)(KEY, w, xs)
    first = report.first
    assert first.name == ("h" if stacked else "h/3")
    assert "a constant factor of 1.001" in first.hint
    assert ("first at step 3" in first.hint) == stacked
    assert [x.name for x in report.layers if x.is_beyond] == [first.name]
    assert any(line.endswith(" in step") for line in report.lines)


def convolutions(x, k, extra=None):
    layers = {}
    for i in range(2):
        x = layers[f"conv{i}"] = jax.lax.conv_general_dilated(
            x, k, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC")
        )
    return layers


def test_one_order_of_axes_is_found_for_all_layers_and_printed():
    x, k = normal(2, 6, 6, 6), normal(3, 3, 6, 6) / 7
    there = {n: v.transpose(0, 3, 1, 2) for n, v in convolutions(x, k).items()}
    report = noise.compare_layers(convolutions, there)(KEY, x, k)
    assert report.first is None
    assert report.layout == "4 axes: reference.transpose(0, 2, 3, 1)"
    assert report.layout in str(report)
    # In one layer alone, with all axes alike, it is a fault.
    there["conv1"] = np.asarray(there["conv1"]).swapaxes(2, 3)
    report = noise.compare_layers(convolutions, there)(KEY, x, k)
    assert report.first.name == "conv1"
    assert report.first.hint == (
        "the same numbers in another order: axes 1 and 2 transposed"
    )


def test_the_order_of_axes_is_found_where_the_first_layer_is_wrong():
    x, k = normal(2, 6, 6, 6), normal(3, 3, 6, 6) / 7

    def four(x, k):
        first = convolutions(x, k)
        return first | {
            f"after_{n}": v for n, v in convolutions(first["conv1"], k).items()
        }

    there = {n: v.transpose(0, 3, 1, 2) for n, v in four(jnp.roll(x, 1, 1), k).items()}
    report = noise.compare_layers(four, there)(KEY, x, k)
    assert report.layout == "4 axes: reference.transpose(0, 2, 3, 1)"
    assert [layer.name for layer in report.layers if layer.is_beyond] == ["conv0"]


class Classifier(nn.Module):
    axis: int = -1
    narrow: bool = False

    @nn.compact
    def __call__(self, x):
        x = nn.relu(nn.Dense(8)(x))
        x = nn.Dense(4, dtype=jnp.bfloat16 if self.narrow else None)(x)
        return nn.log_softmax(x.astype(jnp.float32), self.axis)


@pytest.mark.parametrize("fault", [{}, {"axis": 0}, {"narrow": True}])
def test_the_result_is_compared_and_narrow_layers_are_named(fault):
    x = normal(5, 6)
    params = Classifier().init(KEY, x)
    right, wrong = (
        functools.partial(model.apply, capture_intermediates=True)
        for model in (Classifier(), Classifier(**fault))
    )
    result, captured = right(params, x)
    layers = captured["intermediates"]
    recorded = {n: layers[n]["__call__"][0] for n in ("Dense_0", "Dense_1")}
    reference = recorded | {"model": result}
    report = noise.compare_layers(wrong, reference)(KEY, params, x)
    first = report.first and report.first.name
    if "narrow" in fault:
        assert first == "Dense_1"
        assert report.first.rung in ("bf16", "casts")
    else:
        assert (first is None) == (not fault), report
        assert not fault or any(" in __call__" in line for line in report.lines)


def test_merged_heads_are_found():
    x = normal(2, 5, 12)

    def heads(x):
        q = 2 * x.reshape(2, 5, 3, 4).swapaxes(1, 2)
        return {"q": q, "k": 3 * q}

    there = {"q": 2 * x, "k": 6 * x}
    report = noise.compare_layers(heads, there)(KEY, x)
    assert report.first is None
    assert report.layout == "3 axes split to 4: (0, 2, 1, 3)"


CHANGES = {
    "reversed along axis 2": lambda v: v[..., ::-1],
    "halves of axis 2 swapped": lambda v: np.roll(v, 4, 2),
    "4 blocks (gates) of axis 2 swapped": lambda v: v[..., [0, 1, 4, 5, 2, 3, 6, 7]],
    "axis 2 interleaved, 2 by 4": lambda v: v[..., [0, 2, 4, 6, 1, 3, 5, 7]],
    "axes 0 and 1 transposed": lambda v: v.swapaxes(0, 1),
    "shifted by one along axis 1": lambda v: np.concatenate(
        [0 * v[:, :1], v[:, :-1]], 1
    ),
    "a constant factor of 1.25": lambda v: v * np.float32(1.25),
    "an offset of 0.5": lambda v: v + np.float32(0.5),
    "NaN or infinite in the reference alone, in 1 of 288": lambda v: np.where(
        np.arange(v.size).reshape(v.shape) == 3, np.float32(np.nan), v
    ),
}


@pytest.mark.parametrize("hint", CHANGES)
def test_what_the_numbers_show_is_a_hint_and_never_equality(hint):
    x = normal(6, 6, 8)
    other = normal(4, 6, 8)

    def layer(x, other):
        return {"y": 3 * x, "z": 3 * other}

    there = reference_of(layer, x, other)
    there["y"] = CHANGES[hint](there["y"])
    report = noise.compare_layers(layer, there)(KEY, x, other)
    assert report.first.name == "y"
    assert report.first.rung == "beyond"
    assert hint in report.first.hint


def normalise(x, w, eps):
    h = (x - x.mean(-1, keepdims=True)) / jnp.sqrt(x.var(-1, keepdims=True) + eps)
    return {"y": h @ w}


def test_hints_that_the_lines_show():
    x, w = normal(5, 8) / 10, normal(8, 8)
    there = reference_of(normalise, x, w, 1e-5)
    report = noise.compare_layers(lambda x, w: normalise(x, w, 1e-3), there)(KEY, x, w)
    assert report.first.hint.startswith("another epsilon: 0.001 here, 1e-05 there, at ")
    report = noise.compare_layers(lambda x, w: normalise(x, w.T, 1e-5), there)(
        KEY, x, w
    )
    assert report.first.hint.startswith("a transposed square matrix, at ")


@pytest.mark.parametrize("eps", [0, 1e-6])
def test_an_epsilon_is_a_hint_where_it_looks_like_a_factor(eps):
    """Rows with nearly the same variance."""
    x = normal(12, 64)
    sizes = np.linspace(0.95, 1.05, 12, dtype="f4")[:, None]
    x, w = x / x.std(-1, keepdims=True) * sizes, np.eye(64, dtype="f4")
    there = reference_of(normalise, x, w, eps)
    report = noise.compare_layers(lambda x, w: normalise(x, w, 1e-5), there)(KEY, x, w)
    assert f"another epsilon: 1e-05 here, {eps:.2g} there" in report.first.hint


def test_a_large_mask_hides_nothing():
    x = normal(6, 6)
    mask = np.tril(np.ones((6, 6), bool))

    def scores(x, factor=2.0):
        return {"scores": jnp.where(mask, factor * x, -1e9)}

    there = reference_of(scores, x, 2.0001)
    report = noise.compare_layers(scores, there)(KEY, x)
    assert report.first.hint == "a constant factor of 1.00005"


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_an_equal_nan_or_infinity_hides_nothing(value):
    x = normal(16, 16)

    def port(x, kind=jnp.bfloat16, factor=1.0):
        first = jnp.asarray(x, kind).at[2, 3].set(value)
        return {"first": first, "second": first.astype(np.float32) * factor}

    there = reference_of(functools.partial(port, kind=np.float32), x)
    report = noise.compare_layers(port, there)(KEY, x)
    assert [layer.is_beyond for layer in report.layers] == [True, False]
    exact = functools.partial(port, kind=np.float32, factor=1.25)
    assert noise.compare_layers(exact, there)(KEY, x).first.hint == (
        "a constant factor of 0.8"
    )


def call_site(x):
    def scaled(x, factor):
        return jnp.sin(factor * x)

    first = scaled(x, 2.0)
    second = scaled(first, 3.0)  # Here is the fault.
    return {"first": first, "second": second}


def test_lines_that_call_a_shared_function_are_named():
    x = normal(4, 4)
    there = {"first": np.sin(2 * x), "second": np.sin(3.1 * np.sin(2 * x))}
    report = noise.compare_layers(call_site, there)(KEY, x)
    assert [line.split(" in ")[1] for line in report.lines] == ["scaled", "call_site"]


def test_unmatched_names_are_listed_and_others_can_be_given():
    w, x = normal(8, 12), normal(5, 8)
    there = reference_of(block, w, x)
    there["mlp.activation"] = there.pop("act")
    report = noise.compare_layers(block, there)(KEY, w, x)
    assert report.unmatched == (("act",), ("mlp.activation",))
    assert "unmatched there: mlp.activation" in str(report)
    assert "no layer is beyond noise among those compared" in str(report)
    names = {"act": "mlp.activation"}
    report = noise.compare_layers(block, there, names=names)(KEY, w, x)
    assert report.unmatched == ((), ())
    assert report.first is None
    assert "among those compared" not in str(report)


def test_a_file_of_the_reference(tmp_path):
    w, x = normal(8, 12), normal(5, 8)
    np.savez(tmp_path / "reference.npz", **reference_of(block, w, x))
    report = noise.compare_layers(block, tmp_path / "reference.npz")(KEY, w, x)
    assert len(report.layers) == 3


@pytest.mark.parametrize(
    ("reference", "names", "message"),
    [
        ({}, None, "reference: empty: expected arrays by name"),
        ("absent.npz", None, "absent.npz: expected a file of arrays as numpy.savez"),
        ([1], None, "reference: list: expected arrays by name, or an .npz file"),
        (
            {"a": np.array(["x"])},
            None,
            r"reference: a is array\(\['x'\].*expected numbers",
        ),
        (
            {"a": np.ones(3)},
            None,
            "no name in common: here act, down, up; in the ref.* such as names=",
        ),
        ({"up": np.ones(3)}, {"upp": "up"}, "'upp' is not here: .* nearest is 'up'"),
        ({"up": np.ones(3)}, {"up": "u"}, "'u' is not in the reference: expected one"),
        ({"up": np.ones((5, 11))}, None, r"up has the shape \(5, 12\), and up of the"),
    ],
)
def test_what_is_refused(reference, names, message):
    w, x = normal(8, 12), normal(5, 8)
    with pytest.raises(noise.NoiseError, match=message):
        noise.compare_layers(block, reference, names=names)(KEY, w, x)


def test_names_inside_a_branch_are_said_not_to_be_seen():
    def fn(x):
        def body(x):
            return checkpoint_name(x + 1, "inner")

        return {"y": jax.lax.cond(x[0] > 0, body, lambda x: x, x)}

    x = np.ones(3, np.float32)
    report = noise.compare_layers(fn, {"y": x + 1})(KEY, x)
    assert report.notes == ("not seen, inside a branch or a while loop: inner",)


def test_layers_of_squares_that_share_no_order_of_axes():
    """One order fits all, another as many others; this ended in an assertion."""
    x = normal(4, 4)

    def layers(x):
        return {"a": 2 * x, "b": 3 * x[:, :3], "c": 4 * jnp.tile(x, (1, 2))[:, :5].T}

    there = reference_of(layers, x)
    there["c"] = there["c"].T
    assert noise.compare_layers(layers, there)(KEY, x).first is None


class Shared(nn.Module):
    """One module that is called twice."""

    @nn.compact
    def __call__(self, x):
        act = nn.Dense(6, name="act")
        return nn.relu(act(nn.relu(act(x))))


def test_calls_of_one_module_are_counted_from_0():
    x = normal(5, 6)
    params = Shared().init(KEY, x)
    call = functools.partial(Shared().apply, capture_intermediates=True)
    result, captured = call(params, x)
    calls = captured["intermediates"]["act"]["__call__"]
    recorded = {f"act/{i}": y for i, y in enumerate(calls)} | {"model": result}
    report = noise.compare_layers(call, recorded)(KEY, params, x)
    assert [layer.name for layer in report.layers] == ["act/0", "act/1", "result"]
    assert report.unmatched == ((), ())


def test_a_right_layer_after_a_narrow_one_is_not_accused():
    """It read the reference's value rounded to bfloat16, and was `beyond`."""
    w, x = normal(16, 16) / 4, normal(32, 16)

    def port(w, x, kind=jnp.bfloat16, factor=1.0):
        first = jnp.tanh(x.astype(kind) @ w.astype(kind))
        second = first.astype(np.float32) @ w * np.float32(factor)
        return {"first": first, "second": second, "third": jnp.sin(second)}

    there = reference_of(functools.partial(port, kind=np.float32), w, x)
    report = noise.compare_layers(port, there)(KEY, w, x)
    assert [layer.is_beyond for layer in report.layers] == [True, False, False]
    assert report.first.rung == "bf16"
    wrong = noise.compare_layers(functools.partial(port, factor=1.2), there)(KEY, w, x)
    assert wrong.layers[1].is_beyond


@pytest.mark.parametrize("scale", [1e-3, 1.0])
def test_zeros_before_a_layer_hide_no_fault_of_it(scale):
    """Zeros of bfloat16 moved like rounded numbers: small layers could be all wrong."""
    w, x = normal(16, 16) / 4, normal(32, 16) * np.float32(scale)

    def port(w, x, kind=jnp.bfloat16, factor=1.0):
        first = jax.nn.relu(x.astype(kind))
        second = first.astype(np.float32) @ w * np.float32(factor)
        return {"first": first, "second": second}

    there = reference_of(functools.partial(port, kind=np.float32), w, x)
    for factor, wrong in ((1.0, False), (1.1, True)):
        fn = functools.partial(port, factor=factor)
        layers = noise.compare_layers(fn, there)(KEY, w, x).layers
        assert layers[1].is_beyond == wrong


@pytest.mark.parametrize("wrong", [1.0, 1.01])
def test_numbers_of_a_narrow_reference_are_named(wrong):
    w, x = normal(12, 12), normal(5, 12)

    def port(x):
        first = x @ w
        return {"first": first, "second": jnp.tanh(first) * wrong}

    there = {n: v.astype(np.float16) for n, v in reference_of(port, x).items()}
    there["second"] = (np.float32(there["second"]) / wrong).astype(np.float16)
    first, second = noise.compare_layers(port, there)(KEY, x).layers
    assert (first.rung, first.hint) == ("fp16", "fp16 on one side alone")
    if wrong == 1.0:
        assert second.rung == "fp16"
    else:
        assert second.rung == "beyond"
        assert "the reference has numbers of fp16" in second.hint


def test_few_numbers_that_differ_are_counted():
    x = normal(6, 8)

    def port(x):
        return {"first": jnp.sin(x), "second": jnp.cos(x)}

    one, row = reference_of(port, x), reference_of(port, x)
    one["second"] = one["second"].copy()
    one["second"][2, 3] += 0.1
    row["second"] = row["second"].copy()
    row["second"][5] += np.linspace(0.1, 0.2, 8, dtype=np.float32)
    layer = noise.compare_layers(port, one)(KEY, x).first
    assert (layer.name, layer.hint) == ("second", "in 1 of 48 numbers alone, at (2, 3)")
    layer = noise.compare_layers(port, row)(KEY, x).first
    assert layer.hint == "in 8 of 48 numbers alone, at 5 of axis 0"


def test_one_layer_may_have_an_order_of_axes_of_its_own():
    """Channels are first there, but last around a normalisation; all sizes agree."""
    x, k = normal(6, 6, 6, 6), normal(6, 6)

    def port(x, wrong=None):
        first = jnp.tanh(x @ k)
        norm = jax.nn.standardize(first, -2 if wrong == "norm" else -1)
        dense = norm @ k
        last = jnp.sin(dense.swapaxes(1, 2) if wrong == "last" else dense)
        return {"first": first, "norm": norm, "dense": dense, "last": last}

    there = reference_of(port, x)
    for name in ("first", "dense", "last"):
        there[name] = there[name].transpose(0, 3, 1, 2)
    for wrong in (None, "norm", "last"):
        fn = functools.partial(port, wrong=wrong)
        first = noise.compare_layers(fn, there)(KEY, x).first
        assert (first and first.name) == wrong


def test_lines_inside_a_loop_are_among_the_lines():
    w, x = normal(6, 6), normal(4, 3, 6)

    def port(x, bias=0.0):
        def step(h, x):
            mixed = h @ w + x
            h = jnp.tanh(mixed + bias)  # the line
            return h, h

        last, _ = jax.lax.scan(step, jnp.zeros((3, 6)), x)
        return {"last": last, "head": last @ w}

    there = reference_of(port, x)
    report = noise.compare_layers(functools.partial(port, bias=0.1), there)(KEY, x)
    assert report.first.name == "last"
    with open(__file__) as file:
        (line,) = [i for i, x in enumerate(file, 1) if x.endswith("# the line\n")]
    assert any(f":{line} in step" in x for x in report.lines)


def test_missing_columns_are_no_rounding_and_small_numbers_are():
    """A zero has no step of a format, and below normal numbers the steps are equal."""
    x = np.random.default_rng(0).uniform(0.001, 0.0035, (8, 16)).astype(np.float32)

    def port(x):
        return {"first": x * 1.0}

    there = np.asarray(jnp.asarray(x, jnp.bfloat16).astype(jnp.float32))
    assert noise.compare_layers(port, {"first": there})(KEY, x).layers[0].rung == "bf16"
    there = there.copy()
    there[:, 3:9] = 0
    assert noise.compare_layers(port, {"first": there})(KEY, x).layers[0].is_beyond
    small = normal(8, 16) * np.float32(1e-4)
    there = {"first": small.astype(np.float16).astype(np.float32)}
    assert noise.compare_layers(port, there)(KEY, small).layers[0].rung == "fp16"


def half_network(w, x, factor=1.0):
    first = x @ w
    act = jax.nn.gelu(first) * factor
    norm = jax.nn.standardize(act @ w, epsilon=1e-5)
    return {"first": first, "act": act, "norm": norm, "last": jax.nn.softmax(norm @ w)}


@pytest.mark.parametrize("kind", [np.float16, jnp.bfloat16])
@pytest.mark.parametrize("stored", [True, False])
def test_layers_of_a_reference_in_half_precision_are_not_accused(kind, stored):
    """A layer read numbers that the recording had rounded, and was `beyond`."""
    w, x = normal(32, 32) / 6, normal(8, 32)
    there = {n: v.astype(kind) for n, v in reference_of(half_network, w, x).items()}
    if not stored:
        there = {n: v.astype(np.float32) for n, v in there.items()}
    name = "fp16" if kind is np.float16 else "bf16"
    report = noise.compare_layers(half_network, there)(KEY, w, x)
    assert [layer.rung for layer in report.layers] == [name] * 4
    wrong = functools.partial(half_network, factor=1.05)
    report = noise.compare_layers(wrong, there)(KEY, w, x)
    assert [x.name for x in report.layers if x.rung == "beyond"] == ["act"]
    assert "a constant factor of 0.95" in report.layers[1].hint


@pytest.mark.parametrize("factor", [0.998, 1.001, 1.002])
def test_a_factor_of_whole_numbers_is_no_format(factor):
    """Pixels are numbers of bfloat16, and the factor moved them by less than a step."""
    pixels = rng.integers(0, 256, (16, 24)).astype(np.float32)
    column = np.ones(24, np.float32)
    column[5] = factor
    for scale, hint in (
        (np.float32(factor), f"a constant factor of {1 / factor:.6g}"),
        (column, f"a factor of {1 / factor:.6g} at 5 of axis 1"),
        (np.linspace(1, factor, 24), "a factor for each index of axis 1, "),
    ):

        def port(x, scale=scale):
            return {"input": x * jnp.asarray(scale, jnp.float32), "sin": jnp.sin(x)}

        report = noise.compare_layers(port, {"input": pixels})(KEY, pixels)
        assert report.first.rung == "beyond"
        assert hint in report.first.hint


def test_a_bias_that_is_missing_is_an_offset_along_an_axis():
    x, w, bias = normal(16, 12), normal(12, 8), normal(8)

    def port(w, x):
        return {"first": x @ w}

    there = {"first": x @ w + bias}
    report = noise.compare_layers(port, there)(KEY, w, x)
    assert "an offset for each index of axis 1" in report.first.hint


def test_a_unit_in_the_last_place_of_a_copy_is_no_fault():
    """Noise never moves a copy, so that each difference was beyond noise."""
    x = normal(16, 24)

    def port(x):
        return {"flat": x.reshape(24, 16), "moved": x.T}

    there = reference_of(port, x)
    for steps, rung in ((1, "rounding"), (20, "beyond")):
        for up in (np.inf, rng.choice([-9, 9], (24, 16))):
            moved = dict(there)
            for _ in range(steps):
                moved = {n: np.nextafter(v, np.float32(up)) for n, v in moved.items()}
            report = noise.compare_layers(port, moved)(KEY, x)
            assert [layer.rung for layer in report.layers] == [rung] * 2
    # In bfloat16 a factor may be less than a unit.
    half = jnp.asarray(x, jnp.bfloat16)
    there = {
        n: v * 1.003 for n, v in reference_of(port, half.astype("float32")).items()
    }
    assert noise.compare_layers(port, there)(KEY, half).first.rung == "beyond"


def test_a_result_unlike_the_last_of_the_reference_is_beyond():
    """A result that was all wrong was not compared, and no layer was beyond noise."""
    w, v, x = normal(12, 12), normal(12, 12), normal(5, 12)

    def port(w, v, x):
        return checkpoint_name(x @ w, "first") @ v.T

    there = {"first": x @ w, "fc2": x @ w @ v}
    report = noise.compare_layers(port, there)(KEY, w, v, x)
    assert report.first.name == "result"
    assert "result: compared with fc2, the last of the reference" in str(report)


def test_a_rounding_of_equal_rows_is_no_factor_along_an_axis():
    """Of equal numbers any difference is a factor for each index of the other axis."""
    w, x = normal(12, 16), np.ones((6, 12), np.float32)

    def port(w, x):
        return {"first": x @ w}

    there = {"first": (x @ w).astype(jnp.bfloat16)}
    assert noise.compare_layers(port, there)(KEY, w, x).layers[0].rung == "bf16"


def test_a_reference_may_be_nested():
    """Orbax restores such a mapping, and Flax returns one; it was refused."""
    w, x = normal(8, 12), normal(5, 8)
    flat = reference_of(block, w, x)
    nested = {"net": {"up": {"__call__": (flat["up"],)}, "down": flat["down"]}}
    report = noise.compare_layers(block, nested | {"act": flat["act"]})(KEY, w, x)
    assert report.first is None
    assert {x.reference for x in report.layers} == {"net/up", "act", "net/down"}
    with pytest.raises(noise.NoiseError, match="reference: empty"):
        noise.compare_layers(block, {"net": {}})


def test_a_reference_may_be_a_state_of_nnx():
    """Its variables were "a Param: expected numbers"."""
    state = nnx.state({"up": nnx.Linear(3, 4, rngs=nnx.Rngs(0)), "down": nnx.Param(1)})
    ours = {"up": nnx.to_pure_dict(state)["up"], "down": jnp.asarray(2)}
    report = noise.compare_layers(lambda x: jax.tree.map(jnp.add, ours, x), state)
    layers = {
        x.reference: x for x in report(KEY, jax.tree.map(jnp.zeros_like, ours)).layers
    }
    assert layers["up/kernel"].rung == layers["up/bias"].rung == "identical"
    assert layers["down"].rung == "beyond"


def test_a_function_without_lines_has_layers():
    """A function that returns its arguments ended in an error of Python's sets."""
    arrays = {"a": normal(3), "b": normal(4)}
    report = noise.compare_layers(lambda x: x, arrays)(KEY, arrays)
    assert [x.rung for x in report.layers] == ["identical", "identical"]


def test_a_wrong_layer_of_complex_numbers_is_beyond():
    """A constant beside it was read as a real number, to look for an epsilon."""

    def layers(x):
        return {"moved": jnp.tanh(x + np.complex64(1e-3 + 1e-3j)) @ x}

    x = (normal(5, 5) + 1j * normal(5, 5)).astype(np.complex64) / 4
    there = reference_of(layers, x)
    assert noise.compare_layers(layers, there)(KEY, x).first is None
    there["moved"] = there["moved"] + np.complex64(0.01j)
    assert noise.compare_layers(layers, there)(KEY, x).first.rung == "beyond"


def test_a_rectifier_is_no_factor_of_zero():
    """The median of a rectified layer is 0, and all its other numbers were left out."""
    x = normal(8, 12) - np.float32(0.3)

    def port(x):
        return {"act": jax.nn.leaky_relu(x)}

    report = noise.compare_layers(port, {"act": np.maximum(x, 0)})(KEY, x)
    assert report.first.name == "act"
    assert "factor" not in report.first.hint
