"""Sequences to train on, to choose settings by, and to publish scores of.

No sequence is in two splits. `open_split` cuts every source the same way each time:

    walk           walks of seeds of their own, `FIRST_SEED[split]` and following, 300
                   frames each, through the photographs that are not held out
    moving digits  sequences of seeds of their own, of the pictures that are not held
                   out (every fifth picture is)
    ten sequences  (a list of lists, an .npz with boundaries, a prepared data set) and
    or more        more: of each ten the ninth is for validation, the tenth for tests
    fewer          each sequence is cut: 80 % of its frames, then 10 %, then 10 %
    prepared sets  their own splits; one without validation has its `train` cut as
                   above

`unseen` is a second test: sequences of the held-out photographs and pictures, which are
in no other split. Files have no such split.
"""

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from prednet_jax.data.photographs import PHOTOGRAPHS
from prednet_jax.data.source import DataError, FrameSource, check_range, fingerprint
from prednet_jax.errors import one_of, whole

SPLITS = ("train", "validation", "test", "unseen")
FIRST_SEED = {
    "train": 10_000_000,
    "validation": 20_000_000,
    "test": 30_000_000,
    "unseen": 40_000_000,
}
#: A texture, a still life and a machine.
HELD_OUT_PHOTOGRAPHS = ("brick.png", "coffee.png", "motorcycle_left.png")
HELD_OUT_PICTURES = 5
WALK_FRAMES = 300
#: Sequences of a split where no number is given.
WALKS, MOVING = 256, 4096
# Frames that are kept in memory once they were read, in bytes.
_KEPT = 2**30


@functools.lru_cache(maxsize=8)
def open_split(
    data: str,
    split: str,
    *,
    height: int,
    width: int,
    channels: int,
    sequences: int | None = None,
    crop: str = "auto",
    offset: tuple[int, int] = (0, 0),
    allow_outside: bool = False,
) -> FrameSource:
    """Open the sequences of a split; what was read of them stays in memory.

    Args:
        data: As `open_source` takes it; a source with sequences.
        split: One of `SPLITS`.
        height: Height of a frame, in pixels.
        width: Width of a frame, in pixels.
        channels: 3 (RGB) or 1 (grey).
        sequences: Number of sequences; None: `WALKS`, `MOVING`, or all there are.
        crop: As in `open_source`.
        offset: As in `open_source`.
        allow_outside: As in `open_source`.

    Returns:
        The source, with a boundary at the start of each sequence.

    Raises:
        DataError: The data has no sequences, no such split, or too few sequences.
    """
    from prednet_jax.data import NAMES, open_source

    one_of("split", split, SPLITS)
    if sequences is not None:
        whole("sequences", sequences, 1)
    size = {"height": height, "width": width, "channels": channels}
    if data == "walk":
        return _in_memory(_walks(split, sequences or WALKS, size))
    if data in NAMES and data.startswith("moving"):
        return _in_memory(_moving(data, split, sequences or MOVING, size))
    if data in NAMES:
        raise DataError(
            f"data={data}: single pictures; expected frames that follow one another, "
            "such as walk or moving_digits"
        )
    if split == "unseen":
        raise DataError(f"data={data}: expected split train, validation or test")
    options: dict[str, Any] = {
        **size,
        "crop": crop,
        "offset": offset,
        "allow_outside": allow_outside,
    }
    return _in_memory(_of_files(data, split, sequences, open_source, options))


def _walks(split: str, count: int, size: dict[str, int]) -> FrameSource:
    from prednet_jax.data.walk import open_walks

    held_out = HELD_OUT_PHOTOGRAPHS
    others = tuple(name for name in PHOTOGRAPHS if name not in held_out)
    return open_walks(
        **size,
        seeds=range(FIRST_SEED[split], FIRST_SEED[split] + count),
        frames=WALK_FRAMES,
        photographs=held_out if split == "unseen" else others,
    )


def _moving(data: str, split: str, count: int, size: dict[str, int]) -> FrameSource:
    from prednet_jax.data.moving import SEQUENCE, open_moving
    from prednet_jax.data.prepared import mnist
    from prednet_jax.data.stills import digits

    stills = mnist() if data.endswith("mnist") else digits()
    last = HELD_OUT_PICTURES - 1
    unseen = split == "unseen"
    chosen = [
        i for i in range(stills.total) if (i % HELD_OUT_PICTURES == last) == unseen
    ]
    which = "every fifth picture" if unseen else "four of five pictures"
    part = stills._replace(
        name=f"{stills.name}, {split}: {count} sequences of {which}",
        total=len(chosen),
        picture=lambda index: stills.picture(chosen[index]),
        fingerprint=fingerprint(pictures=stills.fingerprint, unseen=unseen),
    )
    return open_moving(part, **size, seed=FIRST_SEED[split], length=count * SEQUENCE)


