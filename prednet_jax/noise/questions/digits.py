"""Counts the significant decimal digits of a result.

D(p) are the digits that an element has with probability p; docs/noise/digits.md has the
formula for p = 0.5 and its source (Sohier et al., ACM TOMS 47(2), 2021). The standard
deviation s of n runs is an estimate. With confidence c the digits are at least

    D(p) - 1/2 log10((n - 1) / chi2(1 - c; n - 1))

The program's own rounding (`own_rounding`) is the same in every run. The runs are those
of the program without it, and its effect d is added to the error:
sqrt((z s)^2 + d^2). So is a systematic error, such as the rounding of a long running
sum or of a special function: the distance of the result without noise from the
function in float64, where it is larger than noise can explain. An element that is
infinite in only some of the runs has no digits.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import jax
import numpy as np
from jax import Array

from prednet_jax.noise import quantiles, random_bits
from prednet_jax.noise.errors import check_draws, expect
from prednet_jax.noise.leaves import (
    Leaf,
    Result,
    check_some,
    describe_leaves,
    rebuilt,
    rms,
    subtract,
    wide_leaves,
)
from prednet_jax.noise.questions.elements import ElementNoise, takes_decisions
from prednet_jax.noise.questions.precision import own_rounding
from prednet_jax.noise.questions.sampling import (
    BoundCall,
    Moments,
    computation_part,
    keyed,
    reach_notes,
    sample_moments,
    say,
    unreached_leaves,
    with_routines,
)
from prednet_jax.noise.questions.signs import FREE_SIGNS, signs
from prednet_jax.noise.questions.widening import widened_program
from prednet_jax.noise.specs import (
    FixedOrder,
    NoiseSpec,
    ReducedPrecision,
    parts,
    rounding,
)
from prednet_jax.noise.tables import format_table
from prednet_jax.noise.text import format
from prednet_jax.noise.types import Function, PyTree


class DigitsRow(NamedTuple):
    """One leaf of the table of digits.

    Attributes:
        worst: digits of the element that has the fewest.
        median: median of the digits over the elements.
        whole: digits of the leaf as one vector: s and |m| are RMS over its elements.
        assured: lower bound of `whole` in 95 % of runs, with 95 % confidence.
        precision: digits of the type; no element has more.
        reached: whether noise acts on anything that the leaf is computed from. If not,
            though there is arithmetic, its digits are unknown, and are 0 here.
    """

    path: str
    dtype: str
    shape: tuple[int, ...]
    worst: float
    median: float
    whole: float
    assured: float
    precision: float
    reached: bool = True


class DigitsTable(NamedTuple):
    """The significant digits of a result.

    Attributes:
        rows: one per leaf that has elements.
        elements: the result of `digits`.
        noise: text of the noise.
        notes: leaves that noise did not reach, library routines, and the program's own
            rounding.
    """

    rows: tuple[DigitsRow, ...]
    draws: int
    elements: PyTree
    noise: str = ""
    notes: tuple[str, ...] = ()

    def __str__(self) -> str:
        head = ("significant digits", "worst", "median", "whole", "assured", "of")
        rows = []
        for r in self.rows:
            numbers = [f"{number:.1f}" if r.reached else "-" for number in r[3:7]]
            leaf = f"{r.path} {r.dtype}{list(r.shape)}"
            rows.append((leaf, *numbers, f"{r.precision:.1f}"))
        last = (
            f"{self.draws} runs under {self.noise}",
            f"assured: of the whole array, in {ASSURED:.0%} of runs, with "
            f"{ASSURED:.0%} confidence, if errors are normal",
        )
        lines = *format_table(head, rows, "<>>>><"), *last, *self.notes
        return "\n".join(lines)

    def to_json(self) -> dict[str, object]:
        """Returns the numbers and texts, without `elements`."""
        rest = {name: x for name, x in self._asdict().items() if name != "elements"}
        return rest | {"assured": ASSURED}


# A systematic error is so many times the largest deviation of similar elements.
SYSTEMATIC = 4.0
# Or so many standard deviations in the median element: half a digit, as the digits have
# 0.67 deviations.
USUAL = 2.0
# Probability and confidence of the column `assured`: the defaults of significantdigits.
ASSURED = 0.95


def digits(
    fn: Function, spec: NoiseSpec | None = None, *, draws: int = 16
) -> Callable[..., PyTree]:
    """Returns a function that counts the significant decimal digits of `fn`.

    These are the digits that an element has with probability 0.5. Under the default
    noise, errors that are the same in every run count too: the result without noise is
    compared with the function in float64.

    Args:
        fn: the function, as for `inject`.
        spec: the noise. Defaults to `specs.rounding()`.
        draws: number of runs, 2 or more.

    Returns:
        `measure(key, *args, **kwargs)`, a pytree like the result of `fn`, of float64
            arrays of its shapes, finite, from 0 to the digits of the type: 7.2 for
            float32, 2.4 for bfloat16. Leaves that are not floating-point are exact
            unless noise changes them.

    Raises:
        NoiseError: as for `inject`; `spec` acts on no computation, or is the same in
            every run, as bfloat16 is.

    Example:
        >>> import jax, numpy as np
        >>> from prednet_jax import noise
        >>> x = np.array([1.0, 1e-6], np.float32)
        >>> fn = lambda x: (x[0] + x[1]) - x[0]
        >>> found = noise.digits(fn, None)(jax.random.key(0), x)
        >>> bool(found < 3)  # the subtraction loses most of the 7 digits of float32
        True
    """
    table = digits_table(fn, spec, draws=draws)
    return lambda key, /, *args, **kwargs: table(key, *args, **kwargs).elements


def digits_table(
    fn: Function, spec: NoiseSpec | None = None, *, draws: int = 16
) -> Callable[..., DigitsTable]:
    """Returns a function that makes a table with a row for each leaf of the result.

    The arguments are the arguments of `digits`; `print(digits_table(fn)(key, x))`.
    """
    check_draws(draws, 2)
    spec = rounding() if spec is None else spec
    spec_is_default = isinstance(spec, NoiseSpec) and spec == rounding()
    each = "a noise that differs from run to run; `tolerance` takes others"
    differ = (
        not isinstance(part, ReducedPrecision | FixedOrder)
        and not getattr(part, "deterministic", False)
        for part in parts(computation_part(spec))
    )
    expect(any(differ), "spec", spec, each)
    text, spec = format(spec), with_routines(spec)

    def measure(call: BoundCall, key: Array) -> DigitsTable:
        own = own_rounding(call)
        free = signs(own.call)
        if free.free:
            own = own_rounding(call, free.settled)
        drawn: Iterator[PyTree]
        if own.uncast is None:
            drawn = map(free.align, own.call.draw(spec, key, draws))
        else:
            wide = (own.uncast(k, spec) for k in random_bits.split(key, draws))
            drawn = map(free.settled, wide)
        moments = sample_moments(drawn)
        tree, means, spreads, *_ = moments
        tree = tree if own.uncast is None else own.call.result()
        check_some(tree)
        reaches = own.call.reaches(spec)
        described, blind = describe_leaves(tree), unreached_leaves(tree, reaches)
        effects = own.total() or [np.zeros(x.shape) for x in means]
        uncast, clean = own.uncast, own.call.plain
        plain = free.settled(wide_leaves(clean) if uncast is None else uncast(key))
        sampled = moments, plain, described
        error_parts: list[tuple[Result, Sequence[str]]] = [_broken(*sampled)]
        if spec_is_default:
            say("computing the function in float64")
            error_parts.append(_systematic(own.call, *sampled, free.settled))
        for errors, _ in error_parts:
            effects = list(map(np.hypot, map(np.abs, effects), errors))
        every, rows = [], []
        columns = zip(described, means, spreads, effects, blind, strict=True)
        for leaf, mean, spread, effect, unknown in columns:
            elements, row = _row(leaf, mean, spread, effect, unknown, draws)
            every.append(elements)
            rows += [row] * bool(elements.size)
        notes = (
            *own.notes,
            *(line for _, lines in error_parts for line in lines),
            *moments.notes(described),
            *reach_notes(reaches),
        )
        notes += tuple(f"{described[i].path}: {note}" for i, note in free.notes.items())
        return DigitsTable(tuple(rows), draws, rebuilt(tree, every), text, notes)

    return keyed(fn, measure)


def _row(
    leaf: Leaf,
    mean: np.ndarray,
    spread: np.ndarray,
    effect: np.ndarray,
    blind: bool,
    draws: int,
) -> tuple[np.ndarray, DigitsRow]:
    """Returns the digits of a leaf's elements, and its row of the table."""
    z, cautious = quantiles.two_sided(0.5), quantiles.two_sided(1 - ASSURED)
    error = np.hypot(z * spread, np.abs(effect))
    elements = _digits(mean, error, leaf.precision, blind)
    # An infinite mean has no size to compare the others with.
    size = rms(np.where(np.isinf(mean), 0, mean))
    # D(0.95) with confidence is lower than D(0.5).
    bounded = cautious * quantiles.spread_bound(draws, ASSURED)
    whole, assured = (
        float(_digits(size, error, leaf.precision, blind))
        for error in [math.hypot(f * rms(spread), rms(effect)) for f in (z, bounded)]
    )
    worst, median = (
        float(of(elements)) if elements.size else 0.0 for of in (np.min, np.median)
    )
    numbers = worst, median, whole, assured
    return elements, DigitsRow(*leaf[:3], *numbers, leaf.precision, not blind)


