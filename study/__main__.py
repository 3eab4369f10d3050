"""Runs any part of the finished study again.

    python -m study train --part=C --seeds=8300 --workdir=runs/again
    python -m study tables
    python -m study fingerprint final.model.npz

The published records are in results/study; study/README.md describes the parts.
"""

import argparse
import os
import shlex
import signal
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NoReturn

if __name__ == "__main__":
    # Imports take long: an interrupt ends them without a traceback.
    handler = signal.signal(signal.SIGINT, signal.SIG_DFL)

import numpy as np
import scipy.stats

from prednet_jax import errors, files, process, records
from study import make_tables, on_gpu, parts, seed_records
from study.chainer import commands as chainer
from study.judgement import MODEL, PRIMARY

ROOT = Path(__file__).resolve().parent.parent
PUBLISHED = ROOT / "results" / "study"


def train(args: argparse.Namespace) -> bool:
    """Runs the long trainings of a part, seed by seed, until all are recorded.

    Writes the record of each seed to WORKDIR/PART. A seed that has a record is not run
    again, so after an interruption the same command continues. Several processes share
    the seeds by --shard=0/2 and --shard=1/2. With --compare_with each run is shown next
    to the published one; the command ends with status 1 if more of them differ than
    two runs of one seed do in the study, 95 of 100 of which lie within its band.
    """
    part = parts.PARTS[args.part]
    try:
        first, step = map(int, args.shard.split("/"))
        errors.check_int("shard", first, 0, step - 1)
    except ValueError:
        raise errors.UserError(
            f"--shard={args.shard}: expected I/N with I below N"
        ) from None
    wanted = chosen_seeds(part, args.seeds)
    files.check_writable(args.workdir)
    published = {}
    if args.compare_with is not None:
        published = seed_records.stored(args.compare_with / part.name)
        if missing := [seed for seed in wanted if seed not in published]:
            raise errors.UserError(
                f"--compare_with={args.compare_with}: has no record of seed "
                f"{missing[0]} of part {part.name}; expected one of every seed"
            )
    process.prepare(threads=parts.THREADS, first=first, cache=True)
    process.set_precision("float32")
    folder, mine = args.workdir / part.name, wanted[first::step]
    left = [seed for seed in mine if seed not in seed_records.finished(part, folder)]
    print(f"part {part.name}: {len(left)} of {len(mine)} seeds to run: {left}")
    manifest = provenance(args)
    for seed in left:
        started = time.perf_counter()
        seed_records.follow_seed(part, seed, folder, manifest)
        minutes = (time.perf_counter() - started) / 60
        print(f"{folder}/seed_{seed}.json: {minutes:.1f} minutes", flush=True)
    if args.compare_with is None:
        return True
    again = seed_records.stored(folder)
    verdict = records.read_json(PUBLISHED / "verdict.json")
    limit = verdict["details"][MODEL]["redraw_interval"]["limit"]
    runs = [run for seed in mine for run in matched(again[seed], published[seed])]
    return compare(runs, limit)


def matched(again: Mapping[str, Any], published: Mapping[str, Any]) -> list[tuple]:
    """Returns the runs of a seed with their published counterparts, and the seed."""
    pairs = zip(again["runs"], published["runs"], strict=True)
    return [(again["seed"], new, old) for new, old in pairs]


def compare(runs: list[tuple[int, Mapping, Mapping]], limit: float) -> bool:
    """Prints each run next to the published one; returns whether they agree.

    `limit` is the relative difference that two runs of one seed exceed in 5 of 100.
    """
    beyond = 0
    for seed, new, old in runs:
        name = f"seed {seed}, {new['arm']} {new['draw']}"
        if new["final_params_sha256"] == old["final_params_sha256"]:
            print(f"{name}: same bits")
            continue
        loss, known = new.get(PRIMARY), old.get(PRIMARY)
        if loss is None or known is None:
            outside, change = loss != known, "diverged"
        else:
            outside = abs(np.log(loss / known)) > np.log1p(limit)
            change = f"{loss / known - 1:+.2%}"
        beyond += bool(outside)
        where = "beyond" if outside else "within"
        print(f"{name}: loss {loss}, published {known}: {change}, {where}")
    allowed = int(scipy.stats.binom.ppf(0.99, len(runs), 0.05))
    print(
        f"{beyond} of {len(runs)} runs beyond the band of {limit:.1%}, in which 95 of "
        f"100 pairs of runs of one seed lie; expected at most {allowed}"
    )
    return beyond <= allowed


def pack(args: argparse.Namespace) -> bool:
    """Packs the records of the seeds of each folder given into two files."""
    for folder in args.folder:
        seed_records.pack(folder)
    return True


def gpu(args: argparse.Namespace) -> bool:
    """Trains the seeds of a part on the GPU at hand, each arm's seeds in one program.

    Writes PART_ARM.npz (curves, final weights) and PART_ARM.json (losses, device,
    versions) to WORKDIR. Distances are measured from the arm `cpu`, if the same WORKDIR
    has it (JAX_PLATFORMS=cpu --arms=cpu).
    """
    part, arms = parts.PARTS[args.part], args.arms.split(",")
    for arm in arms:
        errors.one_of("--arms", arm, tuple(on_gpu.ARMS))
    seeds, updates = chosen_seeds(part, args.seeds), args.updates or part.updates
    errors.check_int("--updates", updates, 1, part.updates)
    files.check_writable(args.workdir)
    process.prepare()
    process.set_precision("float32")
    on_gpu.check_device(arms)
    facts = {"xla_flags": os.environ.get("XLA_FLAGS", ""), "part": part.name}
    facts |= provenance(args) | {"seeds": list(seeds), "updates": updates}
    on_gpu.train_arms(part, arms, seeds, updates, args.workdir, facts)
    return True


