"""The records of the long trainings: which exist, and whether they belong together.

    <folder>/seed_<n>.csv    curves: one row per arm, draw and 25 updates
    <folder>/seed_<n>.json   endpoints, distances, fingerprints, versions
    <folder>/unfinished/seed_<n>/<arm>.<draw>.npz
                             a finished training of a seed that has no record yet

At the article's size a seed takes hours. Each of its trainings is kept as it ends, so
an interruption costs one training.
"""

import contextlib
import csv
import dataclasses
import io
import shutil
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from prednet_jax import errors, records
from prednet_jax.runs import store
from prednet_jax.studies.endpoints import CURVES, Trajectory
from prednet_jax.studies.parts import Part, Treatment

# Updates per row of a curve.
BIN = 25
#: Fields of a record that determine the bits of its trainings, beside the programs.
DECIDES = (
    "part",
    "network",
    "data",
    "window",
    "updates",
    "truncation_leak",
    "random_windows",
    "threads",
    "versions",
    "xla_flags",
)


def check(name: str, about: Mapping[str, Any], path: Path) -> None:
    """Refuses a seed whose arithmetic differs from that of another seed's record.

    Args:
        name: what to call the seed in the error.
        about: fields of its record: `DECIDES` and `programs`.
        path: record of another seed of the part.

    Raises:
        UserError: the two differ in a field of `DECIDES`, or in the program of an arm
            that both have.
    """
    theirs = records.read_json(path)
    differ = store.differing({name: about.get(name) for name in DECIDES}, theirs)
    differ += [
        f"program of {arm}"
        for arm, digest in about["programs"].items()
        if theirs.get("programs", {}).get(arm, digest) != digest
    ]
    if differ:
        raise errors.UserError(
            f"{name}: another {', '.join(differ)}; expected the same as in {path}, or "
            "another --workdir"
        )


def finished(part: Part, folder: Path) -> dict[int, Path]:
    """The record of each seed of a part that has one."""
    paths = {seed: folder / f"seed_{seed}.json" for seed in part.seeds}
    return {seed: path for seed, path in paths.items() if path.exists()}


def without_gradient(paths: Iterable[Path]) -> Counter[str]:
    """Number of runs of each arm whose gradient is exactly 0 in the last row.

    Such a network is dead. Noise of the order of sums is 0 there too.

    Args:
        paths: records of seeds; their curves lie beside them.
    """
    found: Counter[str] = Counter()
    for path in paths:
        with path.with_suffix(".csv").open(newline="") as file:
            last = {(row["arm"], row["draw"]): row for row in csv.DictReader(file)}
        found.update(
            arm
            for (arm, _), row in last.items()
            if row["grad_norm"] and float(row["grad_norm"]) == 0
        )
    return found


def curve_rows(arm: str, draw: int, curves: dict[str, np.ndarray]) -> list[dict]:
    """The rows of one training in the table of curves."""
    length = min(map(len, curves.values()))
    rows = []
    for start in range(0, length, BIN):
        stop = min(start + BIN, length)
        means = {name: c[start:stop].mean() for name, c in curves.items()}
        rows.append(
            {"arm": arm, "draw": draw, "update": stop}
            | {name: f"{mean:.6g}" for name, mean in means.items()}
        )
    return rows


def table(rows: list[dict]) -> str:
    """The table of curves as CSV."""
    text = io.StringIO()
    writer = csv.DictWriter(
        text, ["arm", "draw", "update", *CURVES], lineterminator="\n"
    )
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


@dataclasses.dataclass(frozen=True)
class KeptRuns:
    """The kept trainings of one seed.

    Attributes:
        folder: where they lie.
        about: fields of the seed's record: its arithmetic, commit and processor.
    """

    folder: Path
    about: Mapping[str, Any]

    def has(self, treatment: Treatment) -> bool:
        """Whether the training of an arm and draw is kept.

        Raises:
            UserError: it was made by another commit, program, version or processor.
            FileError: the file cannot be read.
        """
        return store.has_arrays(self._path(treatment), self._facts(treatment))

    def read(self, treatment: Treatment) -> Trajectory:
        """A training that `has` found.

        Raises:
            RecordError: the file cannot be read.
        """
        stored = records.read_tree(self._path(treatment))
        updates = sorted(map(int, stored["weights"]))
        return Trajectory(
            curves=stored["curves"],
            weights={update: stored["weights"][str(update)] for update in updates},
            held_out_loss=float(stored["held_out_loss"]),
            sha256=str(stored["sha256"]),
            seconds=float(stored["seconds"]),
        )

    def write(self, treatment: Treatment, run: Trajectory) -> None:
        """Keeps a finished training."""
        tree = {
            field.name: getattr(run, field.name) for field in dataclasses.fields(run)
        }
        tree["weights"] = {str(update): w for update, w in run.weights.items()}
        store.write_arrays(self._path(treatment), self._facts(treatment), tree)

    def remove(self) -> None:
        """Removes all of them."""
        shutil.rmtree(self.folder, ignore_errors=True)
        with contextlib.suppress(OSError):  # Other seeds have theirs there.
            self.folder.parent.rmdir()

    def _path(self, treatment: Treatment) -> Path:
        return self.folder / f"{treatment.arm}.{treatment.draw}.npz"

    def _facts(self, treatment: Treatment) -> dict[str, Any]:
        """What all trainings of a seed share, and the program of this one."""
        return {name: self.about[name] for name in (*DECIDES, "git_commit")} | {
            "processor": self.about["device"]["processor"],
            "program": self.about["programs"][treatment.arm],
        }
