"""The table of algorithms, and the choice of one for a convolution.

The thresholds of `fastest` were measured on two AVX-512 processors, at the sizes
`--height=120 --width=160 --channels=3,48,96,192`, `--channels=3,12,24,48` (64x48) and
`--height=24 --width=32 --channels=3,6,12`, by `experiments/benchmark.py --suite=conv`
of commit 09c1a23. docs/measurements.md has the figures.
"""

import functools

import jax
import jax.numpy as jnp
from jax.typing import DTypeLike

from prednet_jax.errors import UserError
from prednet_jax.models.convolution import folded, wide, winograd
from prednet_jax.models.convolution.algorithm import Algorithm, of_enlarged
from prednet_jax.models.shapes import Convolution

# `wide4` is the fastest up to this number of input and output channels.
NARROW_CHANNELS = 16
# From this number of channels on (the smaller of input and output), Winograd's
# algorithm saves more on products than its transforms of the maps cost.
WINOGRAD_CHANNELS = 96
# In maps of fewer pixels most of the time goes into reading the kernel, and F(4,3)
# enlarges the kernel more than F(2,3) does.
FEW_PIXELS = 600

ALGORITHMS: dict[str, Algorithm] = {
    "xla": wide.XLA,
    "direct": wide.DIRECT,
    "im2col": wide.IM2COL,
    "shifted": wide.SHIFTED,
    "wide4": wide.WIDE4,
    "strip2": winograd.STRIP2,
    "strip4": winograd.STRIP4,
    "folded": folded.FOLDED,
}


def resolve(shape: Convolution, dtype: DTypeLike = jnp.float32) -> str:
    """The name of the algorithm that computes a convolution in this process.

    Args:
      shape: the convolution; if its `algorithm` is `auto`, `fastest` chooses.
      dtype: dtype of the maps and the kernel.

    Raises:
      UserError: the algorithm is unknown, or does not fit the filter size or input.
    """
    name, size = shape.algorithm, shape.filter_size
    if name == "auto":
        return fastest(shape, jax.default_backend(), dtype)
    if name not in ALGORITHMS:
        raise UserError(
            f"convolution={name!r}: expected auto or one of {', '.join(ALGORITHMS)}"
        )
    if ALGORITHMS[name].only_3x3 and size != 3:
        others = (n for n, algorithm in ALGORITHMS.items() if not algorithm.only_3x3)
        raise UserError(
            f"convolution={name!r} with filter size {size}: expected filter size 3, or "
            f"one of auto, {', '.join(others)}"
        )
    if ALGORITHMS[name].enlarges and not shape.upsampled:
        raise UserError(
            f"convolution={name!r}: expected another for an input that is not enlarged"
        )
    return name


def fastest(shape: Convolution, backend: str, dtype: DTypeLike = jnp.float32) -> str:
    """The algorithm measured to be the fastest for such shapes on a JAX backend."""
    if backend != "cpu":
        return "xla"
    # For the CPU XLA has convolution kernels in single and half precision only. In
    # double precision it runs plain loops, which take twice as long as `im2col`.
    if dtype == jnp.float64:
        return "im2col"
    if shape.filter_size != 3:
        return "direct"
    if shape.upsampled:
        return "folded"
    channels = shape.in_channels, shape.out_channels
    if max(channels) <= NARROW_CHANNELS:
        return "wide4"
    if min(channels) < WINOGRAD_CHANNELS:
        return "direct"
    return "strip2" if shape.height * shape.width < FEW_PIXELS else "strip4"


def find(shape: Convolution, dtype: DTypeLike = jnp.float32) -> Algorithm:
    """The algorithm that computes a convolution.

    If the convolution is upsampled, the algorithm takes the input before enlargement.

    Raises:
      UserError: as `resolve`.
    """
    return _for_input(resolve(shape, dtype), shape.upsampled)


@functools.cache  # JAX finds a compiled program again by the identity of the object.
def _for_input(name: str, upsampled: bool) -> Algorithm:
    algorithm = ALGORITHMS[name]
    return of_enlarged(algorithm) if upsampled > algorithm.enlarges else algorithm
