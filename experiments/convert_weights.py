r"""Converts weights between the formats that people keep them in.

    python experiments/convert_weights.py --input=runs/first --output=first.safetensors
    python experiments/convert_weights.py --input=prednet.hdf5 --output=prednet_orbax \
        --height=128 --width=160

Input: a run of train.py, a Chainer npz, a Keras HDF5 file, a safetensors file or an
orbax directory. Output, by its suffix:

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
from prednet_jax.errors import UserError, whole
from prednet_jax.training import runs

FLAGS = flags.FLAGS
flags.DEFINE_string("input", None, "File or directory to read.", required=True)
flags.DEFINE_string("output", None, "File or directory to write.", required=True)
flags.DEFINE_integer("height", 120, "Rows of a frame, which a Keras file leaves open.")
flags.DEFINE_integer("width", 160, "Columns of a frame, likewise.")
flags.DEFINE_float("pixel_max", 1.0, "Upper clip of the bottom prediction, likewise.")
flags.DEFINE_bool("overwrite", False, "Replace what is there, of files.")


def main(argv: list[str]) -> None:
    """Checks, reads, writes."""
    del argv
    whole("--height", FLAGS.height, 1)
    whole("--width", FLAGS.width, 1)
    output = Path(FLAGS.output)
    save = weights.writer(output)
    for place in weights.written(output):
        if place.exists() and not (FLAGS.overwrite and place.is_file()):
            raise UserError(
                f"--output={output}: {place} exists; expected a new path, or "
                "--overwrite for a file"
            )
    process.prepare(threads=1)
    config, params = read(Path(FLAGS.input))
    try:
        save(output, config, params)
    except UserError as error:
        raise UserError(
            f"--output={output}: {error}, which such a file holds"
        ) from None
    print(f"{output}: {config.variant}, channels {config.channels}")


def read(path: Path) -> tuple[PredNetConfig, dict]:
    """Network and weights of a file, a run or an orbax directory.

    Raises:
        UserError: there is none, or the run is of another network than PredNet.
    """
    if path.is_dir() and not weights.is_orbax(path):
        task, params = runs.saved_weights(path)
        if task.name != "prednet":
            raise UserError(f"--input={path}: of {task.name}; expected prednet")
        return task.config, params
    return weights.load(
        path, height=FLAGS.height, width=FLAGS.width, pixel_max=FLAGS.pixel_max
    )


if __name__ == "__main__":
    _cli.run(main)
