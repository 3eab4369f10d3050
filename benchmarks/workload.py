"""What the suites time, and how: one training on random frames, in turns, medians."""

import time
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import numpy as np

from prednet_jax import keys
from prednet_jax import noise as noise_lib
from prednet_jax.config import PredNetConfig
from prednet_jax.training import loop, truncated

# `advance(state) -> state`, and a state to begin with.
Program = tuple[Callable[[Any], Any], Any]


class Training(NamedTuple):
    """A training of seed 0 before its first update.

    Attributes:
        config: the network.
        optimizer: an optax transformation.
        noise: a noise spec; None: the clean program.
        state: `truncated.TrainState`.
        key: root of the noise.
    """

    config: PredNetConfig
    optimizer: Any
    noise: noise_lib.NoiseSpec | None
    state: truncated.TrainState
    key: jax.Array

    def update(self) -> Callable:
        """`update(state, frames, first, key) -> (state, metrics)`, not compiled."""
        return truncated.make_step(self.config, self.optimizer, noise=self.noise)


def training(
    config: PredNetConfig,
    dtype: Any = np.float32,
    *,
    noise: str = "none",
    batch: int = 1,
) -> Training:
    """A training by the published optimiser, ready to be timed.

    Args:
        config: the network.
        dtype: of weights and frames.
        noise: a noise spec as text.
        batch: sequences trained together.
    """
    spec = parse(noise)
    optimizer = loop.default_optimizer(config, 100)
    params = loop.prepare_params(loop.initial_params(config, 0), dtype, spec, 0)
    state = truncated.initial_train_state(config, params, optimizer, batch=batch)
    return Training(config, optimizer, spec, state, keys.stream(0, "noise"))


def parse(noise: str) -> noise_lib.NoiseSpec | None:
    """A noise spec; None where it is no noise."""
    spec = noise_lib.parse(noise)
    return None if spec == noise_lib.Identity() else spec


def random_frames(config: PredNetConfig, *leading: int) -> np.ndarray:
    """Random uint8 frames `[*leading, H, W, C]`, the same at each call."""
    shape = (*leading, config.height, config.width, config.channels[0])
    return np.random.default_rng(0).integers(0, 256, shape, np.uint8)


def medians(
    programs: dict[Any, Program], repeats: int, *, warm_up: int = 1
) -> dict[Any, float]:
    """Median seconds per call of each program, all taking turns.

    Args:
        programs: by name; a busy machine slows all of them alike. Their states are
            replaced by those reached.
        repeats: rounds that count.
        warm_up: rounds before those.
    """
    seconds: dict[Any, list[float]] = {name: [] for name in programs}
    for turn in range(warm_up + repeats):
        for name, (advance, state) in programs.items():
            start = time.perf_counter()
            state = jax.block_until_ready(advance(state))
            if turn >= warm_up:
                seconds[name].append(time.perf_counter() - start)
            programs[name] = advance, state
    return {name: float(np.median(times)) for name, times in seconds.items()}


def trace(folder: str | None, program: Program) -> None:
    """Three calls under JAX's profiler, where a folder is named."""
    if folder is None:
        return
    advance, state = program
    with jax.profiler.trace(folder, create_perfetto_trace=True):
        for _ in range(3):
            state = jax.block_until_ready(advance(state))
