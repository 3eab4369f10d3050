"""Where replicas and batches lie: a mesh of devices, and arrays placed on it.

The mesh has two axes, `replicas` and `batch`. Of D devices, r = gcd(N, D) share the N
replicas and D / r share the B streams of each: replicas need no communication at all,
so they are dealt out first. Devices are ordered by process, so that a host holds
neighbouring replicas.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from prednet_jax.errors import UserError, whole

REPLICAS, BATCH = "replicas", "batch"
#: Every leaf `[N, ...]`, those that also have streams `[N, B, ...]`, and windows of
#: frames `[N, K, T + 1, B, ...]`.
BY_REPLICA = PartitionSpec(REPLICAS)
BY_STREAM = PartitionSpec(REPLICAS, BATCH)
BY_WINDOW = PartitionSpec(REPLICAS, None, None, BATCH)


@dataclass(frozen=True)
class Layout:
    """N replicas of B streams on a mesh.

    Attributes:
        replicas: N.
        batch: B, streams a replica.
        mesh: devices `[r, b]`, axes `replicas` and `batch`.
    """

    replicas: int
    batch: int
    mesh: Mesh

    @property
    def local(self) -> tuple[int, ...]:
        """The replicas of which this process holds a part, in order."""
        return tuple(sorted(self.local_streams))

    @property
    def local_streams(self) -> dict[int, tuple[int, ...]]:
        """The streams that this process holds, in order, by replica."""
        shape = (self.replicas, self.batch)
        indices = NamedSharding(self.mesh, BY_STREAM).addressable_devices_indices_map(
            shape
        )
        held: dict[int, set[int]] = {}
        for index in indices.values():
            if index is not None:
                for n in range(*index[0].indices(self.replicas)):
                    held.setdefault(n, set()).update(
                        range(*index[1].indices(self.batch))
                    )
        return {n: tuple(sorted(streams)) for n, streams in held.items()}

    def written(self, replica: int) -> bool:
        """Whether this process writes the records of a replica: one process does."""
        rows = self.mesh.devices.shape[0]
        first = self.mesh.devices[replica * rows // self.replicas, 0]
        return first.process_index == jax.process_index()

    def place(
        self,
        shape: Sequence[int],
        spec: PartitionSpec,
        read: Callable[[tuple], np.ndarray],
    ) -> jax.Array:
        """An array of which each process makes the parts it holds.

        Args:
            shape: of the whole array, `[N, ...]`.
            spec: where its parts lie.
            read: from a tuple of slices, one an axis, to those values.
        """
        sharding = NamedSharding(self.mesh, spec)
        return jax.make_array_from_callback(
            tuple(shape),
            sharding,
            read,  # type: ignore[arg-type]  # of None, which no axis here gives
        )


def layout(
    replicas: int, batch: int, devices: Sequence[jax.Device] | None = None
) -> Layout:
    """Lays replicas and streams out on devices.

    Args:
        replicas: N >= 1.
        batch: B >= 1.
        devices: those to use; None: all, of every process.

    Raises:
        UserError: the devices do not divide the work evenly.
    """
    found = jax.devices() if devices is None else list(devices)
    split = shares(replicas, batch, len(found))
    if split is None:
        raise UserError(
            f"replicas={replicas} with batch={batch} on {len(found)} devices: expected "
            "replicas, or else batch, to be a multiple of the devices"
        )
    ordered = sorted(found, key=lambda device: (device.process_index, device.id))
    mesh = Mesh(np.array(ordered, dtype=object).reshape(split), (REPLICAS, BATCH))
    return Layout(replicas, batch, mesh)


def shares(replicas: int, batch: int, devices: int) -> tuple[int, int] | None:
    """Devices that share the replicas, and those that share each batch; or None."""
    for name, value in (("replicas", replicas), ("batch", batch), ("devices", devices)):
        whole(name, value, 1)
    rows = math.gcd(replicas, devices)
    columns = devices // rows
    return None if batch % columns else (rows, columns)


def most_devices(replicas: int, batch: int, available: int, processes: int = 1) -> int:
    """Devices a process, as many as are available and divide the work; at least 1."""
    for devices in range(available, 1, -1):
        if shares(replicas, batch, devices * processes):
            return devices
    return 1


def place_tree(layout: Layout, trees: dict[int, Any], specs: Any) -> Any:
    """Stacks one tree a local replica into a tree of arrays `[N, ...]`.

    Args:
        layout: the layout.
        trees: by replica, those of `layout.local`; leaves without the axis N.
        specs: a spec for each leaf: a tree of `PartitionSpec`s of the same structure.
    """
    leaves = {n: jax.tree.leaves(tree) for n, tree in trees.items()}
    structure = jax.tree.structure(next(iter(trees.values())))
    flat = jax.tree.leaves(specs)
    arrays = []
    for i, spec in enumerate(flat):
        parts = {n: np.asarray(found[i]) for n, found in leaves.items()}

        def read(index: tuple, parts: dict = parts) -> np.ndarray:
            chosen = range(*index[0].indices(layout.replicas))
            return np.stack([parts[n][index[1:]] for n in chosen])

        shape = (layout.replicas, *next(iter(parts.values())).shape)
        arrays.append(layout.place(shape, spec, read))
    return jax.tree.unflatten(structure, arrays)


def rows(array: jax.Array) -> dict[int, np.ndarray]:
    """The replicas' parts of an array placed `BY_REPLICA`, those held here."""
    found: dict[int, np.ndarray] = {}
    for shard in array.addressable_shards:
        first = shard.index[0].start or 0
        if first not in found:  # the batch axis holds copies
            for i, row in enumerate(np.asarray(shard.data)):
                found[first + i] = row
    return found
