import dataclasses
import json
import math
import shutil
import struct
import time
import zipfile
from concurrent.futures import ThreadPoolExecutor

import h5py
import jax
import numpy as np
import pytest

import prednet_jax
from prednet_jax import records, weights
from prednet_jax.config import PredNetConfig
from prednet_jax.errors import UserError
from tests.processes import ROOT

GOLDEN = ROOT / "tests" / "golden" / "keras_tiny"
NETWORKS = {
    "watanabe": PredNetConfig(
        channels=(3, 4, 6), height=8, width=12, r_channels=(2, 4, 5), ahat_filters=5
    ),
    "lotter": PredNetConfig(
        channels=(1, 5), height=6, width=10, variant="lotter", pixel_max=0.9
    ),
}
SIZE = {"height": 6, "width": 10, "pixel_max": 0.9}


def network(variant):
    config = NETWORKS[variant]
    return config, prednet_jax.init_params(config, jax.random.key(3))


@pytest.mark.parametrize("suffix", weights.WRITERS)
def test_round_trip_keeps_every_bit(tmp_path, suffix):
    path = tmp_path / f"w{suffix}"
    write = weights.writer(path)
    config, params = network("lotter" if write is weights.save_keras else "watanabe")
    write(path, config, params)
    again, restored = weights.load(path, **SIZE)
    # Chainer's files do not say how high pixels are clipped.
    assert dataclasses.replace(again, pixel_max=config.pixel_max) == config
    assert records.fingerprint(restored) == records.fingerprint(params)


def test_keras_file_is_laid_out_as_keras_writes_it(tmp_path):
    golden = GOLDEN / "A_save_weights.hdf5"
    config, params = weights.load_keras(golden, height=24, width=32)
    path = tmp_path / "again.hdf5"
    weights.save_keras(path, config, params)
    with h5py.File(golden) as theirs, h5py.File(path) as mine:
        layer = "pred_net_1"
        names = [n.decode() for n in theirs[layer].attrs["weight_names"]]
        assert [n.decode() for n in mine[layer].attrs["weight_names"]] == names
        for name in names:
            np.testing.assert_array_equal(mine[layer][name], theirs[layer][name])
            assert mine[layer][name].dtype == np.float32
        for attribute in ("backend", "keras_version"):
            assert mine.attrs[attribute] == theirs.attrs[attribute]
        assert list(mine.attrs["layer_names"]) == [b"input_1", layer.encode()]
    model = json.loads(path.with_suffix(".json").read_text())
    theirs = json.loads((GOLDEN / "A_model.json").read_text())
    theirs["config"]["layers"][1]["config"]["output_mode"] = "prediction"
    ours, expected = (m["config"]["layers"][1] for m in (model, theirs))
    assert ours == expected
    shape = model["config"]["layers"][0]["config"]["batch_input_shape"]
    assert shape == [None, None, 24, 32, 3]


@pytest.mark.parametrize("suffix", [".npz", ".hdf5", ".safetensors", ""])
@pytest.mark.parametrize("name", ["x" * 300, "a\0b", "file/w"])
def test_a_path_that_cannot_be_written_is_named(tmp_path, suffix, name):
    config, params = network("lotter" if suffix == ".hdf5" else "watanabe")
    (tmp_path / "file").write_text("")
    save = weights.writer(f"w{suffix}")
    with pytest.raises(
        UserError, match=r"expected a(t| path)|NUL byte|no dir"
    ) as caught:
        save(f"{tmp_path}/{name}{suffix}", config, params)
    assert "\n" not in str(caught.value)
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_a_format_of_the_other_variant_is_refused(tmp_path):
    for name, variant in (("w.npz", "lotter"), ("w.hdf5", "watanabe")):
        with pytest.raises(UserError, match=f"variant='{variant}'"):
            weights.writer(name)(tmp_path / name, *network(variant))
    with pytest.raises(UserError, match=r"suffix '.pt'; expected one of .hdf5"):
        weights.writer("w.pt")
    config, params = network("watanabe")
    config = dataclasses.replace(config, pixel_max=0.5)
    with pytest.raises(UserError, match=r"pixel_max=0\.5: expected 1, as Chainer"):
        weights.save_chainer(tmp_path / "w.npz", config, params)
    assert list(tmp_path.iterdir()) == []


