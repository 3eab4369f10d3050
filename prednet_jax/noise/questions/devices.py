"""Computes on one CPU the result of a program over a mesh of devices.

`device_by_device` evaluates the devices' programs in turn, and `order.collectives` adds
their parts in the order of a ring, a tree or XLA's CPU collectives.
"""

import dataclasses
import functools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np
from jax import Array
from jax.sharding import AbstractMesh, AxisType, NamedSharding, PartitionSpec

from prednet_jax.noise import compat, random_bits
from prednet_jax.noise._inject import Traced, evaluate
from prednet_jax.noise.arguments import Outcome, Static, is_mutable, split
from prednet_jax.noise.errors import NoiseError, check_int, expect, shown
from prednet_jax.noise.leaves import as_array, wide_leaves
from prednet_jax.noise.loops import naming_failures
from prednet_jax.noise.questions import logical_mesh
from prednet_jax.noise.questions.device_by_device import DeviceByDevice
from prednet_jax.noise.questions.explain import summarize_change
from prednet_jax.noise.questions.reference import NoiseReference
from prednet_jax.noise.questions.sampling import BoundCall, reporting
from prednet_jax.noise.specs import NoiseSpec, ReductionOrder, compose, parts
from prednet_jax.noise.tables import format_table
from prednet_jax.noise.types import PyTree, Values

# The sizes of a mesh's axes by name, and the sharding of each array.
Sizes = Mapping[str, int]
Placed = tuple[PartitionSpec, ...]
# XLA's own order on a CPU, so that a machine with forced host devices gives these bits.
SUMS_BY_RANK = ReductionOrder(profile="collectives", collectives="sequential")


def devices(
    fn: Callable,
    *,
    mesh: Mapping[str, int],
    in_specs: PyTree = None,
    out_specs: PyTree = None,
    spec: NoiseSpec = SUMS_BY_RANK,
) -> Callable:
    """Returns a function that computes on one device what `fn` computes over a mesh.

    Args:
        fn: a program of whole arrays, with `jax.shard_map` inside (its `mesh=` left
            out, or this one) or without; or the body of a shard_map, which names axes
            of the mesh in its collectives.
        mesh: sizes of the mesh axes by name; any number of devices is possible.
        in_specs: the shardings of the positional arguments: a PartitionSpec for all, or
            a tuple with a pytree of them for each, as for `jax.shard_map`, with None
            for a replicated argument. Defaults to the shardings of the shard_map
            inside.
        out_specs: for a body, the shardings of its results. Defaults to results that
            are equal on all devices.
        spec: the order of sums over devices, as in
            `ReductionOrder(profile="collectives", collectives="ring")`, and any other
            noise. Defaults to the order of ranks, in which XLA adds on a CPU.

    Returns:
        `run(key, *args, **kwargs)`, which returns the result of `fn`.

    Raises:
        NoiseError: `mesh` holds no positive integers. On a call: an argument does not
            divide over it, axes are unknown, shardings ambiguous, a result of a body
            without `out_specs` differs between devices, or no array is sharded.
    """
    sizes = _checked_sizes(mesh)
    spec = _with_order(spec)

    @functools.partial(jax.jit, static_argnums=(0, 1))
    def compiled(static: Static, placed: tuple, key: Array, *arrays: Array) -> Outcome:
        program = _traced(static.call(fn), arrays, placed, sizes, out_specs)
        hooks = DeviceByDevice()
        return evaluate(spec, key, program, arrays, hooks=hooks)

    def run(key: Array, /, *args: PyTree, **kwargs: PyTree) -> PyTree:
        random_bits.check(key)
        each = f"a tuple of one for each of the {len(args)} positional arguments"
        placed = None
        if in_specs is not None:
            placed = _checked_specs("in_specs", in_specs, args, sizes, each)
        static, arrays, objects = split((args, kwargs))
        try:
            with naming_failures():
                outcome = jax.block_until_ready(
                    compiled(static.checked(), placed, key, *arrays)
                )
        except NoiseError:
            raise
        except NotImplementedError as error:
            if str(error) and "axis_index_groups" not in str(error):
                why = str(error).partition("\n")[0]
                raise NoiseError(
                    f"a part cannot be mapped over devices: {why}"
                ) from None
            # JAX raises one without a text for groups, but so may the function.
            cause = "" if str(error) else "NotImplementedError without a text; perhaps "
            raise NoiseError(
                f"{cause}axis_index_groups of a collective: expected groups in psum "
                "and psum_scatter of floats alone, in a jax.shard_map with "
                "check_vma=False"
            ) from error
        except (NameError, AssertionError) as error:
            if str(error) and "unbound axis name" not in str(error):
                raise
            # JAX asserts without a text that the mesh has an axis.
            cause = "" if str(error) else "AssertionError without a text; perhaps "
            raise NoiseError(
                f"{cause}an axis of a collective that the mesh lacks: expected the "
                f"axes of mesh={sizes} alone"
            ) from error
        outcome.write_back(objects)
        return outcome.result(objects)

    return run


