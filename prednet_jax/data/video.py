"""Frames from a video file, decoded when they are read (with PyAV, that is FFmpeg).

Opening a video reads its packets without decoding them. This counts the frames, so the
header's number is not needed. A read continues where the last one ended. A jump starts
decoding at the key frame before if the time stamps of the file can be trusted, and at
the start otherwise. Unlike in the published frame maker no frame is dropped.
docs/api/file_formats.md describes the handling of more than 8 bits a channel and of
transparency.
"""

import contextlib
import dataclasses
import functools
import itertools
import threading
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from prednet_jax import errors, files
from prednet_jax.data.frames import Fit, FrameSource
from prednet_jax.data.images import check_size
from prednet_jax.errors import UserError

VIDEO_SUFFIXES = (
    *(".avi", ".flv", ".gif", ".m2ts", ".m4v", ".mkv", ".mov", ".mp4"),
    *(".mpeg", ".mpg", ".mts", ".ogv", ".ts", ".webm", ".wmv"),
)

# The formats and protocols that FFmpeg may use. Without a limit it could take a file
# for a playlist, which opens other files and addresses.
_OPTIONS = {
    "format_whitelist": "mov,mp4,m4a,3gp,3g2,mj2,matroska,webm,avi,flv,mpegts,mpeg,"
    "mpegvideo,ogg,asf,h264,hevc,m4v,gif",
    "protocol_whitelist": "file",
}

# How many decoded frames must have the time stamps of the index for it to be trusted.
_CHECKED = 32
# A jump forward over so many frames decodes them: cheaper than from a key frame.
_NEAR = 64
# Videos that are being decoded: each has a file open, and frames in memory.
_MOST_RUNNING = 32
# Frames a second from which on a message names the rate; KITTI has ten.
_FAST = 20
_TURN = threading.Lock()
_RUNNING: weakref.WeakValueDictionary[int, "Video"] = weakref.WeakValueDictionary()


def open_video(path: Path, fit: Fit) -> FrameSource:
    """Opens the first track of a video, turned as its header says."""
    name = str(path)
    video = Video(path, fit)
    video.read(0, 1)  # Refuses at once a frame size that does not fit.
    if video.bits > 8:
        errors.log_line(f"data={name}: {video.bits} bits a channel are reduced to 8")
    identity = {"file": video.file.content} | ({"turned": True} if video.turned else {})
    source = video.fit.source(
        name, video.length, (0,), video.read, reader="video", **identity
    )
    if not video.rate or video.rate < _FAST:
        return source
    rate = f"{video.rate:.3g} frames a second (--every=N reads every Nth)"
    return dataclasses.replace(
        source, done="; ".join(filter(None, (source.done, rate)))
    )


class Video:
    """A decoder with a position in a video, which reading moves forwards."""

    def __init__(self, path: Path, fit: Fit):
        import av

        self._path, self.bits, self.turned = path, 0, False
        self.file = files.Unchanged(path, functools.partial(files.digest, path))
        self._errors: Any = (av.FFmpegError, OSError, IndexError)
        try:
            self.length, self.stamps, self.rate = _index(path)
        except self._errors as error:
            raise UserError(
                f"data={path}: not a readable video "
                f"({getattr(error, 'strerror', None) or files.reason(error)})"
            ) from error
        self._next = self.length + 1
        self._frames: Iterator[tuple[int, Any]] = iter(())
        settled = fit.original is not None and fit.crop != "auto"
        self.fit = fit if settled else fit.settled(*self._picture(0).shape[:2])
        self.read = self.fit.frames(self._picture, lambda _: f"a frame of {path}")

    def _at(self, number: int) -> Any:
        """Returns a frame; only the videos that were read last stay open."""
        with _TURN:
            jump = self.stamps and number > self._next + _NEAR
            anew = number < self._next or bool(jump)
            self.file.check(anew=anew)
            if anew:
                self._frames = _numbered(self._path, self.stamps, number)
            _RUNNING.pop(id(self), None)
            _RUNNING[id(self)] = self
            if len(_RUNNING) > _MOST_RUNNING:
                _, oldest = next(iter(_RUNNING.items()))
                del _RUNNING[id(oldest)]
                oldest._next, oldest._frames = oldest.length + 1, iter(())
            frame = self._decode(number)
            self.file.check()
            return frame

    def _picture(self, number: int) -> np.ndarray:
        """Returns a frame, uint8 `[h, w, 3]`."""
        frame = self._at(number)
        channels = frame.format.components
        self.bits = max(self.bits, *(channel.bits for channel in channels))
        if (
            any(channel.is_alpha for channel in channels)
            and frame.to_ndarray(format="rgba")[..., 3].min() < 255
        ):
            raise UserError(
                f"data={self._path}: frame {number} has transparent pixels; accepted "
                "are opaque videos, so put it onto a background first"
            )
        picture = frame.to_ndarray(format="rgb24")
        if (matrix := frame.side_data.get("DISPLAYMATRIX")) is None:
            return picture
        turned = _turned(picture, np.frombuffer(matrix, np.int32))
        self.turned |= turned is not picture
        return turned

    def _decode(self, wanted: int) -> Any:
        try:
            for number, frame in self._frames:
                self._next = number + 1
                if number == wanted and frame.is_corrupt:
                    raise self._undecodable(wanted, "damaged, and patched up by guess")
                if number == wanted:
                    return frame
                if number > wanted:
                    break
        except self._errors as error:
            raise self._undecodable(wanted, files.reason(error)) from error
        raise self._undecodable(wanted, "the decoder leaves it out")

    def _undecodable(self, number: int, reason: str) -> UserError:
        # A generator that has raised cannot continue, so the next read has to jump.
        self._next = self.length + 1
        return UserError(
            f"data={self._path}: frame {number} of {self.length} cannot be "
            f"decoded ({reason}); accepted is a whole file: encode it again, or cut it "
            "before that frame"
        )


