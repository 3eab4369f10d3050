"""How far trainings got: mean loss beside that of copying the last frame, as a table.

    python experiments/train.py --updates=2000 --seeds=0,1 --workdir=runs/long
    python experiments/learning_curve.py --runs=runs/long/seed_0,runs/long/seed_1

Prints, and with --output writes, a row per run and --every updates.
"""

from pathlib import Path

import _cli
import _flags
import numpy as np
import pandas as pd
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
    if not FLAGS.runs:
        raise UserError("--runs=: expected directories of runs of train.py")
    table = pd.concat([curve(Path(run), FLAGS.every) for run in FLAGS.runs])
    for row in table.itertuples():
        ratio = row.loss / row.copy_last_frame_loss
        print(f"seed {row.seed}, update {row.update}: {ratio:.2f} of copying")
    if FLAGS.output:
        table = table.assign(seconds=table.seconds.map("{:.3g}".format))
        for name in ("loss", "copy_last_frame_loss"):
            table[name] = table[name].map("{:.6g}".format)
        records.write_csv(FLAGS.output, table.to_dict("records"))


def curve(folder: Path, every: int) -> pd.DataFrame:
    """Means over every so many updates, an unfinished rest left out.

    Raises:
        UserError: the directory is no run, one of single images, or one of fewer
            updates than a row has.
    """
    run = records.read_run(folder)
    copied = run.metrics.get("copy_last_frame_loss")
    if copied is None or not np.isfinite(copied).all():
        raise UserError(f"--runs={folder}: its images have none before them to copy")
    if len(copied) < every:
        raise UserError(
            f"--every={every}: expected at most {len(copied)}, the updates of {folder}"
        )
    names = ["loss", "copy_last_frame_loss", "seconds"]
    frame = pd.DataFrame({name: run.metrics[name] for name in names})
    whole = frame.iloc[: len(frame) // every * every]
    rows = whole.groupby(whole.index // every).mean()
    rows["seconds"] *= every
    rows.insert(0, "update", (rows.index + 1) * every)
    rows.insert(0, "seed", run.manifest["seed"])
    return rows


if __name__ == "__main__":
    _cli.run(main)
