r"""Converts weights between the formats that people keep them in.

    python experiments/convert_weights.py --input=runs/first --output=first.safetensors
    python experiments/convert_weights.py --input=prednet_kitti_weights.hdf5 \
        --output=kitti.safetensors
    python experiments/convert_weights.py --input=port.pth --variant=lotter_pytorch \
        --height=128 --width=160 --output=port
    python experiments/convert_weights.py --input=walk --resize=48,64 \
        --output=walk_48x64.safetensors

--input is a run of train.py (of an unfinished run its newest checkpoint), a Chainer
npz, a Keras HDF5 file (its model is read from the JSON next to it) or .keras archive, a
PyTorch state dict (.pth or safetensors; --variant names the port), a safetensors file,
an orbax directory, or a name of prednet_jax.pretrained. The suffix of --output decides
its format:

    .npz .model      Chainer's layout (networks of the variant watanabe)
    .hdf5 .h5        Keras's layout, with the model as .json next to it (lotter)
    .safetensors     safetensors, the network in its metadata
    none             an orbax directory, with the network in network.json

--resize makes the network for frames of another size; its filters stay as they are.

The network that was read is printed. It takes a few seconds.
"""

from collections.abc import Mapping
from pathlib import Path

import _cli
import numpy as np
from absl import flags

from prednet_jax import process, resize, tasks, weights
from prednet_jax.config import PredNetConfig
from prednet_jax.errors import UserError, expect, named

FLAGS = flags.FLAGS
_cli.TOPICS |= {
    "Files": ["input", "output", "overwrite"],
    "Another size": ["resize"],
    "Network, where the file does not tell it": [
        *("variant", "height", "width", "pixel_max")
    ],
}
flags.DEFINE_string("input", None, "File or directory to read.", required=True)
flags.DEFINE_string("output", None, "File or directory to write.", required=True)
flags.DEFINE_integer(
    "height",
    None,
    "Rows of a frame of a Keras or PyTorch file. Defaults to the model, or to 128 "
    "for Keras and 120 for PyTorch.",
    lower_bound=1,
)
flags.DEFINE_integer(
    "width",
    None,
    "Columns of a frame. Defaults to the model, or to 160.",
    lower_bound=1,
)
flags.DEFINE_float(
    "pixel_max",
    None,
    "Upper clip of the bottom prediction: the largest pixel that the network was "
    "trained on. Defaults to the model, or to 1. Above 1 the weights are scaled.",
)
flags.DEFINE_enum(
    "variant", None, tuple(weights.PORTS), "Port that a PyTorch file comes from."
)
flags.DEFINE_list(
    "resize", None, "HEIGHT,WIDTH of the frames that the written network is for."
)
flags.DEFINE_bool("overwrite", False, "Replace a file that exists.")


def main() -> None:
    """Checks, reads, prints the network, and writes."""
    output = Path(FLAGS.output)
    save = weights.writer(output)
    for place in weights.written(output):
        if place.exists() and not (FLAGS.overwrite and place.is_file()):
            raise UserError(
                f"--output={output}: {place} exists; expected a new path, or "
                "--overwrite for a file"
            )
    if output.suffix and not output.parent.is_dir():
        raise UserError(
            f"--output={output}: no directory {output.parent}; expected one that exists"
        )
    process.prepare(threads=1)
    config, params = weights.load(
        FLAGS.input,
        height=FLAGS.height,
        width=FLAGS.width,
        pixel_max=FLAGS.pixel_max,
        variant=FLAGS.variant,
    )
    if not isinstance(config, PredNetConfig):
        raise UserError(
            f"--input={FLAGS.input}: holds the network {tasks.of(config).name}; "
            "expected a PredNet, the only network that other formats have"
        )
    for name in ("height", "width", "variant", "pixel_max"):
        given, own = FLAGS[name].value, getattr(config, name)
        scaled = name == "pixel_max" and weights.scales_pixels(FLAGS.input)
        if given not in (None, own) and not scaled:
            raise UserError(f"--{name}={given}: expected {own}, as in {FLAGS.input}")
    print_network(config, params)
    if FLAGS.resize is not None:
        config, params = resized(config, params)
    try:
        save(output, config, params)
    except UserError as error:
        raise UserError(
            f"--output={output}: {error}, which such a file holds"
        ) from None
    print(f"{output}: written")


def resized(config: PredNetConfig, params: dict) -> tuple[PredNetConfig, dict]:
    """Returns the network for frames of --resize."""
    text = ",".join(FLAGS.resize)
    expect(
        len(FLAGS.resize) == 2 and all(size.isdecimal() for size in FLAGS.resize),
        *("--resize", text, "HEIGHT,WIDTH, as in 48,64"),
    )
    height, width = map(int, FLAGS.resize)
    with named(f"--resize={text}"):
        return resize(config, params, height=height, width=width)


def print_network(config: PredNetConfig, params: Mapping) -> None:
    """Prints the network that was read."""
    count = sum(np.size(leaf) for group in params.values() for leaf in group.values())
    filters = (config.a_filters, config.ahat_filters, config.r_filters)
    print(
        f"{FLAGS.input}: variant {config.variant}, frames of {config.height} rows, "
        f"{config.width} columns and {config.channels[0]} channels, pixels from 0 to "
        f"{config.pixel_max:g}\nchannels {config.channels}, r_channels "
        f"{config.recurrent}, filters of A, Ahat and R {filters}, {count:,} weights"
    )
    if (start := weights.extrapolation(FLAGS.input)) is not None:
        print(f"extrap_start_time {start}: --extrapolate_from={start} of predict.py")


if __name__ == "__main__":
    _cli.run(main)
