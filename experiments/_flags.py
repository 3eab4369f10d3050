"""Flags that several scripts share, and the objects that they describe.

Flags that fill a dataclass are declared from it: name, type, default and help. They are
read once, into that dataclass. A value that is not accepted is a `UserError` that names
the flag.
"""

import dataclasses
import inspect
import itertools
import re
import typing
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import _cli
from absl import flags

from prednet_jax import data, process, tasks
from prednet_jax.config import CONVOLUTIONS, VARIANTS, AutoencoderConfig, PredNetConfig
from prednet_jax.errors import UserError
from prednet_jax.objectives import Method
from prednet_jax.tasks import Task
from prednet_jax.training import settings
from prednet_jax.training.settings import (
    ComputationSettings,
    DataSettings,
    NetworkSettings,
    RecordSettings,
    TrainingSettings,
)

FLAGS = flags.FLAGS
# Fields of `PredNetConfig` that are flags of the same name, in addition to its sizes.
PREDNET = (
    *("variant", "channels", "r_channels", "pixel_max", "convolution"),
    *("a_filters", "ahat_filters", "r_filters"),
)
# The flags of each network. Weight files hold all of these settings, except
# `convolution`, which stands in arms of all networks.
_OF_NETWORK: Mapping[str, Sequence[str]] = {
    "prednet": (*PREDNET, "height", "width"),
    "autoencoder": ("height", "width", "hidden"),
}
NETWORK = dict.fromkeys(itertools.chain(*_OF_NETWORK.values()))
del NETWORK["convolution"]
# Fields of `DataSettings` that select the frames.
FRAMES = ("data", "layout", "every", "crop", "offset", "allow_outside")
# Fields of `runs.design.Setup` that are flags.
SETUP = (
    *("data", "images", "layout", "crop", "allow_outside", "window", "updates"),
    *("image_updates", "last"),
)
# What --help writes above the flags of a dataclass.
_TOPIC: dict[type, str] = {
    **{config: "Network" for _, config in tasks.NAMED.values()},
    DataSettings: "Data",
    Method: "Objective",
    TrainingSettings: "Training",
    RecordSettings: "Records",
    ComputationSettings: "Computation",
}
# Height and width of a PredNet where they are not given.
_SIZES: dict[str, int] = {}


def define_fields(
    record: type,
    names: Sequence[str],
    choices: Mapping[str, Sequence[str]] | None = None,
    **defaults: Any,
) -> None:
    """Declares a flag for each of these fields of a dataclass, which documents them.

    Tuples become lists. `defaults` replaces the dataclass's defaults of some flags.
    """
    attributes = str(inspect.getdoc(record)).split("Attributes:\n")[1]
    about = dict(re.findall(r"^    (\w+): ((?:.|\n {8})+)", attributes, re.MULTILINE))
    hints = typing.get_type_hints(record)
    own = {field.name: field.default for field in dataclasses.fields(record)}
    topic = _TOPIC.get(record, "Networks and frames")
    _cli.TOPICS.setdefault(topic, []).extend(names)
    for name in names:
        default = defaults.get(name, own[name])
        text = " ".join(about[name].split())
        text = text[0].upper() + text[1:]
        kinds = str(hints[name])
        if choices and name in choices:
            flags.DEFINE_enum(name, default, choices[name], text)
        elif "tuple" in kinds:
            listed = default if isinstance(default, tuple | list | None) else (default,)
            flags.DEFINE_list(name, listed and list(map(str, listed)), text)
        else:
            define = next(d for kind, d in _DEFINE.items() if kind in kinds)
            define(name, default, text)


def define_all(
    record: type, choices: Mapping[str, Sequence[str]] | None = None, **defaults: Any
) -> None:
    """Declares a flag for every field of a dataclass, as `define_fields` does."""
    names = [field.name for field in dataclasses.fields(record)]
    define_fields(record, names, choices, **defaults)


_DEFINE = {
    "bool": flags.DEFINE_bool,
    "int": flags.DEFINE_integer,
    "float": flags.DEFINE_float,
    "str": flags.DEFINE_string,
}


