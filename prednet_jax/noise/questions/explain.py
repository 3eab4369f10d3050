"""Finds the cause of the difference of two results, from a list of causes (rungs).

Each cause is measured: the function is run under that noise, and the differences that
it makes are compared with the observed difference d = a - b, leaf by leaf.
docs/noise/explain.md lists the causes, and how to find which of the two is right.

Between *order and rounding* the nearer is chosen in the plane of (log10 RMS, fraction
of elements that differ), in units of the spread of the samples. The samples are
differences of a noisy run from the plain one if a or b is the plain result bit for bit,
and of two noisy runs otherwise.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple

import jax
import numpy as np
from jax import Array

from prednet_jax.noise.errors import check_draws
from prednet_jax.noise.leaves import (
    Leaf,
    check_same_structure,
    equal_elements,
    rebuilt,
    rms,
    subtract,
    wide_leaves,
)
from prednet_jax.noise.questions.elements import ElementNoise
from prednet_jax.noise.questions.precision import CASTS, Exact, exact
from prednet_jax.noise.questions.reference import (
    FORMAT_RUNGS,
    RANDOM,
    RATIO_LIMIT,
    RUNGS,
    NoiseReference,
    NoiseSamples,
    sample,
)
from prednet_jax.noise.questions.sampling import BoundCall, keyed
from prednet_jax.noise.questions.signs import NOTE
from prednet_jax.noise.tables import format_cell, format_table, joined
from prednet_jax.noise.types import Function, PyTree

NOT_MODELLED = (
    "not modelled: algebraic rewrites by the compiler, collectives that the "
    "partitioner inserts, other algorithms of a library"
)
# Range of the size of a format's effect, and how many times the effect on elements that
# are alike one element may differ.
FORMAT_RATIO_RANGE = (1 / 8, 4.0)
ELEMENT_RATIO = 16.0
# Least share of the squared difference that an effect has to explain. Of the elements
# that the effect moves by more than noise, so many must differ. Their cosine must
# be `CHANCE` times what it is by chance; where that is above 1, the difference must be
# the effect itself, up to its share `REPEATED`, and of a format up to `EXACT` or noise.
SHARE = 0.3
CHANCE = 3.0
REPEATED = 0.25
EXACT = 0.01
# The largest probability that some sum of effects explains a random difference.
LUCK = 1e-3
# A difference whose |cosine| with the value is larger is a factor of the value.
FACTOR = 0.99
# Effects that explain about as much are not told apart; the first of them is named.
SAME_EFFECT = 0.05
# How much further the other result is; float64's own error, of the larger distance.
CLOSER_FACTOR = 1.1
# How much further than all its known causes two results of another function are.
OTHER_FUNCTION = 10.0
FLOAT64_ERROR_LIMIT = 0.05


class ExplainedLeaf(NamedTuple):
    """The cause of one leaf's difference.

    Attributes:
        rung: one of `RUNGS`.
        difference: RMS of a - b. None if an element is finite in only one of them.
        relative: the same in units of the RMS of b; 0 where b is all zeros.
        ratios: the difference in units of the typical difference (RMS) of each rung;
            None for a rung that does not change this leaf.
        plausible: the rung, and others that made a larger and a smaller difference.
        reason: why no rung fits, for `beyond`.
        closer: which of the two is nearer to float64: "a", "b" or "neither".
        error_a: RMS distance of a from float64, in units of its RMS. None if unknown.
        ulps: distances of a and b in units of the type's epsilon. None if unknown, or
            if they are not floats.
    """

    path: str
    rung: str
    difference: float | None
    relative: float | None
    ratios: dict[str, float | None]
    plausible: tuple[str, ...]
    reason: str = ""
    closer: str = "neither"
    error_a: float | None = None
    error_b: float | None = None
    ulps: tuple[float, float] | None = None


class Explanation(NamedTuple):
    """The result of `explain`.

    Attributes:
        rung: one of `RUNGS`, or a pytree like the result with one for each leaf;
            `closer`, `error_a` and `error_b` have the same form, as in `ExplainedLeaf`.
        leaves: the same with numbers, one entry per leaf.
        notes: leaves that no noise reached, and library routines.
    """

    rung: PyTree
    leaves: tuple[ExplainedLeaf, ...]
    draws: int
    notes: tuple[str, ...] = ()
    closer: PyTree = None
    error_a: PyTree = None
    error_b: PyTree = None

    def __str__(self) -> str:
        casts = any(leaf.ratios[CASTS] for leaf in self.leaves)
        columns = [*RANDOM, *FORMAT_RUNGS, *[CASTS] * casts]
        head = ["", "cause", "relative", *columns, "ulps of a", "of b", "closer", ""]
        rows = []
        for one in self.leaves:
            numbers = one.relative, *map(one.ratios.get, columns)
            others = ", ".join(name for name in one.plausible if name != one.rung)
            words = joined(f"or {others}" * bool(others), one.reason)
            ulps = one.ulps or (None, None)
            rows.append([one.path, one.rung, *numbers, *ulps, one.closer, words])
        lines = [
            *format_table(head, rows, "<<" + ">" * (len(head) - 4) + "<<"),
            f"columns {columns[0]} to {columns[-1]}: the difference, divided by the "
            "difference that this cause makes",
            "ulps: distances of a and b from the function in float64, in units in the "
            "last place",
        ]
        return "\n".join([*lines, *self.notes, NOT_MODELLED])

    def to_json(self) -> dict[str, object]:
        """Returns the numbers and texts, leaf by leaf."""
        about = {"draws": self.draws, "notes": self.notes}
        return {"leaves": self.leaves, **about, "not_modelled": NOT_MODELLED}


def explain(
    fn: Function, a: PyTree, b: PyTree, *, draws: int = 8
) -> Callable[..., Explanation]:
    """Returns a function that names the cause of the difference of two results.

    Args:
        fn: the computation, as for `inject`. It is run here, at full precision.
        a: one result: pytree of arrays, with the structure and shapes of `fn`'s result.
        b: the other result.
        draws: runs of each random noise, 2 or more.

    Returns:
        `measure(key, *args, **kwargs)`, which returns an `Explanation`; the arguments
            are the ones that gave a and b.

    Raises:
        NoiseError: as for `inject`, or a and b do not fit the result of `fn`.

    Example:
        >>> import jax, numpy as np
        >>> from prednet_jax import noise
        >>> x = np.linspace(0, 1, 2048, dtype=np.float32).reshape(2, 1024)
        >>> fn = lambda x: x.sum(axis=1)
        >>> report = noise.explain(fn, fn(x), 1.01 * fn(x))(jax.random.key(0), x)
        >>> report.rung
        'beyond'
    """
    check_draws(draws, 2)
    check_same_structure("a", a, "b", b)

    def measure(call: BoundCall, key: Array) -> Explanation:
        reference = NoiseReference(call, key, draws=draws)
        truth, notes = None, reference.notes
        try:
            settled = reference.signs.settled
            truth = exact(call, key, settled, reference.relative())
        except Exception as error:
            # A primitive that JAX has only in narrow types must not stop the other
            # causes.
            why = str(error).partition("\n")[0]
            notes = (*notes, f"not computed in float64: {why}")
        return classify(reference, a, b, truth)._replace(notes=notes)

    return keyed(fn, measure)


def classify(
    reference: NoiseReference,
    a: PyTree,
    b: PyTree,
    truth: Exact | None = None,
) -> Explanation:
    """Explains the difference of two results; raises the errors of `explain`."""
    check_same_structure("a", a, "b", b)
    described = check_same_structure("b", b, "the result", reference.tree)
    leaves = []
    pair = (reference.signs.settled(wide_leaves(x)) for x in (a, b))
    for i, (leaf, x, y) in enumerate(zip(described, *pair, strict=True)):
        observed = _Observed(reference, leaf, i, x, y)
        one = _classify_leaf(observed)
        if truth is not None:
            one = _add_float64(one, observed, truth.values[i], truth.errors[i])
        if i in reference.signs.free:
            one = one._replace(reason=joined(one.reason, NOTE))
        leaves.append(one)
    rung, *columns = (
        rebuilt(reference.tree, [getattr(leaf, name) for leaf in leaves])
        for name in ("rung", "closer", "error_a", "error_b")
    )
    return Explanation(rung, tuple(leaves), reference.draws, reference.notes, *columns)


class Change(NamedTuple):
    """How a whole result differs from another.

    `difference` is the largest over the leaves: RMS of the difference in units of the
    RMS of the leaf. It is None if an element is finite in only one result. `rung` is
    the last of the leaves' rungs in the order of `RUNGS`.
    """

    same_bits: bool
    difference: float | None
    rung: str


def summarize_change(reference: NoiseReference, a: PyTree, b: PyTree) -> Change:
    """Compares a result with another; `identical` if every bit is the same."""
    pairs = zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True)
    if all(np.asarray(x).tobytes() == np.asarray(y).tobytes() for x, y in pairs):
        return Change(True, 0.0, "identical")
    leaves = classify(reference, a, b).leaves
    sizes = [math.inf if one.relative is None else one.relative for one in leaves]
    difference = max(sizes) if math.isfinite(max(sizes)) else None
    return Change(False, difference, max((x.rung for x in leaves), key=RUNGS.index))


class _Observed:
    """The values of one leaf in two results, and how the causes change this leaf.

    Attributes:
        reference: the effects of all causes on the result.
        leaf: the leaf's path and type.
        i: the leaf's number in the result.
        pair: the two values, in float64 or complex128.
        broken: bool, the elements in which the values have no finite difference.
        difference: the first value minus the second one; 0 where it is broken.
        value: the second value; 0 where it is not finite.
        noise: the noise of the leaf's elements.
        effects: the differences that formats and casts make in the leaf.
        ratios: the difference in units of the typical difference (RMS) of each cause;
            None for a cause that does not change the leaf.
        sized: the ratios of the formats and casts whose effect is about as large.
    """

    def __init__(
        self, reference: NoiseReference, leaf: Leaf, i: int, *pair: np.ndarray
    ) -> None:
        self.reference, self.leaf, self.i, self.pair = reference, leaf, i, pair
        x, y = pair
        difference = subtract(x, y)
        self.broken = ~np.isfinite(difference)
        self.difference = np.where(self.broken, 0, difference)
        self.value = np.where(np.isfinite(y), y, 0)
        self.noise = reference.elements[i]
        self.effects = {n: effect[i] for n, effect in reference.effects.items()}
        typical = {n: float(np.median(v)) for n, v in reference.sizes(i).items() if v}
        typical |= {name: rms(effect) for name, effect in self.effects.items()}
        far = rms(self.difference)
        # A format that overflows here makes no difference to compare with.
        known = {name: far / x for name, x in typical.items() if 0 < x < math.inf}
        self.ratios = {n: known.get(n) for n in (*RANDOM, CASTS, *FORMAT_RUNGS)}
        low, high = FORMAT_RATIO_RANGE
        ratios = {name: known.get(name, 0.0) for name in self.effects}
        self.sized = {name: r for name, r in ratios.items() if low <= r <= high}
        # Elements, or weights behind them if there are fewer.
        self.weights = min(difference.size, reference.weights)

    def without_noise(self) -> Iterator[np.ndarray]:
        """Yields values without noise; the function is called only if asked for."""
        yield from (plain[self.i] for plain in self.reference.plain)
        yield self.reference.called[self.i]

    def is_plain(self) -> bool:
        """Returns whether one of the two values is a value without noise."""
        plain = self.without_noise()
        return any(equal_elements(x, p).all() for p in plain for x in self.pair)

    def share(self, name: str) -> float:
        """Returns the share of the squared difference that a format explains.

        The format may be that of all products, or only of some operands: a device
        multiplies small matrices in float32, and a program may cast the weights of one
        layer. The share is 0 if it is small, or if errors of any kind explain as much.
        """
        effect = self.effects[name]
        if self._is_factor(effect):
            return 0.0
        whole, least, _ = self._fit(effect)
        alike = 1 - REPEATED**2
        if whole < least or (least >= alike and not self._is_exact(name, whole)):
            whole = 0.0
        if whole >= alike:
            return whole
        parts, compared = self.reference.parts(name, self.i), self._compared()
        some = _adding_up(self.difference[compared], [x[compared] for x in parts])
        if not some:
            return whole
        together = self.reference.together(name, some, self.i)
        part, least, chance = self._fit(together)
        # n effects have 2^n sums. Each explains a random difference of m independent
        # numbers to this share with a probability of about (1 - share)^(m / 2).
        found_by_luck = 2 ** len(parts) * (1 - part) ** (1 / chance**2 / 2)
        counts = part >= least and found_by_luck < LUCK
        return max(whole, part if counts else 0.0)

    def _is_exact(self, name: str, share: float) -> bool:
        """Returns whether a difference is a format's effect, apart from noise."""
        rest = math.sqrt(1 - share)
        residual = self.reference.residual(name, self.i) if rest > EXACT else 0.0
        return rest <= max(EXACT, RATIO_LIMIT * residual / rms(self.difference))

    def is_usual(self, name: str) -> bool:
        """Returns whether a format would explain enough, but so do other errors."""
        share, least, _ = self._fit(self.effects[name])
        return SHARE <= share < least

    def _fit(self, effect: np.ndarray) -> tuple[float, float, float]:
        """Returns the share that an effect explains, and the least that counts.

        The share is 0 if few elements differ of those that the effect moves. By chance
        the cosine of a difference with an effect is about as large as that of the
        deviations under noise. It is returned, too. It counts as at least one over the
        root of the weights.
        """
        compared, moved = self._compared(), self._differs(effect)
        few = self._differs(self.difference).sum() < SHARE * moved.sum()
        far, effect = self.difference[compared], effect[compared]
        if few or not np.isfinite(effect).all():
            return 0.0, 1.0, 1.0
        rest = min(_square(x) for x in (far - effect, far + effect))
        noises = self.reference.noises[self.i]
        deviations = (x[compared] for n in noises for x in n.deviations)
        cosines = [_cosine(x.astype(effect.dtype), effect) for x in deviations]
        chance = max(rms(np.array(cosines)), 1 / math.sqrt(far.size))
        least = (CHANCE * max(chance, 1 / math.sqrt(self.weights))) ** 2
        share = max(0.0, 1 - rest / _square(far))
        return share, min(max(SHARE, least), 1 - REPEATED**2), chance

    def _compared(self) -> np.ndarray:
        """Returns which elements are compared with an effect, bool.

        They are those that differ by more than their noise. A few of them have no
        pattern: then all elements are compared.
        """
        differs = self._differs(self.difference)
        few = np.count_nonzero(differs) <= CHANCE**2
        return np.ones_like(differs) if few else differs

    def _differs(self, difference: np.ndarray) -> np.ndarray:
        """Returns which elements differ by more than their noise, bool."""
        return np.nan_to_num(self.noise.ratios(difference), nan=2.0) > 1

    def _is_factor(self, effect: np.ndarray) -> bool:
        """Returns whether the difference is a factor of the value, the effect not.

        A fault may scale a column: only elements that differ by more than their noise
        are compared. Where one of them is larger than all others, the effect looks like
        a factor too, but only a factor leaves nothing but noise.
        """
        differs = self._differs(self.difference)
        far, value = self.difference[differs], self.value[differs]
        if _cosine(far, value) <= FACTOR:
            return False
        rest = np.zeros_like(self.difference)
        rest[differs] = far - value * np.vdot(value, far) / np.vdot(value, value)
        is_exact = differs.sum() > 1 and not self.noise.outside(rest, 1, False)[0]
        return bool(is_exact) or _cosine(effect[differs], value) < FACTOR

    def repeats(self, name: str) -> bool:
        """Returns whether the difference is a format's effect, or its opposite."""
        effect = self.effects[name]
        far = [rms(subtract(self.difference, x)) for x in (effect, -effect)]
        return min(far) <= REPEATED * rms(effect)

    def is_within(self, name: str) -> bool:
        """Returns whether each element differs by no more than a format's effect."""
        effect = self.effects[name]
        return self.noise.within_effect(self.difference, effect, ELEMENT_RATIO)


