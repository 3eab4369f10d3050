"""Whether a result depends on how its function is called.

A function that treats each row of a batch by itself gives a row the same value alone,
in a batch of another size, padded, under `vmap`, in a loop, compiled or not, with its
arguments as constants of the program or not: in exact arithmetic. A compiler chooses
another order of sums, other fusions, another kernel for each of these. `invariance`
makes the calls and compares them with the compiled call of the whole batch: whether
every bit is the same, how large the difference is, its rung on the ladder of `explain`,
and in which rows a decision changes.

The line. Both programs, that of the whole batch and that of the variant, are made to
return what every equation computes (equations inside loops and branches excepted: the
loop counts as one). The first in program order that differs, though what it read did
not, is `source`. Returning everything hinders fusion; where the difference is gone
then, it is the compiler's fusion of several lines, and no line is named. A batch folded
into another axis is followed if it is the slower of the two; otherwise the equation
cannot be compared, and is passed over.
"""

from __future__ import annotations

import dataclasses
import functools
import math
import operator
from collections.abc import Callable, Generator, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np
from jax import numpy as jnp

from prednet_jax.noise import compat
from prednet_jax.noise.arguments import Outcome, split, split_static, taken_apart
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
    """What `invariance` found.

    Attributes:
        variants: one entry per way to call the function.
        rows: of the batch.
    """

    variants: tuple[Variant, ...]
    rows: int

    def __str__(self) -> str:
        width = max(len(v.name) for v in self.variants)
        lines = [f"{'':{width}}  bits   relative  rung       flipped  first line"]
        for v in self.variants:
            bits = "same" if v.same_bits else "differ"
            size = "-" if v.difference is None else f"{v.difference:.2g}"
            flipped = f"{len(v.flipped_rows)}"
            cells = f"{v.name:{width}}  {bits:6}{size:>9}  {v.rung:9}{flipped:>9}"
            lines.append(f"{cells}  {v.source}".rstrip())
        lines.append(f"compared with one compiled call of all {self.rows} rows")
        return "\n".join(lines)


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
        `measure(*args, **kwargs)`, which gives an `Invariance`. Flax NNX objects among
        the arguments stay as they are.

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
        given = _given(fn, batch, args, kwargs)
        shapes = given.program(given.rows).shapes
        _check_rows(given, shapes)
        axes: list[int | None] = [0] * len(shapes.arrays)
        expected = _whole(given.call, given, axes)
        tree = _result(shapes, expected)
        _refuse_nan(tree)
        found, rungs = [], None
        for name, way in _ways(given).items():
            values = way(given.call, given, axes)
            pairs = list(zip(values, expected, strict=True))
            if all(x.tobytes() == y.tobytes() for x, y in pairs):
                found.append(Variant(name, True, 0.0, "identical", (), ""))
                continue
            if rungs is None:
                key = jax.random.key(seed)
                rungs = ladder(fn, key, args, kwargs, draws=draws)
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
    """A call, its arrays in a flat list.

    Attributes:
        outcome: from arrays to the `Outcome` of `fn`.
        arrays: of all arguments.
        is_batch: which of them are batches.
        rows: of each batch.
    """

    outcome: Callable[..., Outcome]
    arrays: list[Any]
    is_batch: list[bool]
    rows: int

    def call(self, *arrays: Any) -> list[Any]:
        """The arrays of the result, of PRNG keys their data."""
        return [
            jax.random.key_data(x)
            if jnp.issubdtype(x.dtype, jax.dtypes.prng_key)
            else x
            for x in self.outcome(*arrays).arrays
        ]

    def batches(self) -> list[Any]:
        """The batches."""
        return [x for x, b in zip(self.arrays, self.is_batch, strict=True) if b]

    def mapped(self, change: Callable[[Any], Any]) -> list[Any]:
        """The arrays, of which the batches are changed."""
        pairs = zip(self.arrays, self.is_batch, strict=True)
        return [change(x) if is_batch else x for x, is_batch in pairs]

    def program(self, rows: int) -> Traced:
        """The program for a number of rows.

        Raises:
            NoiseError: `fn` does not take so many.
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


def _given(
    fn: Callable, batch: Sequence[int], args: Sequence[Any], kwargs: dict[str, Any]
) -> _Given:
    """The call, refusing batches without a common axis 0."""
    for i in batch:
        if i >= len(args):
            raise NoiseError(
                f"batch={tuple(batch)}: expected positions among the {len(args)} "
                "positional arguments, from 0"
            )
    is_batch: list[bool] = []
    for i, one in enumerate(args):
        # Arrays of mutable objects come after all others.
        _, inside, objects = split(((one,), {}))
        is_batch += [i in batch] * (len(inside) - len(taken_apart(objects)[1]))
    args, kwargs = runs.copies(args, kwargs)
    static, arrays = split_static((args, kwargs))
    is_batch += [False] * (len(arrays) - len(is_batch))
    shapes = [np.shape(x) for x, b in zip(arrays, is_batch, strict=True) if b]
    sizes = {shape[:1] for shape in shapes}
    if len(sizes) != 1 or sizes == {()} or sizes <= {(0,), (1,)}:
        raise NoiseError(
            f"the arguments at batch={tuple(batch)} have the shapes {shapes}: expected "
            "arrays with the batch as axis 0, of one size, 2 rows or more"
        )
    ((rows,),) = sizes
    return _Given(static.call(fn), [jnp.asarray(x) for x in arrays], is_batch, rows)


def _result(shapes: Outcome, arrays: Sequence[Any]) -> Any:
    """The result of `fn` with these arrays."""
    return dataclasses.replace(shapes, arrays=arrays).result()


def _check_rows(given: _Given, shapes: Outcome) -> None:
    """Refuses a result without a batch axis, whatever the number of rows."""
    named = jax.tree_util.tree_flatten_with_path(_result(shapes, shapes.arrays))[0]
    paths = [path for path, x in named if isinstance(x, jax.ShapeDtypeStruct)]
    for rows in (given.rows, given.rows + 1, 1):
        arrays = given.program(rows).shapes.arrays
        for path, x in zip(paths, arrays, strict=True):
            if x.shape[:1] != (rows,):
                raise NoiseError(
                    f"{jax.tree_util.keystr(path) or 'result'}: shape {x.shape} of "
                    f"{rows} rows: expected the batch as axis 0; let the function "
                    "return what it computes of each row"
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


# `way(f, given, axes)`: what `f`, from arrays to a list of arrays, computes of each row
# when it is called that way. In each array of the list the rows are that axis; None:
# the array is of no row.
_Way = Callable[[Callable, _Given, Sequence[int | None]], list[np.ndarray]]


def _ways(given: _Given) -> dict[str, _Way]:
    """The variants by name."""
    ways: dict[str, _Way] = {"not compiled": _not_compiled}
    ways["all arguments as constants"] = functools.partial(_constants, every=True)
    if not all(given.is_batch):
        ways["others as constants"] = functools.partial(_constants, every=False)
    for size in dict.fromkeys((1, 2, given.rows // 2)):
        if size < given.rows:
            name = f"{size} rows at a time" if size > 1 else "one row at a time"
            ways[name] = functools.partial(_in_chunks, size=size)
    padded = 1 << given.rows.bit_length()
    ways[f"padded to {padded} rows"] = functools.partial(_padded, size=padded)
    ways["rows in reverse"] = _reversed
    ways["vmap over rows"] = functools.partial(_by_row, loop=False)
    ways["loop over rows"] = functools.partial(_by_row, loop=True)
    return ways


def _numpy(values: Sequence[Any]) -> list[np.ndarray]:
    return [np.asarray(x) for x in jax.device_get(list(values))]


def _whole(f: Callable, given: _Given, axes: Sequence[int | None]) -> list[np.ndarray]:
    return _numpy(jax.jit(f)(*given.arrays))


def _not_compiled(
    f: Callable, given: _Given, axes: Sequence[int | None]
) -> list[np.ndarray]:
    # The function may donate them.
    return _numpy(f(*map(jnp.copy, given.arrays)))


def _constants(
    f: Callable, given: _Given, axes: Sequence[int | None], *, every: bool
) -> list[np.ndarray]:
    if every:
        return _numpy(jax.jit(lambda: f(*given.arrays))())

    def of_batches(*batches: Any) -> list[Any]:
        left = iter(batches)
        return f(*given.mapped(lambda x: next(left)))

    return _numpy(jax.jit(of_batches)(*given.batches()))


def _in_chunks(
    f: Callable, given: _Given, axes: Sequence[int | None], *, size: int
) -> list[np.ndarray]:
    compiled = jax.jit(f)
    parts = []
    for start in range(0, given.rows, size):
        chunk = operator.itemgetter(slice(start, start + size))
        parts.append(_numpy(compiled(*given.mapped(chunk))))
    return [
        of[0] if axis is None else np.concatenate(of, axis)
        for axis, *of in zip(axes, *parts, strict=True)
    ]


def _padded(
    f: Callable, given: _Given, axes: Sequence[int | None], *, size: int
) -> list[np.ndarray]:
    more = size - given.rows
    # Not `jnp.pad`, which takes no PRNG keys.
    arrays = given.mapped(lambda x: jnp.concatenate([x, jnp.zeros_like(x[:more])]))
    return [
        x if axis is None else np.take(x, range(given.rows), axis)
        for x, axis in zip(_numpy(jax.jit(f)(*arrays)), axes, strict=True)
    ]


def _reversed(
    f: Callable, given: _Given, axes: Sequence[int | None]
) -> list[np.ndarray]:
    arrays = given.mapped(lambda x: x[::-1])
    return [
        x if axis is None else np.flip(x, axis)
        for x, axis in zip(_numpy(jax.jit(f)(*arrays)), axes, strict=True)
    ]


def _by_row(
    f: Callable, given: _Given, axes: Sequence[int | None], *, loop: bool
) -> list[np.ndarray]:
    def of_row(rows: list[Any]) -> list[Any]:
        left = iter(rows)
        return f(*given.mapped(lambda x: next(left)[None]))

    def of_rows(batches: list[Any]) -> list[Any]:
        return jax.lax.map(of_row, batches) if loop else jax.vmap(of_row)(batches)

    # What each row gave is stacked along a new axis 0.
    return [
        x[0] if axis is None else np.concatenate(list(x), axis)
        for x, axis in zip(_numpy(jax.jit(of_rows)(given.batches())), axes, strict=True)
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

        def note(*arrays: Any) -> None:
            found.extend(_lines(program.jaxpr, arrays))

        jax.eval_shape(note, *program.jaxpr.in_avals)
        return found

    here, other = lines(given.rows), lines(given.rows + 1)
    if [line.path for line in here] != [line.path for line in other]:
        return ""
    followed: list[int] = []
    axes: list[int | None] = []
    folds: list[int] = []
    for i, (x, y) in enumerate(zip(here, other, strict=True)):
        sizes = zip(x.value.shape, y.value.shape, strict=True)
        moved = [(a, m, n - m) for a, (m, n) in enumerate(sizes) if m != n]
        # So many elements of its axis belong to one row.
        axis, size, fold = moved[0] if moved else (None, 0, 0)
        if len(moved) < 2 and size == fold * given.rows:
            followed.append(i)
            axes.append(axis)
            folds.append(fold)

    def watched(*arrays: Any) -> list[Any]:
        program = traced(given.outcome, arrays)
        found = list(_lines(program.jaxpr, arrays))
        if [line.path for line in found] != [line.path for line in here]:
            raise _Otherwise
        chosen = zip((found[i].value for i in followed), axes, folds, strict=True)
        return [x if a is None else _unfolded(x, a, fold) for x, a, fold in chosen]

    try:
        values = way(watched, given, axes)
    except _Otherwise:
        return ""
    expected = _whole(watched, given, axes)
    for i, value, wanted, fold in zip(followed, values, expected, folds, strict=True):
        differs = value.tobytes() != wanted.tobytes()
        if differs and not (fold > 1 and _rearranged(value, wanted)):
            return here[i].source
    return ""


def _unfolded(x: Any, axis: int, fold: int) -> Any:
    """An array in which the rows have an axis, and what was folded with them the next.

    Args:
        x: `[..., rows * fold, ...]`.
        axis: that one.
        fold: elements of it that belong to one row.
    """
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
    """Evaluate a jaxpr; calls are entered, loops and branches are not.

    Yields:
        What each equation computes, if it is an array of numbers.

    Returns:
        The results of the jaxpr.
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