def test_broken_safetensors_are_refused(tmp_path):
    config, params = network("watanabe")
    path = tmp_path / "w.safetensors"
    weights.save_safetensors(path, config, params)
    whole = path.read_bytes()
    path.write_bytes(whole[:-100])
    with pytest.raises(UserError, match="expected a safetensors file"):
        weights.load_safetensors(path)
    header = b"{}"
    path.write_bytes(struct.pack("<Q", len(header)) + header)
    with pytest.raises(UserError, match="no network in its metadata"):
        weights.load_safetensors(path)
    lacking = {name: leaves for name, leaves in params.items() if name != "features_0"}
    weights.save_safetensors(path, config, lacking)
    with pytest.raises(UserError, match="no array 'features_0'"):
        weights.load_safetensors(path)
    other = dataclasses.replace(config, channels=(3, 4, 7))
    weights.save_safetensors(path, other, params)
    with pytest.raises(UserError, match=r"of shape .*: expected"):
        weights.load_safetensors(path)
    # They were dropped in silence.
    for module, leaf in (("gates_9", "kernel"), ("gates_0", "scale")):
        more = params | {module: params.get(module, {}) | {leaf: np.ones((1,) * 4)}}
        weights.save_safetensors(path, config, more)
        with pytest.raises(UserError, match=rf"{module}.*no such .*expected a whole"):
            weights.load_safetensors(path)
    header = b'{"__metadata__": null}'
    path.write_bytes(struct.pack("<Q", len(header)) + header)
    with pytest.raises(UserError, match="no network in its metadata"):
        weights.load_safetensors(path)


@pytest.mark.parametrize(
    ("variant", "edit", "message"),
    [
        ("watanabe", {"height": 2**20}, "gates_0/peephole of shape"),
        ("lotter", {"height": 10**12}, "height=1000000000000, width=10: expected at"),
        ("lotter", {"channels": [1, 10**9]}, "of shape"),
        ("lotter", {"channels": [1] * 100_000}, "expected"),
    ],
)
def test_edited_sizes_are_refused_at_once(tmp_path, variant, edit, message):
    """Their shapes are arithmetic; before, a block of numbers was drawn for each."""
    config, params = network(variant)
    path = tmp_path / "w.safetensors"
    weights.save_safetensors(path, config, params)
    content = path.read_bytes()
    length = int.from_bytes(content[:8], "little")
    header = json.loads(content[8 : 8 + length])
    fields = json.loads(header["__metadata__"]["prednet_jax"]) | edit
    header["__metadata__"]["prednet_jax"] = json.dumps(fields)
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + content[8 + length :])
    start = time.monotonic()
    with pytest.raises(UserError, match=message):
        weights.load(path)
    assert time.monotonic() - start < 30


@pytest.mark.fault
def test_a_file_that_the_disk_cannot_read_is_named():
    with pytest.raises(UserError, match="/mem: Input/output error; expected a weight"):
        weights.load("/proc/self/mem")


def test_arrays_that_are_no_weights_are_named(tmp_path):
    config, params = network("watanabe")
    arrays = weights.chainer.to_chainer(config, params)
    name = "predictor/ConvP0/W"
    broken = arrays[name].copy()
    broken.flat[3] = np.nan
    huge = arrays[name].astype(np.float64)
    huge.flat[0] = 1e300  # Infinite in float32, which predicts.
    wrongs = {
        "1 values that are not finite": broken,
        "values that are not finite in float32": huge,
        "is complex": broken + 1j,
        "is <U1; expected floating-point": np.full(broken.shape, "a"),
        r"shape \(\); expected 4 axes": np.float32(1),
        "expected 4 axes": broken.ravel(),
    }
    for message, array in wrongs.items():
        np.savez(tmp_path / "w.npz", **arrays | {name: array})
        with pytest.raises(UserError, match=rf"w\.npz: ConvP0/W .*{message}"):
            weights.load(tmp_path / "w.npz")
    second = {n.replace("predictor", "other"): a for n, a in arrays.items()}
    np.savez(tmp_path / "w.npz", **arrays, **second)
    with pytest.raises(UserError, match="2 networks, below 'other/' and 'predictor/'"):
        weights.load(tmp_path / "w.npz")
    (tmp_path / "text").write_text("no weights")
    with pytest.raises(UserError, match="text: of another kind; expected a weight"):
        weights.load(tmp_path / "text")


