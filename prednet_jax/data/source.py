"""`FrameSource`, the type of every source of frames, and the checks they share.

A source is read in ranges of frames and never as a whole. So the training loop treats a
day of video and an endless generated walk alike.
"""

import dataclasses
import hashlib
import json
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from prednet_jax.errors import UserError

# The length of an endless source: more frames than any run reads.
ENDLESS = 10**9


class DataError(UserError):
    """A source of frames that cannot be used."""


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
        read: `read(start, stop)` returns uint8 `[stop - start, H, W, C]`, the same
            bytes at every call. It may be called from another thread, but by one caller
            at a time.
        fingerprint: SHA-256 of what identifies the content and its order: generator
            version, seed, size and embedded files for generated sources, the bytes of
            every file for sources from disk. Paths are not part of it.
        done: What was done to pictures of another size, in words; empty: nothing.
        new_read: Makes a `read` for a second caller, if two callers of one `read` would
            slow each other down (a video decoder has a position); None: they would
            not.
    """

    name: str
    height: int
    width: int
    channels: int
    length: int
    boundaries: tuple[int, ...]
    read: Callable[[int, int], np.ndarray]
    fingerprint: str
    new_read: Callable[[], Callable[[int, int], np.ndarray]] | None = None
    done: str = ""

    def __post_init__(self):
        """Check the sizes and the boundaries.

        Raises:
            DataError: If a size, the length or the boundaries are not usable.
        """
        check_frame_size(self.height, self.width, self.channels)
        if self.length < 1:
            raise DataError(f"length={self.length} of {self.name}: need at least 1")
        check_boundaries(self.name, self.boundaries, self.length)

    def reader(self) -> "FrameSource":
        """The same source with a `read` of its own, for a second caller."""
        if self.new_read is None:
            return self
        return dataclasses.replace(self, read=self.new_read())


def check_frame_size(height: int, width: int, channels: int) -> None:
    """Check a frame size.

    Raises:
        DataError: If a side is not positive or the channels are not 1 or 3.
    """
    for name, value in (("height", height), ("width", width)):
        if value < 1:
            raise DataError(f"{name}={value}: need a positive number of pixels")
    if channels not in (1, 3):
        raise DataError(
            f"channels={channels}: frames have 3 (RGB) or 1 (grey); "
            "this is the first entry of the channel list"
        )


def check_boundaries(name: str, boundaries: tuple[int, ...], length: int) -> None:
    """Check the indices at which the sequences begin.

    Raises:
        DataError: If they do not start with 0, or do not increase strictly up to below
            `length`.
    """
    steps = np.diff(np.asarray((*boundaries, length), np.int64))
    if boundaries[:1] != (0,) or (steps <= 0).any():
        shown = str(list(boundaries[:8]))[:-1] + (", ..." if boundaries[8:] else "")
        raise DataError(
            f"boundaries={shown}] of {name}: need strictly increasing indices that "
            f"start with 0 and stay below its {length} frames"
        )


def check_seed(seed: int) -> None:
    """Check the seed of a generated source.

    Raises:
        DataError: If it is negative.
    """
    if seed < 0:
        raise DataError(f"seed={seed}: need an integer of 0 or more")


def check_range(name: str, length: int, start: int, stop: int) -> None:
    """Check a range of frames before reading it.

    Raises:
        DataError: If `[start, stop)` does not lie inside the source.
    """
    if not 0 <= start <= stop <= length:
        raise DataError(
            f"frames {start}:{stop} of {name}: it holds frames 0:{length} and is "
            "read forwards"
        )


def limited_length(name: str, available: int, length: int | None) -> int:
    """How many of `available` frames to use; `length` None: all.

    Raises:
        DataError: If `length` is below 1 or above `available`.
    """
    if length is None:
        return available
    if not 1 <= length <= available:
        raise DataError(
            f"length={length}: {name} holds {available} frames, so 1 to {available}"
        )
    return length


def limited_boundaries(boundaries: tuple[int, ...], length: int) -> tuple[int, ...]:
    """The boundaries that lie inside the first `length` frames."""
    return tuple(index for index in boundaries if index < length)


def joined(
    name: str, sources: Sequence[FrameSource], length: int | None = None
) -> FrameSource:
    """Sources of one size, one after the other.

    Args:
        name: What messages call them together.
        sources: Of which each keeps its sequences.
        length: Number of frames to use; None: all.

    Returns:
        The source.

    Raises:
        DataError: If `length` is out of range.
    """
    ends = np.cumsum([source.length for source in sources]).tolist()
    begins = [0, *ends[:-1]]
    total = limited_length(name, ends[-1], length)
    boundaries = tuple(
        begin + index
        for begin, source in zip(begins, sources, strict=True)
        for index in source.boundaries
    )

    def new_read(readers: Sequence[FrameSource]) -> Callable[[int, int], np.ndarray]:
        def read(start: int, stop: int) -> np.ndarray:
            check_range(name, total, start, stop)
            parts = [
                source.read(max(start - begin, 0), min(stop, end) - begin)
                for begin, end, source in zip(begins, ends, readers, strict=True)
                if max(start, begin) < min(stop, end)
            ]
            return np.concatenate(parts) if parts else readers[0].read(0, 0)

        return read

    return dataclasses.replace(
        sources[0],
        name=name,
        length=total,
        boundaries=limited_boundaries(boundaries, total),
        read=new_read(sources),
        fingerprint=fingerprint(joined=[s.fingerprint for s in sources], total=total),
        new_read=lambda: new_read([source.reader() for source in sources]),
    )


def fingerprint(**fields: Any) -> str:
    """SHA-256 of named values that JSON can hold, independent of their order."""
    text = json.dumps(fields, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


def generator(*seeds: int) -> np.random.Generator:
    """A generator to draw uniform doubles from, which every NumPy draws alike.

    Args:
        seeds: Root seed, and further numbers that distinguish the generator.
    """
    return np.random.Generator(np.random.PCG64(np.random.SeedSequence(seeds)))
