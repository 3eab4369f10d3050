"""Tests whether a result depends on how its function is called.

docs/noise/invariance.md describes the calls that `invariance` makes, the comparison
with the compiled call of the whole batch, and how the first line that differs is found.
Arrays that belong to no row are hashed.
"""

import dataclasses
import functools
import itertools
import math
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

import jax
import numpy as np
from jax import Array
from jax import numpy as jnp

from prednet_jax.noise import compat, loops
from prednet_jax.noise._inject import Traced, evaluate, traced
from prednet_jax.noise.arguments import Outcome, split, split_objects
from prednet_jax.noise.errors import NoiseError, check_draws, check_int, expect
from prednet_jax.noise.leaves import (
    as_array,
    check_some,
    named_leaves,
    rms,
    subtract,
    wide_leaves,
)
from prednet_jax.noise.plan import Step
from prednet_jax.noise.questions.explain import NoiseReference, summarize_change
from prednet_jax.noise.questions.sampling import (
    BoundCall,
    draw_keys,
    reporting,
    with_routines,
)
from prednet_jax.noise.questions.values import judge
from prednet_jax.noise.random_bits import Words
from prednet_jax.noise.rules import registry
from prednet_jax.noise.run import Call, Evaluation
from prednet_jax.noise.sketch import digest, numbers
from prednet_jax.noise.specs import Identity
from prednet_jax.noise.tables import format_table
from prednet_jax.noise.types import Function, PyTree, Values


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
    some = isinstance(batch, list | tuple | range) and len(batch) > 0
    check_int("seed", seed, -(2**63), 2**63 - 1)
    expect(some, "batch", batch, "positions of arguments, such as (0,)")
    for i in batch:
        check_int("batch", i, 0)

    @reporting()
    def measure(*args: PyTree, **kwargs: PyTree) -> Invariance:
        call = BoundCall(fn, args, kwargs)
        batched = _batched(call, batch)
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
            pairs = list(zip(values, expected, strict=True))
            if all(x.tobytes() == y.tobytes() for x, y in pairs):
                return Variant(name, True, 0.0, "identical", (), "")
            trees = (_result(shapes, arrays) for arrays in (values, expected))
            change = summarize_change(reference(), *trees)
            flipped = np.any([_flipped(x, y) for x, y in pairs], axis=0)
            return Variant(name, *change, tuple(np.flatnonzero(flipped).tolist()), "")

        ways = _ways(batched, batched.result)
        variants = [variant(name, called) for name, called in ways.items()]
        keys = list(draw_keys(jax.random.key(seed), draws))
        return Invariance(_with_line(batched, variants, keys), batched.rows)

    return measure


def _called(name: str, called: Callable[[], Iterable]) -> list[np.ndarray]:
    """Returns the results of a call; a NoiseError names the call that has none."""
    try:
        with loops.naming_failures():
            return list(map(np.asarray, called()))
    except (NotImplementedError, loops.LoopError) as error:
        raise NoiseError(f"called {name}: {error}") from None


class _BatchedCall(NamedTuple):
    """A call as a function of its batches and its other arrays, an `Outcome`; both."""

    outcome: Callable[[Values, Values], Outcome]
    arrays: tuple[Values, Values]

    @property
    def rows(self) -> int:
        return len(self.arrays[0][0])

    def result(self, batches: Values, others: Values) -> list[Array]:
        """Returns the arrays of the result, with PRNG keys as their data."""
        return [
            jax.random.key_data(x)
            if jnp.issubdtype(x.dtype, jax.dtypes.prng_key)
            else x
            for x in self.outcome(batches, others).arrays
        ]

    def shaped(self, rows: int) -> tuple[list[jax.ShapeDtypeStruct], Values]:
        """Returns the arrays for a number of rows."""
        batches, others = self.arrays
        shapes = [jax.ShapeDtypeStruct((rows, *x.shape[1:]), x.dtype) for x in batches]
        return shapes, others

    def program(self, rows: int) -> Traced:
        """Traces the program for a number of rows, or raises a NoiseError."""
        try:
            return traced(self.outcome, self.shaped(rows))
        except Exception as error:
            # The function is the user's, and may say no in its own way.
            if rows == self.rows:
                raise
            why = str(error).partition("\n")[0] or type(error).__name__
            raise NoiseError(
                f"the function takes {self.rows} rows, but not {rows} ({why}): "
                "expected one for any number of rows"
            ) from error


def _on_one_device(x: Array) -> Array:
    """Returns an array without the sharding that its type may have."""
    if not isinstance(x, jax.Array) or jax.typeof(x).sharding.mesh.empty:
        return x
    return jnp.asarray(np.asarray(x))


