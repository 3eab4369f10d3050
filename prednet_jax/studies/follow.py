"""Trains all arms of one seed of a part, and writes their record.

    results/<part>/seed_<n>.csv    curves: one row per arm, draw and 25 updates
    results/<part>/seed_<n>.json   endpoints, distances, fingerprints, versions

The record is written when the last arm of the seed has ended. Until then finished
trainings are kept (`KeptRuns`), and an interrupted study continues with the others.
All seeds of a part need the same arithmetic. Each record therefore holds what
determines the bits of its trainings, including hashes of the programs, and a seed that
differs in one of these is refused.
"""

import dataclasses
import os
from collections.abc import Container, Mapping
from pathlib import Path
from typing import Any

import jax

from prednet_jax import data, records
from prednet_jax.studies import seed_records
from prednet_jax.studies.endpoints import (
    Trajectory,
    apart,
    distances,
    endpoints,
)
from prednet_jax.studies.parts import THREADS, Part, Treatment
from prednet_jax.studies.seed_records import KeptRuns
from prednet_jax.studies.seed_trainings import frames, programs, train
from prednet_jax.training import loop


def follow_seed(part: Part, seed: int, folder: Path, manifest: dict[str, Any]) -> None:
    """Trains the arms of a seed that are left, and writes its record.

    Args:
        part: the part of the study.
        seed: one of its seeds.
        folder: directory of the part's records.
        manifest: facts about the process: versions, commit, device, flags.

    Raises:
        UserError: a record or a kept training in the folder was made with another
            arithmetic.
    """
    kept = train_arms(part, seed, folder, manifest)
    done = [(treatment, kept.read(treatment)) for treatment in part.of_seed(seed)]
    _write_record(part, seed, folder, kept.about, done)
    kept.remove()


def train_arms(
    part: Part,
    seed: int,
    folder: Path,
    manifest: dict[str, Any],
    arms: Container[str] | None = None,
) -> KeptRuns:
    """Trains arms of a seed and keeps them; `follow_seed` makes a record of them.

    Several processes can share a seed, each with arms of its own.

    Args:
        part: the part of the study.
        seed: one of its seeds.
        folder: directory of the part's records.
        manifest: facts about the process.
        arms: names of the arms; None: all.

    Returns:
        The kept trainings of the seed, also those of other processes.

    Raises:
        UserError: as in `follow_seed`.
    """
    about = manifest | _design(part, seed)
    for path in seed_records.finished(part, folder).values():
        seed_records.check(f"seed {seed}", about, path)
    kept = KeptRuns(folder / "unfinished" / f"seed_{seed}", about)
    for treatment in part.of_seed(seed):
        chosen = arms is None or treatment.arm in arms
        if chosen and not kept.has(treatment):
            kept.write(treatment, train(part, treatment, seed))
    return kept


def _write_record(
    part: Part,
    seed: int,
    folder: Path,
    about: Mapping[str, Any],
    done: list[tuple[Treatment, Trajectory]],
) -> None:
    copied = {"loss": done[0][1].curves["copy_last_frame_loss"]}
    rows = seed_records.curve_rows("copy_last_frame", 0, copied)
    for treatment, run in done:
        rows += seed_records.curve_rows(treatment.arm, treatment.draw, run.curves)
    controls = {
        treatment.arm: run
        for treatment, run in done
        if treatment.arm == treatment.control
    }
    runs = [
        dataclasses.asdict(treatment)
        | {"control": treatment.control}
        | endpoints(run, controls[treatment.control], part.updates)
        | {
            "final_params_sha256": run.sha256,
            "distance_over_travelled": distances(run, controls[treatment.control]),
            "final_distance_from": _final_distances(
                part, treatment, run, done, controls
            ),
            "seconds": run.seconds,
        }
        for treatment, run in done
    ]
    source, schedule = frames(part, seed)
    record = {
        **about,
        "seed": seed,
        "initial_params_sha256": records.fingerprint(
            jax.device_get(loop.initial_params(part.network, seed))
        ),
        "data_order_sha256": data.order_fingerprint(source, schedule),
        "runs": runs,
    }
    records.write_bytes(folder / f"seed_{seed}.csv", seed_records.table(rows).encode())
    records.write_json(folder / f"seed_{seed}.json", record)


def _final_distances(
    part: Part,
    treatment: Treatment,
    run: Trajectory,
    done: list[tuple[Treatment, Trajectory]],
    controls: dict[str, Trajectory],
) -> dict[str, float]:
    """Final distance from every noisy run of the seed (see `apart`)."""
    if treatment.noise == "none" or treatment.dose is not None:
        return {}
    control = controls[treatment.control]
    return {
        f"{other.arm}.{other.draw}": apart(run, their_run, control, part.updates)
        for other, their_run in done
        if other.noise != "none"
        and other.dose is None
        and all(part.updates in one.weights for one in (run, their_run, control))
    }


def _design(part: Part, seed: int) -> dict[str, Any]:
    """What all seeds of a part must have in common."""
    return {
        "part": part.name,
        "network": dataclasses.asdict(part.network),
        "data": part.data,
        "window": part.window,
        "updates": part.updates,
        "truncation_leak": part.truncation_leak,
        "random_windows": part.random_windows
        and dataclasses.asdict(part.random_windows),
        "threads": THREADS,
        "xla_flags": os.environ.get("XLA_FLAGS", ""),
        "programs": programs(part, seed),
    }
