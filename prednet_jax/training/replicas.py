"""Many seeds, or many streams, in one compiled program on all devices.

A replica is a whole training run: its own weights, optimiser, carried state, frames and
noise key. If a replica has B streams (`batch`), gradients are averaged over them.

The mesh has two axes, `replicas` and `batch`. Of D devices, r = gcd(N, D) share the N
replicas and D / r share the B streams of each: replicas need no communication, so they
are dealt out first. Devices are ordered by process, so that each process holds
neighbouring streams of neighbouring replicas. The replicas of a device are taken one
after the other (`map`: the program of a single run), or all at once (`vmap`: XLA would
turn its convolutions into grouped ones, slow on a CPU, so that `auto` is `im2col`).
`auto` is `map` on a CPU, where `vmap` was slower (study/pages/measurements.md), and
`vmap` elsewhere, where one replica leaves most of a device idle (not measured there).
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
import optax
from jax.experimental import multihost_utils
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from prednet_jax import tasks
from prednet_jax.errors import UserError, check_int, one_of
from prednet_jax.noise.specs import NoiseSpec
from prednet_jax.objectives import Method
from prednet_jax.tasks import Network, Task
from prednet_jax.training import keys, loop, truncated
from prednet_jax.training.loop import Pair, SeedRun, Windows
from prednet_jax.training.truncated import StepMetrics, TrainState

MODES = ("auto", "map", "vmap")
REPLICAS, BATCH = "replicas", "batch"
#: How leaves `[N, ...]`, `[N, B, ...]` and windows `[N, T + 1, B, ...]` are spread.
BY_REPLICA = PartitionSpec(REPLICAS)
BY_STREAM = PartitionSpec(REPLICAS, BATCH)
BY_WINDOW = PartitionSpec(REPLICAS, None, BATCH)
_STATE: Any = TrainState(BY_REPLICA, BY_REPLICA, BY_STREAM, BY_REPLICA)  # type: ignore[arg-type]


@dataclass(frozen=True)
class ReplicaLayout:
    """N replicas of B streams on a mesh of devices `[r, b]`."""

    replicas: int
    batch: int
    mesh: Mesh

    @property
    def streams(self) -> int:
        """Number of streams of a replica on each device."""
        return self.batch // self.mesh.shape[BATCH]

    def local(self, axis: int) -> list[int]:
        """Returns the replicas (axis 0) or streams (1) that this process holds."""
        shape = self.replicas, self.batch
        sharding = NamedSharding(self.mesh, BY_STREAM)
        places = sharding.addressable_devices_indices_map(shape).values()
        parts = (range(*index[axis].indices(shape[axis])) for index in places)  # type: ignore[index]
        return sorted(set().union(*parts))

    def written(self, replica: int) -> bool:
        """Returns whether this process writes the records of a replica."""
        rows = self.mesh.devices.shape[0]
        first = self.mesh.devices[replica * rows // self.replicas, 0]
        return first.process_index == jax.process_index()

    def stack(self, trees: Sequence[Any], spec: PartitionSpec) -> Any:
        """Stacks one tree per local replica into a tree of arrays `[N, ...]`.

        An axis of streams may have all streams, or only the streams of this process.
        """
        sharding = NamedSharding(self.mesh, spec)

        def put(*parts: Any) -> jax.Array:
            local = np.stack([np.asarray(part) for part in parts])
            shape = list(local.shape)
            for axis, name in enumerate(spec):
                if name is not None:
                    shape[axis] = self.replicas if name == REPLICAS else self.batch
            return jax.make_array_from_process_local_data(sharding, local, tuple(shape))

        return jax.tree.map(put, *trees)

    def place_states(self, states: Sequence[TrainState]) -> TrainState:
        """Places the states of the local replicas."""
        fields = zip(zip(*states, strict=True), _STATE, strict=True)
        return TrainState(*(self.stack(parts, spec) for parts, spec in fields))


def layout(
    replicas: int, batch: int, devices: Sequence[jax.Device] | None = None
) -> ReplicaLayout:
    """Lays out replicas and streams on devices.

    Devices default to all, of every process.
    """
    devices = jax.devices() if devices is None else list(devices)
    processes = len({getattr(device, "process_index", 0) for device in devices})
    split = shares(replicas, batch, len(devices), processes)
    if split is None:
        raise UserError(
            f"replicas={replicas} with batch={batch} on {len(devices)} devices: "
            "expected replicas, or else batch, to be a multiple of the devices"
        )
    ordered = sorted(devices, key=lambda device: (device.process_index, device.id))
    mesh = Mesh(np.array(ordered, dtype=object).reshape(split), (REPLICAS, BATCH))
    return ReplicaLayout(replicas, batch, mesh)


def shares(
    replicas: int, batch: int, devices: int, processes: int = 1
) -> tuple[int, int] | None:
    """Returns how many devices share the replicas, and each batch; or None."""
    for name, value in (("replicas", replicas), ("batch", batch), ("devices", devices)):
        check_int(name, value, 1)
    rows = math.gcd(replicas, devices)
    columns, each = devices // rows, devices // processes
    uneven = batch % columns or (columns % each and each % columns)
    return None if uneven else (rows, columns)


def most_devices(replicas: int, batch: int, available: int, processes: int = 1) -> int:
    """Returns the most devices per process that divide the work evenly; at least 1."""
    for devices in range(available, 1, -1):
        if shares(replicas, batch, devices * processes, processes):
            return devices
    return 1


def resolve_mode(mode: str, platform: str, replicas: int) -> str:
    """Returns how the replicas of one device are run: `map` or `vmap`.

    `auto` is `vmap` for several replicas on a device that is not a CPU. One replica
    alone is the program of a single run.
    """
    one_of("replica_mode", mode, MODES)
    own = "map" if platform == "cpu" or replicas == 1 else "vmap"
    return own if mode == "auto" else mode


def resolve_network(network: Network, mode: str) -> Task:
    """Returns the task with the convolution that `auto` means under `vmap`."""
    task = tasks.of(network)
    return task.with_convolution("im2col", where="auto") if mode == "vmap" else task


def compile_update(
    network: Network,
    optimizer: optax.GradientTransformation,
    method: Method,
    noise: NoiseSpec | None,
    layout: ReplicaLayout,
    mode: str,
) -> Any:
    """Compiles one update of all replicas, to which their state is donated.

    `update(states, frames, first, key_data) -> (states, StepMetrics)`, every leaf with
    axis N first: frames `[N, T + 1, B, H, W, C]` uint8, first `[N]`, key_data `[N, 2]`.
    """
    axis = BATCH if layout.mesh.shape[BATCH] > 1 else None
    step = truncated.make_step(network, optimizer, method, noise=noise, axis=axis)

    def one(inputs: tuple) -> tuple[TrainState, StepMetrics]:
        *arguments, key_data = inputs
        key = jax.random.wrap_key_data(key_data, impl=keys.IMPLEMENTATION)
        return step(*arguments, key)

    def local(*inputs: Any) -> tuple[TrainState, StepMetrics]:
        if mode == "vmap":
            return jax.vmap(one)(inputs)
        if len(inputs[2]) > 1:
            return jax.lax.map(one, inputs)
        # A loop of one would only copy.
        only = one(jax.tree.map(lambda x: x[0], inputs))
        return jax.tree.map(lambda x: x[None], only)

    program = jax.shard_map(
        local,
        mesh=layout.mesh,
        in_specs=(_STATE, BY_WINDOW, BY_REPLICA, BY_REPLICA),
        out_specs=(_STATE, BY_REPLICA),
        # Custom derivative rules carry no account of what varies over the mesh.
        check_vma=False,
    )
    return jax.jit(program, donate_argnums=0)


def many_seeds(
    update: Callable, layout: ReplicaLayout, runs: Sequence[SeedRun]
) -> Pair:
    """Returns the step and the stream of the replicas of this process.

    `runs` are the runs of `layout.local(0)`, in its order, and `update` is the program
    of `compile_update`. Every process of the program makes the same updates.
    """
    local = layout.local(0)
    noise = [jax.random.key_data(keys.derive(run.seed, "noise")) for run in runs]
    key_data = layout.stack(noise, BY_REPLICA)

    def step(states: TrainState, windows: Windows) -> tuple[TrainState, list]:
        frames, opening = zip(*windows, strict=True)
        placed = layout.stack(frames, BY_WINDOW), layout.stack(opening, BY_REPLICA)
        states, metrics = update(states, *placed, key_data)
        fetched = [_rows(leaf) for leaf in metrics]
        return states, [
            StepMetrics(*(field[number] for field in fetched))  # type: ignore[arg-type]
            for number in local
        ]

    return Pair(
        step,
        loop.stream(runs, layout.local(1)),
        layout.place_states([run.state for run in runs]),
        state_of=lambda states, i: replica_state(states, local[i]),
        gather=gather_states,
    )


def gather_states(states: TrainState) -> TrainState:
    """Returns all states in every process; all of them call it."""
    if jax.process_count() == 1:
        return states
    return multihost_utils.process_allgather(states, tiled=True)


def replica_state(states: TrainState, replica: int) -> TrainState:
    """Returns this process's part of a replica's state, as NumPy arrays."""

    def part(x: Any) -> np.ndarray:
        if isinstance(x, jax.Array) and not x.is_fully_addressable:
            return _rows(x)[replica]
        return np.asarray(x[replica])

    return jax.tree.map(part, states)


def _rows(array: jax.Array) -> dict[int, np.ndarray]:
    """Returns the parts of an array that are held here, by replica."""
    rows: dict[int, np.ndarray] = {}
    for shard in array.addressable_shards:
        first = shard.index[0].start or 0
        for i, row in enumerate(np.asarray(shard.data)):
            rows.setdefault(first + i, row)
    return rows
