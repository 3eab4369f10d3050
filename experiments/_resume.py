"""Flags of a run that goes on: those it was begun with, read from its manifest."""

from pathlib import Path
from typing import Any

import _flags
from absl import flags

from prednet_jax import noise, records, tasks
from prednet_jax.errors import UserError
from prednet_jax.training import folders

FLAGS = flags.FLAGS
# Of the command, not of the run.
_OF_COMMAND = (
    "workdir", "resume", "overwrite", "progress", "profile", "plot", "coordinator",
    "process", "processes",
)  # fmt: skip
# They change no number of a run: another value may be given. More seeds are more runs.
_FREE = ("checkpoint_every", "keep_checkpoints", "keep_best", "examples", "seeds")


def read_flags(workdir: Path, names: list[str]) -> None:
    """Sets every flag that was not given to what the run in a directory began with.

    Does nothing where no run was begun.

    Args:
        workdir: directory of the run, or of its seeds.
        names: flags of the script.

    Raises:
        UserError: a flag that was given differs, or the manifest is not readable.
    """
    paths = [workdir / records.MANIFEST]
    if not paths[0].exists():
        paths = sorted(workdir.glob(f"seed_*/{records.MANIFEST}"))
    if not paths:
        return
    manifests = [records.read_json(path) for path in paths]
    try:
        recorded = dict(manifests[0]["flags"])
        # A seed may be ahead of another, where one was interrupted.
        recorded["updates"] = max(int(found["updates"]) for found in manifests)
    except (KeyError, TypeError, ValueError, OverflowError):
        raise UserError(f"{paths[0]}: not the manifest of a run of train.py") from None
    if not FLAGS["model"].present:
        tasks.check_recorded(recorded.get("model", "prednet"))
    # What other flags mean depends on the model.
    for name in sorted(names, key=lambda name: name != "model"):
        if name in recorded and name not in _OF_COMMAND:
            _set(name, recorded[name], paths[0])


def initial_weights(workdir: Path) -> tuple[tasks.Task, dict] | None:
    """Network and initial weights that a run in a directory keeps; None: it has none.

    Raises:
        UserError: they are damaged.
    """
    for folder in (workdir, *sorted(workdir.glob("seed_*"))):
        if (folder / folders.INITIAL).exists():
            manifest = records.read_json(folder / records.MANIFEST)
            network = tasks.recorded(manifest["model"], manifest["network"])
            return network, records.read_tree(folder / folders.INITIAL)
    return None


def _set(name: str, value: Any, path: Path) -> None:
    flag = FLAGS[name]
    if not flag.present:
        flag.value = parsed(flag, value, path)
    elif not _agrees(name, flag.value, value):
        more = ", or more" if name == "updates" else ""
        raise UserError(
            f"--resume: --{name}={_shown(flag.value)}: expected {_shown(value)}{more}, "
            f"as in {path}"
        )


def _agrees(name: str, given: Any, recorded: Any) -> bool:
    """Whether a flag that was given fits what the run was begun with."""
    if name == "seeds":
        return bool(recorded)
    if name in _FREE:
        return True
    if name == "updates":
        return given >= int(recorded)
    return _meaning(name, given) == _meaning(name, recorded)


def _meaning(name: str, value: Any) -> Any:
    """A value in a form in which the same is equal: 1.0 and 1, a default and itself."""
    if name == "noise":
        return noise.format(_flags.parse_noise(value), defaults=True)
    if name in ("height", "width") and value is None and FLAGS.model == "prednet":
        return _flags.size(name)
    if name == "data" and value is None and FLAGS.model in tasks.NAMED:
        return tasks.NAMED[FLAGS.model][0].data
    if isinstance(value, list):
        try:
            return [float(entry) for entry in value]
        except ValueError:
            return value
    return value


def parsed(flag: flags.Flag, value: Any, path: Path) -> Any:
    """A value of a manifest as the flag would have it.

    Raises:
        UserError: it is none that the flag takes.
    """
    if value is None:
        return value
    text = ",".join(map(str, value)) if isinstance(value, list) else str(value)
    try:
        return flag.parser.parse(text)
    except (TypeError, ValueError) as error:
        raise UserError(f"{path}: flag {flag.name}: {error}") from None


def _shown(value: Any) -> str:
    if value is None:
        return "none given"
    return ",".join(map(str, value)) if isinstance(value, list) else str(value)
