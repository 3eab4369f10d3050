import concurrent.futures
import os
from pathlib import Path

import av
import numpy as np
import pytest
from PIL import Image

from prednet_jax.data import open_source, video
from prednet_jax.data.frames import Fit
from prednet_jax.data.video import Video
from prednet_jax.errors import UserError

COUNT, HEIGHT, WIDTH = 50, 32, 48
SIZE = {"height": HEIGHT, "width": WIDTH}

# Container and codec: with B-frames and few key frames, with key frames only, without
# a frame count in the header, and two whose time stamps may be missing or doubled.
KINDS = {
    "h264.mp4": ("libx264", {"bf": "2", "g": "12"}),
    "mpeg4.avi": ("mpeg4", {"g": "12"}),
    "mjpeg.avi": ("mjpeg", {}),
    "h264.ts": ("libx264", {"bf": "2", "g": "12"}),
    "reordered.avi": ("libx264", {"bf": "2", "g": "12"}),
}


def picture(i):
    """The bits of a number as six black or white bars, which no codec blurs away."""
    bits = np.array([i >> place & 1 for place in range(6)], np.uint8)
    bars = np.repeat(40 + 180 * bits, WIDTH // 6)
    return np.broadcast_to(bars[None, :, None], (HEIGHT, WIDTH, 3)).copy()


def numbers(frames):
    """The numbers that the bars of `[T, H, W, C]` spell."""
    count = len(frames)
    bars = frames.reshape(count, HEIGHT, 6, WIDTH // 6, 3).mean((1, 3, 4)) > 130
    return (bars @ (1 << np.arange(6))).tolist()


def write_video(path, codec, options, count=COUNT, pix_fmt="yuv420p", draw=picture):
    with av.open(str(path), "w") as container:
        try:
            stream = container.add_stream(codec, rate=25)
        except av.FFmpegError:
            pytest.skip(f"this PyAV has no encoder {codec}")
        stream.width, stream.height = WIDTH, HEIGHT
        stream.pix_fmt = "yuvj420p" if codec == "mjpeg" else pix_fmt
        stream.options = options
        for i in range(count):
            frame = av.VideoFrame.from_ndarray(draw(i), format="rgb24")
            container.mux(stream.encode(frame))
        container.mux(stream.encode())
    return path


@pytest.fixture(scope="module")
def videos(tmp_path_factory):
    folder = tmp_path_factory.mktemp("videos")
    return {name: write_video(folder / name, *kind) for name, kind in KINDS.items()}


@pytest.mark.parametrize("name", KINDS)
def test_every_frame_in_order_and_in_any_order(videos, name):
    source = open_source(str(videos[name]), **SIZE)
    assert source.length == COUNT
    whole = source.read(0, COUNT)
    assert numbers(whole) == list(range(COUNT))
    for start, stop in ((40, 50), (5, 8), (8, 9), (30, 33), (13, 14), (0, 2), (49, 50)):
        np.testing.assert_array_equal(source.read(start, stop), whole[start:stop])


def test_without_time_stamps_decoding_starts_at_the_start(tmp_path):
    path = write_video(tmp_path / "raw.h264", "libx264", {"bf": "2", "g": "12"})
    video = Video(path, Fit(**SIZE))
    assert (video.length, video.stamps) == (COUNT, [])
    assert numbers(video.read(40, 42)) == [40, 41]
    assert numbers(video.read(3, 6)) == [3, 4, 5]


def test_of_a_folder_of_videos_few_are_open(tmp_path, monkeypatch):
    """Each had its file open, and a decoder's frames in memory."""
    monkeypatch.setattr(video, "_MOST_RUNNING", 2)
    paths = [tmp_path / f"{n}.avi" for n in range(4)]
    for path in paths:
        write_video(path, "mjpeg", {}, count=6)
    source = open_source(str(tmp_path), **SIZE)
    starts = (0, 6, 12, 18, 2, 8, 13)
    with concurrent.futures.ThreadPoolExecutor(3) as threads:
        list(threads.map(lambda start: source.read(start, start + 2), starts * 3))
    for start in starts:
        assert numbers(source.read(start, start + 2)) == [start % 6, start % 6 + 1]
        links = [os.path.realpath(link) for link in Path("/proc/self/fd").iterdir()]
        assert len(set(map(str, paths)) & set(links)) <= 2


def test_no_video_is_refused(tmp_path):
    (tmp_path / "a.mp4").write_text("this is no video")
    with pytest.raises(UserError, match=r"a\.mp4: not a readable video"):
        open_source(str(tmp_path / "a.mp4"), **SIZE)
    with av.open(str(tmp_path / "sound.mkv"), "w") as container:
        stream = container.add_stream("pcm_s16le", rate=8000, layout="mono")
        sound = np.zeros((1, 800), np.int16)
        frame = av.AudioFrame.from_ndarray(sound, format="s16", layout="mono")
        frame.sample_rate = 8000
        container.mux(stream.encode(frame))
        container.mux(stream.encode())
    with pytest.raises(UserError, match="no video stream"):
        open_source(str(tmp_path / "sound.mkv"), **SIZE)


def test_a_cut_off_video_ends_early(videos, tmp_path):
    data = videos["mjpeg.avi"].read_bytes()
    path = tmp_path / "cut.avi"
    path.write_bytes(data[: len(data) // 2])
    source = open_source(str(path), **SIZE)
    assert 0 < source.length < COUNT
    kept = source.length - 1  # The last one is cut in two.
    assert numbers(source.read(0, kept)) == list(range(kept))


def test_frames_that_do_not_decode_are_named(videos):
    video = Video(videos["mpeg4.avi"], Fit(**SIZE))
    video.length = COUNT + 3
    with pytest.raises(UserError, match=f"frame {COUNT} of {COUNT + 3}.*cut it before"):
        video.read(COUNT - 1, COUNT + 1)
    # The decoder recovers.
    assert numbers(video.read(2, 4)) == [2, 3]


def test_damaged_frames_are_refused(videos, tmp_path):
    with av.open(str(videos["mpeg4.avi"])) as container:
        packet = [p for p in container.demux(video=0) if p.size][30]
        start, stop = packet.pos + 8, packet.pos + packet.size
    content = bytearray(videos["mpeg4.avi"].read_bytes())
    for place in range(start, stop):
        content[place] ^= 0x55
    path = tmp_path / "damaged.avi"
    path.write_bytes(content)
    source = open_source(str(path), **SIZE)
    assert numbers(source.read(0, 30)) == list(range(30))
    with pytest.raises(UserError, match=r"frame 30 of 50 cannot be decoded"):
        source.read(0, source.length)


def test_an_animated_gif_is_a_video(tmp_path):
    """Named as a file; a transparent pixel is refused."""
    grey = [Image.fromarray(picture(i)[..., 0]) for i in range(9)]
    path = tmp_path / "nine.gif"
    grey[0].save(path, save_all=True, append_images=grey[1:], duration=40)
    source = open_source(str(path), **SIZE)
    assert numbers(source.read(0, source.length)) == list(range(9))
    # Without durations FFmpeg takes several pictures for one.
    noisy = np.random.default_rng(0).integers(0, 256, (9, HEIGHT, WIDTH, 3), np.uint8)
    first, *others = map(Image.fromarray, noisy)
    first.save(path, save_all=True, append_images=others)
    with pytest.raises(UserError, match="finds 8 of its 9 pictures; expected a dura"):
        open_source(str(path), **SIZE)
    alpha = np.where(np.arange(WIDTH) < 9, 0, 255) * np.ones((HEIGHT, 1))
    clear = [
        Image.fromarray(np.dstack([picture(i), alpha]).astype(np.uint8)) for i in (0, 1)
    ]
    clear[0].save(path, save_all=True, append_images=clear[1:], disposal=2)
    with pytest.raises(UserError, match="frame 0 has transparent pixels; accepted"):
        open_source(str(path), **SIZE)


def test_bits_that_a_video_loses_are_said(tmp_path, capsys):
    path = write_video(tmp_path / "deep.mkv", "ffv1", {}, pix_fmt="yuv420p10le")
    source = open_source(str(path), **SIZE)
    assert numbers(source.read(0, COUNT)) == list(range(COUNT))
    said = capsys.readouterr().err
    assert said == f"data={path}: 10 bits a channel are reduced to 8\n"


def test_a_playlist_opens_no_other_file(videos, tmp_path):
    path = tmp_path / "list.mp4"
    for text in ("#EXTM3U\n#EXTINF:1,\n{}\n", "ffconcat version 1.0\nfile {}\n"):
        path.write_text(text.format(videos["mpeg4.avi"]))
        with pytest.raises(UserError, match="not a readable video"):
            open_source(str(path), **SIZE)


def test_a_fast_film_is_said(videos):
    """Its frames hardly differ, and copying the last one is hard to beat."""
    source = open_source(str(videos["mpeg4.avi"]), height=HEIGHT, width=WIDTH)
    assert source.done == "25 frames a second (--every=N reads every Nth)"
    smaller = open_source(str(videos["mpeg4.avi"]), height=8, width=8)
    assert ", scaled to 8x8" in smaller.done
    assert smaller.done.endswith("; 25 frames a second (--every=N reads every Nth)")
    slower = open_source(str(videos["mpeg4.avi"]), height=HEIGHT, width=WIDTH, every=3)
    assert numbers(slower.read(0, 4)) == [0, 3, 6, 9]


def marked(path, turn):
    """Writes a video whose header takes (x, y) to (a x + c y, b x + d y)."""

    def dark_at_the_top(i):
        rows = np.linspace(0.3, 1, HEIGHT)[:, None, None]
        return (picture(i) * rows).astype(np.uint8)

    write_video(path, "mpeg4", {}, count=9, draw=dark_at_the_top)
    content = bytearray(path.read_bytes())
    start = content.index(b"tkhd") + 44
    matrix = np.frombuffer(content, ">i4", 9, start).copy().reshape(3, 3)
    assert matrix[:2, :2].tolist() == [[65536, 0], [0, 65536]]
    matrix[:2, :2] = 65536 * np.asarray(turn)  # [a b; c d]
    content[start : start + 36] = matrix.tobytes()
    path.write_bytes(content)
    return str(path)


@pytest.mark.parametrize("mirrored", [False, True])
@pytest.mark.parametrize("quarters", range(4))
def test_videos_are_turned_as_their_header_says(
    tmp_path, monkeypatch, quarters, mirrored
):
    """Telephones mark upright videos as turned; players turn them, clockwise."""
    turn = np.linalg.matrix_power([[0, 1], [-1, 0]], quarters)
    if mirrored:
        turn = np.array([[-1, 0], [0, 1]]) @ turn
    plain = open_source(marked(tmp_path / "plain.mp4", np.eye(2)), **SIZE)
    expected = plain.read(0, 9)
    if mirrored:
        expected = expected[:, :, ::-1]
    expected = np.rot90(expected, -quarters, (1, 2))
    size = dict(zip(("height", "width"), expected.shape[1:3], strict=True))
    path = marked(tmp_path / "turned.mp4", turn)
    source = open_source(path, **size)
    np.testing.assert_array_equal(source.read(0, 9), expected)
    np.testing.assert_array_equal(source.read(3, 4), expected[3:4])
    # A run that saw the same file as it lies does not go on with other pictures.
    monkeypatch.setattr(video, "_turned", lambda picture, matrix: picture)
    is_turned = bool(quarters or mirrored)
    as_it_lies = open_source(path, height=8, width=8, crop="resize").fingerprint
    monkeypatch.undo()
    now = open_source(path, height=8, width=8, crop="resize").fingerprint
    assert (now != as_it_lies) == is_turned


def test_a_video_that_lies_aslant_is_read_as_it_lies(tmp_path):
    plain = open_source(marked(tmp_path / "plain.mp4", np.eye(2)), **SIZE)
    aslant = marked(tmp_path / "aslant.mp4", [[-0.8, 0.6], [-0.6, -0.8]])
    source = open_source(aslant, **SIZE)
    np.testing.assert_array_equal(source.read(0, 9), plain.read(0, 9))
