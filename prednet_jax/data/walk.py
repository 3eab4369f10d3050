"""A first-person walk through real photographs, without a download and without an end.

The photographs come with scikit-image, inside its wheel. A camera pans across a
photograph, zooms in and out, and moves up and down with the steps. After 80 to 400
frames it cuts to another photograph. Every quantity has a closed form in the frame
index, so that any frame can be rendered independently. With t the frame inside a scene
and u = 2 pi t / period + phase, a scene has

    view height   v(t) = middle * exp(0.25 sin u_zoom)
    centre        c(t) = margin + room(t) * (1 + 0.7 sin u_slow + 0.3 sin u_fast) / 2
    head bob      y += 0.02 v sin(2 u_step),  x += 0.015 v sin(u_step)
    roll          1.5 degrees * sin(u_step + phase)

One step takes about 17 frames, that is 1.8 steps per second at the 30 frames per second
of a head camera. Once per scene the photograph is scaled down, with smoothing, so that
one of its pixels is about one pixel of the view. The view is then sampled bilinearly,
in integer arithmetic.

A varied walk shows variations: a photograph that is mirrored, turned, recoloured and of
another contrast; or, as often, a picture of dead leaves: shapes of random colour that
hide one another, with sizes of density r^-3, which have statistics of natural images
(Lee, Mumford & Huang 2001, https://doi.org/10.1023/A:1011109015675), and what networks
learn from them holds for photographs (Baradad et al. 2021, arXiv:2106.05963).
"""

import functools
import hashlib
import io
import math
from typing import Any, NamedTuple

import numpy as np

from prednet_jax.data.digits import shipped_bytes
from prednet_jax.data.frames import (
    ENDLESS,
    FrameSource,
    fingerprint,
    generator,
    joined_spans,
    to_channels,
)

VERSION = 1

# Photographs of everyday scenes in scikit-image's wheel. The folder also has scientific
# pictures (retina, cells, galaxies) and drawings, which are left out.
PHOTOGRAPHS = (
    *("astronaut.png", "brick.png", "camera.png", "chelsea.png", "coffee.png"),
    *("grass.png", "gravel.png", "motorcycle_left.png", "rocket.jpg"),
)

# Share of the variations that are dead leaves.
_LEAVES = 0.5
# Height and width of a picture of dead leaves, in pixels.
_SIDE = 384

# A scene begins within JITTER / 2 of a multiple of PERIOD, so it has 80 to 400 frames.
PERIOD = 240
JITTER = 160

_ZOOM = 0.25
_BOB, _SWAY, _ROLL = 0.02, 0.015, math.radians(1.5)
_BITS = 8


class Scene(NamedTuple):
    """The random parameters of a scene.

    Attributes:
        start: Index of its first frame.
        photograph: Index into the photographs that are shown.
        middle: Height of the view at middle zoom, over the largest height that fits.
        periods: [6] in frames: x slow, x fast, y slow, y fast, zoom, two steps.
        phases: [7] in radians: the same six, then the roll.
    """

    start: int
    photograph: int
    middle: float
    periods: np.ndarray
    phases: np.ndarray


def open_walk(
    *, height: int, width: int, channels: int = 3, seed: int = 0, varied: bool = False
) -> FrameSource:
    """Opens the walk; a varied one shows a `variation` in each scene.

    All scenes are one sequence, as in a recording of a head camera. The seed chooses
    photographs, paths and cuts.
    """
    size = height, width, channels
    frames = functools.partial(render, size, PHOTOGRAPHS, seed, varied=varied)
    name = "varied_walk" if varied else "walk"
    digest = _fingerprint(name, frames(0, 1), PHOTOGRAPHS, seed=seed)
    return FrameSource(name, *size, ENDLESS, (0,), frames, digest)


