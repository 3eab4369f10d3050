"""Trains all arms of one seed of a part; its record, and the records of all seeds.

    <folder>/seed_<n>.csv    curves: one row per arm, draw and 25 updates
    <folder>/seed_<n>.json   endpoints, distances, fingerprints, versions
    <folder>/unfinished/seed_<n>/<arm>.<draw>.npz
                             a finished training of a seed that has no record yet

The record is written when the last arm of the seed has ended. All seeds of a part need
the same arithmetic: a record holds what determines the bits of its trainings, with
hashes of the programs, and a seed that differs in one of these is refused.
"""

import contextlib
import dataclasses
import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np

from prednet_jax import data, errors, records
from prednet_jax.runs import store
from prednet_jax.training import loop
from study import endpoints
from study.endpoints import CURVES, Trajectory
from study.parts import THREADS, Part, Treatment
from study.seed_trainings import frames, programs, train

# Updates per row of a curve.
BIN = 25
#: Fields of a record that determine the bits of its trainings, beside the programs.
DECIDES = (
    *("part", "network", "data", "window", "updates", "truncation_leak"),
    *("random_windows", "threads", "versions", "xla_flags"),
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Run:
    """One training in a record; an endpoint that it has not, or never reached, is None.

    Distances are between weights, over the way of the control from its start:
    `distance_over_travelled` from the control by update, `final_distance_from` the runs
    with noise that were made before this one, by "arm.draw".
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


def finished(part: Part, folder: Path) -> dict[int, Path]:
    """The record of each seed of a part that has one."""
    paths = {seed: folder / f"seed_{seed}.json" for seed in part.seeds}
    return {seed: path for seed, path in paths.items() if path.exists()}


def read(part: Part, folder: Path) -> list[SeedRecord]:
    """The records of a part's finished seeds, in the order of the seeds.

    A UserError: a record has other runs than the part, or two records were made with
    different arithmetic.
    """
    paths = finished(part, folder)
    stored = {seed: records.read_json(path) for seed, path in paths.items()}
    names = [field.name for field in dataclasses.fields(Run)]
    seeds = []
    for seed, record in stored.items():
        # Some arms are trained on the first seeds of a part only.
        most = max(stored, key=lambda seed: len(stored[seed]["programs"]))
        check(str(paths[seed]), record, paths[most])
        runs = tuple(
            Run(**{name: run[name] for name in names if name in run})
            for run in record["runs"]
        )
        expected = [(t.arm, t.draw) for t in part.of_seed(seed)]
        if [(run.arm, run.draw) for run in runs] != expected:
            raise errors.UserError(f"{paths[seed]}: other runs than {expected}")
        updates = record["updates"]
        seeds.append(SeedRecord(seed=seed, updates=updates, runs=runs, about=record))
    return seeds


def check(name: str, about: Mapping[str, Any], path: Path) -> None:
    """Refuses a seed whose arithmetic differs from that of another seed's record.

    `name` is what the error calls it, `about` has the fields of its record; `path` is
    the other one's record. They may differ neither in a field of `DECIDES` nor in the
    program of an arm that both have.
    """
    other = records.read_json(path)
    differ = store.differing({name: about.get(name) for name in DECIDES}, other)
    differ += [
        f"program of {arm}"
        for arm, digest in about["programs"].items()
        if other.get("programs", {}).get(arm, digest) != digest
    ]
    if differ:
        raise errors.UserError(
            f"{name}: another {', '.join(differ)}; expected the same as in {path}, or "
            "another --workdir"
        )


def follow_seed(part: Part, seed: int, folder: Path, manifest: dict[str, Any]) -> None:
    """Trains the arms of a seed that are left, and writes its record.

    `folder` has the part's records; `manifest` are facts about the process: versions,
    commit, device, flags. A UserError: a record or a kept training in the folder was
    made with another arithmetic.
    """
    about = manifest | _design(part, seed)
    for path in finished(part, folder).values():
        check(f"seed {seed}", about, path)
    kept = KeptRuns(folder / "unfinished" / f"seed_{seed}", about)
    for treatment in part.of_seed(seed):
        if not kept.has(treatment):
            kept.write(treatment, train(part, treatment, seed))
    done = {treatment: kept.read(treatment) for treatment in part.of_seed(seed)}
    first = next(iter(done.values()))
    copied = {"loss": first.curves["copy_last_frame_loss"]}
    rows = _curve_rows("copy_last_frame", 0, copied)
    for treatment, run in done.items():
        rows += _curve_rows(treatment.arm, treatment.draw, run.curves)
    initial = jax.device_get(loop.initial_params(part.network, seed))
    record = {
        **about,
        "seed": seed,
        "initial_params_sha256": records.fingerprint(initial),
        "data_order_sha256": data.order_fingerprint(*frames(part, seed)),
        "runs": _runs(part, done),
    }
    columns = ["arm", "draw", "update", *CURVES]
    records.write_csv(folder / f"seed_{seed}.csv", rows, columns)
    records.write_json(folder / f"seed_{seed}.json", record)
    shutil.rmtree(kept.folder, ignore_errors=True)
    with contextlib.suppress(OSError):  # Other seeds have theirs there.
        kept.folder.parent.rmdir()


def _design(part: Part, seed: int) -> dict[str, Any]:
    """What all seeds of a part must have in common."""
    design = dataclasses.asdict(part) | {"part": part.name, "threads": THREADS}
    design["xla_flags"] = os.environ.get("XLA_FLAGS", "")
    shared = {name: design[name] for name in DECIDES if name in design}
    return shared | {"programs": programs(part, seed)}


def _runs(part: Part, done: dict[Treatment, Trajectory]) -> list[dict[str, Any]]:
    """What the record says of each training: its treatment, and the fields of `Run`."""
    by_arm = {treatment.arm: run for treatment, run in reversed(done.items())}
    rows, last = [], part.updates
    for treatment, run in done.items():
        compared = part.control(treatment)
        control = by_arm[compared]
        rows.append(
            dataclasses.asdict(treatment)
            | {"control": compared}
            | endpoints.endpoints(run, control, last)
            | {
                "final_params_sha256": run.sha256,
                "distance_over_travelled": {
                    str(update): endpoints.apart(run, control, control, update)
                    for update in run.weights
                    if update and update in control.weights
                },
                "final_distance_from": {
                    f"{t.arm}.{t.draw}": endpoints.apart(run, other, control, last)
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

    def has(self, treatment: Treatment) -> bool:
        """Whether the training of an arm and draw is kept.

        A UserError: it was made by another commit, program, version or processor. A
        FileError: the file cannot be read.
        """
        return store.has_arrays(self._path(treatment), self._facts(treatment))

    def read(self, treatment: Treatment) -> Trajectory:
        """A training that `has` found."""
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
        tree = vars(run) | {"weights": {str(u): w for u, w in run.weights.items()}}
        store.write_arrays(self._path(treatment), self._facts(treatment), tree)

    def _path(self, treatment: Treatment) -> Path:
        return self.folder / f"{treatment.arm}.{treatment.draw}.npz"

    def _facts(self, treatment: Treatment) -> dict[str, Any]:
        """What all trainings of a seed share, and the program of this one."""
        return {name: self.about[name] for name in (*DECIDES, "git_commit")} | {
            "processor": self.about["device"]["processor"],
            "program": self.about["programs"][treatment.arm],
        }