def _checked_sizes(mesh: Mapping[str, int]) -> dict[str, int]:
    """Returns the sizes of the axes of a mesh, or raises an error."""
    accepted = (
        "sizes of axes by name, as {'data': 64}; of a jax.sharding.Mesh its .shape"
    )
    expect(isinstance(mesh, Mapping) and mesh, "mesh", mesh, accepted)
    for axis, size in mesh.items():
        check_int(f"mesh[{axis!r}]", size, 1, 1 << 20)
    return dict(mesh)


class OverDevices(NamedTuple):
    """A result over several devices, compared with one device (an `explain.Change`).

    `loss` is the result's first scalar, or None; `norm` the Euclidean norm of all other
    floats, such as a gradient; `flipped` the number of integers and booleans that
    differ.
    """

    devices: int
    loss: float | None
    norm: float
    same_bits: bool
    difference: float | None
    rung: str
    flipped: int


class DevicesTable(NamedTuple):
    """The result of `devices_table`: a row per number of devices."""

    rows: tuple[OverDevices, ...]

    def __str__(self) -> str:
        head = ("devices", "loss", "norm of the rest", "difference", "cause", "flipped")
        rows = []
        for row in self.rows:
            loss = None if row.loss is None else f"{row.loss:.9g}"
            numbers = row.devices, loss, f"{row.norm:.9g}", row.difference
            rows.append((*numbers, row.rung, row.flipped))
        return "\n".join(format_table(head, rows, ">>>><>"))


def devices_table(
    fn: Callable, *, mesh: Mapping[str, Any], draws: int = 8, **options: Any
) -> Callable[..., DevicesTable]:
    """Returns `measure(key, *args, **kwargs)`: several device counts against one.

    `fn` and the options are documented in `devices`, but `mesh` has several sizes of
    one axis, as in `{"data": (1, 8, 64, 512)}`; `draws` is documented in `explain`.
    """
    accepted = "several sizes of one axis, as {'data': (1, 8)}"
    expect(isinstance(mesh, Mapping), "mesh", mesh, accepted)
    ranges = [axis for axis, size in mesh.items() if isinstance(size, Sequence)]
    expect(len(ranges) == 1, "mesh", mesh, accepted)

    @reporting()
    def measure(key: Array, /, *args: PyTree, **kwargs: PyTree) -> DevicesTable:
        def over(sizes: Sizes) -> Callable:
            return functools.partial(devices(fn, mesh=sizes, **options), key)

        alone = BoundCall(over(dict.fromkeys(mesh, 1)), args, kwargs)
        rungs = NoiseReference(alone, key, draws=draws)
        expected = jax.tree.map(as_array, alone.result())
        rows = []
        for size in mesh[ranges[0]]:
            sizes = {**mesh, ranges[0]: size}
            result = jax.tree.map(as_array, alone.calling(over(sizes)).result())
            floats, flipped, loss = [], 0, None
            for x, y in zip(*map(jax.tree.leaves, (result, expected)), strict=True):
                if not jax.numpy.issubdtype(np.result_type(x), np.inexact):
                    flipped += int(np.sum(np.asarray(x) != np.asarray(y)))
                elif loss is None and not np.ndim(x):
                    loss = float(np.real(x))
                else:
                    floats.append(float(np.linalg.norm(wide_leaves([x])[0])))
            norm = float(np.linalg.norm(floats))
            change = summarize_change(rungs, result, expected)
            count = math.prod(sizes.values())
            rows.append(OverDevices(count, loss, norm, *change, flipped))
        return DevicesTable(tuple(rows))

    return measure


