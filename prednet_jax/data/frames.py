"""`FrameSource`, the type of every source of frames, and `Fit`, which sizes pictures.

A source is read in ranges of frames and never as a whole. So the training loop treats a
day of video and an endless generated walk in the same way.

`Fit` turns a decoded picture into a frame, with antialiasing (`antialias`) or as the
published code does. The published trainer crops around the centre, moved by an offset
(`read_image` of main.py, quadjr/PredNet and eijwat/prednet_in_chainer_py3). The
published frame maker resizes bilinearly without keeping the aspect ratio (`cv2.resize`
in generate_image.py).
"""

import dataclasses
import functools
import hashlib
import json
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from prednet_jax.errors import UserError, check_int, expect, one_of

# The length of an endless source: more frames than any run reads.
ENDLESS = 10**9

#: Frames `start` to `stop - 1`, uint8 `[stop - start, H, W, C]`.
Frames = Callable[[int, int], np.ndarray]


@dataclasses.dataclass(frozen=True)
class FrameSource:
    """A finite, ordered sequence of frames with random access.

    Attributes:
        name: The name or path that was opened, for manifests and messages.
        height: Height of every frame, in pixels.
        width: Width of every frame, in pixels.
        channels: 1 (grey) or 3 (RGB).
        length: Total number of frames; `ENDLESS` for generated sources by default.
        boundaries: Index of the first frame of every sequence; starts with 0.
        frames: Function that `read` calls with a range inside the source.
        fingerprint: SHA-256 that identifies the content and its order, without paths:
            of the generator's version, seed and size, or of the bytes of every file.
        done: Description of the changes to pictures of another size; empty if
            unchanged.
        fit: The conversion of pictures into these frames, or None if they are
            generated.
    """

    name: str
    height: int
    width: int
    channels: int
    length: int
    boundaries: tuple[int, ...]
    frames: Frames
    fingerprint: str
    done: str = ""
    fit: "Fit | None" = None

    def __post_init__(self):
        """Refuses, with a UserError, an invalid size, length or boundaries."""
        check_frame_size(self.height, self.width, self.channels)
        check_int("length", self.length, 1)
        begins = list(self.boundaries)
        if begins[:1] != [0] or (np.diff(np.array([*begins, self.length])) <= 0).any():
            shown = str(begins[:8])[:-1] + (", ..." if begins[8:] else "")
            raise UserError(
                f"boundaries={shown}] of {self.name}: expected strictly increasing "
                f"indices that start with 0 and stay below its {self.length} frames"
            )

    @property
    def lengths(self) -> np.ndarray:
        """The number of frames of every sequence."""
        return np.diff(self.boundaries, append=self.length)

    @property
    def sequences(self) -> list[tuple[int, int]]:
        """The first frame of every sequence, and the frame after its last one."""
        ends = (*self.boundaries[1:], self.length)
        return list(zip(self.boundaries, ends, strict=True))

    def read(self, start: int, stop: int) -> np.ndarray:
        """Returns frames `start` to `stop - 1`, uint8 `[stop - start, H, W, C]`.

        It may be called from another thread, but by one caller at a time.
        """
        if not 0 <= start <= stop <= self.length:
            raise UserError(
                f"frames {start}:{stop}: {self.name} has {self.length} frames; "
                f"expected 0 <= start <= stop <= {self.length}, its length"
            )
        frames = self.frames(start, stop)
        shape = stop - start, self.height, self.width, self.channels
        kind = getattr(frames, "dtype", type(frames).__name__)
        if kind != np.uint8 or frames.shape != shape:
            raise UserError(
                f"frames {start}:{stop} of {self.name} are {kind} of shape "
                f"{np.shape(frames)}: expected uint8 of shape {shape}"
            )
        return frames


def check_frame_size(height: int, width: int, channels: int) -> None:
    """Refuses a side that is not positive, and channels other than 1 and 3."""
    check_int("height", height, 1)
    check_int("width", width, 1)
    if channels not in (1, 3):
        raise UserError(
            f"channels={channels}: frames have 3 (RGB) or 1 (grey); "
            "this is the first entry of the channel list"
        )


