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

Of a decision about many examples, along axis 0, those that any draw flips are listed,
each with the probability to flip and its exact interval of 95 % (C. J. Clopper & E. S.
Pearson, Biometrika 26, 1934). Of an evaluation set, whose labels are given, the
accuracy is said and how far noise moves it: the furthest of the draws. Draws are alike,
so that another run is as far at most with probability draws / (draws + 1), whatever
their distribution.
"""

from __future__ import annotations

import math
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
from prednet_jax.noise.errors import NoiseError, integer
from prednet_jax.noise.hooks import Hooks
from prednet_jax.noise.inject import evaluate, traced
from prednet_jax.noise.plan import Step, plan
from prednet_jax.noise.questions import runs
from prednet_jax.noise.random_bits import Words, on_device
from prednet_jax.noise.specs import NoiseSpec


class Flip(NamedTuple):
    """One example whose decision some draw flips.

    Attributes:
        example: its position.
        flipped: fraction of draws in which it is decided otherwise than in the clean
            run.
        low: lower end of the 95 % interval of that probability.
        high: its upper end.
    """

    example: int
    flipped: float
    low: float
    high: float


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
        examples: those along axis 0 that any draw flipped, the most often first.
    """

    path: str
    primitive: str
    source: str
    flipped: float
    elements: int
    share: float
    examples: tuple[Flip, ...] = ()


class Evaluation(NamedTuple):
    """The accuracy of a function's answers, and what noise makes of it.

    Attributes:
        accuracy: of the clean run, 0 to 1.
        moved: the furthest that any draw is from it.
        probability: that another run is at most so far.
        total: number of examples.
        examples: those whose answer any draw flipped, the most often first.
        draws: number of noisy runs.
    """

    accuracy: float
    moved: float
    probability: float
    total: int
    examples: tuple[Flip, ...]
    draws: int

    def __str__(self) -> str:
        unseen = _interval(0, self.draws)[1]
        return (
            f"accuracy {self.accuracy:.4f}, numerics move it by ±{self.moved:.2g} (the "
            f"furthest of {self.draws} runs; another is within with probability "
            f"{self.probability:.2f}); answers that flip: {len(self.examples)} of "
            f"{self.total}{_listed(self.examples)}; of any other example the "
            f"probability is below {unseen:.2g}"
        )


def _listed(examples: Sequence[Flip]) -> str:
    """The first examples in words."""
    if not examples:
        return ""
    named = [
        f"{e.example}: {e.flipped:.0%} ({e.low:.0%}-{e.high:.0%})" for e in examples
    ]
    return f" [{', '.join(named[:3])}{', ...' if named[3:] else ''}]"


class Decisions(tuple[Decision, ...]):
    """All decisions of a function: the most often flipped first, then as they come.

    Attributes:
        evaluation: of the function's answers, where labels were given.
    """

    evaluation: Evaluation | None = None

    @property
    def unstable(self) -> tuple[Decision, ...]:
        """Those that any draw flipped."""
        return tuple(decision for decision in self if decision.flipped > 0)

    def __str__(self) -> str:
        lines = [f"decisions: {len(self)}, flipped: {len(self.unstable)}"]
        lines += [
            f"  {d.flipped:.0%} of draws, {d.share:.2g} of {d.elements} elements  "
            f"{d.path}"
            + (f"  [{d.source}]" if d.source else "")
            + (f"  examples{_listed(d.examples)}" if d.examples else "")
            for d in self
        ]
        if self.evaluation is not None:
            lines.append(str(self.evaluation))
        return "\n".join(lines)


def decisions(
    fn: Callable, spec: NoiseSpec, *, draws: int = 16, labels: Any = None
) -> Callable[..., Decisions]:
    """How often noise flips each decision of a function.

    Args:
        fn: as for `inject`.
        spec: the noise; its parts that act on a computation.
        draws: number of noisy runs, each beside a clean one.
        labels: integers or booleans [N], of an evaluation set: the result of `fn` is
            its answers [N], or scores [N, C], whose argmax is. The report's
            `.evaluation` is then what noise makes of the accuracy.

    Returns:
        `search(key, *args, **kwargs)` that gives the decisions; `key` is a typed or raw
        PRNG key, consumed here. Flax NNX objects among the arguments stay as they are.

    Raises:
        NoiseError: when `draws` is no positive integer, `spec` acts on no computation,
            or `labels` are none; on a call, as for `inject`, and when the result is no
            answer to the labels, or holds a NaN.
    """
    integer("draws", draws, 1)
    acting = runs.acting(spec)
    wanted = None if labels is None else _labels(labels)

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
                shape = values.shape

                def note(words: Any, row: Any, part: Any, i=i, shape=shape) -> None:
                    size = math.prod(shape) - int(row) * _PART
                    width = math.prod(shape[1:]) if shape else 0
                    words = np.asarray(words).tolist()
                    place = (step.path, i, width, int(row), *words)
                    seen[place] = np.asarray(part)[:size]

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

        def watched(key: Array, noise: bool) -> tuple[dict, np.ndarray]:
            seen.clear()
            outcome = jax.block_until_ready(run(key, noise, *arrays))
            jax.effects_barrier()
            return dict(seen), _answers(outcome.result(), wanted)

        count, answers = _Count(), Counter[int]()
        right: list[tuple[float, float]] = []
        for one in random_bits.split(key, draws):
            (clean, expected), (noisy, found) = watched(one, False), watched(one, True)
            count.add(clean, noisy)
            if wanted is not None:
                answers.update(np.flatnonzero(found != expected).tolist())
                right.append(
                    (
                        float(np.mean(expected == wanted)),
                        float(np.mean(found == wanted)),
                    )
                )
        report = _report(count, steps.values(), draws)
        if wanted is not None:
            report.evaluation = Evaluation(
                right[0][0],
                max(abs(noisy_rate - clean_rate) for clean_rate, noisy_rate in right),
                draws / (draws + 1),
                len(wanted),
                _flips(answers, draws),
                draws,
            )
        return report

    return search


