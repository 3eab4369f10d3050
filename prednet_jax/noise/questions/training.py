"""Runs a training step under noise, many trainings at once.

`bands` compares their curves with the curve of another training.
"""

import functools
import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

import jax
import numpy as np
from jax import Array, lax
from jax import numpy as jnp

from prednet_jax.noise import compat, random_bits
from prednet_jax.noise._inject import Traced, inject, traced
from prednet_jax.noise.arguments import Static, is_mutable, split
from prednet_jax.noise.errors import (
    NoiseError,
    check_draws,
    check_function,
    check_int,
    expect,
)
from prednet_jax.noise.leaves import as_array
from prednet_jax.noise.loops import asking
from prednet_jax.noise.plan import plan
from prednet_jax.noise.questions.bands import Band, Curve, Curves
from prednet_jax.noise.questions.precision import rounded_products
from prednet_jax.noise.questions.sampling import computation_part, reporting, say
from prednet_jax.noise.questions.widening import Doubling
from prednet_jax.noise.specs import Identity, NoiseSpec
from prednet_jax.noise.types import Function, PyTree


def training(
    step: Function,
    state: PyTree,
    batches: Iterable[PyTree] | Callable[[int], PyTree],
    *,
    updates: int | None = None,
    spec: NoiseSpec | None = None,
    draws: int = 8,
    most: int = 64,
) -> Callable[[Array], Band]:
    """Runs a training step under noise, for the band of curves of equal trainings.

    Args:
        step: pure function `step(state, batch) -> (state, loss)`, or `(state, (loss,
            metrics))` with a mapping, of which the floating-point numbers are kept.
        state: weights, optimiser, counters, PRNG keys: any pytree, which may hold Flax
            NNX objects.
        batches: sequence of batches, or a function of the update, counted from 0.
        updates: number of updates. Defaults to all of a sequence, and to 100 of a
            function.
        spec: noise. Defaults to `specs.default()`.
        draws: number of noisy trainings, 4 or more. They take `draws` times as long as
            one, and one compilation.
        most: largest number of noisy trainings that `Band.compare` may use if `draws`
            do not decide.

    Returns:
        `run(key)`, which gives the `Band`.

    Raises:
        NoiseError: there is no batch; on a call, as for `inject`, and when the step is
            not pure or changes the structure of its state.
    """
    check_function(step, "step")
    check_draws(draws, 4)
    check_draws(most, 4, "most")
    noise = computation_part(spec)
    many = _batches(batches, updates)

    def run(key: Array) -> Band:
        random_bits.check(key)
        program = NoisyTraining(step, state, next(many())[1], noise)

        def draw(count: int) -> dict[str, Curves]:
            nonlocal key
            key, own = random_bits.split(key, 2)
            return program.curves(random_bits.split(own, count), many())

        begun = time.perf_counter()
        curves = draw(draws)
        seconds = time.perf_counter() - begun
        metrics = {name: x for name, x in curves.items() if name != "loss"}
        limit = max(draws, most)
        in_float64 = functools.cache(lambda: program.in_float64(many()))
        return Band(curves["loss"], metrics, seconds, limit, [curves], draw, in_float64)

    return run


def _batches(
    batches: Iterable[PyTree] | Callable[[int], PyTree], updates: int | None
) -> Callable[[], Iterator[tuple[int, PyTree]]]:
    """Returns a function that gives the updates and their batches, from the first."""
    if updates is not None:
        check_int("updates", updates, 1)
    if callable(batches):
        count = 100 if updates is None else updates
        return lambda: ((t, batches(t)) for t in range(count))
    is_accepted = isinstance(batches, Iterable) or hasattr(batches, "__getitem__")
    # The elements of these are names or letters, no batches.
    is_accepted = is_accepted and not isinstance(batches, Mapping | str | bytes)
    is_accepted = is_accepted and getattr(batches, "shape", None) != ()
    expect(is_accepted, "batches", batches, "a list, or a function of the update")
    listed = batches if isinstance(batches, Sequence) else list(batches)
    expect(len(listed), "batches", batches, "one or more")
    count = len(listed) if updates is None else updates
    most = f"at most {len(listed)}, as many as batches, or batches as a function"
    expect(count <= len(listed), "updates", updates, most)
    return lambda: zip(range(count), listed, strict=False)


