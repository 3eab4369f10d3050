"""Prepares a data set for reading by frame number, without TensorFlow.

    python experiments/prepare_data.py --dataset=kitti_raw --source=DOWNLOADED
    python experiments/prepare_data.py --dataset=image_sequence --source=film.avi
    python experiments/prepare_data.py --dataset=mnist --source=DOWNLOADED

Nothing is downloaded: --source is the folder of the files that you brought (for
image_sequence a folder of images, a list, or a video). What is missing is named, with
where to get it. The frames lie in --data_dir afterwards, as TensorFlow Datasets keeps
them (ArrayRecord), and the last line says how to train on them.
"""

import os
from pathlib import Path
from typing import Any

import _cli
import _flags
from absl import flags, logging

from prednet_jax import data
from prednet_jax.errors import UserError

FLAGS = flags.FLAGS
DATASETS = (
    "walk", "image_sequence", "fpsi", "kitti_raw", "mnist", "moving_mnist_test",
)  # fmt: skip
flags.DEFINE_enum("dataset", None, DATASETS, "Which one.", required=True)
flags.DEFINE_string("source", None, "Folder or file of the originals.")
flags.DEFINE_string(
    "data_dir",
    None,
    "Where to keep it; default: TFDS_DATA_DIR, else ~/tensorflow_datasets.",
)
flags.DEFINE_integer("height", 120, "Rows (walk, image_sequence, fpsi).")
flags.DEFINE_integer("width", 160, "Columns (walk, image_sequence, fpsi).")
flags.DEFINE_enum("crop", "center", data.CROPS, "Of image_sequence.")
flags.DEFINE_integer("frames", 5000, "Frames of the walk.")
flags.DEFINE_integer("seed", 0, "Of the walk.")


def main(argv: list[str]) -> None:
    """Checks, prepares, says what to do next."""
    del argv
    logging.set_verbosity(logging.ERROR)  # What TFDS warns of is no mistake here.
    _flags.check_numbers(1, "height", "width", "frames")
    folder = FLAGS.data_dir or os.environ.get("TFDS_DATA_DIR")
    folder = os.path.expanduser(folder or "~/tensorflow_datasets")
    if FLAGS.dataset != "walk" and FLAGS.source is None:
        raise UserError(f"--dataset={FLAGS.dataset}: expected --source beside it")
    if FLAGS.source is not None and not os.path.exists(FLAGS.source):
        raise UserError(f"--source={FLAGS.source}: no such folder or file")
    made = data.prepare(
        FLAGS.dataset,
        FLAGS.source,
        folder,
        height=FLAGS.height,
        width=FLAGS.width,
        crop=FLAGS.crop,
        frames=FLAGS.frames,
        seed=FLAGS.seed,
    )
    asked: Any = f"TFDS_DATA_DIR={folder} python" if FLAGS.data_dir else "python"
    shown = f"{asked} experiments/train.py --data=mnist --model=autoencoder"
    if FLAGS.dataset != "mnist":
        shown = f"python experiments/train.py --data={Path(made)}"
    print(f"{made}: prepared; {shown} --workdir=DIR trains on it")


if __name__ == "__main__":
    _cli.run(main)
