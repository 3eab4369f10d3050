"""Interchangeable algorithms for the networks' convolutions.

Every convolution has an odd k x k kernel, stride 1 and zero 'same' padding, on
`[B, H, W, C]` maps with `[k, k, in, out]` kernels; an `upsampled` one sees the
nearest-neighbour x2 enlargement of its input. They agree up to rounding, so each one is
also a fixed other order of the same sums: an experimental arm.

    xla       XLA's own convolution and its own gradients (the choice on GPUs)  [wide]
    direct    XLA's convolution for outputs and input gradients; in the filter
              gradient two neighbouring outputs share a neighbourhood           [wide]
    im2col    one matrix product over k k C neighbourhoods                  [products]
    shifted   k k matrix products over shifted maps                         [products]
    wide4     four neighbouring outputs at once as further channels             [wide]
    strip2/4  Winograd F(2,3)/F(4,3) along the width, XLA's convolution along
              the height; 3x3 only                                          [winograd]
    folded    the enlargement folded into the kernel; 3x3 and `upsampled`
              only, so never the algorithm of a whole network                 [folded]

Each is one object with four functions (`algorithm.Algorithm`) in one table
(`table.ALGORITHMS`); a new one is a new object and a new line there, and a line in
`config.CONVOLUTIONS`.

Three ways to use them (`operations`):
    conv2d(x, kernel)             differentiable in both
    prepare(...), apply_sum(...)  kernels transformed once, for many maps in a scan
    filter_gradient(x, dz, ...)   the kernel's gradient, one contraction over images
                                  (time and batch) and space

Each runs in a named scope that begins with `conv`, by which the noise profile
`chainer_cudnn` knows a convolution that is written as matrix products.
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
