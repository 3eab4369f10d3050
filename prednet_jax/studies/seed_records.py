"""The records of the long trainings: which exist, and whether they belong together.

<folder>/seed_<n>.csv    curves: one row per arm, draw and 25 updates
<folder>/seed_<n>.json   endpoints, distances, fingerprints, versions
"""

import csv
import io
import json
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from prednet_jax import errors, records
from prednet_jax.studies.endpoints import CURVES
from prednet_jax.studies.parts import Part

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
    mine = json.loads(json.dumps(about))  # Lists instead of tuples, as in the files.
    theirs = records.read_json(path)
    differ = [field for field in DECIDES if theirs.get(field) != mine.get(field)]
    differ += [
        f"program of {arm}"
        for arm, digest in mine["programs"].items()
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
