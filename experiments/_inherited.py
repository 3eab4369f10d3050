"""What flags are not asked for: of a run that goes on, of its weights, of a preset.

A flag that was given and contradicts them is a `UserError`.
"""

import contextlib
import os
import re
from pathlib import Path
from typing import Any

import _flags
from absl import flags

from prednet_jax import data, records, tasks, weights
from prednet_jax.errors import UserError
from prednet_jax.tasks import Task
from prednet_jax.training import run_directory

FLAGS = flags.FLAGS
# article: as arXiv 2109.01451 trained it, with Chainer's leak between windows.
# lotter_kitti: as coxlab/prednet's kitti_train.py, 150 epochs of 125 updates.
# quick: random windows of many walks, after which it predicts others.
_PUBLISHED = {"channels": ["3", "48", "96", "192"], "width": 160}
PRESETS: dict[str, dict[str, Any]] = {
    "article": _PUBLISHED
    | {"variant": "watanabe", "height": 120, "window": 20, "updates": 250}
    | {"truncation_leak": True},
    "lotter_kitti": _PUBLISHED
    | {"variant": "lotter", "height": 128, "window": 10, "updates": 18_750},
    "quick": {"variant": "watanabe", "channels": ["3", "24", "48"]}
    | {"r_channels": ["16", "24", "48"], "height": 24, "width": 32}
    | {"window": 20, "updates": 1000}
    | {"sampling": "windows", "batch": 8, "validate_every": 200}
    | {"learning_rate": 2e-3, "clip_gradient": 1.0},
}
# The flags of a command, and those of a run that change no number of it: another value
# may be given. More seeds are more runs.
_OF_COMMAND = (
    *("workdir", "resume", "overwrite", "progress", "profile", "plot"),
    *("coordinator", "process", "processes"),
)
_FREE = ("checkpoint_every", "keep_checkpoints", "keep_best", "examples", "seeds")
# The settings of a network that weights bring with them.
_NETWORK = (
    *("variant", "channels", "r_channels", "height", "width", "pixel_max"),
    *("a_filters", "ahat_filters", "r_filters", "hidden"),
)


def define_preset() -> None:
    """Declares --preset."""
    flags.DEFINE_enum(
        "preset",
        None,
        list(PRESETS),
        "Values for flags that are not given: article, as arXiv 2109.01451, of which "
        "--data names the frames (FPSI); lotter_kitti, as Lotter et al. 2017 but for "
        "--batch=4 and --data; quick, small, 12 minutes on a core.",
    )


def apply_preset() -> None:
    """Sets the flags of --preset that were not given."""
    # The preset's recurrent channels belong to its channels.
    own_channels = FLAGS["channels"].present
    for name, value in PRESETS.get(FLAGS.preset, {}).items():
        if not FLAGS[name].present and not (own_channels and name == "r_channels"):
            FLAGS[name].value = value


def read_flags(workdir: Path, names: list[str]) -> None:
    """Sets every flag that was not given to what the run in a directory began with.

    Does nothing where neither a run nor one of its seeds was begun.
    """
    begun = [folder / records.MANIFEST for folder in run_directory.runs_below(workdir)]
    if not begun:
        return
    path = begun[0]
    manifests = [records.read_json(path) for path in begun]
    try:
        recorded = dict(manifests[0]["flags"])
        # A seed may be ahead of another, where one was interrupted.
        recorded["updates"] = max(int(manifest["updates"]) for manifest in manifests)
    except (KeyError, TypeError, ValueError, OverflowError):
        raise UserError(f"{path}: not the manifest of a run of train.py") from None
    if not FLAGS["model"].present:
        tasks.check_recorded(recorded.get("model", "prednet"))
    # What other flags mean depends on the model.
    for name in sorted(names, key=lambda name: name != "model"):
        if name not in recorded or name in _OF_COMMAND:
            continue
        flag, value = FLAGS[name], recorded[name]
        if not flag.present:
            flag.value = _parsed(flag, value, path)
        elif not _agrees(name, flag.value, value):
            more = ", or more" if name == "updates" else ""
            raise UserError(
                f"--resume: --{name}={_shown(flag.value)}: expected {_shown(value)}"
                f"{more}, as in {path}"
            )


def kept_weights(workdir: Path) -> tuple[Task, dict] | None:
    """Network and initial weights that a run in a directory keeps, if it does."""
    for folder in run_directory.runs_below(workdir):
        if (folder / run_directory.INITIAL).exists():
            manifest = records.read_manifest(folder)
            network = tasks.recorded(manifest.model, manifest.network)
            return network, records.read_tree(folder / run_directory.INITIAL)
    return None


def _agrees(name: str, given: Any, recorded: Any) -> bool:
    if name == "seeds":
        return bool(recorded)
    if name == "updates":
        return given >= int(recorded)
    return name in _FREE or _meaning(name, given) == _meaning(name, recorded)


def _meaning(name: str, value: Any) -> Any:
    """A value in a form in which the same is equal: 1.0 and 1, a default and itself."""
    if name == "noise":
        return _flags.parse_noise(value)
    if name in ("height", "width") and value is None and FLAGS.model == "prednet":
        return _flags.size(name)
    if name == "data" and value is None and FLAGS.model in tasks.NAMED:
        return tasks.NAMED[FLAGS.model][0].data
    if name in ("data", "init_weights", "validation_data") and value is not None:
        return os.path.expanduser(value)
    if isinstance(value, list):
        with contextlib.suppress(ValueError):
            return [float(entry) for entry in value]
    return value


