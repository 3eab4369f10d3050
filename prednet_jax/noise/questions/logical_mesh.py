"""Rewrites a program that was traced over a mesh of devices, for one device.

- A `shard_map` gets a `LogicalMesh` (`device_by_device` evaluates it).
- A product, a sum or a function of an array that JAX's types declare as sharded
  (explicit axes) becomes such a `shard_map`: each device computes its own rows, by
  another program than for the whole array. Over a contracted axis it computes the
  partial sum of its shard, followed by a psum. Where one operand alone is sharded
  along a contracted axis, it is gathered if it is no larger than the result, as XLA's
  partitioner does it (seen in compiled programs).
- An operation that only moves data (`reshard`, constraints) becomes a copy.
"""

import contextlib
import math
from collections.abc import Iterator, Mapping, Sequence
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
from prednet_jax.noise.questions.device_by_device import (
    LogicalMesh,
    axis_names,
    mapped,
)
from prednet_jax.noise.random_bits import Words
from prednet_jax.noise.types import Aval, names_in

_NO_MESH = AbstractMesh((), ())
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
        aval, names = sharded[0]
        alone = len(sharded) < len(here)
        same = len({names for _, names in here}) == 1
        # One operand alone is gathered if it is no larger than the result.
        if same or (alone and _local_size(out) < _local_size(aval, names)):
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
        full_shape = getattr(atom.aval, "shape", ())
        shape = [size // n for size, n in zip(full_shape, counts, strict=True)]
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
