"""Trainings of a part's seeds on the device at hand, all of them in one program.

The updates of part H are a thousand small kernels each, so a GPU trains a hundred seeds
in little more time than one. Frames and weights are those of `seed_trainings`, drawn on
the CPU; the loop over updates runs on the device.
"""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from prednet_jax import records
from prednet_jax.objectives import Method
from prednet_jax.studies.parts import CONTROL, Part, Treatment
from prednet_jax.studies.seed_trainings import frames, initial_state, optimizer
from prednet_jax.training import truncated

# Updates that are one dispatch.
CHUNK = 50


@dataclasses.dataclass(frozen=True, kw_only=True)
class Arm:
    """One way to train on a device.

    Attributes:
        targets: as in `Method`.
        convolution: `im2col`, a product of matrices, as Chainer without cuDNN has it;
            or `xla`, which is cuDNN's on a GPU.
        mode: `vmap`, all seeds at once, or `map`, one after another as a single run.
        deterministic: compiled under `--xla_gpu_deterministic_ops=true`.
        precision: of products of matrices; `default` may round to TF32.
    """

    targets: str = "true"
    convolution: str = "im2col"
    mode: str = "vmap"
    deterministic: bool = False
    precision: str = "highest"


_CUDNN = Arm(convolution="xla", mode="map")
ARMS = {
    "gpu": Arm(),
    "gpu_again": Arm(),
    "gpu_deterministic": Arm(deterministic=True),
    "gpu_tf32": Arm(precision="default"),
    "gpu_stale": Arm(targets="stale"),
    "gpu_cudnn": _CUDNN,
    "gpu_cudnn_again": _CUDNN,
    "gpu_cudnn_stale": dataclasses.replace(_CUDNN, targets="stale"),
    # The same by the CPU, from which distances are measured.
    "cpu": Arm(convolution="auto", mode="map"),
}


def rendered(part: Part, seed: int, updates: int) -> np.ndarray:
    """The frames `[updates * window, H, W, C]` that so many updates see, uint8."""
    source, _ = frames(part, seed)
    return source.read(0, updates * part.window)


def train(
    part: Part, arm: Arm, seeds: Sequence[int], shown: Any, updates: int
) -> tuple[dict[str, np.ndarray], np.ndarray]:
    """Trains seeds on their frames `[N, T, H, W, C]` uint8, of `rendered`.

    Returns the curves `last_frame_loss` and `window_loss` `[N, updates]`, and the final
    weights `[N, size]`, as in `records.vector`.
    """
    treatment = Treatment(arm=CONTROL, targets=arm.targets)
    states = [initial_state(part, treatment, seed) for seed in seeds]
    state = jax.tree.map(lambda *leaves: jnp.stack(leaves), *states)
    advance, shown = _program(part, arm, treatment), jnp.asarray(shown)
    chunks = []
    for start in range(0, updates, CHUNK):
        numbers = jnp.arange(start, min(start + CHUNK, updates))
        state, losses = advance(state, shown, numbers)
        chunks.append(jax.device_get(losses))
    curves = {
        name: np.concatenate([chunk[name] for chunk in chunks]).T for name in chunks[0]
    }
    final = jax.device_get(state.params)
    weights = [
        records.vector(jax.tree.map(lambda leaf, i=i: leaf[i], final))
        for i in range(len(seeds))
    ]
    return curves, np.stack(weights)


def _program(part: Part, arm: Arm, treatment: Treatment) -> Callable:
    """`(state, frames, updates) -> (state, losses)`, leaves with the axis N first."""
    network = dataclasses.replace(part.network, convolution=arm.convolution)
    method = Method(targets=arm.targets, truncation_leak=part.truncation_leak)
    step = truncated.make_step(network, optimizer(part, treatment), method)
    key = jax.random.key(0)

    def one(inputs: tuple) -> tuple:
        state, window, first = inputs
        state, metrics = step(state, window[:, None], first, key)
        last = metrics.frame_losses[-1]
        return state, {"last_frame_loss": last, "window_loss": metrics.loss}

    def update(shown: jax.Array, state: Any, number: jax.Array) -> tuple:
        # As `trainer.windows` cuts a stream.
        places = number * part.window - 1 + jnp.arange(part.window + 1)
        windows = shown[:, jnp.maximum(places, 0)]
        first = jnp.full(len(shown), number == 0)
        inputs = state, windows, first
        return jax.vmap(one)(inputs) if arm.mode == "vmap" else jax.lax.map(one, inputs)

    def advance(state: Any, shown: jax.Array, numbers: jax.Array) -> tuple:
        with jax.default_matmul_precision(arm.precision):
            return jax.lax.scan(lambda s, n: update(shown, s, n), state, numbers)

    options = {"xla_gpu_deterministic_ops": True} if arm.deterministic else None
    return jax.jit(advance, donate_argnums=0, compiler_options=options)
