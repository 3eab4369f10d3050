"""The walk: a closed form of (seed, index), through photographs, like real video."""

import importlib.util
import itertools

import numpy as np
import pytest
from sklearn.datasets import load_digits

from prednet_jax.data import open_source, open_split, walk
from prednet_jax.data.digits import Stills, digits, open_moving
from prednet_jax.data.splits import FIRST_SEED, HELD_OUT_PHOTOGRAPHS
from prednet_jax.errors import UserError

VIEW = {"height": 48, "width": 64}


@pytest.fixture(scope="module")
def frames():
    return open_source("walk", **VIEW, seed=0).read(0, 700)


def test_random_access_equals_streaming(frames):
    source = open_source("walk", **VIEW, seed=0)
    cut = walk.scene(0, 1).start
    for start, stop in ((650, 660), (cut - 2, cut + 3), (0, 1), (5, 5)):
        np.testing.assert_array_equal(source.read(start, stop), frames[start:stop])
    # Far frames need no others.
    far = source.read(999_999_998, 1_000_000_000)
    np.testing.assert_array_equal(source.read(999_999_999, 1_000_000_000), far[1:])


def test_another_seed_is_another_walk(frames):
    source = open_source("walk", **VIEW, seed=1)
    zero = open_source("walk", **VIEW, seed=0)
    other = open_source("walk", height=48, width=60)
    assert len({one.fingerprint for one in (source, zero, other)}) == 3
    assert not np.array_equal(source.read(0, 4), frames[:4])


def test_golden_statistics(frames):
    # Statistics and not bytes: another Pillow may smooth by other integers, which
    # moves a pixel by a level (0.004) and these figures by far less.
    x = frames[[0, 100, 300, 500, 699]] / 255
    means = [0.42274, 0.36451, 0.31148, 0.4569, 0.47098]
    deviations = [0.2329, 0.21766, 0.30435, 0.09464, 0.09178]
    np.testing.assert_allclose(x.mean((1, 2, 3)), means, atol=2e-3)
    np.testing.assert_allclose(x.std((1, 2, 3)), deviations, atol=2e-3)


def test_every_photograph_once_a_lap_and_never_twice_running():
    count = len(walk.PHOTOGRAPHS)
    for seed in range(20):
        order = [walk.scene(seed, k).photograph for k in range(4 * count)]
        for lap in range(4):
            assert sorted(order[lap * count : (lap + 1) * count]) == list(range(count))
        assert all(a != b for a, b in zip(order[1:], order[:-1], strict=True))


@pytest.mark.parametrize(("height", "width"), [(120, 160), (64, 16), (8, 80)])
def test_the_turned_view_stays_inside_the_photograph(height, width):
    t = np.arange(400)
    for k in range(9):
        scene = walk.scene(0, k)
        name = walk.PHOTOGRAPHS[scene.photograph]
        rows, cols = walk.photograph(name, 3).shape[:2]
        x, y, view, roll = walk.pose(scene, t, (rows, cols), width / height)
        for u in (-0.5 * width / height, 0.5 * width / height):
            for v in (-0.5, 0.5):
                corner_x = x + view * (np.cos(roll) * u - np.sin(roll) * v)
                corner_y = y + view * (np.sin(roll) * u + np.cos(roll) * v)
                # A thousandth of a pixel: rounding only. Views as wide as the
                # photograph have no room to sway in, and the sampler stops at the edge.
                slack = 1e-3 if max(height, width) < 4 * min(height, width) else 40
                assert corner_x.min() > -slack
                assert corner_x.max() < cols + slack
                assert corner_y.min() > -slack
                assert corner_y.max() < rows + slack


def test_missing_photographs_are_named(monkeypatch, tmp_path):
    walk.photograph_bytes.cache_clear()
    spec = type("Spec", (), {"submodule_search_locations": [str(tmp_path)]})
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: spec)
    with pytest.raises(UserError, match=r"astronaut\.png.*scikit-image"):
        open_source("walk", **VIEW)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(UserError, match=r"needs scikit-image.*\.\[data\]"):
        open_source("walk", **VIEW)


