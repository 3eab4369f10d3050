"""The photographs that scikit-image ships inside its wheel, at any scale up to 1."""

import functools
import io

import numpy as np

from prednet_jax.data.frames import to_channels
from prednet_jax.data.shipped import shipped_bytes

# Photographs of everyday scenes. The folder also has scientific pictures (retina,
# cells, galaxies) and drawings, which are left out.
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


@functools.cache
def photograph_bytes(name: str) -> bytes:
    """The shipped file. `skimage.data` is not used, since it may use the network.

    Args:
        name: One of `PHOTOGRAPHS`.

    Returns:
        The bytes of the file.

    Raises:
        DataError: If scikit-image or the file is missing.
    """
    return shipped_bytes(
        "walk", "skimage", f"data/{name}", requirement="scikit-image>=0.24"
    )


@functools.cache
def photograph(name: str, channels: int) -> np.ndarray:
    """The whole photograph, uint8 `[h, w, channels]`, with channels 1 or 3."""
    from PIL import Image

    with Image.open(io.BytesIO(photograph_bytes(name))) as image:
        return to_channels(np.asarray(image.convert("RGB")), channels)


@functools.lru_cache(maxsize=4)
def shrunk(name: str, channels: int, shrink: float) -> np.ndarray:
    """The photograph at a smaller scale, with smoothing against aliasing.

    Args:
        name: One of `PHOTOGRAPHS`.
        channels: 1 or 3.
        shrink: Ratio of the new size to the old size, in (0, 1].

    Returns:
        int32 `[h, w, channels]` in 0..255.
    """
    from PIL import Image

    full = photograph(name, channels)
    if shrink < 1.0:
        size = [max(2, round(side * shrink)) for side in full.shape[1::-1]]
        image = Image.fromarray(full if channels == 3 else full[..., 0])
        full = np.asarray(image.resize((size[0], size[1]), Image.Resampling.BICUBIC))
    return full.reshape(*full.shape[:2], channels).astype(np.int32)
