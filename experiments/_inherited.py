"""Settings that come from a preset, a run or given weights instead of flags.

A given flag that contradicts a setting of the run or file is a `UserError`.
"""

import dataclasses
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import _cli
import _flags
from absl import flags

from prednet_jax import data, errors, records, tasks, weights
from prednet_jax.errors import UserError
from prednet_jax.tasks import Task
from prednet_jax.training import checkpoints, run_directory, settings
from prednet_jax.training.settings import DataSettings, NetworkSettings, Settings

FLAGS = flags.FLAGS
# article: as arXiv 2109.01451 trained it, with Chainer's leak between windows.
# lotter_kitti: as coxlab/prednet's kitti_train.py, 150 epochs of 125 updates.
# quick: random windows of many walks, after which it predicts others.
_PUBLISHED = {"channels": [3, 48, 96, 192], "width": 160}
PRESETS: dict[str, dict[str, Any]] = {
    "article": _PUBLISHED
    | {"variant": "watanabe", "height": 120, "window": 20, "updates": 250}
    | {"truncation_leak": True},
    "lotter_kitti": _PUBLISHED
    | {"variant": "lotter", "height": 128, "window": 10, "updates": 18_750},
    "quick": {"variant": "watanabe", "channels": [3, 24, 48]}
    | {"r_channels": [16, 24, 48], "height": 24, "width": 32}
    | {"window": 20, "updates": 1000}
    | {"sampling": "windows", "batch": 8, "validate_every": 200}
    | {"learning_rate": 2e-3, "clip_gradient": 1.0},
}
# Flags of a command, and flags of a run that do not change its numbers, so another
# value may be given. More seeds are more runs.
_OF_COMMAND = (
    *("workdir", "resume", "overwrite", "progress", "profile", "plot"),
    *("coordinator", "process", "processes"),
)
_FREE = ("checkpoint_every", "keep_checkpoints", "keep_best", "examples", "seeds")
# The settings of frames that scripts take from a run whose weights they use.
_FRAMES = ("data", "crop", "offset", "layout", "every")


def define_preset() -> None:
    """Declares --preset."""
    flags.DEFINE_enum(
        "preset",
        None,
        list(PRESETS),
        "Values for flags that are not given. article: as arXiv 2109.01451; give its "
        "frames (FPSI) as --data. lotter_kitti: as Lotter et al. 2017; add --batch=4 "
        "and --data. quick: a small network, 12 minutes on one core.",
    )


def preset_values() -> dict[str, Any]:
    """Returns the values of --preset; its recurrent channels belong to its channels."""
    values = dict(PRESETS.get(FLAGS.preset, {}))
    if FLAGS["channels"].present:
        values.pop("r_channels", None)
    return values


