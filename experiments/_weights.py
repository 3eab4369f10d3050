"""Weights to start from, and whether the flags beside them agree."""

import os
from pathlib import Path

import _flags
from absl import flags

from prednet_jax import tasks, weights
from prednet_jax.errors import UserError
from prednet_jax.tasks import Task

FLAGS = flags.FLAGS


def load_weights(path: str) -> tuple[Task, dict]:
    """Network and weights from a Keras or a Chainer file.

    Raises:
        UserError: the file is missing or is neither, or flags ask for another network.
    """
    if FLAGS["model"].present and FLAGS.model != "prednet":
        raise UserError(f"--model={FLAGS.model}: {path} holds a prednet; expected that")
    config, params = weights.load(
        path,
        height=_flags.size("height"),
        width=_flags.size("width"),
        pixel_max=FLAGS.pixel_max,
    )
    found = tasks.of(config).with_convolution(FLAGS.convolution)
    _check_agrees(found, path)
    return found, params


# The settings of a network, by the flags that set them.
_NETWORK = (
    "variant", "channels", "r_channels", "height", "width", "pixel_max", "a_filters",
    "ahat_filters", "r_filters", "hidden",
)  # fmt: skip


def initial_weights(
    path: str, kept: tuple[Task, dict] | None = None
) -> tuple[Task, dict]:
    """Network and weights to start from: of a weight file, or of a run's directory.

    They supply model, variant and sizes; flags that are given must agree. Only
    --convolution is free: every algorithm takes the same weights.

    Args:
        path: the file or directory.
        kept: what a run that goes on has of it; it is not read again.

    Raises:
        UserError: there are no weights, or a flag that was given contradicts them.
    """
    from prednet_jax.training import runs

    if kept is not None:
        found, params = kept
    elif os.path.isdir(path) and not weights.is_orbax(path):
        found, params = runs.saved_weights(Path(path))
    else:
        found, params = load_weights(path)
    if FLAGS["model"].present and FLAGS.model != found.name:
        raise UserError(
            f"--model={FLAGS.model}: expected {found.name}, the network of {path}"
        )
    _check_agrees(found, path)
    if FLAGS.convolution != FLAGS["convolution"].default:
        found = found.with_convolution(FLAGS.convolution)
    return found, params


def _check_agrees(task: Task, path: str) -> None:
    """Refuses flags that are not what the network of a file or a run has.

    Raises:
        UserError: naming the first one.
    """
    config = getattr(task, "config", None)
    for name in _NETWORK:
        if name not in FLAGS or not FLAGS[name].present:
            continue
        setting = getattr(config, "recurrent" if name == "r_channels" else name, None)
        given = FLAGS[name].value
        if isinstance(given, list):
            given = _flags.integers(name)
            if isinstance(setting, tuple) and len(given) == 1:  # one size for all
                given *= len(setting)
            setting = setting if isinstance(setting, tuple) else (setting,)
        if given != setting:
            listed = isinstance(setting, tuple)
            shown = ",".join(map(str, setting)) if listed else setting
            text = ",".join(FLAGS[name].value) if isinstance(given, tuple) else given
            raise UserError(f"--{name}={text}: expected {shown}, as in {path}")