def _of_files(
    data: str,
    split: str,
    sequences: int | None,
    open_source: Callable[..., FrameSource],
    options: dict[str, Any],
) -> FrameSource:
    from prednet_jax.data import prepared

    own = prepared.splits(data)
    if "validation" in own and split not in own:
        raise DataError(f"data={data}: has no split {split}; expected {', '.join(own)}")
    # A set without validation has it cut from its training split.
    if split in own and (split == "test" or "validation" in own):
        whole_split = open_source(f"{data}:{split}", **options)
        pieces = _sequences(whole_split)
        return _pieces(whole_split, split, _first(pieces, sequences, data))
    source = open_source(data, **options)
    pieces = _sequences(source)
    if len(pieces) >= 10:
        places = {"validation": (8,), "test": (9,)}.get(split, range(8))
        pieces = [piece for i, piece in enumerate(pieces) if i % 10 in places]
    else:
        low, high = {"validation": (8, 9), "test": (9, 10)}.get(split, (0, 8))
        pieces = [
            (begin + (end - begin) * low // 10, begin + (end - begin) * high // 10)
            for begin, end in pieces
        ]
        pieces = [(begin, end) for begin, end in pieces if begin < end]
    if not pieces:
        raise DataError(
            f"data={data}: {source.length} frames are too few for a {split} split"
        )
    return _pieces(source, split, _first(pieces, sequences, data))


def _sequences(source: FrameSource) -> list[tuple[int, int]]:
    ends = (*source.boundaries[1:], source.length)
    return list(zip(source.boundaries, ends, strict=True))


def _first(pieces: list, count: int | None, data: str) -> list:
    if count is not None and count > len(pieces):
        raise DataError(
            f"sequences={count}: data={data} has {len(pieces)} in this split; expected "
            "at most as many"
        )
    return pieces[:count]


def _pieces(
    source: FrameSource, split: str, pieces: Sequence[tuple[int, int]]
) -> FrameSource:
    """The source that consists of pieces `(begin, end)` of another, in that order."""
    begins = np.array([begin for begin, _ in pieces])
    ends = np.cumsum([end - begin for begin, end in pieces])
    starts = np.concatenate([[0], ends[:-1]])
    name = f"{source.name}, {split}: {len(pieces)} sequences"
    length = int(ends[-1])

    def read(start: int, stop: int) -> np.ndarray:
        check_range(name, length, start, stop)
        parts = [source.read(0, 0)]
        while start < stop:
            i = int(np.searchsorted(ends, start, side="right"))
            end = min(stop, int(ends[i]))
            shift = int(begins[i] - starts[i])
            parts.append(source.read(start + shift, end + shift))
            start = end
        return parts[1] if len(parts) == 2 else np.concatenate(parts)

    return FrameSource(
        name=name,
        height=source.height,
        width=source.width,
        channels=source.channels,
        length=length,
        boundaries=tuple(starts.tolist()),
        read=read,
        fingerprint=fingerprint(source=source.fingerprint, pieces=list(pieces)),
        done=source.done,
    )


def _in_memory(source: FrameSource) -> FrameSource:
    """The same source, whose sequences are read once; a large one stays as it is."""
    shape = (source.length, source.height, source.width, source.channels)
    if np.prod(shape, dtype=np.int64) > _KEPT:
        return source
    frames = np.empty(shape, np.uint8)
    ends = np.array([*source.boundaries[1:], source.length])
    known = np.zeros(len(ends), bool)

    def read(start: int, stop: int) -> np.ndarray:
        check_range(source.name, source.length, start, stop)
        first = int(np.searchsorted(ends, start, side="right"))
        last = int(np.searchsorted(ends, stop, side="left"))
        for i in range(first, min(last, len(ends) - 1) + 1):
            if not known[i]:
                begin, end = source.boundaries[i], int(ends[i])
                frames[begin:end] = source.read(begin, end)
                known[i] = True
        return frames[start:stop]

    return dataclasses.replace(source, read=read, new_read=None)
