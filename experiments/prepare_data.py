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
import shlex

import _cli
import _flags
import numpy as np
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
flags.DEFINE_integer("height", 120, "Rows (walk, image_sequence).")
flags.DEFINE_integer("width", 160, "Columns (walk, image_sequence).")
flags.DEFINE_enum("crop", "center", data.CROPS, "Of image_sequence.")
flags.DEFINE_integer("frames", 5000, "Frames of the walk.")
flags.DEFINE_integer("seed", 0, "Of the walk.")
# Flags that only these data sets have.
ONLY = {
    "height": ("walk", "image_sequence"),
    "width": ("walk", "image_sequence"),
    "crop": ("image_sequence",),
    "frames": ("walk",),
    "seed": ("walk",),
}
# Height, width and channels of those that have a size of their own.
SIZES = {
    "fpsi": (120, 160, 3), "kitti_raw": (128, 160, 3), "moving_mnist_test": (64, 64, 1)
}  # fmt: skip


def main(argv: list[str]) -> None:
    """Checks, prepares, says what to do next."""
    del argv
    logging.set_verbosity(logging.ERROR)  # What TFDS warns of is no mistake here.
    _flags.check_numbers(1, "height", "width", "frames")
    for name, owners in ONLY.items():
        if FLAGS[name].present and FLAGS.dataset not in owners:
            raise UserError(
                f"--{name}: expected none with --dataset={FLAGS.dataset}; it is for "
                f"{' and '.join(owners)}"
            )
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
    print(f"{made}: prepared; {training(made, folder)} --workdir=DIR trains on it")


def training(made: str, folder: str) -> str:
    """The command that trains on a data set.

    Args:
        made: its folder.
        folder: of all data sets.
    """
    script = "python experiments/train.py"
    if FLAGS.dataset == "mnist":
        asked = f"TFDS_DATA_DIR={shlex.quote(folder)} " if FLAGS.data_dir else ""
        return f"{asked}{script} --data=mnist --model=autoencoder"
    height, width, channels = SIZES.get(FLAGS.dataset, (FLAGS.height, FLAGS.width, 3))
    found = data.open_source(made, height=height, width=width, channels=channels)
    # Each layer above the first halves both sides.
    halves = sum(height % 2**n == 0 == width % 2**n for n in (1, 2, 3))
    widths = (channels, 48, 96, 192)[: 1 + halves]
    longest = int(np.diff(found.boundaries, append=found.length).max())
    words = [f"--data={made}", f"--channels={','.join(map(str, widths))}"]
    words += [f"--height={height}", f"--width={width}", f"--window={min(20, longest)}"]
    return f"{script} {shlex.join(words)}"


if __name__ == "__main__":
    _cli.run(main)
