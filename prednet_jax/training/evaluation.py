"""Scores of predicted frames: MSE, MAE, PSNR and SSIM, of each frame and of many.

docs/predict_and_evaluate.md ("Predict a video") describes the protocol. PSNR is
10 log10(1 / MSE) in decibels; SSIM is Wang et al. 2004 (IEEE Trans. Image Process.
13:600) with scikit-image's uniform window of 7x7, or the largest odd one that fits,
averaged over pixels and colours.
"""

import functools
import itertools
import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import jax
import numpy as np
from numpy.typing import NDArray

from prednet_jax import errors, tasks
from prednet_jax.data.frames import FrameSource
from prednet_jax.models import sequences
from prednet_jax.models.step import to_pixels
from prednet_jax.tasks import Network, PredNetTask, Task, check_predictions

METRICS = ("mse", "mae", "psnr", "ssim")
_WINDOW = 7
# Sequences that are predicted together, and the most frames of one by default.
_BATCH, _LONGEST = 8, 100

Frames = NDArray[np.floating[Any]]
Scores = dict[str, NDArray[np.float64]]
#: Numbers of a frame, by name.
Row = dict[str, float]


def score(truth: Frames, predictions: Frames, *, data_range: float = 1.0) -> Scores:
    """Computes the scores of predicted frames, `[T]` by name; frame 0 means nothing.

    PSNR is infinite where the frame is exact. Both are `[T, H, W, C]` in [0, 1], H and
    W at least 3. `data_range` is the range of pixels in SSIM's constants. Some
    published figures have 2, which older versions of scikit-image took for
    floating-point pictures.
    """
    from skimage.metrics import structural_similarity

    if truth.shape != predictions.shape or truth.ndim != 4:
        raise errors.UserError(
            f"frames of shape {truth.shape}, predictions {predictions.shape}; expected "
            "one shape [T, H, W, C]"
        )
    smallest = min(truth.shape[1:3])
    if smallest < 3:
        raise errors.UserError(
            f"frames of {truth.shape[1]}x{truth.shape[2]}: expected at least 3x3"
        )
    window = min(_WINDOW, smallest - 1 + smallest % 2)
    difference = predictions.astype(np.float64) - truth
    mse = np.square(difference).mean(axis=(1, 2, 3))
    with np.errstate(divide="ignore"):
        psnr = -10 * np.log10(mse)
    options = {"win_size": window, "data_range": data_range, "channel_axis": -1}
    pairs = zip(truth, predictions, strict=True)
    ssim = [structural_similarity(*pair, **options) for pair in pairs]
    mae = np.abs(difference).mean((1, 2, 3))
    return {"mse": mse, "mae": mae, "psnr": psnr, "ssim": np.asarray(ssim)}


def last_seen(truth: Frames, extrapolate_from: int | None) -> Frames:
    """Returns the predictions of copying: for each frame the last true frame before it.

    No true frame is used from frame `extrapolate_from` >= 1 on; if it is None, all are.
    Frame 0 has no predecessor and is copied from itself. Shapes `[T, H, W, C]`.
    """
    before = np.maximum(np.arange(len(truth)) - 1, 0)
    if extrapolate_from is not None:
        before = np.minimum(before, extrapolate_from - 1)
    return truth[before]


def table(
    prediction: Scores, copy: Scores, extrapolate_from: int | None, *, start: int = 0
) -> list[Row]:
    """Returns a row per frame from 1 on: `frame`, metrics and `copy_<metric>`.

    `frame` counts from `start`. `observed` is whether the network is shown this frame,
    once it has predicted it.
    """
    total = len(prediction["mse"])
    until = total if extrapolate_from is None else extrapolate_from
    return [
        {"frame": start + t, "observed": t < until}
        | {name: float(prediction[name][t]) for name in METRICS}
        | {f"copy_{name}": float(copy[name][t]) for name in METRICS}
        for t in range(1, total)
    ]


def means(rows: list[Row]) -> dict[str, dict[str, float]]:
    """Averages over the observed and over the extrapolated frames, where there are any.

    PSNR is computed from the mean MSE; it is infinite where a frame equals the last.
    """
    return {
        group: _mean(chosen, "") | _mean(chosen, "copy_")
        for group, seen in (("observed", True), ("extrapolated", False))
        if (chosen := [row for row in rows if row["observed"] == seen])
    }


