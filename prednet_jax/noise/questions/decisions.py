"""Counts the decisions that noise flips: argmax, order, comparison, branch, number.

A decision is where floating-point numbers become something discrete, as
docs/noise/decisions.md lists. The clean run and the noisy one are the same compiled
program with noise off and on. Executions (a step of every loop around, a device) that
only one of the two has are the decision of the loop or branch around them.
"""

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

import jax
import numpy as np
from jax import Array, lax
from jax import numpy as jnp
from jax.typing import ArrayLike

from prednet_jax.noise import compat, quantiles
from prednet_jax.noise.arguments import Outcome
from prednet_jax.noise.errors import NoiseError, check_draws
from prednet_jax.noise.leaves import check_no_texts, given_array, is_float
from prednet_jax.noise.plan import Step
from prednet_jax.noise.questions import precision, sampling
from prednet_jax.noise.random_bits import Words
from prednet_jax.noise.rules.primitives import OPAQUE
from prednet_jax.noise.run import Call, plain, typed
from prednet_jax.noise.specs import NoiseSpec, default
from prednet_jax.noise.tables import bracketed
from prednet_jax.noise.text import format
from prednet_jax.noise.types import Params, PyTree, Values, names_in
from prednet_jax.noise.watch import Seen, Watched


class Flip(NamedTuple):
    """An example whose decision differs from the clean run in some draw.

    `flipped` is the fraction of such draws, with its 95 % interval `low` to `high`.
    """

    example: int
    flipped: float
    low: float
    high: float


class Decision(NamedTuple):
    """One equation that decides, by path, primitive and line as `coverage` lists it.

    Attributes:
        flipped: fraction of draws in which at least one element is decided otherwise
            than in the clean run, 0 to 1.
        elements: number of elements that the clean run decides, over all executions.
        share: fraction of them decided otherwise, mean over draws.
        examples: the rows (along axis 0) that any draw flips, the most frequent first.
    """

    path: str
    primitive: str
    source: str
    flipped: float
    elements: int
    share: float
    examples: tuple[Flip, ...] = ()


class Evaluation(NamedTuple):
    """The accuracy of a function's answers, and the effect of noise on it.

    Attributes:
        accuracy: accuracy of the clean run, 0 to 1.
        moved: the largest distance of a draw's accuracy from it.
        probability: the probability that another run differs by at most `moved`.
        total: the number of examples.
        examples: the examples whose answer any draw flipped, the most frequent first.
    """

    accuracy: float
    moved: float
    probability: float
    total: int
    examples: tuple[Flip, ...]
    draws: int

    def __str__(self) -> str:
        unseen = quantiles.interval(0, self.draws)[1]
        return (
            f"accuracy {self.accuracy:.4f}, numerics move it by ±{self.moved:.2g} (the "
            f"furthest of {self.draws} runs; another is within with probability "
            f"{self.probability:.2f}); answers that flip: {len(self.examples)} of "
            f"{self.total}{_listed(self.examples)}; of any other example the "
            f"probability is below {unseen:.2g}"
        )


def _listed(examples: Sequence[Flip]) -> str:
    if not examples:
        return ""
    named = [
        f"{e.example}: {e.flipped:.0%} ({e.low:.0%}-{e.high:.0%})" for e in examples
    ]
    return f" [{', '.join(named[:3])}{', ...' if named[3:] else ''}]"


class Decisions(tuple[Decision, ...]):
    """All decisions of a function: the most often flipped first, else in order.

    Attributes:
        evaluation: the evaluation of the function's answers, if labels were given.
        notes: the noise, and the format in which this device rounds by default.
    """

    evaluation: Evaluation | None = None
    notes: tuple[str, ...] = ()

    def __str__(self) -> str:
        flipped = sum(decision.flipped > 0 for decision in self)
        lines = [f"decisions: {len(self)}, flipped: {flipped}"]
        lines += [
            f"  {d.flipped:.0%} of runs, {d.share:.2g} of {d.elements} elements  "
            f"{d.path}{bracketed(d.source)}"
            f"{'  examples' * bool(d.examples)}{_listed(d.examples)}"
            for d in self
        ]
        if self.evaluation is not None:
            lines.append(str(self.evaluation))
        return "\n".join([*lines, *self.notes])