def test_a_keras_model_says_how_large_its_frames_are(tmp_path, capsys):
    """The file itself, or the JSON beside it; a value that is given wins."""
    config, params = network("lotter")
    weights.save_keras(tmp_path / "w.hdf5", config, params)
    assert weights.load(tmp_path / "w.hdf5")[0] == config
    assert weights.load(tmp_path / "w.hdf5", height=8)[0].height == 8
    (tmp_path / "w.json").write_text('{"mine": 1}')
    again, _ = weights.load(tmp_path / "w.hdf5")
    assert (again.height, again.width, again.pixel_max) == (128, 160, 1.0)
    said = capsys.readouterr().err
    assert "w.json: describes 0 PredNet layers, expected one; it is not used" in said
    assert "assumed are 128 rows and 160 columns, as KITTI's" in said
    whole, _ = weights.load(GOLDEN / "A_modelcheckpoint_full.hdf5")
    assert (whole.height, whole.width) == (24, 32)


def test_a_sequential_keras_model_has_its_frames_in_its_only_layer(tmp_path):
    config, params = network("lotter")
    weights.save_keras(tmp_path / "w.hdf5", config, params)
    model = json.loads((tmp_path / "w.json").read_text())
    frames, own = (layer["config"] for layer in model["config"]["layers"][:2])
    own |= {"batch_input_shape": frames["batch_input_shape"]}
    del model["config"]["layers"][0]
    (tmp_path / "w.json").write_text(json.dumps(model))
    assert weights.load(tmp_path / "w.hdf5")[0] == config


def edited(tmp_path, name, weights_name, **options):
    """Weights, and the model of other software next to them, with other options."""
    config, params = network("lotter")
    weights.save_keras(tmp_path / "written.hdf5", config, params)
    model = json.loads((tmp_path / "written.json").read_text())
    frames, own = (layer["config"] for layer in model["config"]["layers"])
    frames["batch_shape"] = frames.pop("batch_input_shape")  # Keras 3
    own |= options
    (tmp_path / "written.json").unlink()
    (tmp_path / name).write_text(json.dumps(model))
    path = tmp_path / weights_name
    path.parent.mkdir(exist_ok=True)
    (tmp_path / "written.hdf5").rename(path)
    return config, path


@pytest.mark.parametrize("folder", ["", "tensorflow_weights/"])
@pytest.mark.parametrize("suffix", ["", "-extrapfinetuned"])
def test_the_files_of_the_release_are_found_together(tmp_path, folder, suffix, capsys):
    """The model has another name, and the weights perhaps a folder of their own."""
    names = f"kitti_model{suffix}.json", f"{folder}kitti_weights{suffix}.hdf5"
    config, path = edited(tmp_path, *names, extrap_start_time=10)
    assert weights.load(path)[0] == config
    said = capsys.readouterr().err
    assert f"kitti_model{suffix}.json: extrap_start_time is 10" in said
    assert "assumed" not in said
    assert weights.extrapolation(path) == 10


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("LSTM_inner_activation", "sigmoid"),
        ("error_activation", "elu"),
        ("A_activation", None),
        ("LSTM_activation", "relu"),
        ("go_backwards", True),
        ("data_format", "diagonal"),
        ("r_activation", "relu"),
        ("stack_sizes", [3, 5]),
        ("extrap_start_time", -1),
        ("pixel_max", None),
    ],
)
def test_a_model_that_computes_something_else_is_refused_by_name(
    tmp_path, option, value
):
    """Such options were passed over, and the predictions were others in silence."""
    _, path = edited(tmp_path, "w.json", "w.hdf5", **{option: value})
    with pytest.raises(UserError, match=rf"w\.json.*{option}.*expected"):
        weights.load(path)


def test_configurations_of_keras_1_and_of_keras_3_are_accepted(tmp_path):
    wrapped = {"module": "keras.activations", "class_name": "function"}
    options = {"error_activation": wrapped | {"config": "relu"}, "output_mode": "error"}
    options |= {"dim_ordering": "tf", "input_dtype": "float32", "consume_less": "gpu"}
    config, path = edited(tmp_path, "w.json", "w.hdf5", **options)
    assert weights.load(path)[0] == config