def joined(name: str, sources: Sequence[FrameSource]) -> FrameSource:
    """Joins sources of one size, one after the other; each keeps its sequences."""
    ends = np.cumsum([source.length for source in sources]).tolist()
    boundaries = tuple(
        end - source.length + index
        for end, source in zip(ends, sources, strict=True)
        for index in source.boundaries
    )
    digests = [source.fingerprint for source in sources]
    return dataclasses.replace(
        sources[0],
        name=name,
        length=ends[-1],
        boundaries=boundaries,
        frames=joined_spans([(s.read, 0, s.length) for s in sources]),
        fingerprint=fingerprint(joined=digests, total=ends[-1]),
    )


def joined_spans(spans: Sequence[tuple[Frames, int, int]]) -> Frames:
    """Returns the frames of spans `(frames, begin, end)`, one span after the other."""
    ends = np.cumsum([end - begin for _, begin, end in spans])

    def frames(start: int, stop: int) -> np.ndarray:
        parts: list[np.ndarray] = []
        while start < stop or not parts:
            span = min(int(np.searchsorted(ends, start, "right")), len(spans) - 1)
            read, _, last = spans[span]
            shift, end = last - int(ends[span]), min(stop, int(ends[span]))
            parts.append(read(start + shift, end + shift))
            start = end
        return parts[0] if len(parts) == 1 else np.concatenate(parts)

    return frames


