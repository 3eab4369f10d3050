"""Runs a function under noise, in the same way for every question.

    call = BoundCall(fn, args, kwargs)
    moments = sample_moments(call.draw(spec, key, draws))

`call.result()` is the result of the function itself, `call.plain` that of its compiled
program, and `call.draw` yields results under noise, one draw after another. The program
is traced once. `call.hooked` compiles it under an `Evaluation`. `keyed` makes a
question of a key and arguments. `with_routines` adds noise on library routines, for
questions that must not overlook them. `unreached_leaves` and `reach_notes` list the
leaves and operations without noise.
"""

import contextlib
import dataclasses
import functools
import itertools
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextvars import ContextVar
from typing import NamedTuple, TypeVar

import jax
import numpy as np
from jax import Array

from prednet_jax.noise import compat, random_bits, specs
from prednet_jax.noise._coverage import Reach, reach
from prednet_jax.noise._inject import Traced, evaluate, traced
from prednet_jax.noise.arguments import Outcome, is_number, pure, split
from prednet_jax.noise.errors import NoiseError, check_function
from prednet_jax.noise.leaves import (
    Leaf,
    Result,
    check_same_structure,
    check_some,
    describe_leaves,
    named_leaves,
    own_leaves,
    subtract,
    wide_leaves,
)
from prednet_jax.noise.loops import (
    LoopError,
    asking,
    calls_host,
    deciding,
    without_checks,
)
from prednet_jax.noise.plan import Step, plan
from prednet_jax.noise.rules.primitives import KERNELS, ROUTINES
from prednet_jax.noise.run import Evaluation, Plain
from prednet_jax.noise.specs import Elementwise, NoiseSpec, StochasticRounding
from prednet_jax.noise.tables import bracketed, shortened
from prednet_jax.noise.text import format
from prednet_jax.noise.types import Function, PyTree

# Seconds after which a tool reports what it does.
_SILENCE = 60.0
# What the current question does now, one text; outside of all questions there is none.
_DOING: ContextVar[list[str]] = ContextVar("doing", default=[])  # noqa: B039
_NOTHING = specs.Identity()
# Two calls of a function that calls the host agree to so many epsilon of the type.
_REPEATED = 64

Answer = TypeVar("Answer")


def draw_keys(key: Array, draws: int) -> Iterator[Array]:
    """Yields the key of each noisy run."""
    for i, draw_key in enumerate(random_bits.each(key, draws)):
        yield draw_key
        say(f"{i + 1} of {draws} noisy runs")


def say(doing: str) -> None:
    """Keeps what a question does now, to be reported."""
    _DOING.get()[:] = [doing] * len(_DOING.get())


@contextlib.contextmanager
def reporting() -> Iterator[None]:
    """Writes to the standard error, once a minute, what a question does.

    A thread writes it, because nothing returns while a program is compiled.
    """
    if _DOING.get():  # Inside of another question.
        yield
        return
    start, ended, doing = time.monotonic(), threading.Event(), ["tracing"]

    def report() -> None:
        while not ended.wait(_SILENCE):
            seconds = f"after {time.monotonic() - start:.0f} s"
            print(f"{seconds}: {doing[0]}", file=sys.stderr, flush=True)

    token = _DOING.set(doing)
    threading.Thread(target=report, daemon=True).start()
    try:
        # A question moves numbers between host and device, whatever a user forbids.
        with jax.transfer_guard("allow"):
            yield
    finally:
        ended.set()
        _DOING.reset(token)


