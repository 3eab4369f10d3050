"""The trainings from an exact saddle, as a process that runs in turn with the jobs."""

import shutil
from dataclasses import dataclass
from pathlib import Path

from prednet_jax import records
from prednet_jax.runs import executor, progress
from prednet_jax.runs.jobs import source
from prednet_jax.saddles import symmetric


@dataclass(frozen=True)
class Saddle:
    """The trainings from an exact saddle of one seed; their rows are `runs.csv`.

    Attributes:
        folder: directory of the rows and the log.
        arms: names of the arms, of `symmetric.ARMS`.
        updates: number of updates of each training.
        seed: the root seed.
        script_path: path of `symmetric_start.py`.
    """

    folder: Path
    arms: tuple[str, ...]
    updates: int
    seed: int
    script_path: str

    @property
    def script(self) -> executor.Script:
        """Returns the process; it keeps the trainings that have finished."""
        arguments = (
            "--programs=symmetric",
            f"--arms={','.join(self.arms)}",
            "--deltas=0",
            f"--seeds={self.seed}",
            f"--updates={self.updates}",
            f"--workdir={self.folder}",
        )
        return executor.Script(
            name="the training from an exact saddle",
            launch=executor.ProcessCommand(
                script=self.script_path,
                arguments=arguments,
                environment=records.environment() | {"JAX_PLATFORMS": "cpu"},
                threads=1,
            ),
            log=self.folder / executor.LOG,
        )

    def rows(self) -> list[symmetric.Row]:
        """Returns the rows of its trainings; [] unless all have finished."""
        path = self.folder / "runs.csv"
        rows = symmetric.read(path) if path.exists() else []
        return rows if len(rows) == len(self.arms) else []

    def state(self) -> progress.State:
        """Returns the progress that its log shows."""
        path = self.folder / executor.LOG
        text = path.read_text(errors="replace") if path.exists() else ""
        lines = [line for line in text.splitlines() if ": update " in line]
        if self.rows() or not lines:
            return progress.State(float(bool(self.rows())))
        done = sum(f"update {self.updates} of" in line for line in lines)
        part = int(lines[-1].split(": update ")[1].split()[0]) / self.updates
        share = (done + part * (part < 1)) / len(self.arms)
        return progress.State(min(share, 1.0), lines[-1])


def prepare(saddle: Saddle) -> None:
    """Creates the folder; keeps results that the same program made of the same runs."""
    about = {
        "arms": list(saddle.arms),
        "updates": saddle.updates,
        "seed": saddle.seed,
        "source": source(saddle.script_path),
        "versions": records.versions(),
    }
    made_by = saddle.folder / "made_by.json"
    if not made_by.exists() or records.read_json(made_by) != about:
        shutil.rmtree(saddle.folder, ignore_errors=True)
        saddle.folder.mkdir(parents=True)
        records.write_json(made_by, about)
