"""Whether a result depends on how its function is called.

A function that treats each row of a batch by itself gives a row the same value alone,
in another batch, padded, under `vmap`, in a loop, compiled or not: in exact arithmetic.
`invariance` makes the calls and compares them with the compiled call of the whole
batch: bits, size and rung of the difference, rows in which a decision changes.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import math
import operator
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np
from jax import numpy as jnp

from prednet_jax.noise.arguments import Outcome, split, taken_apart
from prednet_jax.noise.errors import NoiseError, integer
from prednet_jax.noise.inject import Traced, traced
from prednet_jax.noise.questions import runs
from prednet_jax.noise.questions.explain import RUNGS, ladder, place


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
    """

    name: str
    same_bits: bool
    difference: float | None
    rung: str
    flipped_rows: tuple[int, ...]


class Invariance(NamedTuple):
    """What `invariance` found: a variant per way to call it; `rows` of the batch."""

    variants: tuple[Variant, ...]
    rows: int

    def __str__(self) -> str:
        head = ("", "bits", "relative", "rung", "flipped")
        rows = [
            (
                v.name,
                "same" if v.same_bits else "differ",
                "-" if v.difference is None else f"{v.difference:.2g}",
                v.rung,
                f"{len(v.flipped_rows)}",
            )
            for v in self.variants
        ]
        last = f"compared with one compiled call of all {self.rows} rows"
        return "\n".join([*runs.table(head, rows, "<<><>"), last])


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
        compiled = jax.jit(given.result)
        expected = list(map(np.asarray, compiled(*given.arrays)))
        tree = _result(shapes, expected)
        _refuse_nan(tree)
        found, rungs = [], None
        for name, called in _ways(given, compiled).items():
            values = list(map(np.asarray, called()))
            pairs = list(zip(values, expected, strict=True))
            if all(x.tobytes() == y.tobytes() for x, y in pairs):
                found.append(Variant(name, True, 0.0, "identical", ()))
                continue
            if rungs is None:
                rungs = ladder(call, jax.random.key(seed), draws=draws)
            leaves = place(rungs, _result(shapes, values), tree).leaves
            sizes = [math.inf if x.relative is None else x.relative for x in leaves]
            difference = max(sizes) if math.isfinite(max(sizes)) else None
            rung = max((one.rung for one in leaves), key=RUNGS.index)
            flipped = np.any([_flipped(x, y) for x, y in pairs], axis=0)
            rows = tuple(np.flatnonzero(flipped).tolist())
            found.append(Variant(name, False, difference, rung, rows))
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


def _ways(given: _Given, compiled: Callable) -> dict[str, Callable[[], Any]]:
    """The variants by name, each of which gives the arrays of all rows."""
    rows, batches, f = given.rows, given.batches(), given.result

    def in_chunks(size: int) -> Any:
        starts = range(0, rows, size)
        chunks = [given.mapped(operator.itemgetter(slice(i, i + size))) for i in starts]
        results = [jax.device_get(compiled(*chunk)) for chunk in chunks]
        return map(np.concatenate, zip(*results, strict=True))

    def by_row(mapped: Callable) -> Any:
        def of_row(row: list[Any]) -> Any:
            return f(*given.filled([x[None] for x in row]))

        return [x[:, 0] for x in jax.jit(lambda b: mapped(of_row, b))(batches)]

    # The function may donate what it is given.
    ways: dict[str, Callable[[], Any]] = {
        "not compiled": lambda: f(*map(jnp.copy, given.arrays)),
        "all arguments as constants": jax.jit(lambda: f(*given.arrays)),
    }
    if not all(given.is_batch):
        ways["others as constants"] = functools.partial(
            jax.jit(lambda *batches: f(*given.filled(batches))), *batches
        )
    for size in dict.fromkeys((1, 2, rows // 2)):
        if size < rows:
            name = f"{size} rows at a time" if size > 1 else "one row at a time"
            ways[name] = functools.partial(in_chunks, size)
    size = 1 << rows.bit_length()
    # Not `jnp.pad`, which takes no PRNG keys.
    padded = given.mapped(
        lambda x: jnp.concatenate([x, jnp.zeros_like(x[: size - rows])])
    )
    backwards = given.mapped(lambda x: x[::-1])
    return ways | {
        f"padded to {size} rows": lambda: [x[:rows] for x in compiled(*padded)],
        "rows in reverse": lambda: [x[::-1] for x in compiled(*backwards)],
        "vmap over rows": lambda: by_row(lambda g, xs: jax.vmap(g)(xs)),
        "loop over rows": lambda: by_row(jax.lax.map),
    }
