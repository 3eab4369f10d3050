"""Splits a source into several streams, for training on a batch of sequences.

If the source has at least B sequences, stream b gets the sequences b, b + B, b + 2B and
so on. Sequences at the same place of the B streams are cut to the shortest of them, and
a last round of fewer than B sequences is left out. If the source has fewer sequences,
every sequence is cut into B equal parts, of which stream b gets the b-th; a remainder
of less than B frames is left out. In both cases all streams have the same boundaries,
so their windows open sequences at the same updates.
"""

import numpy as np

from prednet_jax.data.source import DataError, FrameSource, fingerprint


def streams(source: FrameSource, count: int) -> list[FrameSource]:
    """Splits a source into streams of equal length and boundaries.

    Args:
        source: the source.
        count: B, the number of streams; 1: the source itself is returned.

    Returns:
        B sources. They share the `read` of the source, so that only one of them may be
        read at a time.

    Raises:
        DataError: count is below 1, or above what the source's sequences allow.
    """
    if count < 1:
        raise DataError(f"batch={count}: need at least 1 stream")
    if count == 1:
        return [source]
    begins: np.ndarray = np.asarray(source.boundaries)
    lengths: np.ndarray = np.diff(begins, append=source.length)
    if len(begins) >= count:
        rounds = len(begins) // count
        begins = begins[: rounds * count].reshape(rounds, count)
        lengths = lengths[: rounds * count].reshape(rounds, count).min(axis=1)
    else:
        lengths = lengths // count
        begins = begins[:, None] + lengths[:, None] * np.arange(count)
    if lengths.min() < 1:
        shortest = np.diff(source.boundaries, append=source.length).min()
        raise DataError(
            f"batch={count}: {source.name} has {len(source.boundaries)} sequences, the "
            f"shortest of {shortest} frames; need at most "
            f"{max(shortest, len(source.boundaries))} streams"
        )
    return [_stream(source, begins[:, b], lengths, b, count) for b in range(count)]


def _stream(
    source: FrameSource, begins: np.ndarray, lengths: np.ndarray, number: int, of: int
) -> FrameSource:
    """A source made of pieces of another; `begins` and `lengths` `[pieces]`."""
    ends = np.cumsum(lengths)
    starts = ends - lengths

    def read(start: int, stop: int) -> np.ndarray:
        pieces = range(
            int(np.searchsorted(ends, start, side="right")),
            int(np.searchsorted(starts, stop, side="left")),
        )
        parts = [
            source.read(
                int(begins[i] + max(start - starts[i], 0)),
                int(begins[i] + min(stop - starts[i], lengths[i])),
            )
            for i in pieces
        ]
        if not parts:
            return source.read(0, 0)
        return parts[0] if len(parts) == 1 else np.concatenate(parts)

    return FrameSource(
        name=f"{source.name}, stream {number + 1} of {of}",
        height=source.height,
        width=source.width,
        channels=source.channels,
        length=int(ends[-1]),
        boundaries=tuple(starts.tolist()),
        read=read,
        fingerprint=fingerprint(source=source.fingerprint, stream=number, of=of),
    )
