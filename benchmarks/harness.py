"""What the suites share: programs that take turns, and the PredNet that they train."""

import json
import os
import subprocess
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

from prednet_jax import keys, tasks
from prednet_jax import noise as noise_lib
from prednet_jax.config import PredNetConfig
from prednet_jax.training import loop, truncated

# A function of a state that returns the next one, and the first state.
Program = tuple[Callable[[Any], Any], Any]


class Training(NamedTuple):
    """A training of seed 0 before its first update."""

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
    """A training by the published optimiser, ready to be timed."""
    spec = noise_lib.parse(noise)
    spec = None if spec == noise_lib.Identity() else spec
    optimizer = tasks.of(config).optimizer(100)
    params = loop.prepare_params(loop.initial_params(config, 0), dtype, spec, 0)
    state = truncated.initial_train_state(config, params, optimizer, batch=batch)
    return Training(config, optimizer, spec, state, keys.stream(0, "noise"))


def random_frames(config: PredNetConfig, *leading: int) -> np.ndarray:
    """Random uint8 frames `[*leading, H, W, C]`, the same at each call."""
    shape = (*leading, config.height, config.width, config.channels[0])
    return np.random.default_rng(0).integers(0, 256, shape, np.uint8)


def turns(
    programs: dict[Any, Program], repeats: int, *, warm_up: int = 1
) -> dict[Any, np.ndarray]:
    """Wall and processor seconds `[repeats, 2]` per call of each program.

    The programs take turns, so that other load on the machine slows all of them alike.

    Args:
        programs: programs by name; their states are replaced by the last ones.
        repeats: number of timed rounds.
        warm_up: number of rounds before those.
    """
    seconds: dict[Any, list] = {name: [] for name in programs}
    for turn in range(warm_up + repeats):
        for name, (advance, state) in programs.items():
            state, spent = timed(lambda f=advance, s=state: f(s))
            if turn >= warm_up:
                seconds[name].append(spent)
            programs[name] = advance, state
    return {name: np.array(times) for name, times in seconds.items()}


def medians(
    programs: dict[Any, Program], repeats: int, *, warm_up: int = 1
) -> dict[Any, float]:
    """Median wall seconds per call of each program, as `turns` takes them."""
    seconds = turns(programs, repeats, warm_up=warm_up)
    return {name: float(np.median(times[:, 0])) for name, times in seconds.items()}


def timed(call: Callable[[], Any]) -> tuple[Any, np.ndarray]:
    """The result of a call, and its wall and processor seconds."""
    start, used = time.perf_counter(), time.process_time()
    result = jax.block_until_ready(call())
    return result, np.array([time.perf_counter() - start, time.process_time() - used])


def in_a_process(command: Sequence[str]) -> dict[str, Any]:
    """Runs a program with large memory pages; the JSON object in its last line."""
    environment = os.environ | {"GLIBC_TUNABLES": "glibc.malloc.hugetlb=1"}
    done = subprocess.run(
        command, capture_output=True, text=True, check=False, env=environment
    )
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)}: {done.stderr.strip()[-300:]}")
    return json.loads(done.stdout.strip().splitlines()[-1])