#: Models as coxlab/prednet saves them: Keras 1 (of its first release), Keras 2 with the
#: layers of the training, a model within a Sequential one, and Keras 3.
OWN = {
    **{"stack_sizes": [1, 5], "R_stack_sizes": [1, 5], "A_filt_sizes": [3]},
    **{"Ahat_filt_sizes": [3, 3], "R_filt_sizes": [3, 3], "pixel_max": 0.9},
    **{"error_activation": "relu", "A_activation": "relu", "LSTM_activation": "tanh"},
    **{"LSTM_inner_activation": "hard_sigmoid", "output_mode": "error"},
    **{"extrap_start_time": None, "trainable": True, "name": "prednet_1"},
}
KERAS_1 = {"go_backwards": False, "stateful": False, "unroll": False}
KERAS_1 |= {"return_sequences": True, "consume_less": "cpu", "dim_ordering": "th"}
KERAS_1 |= {"input_dim": None, "input_length": None}


def layered(kind, /, **config):
    return {"class_name": kind, "config": config, "inbound_nodes": []}


def functional(*layers):
    return layered("Model", name="model_1", layers=layers, input_layers=[["i", 0, 0]])


HEAD = (
    layered("TimeDistributed", name="t", layer=layered("Dense", output_dim=1)),
    layered("Flatten", name="flatten_1"),
    layered("Dense", name="dense_2", output_dim=1),
)
MODELS = {
    "keras 1": functional(
        layered("InputLayer", batch_input_shape=[None, 10, 1, 6, 10], name="i"),
        layered("PredNet", **OWN, **KERAS_1),
        *HEAD,
    ),
    "keras 1, sequential": {
        "class_name": "Sequential",
        "config": [
            layered("PredNet", **OWN, **KERAS_1, batch_input_shape=[4, 10, 1, 6, 10]),
            *HEAD,
        ],
    },
    "keras 2": functional(
        layered("InputLayer", batch_input_shape=[4, 10, 6, 10, 1], sparse=False),
        layered("PredNet", **OWN, data_format="channels_last", implementation=0),
        *HEAD,
    ),
    "keras 2, nested": functional(
        layered("InputLayer", batch_input_shape=[None, 10, 6, 10, 1]),
        functional(
            layered("InputLayer", batch_input_shape=[None, 10, 6, 10, 1]),
            layered("PredNet", **OWN, data_format="channels_last"),
        ),
        *HEAD,
    ),
    "keras 3": functional(
        layered("InputLayer", batch_shape=[None, 10, 6, 10, 1], optional=False),
        layered("PredNet", **OWN, dtype={"class_name": "DTypePolicy"}),
    ),
    "keras 3, built": functional(
        layered("Other>PredNet", **OWN)
        | {"build_config": {"input_shape": [None, 10, 6, 10, 1]}},
    ),
}


@pytest.mark.parametrize("name", MODELS)
def test_models_as_coxlab_s_scripts_write_them_are_read(tmp_path, name, capsys):
    config, path = edited(tmp_path, "w.json", "w.hdf5")
    (tmp_path / "w.json").write_text(json.dumps(MODELS[name]))
    assert weights.load(path)[0] == config
    (line,) = capsys.readouterr().err.splitlines()
    assert f"{path}: read with the model {tmp_path / 'w.json'}" in line
    assert weights.load(path, height=8)[0].height == 8  # It won without a word.
    assert "height is 8, as given; its model has 6" in capsys.readouterr().err


def test_weights_are_found_by_name_below_any_groups_in_any_order(tmp_path):
    """Not by the order of `weight_names`, which differs between versions of Keras."""
    config, path = edited(tmp_path, "w.json", "w.hdf5")
    expected = records.fingerprint(weights.load(path)[1])
    with h5py.File(path) as old, h5py.File(tmp_path / "other.h5", "w") as new:
        names = [n.decode() for n in old["pred_net_1"].attrs["weight_names"]]
        outer = new.create_group("model_weights/model_3/time/prednet")
        for name in reversed(names):
            outer[name.replace(":0", "")] = old["pred_net_1"][name][()]
        outer.attrs["weight_names"] = names[::-1]
        other = new.create_group("model_weights/dense_2/dense_2")
        other["kernel:0"], other["bias:0"] = np.ones((10, 1)), np.ones(1)
        new.attrs["model_config"] = json.dumps(MODELS["keras 2, nested"])
    again, params = weights.load(tmp_path / "other.h5")
    assert again == config
    assert records.fingerprint(params) == expected


