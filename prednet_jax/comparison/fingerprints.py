"""The fingerprint of a run: one SHA-256 of everything that determines its numbers.

It covers the flags, the content of the data and weights that they name by a path,
environment variables, the source of the package, versions and the kind of device. Two
runs with the same fingerprint have the same numbers, so a run whose fingerprint is
already on disk is not made again.
"""

import functools
import hashlib
import importlib.util
import json
from pathlib import Path
from typing import Any

from prednet_jax import data, provenance, records, tasks
from prednet_jax.comparison.jobs import Job

PACKAGE = Path(__file__).parents[1]
VERSIONS = ("jax", "jaxlib", "flax", "optax", "numpy")


def contents(job: Job, seed: int) -> dict[str, Any]:
    """What the fingerprint of a run covers, as a JSON object.

    Args:
        job: the job.
        seed: one of its seeds.

    Raises:
        UserError: the frames cannot be opened.
    """
    return {
        "flags": dict(sorted(job.chosen.items())),
        "files": _files(job),
        "seed": seed,
        "environment": job.numbers_environment(),
        "source": source(job.script) + _task_source(job.model),
        "versions": _versions(),
        "device": job.device,
    }


def digest(found: dict[str, Any]) -> str:
    """SHA-256 of `contents`, 64 hexadecimal digits."""
    return hashlib.sha256(json.dumps(found, sort_keys=True).encode()).hexdigest()


def _files(job: Job) -> dict[str, str]:
    """What a run reads from paths: SHA-256 of the content, by flag."""
    found, chosen = {}, job.chosen
    if chosen.get("data", job.task.data) not in data.NAMES:
        height, width, channels = job.task.frame
        found["data"] = _frames(
            chosen.get("data", job.task.data),
            height=height,
            width=width,
            channels=channels,
            crop=chosen.get("crop", "center"),
            allow_outside=chosen.get("allow_outside") == "true",
        )
    if "init_weights" in chosen:
        found["init_weights"] = _weights(chosen["init_weights"])
    return found


@functools.cache
def _frames(name: str, **options: Any) -> str:
    return data.open_source(name, **options).fingerprint


@functools.cache
def _weights(path: str) -> str:
    """Of a run its final weights; of another directory, or a file, all bytes."""
    place = Path(path)
    if (place / records.MANIFEST).is_file():
        manifest = records.read_json(place / records.MANIFEST)
        return str(manifest.get("final_params_sha256"))
    files = sorted(f for f in (place, *place.rglob("*")) if f.is_file())
    return hashlib.sha256(b"".join(f.read_bytes() for f in files)).hexdigest()


@functools.cache
def _versions() -> dict[str, str]:
    found = provenance.versions()
    return {name: found[name] for name in VERSIONS}


@functools.cache
def source(script: str) -> str:
    """SHA-256 of the package's Python files, the script, and its helpers `_*.py`."""
    path = Path(script)
    beside = [path, *sorted(path.parent.glob("_*.py"))]
    found = hashlib.sha256()
    for name, file in [
        *(
            (f.relative_to(PACKAGE).as_posix(), f)
            for f in sorted(PACKAGE.rglob("*.py"))
        ),
        *((f"scripts/{f.name}", f) for f in beside if f.is_file()),
    ]:
        found.update(f"{name}:{file.stat().st_size};".encode())
        found.update(file.read_bytes())
    return found.hexdigest()


@functools.cache
def _task_source(model: str) -> str:
    """SHA-256 of the module of a task from elsewhere; empty for the package's own."""
    if model in tasks.NAMED:
        return ""
    spec = importlib.util.find_spec(model.partition(":")[0])
    if spec is None or spec.origin is None or not Path(spec.origin).is_file():
        return ""
    return "+" + hashlib.sha256(Path(spec.origin).read_bytes()).hexdigest()
