"""Reads and checks the files of a finished comparison.

    verdict.json                       contrasts, verdicts, arms, design
    runs/<model>/<arm>/seed_<n>/       a run's records, with examples.npz in some

The two keys that every verdict has are `contrasts` and `verdict`; a missing section is
left out of the report. A broken file is an error.
"""

from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from prednet_jax import files, records
from prednet_jax.errors import named
from prednet_jax.files import FileError
from prednet_jax.records.verdict import ArmRecord, Verdict

VERDICT = "verdict.json"


class Examples(NamedTuple):
    """Frames `[N, H, W, C]` in [0, 1], an arm's predictions, and the frames before."""

    frames: NDArray[np.float64]
    predictions: NDArray[np.float64]
    before: NDArray[np.float64] | None


@dataclass(frozen=True)
class Results:
    """A comparison: its directory, and the content of its verdict.json.

    `losses` has the loss of each update, `[updates]`, by model, arm and seed. `copied`
    has the losses of copying the last frame, by model and seed. `examples` are by model
    and arm.
    """

    directory: Path
    verdict: Verdict
    losses: dict[str, dict[str, dict[int, NDArray]]] = field(default_factory=dict)
    copied: dict[str, dict[int, NDArray]] = field(default_factory=dict)
    examples: dict[str, dict[str, Examples]] = field(default_factory=dict)

    @property
    def models(self) -> list[str]:
        """Returns the names of the models, in the order of the verdict."""
        return list(self.verdict.verdict)

    def arms(self, model: str) -> list[ArmRecord]:
        """Returns the arms of a model, as recorded."""
        return [arm for arm in self.verdict.arms if arm.model == model]


def load(directory: str | Path) -> Results:
    """Reads the records of `compare_backends`; a missing or broken file is a FileError.

    Runs of which the verdict has no loss, such as interrupted ones, are left out.
    """
    directory = Path(directory)
    results = Results(directory, read_verdict(directory / VERDICT))
    draws: dict[tuple[str, str, int], list[NDArray]] = {}
    judged = results.verdict.losses
    for folder in sorted((directory / "runs").glob("*/*/**/seed_*")):
        model, arm = folder.relative_to(directory / "runs").parts[:2]
        name = folder.name.removeprefix("seed_")
        if judged and name not in judged.get(model, {}).get(arm, ()):
            continue
        run = records.read_run(folder)
        wanted = "; expected a loss in each line, and a seed in the manifest"
        problem = f"{folder / records.METRICS}: not the metrics of a run"
        with files.broken_as(problem, wanted, FileError):
            seed = int(run.manifest.seed)
            draws.setdefault((model, arm, seed), []).append(run.metrics["loss"])
        copy = run.metrics.get("copy_last_frame_loss")
        if copy is not None and np.isfinite(copy).all():
            results.copied.setdefault(model, {})[seed] = copy
        path = folder / "examples.npz"
        if path.exists() and arm not in results.examples.setdefault(model, {}):
            results.examples[model][arm] = _read_examples(path)
    for (model, arm, seed), curves in draws.items():
        shortest = min(map(len, curves))
        mean = np.mean([curve[:shortest] for curve in curves], axis=0)
        results.losses.setdefault(model, {}).setdefault(arm, {})[seed] = mean
    return results


def read_verdict(path: Path) -> Verdict:
    """Reads verdict.json; a missing or broken file is a FileError."""
    content = records.read_json(path)
    with named(path, FileError):
        return Verdict.from_json(content)


def _read_examples(path: Path) -> Examples:
    try:
        arrays = {
            name: array / 255.0 if array.dtype == np.uint8 else array.astype(float)
            for name, array in files.read_npz(path).items()
        }
        examples = Examples(
            arrays["frames"], arrays["predictions"], arrays.get("before")
        )
    except (KeyError, ValueError) as error:
        raise FileError(
            f"{path}: {error}; expected an npz file with frames and predictions"
        ) from None
    shape, other = examples.frames.shape, examples.predictions.shape
    if len(shape) != 4 or shape != other or not shape[0]:
        raise FileError(
            f"{path}: frames {shape} and predictions {other}; expected one shape "
            "[N, H, W, C]"
        )
    matches = examples.before is not None and examples.before.shape == shape
    return examples if matches else examples._replace(before=None)