def _classify_leaf(observed: _Observed) -> ExplainedLeaf:
    """Returns the cause of the difference of a leaf, without distances from float64."""
    broken, least, note = observed.broken, "identical", ""
    if broken.any():
        least = _cause_of_broken(observed)
        count = f"{np.count_nonzero(broken)} of {broken.size} elements"
        alone = f"{least} alone does that in runs here" if least != "beyond" else ""
        note = joined(f"NaN or infinite in one of the two alone: {count}", alone)
    far, size = rms(observed.difference), rms(observed.value)
    causes, reason = [least], ""
    if far and least != "beyond":
        causes, reason = _causes(observed)
    first = max(causes[0], least, key=RUNGS.index)
    plausible = tuple(dict.fromkeys((first, *causes[1:])))
    relative = far / size if size else 0.0
    return ExplainedLeaf(
        observed.leaf.path,
        first,
        difference=None if broken.any() else far,
        relative=None if broken.any() else relative,
        ratios=observed.ratios,
        plausible=plausible,
        reason=joined(note, reason),
    )


def _add_float64(
    one: ExplainedLeaf, observed: _Observed, truth: np.ndarray, error: float
) -> ExplainedLeaf:
    """Adds the distances of a leaf's two values from the value in float64.

    `error` is the error of the value in float64, RMS.
    """
    size = rms(truth[np.isfinite(truth)]) or 1.0
    far = [rms(subtract(value, truth)) for value in observed.pair]
    far = [d if math.isfinite(d) else math.inf for d in far]
    closer, notes = "neither", [one.reason]
    if not math.isfinite(error) or error > FLOAT64_ERROR_LIMIT * max(far):
        if one.rung != "identical":
            own = format_cell(error / size)
            notes.append(f"float64 is no better, it errs by {own} itself")
    elif max(far) >= CLOSER_FACTOR * min(far) < math.inf and max(far) > 0:
        closer = "a" if far[0] < far[1] else "b"
    # JSON has no infinite numbers.
    first, second = (d / size if math.isfinite(d) else None for d in far)
    ulps, epsilon = None, observed.leaf.epsilon
    if first is not None and second is not None:
        if epsilon:
            ulps = first / epsilon, second / epsilon
        known = _known_distances(observed, truth)
        if all(min(far) > OTHER_FUNCTION * distance for distance in known):
            away = f"{min(far) / size:.2g} (relative) from the function's result"
            notes.append(f"a and b are both {away}: other function or arguments?")
    return one._replace(
        closer=closer, error_a=first, error_b=second, ulps=ulps, reason=joined(*notes)
    )


