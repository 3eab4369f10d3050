"""Weights of every kind: files of this and other programs, runs, pretrained ones."""

import dataclasses
import os
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from prednet_jax import errors, files, records, tasks
from prednet_jax.config import AutoencoderConfig, PredNetConfig
from prednet_jax.errors import UserError
from prednet_jax.tasks import Task
from prednet_jax.training import checkpoints
from prednet_jax.training.run_directory import network_of
from prednet_jax.weights import foreign
from prednet_jax.weights.arrays import as_parameters, for_fractions
from prednet_jax.weights.chainer import is_chainer, load_chainer, save_chainer
from prednet_jax.weights.keras import extrapolation, is_keras, load_keras, save_keras
from prednet_jax.weights.pytorch import PORTS, is_port, load_pytorch
from prednet_jax.weights.tensors import (
    NETWORK,
    is_safetensors,
    load_orbax,
    load_safetensors,
    save_orbax,
    save_safetensors,
)

__all__ = [
    "PORTS",
    "SHIPPED",
    "extrapolation",
    "load",
    "load_chainer",
    "load_keras",
    "load_orbax",
    "load_pytorch",
    "load_run",
    "load_safetensors",
    "load_task",
    "pretrained",
    "pretrained_names",
    "save_chainer",
    "save_keras",
    "save_orbax",
    "save_safetensors",
    "scales_pixels",
    "writer",
    "written",
]

#: Where the networks lie that come with the package.
SHIPPED = Path(__file__).parents[1] / "pretrained"
_ACCEPTED = (
    "a weight file of Chainer (npz), Keras (HDF5, .keras) or PyTorch (.pth of 1.6 or "
    "later), a safetensors file, a directory of orbax, or of a run"
)

Writer = Callable[[str | os.PathLike, PredNetConfig, Mapping], None]


class Format(NamedTuple):
    """A format of weight files.

    Attributes:
        holds: `holds(path)` returns whether a file has this format, by its content.
        load: `load(path, ...)` returns the network and its parameters.
        asks: further arguments of `load`, which such files do not hold. Its pixels may
            exceed 1 if there are any, and `load` scales the weights.
        suffixes: the suffixes of files that `save` writes.
        save: `save(path, config, params)` writes a file. Defaults to None: such files
            are only read.
    """

    holds: Callable[[str | os.PathLike], bool]
    load: Callable[..., tuple[PredNetConfig, dict]]
    asks: tuple[str, ...] = ()
    suffixes: tuple[str, ...] = ()
    save: Writer | None = None


def _load_keras(path: str | os.PathLike, **frame: Any) -> tuple[PredNetConfig, dict]:
    """Reads a file of Keras; weights for other pixels are scaled."""
    config, params = load_keras(path, **frame)
    scale = config.pixel_max
    if scale <= 1:
        return config, params
    errors.log_once(
        f"{path}: pixel_max is {scale:g}; the weights are scaled for frames from 0 to 1"
    )
    config = dataclasses.replace(config, pixel_max=1.0)
    return config, for_fractions(config, params, scale)


_FRAME = ("height", "width", "pixel_max")
#: The formats of files, each of which is tried in this order.
FORMATS = (
    Format(is_keras, _load_keras, _FRAME, (".hdf5", ".h5"), save_keras),
    Format(is_port, load_pytorch, (*_FRAME, "variant")),
    Format(is_chainer, load_chainer, (), (".npz", ".model"), save_chainer),
    Format(is_safetensors, load_safetensors, (), (".safetensors",), save_safetensors),
)
#: What writes a file, by its suffix; a path without suffix is an orbax directory.
WRITERS = {s: f.save for f in FORMATS for s in f.suffixes if f.save} | {"": save_orbax}


def load(
    path: str | os.PathLike,
    *,
    height: int | None = None,
    width: int | None = None,
    pixel_max: float | None = None,
    variant: str | None = None,
) -> tuple[PredNetConfig | AutoencoderConfig, dict]:
    """Reads weights of any kind: returns the network and its float32 parameters.

    The content decides the kind, not the file's name; docs/models.md lists the kinds. A
    run's checkpoints/UPDATE is one too and, if no such file exists, a name that
    `pretrained` knows. Height, width and `pixel_max` are for files of Keras and PyTorch
    that do not hold them, the variant for files of PyTorch (`load_keras`,
    `load_pytorch`). The network is for frames in [0, 1]: weights of a `pixel_max` above
    1 are scaled. Any other path is a UserError.
    """
    task, params = load_task(
        path, height=height, width=width, pixel_max=pixel_max, variant=variant
    )
    config = getattr(task, "config", None)
    if config is None:
        raise UserError(
            f"{path}: a run of {task.name}; expected a run of "
            f"{' or '.join(tasks.NAMED)} (weights.load_task loads any network)"
        )
    return config, jax.tree.map(lambda x: jnp.asarray(x, jnp.float32), params)


