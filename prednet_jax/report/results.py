"""What a comparison left on disk, read back and checked.

    verdict.json                       contrasts, verdicts, arms, design
    runs/<model>/<arm>/seed_<n>/       a run's records, with examples.npz in some

The two keys that every verdict has are `contrasts` and `verdict`; a section that is not
there stays out of the report. A file that is there and broken is an error.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from prednet_jax import records
from prednet_jax.records import RecordError

VERDICT = "verdict.json"
CONTROL = "float32"
_NAMES = ("model", "treatment", "control", "verdict")
_NUMBERS = ("mean_difference", "ci_low", "ci_high", "p_value", "p_holm", "tost_p")


@dataclass(frozen=True)
class Examples:
    """Frames and their predictions, all in [0, 1].

    Attributes:
      frames: true frames, [N, H, W, C].
      before: the frame before each, [N, H, W, C]; None where they do not match up.
      predictions: the arm's predictions, [N, H, W, C].
    """

    frames: NDArray[np.float64]
    before: NDArray[np.float64] | None
    predictions: NDArray[np.float64]


@dataclass(frozen=True)
class Results:
    """A comparison.

    Attributes:
      directory: where it lies.
      verdict: the content of verdict.json.
      losses: loss of each update by model, arm and seed, [updates].
      copied: loss of copying the last frame, by model and seed, [updates].
      examples: predicted frames by model and arm.
    """

    directory: Path
    verdict: dict[str, Any]
    losses: dict[str, dict[str, dict[int, NDArray[np.float64]]]]
    copied: dict[str, dict[int, NDArray[np.float64]]]
    examples: dict[str, dict[str, Examples]]

    @property
    def models(self) -> list[str]:
        """Names of the models, in the order of the verdict."""
        return list(self.verdict["verdict"])

    def contrasts(self, model: str) -> list[dict[str, Any]]:
        """The contrasts of a model."""
        return contrasts(self.verdict, model)

    def contrast(self, model: str, role: str) -> dict[str, Any] | None:
        """The contrast of the arm of a role with the control, or None."""
        for one in self.contrasts(model):
            if (one.get("role"), one["control"]) == (role, CONTROL):
                return one
        return None

    def roles(self, model: str) -> dict[str, str]:
        """What each arm of a model is for, as recorded."""
        return {
            str(arm.get("name")): str(arm.get("role", ""))
            for arm in self.verdict.get("arms") or []
            if arm.get("model") == model
        }

    def section(self, name: str) -> dict[str, Any]:
        """A section of the verdict that is an object; empty where there is none."""
        found = self.verdict.get(name) or {}
        if not isinstance(found, Mapping):
            raise RecordError(
                f"{self.directory / VERDICT}: {name} is a {type(found).__name__}; "
                "expected an object"
            )
        return dict(found)


def contrasts(verdict: Mapping[str, Any], model: str) -> list[dict[str, Any]]:
    """The contrasts of a model in a verdict."""
    return [one for one in verdict["contrasts"] if one["model"] == model]


def label(contrast: Mapping[str, Any]) -> str:
    """The treatment's name, with the control's where that is not the usual one."""
    if contrast["control"] == CONTROL:
        return contrast["treatment"]
    return f"{contrast['treatment']} - {contrast['control']}"


def relative(contrast: Mapping[str, Any] | None, field: str) -> float | None:
    """A field of a contrast as a fraction of the control's mean loss, or None."""
    if contrast is None:
        return None
    value, scale = contrast.get(field), contrast.get("control_mean")
    if contrast.get("scale") == "log":
        return None if value is None else math.expm1(value)
    return None if value is None or not scale else value / scale


def identical(contrast: Mapping[str, Any] | None) -> bool:
    """Whether the final weights equal the control's byte for byte, in every seed."""
    if contrast is None or not contrast.get("n"):
        return False
    return contrast.get("bitwise_equal") == contrast["n"]