@dataclasses.dataclass(frozen=True, eq=False)
class BoundCall:
    """A function with its arguments, which no run consumes or changes.

    All programs are made of one trace of the function.

    Attributes:
        fn: the function.
        args: its positional arguments.
        kwargs: its keyword arguments.
        steps: the most steps that a while loop takes without noise, by its path, once
            they are counted (`check_ends`).
    """

    fn: Function
    args: Sequence[PyTree]
    kwargs: dict[str, PyTree]
    steps: dict[str, int] = dataclasses.field(default_factory=dict)

    def calling(self, fn: Function) -> "BoundCall":
        """Returns the call of another function at the same arguments."""
        return BoundCall(fn, self.args, self.kwargs)

    def arguments(self) -> tuple[tuple[PyTree, ...], dict[str, PyTree]]:
        """Returns copies that a run may donate or change, Flax NNX objects included."""
        static, arrays, _ = split((self.args, self.kwargs))
        copies = [x.copy() if hasattr(x, "copy") else x for x in arrays]
        return static.filled(copies)[0]

    def result(self, *first: PyTree) -> PyTree:
        """Returns `fn(*first, *args, **kwargs)` of copies of the arguments."""
        check_function(self.fn)
        args, kwargs = self.arguments()
        with without_checks():
            return self.fn(*first, *args, **kwargs)

    def eager(self) -> PyTree:
        """Returns `result()`, refusing arrays of other shapes than the trace has."""
        result = self.result()
        mine, traced = (
            jax.tree.map(lambda x: np.broadcast_to(np.float32(0), np.shape(x)), tree)
            for tree in (result, self.program.shapes.result())
        )
        names = "the result of a call", "that of the traced function"
        check_same_structure(names[0], mine, names[1], traced)
        return result

    def draw(self, spec: NoiseSpec, key: Array, draws: int) -> Iterator[PyTree]:
        """Yields results under noise, each a pytree of NumPy arrays.

        Args:
            spec: the noise.
            key: from which the key of each draw is split.
            draws: number of results.
        """
        run = self.hooked(spec, Evaluation)
        for draw_key in draw_keys(key, draws):
            yield jax.device_get(run(draw_key).result())

    def pure(self) -> tuple[Callable[..., Outcome], list[Array]]:
        """Returns the call as a function of arrays alone, and these arrays.

        The function gives an `Outcome`, whose `result()` is the result.
        """
        return pure(self.fn, self.args, self.kwargs)

    @functools.cached_property
    def program(self) -> Traced:
        """The program, traced once, with its jaxpr and the shapes of its outcome.

        It raises a NoiseError if the function returns no number and does nothing, or if
        it changes a mutable array of its caller: each run would start from what the
        last one left.
        """
        program = traced(*self.pure())
        if not program.jaxpr.jaxpr.outvars and not program.jaxpr.effects:
            check_some(result := program.shapes.result())
            own_leaves(result)  # It refuses what is no number.
        if any(compat.is_ref(var.aval) for var in program.jaxpr.jaxpr.constvars):
            raise NoiseError(
                "the function is given a mutable array (jax.Ref), which each run would "
                "change again: expected an array, of which the function makes a "
                "mutable one itself by jax.new_ref"
            )
        return program

    @functools.cached_property
    def unread(self) -> frozenset[int]:
        """The ids of the program's variables that no result depends on."""
        return compat.unread(self.program.jaxpr)

    @functools.cached_property
    def plain(self) -> PyTree:
        """The result of the compiled program, of NumPy arrays.

        It raises a LoopError if a loop does not end without noise.
        """
        run = self.hooked(_NOTHING, lambda: Plain(self.steps))
        outcome = run(jax.random.key(0))
        jax.effects_barrier()  # All steps have been counted.
        return jax.device_get(outcome.result())

    def equations(self, spec: NoiseSpec = _NOTHING) -> list[Step]:
        """Returns all equations of the program, each before those of its bodies."""
        return list(plan(self.program.jaxpr, spec).walk())

    def hooked(
        self, spec: NoiseSpec, hooks: Callable[..., Evaluation]
    ) -> Callable[..., Outcome]:
        """Returns `run(key, *inputs)`, which evaluates the call by `hooks(*inputs)`.

        It is compiled once; `inputs` are arrays that become known when it runs.
        """
        program, arrays = self.program, self.pure()[1]
        say(f"compiling the function under {format(spec)}")

        def compiled(counted: Mapping[str, int]) -> Callable[..., Outcome]:
            @jax.jit
            def run(key: Array, inputs: PyTree, *arrays: Array) -> Outcome:
                evaluation = hooks(*inputs)
                evaluation.counted, evaluation.unread = counted, self.unread
                return evaluate(spec, key, program, arrays, hooks=evaluation)

            return run

        run = with_steps(compiled, self.steps)
        return lambda key, *inputs: run(key, inputs, *arrays)

    def check_ends(self) -> None:
        """Raises a LoopError if a loop does not end without noise either.

        Such a loop is stopped where values may differ; the function itself would run
        forever.
        """
        loops = [x.equation.params for x in self.equations() if x.name == "while"]
        if any(deciding(params) is not None for params in loops):
            _ = self.plain

    def check_repeats(self) -> None:
        """Refuses a function that changes from call to call by functions of the host.

        Its noise would include the change. Last digits may differ, as sums of atomics
        on a GPU do.
        """
        if not calls_host(self.program.jaxpr, ("pure_callback", "io_callback")):
            return
        run, key = self.hooked(_NOTHING, Evaluation), jax.random.key(0)
        with asking():
            first, second = (jax.device_get(run(key).result()) for _ in range(2))
        pairs = zip(named_leaves(first), jax.tree.leaves(second), strict=True)
        for (path, x), y in ((p, y) for p, y in pairs if is_number(y)):
            (leaf,), (before, after) = describe_leaves(x), wide_leaves([x, y])
            few = _REPEATED * leaf.epsilon
            largest = np.abs(before[np.isfinite(before)]).max(initial=0)
            if not np.allclose(before, after, few, few * largest, equal_nan=True):
                raise NoiseError(
                    f"{path}: the function gives another result when it is called "
                    "again; expected a pure function"
                )

    def reaches(self, spec: NoiseSpec) -> list[Reach]:
        """Returns the reach of noise for each array of the result, in order."""
        jaxpr, shapes = self.program
        return reach(plan(jaxpr, spec))[: len(shapes.arrays)]