def test_varied_scenes_are_of_other_pictures_and_the_same_each_time():
    source = open_source("varied_walk", **VIEW, seed=0)
    cut = walk.scene(0, 1).start
    frames = source.read(0, cut + 2)
    np.testing.assert_array_equal(source.read(cut - 1, cut + 2), frames[cut - 1 :])
    plain = open_source("walk", **VIEW, seed=0)
    assert plain.fingerprint != source.fingerprint
    # The cuts and the camera are those of the walk; what it looks at is not.
    assert not np.array_equal(plain.read(0, 1), frames[:1])
    steps = np.abs(np.diff(frames.astype(float), axis=0)).mean((1, 2, 3))
    assert steps[cut - 1] > 3 * np.median(steps)
    grey = open_source("varied_walk", **VIEW, channels=1, seed=0).read(0, 1)
    np.testing.assert_allclose(grey[0, ..., 0].mean(), frames[0].mean(), atol=40)


def test_dead_leaves_hide_one_another_and_differ():
    made = [walk.variation("camera.png", 1, n).shape for n in range(4)]
    assert set(made) == {(512, 512, 1), (384, 384, 1)}
    pictures = [walk.dead_leaves(walk.generator(n)) for n in range(2)]
    assert {picture.shape for picture in pictures} == {(384, 384, 3)}
    assert len({picture.tobytes() for picture in pictures}) == 2
    for picture in pictures:
        # Neighbours are mostly of one leaf, and pixels far apart are not.
        x = picture.astype(float).mean(-1)
        near = np.abs(x[:, 1:] - x[:, :-1]).mean()
        assert near < 0.5 * np.abs(x[:, 192:] - x[:, :192]).mean()


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
    walks = ((8, 8, 3), HELD_OUT_PHOTOGRAPHS)
    whole = np.concatenate([walk.render(*walks, first + i, 0, 300) for i in range(3)])
    for start, stop in ((290, 310), (0, 1), (899, 900), (5, 5), (0, 900)):
        np.testing.assert_array_equal(source.read(start, stop), whole[start:stop])
    usual = open_source("walk", **SIZE, seed=first).read(0, 20)
    assert not np.array_equal(usual, whole[:20])


def test_only_training_walks_are_varied():
    for split in FIRST_SEED:
        names = ("walk", "varied_walk")
        prints = {open_split(n, split, sequences=1, **SIZE).fingerprint for n in names}
        assert (len(prints) == 1) == (split != "train")


def test_digits_of_unseen_pictures(monkeypatch):
    """Picture i is all of level i: which were shown is seen in a frame."""
    shown = Stills("set", 20, lambda i: np.full((28, 28), i, np.uint8), "print")
    monkeypatch.setattr("prednet_jax.data.splits.digits.digits", lambda: shown)
    open_split.cache_clear()
    found = {}
    for split in ("train", "validation", "unseen"):
        source = open_split("moving_digits", split, sequences=20, **GREY)
        found[split] = set(source.read(0, 400).flat)
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
    with pytest.raises(ValueError, match="expected split train, validation or test"):
        open_split(file(2), "unseen", **SIZE)
    with pytest.raises(ValueError, match=r"sequences=3: data=.*has 2"):
        open_split(file(2), "train", sequences=3, **SIZE)


def test_digits_are_scikit_learn_s():
    source = open_source("digits")
    assert (source.height, source.width, source.channels) == (28, 28, 1)
    stills = digits()
    assert stills.total == 1797
    for index, original in enumerate(load_digits().images):
        picture = stills.picture(index).astype(float)
        # Averaged over 4x4 blocks (7 and 2 pixels a side): resizing blurs across edges.
        blocks = picture.reshape(4, 7, 4, 7).mean((1, 3)).ravel()
        small = original.reshape(4, 2, 4, 2).mean((1, 3)).ravel()
        assert np.corrcoef(blocks, small)[0, 1] > 0.98
        assert picture.max() > 200
        assert picture.min() == 0


