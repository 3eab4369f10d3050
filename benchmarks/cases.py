"""The suite `cases`: latency and throughput in one process."""

from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from benchmarks import workload
from prednet_jax import device, predict, process
from prednet_jax.config import PredNetConfig
from prednet_jax.models import prednet
from prednet_jax.training import truncated


def run(
    config: PredNetConfig,
    batches: tuple[int, ...],
    *,
    window: int,
    repeats: int,
    precision: str = "float32",
    profile: str | None = None,
) -> dict[str, Any]:
    """Training and inference by batch size, with frames on the device or fed to it.

    A call of inference sees one frame per sequence and carries the state, so that its
    seconds are the latency of one frame. A call of training is one update.

    Args:
        config: the PredNet.
        batches: batch sizes.
        window: frames per training window.
        repeats: timed calls, of which the median is taken. Inference makes `window`
            times as many.
        precision: float32 or float64.
        profile: directory for a trace of a few calls of each case; None: no trace.

    Returns:
        One row per case with `seconds` per call and `frames_per_second`.
    """
    dtype = process.set_precision(precision)
    rows = []
    for work, make in (("inference", _inference), ("training", _training)):
        steps, scored, calls = 1, 1, repeats * window
        if work == "training":
            steps, scored, calls = window + 1, window, repeats
        for batch in batches:
            frames = workload.random_frames(config, steps, batch)
            step, state = make(config, dtype, batch)
            for feed in ("device", "host"):
                state, seconds = _measure(step, state, frames, feed, calls)
                rows.append(
                    {
                        "work": work,
                        "batch": batch,
                        "feed": feed,
                        "seconds": seconds,
                        "frames_per_second": batch * scored / seconds,
                    }
                )
            workload.trace(profile, (lambda s, f=frames, g=step: g(s, f), state))
    return {"suite": "cases", "rows": rows, "device": device.description()}


def _training(config: PredNetConfig, dtype: Any, batch: int) -> tuple[Callable, Any]:
    """`step(state, frames) -> state`, one update; and its first state."""
    subject = workload.training(config, dtype, batch=batch)
    update = subject.update()

    def body(state: truncated.TrainState, frames: jax.Array) -> truncated.TrainState:
        return update(state, frames, jax.numpy.asarray(False), subject.key)[0]

    return truncated.jit_update(body), subject.state


def _inference(config: PredNetConfig, dtype: Any, batch: int) -> tuple[Callable, Any]:
    """`step(state, frames) -> state`, one frame; and its first state."""
    params = workload.training(config, dtype).state.params
    carry = prednet.initial_state(config, batch, dtype)

    @jax.jit
    def body(params: dict, carry: Any, frames: jax.Array) -> tuple:
        pixels = truncated.to_pixels(frames, dtype)
        predictions, carry = predict(params, config, pixels, carry)
        return carry, predictions

    return lambda state, frames: body(params, state[0], frames), (carry, None)


def _measure(
    step: Callable, state: Any, frames: np.ndarray, feed: str, calls: int
) -> tuple[Any, float]:
    """The state after the calls, and the median seconds per call."""
    resident = jax.device_put(frames)

    def advance(state: Any) -> Any:
        given = resident if feed == "device" else jax.device_put(frames)
        return step(state, given)

    programs = {feed: (advance, state)}
    seconds = workload.medians(programs, calls, warm_up=2)[feed]
    return programs[feed][1], seconds
