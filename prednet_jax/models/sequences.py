"""Sequences of any length by one program of a fixed length.

`prednet.predict` is compiled once for each number of frames. Here one program of
`CHUNK` frames is called repeatedly and passes its state on. So neither another length
of a sequence nor another start of extrapolation compiles again, and the device holds
the activations of `CHUNK` frames at a time.
"""

import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import numpy as np
from numpy.typing import ArrayLike

from prednet_jax.config import PredNetConfig
from prednet_jax.errors import UserError
from prednet_jax.models import prednet

CHUNK = 10


def units(
    params: prednet.Params,
    config: PredNetConfig,
    frames: ArrayLike,
    layers: Sequence[str] | None = None,
    *,
    extrapolate_from: int | None = None,
    layout: str = "TBHWC",
) -> dict[str, np.ndarray]:
    """Activations of the network's units while it is shown frames, by name.

    For activations that do not fit into the host's memory, `models.sequences.pieces`
    yields them ten frames at a time, also of frames that NumPy maps from an .npy.

    The frames, of sequences that start from the zero state, and the rest are as in
    `prednet.predict`. `layers` are R (representation; h in `watanabe`), A (target),
    Ahat (prediction) or E (error) and the number of a layer, such as E0 or R1; None: R
    and E of every layer.

    Returns `[T, B, H_l, W_l, .]` in the layout of the frames, each of the step at which
    frame t is shown. E has two halves along its channels: in `lotter` first where the
    prediction is too bright, then where it is too dark; `watanabe`: the reverse.
    """
    if layers is None:
        layers = [f"{kind}{i}" for i in range(config.layers) for kind in "RE"]
    elif isinstance(layers, str):
        raise UserError(f"layers={layers!r}: expected a list such as ('E0', 'R1')")
    shown = prednet.time_first(np.asarray(frames), layout)
    found = _joined(params, config, shown, layers, extrapolate_from)
    return {name: prednet.time_first(found[name], layout) for name in layers}


def predict_sequence(
    params: prednet.Params,
    config: PredNetConfig,
    frames: ArrayLike,
    *,
    extrapolate_from: int | None = None,
    maps: Sequence[str] = (),
) -> tuple[np.ndarray, dict[str, np.ndarray]]:
    """Predicts every frame of a sequence before it is seen, from the zero state.

    `frames` are `[T, H, W, C]`, or `[T, B, H, W, C]` of several sequences; the rest is
    as in `units`, of which `maps` are returned too.

    Returns predictions, shaped as the frames, as of `prednet.predict`; and by name the
    maps `[T, H_l, W_l, .]`, or `[T, B, H_l, W_l, .]`.
    """
    shown = np.asarray(frames)
    single = shown.ndim == 4
    if single:
        shown = shown[:, None]
    found = _joined(params, config, shown, maps, extrapolate_from)
    if single:
        found = {name: value[:, 0] for name, value in found.items()}
    return found.pop("prediction"), found


def pieces(
    params: prednet.Params,
    config: PredNetConfig,
    frames: ArrayLike,
    maps: Sequence[str] = (),
    *,
    extrapolate_from: int | None = None,
) -> Iterator[dict[str, np.ndarray]]:
    """What `predict_sequence` returns, `CHUNK` frames at a time.

    Yields `prediction` and the maps by name, `[CHUNK or fewer, B, ...]`.
    """
    shown = np.asarray(frames)
    prednet.check_frames(config, shown, extrapolate_from)
    for name in maps:
        prednet.place_of_map(config, name)
    run = _program(config, tuple(maps))
    total, batch = shown.shape[:2]
    dtype = jax.dtypes.canonicalize_dtype(jax.tree.leaves(params)[0].dtype)
    state = prednet.initial_state(config, batch, dtype)
    unseen_from = total if extrapolate_from is None else extrapolate_from
    for begin in range(0, total, CHUNK):
        places = np.minimum(np.arange(begin, begin + CHUNK), total - 1)
        state, found = run(params, state, shown[places], np.int32(unseen_from - begin))
        count = min(CHUNK, total - begin)
        yield {name: np.asarray(part)[:count] for name, part in found.items()}


def _joined(
    params: Any, config: PredNetConfig, frames: Any, maps: Any, k: int | None
) -> dict[str, np.ndarray]:
    parts = list(pieces(params, config, frames, maps, extrapolate_from=k))
    names = list(parts[0])
    return {n: np.concatenate([part.pop(n) for part in parts]) for n in names}


@functools.lru_cache(maxsize=32)
def _program(config: PredNetConfig, maps: tuple[str, ...]) -> Callable:
    """`(params, state, frames, unseen_from) -> (state, maps by name)`, compiled."""
    names = ("prediction", *maps)

    @jax.jit
    def run(params: Any, state: Any, frames: jax.Array, unseen_from: jax.Array):
        found, state = prednet.outputs(
            params, config, frames, names, state, extrapolate_from=unseen_from
        )
        return state, found

    return run
