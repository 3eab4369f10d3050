"""Frozen, validated settings of the two networks, and the convolutions of PredNet.

This module does not import JAX.

Sources: Lotter, Kreiman & Cox, arXiv 1605.08104 (variant `lotter`); the Chainer
implementation quadjr/PredNet and eijwat/prednet_in_chainer_py3 (variant `watanabe`);
the PyTorch ports eijwat/prednet_in_pytorch (`watanabe_pytorch`) and
leido/pytorch-prednet (`lotter_pytorch`).
"""

from dataclasses import dataclass
from typing import Any

from prednet_jax.errors import UserError, check_int, expect, one_of, positive

VARIANTS = ("lotter", "watanabe", "lotter_pytorch", "watanabe_pytorch")
CONVOLUTIONS = tuple(
    ["auto", "xla", "direct", "im2col", "shifted", "wide4", "strip2", "strip4", "mixed"]
)


def _widths(name: str, values: Any) -> tuple[int, ...]:
    wanted = "one width per layer"
    expect(isinstance(values, tuple | list) and values, name, values, wanted)
    return tuple(check_int(f"{name}[{i}]", v, 1) for i, v in enumerate(values))


def _filters(name: str, value: object, layers: int) -> tuple[int, ...]:
    sizes = value if isinstance(value, (tuple, list)) else (value,) * layers
    expect(len(sizes) == layers, name, value, f"one odd size, or a list of {layers}")
    for size in sizes:
        if check_int(name, size, 1) % 2 == 0:
            raise UserError(f"{name}={value!r}: {size} is even; expected odd sizes")
    return tuple(sizes)


@dataclass(frozen=True, kw_only=True)
class PredNetConfig:
    """Settings of a PredNet.

    Attributes:
        channels: channels of A (and of its prediction) per layer, bottom first;
            `channels[0]` is the number of channels of a frame.
        variant: `lotter` (Keras original), `watanabe` (Chainer form), or a PyTorch port
            of either, `lotter_pytorch` or `watanabe_pytorch`.
        height: rows of a frame; divisible by 2^(layers - 1).
        width: columns of a frame; divisible by 2^(layers - 1).
        r_channels: channels of the recurrent state per layer. Defaults to `channels`.
        pixel_max: upper bound of the bottom prediction, in pixel units (> 0).
        a_filters: odd filter size of the convolutions E -> A: one number for all, or
            a list of layers - 1 numbers.
        ahat_filters: odd filter size of the predictions: one number, or one per layer.
        r_filters: odd filter size of the ConvLSTM gates: one number, or one per layer.
        convolution: algorithm of the convolutions; `auto` chooses the fastest for a
            shape and a batch (`models.convolution.fastest`).
    """

    channels: tuple[int, ...] = (3, 48, 96, 192)
    variant: str = "watanabe"
    height: int = 120
    width: int = 160
    r_channels: tuple[int, ...] | None = None
    pixel_max: float = 1.0
    a_filters: int | tuple[int, ...] = 3
    ahat_filters: int | tuple[int, ...] = 3
    r_filters: int | tuple[int, ...] = 3
    convolution: str = "auto"

    def __post_init__(self) -> None:
        def put(name: str, value: object) -> None:
            object.__setattr__(self, name, value)

        put("channels", _widths("channels", self.channels))
        one_of("variant", self.variant, VARIANTS)
        one_of("convolution", self.convolution, CONVOLUTIONS)
        layers = len(self.channels)
        r_channels = self.channels if self.r_channels is None else self.r_channels
        put("r_channels", _widths("r_channels", r_channels))
        wanted = f"{layers} widths, one per layer"
        expect(len(self.recurrent) == layers, "r_channels", self.r_channels, wanted)
        put("a_filters", _filters("a_filters", self.a_filters, layers - 1))
        put("ahat_filters", _filters("ahat_filters", self.ahat_filters, layers))
        put("r_filters", _filters("r_filters", self.r_filters, layers))
        multiple = 2 ** (layers - 1)
        shown = f"{multiple} " if layers < 64 else ""
        wanted = f"a multiple of {shown}(2^(layers - 1), {layers} layers)"
        for name in ("height", "width"):
            value = check_int(name, getattr(self, name), 1)
            put(name, value)
            expect(value % multiple == 0, name, value, wanted)
        positive("pixel_max", self.pixel_max)
        put("pixel_max", float(self.pixel_max))

    @property
    def pass_order(self) -> str:
        """Order of the two passes in a frame.

        `lotter` is top-down first, `watanabe` bottom-up.
        """
        return self.variant.removesuffix("_pytorch")

    @property
    def ported(self) -> bool:
        """Whether it has the cell of the PyTorch ports."""
        return self.variant != self.pass_order

    @property
    def peepholes(self) -> bool:
        """Whether each unit's gates see its old cell, which fixes the frame size."""
        return self.variant == "watanabe"

    @property
    def layers(self) -> int:
        """Number of layers L."""
        return len(self.channels)

    @property
    def recurrent(self) -> tuple[int, ...]:
        """Widths of the recurrent state, bottom first."""
        return self.r_channels if self.r_channels is not None else self.channels

    def size(self, layer: int) -> tuple[int, int]:
        """Returns height and width of the maps of a layer (halved at each layer)."""
        return self.height >> layer, self.width >> layer


#: PredNets of three sizes: that of the comparison, one between, and the article's.
SMALL = PredNetConfig(channels=(3, 6, 12), height=24, width=32)
MIDDLE = PredNetConfig(channels=(3, 12, 24, 48), height=48, width=64)
ARTICLE = PredNetConfig(channels=(3, 48, 96, 192), height=120, width=160)
SIZES = {"24x32": SMALL, "64x48": MIDDLE, "160x120": ARTICLE}


@dataclass(frozen=True, kw_only=True)
class AutoencoderConfig:
    """A plain dense encoder-decoder, the control experiment of arXiv 2109.01451.

    Attributes:
        hidden: widths of the hidden layers, input side first.
    """

    height: int = 28
    width: int = 28
    channels: int = 1
    hidden: tuple[int, ...] = (128, 32, 128)

    def __post_init__(self) -> None:
        for name in ("height", "width", "channels"):
            check_int(name, getattr(self, name), 1)
        object.__setattr__(self, "hidden", _widths("hidden", self.hidden))

    @property
    def pixels(self) -> int:
        """Values in one image."""
        return self.height * self.width * self.channels


@dataclass(frozen=True, kw_only=True)
class Convolution:
    """A convolution of a PredNet: odd k x k kernel, stride 1, zero 'same' padding.

    Height and width are the output's. `algorithm` is one of `CONVOLUTIONS`.

    The gates of a layer see the hidden state of the layer above, enlarged x2 by its
    nearest neighbours. Those convolutions are `upsampled`, and take the small map, so
    that an algorithm may fold the enlargement into the kernel (`convolution.winograd`).
    """

    height: int
    width: int
    in_channels: int
    out_channels: int
    filter_size: int
    upsampled: bool = False
    algorithm: str = "auto"


def convolutions(config: PredNetConfig) -> dict[str, Convolution]:
    """Returns shape and algorithm of each convolution, by name of `models.step`."""
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
