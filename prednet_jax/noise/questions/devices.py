"""What a program computes over a mesh of devices, on one CPU.

The same program over 1, 8 and 64 devices adds in other orders: each device sums its
part, and a collective adds the parts. Nothing else changes, and this much can be
computed anywhere: `rules.logical` evaluates what each device does, one after another,
and `order.collectives` adds as a ring, a tree or XLA's CPU would.

What is given to `devices` is either a program of whole arrays, in which `shard_map`s or
the shardings of JAX's types (explicit axes) say what is spread over the mesh, or the
body of a shard_map, which names the axes in its collectives.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np
from jax import Array
from jax import numpy as jnp
from jax.sharding import AbstractMesh, AxisType, NamedSharding, PartitionSpec

from prednet_jax.noise import compat, random_bits
from prednet_jax.noise.arguments import Outcome, is_mutable, split
from prednet_jax.noise.errors import NoiseError, integer
from prednet_jax.noise.inject import Traced, evaluate
from prednet_jax.noise.questions import runs
from prednet_jax.noise.questions.explain import RUNGS, ExplainedLeaf, ladder, place
from prednet_jax.noise.rules import logical
from prednet_jax.noise.specs import NoiseSpec, ReductionOrder, compose, parts

# XLA's own order on a CPU, so that a machine with forced host devices gives these bits.
SUMS_BY_RANK = ReductionOrder(profile="collectives", collectives="sequential")


def devices(
    fn: Callable,
    *,
    mesh: Mapping[str, int],
    in_specs: Any = None,
    out_specs: Any = None,
    spec: NoiseSpec = SUMS_BY_RANK,
) -> Callable:
    """A function that computes on one device what `fn` computes over a mesh.

    Args:
        fn: a program of whole arrays, with `jax.shard_map` inside or without; or the
            body of a shard_map, which names axes of the mesh in its collectives. Leave
            out `mesh=` of a shard_map inside, or let it be this one.
        mesh: sizes of its axes by name, as many devices as you like.
        in_specs: how the positional arguments lie on the mesh: a PartitionSpec for all,
            or a tuple with a pytree of them for each, as `jax.shard_map` takes it; None
            for one that is on all devices. Without any, only a shard_map inside says
            what is spread.
        out_specs: of a body, how its results lie; None: each is the same on all.
        spec: the order of sums over devices, as in
            `ReductionOrder(profile="collectives", collectives="ring")`, and any other
            noise. By rank, as XLA adds on a CPU, unless it says otherwise.

    Returns:
        `run(key, *args, **kwargs)`, which gives what `fn` gives.

    Raises:
        NoiseError: when `mesh` holds no positive integers; on a call, when an argument
            does not divide over it, axes are unknown, shardings ambiguous, a result of
            a body without `out_specs` differs from device to device, or nothing is
            spread.
    """
    sizes = _sizes(mesh)
    for axis, size in sizes.items():
        integer(f"mesh[{axis!r}]", size, 1)
    spec = _with_order(spec)

    @functools.partial(jax.jit, static_argnums=(0, 1))
    def compiled(static: Any, placed: tuple, key: Array, *arrays: Array) -> Outcome:
        program = _traced(static.call(fn), arrays, placed, sizes, out_specs)
        return evaluate(spec, key, program, arrays)

    def run(key: Array, /, *args: Any, **kwargs: Any) -> Any:
        random_bits.check(key)
        placed = _placed(in_specs, args, sizes)
        static, arrays, objects = split((args, kwargs))
        try:
            outcome = compiled(static.checked(), placed, key, *arrays)
        except NotImplementedError as error:
            if "axis_index_groups" not in str(error):
                raise
            raise NoiseError(
                "axis_index_groups of a collective that is no sum of floats: expected "
                "groups in psum and psum_scatter of floats alone"
            ) from error
        outcome.put(objects)
        return outcome.result(objects)

    return run


def _sizes(mesh: Any) -> dict[str, Any]:
    """The sizes of axes by name, refusing what holds none."""
    if not isinstance(mesh, Mapping) or not mesh:
        raise NoiseError(
            f"mesh={mesh!r}: expected sizes of axes by name, as {{'data': 64}}; of a "
            "jax.sharding.Mesh its .shape"
        )
    return dict(mesh)


def _with_order(spec: NoiseSpec) -> NoiseSpec:
    """A spec that orders sums over devices: by rank, if it says nothing of them."""
    found = [
        dataclasses.replace(part, collectives=SUMS_BY_RANK.collectives)
        if isinstance(part, ReductionOrder) and part.collectives is None
        else part
        for part in parts(spec)
    ]
    if not any(isinstance(part, ReductionOrder) for part in found):
        return compose(SUMS_BY_RANK, spec)
    return compose(*found)


def _is_spec(x: Any) -> bool:
    return x is None or isinstance(x, PartitionSpec)


def _placed(
    in_specs: Any, args: tuple[Any, ...], sizes: Mapping[str, int]
) -> tuple[PartitionSpec, ...] | None:
    """For each array among the arguments how it lies; the rest is on all devices."""
    if in_specs is None:
        return None
    named, tree = jax.tree_util.tree_flatten_with_path(args, is_leaf=is_mutable)
    try:
        shown = jax.tree.unflatten(tree, [0] * len(named))
        specs = jax.tree.broadcast(in_specs, shown, is_leaf=_is_spec)
    except ValueError as error:
        raise NoiseError(
            f"in_specs={in_specs!r}: expected one PartitionSpec, or a tuple of one for "
            f"each of the {len(args)} positional arguments "
            f"({str(error).splitlines()[0]})"
        ) from None
    found = []
    spread = jax.tree.leaves(specs, is_leaf=_is_spec)
    for (path, x), spec in zip(named, spread, strict=True):
        spec = PartitionSpec() if spec is None else spec
        if not isinstance(spec, PartitionSpec):
            raise NoiseError(
                f"in_specs holds {spec!r}: expected PartitionSpecs, or None"
            )
        if hasattr(x, "shape"):
            _divides("args" + jax.tree_util.keystr(path), np.shape(x), spec, sizes)
            found.append(spec)
    return tuple(found)


def _divides(
    where: str, shape: Sequence[int], spec: PartitionSpec, sizes: Mapping[str, int]
) -> None:
    """Refuses an array that cannot be spread so."""
    if len(spec) > len(shape):
        raise NoiseError(
            f"{where} has {len(shape)} axes: expected {len(spec)} or more for {spec}"
        )
    for d, names in enumerate(logical.axis_names(spec, len(shape))):
        for name in names:
            if name not in sizes:
                raise NoiseError(
                    f"{spec} for {where}: no axis {name!r} in mesh={dict(sizes)}"
                )
        count = math.prod(sizes[name] for name in names)
        if shape[d] % count:
            raise NoiseError(
                f"{where} of shape {tuple(shape)} does not divide over the mesh: "
                f"expected axis {d} to be a multiple of {count} ({', '.join(names)})"
            )


def _traced(
    fn: Callable,
    arrays: Sequence[Any],
    placed: tuple[PartitionSpec, ...] | None,
    sizes: Mapping[str, int],
    out_specs: Any,
) -> Traced:
    """The program of a function over the mesh, rewritten for one device."""
    kind = AxisType.Auto if placed is None else AxisType.Explicit
    mesh = AbstractMesh(tuple(sizes.values()), tuple(sizes), (kind,) * len(sizes))
    specs = (*(placed or ()), *[PartitionSpec()] * len(arrays))[: len(arrays)]
    whole = [jax.ShapeDtypeStruct(x.shape, x.dtype) for x in arrays]
    spread = [
        x if placed is None else x.update(sharding=NamedSharding(mesh, spec))
        for x, spec in zip(whole, specs, strict=True)
    ]
    with jax.sharding.use_abstract_mesh(mesh):
        try:
            if out_specs is not None:
                fn = _body(fn, specs, out_specs, spread)
            try:
                jaxpr, shapes = jax.make_jaxpr(fn, return_shape=True)(*spread)
            except NameError as error:
                if "unbound axis name" not in str(error):
                    raise
                fn = _body(fn, specs, None, spread)
                jaxpr, shapes = jax.make_jaxpr(fn, return_shape=True)(*spread)
        except ValueError as error:
            if "should match the mesh passed to shard_map" not in str(error):
                raise
            raise NoiseError(
                f"mesh={dict(sizes)} and a shard_map inside with a mesh of its own: "
                "expected shard_map without mesh="
            ) from error
        except compat.ShardingTypeError as error:
            raise NoiseError(
                f"in_specs={specs}: JAX cannot tell from these shardings where a "
                f"result lies: {str(error).splitlines()[0]}"
            ) from error
    program = logical.on_one_device(jaxpr, sizes)
    if placed is None and not logical.spread_over(program):
        raise NoiseError(
            f"nothing is spread over mesh={dict(sizes)}: expected in_specs, or a "
            "shard_map inside of the function"
        )
    return Traced(program, shapes)


def _body(
    fn: Callable, specs: Sequence[PartitionSpec], out_specs: Any, arrays: Sequence[Any]
) -> Callable:
    """The shard_map of a body; without `out_specs`, of results that do not vary."""
    seen: list[Outcome] = []

    def probe(*parts: Array) -> tuple:
        seen.append(fn(*parts))
        return ()

    in_specs = tuple(specs)
    jax.eval_shape(jax.shard_map(probe, in_specs=in_specs, out_specs=()), *arrays)
    (outcome,) = seen
    result = outcome.result()
    if out_specs is None:
        for path, x in jax.tree_util.tree_flatten_with_path(result)[0]:
            varying = compat.varying_axes(x) if hasattr(x, "shape") else ()
            if varying:
                raise NoiseError(
                    f"result{jax.tree_util.keystr(path)} differs along "
                    f"{', '.join(varying)}: expected out_specs that say how it lies, "
                    "or results that are the same on all devices (psum, pmean)"
                )
        return jax.shard_map(fn, in_specs=in_specs, out_specs=PartitionSpec())
    whole = jax.tree.broadcast(out_specs, result, is_leaf=_is_spec)
    leaves = jax.tree.leaves(whole, is_leaf=_is_spec)
    out = Outcome(leaves, [PartitionSpec()] * len(outcome.states), outcome.rest)
    return jax.shard_map(fn, in_specs=in_specs, out_specs=out)


class DevicesRow(NamedTuple):
    """A program over one mesh, beside the first mesh of the table.

    Attributes:
        mesh: sizes of its axes.
        devices: how many there are.
        loss: the first result that is one number; None: there is none.
        norm: of all other results together, such as a gradient.
        distance: to the results over the first mesh, L2, relative to those.
        decisions: elements of integer and boolean results, and argmaxima along the last
            axis of the others, that differ from those over the first mesh.
        rung: the cause that explains the differences of all results; see `explain`.
    """

    mesh: dict[str, int]
    devices: int
    loss: float | None
    norm: float
    distance: float
    decisions: int
    rung: str


class DevicesTable(NamedTuple):
    """What `devices_table` found; `rows`: one for each mesh."""

    rows: tuple[DevicesRow, ...]

    def __str__(self) -> str:
        head = ("devices", "loss", "norm", "distance", "decisions", "rung")
        rows = [
            (
                str(row.devices),
                "-" if row.loss is None else f"{row.loss:.9g}",
                f"{row.norm:.9g}",
                f"{row.distance:.2g}",
                str(row.decisions),
                row.rung,
            )
            for row in self.rows
        ]
        return "\n".join(runs.table(head, rows, ">>>>><"))


def devices_table(
    fn: Callable,
    *,
    mesh: Mapping[str, int | Sequence[int]],
    in_specs: Any = None,
    out_specs: Any = None,
    spec: NoiseSpec = SUMS_BY_RANK,
    draws: int = 8,
) -> Callable[..., DevicesTable]:
    """The results of a program over meshes of several sizes, side by side.

    `mesh` has by name the size of an axis, or several to compare, the first of which is
    the reference, as `{"data": (1, 8, 64, 512)}`; `draws` are runs of each noise of the
    ladder of `explain`, 2 or more. All else, and errors, as for `devices`.

    Returns:
        `measure(key, *args, **kwargs)`, which gives a `DevicesTable`.
    """
    integer("draws", draws, 2)
    several = {
        k: tuple(v) if isinstance(v, Sequence) else (v,)
        for k, v in _sizes(mesh).items()
    }
    count = max(map(len, several.values()))
    if any(len(v) not in (1, count) for v in several.values()):
        raise NoiseError(f"mesh={mesh}: expected one size, or {count}, for each axis")
    meshes = [
        {axis: v[i % len(v)] for axis, v in several.items()} for i in range(count)
    ]

    def measure(key: Array, /, *args: Any, **kwargs: Any) -> DevicesTable:
        def over(mesh: Mapping[str, int]) -> runs.Call:
            run = devices(
                fn, mesh=mesh, in_specs=in_specs, out_specs=out_specs, spec=spec
            )
            return runs.Call(functools.partial(run, key), args, kwargs)

        results = [jax.device_get(over(m).result()) for m in meshes]
        rungs = ladder(over(dict.fromkeys(several, 1)), key, draws=draws)
        rows = [
            _row(m, result, results[0], place(rungs, result, results[0]).leaves)
            for m, result in zip(meshes, results, strict=True)
        ]
        return DevicesTable(tuple(rows))

    return measure


def _row(
    mesh: dict[str, int], result: Any, first: Any, placed: Sequence[ExplainedLeaf]
) -> DevicesRow:
    loss, others, moved, decided = None, [], [], 0
    for leaf, x, y in zip(
        runs.leaves(result), runs.values(result), runs.values(first), strict=True
    ):
        moved.append(runs.difference(x, y))
        if not jnp.issubdtype(leaf.dtype, jnp.inexact):
            decided += int(np.count_nonzero(x != y))
        elif loss is None and not x.ndim:
            loss = float(x.real)
        else:
            others.append(x)
            if x.ndim > 1 and x.size:
                decided += int(np.count_nonzero(x.argmax(-1) != y.argmax(-1)))
    return DevicesRow(
        mesh,
        math.prod(mesh.values()),
        loss,
        _norm(others),
        _norm(moved) / (_norm(runs.values(first)) or 1.0),
        decided,
        max(map(_lowest, placed), key=RUNGS.index, default=RUNGS[0]),
    )


def _lowest(leaf: ExplainedLeaf) -> str:
    """The first cause that makes such a difference; order and rounding overlap."""
    return min((leaf.rung, *leaf.plausible), key=RUNGS.index)


def _norm(arrays: Sequence[np.ndarray]) -> float:
    """The Euclidean norm of arrays together."""
    return math.sqrt(sum(float(np.sum(np.abs(x) ** 2)) for x in arrays))


def from_text(mesh: str | None, specs: str | None) -> tuple[dict[str, Any], Any]:
    """A mesh and `in_specs` as the command line has them.

    `mesh` are sizes by axis, as `data=1,8,64;model=2`; `specs` for each argument the
    mesh axes of its axes, as `-;data,-;data+model`, or None.
    """
    try:
        axes = [part.split("=") for part in (mesh or "").split(";")]
        found = {
            axis.strip(): tuple(map(int, sizes.split(","))) for axis, sizes in axes
        }
        if len(found) < len(axes):
            raise ValueError("an axis has sizes twice")
    except ValueError:
        given = "devices" if mesh is None else f"--mesh={mesh}"
        raise NoiseError(
            f"{given}: expected sizes of axes, each once, as --mesh=data=1,8,64 or "
            "--mesh='data=8;model=2'"
        ) from None
    if specs is None:
        return found, None

    def entry(name: str) -> Any:
        names = tuple(part.strip() for part in name.split("+"))
        return None if names in (("-",), ("",)) else names

    return found, tuple(
        PartitionSpec(*map(entry, spec.split(","))) for spec in specs.split(";")
    )