def with_steps(
    compiled: Callable[[Mapping[str, int]], Callable], steps: Mapping[str, int]
) -> Callable:
    """Returns the program `compiled(steps)`, whose results a tool reads.

    Noise may let a loop start where it takes many more steps. So a program of which a
    loop does not end within its limit is compiled again, and counts its own steps.
    """
    counted = dict(steps)
    programs = [compiled(counted)]

    def run(*args: PyTree) -> PyTree:
        try:
            with asking():
                return jax.block_until_ready(programs[-1](*args))
        except LoopError:
            if not counted or len(programs) > 1:
                raise
        programs.append(compiled({}))
        return run(*args)

    return run


def keyed(
    fn: Function, answer: Callable[[BoundCall, Array], Answer]
) -> Callable[..., Answer]:
    """Returns `ask(key, *args, **kwargs)`, which answers about `fn` at arguments."""
    check_function(fn)

    def ask(key: Array, /, *args: PyTree, **kwargs: PyTree) -> Answer:
        call = BoundCall(fn, args, kwargs)
        with reporting():
            call.check_ends()
            call.check_repeats()
            return answer(call, key)

    return ask


def computation_part(spec: NoiseSpec | None) -> NoiseSpec:
    """Returns the part of a spec that acts on a computation; None is the default spec.

    Raises:
        NoiseError: no part does, such as noise on weights alone.
    """
    on_computation = specs.at(specs.default() if spec is None else spec, "computation")
    if on_computation is None:
        raise NoiseError(f"spec={spec!r}: expected a noise that acts on a computation")
    return on_computation


# Noise on library routines and kernels alone: their operands and results are rounded.
_ROUTINES = StochasticRounding(
    primitives=tuple(sorted(ROUTINES | KERNELS)), routines=True
)


def with_routines(spec: NoiseSpec | None) -> NoiseSpec:
    """Returns the part on the computation, which rounds operands of routines as well.

    Otherwise a result would seem to have all digits, whatever a library routine loses.
    """
    rounding = [
        dataclasses.replace(part, routines=True)
        if isinstance(part, Elementwise)
        else part
        for part in specs.parts(computation_part(spec))
    ]
    if not any(isinstance(part, Elementwise) for part in rounding):
        rounding.append(_ROUTINES)
    return specs.compose(*rounding)


def unreached_leaves(tree: PyTree, reaches: Sequence[Reach]) -> list[bool]:
    """Returns for each leaf of a result whether noise reaches none of its arithmetic.

    Args:
        tree: the result.
        reaches: `BoundCall.reaches(spec)`.
    """
    # Only arrays come from equations, never a text or a Python number.
    kinds = (jax.Array, np.ndarray, np.generic)
    blind = (bool(r.missed) and not r.reached for r in reaches)
    leaves = jax.tree.leaves(tree)
    return [isinstance(leaf, kinds) and next(blind, False) for leaf in leaves]


