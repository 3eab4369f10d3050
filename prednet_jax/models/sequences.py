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
import jax.numpy as jnp
import numpy as np
from numpy.typing import ArrayLike

from prednet_jax.config import PredNetConfig
from prednet_jax.errors import UserError, check_int, one_of
from prednet_jax.models import prednet

CHUNK = 10


ALIGNMENTS = ("frame", "seen")


def units(
    params: prednet.Params,
    config: PredNetConfig,
    frames: ArrayLike,
    layers: Sequence[str] | None = None,
    *,
    extrapolate_from: int | None = None,
    layout: str | None = None,
    align: str = "frame",
) -> dict[str, np.ndarray]:
    """Returns the activations of the network's units while it is shown frames, by name.

    Activations at index t belong to the step at which frame t is shown. With
    `align="frame"` they have seen these frames:

        units      lotter, lotter_pytorch      watanabe, watanabe_pytorch
        R          up to t - 1                 up to t
        Ahat       up to t - 1, of frame t     up to t, of frame t + 1
        A, E       up to t                     up to t

    With `align="seen"` all units at index t have seen frames up to t, in every variant:
    R and Ahat of `lotter` are taken from the next step, before its frame.
    `unit_times` returns this table for a network.

    For activations that do not fit into the host's memory, `models.sequences.pieces`
    yields them ten frames at a time, also of frames that NumPy maps from an .npy.

    Args:
        params: the network's parameters.
        config: the network.
        frames: sequences that start from the zero state, as in `prednet.predict`.
        layers: R (representation; h in `watanabe`), A (target), Ahat (prediction) or E
            (error) and the number of a layer, such as E0 or R1. Defaults to R and E of
            every layer.
        extrapolate_from: as in `prednet.predict`.
        layout: as in `prednet.predict`. Single frames `[1, B, H, W, C]`, each shown to
            a new network, need `TBHWC`.
        align: `frame` or `seen`.

    Returns:
        `[T, B, H_l, W_l, .]`, with axes in the order of the layout. E has two halves
        along its channels. In `lotter` the first half is where the prediction is too
        bright, the second where it is too dark; in `watanabe` it is the reverse.
    """
    one_of("align", align, ALIGNMENTS)
    if layers is None:
        layers = [f"{kind}{i}" for i in range(config.layers) for kind in "RE"]
    elif isinstance(layers, str):
        raise UserError(f"layers={layers!r}: expected a list such as ('E0', 'R1')")
    shown = prednet.time_first(np.asarray(frames), layout)
    if layout is None:
        prednet.check_time(shown)
    offsets = unit_times(config, layers)
    late = align == "seen" and any(offsets.values())
    maps = _joined(params, config, shown, layers, extrapolate_from, after=int(late))
    return {
        name: prednet.in_layout(
            maps[name][-offsets[name] * late :][: len(shown)], layout
        )
        for name in layers
    }


def unit_times(config: PredNetConfig, layers: Sequence[str]) -> dict[str, int]:
    """Returns the last frame that each map of `units` has seen, less its own index.

    It is 0 for maps that have seen frames up to t at index t, and -1 for maps that have
    seen frames up to t - 1.

    Example:
        >>> from prednet_jax import PredNetConfig, unit_times
        >>> config = PredNetConfig(channels=(3, 4), height=8, width=8, variant="lotter")
        >>> unit_times(config, ("E0", "R1"))
        {'E0': 0, 'R1': -1}
    """
    kinds = {name: prednet.place_of_map(config, name)[0] for name in layers}
    before = ("hidden", "prediction") if config.pass_order == "lotter" else ()
    return {name: -1 if kind in before else 0 for name, kind in kinds.items()}


def predict_sequence(
    params: prednet.Params,
    config: PredNetConfig,
    frames: ArrayLike,
    *,
    extrapolate_from: int | None = None,
    maps: Sequence[str] = (),
) -> tuple[np.ndarray, dict[str, np.ndarray]]:
    """Predicts every frame of a sequence before it is seen, from the zero state.

    `frames` are `[T, H, W, C]`, or `[T, B, H, W, C]` of several sequences. Returns
    predictions, shaped as the frames, as of `prednet.predict`; and by name the maps of
    `units` with `align="frame"`, for `[T, H, W, C]` without their axis B.
    """
    shown = np.asarray(frames)
    single = shown.ndim == 4
    if single:
        shown = shown[:, None]
    activations = _joined(params, config, shown, maps, extrapolate_from)
    if single:
        activations = {name: value[:, 0] for name, value in activations.items()}
    return activations.pop("prediction"), activations


