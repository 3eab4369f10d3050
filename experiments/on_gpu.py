r"""Measures everything that needs a GPU, the most valuable first.

    python experiments/on_gpu.py                       (ten minutes)
    python experiments/on_gpu.py --minutes=30 --workdir=runs/gpu
    python experiments/on_gpu.py --parts=speed,tools

speed     training steps by size, batch, precision and convolution: seconds, kernels,
          the fraction of what the card can do; PyTorch's, where it is installed
tools     answers of explain, tolerance and digits about this card's results; how many
          results twenty calls give
compare   compare_backends.py with the arms gpu and gpu_deterministic
training  a network for 64x48 frames, trained twice as the package's walk network was

Each result is written to --workdir at once. The same command again adds missing
results. All parts run at the same time, since compiling takes most of it; while `speed`
times its steps the others are stopped. Without a GPU everything runs in small on the
CPU. docs/gpu.md has the results of an H200.
"""

import contextlib
import functools
import importlib.util
import json
import multiprocessing
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import _cli
import numpy as np
from absl import flags

from prednet_jax import data, errors, process

ROOT = Path(__file__).resolve().parent.parent
sys.path.append(str(ROOT))

from benchmarks import gpu_steps  # noqa: E402

FLAGS = flags.FLAGS
PARTS = ("speed", "tools", "compare", "training")
flags.DEFINE_float("minutes", 10, "Wall time that all parts together may take.", 0.5)
flags.DEFINE_string("workdir", "runs/on_gpu", "Directory to write.")
flags.DEFINE_list("parts", list(PARTS), f"Some of {', '.join(PARTS)}.")
flags.DEFINE_integer(
    "steps", None, "Training steps to time. Defaults to what the time allows.", 1
)
flags.DEFINE_list(
    "updates", None, "Updates of the two trainings. Defaults to what the time allows."
)

#: Share of the time that `speed` has; the other parts have the rest.
_SPEED = 0.4
#: Updates a second that are planned for; a guess, since no GPU has run them yet.
_RATE = 45
_NETWORK = (
    *("--height=48", "--width=64", "--channels=3,24,48,72", "--r_channels=16,24,48,72"),
    *("--sampling=windows", "--window=20", "--batch=8", "--learning_rate=2e-3"),
    *("--schedule=cosine", "--clip_gradient=1", "--validate_every=0", "--noplot"),
)
_SMALL = (
    *("--height=24", "--width=32", "--channels=3,6", "--sampling=windows"),
    *("--window=5", "--batch=2", "--validate_every=0", "--noplot"),
)


def main() -> None:
    """Checks the flags, then runs the parts one after the other or together."""
    for part in FLAGS.parts:
        errors.one_of("--parts", part, PARTS)
    updates = None
    if FLAGS.updates:
        updates = [int(text) for text in FLAGS.updates]
        errors.expect(len(updates) == 2, "--updates", FLAGS.updates, "two numbers")
    folder = Path(FLAGS.workdir).resolve()
    folder.mkdir(parents=True, exist_ok=True)
    gpu = process.gpu_found()
    if os.environ.get("JAX_PLATFORMS") == "cpu":
        gpu = None
    end = time.monotonic() + 60 * FLAGS.minutes
    print(
        f"{gpu or 'no GPU: everything in small on the CPU'}; "
        f"{', '.join(FLAGS.parts)}; {FLAGS.minutes:g} minutes; results in {folder}",
        flush=True,
    )
    left = 60 * FLAGS.minutes
    commands = {
        "training": lambda: training(folder, left, gpu is not None, updates),
        "compare": lambda: compare(folder, gpu is not None),
        "tools": lambda: tools(folder, left),
    }
    running = [
        (part, _start(folder / f"{part}.log", command()))
        for part, command in commands.items()
        if part in FLAGS.parts
    ]
    if "speed" in FLAGS.parts:
        share = _SPEED if running else 1.0
        speed(folder, left * share, gpu is not None, [p for _, p in running])
    _wait(running, end)


@contextlib.contextmanager
def paused(processes: Sequence[subprocess.Popen]) -> Iterator[None]:
    """Stops processes and their children, and lets them continue at the end."""

    def send(number: int) -> None:
        for started in processes:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(started.pid, number)

    send(signal.SIGSTOP)
    try:
        yield
    finally:
        send(signal.SIGCONT)


def speed(
    folder: Path, seconds: float, gpu: bool, others: Sequence[subprocess.Popen]
) -> None:
    """Times the training steps that `speed.jsonl` lacks; others wait meanwhile."""
    path = folder / "speed.jsonl"
    lines = path.read_text().splitlines() if path.exists() else []
    records = [json.loads(line) for line in lines]
    fields = gpu_steps.Step.__dataclass_fields__
    done = [
        gpu_steps.Step(**{name: record[name] for name in fields})
        for record in records
        if "error" not in record
    ]
    if gpu:
        torch = importlib.util.find_spec("torch") is not None
        steps = gpu_steps.settings(torch=torch)
        steps = steps[: FLAGS.steps or max(2, int(seconds / 5))]
    else:
        steps = [gpu_steps.Step(size="24x32", window=2, precision="bfloat16")]
    workers = min(10, process.available_threads()) if gpu else 1
    for record in gpu_steps.run(
        [step for step in steps if step not in done],
        cache=folder / "programs",
        workers=workers,
        seconds=seconds,
        alone=paused(others),
    ):
        with path.open("a") as out:
            print(json.dumps(record), file=out, flush=True)
        print(gpu_steps.line(record), flush=True)


