"""Handwritten digits that scikit-learn ships, so that no download is needed.

They are 1797 pictures of 8x8 pixels with 17 grey levels, the test set of the UCI
"Optical Recognition of Handwritten Digits" (Alpaydin and Kaynak 1998). They are scaled
to 28x28 and replace MNIST where that is not available.
"""

import functools
import gzip
import hashlib

import numpy as np

from prednet_jax.data.shipped import shipped_bytes
from prednet_jax.data.stills import Stills, scaled

SIDE = 28


@functools.cache
def digits() -> Stills:
    """The digits as 28x28 pictures, white on black.

    Returns:
        The pictures, in scikit-learn's order.

    Raises:
        DataError: If scikit-learn or its file is missing.
    """
    # Not with `sklearn.datasets`: its import takes as long as training a small network.
    packed = shipped_bytes(
        "digits",
        "sklearn",
        "datasets/data/digits.csv.gz",
        requirement="scikit-learn>=1.5",
    )
    # 64 pixels row by row, then the label.
    table = np.loadtxt(gzip.decompress(packed).decode().splitlines(), delimiter=",")
    small = table[:, :-1].reshape(-1, 8, 8)
    grey = np.rint(small * (255 / 16)).astype(np.uint8)
    pictures = np.stack([scaled(picture, SIDE, SIDE) for picture in grey])
    return Stills(
        name="digits",
        total=len(pictures),
        picture=lambda index: pictures[index],
        fingerprint=hashlib.sha256(pictures.tobytes()).hexdigest(),
    )
