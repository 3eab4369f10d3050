"""One stream of frames in memory, cut into windows of truncated back-propagation."""

from collections.abc import Iterator
from typing import Any

import jax
import numpy as np

from prednet_jax.errors import UserError, whole


def windows(frames: Any, window: int) -> Iterator[tuple[Any, np.bool_]]:
    """Cuts a stream as the published loop does, an unfinished tail dropped.

    (`training.loop.batches` does it for a `data.FrameSource`.)

    Args:
        frames: `[T, H, W, C]`, one stream in order, or `[T, B, H, W, C]`, several.
        window: transitions per window, >= 1. The first window has one less, but for
            window 1, where every transition is a window.

    Yields:
        `[window + 1, B, H, W, C]`, and whether the stream begins there: frame 0 is then
        a stand-in.

    Raises:
        UserError: the frames are no stream, or it is too short for one window.
    """
    whole("window", window, 1)
    frames = as_stream(frames)
    stand_in = 1 if window > 1 else 0
    count = (len(frames) - 1 + stand_in) // window
    if count < 1:
        raise UserError(
            f"frames of {len(frames)} time steps: expected at least "
            f"{max(window, 2)} with window={window}"
        )
    for index in range(count):
        # Window k starts at frame k window - 1; the first has a stand-in in front.
        begin = index * window - stand_in
        places = np.maximum(begin + np.arange(window + 1), 0)
        yield frames[places], np.bool_(index == 0)


def as_stream(frames: Any) -> Any:
    """Frames `[T, B, H, W, C]` on the host, where no program is compiled to read them.

    Raises:
        UserError: they are no stream `[T, H, W, C]`, nor several.
    """
    if not isinstance(frames, jax.core.Tracer):
        frames = np.asarray(frames)
    if frames.ndim not in (4, 5):
        raise UserError(
            f"frames of shape {tuple(frames.shape)}: expected [T, H, W, C], or of "
            "several streams [T, B, H, W, C]"
        )
    return frames[:, None] if frames.ndim == 4 else frames
