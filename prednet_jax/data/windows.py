"""Windows of truncated back-propagation, in the published order.

In the published loop (main.py of quadjr/PredNet and eijwat/prednet_in_chainer_py3),
step i of a sequence of n frames sees frame i - 1 and is scored on frame i, for
i = 1 .. n - 1. An update follows step i if (i + 1) % T == 0. So window k = 1, 2, .. of
a sequence consists of the steps (k - 1) T <= i < k T. Step 0 does not exist: the first
window has T - 1 losses. The steps after the last update of a sequence are dropped. The
next sequence starts with a new state; after the last sequence the first comes again.

Here every window has T steps and the T + 1 frames from `start = s + (k - 1) T - 1` on,
with s the first frame of the sequence. In a first window frame s - 1 is a stand-in (a
copy of frame s). Its step has loss weight 0, and the state is reset after it. So all
windows have the same shape and share one compiled program.
"""

import hashlib
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from prednet_jax.data.prefetch import prefetch
from prednet_jax.data.source import DataError, FrameSource


class Schedule(NamedTuple):
    """The order in which a run sees the frames: one entry per update.

    Attributes:
        start: int64 [U] index of frame 0 of the window; -1 is possible.
        first: bool [U] whether the window opens its sequence.
        window: Steps per window; 0 for single pictures, which have no next frame.
    """

    start: np.ndarray
    first: np.ndarray
    window: int

    def after(self, updates: int) -> "Schedule":
        """The schedule that remains after a number of updates."""
        return self._replace(start=self.start[updates:], first=self.first[updates:])


def schedule(
    length: int, boundaries: Sequence[int], window: int, updates: int
) -> Schedule:
    """The windows of the first `updates` updates, cycling over the sequences.

    Args:
        length: Number of frames of the source.
        boundaries: Index of the first frame of every sequence; starts with 0.
        window: Frames between updates, T in the formulas; at least 2.
        updates: Number of updates; after the last sequence the first comes again.

    Returns:
        The schedule.

    Raises:
        DataError: If the window is shorter than 2, no sequence is as long as a window,
            or the number of updates is negative.
    """
    # With T = 1 the published loop has no shorter first window.
    if window < 2:
        raise DataError(f"window={window}: need at least 2 frames between updates")
    _check_updates(updates)
    first_frames = np.asarray(boundaries, np.int64)
    lengths = np.diff(first_frames, append=length)
    windows = lengths // window
    ends = np.cumsum(windows)
    if ends[-1] == 0:
        raise DataError(
            f"window={window}: the longest sequence has {lengths.max()} frames, and "
            f"an update needs {window}; accepted are windows of 2 to "
            f"{max(2, lengths.max())} frames"
        )
    place = np.arange(updates, dtype=np.int64) % ends[-1]
    sequence = np.searchsorted(ends, place, side="right")
    k = place - (ends - windows)[sequence]
    return Schedule(first_frames[sequence] + k * window - 1, k == 0, window)


def single_schedule(length: int, updates: int) -> Schedule:
    """The schedule of one picture per update, cycling over the source.

    Args:
        length: Number of frames of the source.
        updates: Number of updates.

    Returns:
        The schedule, with window 0.

    Raises:
        DataError: If the number of updates is negative.
    """
    _check_updates(updates)
    start = np.arange(updates, dtype=np.int64) % length
    return Schedule(start, np.zeros(updates, bool), 0)


def chunks(
    source: FrameSource, schedule: Schedule, windows_per_chunk: int
) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Read the windows in a background thread, in chunks.

    Args:
        source: The source that the schedule was made for.
        schedule: The windows.
        windows_per_chunk: K, the number of windows that go to the device together.

    Yields:
        `(frames, first)` with frames uint8 `[K, T + 1, H, W, C]` and first bool `[K]`.
        The last chunk may be shorter.

    Raises:
        DataError: If K is not positive. An error in reading a chunk is raised in place
            of that chunk.
    """
    if windows_per_chunk < 1:
        raise DataError(f"windows_per_chunk={windows_per_chunk}: need at least 1")
    return prefetch(read_chunks(source, schedule, windows_per_chunk))


def single_images(
    source: FrameSource, schedule: Schedule, images_per_chunk: int
) -> Iterator[np.ndarray]:
    """Read single pictures in a background thread, in chunks.

    Args:
        source: The source that the schedule was made for.
        schedule: The result of `single_schedule`.
        images_per_chunk: K, the number of pictures that go to the device together.

    Yields:
        uint8 `[K, H, W, C]`; the last chunk may be shorter.

    Raises:
        DataError: If the schedule is one of windows, or as `chunks`.
    """
    if schedule.window:
        raise DataError(
            f"window={schedule.window}: single images need a single_schedule (window 0)"
        )
    return (frames[:, 0] for frames, _ in chunks(source, schedule, images_per_chunk))


def order_fingerprint(source: FrameSource, schedule: Schedule) -> str:
    """SHA-256 of the data and the order in which the updates see it.

    Args:
        source: The source.
        schedule: The windows.

    Returns:
        Hexadecimal digits. If they are equal, so are the frames of every update.
    """
    digest = hashlib.sha256(f"order 1 {source.fingerprint} {schedule.window} ".encode())
    digest.update(schedule.start.astype("<i8").tobytes())
    digest.update(schedule.first.astype("u1").tobytes())
    return digest.hexdigest()


def read_chunks(
    source: FrameSource, schedule: Schedule, windows_per_chunk: int
) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """The work of `chunks` (and of `single_images`), without the thread."""
    size = schedule.window + 1
    shape = (source.height, source.width, source.channels)
    # Neighbouring windows share a frame; to decode it twice, a video would seek.
    last_index, last_frame = -1, np.empty(shape, np.uint8)
    for i in range(0, len(schedule.start), windows_per_chunk):
        first = schedule.first[i : i + windows_per_chunk]
        frames = np.empty((len(first), size, *shape), np.uint8)
        starts = schedule.start[i : i + windows_per_chunk].tolist()
        for out, start, opens in zip(frames, starts, first, strict=True):
            known = bool(opens) or start == last_index
            if start == last_index and not opens:
                out[0] = last_frame
            out[known:] = source.read(start + known, start + size)
            if opens:
                out[0] = out[1]
            last_index, last_frame = start + size - 1, out[-1]
        yield frames, first


def _check_updates(updates: int) -> None:
    if updates < 0:
        raise DataError(f"updates={updates}: need 0 or more")
