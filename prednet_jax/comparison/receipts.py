"""Checks that a run on disk is complete and is the run that a job asks for.

A run that has ended gets a receipt beside its records:

    receipt.json   {"fingerprint": SHA-256, "contents": what it covers,
                    "files": {name: SHA-256}}

A run with the right receipt is never made again. `judgement` reads runs through
`verified` only, which refuses one that is truncated, duplicated, altered or of another
job.
"""

import hashlib
import json
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from prednet_jax import records
from prednet_jax.comparison import fingerprints
from prednet_jax.comparison.jobs import Job
from prednet_jax.records import RecordError

RECEIPT, EXAMPLES = "receipt.json", "examples.npz"
#: The files whose SHA-256 a receipt holds, where they exist.
FILES = (records.MANIFEST, records.METRICS, records.WEIGHTS, EXAMPLES)
_END = "final_params_sha256"
# Field of the manifest of a run that diverged: its last loss or gradient is not finite,
# and it has no final weights.
FAILURE = "failure"


def seal(job: Job, seed: int) -> None:
    """Writes the receipt of a run that has ended.

    Raises:
        RecordError: its records are incomplete.
    """
    folder = job.run_folder(seed)
    _checked(job, seed)
    contents = fingerprints.contents(job, seed)
    records.write_json(
        folder / RECEIPT,
        {
            "fingerprint": fingerprints.digest(contents),
            "contents": contents,
            "files": _digests(folder),
        },
    )


def seal_ended(job: Job) -> None:
    """Writes the receipts of runs that have ended; their process may still run."""
    for seed in job.seeds:
        folder = job.run_folder(seed)
        if not (folder / RECEIPT).exists() and _has_ended(folder):
            seal(job, seed)


def kept(jobs: Iterable[Job]) -> tuple[list[Job], Counter[str]]:
    """Which runs are still to be made, and why.

    Args:
        jobs: all jobs.

    Returns:
        The jobs, with the seeds that are still to be made; and the number of runs by
        reason: `kept`, or why the run is made (again).
    """
    left, reasons = [], Counter[str]()
    for job in jobs:
        found = {seed: _reason(job, seed) for seed in job.seeds}
        reasons.update(found.values())
        seeds = [seed for seed, reason in found.items() if reason != "kept"]
        if seeds:
            left.append(job.of(*seeds))
    return left, reasons


def said(reasons: Counter[str]) -> str | None:
    """The reasons of `kept` in one line; None: nothing was on disk."""
    total, again = sum(reasons.values()), Counter(reasons)
    whole, new = again.pop("kept", 0), again.pop("new", 0)
    if new == total:
        return None
    causes = [f"{count} {reason}" for reason, count in sorted(again.items())]
    return f"{whole} of {total} runs kept" + (
        f"; made again: {', '.join(causes)}" if causes else ""
    )


def _reason(job: Job, seed: int) -> str:
    folder = job.run_folder(seed)
    if not folder.exists():
        return "new"
    try:
        receipt = records.read_json(folder / RECEIPT)
        before, files = receipt["contents"], receipt["files"]
    except (RecordError, KeyError, TypeError):
        return "unfinished"
    now = fingerprints.contents(job, seed)
    if receipt.get("fingerprint") != fingerprints.digest(now):
        other = [name for name in now if now[name] != before.get(name)]
        return f"with other {' and '.join(other) or 'contents'}"
    return "kept" if files == _digests(folder) else "altered since"


def verified(job: Job, seed: int) -> records.Run:
    """Reads a run that is complete and belongs to the job.

    Raises:
        RecordError: it is not; the message names the file and what is wrong.
    """
    run = _checked(job, seed)
    path = run.directory / RECEIPT
    if not path.exists():
        raise _broken(path, "missing; expected the receipt of this command's run")
    receipt = records.read_json(path)
    try:
        files, recorded = dict(receipt["files"]), receipt["fingerprint"]
    except (KeyError, TypeError, ValueError):
        raise _broken(path, "expected the receipt of a run") from None
    expected = fingerprints.digest(fingerprints.contents(job, seed))
    if recorded != expected:
        raise _broken(path, f"fingerprint {recorded}; expected {expected} of its job")
    now = _digests(run.directory)
    for name in sorted({*files, *now}):
        if files.get(name) != now.get(name):
            raise _broken(
                run.directory / name,
                f"SHA-256 {now.get(name)}; expected {files.get(name)}, as when the run "
                "ended",
            )
    return run


