"""What the camera of a walk looks at: the photographs, or endlessly many variations.

A variation is a photograph that is mirrored, turned, recoloured and of another
contrast; or, as often, a picture of dead leaves: shapes of random colour that hide one
another, with sizes of density r^-3, which have statistics of natural images (Lee,
Mumford & Huang 2001, https://doi.org/10.1023/A:1011109015675), and what networks learn
from them holds for photographs (Baradad et al. 2021, arXiv:2106.05963).
"""

import functools
import io
import math

import numpy as np

from prednet_jax.data.digits import shipped_bytes
from prednet_jax.data.frames import to_channels
from prednet_jax.data.source import generator

# Photographs of everyday scenes in scikit-image's wheel. The folder also has scientific
# pictures (retina, cells, galaxies) and drawings, which are left out.
PHOTOGRAPHS = (
    "astronaut.png",
    "brick.png",
    "camera.png",
    "chelsea.png",
    "coffee.png",
    "grass.png",
    "gravel.png",
    "motorcycle_left.png",
    "rocket.jpg",
)

#: Share of the variations that are dead leaves.
LEAVES = 0.5
# Height and width of a picture of dead leaves, in pixels.
_SIDE = 384


@functools.cache
def photograph_bytes(name: str) -> bytes:
    """The shipped file. `skimage.data` is not used, since it may use the network."""
    return shipped_bytes("walk", "skimage", f"data/{name}", "scikit-image>=0.24")


@functools.cache
def photograph(name: str, channels: int) -> np.ndarray:
    """The whole photograph, uint8 `[h, w, channels]`, with channels 1 or 3."""
    from PIL import Image

    with Image.open(io.BytesIO(photograph_bytes(name))) as image:
        return to_channels(np.asarray(image.convert("RGB")), channels)


def variation(name: str, channels: int, *seeds: int) -> np.ndarray:
    """A picture of dead leaves, or the photograph varied; uint8 `[h, w, channels]`.

    `name` is one of `PHOTOGRAPHS`; the seeds say which variation.
    """
    draw = generator(*seeds)
    mirrored, turned, inverted, bright, share = draw.random(5)
    if share < LEAVES:
        picture = dead_leaves(draw)
    else:
        picture = photograph(name, 3)[:, :: 1 if mirrored < 0.5 else -1]
        picture = np.rot90(picture, int(4 * turned))
    picture = picture[..., np.argsort(draw.random(3))].astype(np.float64) - 127.5
    contrast = (1 if inverted < 0.5 else -1) * (0.5 + 0.8 * draw.random(3))
    picture = 95 + 65 * bright + contrast * picture
    return to_channels(np.clip(np.rint(picture), 0, 255).astype(np.uint8), channels)


def dead_leaves(draw: np.random.Generator) -> np.ndarray:
    """Ellipses, quadrangles and triangles, each before those drawn so far.

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