def _batched(call: BoundCall, batch: Sequence[int]) -> _BatchedCall:
    """Returns the call, refusing batches without a common axis 0."""
    if max(batch) >= len(call.args):
        raise NoiseError(
            f"batch={tuple(batch)}: expected positions among the {len(call.args)} "
            "positional arguments, from 0"
        )
    is_batch: list[bool] = []
    for i, one in enumerate(call.args):
        # Arrays of mutable objects come after all others.
        _, inside, objects = split(((one,), {}))
        is_batch += [i in batch] * (len(inside) - len(split_objects(objects)[1]))
    args, kwargs = call.arguments()
    pure, arrays = BoundCall(call.fn, args, kwargs).pure()
    arrays = [_on_one_device(x) for x in arrays]
    is_batch += [False] * (len(arrays) - len(is_batch))
    shapes = [np.shape(x) for x in itertools.compress(arrays, is_batch)]
    sizes = {shape[:1] for shape in shapes}
    if len(sizes) != 1 or sizes == {()} or sizes <= {(0,), (1,)}:
        raise NoiseError(
            f"the arguments at batch={tuple(batch)} have the shapes {shapes}: expected "
            "arrays with the batch as axis 0, of one size, 2 rows or more"
        )

    def outcome(batches: Values, others: Values) -> Outcome:
        arrays = {True: iter(batches), False: iter(others)}
        return pure(*(next(arrays[kind]) for kind in is_batch))

    def bounded(*arrays: Values) -> Outcome:
        program, hooks = traced(outcome, arrays), _Bounded()
        return evaluate(Identity(), jax.random.key(0), program, arrays, hooks=hooks)

    # Rows of zeros may fail a check, which is left out, and keep a loop from ending.
    steps = [(step.name, step.equation.params) for step in call.equations()]
    entered = any(
        (name == "while" and loops.deciding(params) is not None)
        or (name == "cond" and any(map(compat.is_check, params["branches"])))
        for name, params in steps
    )
    pairs = [(jnp.asarray(x), kind) for x, kind in zip(arrays, is_batch, strict=True)]
    batches, others = ([x for x, kind in pairs if kind is k] for k in (True, False))
    return _BatchedCall(bounded if entered else outcome, (batches, others))


def _result(shapes: Outcome, arrays: Sequence[object]) -> PyTree:
    """Returns the result of `fn` with these arrays."""
    return dataclasses.replace(shapes, arrays=arrays).result()


def _check_rows(batched: _BatchedCall, shapes: Outcome) -> None:
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