def reach_notes(reaches: Sequence[Reach]) -> tuple[str, ...]:
    """Returns lines that name operations without noise, and library routines.

    Args:
        reaches: `BoundCall.reaches(spec)`.
    """
    missed = {e for r in reaches for e in r.missed if e.has_order or not r.reached}
    routines = {e for r in reaches for e in r.routines}
    lines = []
    for what, entries in (
        ("not reached by this noise", missed),
        ("routines, perturbed by a rounding of their operands", routines),
    ):
        named = [f"{e.path}{bracketed(e.source, ' ')}" for e in entries]
        lines += [f"{what}: {shortened(sorted(named), 4)}"] * bool(named)
    return tuple(lines)


class Moments(NamedTuple):
    """Mean and standard deviation of each element over several results.

    Attributes:
        tree: the first result.
        means: the means of each leaf; NaN or infinite if one of the numbers is.
        deviations: the standard deviations of each leaf.
        finite: the number of results in which each element is finite.
        runs: the number of results.
        roots: the roots of the sums of squared differences from the first result.
        largest: the largest difference from the first result.
    """

    tree: PyTree
    means: Result
    deviations: Result
    finite: Result
    runs: int
    roots: Result
    largest: Result

    def notes(self, described: Sequence[Leaf]) -> tuple[str, ...]:
        """Returns a line for each leaf that is finite in only some of the runs."""
        lines = []
        for leaf, finite in zip(described, self.finite, strict=True):
            partly = (finite > 0) & (finite < self.runs)
            if partly.any():
                runs = self.runs - int(finite[partly].min())
                lines.append(
                    f"{leaf.path}: noise alone makes {np.count_nonzero(partly)} of "
                    f"{partly.size} elements NaN or infinite, in up to {runs} of "
                    f"{self.runs} runs"
                )
        return tuple(lines)


# Results that are held at once, and elements of a block, which a cache holds.
_HELD, _BLOCK = 8, 4096


def sample_moments(
    results: Iterable[PyTree],
    see: Callable[[int, slice, np.ndarray], None] = lambda *_: None,
) -> Moments:
    """Returns the mean and the standard deviation of each element of two or more.

    The sums run over differences from the first result, so that they do not cancel.

    Args:
        results: the results.
        see: is called with the number of a leaf, a range of its elements, and these
            elements of the next few results, [n, m] in float64 or complex128.
    """
    results = iter(results)
    tree, count = next(results), 0
    origin = wide_leaves(tree)
    sums = [np.zeros(x.size, x.dtype) for x in origin]
    finite, roots, largest = ([np.zeros(x.size) for x in sums] for _ in range(3))
    held = [tree, *itertools.islice(results, _HELD - 1)]
    while held:
        count += len(held)
        for i, arrays in enumerate(zip(*map(own_leaves, held), strict=True)):
            rows, first = [x.reshape(-1) for x in arrays], origin[i].reshape(-1)
            for start in range(0, first.size, _BLOCK):
                part = slice(start, start + _BLOCK)
                x = np.stack([row[part] for row in rows], dtype=first.dtype)
                see(i, part, x)
                with np.errstate(invalid="ignore", over="ignore"):
                    away = x - first[part]
                    if np.isfinite(away).all():
                        finite[i][part] += len(x)
                    else:
                        away = subtract(x, first[part])
                        finite[i][part] += np.isfinite(x).sum(0)
                    sums[i][part] += away.sum(0)
                    size = np.abs(away)
                    top = size.max(0)
                    largest[i][part] = np.maximum(largest[i][part], top)
                    # Squares of the differences themselves may under- or overflow.
                    size /= np.where(top > 0, top, 1)
                    root = top * np.sqrt(np.square(size, out=size).sum(0))
                    roots[i][part] = np.hypot(roots[i][part], root)
        held = list(itertools.islice(results, _HELD))

    def shaped(arrays: Iterable[np.ndarray]) -> Result:
        return [x.reshape(y.shape) for x, y in zip(arrays, origin, strict=True)]

    with np.errstate(invalid="ignore", over="ignore"):
        deviations = shaped(
            r * np.sqrt(np.maximum(1 - share / count, 0) / (count - 1))
            for r, share in (
                (r, np.square(np.abs(s) / np.where(r > 0, r, 1)))
                for r, s in zip(roots, sums, strict=True)
            )
        )
        means = [x + s / count for x, s in zip(origin, shaped(sums), strict=True)]
    rest = shaped(roots), shaped(largest)
    return Moments(tree, means, deviations, shaped(finite), count, *rest)
