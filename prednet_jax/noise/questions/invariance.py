"""Whether a result depends on how its function is called.

A function that treats each row of a batch by itself gives a row the same value alone,
in another batch, padded, under `vmap`, in a loop, compiled or not: in exact arithmetic.
`invariance` makes the calls and compares them with the compiled call of the whole
batch: bits, size and rung of the difference, rows in which a decision changes.

The line. Both programs are made to return what every equation computes (a loop or a
branch counts as one). The first in program order that differs is `source`. Returning
everything hinders fusion: where the difference is gone then, no line is named. A batch
folded into another axis is followed if it is the slower of the two; otherwise the
equation is passed over.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import math
import operator
from collections.abc import Callable, Generator, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np
from jax import numpy as jnp

from prednet_jax.noise import compat
from prednet_jax.noise.arguments import Outcome, split, taken_apart
from prednet_jax.noise.errors import NoiseError, integer
from prednet_jax.noise.inject import Traced, traced
from prednet_jax.noise.questions import runs
from prednet_jax.noise.questions.explain import RUNGS, ladder, place
from prednet_jax.noise.rules import registry
from prednet_jax.noise.rules.registry import HigherOrder


class Variant(NamedTuple):
    """One way to call the function.

    Attributes:
        name: such as `one row at a time`.
        same_bits: whether every bit of the result is that of the whole batch.
        difference: the largest over the leaves: RMS of the difference in units of the
            RMS of the leaf; None if an element is finite in one of the two alone.
        rung: of the difference on the ladder of `explain`; of several leaves the last.
        flipped_rows: rows in which an argmax over the last axis of a floating-point
            leaf changes, or any element of an integer or boolean leaf.
        source: the user's line that makes the first difference; "" if none does alone.
    """

    name: str
    same_bits: bool
    difference: float | None
    rung: str
    flipped_rows: tuple[int, ...]
    source: str


class Invariance(NamedTuple):
    """What `invariance` found: a variant per way to call it; `rows` of the batch."""

    variants: tuple[Variant, ...]
    rows: int

    def __str__(self) -> str:
        head = ("", "bits", "relative", "rung", "flipped", "first line")
        rows = [
            (
                v.name,
                "same" if v.same_bits else "differ",
                "-" if v.difference is None else f"{v.difference:.2g}",
                v.rung,
                f"{len(v.flipped_rows)}",
                v.source,
            )
            for v in self.variants
        ]
        last = f"compared with one compiled call of all {self.rows} rows"
        return "\n".join([*runs.table(head, rows, "<<><><"), last])


def invariance(
    fn: Callable, *, batch: Sequence[int] = (0,), draws: int = 8, seed: int = 0
) -> Callable[..., Invariance]:
    """Compare the ways to call a function of a batch of rows.

    Args:
        fn: as for `inject`, from rows to rows: axis 0 of each array among the arguments
            at `batch`, and of each array of its result, is the batch.
        batch: positions of the arguments with a batch axis.
        draws: runs of each noise of the ladder, 2 or more.
        seed: of the noise of the ladder.

    Returns:
        `measure(*args, **kwargs)`, which gives an `Invariance`.

    Raises:
        NoiseError: when an option is outside what is accepted; on a call, when an
            argument or a result has no batch axis, `fn` takes no other number of rows,
            or the result holds a NaN.
    """
    integer("draws", draws, 2)
    batch = (batch,) if isinstance(batch, int) else batch
    if not isinstance(batch, Sequence) or not batch:
        raise NoiseError(
            f"batch={batch!r}: expected positions of arguments, such as (0,)"
        )
    for i in batch:
        integer("batch", i, 0)

    def measure(*args: Any, **kwargs: Any) -> Invariance:
        call = runs.Call(fn, args, kwargs)
        given = _given(call, batch)
        shapes = given.program(given.rows).shapes
        _check_rows(given, shapes)
        axes: list[int | None] = [0] * len(shapes.arrays)
        expected = _called(None, given, given.result, axes)
        tree = _result(shapes, expected)
        _refuse_nan(tree)
        found, rungs = [], None
        for name, way in _ways(given).items():
            values = _called(way, given, given.result, axes)
            pairs = list(zip(values, expected, strict=True))
            if all(x.tobytes() == y.tobytes() for x, y in pairs):
                found.append(Variant(name, True, 0.0, "identical", (), ""))
                continue
            if rungs is None:
                rungs = ladder(call, jax.random.key(seed), draws=draws)
            leaves = place(rungs, _result(shapes, values), tree).leaves
            sizes = [math.inf if x.relative is None else x.relative for x in leaves]
            difference = max(sizes) if math.isfinite(max(sizes)) else None
            rung = max((one.rung for one in leaves), key=RUNGS.index)
            flipped = np.any([_flipped(x, y) for x, y in pairs], axis=0)
            rows = tuple(np.flatnonzero(flipped).tolist())
            line = _first_line(given, way)
            found.append(Variant(name, False, difference, rung, rows, line))
        return Invariance(tuple(found), given.rows)

    return measure


class _Given(NamedTuple):
    """A call: from its arrays to an `Outcome`, which are batches, and their rows."""

    outcome: Callable[..., Outcome]
    arrays: list[Any]
    is_batch: list[bool]
    rows: int

    def result(self, *arrays: Any) -> list[Any]:
        """The arrays of the result, of PRNG keys their data."""
        return [
            jax.random.key_data(x)
            if jnp.issubdtype(x.dtype, jax.dtypes.prng_key)
            else x
            for x in self.outcome(*arrays).arrays
        ]

    def batches(self) -> list[Any]:
        """The batches."""
        return list(itertools.compress(self.arrays, self.is_batch))

    def mapped(self, change: Callable[[Any], Any]) -> list[Any]:
        """The arrays, of which the batches are changed."""
        pairs = zip(self.arrays, self.is_batch, strict=True)
        return [change(x) if is_batch else x for x, is_batch in pairs]

    def filled(self, batches: Sequence[Any]) -> list[Any]:
        """The arrays with other batches."""
        left = iter(batches)
        return self.mapped(lambda x: next(left))

    def program(self, rows: int) -> Traced:
        """The program for a number of rows.

        Raises:
            NoiseError: the function does not take so many.
        """

        def shape(x: Any) -> Any:
            return jax.ShapeDtypeStruct((rows, *x.shape[1:]), x.dtype)

        try:
            return traced(self.outcome, self.mapped(shape))
        except Exception as error:
            # The function is the user's, and may say no in its own way.
            if rows == self.rows:
                raise
            why = str(error).partition("\n")[0] or type(error).__name__
            raise NoiseError(
                f"the function takes {self.rows} rows, but not {rows} ({why}): "
                "expected one for any number of rows"
            ) from error


def _given(call: runs.Call, batch: Sequence[int]) -> _Given:
    """The call, refusing batches without a common axis 0."""
    for i in batch:
        if i >= len(call.args):
            raise NoiseError(
                f"batch={tuple(batch)}: expected positions among the {len(call.args)} "
                "positional arguments, from 0"
            )
    is_batch: list[bool] = []
    for i, one in enumerate(call.args):
        # Arrays of mutable objects come after all others.
        _, inside, objects = split(((one,), {}))
        is_batch += [i in batch] * (len(inside) - len(taken_apart(objects)[1]))
    args, kwargs = call.arguments()
    pure, arrays = runs.Call(call.fn, args, kwargs).pure()
    is_batch += [False] * (len(arrays) - len(is_batch))
    shapes = [np.shape(x) for x in itertools.compress(arrays, is_batch)]
    sizes = {shape[:1] for shape in shapes}
    if len(sizes) != 1 or sizes == {()} or sizes <= {(0,), (1,)}:
        raise NoiseError(
            f"the arguments at batch={tuple(batch)} have the shapes {shapes}: expected "
            "arrays with the batch as axis 0, of one size, 2 rows or more"
        )
    ((rows,),) = sizes
    return _Given(pure, [jnp.asarray(x) for x in arrays], is_batch, rows)


def _result(shapes: Outcome, arrays: Sequence[Any]) -> Any:
    """The result of `fn` with these arrays."""
    return dataclasses.replace(shapes, arrays=arrays).result()


def _check_rows(given: _Given, shapes: Outcome) -> None:
    """Refuses a result without a batch axis, whatever the number of rows."""
    named = runs.named_leaves(_result(shapes, shapes.arrays))
    paths = [path for path, x in named if isinstance(x, jax.ShapeDtypeStruct)]
    for rows in (given.rows, given.rows + 1, 1):
        arrays = given.program(rows).shapes.arrays
        for path, x in zip(paths, arrays, strict=True):
            if x.shape[:1] != (rows,):
                raise NoiseError(
                    f"{path}: shape {x.shape} of {rows} rows: expected the batch as "
                    "axis 0; let the function return what it computes of each row"
                )


def _refuse_nan(tree: Any) -> None:
    """Refuses a result with a NaN, which equals nothing."""
    for leaf, x in zip(runs.leaves(tree), runs.values(tree), strict=True):
        if np.isnan(x).any():
            place = ", ".join(map(str, np.argwhere(np.isnan(x))[0]))
            raise NoiseError(
                f"{leaf.path}[{place}] is NaN: expected a result without NaN"
            )


def _flipped(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Rows in which a decision differs: bool [B]."""
    if jnp.issubdtype(x.dtype, jnp.floating):
        if x.ndim < 2 or x.shape[-1] < 2:
            return np.zeros(len(x), bool)
        x, y = np.argmax(x, -1), np.argmax(y, -1)
    elif jnp.issubdtype(x.dtype, jnp.inexact):
        return np.zeros(len(x), bool)
    return (x != y).reshape(len(x), -1).any(1)