def test_weights_for_theano_are_refused(tmp_path):
    """Its convolutions flip their kernels; under that name they were read unflipped."""
    _, path = edited(tmp_path, "w.json", "w.hdf5")
    for backend in ("theano", np.array([b"theano"])):
        with h5py.File(path, "a") as file:
            file.attrs["backend"] = backend
        with pytest.raises(UserError, match=r"Theano.*expected weights for TensorFlow"):
            weights.load(path)


def test_a_group_in_place_of_an_array_is_a_missing_array(tmp_path):
    _, path = edited(tmp_path, "w.json", "w.hdf5")
    with h5py.File(path, "a") as file:
        name = "pred_net_1/pred_net_1/layer_a_0/kernel:0"
        del file[name]
        file.create_group(name)
    with pytest.raises(UserError, match="no array 'layer_a_0/kernel'; expected a whol"):
        weights.load(path)


@pytest.mark.parametrize("side", ["x", [4], 1.5, math.nan, 0, -4, True])
def test_a_size_of_frames_that_is_no_number_is_named(tmp_path, side):
    config, params = network("lotter")
    weights.save_keras(tmp_path / "w.hdf5", config, params)
    model = json.loads((tmp_path / "w.json").read_text())
    source = model["config"]["layers"][0]["config"]
    source["batch_input_shape"][2] = side
    (tmp_path / "w.json").write_text(json.dumps(model))
    with pytest.raises(UserError, match=r"w\.json: height=.*expected a whole number"):
        weights.load(tmp_path / "w.hdf5")
    source["batch_input_shape"] = 5  # It is no shape, so it is passed over.
    (tmp_path / "w.json").write_text(json.dumps(model))
    assert weights.load(tmp_path / "w.hdf5")[0].height == 128


def test_sizes_of_numpy_are_written_as_numbers(tmp_path):
    size = {"height": np.int64(4), "width": np.int32(6), "pixel_max": np.float32(0.5)}
    config = PredNetConfig(channels=(1, 2), **size)
    params = prednet_jax.init_params(config, jax.random.key(0))
    weights.save_safetensors(tmp_path / "w.safetensors", config, params)
    assert weights.load(tmp_path / "w.safetensors")[0] == config


def test_broken_orbax_directories_are_refused(tmp_path):
    config, params = network("lotter")
    folder, leaves = tmp_path / "orbax", params["features_0"]
    weights.save_orbax(folder, config, params)
    with pytest.raises(UserError, match="exists; expected the path of a new directory"):
        weights.save_orbax(folder, config, params)
    with pytest.raises(UserError, match=r"network\.json"):
        weights.load_orbax(tmp_path)
    wrongs = (np.float32(np.nan), "not finite"), (np.complex64(1), "complex64")
    for wrong, message in wrongs:
        other = tmp_path / message[:6].strip()
        bad = {name: np.asarray(x) + wrong for name, x in leaves.items()}
        weights.save_orbax(other, config, params | {"features_0": bad})
        with pytest.raises(UserError, match=rf"features_0/\w+ .*{message}"):
            weights.load_orbax(other)
    (folder / "network.json").write_text('{"channels": 3}')
    with pytest.raises(UserError, match="fields of PredNetConfig"):
        weights.load_orbax(folder)
    text = json.dumps(dataclasses.asdict(dataclasses.replace(config, channels=(1, 6))))
    (folder / "network.json").write_text(text)
    with pytest.raises(UserError, match=r"features_0/kernel of shape .*, 5\): exp"):
        weights.load_orbax(folder)


