"""Compares the training window of this package with that of the PyTorch version.

Each program runs in a process of its own. The two take turns on the same processors and
do the same work, so that other load on the machine slows both. The medians over all
rounds are compared.

    python benchmarks/compare.py --torch_python /path/to/python-with-torch

The last line is one JSON object: `throughput_ratio` (ours over PyTorch's; above 1 is
faster), `peak_memory_ratio` (ours over PyTorch's; below 1 needs less memory), the
seconds of every round, and our compile time.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def main() -> None:
    """Parses the flags, runs the rounds, prints the JSON line."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--torch_python", required=True, help="interpreter with torch")
    parser.add_argument("--python", default=sys.executable, help="interpreter with jax")
    parser.add_argument("--height", type=int, default=120)
    parser.add_argument("--width", type=int, default=160)
    parser.add_argument("--channels", default="3,48,96,192")
    parser.add_argument("--window", type=int, default=10)
    parser.add_argument("--repeats", type=int, default=5, help="windows per process")
    parser.add_argument("--rounds", type=int, default=3, help="processes per library")
    parser.add_argument(
        "--cpus", type=int, default=2, help="number of processors for both libraries"
    )
    args = parser.parse_args()
    # Children inherit the mask, and both libraries size their thread pools by it.
    cpus = sorted(os.sched_getaffinity(0))[: args.cpus]
    os.sched_setaffinity(0, cpus)
    work = [
        *(f"--height={args.height}", f"--width={args.width}"),
        *(f"--channels={args.channels}", f"--window={args.window}"),
        f"--repeats={args.repeats}",
    ]
    commands = {
        "torch": [args.torch_python, str(ROOT / "benchmarks/torch_prednet.py"), *work],
        "jax": [
            *(args.python, str(ROOT / "experiments/benchmark.py")),
            *("--suite=step", "--variant=watanabe"),
            *work,
        ],
    }
    results: dict[str, list[dict]] = {name: [] for name in commands}
    for _ in range(args.rounds):
        for name, command in commands.items():
            result = last_line(command)
            results[name].append(result)
            print(
                f"{name}: {result['seconds_per_window']:.3f} s per window", flush=True
            )
    parameters = {r["parameters"] for rs in results.values() for r in rs}
    if len(parameters) != 1:
        raise SystemExit(f"parameters {sorted(parameters)}: expected the same network")

    def median(name: str, field: str) -> float:
        return statistics.median(r[field] for r in results[name])

    seconds = {n: [r["seconds_per_window"] for r in rs] for n, rs in results.items()}
    report = {
        "throughput_ratio": median("torch", "seconds_per_window")
        / median("jax", "seconds_per_window"),
        "peak_memory_ratio": median("jax", "peak_rss_mb")
        / median("torch", "peak_rss_mb"),
        "compile_seconds": median("jax", "compile_seconds"),
        "seconds_per_window": seconds,
        "peak_rss_mb": {n: median(n, "peak_rss_mb") for n in results},
        "cpus": cpus,
        "work": work,
    }
    print(json.dumps(report))


def last_line(command: list[str]) -> dict:
    """Runs a program; returns the JSON object in its last line."""
    # Both programs get large memory pages.
    environment = os.environ | {"GLIBC_TUNABLES": "glibc.malloc.hugetlb=1"}
    done = subprocess.run(
        command, capture_output=True, text=True, check=False, env=environment
    )
    if done.returncode:
        raise SystemExit(f"{' '.join(command)}:\n{done.stderr}")
    return json.loads(done.stdout.strip().splitlines()[-1])


if __name__ == "__main__":
    main()
