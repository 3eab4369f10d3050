r"""Measures everything that needs a GPU, the most valuable first.

    python experiments/on_gpu.py                       (ten minutes)
    python experiments/on_gpu.py --minutes=30 --workdir=runs/gpu
    python experiments/on_gpu.py --parts=speed,tools

speed     training steps by size, batch, precision and convolution: seconds, kernels,
          the fraction of what the card can do; PyTorch's, where it is installed
tools     answers of explain, tolerance and digits about this card's results; how many
          different results twenty calls give
compare   compare_backends.py with the arms gpu and gpu_deterministic, and
          calibrate_noise.py
bfloat16  the loss of a training in bfloat16, and of float32 with five orders of sums
training  a network for 64x48 frames, trained twice as the package's walk network was

Each result is written to --workdir at once. The same command again adds missing
results. All parts run at the same time, since compiling takes most of it; while `speed`
times its steps the others are stopped. Without a GPU everything runs in small on the
CPU, one part after the other. docs/gpu.md has the results of an H200.
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
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import _cli
import numpy as np
from absl import flags

from prednet_jax import data, errors, process, records

ROOT = Path(__file__).resolve().parent.parent
sys.path.append(str(ROOT))

from benchmarks import gpu_steps  # noqa: E402

FLAGS = flags.FLAGS
PARTS = ("speed", "tools", "compare", "bfloat16", "training")
flags.DEFINE_float(
    "minutes", 10, "Wall time that all parts together may take.", 0.5, 1e6
)
flags.DEFINE_string("workdir", "runs/on_gpu", "Directory to write.")
flags.DEFINE_list("parts", list(PARTS), f"Some of {', '.join(PARTS)}.")

#: Share of the time that `speed` has; the other parts have the rest.
_SPEED = 0.4
#: Updates by which the speed of the training is measured, and the share of the time
#: left that the two trainings are planned for: they compile, wait and are scored too.
_TRIAL, _TRAINING = 8, 0.6
_NETWORK = (
    *("--height=48", "--width=64", "--channels=3,24,48,72", "--r_channels=16,24,48,72"),
    *("--sampling=windows", "--window=20", "--batch=8", "--learning_rate=2e-3"),
    *("--schedule=cosine", "--clip_gradient=1", "--validate_every=0", "--noplot"),
)
_SMALL = (
    *("--height=24", "--width=32", "--channels=3,6", "--sampling=windows"),
    *("--window=5", "--batch=2", "--validate_every=0", "--noplot"),
)


class _PartError(Exception):
    """A script of a part has ended early; the text says how."""


def main() -> None:
    """Checks the flags, then runs the parts at the same time."""
    errors.positive("--minutes", FLAGS.minutes)  # Not NaN.
    for part in FLAGS.parts:
        errors.one_of("--parts", part, PARTS)
    folder = Path(FLAGS.workdir).resolve()
    folder.mkdir(parents=True, exist_ok=True)
    gpu = process.gpu_found()
    if os.environ.get("JAX_PLATFORMS") == "cpu":
        gpu = None
    print(
        f"{gpu or 'no GPU: everything in small on the CPU'}; "
        f"{', '.join(FLAGS.parts)}; {FLAGS.minutes:g} minutes; results in {folder}",
        flush=True,
    )
    children = Children(time.monotonic() + 60 * FLAGS.minutes)
    parts = {
        **{"tools": tools, "compare": compare},
        **{"bfloat16": bfloat16, "training": training},
    }
    time_steps = functools.partial(speed, folder, gpu=gpu)
    share = 60 * FLAGS.minutes * (_SPEED if len(FLAGS.parts) > 1 else 1.0)
    if not gpu and "speed" in FLAGS.parts:
        time_steps(share, alone=contextlib.nullcontext())
    # A processor would only be shared: without a GPU one part follows the other.
    pool = ThreadPoolExecutor(len(PARTS) if gpu else 1)
    with pool, contextlib.closing(children):
        running = {
            name: pool.submit(
                part,
                functools.partial(children.run, folder / f"{name}.log"),
                folder,
                gpu is not None,
                children.end,
            )
            for name, part in parts.items()
            if name in FLAGS.parts
        }
        if gpu and "speed" in FLAGS.parts:
            time_steps(share, alone=children.paused())
        for name, future in running.items():
            outcome = "done"
            try:
                future.result()
            except _PartError as failed:
                check_gpu(gpu, folder)
                outcome = str(failed)
            print(f"{name}: {outcome} ({name}.log)", flush=True)


class Children:
    """The scripts that run, which end with this process or when the time is used up."""

    def __init__(self, end: float) -> None:
        self.end = end
        self._running: set[subprocess.Popen] = set()
        # Held where none may start.
        self._lock = threading.Lock()

    def run(self, log: Path, script: str, *words: str) -> None:
        """Runs a script to its end; its output is added to a file.

        Raises:
            _PartError: it ended with an error, or the time is used up.
        """
        stopped = "stopped at the end of --minutes; the same command continues it"
        if time.monotonic() >= self.end:
            raise _PartError(stopped)
        environment = gpu_steps.gpu_environment(log.parent / "programs", 0.1)
        with self._lock, log.open("a") as out:
            child = gpu_steps.start(
                script, *words, env=environment, stdout=out, stderr=subprocess.STDOUT
            )
            self._running.add(child)
        try:
            status = child.wait(max(self.end - time.monotonic(), 0))
        except subprocess.TimeoutExpired:
            # A training saves its state.
            _send(child, signal.SIGTERM)
            with contextlib.suppress(subprocess.TimeoutExpired):
                child.wait(30)
            raise _PartError(stopped) from None
        finally:
            self._running.discard(child)
            _send(child, signal.SIGKILL)
        if status:
            lines = log.read_text(errors="replace").strip().splitlines() or [script]
            raise _PartError(f"ended with status {status}: {lines[-1]}")

    @contextlib.contextmanager
    def paused(self) -> Iterator[None]:
        """Stops the scripts and their children, and lets them continue at the end."""
        with self._lock:
            stopped = list(self._running)
            for child in stopped:
                _send(child, signal.SIGSTOP)
            try:
                yield
            finally:
                for child in stopped:
                    _send(child, signal.SIGCONT)

    def close(self) -> None:
        """Ends all scripts."""
        self.end = 0
        for child in list(self._running):
            _send(child, signal.SIGTERM)


def _send(child: subprocess.Popen, number: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(child.pid, number)


def check_gpu(gpu: str | None, folder: Path) -> None:
    """Raises a RunError if the GPU that was there at the start does not answer."""
    process.gpu_found.cache_clear()
    if gpu and not process.gpu_found():
        raise errors.RunError(
            f"{gpu} does not answer any more: expected a GPU that nvidia-smi lists; "
            f"the results so far are in {folder}, and the same command continues them"
        )


def speed(
    folder: Path,
    seconds: float,
    *,
    gpu: str | None,
    alone: contextlib.AbstractContextManager,
) -> None:
    """Times the training steps that `speed.jsonl` lacks, while others are stopped."""
    path = folder / "speed.jsonl"
    lines = path.read_text().splitlines() if path.exists() else []
    fields, done = gpu_steps.Step.__dataclass_fields__, []
    for record in map(json.loads, lines):
        if "error" not in record:
            done.append(gpu_steps.Step(**{name: record[name] for name in fields}))
    steps = [gpu_steps.Step(size="24x32", window=2, precision="bfloat16")]
    if gpu:
        steps = gpu_steps.settings(torch=importlib.util.find_spec("torch") is not None)
    with path.open("a") as out:
        for record in gpu_steps.run(
            gpu_steps.due(steps, done, seconds),
            cache=folder / "programs",
            workers=min(10, process.available_threads()) if gpu else 1,
            seconds=seconds,
            alone=alone,
        ):
            print(json.dumps(record), file=out, flush=True)
            print(gpu_steps.line(record), flush=True)
            if "error" in record:
                check_gpu(gpu, folder)


def tools(run: Callable[..., None], folder: Path, gpu: bool, end: float) -> None:
    """Asks the tools about this device's results, until 20 seconds before the end.

    Without a GPU they have a quarter of the time.
    """
    left = end - time.monotonic()
    seconds = max(left - 20 if gpu else left / 4, 1)
    run("tests/accuracy/gpu_tools.py", str(folder / "tools.jsonl"), str(seconds))


def compare(run: Callable[..., None], folder: Path, gpu: bool, end: float) -> None:
    """Compares the arms of a GPU; without a GPU the arms are others."""
    del end
    arms = "gpu,gpu_deterministic" if gpu else "threads_1"
    run(
        *("experiments/compare_backends.py", f"--workdir={folder / 'compare'}"),
        *(f"--arms={arms}", "--models=prednet", "--seeds=3"),
        *(f"--updates={400 if gpu else 5}", *_size(gpu)),
    )
    shapes = f"--shapes={'prednet' if gpu else 'tiny'}"
    calibration = folder / "calibration"
    if not (calibration / "calibration.json").exists():
        run("experiments/calibrate_noise.py", shapes, f"--workdir={calibration}")


def _size(gpu: bool) -> tuple[str, ...]:
    """Returns the flags of the network of `compare` and `bfloat16`."""
    if gpu:
        return "--height=48", "--width=64", "--channels=3,12,24,48"
    return "--height=24", "--width=32", "--channels=3,6"


def bfloat16(run: Callable[..., None], folder: Path, gpu: bool, end: float) -> None:
    """Trains in bfloat16, and in float32 with other orders of sums, from equal weights.

    Writes the mean loss of the last tenth of the updates to bfloat16.json.
    """
    del end
    updates = 1000 if gpu else 10
    trainings = {"bfloat16": ("--precision=bfloat16",)}
    for draw in range(5 if gpu else 2):
        order = "--noise=reduction_order:granularity=tile"
        trainings[f"float32_{draw}"] = order, f"--draw={draw}"
    losses = {}
    for name, words in trainings.items():
        workdir = folder / "bfloat16" / name
        flags = "--resume", "--noplot", "--validate_every=0", f"--updates={updates}"
        run("experiments/train.py", f"--workdir={workdir}", *_size(gpu), *flags, *words)
        last = records.read_run(workdir).metrics["loss"][-(updates // 10) :]
        losses[name] = float(last.mean())
        records.write_json(folder / "bfloat16.json", losses)


def training(run: Callable[..., None], folder: Path, gpu: bool, end: float) -> None:
    """Renders walks, trains a network on them twice, and scores it.

    The second training starts from the weights of the first, with 1.5 times as many
    updates and another seed.
    """
    walks = folder / "walks.npy"
    if not walks.exists():
        render(walks, 1024 if gpu else 10, (48, 64) if gpu else (24, 32))
    train = functools.partial(
        *(run, "experiments/train.py", *(_NETWORK if gpu else _SMALL)),
        *(f"--data={walks}", "--layout=NTHWC", "--precision=bfloat16", "--resume"),
    )
    first, second = folder / "first", folder / "second"
    updates = planned_updates(train, folder, end)
    train(f"--workdir={first}", "--seed=0", f"--updates={updates[0]}")
    train(
        *(f"--workdir={second}", "--seed=1", f"--init_weights={first}"),
        f"--updates={updates[1]}",
    )
    few = ("--sequences=128", "--skip=128") if gpu else ("--sequences=1",)
    for split in ("unseen", "test"):
        run(
            *("experiments/evaluate.py", f"--weights={second}", "--data=walk", *few),
            *(f"--split={split}", f"--output={folder / f'{split}.json'}"),
        )


def planned_updates(train: Callable[..., None], folder: Path, end: float) -> list[int]:
    """Returns the updates of both trainings: as many as the time allows.

    A trial measures the time of an update. The numbers are kept in a file, because the
    learning rate of every update depends on them.
    """
    kept = folder / "updates.json"
    if not kept.exists():
        train(f"--workdir={folder / 'trial'}", f"--updates={_TRIAL}")
        seconds = records.read_run(folder / "trial").metrics["seconds"][_TRIAL // 2 :]
        left = _TRAINING * (end - time.monotonic())
        total = max(int(left / np.median(seconds)), _TRIAL)
        records.write_json(kept, [total * 2 // 5, total - total * 2 // 5])
    return json.loads(kept.read_text())


def render(path: Path, sequences: int, size: tuple[int, int]) -> None:
    """Renders varied walks `[N, T, H, W, 3]` uint8 by all processors, into a file."""
    aside = path.with_suffix(".partial.npy")
    spawn = multiprocessing.get_context("spawn")
    with spawn.Pool(process.available_threads()) as pool:
        walk = functools.partial(_walk, sequences, size)
        for number, frames in enumerate(pool.imap(walk, range(sequences))):
            if number == 0:
                shape = sequences, *frames.shape
                array = np.lib.format.open_memmap(aside, "w+", np.uint8, shape)
            array[number] = frames
    array.flush()
    aside.rename(path)


def _walk(sequences: int, size: tuple[int, int], number: int) -> np.ndarray:
    """Renders one walk `[T, H, W, 3]` of the training split."""
    sizes = {"height": size[0], "width": size[1], "channels": 3}
    source = data.open_split("varied_walk", "train", sequences=sequences, **sizes)
    length = source.length // sequences
    return source.read(number * length, (number + 1) * length)


if __name__ == "__main__":
    _cli.run(main)
