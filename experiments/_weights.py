"""Weights to start from, and whether the flags beside them agree."""

from pathlib import Path

import _flags
import _resume
from absl import flags

from prednet_jax import data, records, tasks, weights
from prednet_jax.errors import UserError
from prednet_jax.tasks import Task

FLAGS = flags.FLAGS


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
    sizes = {"height": FLAGS.height, "width": FLAGS.width}
    if FLAGS["variant"].present:
        sizes["variant"] = FLAGS.variant
    if FLAGS["pixel_max"].present:
        sizes["pixel_max"] = FLAGS.pixel_max
    network, params = kept or weights.load_task(path, **sizes)
    if FLAGS["model"].present and FLAGS.model != network.name:
        raise UserError(
            f"--model={FLAGS.model}: expected {network.name}, the network of {path}"
        )
    _check_agrees(network, path)
    if FLAGS.convolution != FLAGS["convolution"].default:
        network = network.with_convolution(FLAGS.convolution)
    return network, params


def define_weights() -> None:
    """Declares --weights, which `prednet` reads."""
    flags.DEFINE_string(
        "weights",
        None,
        "Weight file, run directory of train.py, or a name of prednet_jax.pretrained. "
        "Default: of these, moving_digits for grey data, else walk.",
    )


def prednet() -> tuple[Task, dict]:
    """The PredNet of --weights; of a run also its frames and how they are cut.

    A network that comes with the package has frames of the data it was trained on
    unless flags say otherwise, and frames from disk are scaled to its size. Without
    --weights it is one of them, and the first line printed says so.

    Raises:
        UserError: the weights are of another network than PredNet, or of another one
            than the flags say.
    """
    given, own = FLAGS.weights is not None, None
    if not given:
        grey = data.own_size(FLAGS.data or "walk")[2] == 1
        FLAGS.weights = "moving_digits" if grey else "walk"
        # Not by its name: a file of that name may lie here.
        config, params = weights.pretrained(FLAGS.weights)
        own = tasks.of(config), params
    name, folder = FLAGS.weights, Path(FLAGS.weights)
    found = initial_weights(name, own)
    if given:
        inherit_frames(name)
    if found[0].name != "prednet":
        raise UserError(f"--weights={folder}: of {found[0].name}; expected prednet")
    if given and (folder.exists() or name not in weights.pretrained_names()):
        return found
    FLAGS.data = FLAGS.data or name
    of_disk = FLAGS.data not in data.NAMES
    if of_disk and not (FLAGS["crop"].present or FLAGS["offset"].present):
        FLAGS.crop = "resize"
    if not given:
        height, width = found[0].frame[:2]
        done = "made"
        if of_disk:
            done = "scaled" if FLAGS.crop == "resize" else "cut"
        print(
            f"no --weights: {name}, which comes with the package "
            f"(prednet_jax.pretrained); frames of {FLAGS.data} are {done} to its "
            f"{height}x{width}",
            flush=True,
        )
    return found


def inherit_frames(path: str) -> None:
    """Takes the frames of a run, and how they are cut, where no flag says otherwise.

    How they are cut only where they lie on disk. Does nothing where the path is no run.

    Raises:
        UserError: the manifest has no flags, or other values than they take.
    """
    manifest = Path(path) / records.MANIFEST
    if not manifest.is_file():
        return
    of_run = records.read_json(manifest).get("flags")
    if not isinstance(of_run, dict):
        raise UserError(f"{manifest}: not the manifest of a run of train.py")
    for name in ("data", "crop", "offset"):
        if name != "data" and FLAGS.data in (None, *data.NAMES):
            return
        if not FLAGS[name].present and of_run.get(name) is not None:
            value = _resume.parsed(FLAGS[name], of_run[name], manifest)
            setattr(FLAGS, name, value)
            if name == "data":
                print(f"--data={value}, as {path}")


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