def _turned(picture: np.ndarray, matrix: np.ndarray) -> np.ndarray:
    """Returns `[h, w, 3]` as a display matrix of nine numbers places it.

    The pixel (x, y) belongs at (a x + c y, b x + d y), with y downwards (ISO/IEC
    14496-12, 8.3.2). Angles that are no multiple of 90 degrees are not applied.
    """
    a, b, _, c, d = matrix[:5]
    if a == d == 0 and b and c:
        picture, a, d = picture.transpose(1, 0, 2), c, b
    elif b or c:
        return picture
    if a < 0:
        picture = picture[:, ::-1]
    return picture[::-1] if d < 0 else picture


def _index(path: Path) -> tuple[int, list[int], float | None]:
    """Counts the frames, and returns their times, if reliable, and the rate."""
    import av

    with _opened(path) as (container, stream):
        stamps = [
            packet.pts
            for packet in container.demux(stream)
            if packet.size and not packet.is_discard
        ]
        rate = stream.average_rate and float(stream.average_rate)
    if not stamps:
        raise UserError(f"data={path}: the video holds no frames; expected one or more")
    count = len(stamps)
    _check_gif(path, count)
    if None in stamps:
        return count, [], rate
    stamps.sort()
    head: list[int | None] = []
    # A broken frame is reported when it is read; here it only ends the comparison.
    with _opened(path) as (container, stream), contextlib.suppress(av.FFmpegError):
        for frame in itertools.islice(container.decode(stream), _CHECKED):
            head.append(frame.pts)
    agree = head and head == stamps[: len(head)] and len(set(stamps)) == count
    return count, stamps if agree else [], rate


def _check_gif(path: Path, count: int) -> None:
    """Refuses a GIF whose pictures have no times: FFmpeg takes them for one frame."""
    from PIL import Image

    pictures = count
    if path.suffix.lower() == ".gif":
        # A broken file is reported by FFmpeg.
        with (
            contextlib.suppress(*files.BROKEN),
            Image.open(path, formats=("GIF",)) as film,
        ):
            pictures = getattr(film, "n_frames", 1)
    if pictures != count:
        raise UserError(
            f"data={path}: FFmpeg finds {count} of its {pictures} pictures; expected a "
            "duration of each picture, such as duration=100 of Pillow's save"
        )


def _numbered(path: Path, stamps: list[int], start: int) -> Iterator[tuple[int, Any]]:
    """Decodes from frame `start` on (without stamps: from 0), with numbers."""
    with _opened(path) as (container, stream):
        if not (start and stamps):
            yield from enumerate(container.decode(stream))
            return
        container.seek(stamps[start], stream=stream)
        numbers = {stamp: number for number, stamp in enumerate(stamps)}
        landed = False
        for frame in container.decode(stream):
            number = numbers.get(frame.pts, -1)
            if number > start and not landed:
                break
            landed |= number == start
            if landed:
                yield number, frame
    if not landed:  # FFmpeg went past the key frame.
        yield from _numbered(path, [], 0)


@contextlib.contextmanager
def _opened(path: Path) -> Iterator[tuple[Any, Any]]:
    """Opens the container and its first video track, decoded by one thread."""
    import av

    # FFmpeg reads a relative name with a colon as an address.
    with av.open(str(path.absolute()), options=_OPTIONS) as container:
        if not container.streams.video:
            raise UserError(
                f"data={path}: the file holds no video stream; expected a video"
            )
        stream = container.streams.video[0]
        width, height = stream.codec_context.width, stream.codec_context.height
        # Some headers have the size 0; then only the frames have it.
        check_size(max(1, width), max(1, height), path)
        # The data must not depend on the number of threads, which experiments compare.
        stream.codec_context.thread_count = 1
        yield container, stream
