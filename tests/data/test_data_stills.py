import itertools

import numpy as np
import pytest
from sklearn.datasets import load_digits

from prednet_jax.data import DataError, open_source
from prednet_jax.data.digits import Stills, digits, open_moving


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
    np.testing.assert_array_equal(
        source.read(total - 2, total + 2).reshape(4, -1),
        laps.reshape(2 * total, -1)[total - 2 : total + 2],
    )
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
    assert (
        open_source("moving_digits", seed=3).read(0, 1).tolist() != frames[:1].tolist()
    )


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
@pytest.fixture
def mocked(monkeypatch):
    import tensorflow_datasets as tfds

    monkeypatch.delenv("TFDS_DATA_DIR", raising=False)
    with tfds.testing.mock_data(num_examples=40):
        yield tfds.data_source("mnist", split="train", download=False)


def test_mnist_through_data_source(mocked):
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
    np.testing.assert_array_equal(
        open_source("mnist", seed=1).read(0, 40)[..., 0], lap_0 := frames[0]
    )
    assert not np.array_equal(lap_0, frames[1])
    assert open_source("mnist", seed=1).fingerprint == source.fingerprint


def test_mnist_that_is_not_prepared(monkeypatch, tmp_path):
    monkeypatch.setenv("TFDS_DATA_DIR", str(tmp_path))
    with pytest.raises(DataError) as caught:
        open_source("moving_mnist")
    message = str(caught.value)
    assert "\n" not in message
    for part in (str(tmp_path), "TFDS_DATA_DIR", "prepare_data.py", "digits"):
        assert part in message
    assert not list(tmp_path.iterdir())
