"""Flags that several scripts share, and the objects that they describe."""

import ast
import dataclasses
import functools
import inspect
import re
import typing
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from absl import flags

from prednet_jax import data, errors, process, tasks
from prednet_jax.config import (
    CONVOLUTIONS,
    VARIANTS,
    AutoencoderConfig,
    PredNetConfig,
)
from prednet_jax.errors import UserError
from prednet_jax.tasks import Task

FLAGS = flags.FLAGS
_SIZES: dict[str, int] = {}
# Fields of `runs.design.Setup` that are flags of the same name.
SETUP = (
    "data", "images", "allow_outside", "window", "updates", "image_updates", "last",
)  # fmt: skip


def define_model_flags(
    *, channels: str = "3,48,96,192", height: int = 120, width: int = 160
) -> None:
    """Declares the flags that `task` reads."""
    flags.DEFINE_string(
        "model",
        "prednet",
        "Network: prednet, autoencoder, or module:object, a prednet_jax.tasks.Task.",
    )
    flags.DEFINE_enum("variant", "watanabe", VARIANTS, "Published form of PredNet.")
    flags.DEFINE_list(
        "channels",
        channels.split(","),
        "Widths of the layers, bottom first; the first is the frame's channels.",
    )
    flags.DEFINE_list("r_channels", None, "Widths of R; default: --channels.")
    flags.DEFINE_integer(
        "height", None, f"Rows of a frame; default {height}, 28 for the autoencoder."
    )
    flags.DEFINE_integer(
        "width", None, f"Columns of a frame; default {width}, 28 for the autoencoder."
    )
    flags.DEFINE_float("pixel_max", 1.0, "Upper clip of the bottom prediction.")
    flags.DEFINE_list("a_filters", ["3"], "Filter size(s) E -> A, one or layers - 1.")
    flags.DEFINE_list("ahat_filters", ["3"], "Filter size(s) of the predictions.")
    flags.DEFINE_list("r_filters", ["3"], "Filter size(s) of the ConvLSTM gates.")
    flags.DEFINE_enum(
        "convolution", "auto", CONVOLUTIONS, "Algorithm of the convolutions."
    )
    flags.DEFINE_list("hidden", ["128", "32", "128"], "Widths of the autoencoder.")
    _SIZES.update(height=height, width=width)


def define_data_flags() -> None:
    """Declares the flags that `open_source` reads."""
    flags.DEFINE_string(
        "data",
        None,
        "walk, digits, mnist, moving_mnist, moving_digits, or a PATH: a folder of "
        "images, a text list of images or of such lists, a video, an .npz with "
        "`frames` uint8 [T, H, W, C], or what prepare_data.py made (FOLDER:test for "
        "another split than train). "
        "Default: walk, or digits for the autoencoder.",
    )
    flags.DEFINE_enum(
        "crop",
        "auto",
        data.CROPS,
        "How frames are brought to size. center: the middle is cut out; resize: scaled "
        "without keeping the aspect; auto: cut where at least half of it is left.",
    )
    flags.DEFINE_list(
        "offset",
        ["0", "0"],
        "Columns right, rows down, from the centre of the crop.",
    )
    define_outside_flag()


def define_outside_flag() -> None:
    """Declares --allow_outside."""
    flags.DEFINE_bool(
        "allow_outside", False, "Let a text list name files outside its own folder."
    )


def define_precision_flag() -> None:
    """Declares --precision."""
    flags.DEFINE_enum("precision", "float32", process.PRECISIONS, "Of everything.")


