"""Shows in Chainer itself where stale targets come from, and what follows from it.

python -m chainer_reproduction COMMAND [--help]

Each command builds the environments that it needs (`.venv-NAME`), continues what was
interrupted from the runs in --workdir, and writes tables. It ends with status 1 if a
prediction about equal or different bits fails. README.md in this folder has more.
"""

import argparse
import json
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NoReturn

import numpy as np

from chainer_reproduction import environments, in_jax, plans, runs
from prednet_jax import errors, records
from prednet_jax.errors import RunError, UserError

GOLDEN = environments.ROOT / "tests" / "golden" / "chainer_tiny"
REFERENCE = environments.ROOT / "results" / "chainer" / "fingerprint.csv"
# Accepted difference as a fraction of the size of the update. On another processor or
# with another BLAS the bits may differ.
TOLERANCE = 1e-5
_VERSIONS = ("numpy", "python")
INTERVENTIONS = (
    *("arm", "seed", "height", "width", "window", "frames", "updates", "threads"),
    *("final_sha256", "initial_sha256", "frames_sha256", "mean_loss", "chainer"),
    *_VERSIONS,
)
BISECTION = (
    *("release", "arm", "frames", "final_sha256", "initial_sha256", "mean_loss"),
    *_VERSIONS,
)
OTHERS = (
    *("study", "arm", "seed", "data_seed", "threads", "processors", "ideep", "frames"),
    *("final_sha256", "mean_loss", "chainer", *_VERSIONS),
)


def interventions(args: argparse.Namespace) -> bool:
    """Changes one thing at a time in Chainer 7.8.1 and compares final weights.

    Quick: 24x32, 200 frames, one seed, minutes. --full: 64x48, five seeds; then the
    published loop and that with copied targets over 1000 frames; about an hour. First
    this project's Chainer PredNet is compared with a recorded training of the published
    one.
    """
    environments.ensure(environments.CHAINER)
    folder, frames = args.record or args.workdir, args.workdir / "frames"
    recorded = compare_with_recording(args.workdir / "recorded", frames)
    name, plan = ("full", plans.full()) if args.full else ("quick", plans.quick())
    rows = runs.train_all(plan, args.workdir / name, frames, args.jobs)
    print(table(rows))
    held = came_true(plans.check_interventions(rows))
    path = folder / f"interventions_{name}.csv"
    records.write_csv(path, rows, INTERVENTIONS)
    records.write_csv(folder / "recording.csv", recorded)
    if args.full:
        long = args.workdir / "long"
        rows = runs.train_all(plans.long(long), long, frames, args.jobs)
        records.write_csv(folder / "long.csv", rows, INTERVENTIONS)
        records.write_csv(folder / "long_losses.csv", runs.losses_of(rows))
    print(f"records: {folder}")
    return held and all(row["worst"] <= TOLERANCE for row in recorded)


def compare_with_recording(folder: Path, frames: Path) -> list[runs.Row]:
    """Compares our training in Chainer with the recorded one of the published code.

    Returns:
        For each kind of target, how many weight arrays and losses are bitwise equal
        (all of them, with the same BLAS and processor), and the largest distance of an
        array over the size of its update.
    """
    rows: list[runs.Row] = []
    initial = GOLDEN / "initial.model.npz"
    size = runs.Size((3, 4, 6, 8), 24, 32, 5)
    for mode, target in (("copied", "copied"), ("aliased", "shared")):
        final = folder / f"{mode}.npz"
        flags = (f"--target={target}", f"--initial={initial}", f"--weights={final}")
        run = runs.Run(mode, mode, size, 40, flags, data=GOLDEN / "frames.npz")
        [trained] = runs.train_all([run], folder, frames)
        recorded = GOLDEN / f"final.{mode}.model.npz"
        ours, theirs, start = (np.load(path) for path in (final, recorded, initial))
        losses = np.load(GOLDEN / f"trace.{mode}.npz")["frame_loss"]
        distances = [
            np.linalg.norm(ours[name] - theirs[name])
            / np.linalg.norm(theirs[name] - start[name])
            for name in theirs.files
        ]
        row = {
            "targets": mode,
            "arrays": len(distances),
            "arrays_equal": distances.count(0),
            "losses": len(losses),
            "losses_equal": int((np.float32(trained["losses"]) == losses).sum()),
            "worst": float(max(distances)),
        }
        rows.append(row)
        print(
            "recorded training, targets {targets}: {arrays_equal} of {arrays} weight "
            "arrays and {losses_equal} of {losses} losses equal bit for bit; worst "
            "difference {worst:.1g} of the update".format(**row)
        )
    return rows


