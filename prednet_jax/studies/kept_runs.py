"""The finished trainings of a seed that has no record yet.

    <folder>/unfinished/seed_<n>/<arm>.<draw>.npz

At the article's size a seed takes hours. Each of its trainings is kept as it ends, so
an interruption costs one training.
"""

import contextlib
import dataclasses
import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from prednet_jax import errors, files, records
from prednet_jax.studies.endpoints import Trajectory
from prednet_jax.studies.parts import Treatment
from prednet_jax.studies.seed_records import DECIDES


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
        path = self._path(treatment)
        if not path.exists():
            return False
        stored = files.read_npz(path, names={"made_by"})
        theirs, mine = json.loads(str(stored["made_by"])), self._made_by(treatment)
        differ = [name for name, value in mine.items() if theirs.get(name) != value]
        if differ:
            raise errors.UserError(
                f"{path}: made by another {', '.join(differ)}; remove it, or use "
                "another --workdir"
            )
        return True

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
        self.folder.mkdir(parents=True, exist_ok=True)
        stored = {
            field.name: getattr(run, field.name) for field in dataclasses.fields(run)
        }
        stored["weights"] = {str(update): w for update, w in run.weights.items()}
        stored["made_by"] = np.array(json.dumps(self._made_by(treatment)))
        records.write_tree(self._path(treatment), stored)

    def remove(self) -> None:
        """Removes all of them."""
        shutil.rmtree(self.folder, ignore_errors=True)
        with contextlib.suppress(OSError):  # Other seeds have theirs there.
            self.folder.parent.rmdir()

    def _path(self, treatment: Treatment) -> Path:
        return self.folder / f"{treatment.arm}.{treatment.draw}.npz"

    def _made_by(self, treatment: Treatment) -> dict[str, Any]:
        """What all trainings of a seed share, and the program of this one."""
        facts = {name: self.about[name] for name in (*DECIDES, "git_commit")}
        facts["processor"] = self.about["device"]["processor"]
        facts["program"] = self.about["programs"][treatment.arm]
        # Lists instead of tuples, as in the files.
        return json.loads(json.dumps(facts))
