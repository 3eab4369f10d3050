"""The trainings from an exact saddle, as processes that run in turn with the jobs."""

import shutil
from dataclasses import dataclass, replace
from pathlib import Path

from prednet_jax import records
from prednet_jax.runs import executor, progress
from prednet_jax.runs.jobs import source
from prednet_jax.saddles import symmetric

#: The trainings from a saddle in words.
MEANINGS = {
    "saddle float32": "starts on an exact saddle, in the ordinary program",
    "saddle tile": "starts there, with a fresh random order of every sum",
    "saddle run": "starts there, with one random order for the whole training",
}


@dataclass(frozen=True)
class Saddle:
    """The trainings from an exact saddle of one seed; their rows are `runs.csv`.

    Attributes:
        folder: directory of the rows and the logs.
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

    def scripts(self) -> list[executor.Script]:
        """Returns a process for each arm that has not finished."""
        done = [row.arm for row in self.rows()]
        return [self._script(arm) for arm in self.arms if arm not in done]

    def _script(self, arm: str) -> executor.Script:
        arguments = (
            "--programs=symmetric",
            f"--arms={arm}",
            "--deltas=0",
            f"--seeds={self.seed}",
            f"--updates={self.updates}",
            f"--workdir={self.folder}",
        )
        return executor.Script(
            name=f"saddle {arm}",
            launch=executor.ProcessCommand(
                script=self.script_path,
                arguments=arguments,
                environment=records.environment() | {"JAX_PLATFORMS": "cpu"},
                threads=1,
            ),
            log=self.folder / f"{arm}.txt",
        )

    def rows(self) -> list[symmetric.SaddleRow]:
        """Returns the rows of the trainings that have finished."""
        path = self.folder / "runs.csv"
        return symmetric.read(path) if path.exists() else []

    def finished(self) -> "Saddle | None":
        """Returns the trainings that have finished, or None if too few have.

        Without float32 and another arm there is nothing to compare.
        """
        done = [row.arm for row in self.rows()]
        arms = tuple(arm for arm in self.arms if arm in done)
        comparable = len(arms) > 1 and "float32" in arms
        return replace(self, arms=arms) if comparable else None

    def state(self, arm: str) -> progress.State:
        """Returns the progress of an arm, which its log shows."""
        path = self.folder / f"{arm}.txt"
        if not path.exists():
            return progress.State(0.0)
        text = path.read_text(errors="replace")
        lines = [line for line in text.splitlines() if ": update " in line]
        doing = lines[-1].partition(": ")[2] if lines else "compiling"
        share = int(doing.split()[1]) / self.updates if lines else 0.0
        return progress.State(share, f"saddle {arm}: {doing}" if share < 1 else "")


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