def _with_order(spec: NoiseSpec) -> NoiseSpec:
    """Adds the order of sums over devices by rank, if a spec has none for them."""
    ordered = [
        dataclasses.replace(part, collectives=SUMS_BY_RANK.collectives)
        if isinstance(part, ReductionOrder) and part.collectives is None
        else part
        for part in parts(spec)
    ]
    if not any(isinstance(part, ReductionOrder) for part in ordered):
        ordered.insert(0, SUMS_BY_RANK)
    return compose(*ordered)


def _mesh(sizes: Sizes, kind: AxisType) -> AbstractMesh:
    return AbstractMesh(tuple(sizes.values()), tuple(sizes), (kind,) * len(sizes))


def _is_spec(x: object) -> bool:
    return x is None or isinstance(x, PartitionSpec)


def _checked_specs(
    name: str, specs: PyTree, tree: PyTree, sizes: Sizes, each: str
) -> Placed:
    """Returns the sharding of each array of a pytree; None is replicated."""
    named, shape = jax.tree_util.tree_flatten_with_path(tree, is_leaf=is_mutable)
    given = jax.tree.map(
        lambda spec: PartitionSpec() if spec is None else spec, specs, is_leaf=_is_spec
    )
    try:
        like = jax.tree.unflatten(shape, [0] * len(named))
        spread = jax.tree.leaves(jax.tree.broadcast(given, like))
    except ValueError as error:
        raise NoiseError(
            f"{name}={shown(specs)}: expected one PartitionSpec, or {each} "
            f"({str(error).splitlines()[0]})"
        ) from None
    layouts = []
    # JAX checks which arrays can be sharded so.
    devices = _mesh(sizes, AxisType.Explicit)
    for (path, x), spec in zip(named, spread, strict=True):
        if not isinstance(spec, PartitionSpec):
            held = f"{name} holds {shown(spec)}"
            raise NoiseError(f"{held}: expected PartitionSpecs, or None")
        if hasattr(x, "shape"):
            try:
                sharding = NamedSharding(devices, spec)
                sharding.check_compatible_aval(np.shape(x))
                if name == "in_specs":  # Of a result these are the parts.
                    sharding.shard_shape(np.shape(x))
            except Exception as error:  # An axis twice is no ValueError.
                what = {"in_specs": "args", "out_specs": "result"}[name]
                raise NoiseError(
                    f"{what}{jax.tree_util.keystr(path)} of shape {np.shape(x)} over "
                    f"mesh={dict(sizes)} as {spec}: {str(error).splitlines()[0]}"
                ) from None
            layouts.append(spec)
    return tuple(layouts)


