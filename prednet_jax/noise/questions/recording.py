"""A recording: the value of every equation of a program, in little space, and its file.

Values of up to `WHOLE` elements are stored whole. For larger values the recording has a
sketch and a sample (`noise.sketch`), the largest magnitude and a hash.
"""

import dataclasses
import io
import json
import math
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from prednet_jax.noise import files
from prednet_jax.noise.errors import NoiseError
from prednet_jax.noise.sketch import COLUMNS

VERSION = 6
# Its recordings have no samples.
BEFORE_SAMPLES = 4
# In versions before, the first number of an argument told positional from named ones.
_FIRST_NUMBER = re.compile(r"(?<=argument)\[[01]\](?=\[)")
WHOLE = 1024
# The most elements in the sample of a larger value.
SAMPLE = 1024


@dataclass(frozen=True, eq=False)
class Recorded:
    """A value of a program, in each of n executions.

    Attributes:
        path: the equation's path, as `coverage` lists it; for an argument or a result
            its name.
        primitive: JAX's name; `argument`, `constant`, `result`.
        source: the user's line, such as `model.py:12 in loss`.
        shape: shape of the value; complex numbers have their parts as a last axis.
        within: loops and branches around, such as `scan/cond[0]`; no calls.
        operands: numbers of the recorded values it was computed from, where known.
        starts: for each loop or shard_map around, as in `watch.Place`.
        steps: int [n, loops], the steps of the loops around, or the device.
        hashes: uint64 [n], of the bits.
        norms: [n], Euclidean norms.
        largest: [n], the largest magnitudes.
        unbounded: [n], sum of `sketch.classes` of the elements.
        values: [n, m], the elements or the sketch, with unbounded elements as 0.
        sample: [n, k], elements of a value that `values` has the sketch of; k is 0 for
            other values, and in recordings of version 4.
        text: hash of the source line's text, which tells an unchanged line; or empty.
        unread: whether no result depends on it. It is paired, but never a difference.
        others: of complex numbers, the other part of each element of `values`, or of
            `sample` if the value has one. A file does not have them.
    """

    path: str
    primitive: str
    source: str
    shape: tuple[int, ...]
    dtype: str
    within: str
    operands: tuple[int, ...]
    starts: tuple[int, ...]
    steps: np.ndarray
    hashes: np.ndarray
    norms: np.ndarray
    largest: np.ndarray
    unbounded: np.ndarray
    values: np.ndarray
    sample: np.ndarray
    text: str = ""
    unread: bool = False
    others: np.ndarray | None = None

    @property
    def size(self) -> int:
        """Returns number of elements."""
        return math.prod(self.shape)


_ARRAYS = ("steps", "hashes", "norms", "largest", "unbounded", "values", "sample")
_NO_FACTS = (*_ARRAYS, "others")
FACTS = [f.name for f in dataclasses.fields(Recorded) if f.name not in _NO_FACTS]


@dataclass(frozen=True, eq=False)
class Recording:
    """The values of a program.

    `machine` describes versions, platform and device; `equations` has every value, in
    the order of the program.
    """

    function: str
    machine: str
    equations: tuple[Recorded, ...]

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes an .npz file, which any machine with NumPy can read.

        `about` is a text in JSON with all attributes of each equation that are not
        arrays. `3/norms` are the norms of equation 3, from 0. Raises a NoiseError on
        failure.
        """
        facts = [{name: getattr(e, name) for name in FACTS} for e in self.equations]
        about = {"version": VERSION, "function": self.function, "machine": self.machine}
        text = json.dumps(about | {"equations": facts})
        arrays: dict[str, Any] = {
            f"{i}/{name}": getattr(e, name)
            for i, e in enumerate(self.equations)
            for name in _ARRAYS
        }
        content = io.BytesIO()
        np.savez_compressed(content, about=np.array(text), **arrays)
        files.write_whole(path, content.getvalue())

    def __str__(self) -> str:
        count = sum(len(value.steps) for value in self.equations)
        return (
            f"{self.function} on {self.machine}: {len(self.equations)} values, "
            f"computed {count} times"
        )


def load_recording(path: str | os.PathLike[str]) -> Recording:
    """Reads a file that `Recording.save` wrote.

    A NoiseError is raised for other files, damaged files and files of versions before
    4.
    """
    files.check_path(path)
    try:
        # Opened here, since NumPy leaves a file open that it cannot read.
        with files.open_binary(path) as file, np.load(file, allow_pickle=False) as held:
            about = json.loads(str(held["about"]))
            version = about["version"]
            if version not in range(BEFORE_SAMPLES, VERSION + 1):
                versions = f"{BEFORE_SAMPLES} to {VERSION}"
                raise ValueError(f"it is of version {version}, not {versions}")
            names = [x for x in _ARRAYS if x != "sample" or version > BEFORE_SAMPLES]
            equations = []
            for i, fact in enumerate(about["equations"]):
                own: dict[str, Any] = {name: held[f"{i}/{name}"] for name in names}
                own.setdefault("sample", np.zeros((len(own["hashes"]), 0)))
                for name, value in fact.items():
                    own[name] = tuple(value) if isinstance(value, list) else value
                if version < VERSION:
                    own["path"] = _FIRST_NUMBER.sub("", own["path"])
                equations.append(Recorded(**own))
                _check(equations)
        return Recording(about["function"], about["machine"], tuple(equations))
    except Exception as error:
        # NumPy, zipfile, zlib and JSON have different exceptions.
        why = getattr(error, "strerror", None) or (
            str(error)
            if str(error).startswith("it")
            else "it is not a recording, or damaged"
        )
        raise NoiseError(
            f"{path}: expected a recording, as noise.record(fn)(*args).save(path) "
            f"writes it ({why})"
        ) from None


def _check(equations: Sequence[Recorded]) -> None:
    """Raises an error if `record` would not write the last equation's arrays."""
    x = equations[-1]
    texts = (x.path, x.primitive, x.source, x.dtype, x.within, x.text)
    if not all(isinstance(text, str) for text in texts):
        raise ValueError("it is damaged: a value has a name that is no text")
    n, width = len(x.hashes), x.size if x.size <= WHOLE else COLUMNS
    sample = x.sample.shape[-1] if x.size > WHOLE else 0
    shapes = {"steps": (n, len(x.starts)), "values": (n, width)}
    shapes["sample"] = n, sample
    kinds = {"steps": "iu", "hashes": "u", "unbounded": "iu"}
    for name in _ARRAYS:
        array = getattr(x, name)
        fits = array.shape == shapes.get(name, (n,))
        if not fits or array.dtype.kind not in kinds.get(name, "f"):
            raise ValueError(f"it is damaged: {x.path} has other {name}")
        if array.dtype.kind == "f" and not np.isfinite(array).all():
            raise ValueError(f"it is damaged: {x.path} has {name} that are no number")
    before = range(len(equations) - 1)
    if not all(isinstance(i, int) and i in before for i in x.operands):
        raise ValueError(f"it is damaged: {x.path} is computed of later values")
