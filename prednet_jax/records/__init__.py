"""The records of a run on disk: manifest, metrics, fingerprints. Needs no JAX.

docs/runs.md lists the contents of a run directory. On request it also holds
    validation.jsonl  one JSON object per score of the frozen weights
    loss.png          the losses, drawn at the end, with the extra `report`
    examples.npz      predicted frames
"""

import csv
import hashlib
import importlib.metadata
import io
import json
import os
import platform
import subprocess
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

import numpy as np

from prednet_jax import files
from prednet_jax.files import FileError

MANIFEST, METRICS, WEIGHTS = "manifest.json", "metrics.jsonl", "weights.npz"
VALIDATION, LOSS_PICTURE = "validation.jsonl", "loss.png"
EXAMPLES = "examples.npz"
# What determines a run's numbers in addition to its flags: versions, and variables that
# change the computations of XLA or the process.
PACKAGES = ("jax", "jaxlib", "flax", "optax", "numpy", "scipy", "chex", "prednet-jax")
ENVIRONMENT = (
    *("XLA_FLAGS", "GLIBC_TUNABLES", "JAX_PLATFORMS", "JAX_ENABLE_X64"),
    *("JAX_DEFAULT_MATMUL_PRECISION", "JAX_COMPILATION_CACHE_DIR", "NPROC"),
    *("JAX_DISABLE_MOST_OPTIMIZATIONS", "JAX_OPTIMIZATION_LEVEL", "JAX_DISABLE_JIT"),
    *("JAX_EXEC_TIME_OPTIMIZATION_EFFORT", "JAX_MEMORY_FITTING_EFFORT"),
    *("JAX_MEMORY_FITTING_LEVEL", "JAX_ALLOW_F16_REDUCTIONS"),
    *("JAX_DEFAULT_PRNG_IMPL", "JAX_THREEFRY_PARTITIONABLE", "JAX_RANDOM_SEED_OFFSET"),
    *("OMP_NUM_THREADS", "CUDA_VISIBLE_DEVICES", "TF_CUDNN_DETERMINISTIC"),
    "NVIDIA_TF32_OVERRIDE",
)
# Variables that name places and do not affect the computation.
_PLACES = ("JAX_COMPILATION_CACHE_DIR", "CUDA_VISIBLE_DEVICES", "GLIBC_TUNABLES")


def fingerprint(tree: Mapping[str, Any]) -> str:
    """Returns the SHA-256 of nested arrays: names, dtypes, shapes and bytes."""
    digest = hashlib.sha256()
    for name, array in _leaves(tree):
        array = np.ascontiguousarray(array)
        digest.update(f"{name}:{array.dtype.str}:{array.shape};".encode())
        digest.update(array.tobytes())
    return digest.hexdigest()


def vector(tree: Mapping[str, Any]) -> np.ndarray:
    """Returns all numbers of nested arrays, in `jax.tree.leaves` order, float64."""
    return np.concatenate([np.asarray(x, np.float64).ravel() for _, x in _leaves(tree)])


def _leaves(tree: Any, prefix: str = "") -> Iterator[tuple[str, Any]]:
    if isinstance(tree, Mapping):
        for key in sorted(tree):
            yield from _leaves(tree[key], f"{prefix}/{key}")
    else:
        yield prefix, tree


def write_bytes(path: str | os.PathLike, content: bytes) -> None:
    """Writes a file at once: readers see either the old file or all of the new one."""
    files.write_files(Path(path).parent, {Path(path).name: content})


def write_tree(
    path: str | os.PathLike, tree: Mapping[str, Any], *, compressed: bool = False
) -> None:
    """Writes a nested dictionary of arrays as an .npz, names joined by slashes."""
    write_bytes(path, tree_bytes(tree, compressed=compressed))


def tree_bytes(tree: Mapping[str, Any], *, compressed: bool = False) -> bytes:
    """Returns the bytes that `write_tree` writes."""
    buffer = io.BytesIO()
    save = np.savez_compressed if compressed else np.savez
    save(buffer, **{name[1:]: np.asarray(x) for name, x in _leaves(tree)})  # type: ignore[arg-type]
    return buffer.getvalue()


