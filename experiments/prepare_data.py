"""Prepares a data set of published results, without TensorFlow.

    python experiments/prepare_data.py --dataset=mnist --source=DOWNLOADED
    python experiments/prepare_data.py --dataset=mnist --source=FOLDER --data_dir=DIR
    python experiments/prepare_data.py --dataset=kitti_raw --source=DOWNLOADED

Nothing is downloaded: --source is the folder of the files that you have downloaded. A
missing file is named, with its address. A bar shows the progress: a picture of KITTI
takes 20 milliseconds, all of them a quarter of an hour. The last line names the --data
of the result. coxlab's .hkl files of KITTI and the published file of Moving
MNIST need no preparation: --data=FILE.
"""

import os
from pathlib import Path

import _cli
from absl import flags, logging

from prednet_jax.errors import UserError

FLAGS = flags.FLAGS
# What --data takes afterwards, where it is not the path that was written.
DATASETS = {"mnist": "mnist or moving_mnist", "kitti_raw": ""}
flags.DEFINE_enum(
    "dataset", None, list(DATASETS), "Data set to prepare.", required=True
)
flags.DEFINE_string("source", None, "Folder of the original files.", required=True)
flags.DEFINE_string(
    "data_dir",
    None,
    "Folder to write. Defaults to TFDS_DATA_DIR, or else to ~/tensorflow_datasets.",
)


def main() -> None:
    """Checks the flags, prepares the data, and prints the next step."""
    logging.set_verbosity(logging.ERROR)  # What TFDS warns of is no mistake here.
    source = Path(os.path.expanduser(FLAGS.source))
    if not source.is_dir():
        raise UserError(
            f"--source={FLAGS.source}: expected the folder of the downloaded files"
        )
    folder = FLAGS.data_dir or os.environ.get("TFDS_DATA_DIR")
    folder = Path(os.path.expanduser(folder or "~/tensorflow_datasets"))
    from prednet_jax.data import builders

    made = builders.prepare(FLAGS.dataset, source, folder, progress=_cli.progress)
    print(f"{made}: prepared; read with --data={DATASETS[FLAGS.dataset] or made}")


if __name__ == "__main__":
    _cli.run(main)