def decisions(
    fn: Callable,
    spec: NoiseSpec | None = None,
    *,
    draws: int = 16,
    labels: ArrayLike | None = None,
) -> Callable[..., Decisions]:
    """Returns a function that counts how often noise flips each decision of `fn`.

    On a device that rounds float32 products by default, the clean runs have the highest
    precision, so that decisions which the device's format flips are counted too.

    Args:
        fn: the function, as for `inject`.
        spec: the noise; its parts that act on a computation. Defaults to
            `specs.default()`, with operands of library routines rounded.
        draws: number of noisy runs, each compared with a clean one.
        labels: integers or booleans [N] of an evaluation set. The result of `fn` is
            then its answers [N], or scores [N, C], whose argmax is the answer.
            `.evaluation` is the effect of noise on the accuracy.

    Returns:
        `search(key, *args, **kwargs)` that gives the decisions, a sequence.

    Raises:
        NoiseError: for a bad option; on a call, as for `inject`, and if the result does
            not fit the labels, or holds a NaN.
    """
    check_draws(draws, 1)
    part = sampling.computation_part if spec else sampling.with_routines
    spec = default() if spec is None else spec
    acting = part(spec)
    wanted = None if labels is None else _labels(labels)

    def search(call: sampling.BoundCall, key: Array) -> Decisions:
        check_no_texts(call.program.shapes.result())
        watched, products = _Deciding(), precision.rounded_products(call.equations())
        run = clean_run = watched.compiled(call, acting)
        if products:
            highest = call.calling(precision.at_highest_precision(fn))
            clean_run = watched.compiled(highest, acting)
        answers: list[np.ndarray] = []

        def once(key: Array, noise: bool) -> Seen:
            program = run if noise else clean_run
            seen, outcome = watched.seen(lambda: program(key, np.bool_(noise)))
            if wanted is not None:
                answers.append(_answers(outcome.result(), wanted))
            return seen

        drawn = sampling.draw_keys(key, draws)
        pairs = ((once(draw, False), once(draw, True)) for draw in drawn)
        report = Decisions(_tallied(pairs, watched.labels, draws))
        report.notes = (
            f"{draws} runs under {format(spec)}",
            *precision.format_notes(products),
        )
        if wanted is not None:
            report.evaluation = _evaluated(answers[::2], answers[1::2], wanted)
        return report

    return sampling.keyed(fn, search)