def _known_distances(observed: _Observed, truth: np.ndarray) -> Iterator[float]:
    """Yields the distances from float64 that known causes make in a leaf."""
    yield from itertools.chain(*observed.reference.sizes(observed.i).values())
    yield from map(rms, observed.effects.values())
    yield from (rms(subtract(plain, truth)) for plain in observed.without_noise())


def _adding_up(difference: np.ndarray, effects: list[np.ndarray]) -> list[int]:
    """Returns the positions of the effects that nearly add up to a difference.

    They are chosen one by one, always the one that explains most. The difference may
    have either sign.
    """
    best: list[int] = []
    least = _square(difference)
    for sign in 1, -1:
        rest, some = sign * difference, []
        left = [i for i, x in enumerate(effects) if np.isfinite(x).all()]
        while left:
            rests = [rest - effects[i] for i in left]
            sizes = list(map(_square, rests))
            first = int(np.argmin(sizes))
            if sizes[first] >= _square(rest):
                break
            rest = rests[first]
            some.append(left.pop(first))
        if _square(rest) < least:
            best, least = some, _square(rest)
    return best


def _square(x: np.ndarray) -> float:
    """Returns the sum of the squared sizes of an array's elements."""
    return float(np.vdot(x, x).real)


def _cosine(x: np.ndarray, y: np.ndarray) -> float:
    """Returns the size of the cosine of the angle between two arrays, 0 to 1."""
    size = np.linalg.norm(x) * np.linalg.norm(y)
    return float(abs(np.vdot(x, y)) / size) if size else 0.0