def define_model_flags(
    *, channels: str = "3,48,96,192", height: int = 120, width: int = 160
) -> None:
    """Declares the flags that `network` reads; the sizes are a PredNet's defaults."""
    _cli.TOPICS["Network"] = ["model", "height", "width"]
    flags.DEFINE_string(
        "model",
        "prednet",
        f"Network: {', '.join(tasks.NAMED)}, or module:object, a "
        "prednet_jax.tasks.Task.",
    )
    choices = {"variant": VARIANTS, "convolution": CONVOLUTIONS}
    define_fields(PredNetConfig, PREDNET, choices, channels=channels.split(","))
    _SIZES.update(height=height, width=width)
    for name, size in _SIZES.items():
        text = f"{name.capitalize()} of a frame; default {size}, 28 of the autoencoder."
        flags.DEFINE_integer(name, None, text)
    define_fields(AutoencoderConfig, ("hidden",))


def define_data_flags() -> None:
    """Declares the flags of `DataSettings` that select the frames."""
    define_fields(DataSettings, FRAMES, {"crop": data.CROPS})


def define_precision_flag() -> None:
    """Declares --precision."""
    choices = {"precision": list(process.PRECISIONS)}
    define_fields(ComputationSettings, ("precision",), choices)


def define_setup_flags(*, models: list[str], updates: int, workdir: str) -> None:
    """Declares the flags that `setup` reads, and --dry_run."""
    flags.DEFINE_list(
        "models",
        models,
        f"Networks: {', '.join(tasks.NAMED)}, or module:object, as in train.py.",
    )
    flags.DEFINE_list("channels", ["3", "6", "12"], "Channels of PredNet's layers.")
    flags.DEFINE_integer("height", 24, "Rows of PredNet's frames.")
    flags.DEFINE_integer("width", 32, "Columns of PredNet's frames.")
    _cli.TOPICS["Networks and frames"] = ["models", "channels", "height", "width"]
    from prednet_jax.runs.design import Setup

    define_fields(Setup, SETUP, updates=updates)
    flags.DEFINE_string("workdir", workdir, "Directory to write.")
    flags.DEFINE_bool("dry_run", False, "Print the command of every run, and end.")


def setup() -> dict[str, Any]:
    """Returns the fields of `runs.design.Setup`, except the script."""
    return {name: getattr(FLAGS, name) for name in SETUP} | {
        "root": Path(FLAGS.workdir),
        "tasks": tuple(small_task(name, images=FLAGS.images) for name in FLAGS.models),
    }


def integers(name: str) -> tuple[int, ...]:
    """Returns a comma-separated flag as whole numbers; () if it is not given."""
    return numbers(name, int, "whole numbers such as 3,48,96,192")


def numbers(name: str, kind: type = float, accepted: str = "numbers, as 1,0.1") -> Any:
    """Returns a comma-separated flag as numbers; () if it is not given."""
    values = getattr(FLAGS, name) or ()
    try:
        return tuple(map(kind, values))
    except ValueError:
        raise UserError(f"--{name}={','.join(values)}: expected {accepted}") from None


def require_other_flag(expected: str, met: object, *names: str) -> None:
    """Refuses flags that were given and have no effect without another flag."""
    for name in names:
        value = FLAGS[name].value
        if not met and value != FLAGS[name].default:
            raise UserError(
                f"--{name}={value} has no effect without {expected}; add that, or "
                f"remove --{name}"
            )


def network() -> NetworkSettings:
    """Returns the network that the flags of the script describe."""
    return settings.fill(NetworkSettings, _cli.chosen_flags())


def frames() -> DataSettings:
    """Returns the frames that the flags of the script describe."""
    return settings.fill(DataSettings, _cli.chosen_flags())


def prednet_config() -> PredNetConfig:
    """Returns the PredNet that the flags describe."""
    return network().config(**_SIZES)


def task_of(described: NetworkSettings, images: str | None) -> Task:
    """Returns the network of settings, with the default sizes of this script."""
    return described.task(images, **_SIZES)


def check_model_flags(model: str) -> None:
    """Refuses flags that this network does not have."""
    for name in NETWORK:
        if FLAGS[name].present and name not in _OF_NETWORK.get(model, ()):
            raise UserError(f"--{name} has no effect with --model={model}; remove it")


def small_task(name: str, *, images: str | None = None) -> Task:
    """Returns a network by name; a PredNet has the sizes of the flags."""
    sides = {} if name == "prednet" else {"height": None, "width": None}
    return task_of(dataclasses.replace(network(), model=name, **sides), images)
