"""Interchangeable algorithms for the networks' convolutions.

Every convolution has an odd k x k kernel `[k, k, in, out]`, stride 1 and zero 'same'
padding, and acts on maps `[B, H, W, C]`. An `upsampled` one acts on the
nearest-neighbour x2 enlargement of its input. The algorithms agree up to rounding: each
adds the same numbers in another fixed order, so each can be an arm of the comparison.

    xla       XLA's own convolution and gradients; `auto` takes it on GPUs      [wide]
    direct    XLA's convolution for outputs and input gradients; the filter
              gradient computes two neighbouring outputs together               [wide]
    im2col    one matrix product with neighbourhoods of k k C values        [products]
    shifted   k k matrix products with shifted maps                         [products]
    wide4     four neighbouring outputs together, as further channels           [wide]
    strip2/4  Winograd F(2,3)/F(4,3) along the width, XLA's convolution along
              the height; 3x3 only                                          [winograd]
    folded    the enlargement folded into the kernel; 3x3 and `upsampled`
              only, so it cannot be the algorithm of a whole network          [folded]

Each is one object with four functions (`algorithm.Algorithm`) in one table
(`table.ALGORITHMS`). A new one is a new object, a line in that table and a line in
`config.CONVOLUTIONS`.

`operations` has three ways to use them:
    conv2d(x, kernel)             differentiable in both arguments
    prepare(...), apply_sum(...)  transform kernels once and use them for many maps, as
                                  in a scan
    filter_gradient(x, dz, ...)   the gradient of a kernel, one contraction over images
                                  (time and batch) and space

Each runs in a named scope that begins with `conv`. By that name the noise profile
`chainer_cudnn` recognises a convolution that is written as matrix products.
"""

from prednet_jax.models.convolution.operations import (
    Prepared,
    apply_sum,
    apply_tapped,
    conv2d,
    filter_gradient,
    prepare,
    side_by_side,
)
from prednet_jax.models.convolution.table import ALGORITHMS, find, resolve

__all__ = [
    "ALGORITHMS",
    "Prepared",
    "apply_sum",
    "apply_tapped",
    "conv2d",
    "filter_gradient",
    "find",
    "prepare",
    "resolve",
    "side_by_side",
]