def table(rows: Iterable[runs.Row]) -> str:
    """One line per run: seed, arm, final weights, loss, and what is changed."""
    lines = [f"{'seed':>4}  {'arm':<24}{'final weights':<15}{'mean loss':>10}  change"]
    lines += [
        f"{row['seed']:>4}  {row['arm']:<24}{row['final_sha256'][:12]:<15}"
        f"{float(row['mean_loss']):>10.6f}  {plans.ARMS[row['arm']].meaning}"
        for row in rows
    ]
    return "\n".join(lines)


def bisection(args: argparse.Namespace) -> bool:
    """Trains the published loop under releases of Chainer before and after the change.

    The releases share one Python 3.8 and one NumPy. Without Python 3.8 they are
    skipped, with the reason.
    """
    folder = args.workdir / "bisection"
    plan = plans.bisection()
    rows = runs.train_all(plan, folder, args.workdir / "frames", args.jobs)
    for row in rows:
        # These short runs are compared over all of their frames.
        row["mean_loss"] = f"{np.mean(row['losses']):.9g}"
        print(f"{row['release']:<10}{row['arm']:<15}{row['final_sha256'][:12]}")
    held = came_true(plans.check_bisection(rows))
    records.write_csv((args.record or folder) / "bisection.csv", rows, BISECTION)
    skipped = len({run.environment for run in plan}) - len({r["release"] for r in rows})
    if skipped:
        print(f"{skipped} of {len(environments.RELEASES)} releases skipped, see above")
    return held


def others(args: argparse.Namespace) -> bool:
    """Tests other explanations of a gap between CPU and GPU in Chainer, one by one.

    Each study trains with the target's buffer shared and copied, at 24x32, on 400
    frames: `threads` of the BLAS, Chainer's `ideep` back end (Python 3.7), other frames
    (`order`) and other initial weights (`seeds`).
    """
    folder = args.workdir / "others"
    studies = args.studies.split(",")
    if unknown := set(studies) - set(plans.OTHERS):
        accepted = ", ".join(plans.OTHERS)
        raise UserError(f"--studies={','.join(unknown)}: expected {accepted}")
    rows: list[runs.Row] = []
    for study in studies:
        plan = plans.others(study)
        rows += runs.train_all(plan, folder, args.workdir / "frames", args.jobs)
        records.write_csv((args.record or folder) / "others.csv", rows, OTHERS)
    return True


def transplant(args: argparse.Namespace) -> bool:
    """Re-uses the target's buffer in PyTorch: it matters if backward runs later.

    `torch.from_numpy` shares the memory of the buffer as `numpy.asarray` does, so the
    same mistake is possible in PyTorch, and also in an autoencoder, if the losses of
    several pictures are added up before backward.
    """
    python = environments.ensure(environments.TORCH)
    data = runs.frames_file(args.workdir / "frames", runs.QUICK, 1001)
    script = environments.HERE / "in_torch" / "transplant.py"
    flags = (f"--frames={data}", f"--seeds={args.seeds}")
    rows = json.loads(environments.call(python, script, *flags).splitlines()[-1])
    path = (args.record or args.workdir) / "transplant.csv"
    records.write_csv(path, rows)
    held = came_true(plans.check_transplant(rows))
    print(f"records: {path}")
    return held


def agreement(args: argparse.Namespace) -> bool:
    """Compares trainings in JAX with the same trainings in Chainer, by update."""
    rows = in_jax.agreement(args.workdir, args.frames)
    records.write_csv((args.record or args.workdir) / "agreement.csv", rows)
    for row in rows:
        print(*(f"{name}={value}" for name, value in row.items()))
    return True


def stale(args: argparse.Namespace) -> bool:
    """Measures in JAX what the explanation by stale targets predicts.

    The predictions, results/chainer/predictions.json, were written before the runs.
    """
    seeds = range(args.first_seed, args.first_seed + args.seeds)
    for name, rows in in_jax.stale(args.workdir / "stale", seeds, args.updates).items():
        records.write_csv((args.record or args.workdir) / f"stale_{name}.csv", rows)
    return True


