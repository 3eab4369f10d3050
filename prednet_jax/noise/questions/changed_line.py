"""Finds the line whose values change first if a function is called in another way.

docs/noise/invariance.md describes how. Arrays that belong to no row are hashed.
"""

import functools
import itertools
from collections.abc import Sequence
from typing import NamedTuple

import jax
import numpy as np
from jax import Array
from jax import numpy as jnp

from prednet_jax.noise import compat
from prednet_jax.noise._inject import evaluate, traced
from prednet_jax.noise.leaves import rms, subtract, wide_leaves
from prednet_jax.noise.plan import Step
from prednet_jax.noise.questions.batched_calls import BatchedCall, ways_to_call
from prednet_jax.noise.questions.sampling import with_routines
from prednet_jax.noise.questions.values import judge
from prednet_jax.noise.random_bits import Words
from prednet_jax.noise.rules import registry
from prednet_jax.noise.run import Call, Evaluation
from prednet_jax.noise.sketch import digest, numbers
from prednet_jax.noise.specs import Identity
from prednet_jax.noise.types import Values


class _Lines(Evaluation):
    """Evaluates a program and keeps each line's values; a loop or branch is a line."""

    def __init__(self, is_noisy: bool) -> None:
        super().__init__()
        self.is_noisy = is_noisy
        self.seen: list[tuple[Step, Array]] = []

    def after(self, step: Step, words: Words, operands: list, results: list) -> list:
        rule = registry.higher_order(step.name)
        if rule is None or not rule.joins:
            typed = (x for x in results if isinstance(getattr(x, "dtype", 0), np.dtype))
            arrays = (x for x in typed if not compat.is_ref(jax.typeof(x)))
            self.seen += [(step, x) for x in arrays]
        return results

    def higher_order(self, call: Call, words: Words, operands: list) -> list:
        """Evaluates the bodies of calls."""
        if call.rule.joins:
            return call.body(words, operands)
        if not self.is_noisy:
            return self.first_order(call, words, operands)
        inside = Evaluation()
        return inside.higher_order(call._replace(evaluation=inside), words, operands)


class _ProgramDependsOnBatchError(Exception):
    """The program has other equations for another number of rows."""


class _Value(NamedTuple):
    """A value of a line that is followed from one way of calling to another.

    Attributes:
        number: its number among the values of all lines.
        source: the user's line.
        axis: the axis of the rows; None if the value has none.
        fold: how many elements of this axis belong to one row.
    """

    number: int
    source: str
    axis: int | None
    fold: int


def first_changed_line(batched: BatchedCall, name: str, keys: Sequence[Array]) -> str:
    """Returns the user's line that a way of calling, by its name, changes first.

    With keys of noisy runs it is the first line that changes by more than noise. The
    line is "" if no line alone makes a difference.
    """
    paths, followed = _followed(batched)

    def values(
        batches: Values, others: Values, key: Array | None = None
    ) -> list[Array]:
        seen = _values_of_lines(batched, (batches, others), key)
        if [step.path for step, _ in seen] != paths:
            raise _ProgramDependsOnBatchError
        arrays, rows = [x for _, x in seen], len(batches[0])
        return [_by_row(arrays[x.number], rows, x.axis, bool(keys)) for x in followed]

    expected = list(map(np.asarray, jax.jit(values)(*batched.arrays)))
    try:
        results = list(map(np.asarray, ways_to_call(batched, values)[name]()))
    except _ProgramDependsOnBatchError:
        return ""
    pairs = zip(results, expected, followed, strict=True)
    changed = [j for j, pair in enumerate(pairs) if _is_changed(*pair)]
    noisy = jax.jit(values)
    runs = [noisy(*batched.arrays, key) for key in keys if changed]

    def is_beyond(j: int) -> bool:
        own = wide_leaves([expected[j]])[0]
        drawn = [subtract(wide_leaves([x[j]])[0], own) for x in runs]
        return judge(expected[j], results[j], drawn).over > 1

    # If none is beyond noise, many small differences make the one of the result.
    first = itertools.chain((j for j in changed if runs and is_beyond(j)), changed)
    return next((followed[j].source for j in first), "")


def _values_of_lines(
    batched: BatchedCall, arrays: tuple[Values, Values], key: Array | None = None
) -> list[tuple[Step, Array]]:
    """Runs a call, under noise if there is a key, and returns the values of its lines.

    The arrays are the batches and the others.
    """
    hooks, program = _Lines(key is not None), traced(batched.outcome, arrays)
    hooks.unread = compat.unread(program.jaxpr)
    spec = Identity() if key is None else with_routines(None)
    own_key = jax.random.key(0) if key is None else key
    evaluate(spec, own_key, program, arrays, hooks=hooks)
    return hooks.seen


def _followed(batched: BatchedCall) -> tuple[list[str], list[_Value]]:
    """Returns the paths of all values, and the values that can be followed.

    The axis of the rows is the one whose size changes with the number of rows.
    """

    def of(rows: int) -> list[tuple[Step, jax.ShapeDtypeStruct]]:
        steps: list[Step] = []

        def values(batches: Values, others: Values) -> list[Array]:
            seen = _values_of_lines(batched, (batches, others))
            steps.extend(step for step, _ in seen)
            return [x for _, x in seen]

        shapes = jax.eval_shape(values, *batched.shaped(rows))
        return list(zip(steps, shapes, strict=True))

    here, more = of(batched.rows), of(batched.rows + 1)
    followed: list[_Value] = []
    for i, ((step, x), (same, y)) in enumerate(zip(here, more, strict=False)):
        sizes = enumerate(zip(x.shape, y.shape, strict=False))
        moved = [(axis, m, n - m) for axis, (m, n) in sizes if m != n]
        axis, size, fold = moved[0] if moved else (None, 0, 0)
        alike = step.path == same.path and x.ndim == y.ndim and len(moved) < 2
        if alike and size == fold * batched.rows:
            followed.append(_Value(i, step.source, axis, fold))
    return [step.path for step, _ in here], followed


def _is_changed(now: np.ndarray, before: np.ndarray, value: _Value) -> bool:
    """Returns whether bits of a value differ, beyond the order of folded rows."""
    if now.tobytes() == before.tobytes():
        return False
    return value.fold <= 1 or not _rearranged(now, before)


def _by_row(x: Array, rows: int, axis: int | None, sums: bool) -> Array:
    """Moves the rows, folded into an axis, to axis 0.

    An array without rows is summarized: by sums with random signs, or by hashes.
    """
    if axis is None:
        summary = digest(numbers(x))[1 if sums else 0]
        return jnp.broadcast_to(summary, (rows, *summary.shape))
    shape = *x.shape[:axis], rows, x.shape[axis] // rows, *x.shape[axis + 1 :]
    return jnp.moveaxis(jnp.reshape(x, shape), axis, 0)


def _rearranged(x: np.ndarray, y: np.ndarray) -> bool:
    """Returns whether two arrays hold nearly the same numbers, in other places."""
    x, y = wide_leaves([x, y])
    near = functools.partial(np.allclose, rtol=0.01, atol=0.01 * rms(y))
    return not near(x, y) and near(np.sort(x, None), np.sort(y, None))
