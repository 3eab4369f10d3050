"""Evaluates programs over a logical mesh of devices on one device.

`on_one_device(jaxpr, sizes)` rewrites a program that was traced over a mesh:

- a `shard_map` gets a `LogicalMesh`, and `mapped` evaluates it by a `vmap` over each
  axis of the mesh, under the axis's name, so that JAX's own rules for mapped axes
  replace the communication. The work of a device between two collectives runs in a loop
  over the devices (`DeviceByDevice`), with the shapes on a real device: hence the same
  kernels and bits, and the memory of one device at a time;
- a product, a sum or a function of an array that JAX's types declare as sharded
  (explicit axes) becomes such a `shard_map`: each device computes its own rows, by
  another program than for the whole array; over a contracted axis the partial sum of
  shard, then a psum. Where one operand alone is sharded along a contracted axis, it is
  gathered if it is no larger than the result, as XLA's partitioner does it (seen in
  compiled programs);
- an operation that only moves data (`reshard`, constraints) becomes a copy.

Equations keep their places and so their paths; noise is drawn as on real devices.
"""

import contextlib
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
from jax import Array, lax
from jax import numpy as jnp
from jax.extend import core
from jax.extend.core import primitives
from jax.sharding import AbstractMesh, PartitionSpec, Sharding

from prednet_jax.noise import compat
from prednet_jax.noise.errors import NoiseError, expect
from prednet_jax.noise.order.collectives import gathered
from prednet_jax.noise.plan import Plan, Step
from prednet_jax.noise.random_bits import Words
from prednet_jax.noise.run import Call, Drawn, Evaluation, Plain
from prednet_jax.noise.types import Atom, Aval, Params, Values, names_in

_NO_MESH = AbstractMesh((), ())
# For each axis of an array the mesh axes over which it is split, as in PartitionSpec.
Spec = Iterable[str | tuple[str, ...] | None]
# They define where a value lies, and do not change it.
_PLACEMENT = frozenset({"reshard", "sharding_constraint", "pvary", "mesh_cast"})


def _permuted(
    x: Array, *, axis_name: str | tuple, perm: Sequence[tuple[int, int]]
) -> Array:
    """Returns a ppermute; a device to which none sends gets zeros."""
    axes = axis_name if isinstance(axis_name, tuple) else (axis_name,)
    count = math.prod(map(lax.axis_size, axes))
    if len(axes) == 1 and len(perm) == count:
        return lax.ppermute(x, axes[0], perm)
    # A mapped axis can only be permuted alone, and as a whole.
    sources = np.full(count, -1, np.int32)
    for start, end in perm:
        sources[end] = start
    source = jnp.asarray(sources)[lax.axis_index(axes)]
    terms = gathered(x, axes, invariant=False)
    sent = lax.dynamic_index_in_dim(terms, jnp.maximum(source, 0), keepdims=False)
    return jnp.where(source < 0, jnp.zeros_like(sent), sent)


def _over_devices(*operands: Array, **params: Any) -> list[Array]:
    """Returns a shard_map over a `LogicalMesh`, without noise."""
    function = compat.as_function(params["jaxpr"])
    unused = jnp.zeros(2, jnp.uint32)
    words = Words(unused, unused)
    return mapped(lambda _, *parts: function(*parts), params, words, list(operands))


# Collectives whose types require a real mesh, or that mapped axes have in part: plain
# forms of them, under the same names, which are a part of the equations' paths.
_PLAIN: dict[str, core.Primitive] = {}
for _name, _function in (
    ("ppermute", _permuted),
    ("shard_map", _over_devices),
    ("psum_invariant", lambda x, *, axes: lax.psum(x, axes)),
    (
        "all_gather_invariant",
        lambda x, *, axis_name, all_gather_dimension, tiled, **_: lax.all_gather(
            x, axis_name, axis=all_gather_dimension, tiled=tiled
        ),
    ),
):
    _PLAIN[_name] = core.Primitive(_name)
    _PLAIN[_name].bind = _function  # type: ignore[method-assign]
_PLAIN["shard_map"].multiple_results = True


@dataclass(frozen=True)
class LogicalMesh:
    """Replaces the mesh of a `shard_map`; `shape` has sizes by name, in order."""

    shape: Mapping[str, int]


def on_one_device(jaxpr: compat.Jaxpr, sizes: Mapping[str, int]) -> compat.Jaxpr:
    """Returns a program over a mesh of these sizes, rewritten for one device.

    It raises a NoiseError if a `shard_map` has another mesh or types are unreduced.
    """
    opened, _ = compat.open_jaxpr(jaxpr)
    new = opened.replace(eqns=[_rewritten(e, sizes) for e in opened.eqns])
    return new if opened is jaxpr else jaxpr.replace(jaxpr=new)


