"""Flags that several scripts share, and the objects that they describe.

Flags that fill a dataclass are declared from it: name, type, default and help. A value
outside what is accepted is a `UserError` that names the flag.
"""

import dataclasses
import functools
import inspect
import re
import typing
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from absl import flags

from prednet_jax import data, process, tasks
from prednet_jax.config import CONVOLUTIONS, VARIANTS, AutoencoderConfig, PredNetConfig
from prednet_jax.errors import UserError
from prednet_jax.tasks import Task

FLAGS = flags.FLAGS
# Fields of `PredNetConfig` that are flags of the same name, beside its sizes.
PREDNET = (
    *("variant", "channels", "r_channels", "pixel_max", "convolution"),
    *("a_filters", "ahat_filters", "r_filters"),
)
# Fields of `runs.design.Setup` that are.
SETUP = (
    *("data", "images", "allow_outside", "window", "updates", "image_updates"),
    "last",
)
# Height and width of a PredNet where they are not given.
_SIZES: dict[str, int] = {}


def define_fields(
    record: type,
    names: Sequence[str],
    choices: Mapping[str, Sequence[str]] | None = None,
    **defaults: Any,
) -> None:
    """Declares a flag for each of these fields of a dataclass, which documents them.

    Tuples become lists; `defaults` are those of flags that have another.
    """
    attributes = str(inspect.getdoc(record)).split("Attributes:\n")[1]
    about = dict(re.findall(r"^    (\w+): ((?:.|\n {8})+)", attributes, re.MULTILINE))
    hints = typing.get_type_hints(record)
    own = {field.name: field.default for field in dataclasses.fields(record)}
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


_DEFINE = {
    "bool": flags.DEFINE_bool,
    "int": flags.DEFINE_integer,
    "float": flags.DEFINE_float,
    "str": flags.DEFINE_string,
}


def define_model_flags(
    *, channels: str = "3,48,96,192", height: int = 120, width: int = 160
) -> None:
    """Declares the flags that `task` reads."""
    flags.DEFINE_string(
        "model",
        "prednet",
        "Network: prednet, autoencoder, or module:object, a prednet_jax.tasks.Task.",
    )
    choices = {"variant": VARIANTS, "convolution": CONVOLUTIONS}
    define_fields(PredNetConfig, PREDNET, choices, channels=channels.split(","))
    _SIZES.update(height=height, width=width)
    for name, size in _SIZES.items():
        text = f"{name.capitalize()} of a frame; default {size}, 28 of the autoencoder."
        flags.DEFINE_integer(name, None, text)
    define_fields(AutoencoderConfig, ("hidden",))


def define_data_flags() -> None:
    """Declares the flags that `open_source` reads."""
    flags.DEFINE_string(
        "data",
        None,
        "walk, varied_walk, digits, mnist, moving_mnist, moving_digits, or a PATH: a "
        "video, a folder of images, of such folders, of videos or of arrays, a text "
        "list of images, of such lists, of videos or of arrays, or an array (.npy, "
        ".npz, .hkl). Defaults to walk, for the autoencoder to digits.",
    )
    flags.DEFINE_string(
        "layout",
        None,
        "Axes of an array by letter: N sequences, T frames, C channels, H rows, W "
        "columns, such as NTHWC. Defaults to the only layout that the shape can have.",
    )
    flags.DEFINE_integer(
        "every", 1, "Read every so many frames of each sequence, as 2 of a film.", 1
    )
    flags.DEFINE_enum(
        "crop",
        "auto",
        data.CROPS,
        "How frames are brought to size. center: the middle cut out; antialias: "
        "scaled with antialiasing; resize: scaled without, as published; auto: center "
        "where half of it or more is left, else antialias.",
    )
    flags.DEFINE_list(
        "offset", ["0", "0"], "Columns right, rows down, from the centre of the crop."
    )
    flags.DEFINE_bool(
        "allow_outside", False, "Let a text list name files outside its own folder."
    )


def define_precision_flag() -> None:
    """Declares --precision."""
    flags.DEFINE_enum(
        "precision",
        "float32",
        list(process.PRECISIONS),
        "Floating-point precision of the computation. tf32 and bfloat16 round only the "
        "operands of products, tf32 on devices that have it.",
    )


def define_setup_flags(*, models: list[str], updates: int, workdir: str) -> None:
    """Declares the flags that `setup` reads, and --dry_run."""
    flags.DEFINE_list(
        "models",
        models,
        f"Networks: {', '.join(tasks.NAMED)}, or module:object, as in train.py.",
    )
    flags.DEFINE_list("channels", ["3", "6", "12"], "Widths of PredNet's layers.")
    flags.DEFINE_integer("height", 24, "Rows of a frame.")
    flags.DEFINE_integer("width", 32, "Columns of a frame.")
    from prednet_jax.runs.design import Setup

    define_fields(Setup, SETUP, updates=updates)
    flags.DEFINE_string("workdir", workdir, "Where to write.")
    flags.DEFINE_bool("dry_run", False, "Print the exact commands, no more.")


