"""Every number of the models that a machine measured, and the rule of `auto`.

All were measured on two AVX-512 processors, each beside the command that shows it; the
sizes are `--height=120 --width=160 --channels=3,48,96,192`, `--channels=3,12,24,48`
(64x48, the default) and `--height=24 --width=32 --channels=3,6,12`. Figures are in
docs/measurements.md. The noise transform keeps its own thresholds.
"""

import jax.numpy as jnp
from jax.typing import DTypeLike

from prednet_jax.models.shapes import Convolution

# Used by `fastest`; each algorithm on each convolution of a network, with the choice of
# `auto` marked:
#     python experiments/benchmark.py --suite=conv
# Channels (input and output) up to which `wide4` is the fastest.
NARROW_CHANNELS = 16
# Channels (the fewer of input and output) from which the products that Winograd saves
# are worth more than its transforms of the maps.
WINOGRAD_CHANNELS = 96
# Pixels of a map below which what counts is reading the kernel, which F(4,3) enlarges
# more than F(2,3) does.
FEW_PIXELS = 600

# Used by `convolution.filter_gradient`: pixels that one chunk holds at most. 6,200 and
# 4,000 made the step 2 to 8 % slower and saved 3 MB:
#     python experiments/benchmark.py --suite=step
CHUNK_PIXELS = 12_000

# Used by `parameters`: numbers drawn at a time. The generator's unrolled rounds take a
# third of a second to compile for each shape, so that all parameters are drawn in
# blocks of one shape. Part of the seed's meaning: another size draws other weights.
#     time python -c "import jax, prednet_jax as p;
#         p.init_params(p.PredNetConfig(), jax.random.key(0))"
DRAW_BLOCK = 2**16


def fastest(shape: Convolution, backend: str, dtype: DTypeLike = jnp.float32) -> str:
    """The fastest algorithm measured for a shape: what `auto` means.

    Args:
      shape: the convolution.
      backend: platform name, as `jax.default_backend()` gives it.
      dtype: of the maps and the kernel.

    Returns:
      A name of `convolution.ALGORITHMS`.
    """
    if backend != "cpu":
        return "xla"
    # XLA has convolution kernels for the CPU in single and half precision only; in
    # double it runs plain loops, and takes twice as long as the matrix products.
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
