"""Shows values inside a program to the host while it runs, by `jax.debug.callback`.

Executions are told apart by the counters of the loops around and, in a shard_map, the
device.
"""

import functools
import itertools
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

import jax
import numpy as np
from jax import Array, lax
from jax import numpy as jnp

from prednet_jax.noise import compat
from prednet_jax.noise.loops import asking
from prednet_jax.noise.plan import Plan, Step
from prednet_jax.noise.random_bits import Words
from prednet_jax.noise.rules.control_flow import body_operands
from prednet_jax.noise.run import Call, Drawn, Evaluation
from prednet_jax.noise.types import Values

# A callback gets copies of its operands. On a machine with one processor a large
# copy waits for the thread that the callback runs in; up to 100 KiB it is made at once.
_PART = 8192
# The most values that one callback gets.
_TOGETHER = 64


Result = TypeVar("Result")


class Place(NamedTuple):
    """The place in a program where a value is computed.

    Attributes:
        steps: loop counters and device numbers, outermost first.
        starts: for each of `steps`, the number of labels before the loop, or its
            complement (`~`) where the step is the number of a device.
        most: the largest number of executions that are kept.
        kept: booleans of the program; the value is kept if all are true.
    """

    steps: list[Array]
    starts: list[int]
    most: int
    kept: list[Array]


def execution_order(
    starts: Sequence[int], steps: Sequence[Any], number: int
) -> tuple[Any, ...]:
    """Returns a sort key of an execution of the value that has a number.

    The steps of a loop run one after another. Devices run at the same time, so they
    only order the executions of one value.
    """
    around = list(zip(starts, steps, strict=True))
    loops = itertools.chain(*(pair for pair in around if pair[0] >= 0))
    return *loops, number, *(device for start, device in around if start < 0)


def _steps_kept(limit: int | None, lengths: Sequence[int]) -> list[int]:
    """Returns the number of steps that are kept of each loop around a value.

    Their product is at most `limit`. Loops with fewer steps than their share leave more
    to the others.
    """
    kept = list(lengths)
    remaining = limit
    for n, i in enumerate(sorted(range(len(kept)), key=lengths.__getitem__)):
        if remaining is not None:
            share = int(remaining ** (1 / (len(kept) - n)) + 1e-9)
            kept[i] = max(1, min(kept[i], share))
            remaining //= kept[i]
    return kept


# Label and index of an execution, and the elements of its value.
Seen = dict[tuple[Any, ...], np.ndarray]


