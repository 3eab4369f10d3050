"""The suite `step` of benchmark.py: one training window, or its prediction."""

import resource
import time

import _flags
import numpy as np
from absl import flags

FLAGS = flags.FLAGS


def run() -> dict:
    """One window of training (or of prediction), resident on the device."""
    import jax
    import jax.numpy as jnp

    from prednet_jax import device, keys, predict, process
    from prednet_jax import noise as noise_lib
    from prednet_jax.models import prednet
    from prednet_jax.training import loop, truncated

    config = _flags.prednet_config()
    spec = noise_lib.parse(FLAGS.noise)
    spec = None if spec == noise_lib.Identity() else spec
    dtype = process.set_precision(FLAGS.precision)
    params = loop.prepare_params(loop.initial_params(config, 0), dtype, spec, 0)
    shape = (FLAGS.window + 1, FLAGS.batch, config.height, config.width)
    frames = np.random.default_rng(0).integers(
        0, 256, (*shape, config.channels[0]), np.uint8
    )
    frames = jax.device_put(frames)
    key = keys.stream(0, "noise")
    if FLAGS.inference:

        def body(state: dict, frames: jax.Array) -> tuple:
            pixels = truncated.to_pixels(frames[1:], dtype)
            return state, predict(state, config, pixels)[0].mean()

        state = params
    else:
        optimizer = loop.default_optimizer(config, 100)
        update = truncated.make_step(config, optimizer, truncated.Method(), noise=spec)

        def body(state: truncated.TrainState, frames: jax.Array) -> tuple:
            return update(state, frames, jnp.asarray(False), key)

        state = truncated.initial_train_state(
            config, params, optimizer, batch=FLAGS.batch
        )
    start = time.perf_counter()
    compiled = truncated.jit_update(body).lower(state, frames).compile()
    compile_seconds = time.perf_counter() - start
    seconds = []
    for i in range(FLAGS.repeats + 2):
        start = time.perf_counter()
        state, out = compiled(state, frames)
        jax.block_until_ready((state, out))
        if i >= 2:
            seconds.append(time.perf_counter() - start)
    if FLAGS.profile:
        with jax.profiler.trace(FLAGS.profile, create_perfetto_trace=True):
            for _ in range(3):
                state, out = compiled(state, frames)
                jax.block_until_ready((state, out))
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
        "convolutions": prednet.algorithms(config, dtype),
        "device": device.description(),
    }
