"""`FrameSource`, the type of every source of frames.

A source is read in ranges of frames and never as a whole. So the training loop treats a
day of video and an endless generated walk alike.
"""

import dataclasses
import hashlib
import json
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from prednet_jax.errors import UserError, whole

# The length of an endless source: more frames than any run reads.
ENDLESS = 10**9

#: Frames `start` to `stop - 1`, uint8 `[stop - start, H, W, C]`.
Frames = Callable[[int, int], np.ndarray]


@dataclasses.dataclass(frozen=True)
class FrameSource:
    """A finite, ordered sequence of frames with random access.

    Attributes:
        name: The name or path that was opened, for manifests and messages.
        height: Height of every frame, in pixels.
        width: Width of every frame, in pixels.
        channels: 1 (grey) or 3 (RGB).
        length: Total number of frames; `ENDLESS` for generated sources by default.
        boundaries: Index of the first frame of every sequence; starts with 0.
        frames: What `read` calls, with a range inside the source.
        fingerprint: SHA-256 of what identifies the content and its order, without
            paths: generator version, seed and size, or the bytes of every file.
        done: What was done to pictures of another size, in words; empty: nothing.
    """

    name: str
    height: int
    width: int
    channels: int
    length: int
    boundaries: tuple[int, ...]
    frames: Frames
    fingerprint: str
    done: str = ""

    def __post_init__(self):
        """Refuse, with a UserError, a size, length or boundaries of no use."""
        check_frame_size(self.height, self.width, self.channels)
        whole("length", self.length, 1)
        check_boundaries(self.name, self.boundaries, self.length)

    def read(self, start: int, stop: int) -> np.ndarray:
        """Frames `start` to `stop - 1`, uint8 `[stop - start, H, W, C]`.

        It may be called from another thread, but by one caller at a time.
        """
        if not 0 <= start <= stop <= self.length:
            raise UserError(
                f"frames {start}:{stop} of {self.name}: it holds frames "
                f"0:{self.length} and is read forwards"
            )
        return self.frames(start, stop)


def check_frame_size(height: int, width: int, channels: int) -> None:
    """Refuse a side that is not positive, and channels other than 1 and 3."""
    whole("height", height, 1)
    whole("width", width, 1)
    if channels not in (1, 3):
        raise UserError(
            f"channels={channels}: frames have 3 (RGB) or 1 (grey); "
            "this is the first entry of the channel list"
        )


def check_boundaries(name: str, boundaries: tuple[int, ...], length: int) -> None:
    """Refuse boundaries that are not strictly increasing from 0 to below `length`."""
    steps = np.diff(np.asarray((*boundaries, length), np.int64))
    if boundaries[:1] != (0,) or (steps <= 0).any():
        shown = str(list(boundaries[:8]))[:-1] + (", ..." if boundaries[8:] else "")
        raise UserError(
            f"boundaries={shown}] of {name}: need strictly increasing indices that "
            f"start with 0 and stay below its {length} frames"
        )


def joined(name: str, sources: Sequence[FrameSource]) -> FrameSource:
    """Sources of one size, one after the other, of which each keeps its sequences."""
    ends = np.cumsum([source.length for source in sources]).tolist()
    boundaries = tuple(
        end - source.length + index
        for end, source in zip(ends, sources, strict=True)
        for index in source.boundaries
    )
    digests = [source.fingerprint for source in sources]
    return dataclasses.replace(
        sources[0],
        name=name,
        length=ends[-1],
        boundaries=boundaries,
        frames=joined_spans([(s.read, 0, s.length) for s in sources]),
        fingerprint=fingerprint(joined=digests, total=ends[-1]),
    )


def joined_spans(spans: Sequence[tuple[Frames, int, int]]) -> Frames:
    """The frames of spans `(frames, begin, end)`, one span after the other."""
    ends = np.cumsum([end - begin for _, begin, end in spans])

    def frames(start: int, stop: int) -> np.ndarray:
        parts: list[np.ndarray] = []
        while start < stop or not parts:
            place = min(int(np.searchsorted(ends, start, "right")), len(spans) - 1)
            read, _, last = spans[place]
            shift, end = last - int(ends[place]), min(stop, int(ends[place]))
            parts.append(read(start + shift, end + shift))
            start = end
        return parts[0] if len(parts) == 1 else np.concatenate(parts)

    return frames


def fingerprint(**fields: Any) -> str:
    """SHA-256 of named values that JSON can hold, independent of their order."""
    text = json.dumps(fields, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


def generator(*seeds: int) -> np.random.Generator:
    """A generator to draw uniform doubles from, which every NumPy draws alike."""
    return np.random.Generator(np.random.PCG64(np.random.SeedSequence(seeds)))
