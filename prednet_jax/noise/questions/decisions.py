"""Which decisions noise flips: an argmax, an order, a comparison, a branch, a number.

A decision is where floating-point numbers become something discrete. `decisions`
watches

- every equation that makes integers or booleans of floats: `argmax`, `argmin`,
  `top_k`, comparisons (`lt`, `eq`, ...), `is_finite`, conversions to integers, the
  pivots of `lu`;
- `floor`, `ceil`, `round` and `sign`, whose results are floats;
- `sort`: the permutation, also where only the sorted values are asked for;
- the branch that a `cond` takes, and the number of steps of a `while` (of a batched
  one, until its last element stops).

Not listed: what follows from integers alone; `max`, `min` and `clamp`, whose values are
continuous (their derivatives, made of comparisons, are listed); the remainder of a
division; the choice of max-pooling's backward pass.

The clean run and the noisy one are the same compiled program with noise off and on.
Each execution of an equation is compared with the same execution (the same step of
every loop around it, the same device) of the clean run; executions that only one of the
two has are the decision of the loop or branch around them.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import jax
import numpy as np
from jax import Array, lax
from jax import numpy as jnp

from prednet_jax.noise import random_bits
from prednet_jax.noise.coverage import report_of
from prednet_jax.noise.errors import integer
from prednet_jax.noise.inject import evaluate, traced
from prednet_jax.noise.plan import Step, plan
from prednet_jax.noise.questions import runs
from prednet_jax.noise.questions.watch import Watched
from prednet_jax.noise.random_bits import Words
from prednet_jax.noise.run import Drawn
from prednet_jax.noise.specs import NoiseSpec


class Decision(NamedTuple):
    """One equation that decides, by path, primitive and line as `coverage` lists it.

    Attributes:
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

    def __str__(self) -> str:
        flipped = sum(decision.flipped > 0 for decision in self)
        lines = [f"decisions: {len(self)}, flipped: {flipped}"]
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
        `search(key, *args, **kwargs)` that gives the decisions, a sequence.

    Raises:
        NoiseError: when an option is outside what is accepted; on a call, as for
            `inject`.
    """
    integer("draws", draws, 1)
    acting = runs.acting(spec)

    def search(key: Array, /, *args: Any, **kwargs: Any) -> Decisions:
        pure, arrays = runs.Call(fn, args, kwargs).pure()
        watched = _Deciding()

        @jax.jit
        def run(key: Array, noise: Array, *arrays: Array) -> Any:
            program = traced(pure, arrays)
            perturbed = report_of(plan(program.jaxpr, acting)).perturbed
            watched.switches = {entry.path: noise for entry in perturbed}
            return evaluate(acting, key, program, arrays, hooks=watched)

        # By path: elements of the clean run, those compared, those that differ, draws.
        counts: dict[str, np.ndarray] = defaultdict(lambda: np.zeros(4, int))
        for one in random_bits.split(key, draws):
            clean, noisy = (
                watched.seen(partial(run, one, on, *arrays)) for on in (False, True)
            )
            flipped: dict[str, bool] = defaultdict(bool)
            for place, expected in clean.items():
                found = noisy.get(place, expected)
                same = (found == expected) | ((found != found) & (expected != expected))
                compared, differing = same.size * (place in noisy), np.sum(~same)
                counts[place[0][0]] += [expected.size, compared, differing, 0]
                flipped[place[0][0]] |= bool(differing)
            for path, differs in flipped.items():
                counts[path][3] += differs
        report = []
        for path, step in watched.labels.items():
            elements, compared, differing, flips = counts[path].tolist()
            about = path, step.name, step.source, flips / draws, elements // draws
            report += [Decision(*about, differing / max(1, compared))] * (elements > 0)
        return Decisions(sorted(report, key=lambda d: -d.flipped))

    return search


class _Deciding(Watched):
    """An evaluation whose decisions are seen."""

    def first_order(
        self, step: Step, words: Words, operands: list[Any], drawn: Drawn
    ) -> list[Any]:
        """As `Evaluation`; the decisions are seen."""
        results = super().first_order(step, words, operands, drawn)
        for i, x in enumerate(_decided(step, operands, results)):
            self._note(step, words, i, x)
        return results

    def decided(self, step: Step, words: Words, number: Any) -> None:
        """The number of steps of a loop, or of a branch."""
        self._note(step, words, 0, number)

    def _note(self, step: Step, words: Words, i: int, value: Any) -> None:
        self.labels[step.path] = step
        self.send((step.path, i), jnp.asarray(value), self.place(words))


# Results that are discrete although they are floats.
_STEPS = frozenset({"floor", "ceil", "round", "sign"})


def _decided(
    step: Step, operands: Sequence[Any], results: Sequence[Any]
) -> Sequence[Any]:
    """What an equation decides, as discrete arrays."""
    floats = [jnp.issubdtype(jnp.result_type(x), jnp.inexact) for x in operands]
    if not any(floats) or step.name == "bitcast_convert_type":
        return []
    if step.name in _STEPS:
        return results
    if step.name == "sort":
        return [_permutation(step.equation.params, operands, floats)]
    return [
        x for x in results if jnp.issubdtype(x.dtype, jnp.integer) or x.dtype == bool
    ]


def _permutation(
    params: dict[str, Any], operands: Sequence[Any], floats: Sequence[bool]
) -> Array:
    """From where each element of a sort comes."""
    axis, keys = params["dimension"], params["num_keys"]
    if not any(floats[:keys]):
        keys = len(operands)
    place = lax.broadcasted_iota(jnp.int32, operands[0].shape, axis)
    return lax.sort((*operands, place), axis, True, keys)[-1]