def test_damaged_arrays_of_orbax_are_refused(tmp_path):
    """Most flipped bits were read; a file that was cut ended in orbax's traceback."""
    config, params = network("lotter")
    weights.save_orbax(tmp_path / "whole", config, params)
    whole = tmp_path / "whole" / "params"
    for number, path in enumerate(p for p in sorted(whole.rglob("*")) if p.is_file()):
        folder = tmp_path / str(number)
        shutil.copytree(tmp_path / "whole", folder)
        content = bytearray(path.read_bytes() or b"0")
        content[len(content) // 2] ^= 1
        damaged = folder / "params" / path.relative_to(whole)
        damaged.write_bytes(content)
        with pytest.raises(UserError, match="not those that were saved"):
            weights.load(folder)
        damaged.unlink()
        with pytest.raises(UserError, match="not those that were saved"):
            weights.load(folder)


def test_a_keras_network_of_bytes_is_scaled_to_fractions(tmp_path, capsys):
    """Scripts showed it frames from 0 to 1; it was trained on frames to 255."""
    _, path = edited(tmp_path, "w.json", "w.hdf5", pixel_max=255)
    stored, own = weights.load_keras(path)
    config, params = weights.load(path)
    assert (stored.pixel_max, config.pixel_max) == (255, 1)
    assert "pixel_max is 255; the weights are scaled" in capsys.readouterr().err
    frames = np.random.default_rng(0).integers(0, 256, (4, 1, 6, 10, 1), np.uint8)
    expected, _ = prednet_jax.predict(own, stored, frames.astype(np.float32))
    found, _ = prednet_jax.predict(params, config, frames)
    np.testing.assert_allclose(255 * found, expected, rtol=1e-4, atol=1e-3)


def as_keras_3(source, target, number):
    """Weights as Keras 3 writes them: recorded from Keras 3.15 with a port of PredNet.

    Convolutions that are attributes of their layer have its names for them; those in a
    dictionary of lists, as in coxlab's layer, have numbers (`number`).
    """
    with h5py.File(source) as old, h5py.File(target, "w") as new:
        names = [n for n in old["pred_net_1"].attrs["weight_names"]]
        for i, name in enumerate(names):
            _, layer, leaf = name.decode().split("/")
            layer = f"conv_layers/container/conv2d_{i // 2}" if number else layer
            place = ("kernel:0", "bias:0").index(leaf)
            new[f"layers/pred_net/{layer}/vars/{place}"] = old["pred_net_1"][name][()]


@pytest.mark.parametrize("suffix", [".keras", ".weights.h5"])
def test_weights_of_keras_3_are_read(tmp_path, suffix):
    """An archive was refused with a sentence about arrays of Chainer."""
    config, path = edited(tmp_path, "w.json", "old.hdf5")
    expected = weights.load(path, **SIZE)[1]
    for number in (False, True):
        inner = tmp_path / "w.weights.h5"
        as_keras_3(path, inner, number)
        if suffix == ".keras":
            with zipfile.ZipFile(tmp_path / "w.keras", "w") as archive:
                archive.write(inner, "model.weights.h5")
                archive.write(tmp_path / "w.json", "config.json")
                archive.writestr("metadata.json", "{}")
            inner.unlink()
        if number:
            with pytest.raises(UserError, match=r"by number .*model\.save\('w\.h5'\)"):
                weights.load(tmp_path / f"w{suffix}")
            continue
        again, params = weights.load(tmp_path / f"w{suffix}")
        assert again == config
        assert records.fingerprint(params) == records.fingerprint(expected)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("saved/saved_model.pb", "SavedModel of TensorFlow"),
        ("orbax/_METADATA", r"weights\.save_orbax\(path, config, params\)"),
        ("tf/checkpoint", r"checkpoint of TensorFlow.*model\.save\('w\.h5'\)"),
        ("w.ckpt.index", "checkpoint of TensorFlow"),
        ("w.onnx", "graph of ONNX"),
        ("w.msgpack", r"flax\.serialization\.msgpack_restore"),
        ("w.json", "without weights; give the file of weights"),
        ("w.pth", r"a pickle, which is not run.*torch\.save\(model\.state_dict"),
    ],
)
def test_weights_of_other_programs_are_named_with_the_way_out(tmp_path, name, message):
    """They were files `of another kind`, or a directory."""
    path = tmp_path / name
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(b"\x80\x02}q\0.")
    path = path.parent if path.parent != tmp_path else path
    for given in [path, path.with_suffix("")] if path.suffix == ".index" else [path]:
        with pytest.raises(UserError, match=rf"{given}.*: .*{message}"):
            weights.load(given)


@pytest.mark.parametrize("name", ["a" * 300, "w" * 300 + ".pth"])
def test_a_name_longer_than_the_file_system_takes_is_refused(name):
    with pytest.raises(UserError, match="File name too long"):
        weights.load(name)


@pytest.mark.fault
def test_threads_save_directories_of_orbax_at_the_same_time(tmp_path):
    """orbax, which numbers saves for the whole process, failed or never ended."""
    config, params = weights.pretrained("moving_digits")
    paths = [tmp_path / str(i) for i in range(3)]
    with ThreadPoolExecutor() as pool:
        list(pool.map(lambda path: weights.save_orbax(path, config, params), paths))
    for path in paths:
        jax.tree.map(np.testing.assert_array_equal, weights.load(path)[1], params)
