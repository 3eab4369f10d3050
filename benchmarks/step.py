"""The suite `step`: one training window, or its prediction, frames on the device."""

import resource
import time
from typing import Any

import jax
import jax.numpy as jnp

from benchmarks import workload
from prednet_jax import device, predict, process
from prednet_jax.config import PredNetConfig
from prednet_jax.models import prednet
from prednet_jax.training import truncated


def run(
    config: PredNetConfig,
    *,
    window: int,
    batch: int,
    repeats: int,
    noise: str,
    precision: str,
    inference: bool,
    profile: str | None,
) -> dict[str, Any]:
    """Median seconds per window, after two warm-up windows.

    Args:
        config: the network.
        window: frames per window.
        batch: number of sequences trained together.
        repeats: number of timed windows.
        noise: a noise spec.
        precision: float32 or float64.
        inference: whether to predict only, without training.
        profile: directory for a trace of three windows; None: no trace.
    """
    dtype = process.set_precision(precision)
    subject = workload.training(config, dtype, noise=noise, batch=batch)
    frames = jax.device_put(workload.random_frames(config, window + 1, batch))
    state: Any = subject.state
    if inference:
        state = state.params

        def body(params: dict, frames: jax.Array) -> tuple:
            pixels = truncated.to_pixels(frames[1:], dtype)
            return params, predict(params, config, pixels)[0].mean()

    else:
        update = subject.update()

        def body(state: truncated.TrainState, frames: jax.Array) -> tuple:
            return update(state, frames, jnp.asarray(False), subject.key)

    start = time.perf_counter()
    compiled = truncated.jit_update(body).lower(state, frames).compile()
    compile_seconds = time.perf_counter() - start
    # The program's state is (state, output), so that `medians` waits for both.
    programs = {"step": ((lambda carried: compiled(carried[0], frames)), (state, None))}
    seconds = workload.medians(programs, repeats, warm_up=2)["step"]
    workload.trace(profile, programs["step"])
    return {
        "suite": "step",
        "seconds_per_window": seconds,
        "frames_per_second": window * batch / seconds,
        "compile_seconds": compile_seconds,
        "parameters": sum(x.size for x in jax.tree.leaves(subject.state.params)),
        # ru_maxrss is in KiB on Linux.
        "peak_rss_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
        "shape": [config.height, config.width, *config.channels],
        "window": window,
        "batch": batch,
        "inference": inference,
        "noise": noise,
        "convolution": config.convolution,
        "convolutions": prednet.algorithms(config, dtype),
        "device": device.description(),
    }