def spread_over(jaxpr: compat.Jaxpr) -> bool:
    """Returns whether a rewritten program uses its mesh anywhere."""
    opened, _ = compat.open_jaxpr(jaxpr)
    return any(
        isinstance(equation.params.get("mesh"), LogicalMesh)
        or any(map(spread_over, compat.sub_jaxprs(equation.params)))
        for equation in opened.eqns
    )


def _makes_references(jaxpr: compat.Jaxpr) -> bool:
    """Returns whether a program makes a mutable array."""
    return any(
        equation.primitive.name == "new_ref"
        or any(map(_makes_references, compat.sub_jaxprs(equation.params)))
        for equation in compat.open_jaxpr(jaxpr)[0].eqns
    )


def _rewritten(equation: compat.Equation, sizes: Mapping[str, int]) -> compat.Equation:
    name, params = equation.primitive.name, dict(equation.params)
    context = _WithoutMesh(equation.ctx)
    if "unreduced" in name:
        raise NoiseError(
            f"{name}: expected shardings without `unreduced` axes: reduce "
            "them with jax.lax.psum"
        )
    if name in _PLACEMENT:
        return equation.replace(primitive=primitives.copy_p, params={}, ctx=context)
    if name == "shard_map":
        mesh = dict(params.pop("mesh").shape)
        accepted = f"axes of mesh={dict(sizes)}, or shard_map without mesh="
        expect(mesh.items() <= sizes.items(), "mesh of a shard_map", mesh, accepted)
        params["mesh"] = LogicalMesh(mesh)
        if _makes_references(params["jaxpr"]):
            # JAX has no rule for one in the custom_vmap of a collective.
            raise NoiseError("new_ref: expected a shard_map without mutable arrays")
    params = {k: _unsharded(v, sizes) for k, v in params.items()}
    primitive = _PLAIN.get(name, equation.primitive)
    plain = equation.replace(primitive=primitive, params=params, ctx=context)
    return _by_shards(plain, sizes) if name in _SHARDED else plain


def _unsharded(value: Any, sizes: Mapping[str, int]) -> Any:
    """Removes shardings from a parameter, and rewrites its programs."""
    if isinstance(value, Sharding):
        return None
    if compat.is_jaxpr(value):
        return on_one_device(value, sizes)
    if isinstance(value, tuple):
        items = (_unsharded(item, sizes) for item in value)
        return type(value)(*items) if hasattr(value, "_fields") else tuple(items)
    return value


def _local_size(aval: Aval, but: Sequence[str] = ()) -> int:
    """Returns the number of elements on each device after gathering along `but`."""
    sizes = {} if aval.sharding.mesh.empty else aval.sharding.mesh.shape
    axes = {axis for names in _spec(aval) for axis in names} - set(but)
    return math.prod(aval.shape) // math.prod(sizes[axis] for axis in axes)


def _spec(aval: Aval) -> list[tuple[str, ...]]:
    """Returns the explicit mesh axes over which each axis of a type is sharded."""
    sharding = getattr(aval, "sharding", None)
    spec = () if sharding is None or sharding.mesh.empty else sharding.spec
    return axis_names(spec, len(getattr(aval, "shape", ())))


# Functions of one number that a processor computes for several numbers at a time, and
# for the rest of a row in another way.
_FUNCTIONS = names_in(
    "acos acosh asin asinh atan atan2 atanh cbrt cos cosh digamma erf erf_inv erfc "
    "exp exp2 expm1 lgamma log log1p logistic pow rsqrt sin sinh sqrt tan tanh"
)


# Primitives that each device computes on its own rows.
_SHARDED = _FUNCTIONS | {"dot_general", "conv_general_dilated", "reduce_sum"}


def _labels(equation: compat.Equation) -> tuple[list[list], list]:
    """Labels the axes of each operand and of the result, as an einsum does.

    Axes of one label have one index. A label that the result lacks is summed over.
    Other axes of a convolution, such as its window, have the label None.
    """
    name, params = equation.primitive.name, equation.params
    ranks = [len(getattr(atom.aval, "shape", ())) for atom in equation.invars]
    if name in _FUNCTIONS:
        return [list(range(rank)) for rank in ranks], list(range(max(ranks)))
    operands: list[list] = [[(i, d) for d in range(n)] for i, n in enumerate(ranks)]
    if name == "reduce_sum":
        kept = [x for d, x in enumerate(operands[0]) if d not in params["axes"]]
        return operands, kept
    if name == "dot_general":
        left, right = operands
        (lc, rc), (lb, rb) = params["dimension_numbers"]
        for i, j in zip((*lc, *lb), (*rc, *rb), strict=True):
            right[j] = left[i]
        shared = [left[d] for d in (*lb, *lc)]
        free = [x for x in (*left, *right) if x not in shared]
        return operands, [*shared[: len(lb)], *free]
    numbers = params["dimension_numbers"]
    unlabelled: list[list] = [[None] * ranks[0] for _ in range(3)]
    left, right, result = unlabelled
    if params["feature_group_count"] * params["batch_group_count"] == 1:
        left[numbers.lhs_spec[0]] = result[numbers.out_spec[0]] = "batch"
        left[numbers.lhs_spec[1]] = right[numbers.rhs_spec[1]] = "term"
        right[numbers.rhs_spec[0]] = result[numbers.out_spec[1]] = "feature"
    return [left, right], result


