"""Other explanations of a gap between CPU and GPU, tried in Chainer one by one.

    .venv/bin/python experiments/chainer_others.py

Each trains with the target buffer shared and copied, at 24x32, 400 frames:

    threads  the BLAS on 1, 4 and 6 threads, as on the article's CPUs
    ideep    Chainer's iDeep back end (Python 3.7; off unless asked for)
    order    other frames, same initial weights
    seeds    other initial weights, same frames

Runs are kept in --workdir; a study that was stopped goes on where it was.
"""

import argparse
import csv
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import environments
import numpy as np
from chainer_plans import ARMS
from chainer_runs import QUICK, Run, execute, frames_file

FRAMES = 400
FIELDS = (
    *("study", "arm", "seed", "data_seed", "threads", "processors", "ideep", "frames"),
    *("final_sha256", "mean_loss", "chainer", "numpy", "python"),
)
THREADS = (1, 4, 6)
# None of these was looked at before.
SEEDS = range(100, 116)
ORDERS = range(1, 5)


def main() -> int:
    """Runs what is missing and writes the table; the exit status."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
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
        for data_seed, run in STUDIES[name](args.workdir / "frames"):
            record = execute(run, python, args.workdir)
            print(f"{run.name}: {record['final_sha256'][:12]}", flush=True)
            rows.append(row(name, data_seed, run, record))
            write(args.record or args.workdir / "others.csv", rows)
    return 0


def both(
    name: str, folder: Path, *, seed: int = 0, data_seed: int = 0, **options
) -> Iterator[tuple[int, Run]]:
    """The published loop and the one with copied targets."""
    flags = options.pop("flags", ())
    data = frames_file(folder, QUICK, FRAMES + 1, data_seed)
    for arm in ("published", "target copied"):
        yield (
            data_seed,
            Run(
                name=f"{name}-{arm.replace(' ', '_')}",
                arm=arm,
                seed=seed,
                data=data,
                frames=FRAMES + 1,
                size=QUICK,
                flags=(*ARMS[arm], *flags),
                **options,
            ),
        )


def threads(folder: Path) -> Iterator[tuple[int, Run]]:
    """1, 4 and 6 threads of the BLAS."""
    for count in THREADS:
        yield from both(f"threads-{count}", folder, threads=count)


def ideep(folder: Path) -> Iterator[tuple[int, Run]]:
    """Chainer's iDeep back end, off and on."""
    for use in ("never", "always"):
        yield from both(f"ideep-{use}", folder, flags=(f"--ideep={use}",))


def order(folder: Path) -> Iterator[tuple[int, Run]]:
    """Other walks from the same initial weights."""
    for data_seed in ORDERS:
        yield from both(f"order-{data_seed}", folder, data_seed=data_seed)


def seeds(folder: Path) -> Iterator[tuple[int, Run]]:
    """Other initial weights on the same walk."""
    for seed in SEEDS:
        yield from both(f"seeds-{seed}", folder, seed=seed)


STUDIES: dict[str, Callable[[Path], Iterator[tuple[int, Run]]]] = {
    "threads": threads,
    "ideep": ideep,
    "order": order,
    "seeds": seeds,
}


def row(study: str, data_seed: int, run: Run, record: dict) -> dict:
    """One line of the table."""
    losses = record["losses"]
    return {
        **{k: record[k] for k in FIELDS if k in record},
        "study": study,
        "data_seed": data_seed,
        "threads": run.threads,
        "frames": len(losses),
        "mean_loss": f"{np.mean(losses[-len(losses) // 4 :]):.9g}",
    }


def write(path: Path, rows: list[dict]) -> None:
    """The table so far."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(path, "w", newline="") as file:
        out = csv.DictWriter(file, FIELDS, lineterminator="\n")
        out.writeheader()
        out.writerows(rows)


if __name__ == "__main__":
    sys.exit(main())
