"""The store of runs: a run is found by the facts that determine its numbers.

A run is described by its *facts*, a JSON object of everything that determines its
numbers: settings, program, versions, device. Runs with equal facts have equal numbers,
so a run that is in the store is never made again, and one with other facts is never
taken for it. There are two forms, each written whole or not at all:

    a directory      receipt.json among the files: {"fingerprint": SHA-256 of facts,
                     "contents": the facts, "files": {name: SHA-256}}
    rows of a table  runs.csv; manifest.json has the facts that all rows share
"""

import enum
import hashlib
import json
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from prednet_jax import files, records
from prednet_jax.files import FileError

#: Everything that determines the numbers of a run, by name.
Facts = Mapping[str, object]
RECEIPT = "receipt.json"


def key(facts: Facts) -> str:
    """Returns the SHA-256 of the facts, 64 hexadecimal digits."""
    return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()


def differing(facts: Facts, stored: Facts) -> list[str]:
    """Returns the names of facts that differ from the stored ones."""
    facts = json.loads(json.dumps(facts))  # Lists instead of tuples, as in the files.
    return [name for name, value in facts.items() if stored.get(name) != value]


def write_receipt(folder: Path, facts: Facts, names: Iterable[str]) -> None:
    """Writes the receipt of an ended run, for the files of `names` that exist."""
    digests = {name: _digest(folder / name) for name in names}
    receipt = {
        "fingerprint": key(facts),
        "contents": facts,
        "files": {name: digest for name, digest in digests.items() if digest},
    }
    records.write_json(folder / RECEIPT, receipt)


class Status(enum.StrEnum):
    """The state of a stored run; a run that is not `KEPT` has to be made (again)."""

    KEPT = "kept"
    NEW = "new"
    UNFINISHED = "unfinished"
    OTHER_FACTS = "with other"
    ALTERED = "altered since"


@dataclass(frozen=True)
class RunState:
    """The state of a stored run, and the differences: names of facts, or a file."""

    status: Status
    detail: str = ""

    @property
    def kept(self) -> bool:
        """Returns whether the run is whole and has the requested facts."""
        return self.status is Status.KEPT

    def __str__(self) -> str:
        return f"{self.status} {self.detail}".rstrip()


def state(folder: Path, facts: Facts, names: Iterable[str]) -> RunState:
    """Returns the state of a stored run, and why it has to be made again."""
    if not folder.exists():
        return RunState(Status.NEW)
    try:
        receipt = records.read_json(folder / RECEIPT)
        before, digests = dict(receipt["contents"]), dict(receipt["files"])
        same = receipt["fingerprint"] == key(facts)
    except (FileError, KeyError, TypeError, ValueError):
        return RunState(Status.UNFINISHED)
    if not same:
        others = " and ".join(differing(facts, before)) or "contents"
        return RunState(Status.OTHER_FACTS, others)
    for name in sorted({*digests, *names}):
        if digests.get(name) != _digest(folder / name):
            return RunState(Status.ALTERED, f"({name})")
    return RunState(Status.KEPT)


def verify(folder: Path, facts: Facts, names: Iterable[str]) -> None:
    """Refuses, with a FileError, a run that is not whole, or has other facts."""
    if not (stored := state(folder, facts, names)).kept:
        raise FileError(f"{folder}: {stored}; expected the run of this command, whole")


def _digest(path: Path) -> str | None:
    return files.digest(path) if path.is_file() else None


def add_row(path: Path, row: Mapping[str, object]) -> None:
    """Adds a run to a table, in one write that reaches the disk; others may add too."""
    with files.hold(path.parent, wait=True), open(path, "ab", buffering=0) as file:
        text = records.csv_bytes([row])
        if os.fstat(file.fileno()).st_size:
            text = text.partition(b"\n")[2]  # Without the names of the columns.
        file.write(text)
        os.fsync(file.fileno())