def _tallied(
    pairs: Iterable[tuple[Seen, Seen]], labels: Mapping[str, Step], draws: int
) -> list[Decision]:
    """Returns the decisions of clean and noisy runs, and how often they differ."""
    # By path: elements of the clean run, those compared, those that differ, draws.
    counts: dict[str, np.ndarray] = defaultdict(lambda: np.zeros(4, int))
    examples: dict[str, Counter[int]] = defaultdict(Counter)
    for clean, noisy in pairs:
        flipped: dict[str, set[int]] = defaultdict(set)
        for execution, x in clean.items():
            path, _, width = execution[0]
            y = noisy.get(execution, x)
            # NaN stands for an element that decides nothing.
            decided = x == x
            size = np.count_nonzero(decided)
            other = np.flatnonzero((y != x) & (y == y) & decided)
            counts[path] += [size, size * (execution in noisy), other.size, 0]
            if other.size:
                flipped[path].update((other // width).tolist() if width else ())
        for path, rows in flipped.items():
            counts[path][3] += 1
            examples[path].update(rows)
    entries = []
    for path, step in labels.items():
        elements, compared, differing, flips = counts[path].tolist()
        about = path, step.name, step.source, flips / draws, elements // draws
        share, rows_of = differing / max(1, compared), _flips(examples[path], draws)
        entries += [Decision(*about, share, rows_of)] * (elements > 0)
    return sorted(entries, key=lambda d: -d.flipped)


def _evaluated(
    clean: Sequence[np.ndarray], noisy: Sequence[np.ndarray], labels: np.ndarray
) -> Evaluation:
    """Returns the effect of noise on answers, each compared with a clean run."""
    draws, flips = len(clean), Counter[int]()
    for expected, answer in zip(clean, noisy, strict=True):
        flips.update(np.flatnonzero(answer != expected).tolist())
    rates = [[float(np.mean(x == labels)) for x in runs] for runs in (clean, noisy)]
    moved = max(abs(a - b) for a, b in zip(*rates, strict=True))
    of_another = draws / (draws + 1)
    examples = _flips(flips, draws)
    return Evaluation(rates[0][0], moved, of_another, len(labels), examples, draws)


def _labels(labels: ArrayLike) -> np.ndarray:
    """Returns the labels of an evaluation set, or raises an error."""
    labels = given_array(labels, "labels", "integers or booleans [N]")
    if labels.dtype.kind not in "biu" or labels.ndim != 1 or not labels.size:
        raise NoiseError(
            f"labels of type {labels.dtype} and shape {labels.shape}: expected "
            "integers or booleans [N]"
        )
    return labels


def _answers(result: PyTree, labels: np.ndarray) -> np.ndarray:
    """Returns the answer in a result for each label."""
    leaves = [np.asarray(x) for x in jax.tree.leaves(result) if hasattr(x, "dtype")]
    scores = len(leaves) == 1 and jnp.issubdtype(leaves[0].dtype, jnp.floating)
    # Of one class alone there is nothing to choose.
    fits = len(leaves) == 1 and leaves[0].shape[:1] == labels.shape
    fits = fits and leaves[0].ndim == 1 + scores and leaves[0].shape[1:] != (1,)
    if not fits:
        shapes = [f"{x.dtype}{list(x.shape)}" for x in leaves]
        count = list(labels.shape)
        raise NoiseError(
            f"the result is {', '.join(shapes) or 'no array'}, with labels {count}: "
            f"expected one array, answers {count} or scores [{count[0]}, classes]"
        )
    (answers,) = leaves
    if not scores:
        return answers
    classes = answers.shape[1]
    outside = np.flatnonzero((labels < 0) | (labels >= classes))
    if outside.size:
        raise NoiseError(
            f"labels[{outside[0]}]={labels[outside[0]]}: expected classes from 0 to "
            f"{classes - 1}, since the scores have the shape {answers.shape}"
        )
    broken = np.flatnonzero(np.isnan(answers).any(1))
    if broken.size:
        raise NoiseError(f"scores of example {broken[0]} hold NaN: expected numbers")
    return np.argmax(answers, 1)


def _flips(counts: Counter[int], draws: int) -> tuple[Flip, ...]:
    """Returns the examples that flipped so often, the most often first."""
    order = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
    return tuple(Flip(i, n / draws, *quantiles.interval(n, draws)) for i, n in order)


class _Deciding(Watched):
    """Evaluates a program and sends its decisions to the host.

    Integers that hold the bits of floats are marked.
    """

    def compiled(
        self, call: sampling.BoundCall, spec: NoiseSpec
    ) -> Callable[..., Outcome]:
        """Returns `run(key, noise)`, which evaluates a call with noise on or off."""

        def hooks(noise: Array) -> Watched:
            self.switch = lambda path: noise
            return self

        return call.hooked(spec, hooks)

    def first_order(self, call: Call, words: Words, operands: list) -> list:
        """Adds no noise to what the host computes, since that may be decisions."""
        if call.step.name in OPAQUE:
            return plain(call.step, typed(call.step, operands))
        return super().first_order(call, words, operands)

    def after(self, step: Step, words: Words, operands: list, results: list) -> list:
        if step.bodies:
            return results
        decided = _decided(step, operands, results)
        if self._holds_bits(step, operands):
            if step.name in _KEEPS_BITS:
                for x in results:
                    self.mark(x, True)
            else:
                decided = _discrete(results)
        for i, x in enumerate(decided):
            self._note(step, words, i, x)
        return results

    def _holds_bits(self, step: Step, operands: list) -> bool:
        """Returns whether an equation reads floats as bits."""
        if step.name == "bitcast_convert_type":
            return jnp.issubdtype(jnp.result_type(operands[0]), jnp.inexact)
        return any(map(self.marked, operands))

    def decided(self, step: Step, words: Words, number: Array) -> None:
        """Notes the number of steps of a loop, or the index of a branch."""
        self._note(step, words, 0, number)

    def _note(self, step: Step, words: Words, i: int, value: ArrayLike) -> None:
        self.labels[step.path] = step
        x = jnp.asarray(value)
        # Elements per example; 0 of a scalar, which is of none.
        width = math.prod(x.shape[1:]) if x.ndim else 0
        self.send({(step.path, i, width): x}, self.place(words))


# Results that are discrete although they are floats.
_STEPS = frozenset({"floor", "ceil", "round", "sign"})
# Operations that move or mix the bits of a float: nothing is decided yet.
_KEEPS_BITS = names_in(
    "bitcast_convert_type broadcast_in_dim concatenate copy dynamic_slice gather "
    "not or pad reshape rev select_n shift_left slice squeeze transpose xor"
)


# Complex functions that jump, by the sign of the first number, where the second holds.
_CUTS: Mapping[str, Callable[[Array, Array], tuple[Array, Array]]] = {
    **dict.fromkeys(("log", "sqrt", "rsqrt", "pow"), lambda re, im: (im, re < 0)),
    **dict.fromkeys(("asin", "acos", "atanh"), lambda re, im: (im, jnp.abs(re) > 1)),
    **dict.fromkeys(("atan", "asinh"), lambda re, im: (re, jnp.abs(im) > 1)),
    "log1p": lambda re, im: (im, re < -1),
    "acosh": lambda re, im: (im, re < 1),
}


def _side(value: Array, at_cut: Array) -> Array:
    """Returns the side of a branch cut, -1 or 1, and NaN far from it."""
    side = jnp.where(jnp.signbit(value), -1.0, 1.0)
    return jnp.where(at_cut, side, jnp.nan)


def _decided(step: Step, operands: Values, results: Values) -> Values:
    """Returns the decisions of an equation, as discrete arrays."""
    floats = [jnp.issubdtype(jnp.result_type(x), jnp.inexact) for x in operands]
    if not any(floats) or step.name == "bitcast_convert_type":
        return []
    if step.name in _STEPS:  # z/|z| is continuous but at 0.
        return [x for x in results if not jnp.iscomplexobj(x)]
    if step.name == "nextafter":
        return [jnp.sign(operands[1] - operands[0])]
    if step.name == "atan2":
        return [_side(operands[0], operands[1] < 0)]
    if step.name in _CUTS and jnp.iscomplexobj(operands[0]):
        z = operands[0]
        return [_side(*_CUTS[step.name](jnp.real(z), jnp.imag(z)))]
    if step.name in OPAQUE:  # A whole number, such as a sign, is a decision.
        numbers = filter(is_float, results)
        integers = [jnp.where(x == jnp.round(x), x, jnp.nan) for x in numbers]
        return [*_discrete(results), *integers]
    if step.name == "sort":
        return [_permutation(step.equation.params, operands, floats)]
    if step.name == "rem":  # Of how many whole divisors it is the rest.
        return [jnp.round((operands[0] - results[0]) / operands[1])]
    if step.name in ("select_and_scatter_add", "select_and_gather_add"):
        return compat.bind(step.equation, *_numbered(step, operands))
    return _discrete(results)


def _numbered(step: Step, operands: Values) -> list[Array]:
    """Returns operands whose result shows which element each window selects."""
    first, selected_from = operands
    ones = jnp.ones_like(first)
    if step.name == "select_and_gather_add":
        number = lax.iota(first.dtype, first.size) / first.size
        ones = number.reshape(first.shape)
    return [ones, selected_from]


def _discrete(results: Values) -> list[Array]:
    return [
        x for x in results if jnp.issubdtype(x.dtype, jnp.integer) or x.dtype == bool
    ]


def _permutation(params: Params, operands: Values, floats: Sequence[bool]) -> Array:
    """Returns from where each element of a sort comes."""
    axis, keys = params["dimension"], params["num_keys"]
    if not any(floats[:keys]):
        keys = len(operands)
    positions = lax.broadcasted_iota(jnp.int32, operands[0].shape, axis)
    positions += jnp.zeros_like(operands[0], jnp.int32)  # Sharded like the operands.
    return lax.sort((*operands, positions), axis, True, keys)[-1]
