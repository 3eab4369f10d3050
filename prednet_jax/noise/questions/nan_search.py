"""Searches a program for the equation that makes its result NaN or infinite.

An equation *makes* a number that is not finite if the numbers that it was made of are
finite, and a NaN if they hold none. The compiled program notices this itself, at every
step of its loops, and shows it to the host.

A NaN or infinity may be intended, such as an infinite mask. So all that are made after
some execution of an equation are replaced by 1: the first execution with which the
result is still not finite is the cause. It is found by bisection (as in A. Zeller's
delta debugging, IEEE TSE 28, 2002).
"""

import bisect
import functools
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np
from jax import Array, lax
from jax import numpy as jnp

from prednet_jax.noise import compat
from prednet_jax.noise.arguments import Outcome, is_number
from prednet_jax.noise.leaves import Result, is_float, named_leaves, wide_leaves
from prednet_jax.noise.plan import Step, plan
from prednet_jax.noise.questions import sampling
from prednet_jax.noise.random_bits import Words
from prednet_jax.noise.rules.primitives import CUTS, OPAQUE, ROUTINES
from prednet_jax.noise.specs import Identity, NoiseSpec
from prednet_jax.noise.tables import bracketed
from prednet_jax.noise.watch import Seen, Watched, execution_order

# So often NaN are looked for that appear once others are replaced; each time the whole
# program is compiled again.
_ROUNDS = 4
# Greater than all orders: the NaN of an equation are not replaced.
_NEVER = np.iinfo(np.int32).max
# A position in two numbers that float32 holds.
_HALF = 1 << 12


class NotFinite(NamedTuple):
    """An equation that makes a NaN or an infinity.

    Attributes:
        path: the equation's path as `coverage` lists it, or an argument that holds a
            NaN or an infinity, such as `argument[0]['x']`.
        primitive: the primitive's name, `argument`, or `compilation` if a result has a
            NaN that no equation makes where equations are watched.
        source: the user's line, such as `model.py:12 in loss`.
        kind: `NaN` or `infinity`.
        step: step of each loop around the equation, outermost first: the first one that
            makes a NaN or an infinity which reaches the result.
        operands: values of the operands at that step, in words.
        elements: number of elements of the equation's result that are made so.
        in_result: whether the function's result is not finite because of it.
        fraction: share of noisy runs in which this equation is the first, 0 to 1.
    """

    path: str
    primitive: str
    source: str
    kind: str
    step: tuple[int, ...] = ()
    operands: tuple[str, ...] = ()
    elements: int = 1
    in_result: bool = True
    fraction: float = 1.0

    def __str__(self) -> str:
        step = f", step {', '.join(map(str, self.step))} of its loops" * bool(self.step)
        of = f" of {'; '.join(self.operands)}" if self.operands else ""
        unseen = "" if self.in_result else "; the result of the function is finite"
        return (
            f"{self.kind} first made by {self.primitive} at {self.path}{step}"
            f"{bracketed(self.source, ' ')}: "
            f"{self.elements} element{'s' * (self.elements > 1)}{of}{unseen}"
        )


class Execution(NamedTuple):
    """One execution of an equation that makes a NaN or an infinity.

    Attributes:
        order: sorts executions by time.
        entry: the equation.
        of_finite: whether its operands are finite.
    """

    order: tuple[int, ...]
    entry: NotFinite
    of_finite: bool