def any_diverged(job: Job) -> bool:
    """Whether a run of the job diverged."""
    folders = (job.run_folder(seed) for seed in job.seeds)
    ended = [folder for folder in folders if (folder / RECEIPT).exists()]
    return any(FAILURE in records.read_json(f / records.MANIFEST) for f in ended)


def _checked(job: Job, seed: int) -> records.Run:
    """Reads a run and checks all but its receipt."""
    folder = job.run_folder(seed)
    manifest = records.read_json(folder / records.MANIFEST)
    if not isinstance(manifest, dict):
        raise _broken(folder / records.MANIFEST, "expected a JSON object")
    _check_manifest(job, seed, folder / records.MANIFEST, manifest)
    diverged = FAILURE in manifest
    _check_metrics(job, folder / records.METRICS, diverged=diverged)
    path = folder / records.WEIGHTS
    if not diverged:
        digest = records.fingerprint(records.read_tree(path))
        if digest != manifest[_END]:
            raise _broken(path, f"weights {digest}; expected {_END} {manifest[_END]}")
    return records.read_run(folder)


def _check_manifest(job: Job, seed: int, path: Path, manifest: dict[str, Any]) -> None:
    if FAILURE not in manifest and not isinstance(manifest.get(_END), str):
        raise _broken(path, f"{_END} is missing; expected a run that has ended")
    flags = manifest.get("flags")
    if not isinstance(flags, dict):
        raise _broken(path, "flags are missing; expected those of its job")
    for name, asked in {"model": job.model, "seed": seed}.items():
        if manifest.get(name) != asked:
            raise _broken(path, f"{name} {manifest.get(name)!r}; expected {asked!r}")
    for name, text in job.chosen.items():
        if not _equal(flags.get(name), text):
            raise _broken(
                path, f"--{name}={flags.get(name)}; expected --{name}={text} of its job"
            )


def _equal(value: Any, text: str) -> bool:
    """Whether the recorded value of a flag equals its text on a command line."""
    if isinstance(value, list):
        return ",".join(map(str, value)) == text
    if isinstance(value, bool) or value is None:
        return str(value).lower() == text.lower()
    try:
        return float(value) == float(text)
    except ValueError:
        return str(value) == text


def _check_metrics(job: Job, path: Path, *, diverged: bool) -> None:
    """Checks for one line per update, in order, of numbers or null (not finite).

    A run that diverged ends with the first update that has a null.
    """
    try:
        lines = path.read_text().splitlines()
        rows = [json.loads(line, parse_constant=_no_number) for line in lines]
    except OSError as error:
        raise _broken(path, f"{error.strerror}; expected metrics") from None
    except ValueError as error:
        raise _broken(path, f"{error}; expected JSON lines") from None
    for number, row in enumerate(rows, 1):
        found = row.get("update") if isinstance(row, dict) else row
        if found != number:
            raise _broken(path, f"line {number}: update {found}; expected {number}")
        if "loss" not in row or row.keys() != rows[0].keys():
            raise _broken(path, f"update {number}: {', '.join(row)}; expected loss, "
                          f"and what the other lines have")  # fmt: skip
        for name, value in row.items():
            number_or_null = value is None or isinstance(value, (int, float))
            if not number_or_null or isinstance(value, bool):
                raise _broken(
                    path, f"update {number}: {name} {value!r}; expected a number"
                )
    early = diverged and rows and len(rows) <= job.updates
    if early and (len(rows) == job.updates or None in rows[-1].values()):
        return
    if len(rows) != job.updates:
        raise _broken(path, f"{len(rows)} updates; expected {job.updates}")


def _no_number(name: str) -> float:
    raise ValueError(f"{name}; expected null for a number that is not finite")


def _has_ended(folder: Path) -> bool:
    try:
        manifest = records.read_json(folder / records.MANIFEST)
        return _END in manifest or FAILURE in manifest
    except (RecordError, TypeError):
        return False


def _digests(folder: Path) -> dict[str, str]:
    found = {name: folder / name for name in FILES}
    return {
        name: hashlib.sha256(path.read_bytes()).hexdigest()
        for name, path in found.items()
        if path.is_file()
    }


def _broken(path: Path, what: str) -> RecordError:
    return RecordError(f"{path}: {what}")
