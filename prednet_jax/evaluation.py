"""How good predicted frames are: MSE, MAE, PSNR and SSIM of each frame.

One protocol. A sequence starts from the zero state. Frame 0, which nothing could
predict, is scored nowhere. Up to frame k the network sees the true frames (observed
steps: next-frame prediction); from frame k on it sees its own predictions (extrapolated
steps). Copying the last frame that was seen is scored beside it.

PSNR is 10 log10(1 / MSE) in decibels. SSIM is Wang et al. 2004 (IEEE Trans. Image
Process. 13:600) with scikit-image's uniform window of 7x7, or the largest odd one that
fits, averaged over pixels and colours.
"""

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from prednet_jax import errors

METRICS = ("mse", "mae", "psnr", "ssim")
_WINDOW = 7

Frames = NDArray[np.floating[Any]]


class Scores(NamedTuple):
    """One number per frame, `[T]` each; frame 0 is there and means nothing.

    Attributes:
        mse: mean squared error over pixels in [0, 1].
        mae: mean absolute error.
        psnr: in decibels; infinite where the frame is exact.
        ssim: in [-1, 1].
    """

    mse: NDArray[np.float64]
    mae: NDArray[np.float64]
    psnr: NDArray[np.float64]
    ssim: NDArray[np.float64]


def score(truth: Frames, predictions: Frames) -> Scores:
    """Scores of predicted frames.

    Args:
        truth: `[T, H, W, C]` in [0, 1], H and W at least 3.
        predictions: the same shape.

    Raises:
        UserError: shapes that differ, or frames too small for a window of SSIM.
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
    ssim = [
        structural_similarity(a, b, win_size=window, data_range=1.0, channel_axis=-1)
        for a, b in zip(truth, predictions, strict=True)
    ]
    return Scores(mse, np.abs(difference).mean((1, 2, 3)), psnr, np.asarray(ssim))


def last_seen(truth: Frames, extrapolate_from: int | None) -> Frames:
    """What copying predicts: for each frame the last true frame seen before it.

    Args:
        truth: `[T, H, W, C]`.
        extrapolate_from: first frame that is not seen, >= 1; None: all are.

    Returns:
        `[T, H, W, C]`; frame 0, before which there was none, is copied from itself.
    """
    before = np.maximum(np.arange(len(truth)) - 1, 0)
    if extrapolate_from is not None:
        before = np.minimum(before, extrapolate_from - 1)
    return truth[before]


def table(
    prediction: Scores, copy: Scores, extrapolate_from: int | None
) -> list[dict[str, Any]]:
    """A row per frame from frame 1 on.

    Args:
        prediction: of the network.
        copy: of `last_seen`.
        extrapolate_from: as in `last_seen`.

    Returns:
        Rows of `frame`, `observed`, each metric, and `copy_<metric>` of copying.
    """
    until = len(prediction.mse) if extrapolate_from is None else extrapolate_from
    return [
        {"frame": t, "observed": t < until}
        | {name: float(getattr(prediction, name)[t]) for name in METRICS}
        | {f"copy_{name}": float(getattr(copy, name)[t]) for name in METRICS}
        for t in range(1, len(prediction.mse))
    ]


def means(rows: list[dict[str, Any]]) -> dict[str, dict[str, float]]:
    """Means over the observed and over the extrapolated frames, where there are any.

    A mean of PSNR with an exact frame among them is infinite.
    """
    groups = {
        "observed": [row for row in rows if row["observed"]],
        "extrapolated": [row for row in rows if not row["observed"]],
    }
    names = [*METRICS, *(f"copy_{name}" for name in METRICS)]
    return {
        group: {name: float(np.mean([row[name] for row in of])) for name in names}
        for group, of in groups.items()
        if of
    }
