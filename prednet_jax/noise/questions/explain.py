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
    check_same_structure,
    fits_in,
    rebuilt,
    rms,
    subtract,
    wide_leaves,
)
from prednet_jax.noise.questions.elements import ElementNoise, Outside
from prednet_jax.noise.questions.observed import ALIKE, CHANCE, ObservedLeaf
from prednet_jax.noise.questions.precision import CASTS
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
from prednet_jax.noise.questions.widening import Exact, exact
from prednet_jax.noise.tables import format_cell, format_table, joined, shortened
from prednet_jax.noise.types import Function, PyTree

NOT_MODELLED = (
    "not modelled: algebraic rewrites by the compiler, collectives that the "
    "partitioner inserts, other algorithms of a library"
)
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
        for leaf in self.leaves:
            numbers = leaf.relative, *map(leaf.ratios.get, columns)
            others = ", ".join(name for name in leaf.plausible if name != leaf.rung)
            words = joined(f"or {others}" * bool(others), leaf.reason)
            ulps = leaf.ulps or (None, None)
            rows.append([leaf.path, leaf.rung, *numbers, *ulps, leaf.closer, words])
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
    pair = (reference.signs.settled(wide_leaves(x)) for x in (a, b))
    observed = [
        ObservedLeaf(reference, leaf, i, x, y)
        for i, (leaf, x, y) in enumerate(zip(described, *pair, strict=True))
    ]
    leaves = _of_one_program([_classify_leaf(leaf) for leaf in observed], observed)
    for i, leaf in enumerate(leaves):
        if truth is not None:
            leaf = _add_float64(leaf, observed[i], truth.values[i], truth.errors[i])
        free = reference.signs.notes.get(i, "")
        wider = _of_wider_type(observed[i]) if leaf.rung in RANDOM else ""
        leaves[i] = leaf._replace(reason=joined(leaf.reason, wider, free))
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
    sizes = [math.inf if x.relative is None else x.relative for x in leaves]
    difference = max(sizes) if math.isfinite(max(sizes)) else None
    return Change(False, difference, max((x.rung for x in leaves), key=RUNGS.index))


def _classify_leaf(observed: ObservedLeaf) -> ExplainedLeaf:
    """Returns the cause of the difference of a leaf, without distances from float64."""
    broken, least, note = observed.broken, "identical", ""
    if broken.any():
        least = _cause_of_broken(observed)
        count = f"{np.count_nonzero(broken)} of {broken.size} elements"
        alone = f"{least} alone does that in runs here" if least != "beyond" else ""
        note = joined(f"NaN or infinite in one of the two alone: {count}", alone)
    difference, size = rms(observed.difference), rms(observed.value)
    causes, reason = [least], ""
    if difference and least != "beyond":
        causes, reason = _causes(observed)
    first = max(causes[0], least, key=RUNGS.index)
    plausible = tuple(dict.fromkeys((first, *causes[1:])))
    relative = difference / size if size else 0.0
    return ExplainedLeaf(
        observed.leaf.path,
        first,
        difference=None if broken.any() else difference,
        relative=None if broken.any() else relative,
        ratios=observed.ratios,
        plausible=plausible,
        reason=joined(note, reason),
    )


def _of_wider_type(observed: ObservedLeaf) -> str:
    """Returns a remark if neither result could come from a function of this type.

    NumPy saves float64, and JAX computes in float32 unless `jax_enable_x64` is set.
    """
    dtype = observed.leaf.dtype
    if not observed.leaf.epsilon or any(fits_in(x, dtype) for x in observed.pair):
        return ""
    return f"a and b have more digits than {dtype}, the function's type here"


def _of_one_program(
    leaves: list[ExplainedLeaf], observed: list[ObservedLeaf]
) -> list[ExplainedLeaf]:
    """Takes back formats that explain no more leaves than they leave `beyond`.

    A format rounds the products of the whole program. A fault that moves several leaves
    may look like one in some of them, above all in leaves of few numbers. A format of
    some operands may leave no leaf `beyond`.
    """
    beyond = [i for i, leaf in enumerate(leaves) if leaf.rung == "beyond"]
    for name in FORMAT_RUNGS:
        alike = [
            i
            for i, leaf in enumerate(leaves)
            if name in leaf.plausible and name != observed[i].stored
        ]
        excluding = [i for i in beyond if alike and observed[i].excludes(name)]
        # Rounding some operands moves all leaves, so one that it cannot move is enough.
        partial = all(observed[i].is_partial(name) for i in alike)
        if len(excluding) < (1 if partial else len(alike)):
            continue
        paths = shortened([leaves[i].path for i in excluding], 3)
        for i in alike:
            causes = [x for x in leaves[i].plausible if x != name] or ["beyond"]
            why = joined(leaves[i].reason, f"like {name}, which cannot explain {paths}")
            leaves[i] = leaves[i]._replace(
                rung=causes[0], plausible=tuple(causes), reason=why
            )
    return leaves