def _causes(observed: _Observed) -> tuple[list[str], str]:
    """Returns the causes of a finite difference that is not zero, and a remark.

    The first one is the cause. The others have made a smaller and a larger difference.
    """
    reference, i = observed.reference, observed.i
    now, sized = sample(observed.difference), observed.sized

    def outside(noise: ElementNoise) -> tuple[int, int]:
        return noise.outside(observed.difference, RATIO_LIMIT, reference.flips)

    count, unknown = outside(observed.noise)
    zeros = f"{unknown} elements that are zero in all runs: not resolved"
    note = zeros if unknown else ""
    near = [c for c in reference.noises[i] if c.holds(now)]
    overlap: list[str] = []
    if near and not count:
        seen = reference.sizes(i)
        overlap = [r for r, v in seen.items() if v and min(v) <= now[0] <= max(v)]
        overlap += [CASTS] * (CASTS in sized and bool(observed.share(CASTS)))
    if (
        observed.ratios[CASTS]
        and observed.difference.size > CHANCE**2
        and observed.repeats(CASTS)
        and observed.is_within(CASTS)
    ):
        return [CASTS, *overlap], note
    if near and not count:
        return [_nearest(now, near, observed.is_plain()), *overlap], note
    for name, samples, elements in reference.wider(i):
        if samples.holds(now) and not outside(elements)[0]:
            return [samples.rung], joined(note, name)
    shares = {n: observed.share(n) for n in sized if observed.is_within(n)}
    best = max(shares.values(), default=0.0)
    if best:
        return [n for n, x in shares.items() if x >= best - SAME_EFFECT], note
    return ["beyond"], joined(note, _why_beyond(observed, count if near else 0))


