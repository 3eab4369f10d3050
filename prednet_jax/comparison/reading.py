"""Reads the runs of a comparison from disk, arm by arm."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from prednet_jax import records
from prednet_jax.noise import variability
from prednet_jax.runs.arms import Arm
from prednet_jax.runs.jobs import EXAMPLES, FAILURE, Job, verified
from prednet_jax.training import loop


@dataclass(frozen=True)
class ArmRuns:
    """The runs of one job.

    Attributes:
        job: the job.
        runs: one per seed, in the order of `job.seeds`.
    """

    job: Job
    runs: tuple[records.Run, ...]

    @property
    def arm(self) -> Arm:
        """The arm of the runs."""
        return self.job.arm

    def metric(self, last: int) -> np.ndarray:
        """Mean of each run's `last` last losses, `[seeds]`; NaN: diverged.

        The loss of an update is that of the window's last frame.
        """
        return np.asarray([_mean(run, last) for run in self.runs])

    def weights(self, place: int) -> np.ndarray:
        """Final weights of run number `place`, float64 `[n]`."""
        path = self.runs[place].directory / records.WEIGHTS
        return records.vector(records.read_tree(path))

    def final_bits(self) -> np.ndarray:
        """SHA-256 of each run's final weights, `[seeds]`; empty text: diverged."""
        return np.asarray(
            [run.manifest.get("final_params_sha256", "") for run in self.runs]
        )

    def fingerprints(self) -> dict[str, dict[str, str]]:
        """SHA-256 of the initial weights and of the data order, by seed."""
        return {
            str(run.manifest["seed"]): {
                field: run.manifest[field]
                for field in ("initial_params_sha256", "data_order_sha256")
            }
            for run in self.runs
        }

    def as_dict(self) -> dict[str, Any]:
        """One row of the table of arms."""
        manifest = self.runs[0].manifest
        # The first update of a process includes compiling, so it is left out.
        seconds = np.concatenate([run.metrics["seconds"][1:] for run in self.runs])
        row = {
            "model": self.job.model,
            "name": self.arm.name,
            "meaning": self.arm.meaning,
            "command": self.job.shown,
            "status": "run",
            "noise": manifest["noise"],
            "threads": manifest["device"]["threads"],
            "measured_parallelism": manifest["measured_parallelism"],
            "seconds_per_update": float(np.median(seconds)),
        }
        if self.arm.gpu:
            row["gpu"] = manifest["device"]["kind"]
        return row | self.arm.as_dict()


def read(jobs: list[Job]) -> list[ArmRuns]:
    """Reads the runs of jobs of one network.

    Raises:
        RecordError: a run is incomplete or belongs to another job, or the arms did not
            start alike.
    """
    found = [
        ArmRuns(job, tuple(verified(job, seed) for seed in job.seeds)) for job in jobs
    ]
    records.check_comparable([run for arm in found for run in arm.runs])
    return found


def distances(
    treatment: ArmRuns, control: ArmRuns, kept: np.ndarray
) -> dict[str, float] | None:
    """Differences of the predictions of paired runs, averaged over the seeds.

    Both arms predict the same frames; which seeds count is `kept`, bool `[seeds]`.
    `churn` is the fraction of pixels whose 8-bit value differs. None: an arm did not
    keep its predictions.
    """
    pairs = [
        (run.directory / EXAMPLES, other.directory / EXAMPLES)
        for run, other, keep in zip(treatment.runs, control.runs, kept, strict=True)
        if keep
    ]
    if not pairs or not all(path.exists() for pair in pairs for path in pair):
        return None
    measured = []
    for pair in pairs:
        ours, theirs = map(_predictions, pair)
        measured.append(
            {
                "v_ermv": variability.v_ermv(theirs, ours),
                "v_c": variability.v_c(theirs, ours),
                "l2": variability.l2_distance(theirs, ours),
                "churn": variability.churn(theirs, ours, decide=_shades),
            }
        )
    return {name: float(np.mean([m[name] for m in measured])) for name in measured[0]}


def distance_over_travelled(
    treatment: ArmRuns, control: ArmRuns, places: list[int]
) -> list[float]:
    """Distance between the final weights of paired runs, relative to the control's way.

    The way is the distance of the control's final weights from its initial ones. One
    number per place, the numbers of the runs that count in the order of `job.seeds`.
    """
    found = []
    for place in places:
        seed = control.job.seeds[place]
        start = records.vector(loop.initial_params(control.job.task, seed))
        end = control.weights(place)
        apart = np.linalg.norm(treatment.weights(place) - end)
        found.append(float(apart / np.linalg.norm(end - start)))
    return found


def _mean(run: records.Run, last: int) -> float:
    if FAILURE in run.manifest:
        return float("nan")
    return float(run.metrics["last_frame_loss"][-last:].mean())


def _predictions(path: Path) -> np.ndarray:
    with np.load(path) as stored:
        return stored["predictions"]


def _shades(predictions: np.ndarray) -> np.ndarray:
    return np.rint(255 * predictions)