def read_tree(path: str | os.PathLike) -> dict[str, Any]:
    """Reads a file of `write_tree`; a FileError gives the reason if it cannot."""
    tree: dict[str, Any] = {}
    try:
        stored = files.read_npz(path)
    except FileError as error:
        raise FileError(f"{error}; expected weights of a run") from None
    for name, array in stored.items():
        *folders, leaf = name.split("/")
        branch = tree
        for folder in folders:
            branch = branch.setdefault(folder, {})
            if not isinstance(branch, dict):
                break
        if not isinstance(branch, dict) or leaf in branch:
            raise FileError(
                f"{path}: {name!r} is both an array and a folder of arrays; expected "
                "weights of a run"
            )
        branch[leaf] = array
    return tree


def write_json(path: str | os.PathLike, value: object) -> None:
    """Writes JSON by `write_bytes`; NaN and infinity become null."""
    write_bytes(path, json_bytes(value))


def json_bytes(value: object) -> bytes:
    """Returns the bytes that `write_json` writes."""
    return (json.dumps(_finite(value), indent=2, allow_nan=False) + "\n").encode()


def _finite(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(k): _finite(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(v) for v in value]
    if isinstance(value, np.generic):
        value = value.item()
    return None if isinstance(value, float) and not np.isfinite(value) else value


def read_json(path: str | os.PathLike) -> Any:
    """Reads JSON; a file that is missing or is not JSON is a FileError."""
    text = files.read_text(path)
    with files.broken_as(f"{path}: not JSON", "; expected a JSON file", FileError):
        return json.loads(text)


def csv_bytes(
    rows: Sequence[Mapping[str, object]], columns: Iterable[str] | None = None
) -> bytes:
    """Returns a table as CSV; columns default to the first row's."""
    names = list(rows[0] if columns is None else columns)
    text = io.StringIO()
    writer = csv.DictWriter(
        text, names, lineterminator="\n", extrasaction="ignore", restval=""
    )
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue().encode()


def read_csv(path: str | os.PathLike) -> list[dict[str, str]]:
    """Reads the rows of a table; a file that is missing or not text is a FileError."""
    return list(csv.DictReader(files.read_text(path).splitlines()))


# What `validation.jsonl` has of the frozen weights after an update.
SCORES = ("loss", "copy_last_frame_loss", "ratio")


class ManifestError(FileError):
    """A file that is not the manifest of a run."""


@dataclass(frozen=True, kw_only=True)
class Manifest:
    """The settings and the origin of a run: `manifest.json`.

    A field that is None or empty is not written, except `git_commit` and the mappings
    that every manifest has. Fields that this version does not know are kept.

    Attributes:
        model: the network's name, by which `tasks.recorded` finds it again.
        network: the network's settings.
        seed: the root seed.
        updates: number of updates of the run.
        flags: every flag of `train.py` and its value.
        data: name of the frames.
        noise: text of the noise, with all defaults.
        noise_draw: number of the noise draw.
        initial_params_sha256: fingerprint of the initial weights.
        data_order_sha256: fingerprint of the frames of every update.
        git_commit: commit of the checkout.
        versions: versions of Python and of packages.
        device: devices, threads, processor.
        environment: variables that may change the numbers.
        prng: implementation of the PRNG.
        convolutions: algorithm of each convolution.
        sampling: `windows`, or None where updates see a stream.
        validation: data on which the frozen weights are scored.
        layout: replicas and devices of a program of several runs.
        resumed: updates at which the run was continued, and the changes since.
        wall_seconds: seconds of the training, of its last process.
        processor_seconds_per_second: measured parallelism.
        final_params_sha256: fingerprint of the final weights, or None if the run is
            unfinished.
        failure: reason why the run ended without final weights.
        other: fields of other versions.
    """

    model: str
    network: Mapping[str, Any]
    seed: int
    updates: int
    flags: Mapping[str, Any]
    data: str | None = None
    noise: str | None = None
    noise_draw: int = 0
    initial_params_sha256: str | None = None
    data_order_sha256: str | None = None
    git_commit: str | None = None
    versions: Mapping[str, str] | None = None
    device: Mapping[str, Any] | None = None
    environment: Mapping[str, str] | None = None
    prng: str | None = None
    convolutions: Mapping[str, str] | None = None
    sampling: str | None = None
    validation: Mapping[str, Any] | None = None
    layout: Mapping[str, Any] | None = None
    resumed: tuple[Mapping[str, Any], ...] = ()
    wall_seconds: float | None = None
    processor_seconds_per_second: float | None = None
    final_params_sha256: str | None = None
    failure: str | None = None
    other: Mapping[str, Any] = field(default_factory=dict)

    @property
    def ended(self) -> bool:
        """Returns whether the run has ended; one that diverged has no final weights."""
        return self.final_params_sha256 is not None or self.failure is not None

    def to_json(self) -> dict[str, Any]:
        """Returns the fields by name, in the written form."""
        values = {f.name: getattr(self, f.name) for f in fields(self)}
        values |= {"resumed": list(self.resumed)} | values.pop("other")
        written = {k: v for k, v in values.items() if v is not None and v != []}
        return {"git_commit": None} | written

    @classmethod
    def from_json(cls, values: Any, name: object = MANIFEST) -> "Manifest":
        """Returns the manifest that was written as JSON.

        Raises:
            ManifestError: it is not the manifest of a run; the message contains `name`.
        """
        names = {f.name for f in fields(cls)} - {"other"}
        broken = f"{name}: not the manifest of a run", "; expected what train.py wrote"
        with files.broken_as(*broken, ManifestError, also=(AttributeError,)):
            kwargs = {k: v for k, v in values.items() if k in names and v is not None}
            kwargs["updates"] = int(kwargs.get("updates", 0))
            kwargs["resumed"] = tuple(kwargs.get("resumed", ()))
            kwargs["flags"] = dict(kwargs.get("flags", {}))
            other = {k: v for k, v in values.items() if k not in names}
            defaults = {"model": "", "network": {}, "seed": 0}
            return cls(**defaults | kwargs, other=other)


def read_manifest(directory: str | os.PathLike) -> Manifest:
    """Reads the manifest of a run; a missing or damaged one is a FileError."""
    path = Path(directory) / MANIFEST
    return Manifest.from_json(read_json(path), path)


class MetricsWriter:
    """Appends one JSON object per update to `metrics.jsonl`.

    It keeps the first `keep` lines of an earlier part of the run.
    """

    def __init__(self, directory: str | os.PathLike, *, keep: int = 0):
        path = Path(directory) / METRICS
        lines = metrics_lines(path) if keep else []
        if len(lines) < keep:
            raise FileError(f"{path}: {len(lines)} lines; expected {keep}")
        write_bytes(path, "".join(lines[:keep]).encode())
        self._file = open(path, "a", buffering=1)  # noqa: SIM115 (closed by close)

    def write(self, **values: object) -> None:
        """Appends one line; floats are written so that reading gives the same bits."""
        self._file.write(json.dumps(_finite(values), allow_nan=False) + "\n")

    def sync(self) -> None:
        """Forces all lines to the disk."""
        os.fsync(self._file.fileno())

    def close(self) -> None:
        """Closes the file."""
        self._file.close()


def metrics_lines(path: Path) -> list[str]:
    """Reads the lines of updates 1, 2, ... up to the first torn one."""
    lines: list[str] = []
    for line, row in _whole_lines(path):
        if not isinstance(row, dict) or row.get("update") != len(lines) + 1:
            break
        lines.append(line.decode())
    return lines


def _whole_lines(path: Path) -> Iterator[tuple[bytes, Any]]:
    """Yields the lines of a file of JSON and their values, None for torn lines."""
    # Reading a pipe would wait for a writer.
    content = files.read_bytes(path) if path.exists() else b""
    for line in content.splitlines(keepends=True):
        try:
            row = json.loads(line) if line.endswith(b"\n") else None
        except (ValueError, RecursionError):
            row = None
        yield line, row


def read_validation(directory: str | os.PathLike) -> list[dict[str, Any]]:
    """Reads the rows of `validation.jsonl`, without lines that are no scores."""

    def is_score(row: Any) -> bool:
        named = isinstance(row, dict) and row.keys() >= {"update", *SCORES}
        return named and None not in row.values() and all(map(_is_metric, row.values()))

    rows = (row for _, row in _whole_lines(Path(directory) / VALIDATION))
    return list(filter(is_score, rows))


@dataclass(frozen=True)
class Run:
    """The records of a run read back: its manifest, and metrics `[updates]` by name."""

    directory: Path
    manifest: Manifest
    metrics: dict[str, np.ndarray]


def read_run(directory: str | os.PathLike) -> Run:
    """Reads a run; a file that is missing, broken or without updates is a FileError."""
    directory = Path(directory)
    manifest = read_manifest(directory)
    path = directory / METRICS
    lines = files.read_text(path).splitlines()
    with files.broken_as(f"{path}: not JSON", "; expected JSON lines", FileError):
        rows = [json.loads(line) for line in lines]
    if not rows:
        raise FileError(f"{path}: empty; expected one object per update")
    return Run(directory, manifest, _columns(path, rows))


def _columns(path: Path, rows: list[Any]) -> dict[str, np.ndarray]:
    """Returns metrics by name, each `[updates]`; null is NaN."""
    names = rows[0].keys() if isinstance(rows[0], dict) else ()
    for number, row in enumerate(rows, 1):
        values = list(row.values()) if isinstance(row, dict) else [""]
        if not all(map(_is_metric, values)) or not names or row.keys() != names:
            raise FileError(
                f"{path}: line {number}: expected an object of numbers, with the names "
                "of the first"
            )
    # NumPy converts None to NaN.
    return {name: np.array([row[name] for row in rows], np.float64) for name in names}


def _is_metric(value: Any) -> bool:
    if isinstance(value, int):
        return abs(value) < 2**63
    return value is None or isinstance(value, float)


def check_comparable(runs: list[Run]) -> None:
    """Refuses runs of one seed with different starts; raises a FileError."""
    seen: dict[tuple, Run] = {}
    for run in runs:
        other = seen.setdefault((run.manifest.model, run.manifest.seed), run)
        for name in ("initial_params_sha256", "data_order_sha256"):
            mine, theirs = getattr(run.manifest, name), getattr(other.manifest, name)
            if mine is None or mine != theirs:
                raise FileError(
                    f"{run.directory} and {other.directory}: {name} {mine} and "
                    f"{theirs}; expected the same initial weights and data order"
                )


def git_commit(directory: str | os.PathLike) -> str | None:
    """Returns the commit of a checkout, with `+changes` if tracked files differ."""

    def git(*args: str) -> str | None:
        command = ["git", "-C", os.fspath(directory), *args]
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=20)
        except (OSError, subprocess.SubprocessError):
            return None
        return None if done.returncode else done.stdout.strip()

    commit = git("rev-parse", "HEAD")
    if commit and git("status", "--porcelain", "--untracked-files=no"):
        commit += "+changes"
    return commit


def versions() -> dict[str, str]:
    """Returns versions of Python and of the packages that determine the numbers."""
    numbers = {"python": platform.python_version()}
    for package in PACKAGES:
        try:
            numbers[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            numbers[package] = "not installed"
    return numbers


def environment() -> dict[str, str]:
    """Returns those variables of `ENVIRONMENT` that are set, with their values."""
    return {name: os.environ[name] for name in ENVIRONMENT if name in os.environ}


def of_numbers(variables: Mapping[str, str]) -> dict[str, str]:
    """Returns those variables that may change numbers, in alphabetical order."""
    return {k: v for k, v in sorted(variables.items()) if k not in _PLACES}
