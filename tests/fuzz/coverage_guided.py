"""The properties of this folder, led by the coverage they reach (atheris).

    python tests/fuzz/coverage_guided.py [--seconds=60] [PROPERTY ...]

`make fuzz-coverage` runs all of them, each in a process of its own. An input that
breaks a property ends that process with its traceback, and this one with status 1.
"""

import argparse
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).resolve().parent


def properties():
    """Every property of the two modules, by name."""
    import test_fuzz_files
    import test_fuzz_texts

    test_fuzz_texts.declare()
    return {
        name: test
        for module in (test_fuzz_files, test_fuzz_texts)
        for name, test in sorted(vars(module).items())
        if hasattr(test, "hypothesis")
    }


def one(name, seconds):
    """Tries a property in this process, which libFuzzer ends."""
    import atheris

    with atheris.instrument_imports(include=["prednet_jax"]):
        test = properties()[name]
    # Limits beside the time: what hangs for a minute, or takes 4 GB, has failed.
    limits = [f"-max_total_time={seconds}", "-timeout=60", "-rss_limit_mb=4096"]
    atheris.Setup([sys.argv[0], *limits], test.hypothesis.fuzz_one_input)
    atheris.Fuzz()


def main():
    """Tries properties one after the other, and says how many inputs each took."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", metavar="PROPERTY")
    parser.add_argument("--seconds", type=int, default=60, help="for each property")
    parser.add_argument("--one", action="store_true", help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    sys.path.insert(0, str(HERE))
    if chosen.one:
        one(chosen.names[0], chosen.seconds)
    names = chosen.names or list(properties())
    broken = [name for name in names if not held(name, chosen.seconds)]
    print(f"{len(names)} properties, {len(broken)} broken")
    raise SystemExit(1 if broken else 0)


def held(name, seconds):
    """Whether a property held for so long."""
    words = [sys.executable, __file__, "--one", f"--seconds={seconds}", name]
    # libFuzzer writes an input that fails into the working directory.
    folder = tempfile.mkdtemp(prefix=f"fuzz_{name}_")
    done = subprocess.run(
        words, stderr=subprocess.PIPE, text=True, cwd=folder, check=False
    )
    lines = done.stderr.splitlines()
    if done.returncode == 0:
        shutil.rmtree(folder)
        print(f"{name}: {lines[-1]}", flush=True)
        return True
    print(*lines[-60:], f"{name}: broken; see {folder}", sep="\n", flush=True)
    return False


if __name__ == "__main__":
    main()
