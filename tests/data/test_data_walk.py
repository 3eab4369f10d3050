"""The walk: a closed form of (seed, index), through photographs, like real video."""

import importlib.util

import numpy as np
import pytest

from prednet_jax.data import DataError, open_source, scenery, walk

SIZE = {"height": 48, "width": 64}


@pytest.fixture(scope="module")
def frames():
    return open_source("walk", **SIZE, seed=0).read(0, 700)


def test_random_access_equals_streaming(frames):
    source = open_source("walk", **SIZE, seed=0)
    cut = walk.scene(0, 1).start
    for start, stop in ((650, 660), (cut - 2, cut + 3), (0, 1), (5, 5)):
        np.testing.assert_array_equal(source.read(start, stop), frames[start:stop])
    # Far frames need no others.
    far = source.read(999_999_998, 1_000_000_000)
    np.testing.assert_array_equal(source.read(999_999_999, 1_000_000_000), far[1:])


def test_another_seed_is_another_walk_and_another_length_is_not(frames):
    source = open_source("walk", **SIZE, seed=1)
    zero = open_source("walk", **SIZE, seed=0)
    assert zero.fingerprint == open_source("walk", **SIZE, length=9).fingerprint
    other = open_source("walk", height=48, width=60)
    assert len({one.fingerprint for one in (source, zero, other)}) == 3
    assert not np.array_equal(source.read(0, 4), frames[:4])


def test_golden_statistics(frames):
    # Statistics and not bytes: another Pillow may smooth by other integers, which
    # moves a pixel by a level (0.004) and these figures by far less.
    x = frames[[0, 100, 300, 500, 699]] / 255
    np.testing.assert_allclose(
        x.mean((1, 2, 3)), [0.42274, 0.36451, 0.31148, 0.4569, 0.47098], atol=2e-3
    )
    np.testing.assert_allclose(
        x.std((1, 2, 3)), [0.2329, 0.21766, 0.30435, 0.09464, 0.09178], atol=2e-3
    )


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
    with pytest.raises(DataError, match=r"astronaut\.png.*scikit-image"):
        open_source("walk", **SIZE)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(DataError, match=r"needs scikit-image.*\.\[data\]"):
        open_source("walk", **SIZE)


def test_varied_scenes_are_of_other_pictures_and_the_same_each_time():
    source = open_source("varied_walk", **SIZE, seed=0)
    cut = walk.scene(0, 1).start
    frames = source.read(0, cut + 2)
    np.testing.assert_array_equal(source.read(cut - 1, cut + 2), frames[cut - 1 :])
    plain = open_source("walk", **SIZE, seed=0)
    assert plain.fingerprint != source.fingerprint
    # The cuts and the camera are those of the walk; what it looks at is not.
    assert not np.array_equal(plain.read(0, 1), frames[:1])
    steps = np.abs(np.diff(frames.astype(float), axis=0)).mean((1, 2, 3))
    assert steps[cut - 1] > 3 * np.median(steps)
    grey = open_source("varied_walk", **SIZE, channels=1, seed=0).read(0, 1)
    np.testing.assert_allclose(grey[0, ..., 0].mean(), frames[0].mean(), atol=40)


def test_dead_leaves_hide_one_another_and_differ():
    made = [scenery.variation("camera.png", 1, n).shape for n in range(4)]
    assert set(made) == {(512, 512, 1), (384, 384, 1)}
    pictures = [scenery.dead_leaves(scenery.generator(n)) for n in range(2)]
    assert {picture.shape for picture in pictures} == {(384, 384, 3)}
    assert len({picture.tobytes() for picture in pictures}) == 2
    for picture in pictures:
        # Neighbours are mostly of one leaf, and pixels far apart are not.
        x = picture.astype(float).mean(-1)
        near = np.abs(x[:, 1:] - x[:, :-1]).mean()
        assert near < 0.5 * np.abs(x[:, 192:] - x[:, :192]).mean()
