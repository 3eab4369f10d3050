"""Frozen, validated settings of the two networks. No JAX in this module.

Sources: Lotter, Kreiman & Cox, arXiv 1605.08104 (variant `lotter`); the Chainer
implementation quadjr/PredNet and eijwat/prednet_in_chainer_py3 (variant `watanabe`).
"""

from dataclasses import dataclass

VARIANTS = ("lotter", "watanabe")
CONVOLUTIONS = (
    "auto",
    "xla",
    "direct",
    "im2col",
    "shifted",
    "wide4",
    "strip2",
    "strip4",
)


def _positive_int(name: str, value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise ValueError(f"{name}={value!r}: expected a whole number of at least 1")
    return value


def _widths(name: str, values: object) -> tuple[int, ...]:
    if not isinstance(values, (tuple, list)) or not values:
        raise ValueError(f"{name}={values!r}: expected one width for each layer")
    return tuple(_positive_int(f"{name}[{i}]", v) for i, v in enumerate(values))


def _filters(name: str, value: object, layers: int) -> tuple[int, ...]:
    sizes = value if isinstance(value, (tuple, list)) else (value,) * layers
    if len(sizes) != layers:
        raise ValueError(
            f"{name}={value!r}: expected one odd size, or a list of {layers}"
        )
    for size in sizes:
        if isinstance(size, bool) or not isinstance(size, int) or size < 1:
            raise ValueError(f"{name}={value!r}: expected odd sizes of at least 1")
        if size % 2 == 0:
            raise ValueError(f"{name}={value!r}: {size} is even; expected odd sizes")
    return tuple(sizes)


def _choice(name: str, value: object, accepted: tuple[str, ...]) -> None:
    if value not in accepted:
        raise ValueError(f"{name}={value!r}: expected one of {', '.join(accepted)}")


@dataclass(frozen=True, kw_only=True)
class PredNetConfig:
    """What PredNet is built from.

    Attributes:
        channels: width of A (and its prediction) in each layer, bottom first;
            `channels[0]` is the number of channels of a frame.
        variant: `lotter` (Keras original) or `watanabe` (Chainer form).
        height: rows of a frame; divisible by 2^(layers - 1).
        width: columns of a frame; divisible by 2^(layers - 1).
        r_channels: widths of the recurrent state in each layer; None: `channels`.
        pixel_max: upper clip of the bottom prediction, in pixel units (> 0).
        a_filters: odd filter size of the convolutions E -> A, one or one for each of
            the layers - 1 of them.
        ahat_filters: odd filter size of the predictions, one or one a layer.
        r_filters: odd filter size of the ConvLSTM gates, one or one a layer.
        convolution: algorithm of the convolutions, or `auto` (see
            `models.thresholds.fastest`).

    Raises:
        ValueError: a value is outside what is accepted.
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
        _choice("variant", self.variant, VARIANTS)
        _choice("convolution", self.convolution, CONVOLUTIONS)
        layers = len(self.channels)
        r_channels = self.channels if self.r_channels is None else self.r_channels
        put("r_channels", _widths("r_channels", r_channels))
        if len(self.recurrent) != layers:
            raise ValueError(
                f"r_channels={self.r_channels!r}: expected {layers} widths, one a layer"
            )
        put("a_filters", _filters("a_filters", self.a_filters, layers - 1))
        put("ahat_filters", _filters("ahat_filters", self.ahat_filters, layers))
        put("r_filters", _filters("r_filters", self.r_filters, layers))
        multiple = 2 ** (layers - 1)
        for name in ("height", "width"):
            value = _positive_int(name, getattr(self, name))
            if value % multiple:
                raise ValueError(
                    f"{name}={value}: expected a multiple of {multiple} "
                    f"(2^(layers - 1), {layers} layers)"
                )
        if not self.pixel_max > 0:
            raise ValueError(f"pixel_max={self.pixel_max!r}: expected a value above 0")

    @property
    def layers(self) -> int:
        """Number of layers L."""
        return len(self.channels)

    @property
    def recurrent(self) -> tuple[int, ...]:
        """Widths of the recurrent state, bottom first."""
        return self.r_channels if self.r_channels is not None else self.channels

    def size(self, layer: int) -> tuple[int, int]:
        """Height and width of the maps of a layer (halved at each layer)."""
        return self.height >> layer, self.width >> layer


@dataclass(frozen=True, kw_only=True)
class AutoencoderConfig:
    """A plain dense encoder-decoder, the control experiment of arXiv 2109.01451.

    Attributes:
        height: rows of an image.
        width: columns of an image.
        channels: channels of an image.
        hidden: widths of the hidden layers, input side first.

    Raises:
        ValueError: a value is outside what is accepted.
    """

    height: int = 28
    width: int = 28
    channels: int = 1
    hidden: tuple[int, ...] = (128, 32, 128)

    def __post_init__(self) -> None:
        for name in ("height", "width", "channels"):
            _positive_int(name, getattr(self, name))
        object.__setattr__(self, "hidden", _widths("hidden", self.hidden))

    @property
    def pixels(self) -> int:
        """Values in one image."""
        return self.height * self.width * self.channels
