"""Predictions of sequences of any length by one program of a fixed length.

`prednet.predict` is a pure function that its caller compiles, once per number of
frames. Here one program of `CHUNK` frames is called repeatedly and passes its state on.
So neither another length of a sequence nor another start of extrapolation compiles
again.
"""

import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from prednet_jax.config import PredNetConfig
from prednet_jax.errors import UserError, whole
from prednet_jax.models import prednet

CHUNK = 10


def predict_sequence(
    params: prednet.Params,
    config: PredNetConfig,
    frames: Float[Array, "T H W C"],
    *,
    extrapolate_from: int | None = None,
    maps: Sequence[str] = (),
) -> tuple[np.ndarray, dict[str, np.ndarray]]:
    """Predicts every frame of a sequence before it is seen, from the zero state.

    Args:
        params: the network's parameters.
        config: the network.
        frames: `[T, H, W, C]`, pixels in [0, pixel_max].
        extrapolate_from: as in `prednet.predict`.
        maps: inner layers to return too, such as `R0` or `E1` (`prednet.outputs`).

    Returns:
        predictions `[T, H, W, C]`, as of `prednet.predict`; and by name the maps
        `[T, H_l, W_l, .]`, each of the step at which frame t is shown.

    Raises:
        UserError: frames do not fit the network, extrapolate_from is not >= 1, or there
            is no such map.
    """
    expected = (config.height, config.width, config.channels[0])
    if frames.ndim != 4 or tuple(frames.shape[1:]) != expected:
        raise UserError(
            f"frames of shape {tuple(frames.shape)}: expected [T, H, W, C] with "
            f"H, W, C = {expected}"
        )
    if extrapolate_from is not None:
        whole("extrapolate_from", extrapolate_from, 1)
    host = np.asarray(frames)
    total = len(host)
    unseen_from = total if extrapolate_from is None else extrapolate_from
    run = _program(config, tuple(maps))
    state = prednet.initial_state(config, 1, host.dtype)
    parts = []
    for begin in range(0, total, CHUNK):
        places = np.minimum(np.arange(begin, begin + CHUNK), total - 1)
        left = np.int32(unseen_from - begin)
        state, found = run(params, state, host[places][:, None], left)
        parts.append(jax.device_get(found))
    joined = {
        name: np.concatenate([part[name] for part in parts])[:total, 0]
        for name in parts[0]
    }
    return joined.pop("prediction"), joined


@functools.lru_cache(maxsize=32)
def _program(config: PredNetConfig, maps: tuple[str, ...]) -> Callable:
    """`(params, state, frames, unseen_from) -> (state, maps by name)`, compiled."""
    places = {name: prednet.place_of_map(config, name) for name in maps}

    def pick(out: prednet.StepOutputs) -> dict[str, jax.Array]:
        found = {"prediction": out.prediction[0]}
        for name, (field, layer) in places.items():
            found[name] = getattr(out, field)[layer]
        return found

    @jax.jit
    def run(params: Any, state: Any, frames: jax.Array, unseen_from: jax.Array):
        before = state.prediction[0]
        state, found = prednet.scan_frames(
            params, config, state, frames, pick, extrapolate_from=unseen_from
        )
        if config.variant == "watanabe":
            # The step at frame t predicts t + 1: shift by one.
            made = jnp.concatenate([before[None], found["prediction"][:-1]])
            found = found | {"prediction": made}
        return state, found

    return run