def load(directory: str | Path) -> Results:
    """Reads a comparison.

    Args:
      directory: what `compare_backends` wrote.

    Returns:
      The results.

    Raises:
      RecordError: no verdict, or a file that is broken; the message names the file.
    """
    directory = Path(directory)
    found = Results(directory, _read_verdict(directory / VERDICT), {}, {}, {})
    draws: dict[tuple[str, str, int], list[NDArray[np.float64]]] = {}
    for folder in sorted((directory / "runs").glob("*/*/seed_*")):
        model, arm = folder.parts[-3:-1]
        loss, copy, seed = _read_losses(folder)
        if copy is not None and np.isfinite(copy).all():
            found.copied.setdefault(model, {})[seed] = copy
        draws.setdefault((model, arm, seed), []).append(loss)
        path = folder / "examples.npz"
        if path.exists() and arm not in found.examples.setdefault(model, {}):
            found.examples[model][arm] = _read_examples(path)
    for (model, arm, seed), curves in draws.items():
        seeds = found.losses.setdefault(model, {}).setdefault(arm, {})
        shortest = min(map(len, curves))
        seeds[seed] = np.mean([curve[:shortest] for curve in curves], axis=0)
    return found


def _read_verdict(path: Path) -> dict[str, Any]:
    def checked(name: str, value: Any, kind: Any, words: str) -> Any:
        if not isinstance(value, kind):
            raise RecordError(f"{path}: {name} is {value!r}; expected {words}")
        return value

    try:
        verdict = checked("the file", records.read_json(path), dict, "an object")
    except UnicodeDecodeError as error:
        raise RecordError(f"{path}: {error}; expected a JSON file") from None
    words = checked("verdict", verdict.get("verdict"), dict, "a dict")
    for number, one in enumerate(
        checked("contrasts", verdict.get("contrasts"), list, "a list")
    ):
        where = f"contrasts[{number}]"
        checked(where, one, dict, "an object")
        for name in _NAMES:
            checked(f"{where}.{name}", one.get(name), str, "text")
        for name in _NUMBERS:
            checked(f"{where}.{name}", one.get(name), int | float | None, "a number")
        if one["model"] not in words:
            raise RecordError(
                f"{path}: {where}.model is {one['model']!r}; expected one of "
                f"{', '.join(words)}"
            )
    return verdict


def _read_losses(
    folder: Path,
) -> tuple[NDArray[np.float64], NDArray[np.float64] | None, int]:
    """Loss of each update and of copying the last frame, [updates], and the seed."""
    try:
        run = records.read_run(folder)
        loss, copy = run.metrics["loss"], run.metrics.get("copy_last_frame_loss")
        # A run of an older version has its seed in the folder's name alone.
        seed = run.manifest.get("seed", folder.name.split("_")[1])
        return loss, copy, int(seed)
    except RecordError:
        raise
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise RecordError(
            f"{folder / records.METRICS}: {type(error).__name__} {error}; expected one "
            "object an update, each with a number named loss, and a manifest with the "
            "seed"
        ) from None


def _read_examples(path: Path) -> Examples:
    try:
        with np.load(path, allow_pickle=False) as file:
            arrays = {name: _unit(file[name]) for name in file.files}
        frames, predictions = arrays["frames"], arrays["predictions"]
    except Exception as error:
        # A damaged archive ends in zipfile's, zlib's or NumPy's own error types.
        raise RecordError(
            f"{path}: {type(error).__name__} {error}; expected an npz file with "
            "frames and predictions"
        ) from None
    if frames.ndim != 4 or frames.shape != predictions.shape or not len(frames):
        raise RecordError(
            f"{path}: frames {frames.shape} and predictions {predictions.shape}; "
            "expected one shape [N, H, W, C]"
        )
    before = arrays.get("before")
    if before is not None and before.shape != frames.shape:
        before = None
    return Examples(frames, before, predictions)


def _unit(frames: NDArray) -> NDArray[np.float64]:
    """Pixels in [0, 1]: bytes are scaled, floats are taken as they are."""
    if frames.dtype == np.uint8:
        return frames / 255.0
    return np.asarray(frames, np.float64)


def smooth(loss: NDArray[np.float64], width: int) -> NDArray[np.float64]:
    """Running mean over `width` values, [n] -> [n - width + 1]."""
    sums = np.concatenate([[0.0], np.cumsum(loss)])
    return (sums[width:] - sums[:-width]) / width


def smoothing_width(updates: int) -> int:
    """The running mean that the figures use: a tenth of the run, at most 50."""
    return max(1, min(50, round(updates / 10)))
