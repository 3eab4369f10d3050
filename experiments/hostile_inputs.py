"""Tries files that should not be trusted, and records what train.py says of each.

    python experiments/hostile_inputs.py --output=results/published/hostile_inputs.json

Makes every file of hostile_files.py in a new folder, runs train.py on each in a process
of its own, and ends with status 1 if one ended with another status than it
should, with more than one line, or with a line of a foreign file.
"""

import os
import runpy
import signal
import sys
import tempfile
import traceback
from pathlib import Path
from typing import IO, Any

import _cli
import hostile_files
from absl import flags

from prednet_jax import records
from prednet_jax.training import runs  # noqa: F401 (imported once, for every fork)

FLAGS = flags.FLAGS
flags.DEFINE_string("output", None, "JSON file to write; none: print only.")
flags.DEFINE_integer("timeout", 120, "Seconds after which a command counts as hung.")

HERE = Path(__file__).resolve().parent
WEIGHTS = HERE.parent / "tests" / "golden" / "chainer_tiny" / "initial.model.npz"
TINY = ("--window=2", "--updates=1", "--convolution=shifted")


def main(argv: list[str]) -> None:
    """Makes the files, tries them, prints and records."""
    del argv
    rows = []
    with tempfile.TemporaryDirectory() as name:
        root = Path(name)
        cases = hostile_files.make(root, WEIGHTS)
        for number, case in enumerate(cases):
            row = attempt(case, root, root / f"run_{number}")
            rows.append(row)
            print(
                f"{'ok ' if row['as_expected'] else 'BAD'} {case.name}: {row['said']}"
            )
    if FLAGS.output:
        records.write_json(FLAGS.output, {**_cli.provenance(), "rows": rows})
    bad = [row["input"] for row in rows if not row["as_expected"]]
    print(f"{len(rows)} inputs, {len(bad)} not as expected")
    raise SystemExit(1 if bad else 0)


def attempt(case: hostile_files.Case, root: Path, workdir: Path) -> dict[str, Any]:
    """Runs train.py on one input; what it said."""
    with tempfile.TemporaryFile() as said:
        status = run([*TINY, *case.flags, f"--workdir={workdir}"], root, said)
        said.seek(0)
        text = said.read().decode(errors="replace")
    lines = [line for line in text.splitlines() if not line.startswith("compiling:")]
    good = status == case.status and hostile_files.SECRET not in text
    if case.status:
        good = good and len(lines) == 1 and (case.late or not workdir.exists())
    return {
        "input": case.name,
        "status": status,
        "said": " ".join(lines[-1:]).replace(f"{root}{os.sep}", ""),
        "as_expected": good,
    }


def run(arguments: list[str], folder: Path, errors: IO[bytes]) -> int | str:
    """Status of train.py in a fork of this process, which has all imports."""
    sys.stdout.flush()
    child = os.fork()
    if child:
        status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        return "hung" if status == -signal.SIGALRM else status
    status = 1
    try:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        os.dup2(errors.fileno(), 2)
        signal.alarm(FLAGS.timeout)
        os.chdir(folder)
        sys.argv = [str(HERE / "train.py"), *arguments]
        runpy.run_path(sys.argv[0], run_name="__main__")
        status = 0
    except SystemExit as end:
        status = end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


if __name__ == "__main__":
    _cli.run(main)
