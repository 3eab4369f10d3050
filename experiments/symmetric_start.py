"""Trains PredNet from a symmetric saddle: does numerical noise help to leave it?

    python experiments/symmetric_start.py --workdir=results/study/A

Channels i and i + n/2 of each even width n are made twins, which exact arithmetic keeps
equal for ever (prednet_jax/studies/symmetric_start.py). The twins are then split by a
relative delta, and the network is trained. There are two programs:

    ordinary   twins add the same terms in different orders, so rounding separates them
    symmetric  twins add the same terms in the same order, so without noise they stay
               equal bit for bit

The arms are float32 without noise; shared and tile, with a new random order of
reduction at every call, one order for all outputs or one per tile; and at delta 0 also
float64; run, with orders per tile that the key fixes for the whole run; and, if asked
for, blocks, with tiles of 32 outputs as in the long trainings.

Each finished run adds one row to runs.csv in --workdir; manifest.json says what was
run. Finished runs are not run again: repeat the command until it ends. Each process
uses one thread. Several processes may share a --workdir if their programs, arms or
seeds differ.
"""

import dataclasses
import os
from pathlib import Path
from typing import Any

import _cli
import _flags
from absl import flags

from prednet_jax import device, errors, keys, locks, process, provenance, records
from prednet_jax.config import PredNetConfig
from prednet_jax.runs import store
from prednet_jax.studies import (
    agreement,
    symmetric_escape,
    symmetric_findings,
    symmetric_runs,
)

FLAGS = flags.FLAGS
flags.DEFINE_list(
    "programs", ["ordinary", "symmetric"], "Programs to run: ordinary, symmetric."
)
flags.DEFINE_list(
    "arms",
    ["float32", "float64", "shared", "tile", "run"],
    "Arms to run: float32, float64, shared, tile, run, blocks.",
)
flags.DEFINE_list(
    "deltas", ["0", "1e-8", "1e-7", "1e-6", "1e-4", "1e-1"], "Relative splits."
)
flags.DEFINE_list("seeds", ["8100", "8101", "8102", "8103", "8104"], "Root seeds.")
flags.DEFINE_list("channels", ["3", "4", "4"], "Widths of the layers, bottom first.")
flags.DEFINE_list("r_channels", ["2", "4", "4"], "Widths of the recurrent state.")
flags.DEFINE_integer("height", 24, "Rows of a frame.")
flags.DEFINE_integer("width", 32, "Columns of a frame.")
flags.DEFINE_integer("window", 10, "Transitions per update, >= 2.")
flags.DEFINE_integer("updates", 3000, "Updates of a run, a multiple of 20.")
flags.DEFINE_integer("tile", 1, "Edge of a tile; at most half the smallest width.")
flags.DEFINE_bool(
    "theory",
    False,
    "Instead of runs: up to which split noise can matter, by the theory of escape, for "
    "each seed; writes theory.json to --workdir.",
)
flags.DEFINE_list(
    "between",
    ["400", "600"],
    "Updates between which --theory takes the growth of the split.",
)
flags.DEFINE_string(
    "compare_with",
    None,
    "Table of published runs. After the runs: whether each agrees with it.",
)
flags.DEFINE_string("workdir", "results/study/A", "Where runs.csv is.")