def _traced(
    fn: Callable, arrays: Values, placed: Placed | None, sizes: Sizes, out_specs: PyTree
) -> Traced:
    """Returns the program of a function over the mesh, rewritten for one device."""
    mesh = _mesh(sizes, AxisType.Auto if placed is None else AxisType.Explicit)
    specs = (*(placed or ()), *[PartitionSpec()] * len(arrays))[: len(arrays)]
    shapes = [jax.ShapeDtypeStruct(x.shape, x.dtype) for x in arrays]
    spread = [
        x if placed is None else x.update(sharding=NamedSharding(mesh, spec))
        for x, spec in zip(shapes, specs, strict=True)
    ]

    def trace(is_body: bool) -> Traced:
        over = _body(fn, specs, out_specs, spread, sizes) if is_body else fn
        return Traced(*jax.make_jaxpr(over, return_shape=True)(*spread))

    with jax.sharding.use_abstract_mesh(mesh):
        try:
            program = trace(out_specs is not None)
        except NoiseError:
            raise
        except Exception as error:  # Operations say in many ways what they cannot do.
            if "should match the mesh passed to shard_map" in str(error):
                raise NoiseError(
                    f"mesh={dict(sizes)} and a shard_map inside with a mesh of its "
                    "own: expected shard_map without mesh="
                ) from error
            in_body = None
            try:
                program = trace(True)
            except Exception as other:
                in_body = other
            with jax.sharding.use_abstract_mesh(_mesh(sizes, AxisType.Auto)):
                if refusal := _refusal(fn, shapes, specs, error, in_body):
                    raise refusal from error
    jaxpr = logical_mesh.on_one_device(program.jaxpr, sizes)
    if placed is None and not logical_mesh.spread_over(jaxpr):
        raise NoiseError(
            f"nothing is spread over mesh={dict(sizes)}: expected in_specs, or a "
            "shard_map inside of the function"
        )
    return program._replace(jaxpr=jaxpr)


def _refusal(
    fn: Callable,
    arrays: list,
    specs: Placed,
    error: Exception,
    in_body: Exception | None,
) -> Exception | None:
    """Returns the error of a function that cannot be traced over a mesh.

    `error` is what JAX says over explicit axes, `in_body` of the body of a shard_map.
    The result is None if the function is such a body.
    """

    def unchecked(*parts: Array) -> tuple:
        fn(*parts)
        return ()

    body = jax.shard_map(unchecked, in_specs=specs, out_specs=(), check_vma=False)
    try:
        jax.eval_shape(fn, *arrays)
        accepted = (
            "jax.reshard(x, PartitionSpec()) of its operands before, out_sharding "
            "there, or the body of a shard_map that averages its results (lax.pmean)"
        )
    except Exception as alone:
        if in_body is None:
            return None
        if "unbound axis name" not in str(alone):
            return alone
        if isinstance(in_body, NoiseError | NotImplementedError):
            return in_body
        try:
            jax.eval_shape(body, *arrays)
        except Exception:  # The body is wrong itself.
            return in_body
        error, accepted = in_body, "jax.shard_map with check_vma=False around the body"
    said = str(error).partition("\n")[0] or type(error).__name__
    return NoiseError(f"{said}: expected {accepted}")


def _body(
    fn: Callable, in_specs: Placed, out_specs: PyTree, arrays: list, sizes: Sizes
) -> Callable:
    """Returns a body's shard_map; without `out_specs` no result may vary."""
    seen: list[Outcome] = []

    def probe(*parts: Array) -> tuple:
        seen.append(jax.tree.map(jax.typeof, fn(*parts)))
        return ()

    jax.eval_shape(jax.shard_map(probe, in_specs=in_specs, out_specs=()), *arrays)
    (outcome,) = seen
    result = outcome.result()
    each = "a pytree of them with the structure of the result"
    specs = _checked_specs("out_specs", out_specs, result, sizes, each)
    named, _ = jax.tree_util.tree_flatten_with_path(result)
    shaped = [(path, x) for path, x in named if hasattr(x, "shape")]
    for (path, x), spec in zip(shaped, specs, strict=True):
        spread = set(jax.tree.leaves(tuple(spec)))
        varying = [axis for axis in compat.varying_axes(x) if axis not in spread]
        if varying:
            raise NoiseError(
                f"result{jax.tree_util.keystr(path)} differs along "
                f"{', '.join(varying)}: give out_specs, or make the result the "
                "same on all devices (psum, pmean)"
            )
    states = [PartitionSpec()] * len(outcome.states)
    out = Outcome(list(specs), states, outcome.rest)
    return jax.shard_map(fn, in_specs=in_specs, out_specs=out)