def _split_over(equation: compat.Equation) -> tuple[dict, list[str]]:
    """Returns the mesh axes over which each label is split, and those of sums."""
    operands, result = _labels(equation)
    out = equation.outvars[0].aval
    split: dict[Any, tuple[str, ...]] = {}
    for label in dict.fromkeys(x for labels in operands for x in labels):
        if label is None or label in result:
            continue
        here = [
            (atom.aval, _spec(atom.aval)[labels.index(label)])
            for atom, labels in zip(equation.invars, operands, strict=True)
            if label in labels
        ]
        sharded = [(aval, names) for aval, names in here if names]
        if not sharded:
            continue
        whole, names = sharded[0]
        alone = len(sharded) < len(here)
        same = len({names for _, names in here}) == 1
        # One operand alone is gathered if it is no larger than the result.
        if same or (alone and _local_size(out) < _local_size(whole, names)):
            split[label] = names
    over = [axis for names in split.values() for axis in names]
    rows = zip(result, _spec(out), strict=True)
    own = {x: names for x, names in rows if names and not set(names) & set(over)}
    own.pop(None, None)
    return split | own, over


def _by_shards(equation: compat.Equation, sizes: Mapping[str, int]) -> compat.Equation:
    """Rewrites an equation as each device's computation, in a shard_map.

    Each device computes its rows, and its partial sum over axes that are summed, which
    a psum adds. `sizes` are the sizes of the mesh.
    """
    split, summed = _split_over(equation)
    if not split:
        return equation
    operands, result = _labels(equation)

    def spec(labels: list) -> PartitionSpec:
        return PartitionSpec(*map(split.get, labels))

    shapes = []
    for atom, labels in zip(equation.invars, operands, strict=True):
        counts = (math.prod(sizes[a] for a in split.get(x, ())) for x in labels)
        whole = getattr(atom.aval, "shape", ())
        shape = [size // n for size, n in zip(whole, counts, strict=True)]
        shapes.append(jax.ShapeDtypeStruct(shape, atom.aval.dtype))

    def local(*operands: Array) -> list[Array]:
        results = compat.bind(equation, *operands)
        return [lax.psum(x, tuple(summed)) for x in results] if summed else results

    mesh = {axis: sizes[axis] for names in split.values() for axis in names}
    with jax.sharding.use_abstract_mesh(_NO_MESH):
        inside = jax.make_jaxpr(local, axis_env=list(mesh.items()))(*shapes)
    params = {
        "mesh": LogicalMesh(mesh),
        "in_specs": tuple(map(spec, operands)),
        "out_specs": (spec(result),) * len(equation.outvars),
        "jaxpr": compat.open_jaxpr(inside)[0],
        "newly_manual_axes": frozenset(mesh),
        "check_vma": False,
    }
    return equation.replace(primitive=_PLAIN["shard_map"], params=params)


@dataclass(frozen=True)
class _WithoutMesh:
    """The settings under which an equation was traced, except for the mesh."""

    settings: Any

    @property
    @contextlib.contextmanager
    def manager(self) -> Iterator[None]:
        with self.settings.manager, jax.sharding.use_abstract_mesh(_NO_MESH):
            yield

    def __getattr__(self, name: str) -> Any:
        return getattr(self.settings, name)


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

    several = math.prod(sizes.values()) > 1
    counts = {a: jnp.uint32(n) for a, n in sizes.items()} if several else {}
    given = zip(operands, params["in_specs"], strict=True)
    pieces = [_split(x, spec, sizes) for x, spec in given]
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
        given = [values[v] for v in plan.jaxpr.invars]
        # In the body of a loop types do not show which values differ between devices.
        varying_is_known = any(isinstance(x, compat.BatchTracer) for x in given)
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
            def per_device(words: Words, drawn: dict, given: list) -> list:
                inner = dict(zip(names, given, strict=True))
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
    whole = tuple(n * math.prod(sizes[a] for a in names) for n, names in axes)
    order, _ = _layout(whole, spec, sizes)
    for i, axis in reversed(list(enumerate(sizes))):
        if axis not in order:
            x = lax.index_in_dim(x, 0, i, keepdims=False)
    now = [*(axis for axis in sizes if axis in order), *range(len(whole))]
    return lax.reshape(lax.transpose(x, [now.index(o) for o in order]), whole)


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
