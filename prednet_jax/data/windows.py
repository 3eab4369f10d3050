"""Windows of truncated back-propagation, in the published order.

In the published loop (main.py of quadjr/PredNet and eijwat/prednet_in_chainer_py3),
step i of a sequence of n frames sees frame i - 1 and is scored on frame i, for
i = 1 .. n - 1. An update follows step i if (i + 1) % T == 0. So window k = 1, 2, .. of
a sequence consists of the steps (k - 1) T <= i < k T. Step 0 does not exist: the first
window has T - 1 losses. The steps after the last update of a sequence are dropped. The
next sequence starts with a new state; after the last sequence the first comes again.

Here every window has T steps and the T + 1 frames from `start = s + (k - 1) T - 1` on,
with s the first frame of the sequence. In a first window frame s - 1 is a stand-in (a
copy of frame s), whose step has loss weight 0 and is followed by a reset of the state.
So all windows have the same shape and share one compiled program.

A batch of B windows comes from B streams. If there are at least B sequences, stream b
gets the sequences b, b + B, b + 2B and so on. The B sequences at the same position are
cut to the shortest of them, and a last round of fewer than B is left out. If there are
fewer sequences, each is cut into B equal parts, without a remainder of less than B
frames. In both cases the windows of all streams open sequences at the same updates.
"""

import hashlib
import zlib
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple, TypeVar

import numpy as np

from prednet_jax.data.frames import ENDLESS, FrameSource, generator
from prednet_jax.errors import UserError, check_int

T = TypeVar("T")


class Schedule(NamedTuple):
    """The order in which a run sees the frames: one entry per update.

    Attributes:
        start: int64 [U, B] index of frame 0 of each window; -1 is possible.
        first: bool [U] whether the windows open their sequences.
        window: Steps per window; 0 for single pictures, which have no next frame.
    """

    start: np.ndarray
    first: np.ndarray
    window: int

    def after(self, updates: int) -> "Schedule":
        """Returns the schedule that remains after a number of updates."""
        return self._replace(start=self.start[updates:], first=self.first[updates:])


def schedule(
    length: int,
    boundaries: Sequence[int],
    window: int,
    updates: int,
    *,
    batch: int = 1,
    fresh: bool = False,
) -> Schedule:
    """Returns the windows of the first `updates` updates, cycling over the sequences.

    `boundaries` are the first frames of the sequences, which have `length` frames
    together. `window` is T and `batch` is B in the module's formulas. With `window` 0
    each update sees one picture of every stream. If `fresh`, every window is a sequence
    of its own.
    """
    # With T = 1 the published loop has no shorter first window.
    check_int("window", window or 2, 2)
    check_int("updates", updates, 0)
    first_frames, lengths = _streams(length, boundaries, batch)
    windows = lengths // (window or 1)
    if not windows.any():
        raise _too_short(window, lengths)
    sequence, k = _places(windows, np.arange(updates) % windows.sum())
    start = first_frames[sequence] + (k * window - 1 if window else k)[:, None]
    return Schedule(start, (window > 0) & ((k == 0) | fresh), window)


def random_windows(
    source: FrameSource, window: int, updates: int, *, batch: int, seed: int
) -> Schedule:
    """Samples windows of T frames from all windows of all sequences, with replacement.

    Every window is a sequence of its own. A longer schedule begins with a shorter one.
    """
    check_int("window", window, 2)
    check_int("updates", updates, 0)
    check_int("batch", batch, 1)
    first_frames, lengths = _streams(source.length, source.boundaries, 1)
    windows = np.maximum(lengths - window + 1, 0)
    if not windows.any():
        raise _too_short(window, lengths)
    draws = generator(seed, zlib.crc32(b"windows")).random((updates, batch))
    sequence, k = _places(windows, (draws * windows.sum()).astype(np.int64))
    start = first_frames[sequence, 0] + k - 1
    return Schedule(start, np.ones(updates, bool), window)


