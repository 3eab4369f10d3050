"""The description of a Keras model of PredNet, which its weights alone do not hold.

Keras keeps it as JSON, in a full-model file or in a file next to the weights. Only the
configuration of the original is read (coxlab/prednet, prednet.py): an option with
another value, or an unknown one, is refused by name, since the weights would compute
something else without a sign.
"""

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from prednet_jax import errors, files
from prednet_jax.config import PredNetConfig
from prednet_jax.errors import UserError

#: The values that an option of the layer may have. Each stands for what this package
#: computes; `models.prednet.outputs` has the outputs of every `output_mode`.
OPTIONS: dict[str, tuple] = {
    "error_activation": ("relu",),
    "A_activation": ("relu",),
    "LSTM_activation": ("tanh",),
    "LSTM_inner_activation": ("hard_sigmoid",),
    "data_format": ("channels_last", "channels_first", None),
    "go_backwards": (False,),
    "stateful": (False,),
    "dim_ordering": ("default", "tf", "th"),  # Keras 1's name of data_format.
}
#: Options that the arrays of the weights also tell, by the field of `PredNetConfig`.
SIZES = {
    "stack_sizes": "channels",
    "R_stack_sizes": "recurrent",
    "A_filt_sizes": "a_filters",
    "Ahat_filt_sizes": "ahat_filters",
    "R_filt_sizes": "r_filters",
}
#: Keys of Keras itself that change no number of the network.
HARMLESS = {
    *("name", "trainable", "dtype", "input_dtype", "return_sequences", "return_state"),
    "unroll",
    *("implementation", "consume_less", "input_dim", "input_length", "input_shape"),
    *("batch_input_shape", "batch_shape", "batch_size", "sparse", "ragged", "optional"),
    *("time_major", "zero_output_for_mask", "cell", "units", "activity_regularizer"),
    "output_mode",
}
_READ = {"pixel_max", "extrap_start_time"}
# The size of the frames of KITTI, on which the released weights were trained.
KITTI = {"height": 128, "width": 160}


class Model(NamedTuple):
    """The content of a model's description.

    Attributes:
        source: the file that holds it. Empty without a file.
        settings: `height`, `width` and `pixel_max` of `PredNetConfig`, where the file
            has them.
        sizes: options of `SIZES`, where the file has them.
        extrapolate_from: the stored `extrap_start_time`, or None.
    """

    source: str = ""
    settings: Mapping[str, Any] = {}
    sizes: Mapping[str, Any] = {}
    extrapolate_from: int | None = None

    def check(self, config: PredNetConfig) -> None:
        """Refuses the description of a network of other sizes than the weights'."""
        for option, stored in self.sizes.items():
            own = getattr(config, SIZES[option])
            if tuple(np.ravel(stored).tolist()) != tuple(np.ravel(own).tolist()):
                raise UserError(
                    f"{self.source}: {option}={stored}, and the weights have "
                    f"{list(np.ravel(own).tolist())}; expected the model of these "
                    "weights"
                )


def find(path: str | os.PathLike) -> Path | None:
    """Returns the JSON file next to a file of weights, if there is one.

    It has the name of the weights or, as in the release of coxlab/prednet, the same
    name with `model` in place of `weights`. In that case the weights may lie in a
    folder `tensorflow_weights`.
    """
    path = Path(path)
    stem = path.stem.removesuffix(".weights")  # Keras 3's suffix is .weights.h5.
    names = [f"{path.stem}.json", f"{stem}.json"]
    names += [name.replace("weights", "model") for name in names]
    folders = [path.parent]
    if path.absolute().parent.name == "tensorflow_weights":
        folders.append(path.absolute().parents[1])
    for folder in folders:
        for name in dict.fromkeys(names):
            if (folder / name).is_file():
                return folder / name
    return None


def read(path: str | os.PathLike, stored: str | None) -> Model:
    """Reads the description of a file of weights: `stored` in it, or `find`'s."""
    file = Path(path)
    if stored is None:
        description = find(path)
        if description is None:
            return Model()
        file, stored = description, files.read_text(description)
    try:
        shape, option_sets = _layers(json.loads(stored))
    except (ValueError, TypeError, AttributeError, LookupError, RecursionError):
        option_sets, shape = [], None
    if len(option_sets) != 1:
        errors.log_once(
            f"{file}: describes {len(option_sets)} PredNet layers, expected one; it is"
            " not used"
        )
        return Model()
    return _read_options(str(file), option_sets[0], shape)


