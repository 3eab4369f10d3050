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
        `run(key, *args, **kwargs)`, which gives what `fn` gives; the key, typed or raw,
        is consumed by orders and noise that are drawn.

    Raises:
        NoiseError: when `mesh` holds no positive integers; on a call, when an argument
            does not divide over the mesh, a spec or a shard_map names other axes, JAX
            finds the shardings ambiguous, a result of a body differs from device to
            device and `out_specs` is None, or nothing is spread over the mesh.
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
    found = parts(spec)
    if not any(isinstance(part, ReductionOrder) for part in found):
        return compose(SUMS_BY_RANK, spec)
    return compose(
        *(
            dataclasses.replace(part, collectives=SUMS_BY_RANK.collectives)
            if isinstance(part, ReductionOrder) and part.collectives is None
            else part
            for part in found
        )
    )


def _placed(
    in_specs: Any, args: tuple[Any, ...], sizes: Mapping[str, int]
) -> tuple[PartitionSpec, ...] | None:
    """For each array among the arguments how it lies; the rest is on all devices."""
    if in_specs is None:
        return None
    named, tree = jax.tree_util.tree_flatten_with_path(args, is_leaf=is_mutable)

    def is_spec(x: Any) -> bool:
        return x is None or isinstance(x, PartitionSpec)

    try:
        shown = jax.tree.unflatten(tree, [0] * len(named))
        specs = jax.tree.broadcast(in_specs, shown, is_leaf=is_spec)
    except ValueError as error:
        raise NoiseError(
            f"in_specs={in_specs!r}: expected one PartitionSpec, or a tuple of one for "
            f"each of the {len(args)} positional arguments "
            f"({str(error).splitlines()[0]})"
        ) from None
    spread = jax.tree.leaves(specs, is_leaf=is_spec)
    found = []
    for (path, x), one in zip(named, spread, strict=True):
        one = PartitionSpec() if one is None else one
        if not isinstance(one, PartitionSpec):
            raise NoiseError(
                f"in_specs holds {one!r}: expected PartitionSpecs, or None"
            )
        if not hasattr(x, "shape"):
            continue
        where = "args" + jax.tree_util.keystr(path)
        _divides(where, np.shape(x), one, sizes)
        found.append(one)
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
        unknown = [name for name in names if name not in sizes]
        if unknown:
            raise NoiseError(
                f"{spec} for {where}: no axis {unknown[0]!r} in mesh={dict(sizes)}"
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
    outcome = seen[0]
    if out_specs is None:
        result = outcome.result()
        for path, x in jax.tree_util.tree_flatten_with_path(result)[0]:
            varying = compat.varying_axes(x) if hasattr(x, "shape") else ()
            if varying:
                raise NoiseError(
                    f"result{jax.tree_util.keystr(path)} differs along "
                    f"{', '.join(varying)}: expected out_specs that say how it lies, "
                    "or results that are the same on all devices (psum, pmean)"
                )
        out: Any = PartitionSpec()
    else:
        whole = jax.tree.broadcast(
            out_specs,
            outcome.result(),
            is_leaf=lambda x: isinstance(x, PartitionSpec),
        )
        leaves = jax.tree.leaves(whole, is_leaf=lambda x: isinstance(x, PartitionSpec))
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
        head = f"{'devices':>8} {'loss':>15} {'norm':>15} {'distance':>9} "
        lines = [head + f"{'decisions':>9}  rung"]
        for row in self.rows:
            loss = "-" if row.loss is None else f"{row.loss:.9g}"
            lines.append(
                f"{row.devices:>8} {loss:>15} {row.norm:>15.9g} {row.distance:>9.2g} "
                f"{row.decisions:>9}  {row.rung}"
            )
        return "\n".join(lines)


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

    Args:
        fn: as `in_specs`, `out_specs` and `spec` as for `devices`.
        mesh: by name the size of an axis, or several to compare, the first of which is
            the reference, as `{"data": (1, 8, 64, 512)}`.
        in_specs: see there.
        out_specs: see there.
        spec: see there.
        draws: runs of each noise of the ladder; see `explain`.

    Returns:
        `measure(key, *args, **kwargs)`, which gives a `DevicesTable`.

    Raises:
        NoiseError: when two axes have several sizes of different number, and as for
            `devices`.
    """
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
        over = functools.partial(
            devices, fn, in_specs=in_specs, out_specs=out_specs, spec=spec
        )
        results = [
            jax.device_get(
                runs.plain(functools.partial(over(mesh=m), key), args, kwargs)
            )
            for m in meshes
        ]
        alone = over(mesh=dict.fromkeys(several, 1))
        rungs = ladder(functools.partial(alone, key), key, args, kwargs, draws=draws)
        rows = [
            _row(m, result, results[0], place(rungs, result, results[0]).leaves)
            for m, result in zip(meshes, results, strict=True)
        ]
        return DevicesTable(tuple(rows))

    return measure


def _row(
    mesh: dict[str, int], result: Any, first: Any, placed: Sequence[ExplainedLeaf]
) -> DevicesRow:
    now, before = runs.values(result), runs.values(first)
    floats = [jnp.issubdtype(leaf.dtype, jnp.inexact) for leaf in runs.leaves(result)]
    numbers = [i for i, x in enumerate(now) if floats[i] and not x.ndim]
    others = [x for i, x in enumerate(now) if floats[i] and i not in numbers[:1]]
    decided = 0
    for x, y, is_float in zip(now, before, floats, strict=True):
        if is_float and x.ndim > 1 and x.size:
            decided += int(np.count_nonzero(x.argmax(-1) != y.argmax(-1)))
        elif not is_float:
            decided += int(np.count_nonzero(x != y))
    moved = [runs.difference(x, y) for x, y in zip(now, before, strict=True)]
    size = _norm(before)
    return DevicesRow(
        mesh,
        math.prod(mesh.values()),
        float(now[numbers[0]].real) if numbers else None,
        _norm(others),
        _norm(moved) / size if size else _norm(moved),
        decided,
        max((_lowest(leaf) for leaf in placed), key=RUNGS.index, default=RUNGS[0]),
    )


def _lowest(leaf: ExplainedLeaf) -> str:
    """The first cause that makes such a difference; order and rounding overlap."""
    return min((leaf.rung, *leaf.plausible), key=RUNGS.index)


def _norm(arrays: Sequence[np.ndarray]) -> float:
    """The Euclidean norm of arrays together."""
    return math.sqrt(sum(float(np.sum(np.abs(x) ** 2)) for x in arrays))


def from_text(mesh: str | None, specs: str | None) -> tuple[dict[str, Any], Any]:
    """A mesh and `in_specs` as the command line has them.

    Args:
        mesh: sizes by axis, as `data=1,8,64;model=2`.
        specs: for each argument the mesh axes of its axes, as `-;data,-;data+model`;
            None: no `in_specs`.

    Raises:
        NoiseError: when the mesh is no such text.
    """
    try:
        axes = [part.split("=") for part in (mesh or "").split(";")]
        found = {
            axis.strip(): tuple(map(int, sizes.split(","))) for axis, sizes in axes
        }
    except ValueError:
        raise NoiseError(
            f"--mesh={mesh}: expected sizes of axes, as --mesh=data=1,8,64 or "
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
