"""Shows in Chainer itself where stale targets come from.

    make chainer                 24x32, 200 frames, one seed: minutes
    make chainer ARGS=--full     64x48, five seeds; then 1000 frames: about an hour

Builds an environment with Chainer 7.8.1 and checks this project's Chainer PredNet
against a recorded training of the published one. Then trains with one thing changed at
a time, and compares the final weights by SHA-256. Ends with status 1 if a prediction
fails. Runs are kept in --workdir, and an interrupted study continues from there.
"""

import json
import sys
from dataclasses import replace
from pathlib import Path

import _rows
import chainer_plans as plans
import environments
import numpy as np
from chainer_runs import QUICK, Run, execute_all, mean_loss

GOLDEN = environments.ROOT / "tests" / "golden" / "chainer_tiny"
# Accepted difference as a fraction of the size of the update. On another processor or
# with another BLAS the bits may differ.
TOLERANCE = 1e-5
RUN_FIELDS = (
    *("arm", "seed", "height", "width", "window", "frames", "updates", "threads"),
    *("final_sha256", "initial_sha256", "frames_sha256", "mean_loss"),
    *("chainer", "numpy", "python"),
)


def main() -> int:
    """Runs the study; the exit status."""
    parser = _rows.parser(__doc__)
    parser.add_argument("--full", action="store_true", help="64x48, five seeds")
    parser.add_argument("--workdir", type=Path, default=Path("runs/chainer"))
    parser.add_argument("--jobs", type=int, default=2, help="runs at a time")
    parser.add_argument(
        "--record", type=Path, help="folder for the tidy tables; none: the workdir"
    )
    parser.add_argument(
        "--collect", action="store_true", help="use the runs that are there, run none"
    )
    args = parser.parse_args()
    try:
        python = environments.ensure(environments.chainer())
    except environments.EnvironmentsError as error:
        print(f"make chainer: {error}", file=sys.stderr)
        return 2
    recorded = compare_with_recording(python, args.workdir)
    reproduced = all(row["worst"] <= TOLERANCE for row in recorded)
    name = "full" if args.full else "quick"
    plan = plans.full if args.full else plans.quick
    runs = chosen(plan(args.workdir / "frames"), args.workdir / name, args.collect)
    records = execute_all(runs, python, args.workdir / name, args.jobs)
    print(table(records))
    right = _rows.came_true(judged(records))
    folder = args.record or args.workdir
    rows = rows_of(runs, records)
    _rows.write(folder / f"interventions_{name}.csv", rows, RUN_FIELDS)
    _rows.write(folder / "recording.csv", recorded)
    if args.full:
        place = args.workdir / "long"
        runs = chosen(plans.long(args.workdir / "frames", place), place, args.collect)
        records = execute_all(runs, python, place, args.jobs)
        _rows.write(folder / "long.csv", rows_of(runs, records), RUN_FIELDS)
        _rows.write(folder / "long_losses.csv", losses_of(records))
    print(f"records: {folder}")
    return 0 if right and reproduced else 1


def chosen(runs: list[Run], folder: Path, collect: bool) -> list[Run]:
    """All runs; if `collect`, only those that have a record."""
    if not collect:
        return runs
    return [run for run in runs if (folder / f"{run.name}.json").is_file()]


def compare_with_recording(python: Path, workdir: Path) -> list[dict]:
    """Compares our training in Chainer with the recorded one of the published code.

    Returns:
        For each kind of target, how many weight arrays and losses are bitwise equal
        (all of them, with the same BLAS and processor), and the largest distance of an
        array over the size of its update.
    """
    rows = []
    for mode, target in (("copied", "copied"), ("aliased", "shared")):
        weights = workdir / "recorded" / f"{mode}.npz"
        run = Run(
            name=mode,
            arm=mode,
            seed=0,
            data=GOLDEN / "frames.npz",
            frames=41,
            size=replace(QUICK, channels=(3, 4, 6, 8), window=5),
            flags=(
                f"--target={target}",
                f"--initial={GOLDEN / 'initial.model.npz'}",
                f"--weights={weights}",
            ),
        )
        [record] = execute_all([run], python, workdir / "recorded", 1)
        found = np.load(weights)
        expected = np.load(GOLDEN / f"final.{mode}.model.npz")
        start = np.load(GOLDEN / "initial.model.npz")
        losses = np.load(GOLDEN / f"trace.{mode}.npz")["frame_loss"]
        equal = sum(np.array_equal(found[k], expected[k]) for k in expected.files)
        worst = max(
            np.linalg.norm(found[k] - expected[k])
            / np.linalg.norm(expected[k] - start[k])
            for k in expected.files
        )
        same = int((np.float32(record["losses"]) == losses).sum())
        print(
            f"recorded training, targets {mode}: {equal} of {len(expected.files)} "
            f"weight arrays and {same} of {len(losses)} losses equal bit for bit; "
            f"worst difference {worst:.1g} of the update"
        )
        rows.append(
            {
                "targets": mode,
                "arrays": len(expected.files),
                "arrays_equal": equal,
                "losses": len(losses),
                "losses_equal": same,
                "worst": float(worst),
            }
        )
    return rows


def table(records: list[dict]) -> str:
    """One line per run: seed, arm, final weights, loss, and what is changed."""
    lines = [f"{'seed':>4}  {'arm':<24}{'final weights':<15}{'mean loss':>10}  change"]
    lines += [
        f"{r['seed']:>4}  {r['arm']:<24}{r['final_sha256'][:12]:<15}"
        f"{mean_loss(r):>10.6f}  {plans.MEANING[r['arm']]}"
        for r in records
    ]
    return "\n".join(lines)


def judged(records: list[dict]) -> list[tuple[str, bool]]:
    """Each prediction for each seed, and whether it came true."""
    found = []
    for seed in sorted({r["seed"] for r in records}):
        finals = {r["arm"]: r["final_sha256"] for r in records if r["seed"] == seed}
        for prediction, held in plans.check(finals):
            word = "the same weights as" if prediction.same else "other weights than"
            text = f"seed {seed}: {prediction.one}: {word} {prediction.other}"
            found.append((text, held))
    return found


def rows_of(runs: list[Run], records: list[dict]) -> list[dict]:
    """One row per run."""
    rows = []
    for run, record in zip(runs, records, strict=True):
        window = record["job"]["window"]
        row = {
            **{key: record[key] for key in RUN_FIELDS if key in record},
            "window": window,
            "frames": record["frames"] - 1,
            "updates": updates(record["frames"], window),
            "threads": run.threads,
            "mean_loss": f"{mean_loss(record):.9g}",
        }
        rows.append(row)
    return rows


def losses_of(records: list[dict]) -> list[dict]:
    """One row per update: loss of the window's last frame, and its mean."""
    rows = []
    for record in records:
        window = record["job"]["window"]
        for update in range(1, updates(record["frames"], window) + 1):
            stop = update * window - 1 if window > 1 else update
            part = record["losses"][max(0, stop - window) : stop]
            row = {
                "arm": record["arm"],
                "seed": record["seed"],
                "update": update,
                "last_frame_loss": f"{part[-1]:.9g}",
                "mean_loss": f"{np.mean(part):.9g}",
            }
            rows.append(row)
    return rows


def updates(frames: int, window: int) -> int:
    """Number of updates in a training on `frames` frames."""
    return frames - 1 if window == 1 else frames // window


if __name__ == "__main__":
    try:
        sys.exit(main())
    except json.JSONDecodeError as error:
        sys.exit(f"a record cannot be read ({error}); remove it and run again")