class Watched(Evaluation):
    """Evaluates a plan and sends values to the host.

    `limit` is the number of executions of a value to send, counted from the first of
    each loop; without a limit all are sent. Subclasses fill `labels`, in the order of
    the program.
    """

    watches = True
    # XLA fuses it in another way.
    changes = "in the program that shows its values,"

    def __init__(self, limit: int | None = None) -> None:
        super().__init__()
        self.limit = limit
        self.labels: dict[str, Any] = {}
        # For each equation around: the number of counters and labels before each.
        self._around: list[tuple[Step, int, int]] = []
        self._operands: dict[str, Values] = {}
        self._parts: dict[tuple[Any, ...], dict[int, np.ndarray]] = {}
        # The arrays of the program that is evaluated that were not sent yet, if any.
        self._waiting: dict[Hashable, Array] | None = None
        # By the id of a traced value, the value and its mark. The values are kept, so
        # that no other object gets the same id.
        self._marks: dict[int, tuple[object, Any]] = {}

    def mark(self, value: object, mark: Any) -> None:
        """Gives a traced value a mark, which follows it into calls, loops, branches."""
        self._marks[id(value)] = value, mark

    def marked(self, value: object, default: Any = None) -> Any:
        """Returns the mark of a traced value."""
        return self._marks.get(id(value), (None, default))[1]

    def higher_order(self, call: Call, words: Words, operands: list) -> list:
        """Evaluates an equation as `Evaluation` does, and records it as surrounding."""
        counters, labels = len(words.steps or ()), len(self.labels)
        self._around.append((call.step, counters, labels))
        self._operands[call.step.path] = operands
        try:
            return super().higher_order(call, words, operands)
        finally:
            self._around.pop()

    def body(
        self, call: Call, words: Words, operands: Values, label: str
    ) -> list[Array]:
        """Evaluates a body, whose operands get the marks of the equation's operands.

        They correspond if there are as many.
        """
        around = self._operands.get(call.step.path, [])
        matching = body_operands(call.step.name, call.params, around, label)
        for inner, outer in zip(operands, matching, strict=False):
            mark = self.marked(outer) if len(matching) == len(operands) else None
            if mark is not None and self.marked(inner) is None:
                self.mark(inner, mark)
        return super().body(call, words, operands, label)

    def place(self, words: Words | None = None) -> Place:
        """Returns the current place; without words, it is outside of all loops."""
        site = Place([], [], 1, [])
        steps = (words.steps if words else None) or ()
        after = [*(counters for _, counters, _ in self._around[1:]), len(steps)]
        around = []
        for (step, before, labels), stop in zip(self._around, after, strict=False):
            # The counter of a while loop has 32 bits.
            length = step.equation.params.get("length", 1 << 32)
            around.append((step, labels, length, steps[before:stop]))
        lengths = [length for _, _, length, own in around for _ in own]
        kept = iter(_steps_kept(self.limit, lengths))  # One for each counter.
        for step, labels, length, own in around:
            params = step.equation.params
            if step.name == "shard_map":
                axes = tuple(compat.manual_axis_sizes(params))
                site.steps.append(lax.axis_index(axes))
                site.starts.append(~labels)
            for counter in own:
                rows = next(kept)
                if params.get("reverse"):
                    counter = np.uint32(length - 1) - counter
                if rows < length:
                    site.kept.append(counter < np.uint32(rows))
                site = site._replace(most=site.most * rows)
                site.steps.append(counter)
                site.starts.append(labels)
        return site

    def program(self, plan: Plan, words: Words, values: dict, drawn: Drawn) -> None:
        """Evaluates all steps of a program, and sends what waits at its end."""
        outer, self._waiting = self._waiting, {}
        try:
            super().program(plan, words, values, drawn)
            self._send_waiting(words)
        finally:
            self._waiting = outer

    def send_later(self, label: Hashable, value: Array, words: Words | None) -> None:
        """Sends an array of the current program, if it is small together with others.

        A callback takes a third of a millisecond, whatever it gets.
        """
        if self._waiting is None or value.size > _PART:
            self.send({label: value}, self.place(words))
        else:
            self._waiting[label] = value
            if len(self._waiting) == _TOGETHER:
                self._send_waiting(words)

    def _send_waiting(self, words: Words | None) -> None:
        if self._waiting:
            self.send(self._waiting, self.place(words))
            self._waiting.clear()

    def send(self, values: Mapping[Hashable, Array], site: Place) -> None:
        """Sends one array of any size, or several of at most `_PART` elements each.

        A larger array reaches the host in parts of `_PART` elements.
        """
        # A callback copies each of its operands, so that few are better than many.
        kinds: dict[np.dtype, dict[Hashable, Array]] = {}
        for label, x in values.items():
            kinds.setdefault(x.dtype, {})[label] = x
        sizes = [{n: x.size for n, x in arrays.items()} for arrays in kinds.values()]

        def note(parts: Sequence[Array], row_and_steps: Array) -> None:
            row, *at = np.asarray(row_and_steps).tolist()
            for of_kind, part in zip(sizes, parts, strict=True):
                remaining = np.array(part)
                for label, size in of_kind.items():
                    elements = remaining[: size - row * _PART]
                    self._parts.setdefault((label, *at), {})[row] = elements
                    remaining = remaining[size:]

        def in_steps(row: Array) -> Array:
            return jnp.stack([x.astype(np.uint32) for x in (row, *site.steps)])

        def emit(row_and_part: tuple[Array, Array]) -> Array:
            row, part = row_and_part
            jax.debug.callback(note, [part], in_steps(row))
            return row

        def whole() -> None:
            flat = [list(map(compat.in_one_row, x.values())) for x in kinds.values()]
            if all(x.size <= _PART for x in values.values()):
                parts = list(map(jnp.concatenate, flat))
                jax.debug.callback(note, parts, in_steps(jnp.uint32(0)))
                return
            ((x,),) = flat
            rows = -(-x.size // _PART)
            table = jnp.pad(x, (0, rows * _PART - x.size)).reshape(rows, _PART)
            lax.map(emit, (lax.iota(jnp.int32, rows), table))

        if site.kept:
            lax.cond(functools.reduce(jnp.logical_and, site.kept), whole, lambda: None)
        else:
            whole()

    def seen(self, run: Callable[[], Result]) -> tuple[Seen, Result]:
        """Returns the values that are sent during a run, and the run's result."""
        self._parts.clear()
        with asking():
            result = jax.block_until_ready(run())
            jax.effects_barrier()
        values = {
            key: np.concatenate([parts[row] for row in sorted(parts)])
            for key, parts in self._parts.items()
        }
        return values, result
