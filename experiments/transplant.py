"""The re-used target buffer in PyTorch: it matters only if backward runs later.

    make transplant

`torch.from_numpy` shares the memory of the buffer like `numpy.asarray` does, so the
same mistake is possible in PyTorch. It is also possible in an autoencoder, if the
losses of several pictures are added up before backward. Uses PyTorch 2.13.0 in an
environment of its own. Ends with status 1 if a prediction fails.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import _rows
import environments
from chainer_runs import QUICK, frames_file

FRAMES = 1000


def main() -> int:
    """Runs the transplant; the exit status."""
    parser = _rows.parser(__doc__)
    parser.add_argument("--workdir", type=Path, default=Path("runs/transplant"))
    parser.add_argument("--record", type=Path, help="CSV to write the rows to")
    parser.add_argument("--seeds", type=int, default=3)
    args = parser.parse_args()
    try:
        python = environments.ensure(environments.torch())
    except environments.EnvironmentsError as error:
        print(f"make transplant: {error}", file=sys.stderr)
        return 2
    data = frames_file(args.workdir, QUICK, FRAMES + 1)
    script = environments.ROOT / "experiments" / "in_torch" / "transplant.py"
    done = subprocess.run(
        [python, script, f"--frames={data}", f"--seeds={args.seeds}"],
        env={k: v for k, v in os.environ.items() if k != "PYTHONPATH"},
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    rows = json.loads(done.stdout.splitlines()[-1])
    path = args.record or args.workdir / "transplant.csv"
    _rows.write(path, rows)
    held = _rows.came_true(check(rows))
    print(f"records: {path}")
    return 0 if held else 1


def check(rows: list[dict]) -> list[tuple[str, bool]]:
    """Each prediction, and whether it came true for every seed.

    Args:
        rows: rows of the table; values may be text.
    """
    ends: dict[tuple, dict[str, str]] = {}
    for row in rows:
        case = (row["network"], int(row["losses_per_update"]), int(row["seed"]))
        ends.setdefault(case, {})[row["target"]] = row["final_sha256"]
    found = []
    for network, every in sorted({case[:2] for case in ends}, reverse=True):
        gaps = [
            end["shared"] != end["copied"]
            for case, end in ends.items()
            if case[:2] == (network, every)
        ]
        expected = every > 1
        words = "a gap" if expected else "no gap"
        text = f"{network}, {every} losses per update: {words}"
        found.append((text, all(gap == expected for gap in gaps)))
    return found


if __name__ == "__main__":
    sys.exit(main())
