"""Which convolutions a network has, and how a scan over time runs them.

The gates of a layer see the layer above through up(h), the nearest-neighbour x2
enlargement. Those convolutions are marked `upsampled`: their input arrives at half the
size, so that an algorithm may fold the enlargement into the kernel, since
conv(up(h), K) is four 2x2 convolutions of h, one for each phase of the output, 16 taps
at a quarter of the pixels instead of 9 at all of them.
"""

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Convolution:
    """One convolution of the network: odd filter, stride 1, zero 'same' padding.

    Attributes:
        height: rows of the output map.
        width: columns of the output map.
        in_channels: channels of the input.
        out_channels: channels of the output.
        filter_size: odd k of the k x k kernel.
        upsampled: the input comes at half height and width and is enlarged first.
        algorithm: one of `config.CONVOLUTIONS`.
    """

    height: int
    width: int
    in_channels: int
    out_channels: int
    filter_size: int
    upsampled: bool = False
    algorithm: str = "auto"
