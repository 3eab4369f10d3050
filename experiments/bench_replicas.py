"""The suite `replicas` of benchmark.py: step time against the number of replicas."""

import time

import numpy as np


def run(
    config,
    counts: tuple[int, ...],
    *,
    window: int,
    repeats: int,
    noise: str = "none",
    precision: str = "float32",
    profile: str | None = None,
) -> dict:
    """Seconds per seed and update: one after the other in a device, at once, spread.

    All programs take turns in one run. The single run (the program of `train.py`
    without --replicas) is the base of every ratio.

    Args:
        config: the PredNet.
        counts: numbers of replicas.
        window: frames a window, one stream a replica.
        repeats: rounds; medians are compared.
        noise: a noise spec.
        precision: float32 or float64.
        profile: directory for a trace of a few updates of the last program, or None.

    Raises:
        ValueError: a count is below 1.
    """
    import jax

    from prednet_jax import device, process
    from prednet_jax.training.layout import most_devices

    if not counts or min(counts) < 1:
        raise ValueError(f"--replica_counts={counts}: expected numbers of at least 1")
    dtype = process.set_precision(precision)
    programs: dict[tuple, tuple] = {}
    for count in counts:
        spread = most_devices(count, 1, len(jax.devices()))
        for devices in sorted({1, spread}):
            for mode in ("map", "vmap") if count > 1 else ("map",):
                name = (count, devices, mode)
                programs[name] = _program(config, dtype, window, noise, *name)
                print(f"  compiled {count} x {mode}, {devices} device(s)", flush=True)
    base = (1, 1, "single")
    programs = {base: _single(config, dtype, window, noise)} | programs
    seconds: dict[tuple, list[float]] = {name: [] for name in programs}
    for turn in range(repeats + 1):
        for name, (advance, state) in programs.items():
            start = time.perf_counter()
            state = jax.block_until_ready(advance(state))
            if turn:  # the first round warms up
                seconds[name].append((time.perf_counter() - start) / name[0])
            programs[name] = advance, state
    if profile:
        with jax.profiler.trace(profile, create_perfetto_trace=True):
            for _ in range(3):
                state = jax.block_until_ready(advance(state))
    medians = {name: float(np.median(times)) for name, times in seconds.items()}
    rows = [
        {
            "replicas": count,
            "devices": devices,
            "mode": mode,
            "seconds_per_seed_update": medians[count, devices, mode],
            "ratio_to_single": medians[count, devices, mode] / medians[base],
        }
        for count, devices, mode in programs
    ]
    for row in rows:
        print(
            f"  {row['replicas']:4d} replicas, {row['mode']:6s} on {row['devices']} "
            f"device(s): {1e3 * row['seconds_per_seed_update']:8.2f} ms per seed and "
            f"update, {row['ratio_to_single']:.2f} of the single run",
            flush=True,
        )
    return {
        "suite": "replicas",
        "rows": rows,
        "noise": noise,
        "precision": precision,
        "device": device.description(),
    }


def _frames(config, window: int) -> np.ndarray:
    shape = (window + 1, config.height, config.width, config.channels[0])
    return np.random.default_rng(0).integers(0, 256, shape, np.uint8)


def _parts(config, dtype, noise: str) -> tuple:
    """Optimizer, noise and first state of a run."""
    from prednet_jax import noise as noise_lib
    from prednet_jax.training import loop, truncated

    spec = noise_lib.parse(noise)
    spec = None if spec == noise_lib.Identity() else spec
    optimizer = loop.default_optimizer(config, 100)
    params = loop.prepare_params(loop.initial_params(config, 0), dtype, spec, 0)
    return optimizer, spec, truncated.initial_train_state(config, params, optimizer)


def _single(config, dtype, window: int, noise: str) -> tuple:
    """`advance(state) -> state` of a run without replicas, and its first state."""
    import jax

    from prednet_jax import keys
    from prednet_jax.training import loop
    from prednet_jax.training.truncated import Method

    optimizer, spec, state = _parts(config, dtype, noise)
    update = loop.compile_update(config, optimizer, Method(), spec)
    chunk = jax.device_put(_frames(config, window)[None])
    key = keys.stream(0, "noise")
    state = jax.tree.map(lambda x: jax.numpy.array(x, copy=True), state)

    def advance(state):
        return update(state, chunk, np.int32(0), np.bool_(False), key)[0]

    return advance, jax.block_until_ready(advance(state))


def _program(
    config, dtype, window: int, noise: str, count: int, devices: int, mode: str
) -> tuple:
    """`advance(states) -> states` of `count` replicas, and their first states."""
    import jax

    from prednet_jax import keys
    from prednet_jax.training import replicas
    from prednet_jax.training.layout import (
        BY_REPLICA,
        BY_STREAM,
        layout,
        spread_tree,
    )
    from prednet_jax.training.truncated import Method

    place = layout(count, 1, jax.devices()[:devices])
    config = replicas.resolve_network(config, mode).config
    optimizer, spec, state = _parts(config, dtype, noise)
    update = replicas.compile_update(config, optimizer, Method(), spec, place, mode)

    def same(tree, spec):
        specs = jax.tree.map(lambda _: spec, tree)
        return spread_tree(place, dict.fromkeys(range(count), tree), specs)

    states = same(state, BY_REPLICA)._replace(carry=same(state.carry, BY_STREAM))
    chunk = same(_frames(config, window)[None, None], BY_STREAM)
    first = same(np.zeros(1, bool), BY_REPLICA)
    key_data = same(jax.random.key_data(keys.stream(0, "noise")), BY_REPLICA)

    def advance(states):
        return update(states, chunk, np.int32(0), first, key_data)[0]

    return advance, jax.block_until_ready(advance(states))
