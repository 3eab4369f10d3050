"""What the runs of a comparison would refuse, refused before the first one starts."""

from prednet_jax import backends, data
from prednet_jax.config import AutoencoderConfig, PredNetConfig
from prednet_jax.study.design import Design
from prednet_jax.training import loop


def check(design: Design) -> None:
    """Checks a design against this machine; the constructor has checked it by itself.

    Nothing is written. An earlier comparison is removed only after this has passed.

    Args:
        design: the comparison.

    Raises:
        ValueError: the root is no directory, an arm wants more processors than there
            are, or the frames of a model cannot be opened or do not fill one window.
    """
    if design.root.exists() and not design.root.is_dir():
        raise ValueError(f"workdir={design.root}: a file; expected a directory")
    for arm in design.chosen:
        if arm.threads is None:
            continue
        try:
            backends.check_threads(arm.threads)
        except ValueError as error:
            raise ValueError(f"arm={arm.name!r}: {error}") from None
    for model in design.models:
        _check_source(design, model)


def _check_source(design: Design, model: str) -> None:
    """Opens a model's frames and plans its updates, as `train.py` does."""
    network: PredNetConfig | AutoencoderConfig
    if model == "prednet":
        field, name, network = "data", design.data, design.network
        channels = design.network.channels[0]
    else:
        field, name = "images", design.images
        channels = data.own_size(name)[2]
        network = AutoencoderConfig(channels=channels)
    try:
        source = data.open_source(
            name, height=network.height, width=network.width, channels=channels
        )
        loop.frame_schedule(
            network, source, window=design.window, updates=design.updates_of(model)
        )
    except ValueError as error:
        raise ValueError(f"{field}: {error}") from None
