"""The measured thresholds of the models, and how `auto` chooses an algorithm.

Each number stands beside the command that measures it. All were measured on two AVX-512
processors, at the sizes `--height=120 --width=160 --channels=3,48,96,192`,
`--channels=3,12,24,48` (64x48, the default) and `--height=24 --width=32
--channels=3,6,12`. docs/measurements.md has the figures. The noise transform keeps its
own thresholds.
"""

import jax.numpy as jnp
from jax.typing import DTypeLike

from prednet_jax.models.shapes import Convolution

# The next three are used by `fastest`. The command times each algorithm on each
# convolution of a network and marks the choice of `auto`:
#     python experiments/benchmark.py --suite=conv
# `wide4` is the fastest up to this number of input and output channels.
NARROW_CHANNELS = 16
# From this number of channels on (the smaller of input and output), Winograd's
# algorithm saves more on products than its transforms of the maps cost.
WINOGRAD_CHANNELS = 96
# In maps of fewer pixels most of the time goes into reading the kernel, and F(4,3)
# enlarges the kernel more than F(2,3) does.
FEW_PIXELS = 600

# Used by `convolution.filter_gradient`: most pixels in one chunk. With 6,200 or 4,000
# the step was 2 to 8 % slower and needed 3 MB less:
#     python experiments/benchmark.py --suite=step
CHUNK_PIXELS = 12_000

# Used by `parameters`: how many numbers are drawn in one call. The generator's unrolled
# rounds take a third of a second to compile per shape, so all parameters are drawn in
# blocks of one shape. The weights of a seed depend on this number.
#     time python -c "import jax, prednet_jax as p;
#         p.init_params(p.PredNetConfig(), jax.random.key(0))"
DRAW_BLOCK = 2**16


def fastest(shape: Convolution, backend: str, dtype: DTypeLike = jnp.float32) -> str:
    """The algorithm that `auto` chooses: the fastest one measured for such shapes.

    Args:
      shape: the convolution.
      backend: name of the platform, as from `jax.default_backend()`.
      dtype: dtype of the maps and the kernel.

    Returns:
      A name of `convolution.ALGORITHMS`.
    """
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