def tools(folder: Path, seconds: float) -> list[Sequence[str]]:
    """Returns the command of the part `tools`."""
    limit = str(max(seconds - 20, 1))
    output = str(folder / "tools.jsonl")
    return [(sys.executable, "-m", "tests.accuracy.gpu_tools", output, limit)]


def compare(folder: Path, gpu: bool) -> list[Sequence[str]]:
    """Returns the command of the part `compare`; without a GPU the arms are others."""
    arms = "gpu,gpu_deterministic" if gpu else "threads_1"
    script = str(ROOT / "experiments" / "compare_backends.py")
    return [
        (
            *(sys.executable, script, f"--workdir={folder / 'compare'}"),
            *(f"--arms={arms}", "--models=prednet", "--seeds=3"),
            *(f"--updates={400 if gpu else 5}", "--height=48", "--width=64"),
            "--channels=3,12,24,48",
        )
    ]


def training(
    folder: Path, seconds: float, gpu: bool, updates: Sequence[int] | None
) -> list[Sequence[str]]:
    """Renders the walks and returns the commands of the two trainings and the scores.

    The second training starts from the weights of the first, with 1.5 times as many
    updates and another seed.
    """
    network, sequences = (_NETWORK, 1024) if gpu else (_SMALL, 10)
    if updates is None:
        total = int(max(seconds - 160, 8) * _RATE) if gpu else 5
        updates = total * 2 // 5, total - total * 2 // 5
    walks = folder / "walks.npy"
    if not walks.exists():
        render(walks, sequences, (48, 64) if gpu else (24, 32))
    script = str(ROOT / "experiments" / "train.py")
    first, second = folder / "first", folder / "second"
    common = (
        *network,
        *(f"--data={walks}", "--layout=NTHWC", "--precision=bfloat16", "--resume"),
    )
    score = str(ROOT / "experiments" / "evaluate.py")
    few = ("--sequences=128", "--skip=128") if gpu else ("--sequences=1",)
    return [
        (
            *(sys.executable, script, *common, f"--workdir={first}"),
            *("--seed=0", f"--updates={updates[0]}"),
        ),
        (
            *(sys.executable, script, *common, f"--workdir={second}", "--seed=1"),
            *(f"--init_weights={first}", f"--updates={updates[1]}"),
        ),
        *(
            (
                *(sys.executable, score, f"--weights={second}", "--data=walk", *few),
                *(f"--split={split}", f"--output={folder / f'{split}.json'}"),
            )
            for split in ("unseen", "test")
        ),
    ]


def render(path: Path, sequences: int, size: tuple[int, int]) -> None:
    """Renders varied walks `[N, T, H, W, 3]` uint8 by all processors, into a file."""
    source = _walks(sequences, size)
    length = source.length // sequences
    aside = path.with_suffix(".partial.npy")
    shape = sequences, length, *size, 3
    array = np.lib.format.open_memmap(aside, "w+", np.uint8, shape)
    spawn = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(process.available_threads(), mp_context=spawn) as pool:
        walk = functools.partial(_walk, sequences, size)
        for number, frames in enumerate(pool.map(walk, range(sequences))):
            array[number] = frames
    array.flush()
    aside.rename(path)


def _walks(sequences: int, size: tuple[int, int]) -> data.FrameSource:
    """Opens the training split of the varied walks."""
    height, width = size
    return data.open_split(
        *("varied_walk", "train"),
        height=height,
        width=width,
        channels=3,
        sequences=sequences,
    )


def _walk(sequences: int, size: tuple[int, int], number: int) -> np.ndarray:
    """Renders one walk `[T, H, W, 3]`."""
    source = _walks(sequences, size)
    length = source.length // sequences
    return source.read(number * length, (number + 1) * length)


def _start(log: Path, commands: list[Sequence[str]]) -> subprocess.Popen:
    """Starts commands one after the other, whose output goes to a file."""
    program = (
        "import json, subprocess, sys\n"
        "for command in json.loads(sys.argv[1]):\n"
        "    status = subprocess.run(command).returncode\n"
        "    if status: sys.exit(status)\n"
    )
    environment = os.environ | {
        "PYTHONPATH": os.pathsep.join((str(ROOT), os.environ.get("PYTHONPATH", ""))),
        "XLA_PYTHON_CLIENT_PREALLOCATE": "false",
        "XLA_PYTHON_CLIENT_MEM_FRACTION": "0.1",
        "JAX_COMPILATION_CACHE_DIR": str(log.parent / "programs"),
    }
    with log.open("a") as out:
        return subprocess.Popen(
            [sys.executable, "-c", program, json.dumps(commands)],
            cwd=ROOT,
            env=environment,
            stdout=out,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )


def _wait(running: list[tuple[str, subprocess.Popen]], end: float) -> None:
    """Waits for parts until the time is used up, and prints how each of them ended."""
    for part, started in running:
        try:
            status = started.wait(max(end - time.monotonic(), 0))
            outcome = "done" if status == 0 else f"ended with status {status}"
        except subprocess.TimeoutExpired:
            # A training saves its state; the same command continues it.
            os.killpg(started.pid, signal.SIGTERM)
            try:
                started.wait(30)
            except subprocess.TimeoutExpired:
                os.killpg(started.pid, signal.SIGKILL)
            outcome = "stopped at the end of --minutes; the same command continues it"
        print(f"{part}: {outcome} ({part}.log)", flush=True)


if __name__ == "__main__":
    _cli.run(main)