def never_seen(source: FrameSource, window: int, *, batch: int, drawn: bool) -> int:
    """Returns how many frames of a source no update sees, however long it trains.

    They are the ends of sequences that fill no window. Where batches are streams, they
    also include the frames that a sequence has beyond the shortest in its round. If
    windows are `drawn`, they are the sequences that are shorter than a window. An
    endless source has no such frames.
    """
    lengths = source.lengths
    if source.length >= ENDLESS or not window:
        return 0
    if drawn:
        return int(lengths[lengths < window].sum())
    _, dealt = _streams(source.length, source.boundaries, batch)
    return int(lengths.sum() - (dealt // window * window).sum() * batch)


def _places(counts: np.ndarray, index: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Returns the sequence that holds entry `index` of all, and its number there."""
    ends = np.cumsum(counts)
    sequence = np.searchsorted(ends, index, side="right")
    return sequence, index - (ends - counts)[sequence]


def _streams(
    length: int, boundaries: Sequence[int], count: int
) -> tuple[np.ndarray, np.ndarray]:
    """Returns first frames `[S, B]` and lengths `[S]` of the sequences of B streams."""
    check_int("batch", count, 1)
    begins: np.ndarray = np.asarray(boundaries, np.int64)
    lengths: np.ndarray = np.diff(begins, append=length)
    shortest = int(lengths.min())
    if len(begins) >= count:
        rounds = len(begins) // count
        begins = begins[: rounds * count].reshape(rounds, count)
        lengths = lengths[: rounds * count].reshape(rounds, count).min(axis=1)
    else:
        lengths = lengths // count
        begins = begins[:, None] + lengths[:, None] * np.arange(count)
    if lengths.min() < 1:
        raise UserError(
            f"batch={count}: the data has {len(boundaries)} sequences, the shortest of "
            f"{shortest} frames; expected at most {max(shortest, len(boundaries))} "
            "streams"
        )
    return begins, lengths


def _too_short(window: int, lengths: np.ndarray) -> UserError:
    return UserError(
        f"window={window}: the longest sequence has {lengths.max()} frames, and an "
        f"update needs {window}; accepted are windows of 2 to {max(2, lengths.max())} "
        "frames"
    )


def prefetch(items: Iterator[T], ahead: int = 2) -> Iterator[T]:
    """Yields the items of an iterator that a background thread advances, some ahead."""
    end: Any = object()
    pool = ThreadPoolExecutor(1, "prefetch")
    try:
        waiting = deque(pool.submit(next, items, end) for _ in range(ahead + 1))
        while (item := waiting.popleft().result()) is not end:
            waiting.append(pool.submit(next, items, end))
            yield item
    finally:
        pool.shutdown(cancel_futures=True)


def order_fingerprint(source: FrameSource, schedule: Schedule) -> str:
    """Returns a SHA-256, equal where the frames of every update are equal."""
    digest = hashlib.sha256(f"order 1 {source.fingerprint} {schedule.window} ".encode())
    digest.update(schedule.start.astype("<i8").tobytes())
    digest.update(schedule.first.astype("u1").tobytes())
    return digest.hexdigest()


def read_chunks(
    source: FrameSource, schedule: Schedule, windows_per_chunk: int
) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yields the windows in chunks of K.

    They are frames uint8 `[K, T + 1, B, H, W, C]` (`[K, 1, B, H, W, C]` of single
    pictures) and first bool `[K]`, True of single pictures.
    """
    size, batch = schedule.window + 1, schedule.start.shape[1]
    shape = (source.height, source.width, source.channels)
    # Neighbouring windows share a frame; to decode it twice, a video would seek.
    last = [(-1, np.empty(shape, np.uint8))] * batch
    for i in range(0, len(schedule.start), windows_per_chunk):
        first = schedule.first[i : i + windows_per_chunk]
        frames = np.empty((len(first), size, batch, *shape), np.uint8)
        starts = schedule.start[i : i + windows_per_chunk].tolist()
        for update, begins, opens in zip(frames, starts, first, strict=True):
            for b, start in enumerate(begins):
                out, (last_index, last_frame) = update[:, b], last[b]
                known = bool(opens) or start == last_index
                if known and not opens:
                    out[0] = last_frame
                out[known:] = source.read(start + known, start + size)
                if opens:
                    out[0] = out[1]
                last[b] = (start + size - 1, out[-1])
        yield frames, first if schedule.window else np.ones_like(first)
