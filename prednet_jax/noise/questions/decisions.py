"""Which decisions noise flips: an argmax, an order, a comparison, a branch, a number.

Almost all of a program is continuous: a small change of its arguments changes its
results by little. A decision is where that ends, since floating-point numbers become
something discrete. `decisions` watches

- every equation that makes integers or booleans of floats: `argmax`, `argmin`,
  `top_k`, comparisons (`lt`, `eq`, ...), `is_finite`, conversions to integers, the
  pivots of `lu`;
- `floor`, `ceil`, `round` and `sign`, whose results are floats;
- `sort`: the permutation, also where only the sorted values are asked for;
- the branch that a `cond` takes, and the number of steps of a `while` (of a batched
  one, until its last element stops).

What follows from integers alone (a comparison of two labels, say) is a consequence and
is not listed. Nor are `max`, `min` and `clamp`: their values are continuous, though
their derivatives, which are made of comparisons, are not and are listed. The remainder
of a division and the choice of max-pooling's backward pass are not watched.

The clean run and the noisy one are the same compiled program with noise off and on, so
that what differs is noise, not compilation. Each execution of an equation is compared
with the same execution (the same step of every loop around it, the same device) of the
clean run; executions that only one of the two has are the decision of the loop or
branch around them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np
from jax import Array, lax
from jax import numpy as jnp

from prednet_jax.noise import random_bits
from prednet_jax.noise.arguments import split_static
from prednet_jax.noise.coverage import report_of
from prednet_jax.noise.errors import integer
from prednet_jax.noise.inject import evaluate, traced
from prednet_jax.noise.plan import Step, plan
from prednet_jax.noise.questions import runs
from prednet_jax.noise.random_bits import Words, on_device
from prednet_jax.noise.run import Hooks
from prednet_jax.noise.specs import NoiseSpec


class Decision(NamedTuple):
    """One equation that decides.

    Attributes:
        path: as `coverage` lists it.
        primitive: JAX's name, such as `argmax`.
        source: the user's line that made it, such as `model.py:12 in loss`.
        flipped: fraction of draws in which at least one element is decided otherwise
            than in the clean run, 0 to 1.
        elements: number of elements that the clean run decides, over all executions.
        share: fraction of them decided otherwise, mean over draws.
    """

    path: str
    primitive: str
    source: str
    flipped: float
    elements: int
    share: float


class Decisions(tuple[Decision, ...]):
    """All decisions of a function: the most often flipped first, then as they come."""

    __slots__ = ()

    @property
    def unstable(self) -> tuple[Decision, ...]:
        """Those that any draw flipped."""
        return tuple(decision for decision in self if decision.flipped > 0)

    def __str__(self) -> str:
        lines = [f"decisions: {len(self)}, flipped: {len(self.unstable)}"]
        lines += [
            f"  {d.flipped:.0%} of draws, {d.share:.2g} of {d.elements} elements  "
            f"{d.path}" + (f"  [{d.source}]" if d.source else "")
            for d in self
        ]
        return "\n".join(lines)


def decisions(
    fn: Callable, spec: NoiseSpec, *, draws: int = 16
) -> Callable[..., Decisions]:
    """How often noise flips each decision of a function.

    Args:
        fn: as for `inject`.
        spec: the noise; its parts that act on a computation.
        draws: number of noisy runs, each beside a clean one.

    Returns:
        `search(key, *args, **kwargs)` that gives the decisions; `key` is a typed or raw
        PRNG key, consumed here. Flax NNX objects among the arguments stay as they are.

    Raises:
        NoiseError: when `draws` is no positive integer, or `spec` acts on no
            computation; on a call, as for `inject`.
    """
    integer("draws", draws, 1)
    acting = runs.acting(spec)

    def search(key: Array, /, *args: Any, **kwargs: Any) -> Decisions:
        static, arrays = split_static((args, kwargs))
        seen: dict[_Place, np.ndarray] = {}
        steps: dict[str, Step] = {}

        def observe(
            step: Step, words: Words, operands: Sequence[Any], results: Sequence[Any]
        ) -> None:
            found = _decided(step, operands, results)
            if found is None:
                return
            steps[step.path] = step
            here = on_device(words, operands).call

            for i, values in enumerate(found):
                size = values.size

                def note(words: Any, row: Any, part: Any, i=i, size=size) -> None:
                    place = (step.path, i, int(row), *np.asarray(words).tolist())
                    seen[place] = np.asarray(part)[: size - int(row) * _PART]

                def send(row_and_part: Any, note=note) -> Array:
                    jax.debug.callback(note, here, *row_and_part)
                    return row_and_part[0]

                parts = _in_parts(values)
                if len(parts) == 1:
                    send((jnp.int32(0), parts[0]))
                else:
                    lax.map(send, (lax.iota(jnp.int32, len(parts)), parts))

        @jax.jit
        def run(key: Array, noise: Array, *arrays: Array) -> Any:
            program = traced(static.call(fn), arrays)
            perturbed = report_of(plan(program.jaxpr, acting)).perturbed
            hooks = Hooks({entry.path: noise for entry in perturbed}, observe)
            return evaluate(acting, key, program, arrays, hooks=hooks)

        def watched(key: Array, noise: bool) -> dict[_Place, np.ndarray]:
            seen.clear()
            jax.block_until_ready(run(key, noise, *arrays))
            jax.effects_barrier()
            return dict(seen)

        count = _Count()
        for one in random_bits.split(key, draws):
            count.add(watched(one, False), watched(one, True))
        return _report(count, steps.values(), draws)

    return search


# A callback is given copies of its operands. On a machine with one processor a large
# copy waits for the thread that the callback runs in; up to 100 KiB it is made at once.
_PART = 8192


def _in_parts(values: Array) -> Array:
    """An array cut into rows of at most `_PART` elements."""
    flat = jnp.ravel(values)
    if flat.size <= _PART:
        return flat[None]
    rows = -(-flat.size // _PART)
    return jnp.pad(flat, (0, rows * _PART - flat.size)).reshape(rows, _PART)


# Path, numbers of the result and of its part, and the generator's words there, which
# tell executions apart.
_Place = tuple[Any, ...]

# Results that are discrete although they are floats.
_STEPS = frozenset({"floor", "ceil", "round", "sign"})


def _decided(
    step: Step, operands: Sequence[Any], results: Sequence[Any]
) -> Sequence[Any] | None:
    """What an equation decides, as discrete arrays; None if it decides nothing."""
    name = step.name
    if name in ("while", "cond"):
        return results
    floats = [jnp.issubdtype(jnp.result_type(x), jnp.inexact) for x in operands]
    if not any(floats) or name == "bitcast_convert_type":
        return None
    if name in _STEPS:
        return results
    if name == "sort":
        return [_permutation(step.equation.params, operands, floats)]
    discrete = [
        x
        for x in results
        if jnp.issubdtype(x.dtype, jnp.integer) or x.dtype == jnp.bool_
    ]
    return discrete or None


def _permutation(
    params: dict[str, Any], operands: Sequence[Any], floats: Sequence[bool]
) -> Array:
    """From where each element of a sort comes."""
    axis, keys = params["dimension"], params["num_keys"]
    if not any(floats[:keys]):
        keys = len(operands)
    place = lax.broadcasted_iota(jnp.int32, operands[0].shape, axis)
    return lax.sort((*operands, place), axis, True, keys)[-1]


class _Count:
    """Differences between noisy and clean runs, added up by path."""

    def __init__(self) -> None:
        self.elements: Counter[str] = Counter()
        self.compared: Counter[str] = Counter()
        self.differing: Counter[str] = Counter()
        self.flipped: Counter[str] = Counter()

    def add(
        self, clean: dict[_Place, np.ndarray], noisy: dict[_Place, np.ndarray]
    ) -> None:
        """Compare the decisions of a noisy run with those of a clean one."""
        differing: Counter[str] = Counter()
        for place, expected in clean.items():
            self.elements[place[0]] += expected.size
            if place in noisy:
                found = noisy[place]
                same = (found == expected) | ((found != found) & (expected != expected))
                differing[place[0]] += int(np.count_nonzero(~same))
                self.compared[place[0]] += expected.size
        self.differing += differing
        self.flipped.update(path for path, count in differing.items() if count)


def _report(count: _Count, steps: Iterable[Step], draws: int) -> Decisions:
    """The decisions of which the clean run made any, in the order of the program."""
    found = [
        Decision(
            step.path,
            step.name,
            step.source,
            count.flipped[step.path] / draws,
            count.elements[step.path] // draws,
            count.differing[step.path] / max(1, count.compared[step.path]),
        )
        for step in steps
        if count.elements[step.path]
    ]
    return Decisions(sorted(found, key=lambda d: -d.flipped))