class NoisyTraining:
    """A training step under noise, compiled once, for many trainings at once.

    Attributes:
        arrays: arrays of the first state.
    """

    def __init__(
        self, step: Function, state: PyTree, batch: PyTree, spec: NoiseSpec
    ) -> None:
        def typed(x: PyTree) -> PyTree:
            is_number = isinstance(x, bool | int | float | complex)
            return np.asarray(x, jnp.asarray(x).dtype) if is_number else x

        state = jax.tree.map(typed, state, is_leaf=is_mutable)
        static, self.arrays, _ = split((state,))
        self.names: list[str] = []

        def advance(arrays: list[Array], batch: PyTree) -> tuple[list, list]:
            (before,), _ = static.filled(arrays)
            after, numbers = _checked(step(before, batch))
            static_after, arrays_after, _ = split((after,))
            if static_after != static:
                raise NoiseError(
                    f"step: its state is {static.tree} before and {static_after.tree} "
                    "after an update: expected the same leaves, of the same shapes"
                )
            for i, pair in enumerate(zip(arrays, arrays_after, strict=True)):
                shape, shape_after = (list(jnp.shape(x)) for x in pair)
                if shape != shape_after:
                    raise NoiseError(
                        f"step: array {i} of its state has shape {shape} before and "
                        f"{shape_after} after an update: expected the same"
                    )
            self.names = list(numbers)
            return arrays_after, list(numbers.values())

        _check_pure(advance, self.arrays, batch)
        self.advance = advance
        noisy = inject(advance, spec)

        def many(
            keys: Array, update: Array, arrays: list, leaves: list, static: Static
        ) -> tuple[list, list]:
            (batch,), _ = static.filled(leaves)

            def one(key_and_arrays: tuple[Array, list]) -> tuple[list, list]:
                key, arrays = key_and_arrays
                return noisy(jax.random.fold_in(key, update), arrays, batch)

            return lax.map(one, (keys, arrays))

        self.many = jax.jit(many, static_argnums=4)

    def curves(self, keys: Array, batches: Iterator[tuple[int, PyTree]]) -> dict:
        """Returns the curves [draws, T] by name, of one training for each key."""
        count = len(keys)
        arrays = [jnp.broadcast_to(x, (count, *jnp.shape(x))) for x in self.arrays]
        outputs = []
        with reporting(), asking():
            for update, batch in batches:
                say(f"update {update} of {count} noisy trainings")
                static, leaves, _ = split((batch,))
                inputs = np.uint32(update), arrays, leaves, static.checked()
                arrays, numbers = self.many(keys, *inputs)
                outputs.append(numbers)
            columns = zip(*jax.device_get(outputs), strict=True)
        return {n: np.stack(x, 1) for n, x in zip(self.names, columns, strict=True)}

    @reporting()
    def in_float64(
        self, batches: Iterator[tuple[int, PyTree]]
    ) -> tuple[dict[str, Curve], str]:
        """Returns the curves [T] by name in float64, without noise, and a note.

        There are no curves if a part of the step exists in narrow types only, or if
        this device rounds the step's products.
        """
        doubling, programs, rows = Doubling(), {}, []
        types: list = self.arrays
        arrays = list(map(jnp.array, types))
        try:
            for update, batch in batches:
                say(f"update {update} of the training in float64")
                static, leaves, _ = split((batch,))
                leaves = list(map(jnp.array, leaves))
                of_types = [(jnp.shape(x), str(x.dtype)) for x in (*types, *leaves)]
                kinds = static.checked(), *of_types
                if kinds not in programs:
                    program = self._traced(static, types, leaves)
                    if rounded_products(list(plan(program.jaxpr, Identity()).walk())):
                        return {}, ""
                    wide = jax.jit(functools.partial(doubling.evaluated, program))
                    programs[kinds] = program, wide
                program, run = programs[kinds]
                with jax.enable_x64(True), asking():
                    inputs = map(doubling.widened, (*arrays, *leaves))
                    arrays, numbers = jax.block_until_ready(run(*inputs))
                rows.append(numbers)
                types, _ = program.shapes
            columns = np.array(jax.device_get(rows), float).T
        except Exception as error:  # Some primitives exist in narrow types only.
            why = str(error).partition("\n")[0]
            return {}, f"not compared with float64: {why}"
        return dict(zip(self.names, columns, strict=True)), ""

    def _traced(self, static: Static, arrays: list, leaves: list) -> Traced:
        """Returns the program of an update for a batch whose arrays are `leaves`."""

        def update(*arrays: Array) -> tuple[list, list]:
            count = len(self.arrays)
            (batch,), _ = static.filled(arrays[count:])
            return self.advance(list(arrays[:count]), batch)

        return traced(update, [*arrays, *leaves])