def _labels(labels: Any) -> np.ndarray:
    """The labels of an evaluation set, refusing what is none."""
    found = np.asarray(labels)
    if found.dtype.kind not in "biu" or found.ndim != 1 or not found.size:
        raise NoiseError(
            f"labels of type {found.dtype} and shape {found.shape}: expected integers "
            "or booleans [N]"
        )
    return found


def _answers(result: Any, labels: np.ndarray | None) -> np.ndarray:
    """What a result answers to each label; nothing without labels."""
    if labels is None:
        return np.zeros(0)
    leaves = jax.tree.leaves(result)
    found = np.asarray(leaves[0]) if len(leaves) == 1 else None
    count = labels.shape
    if found is not None and jnp.issubdtype(found.dtype, jnp.floating):
        if found.ndim == 2 and found.shape[:1] == count:
            if np.isnan(found).any():
                row = int(np.argwhere(np.isnan(found))[0, 0])
                raise NoiseError(
                    f"the scores of example {row} hold NaN: expected numbers"
                )
            return np.argmax(found, 1)
    elif found is not None and found.shape == count:
        return found
    shapes = [f"{x.dtype}{list(x.shape)}" for x in leaves if hasattr(x, "dtype")]
    raise NoiseError(
        f"the result is {', '.join(shapes) or 'no array'}, with labels {list(count)}: "
        f"expected one array, answers {list(count)} or scores [{count[0]}, classes]"
    )


def _interval(count: int, total: int) -> tuple[float, float]:
    """Clopper and Pearson's interval of 95 % of a binomial probability."""

    def crossing(tail: Callable[[float], float]) -> float:
        """Where a tail, which grows, is 2.5 %."""
        low, high = 0.0, 1.0
        for _ in range(60):
            middle = (low + high) / 2
            low, high = (middle, high) if tail(middle) < 0.025 else (low, middle)
        return low

    def below(p: float, most: int) -> float:
        """P(X <= most)."""
        return sum(
            math.comb(total, i) * p**i * (1 - p) ** (total - i) for i in range(most + 1)
        )

    low = crossing(lambda p: 1 - below(p, count - 1)) if count else 0.0
    high = 1 - crossing(lambda q: below(1 - q, count)) if count < total else 1.0
    return low, high


def _flips(counts: Counter[int], draws: int) -> tuple[Flip, ...]:
    """The examples that flipped so often, the most often first."""
    order = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
    return tuple(Flip(i, n / draws, *_interval(n, draws)) for i, n in order)


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


# Path, number of the result, elements per example (0 of a scalar), number of the part,
# and the generator's words there, which tell executions apart.
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
        self.examples: dict[str, Counter[int]] = {}

    def add(
        self, clean: dict[_Place, np.ndarray], noisy: dict[_Place, np.ndarray]
    ) -> None:
        """Compare the decisions of a noisy run with those of a clean one."""
        differing: Counter[str] = Counter()
        examples: dict[str, set[int]] = {}
        for place, expected in clean.items():
            self.elements[place[0]] += expected.size
            if place in noisy:
                found = noisy[place]
                same = (found == expected) | ((found != found) & (expected != expected))
                path, _, width, row, *_ = place
                other = np.flatnonzero(~same)
                differing[path] += other.size
                if width:
                    rows = (other + row * _PART) // width
                    examples.setdefault(path, set()).update(rows.tolist())
                self.compared[place[0]] += expected.size
        self.differing += differing
        self.flipped.update(path for path, count in differing.items() if count)
        for path, flipped in examples.items():
            self.examples.setdefault(path, Counter()).update(flipped)


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
            _flips(count.examples.get(step.path, Counter()), draws),
        )
        for step in steps
        if count.elements[step.path]
    ]
    return Decisions(sorted(found, key=lambda d: -d.flipped))