def _add_float64(
    leaf: ExplainedLeaf, observed: ObservedLeaf, truth: np.ndarray, error: float
) -> ExplainedLeaf:
    """Adds the distances of a leaf's two values from the value in float64.

    `error` is the error of the value in float64, RMS.
    """
    size = rms(truth[np.isfinite(truth)]) or 1.0
    errors = [rms(subtract(value, truth)) for value in observed.pair]
    errors = [d if math.isfinite(d) else math.inf for d in errors]
    closer, notes = "neither", [leaf.reason]
    if not math.isfinite(error) or error > FLOAT64_ERROR_LIMIT * max(errors):
        if leaf.rung != "identical":
            own = format_cell(error / size)
            notes.append(f"float64 is no better, it errs by {own} itself")
    elif max(errors) >= CLOSER_FACTOR * min(errors) < math.inf and max(errors) > 0:
        closer = "a" if errors[0] < errors[1] else "b"
    # JSON has no infinite numbers.
    first, second = (d / size if math.isfinite(d) else None for d in errors)
    ulps, epsilon = None, observed.leaf.epsilon
    if first is not None and second is not None:
        if epsilon:
            ulps = first / epsilon, second / epsilon
        expected = _known_distances(observed, truth)
        if all(min(errors) > OTHER_FUNCTION * distance for distance in expected):
            away = f"{min(errors) / size:.2g} (relative) from the function's result"
            notes.append(f"a and b are both {away}: other function or arguments?")
    return leaf._replace(
        closer=closer, error_a=first, error_b=second, ulps=ulps, reason=joined(*notes)
    )


def _known_distances(observed: ObservedLeaf, truth: np.ndarray) -> Iterator[float]:
    """Yields the distances from float64 that known causes make in a leaf."""
    yield from itertools.chain(*observed.reference.sizes(observed.i).values())
    yield from map(rms, observed.effects.values())
    yield from (rms(subtract(plain, truth)) for plain in observed.without_noise())


def _causes(observed: ObservedLeaf) -> tuple[list[str], str]:
    """Returns the causes of a finite difference that is not zero, and a remark.

    The first one is the cause. The others have made a smaller and a larger difference.
    """
    reference, i = observed.reference, observed.i
    now, sized = sample(observed.difference), observed.sized

    def outside(noise: ElementNoise) -> Outside:
        return noise.outside(observed.difference, RATIO_LIMIT, reference.flips)

    count, note = outside(observed.noise)
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
    if observed.stored:
        return [observed.stored], joined(note, f"the result is in {observed.stored}")
    for name, samples, elements in reference.wider(i):
        if samples.holds(now) and not outside(elements).number:
            return [samples.rung], joined(note, name)
    shares = {n: observed.share(n) for n in sized if observed.is_within(n)}
    best = max(shares.values(), default=0.0)
    if best:
        names = [n for n, x in shares.items() if x >= best - SAME_EFFECT]
        part = f"{names[0]} explains {best:.0%} of the difference (mean square)"
        return names, joined(note, part if best < ALIKE else "")
    return ["beyond"], joined(note, _why_beyond(observed, count if near else 0))


def _why_beyond(observed: ObservedLeaf, outside: int) -> str:
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
    narrow = "if one of the two programs has narrow types, give it as fn"
    return f"{size}, in another pattern; {narrow}"


def _cause_of_broken(observed: ObservedLeaf) -> str:
    """Returns which rung makes NaN and infinities where two results have them."""
    broken, seen = observed.broken, observed.noise.broken
    if float(np.mean(broken)) <= RATIO_LIMIT * float(np.mean(seen)):
        return "rounding"
    return next(filter(observed.breaks, observed.effects), "beyond")


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
    point, *points = (
        np.column_stack([np.log10(x[:, 0]), x[:, 2]]) for x in (now[None], *chosen)
    )
    # One scale for all noises, or the widest would draw everything to itself.
    spread = np.sqrt(np.mean([p.var(0) for p in points], axis=0)) + 0.05
    distances = [float(np.sum(((point[0] - p.mean(0)) / spread) ** 2)) for p in points]
    return noises[int(np.argmin(distances))].rung
