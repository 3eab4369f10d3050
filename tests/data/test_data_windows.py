"""The schedule compared with a transcription of the published loop; reading windows."""

import threading

import numpy as np
import pytest

from prednet_jax.data import (
    FrameSource,
    never_seen,
    order_fingerprint,
    random_windows,
    schedule,
)
from prednet_jax.data.windows import prefetch, read_chunks
from prednet_jax.errors import UserError


def chunks(*asked):
    return prefetch(read_chunks(*asked))


def published(lengths, window, updates):
    """(reset?, [(input, target), ...]) an update, line by line after main.py."""
    done = []
    sequence = 0
    while len(done) < updates:
        offset = sum(lengths[:sequence])
        reset = True
        pairs = []
        for i in range(1, lengths[sequence]):
            pairs.append((offset + i - 1, offset + i))
            if (i + 1) % window == 0:
                done.append((reset, pairs))
                reset, pairs = False, []
        sequence = (sequence + 1) % len(lengths)
    return done[:updates]


def numbered(length, boundaries=(0,), fail_at=None):
    """A source whose frame i holds the number i + 1, and its reads."""
    reads = []

    def read(start, stop):
        assert 0 <= start <= stop <= length
        reads.append((start, stop))
        if fail_at is not None and start <= fail_at < stop:
            raise UserError(f"frame {fail_at} is broken")
        numbers = np.arange(start + 1, stop + 1, dtype=np.uint8)
        return np.broadcast_to(numbers[:, None, None, None], (stop - start, 2, 3, 1))

    return FrameSource("numbered", 2, 3, 1, length, boundaries, read, "print"), reads


def test_frames_unlike_their_source_are_named():
    """A function of the user's returned them, and a grey picture was broadcast."""
    video = np.zeros((6, 8, 8, 3), np.uint8)
    for frames in (video[1:], video[..., :1], video / 255, list(video), None):
        source = FrameSource(
            "mine", 8, 8, 3, 6, (0,), lambda start, stop, x=frames: x, "print"
        )
        with pytest.raises(UserError, match=r"mine are .*: expected uint8 of shape"):
            source.read(0, 6)


@pytest.mark.parametrize("window", [2, 5, 20])
@pytest.mark.parametrize("lengths", [(60,), (23, 20, 41), (3, 30, 1, 2, 25)])
def test_schedule_is_the_published_loop(lengths, window):
    boundaries = tuple(np.cumsum((0, *lengths[:-1])).tolist())
    updates = 70
    expected = published(lengths, window, updates)
    source, _ = numbered(sum(lengths), boundaries)
    plan = schedule(source.length, boundaries, window, updates)
    seen = 0
    for frames, first in chunks(source, plan, 7):
        index = frames[:, :, 0, 0, 0, 0].astype(int) - 1
        for row, opens in zip(index, first, strict=True):
            reset, pairs = expected[seen]
            assert opens == reset
            steps = list(zip(row[:-1].tolist(), row[1:].tolist(), strict=True))
            if opens:
                # The dummy in front: a copy of the first frame, scored against it.
                assert steps[0] == (pairs[0][0], pairs[0][0])
                steps = steps[1:]
            assert steps == pairs
            seen += 1
    assert seen == updates


def test_neighbouring_windows_read_every_frame_once():
    source, reads = numbered(41)
    list(chunks(source, schedule(41, (0,), 5, 8), 3))
    assert reads == [(0, 5), *((i, i + 5) for i in range(5, 40, 5))]


def test_single_images_cycle():
    source, _ = numbered(5)
    parts = list(chunks(source, schedule(5, (0,), 0, 12), 5))
    assert [len(frames) for frames, _ in parts] == [5, 5, 2]
    images = np.concatenate([frames for frames, _ in parts])
    assert images.shape == (12, 1, 1, 2, 3, 1)
    assert images[:, 0, 0, 0, 0, 0].tolist() == [1, 2, 3, 4, 5] * 2 + [1, 2]
    assert all(opens.all() for _, opens in parts)


def test_a_batch_deals_sequences_out_or_cuts_them():
    for lengths, streams, expected in (
        ([7, 4], 3, [[0, 1, 7], [2, 3, 8], [4, 5, 9]]),
        ([3, 2, 4, 4, 5], 2, [[0, 1, 5, 6, 7, 8], [3, 4, 9, 10, 11, 12]]),
    ):
        boundaries = np.cumsum([0, *lengths[:-1]])
        updates = len(expected[0])
        plan = schedule(sum(lengths), boundaries, 0, updates, batch=streams)
        assert plan.start.T.tolist() == expected


