"""How far trainings got: mean loss beside that of copying the last frame, as a table.

    python experiments/train.py --updates=2000 --seeds=0,1 --workdir=runs/long
    python experiments/learning_curve.py --runs=runs/long/seed_0,runs/long/seed_1

Prints, and with --output writes, a row per run and --every updates.
"""

from pathlib import Path

import _cli
import _flags
import numpy as np
from absl import flags

from prednet_jax import records
from prednet_jax.errors import UserError

FLAGS = flags.FLAGS
flags.DEFINE_list("runs", None, "Directories of runs of train.py.", required=True)
flags.DEFINE_integer("every", 500, "Updates of a row.")
flags.DEFINE_string("output", None, "A .csv file to write.")


def main(argv: list[str]) -> None:
    """Reads, takes means, prints, writes."""
    del argv
    _flags.check_numbers(1, "every")
    rows = [row for run in FLAGS.runs for row in curve(Path(run), FLAGS.every)]
    for row in rows:
        ratio = float(row["loss"]) / float(row["copy_last_frame_loss"])
        print(f"seed {row['seed']}, update {row['update']}: {ratio:.2f} of copying")
    if FLAGS.output:
        records.write_csv(FLAGS.output, rows)


def curve(folder: Path, every: int) -> list[dict[str, object]]:
    """Means over every so many updates, an unfinished rest left out.

    Raises:
        UserError: the directory is no run, or one of single images.
    """
    run = records.read_run(folder)
    copied = run.metrics.get("copy_last_frame_loss")
    if copied is None or not np.isfinite(copied).all():
        raise UserError(f"--runs={folder}: its images have none before them to copy")
    rows: list[dict[str, object]] = []
    for begin in range(0, len(copied) - every + 1, every):
        part = slice(begin, begin + every)
        rows.append(
            {
                "seed": run.manifest["seed"],
                "update": begin + every,
                "loss": f"{run.metrics['loss'][part].mean():.6g}",
                "copy_last_frame_loss": f"{copied[part].mean():.6g}",
                "seconds": f"{run.metrics['seconds'][part].sum():.3g}",
            }
        )
    return rows


if __name__ == "__main__":
    _cli.run(main)