def recorded_values(workdir: Path, given: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the flags that the run in a directory started with; {} without a run.

    If a training of several seeds was interrupted, one may be ahead of another.

    Raises:
        UserError: a given flag contradicts them.
    """
    if not (folders := run_directory.runs_below(workdir)):
        return {}
    path = folders[0] / records.MANIFEST
    recorded = dict(records.read_manifest(folders[0]).flags)
    if not recorded:
        raise UserError(f"{path}: has no flags; expected what train.py wrote")
    recorded["updates"] = max(records.read_manifest(f).updates for f in folders)
    recorded = {k: v for k, v in recorded.items() if k not in _OF_COMMAND}
    if "model" not in given:
        tasks.check_recorded(str(recorded.get("model", "prednet")))
    try:
        begun = _comparable(recorded)
        asked = _comparable(recorded | given)
    except UserError as error:
        if not given:
            raise UserError(f"{path}: {error}") from None
        raise
    for name in sorted(given, key=lambda name: name != "model"):
        if name in _OF_COMMAND or name not in recorded or name in _FREE:
            continue
        more = ", or more" if name == "updates" else ""
        agrees = asked[name] == begun[name]
        if not (agrees or (more and asked[name] >= begun[name])):
            raise UserError(
                f"--resume: --{name}={_shown(given[name])}: expected "
                f"{_shown(recorded[name])}{more}, as in {path}"
            )
    return recorded


def _comparable(values: Mapping[str, Any]) -> dict[str, Any]:
    """Returns values in a form in which the same ones are equal, as 1.0 and 1."""
    own = Settings.layered(_cli.chosen_flags(), values)
    named = own.network.model in tasks.NAMED
    found = dict(values) | own.values()
    found["noise"] = own.training.noise_spec
    if own.network.model == "prednet":
        config = _flags.task_of(own.network, None).config  # type: ignore[attr-defined]
        found |= {"height": config.height, "width": config.width}
    if own.data.data is None and named:
        found["data"] = tasks.NAMED[own.network.model][0].data
    for name in ("data", "init_weights", "validation_data"):
        if found.get(name) is not None:
            found[name] = str(Path(os.path.expanduser(found[name])))
    return found


def kept_weights(workdir: Path) -> tuple[Task, dict] | None:
    """Returns network and initial weights that a run in a directory keeps, if any."""
    for folder in run_directory.runs_below(workdir):
        if (folder / run_directory.INITIAL).exists():
            start = records.read_tree(folder / run_directory.INITIAL)
            return run_directory.network_of(folder), start
    return None


def _shown(value: Any) -> str:
    return "none given" if value is None else settings.as_flag(value)


def initial_weights(
    path: str, described: NetworkSettings, kept: tuple[Task, dict] | None = None
) -> tuple[Task, dict]:
    """Returns network and weights to start from: of a weight file, or of a run.

    They supply model, variant and sizes; given flags must agree, except --convolution.
    Weights that a continued run has `kept` are not read again.
    """
    given = _cli.given_flags()
    sizes = {"height": described.height, "width": described.width}
    sizes |= {n: getattr(described, n) for n in ("variant", "pixel_max") if n in given}
    network, params = kept or weights.load_task(path, **sizes)
    config = getattr(network, "config", None)
    for name in ("model", *_flags.NETWORK):
        if name not in given:
            continue
        if name == "pixel_max" and weights.scales_pixels(path):
            continue  # of the frames that it was trained on
        own = getattr(config, "recurrent" if name == "r_channels" else name, None)
        own = network.name if name == "model" else own
        asked = getattr(described, name)
        if isinstance(own, tuple) and isinstance(asked, int):  # one size for all
            asked = (asked,) * len(own)
        if asked != own:
            raise UserError(
                f"--{name}={_shown(given[name])}: expected {_shown(own)}, as in {path}"
            )
    if described.convolution != FLAGS["convolution"].default:
        network = network.with_convolution(described.convolution)
    return network, params


def run_flags(path: str) -> Mapping[str, Any]:
    """Returns the flags of the run whose folder, weights or checkpoint this is.

    The result is empty for any other path.
    """
    folder = Path(path)
    if run := checkpoints.run_of(folder):
        folder = run
    elif folder.name == records.WEIGHTS:
        folder = folder.parent
    if not (folder / records.MANIFEST).is_file():
        return {}
    return records.read_manifest(folder).flags


def frames_of(path: str, own: DataSettings) -> DataSettings:
    """Returns a run's frames and how they are cut; given flags take precedence.

    The cut is included only for frames on disk. A network of the package has the frames
    that it was trained on. Any other path has no frames, so `own` is returned.
    """
    recorded = run_flags(path)
    if path in weights.pretrained_names() and not Path(path).exists():
        command = records.read_json(weights.SHIPPED / f"{path}.json")["command"]
        recorded = {"data": re.findall(r"--data=(\S+)", command)[-1]}
    given = _cli.given_flags()
    layer = {
        name: recorded[name]
        for name in _FRAMES
        if name not in given and recorded.get(name) is not None
    }
    if "data" in layer:
        print(f"--data={layer['data']} is taken from {path}")
    if layer.get("data", own.data) in (None, *data.NAMES):
        layer = {name: layer[name] for name in ("data",) if name in layer}
    with errors.named(path):
        return settings.fill(DataSettings, dataclasses.asdict(own) | layer)


def define_weights() -> None:
    """Declares --weights and its flags, which `load_trained_network` reads."""
    flags.DEFINE_integer(
        "extrapolate_from",
        None,
        "Frame of a sequence, from 1, from which on the network sees its own "
        "predictions. Defaults to the extrap_start_time of a Keras model, or to none.",
    )
    flags.DEFINE_bool(
        "stored_start", True, "Extrapolate from the extrap_start_time of a Keras model."
    )
    flags.DEFINE_string(
        "weights",
        None,
        "Weight file, run directory of train.py, or a name of prednet_jax.pretrained. "
        "Defaults to moving_digits for data of digits, else to walk.",
    )


class TrainedNetwork(NamedTuple):
    """A trained network, and the frames that it is used on.

    Attributes:
        task: the network.
        params: its parameters.
        frames: the frames.
        weights: origin of the parameters.
        extrapolate_from: the first frame that it does not see, or None if it sees all.
    """

    task: Task
    params: dict
    frames: DataSettings
    weights: str
    extrapolate_from: int | None

    @property
    def effective(self) -> dict[str, Any]:
        """The values that hold in place of flags that were not given."""
        names = {*_FRAMES} & {*_cli.chosen_flags()}
        values = {name: getattr(self.frames, name) for name in sorted(names)}
        own = {"weights": self.weights, "extrapolate_from": self.extrapolate_from}
        return values | own

    def for_frames(self, frames: int, *, future: bool = False) -> "TrainedNetwork":
        """Returns the network for sequences of so many frames.

        A stored start that is not among them, or that a `future` would begin at, does
        not count: the network sees all frames. One line reports a stored start.
        """
        start = self.extrapolate_from
        if start is None or FLAGS.extrapolate_from is not None:
            return self
        if future or start >= frames:
            why = "--future comes after them" if future else "it is after the last one"
            print(f"all {frames} frames are seen: extrap_start_time {start}, and {why}")
            return self._replace(extrapolate_from=None)
        print(
            f"--extrapolate_from={start} is stored in {self.weights}; --nostored_start "
            "ignores it"
        )
        return self


def load_trained_network() -> TrainedNetwork:
    """Loads the network of --weights; for a run also its frames and their cut.

    A network that comes with the package has the frames of its name unless flags choose
    others, and frames from disk are scaled to its size. Without --weights one of these
    networks is chosen, and one line names it.
    """
    frames, name, own = _flags.frames(), FLAGS.weights, None
    if name is None:
        grey = data.own_size(frames.data or "walk")[2] == 1
        name = "moving_digits" if grey else "walk"
        # The network is not loaded by its name, since a file of that name may exist
        # here.
        config, params = weights.pretrained(name)
        own = tasks.of(config), params
    network, params = initial_weights(name, _flags.network(), own)
    first = FLAGS.extrapolate_from
    if FLAGS.weights is not None and first is None and FLAGS.stored_start:
        first = weights.extrapolation(name)
    trained = TrainedNetwork(network, params, frames, name, first)
    if own is None and (Path(name).exists() or name not in weights.pretrained_names()):
        return trained._replace(frames=frames_of(name, frames))
    frames = dataclasses.replace(frames, data=frames.data or name)
    cut = FLAGS["crop"].present or FLAGS["offset"].present
    if frames.data not in data.NAMES and not cut:
        frames = dataclasses.replace(frames, crop="antialias")
    if own is not None:
        height, width, channels = network.frame
        print(
            f"without --weights: the network {name} of the package "
            f"(prednet_jax.pretrained), for frames of {height} rows, {width} columns "
            f"and {channels} channels",
            flush=True,
        )
    return trained._replace(frames=frames)
