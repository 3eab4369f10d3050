"""Reads and checks the files of a finished comparison.

    verdict.json                       contrasts, verdicts, arms, design
    runs/<model>/<arm>/seed_<n>/       a run's records, with examples.npz in some
    runs/<model>/learned.npz           the same frames, by a network of the package

The two keys that every verdict has are `contrasts` and `verdict`; a missing section is
left out of the report. A broken file is an error.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from prednet_jax import files, records
from prednet_jax.files import FileError

VERDICT, LEARNED = "verdict.json", "learned.npz"
CONTROL = "float32"
_NAMES = ("model", "treatment", "control", "verdict")
_NUMBERS = ("mean_difference", "ci_low", "ci_high", "p_value", "p_holm", "tost_p")
Record = Mapping[str, Any]


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
    verdict: dict[str, Any]
    losses: dict[str, dict[str, dict[int, NDArray]]] = field(default_factory=dict)
    copied: dict[str, dict[int, NDArray]] = field(default_factory=dict)
    examples: dict[str, dict[str, Examples]] = field(default_factory=dict)

    @property
    def models(self) -> list[str]:
        """Returns the names of the models, in the order of the verdict."""
        return list(self.verdict["verdict"])

    def contrasts(self, model: str) -> list[dict[str, Any]]:
        """Returns the contrasts of a model."""
        return contrasts(self.verdict, model)

    def arms(self, model: str) -> list[dict[str, Any]]:
        """Returns the arms of a model, as recorded."""
        arms = self.verdict.get("arms") or []
        return [arm for arm in arms if arm.get("model") == model]

    def section(self, name: str) -> dict[str, Any]:
        """Returns a section of the verdict that is an object.

        The object is empty if the verdict lacks the section.
        """
        found = self.verdict.get(name) or {}
        if not isinstance(found, Mapping):
            raise FileError(
                f"{self.directory / VERDICT}: {name} is a {type(found).__name__}; "
                "expected an object"
            )
        return dict(found)


def contrasts(verdict: Record, model: str) -> list[dict[str, Any]]:
    """Returns the contrasts of a model in a verdict."""
    return [contrast for contrast in verdict["contrasts"] if contrast["model"] == model]


def label(contrast: Record) -> str:
    """Returns the treatment's name, with the control's if it is not the usual one."""
    if contrast["control"] == CONTROL:
        return contrast["treatment"]
    return f"{contrast['treatment']} - {contrast['control']}"


def relative(contrast: Record | None, name: str) -> float | None:
    """Returns a field of a contrast over the control's mean loss, or None."""
    contrast = contrast or {}
    value, scale = contrast.get(name), contrast.get("control_mean")
    if contrast.get("scale") == "log":
        return None if value is None else math.expm1(value)
    return None if value is None or not scale else value / scale


def identical(contrast: Record) -> bool:
    """Returns whether the final weights equal the control's in every seed."""
    return bool(contrast.get("n")) and contrast.get("bitwise_equal") == contrast["n"]


def load(directory: str | Path) -> Results:
    """Reads the records of `compare_backends`; a missing or broken file is a FileError.

    Runs of which the verdict has no loss, such as interrupted ones, are left out.
    """
    directory = Path(directory)
    found = Results(directory, _read_verdict(directory / VERDICT))
    draws: dict[tuple[str, str, int], list[NDArray]] = {}
    judged = found.verdict.get("losses")
    for folder in sorted((directory / "runs").glob("*/*/**/seed_*")):
        model, arm = folder.relative_to(directory / "runs").parts[:2]
        name = folder.name.removeprefix("seed_")
        if judged and name not in judged.get(model, {}).get(arm, ()):
            continue
        run = records.read_run(folder)
        try:
            seed = int(run.manifest.seed)
            draws.setdefault((model, arm, seed), []).append(run.metrics["loss"])
        except (KeyError, TypeError, ValueError) as error:
            raise FileError(
                f"{folder / records.METRICS}: {type(error).__name__} {error}; expected "
                "a number named loss in each line, and a seed in the manifest"
            ) from None
        copy = run.metrics.get("copy_last_frame_loss")
        if copy is not None and np.isfinite(copy).all():
            found.copied.setdefault(model, {})[seed] = copy
        path = folder / "examples.npz"
        if path.exists() and arm not in found.examples.setdefault(model, {}):
            found.examples[model][arm] = _read_examples(path)
    for path in (directory / "runs").glob(f"*/{LEARNED}"):
        # It comes after the arms, since it is not an arm.
        examples = found.examples.setdefault(path.parent.name, {})
        examples["network of the package, trained for hours"] = _read_examples(path)
    for (model, arm, seed), curves in draws.items():
        shortest = min(map(len, curves))
        mean = np.mean([curve[:shortest] for curve in curves], axis=0)
        found.losses.setdefault(model, {}).setdefault(arm, {})[seed] = mean
    return found


def _read_verdict(path: Path) -> dict[str, Any]:
    verdict = records.read_json(path)

    def check(name: str, value: Any, kind: Any, words: str) -> None:
        if not isinstance(value, kind):
            raise FileError(f"{path}: {name} is {value!r}; expected {words}")

    check("the file", verdict, dict, "an object")
    check("verdict", verdict.get("verdict"), dict, "a dict")
    check("contrasts", verdict.get("contrasts"), list, "a list")
    losses = verdict.get("losses") or {}
    check("losses", losses, dict, "a dict")
    for model, arms in losses.items():
        check(f"losses.{model}", arms, dict, "a dict")
        for arm, seeds in arms.items():
            check(f"losses.{model}.{arm}", seeds, dict, "a dict")
    for number, contrast in enumerate(verdict["contrasts"]):
        place = f"contrasts[{number}]"
        check(place, contrast, dict, "an object")
        for name in _NAMES:
            check(f"{place}.{name}", contrast.get(name), str, "text")
        for name in _NUMBERS:
            check(f"{place}.{name}", contrast.get(name), int | float | None, "a number")
    return verdict


def _read_examples(path: Path) -> Examples:
    try:
        arrays = {
            name: array / 255.0 if array.dtype == np.uint8 else array.astype(float)
            for name, array in files.read_npz(path).items()
        }
        found = Examples(arrays["frames"], arrays["predictions"], arrays.get("before"))
    except (KeyError, ValueError) as error:
        raise FileError(
            f"{path}: {error}; expected an npz file with frames and predictions"
        ) from None
    shape, other = found.frames.shape, found.predictions.shape
    if len(shape) != 4 or shape != other or not shape[0]:
        raise FileError(
            f"{path}: frames {shape} and predictions {other}; expected one shape "
            "[N, H, W, C]"
        )
    matches = found.before is not None and found.before.shape == shape
    return found if matches else found._replace(before=None)
