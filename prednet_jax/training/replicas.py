"""Many seeds, or many streams, in one compiled program on all devices.

A replica is a whole training run: its own weights, optimiser, carried state, frames and
noise key. The replicas of a device are taken one after the other inside the program
(`map`) or all at once (`vmap`):

    map   each step is the program of a single run, and what the replicas share is the
          dispatch; devices run side by side.
    vmap  convolutions with N different kernels. XLA turns its own convolution into one
          with N groups, which is slow on a CPU; `im2col` becomes one batched matrix
          product, so that `auto` is `im2col` here.

`auto` is `map` on a CPU, where `vmap` was slower (docs/measurements.md), and
`vmap` elsewhere, where one replica leaves most of a device idle (not measured there). A
CPU is one device, or several by `process.split_cpu`: a small network keeps one thread
busy, not all.

With B streams a replica (`batch`), gradients are averaged over them; they are spread
over the devices that the replicas leave.
"""

import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import jax
import numpy as np
import optax
from jax.experimental import multihost_utils
from jax.sharding import PartitionSpec

from prednet_jax import data, keys, tasks
from prednet_jax.data.windows import prefetch, read_chunks
from prednet_jax.errors import UserError, one_of
from prednet_jax.noise.specs import NoiseSpec
from prednet_jax.objectives import Method
from prednet_jax.tasks import Network, Task
from prednet_jax.training import loop, truncated
from prednet_jax.training.layout import (
    BATCH,
    BY_REPLICA,
    BY_STREAM,
    BY_WINDOW,
    Layout,
    place_tree,
    rows,
)
from prednet_jax.training.loop import UpdateRecord
from prednet_jax.training.truncated import StepMetrics, TrainState

MODES = ("auto", "map", "vmap")


class Replica(NamedTuple):
    """What one replica is trained with.

    Attributes:
        seed: its root seed; the `noise` stream feeds the noise.
        state: where it starts, with B streams in the carried state.
        source: its frames.
        schedule: which of them each of its B streams sees in an update.
    """

    seed: int
    state: TrainState
    source: data.FrameSource
    schedule: data.Schedule


def resolve_mode(mode: str, platform: str) -> str:
    """How the replicas of one device are run: `map` or `vmap`.

    Raises:
        UserError: the mode is none of `MODES`.
    """
    one_of("replica_mode", mode, MODES)
    if mode != "auto":
        return mode
    return "map" if platform == "cpu" else "vmap"


def resolve_network(network: Network, mode: str) -> Task:
    """The task with the convolution that `auto` means under `vmap`."""
    task = tasks.of(network)
    return task.with_convolution("im2col", where="auto") if mode == "vmap" else task


def compile_update(
    network: Network,
    optimizer: optax.GradientTransformation,
    method: Method,
    noise: NoiseSpec | None,
    layout: Layout,
    mode: str,
) -> Callable:
    """One update of all replicas as one compiled program; its state is donated.

    Args:
        network: from `resolve_network`.
        optimizer: an optax transformation.
        method: objective, targets, leak.
        noise: a noise spec, or None.
        layout: where replicas and streams lie.
        mode: `map` or `vmap`.

    Returns:
        `update(states, chunk, k, first, key_data) -> (states, StepMetrics)`, every
        leaf with a leading axis N: chunk `[N, K, T + 1, B, H, W, C]` uint8, first
        `[N, K]`, key_data `[N, 2]`; k the window to train on.
    """
    shared = layout.mesh.shape[BATCH] > 1
    step = truncated.make_step(
        network, optimizer, method, noise=noise, axis=BATCH if shared else None
    )

    def one(inputs: tuple) -> tuple[TrainState, StepMetrics]:
        state, frames, first, key_data = inputs
        key = jax.random.wrap_key_data(key_data, impl=keys.IMPLEMENTATION)
        return step(state, frames, first, key)

    def local(
        states: TrainState,
        chunk: jax.Array,
        k: jax.Array,
        first: jax.Array,
        key_data: jax.Array,
    ) -> tuple[TrainState, StepMetrics]:
        inputs = (states, chunk[:, k], first[:, k], key_data)
        if mode == "vmap":
            return jax.vmap(one)(inputs)
        if len(first) > 1:
            return jax.lax.map(one, inputs)
        # A loop of one would only copy.
        only = one(jax.tree.map(lambda x: x[0], inputs))
        return jax.tree.map(lambda x: x[None], only)

    specs = _state_specs()
    program = jax.shard_map(
        local,
        mesh=layout.mesh,
        in_specs=(specs, BY_WINDOW, PartitionSpec(), BY_REPLICA, BY_REPLICA),
        out_specs=(specs, BY_REPLICA),
        # Custom derivative rules carry no account of what varies over the mesh.
        check_vma=False,
    )
    return jax.jit(program, donate_argnums=0)


def _state_specs() -> TrainState:
    """How a TrainState is spread, field by field."""
    by: Any = BY_REPLICA
    return TrainState(by, by, BY_STREAM, by)