def main(argv: list[str]) -> None:
    """Checks the flags, then makes the runs that are not yet in the table."""
    del argv
    config = PredNetConfig(
        channels=_flags.integers("channels"),
        r_channels=_flags.integers("r_channels") or None,
        height=FLAGS.height,
        width=FLAGS.width,
    )
    design = symmetric_runs.Design(
        config=config, window=FLAGS.window, updates=FLAGS.updates, tile=FLAGS.tile
    )
    seeds = _flags.integers("seeds")
    asked = symmetric_runs.runs(FLAGS.programs, FLAGS.arms, splits(), list(seeds))
    published = Path(FLAGS.compare_with or "")
    if FLAGS.compare_with:
        symmetric_findings.read(published)
    process.prepare(threads=1, cache=True)
    folder = Path(FLAGS.workdir)
    with locks.hold(folder, wait=True):
        write_manifest(folder, design)
    table = store.Table(
        folder, ("program", "arm", "delta", "seed"), (str, str, float, int)
    )
    if FLAGS.theory:
        theory(folder, design, list(seeds))
        return
    done = table.done()
    left = [run for run in asked if tuple(run) not in done]
    print(f"{len(asked)} runs, {len(asked) - len(left)} of them finished", flush=True)
    commit = provenance.git_commit(Path(__file__).parent)
    for run in left:
        row = symmetric_runs.measure(run, design)
        table.add({**row, "git_commit": commit})
        print(
            f"{run.program} {run.arm}, delta {run.delta:g}, seed {run.seed}: separated "
            f"at {row['separated_at'] or 'no update'}, final loss "
            f"{row['final_loss']:.6f}, {row['seconds']:.0f} s",
            flush=True,
        )
    print(table.path)
    if FLAGS.compare_with:
        rows = [symmetric_findings.read(p) for p in (table.path, published)]
        _cli.show_agreement(agreement.of_symmetric(*rows))


def theory(folder: Path, design: Any, seeds: list[int]) -> None:
    """Measures and writes how small a split has to be for noise to matter."""
    between = _flags.integers("between")
    if len(between) != 2:
        raise errors.UserError(
            f"between={','.join(FLAGS.between)}: expected two updates such as 400,600"
        )
    at, until = between
    found = []
    for seed in seeds:
        found.append(symmetric_escape.usefulness(design, seed, at=at, until=until))
        print(
            f"seed {seed}: growth {found[-1].rate:.4f} per update, c_sigma "
            f"{found[-1].c_sigma:.1e}, noise matters below {found[-1].useful:.1e}; "
            f"random weights {found[-1].initial:.2f}: {found[-1].orders:.1f} orders",
            flush=True,
        )
    records.write_json(
        folder / "theory.json",
        {
            "at": at,
            "until": until,
            "seeds": [one._asdict() for one in found],
            "git_commit": provenance.git_commit(Path(__file__).parent),
        },
    )
    print(folder / "theory.json")


def splits() -> list[float]:
    """The numbers of --deltas.

    Raises:
        UserError: one is no number.
    """
    try:
        return [float(text) for text in FLAGS.deltas]
    except ValueError:
        raise errors.UserError(
            f"deltas={','.join(FLAGS.deltas)}: expected numbers such as 0,1e-6"
        ) from None


def write_manifest(folder: Path, design: symmetric_runs.Design) -> None:
    """Says what the table holds; refuses a table of another design.

    Raises:
        UserError: the folder holds runs of another network, horizon or version.
    """
    shared: dict[str, Any] = {
        **dataclasses.asdict(design),
        "data": "walk",
        "optimizer": "chainer_adam",
        "noise": {arm: design.noise(arm) for arm in symmetric_runs.ARMS},
        "separated": symmetric_runs.SEPARATED,
        "threads": 1,
        "versions": provenance.versions(),
        "xla_flags": os.environ.get("XLA_FLAGS", ""),
        "prng": keys.IMPLEMENTATION,
    }
    path = folder / "manifest.json"
    if path.exists():
        before = records.read_json(path)["design"]
        # Arms that were added to this script later are no arms of the table.
        for arm in FLAGS.arms:
            errors.one_of(f"{path}: arm", arm, tuple(before["noise"]))
        noise = {arm: shared["noise"].get(arm) for arm in before["noise"]}
        if different := store.differing(shared | {"noise": noise}, before):
            raise errors.UserError(
                f"{path}: another {', '.join(different)}; expected what its runs were "
                "made with, or another --workdir"
            )
        return
    about = {
        "design": shared,
        "git_commit": provenance.git_commit(Path(__file__).parent),
        "device": device.description(),
        "environment": provenance.of_numbers(provenance.environment()),
        "command": _cli.command(),
    }
    records.write_json(path, about)


if __name__ == "__main__":
    _cli.run(main)
