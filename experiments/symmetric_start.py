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
from prednet_jax.runs import store
from prednet_jax.studies import again, symmetric_findings, symmetric_runs
from prednet_jax.studies.symmetric_runs import Design

FLAGS = flags.FLAGS
ARMS, PROGRAMS = list(symmetric_runs.ARMS), list(symmetric_runs.PROGRAMS)
flags.DEFINE_list("programs", PROGRAMS, f"Programs to run: {', '.join(PROGRAMS)}.")
flags.DEFINE_list("arms", ARMS[:-1], f"Arms to run: {', '.join(ARMS)}.")
flags.DEFINE_list("deltas", list(map(str, symmetric_runs.DELTAS)), "Relative splits.")
flags.DEFINE_list("seeds", ["8100", "8101", "8102", "8103", "8104"], "Root seeds.")
flags.DEFINE_integer("updates", 3000, "Updates of a run, a multiple of 20.")
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
    design = Design(updates=FLAGS.updates)
    seeds = list(_flags.integers("seeds"))
    asked = symmetric_runs.runs(
        FLAGS.programs, FLAGS.arms, list(_flags.numbers("deltas")), seeds
    )
    between = growth_updates(design) if FLAGS.theory else ()
    published = Path(FLAGS.compare_with or "")
    if FLAGS.compare_with:
        symmetric_findings.read(published)
    process.prepare(threads=1, cache=True)
    folder = Path(FLAGS.workdir)
    with locks.hold(folder, wait=True):
        write_manifest(folder, design)
    if between:
        theory(folder, design, seeds, *between)
        return
    table = store.Table(
        folder, ("program", "arm", "delta", "seed"), (str, str, float, int)
    )
    done = table.done()
    left = [run for run in asked if tuple(run) not in done]
    print(f"{len(asked)} runs, {len(asked) - len(left)} of them finished", flush=True)
    for run in left:
        row = symmetric_runs.measure(run, design)
        table.add({**row, "git_commit": commit()})
        print(
            f"{run.program} {run.arm}, delta {run.delta:g}, seed {run.seed}: separated "
            f"at {row['separated_at'] or 'no update'}, final loss "
            f"{row['final_loss']:.6f}, {row['seconds']:.0f} s",
            flush=True,
        )
    print(table.path)
    if FLAGS.compare_with:
        rows = [symmetric_findings.read(p) for p in (table.path, published)]
        _cli.show_agreement(again.of_symmetric(*rows))


def growth_updates(design: Design) -> tuple[int, int]:
    """The updates of --between; a UserError: they are not two of a run, in order."""
    between = _flags.integers("between")
    if len(between) != 2 or not 0 < between[0] < between[1] <= design.updates:
        raise errors.UserError(
            f"--between={','.join(FLAGS.between)}: expected two updates, as 400,600, "
            f"in rising order up to --updates={design.updates}"
        )
    return between[0], between[1]


def theory(folder: Path, design: Design, seeds: list[int], at: int, until: int) -> None:
    """Measures and writes how small a split has to be for noise to matter."""
    rows = []
    for seed in seeds:
        rows.append(symmetric_runs.theory(design, seed, at=at, until=until))
        print(
            "seed {seed}: growth {rate:.4f} per update, c_sigma {c_sigma:.1e}, noise "
            "matters below {useful:.1e}; random weights {initial:.2f}: {orders:.1f} "
            "orders".format_map(rows[-1]),
            flush=True,
        )
    made = {"at": at, "until": until, "seeds": rows, "git_commit": commit()}
    records.write_json(folder / "theory.json", made)
    print(folder / "theory.json")


def commit() -> str | None:
    """The commit that makes the rows."""
    return provenance.git_commit(Path(__file__).parent)


def write_manifest(folder: Path, design: Design) -> None:
    """Says what the table holds; refuses a table of another design.

    Raises:
        UserError: the folder holds runs of another network, horizon or version.
    """
    shared: dict[str, Any] = {
        **dataclasses.asdict(design),
        "data": "walk",
        "optimizer": "chainer_adam",
        "noise": {arm: design.noise(arm) for arm in ARMS},
        "separated": symmetric_runs.SEPARATED,
        "threads": 1,
        "versions": provenance.versions(),
        "xla_flags": os.environ.get("XLA_FLAGS", ""),
        "prng": keys.IMPLEMENTATION,
    }
    path = folder / "manifest.json"
    if path.exists():
        before = records.read_json(path)["design"]
        # Arms that were added later are no arms of the table.
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
        "git_commit": commit(),
        "device": device.description(),
        "environment": provenance.of_numbers(provenance.environment()),
        "command": _cli.command(),
    }
    records.write_json(path, about)


if __name__ == "__main__":
    _cli.run(main)