def test_each_picture_once_a_lap_in_a_new_order():
    total = digits().total
    source = open_source("digits", seed=4)
    laps = source.read(0, 2 * total).reshape(2, total, -1)
    sums = np.sort(laps.astype(int).sum(-1), axis=1)
    np.testing.assert_array_equal(sums[0], sums[1])
    assert not np.array_equal(laps[0], laps[1])
    cut = laps.reshape(2 * total, 28, 28, 1)[total - 2 : total + 2]
    np.testing.assert_array_equal(source.read(total - 2, total + 2), cut)
    other = open_source("digits", seed=5)
    assert not np.array_equal(other.read(0, 9), source.read(0, 9))
    assert other.fingerprint != source.fingerprint
    # At another size and in colour.
    frame = open_source("digits", height=16, width=24, channels=3).read(7, 8)
    assert frame.shape == (1, 16, 24, 3)
    assert (frame == frame[..., :1]).all()


def test_moving_digits():
    source = open_source("moving_digits", seed=2)
    assert (source.height, source.width, source.channels) == (64, 64, 1)
    assert source.boundaries[:3] == (0, 20, 40)
    assert source.length == 200_000
    frames = source.read(0, 60)
    for start, stop in ((7, 9), (19, 21), (39, 60), (20, 20)):
        np.testing.assert_array_equal(source.read(start, stop), frames[start:stop])
    # Something moves in every frame but at a cut, and the digits stay whole: what is
    # lit changes by overlaps only.
    lit = (frames > 0).sum((1, 2, 3))
    assert lit.min() > 100
    same = (frames[1:] == frames[:-1]).all((1, 2, 3))
    assert not same.any()
    other = open_source("moving_digits", seed=3).read(0, 1)
    assert not np.array_equal(other, frames[:1])


def test_a_moving_digit_takes_the_published_steps():
    dot = Stills("dot", 1, lambda index: np.full((1, 1), 255, np.uint8), "print")
    source = open_moving(dot, height=101, width=101, channels=1, seed=0, length=20)
    frames = source.read(0, 20)[..., 0]
    # Two dots a frame, which may meet; each moves a tenth of the way, so 10 pixels.
    at = [np.argwhere(frame) for frame in frames]
    for before, after in itertools.pairwise(at):
        gaps = np.abs(after[:, None] - before[None])
        # Off the walls a step has length 10; a reflection can only shorten it.
        nearest = np.hypot(*np.moveaxis(gaps, -1, 0)).min(1)
        assert (nearest < 11.5).all()


# TensorFlow datasets' own mock needs no TensorFlow: random pictures, MNIST's features,
# through the real tfds.data_source and its ArrayRecord source class.
def test_mnist_through_data_source(monkeypatch):
    import tensorflow_datasets as tfds

    monkeypatch.delenv("TFDS_DATA_DIR", raising=False)
    with tfds.testing.mock_data(num_examples=40):
        mocked = tfds.data_source("mnist", split="train", download=False)
        moving = open_source("moving_mnist", seed=1)
        assert moving.fingerprint != open_source("moving_digits", seed=1).fingerprint
        assert moving.read(0, 3).shape == (3, 64, 64, 1)
        source = open_source("mnist", seed=1)
        assert (source.height, source.width, source.channels) == (28, 28, 1)
        assert source.name == "mnist"
        frames = source.read(0, 80).reshape(2, 40, 28, 28)
        expected = {np.asarray(example["image"]).tobytes() for example in mocked}
        assert len(expected) == 40
        for lap in frames:
            assert {frame.tobytes() for frame in lap} == expected
        again = open_source("mnist", seed=1)
        np.testing.assert_array_equal(again.read(0, 40)[..., 0], frames[0])
        assert not np.array_equal(frames[0], frames[1])
        assert again.fingerprint == source.fingerprint


def test_mnist_that_is_not_prepared(monkeypatch, tmp_path):
    monkeypatch.setenv("TFDS_DATA_DIR", str(tmp_path))
    with pytest.raises(UserError) as caught:
        open_source("moving_mnist")
    message = str(caught.value)
    assert "\n" not in message
    for part in (str(tmp_path), "TFDS_DATA_DIR", "prepare_data.py", "digits"):
        assert part in message
    assert not list(tmp_path.iterdir())
