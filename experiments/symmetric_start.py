"""Trains PredNet from a symmetric saddle: does numerical noise help to leave it?

    python experiments/symmetric_start.py --workdir=runs/saddle --seeds=1 --deltas=0
    python experiments/symmetric_start.py --workdir=runs/saddle --arms=float32,tile
    python experiments/symmetric_start.py --workdir=results/study/A        (the study)

Channels i and i + n/2 of each even width n are made twins, which exact arithmetic keeps
equal for ever, and split by a relative delta (prednet_jax/saddles/symmetric.py). In the
ordinary program rounding separates twins; in the symmetric one it does not.

Arms: float32; shared and tile, a new random order of reduction at every call, one for
all outputs or one per tile; and at delta 0 also float64, run (orders that the key fixes
for the whole run) and, on request, blocks (tiles of 32 outputs).

Each finished run adds one row to runs.csv in --workdir and is not run again: repeat the
command until it ends. Each process uses one thread; several may share a --workdir if
their programs, arms or seeds differ.
"""

import dataclasses
import functools
import os
from pathlib import Path

import _cli
import _flags
from absl import flags

from prednet_jax import errors, files, process, records
from prednet_jax.runs import store
from prednet_jax.saddles import symmetric
from prednet_jax.saddles.symmetric import ARMS, PROGRAMS, SaddleDesign
from prednet_jax.training import keys

FLAGS = flags.FLAGS
flags.DEFINE_list("programs", [*PROGRAMS], f"Programs to run: {', '.join(PROGRAMS)}.")
flags.DEFINE_list("arms", [*ARMS][:-1], f"Arms to run: {', '.join(ARMS)}.")
flags.DEFINE_list(
    "deltas",
    [*map(str, symmetric.DELTAS)],
    "Relative differences between twins at the start.",
)
flags.DEFINE_list("seeds", ["8100", "8101", "8102", "8103", "8104"], "Root seeds.")
flags.DEFINE_integer("updates", 3000, "Updates of a run, 20 or more.")
flags.DEFINE_string("workdir", "results/study/A", "Directory of runs.csv.")


def main() -> None:
    """Checks the flags, then makes the runs that are not yet in the table."""
    design = SaddleDesign(updates=FLAGS.updates)
    deltas, seeds = list(_flags.numbers("deltas")), list(_flags.integers("seeds"))
    asked = symmetric.runs(FLAGS.programs, FLAGS.arms, deltas, seeds)
    process.prepare(threads=1, cache=True)
    folder = Path(FLAGS.workdir)
    with files.hold(folder, wait=True):
        write_manifest(folder, design)
    table = folder / "runs.csv"
    done = symmetric.done(table) if table.exists() else set()
    left = [run for run in asked if tuple(run) not in done]
    print(f"{len(asked)} runs, {len(asked) - len(left)} of them finished", flush=True)
    for run in left:
        row = symmetric.measure(run, design, functools.partial(_show, run, design))
        commit = records.git_commit(Path(__file__).parent)
        store.add_row(table, {**row, "git_commit": commit})
        print(
            f"{run.program} {run.arm}, delta {run.delta:g}, seed {run.seed}: separated "
            f"at {row['separated_at'] or 'no update'}, final loss "
            f"{row['final_loss']:.6f}, {row['seconds']:.0f} s",
            flush=True,
        )
    print(table)


def _show(
    run: symmetric.SaddleRun, design: SaddleDesign, update: int, loss: float
) -> None:
    """Prints the progress of a run from time to time."""
    if update % 50 == 0:
        print(
            f"saddle {run.arm} seed {run.seed}: update {update} of {design.updates}, "
            f"loss {loss:.5f}",
            flush=True,
        )


def write_manifest(folder: Path, design: SaddleDesign) -> None:
    """Describes the table's contents; a table of another design is a UserError."""
    shared = {
        **dataclasses.asdict(design),
        "data": "walk",
        "optimizer": "chainer_adam",
        "noise": ARMS,
        "separated": symmetric.TWINS_SEPARATED,
        "threads": 1,
        "versions": records.versions(),
        "xla_flags": os.environ.get("XLA_FLAGS", ""),
        "prng": keys.IMPLEMENTATION,
    }
    path = folder / "manifest.json"
    if path.exists():
        if different := store.differing(shared, records.read_json(path)["design"]):
            raise errors.UserError(
                f"{path}: another {', '.join(different)}; expected what its runs were "
                "made with, or another --workdir"
            )
        return
    about = {
        **_cli.provenance(),
        "design": shared,
        "device": process.description(),
        "environment": records.of_numbers(records.environment()),
    }
    records.write_json(path, about)


if __name__ == "__main__":
    _cli.run(main)