def setup() -> dict[str, Any]:
    """The fields of `runs.design.Setup`, but for the script."""
    return {name: getattr(FLAGS, name) for name in SETUP} | {
        "root": Path(FLAGS.workdir),
        "tasks": tuple(small_task(name, images=FLAGS.images) for name in FLAGS.models),
    }


def integers(name: str) -> tuple[int, ...]:
    """A comma-separated flag as whole numbers; empty where it is not given."""
    return numbers(name, int, "whole numbers such as 3,48,96,192")


def numbers(name: str, kind: type = float, accepted: str = "numbers, as 1,0.1") -> Any:
    """A comma-separated flag as a tuple of numbers; empty where it is not given."""
    values = getattr(FLAGS, name) or ()
    try:
        return tuple(map(kind, values))
    except ValueError:
        raise UserError(f"--{name}={','.join(values)}: expected {accepted}") from None


def check_beside(expected: str, met: object, *names: str) -> None:
    """Refuses flags off their default that mean nothing without another one."""
    for name in names:
        value = FLAGS[name].value
        if not met and value != FLAGS[name].default:
            raise UserError(f"--{name}={value}: expected {expected} beside it")


def size(name: str) -> int:
    """--height or --width of a PredNet."""
    value = getattr(FLAGS, name)
    return _SIZES[name] if value is None else value


def prednet_config() -> PredNetConfig:
    """The PredNet that those flags describe which the script has."""
    settings: dict[str, Any] = {}
    for name in (*PREDNET, "height", "width"):
        value = FLAGS[name].value if name in FLAGS else None
        if isinstance(value, list):
            value = integers(name)
            if name.endswith("_filters") and len(value) == 1:
                (value,) = value  # one size for all
        settings[name] = size(name) if name in _SIZES else value
    return PredNetConfig(**{k: v for k, v in settings.items() if v is not None})


def task() -> Task:
    """The network that --model and the flags beside it describe."""
    given = {n: FLAGS[n].value for n in _SIZES if FLAGS[n].value is not None}
    network = small_task(FLAGS.model, images=FLAGS.data, **given)
    # `convolution` stands in arms of all networks.
    ours = {"prednet": [], "autoencoder": [n for n in PREDNET if n != "convolution"]}
    others = ["channels", "r_channels", "height", "width", "hidden"]
    for name in ours.get(FLAGS.model, others):
        if FLAGS[name].present:
            raise UserError(f"--{name}: expected none with --model={FLAGS.model}")
    return network


def small_task(name: str, *, images: str | None = None, **sides: int) -> Task:
    """A network of several by name, of which PredNet has the sizes of the flags.

    The autoencoder sees `images` (None: digits) of these `sides`, height and width.
    """
    if name == "prednet":
        return tasks.of(prednet_config())
    if name != "autoencoder":
        return tasks.load(name)
    hidden = {"hidden": integers("hidden")} if "hidden" in FLAGS else {}
    channels = data.own_size(images or "digits")[2]
    return tasks.of(AutoencoderConfig(channels=channels, **hidden, **sides))


def open_source(task: Task, seed: int) -> data.FrameSource:
    """The frames of `--data`, at the network's size.

    What lies on disk is checked and read through once, and not for every seed.
    """
    name = FLAGS.data or task.data
    seed = seed if name in data.NAMES else 0
    return _opened(name, seed=seed, **_frame_options(task))


_opened = functools.cache(data.open_source)


def open_validation(task: Task) -> data.FrameSource:
    """Opens `--validation_data`, or else the held-out sequences of `--data`."""
    name = FLAGS.validation_data
    if name is None or name in data.NAMES:
        options = _frame_options(task)
        return data.open_split(name or FLAGS.data or task.data, "validation", **options)
    return _opened(name, **_frame_options(task))


def open_split(task: Task, split: str, sequences: int | None = None) -> Any:
    """The sequences of a split of `--data`, at the network's size."""
    name = FLAGS.data or task.data
    return data.open_split(name, split, sequences=sequences, **_frame_options(task))


def _frame_options(task: Task) -> dict[str, Any]:
    offset = integers("offset")
    if len(offset) != 2:
        raise UserError(
            f"--offset={','.join(FLAGS.offset)}: expected columns,rows such as 0,0"
        )
    cut = {"crop": FLAGS.crop, "allow_outside": FLAGS.allow_outside}
    cut |= {"layout": FLAGS.layout, "every": FLAGS.every}
    return {**tasks.frame_size(task), **cut, "offset": offset}


def parse_noise(text: str) -> Any:
    """A noise spec; the flag is named where it is none."""
    from prednet_jax import noise

    try:
        return noise.parse(text)
    except ValueError as error:
        raise UserError(f"--noise: {error}") from None