class Search(Watched):
    """Evaluates a program and describes where numbers become NaN or infinite.

    `run` may replace the NaN and infinities that some equations make by 1. To describe
    and to replace takes long to compile, so both are done in a second program, for the
    equations alone that make some in the first. If others make some in the second, such
    as those of a loop that a NaN had kept from running, it is compiled again with them.

    Attributes:
        found: paths of the equations that make some and are not described, in a run.
        described: paths of the equations that the second program describes.
        left: by number, the order of the last execution of an equation that is left as
            it is, so that only later ones are replaced; None in the first.
    """

    def __init__(self, call: sampling.BoundCall, spec: NoiseSpec) -> None:
        super().__init__()
        self.call = call
        self.plan = plan(call.program.jaxpr, Identity())
        self.number = {step.path: i for i, step in enumerate(self.plan.walk())}
        # A loop has a counter and a place in an order, and each device a number.
        self.width = 3 + 2 * max((path.count("/") for path in self.number), default=0)
        self.spec = spec
        self.found: set[str] = set()
        self.described: frozenset[str] = frozenset()
        self.kept_until: Array | None = None
        self.finding = call.hooked(spec, self._with)
        self.compiled: Callable[..., Outcome] = self.finding

    def _with(self, kept_until: Array | None = None) -> Watched:
        self.kept_until = kept_until
        return self

    def first(
        self, key: Array, executions: Sequence[Execution], result: Result
    ) -> NotFinite | None:
        """Returns the cause in one run, for which `run` gave the last two arguments."""
        if all(np.isfinite(x).all() for x in result):
            return executions[0].entry._replace(in_result=False) if executions else None
        # An equation with infinite operands is not the cause; it reads a cause.
        also, mended = executions, result
        for _ in range(_ROUNDS):
            paths = {m.entry.path for m in executions if m.of_finite}
            both = [*executions, *(m for m in also if m.entry.path not in paths)]
            causes = sorted((m for m in both if m.of_finite), key=lambda m: m.order)
            firsts = {m.entry.path: m.entry for m in reversed(causes)}
            also, mended = self.run(key, firsts) if firsts else (executions, result)
            if all(m.entry.path in firsts for m in also if m.of_finite):
                break
            # The program was compiled again, and has other orders.
            executions = self.run(key)[0]
        makers = list(dict.fromkeys(m.entry.path for m in causes))

        def is_worse(result: Result) -> bool:
            pairs = zip(result, mended, strict=True)
            return any((np.isfinite(y) & ~np.isfinite(x)).any() for x, y in pairs)

        def reaches(order: tuple[int, ...]) -> bool:
            kept_until = dict.fromkeys(makers, order)
            return is_worse(self.run(key, makers, kept_until)[1])

        entries = {m.order: m.entry for m in [*also, *executions] if m.of_finite}
        while is_worse(result):
            orders = sorted(n for n, m in entries.items() if m.path in makers)
            # Earlier ones may be masked. If none is, one run shows it.
            last = orders[:-1] and not reaches(orders[0])
            first = bisect.bisect(orders[:-1], False, 1, key=reaches) if last else 0
            entry = entries[orders[first]]
            makers = [path for path in makers if path != entry.path]
            # It may follow from others, such as a NaN that keeps a loop from running.
            if not makers or is_worse(self.run(key, makers)[1]):
                return entry
        # The result does not depend on those that finite numbers made.
        of_infinities = [
            m.entry for m in executions if m.entry.kind == "NaN" and not m.of_finite
        ]
        if of_infinities:
            return of_infinities[0]
        has_nan = any(np.isnan(x).any() for x in result)
        # An infinite constant is meant, such as a mask.
        constants = self._constants() if has_nan else ()
        for path, name, source, operands, x in [*self._arguments(), *constants]:
            numbers = wide_leaves(x)[0] if is_number(x) else np.zeros(1)
            wrong = np.isnan(numbers) if has_nan else np.isinf(numbers)
            if count := int(np.count_nonzero(wrong)):
                kind = "NaN" if has_nan else "infinity"
                return NotFinite(path, name, source, kind, (), operands, count)
        return executions[0].entry if executions else None

    def _arguments(self) -> Iterator[tuple]:
        """Yields path, primitive, source, operands and value of each argument."""
        for name, x in named_leaves(self.call.args) + named_leaves(self.call.kwargs):
            yield f"argument{name}", "argument", "", (), x

    def _constants(self) -> Iterator[tuple]:
        """Yields the same of each constant, and of the equation that reads it."""
        for program in self.plan.programs():
            constants = dict(zip(program.jaxpr.constvars, program.consts, strict=True))
            for step in program.steps:
                for atom in step.atoms:
                    literal = compat.is_literal(atom)
                    x = atom.val if literal else constants.get(atom)
                    yield step.path, step.name, step.source, ("a constant",), x

    def run(
        self,
        key: Array,
        replaced: Collection[str] = (),
        kept_until: Mapping[str, tuple[int, ...]] | None = None,
    ) -> tuple[list[Execution], Result]:
        """Returns the values that become NaN or infinite, in order, and the result.

        Args:
            key: key of the noise.
            replaced: paths of equations, whose NaN and infinities are replaced by 1.
            kept_until: for some of them, the order of the last execution that is not
                replaced.
        """
        if not replaced:
            self.found.clear()
            _, outcome = self.seen(lambda: self.finding(key))
            if not self.found:
                return [], wide_leaves(jax.device_get(outcome.result()))
        chosen = np.full((max(1, len(self.number)), self.width), _NEVER, np.int32)
        chosen[[self.number[path] for path in replaced]] = -1
        for path, order in (kept_until or {}).items():
            row = chosen[self.number[path]]
            row[: len(order)] = order[: len(row)]
        seen, outcome = self._second(key, chosen)
        while self.found - self.described:
            seen, outcome = self._second(key, chosen)
        executions = [
            self._described(path, tuple(map(int, step)), numbers.tolist())
            for (path, *step), numbers in seen.items()
        ]
        executions.sort(key=lambda m: m.order)
        return executions, wide_leaves(jax.device_get(outcome.result()))

    def _second(self, key: Array, kept_until: np.ndarray) -> tuple[Seen, Outcome]:
        """Runs the second program, which describes all equations found so far."""
        if self.found - self.described:
            self.described |= self.found
            self.labels.clear()
            self.compiled = self.call.hooked(self.spec, self._with)
        return self.seen(lambda: self.compiled(key, kept_until))

    def _described(self, path: str, steps: tuple, numbers: list[float]) -> Execution:
        """Returns an execution from the numbers that it has sent."""
        number, step, starts, kinds = self.labels[path]
        nans, infinite, of_finite, high, low, *ranges = numbers
        shape = step.equation.outvars[0].aval.shape
        index = np.unravel_index(int(high) * _HALF + int(low), shape)
        at = f" at {list(map(int, index))}" if shape else ""
        operands = []
        for i, (name, is_alike) in enumerate(kinds):
            value, least, most = ranges[3 * i : 3 * i + 3]
            shown = value if is_alike else least
            if not name.startswith("float64"):
                shown = float(str(np.float32(shown)))
            short = f"{shown:.9g}"
            alone = (short if float(short) == shown else str(shown)) + at * is_alike
            ranged = f"{name} from {least:.3g} to {most:.3g}"
            operands.append(alone if is_alike or least == most else ranged)
        kind = "NaN" if nans else "infinity"
        about = path, step.name, step.source, kind, steps, tuple(operands)
        order = execution_order(starts, steps, number)
        return Execution(
            order, NotFinite(*about, int(nans or infinite)), bool(of_finite)
        )

    def after(self, step: Step, words: Words, operands: list, results: list) -> list:
        """Watches the results of an equation, and replaces some."""
        if step.name == "freeze":  # Its reference can no longer be read.
            return results
        if self.kept_until is not None and step.path in self.described:
            kept_until = self.kept_until[self.number[step.path]]
            look = functools.partial(self._looked_at, step, words, operands, kept_until)
            return [look(x) if _may_be_nan(x) else x for x in results]
        note = functools.partial(self.found.add, step.path)
        for x in [] if step.bodies else filter(_may_be_nan, results):
            nan, infinite, _ = _made(_floats(operands), x)
            broken = jnp.any(nan | infinite)
            lax.cond(broken, lambda: jax.debug.callback(note), lambda: None)
        return results

    def _looked_at(
        self, step: Step, words: Words, operands: list, kept_until: Array, x: Array
    ) -> Array:
        floats = _floats(operands)
        nan, infinite, had_any = _made(floats, x)
        broken = nan | infinite
        site = self.place(words)
        if step.path not in self.labels:
            mixes = step.name in {*CUTS, *ROUTINES, *OPAQUE} or "cum" in step.name
            kinds = [
                (f"{o.dtype}{list(o.shape)}", o.shape == x.shape and not mixes)
                for o in floats
            ]
            about = len(self.labels), step, tuple(site.starts), kinds
            self.labels[step.path] = about
        # No element is cut out of an array, which may be sharded over an explicit mesh.
        number = jnp.zeros_like(x, np.int32)
        for axis, size in enumerate(x.shape):
            number = number * size + lax.broadcasted_iota(np.int32, x.shape, axis)
        which = jnp.min(jnp.where(broken, number, np.iinfo(np.int32).max))

        is_wide = any(o.dtype == np.float64 for o in floats)

        def numbers() -> Array:
            of_finite = jnp.any(broken & ~had_any)
            told = [jnp.sum(nan), jnp.sum(infinite), of_finite]
            told += [which // _HALF, which % _HALF]
            for o in floats:
                same = o.shape == x.shape
                element = jnp.zeros(1)
                if same:
                    like = o + jnp.zeros_like(x, o.dtype)
                    element = jnp.where(number == which, like, 0)
                told += [jnp.sum(element), jnp.min(o), jnp.max(o)]
            return jnp.stack([t.astype(f"float{64 if is_wide else 32}") for t in told])

        lax.cond(
            jnp.any(broken),
            lambda: self.send({step.path: numbers()}, site),
            lambda: None,
        )
        heals, is_same = jnp.zeros((), bool), jnp.ones((), bool)
        order = execution_order(site.starts, site.steps, self.labels[step.path][0])
        # Not by device, which would make the result vary over devices.
        order = order[: 1 + 2 * sum(start >= 0 for start in site.starts)]
        for current, last in zip(order, kept_until, strict=False):
            now = jnp.asarray(current).astype(np.int32)
            heals, is_same = heals | is_same & (now > last), is_same & (now == last)
        return jnp.where(heals & broken & ~had_any, jnp.ones((), x.dtype), x)


def _may_be_nan(x: Any) -> bool:
    """Returns whether a value is a floating-point array with elements."""
    is_array = not compat.is_ref(jax.typeof(x)) and hasattr(x, "dtype")
    return is_array and jnp.issubdtype(x.dtype, jnp.floating) and x.size > 0


def _floats(operands: list) -> list[Array]:
    """Returns the operands that may be NaN, and what references hold."""
    values = (o[...] if compat.is_ref(jax.typeof(o)) else o for o in operands)
    return [jnp.asarray(x) for x in values if is_float(x) and np.size(x)]


def _made(operands: list[Array], x: Array) -> tuple[Array, Array, Array]:
    """Returns where a result is NaN, and where infinite, while its operands are not.

    The third array is whether an operand is NaN or infinite there.
    """
    had_nan = had_any = jnp.zeros((), bool)
    for o in operands:
        nan, unbounded = jnp.isnan(o), ~jnp.isfinite(o)
        if o.shape != x.shape:
            nan, unbounded = jnp.any(nan), jnp.any(unbounded)
        had_nan, had_any = had_nan | nan, had_any | unbounded
    had_nan, had_any = (_on_any_device(had, x) for had in (had_nan, had_any))
    return jnp.isnan(x) & ~had_nan, jnp.isinf(x) & ~had_any, had_any


def _on_any_device(flag: Array, result: Array) -> Array:
    """Returns a flag that varies over no device axes over which a result is the same.

    There it holds on all devices if it holds on any.
    """
    same = set(compat.varying_axes(flag)) - set(compat.varying_axes(result))
    return lax.psum(flag.astype(jnp.int32), tuple(sorted(same))) > 0 if same else flag