def pieces(
    params: prednet.Params,
    config: PredNetConfig,
    frames: ArrayLike,
    maps: Sequence[str] = (),
    *,
    extrapolate_from: int | None = None,
    after: int = 0,
) -> Iterator[dict[str, np.ndarray]]:
    """Yields what `predict_sequence` returns, `CHUNK` frames at a time.

    `after` further steps follow the last frame. They are shown padding, so only
    activations that precede their frame are meaningful. Each item has `prediction` and
    the maps by name, `[CHUNK or fewer, B, ...]`, at the times of `units` with
    `align="frame"`.
    """
    shown = np.asarray(frames)
    prednet.check_frames(params, config, shown, extrapolate_from)
    for name in maps:
        prednet.place_of_map(config, name)
    total = len(shown) + after
    unseen_from = total if extrapolate_from is None else extrapolate_from
    run = _program(config, tuple(maps))
    yield from _chunks(run, params, config, shown, total, unseen_from)


def _chunks(
    run: Callable,
    params: prednet.Params,
    config: PredNetConfig,
    frames: np.ndarray,
    total: int,
    unseen_from: int = 0,
) -> Iterator[Any]:
    """Yields the outputs of `total` steps from the zero state, `CHUNK` at a time.

    Steps after the last frame are shown it again.
    """
    dtype = jax.dtypes.canonicalize_dtype(jax.tree.leaves(params)[0].dtype)
    state = prednet.initial_state(config, frames.shape[1], dtype)
    for begin in range(0, total, CHUNK):
        shown = np.minimum(np.arange(begin, begin + CHUNK), len(frames) - 1)
        state, values = run(params, state, frames[shown], np.int32(unseen_from - begin))
        count = total - begin
        yield jax.tree.map(lambda part, count=count: np.asarray(part)[:count], values)


def rollouts(
    params: prednet.Params,
    config: PredNetConfig,
    frames: ArrayLike,
    horizons: Sequence[int],
) -> np.ndarray:
    """Predicts ahead from every frame of sequences that start from the zero state.

    Args:
        params: the network's parameters.
        config: the network.
        frames: `[T, B, H, W, C]`, as in `prednet.predict`.
        horizons: how many frames ahead, such as (1, 2, 5).

    Returns:
        `[T, len(horizons), B, H, W, C]`. Entry [t, i] predicts frame
        t + horizons[i] and has seen frames up to t, as `prednet.forecast` of these.
    """
    shown = np.asarray(frames)
    prednet.check_frames(params, config, shown, None)
    for horizon in horizons:
        check_int("horizon", horizon, 1)
    run = _rollout_program(config, tuple(horizons))
    return np.concatenate(list(_chunks(run, params, config, shown, len(shown))))


@functools.lru_cache(maxsize=8)
def _rollout_program(config: PredNetConfig, horizons: tuple[int, ...]) -> Callable:
    """Compiles `(params, state, frames, _) -> (state, predictions)`."""
    wanted = np.array(horizons) - 1

    @jax.jit
    def run(params: Any, state: Any, frames: jax.Array, _: Any) -> tuple:
        unseen = jnp.zeros((max(horizons), *frames.shape[1:]), frames.dtype)

        def ahead(state: Any, frame: jax.Array) -> tuple[Any, jax.Array]:
            _, state = prednet.outputs(params, config, frame[None], (), state)
            values, _ = prednet.outputs(
                params, config, unseen, state=state, extrapolate_from=0
            )
            return state, values["prediction"][wanted]

        return jax.lax.scan(ahead, state, frames)

    return run


def _joined(
    params: Any,
    config: PredNetConfig,
    frames: Any,
    maps: Any,
    k: int | None,
    after: int = 0,
) -> dict[str, np.ndarray]:
    parts = list(pieces(params, config, frames, maps, extrapolate_from=k, after=after))
    names = list(parts[0])
    return {n: np.concatenate([part.pop(n) for part in parts]) for n in names}


@functools.lru_cache(maxsize=32)
def _program(config: PredNetConfig, maps: tuple[str, ...]) -> Callable:
    """Compiles `(params, state, frames, unseen_from) -> (state, maps by name)`."""
    names = ("prediction", *maps)

    @jax.jit
    def run(params: Any, state: Any, frames: jax.Array, unseen_from: jax.Array):
        values, state = prednet.outputs(
            params, config, frames, names, state, extrapolate_from=unseen_from
        )
        return state, values

    return run