def _ways(
    batched: _BatchedCall, f: Callable[[Values, Values], list[Array]]
) -> dict[str, Callable[[], Iterable]]:
    """Returns the ways to call `f` by name; each returns the arrays of all rows."""
    rows, compiled, (batches, others) = batched.rows, jax.jit(f), batched.arrays

    # Slices by NumPy are no programs to be compiled; it knows no PRNG keys.
    given = [np.asarray(x) if isinstance(x.dtype, np.dtype) else x for x in batches]

    def in_chunks(size: int) -> list[np.ndarray]:
        chunks = [[x[i : i + size] for x in given] for i in range(0, rows, size)]
        results = [jax.device_get(compiled(chunk, others)) for chunk in chunks]
        return [np.concatenate(x) for x in zip(*results, strict=True)]

    def by_row(mapped: Callable) -> list[np.ndarray]:
        def of_row(row: Values) -> list[Array]:
            return f([x[None] for x in row], others)

        results = jax.jit(lambda b: mapped(of_row, b))(batches)
        return [np.asarray(x)[:, 0] for x in results]

    # The function may donate what it is given.
    ways: dict[str, Callable[[], Iterable]] = {
        "not compiled": lambda: f(*jax.tree.map(jnp.copy, batched.arrays)),
        "all arguments as constants": jax.jit(lambda: f(batches, others)),
    }
    if others:
        with_others = jax.jit(lambda batches: f(batches, others))
        ways["others as constants"] = functools.partial(with_others, batches)
    for size in dict.fromkeys((1, 2, rows // 2)):
        if size < rows:
            name = f"{size} rows at a time" if size > 1 else "one row at a time"
            ways[name] = functools.partial(in_chunks, size)
    size = 1 << rows.bit_length()
    backwards = [x[::-1] for x in given]

    def longer(x: np.ndarray | Array) -> np.ndarray | Array:
        xp = np if isinstance(x, np.ndarray) else jnp  # `jnp.pad` takes no PRNG keys.
        return xp.concatenate([x, xp.zeros_like(x[: size - rows])])

    padded = list(map(longer, given))

    @loops.without_checks()  # Rows of zeros may fail one.
    def with_padding() -> list[np.ndarray]:
        return [np.asarray(x)[:rows] for x in compiled(padded, others)]

    return ways | {
        f"padded to {size} rows": with_padding,
        "rows in reverse": lambda: [
            np.asarray(x)[::-1] for x in compiled(backwards, others)
        ],
        "vmap over rows": lambda: by_row(lambda g, xs: jax.vmap(g)(xs)),
        "loop over rows": lambda: by_row(jax.lax.map),
    }


class _Bounded(Evaluation):
    """Evaluates a program, and stops loops that do not end for other rows."""

    changes = "in this way"


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
            self.seen += [(step, x) for x in typed]
        return results

    def higher_order(self, call: Call, words: Words, operands: list) -> list:
        """Evaluates the bodies of calls."""
        if call.rule.joins:
            return call.body(words, operands)
        if not self.is_noisy:
            return self.first_order(call, words, operands)
        inside = Evaluation()
        return inside.higher_order(call._replace(evaluation=inside), words, operands)


def _with_line(
    batched: _BatchedCall, variants: Sequence[Variant], keys: Sequence[Array]
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
    line = _first_line(batched, worst.name, keys if worst.rung == "beyond" else ())
    return tuple(v._replace(source=line) if v is worst else v for v in variants)


class _ProgramDependsOnBatchError(Exception):
    """The program has other equations for another number of rows."""


def _first_line(batched: _BatchedCall, name: str, keys: Sequence[Array]) -> str:
    """Returns the user's line that a way of calling, by its name, changes first.

    With keys of noisy runs it is the first line that changes by more than noise. The
    line is "" if no line alone makes a difference.
    """

    def lines(*arrays: Values, key: Array | None = None) -> list[tuple[Step, Array]]:
        hooks, program = _Lines(key is not None), traced(batched.outcome, arrays)
        spec = Identity() if key is None else with_routines(None)
        own_key = jax.random.key(0) if key is None else key
        evaluate(spec, own_key, program, arrays, hooks=hooks)
        return hooks.seen

    def of(rows: int) -> list[tuple[Step, jax.ShapeDtypeStruct]]:
        steps: list[Step] = []

        def values_of(*arrays: Values) -> list[Array]:
            seen = lines(*arrays)
            steps.extend(step for step, _ in seen)
            return [x for _, x in seen]

        shapes = jax.eval_shape(values_of, *batched.shaped(rows))
        return list(zip(steps, shapes, strict=True))

    here, other = of(batched.rows), of(batched.rows + 1)
    paths = [step.path for step, _ in here]
    # Which arrays, the axis of their rows, and how many elements of it belong to one.
    followed: list[tuple[int, int | None, int]] = []
    for i, ((step, x), (same, y)) in enumerate(zip(here, other, strict=False)):
        sizes = enumerate(zip(x.shape, y.shape, strict=False))
        moved = [(axis, m, n - m) for axis, (m, n) in sizes if m != n]
        axis, size, fold = moved[0] if moved else (None, 0, 0)
        alike = step.path == same.path and x.ndim == y.ndim and len(moved) < 2
        if alike and size == fold * batched.rows:
            followed.append((i, axis, fold))

    def values(
        batches: Values, others: Values, key: Array | None = None
    ) -> list[Array]:
        seen = lines(batches, others, key=key)
        if [step.path for step, _ in seen] != paths:
            raise _ProgramDependsOnBatchError
        rows = len(batches[0])
        return [_by_row(seen[i][1], rows, axis, bool(keys)) for i, axis, _ in followed]

    expected = list(map(np.asarray, jax.jit(values)(*batched.arrays)))

    try:
        found = list(map(np.asarray, _ways(batched, values)[name]()))
    except _ProgramDependsOnBatchError:
        return ""
    changed = [
        j
        for j, ((*_, fold), now, before) in enumerate(
            zip(followed, found, expected, strict=True)
        )
        if now.tobytes() != before.tobytes()
        and not (fold > 1 and _rearranged(now, before))
    ]
    noisy = jax.jit(values)
    runs = [noisy(*batched.arrays, key) for key in keys if changed]

    def is_beyond(j: int) -> bool:
        own = wide_leaves([expected[j]])[0]
        drawn = [subtract(wide_leaves([x[j]])[0], own) for x in runs]
        return judge(expected[j], found[j], drawn).over > 1

    # If none is beyond noise, many small differences make the one of the result.
    first = itertools.chain((j for j in changed if runs and is_beyond(j)), changed)
    return next((here[followed[j][0]][0].source for j in first), "")


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
