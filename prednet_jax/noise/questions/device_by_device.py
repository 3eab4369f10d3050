"""Evaluates a `shard_map` over a logical mesh of devices on one device.

It is a `vmap` over each axis of the mesh, under the axis's name, so that JAX's own
rules for mapped axes replace the communication. The work of a device between two
collectives runs in a loop over the devices (`DeviceByDevice`), with the shapes on a
real device: hence the same kernels, and the memory of one device at a time. (LLVM may
vectorise a tanh in another way in a loop, which changes its last bits.) Equations keep
their places and so their paths; noise is drawn as on real devices.
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

import jax
import numpy as np
from jax import Array, lax
from jax import numpy as jnp

from prednet_jax.noise import compat
from prednet_jax.noise.plan import Plan, Step
from prednet_jax.noise.random_bits import Words
from prednet_jax.noise.run import Call, Drawn, Evaluation, Plain
from prednet_jax.noise.types import Atom, Params, Values

# For each axis of an array the mesh axes over which it is split, as in PartitionSpec.
Spec = Iterable[str | tuple[str, ...] | None]


@dataclass(frozen=True)
class LogicalMesh:
    """Replaces the mesh of a `shard_map`; `shape` has sizes by name, in order."""

    shape: Mapping[str, int]


def mapped(
    function: Callable, params: Params, words: Words, operands: Values
) -> list[Array]:
    """Evaluates a shard_map over a `LogicalMesh`; `function` is for one device."""
    sizes = compat.manual_axis_sizes(params)

    def device(words: Words, *parts: Array) -> Values:
        here = {
            axis: (lax.convert_element_type(lax.axis_index(axis), jnp.uint32), count)
            for axis, count in counts.items()
        }
        return function(words._replace(places={**words.places, **here}), *parts)

    is_split = math.prod(sizes.values()) > 1
    counts = {a: jnp.uint32(n) for a, n in sizes.items()} if is_split else {}
    pairs = zip(operands, params["in_specs"], strict=True)
    pieces = [_split(x, spec, sizes) for x, spec in pairs]
    for axis in reversed(sizes):
        places = [0 if axis in named else None for _, named in pieces]
        device = jax.vmap(
            device, (None, *places), axis_name=axis, axis_size=sizes[axis]
        )
    results = device(words, *(x for x, _ in pieces))
    joined = zip(results, params["out_specs"], strict=True)
    return [_join(x, spec, sizes) for x, spec in joined]


class DeviceByDevice(Evaluation):
    """Evaluates a program over a logical mesh.

    A collective is evaluated for all devices at once, under the mapped axes of the
    mesh, and so are values that are the same on all devices. Every other step waits
    until a collective reads its result, and then runs device by device.
    """

    changes = "over this mesh"

    def higher_order(self, call: Call, words: Words, operands: list) -> list:
        """Evaluates a shard_map over a logical mesh by `mapped`."""
        if not isinstance(call.params.get("mesh"), LogicalMesh):
            return super().higher_order(call, words, operands)

        def device(words: Words, *args: Array) -> tuple:
            return tuple(call.body(words, args))

        return mapped(device, call.params, words, operands)

    def plain(self) -> Evaluation:
        """Returns an evaluation over the logical mesh without noise."""
        return _PlainDeviceByDevice()

    def program(self, plan: Plan, words: Words, values: dict, drawn: Drawn) -> None:
        """Evaluates all devices' steps, the ones between collectives separately."""
        inputs = [values[v] for v in plan.jaxpr.invars]
        # In the body of a loop types do not show which values differ between devices.
        varying_is_known = any(isinstance(x, compat.BatchTracer) for x in inputs)
        alone = not any(step.communicates for step in plan.steps)
        if not words.places or (alone and not varying_is_known):
            self.advance(plan.steps, words, values, drawn)
            return
        results = [v for v in plan.jaxpr.outvars if not compat.is_literal(v)]
        waiting: dict[Step, None] = {}
        pending: set[Atom] = set()

        def flush_pending() -> None:
            others = (_variables(step) for step in plan.steps if step not in waiting)
            read = [v for step in waiting for v in _variables(step)]
            names = [v for v in dict.fromkeys(read) if v not in pending]
            later = [v for reads in (*others, results) for v in reads]
            wanted = [v for v in dict.fromkeys(later) if v in pending]
            steps = list(waiting)

            @jax.custom_batching.sequential_vmap
            def per_device(words: Words, drawn: dict, inputs: list) -> list:
                inner = dict(zip(names, inputs, strict=True))
                self.advance(steps, words, inner, drawn)
                return [inner[v] for v in wanted]

            now = per_device(words, dict(drawn), [values[v] for v in names])
            values.update(zip(wanted, now, strict=True))
            waiting.clear()
            pending.clear()

        for step in plan.steps:
            reads = _variables(step)
            waits = not pending.isdisjoint(reads)
            differs = not varying_is_known or any(
                isinstance(values.get(v), compat.BatchTracer) for v in reads
            )
            if not step.communicates and (waits or differs):
                waiting[step] = None
                pending.update(step.equation.outvars)
                continue
            if waits:
                flush_pending()
            self.advance([step], words, values, drawn)
        if waiting:
            flush_pending()


class _PlainDeviceByDevice(Plain, DeviceByDevice):
    """Evaluates a program over a logical mesh without noise."""


def _variables(step: Step) -> list[Atom]:
    return [atom for atom in step.atoms if not compat.is_literal(atom)]


def _split(x: Array, spec: Spec, sizes: Mapping[str, int]) -> tuple[Array, list[str]]:
    """Splits an array into devices' parts, [*devices, *part]; lists the axes."""
    order, shape = _layout(np.shape(x), spec, sizes)
    named = [axis for axis in sizes if axis in order]
    target = [order.index(axis) for axis in (*named, *range(np.ndim(x)))]
    return lax.transpose(lax.reshape(x, shape), target), named


def _join(x: Array, spec: Spec, sizes: Mapping[str, int]) -> Array:
    """Inverts `_split`; for values that are equal on all devices, takes the first."""
    local = np.shape(x)[len(sizes) :]
    axes = zip(local, axis_names(spec, len(local)), strict=True)
    shape = tuple(n * math.prod(sizes[a] for a in names) for n, names in axes)
    order, _ = _layout(shape, spec, sizes)
    for i, axis in reversed(list(enumerate(sizes))):
        if axis not in order:
            x = lax.index_in_dim(x, 0, i, keepdims=False)
    now = [*(axis for axis in sizes if axis in order), *range(len(shape))]
    return lax.reshape(lax.transpose(x, [now.index(o) for o in order]), shape)


def axis_names(spec: Spec, ndim: int) -> list[tuple[str, ...]]:
    """Returns the mesh axes of each axis of an array."""
    named = [
        () if x is None else (x,) if isinstance(x, str) else tuple(x) for x in spec
    ]
    return named + [()] * (ndim - len(named))


def _layout(
    shape: Sequence[int], spec: Spec, sizes: Mapping[str, int]
) -> tuple[list[str | int], tuple[int, ...]]:
    """Returns the layout of an array on the mesh.

    For each axis of the array it has the mesh axes over which it is split, then its own
    number; it also returns the sizes of these.
    """
    order: list[str | int] = []
    split: list[int] = []
    for d, names in enumerate(axis_names(spec, len(shape))):
        counts = [sizes[a] for a in names]
        order += [*names, d]
        split += [*counts, shape[d] // math.prod(counts)]
    return order, tuple(split)
