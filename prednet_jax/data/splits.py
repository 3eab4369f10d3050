"""Sequences to train on, to choose settings by, and to publish scores of.

No sequence is in two splits. `open_split` cuts every source the same way each time, as
the table of docs/training.md has it.
"""

import dataclasses
import functools
from typing import Any

import numpy as np

from prednet_jax.data import digits, walk
from prednet_jax.data.frames import FrameSource, fingerprint, joined_spans, refuse_crop
from prednet_jax.errors import UserError, one_of, whole

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

    The data and how frames are made are as in `open_source`; so many `sequences` are
    opened, None: `WALKS`, `MOVING`, or all there are. A UserError: the data has no
    sequences, no such split, or too few sequences.
    """
    from prednet_jax.data import NAMES

    one_of("split", split, SPLITS)
    if sequences is not None:
        whole("sequences", sequences, 1)
    size = {"height": height, "width": width, "channels": channels}
    if data in NAMES:
        refuse_crop(data, crop, offset)
    if data in ("walk", "varied_walk"):
        varied = data == "varied_walk" and split == "train"
        return _in_memory(_walks(split, sequences or WALKS, size, varied=varied))
    if data in NAMES and data.startswith("moving"):
        return _in_memory(_moving(data, split, sequences or MOVING, size))
    if data in NAMES:
        raise UserError(
            f"data={data}: single pictures; expected frames that follow one another, "
            "such as walk or moving_digits"
        )
    if split == "unseen":
        raise UserError(f"data={data}: expected split train, validation or test")
    options = {"crop": crop, "offset": offset, "allow_outside": allow_outside}
    return _in_memory(_of_files(data, split, sequences, size | options))


def _walks(split: str, count: int, size: dict, *, varied: bool) -> FrameSource:
    held_out = HELD_OUT_PHOTOGRAPHS
    others = tuple(name for name in walk.PHOTOGRAPHS if name not in held_out)
    return walk.open_walks(
        **size,
        seeds=range(FIRST_SEED[split], FIRST_SEED[split] + count),
        frames=WALK_FRAMES,
        photographs=held_out if split == "unseen" else others,
        varied=varied,
    )


def _moving(data: str, split: str, count: int, size: dict[str, int]) -> FrameSource:
    stills = digits.mnist() if data.endswith("mnist") else digits.digits()
    last = HELD_OUT_PICTURES - 1
    unseen = split == "unseen"
    chosen = [
        i for i in range(stills.total) if (i % HELD_OUT_PICTURES == last) == unseen
    ]
    which = "every fifth picture" if unseen else "four of five pictures"
    part = digits.Stills(
        f"{stills.name}, {split}: {count} sequences of {which}",
        len(chosen),
        lambda index: stills.picture(chosen[index]),
        fingerprint(pictures=stills.fingerprint, unseen=unseen),
    )
    length = count * digits.SEQUENCE
    return digits.open_moving(part, **size, seed=FIRST_SEED[split], length=length)


def _of_files(
    data: str, split: str, count: int | None, options: dict[str, Any]
) -> FrameSource:
    from prednet_jax.data import open_source

    source = open_source(data, **options)
    ends = (*source.boundaries[1:], source.length)
    pieces = list(zip(source.boundaries, ends, strict=True))
    low, high = {"validation": (8, 9), "test": (9, 10)}.get(split, (0, 8))
    if len(pieces) >= 10:
        pieces = [piece for i, piece in enumerate(pieces) if low <= i % 10 < high]
    else:
        cuts = [(b + (e - b) * low // 10, b + (e - b) * high // 10) for b, e in pieces]
        pieces = [(begin, end) for begin, end in cuts if begin < end]
    if not pieces:
        raise UserError(
            f"data={data}: {source.length} frames are too few for a {split} split"
        )
    if count is not None and count > len(pieces):
        raise UserError(
            f"sequences={count}: data={data} has {len(pieces)} in this split at most"
        )
    pieces = pieces[:count]
    begins = np.cumsum([0, *(end - begin for begin, end in pieces)]).tolist()
    return dataclasses.replace(
        source,
        name=f"{source.name}, {split}: {len(pieces)} sequences",
        length=begins.pop(),
        boundaries=tuple(begins),
        frames=joined_spans([(source.read, *piece) for piece in pieces]),
        fingerprint=fingerprint(source=source.fingerprint, pieces=pieces),
    )


def _in_memory(source: FrameSource) -> FrameSource:
    """The same source, whose sequences are read once; a large one stays as it is."""
    shape = (source.length, source.height, source.width, source.channels)
    if np.prod(shape, dtype=np.int64) > _KEPT:
        return source
    sequence = functools.cache(source.read)

    def part(begin: int, end: int, start: int, stop: int) -> np.ndarray:
        return sequence(begin, end)[start:stop]

    ends = (*source.boundaries[1:], source.length)
    pieces = zip(source.boundaries, ends, strict=True)
    spans = [(functools.partial(part, b, e), 0, e - b) for b, e in pieces]
    return dataclasses.replace(source, frames=joined_spans(spans))