class _Way(NamedTuple):
    """A way to call a function `f` of the given arrays, which gives a list of arrays.

    Attributes:
        call: `call(f)` gives what `f` computes; if called more than once, all of it for
            each array, one after another.
        join: `join(x, axis)` brings the rows to where one call of all has them.
        several: whether `f` was called more than once.
    """

    call: Callable[[Callable], Any]
    join: Callable[[Any, int], np.ndarray] = lambda x, axis: x
    several: bool = False


def _ways(given: _Given) -> dict[str, _Way]:
    """The variants by name."""
    rows, batches = given.rows, given.batches()

    def constants(f: Callable) -> Any:
        return jax.jit(lambda: f(*given.arrays))()

    def others_constant(f: Callable) -> Any:
        return jax.jit(lambda *batches: f(*given.filled(batches)))(*batches)

    def in_chunks(f: Callable, size: int) -> Any:
        compiled = jax.jit(f)
        starts = range(0, rows, size)
        chunks = [given.mapped(operator.itemgetter(slice(i, i + size))) for i in starts]
        return zip(*[jax.device_get(compiled(*chunk)) for chunk in chunks], strict=True)

    def by_row(f: Callable, mapped: Callable) -> Any:
        def of_row(row: list[Any]) -> Any:
            return f(*given.filled([x[None] for x in row]))

        return jax.jit(lambda batches: mapped(of_row, batches))(batches)

    # The function may donate what it is given.
    ways = {
        "not compiled": _Way(lambda f: f(*map(jnp.copy, given.arrays))),
        "all arguments as constants": _Way(constants),
    }
    if not all(given.is_batch):
        ways["others as constants"] = _Way(others_constant)
    for size in dict.fromkeys((1, 2, rows // 2)):
        if size < rows:
            name = f"{size} rows at a time" if size > 1 else "one row at a time"
            chunks = functools.partial(in_chunks, size=size)
            ways[name] = _Way(chunks, np.concatenate, True)
    size = 1 << rows.bit_length()
    # Not `jnp.pad`, which takes no PRNG keys.
    padded = given.mapped(
        lambda x: jnp.concatenate([x, jnp.zeros_like(x[: size - rows])])
    )
    backwards = given.mapped(lambda x: x[::-1])
    return ways | {
        f"padded to {size} rows": _Way(
            lambda f: jax.jit(f)(*padded), lambda x, axis: np.take(x, range(rows), axis)
        ),
        "rows in reverse": _Way(lambda f: jax.jit(f)(*backwards), np.flip),
        "vmap over rows": _Way(
            lambda f: by_row(f, lambda g, xs: jax.vmap(g)(xs)), np.concatenate, True
        ),
        "loop over rows": _Way(lambda f: by_row(f, jax.lax.map), np.concatenate, True),
    }


def _called(
    way: _Way | None, given: _Given, f: Callable, axes: Sequence[int | None]
) -> list[np.ndarray]:
    """What `f` computes of each row when it is called that way; None: of all at once.

    `axes` says along which axis of each array the rows are; None: of no row.
    """
    if way is None:
        return list(map(np.asarray, jax.jit(f)(*given.arrays)))
    join = way.join
    return [
        np.asarray(x[0] if way.several else x) if axis is None else join(x, axis)
        for x, axis in zip(jax.device_get(list(way.call(f))), axes, strict=True)
    ]


class _Line(NamedTuple):
    """An equation of the flattened program, and one array that it computes."""

    path: str
    source: str
    value: Any


def _first_line(given: _Given, way: _Way) -> str:
    """The line of the first equation that a way changes; "" if none can be named."""

    def lines(rows: int) -> list[_Line]:
        program = given.program(rows)
        found: list[_Line] = []
        jax.eval_shape(
            lambda *arrays: found.extend(_lines(program.jaxpr, arrays)),
            *program.jaxpr.in_avals,
        )
        return found

    here, other = lines(given.rows), lines(given.rows + 1)
    if [line.path for line in here] != [line.path for line in other]:
        return ""
    # Positions of lines that can be followed, the axis of their rows, and how many
    # elements of it belong to one row.
    followed: list[tuple[int, int | None, int]] = []
    for i, (x, y) in enumerate(zip(here, other, strict=True)):
        sizes = zip(x.value.shape, y.value.shape, strict=True)
        moved = [(a, m, n - m) for a, (m, n) in enumerate(sizes) if m != n]
        axis, size, fold = moved[0] if moved else (None, 0, 0)
        if len(moved) < 2 and size == fold * given.rows:
            followed.append((i, axis, fold))

    def watched(*arrays: Any) -> list[Any]:
        program = traced(given.outcome, arrays)
        found = list(_lines(program.jaxpr, arrays))
        if [line.path for line in found] != [line.path for line in here]:
            raise _Otherwise
        return [
            found[i].value if axis is None else _unfolded(found[i].value, axis, fold)
            for i, axis, fold in followed
        ]

    axes = [axis for _, axis, _ in followed]
    try:
        values = _called(way, given, watched, axes)
    except _Otherwise:
        return ""
    expected = _called(None, given, watched, axes)
    for (i, _, fold), value, wanted in zip(followed, values, expected, strict=True):
        differs = value.tobytes() != wanted.tobytes()
        if differs and not (fold > 1 and _rearranged(value, wanted)):
            return here[i].source
    return ""


def _unfolded(x: Any, axis: int, fold: int) -> Any:
    """From `[..., rows * fold, ...]`, at an axis, to `[..., rows, fold, ...]`."""
    before, size, after = x.shape[:axis], x.shape[axis], x.shape[axis + 1 :]
    return x.reshape(*before, size // fold, fold, *after)


def _rearranged(x: np.ndarray, y: np.ndarray) -> bool:
    """Whether two arrays hold nearly the same numbers, in other places."""
    x, y = runs.values([x, y])
    near = functools.partial(np.allclose, rtol=0.01, atol=0.01 * runs.rms(y))
    return not near(x, y) and near(np.sort(x, None), np.sort(y, None))


class _Otherwise(Exception):  # noqa: N818
    """A program of other equations for another number of rows."""


def _lines(
    jaxpr: Any, args: Sequence[Any], path: str = "", around: str = ""
) -> Generator[_Line, None, list[Any]]:
    """What each equation of a jaxpr computes, if it is an array of numbers.

    Calls are entered, loops and branches are not. Returns the results of the jaxpr.
    """
    opened, consts = compat.open_jaxpr(jaxpr)
    values = dict(zip(opened.constvars, consts, strict=True))
    values.update(zip(opened.invars, args, strict=True))

    def read(atom: Any) -> Any:
        return atom.val if compat.is_literal(atom) else values[atom]

    for i, equation in enumerate(opened.eqns):
        here = f"{path}{i}:{equation.primitive.name}"
        source = compat.source(equation, opened) or around
        operands = [read(atom) for atom in equation.invars]
        rule = registry.find(equation.primitive.name)
        with compat.context(equation):
            if isinstance(rule, HigherOrder) and rule.joins:
                (body,) = rule.programs(equation).values()
                results = yield from _lines(body, operands, f"{here}/", source)
            else:
                results = compat.bind(equation, *operands)
                for x in results:
                    if isinstance(getattr(x, "dtype", None), np.dtype):
                        yield _Line(here, source, x)
        values.update(zip(equation.outvars, results, strict=True))
    return [read(atom) for atom in opened.outvars]