def _parsed(flag: flags.Flag, value: Any, path: Path) -> Any:
    if value is None:
        return value
    try:
        return flag.parser.parse(_shown(value))
    except (TypeError, ValueError) as error:
        raise UserError(f"{path}: flag {flag.name}: {error}") from None


def _shown(value: Any) -> str:
    if value is None:
        return "none given"
    return ",".join(map(str, value)) if isinstance(value, list | tuple) else str(value)


def initial_weights(path: str, kept: tuple[Task, dict] | None) -> tuple[Task, dict]:
    """Network and weights to start from: of a weight file, or of a run's directory.

    They supply model, variant and sizes; flags that are given must agree, but for
    --convolution. What a run that goes on has `kept` is not read again.
    """
    sizes = {"height": FLAGS.height, "width": FLAGS.width}
    sizes |= {n: FLAGS[n].value for n in ("variant", "pixel_max") if FLAGS[n].present}
    network, params = kept or weights.load_task(path, **sizes)
    config = getattr(network, "config", None)
    for name in ("model", *_NETWORK):
        flag = FLAGS[name]
        if not flag.present:
            continue
        if name == "pixel_max" and weights.is_port(path):
            continue  # of the frames that the port saw; its weights are scaled to 1
        own = getattr(config, "recurrent" if name == "r_channels" else name, None)
        own = network.name if name == "model" else own
        listed = isinstance(flag.value, list)
        given: Any = _flags.integers(name) if listed else flag.value
        if listed and isinstance(own, tuple) and len(given) == 1:  # one size for all
            given *= len(own)
        if given != own:
            raise UserError(
                f"--{name}={_shown(flag.value)}: expected {_shown(own)}, as in {path}"
            )
    if FLAGS.convolution != FLAGS["convolution"].default:
        network = network.with_convolution(FLAGS.convolution)
    return network, params


def run_flags(path: str) -> dict[str, Any]:
    """Flags of the run whose folder, weights or checkpoint this is; {}: of none."""
    folder = Path(path)
    if folder.parent.name == "checkpoints" and folder.name.isdigit():
        folder = folder.parents[1]
    elif folder.name == records.WEIGHTS:
        folder = folder.parent
    manifest = folder / records.MANIFEST
    if not manifest.is_file():
        return {}
    content = records.read_json(manifest)
    if not isinstance(content, dict) or not isinstance(content.get("flags"), dict):
        raise UserError(f"{manifest}: not the manifest of a run of train.py")
    return content["flags"]


def inherit_frames(path: str) -> None:
    """Takes the frames of a run, and how they are cut, where no flag says otherwise.

    How they are cut only where they lie on disk. A network of the package has those it
    was trained on. Does nothing where the path is neither.
    """
    of_run = run_flags(path)
    if path in weights.pretrained_names() and not Path(path).exists():
        command = records.read_json(weights.SHIPPED / f"{path}.json")["command"]
        of_run = {"data": re.findall(r"--data=(\S+)", command)[-1]}
    for name in ("data", "crop", "offset", "layout", "every"):
        if name != "data" and FLAGS.data in (None, *data.NAMES):
            return
        if not FLAGS[name].present and of_run.get(name) is not None:
            setattr(FLAGS, name, _parsed(FLAGS[name], of_run[name], Path(path)))
            if name == "data":
                print(f"--data={FLAGS.data}, as {path}")


def define_weights() -> None:
    """Declares --weights and --extrapolate_from, which `trained` reads."""
    flags.DEFINE_integer(
        "extrapolate_from",
        None,
        "Frame of a sequence, from 1, from which on the network sees its own "
        "predictions; 0: it sees all. Defaults to Keras's extrap_start_time, or 0.",
    )
    flags.DEFINE_string(
        "weights",
        None,
        "Weight file, run directory of train.py, or a name of prednet_jax.pretrained. "
        "Default: of these, moving_digits for data of digits, else walk.",
    )


def trained() -> tuple[Task, dict]:
    """The network of --weights; of a run also its frames and how they are cut.

    A network that comes with the package has the frames of its name unless flags say
    otherwise, and frames from disk are scaled to its size. Without
    --weights it is one of them, which is said.
    """
    given, own = FLAGS.weights is not None, None
    if not given:
        grey = data.own_size(FLAGS.data or "walk")[2] == 1
        FLAGS.weights = "moving_digits" if grey else "walk"
        # Not by its name: a file of that name may lie here.
        config, params = weights.pretrained(FLAGS.weights)
        own = tasks.of(config), params
    name = FLAGS.weights
    network, params = initial_weights(name, own)
    if given and FLAGS.extrapolate_from is None:
        FLAGS.extrapolate_from = weights.extrapolation(name)
        if FLAGS.extrapolate_from is not None:
            print(f"--extrapolate_from={FLAGS.extrapolate_from}, as {name}; 0: none")
    if FLAGS.extrapolate_from == 0:
        FLAGS.extrapolate_from = None
    if given and (Path(name).exists() or name not in weights.pretrained_names()):
        inherit_frames(name)
        return network, params
    FLAGS.data = FLAGS.data or name
    of_disk = FLAGS.data not in data.NAMES
    if of_disk and not (FLAGS["crop"].present or FLAGS["offset"].present):
        FLAGS.crop = "antialias"
    if not given:
        cut = {"auto": "brought", "center": "cut"}.get(FLAGS.crop, "scaled")
        done = cut if of_disk else "made"
        height, width, _ = network.frame
        print(
            f"no --weights: {name}, which comes with the package "
            f"(prednet_jax.pretrained); frames of {FLAGS.data} are {done} to its "
            f"{height} rows and {width} columns",
            flush=True,
        )
    return network, params
