"""Values from inside a program, as further results of it: no callbacks, bounded memory.

`tap(label, x)` marks a value while a program is traced; `reap` evaluates the traced
program and returns what was marked beside its results, as `sow` and `reap` of Oryx do
(jax-ml/oryx, `core/interpreters/harvest.py`). A value marked in a loop gains an axis of
steps: of a scan by its stacked results, of a while loop by a buffer that is carried.
Branches that are not taken give zeros. Calls and derivative rules are inlined: what
is reaped is not differentiated any more.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np
from jax import Array, lax
from jax import numpy as jnp
from jax.extend import core
from jax.sharding import PartitionSpec

from prednet_jax.noise import compat

tap_p = core.Primitive("tap")
tap_p.multiple_results = True
tap_p.def_abstract_eval(lambda *values, label: [])


def tap(label: Any, value: Array) -> None:
    """Mark a value; `label` must be hashable."""
    tap_p.bind(value, label=label)


class Tapped(NamedTuple):
    """A marked value.

    Attributes:
        label: as given to `tap`.
        place: positions of the equation and of those around it, -1 for each loop, in
            whose place its step stands: the order of execution is lexicographic.
        ran: bool, whether it was computed, with an axis for each loop around.
        values: what `Room.shrink` made of it, with the same axes, outermost first.
    """

    label: Any
    place: tuple[int, ...]
    ran: Array
    values: list[Array]


class Room(NamedTuple):
    """How much of each value is kept.

    Attributes:
        shrink: from a value and the number of times that it is kept, what is kept.
        limit: executions that are kept of one tap, the first of each loop.
        made: executions of the program at hand that are kept.
    """

    shrink: Callable[[Array, int], list[Array]] = lambda x, made: [x]
    limit: int = 256
    made: int = 1

    def rows(self, length: int | None) -> int:
        """How many steps of a loop are kept; None: of unknown length."""
        most = max(1, self.limit // self.made)
        return most if length is None else min(length, most)

    def inside(self, rows: int) -> Room:
        """The same inside of a loop."""
        return self._replace(made=self.made * max(1, rows))


Reaped = tuple[list[Any], list[Tapped]]


def reap(jaxpr: Any, args: Sequence[Any], room: Room) -> Reaped:
    """Evaluate a program; its results, and what was tapped on the way."""
    opened, consts = compat.open_jaxpr(jaxpr)
    values = dict(zip(opened.constvars, consts, strict=True))
    values.update(zip(opened.invars, args, strict=True))
    tapped: list[Tapped] = []
    ran = jnp.ones((), bool)

    for i, equation in enumerate(opened.eqns):
        operands = [compat.read(values, atom) for atom in equation.invars]
        if equation.primitive is tap_p:
            kept = room.shrink(operands[0], room.made)
            tapped.append(Tapped(equation.params["label"], (i,), ran, kept))
            continue
        with compat.context(equation):
            if _has_taps(equation):
                rule = _RULES.get(equation.primitive.name, _inlined)
                results, inside = rule(equation.params, operands, room)
                tapped += [t._replace(place=(i, *t.place)) for t in inside]
            else:
                results = compat.bind(equation, *operands)
        values.update(zip(equation.outvars, results, strict=True))
    return [compat.read(values, atom) for atom in opened.outvars], tapped


def _has_taps(equation: compat.Equation) -> bool:
    return any(
        inner.primitive is tap_p or _has_taps(inner)
        for jaxpr in compat.sub_jaxprs(equation.params)
        for inner in compat.open_jaxpr(jaxpr)[0].eqns
    )


def _inlined(params: Any, operands: list[Any], room: Room) -> Reaped:
    """A call: its program, in its place."""
    return reap(compat.sub_jaxprs(params)[0], operands, room)


# Arrays of taps on their way out of a body: flags that several share, and the values.
_Out = tuple[list[Array], list[list[Array]]]


class _Kept(NamedTuple):
    """What the taps of a body are, seen while it is traced."""

    known: list[tuple[Any, tuple[int, ...], int]]

    def note(self, tapped: Sequence[Tapped]) -> _Out:
        """Remembers labels and places; the arrays."""
        flags = {id(t.ran): t.ran for t in tapped}
        number = {name: i for i, name in enumerate(flags)}
        self.known[:] = [(t.label, t.place, number[id(t.ran)]) for t in tapped]
        return list(flags.values()), [t.values for t in tapped]

    def back(self, out: _Out, *before: int) -> list[Tapped]:
        """Taps again, inside of something."""
        flags, values = out
        return [
            Tapped(label, (*before, *place), flags[flag], list(arrays))
            for (label, place, flag), arrays in zip(self.known, values, strict=True)
        ]


class _Buffers:
    """Rows for the taps of the first steps of a loop."""

    def __init__(self, of_step: Callable[[], Any], rows: int) -> None:
        self.rows, shapes = rows, jax.eval_shape(of_step)
        self.empty: Any = jax.tree.map(
            lambda s: jnp.zeros((rows, *s.shape), s.dtype), shapes
        )

    def put(self, step: Array, buffers: Any, values: Any) -> Any:
        """Row `step` of each; beyond the last row nothing changes."""
        # XLA clamps indices, so that what lies beyond is written back as it is.
        return jax.tree.map(
            lambda b, x: lax.dynamic_update_index_in_dim(
                b, jnp.where(step < self.rows, x, b[self.rows - 1]), step, 0
            ),
            buffers,
            values,
        )


def _scan(params: Any, operands: list[Any], room: Room) -> Reaped:
    n_consts, n_carry = compat.scan_counts(params)
    consts, first = operands[:n_consts], operands[n_consts : n_consts + n_carry]
    xs, rows = operands[n_consts + n_carry :], room.rows(params["length"])
    kept, inside = _Kept([]), room.inside(rows)

    def body(carry: list, x: list) -> tuple[list, list, _Out]:
        out, tapped = reap(params["jaxpr"], [*consts, *carry, *x], inside)
        return out[:n_carry], out[n_carry:], kept.note(tapped)

    # Of all steps the results are stacked; of the first ones, rows are written.
    whole = rows == params["length"]
    held = None if whole else _Buffers(lambda: body(first, [x[0] for x in xs])[2], rows)

    def step(state: tuple, x: tuple) -> tuple[tuple, tuple]:
        (carry, buffers), (i, row) = state, x
        carry, y, taps = body(carry, row)
        if held is None:
            return (carry, None), (y, taps)
        return (carry, held.put(i, buffers, taps)), (y, None)

    steps = lax.iota(jnp.int32, params["length"])
    steps = steps[::-1] if params["reverse"] else steps
    written: Any
    (carry, written), (ys, stacked) = lax.scan(
        step,
        (first, held and held.empty),
        (steps, xs),
        length=params["length"],
        reverse=params["reverse"],
    )
    tapped = kept.back(stacked if whole else written, -1)
    if params["reverse"] and whole:
        tapped = [
            t._replace(ran=t.ran[::-1], values=[v[::-1] for v in t.values])
            for t in tapped
        ]
    return [*carry, *ys], tapped


def _while(params: Any, operands: list[Any], room: Room) -> Reaped:
    n_cond, n_body = params["cond_nconsts"], params["body_nconsts"]
    of_cond, of_body = operands[:n_cond], operands[n_cond : n_cond + n_body]
    first, rows = operands[n_cond + n_body :], room.rows(None)
    inside = room.inside(rows)
    # Of both programs: that of the predicate is evaluated in the body once more.
    kept = _Kept([]), _Kept([])

    def going(carry: list) -> Reaped:
        return reap(params["cond_jaxpr"], [*of_cond, *carry], inside)

    def body(carry: list) -> tuple[list, list[_Out]]:
        new, tapped = reap(params["body_jaxpr"], [*of_body, *carry], inside)
        return new, [kept[0].note(going(carry)[1]), kept[1].note(tapped)]

    held = _Buffers(lambda: body(first)[1], rows)

    def step(state: tuple) -> tuple:
        i, carry, buffers = state
        new, taps = body(carry)
        return i + 1, new, held.put(i, buffers, taps)

    state = (jnp.int32(0), first, held.empty)
    _, carry, taps = lax.while_loop(lambda state: going(state[1])[0][0], step, state)
    return carry, kept[0].back(taps[0], -1, 0) + kept[1].back(taps[1], -1, 1)


def _cond(params: Any, operands: list[Any], room: Room) -> Reaped:
    index, *args = operands
    kept = [_Kept([]) for _ in params["branches"]]
    shapes = [
        jax.eval_shape(lambda b=b, k=k: k.note(reap(b, args, room)[1]))
        for b, k in zip(params["branches"], kept, strict=True)
    ]

    def branch(i: int) -> Callable:
        def taken(*args: Any) -> tuple[list, list]:
            out, tapped = reap(params["branches"][i], args, room)
            taps: list[Any] = [
                jax.tree.map(lambda s: jnp.zeros(s.shape, s.dtype), s) for s in shapes
            ]
            taps[i] = kept[i].note(tapped)
            return out, taps

        return taken

    branches = [branch(i) for i in range(len(kept))]
    out, taps = compat.branch(params, index, branches, *args)
    tapped = [
        t for i, (k, v) in enumerate(zip(kept, taps, strict=True)) for t in k.back(v, i)
    ]
    return out, tapped


def _shard_map(params: Any, operands: list[Any], room: Room) -> Reaped:
    """Each device's values, along an axis of all devices."""
    kept = _Kept([])
    axes = tuple(compat.manual_axis_sizes(params))

    def function(*args: Any) -> tuple:
        out, tapped = reap(params["jaxpr"], args, room)
        return tuple(out), jax.tree.map(lambda x: x[None], kept.note(tapped))

    outside = tuple(params["out_specs"]), PartitionSpec(axes)
    mapped = compat.shard_map(function, params, tuple(params["in_specs"]), outside)
    out, taps = mapped(*operands)
    return list(out), kept.back(taps, -1)


_RULES = {
    "scan": _scan,
    "while": _while,
    "cond": _cond,
    "shard_map": _shard_map,
}


def steps(place: Sequence[int], shape: Sequence[int]) -> np.ndarray:
    """Where each execution of a tap stands: int [executions, len(place)]."""
    loops = [i for i, number in enumerate(place) if number < 0]
    index = np.indices(shape).reshape(len(loops), math.prod(shape)).T
    rows = np.tile(np.asarray(place, np.int64), (len(index), 1))
    rows[:, loops] = index
    return rows