def references(args: argparse.Namespace) -> bool:
    """Makes the table of reference models for `fingerprint`, of those of `stale`."""
    rows = in_jax.references(args.workdir / "stale")
    records.write_csv((args.record or args.workdir) / "fingerprint.csv", rows)
    return True


def fingerprint(args: argparse.Namespace) -> bool:
    """Tells whether a saved PredNet was probably trained on true or on stale targets.

    WEIGHTS is a Chainer model file (npz) of the variant `watanabe`. Its predictions of
    a frame are compared with that frame and with one four frames later, and judged by
    models whose targets are known. Only models that were trained about as well as these
    can be judged; for others train references of their own (`stale`, `references`).
    """
    print(json.dumps(in_jax.fingerprint(args.weights, args.reference)))
    return True


def came_true(checked: plans.Checked) -> bool:
    """Prints each prediction and its verdict; whether all came true."""
    for text, held in checked:
        print(f"{text}: {'came true' if held else 'FAILED'}")
    return all(held for _, held in checked)


def whole(text: str) -> int:
    """A whole number from 1 on."""
    try:
        return errors.whole("number", int(text), 1)
    except ValueError:  # A UserError is one.
        message = f"{text!r}: expected a whole number, at least 1"
        raise argparse.ArgumentTypeError(message) from None


FUNCTIONS = (
    *(interventions, bisection, others, transplant),
    *(agreement, stale, references, fingerprint),
)
COMMANDS = {function.__name__: function for function in FUNCTIONS}
_JOBS = {"type": whole, "help": "runs at a time"}
# The flags of each command, beside those that all have.
FLAGS: dict[str, dict[str, dict[str, Any]]] = {
    "interventions": {
        "--jobs": _JOBS | {"default": 2},
        "--full": {"action": "store_true", "help": "64x48, five seeds"},
    },
    "bisection": {"--jobs": _JOBS | {"default": 2}},
    "others": {
        "--jobs": _JOBS | {"default": 1},
        "--studies": {"default": ",".join(plans.OTHERS)},
    },
    "transplant": {"--seeds": {"type": whole, "default": 3}},
    "agreement": {
        "--frames": {"type": whole, "default": plans.LONG, "help": "to train on"}
    },
    "stale": {
        "--seeds": {"type": whole, "default": 8, "help": "how many"},
        "--first_seed": {"type": whole, "default": 7000},
        "--updates": {"type": whole, "default": 200},
    },
    "fingerprint": {
        "weights": {"metavar": "WEIGHTS", "type": Path},
        "--reference": {"type": Path, "default": REFERENCE},
    },
}


class Parser(argparse.ArgumentParser):
    """A command line that names a mistake in one line."""

    def error(self, message: str) -> NoReturn:
        """Ends with status 2."""
        self.exit(2, f"{self.prog}: {message}; see --help\n")


def parser() -> argparse.ArgumentParser:
    """The command line."""
    raw = argparse.RawDescriptionHelpFormatter
    out = Parser("chainer_reproduction", description=__doc__, formatter_class=raw)
    commands = out.add_subparsers(required=True, metavar="COMMAND", dest="command")
    common = {
        "--workdir": {"type": Path, "default": Path("runs/chainer")},
        "--record": {"type": Path, "help": "folder for the tables; default: workdir"},
    }
    for name, function in COMMANDS.items():
        said = function.__doc__ or ""
        command = commands.add_parser(
            name, help=said.split("\n")[0], description=said, allow_abbrev=False
        )
        for flag, options in (common | FLAGS.get(name, {})).items():
            command.add_argument(flag, **options)
    return out


def main(arguments: list[str] | None = None) -> int:
    """Runs a command; the exit status."""
    args = parser().parse_args(arguments)
    try:
        return 0 if COMMANDS[args.command](args) else 1
    except (UserError, RunError) as error:
        print(f"chainer_reproduction {args.command}: {error}", file=sys.stderr)
        return 2 if isinstance(error, UserError) else 1


if __name__ == "__main__":
    sys.exit(main())
