"""The finished trainings of a seed that has no record yet.

    <folder>/unfinished/seed_<n>/<arm>.<draw>.npz

At the article's size a seed takes hours. Each of its trainings is kept as it ends. So
an interruption costs one training, and several processes can share a seed by its arms.
"""

import dataclasses
import hashlib
import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from prednet_jax import records
from prednet_jax.studies.endpoints import Trajectory
from prednet_jax.studies.parts import Treatment
from prednet_jax.studies.seed_records import DECIDES


@dataclasses.dataclass(frozen=True)
class KeptRuns:
    """The kept trainings of one seed.

    Attributes:
        folder: where they lie.
        about: fields of the seed's record: what determines the bits of its trainings.
    """

    folder: Path
    about: Mapping[str, Any]

    def read(self, treatment: Treatment) -> Trajectory | None:
        """The kept training of an arm and draw.

        Returns:
            None: there is none, or it was made by another program, version or
            processor.

        Raises:
            RecordError: the file cannot be read.
        """
        path = self._path(treatment)
        if not path.exists():
            return None
        stored = records.read_tree(path)
        if str(stored["made_by"]) != self._made_by(treatment):
            return None
        return Trajectory(
            curves=stored["curves"],
            weights={int(update): w for update, w in stored["weights"].items()},
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
        weights = {str(update): w for update, w in run.weights.items()}
        made_by = np.array(self._made_by(treatment))
        records.write_tree(
            self._path(treatment), stored | {"weights": weights, "made_by": made_by}
        )

    def remove(self) -> None:
        """Removes all of them."""
        shutil.rmtree(self.folder, ignore_errors=True)

    def _path(self, treatment: Treatment) -> Path:
        return self.folder / f"{treatment.arm}.{treatment.draw}.npz"

    def _made_by(self, treatment: Treatment) -> str:
        """SHA-256 of what determines the bits of a training."""
        facts = {field: self.about[field] for field in DECIDES}
        facts["program"] = self.about["programs"][treatment.arm]
        facts["processor"] = self.about.get("device", {}).get("processor")
        return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()
