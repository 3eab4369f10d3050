"""Shows the origin of stale targets in Chainer itself, and its consequences."""

import argparse
import json
from collections.abc import Iterable
from pathlib import Path

import numpy as np
import pandas as pd

from prednet_jax import files, records
from prednet_jax.report.tables import columns
from study.chainer import fingerprint as judge
from study.chainer import trainings

GOLDEN = trainings.ROOT / "tests" / "golden" / "chainer_tiny"
REFERENCES = trainings.ROOT / "results" / "chainer" / "fingerprint.csv"
# Accepted difference as a fraction of the size of the update. On another processor or
# with another BLAS the bits may differ.
TOLERANCE = 1e-5
COLUMNS = (
    *("arm", "seed", "height", "width", "window", "frames", "updates", "threads"),
    *("final_sha256", "initial_sha256", "frames_sha256", "mean_loss", "chainer"),
    *("numpy", "python"),
)


def interventions(args: argparse.Namespace) -> bool:
    """Changes one thing at a time in Chainer 7.8.1 and compares final weights.

    Quick: 24x32, 200 frames, one seed, minutes. --full: 64x48, five seeds; then the
    published loop and the loop with copied targets over 1000 frames; about an hour.
    First this project's Chainer PredNet is compared with a recorded training of the
    published one. Builds .venv-chainer, continues interrupted trainings of --workdir,
    and ends with status 1 if a prediction about equal or different bits fails.
    """
    folder, frames = args.record or args.workdir, args.workdir / "frames"
    for path in (args.workdir, folder):
        files.check_writable(path)
    recorded = compare_with_recording(args.workdir / "recorded", frames)
    folder.mkdir(parents=True, exist_ok=True)
    records.write_bytes(folder / "recording.csv", records.csv_bytes(recorded))
    name = "full" if args.full else "quick"
    plan = trainings.PLANS[name]
    rows = trainings.run_all(plan, args.workdir / name, frames)
    table_bytes = records.csv_bytes(rows, COLUMNS)
    records.write_bytes(folder / f"interventions_{name}.csv", table_bytes)
    print(table(rows))
    checked = trainings.check(rows)
    for text, held in checked:
        print(f"{text}: {'came true' if held else 'FAILED'}")
    if args.full:
        plan = trainings.PLANS["long"]
        rows = trainings.run_all(plan, args.workdir / "long", frames)
        records.write_bytes(folder / "long.csv", records.csv_bytes(rows, COLUMNS))
    print(f"records: {folder}")
    agreed = all(row["worst"] <= TOLERANCE for row in recorded)
    return agreed and all(held for _, held in checked)


def compare_with_recording(folder: Path, frames: Path) -> list[trainings.Row]:
    """Compares our training in Chainer with the recorded one of the published code.

    There is a row per kind of target. `worst` is the largest distance of an array,
    divided by the size of its update.
    """
    rows: list[trainings.Row] = []
    initial, data = GOLDEN / "initial.model.npz", GOLDEN / "frames.npz"
    size = trainings.Size((3, 4, 6, 8), 24, 32, 5)
    for mode, target in (("copied", "copied"), ("aliased", "shared")):
        final = folder / f"{mode}.npz"
        flags = (f"--target={target}", f"--initial={initial}", f"--weights={final}")
        training = trainings.Training(mode, mode, size, 40, 0, flags, data)
        [trained] = trainings.run_all([training], folder, frames)
        recorded = GOLDEN / f"final.{mode}.model.npz"
        ours, theirs, start = (np.load(path) for path in (final, recorded, initial))
        losses = np.load(GOLDEN / f"trace.{mode}.npz")["frame_loss"]
        distances = [
            float(np.linalg.norm(ours[name] - theirs[name]))
            / float(np.linalg.norm(theirs[name] - start[name]))
            for name in theirs.files
        ]
        row: trainings.Row = {
            "targets": mode,
            "arrays": len(distances),
            "arrays_equal": distances.count(0),
            "losses": len(losses),
            "losses_equal": int((np.float32(trained["losses"]) == losses).sum()),
            "worst": max(distances),
        }
        rows.append(row)
        print(
            "recorded training, targets {targets}: {arrays_equal} of {arrays} weight "
            "arrays and {losses_equal} of {losses} losses equal bit for bit; worst "
            "difference {worst:.1g} of the update".format(**row)
        )
    return rows


def table(rows: Iterable[trainings.Row]) -> str:
    """Returns a line per training: seed, arm, final weights, loss, change."""
    lines = [("seed", "arm", "final weights", "mean loss", "change")]
    for row in rows:
        loss, change = float(row["mean_loss"]), trainings.ARMS[row["arm"]].meaning
        end = row["final_sha256"][:12]
        lines.append((str(row["seed"]), row["arm"], end, f"{loss:.6f}", change))
    return columns(lines, right=(0, 3))


def fingerprint(args: argparse.Namespace) -> bool:
    """Tells whether a saved PredNet was probably trained on true or on stale targets.

    WEIGHTS is a Chainer model file (npz) of the variant `watanabe`. Its predictions of
    a frame are compared with that frame and with one four frames later, and judged by
    models whose targets are known. Only models trained about as well as those can be
    judged.
    """
    known = judge.errors_by_model(pd.DataFrame(records.read_csv(REFERENCES)))
    print(json.dumps(judge.verdict(judge.errors_of(args.weights), known)))
    return True