def evaluate(
    params: dict,
    network: Network,
    source: FrameSource,
    *,
    frames: int | None = None,
    extrapolate_from: int | None = None,
    horizons: Sequence[int] = (),
    count: int | None = None,
    skip: int = 0,
    data_range: float = 1.0,
    progress: Callable[[Sequence[int]], Iterable[int]] = iter,
) -> dict[str, Any]:
    """Evaluates frozen weights on many sequences, each from the zero state.

    The sequences of the source are cut into pieces of equal length, which do not
    overlap; the frames of a shorter remainder are counted in `left_out`. The first
    pieces of all sequences come first, then the second ones. Losses are pooled over all
    pieces before they are divided by the loss of copying, since the ratio of a single
    scene with little motion means little.

    Args:
        params: the network's parameters.
        network: a network of frames.
        source: the sequences.
        frames: frames of a piece, at least 2. Defaults to `piece_length`.
        extrapolate_from: as in `prednet.predict`; PredNet only.
        horizons: how many frames ahead to predict from every frame; PredNet only.
        count: pieces to score. Defaults to all.
        skip: pieces that are left out first, such as those that chose a setting.
        data_range: as in `score`.
        progress: is given the first pieces of all batches and yields them.

    Returns:
        `sequences`, `frames`, `pieces` (how many there are), `left_out`; for `observed`
        and `extrapolated` frames, where there are any, the scores that
        docs/predict_and_evaluate.md names; the same of copying, `copy_<name>`; and
        `ratio`, the MSE divided by the MSE of copying. `horizons` has the same by
        horizon, a string: frame t + h is predicted from the frames up to t and compared
        with copying frame t, for every t of a piece. There `starts` counts the t, and
        `mse_by_start` has the mean over pieces for each t.
    """
    task = tasks.of(network)
    if not task.windowed:
        raise errors.UserError(
            f"model={task.name}: it sees single images; expected a network of frames"
        )
    steps = piece_length(source) if frames is None else frames
    begins = pieces(source, steps, count, skip)
    if extrapolate_from is not None:
        errors.check_int("extrapolate_from", extrapolate_from, 1, steps - 1)
    _check_horizons(task, horizons, steps)
    batch = min(_BATCH, len(begins))
    by_group: dict[str, list[dict[str, float]]] = {}
    ahead: dict[int, list[list[Scores]]] = {h: [] for h in horizons}
    for start in progress(range(0, len(begins), batch)):
        chosen = begins[start : start + batch]
        # The last batch is filled up, so that one program serves all.
        filled = (chosen * batch)[:batch]
        shown = np.stack([source.read(at, at + steps) for at in filled], axis=1)
        predicted, _ = predict_frames(
            task, params, shown, extrapolate_from=extrapolate_from
        )
        if horizons:
            config = task.config  # type: ignore[attr-defined]
            rolled = sequences.rollouts(params, config, shown, horizons)
        for i in range(len(chosen)):
            truth = shown[:, i].astype(np.float32) / np.float32(255)
            copied = last_seen(truth, extrapolate_from)
            mine = score(truth, predicted[:, i], data_range=data_range)
            theirs = score(truth, copied, data_range=data_range)
            for group, scores in means(table(mine, theirs, extrapolate_from)).items():
                by_group.setdefault(group, []).append(scores)
            for j, h in enumerate(horizons):
                guesses = rolled[:-h, j, i], truth[:-h]
                scored = (score(truth[h:], g, data_range=data_range) for g in guesses)
                ahead[h].append(list(scored))
    pixels = math.prod(task.frame)
    result: dict[str, Any] = {
        "sequences": len(begins),
        "frames": steps,
        "pieces": int((source.lengths // steps).sum()),
        "left_out": int((source.lengths % steps).sum()),
    }
    result |= {group: _pooled(rows, pixels) for group, rows in by_group.items()}
    by_horizon = {str(h): _of_horizon(scores, pixels) for h, scores in ahead.items()}
    return result | ({"horizons": by_horizon} if horizons else {})


def _check_horizons(task: Task, horizons: Sequence[int], steps: int) -> None:
    if horizons and not isinstance(task, PredNetTask):
        raise errors.UserError(
            f"horizons={list(horizons)} with model={task.name}: expected a PredNet, "
            "which predicts several frames ahead; leave horizons out"
        )
    for h in horizons:
        if not 1 <= h < steps:
            raise errors.UserError(
                f"horizons={','.join(map(str, horizons))}: {h} is not from 1 to "
                f"{steps - 1}, the last frame of a sequence of {steps} frames; expected"
                " smaller horizons, or longer sequences by --frames"
            )


def _of_horizon(scores: list[list[Scores]], pixels: int) -> dict[str, object]:
    """Returns the scores of the network and of copying at one horizon."""
    rows = [
        {name: float(mine[name].mean()) for name in METRICS}
        | {f"copy_{name}": float(copy[name].mean()) for name in METRICS}
        for mine, copy in scores
    ]
    by_start = np.mean([mine["mse"] for mine, _ in scores], axis=0)
    return {
        "starts": len(by_start),
        **_pooled(rows, pixels),
        "mse_by_start": by_start.tolist(),
    }


def piece_length(source: FrameSource) -> int:
    """Returns the default number of frames of a piece.

    It is 100, or the median length of the sequences if that is less. A smaller length,
    down to half of it, is chosen if that leaves no frame out.
    """
    most = max(2, int(min(_LONGEST, np.median(source.lengths))))
    fitting = (
        n for n in range(most, max(2, most // 2) - 1, -1) if not any(source.lengths % n)
    )
    return next(fitting, most)


def predict_frames(
    task: Task,
    params: dict,
    frames: np.ndarray,
    *,
    extrapolate_from: int | None = None,
    maps: Sequence[str] = (),
) -> tuple[np.ndarray, dict[str, np.ndarray]]:
    """Predicts each frame before the network sees it, from the zero state.

    Args:
        task: the network. One of single images returns its reconstructions.
        params: its parameters.
        frames: `[T, H, W, C]`, or `[T, B, H, W, C]` of several sequences, uint8 or in
            [0, 1].
        extrapolate_from: as in `prednet.predict`; PredNet only.
        maps: names of further maps to return, as in `units`; PredNet only.

    Returns:
        Predictions in the shape of the frames, and the maps by name.
    """
    if isinstance(task, PredNetTask):
        return sequences.predict_sequence(
            params, task.config, frames, extrapolate_from=extrapolate_from, maps=maps
        )
    for name, value in (("extrapolate_from", extrapolate_from), ("maps", maps)):
        if value:
            raise errors.UserError(
                f"{name}={value} has no effect with {task.name}; leave it out"
            )
    shown = frames[:, None] if frames.ndim == 4 else frames
    predicted = np.asarray(_program(task)(params, shown))
    check_predictions(task, predicted, shown)
    return (predicted[:, 0] if frames.ndim == 4 else predicted), {}


@functools.lru_cache(maxsize=8)
def _program(task: Task) -> Callable:
    def run(params: dict, shown: jax.Array) -> jax.Array:
        frames = to_pixels(shown, jax.tree.leaves(params)[0].dtype)
        return jax.vmap(task.predict, in_axes=(None, 1), out_axes=1)(params, frames)

    return jax.jit(run)


def pieces(
    source: FrameSource, frames: int, count: int | None = None, skip: int = 0
) -> list[int]:
    """Returns the first frames of the pieces to score, of `frames` frames each."""
    errors.check_int("frames", frames, 2)
    errors.check_int("skip", skip, 0)
    begins = np.asarray(source.boundaries)
    whole_pieces = source.lengths // frames
    most = int(whole_pieces.sum()) - skip
    if most < 1 or (count is not None and not 1 <= count <= most):
        after = f" after the first {skip}" if skip else ""
        asked = "" if count is None else f"sequences={count}, "
        advice = f"sequences from 1 to {most}" if most > 0 else "smaller values"
        raise errors.UserError(
            f"{asked}frames={frames}: there are {max(most, 0)} pieces "
            f"of {frames} frames{after} in {source.name}; expected {advice}"
        )
    # The first piece of every sequence, then the second, ...; few of an endless source.
    all_have = min(skip // len(begins), int(whole_pieces.min()))
    begun = (
        int(begin) + k * frames
        for k in range(all_have, max(whole_pieces))
        for begin in begins[k < whole_pieces]
    )
    skip -= all_have * len(begins)
    return list(itertools.islice(begun, skip, skip + (count or most)))


def _mean(rows: list[Row], copy: str) -> dict[str, float]:
    mean = {
        name: float(np.mean([row[copy + name] for row in rows])) for name in METRICS
    }
    mean["psnr"] = -10 * math.log10(mean["mse"]) if mean["mse"] else math.inf
    return {copy + name: value for name, value in mean.items()}


def _pooled(of: list[dict[str, float]], pixels: int) -> dict[str, float]:
    pooled: dict[str, float] = {}
    for copy in ("", "copy_"):
        pooled |= _mean(of, copy)
        pooled[copy + "squared_error"] = pooled[copy + "mse"] * pixels
        pooled[copy + "absolute_error"] = pooled[copy + "mae"] * pixels
    copied = pooled["copy_mse"]
    return pooled | {"ratio": pooled["mse"] / copied if copied else math.inf}
