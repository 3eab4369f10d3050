"""Tests whether a result depends on how its function is called.

docs/noise/invariance.md describes the calls that `invariance` makes, and the comparison
with the compiled call of the whole batch.
"""

import dataclasses
import functools
import math
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

import jax
import numpy as np
from jax import Array
from jax import numpy as jnp

from prednet_jax.noise import loops
from prednet_jax.noise.arguments import Outcome
from prednet_jax.noise.errors import NoiseError, check_draws, check_int, expect
from prednet_jax.noise.leaves import (
    as_array,
    check_same_structure,
    check_some,
    named_leaves,
)
from prednet_jax.noise.questions.batched_calls import (
    BatchedCall,
    batched_call,
    ways_to_call,
)
from prednet_jax.noise.questions.changed_line import first_changed_line
from prednet_jax.noise.questions.explain import summarize_change
from prednet_jax.noise.questions.reference import NoiseReference
from prednet_jax.noise.questions.sampling import BoundCall, draw_keys, reporting
from prednet_jax.noise.tables import format_table
from prednet_jax.noise.types import Function, PyTree


class Variant(NamedTuple):
    """One way to call the function, such as `one row at a time`.

    Attributes:
        same_bits: whether all bits are those of the call of the whole batch. This,
            `difference` and `rung` are the fields of `explain.Change`.
        flipped_rows: rows in which an argmax over the last axis of a floating-point
            leaf changes, or any element of an integer or boolean leaf.
        source: in the way that differs most, the user's line that makes the first
            difference; "" in the others, or if no line does alone.
    """

    name: str
    same_bits: bool
    difference: float | None
    rung: str
    flipped_rows: tuple[int, ...]
    source: str


class Invariance(NamedTuple):
    """The result of `invariance`: a variant per way to call; `rows` of the batch."""

    variants: tuple[Variant, ...]
    rows: int

    def __str__(self) -> str:
        head = ("", "bits", "relative", "cause", "flipped", "first line")
        bits = ("differ", "same")
        rows = [
            (v.name, bits[v.same_bits], *v[2:4], len(v.flipped_rows), v.source)
            for v in self.variants
        ]
        last = f"compared with one compiled call of all {self.rows} rows"
        return "\n".join([*format_table(head, rows, "<<><><"), last])


def invariance(
    fn: Function, *, batch: Sequence[int] = (0,), draws: int = 8, seed: int = 0
) -> Callable[..., Invariance]:
    """Compares the ways to call a function of a batch of rows.

    Args:
        fn: a function as for `inject`, from rows to rows: axis 0 of each array among
            the arguments at `batch`, and of each array of its result, is the batch.
        batch: positions of the arguments with a batch axis.
        draws: runs of each random noise, 2 or more.
        seed: seed of the noise.

    Returns:
        `measure(*args, **kwargs)`, which gives an `Invariance`.

    Raises:
        NoiseError: an option is not accepted. On a call: an argument or a result has no
            batch axis, `fn` does not accept another number of rows, or the result holds
            a NaN.
    """
    check_draws(draws, 2)
    batch = (batch,) if isinstance(batch, int) else batch
    is_accepted = isinstance(batch, list | tuple | range) and len(batch) > 0
    check_int("seed", seed, -(2**63), 2**63 - 1)
    expect(is_accepted, "batch", batch, "positions of arguments, such as (0,)")
    for i in batch:
        check_int("batch", i, 0)

    @reporting()
    def measure(*args: PyTree, **kwargs: PyTree) -> Invariance:
        call = BoundCall(fn, args, kwargs)
        batched = batched_call(call, batch)
        shapes = batched.program(batched.rows).shapes
        _check_rows(batched, shapes)
        compiled = functools.partial(jax.jit(batched.result), *batched.arrays)
        expected = _called("compiled", compiled)
        _check_numbers(_result(shapes, expected))
        # Neither is needed if all variants agree.
        reference = functools.cache(
            lambda: NoiseReference(call, jax.random.key(seed), draws=draws)
        )

        def variant(name: str, called: Callable[[], Iterable]) -> Variant:
            values = _called(name, called)
            check_same_structure(f"the result {name}", values, "compiled", expected)
            pairs = list(zip(values, expected, strict=True))
            if all(x.tobytes() == y.tobytes() for x, y in pairs):
                return Variant(name, True, 0.0, "identical", (), "")
            trees = (_result(shapes, arrays) for arrays in (values, expected))
            change = summarize_change(reference(), *trees)
            flipped = np.any([_flipped(x, y) for x, y in pairs], axis=0)
            return Variant(name, *change, tuple(np.flatnonzero(flipped).tolist()), "")

        ways = ways_to_call(batched, batched.result)
        variants = [variant(name, called) for name, called in ways.items()]
        keys = list(draw_keys(jax.random.key(seed), draws))
        return Invariance(_with_line(batched, variants, keys), batched.rows)

    return measure


def _with_line(
    batched: BatchedCall, variants: Sequence[Variant], keys: Sequence[Array]
) -> tuple[Variant, ...]:
    """Adds the line of the first difference to the variant that differs most.

    If the variant is beyond noise, the line is the first one beyond noise, of which
    `keys` draw the runs.

    Each line is a program to compile, and a fault has the same line in every variant.
    """
    differ = [v for v in variants if not v.same_bits]
    if not differ:
        return tuple(variants)
    worst = max(differ, key=lambda v: v.difference or math.inf)
    line = first_changed_line(
        batched, worst.name, keys if worst.rung == "beyond" else ()
    )
    return tuple(v._replace(source=line) if v is worst else v for v in variants)


def _called(name: str, called: Callable[[], Iterable]) -> list[np.ndarray]:
    """Returns the results of a call; a NoiseError names the call that has none."""
    try:
        with loops.naming_failures():
            return list(map(np.asarray, called()))
    except (NotImplementedError, ValueError) as error:
        why = str(error).partition("\n")[0] or type(error).__name__
        raise NoiseError(f"called {name}: {why}") from None


def _result(shapes: Outcome, arrays: Sequence[object]) -> PyTree:
    """Returns the result of `fn` with these arrays."""
    return dataclasses.replace(shapes, arrays=arrays).result()


def _check_rows(batched: BatchedCall, shapes: Outcome) -> None:
    """Refuses a result without a batch axis, whatever the number of rows."""
    named = named_leaves(_result(shapes, shapes.arrays))
    paths = [path for path, x in named if isinstance(x, jax.ShapeDtypeStruct)]
    for rows in (batched.rows, batched.rows + 1, 1):
        arrays = batched.program(rows).shapes.arrays
        for path, x in zip(paths, arrays, strict=True):
            if x.shape[:1] != (rows,):
                raise NoiseError(
                    f"{path}: shape {x.shape} of {rows} rows: expected the batch as "
                    "axis 0; let the function return what it computes of each row"
                )


def _check_numbers(result: PyTree) -> None:
    """Refuses a result that holds a NaN, or nothing."""
    check_some(result)
    for path, x in named_leaves(result):
        where = np.argwhere(np.isnan(as_array(x, path)))
        if len(where):
            at = f"{path}{where[0].tolist()}"
            raise NoiseError(f"{at} is NaN: expected a result without NaN")


def _flipped(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Returns the rows in which a decision differs: bool [B]."""
    scores = jnp.issubdtype(x.dtype, jnp.floating) and x.ndim > 1 and x.shape[-1] > 1
    if scores:
        x, y = np.argmax(x, -1), np.argmax(y, -1)
    elif jnp.issubdtype(x.dtype, jnp.inexact):
        return np.zeros(len(x), bool)
    return (x != y).reshape(len(x), -1).any(1)