def chosen_seeds(part: parts.Part, text: str | None) -> tuple[int, ...]:
    """Returns the seeds of --seeds, or all of the part."""
    if text is None:
        return tuple(part.seeds)
    try:
        seeds = tuple(dict.fromkeys(map(int, text.split(","))))
    except ValueError:
        wanted = "expected whole numbers such as 8300,8301"
        raise errors.UserError(f"--seeds={text}: {wanted}") from None
    for seed in seeds:
        errors.one_of("--seeds", seed, tuple(part.seeds))
    return seeds


def provenance(args: argparse.Namespace) -> dict[str, Any]:
    """Describes the origin of a record: the command, the code, the machine."""
    chosen = {k: v for k, v in vars(args).items() if k not in ("workdir", "command")}
    flags = {k: str(v) if isinstance(v, Path) else v for k, v in chosen.items()}
    words = [f"--{name}={value}" for name, value in flags.items() if value is not None]
    return {
        "command": shlex.join(["python", "-m", "study", args.command, *words]),
        "flags": flags,
        "versions": records.versions(),
        "git_commit": records.git_commit(ROOT),
        "device": process.description(),
        "environment": records.of_numbers(records.environment()),
    }


class Parser(argparse.ArgumentParser):
    """A command line that names a mistake in one line."""

    def error(self, message: str) -> NoReturn:
        """Ends with status 2."""
        self.exit(2, f"{self.prog}: {' '.join(message.split())}; see --help\n")


COMMANDS: dict[str, Callable[[argparse.Namespace], bool]] = {
    "train": train,
    "gpu": gpu,
    "pack": pack,
    "tables": make_tables.command,
    "interventions": chainer.interventions,
    "fingerprint": chainer.fingerprint,
}


def parser() -> argparse.ArgumentParser:
    """Returns the command line."""
    raw = argparse.RawDescriptionHelpFormatter
    out = Parser("python -m study", description=__doc__, formatter_class=raw)
    subparsers = out.add_subparsers(required=True, metavar="COMMAND", dest="command")
    adders = {}
    for name, function in COMMANDS.items():
        said = function.__doc__ or ""
        adders[name] = subparsers.add_parser(
            name, help=said.split("\n")[0], description=said, allow_abbrev=False
        ).add_argument
    add = adders["train"]
    about = "part of the study (study/README.md)"
    add("--part", required=True, choices=list(parts.PARTS), help=about)
    written = "directory to write (default: %(default)s)"
    chosen = "some of the part's seeds, as 8300,8301 (default: all)"
    add("--workdir", type=Path, default=Path("results/study"), help=written)
    about = "I/N takes every Nth seed, from number I on (default: %(default)s)"
    add("--shard", default="0/1", help=about)
    add("--seeds", help=chosen)
    add("--compare_with", type=Path, help="directory of records to compare with")
    add = adders["gpu"]
    streams = [name for name, part in parts.PARTS.items() if not part.random_windows]
    add("--part", default="H", choices=streams, help="a part trained on one stream")
    about = f"some of {', '.join(on_gpu.ARMS)} (default: %(default)s)"
    add("--arms", default="gpu", help=about)
    add("--seeds", help=chosen)
    about = "updates of each training; 0 means the part's own number"
    add("--updates", type=int, default=0, help=about)
    add("--workdir", type=Path, default=Path("runs/gpu"), help=written)
    about = "directory of the seeds' records, as results/study/C"
    adders["pack"]("folder", nargs="+", type=Path, metavar="FOLDER", help=about)
    about = "names of the tables, numbers or figures to make (default: all)"
    adders["tables"]("name", nargs="*", metavar="NAME", help=about)
    add = adders["interventions"]
    add("--workdir", type=Path, default=Path("runs/chainer"), help=written)
    add("--record", type=Path, help="directory for the tables (default: --workdir)")
    add("--full", action="store_true", help="train at 64x48 with five seeds, an hour")
    about = "a Chainer model file, as final.model.npz"
    adders["fingerprint"]("weights", metavar="WEIGHTS", type=Path, help=about)
    return out


def main(arguments: list[str] | None = None) -> int:
    """Executes a command; returns the exit status."""
    args = parser().parse_args(arguments)
    try:
        return 0 if COMMANDS[args.command](args) else 1
    except (errors.UserError, errors.RunError) as error:
        print(f"python -m study {args.command}: {error}", file=sys.stderr)
        return 2 if isinstance(error, errors.UserError) else 1
    except BrokenPipeError:  # Nobody reads the output any more, as in `| head`.
        return 128 + signal.SIGPIPE
    except OSError as error:
        place = f"{error.filename}: {error.strerror}" if error.filename else error
        print(f"python -m study {args.command}: {place}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print(f"python -m study {args.command}: interrupted", file=sys.stderr)
        return 130


if __name__ == "__main__":
    signal.signal(signal.SIGINT, handler)
    errors.repeat_lost_interrupts()
    if (status := main()) > 128:
        os._exit(status)  # Threads that still train are not waited for.
    sys.exit(status)