def load_task(path: str | os.PathLike, **asked: Any) -> tuple[Task, dict]:
    """Reads as `load` does; the network is a task, perhaps of another module.

    Parameters of a run have the precision of its training.
    """
    path = Path(path)
    if os.path.isfile(path / NETWORK):  # False, too, of a name that is too long.
        config, params = load_orbax(path)
    elif folder := checkpoints.run_of(path):
        task = network_of(folder)
        return task, checkpoints.restore(folder, int(path.name), _like(task))
    elif os.path.isdir(path):
        if not (path / records.MANIFEST).exists():
            foreign.refuse(path)
            raise UserError(f"{path}: is a directory; expected {_ACCEPTED}")
        return load_run(path)
    elif str(path) in pretrained_names() and not os.path.exists(path):
        config, params = pretrained(str(path))
    elif path.name == records.WEIGHTS and (path.parent / records.MANIFEST).exists():
        return load_run(path.parent)
    else:
        try:
            file_format = _format(path)
            if file_format is None:
                raise files.FileError(f"{path}: of another kind")
            told = {k: v for k, v in asked.items() if k in file_format.asks}
            config, params = file_format.load(path, **told)
        except files.FileError as error:
            foreign.refuse(path)
            names = " or ".join(pretrained_names())
            raise UserError(f"{error}; expected {_ACCEPTED}; or {names}") from None
        except OSError as error:
            raise UserError(f"{path}: {error.strerror}; expected {_ACCEPTED}") from None
    return tasks.of(config), params


def _format(path: str | os.PathLike) -> Format | None:
    return next((kind for kind in FORMATS if kind.holds(path)), None)


def scales_pixels(path: str | os.PathLike) -> bool:
    """Returns whether `load` scales weights by `pixel_max`: of PyTorch and Keras."""
    file_format = _format(path) if os.path.isfile(path) else None
    return file_format is not None and "pixel_max" in file_format.asks


def writer(path: str | os.PathLike) -> Writer:
    """Returns the writer of a path, by its suffix: `save(path, config, params)`."""
    suffix = Path(path).suffix
    if suffix not in WRITERS:
        raise UserError(
            f"{path}: suffix {suffix!r}; expected one of "
            f"{', '.join(filter(None, WRITERS))}, or none for an orbax directory"
        )
    return WRITERS[suffix]


def written(path: str | os.PathLike) -> list[Path]:
    """Lists every file or directory that the writer of a path makes."""
    path = Path(path)
    keras = WRITERS.get(path.suffix) is save_keras
    return [path, path.with_suffix(".json")] if keras else [path]


def load_run(folder: Path) -> tuple[Task, dict]:
    """Returns network and weights of a run; if unfinished, of its newest checkpoint.

    The update is printed on stderr. Raises a UserError if the directory is not a run,
    has no weights yet, or its weights are damaged.
    """
    task = network_of(folder)
    digest = records.read_manifest(folder).final_params_sha256
    if digest is None:
        return task, _newest(folder, task)
    path = folder / records.WEIGHTS
    params = records.read_tree(path)
    if records.fingerprint(params) != digest:
        raise UserError(
            f"{path}: damaged; its SHA-256 is not the one in {records.MANIFEST}; "
            "expected the file that the run wrote: copy or train it again"
        )
    count = sum(leaf.size for leaf in jax.tree.leaves(params))
    if task.weights not in (0, count):
        raise UserError(
            f"{path}: {count} weights; expected {task.weights}, as the network in "
            f"{records.MANIFEST} has"
        )
    return task, params


def _like(task: Task) -> Any:
    return jax.eval_shape(lambda: task.init_params(jax.random.key(0)))


def _newest(folder: Path, task: Task) -> Any:
    update, (params,) = checkpoints.newest([folder], [_like(task)], sys.maxsize)
    if not update:
        raise UserError(
            f"{folder}: the run is not finished and has no checkpoint; expected one: "
            "continue the run with train.py --resume"
        )
    errors.log_line(
        f"{folder}: not finished, so its weights after update {update} are used"
    )
    return params


def pretrained(name: str = "walk") -> tuple[PredNetConfig, dict]:
    """Returns a trained network, ready to predict, and its float32 parameters.

    `walk` (frames of 24x32) and `walk_64` (48x64) were trained on walks through
    photographs, `moving_digits` (32x32, grey) on moving digits. Raises a UserError if
    there is no such network, or its file is damaged.
    """
    errors.one_of("name", name, pretrained_names())
    about = records.read_json(SHIPPED / f"{name}.json")
    path = SHIPPED / f"{name}.npz"
    if files.digest(path) != about["sha256"]:
        raise UserError(
            f"{path}: damaged; its SHA-256 is not the one in {name}.json; expected the "
            "file of this version: install the package again"
        )
    config = tasks.recorded(about["model"], about["network"]).config  # type: ignore[attr-defined]
    # By its SHA-256 these are the arrays that were trained.
    return config, as_parameters(config, records.read_tree(path))


def pretrained_names() -> tuple[str, ...]:
    """Lists the names of the networks that come with the package."""
    return tuple(sorted(path.stem for path in SHIPPED.glob("*.json")))
