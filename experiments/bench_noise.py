"""The suite `noise` of benchmark.py: noisy training steps against the clean one."""

import time

import numpy as np

SPECS = (
    "reduction_order:granularity=shared",
    "reduction_order:granularity=tile",
    "reduction_order:granularity=element",
    "ulp",
    "stochastic_rounding",
)
# Slowdowns published for other tools, measured elsewhere on other programs.
PUBLISHED = {
    "Fuzzy PyTorch (PRISM), rounding": "3.6 to 64",
    "Verrou, rounding": "200 to 420",
}


def run(config, *, window: int, repeats: int) -> dict:
    """Time and compile-time ratios, all programs interleaved in one run.

    Each noisy program is compiled right after a clean one, and compared with that: on a
    shared machine minutes apart are not comparable.

    Args:
        config: the PredNet.
        window: frames a window, batch 1.
        repeats: rounds; each times every program once. Medians are compared.

    Returns:
        One row a spec with `time_ratio` and `compile_ratio` against the clean step.
    """
    import jax

    from prednet_jax import keys, noise
    from prednet_jax.training import loop, truncated

    params = loop.initial_params(config, 0)
    optimizer = loop.default_optimizer(config, 100)
    shape = (window + 1, 1, config.height, config.width, config.channels[0])
    frames = np.random.default_rng(0).integers(0, 256, shape, np.uint8)
    arguments = (
        truncated.initial_train_state(config, params, optimizer),
        jax.device_put(frames),
        jax.numpy.asarray(False),
        keys.stream(0, "noise"),
    )

    def compiled(name: str):
        """A program, made anew, and the seconds that took."""
        spec = None if name == "none" else noise.parse(name)
        step = truncated.make_step(config, optimizer, noise=spec)
        start = time.perf_counter()
        program = jax.jit(step).lower(*arguments).compile()
        return program, time.perf_counter() - start

    compiled("none")  # the first program pays for what all of them share
    programs, compile_seconds, clean_seconds = {}, {}, {}
    for name in SPECS:
        programs["none"], clean_seconds[name] = compiled("none")
        programs[name], compile_seconds[name] = compiled(name)
        print(
            f"  compiled {name} in {compile_seconds[name]:.1f} s, the clean step in "
            f"{clean_seconds[name]:.1f}",
            flush=True,
        )
    compile_seconds["none"] = float(np.median(list(clean_seconds.values())))
    clean_seconds["none"] = compile_seconds["none"]
    seconds = {name: [] for name in programs}
    for turn in range(repeats + 1):
        for name, program in programs.items():
            start = time.perf_counter()
            jax.block_until_ready(program(*arguments))
            if turn:  # the first round warms up
                seconds[name].append(time.perf_counter() - start)
    medians = {name: float(np.median(times)) for name, times in seconds.items()}
    rows = [
        {
            "noise": name,
            "seconds_per_window": medians[name],
            "time_ratio": medians[name] / medians["none"],
            "compile_seconds": compile_seconds[name],
            "compile_ratio": compile_seconds[name] / clean_seconds[name],
        }
        for name in programs
    ]
    for row in rows:
        print(
            f"  {row['noise']:40s} {row['time_ratio']:6.2f} x the clean step, "
            f"{row['compile_ratio']:5.2f} x its compile time"
        )
    for tool, slowdown in PUBLISHED.items():
        print(f"  {tool}: {slowdown} x (published, measured elsewhere)")
    return {"suite": "noise", "rows": rows, "published_elsewhere": PUBLISHED}
