"""Tests other explanations of a gap between CPU and GPU in Chainer, one by one.

    .venv/bin/python experiments/chainer_others.py

Each study trains with the target buffer shared and copied, at 24x32, on 400 frames:

    threads  the BLAS with 1, 4 and 6 threads, as on the article's CPUs
    ideep    Chainer's iDeep back end (Python 3.7), off and on; Chainer's default is off
    order    other frames, same initial weights
    seeds    other initial weights, same frames

Runs are kept in --workdir, and a study that was interrupted continues from there.
"""

import sys
from pathlib import Path

import _rows
import environments
from chainer_plans import PAIR
from chainer_runs import QUICK, Run, execute, mean_loss, runs_of

FRAMES = 400
FIELDS = (
    *("study", "arm", "seed", "data_seed", "threads", "processors", "ideep", "frames"),
    *("final_sha256", "mean_loss", "chainer", "numpy", "python"),
)
# What each study varies. These seeds had not been used before.
STUDIES: dict[str, dict[object, dict]] = {
    "threads": {count: {"threads": count} for count in (1, 4, 6)},
    "ideep": {use: {"flags": (f"--ideep={use}",)} for use in ("never", "always")},
    "order": {seed: {"data_seed": seed} for seed in range(1, 5)},
    "seeds": {seed: {"seed": seed} for seed in range(100, 116)},
}


def main() -> int:
    """Runs what is missing and writes the table; the exit status."""
    parser = _rows.parser(__doc__)
    parser.add_argument("--workdir", type=Path, default=Path("runs/chainer/others"))
    parser.add_argument("--record", type=Path, help="CSV to write the rows to")
    parser.add_argument("--studies", default=",".join(STUDIES))
    args = parser.parse_args()
    rows = []
    for name in args.studies.split(","):
        if name not in STUDIES:
            parser.error(f"--studies={name}: accepted are {', '.join(STUDIES)}")
        environment = (
            environments.chainer_ideep() if name == "ideep" else environments.chainer()
        )
        try:
            python = environments.ensure(environment)
        except environments.EnvironmentsError as e:
            print(f"{name}: skipped: {e}")
            continue
        for run in runs(name, args.workdir / "frames"):
            record = execute(run, python, args.workdir)
            print(f"{run.name}: {record['final_sha256'][:12]}", flush=True)
            rows.append(row(name, run, record))
            _rows.write(args.record or args.workdir / "others.csv", rows, FIELDS)
    return 0


def runs(study: str, folder: Path) -> list[Run]:
    """The published loop and that with copied targets, for each value of a study."""
    found = []
    for value, options in STUDIES[study].items():
        flags = options.get("flags", ())
        arms = {arm: (*own, *flags) for arm, own in PAIR.items()}
        others = {k: v for k, v in options.items() if k != "flags"}
        prefix = f"{study}-{value}"
        found += runs_of(
            arms, folder, prefix=prefix, size=QUICK, frames=FRAMES, **others
        )
    return found


def row(study: str, run: Run, record: dict) -> dict:
    """One line of the table."""
    return {
        **{k: record[k] for k in FIELDS if k in record},
        "study": study,
        "data_seed": run.data_seed,
        "threads": run.threads,
        "frames": len(record["losses"]),
        "mean_loss": f"{mean_loss(record):.9g}",
    }


if __name__ == "__main__":
    sys.exit(main())