def test_the_streams_of_a_batch_read_what_each_reads_alone():
    """And a run that goes on reads what remains."""
    source, _ = numbered(50, (0, 23))
    plan = schedule(50, (0, 23), 5, 12, batch=2)
    rest = np.concatenate([frames for frames, _ in chunks(source, plan.after(7), 4)])
    together, first = zip(*chunks(source, plan, 5), strict=True)
    for b in range(2):
        alone, opens = zip(
            *chunks(source, plan._replace(start=plan.start[:, [b]]), 5), strict=True
        )
        np.testing.assert_array_equal(
            np.concatenate(together)[:, :, b], np.concatenate(alone)[:, :, 0]
        )
        np.testing.assert_array_equal(np.concatenate(first), np.concatenate(opens))
    np.testing.assert_array_equal(rest, np.concatenate(together)[7:])


def test_random_windows_lie_inside_sequences_and_depend_on_seed_and_update():
    boundaries, ends = (0, 3, 20, 29), (3, 20, 29, 60)
    source, _ = numbered(60, boundaries)
    plan = random_windows(source, 5, 400, batch=3, seed=1)
    assert plan.first.all()
    begin = plan.start + 1  # Frame 0 is a stand-in.
    sequence = np.searchsorted(boundaries, begin, side="right") - 1
    assert (begin + 5 <= np.array(ends)[sequence]).all()
    # Every window of every sequence that is long enough.
    assert len(np.unique(begin)) == 13 + 5 + 27
    longer = random_windows(source, 5, 500, batch=3, seed=1)
    np.testing.assert_array_equal(longer.start[:400], plan.start)
    other = random_windows(source, 5, 400, batch=3, seed=2)
    assert (other.start != plan.start).any()
    with pytest.raises(UserError, match="longest sequence has 31 frames"):
        random_windows(source, 32, 4, batch=3, seed=1)


def test_order_fingerprint_sees_content_and_order():
    source, _ = numbered(50, (0, 23))
    plan = schedule(50, (0, 23), 5, 20)
    same = order_fingerprint(source, schedule(50, (0, 23), 5, 20))
    assert order_fingerprint(source, plan) == same
    assert len(same) == 64
    for other in (((0, 23), 5, 19), ((0,), 5, 20), ((0, 23), 4, 20)):
        assert order_fingerprint(source, schedule(50, *other)) != same


def test_exceptions_arrive_in_their_place():
    source, _ = numbered(60, fail_at=33)
    stream = chunks(source, schedule(60, (0,), 5, 12), 2)
    threads = threading.active_count()
    for _ in range(3):  # Windows 0 to 5 end with frame 29; 6 and 7 hold frame 33.
        next(stream)
    with pytest.raises(UserError, match="frame 33 is broken"):
        next(stream)
    assert threading.active_count() == threads
    # And the thread ends when the consumer leaves.
    source, _ = numbered(250)
    stream = chunks(source, schedule(250, (0,), 5, 50), 1)
    next(stream)
    assert threading.active_count() == threads + 1
    stream.close()
    assert threading.active_count() == threads


@pytest.mark.parametrize(
    ("lengths", "window", "batch", "expected"),
    [
        ((50,), 20, 1, 10),
        ((50, 19, 40), 20, 1, 29),
        ((40, 60), 20, 1, 0),
        ((40, 60), 20, 2, 20),
        ((40, 60, 20), 20, 2, 40),
        ((50,), 20, 2, 10),
        ((7,), 0, 1, 0),
    ],
)
def test_frames_that_no_update_sees_are_counted(lengths, window, batch, expected):
    """They were dropped in silence. Checked against what a long schedule reads."""
    begins = np.cumsum([0, *lengths])
    source = FrameSource(
        *("x", 1, 1, 1, int(begins[-1]), tuple(begins[:-1].tolist())),
        frames=lambda start, stop: np.zeros((stop - start, 1, 1, 1), np.uint8),
        fingerprint="",
    )
    assert never_seen(source, window, batch=batch, drawn=False) == expected
    if window:
        plan = schedule(source.length, source.boundaries, window, 50, batch=batch)
        places = plan.start[..., None] + 1 + np.arange(window)
        assert source.length - len(np.unique(places)) == expected
        short = sum(length for length in lengths if length < window)
        assert never_seen(source, window, batch=batch, drawn=True) == short
