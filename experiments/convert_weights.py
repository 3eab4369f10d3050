r"""Converts weights between the formats that people keep them in.

    python experiments/convert_weights.py --input=runs/first --output=first.safetensors
    python experiments/convert_weights.py --input=prednet.hdf5 --output=prednet_orbax \
        --height=128 --width=160

Input: a run of train.py (of an unfinished one its newest checkpoint), a Chainer npz, a
Keras HDF5 file, a PyTorch state dict (.pth or safetensors; --variant says of which
port), a safetensors file, an orbax directory, or a name of prednet_jax.pretrained.
Output, by its suffix:

    .npz .model      Chainer's layout (networks of the variant watanabe)
    .hdf5 .h5        Keras's layout, with the model as .json beside it (lotter)
    .safetensors     safetensors, the network in its metadata
    none             an orbax directory, with the network in network.json
"""

from pathlib import Path

import _cli
from absl import flags

from prednet_jax import process, weights
from prednet_jax.config import PredNetConfig
from prednet_jax.errors import UserError

FLAGS = flags.FLAGS
flags.DEFINE_string("input", None, "File or directory to read.", required=True)
flags.DEFINE_string("output", None, "File or directory to write.", required=True)
flags.DEFINE_integer(
    "height",
    None,
    "Rows of a frame of a Keras or PyTorch file; default: of its model, or 120.",
    lower_bound=1,
)
flags.DEFINE_integer("width", None, "Columns of a frame, likewise.", lower_bound=1)
flags.DEFINE_float(
    "pixel_max",
    None,
    "Upper clip of the bottom prediction, likewise; of a PyTorch file the largest "
    "pixel that it was trained on.",
)
flags.DEFINE_enum(
    "variant", None, tuple(weights.PORTS), "Port that a PyTorch file is of."
)
flags.DEFINE_bool("overwrite", False, "Replace what is there, of files.")


def main() -> None:
    """Checks, reads, writes."""
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
        raise UserError(f"--input={FLAGS.input}: of autoencoder; expected prednet")
    for name in ("height", "width", "variant", "pixel_max"):
        given, own = FLAGS[name].value, getattr(config, name)
        scaled = name == "pixel_max" and weights.is_port(FLAGS.input)
        if given not in (None, own) and not scaled:
            raise UserError(f"--{name}={given}: expected {own}, as in {FLAGS.input}")
    try:
        save(output, config, params)
    except UserError as error:
        raise UserError(
            f"--output={output}: {error}, which such a file holds"
        ) from None
    print(f"{output}: {config.variant}, channels {config.channels}")


if __name__ == "__main__":
    _cli.run(main)
