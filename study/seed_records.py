"""Trains all arms of one seed of a part; keeps its record, and all seeds' records.

    <folder>/seed_<n>.csv    curves: one row per arm, draw and 25 updates
    <folder>/seed_<n>.json   endpoints, distances, fingerprints, versions
    <folder>/curves.csv.xz, seeds.json
                             the same of all seeds, once `pack` has packed them
    <folder>/unfinished/seed_<n>/<arm>.<draw>.npz
                             a finished training of a seed that has no record yet

The record is written when the last arm of the seed has ended. All seeds of a part need
the same arithmetic: a record holds what determines the numbers of its trainings, and a
seed that differs in one of these is refused. Programs may change from commit to commit;
what they compute agrees in the statistics.
"""

import contextlib
import dataclasses
import io
import json
import lzma
import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
import pandas as pd

from prednet_jax import data, errors, files, noise, records
from prednet_jax.runs import store
from prednet_jax.training import loop
from study import endpoints
from study.endpoints import CURVES, Trajectory
from study.parts import RECORDED, THREADS, Part, StudyArm
from study.seed_trainings import frames, train

#: The fields of a treatment that seeds must agree in.
_TREATED = [name for name in ("arm", *RECORDED) if name != "seeds"]
SEEDS, ROWS = "seeds.json", "curves.csv.xz"
# Updates per row of a curve.
BIN = 25
#: Fields of a record that determine the numbers of its trainings.
DECIDES = (
    *("part", "network", "data", "window", "updates", "truncation_leak"),
    *("random_windows", "threads", "versions", "xla_flags"),
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Run:
    """One training in a record; an endpoint that it lacks or never reached is None.

    Distances are between weights, divided by the distance of the control from its
    start: `distance_over_travelled` from the control by update, `final_distance_from`
    the runs with noise that were made before this one, by "arm.draw".
    """

    arm: str
    draw: int
    control: str
    final_params_sha256: str
    distance_over_travelled: Mapping[str, float]
    final_distance_from: Mapping[str, float]
    diverged_at: int | None
    control_diverged: bool = False
    last_frame_loss: float | None = None
    window_loss: float | None = None
    over_copy: float | None = None
    held_out_loss: float | None = None
    plateau_left: int | None = None
    parity: int | None = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class SeedRecord:
    """The record of a seed; `about` has its other fields, such as the versions."""

    seed: int
    updates: int
    runs: tuple[Run, ...]
    about: Mapping[str, Any]


def finished(part: Part, folder: Path) -> set[int]:
    """Returns the seeds of a part that have a record, packed or not."""
    loose = {seed for seed in part.seeds if (folder / f"seed_{seed}.json").exists()}
    return loose | set(_packed(folder)) & set(part.seeds)


def stored(folder: Path) -> dict[int, dict[str, Any]]:
    """Returns all records of a folder by seed, packed or not."""
    loose = {n: records.read_json(p) for n, p in _files(folder, ".json").items()}
    return dict(sorted((_packed(folder) | loose).items()))


def _files(folder: Path, suffix: str) -> dict[int, Path]:
    """Returns the files of seeds that are not packed, by seed."""
    paths = sorted(folder.glob(f"seed_*{suffix}"))
    return {int(p.stem[5:]): p for p in paths if p.stem[5:].isdecimal()}


def _packed(folder: Path) -> dict[int, dict[str, Any]]:
    path = folder / SEEDS
    if not path.exists():
        return {}
    packed = records.read_json(path)
    with _reading(path):
        every = packed["seeds"].items()
        return {int(seed): packed["shared"] | record for seed, record in every}


def _reading(path: Path) -> contextlib.AbstractContextManager:
    """Names a file of records in the error of one that is damaged."""
    problem, wanted = f"{path}: damaged", "; expected what `train` or `pack` wrote"
    return files.broken_as(problem, wanted, also=(AttributeError, lzma.LZMAError))


def curves(folder: Path) -> pd.DataFrame:
    """Returns the curves of all seeds: a row per seed, arm, draw and 25 updates."""
    return pd.read_csv(io.StringIO(_rows(folder)))


def _rows(folder: Path) -> str:
    """Returns the curves of all seeds as the text of one table."""
    packed, loose, text = folder / ROWS, _files(folder, ".csv"), ""
    if packed.exists():
        with _reading(packed):
            lines = lzma.decompress(packed.read_bytes()).decode().splitlines(True)
        # A `pack` that was interrupted leaves the files of seeds that are packed.
        again = {str(seed) for seed in loose}
        text = "".join(line for line in lines if line.split(",")[0] not in again)
    for seed, path in loose.items():
        with _reading(path):
            header, *rows = path.read_text().splitlines()
        text += "" if text else f"seed,{header}\n"
        text += "".join(f"{seed},{row}\n" for row in rows)
    return text


def pack(folder: Path) -> None:
    """Packs the files of the seeds of a folder into two, and removes them.

    `seeds.json` has the shared fields of all seeds once, and the rest of each record on
    a separate line.
    """
    made = stored(folder)
    if not made:
        raise errors.UserError(f"{folder}: has no records; expected seed_1.json, ...")
    first = next(iter(made.values()))
    shared = {
        name: value
        for name, value in first.items()
        if all(name in record and record[name] == value for record in made.values())
    }
    compact = json.JSONEncoder(separators=(",", ":")).encode
    lines = [
        f'"{seed}":' + compact({k: v for k, v in record.items() if k not in shared})
        for seed, record in made.items()
    ]
    text = f'{{"shared":{compact(shared)},\n"seeds":{{\n' + ",\n".join(lines)
    rows = lzma.compress(_rows(folder).encode())
    contents = {ROWS: rows, SEEDS: f"{text}\n}}}}\n".encode()}
    files.write_files(folder, contents)
    for suffix in (".json", ".csv"):
        for path in _files(folder, suffix).values():
            path.unlink()


def read(part: Part, folder: Path) -> list[SeedRecord]:
    """Returns the records of a part's finished seeds, in the order of the seeds.

    A record with other runs than the part, or two records with different arithmetic,
    are a UserError.
    """
    made = stored(folder)
    names = [field.name for field in dataclasses.fields(Run)]
    seeds = []
    for seed in (seed for seed in part.seeds if seed in made):
        record, name = made[seed], f"{folder}: seed {seed}"
        with _reading(folder / f"seed_{seed}"):
            check(name, record, next(iter(made.values())))
            runs = tuple(
                Run(**{name: run[name] for name in names if name in run})
                for run in record["runs"]
            )
        expected = [(t.name, t.draw) for t in part.of_seed(seed)]
        if [(run.arm, run.draw) for run in runs] != expected:
            raise errors.UserError(f"{name}: other runs than {expected}")
        updates = record["updates"]
        seeds.append(SeedRecord(seed=seed, updates=updates, runs=runs, about=record))
    return seeds


def check(name: str, about: Mapping[str, Any], other: Mapping[str, Any]) -> None:
    """Refuses a seed whose arithmetic or treatments differ from another seed's."""
    differ = [name for name in DECIDES if about.get(name) != other.get(name)]
    known = {(run["arm"], run["draw"]): run for run in other["runs"]}
    for run in about["runs"]:
        before = known.get((run["arm"], run["draw"]), {})
        shared = [field for field in _TREATED if field in run and field in before]
        differ += [
            f"{field} of {run['arm']}"
            for field in shared
            if _meaning(field, run[field]) != _meaning(field, before[field])
        ]
    if differ:
        raise errors.UserError(
            f"{name}: another {', '.join(differ)} than seed {other['seed']}; expected "
            "the same, or another --workdir"
        )


def _meaning(field: str, value: Any) -> Any:
    """Returns the value to compare; noises become specs, whose texts may differ."""
    return noise.parse(value) if field == "noise" else value


def follow_seed(part: Part, seed: int, folder: Path, manifest: dict[str, Any]) -> None:
    """Trains the remaining arms of a seed, and writes its record.

    `folder` has the part's records; `manifest` are facts about the process: versions,
    commit, device, flags. A record or a kept training in the folder with another
    arithmetic is a UserError.
    """
    runs = [treatment.to_json() for treatment in part.of_seed(seed)]
    about = json.loads(json.dumps({**manifest, **_design(part), "runs": runs}))
    for record in stored(folder).values():
        check(f"seed {seed}", about, record)
    kept = KeptRuns(folder / "unfinished" / f"seed_{seed}", about)
    for treatment in part.of_seed(seed):
        if not kept.has(treatment):
            kept.write(treatment, train(part, treatment, seed))
    done = {treatment: kept.read(treatment) for treatment in part.of_seed(seed)}
    first = next(iter(done.values()))
    copied = {"loss": first.curves["copy_last_frame_loss"]}
    rows = _curve_rows("copy_last_frame", 0, copied)
    for treatment, run in done.items():
        rows += _curve_rows(treatment.name, treatment.draw, run.curves)
    initial = jax.device_get(loop.initial_params(part.network, seed))
    record = {
        **about,
        "seed": seed,
        "initial_params_sha256": records.fingerprint(initial),
        "data_order_sha256": data.order_fingerprint(*frames(part, seed)),
        "runs": _runs(part, done),
    }
    columns = ["arm", "draw", "update", *CURVES]
    table = records.csv_bytes(rows, columns)
    records.write_bytes(folder / f"seed_{seed}.csv", table)
    records.write_json(folder / f"seed_{seed}.json", record)
    shutil.rmtree(kept.folder, ignore_errors=True)
    with contextlib.suppress(OSError):  # Other seeds have theirs there.
        kept.folder.parent.rmdir()


def _design(part: Part) -> dict[str, Any]:
    """Returns the settings that all seeds of a part must have in common."""
    design = dataclasses.asdict(part) | {"part": part.name, "threads": THREADS}
    design["xla_flags"] = os.environ.get("XLA_FLAGS", "")
    return {name: design[name] for name in DECIDES if name in design}


def _runs(part: Part, done: dict[StudyArm, Trajectory]) -> list[dict[str, Any]]:
    """Returns the record of each training: its treatment, and the fields of `Run`."""
    by_arm = {treatment.name: run for treatment, run in reversed(done.items())}
    rows, last = [], part.updates
    for treatment, run in done.items():
        compared = part.control(treatment)
        control = by_arm[compared]
        rows.append(
            treatment.to_json()
            | {"control": compared}
            | endpoints.endpoints(run, control, last)
            | {
                "final_params_sha256": run.sha256,
                "distance_over_travelled": {
                    str(update): endpoints.relative_weight_distance(
                        run, control, control, update
                    )
                    for update in run.weights
                    if update and update in control.weights
                },
                "final_distance_from": {
                    f"{t.name}.{t.draw}": endpoints.relative_weight_distance(
                        run, other, control, last
                    )
                    for t, other in done.items()
                    if treatment.only_noise
                    and t.only_noise
                    and all(last in r.weights for r in (run, other, control))
                },
                "seconds": run.seconds,
            }
        )
    return rows


def _curve_rows(arm: str, draw: int, curves: dict[str, np.ndarray]) -> list[dict]:
    length = min(map(len, curves.values()))
    rows = []
    for start in range(0, length, BIN):
        stop = min(start + BIN, length)
        means = {name: f"{c[start:stop].mean():.6g}" for name, c in curves.items()}
        rows.append({"arm": arm, "draw": draw, "update": stop} | means)
    return rows


class KeptRuns(NamedTuple):
    """The kept trainings of one seed: their folder, and fields of the seed's record."""

    folder: Path
    about: Mapping[str, Any]

    def has(self, treatment: StudyArm) -> bool:
        """Returns whether the training of an arm and draw is kept.

        A training by another commit, version or processor is a UserError, and an
        unreadable file a FileError.
        """
        path = self._path(treatment)
        if not path.exists():
            return False
        made_by = files.read_npz(path, names={"made_by"})["made_by"]
        if others := store.differing(self._facts(), json.loads(str(made_by))):
            raise errors.UserError(
                f"{path}: made by another {', '.join(others)}; remove it, or use "
                "another --workdir"
            )
        return True

    def read(self, treatment: StudyArm) -> Trajectory:
        """Returns a training that `has` found."""
        stored = records.read_tree(self._path(treatment))
        updates = sorted(map(int, stored["weights"]))
        return Trajectory(
            curves=stored["curves"],
            weights={update: stored["weights"][str(update)] for update in updates},
            held_out_loss=float(stored["held_out_loss"]),
            sha256=str(stored["sha256"]),
            seconds=float(stored["seconds"]),
        )

    def write(self, treatment: StudyArm, run: Trajectory) -> None:
        """Keeps a finished training."""
        tree = vars(run) | {"weights": {str(u): w for u, w in run.weights.items()}}
        tree |= {"made_by": np.array(json.dumps(self._facts()))}
        self.folder.mkdir(parents=True, exist_ok=True)
        records.write_tree(self._path(treatment), tree)

    def _path(self, treatment: StudyArm) -> Path:
        return self.folder / f"{treatment.name}.{treatment.draw}.npz"

    def _facts(self) -> dict[str, Any]:
        """Returns the facts that all trainings of a seed share."""
        return {name: self.about[name] for name in (*DECIDES, "git_commit")} | {
            "processor": self.about["device"]["processor"]
        }
