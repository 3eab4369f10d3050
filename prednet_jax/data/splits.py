"""Splits: sequences to train on, to choose settings by, and to publish scores of.

No sequence is in two splits. `sources.open_split` cuts every source the same way each
time, as the table in docs/training.md shows.
"""

import dataclasses
import functools
from collections.abc import Callable, Sequence

import numpy as np

from prednet_jax.data import digits, walk
from prednet_jax.data.frames import FrameSource, fingerprint, joined, joined_spans
from prednet_jax.errors import UserError

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
#: Sequences of a split where no number is given; SEEDS of other named sources.
WALKS, MOVING, SEEDS = 256, 4096, 64
# Frames that are kept in memory once they were read, in bytes.
_KEPT = 2**30


def walks(
    split: str, count: int | None, size: dict, *, varied: bool = False
) -> FrameSource:
    """Opens walks, with other seeds in each split; only `train` has varied walks."""
    count = count or WALKS
    held_out = HELD_OUT_PHOTOGRAPHS
    trained = tuple(name for name in walk.PHOTOGRAPHS if name not in held_out)
    return walk.open_walks(
        **size,
        seeds=range(FIRST_SEED[split], FIRST_SEED[split] + count),
        frames=WALK_FRAMES,
        photographs=held_out if split == "unseen" else trained,
        varied=varied and split == "train",
    )


def moving(
    stills: digits.Stills, split: str, count: int | None, size: dict
) -> FrameSource:
    """Opens moving pictures of other seeds; every fifth picture is `unseen`."""
    count = count or MOVING
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


def by_seed(
    opened: Callable[..., FrameSource], split: str, count: int | None, size: dict
) -> FrameSource:
    """Opens the beginnings of other seeds; splits `in_time` if seeds change nothing."""
    first_seed = FIRST_SEED[split]
    one, other = (opened(**size, seed=first_seed + i) for i in (0, 1))
    if split == "unseen":
        raise UserError(
            f"split=unseen: {one.name} has no unseen pictures; expected split train, "
            "validation or test"
        )
    if one.fingerprint == other.fingerprint:
        return in_time(one, split, count)
    count = count or SEEDS
    sources = [opened(**size, seed=first_seed + i) for i in range(count)]
    begun = [
        _pieces(s, [(0, min(WALK_FRAMES, int(s.lengths[0])))], s.name) for s in sources
    ]
    return joined(f"{one.name}, {split}: {count} sequences", begun)


def in_time(source: FrameSource, split: str, count: int | None) -> FrameSource:
    """Divides by tenths of the sequences, or of each sequence if they are few."""
    pieces = source.sequences
    low, high = {"validation": (8, 9), "test": (9, 10)}.get(split, (0, 8))
    if len(pieces) >= 10:
        pieces = [piece for i, piece in enumerate(pieces) if low <= i % 10 < high]
    else:
        cuts = [(b + (e - b) * low // 10, b + (e - b) * high // 10) for b, e in pieces]
        pieces = [(begin, end) for begin, end in cuts if begin < end]
    if not pieces:
        raise UserError(
            f"data={source.name}: {source.length} frames are too few for a {split} "
            "split; expected more frames, or --split=all"
        )
    return first(source, pieces, split, count)


def first(
    source: FrameSource, pieces: list[tuple[int, int]], split: str, count: int | None
) -> FrameSource:
    """Returns the first pieces of a source, from one frame to another, as a split."""
    if count is not None and count > len(pieces):
        raise UserError(
            f"sequences={count}: data={source.name} has {len(pieces)} in this split; "
            f"expected at most {len(pieces)}"
        )
    pieces = pieces[:count]
    return _pieces(source, pieces, f"{source.name}, {split}: {len(pieces)} sequences")


def _pieces(
    source: FrameSource, pieces: Sequence[tuple[int, int]], name: str
) -> FrameSource:
    """Cuts a source into pieces, from one frame to another, as its sequences."""
    begins = np.cumsum([0, *(end - begin for begin, end in pieces)]).tolist()
    return dataclasses.replace(
        source,
        name=name,
        length=begins.pop(),
        boundaries=tuple(begins),
        frames=joined_spans([(source.read, *piece) for piece in pieces]),
        fingerprint=fingerprint(source=source.fingerprint, pieces=pieces),
    )


def in_memory(source: FrameSource) -> FrameSource:
    """Returns the same source, whose sequences are read once unless it is large."""
    shape = (source.length, source.height, source.width, source.channels)
    if np.prod(shape, dtype=np.int64) > _KEPT:
        return source
    sequence = functools.cache(source.read)

    def part(begin: int, end: int, start: int, stop: int) -> np.ndarray:
        return sequence(begin, end)[start:stop]

    spans = [(functools.partial(part, b, e), 0, e - b) for b, e in source.sequences]
    return dataclasses.replace(source, frames=joined_spans(spans))