def _layers(model: Any) -> tuple[Any, list[Mapping]]:
    """Returns the shape of the input, and the options of each layer PredNet."""
    inner, shape, options = model["config"], None, []
    # Before Keras 2.2.3 the configuration of a Sequential model is the list itself.
    for layer in inner if isinstance(inner, list) else inner["layers"]:
        own = layer["config"]
        told = own.get("batch_input_shape", own.get("batch_shape"))
        told = told or (layer.get("build_config") or {}).get("input_shape")
        if "layers" in own:  # A model within the model.
            inner_shape, inner_options = _layers(layer)
            shape = inner_shape or told or shape
            options += inner_options
        elif layer["class_name"] == "InputLayer":
            shape = told
        elif str(layer["class_name"]).endswith("PredNet"):
            shape = told or shape
            options.append(own)
    return shape, options


def _read_options(source: str, options: Mapping, shape: Any) -> Model:
    names = {*OPTIONS, *SIZES, *_READ}
    for name, value in options.items():
        if name not in names | HARMLESS:
            raise UserError(
                f"{source}: unknown option {name}={value!r} of PredNet; expected those "
                f"of coxlab/prednet: {', '.join(sorted(names))}"
            )
        accepted = OPTIONS.get(name)
        if accepted is not None and _word(value) not in accepted:
            raise UserError(
                f"{source}: option {name}={_word(value)!r} of PredNet; expected "
                f"{' or '.join(map(repr, accepted))}, which this package computes"
            )
    settings: dict[str, Any] = {}
    if "pixel_max" in options:
        errors.positive(f"{source}: pixel_max", options["pixel_max"])
        settings["pixel_max"] = float(options["pixel_max"])
    if isinstance(shape, list) and len(shape) == 5:
        first = {options.get("data_format"), options.get("dim_ordering")}
        sides = shape[-2:] if first & {"channels_first", "th"} else shape[-3:-1]
        if None not in sides:
            for name, side in zip(("height", "width"), sides, strict=True):
                settings[name] = errors.check_int(f"{source}: {name}", side, 1)
    sizes = {name: options[name] for name in SIZES if options.get(name) is not None}
    start = options.get("extrap_start_time")
    if start is not None:
        start = errors.check_int(f"{source}: extrap_start_time", start, 1)
    return Model(source, settings, sizes, start)


def _word(value: Any) -> Any:
    """Returns the name of an activation, which Keras 3 may wrap in a dictionary."""
    if isinstance(value, Mapping):
        value = value.get("config", value)
    return value if isinstance(value, str | bool | None) else repr(value)


def text(config: PredNetConfig, layer: str) -> str:
    """Returns the description of an input and a PredNet layer, as Keras 2 writes it."""
    frame = [config.height, config.width, config.channels[0]]
    own = {
        "name": layer,
        "trainable": True,
        "return_sequences": True,
        **dict.fromkeys(("return_state", "unroll"), False),
        "implementation": 0,
        **{
            option: np.asarray(getattr(config, field)).tolist()
            for option, field in SIZES.items()
        },
        **{option: values[0] for option, values in OPTIONS.items()},
        "pixel_max": config.pixel_max,
        "extrap_start_time": None,
        "output_mode": "prediction",
    }
    del own["dim_ordering"]
    # The number of time steps is open.
    source: dict[str, Any] = {
        "batch_input_shape": [None, None, *frame],
        "dtype": "float32",
    }
    source |= {"sparse": False, "name": "input_1"}
    layers = [
        {"name": of["name"], "class_name": kind, "config": of, "inbound_nodes": nodes}
        for kind, of, nodes in (
            ("InputLayer", source, []),
            ("PredNet", own, [[["input_1", 0, 0, {}]]]),
        )
    ]
    inner: dict[str, Any] = {"name": "model_1", "layers": layers}
    inner |= {"input_layers": [["input_1", 0, 0]], "output_layers": [[layer, 0, 0]]}
    versions = {"keras_version": "2.2.4", "backend": "tensorflow"}
    return json.dumps({"class_name": "Model", "config": inner, **versions})
