"""The convolutions of a network, by their names in the parameters.

The gates of a layer see the hidden state of the layer above, enlarged x2 by its nearest
neighbours. Those convolutions are marked `upsampled`. Their input has half the size, so
that an algorithm may fold the enlargement into the kernel (`convolution.winograd`).
"""

from dataclasses import dataclass

from prednet_jax.config import PredNetConfig


@dataclass(frozen=True, kw_only=True)
class Convolution:
    """A convolution of the network: odd k x k kernel, stride 1, zero 'same' padding.

    Height and width are those of the output; if `upsampled` the input has half of them
    and is enlarged x2 first. `algorithm` is one of `config.CONVOLUTIONS`.
    """

    height: int
    width: int
    in_channels: int
    out_channels: int
    filter_size: int
    upsampled: bool = False
    algorithm: str = "auto"


def convolutions(config: PredNetConfig) -> dict[str, Convolution]:
    """Shape and algorithm of each convolution, by the names of `models.step`."""
    table = {}
    for layer, (channels, recurrent) in enumerate(
        zip(config.channels, config.recurrent, strict=True)
    ):
        height, width = config.size(layer)
        r_filter = config.r_filters[layer]  # type: ignore[index]
        # Filter size, input channels, output channels.
        sizes = {
            "gates": (r_filter, recurrent + 2 * channels, 4 * recurrent),
            "prediction": (config.ahat_filters[layer], recurrent, channels),  # type: ignore[index]
        }
        if config.ported:
            sizes["cell"] = (r_filter, recurrent, 3 * recurrent)
        if layer + 1 < config.layers:
            above = layer + 1
            sizes["top_down"] = (r_filter, config.recurrent[above], 4 * recurrent)
            a_filter = config.a_filters[layer]  # type: ignore[index]
            sizes["features"] = (a_filter, 2 * channels, config.channels[above])
        for kind, (filter_size, inputs, outputs) in sizes.items():
            table[f"{kind}_{layer}"] = Convolution(
                height=height,
                width=width,
                in_channels=inputs,
                out_channels=outputs,
                filter_size=filter_size,
                upsampled=kind == "top_down",
                algorithm=config.convolution,
            )
    return table
