"""Splits: no sequence, photograph or picture in two of them, the same at each call."""

import numpy as np
import pytest

from prednet_jax.data import DataError, open_source, open_split, walk
from prednet_jax.data.digits import Stills
from prednet_jax.data.splits import FIRST_SEED, HELD_OUT_PHOTOGRAPHS

SIZE = {"height": 8, "width": 8, "channels": 3}
GREY = {"height": 28, "width": 28, "channels": 1}


def test_walks_of_other_seeds_and_unseen_ones_of_other_photographs():
    names = set(walk.PHOTOGRAPHS) - set(HELD_OUT_PHOTOGRAPHS)
    assert len(names) == 6
    found = {s: open_split("walk", s, sequences=4, **SIZE) for s in FIRST_SEED}
    assert len({source.fingerprint for source in found.values()}) == 4
    for split, source in found.items():
        assert source.boundaries == (0, 300, 600, 900)
        assert ("coffee" in source.name) == (split == "unseen")
        assert ("astronaut" in source.name) == (split != "unseen")
        assert f"seeds {FIRST_SEED[split]} to {FIRST_SEED[split] + 3}" in source.name
    begins = sorted(FIRST_SEED.values())
    assert min(np.diff(begins)) > 10**6


def test_walks_are_rendered_as_they_are_named_and_kept():
    source = open_split("walk", "unseen", sequences=3, **SIZE)
    first = FIRST_SEED["unseen"]
    parts = [
        walk.render((8, 8, 3), HELD_OUT_PHOTOGRAPHS, first + i, 0, 300)
        for i in range(3)
    ]
    whole = np.concatenate(parts)
    for start, stop in ((290, 310), (0, 1), (899, 900), (5, 5), (0, 900)):
        np.testing.assert_array_equal(source.read(start, stop), whole[start:stop])
    usual = open_source("walk", **SIZE, seed=first).read(0, 20)
    assert not np.array_equal(usual, whole[:20])


def test_only_training_walks_are_varied():
    for split in FIRST_SEED:
        plain, varied = (
            open_split(data, split, sequences=1, **SIZE)
            for data in ("walk", "varied_walk")
        )
        assert (plain.fingerprint == varied.fingerprint) == (split != "train")


def test_digits_of_unseen_pictures(monkeypatch):
    """Picture i is all of level i: which were shown is seen in a frame."""
    shown = Stills("set", 20, lambda i: np.full((28, 28), i, np.uint8), "print")
    monkeypatch.setattr("prednet_jax.data.splits.digits.digits", lambda: shown)
    open_split.cache_clear()
    found = {
        split: set(
            open_split("moving_digits", split, sequences=20, **GREY).read(0, 400).flat
        )
        for split in ("train", "validation", "unseen")
    }
    open_split.cache_clear()
    held_out = {4, 9, 14, 19}
    assert found["unseen"] <= held_out
    assert not (found["train"] | found["validation"]) & held_out


@pytest.fixture
def file(tmp_path):
    """Writes an .npz of so many sequences of ten frames; frame i holds i."""

    def write(sequences):
        total = 10 * sequences
        frames = np.arange(total, dtype=np.uint8)[:, None, None, None]
        frames = np.broadcast_to(frames, (total, 8, 8, 3))
        path = tmp_path / f"{sequences}.npz"
        np.savez(path, frames=frames, boundaries=np.arange(0, total, 10))
        return str(path)

    return write


def numbers(path, split, **more):
    source = open_split(path, split, **SIZE, **more)
    return source.read(0, source.length)[:, 0, 0, 0].tolist(), source.boundaries


def test_of_ten_sequences_eight_one_and_one(file):
    path = file(12)
    train, boundaries = numbers(path, "train")
    assert train == [*range(80), *range(100, 120)]
    assert boundaries == tuple(range(0, 100, 10))
    assert numbers(path, "validation")[0] == list(range(80, 90))
    assert numbers(path, "test")[0] == list(range(90, 100))
    assert numbers(path, "train", sequences=2)[0] == list(range(20))


def test_few_sequences_are_cut_in_time(file):
    path = file(2)
    assert numbers(path, "train") == ([*range(8), *range(10, 18)], (0, 8))
    assert numbers(path, "validation") == ([8, 18], (0, 1))
    assert numbers(path, "test") == ([9, 19], (0, 1))


def test_what_cannot_be_split_is_named(file):
    for data, split, more, message in (
        (file(2), "unseen", {}, "expected split train, validation or test"),
        (file(2), "train", {"sequences": 3}, "sequences=3: data=.*has 2"),
    ):
        with pytest.raises(ValueError, match=message):
            open_split(data, split, **SIZE, **more)
    assert issubclass(DataError, ValueError)