def _broken(
    moments: Moments, plain: Result, described: Sequence[Leaf]
) -> tuple[Result, list[str]]:
    """Returns an infinite error of elements that noise alone makes finite, and notes.

    `plain` is the result without noise, which XLA compiles otherwise.
    """
    errors, notes = [], []
    for leaf, own, mean in zip(described, plain, moments.means, strict=True):
        broken = ~np.isfinite(own) & np.isfinite(mean)
        errors.append(np.where(broken, np.inf, 0))
        if broken.any():
            count = f"{np.count_nonzero(broken)} of {broken.size} elements"
            notes.append(
                f"{leaf.path}: {count} are NaN or infinite, but in no run under noise"
            )
    return errors, notes


def _systematic(
    call: BoundCall,
    moments: Moments,
    plain: Result,
    described: Sequence[Leaf],
    comparable: Callable[[Result], Result],
) -> tuple[Result, tuple[str, ...]]:
    """Returns the systematic error of each element, 0 if noise explains it, and notes.

    `plain`, the result without noise, is compared with the function in float64. The
    mean of the runs would not do: stochastic rounding has no bias.
    """
    errors = [np.zeros(x.shape) for x in moments.means]
    # In float64 such a routine may choose another order, basis or signs.
    if not FREE_SIGNS.keys().isdisjoint(step.name for step in call.equations()):
        return errors, ()
    try:
        wide = widened_program(call, np.dtype(np.float64))
        truth = comparable(wide(jax.random.key(0)))
    except Exception as error:  # Some primitives exist in narrow types only.
        why = str(error).partition("\n")[0]
        return errors, (f"not compared with float64: {why}",)
    decides, notes = takes_decisions(call), []
    for i, (leaf, own) in enumerate(zip(described, plain, strict=True)):
        noise = ElementNoise(own, leaf.epsilon)
        noise.see_sums(moments.runs, moments.roots[i], moments.largest[i])
        bias = np.abs(subtract(own, truth[i]))
        bias = np.where(np.isfinite(bias), bias, 0)
        # No element may stand out where all of them err, as in a special function.
        spread = np.fmax(moments.deviations[i], leaf.epsilon / 2 * np.abs(own))
        varies = np.isfinite(spread) & (spread > 0)
        usual = np.median(bias[varies] / spread[varies]) if varies.any() else 0
        if usual > USUAL or noise.outside(bias, SYSTEMATIC, decides).number:
            large = (bias > 0) if usual > USUAL else noise.ratios(bias, SYSTEMATIC) > 1
            errors[i] = np.where(large, bias, 0)
            notes.append(
                f"{leaf.path}: {np.count_nonzero(large)} of {large.size} elements have "
                "the same error in every run, as a run in float64 shows"
            )
    return errors, tuple(notes)


def _digits(
    mean: np.ndarray | float, error: np.ndarray | float, precision: float, blind: bool
) -> np.ndarray:
    """Returns -log10(error / |mean|), from 0 to the type's precision; 0 if unknown."""
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        digits = -np.log10(np.divide(error, np.abs(mean)))
    digits = np.where(np.equal(error, 0), precision, digits)
    digits = np.where(np.isnan(digits) | np.isnan(mean) | blind, 0.0, digits)
    return np.asarray(np.clip(digits, 0.0, precision), np.float64)