def _checked(result: PyTree) -> tuple[PyTree, dict[str, Array]]:
    """Returns the state after a step, and the loss and the metrics that are numbers."""
    expected = "step: expected (state, loss), or (state, (loss, {name: number}))"
    if not isinstance(result, tuple) or len(result) != 2:
        raise NoiseError(f"{expected}, not {type(result).__name__}")
    after, output = result
    is_pair = isinstance(output, tuple) and len(output) == 2
    loss, metrics = output if is_pair else (output, {})
    if not isinstance(metrics, Mapping):
        raise NoiseError(f"{expected}, not metrics of type {type(metrics).__name__}")
    if not _is_number(loss):
        kind = getattr(loss, "dtype", type(loss).__name__)
        shape = list(getattr(loss, "shape", ()))
        raise NoiseError(
            f"{expected}; the loss is {kind}{shape}, no floating-point array []"
        )
    numbers = {name: x for name, x in metrics.items() if _is_number(x)}
    return after, {"loss": loss} | numbers | {"loss": loss}


def _is_number(x: object) -> bool:
    """Returns whether an output of a step is one floating-point number."""
    kind = getattr(x, "dtype", np.dtype(bool))
    return jnp.issubdtype(kind, jnp.floating) and getattr(x, "shape", None) == ()


def _check_pure(advance: Callable, arrays: list[Array], batch: PyTree) -> None:
    """Refuses a step that gives another program when it is traced again."""
    hint = (
        "expected a pure function, whose counters, PRNG keys and running statistics "
        "are in its state"
    )
    static, leaves, _ = split((batch,))

    def program() -> str:
        # JAX keeps traces by function; this one is new at each call.
        jaxpr = jax.make_jaxpr(lambda xs, ys: advance(xs, static.filled(ys)[0][0]))(
            arrays, leaves
        )
        constants = [hash(as_array(x).tobytes()) for x in compat.constants(jaxpr)]
        # Checks of checkify are numbered; nothing depends on an error that is dropped.
        return re.sub(r"0x[0-9a-f]+", "", f"{compat.needed(jaxpr)} {constants}")

    try:
        is_pure = program() == program()
    except Exception as error:
        # Flax NNX has an error of its own for objects that the step closes over.
        of_jax = isinstance(error, jax.errors.JAXTypeError)
        if not of_jax and "trace level" not in str(error):
            raise
        why = str(error).partition("\n")[0]
        raise NoiseError(f"step: JAX cannot trace it ({why}); {hint}") from error
    if not is_pure:
        raise NoiseError(f"step: two traces give two programs; {hint}")
