"""Trains the published loop under releases of Chainer before and after the change.

    make chainer-bisect

The change is commit 0cb47d99f1 of Chainer ("Do not hold diff in forward_xxx", 28 August
2017), first released in 3.0.0rc1. Each release gets an environment of its own, with
Python 3.8 and the same NumPy. If there is no Python 3.8, the releases are skipped, with
the reason. Ends with status 1 if a prediction fails.
"""

import sys
from collections.abc import Iterable
from pathlib import Path

import _rows
import environments
from chainer_plans import PAIR
from chainer_runs import QUICK, execute_all, runs_of

FRAMES = 60
CHANGED_IN = "3.0.0rc1"
FIELDS = (
    *("release", "arm", "frames", "final_sha256", "initial_sha256", "mean_loss"),
    *("numpy", "python"),
)


def main() -> int:
    """Runs the bisection; the exit status."""
    parser = _rows.parser(__doc__)
    parser.add_argument("--workdir", type=Path, default=Path("runs/chainer/bisection"))
    parser.add_argument("--record", type=Path, help="CSV to write the rows to")
    parser.add_argument("--jobs", type=int, default=2, help="runs at a time")
    args = parser.parse_args()
    rows, skipped = [], 0
    for release in environments.RELEASES:
        try:
            python = environments.ensure(environments.chainer_release(release))
        except environments.EnvironmentsError as e:
            print(f"Chainer {release}: skipped: {e}")
            skipped += 1
            continue
        rows += one_release(release, python, args.workdir, args.jobs)
    for row in rows:
        print(f"{row['release']:<10}{row['arm']:<15}{row['final_sha256'][:12]}")
    held = _rows.came_true(check(rows))
    _rows.write(args.record or args.workdir / "bisection.csv", rows, FIELDS)
    if skipped:
        print(f"{skipped} of {len(environments.RELEASES)} releases skipped, see above")
    return 0 if held else 1


def one_release(release: str, python: Path, workdir: Path, jobs: int) -> list[dict]:
    """Rows of one release."""
    runs = runs_of(PAIR, workdir, prefix=release, size=QUICK, frames=FRAMES)
    records = execute_all(runs, python, workdir, jobs)
    return [
        {
            "release": record["chainer"],
            "arm": record["arm"],
            "frames": FRAMES,
            "mean_loss": f"{sum(record['losses']) / FRAMES:.9g}",
            **{k: record[k] for k in FIELDS if k in record},
        }
        for record in records
    ]


def check(rows: Iterable[dict]) -> list[tuple[str, bool]]:
    """Each prediction that the rows can test, and whether it came true.

    Args:
        rows: rows of the table, in the order of the releases.
    """
    finals = _rows.by(rows, "release", "arm", value="final_sha256")
    releases = list(environments.RELEASES)
    changed = releases.index(CHANGED_IN)
    found = []
    for release, arms in finals.items():
        gap = arms["published"] != arms["target copied"]
        expected = releases.index(release) >= changed
        words = "a gap" if expected else "no gap"
        found.append((f"Chainer {release}: {words}", gap == expected))
    # What these releases differ in here is this one file of Chainer.
    alike = [r for r in finals if releases.index(r) <= releases.index("5.0.0")]
    if len(alike) > 1:
        ends = {finals[r]["target copied"] for r in alike}
        names = ", ".join(alike)
        found.append((f"{names}: the same weights with copied targets", len(ends) == 1))
    return found


if __name__ == "__main__":
    sys.exit(main())