def define_fields(record: type, names: Sequence[str], **defaults: Any) -> None:
    """Declares a flag for each of these fields of a dataclass, which documents them.

    Args:
        record: the dataclass.
        names: of the fields, which are numbers, booleans or texts.
        **defaults: of flags where the dataclass has another or none.
    """
    attributes = str(inspect.getdoc(record)).split("Attributes:\n")[1]
    about = dict(re.findall(r"^    (\w+): ((?:.|\n {8})+)", attributes, re.MULTILINE))
    hints = typing.get_type_hints(record)
    own = {field.name: field.default for field in dataclasses.fields(record)}
    for name in names:
        kinds = typing.get_args(hints[name]) or (hints[name],)
        define = {
            bool: flags.DEFINE_bool,
            int: flags.DEFINE_integer,
            float: flags.DEFINE_float,
            str: flags.DEFINE_string,
        }[kinds[0]]
        text = " ".join(about[name].split())
        define(name, defaults.get(name, own[name]), text[0].upper() + text[1:])


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
    channels = data.own_size(FLAGS.images or "digits")[2]
    return {name: getattr(FLAGS, name) for name in SETUP} | {
        "root": Path(FLAGS.workdir),
        "tasks": tuple(small_task(name, channels=channels) for name in FLAGS.models),
    }


def declared(script: Path) -> set[str]:
    """Names of the flags that a script and the helpers it imports declare."""
    tree = ast.parse(script.read_text())
    names = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            match node.args:
                case [ast.Constant(str(name)), *_] if "DEFINE_" in node.func.attr:
                    names.add(name)
                case [_, ast.Name(constant)] if node.func.attr == "define_fields":
                    names |= _constants(tree)[constant]
        elif isinstance(node, ast.Import):
            for alias in node.names:
                helper = script.with_name(f"{alias.name}.py")
                if alias.name.startswith("_") and helper.exists():
                    names |= declared(helper)
    return names


def _constants(tree: ast.Module) -> dict[str, set[str]]:
    """The tuples of texts that a script assigns to a name."""
    return {
        str(node.targets[0].id): set(ast.literal_eval(node.value))
        for node in tree.body
        if isinstance(node, ast.Assign)
        and isinstance(node.value, ast.Tuple)
        and isinstance(node.targets[0], ast.Name)
        and all(isinstance(one, ast.Constant) for one in node.value.elts)
    }


def integers(name: str) -> tuple[int, ...]:
    """A comma-separated flag as whole numbers; empty where it is not given.

    Raises:
        UserError: an entry is no whole number.
    """
    return _entries(name, int, "whole numbers such as 3,48,96,192")


def numbers(name: str) -> tuple[float, ...]:
    """A comma-separated flag as numbers; empty where it is not given.

    Raises:
        UserError: an entry is no number.
    """
    return _entries(name, float, "numbers such as 1,0.1")


def _entries(name: str, kind: type, accepted: str) -> tuple:
    values = getattr(FLAGS, name) or ()
    try:
        return tuple(map(kind, values))
    except ValueError:
        raise UserError(f"--{name}={','.join(values)}: expected {accepted}") from None


def check_numbers(low: int, *names: str) -> None:
    """Refuses integer flags below a bound.

    Raises:
        UserError: one is.
    """
    for name in names:
        errors.whole(f"--{name}", getattr(FLAGS, name), low)


def size(name: str) -> int:
    """--height or --width of a PredNet."""
    value = getattr(FLAGS, name)
    return _SIZES[name] if value is None else value


def prednet_config() -> PredNetConfig:
    """The PredNet that the flags describe.

    Raises:
        UserError: a flag's value is outside what is accepted.
    """

    def sizes(name: str) -> int | tuple[int, ...]:
        values = integers(name)
        return values[0] if len(values) == 1 else values

    return PredNetConfig(
        channels=integers("channels"),
        variant=FLAGS.variant,
        height=size("height"),
        width=size("width"),
        r_channels=integers("r_channels") or None,
        pixel_max=FLAGS.pixel_max,
        a_filters=sizes("a_filters"),
        ahat_filters=sizes("ahat_filters"),
        r_filters=sizes("r_filters"),
        convolution=FLAGS.convolution,
    )


