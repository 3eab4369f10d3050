"""The suite `cases` of benchmark.py: latency and throughput in one process."""

import time

import bench_energy
import numpy as np


def run(
    config,
    batches: tuple[int, ...],
    *,
    window: int,
    repeats: int,
    precision: str = "float32",
    profile: str | None = None,
) -> dict:
    """Training and inference, by batch size, with frames kept here or fed each step.

    Inference sees one frame of each sequence a call and carries the state, so that its
    seconds are the latency of one frame; training makes one update of a window.

    Args:
        config: the PredNet.
        batches: sequences together.
        window: frames of a training window.
        repeats: timed calls; medians count. Inference makes `window` times as many.
        precision: float32 or float64.
        profile: directory for a trace of a few calls of each case, or None.

    Returns:
        One row a case with `seconds` a call, `frames_per_second` and
        `joules_per_frame` (None where no counter can be read).
    """
    import jax

    from prednet_jax import device, process

    dtype = process.set_precision(precision)
    source, joules = bench_energy.counter(jax.default_backend())
    rows = []
    for training in (False, True):
        for batch in batches:
            steps = window + 1 if training else 1
            shape = (steps, batch, config.height, config.width, config.channels[0])
            frames = np.random.default_rng(0).integers(0, 256, shape, np.uint8)
            make = _training if training else _inference
            program, state = make(config, dtype, frames)
            calls = repeats if training else repeats * window
            scored = batch * (window if training else 1)
            for feed in ("device", "host"):
                state, seconds, energy = _measure(
                    program, state, frames, feed, calls, joules
                )
                row = {
                    "work": "training" if training else "inference",
                    "batch": batch,
                    "feed": feed,
                    "seconds": seconds,
                    "frames_per_second": scored / seconds,
                    "joules_per_frame": energy and energy / scored,
                }
                rows.append(row)
            if profile:
                with jax.profiler.trace(profile, create_perfetto_trace=True):
                    for _ in range(3):
                        state = jax.block_until_ready(program(state, frames))
    return {
        "suite": "cases",
        "rows": rows,
        "energy": source,
        "device": device.description(),
    }


def _training(config, dtype, frames: np.ndarray) -> tuple:
    """`program(state, frames) -> state` of one update, and its first state."""
    import jax

    from prednet_jax import keys
    from prednet_jax.training import loop, truncated

    params = loop.prepare_params(loop.initial_params(config, 0), dtype, None, 0)
    optimizer = loop.default_optimizer(config, 100)
    step = truncated.make_step(config, optimizer)
    state = truncated.initial_train_state(
        config, params, optimizer, batch=frames.shape[1]
    )
    key = keys.stream(0, "noise")

    def body(state, frames):
        return step(state, frames, jax.numpy.asarray(False), key)[0]

    return truncated.jit_update(body), state


def _inference(config, dtype, frames: np.ndarray) -> tuple:
    """`program(state, frames) -> state` of one frame, and its first state."""
    import jax

    from prednet_jax import predict
    from prednet_jax.models import prednet
    from prednet_jax.training import loop, truncated

    params = loop.prepare_params(loop.initial_params(config, 0), dtype, None, 0)
    carry = prednet.initial_state(config, frames.shape[1], dtype)

    def body(params, carry, frames):
        pixels = truncated.to_pixels(frames, dtype)
        predictions, carry = predict(params, config, pixels, carry)
        return carry, predictions

    program = jax.jit(body)
    return lambda state, frames: program(params, state[0], frames), (carry, None)


def _measure(program, state, frames, feed: str, calls: int, joules) -> tuple:
    """The state after, the median seconds a call, and joules a call or None."""
    import jax

    resident = jax.device_put(frames)
    for _ in range(2):
        state = jax.block_until_ready(program(state, resident))
    times = []
    before = joules() if joules else 0.0
    for _ in range(calls):
        start = time.perf_counter()
        given = resident if feed == "device" else jax.device_put(frames)
        state = jax.block_until_ready(program(state, given))
        times.append(time.perf_counter() - start)
    energy = (joules() - before) / calls if joules else None
    return state, float(np.median(times)), energy
