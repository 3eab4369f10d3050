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
import numpy as np
from absl import flags, logging

from prednet_jax import data
from prednet_jax.errors import UserError

FLAGS = flags.FLAGS
# Height, width and channels of each; None: as asked for.
DATASETS = {
    "walk": None,
    "image_sequence": None,
    "fpsi": (120, 160, 3),
    "kitti_raw": (128, 160, 3),
    "mnist": (28, 28, 1),
    "moving_mnist_test": (64, 64, 1),
}
# Flags that only these data sets have.
ONLY = {
    "height": ("walk", "image_sequence"),
    "width": ("walk", "image_sequence"),
    "crop": ("image_sequence",),
    "frames": ("walk",),
    "seed": ("walk",),
}
flags.DEFINE_enum("dataset", None, list(DATASETS), "Which one.", required=True)
flags.DEFINE_string("source", None, "Folder or file of the originals.")
flags.DEFINE_string(
    "data_dir",
    None,
    "Where to keep it; default: TFDS_DATA_DIR, else ~/tensorflow_datasets.",
)
flags.DEFINE_integer("height", 120, "Rows (walk, image_sequence).", lower_bound=1)
flags.DEFINE_integer("width", 160, "Columns (walk, image_sequence).", lower_bound=1)
flags.DEFINE_enum("crop", "auto", data.CROPS, "Of image_sequence.")
flags.DEFINE_integer("frames", 5000, "Frames of the walk.", lower_bound=1)
flags.DEFINE_integer("seed", 0, "Of the walk.")


def main(argv: list[str]) -> None:
    """Checks, prepares, says what to do next."""
    del argv
    logging.set_verbosity(logging.ERROR)  # What TFDS warns of is no mistake here.
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
    from prednet_jax.data import builders

    names = [name for name, owners in ONLY.items() if FLAGS.dataset in owners]
    options = {name.replace("frames", "length"): FLAGS[name].value for name in names}
    made = builders.prepare(FLAGS.dataset, FLAGS.source, folder, **options)
    print(f"{made}: prepared; {training(made)} --workdir=DIR trains on it")


def training(made: str) -> str:
    """The command that trains on the data set of a folder."""
    size = DATASETS[FLAGS.dataset] or (FLAGS.height, FLAGS.width, 3)
    height, width, channels = size
    words = [f"--data={made}"]
    if FLAGS.dataset == "mnist":
        words.append("--model=autoencoder")
    else:
        source = data.open_source(made, height=height, width=width, channels=channels)
        # Each layer above the first halves both sides.
        halves = sum(height % 2**n == 0 == width % 2**n for n in (1, 2, 3))
        widths = (channels, 48, 96, 192)[: 1 + halves]
        longest = int(np.diff(source.boundaries, append=source.length).max())
        words += [f"--channels={','.join(map(str, widths))}", f"--height={height}"]
        words += [f"--width={width}", f"--window={min(20, longest)}"]
    return f"python experiments/train.py {shlex.join(words)}"


if __name__ == "__main__":
    _cli.run(main)