def task() -> Task:
    """The network that the flags describe.

    Raises:
        UserError: a flag's value is outside what is accepted.
    """
    if FLAGS.model == "prednet":
        return tasks.of(prednet_config())
    if FLAGS.model != "autoencoder":
        found = tasks.load(FLAGS.model)
        for name in ("channels", "r_channels", "height", "width", "hidden"):
            if FLAGS[name].present:
                raise UserError(f"--{name}: expected none; {found.name} has its own")
        return found
    return tasks.of(
        AutoencoderConfig(
            height=28 if FLAGS.height is None else FLAGS.height,
            width=28 if FLAGS.width is None else FLAGS.width,
            channels=data.own_size(FLAGS.data or "digits")[2],
            hidden=integers("hidden"),
        )
    )


def small_task(name: str, *, channels: int = 1) -> Task:
    """A network by name, at the size of --channels, --height, --width and --hidden.

    Args:
        name: `prednet`, `autoencoder` or `module:object`.
        channels: of the autoencoder's images.

    Raises:
        UserError: the name or a flag's value is outside what is accepted.
    """
    if name == "prednet":
        sizes = {side: getattr(FLAGS, side) for side in ("height", "width")}
        return tasks.of(PredNetConfig(channels=integers("channels"), **sizes))
    if name != "autoencoder":
        return tasks.load(name)
    hidden = {"hidden": integers("hidden")} if "hidden" in FLAGS else {}
    return tasks.of(AutoencoderConfig(channels=channels, **hidden))


def open_source(task: Task, seed: int) -> data.FrameSource:
    """The frames of `--data`, at the network's size.

    What lies on disk is checked and read through once, and not for every seed.

    Raises:
        UserError: a flag's value is outside what is accepted.
    """
    name = FLAGS.data or task.data
    seed = seed if name in data.NAMES else 0
    return _opened(name, seed=seed, **_frame_options(task)).reader()


def open_split(task: Task, split: str, sequences: int | None = None) -> Any:
    """The sequences of a split of `--data`, at the network's size.

    Raises:
        UserError: the data has no such split, or a flag's value is not accepted.
    """
    name = FLAGS.data or task.data
    return data.open_split(name, split, sequences=sequences, **_frame_options(task))


def _frame_options(task: Task) -> dict[str, Any]:
    height, width, channels = task.frame
    offset = integers("offset")
    if len(offset) != 2:
        raise UserError(
            f"--offset={','.join(FLAGS.offset)}: expected columns,rows such as 0,0"
        )
    return {
        "height": height,
        "width": width,
        "channels": channels,
        "crop": FLAGS.crop,
        "offset": (offset[0], offset[1]),
        "allow_outside": FLAGS.allow_outside,
    }


@functools.cache
def _opened(name: str, **options: Any) -> data.FrameSource:
    return data.open_source(name, **options)


def parse_noise(text: str) -> Any:
    """A noise spec; the flag is named where it is none.

    Raises:
        UserError: the text is no spec.
    """
    from prednet_jax import noise

    try:
        return noise.parse(text)
    except ValueError as error:
        raise UserError(f"--noise: {error}") from None


class Training(NamedTuple):
    """What a script trains by its own loop.

    Attributes:
        task: the network.
        dtype: in which it is trained.
        optimizer: for this number of updates.
        weights: initial weights, float32.
        batches: of each update, from `training.loop.batches`.
    """

    task: Task
    dtype: Any
    optimizer: Any
    weights: dict
    batches: Iterator[tuple]


def training(updates: int) -> Training:
    """What the flags of network and data, --window, --seed and --precision describe.

    Args:
        updates: to be made, from 1.

    Raises:
        UserError: a flag's value is outside what is accepted.
    """
    from prednet_jax.training import loop

    network = task()
    dtype = process.set_precision(FLAGS.precision)
    source = open_source(network, FLAGS.seed)
    schedule = loop.frame_schedule(
        network, source, window=FLAGS.window, updates=updates
    )
    return Training(
        network,
        dtype,
        network.optimizer(updates),
        loop.initial_params(network, FLAGS.seed),
        loop.batches(source, schedule),
    )