def _why_beyond(observed: _Observed, outside: int) -> str:
    """Returns why no cause explains a difference.

    `outside` is the number of elements that differ by too much, if the leaf as a whole
    does not.
    """
    if outside:
        count = f"{outside} of {observed.difference.size} elements"
        return f"{count} differ by more than their own noise"
    if not observed.sized:
        return _between(observed.ratios)
    size, numbers = f"of the size of {' and '.join(observed.sized)}", observed.weights
    if numbers <= CHANCE**2:
        few = "one number has" if numbers == 1 else f"{numbers} numbers have"
        return f"{size}, {few} no pattern: ask with the outputs before the mean"
    if any(map(observed.is_usual, observed.sized)):
        return f"{size}, in its pattern, but other errors have this pattern too"
    return f"{size}, in another pattern"


def _cause_of_broken(observed: _Observed) -> str:
    """Returns which rung makes NaN and infinities where two results have them."""
    broken, seen = observed.broken, observed.noise.broken
    if float(np.mean(broken)) <= RATIO_LIMIT * float(np.mean(seen)):
        return "rounding"
    for name, effect in observed.effects.items():
        if not np.any(broken & np.isfinite(effect)):
            return name
    return "beyond"


def _between(ratios: Mapping[str, float | None]) -> str:
    """Describes a difference that no rung explains by the rungs around it."""
    below = [name for name, r in ratios.items() if r is not None and r > 1]
    above = [name for name, r in ratios.items() if r is not None and r <= 1]
    if not above:
        return "larger than all" if below else "no noise moves this leaf"
    return f"between {below[-1]} and {above[0]}" if below else f"below {above[0]}"


def _nearest(now: np.ndarray, noises: list[NoiseSamples], is_plain: bool) -> str:
    chosen = [c.single if is_plain else c.pairs for c in noises]
    chosen = [x if len(x) else c.samples for x, c in zip(chosen, noises, strict=True)]
    here, *points = (
        np.column_stack([np.log10(x[:, 0]), x[:, 2]]) for x in (now[None], *chosen)
    )
    # One scale for all noises, or the widest would draw everything to itself.
    spread = np.sqrt(np.mean([p.var(0) for p in points], axis=0)) + 0.05
    far = [float(np.sum(((here[0] - p.mean(0)) / spread) ** 2)) for p in points]
    return noises[int(np.argmin(far))].rung
