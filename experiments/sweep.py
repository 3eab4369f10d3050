r"""Trains networks x arms x seeds x settings, on this machine or on many.

    python experiments/sweep.py --workdir=runs/sweep
    python experiments/sweep.py --workdir=runs/rates --seeds=0,1,2 \
        --setting=learning_rate=0.001 --setting=learning_rate=0.01
    python experiments/sweep.py --workdir=runs/sweep --arms=float32,reduction_order \
        --seeds=0,1,2,3 --address=head:6379

Every run is a separate process (experiments/train.py), with its own threads and flags.
Ray starts them: on this machine, unless --address names a cluster. A finished run is
never made again, so the same command continues an interrupted sweep. The result is
WORKDIR/runs.parquet, one row per run. docs/runs.md shows a sweep on several
machines.
"""

import contextlib
import os
import subprocess
import sys
import time
from pathlib import Path

import _cli
import _flags
from absl import flags

from prednet_jax import files, runs
from prednet_jax.errors import UserError
from prednet_jax.runs import design, sweeps
from prednet_jax.runs import jobs as jobs_lib

FLAGS = flags.FLAGS
TRAIN = Path(__file__).absolute().with_name("train.py")
_cli.TOPICS |= {
    "What is trained": ["arms", "seeds", "setting", "updates", "image_updates"],
    "Where": ["workdir", "address", "threads", "dry_run"],
}
_flags.define_setup_flags(models=["prednet"], updates=100, workdir="runs/sweep")
flags.DEFINE_list(
    "arms", ["float32", "reduction_order"], f"Arms: some of {', '.join(runs.NAMES)}."
)
flags.DEFINE_list("seeds", ["0", "1"], "Root seeds of weights, data and noise.")
flags.DEFINE_multi_string(
    "setting",
    [""],
    "More flags of train.py, as 'learning_rate=0.01 window=5'. If it is given several "
    "times, every run is made once with each",
)
flags.DEFINE_integer("threads", 1, "Processors of a run on a CPU.")
flags.DEFINE_string(
    "address",
    sweeps.LOCAL,
    "Ray cluster: `local` starts one for this sweep, `auto` finds the cluster of this "
    "machine, HOST:PORT names another.",
)


def main() -> None:
    """Checks the sweep, executes the missing runs, and merges the results."""
    sweep = make_sweep()
    check_settings()
    design.check(sweep)
    files.check_unlocked(sweep.root)
    jobs = sweep.jobs()
    if FLAGS.address == sweeps.LOCAL:
        for job in jobs:
            if lacking := design.missing_hardware(job.arm, job.threads):
                where = "on this machine; --address names another"
                raise UserError(f"arm={job.arm.name!r}: {lacking} ({where})")
    missing, reasons = runs.split_finished(jobs)
    if FLAGS.dry_run:
        for job in jobs:
            print(job.command_line)
        return
    print(runs.describe_reasons(reasons) or f"{len(jobs)} runs", flush=True)
    with files.hold(sweep.root):
        kept = (job for job in jobs if job not in missing)
        rows = {job: sweeps.row(job, FLAGS.last) for job in kept}
        errors: list[Exception] = []
        begin = time.monotonic()
        with contextlib.closing(
            sweeps.execute(missing, address=FLAGS.address)
        ) as running:
            for number, ended in enumerate(running, len(rows) + 1):
                job, outcome = ended.job, "failed"
                if ended.error is not None:
                    errors.append(ended.error)
                else:
                    rows[job] = sweeps.row(job, FLAGS.last)
                    outcome = f"loss {rows[job]['loss'] or float('nan'):.4g}"
                seconds = time.monotonic() - begin
                print(
                    f"[{number}/{len(jobs)}] {job.title} seed {job.seeds[0]}: "
                    f"{outcome} ({seconds:.0f} s)",
                    flush=True,
                )
        for error in errors:
            print(f"failed: {error}", file=sys.stderr)
        if rows:
            path = sweep.root / sweeps.RESULT
            sweeps.merge(path, [rows[job] for job in jobs if job in rows])
            print(f"{len(rows)} runs: {path}")
    if errors:
        print(
            f"{len(errors)} of {len(jobs)} runs failed; the same command tries them "
            "again",
            file=sys.stderr,
        )
        mendable = all(isinstance(error, UserError) for error in errors)
        raise SystemExit(2 if mendable else 1)


def make_sweep() -> sweeps.Sweep:
    """Returns the sweep that the flags describe."""
    shared = _flags.setup()
    for name in ("data", "images"):
        if shared[name]:
            shared[name] = jobs_lib.absolute(shared[name])
    return sweeps.Sweep(
        script=str(TRAIN),
        arms=runs.arm_names(FLAGS.arms),
        seeds=_flags.integers("seeds"),
        settings=tuple(FLAGS.setting),
        # Where a system cannot confine a process, a run has all processors.
        threads=FLAGS.threads if hasattr(os, "sched_setaffinity") else None,
        **shared,
    )


def check_settings() -> None:
    """Refuses flags that train.py cannot read, or that are given too."""
    for text in filter(str.strip, FLAGS.setting):
        chosen = sweeps.setting_flags(text)
        words = [f"--{name}={value}" for name, value in chosen.items()]
        for name in chosen:
            if name in FLAGS and FLAGS[name].present:
                raise UserError(
                    f"setting={text!r}: --{name} is given too; expected one of the two"
                )
        command = [sys.executable, str(TRAIN), "--workdir=.", "--only_check_args"]
        done = subprocess.run([*command, *words], capture_output=True, text=True)
        if done.returncode:
            raise UserError(f"setting={text!r}: {done.stderr.strip()}")


if __name__ == "__main__":
    _cli.run(main)
