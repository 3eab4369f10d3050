"""The table of algorithms, and the choice of one for a convolution."""

import functools

import jax
import jax.numpy as jnp
from jax.typing import DTypeLike

from prednet_jax.errors import UserError
from prednet_jax.models import thresholds
from prednet_jax.models.convolution import folded, products, wide, winograd
from prednet_jax.models.convolution.algorithm import Algorithm, of_enlarged
from prednet_jax.models.shapes import Convolution

ALGORITHMS: dict[str, Algorithm] = {
    "xla": wide.XLA,
    "direct": wide.DIRECT,
    "im2col": products.IM2COL,
    "shifted": products.SHIFTED,
    "wide4": wide.WIDE4,
    "strip2": winograd.STRIP2,
    "strip4": winograd.STRIP4,
    "folded": folded.FOLDED,
}


def resolve(shape: Convolution, dtype: DTypeLike = jnp.float32) -> str:
    """The name of the algorithm that computes a convolution in this process.

    Args:
      shape: the convolution; if its `algorithm` is `auto`, `thresholds.fastest`
        chooses.
      dtype: dtype of the maps and the kernel.

    Raises:
      UserError: the algorithm is unknown, or does not fit the filter size or input.
    """
    name, size = shape.algorithm, shape.filter_size
    if name == "auto":
        return thresholds.fastest(shape, jax.default_backend(), dtype)
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
