"""Calls a function of a batch of rows in several ways."""

import functools
import itertools
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

import jax
import numpy as np
from jax import Array
from jax import numpy as jnp

from prednet_jax.noise import compat, loops
from prednet_jax.noise._inject import Traced, evaluate, traced
from prednet_jax.noise.arguments import Outcome, split, split_objects
from prednet_jax.noise.errors import NoiseError
from prednet_jax.noise.questions.sampling import BoundCall
from prednet_jax.noise.run import Evaluation
from prednet_jax.noise.specs import Identity
from prednet_jax.noise.types import Values


class BatchedCall(NamedTuple):
    """A call as a function of its batches and its other arrays, an `Outcome`; both."""

    outcome: Callable[[Values, Values], Outcome]
    arrays: tuple[Values, Values]

    @property
    def rows(self) -> int:
        """Returns the number of rows of the batch."""
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


def batched_call(call: BoundCall, batch: Sequence[int]) -> BatchedCall:
    """Returns the call, refusing batches without a common axis 0."""
    if max(batch) >= len(call.args):
        raise NoiseError(
            f"batch={tuple(batch)}: expected positions among the {len(call.args)} "
            "positional arguments, from 0"
        )
    is_batch: list[bool] = []
    for i, argument in enumerate(call.args):
        # Arrays of mutable objects come after all others.
        _, inside, objects = split(((argument,), {}))
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
    return BatchedCall(bounded if entered else outcome, (batches, others))


class _Bounded(Evaluation):
    """Evaluates a program, and stops loops that do not end for other rows."""

    changes = "in this way"


def ways_to_call(
    batched: BatchedCall, f: Callable[[Values, Values], list[Array]]
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
