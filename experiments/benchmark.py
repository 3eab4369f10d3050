"""Benchmarks. The last line of each suite is one JSON object.

    python experiments/benchmark.py --suite=step --height=120 --width=160

step      one training window: seconds (median), frames a second, compile time
conv      each algorithm on each convolution of the network, against the machine's GEMM
noise     the noisy step against the clean one, paired in one run
backends  latency and throughput against batch size, training and inference; threads
all       step, conv and noise at sizes that take a few minutes

Ratios within one run carry over between machines; seconds do not.
"""

import json
import os
import resource
import subprocess
import sys
import time
from pathlib import Path

import common
import numpy as np
from absl import flags

FLAGS = flags.FLAGS
SUITES = ("step", "conv", "noise", "backends", "all")
# Small enough that every suite ends in minutes; the published size is a flag away.
common.define_model_flags(channels="3,12,24,48", height=48, width=64)
flags.adopt_module_key_flags(common)
flags.DEFINE_enum("suite", "all", SUITES, "What to measure.")
flags.DEFINE_integer("window", 10, "Frames a window.")
flags.DEFINE_integer("batch", 1, "Sequences trained together.")
flags.DEFINE_integer("repeats", 5, "Timed windows after two that are not counted.")
flags.DEFINE_string("noise", "none", "Noise spec of the suite `step`.")
flags.DEFINE_enum("precision", "float32", ["float32", "float64"], "Of everything.")
flags.DEFINE_integer("threads", 0, "Processors to use, enforced; 0: all.")
flags.DEFINE_bool("inference", False, "Suite `step`: predict only, no training.")
flags.DEFINE_bool("cache", False, "Use the persistent compilation cache.")
flags.DEFINE_string("profile", None, "Directory for a trace of one window.")


def main(argv: list[str]) -> None:
    """Checks, measures, prints."""
    del argv
    for name, low in (("window", 2), ("batch", 1), ("repeats", 1)):
        if getattr(FLAGS, name) < low:
            raise ValueError(
                f"--{name}={getattr(FLAGS, name)}: expected at least {low}"
            )
    if FLAGS.model != "prednet":
        raise ValueError(f"--model={FLAGS.model}: expected prednet")
    from prednet_jax import backends

    if FLAGS.threads:
        backends.limit_threads(FLAGS.threads)
    if FLAGS.cache:
        common.use_compilation_cache()
    suites = {"step": step, "conv": conv, "noise": noise, "backends": sweep}
    if FLAGS.suite != "all":
        print(json.dumps(suites[FLAGS.suite]()))
        return
    for name in ("step", "conv", "noise"):
        print(f"== {name}", flush=True)
        print(json.dumps(suites[name]()), flush=True)


def step() -> dict:
    """One window of training (or of prediction), resident on the device, donated."""
    import jax
    import jax.numpy as jnp

    from prednet_jax import backends, keys, predict
    from prednet_jax import noise as noise_lib
    from prednet_jax.training import loop, truncated

    config = common.model_config("walk")
    spec = noise_lib.parse(FLAGS.noise)
    spec = None if spec == noise_lib.Identity() else spec
    dtype = backends.set_precision(FLAGS.precision)
    params = loop.prepare_params(loop.initial_params(config, 0), dtype, spec, 0)
    shape = (FLAGS.window + 1, FLAGS.batch, config.height, config.width)
    frames = np.random.default_rng(0).integers(
        0, 256, (*shape, config.channels[0]), np.uint8
    )
    frames = jax.device_put(frames)
    key = keys.stream(0, "noise")
    if FLAGS.inference:

        def run(state: dict, frames: jax.Array) -> tuple:
            pixels = truncated.to_pixels(frames[1:], dtype)
            return state, predict(state, config, pixels)[0].mean()

        state = params
    else:
        optimizer = loop.default_optimizer(config, 100)
        update = truncated.make_step(config, optimizer, truncated.Method(), noise=spec)

        def run(state: truncated.TrainState, frames: jax.Array) -> tuple:
            return update(state, frames, jnp.asarray(False), key)

        state = truncated.initial_train_state(
            config, params, optimizer, batch=FLAGS.batch
        )
        state = jax.tree.map(lambda x: jnp.array(x, copy=True), state)
    print("compiling ...", file=sys.stderr, flush=True)
    start = time.perf_counter()
    compiled = jax.jit(run, donate_argnums=0).lower(state, frames).compile()
    compile_seconds = time.perf_counter() - start
    seconds = []
    for i in range(FLAGS.repeats + 2):
        start = time.perf_counter()
        state, out = compiled(state, frames)
        jax.block_until_ready((state, out))
        if i >= 2:
            seconds.append(time.perf_counter() - start)
    if FLAGS.profile:
        with jax.profiler.trace(FLAGS.profile):
            jax.block_until_ready(compiled(state, frames))
    median = float(np.median(seconds))
    return {
        "suite": "step",
        "seconds_per_window": median,
        "frames_per_second": FLAGS.window * FLAGS.batch / median,
        "compile_seconds": compile_seconds,
        "parameters": sum(x.size for x in jax.tree.leaves(params)),
        # ru_maxrss is in KiB on Linux.
        "peak_rss_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
        "shape": [config.height, config.width, *config.channels],
        "window": FLAGS.window,
        "batch": FLAGS.batch,
        "inference": FLAGS.inference,
        "noise": FLAGS.noise,
        "convolution": config.convolution,
        "device": backends.device_description(),
    }


def conv() -> dict:
    """Every algorithm on every convolution."""
    import bench_conv

    return bench_conv.run(common.model_config("walk"), repeats=FLAGS.repeats)


def noise() -> dict:
    """Noisy steps against the clean one."""
    import bench_noise

    return bench_noise.run(
        common.model_config("walk"), window=FLAGS.window, repeats=FLAGS.repeats
    )


def sweep() -> dict:
    """Latency and throughput by batch size and threads, one process each."""
    from prednet_jax import backends

    threads = sorted({1, backends.available_threads()})
    rows = []
    for count in threads:
        for inference in (False, True):
            for batch in (1, 4):
                rows.append(_child(count, inference, batch))
                print(json.dumps(rows[-1]), file=sys.stderr, flush=True)
    note = "energy: this machine offers neither NVML nor RAPL to this process"
    return {"suite": "backends", "rows": rows, "energy": _energy() or note}


def _child(threads: int, inference: bool, batch: int) -> dict:
    command = [
        sys.executable,
        str(Path(__file__)),
        "--suite=step",
        f"--threads={threads}",
        f"--batch={batch}",
        f"--{'' if inference else 'no'}inference",
        f"--window={FLAGS.window}",
        f"--repeats={FLAGS.repeats}",
        f"--channels={','.join(FLAGS.channels)}",
        f"--variant={FLAGS.variant}",
    ]
    for name in ("height", "width"):
        if getattr(FLAGS, name) is not None:
            command.append(f"--{name}={getattr(FLAGS, name)}")
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise ValueError(f"{' '.join(command)}: {done.stderr.strip()[-300:]}")
    row = json.loads(done.stdout.strip().splitlines()[-1])
    return {"threads": threads} | {
        name: row[name]
        for name in ("batch", "inference", "seconds_per_window", "frames_per_second")
    }


def _energy() -> str | None:
    """Whether RAPL can be read here."""
    path = Path("/sys/class/powercap/intel-rapl:0/energy_uj")
    return str(path) if os.access(path, os.R_OK) else None


if __name__ == "__main__":
    common.run(main)