def open_walks(
    *,
    height: int,
    width: int,
    channels: int,
    seeds: range,
    frames: int,
    photographs: tuple[str, ...],
    varied: bool = False,
) -> FrameSource:
    """Opens the first `frames` frames of the walk of each seed, a sequence each.

    They show `photographs`, at least three of `PHOTOGRAPHS`, or variations of them.
    """
    size = height, width, channels
    walk = functools.partial(render, size, photographs, varied=varied)
    shown = [name.split(".")[0] for name in photographs]
    name = (
        f"{len(seeds)} walks of {frames} frames, seeds {seeds.start} to "
        f"{seeds.stop - 1}, through {', '.join(shown)}{', varied' * varied}"
    )
    first = walk(seeds[0], 0, 1)
    numbers = {"seeds": [seeds.start, seeds.stop], "frames": frames}
    digest = _fingerprint(
        "varied_walks" if varied else "walks", first, photographs, **numbers
    )
    spans = [(functools.partial(walk, seed), 0, frames) for seed in seeds]
    length = frames * len(seeds)
    boundaries = tuple(range(0, length, frames))
    return FrameSource(name, *size, length, boundaries, joined_spans(spans), digest)


def _fingerprint(
    kind: str, first: np.ndarray, photographs: tuple[str, ...], **numbers: Any
) -> str:
    """Hashes a walk with its first frame, which depends on Pillow's smoothing."""
    return fingerprint(
        generator=kind,
        version=VERSION,
        size=first.shape[1:],
        photographs=[
            hashlib.sha256(photograph_bytes(name)).hexdigest() for name in photographs
        ],
        first_frame=hashlib.sha256(first.tobytes()).hexdigest(),
        **numbers,
    )


def render(
    size: tuple[int, int, int],
    photographs: tuple[str, ...],
    seed: int,
    start: int,
    stop: int,
    *,
    varied: bool = False,
) -> np.ndarray:
    """Returns frames `start` to `stop - 1` of a walk, uint8 `[stop - start, *size]`.

    At least three photographs are shown, or in each scene a variation of one.
    """
    out = np.empty((stop - start, *size), np.uint8)
    index = start
    while index < stop:
        k = scene_index(seed, index)
        end = min(stop, scene(seed, k + 1).start)
        shown = scene(seed, k, len(photographs))
        name = photographs[shown.photograph]
        view = _view(size, shown.middle, name, (seed, 2, k) if varied else ())
        _render_scene(
            out[index - start : end - start], shown, np.arange(index, end), *view
        )
        index = end
    return out


def scene_index(seed: int, index: int) -> int:
    """Returns the scene that frame `index` belongs to."""
    k = index // PERIOD
    # The jitter moves a cut by less than half a period, so three scenes are candidates.
    if index >= scene(seed, k + 1).start:
        return k + 1
    if index < scene(seed, k).start:
        return k - 1
    return k