def train(
    update: Callable,
    layout: Layout,
    runs: Mapping[int, Replica],
    method: Method | None = None,
) -> Iterator[tuple[TrainState, dict[int, UpdateRecord]]]:
    """Trains the replicas of this process to the end of their schedules.

    Every process of the program calls it, each with its own replicas.

    Args:
        update: what `compile_update` returned.
        layout: the same layout.
        runs: by replica, those of `layout.local`; all at the same update.
        method: by which they are trained, for the loss of copying.

    Yields:
        The states after each update (`replica_state` takes one out), valid until the
        next is asked for, and the records by replica. `seconds` is the wall time of
        the update of all of them together.

    Raises:
        UserError: the runs are not at the same update, or differ in length.
    """
    done = _common_update(runs)
    places = jax.tree.map(
        lambda spec, tree: jax.tree.map(lambda _: spec, tree),
        tuple(_state_specs()),
        tuple(next(iter(runs.values())).state),
        is_leaf=lambda x: isinstance(x, PartitionSpec),
    )
    states = place_tree(
        layout, {n: run.state for n, run in runs.items()}, TrainState(*places)
    )
    key_data = place_tree(
        layout,
        {
            n: jax.random.key_data(keys.stream(run.seed, "noise"))
            for n, run in runs.items()
        },
        BY_REPLICA,
    )
    seen = {n: loop.frames_seen(run.schedule, done) for n, run in runs.items()}
    # One thread reads for all: a source has one reader at a time.
    for chunk, first in prefetch(_chunks(layout, runs, done)):
        frames, opens = _place_chunk(layout, chunk, first, _per_chunk(layout, runs))
        for k in range(len(next(iter(first.values())))):
            start = time.perf_counter()
            states, metrics = update(states, frames, np.int32(k), opens, key_data)
            fetched = [rows(leaf) for leaf in metrics]
            seconds = time.perf_counter() - start
            done += 1
            records = {}
            for n in runs:
                mine = StepMetrics(*(field[n] for field in fetched))  # type: ignore[arg-type]
                seen[n] += layout.batch * int(mine.scored.sum())
                copied = loop.copy_last_frame_loss(
                    chunk[n][k], bool(first[n][k]), method
                )
                records[n] = loop.update_record(done, seen[n], mine, copied, seconds)
            yield states, records


def whole_states(states: TrainState) -> TrainState:
    """All states, in every process; all of them call it."""
    if jax.process_count() == 1:
        return states
    return multihost_utils.process_allgather(states, tiled=True)


def replica_state(states: TrainState, replica: int) -> TrainState:
    """One replica's state as NumPy arrays: what this process holds of it."""

    def part(x: Any) -> np.ndarray:
        if isinstance(x, jax.Array) and not x.is_fully_addressable:
            return rows(x)[replica]
        return np.asarray(x[replica])

    return jax.tree.map(part, states)


def replica_params(states: TrainState, replica: int) -> dict:
    """One replica's parameters as NumPy arrays, if this process holds it."""
    return jax.tree.map(lambda x: rows(x)[replica], states.params)


def _common_update(runs: Mapping[int, Replica]) -> int:
    done = {int(run.state.update) for run in runs.values()}
    lengths = {len(run.schedule.start) for run in runs.values()}
    if len(done) > 1 or len(lengths) > 1:
        raise UserError(
            f"replicas at updates {sorted(done)} of {sorted(lengths)}: expected one "
            "place and one length for all"
        )
    return done.pop()


def _chunks(
    layout: Layout, runs: Mapping[int, Replica], done: int
) -> Iterator[tuple[dict, dict]]:
    """Frames `[K, T + 1, b, H, W, C]` and `first` `[K]` by replica.

    Of each replica the b streams that this process holds. Every process takes the same
    K, whatever it holds.
    """
    count = _per_chunk(layout, runs)
    readers = [
        read_chunks(
            run.source,
            run.schedule.of_streams(layout.local_streams[n]).after(done),
            count,
        )
        for n, run in runs.items()
    ]
    for parts in zip(*readers, strict=True):
        frames, first = zip(*parts, strict=True)
        yield dict(zip(runs, frames, strict=True)), dict(zip(runs, first, strict=True))


def _per_chunk(layout: Layout, runs: Mapping[int, Replica]) -> int:
    """Windows of a chunk, K."""
    any_run = next(iter(runs.values()))
    return loop.windows_per_chunk(
        any_run.source,
        any_run.schedule.window,
        layout.replicas * layout.batch,
    )


def _place_chunk(
    layout: Layout, frames: dict, first: dict, count: int
) -> tuple[jax.Array, jax.Array]:
    """The chunk on the devices, `[N, K, T + 1, B, H, W, C]` and `[N, K]`.

    The last one is filled up, so that no number of updates is a program of its own.
    """

    def whole(x: np.ndarray) -> np.ndarray:
        return np.pad(x, [(0, count - len(x))] + [(0, 0)] * (x.ndim - 1))

    frames = {n: whole(x) for n, x in frames.items()}
    first = {n: whole(x) for n, x in first.items()}

    def read(index: tuple) -> np.ndarray:
        chosen = range(*index[0].indices(layout.replicas))
        streams = range(*index[3].indices(layout.batch))
        # The streams that a process holds of a replica follow one another.
        begin = streams[0] - layout.local_streams[chosen[0]][0]
        held = slice(begin, begin + len(streams))
        return np.stack([frames[n][:, :, held] for n in chosen])

    k, size, _, *frame = next(iter(frames.values())).shape
    shape = (layout.replicas, k, size, layout.batch, *frame)
    return layout.place(shape, BY_WINDOW, read), place_tree(layout, first, BY_REPLICA)