def thinned(source: FrameSource, every: int) -> FrameSource:
    """Returns a source with every `every`-th frame of each sequence of a source."""
    if check_int("every", every, 1) == 1:
        return source
    begins = np.asarray(source.boundaries)
    lengths = -(-source.lengths // every)
    ends = np.cumsum(lengths)

    def frames(start: int, stop: int) -> np.ndarray:
        index = np.arange(start, stop)
        sequence = np.searchsorted(ends, index, "right")
        indices = begins[sequence] + (index - (ends - lengths)[sequence]) * every
        parts = [source.read(i, i + 1) for i in indices.tolist()]
        return np.concatenate(parts) if parts else source.read(0, 0)

    return dataclasses.replace(
        source,
        length=int(ends[-1]),
        boundaries=tuple((ends - lengths).tolist()),
        frames=frames,
        fingerprint=fingerprint(source=source.fingerprint, every=every),
    )


def fingerprint(**fields: Any) -> str:
    """Returns the SHA-256 of named values that JSON can hold, in any order."""
    text = json.dumps(fields, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


def generator(*seeds: int) -> np.random.Generator:
    """Returns a generator of uniform doubles, the same in every NumPy."""
    return np.random.Generator(np.random.PCG64(np.random.SeedSequence(seeds)))


#: Ways to scale a whole picture, and all ways to bring one to size.
SCALES = ("antialias", "resize")
CROPS = ("auto", "center", *SCALES)

# OpenCV's INTER_RESIZE_COEF_BITS for 8-bit images; 255 * 2**22 fits in int32.
_BITS = 11


def refuse_layout(layout: str | None, data: object) -> None:
    """Refuses a layout of frames that are no array."""
    if layout is not None:
        raise UserError(
            f"layout={layout} with data={data}: expected an array, whose axes it names"
        )


def refuse_crop(
    data: str, crop: str, offset: tuple[int, int], layout: str | None
) -> None:
    """Refuses a crop of named sources, whose frames are generated at their size."""
    refuse_layout(layout, data)
    one_of("crop", crop, CROPS)
    if crop in SCALES or tuple(offset) != (0, 0):
        raise UserError(
            f"crop={crop!r}, offset={tuple(offset)} with data={data}: its frames are "
            "made at the requested size, so nothing is cropped; expected crop='auto' "
            "or 'center', and offset (0, 0)"
        )


@dataclasses.dataclass(frozen=True, kw_only=True)
class Fit:
    """The conversion of a picture of any size into a frame.

    Attributes:
        height: Height of the frame, in pixels.
        width: Width of the frame, in pixels.
        channels: 3 (RGB) or 1 (grey, ITU-R 601 luma).
        crop: `center` cuts the middle out; `antialias` and `resize` scale the whole, by
            `resize_antialiased` and the published `resize_bilinear`; `auto` is `center`
            where half of the picture or more is left, else `antialias`.
        offset: the published `--offset`, `(right, down)` in pixels, of the crop.
        original: height and width of the first picture, from `settled`.
        mixed: whether other pictures have other sizes.
    """

    height: int
    width: int
    channels: int = 3
    crop: str = "auto"
    offset: tuple[int, int] = (0, 0)
    original: tuple[int, int] | None = None
    mixed: bool = False

    def __post_init__(self):
        """Refuses (with a UserError) a value that is not accepted."""
        check_frame_size(self.height, self.width, self.channels)
        one_of("crop", self.crop, CROPS)
        wanted = "two numbers, right and down, such as (8, 0)"
        expect(len(self.offset) == 2, "offset", self.offset, wanted)
        if self.crop in SCALES and tuple(self.offset) != (0, 0):
            raise UserError(
                f"offset={self.offset} with crop={self.crop!r}: an offset moves the "
                "crop, so use crop='center' or offset (0, 0)"
            )

    def settled(self, height: int, width: int) -> "Fit":
        """Returns this fit for a source whose first picture has this size in pixels."""
        crop = self.crop
        if crop == "auto":
            loses = 2 * self.height * self.width < height * width
            scaled = loses and tuple(self.offset) == (0, 0)
            crop = "antialias" if scaled else "center"
        return dataclasses.replace(self, crop=crop, original=(height, width))

    @property
    def done(self) -> str:
        """Describes the changes to the pictures; an empty text means none."""
        own, size = self.original, (self.height, self.width)
        if own is None or (own == size and not self.mixed):
            return ""
        exceptions = "; others differ" if self.mixed else ""
        pictures = f"pictures of {own[1]}x{own[0]} (width x height{exceptions})"
        shown = f"{self.width}x{self.height}"
        if self.crop in SCALES:
            before, after = own[1] / own[0], self.width / self.height
            if abs(before / after - 1) < 0.02:
                return f"{pictures}, scaled to {shown}"
            return (
                f"{pictures}, scaled to {shown}: width over height changes from "
                f"{before:.3g} to {after:.3g}"
            )
        share = 100 * self.height * self.width / (own[0] * own[1])
        picture = "the first" if self.mixed else "a picture"
        return (
            f"{pictures}, of which {shown} is cut out, {share:.3g} % of {picture}; "
            "--crop=antialias scales the whole"
        )

    def check(self, height: int, width: int, name: str) -> None:
        """Refuses a picture, of a size in pixels, that the crop does not lie inside."""
        if self.crop in SCALES:
            return
        free_x, free_y = width - self.width, height - self.height
        if min(free_x, free_y) < 0:
            raise UserError(
                f"{name} is {width}x{height} (width x height), smaller than the crop "
                f"to frames of {self.width}x{self.height}: scale it by "
                "--crop=antialias (crop='antialias'), or choose smaller frames"
            )
        top, left = self._corner(height, width)
        if not (0 <= top <= free_y and 0 <= left <= free_x):
            raise UserError(
                f"offset={tuple(self.offset)} moves the {self.width}x{self.height} "
                f"crop out of {name} ({width}x{height}): accepted are "
                f"{-(free_x // 2)} to {free_x - free_x // 2} right and "
                f"{-(free_y // 2)} to {free_y - free_y // 2} down"
            )

    def __call__(self, picture: np.ndarray, name: str) -> np.ndarray:
        """Cuts or scales a picture uint8 `[h, w, c]` to `[height, width, c]`."""
        height, width = picture.shape[:2]
        self.check(height, width, name)
        if self.crop in SCALES:
            scale = resize_antialiased if self.crop == "antialias" else resize_bilinear
            return scale(picture, self.height, self.width)
        top, left = self._corner(height, width)
        return picture[top : top + self.height, left : left + self.width]

    def frames(
        self, picture: Callable[[int], np.ndarray], name_of: Callable[[int], str]
    ) -> Frames:
        """Returns frames of pictures uint8 `[h, w, c]`, named by `name_of`."""
        shape = self.height, self.width, self.channels

        def frames(start: int, stop: int) -> np.ndarray:
            out = np.empty((stop - start, *shape), np.uint8)
            for frame, index in zip(out, range(start, stop), strict=True):
                cut = self(picture(index), name_of(index))
                frame[:] = to_channels(cut, self.channels)
            return out

        return frames

    def source(
        self,
        name: str,
        length: int,
        begins: tuple[int, ...],
        frames: Frames,
        /,
        **identity: Any,
    ) -> FrameSource:
        """Returns the source of fitted pictures; `identity` is in its fingerprint."""
        size = self.height, self.width, self.channels
        digest = fingerprint(
            size=size, crop=self.crop, offset=tuple(self.offset), **identity
        )
        return FrameSource(
            name, *size, length, begins, frames, digest, done=self.done, fit=self
        )

    def _corner(self, height: int, width: int) -> tuple[int, int]:
        """Returns top and left of the crop, by the floor division of the trainer."""
        right, down = self.offset
        return down + (height - self.height) // 2, right + (width - self.width) // 2


def resize_antialiased(picture: np.ndarray, height: int, width: int) -> np.ndarray:
    """Scales uint8 `[h, w, c]` bilinearly with antialiasing, as Pillow does.

    Without antialiasing a moving picture that is made much smaller flickers.
    """
    from PIL import Image

    shown = Image.fromarray(picture[..., 0] if picture.shape[-1] == 1 else picture)
    scaled = shown.resize((width, height), Image.Resampling.BILINEAR)
    return np.asarray(scaled).reshape(height, width, -1)


def resize_bilinear(picture: np.ndarray, height: int, width: int) -> np.ndarray:
    """Scales uint8 `[h, w, c]` bilinearly between pixel centres; no smoothing.

    Geometry and 11-bit weights are OpenCV's in `cv2.resize`, as published.
    """
    row, row_next, row_weight = _taps(picture.shape[0], height)
    col, col_next, col_weight = _taps(picture.shape[1], width)
    one = 1 << _BITS
    weight = row_weight[:, None, None]
    # Columns first: for the wide pictures of video this has the smaller intermediate.
    source = picture.astype(np.int32)
    across = source[:, col] * (one - col_weight)[:, None]
    across += source[:, col_next] * col_weight[:, None]
    out = across[row] * (one - weight) + across[row_next] * weight
    return ((out + (1 << (2 * _BITS - 1))) >> (2 * _BITS)).astype(np.uint8)


def to_channels(picture: np.ndarray, channels: int) -> np.ndarray:
    """Returns `[..., c]` as `[..., channels]`: grey by ITU-R 601, RGB repeated.

    c and `channels` are 1 or 3.
    """
    if picture.shape[-1] == channels:
        return picture
    if channels == 3:
        return np.repeat(picture, 3, axis=-1)
    # The integer weights of Pillow's convert("L"), so that all sources agree.
    weights = np.array([19595, 38470, 7471], np.int64)
    return ((picture @ weights + 0x8000) >> 16).astype(np.uint8)[..., None]


@functools.lru_cache(maxsize=16)
def _taps(size: int, new_size: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Returns left neighbour, right neighbour and integer weight of the right one."""
    centre = (np.arange(new_size) + 0.5) * (size / new_size) - 0.5
    centre = np.clip(centre, 0.0, size - 1.0)
    left = np.floor(centre).astype(np.int64)
    weight = np.rint((centre - left) * (1 << _BITS)).astype(np.int32)
    return left, np.minimum(left + 1, size - 1), weight