@functools.lru_cache(maxsize=64)
def scene(seed: int, k: int, count: int = len(PHOTOGRAPHS)) -> Scene:
    """Draws the parameters of scene k of a walk through `count` photographs."""
    draw = generator(seed, 0, k).random(15)
    jitter = round(JITTER * (draw[0] - 0.5)) if k else 0
    shortest = np.array([175.0, 65.0, 200.0, 75.0, 250.0, 30.0])
    longest = np.array([325.0, 115.0, 375.0, 140.0, 500.0, 38.0])
    return Scene(
        start=PERIOD * k + jitter,
        # Each lap shows every photograph once, in a new order.
        photograph=int(_lap_order(seed, k // count, count)[k % count]),
        middle=0.42 + 0.16 * draw[1],
        periods=shortest + (longest - shortest) * draw[2:8],
        phases=2 * math.pi * draw[8:15],
    )


def pose(
    scene: Scene, t: np.ndarray, photo: tuple[int, int], aspect: float
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Returns the camera's position at frames `t`, `[T]`, from a scene's start.

    `photo` is the height and width of the photograph in pixels, `aspect` the width of
    the view over its height. Returns x, y and height of the view, `[T]` in pixels of
    the unscaled photograph, which it never leaves, and its rotation in radians.
    """
    angle = 2 * math.pi * t[:, None] / scene.periods + scene.phases[:6]
    x_slow, x_fast, y_slow, y_fast, zoom, _ = np.sin(angle).T
    step = angle[:, 5]
    largest = min(photo[0], photo[1] / aspect)
    view = largest * scene.middle * np.exp(_ZOOM * zoom)
    half_y = view * (0.5 * math.cos(_ROLL) + 0.5 * aspect * math.sin(_ROLL) + _BOB)
    half_x = view * (0.5 * aspect * math.cos(_ROLL) + 0.5 * math.sin(_ROLL) + _SWAY)
    room_y = np.maximum(photo[0] - 2 * half_y, 0.0)
    room_x = np.maximum(photo[1] - 2 * half_x, 0.0)
    sway, bob = _SWAY * view * np.sin(step), _BOB * view * np.sin(2 * step)
    x = photo[1] / 2 + room_x * (0.7 * x_slow + 0.3 * x_fast) / 2 + sway
    y = photo[0] / 2 + room_y * (0.7 * y_slow + 0.3 * y_fast) / 2 + bob
    return x, y, view, _ROLL * np.sin(step + scene.phases[6])


@functools.lru_cache(maxsize=4)
def _view(
    size: tuple[int, int, int], middle: float, name: str, seeds: tuple[int, ...]
) -> tuple[tuple[int, int], np.ndarray]:
    """Returns a picture's size, and the picture, smoothed, at the scene's scale."""
    height, width, channels = size
    full = variation(name, channels, *seeds) if seeds else photograph(name, channels)
    rows, cols = full.shape[:2]
    shrink = min(1.0, height / (min(rows, cols * height / width) * middle))
    photo = full
    if shrink < 1.0:
        from PIL import Image

        smaller = max(2, round(cols * shrink)), max(2, round(rows * shrink))
        image = Image.fromarray(full if channels == 3 else full[..., 0])
        photo = np.asarray(image.resize(smaller, Image.Resampling.BICUBIC))
    return (rows, cols), photo.reshape(*photo.shape[:2], channels).astype(np.int32)


def _render_scene(
    out: np.ndarray,
    scene: Scene,
    index: np.ndarray,
    full: tuple[int, int],
    photo: np.ndarray,
) -> None:
    """Renders frames of a scene into `out`, uint8 `[T, H, W, C]`."""
    _, height, width, _ = out.shape
    rows, cols = photo.shape[:2]
    where = pose(scene, index - scene.start, full, width / height)
    # Coordinates of the pixel centres from the middle of the view, in view heights.
    v = ((np.arange(height) + 0.5 - height / 2) / height)[:, None]
    u = ((np.arange(width) + 0.5 - width / 2) / height)[None, :]
    for frame, x, y, view, roll in zip(out, *where, strict=True):
        cos, sin = view * math.cos(roll), view * math.sin(roll)
        along = (x + cos * u - sin * v) * (cols / full[1]) - 0.5
        down = (y + sin * u + cos * v) * (rows / full[0]) - 0.5
        frame[:] = _sample(photo, down, along)


def _sample(photo: np.ndarray, down: np.ndarray, along: np.ndarray) -> np.ndarray:
    """Samples `photo` `[h, w, c]` bilinearly at `[H, W]`, in integers."""
    rows, cols, channels = photo.shape
    one = 1 << _BITS
    y = np.rint(np.clip(down, 0, rows - 1) * one).astype(np.int32)
    x = np.rint(np.clip(along, 0, cols - 1) * one).astype(np.int32)
    top, left = np.minimum(y >> _BITS, rows - 2), np.minimum(x >> _BITS, cols - 2)
    fy, fx = (y - (top << _BITS))[..., None], (x - (left << _BITS))[..., None]
    flat = photo.reshape(-1, channels)
    corner = (top * cols + left).astype(np.intp)
    # Every index is valid; with mode "clip" take() does not check them again.
    upper = flat.take(corner, axis=0, mode="clip") * (one - fx)
    upper += flat.take(corner + 1, axis=0, mode="clip") * fx
    lower = flat.take(corner + cols, axis=0, mode="clip") * (one - fx)
    lower += flat.take(corner + cols + 1, axis=0, mode="clip") * fx
    upper *= one - fy
    lower *= fy
    upper += lower
    upper += 1 << (2 * _BITS - 1)
    return upper >> (2 * _BITS)


@functools.lru_cache(maxsize=64)
def _lap_order(seed: int, lap: int, count: int) -> np.ndarray:
    """Returns the order of a lap; it never starts with the one shown last."""
    order = np.argsort(generator(seed, 1, lap).random(count))
    if lap:
        # The swap below never changes the last of three or more, so the last of the lap
        # before is known without its swap.
        before = np.argsort(generator(seed, 1, lap - 1).random(count))
        if order[0] == before[-1]:
            order[[0, 1]] = order[[1, 0]]
    return order


@functools.cache
def photograph_bytes(name: str) -> bytes:
    """Reads the shipped file; `skimage.data` may use the network."""
    return shipped_bytes("walk", "skimage", f"data/{name}", "scikit-image>=0.24")


@functools.cache
def photograph(name: str, channels: int) -> np.ndarray:
    """Returns the whole photograph, uint8 `[h, w, channels]`, with channels 1 or 3."""
    from PIL import Image

    with Image.open(io.BytesIO(photograph_bytes(name))) as image:
        return to_channels(np.asarray(image.convert("RGB")), channels)


def variation(name: str, channels: int, *seeds: int) -> np.ndarray:
    """Returns dead leaves, or the photograph varied; uint8 `[h, w, channels]`.

    `name` is one of `PHOTOGRAPHS`; the seeds determine the variation.
    """
    draw = generator(*seeds)
    mirrored, turned, inverted, bright, share = draw.random(5)
    if share < _LEAVES:
        picture = dead_leaves(draw)
    else:
        picture = photograph(name, 3)[:, :: 1 if mirrored < 0.5 else -1]
        picture = np.rot90(picture, int(4 * turned))
    picture = picture[..., np.argsort(draw.random(3))].astype(np.float64) - 127.5
    contrast = (1 if inverted < 0.5 else -1) * (0.5 + 0.8 * draw.random(3))
    picture = 95 + 65 * bright + contrast * picture
    return to_channels(np.clip(np.rint(picture), 0, 255).astype(np.uint8), channels)


def dead_leaves(draw: np.random.Generator) -> np.ndarray:
    """Draws ellipses, quadrangles and triangles, each in front of the earlier ones.

    It draws about 10^4 numbers; the result is uint8 `[384, 384, 3]`.
    """
    from PIL import Image, ImageDraw

    mean = 255 * draw.random(3)
    spread, tint = 15 + 75 * draw.random(), 60 * draw.random()

    def colour() -> tuple[int, ...]:
        grey, *shift = 2 * draw.random(4) - 1
        values = mean + 1.7 * (spread * grey + tint * np.array(shift))
        return tuple(int(value) for value in np.clip(values, 0, 255))

    image = Image.new("RGB", (_SIDE, _SIDE), colour())
    canvas = ImageDraw.Draw(image)
    smallest, largest = 2 + 4 * draw.random(), 75 + 120 * draw.random()
    for _ in range(round(800 + 1400 * draw.random())):
        u, x, y, flat, turn, kind = draw.random(6)
        radius = (smallest**-2 + u * (largest**-2 - smallest**-2)) ** -0.5
        along = 2 * math.pi * np.arange(corners := (24, 4, 3)[int(3 * kind)]) / corners
        shape = radius * np.exp(1j * math.pi * turn)
        shape = shape * (np.cos(along) + 1j * (0.4 + 0.6 * flat) * np.sin(along))
        shape += complex(x, y) * (_SIDE + 80) - (40 + 40j)
        canvas.polygon([(p.real, p.imag) for p in shape], fill=colour())
    frequency = np.hypot(*np.meshgrid(np.fft.fftfreq(_SIDE), np.fft.fftfreq(_SIDE)))
    frequency[0, 0] = 1
    white = np.fft.fft2(draw.random((_SIDE, _SIDE)) - 0.5)
    noise = np.fft.ifft2(white / frequency ** (0.6 + draw.random())).real
    noise *= 25 * draw.random() / noise.std()
    picture = np.rint(np.asarray(image) + noise[..., None])
    return np.clip(picture, 0, 255).astype(np.uint8)
