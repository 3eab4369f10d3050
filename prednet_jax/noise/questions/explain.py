"""What makes two results of one computation differ: a ladder of causes.

Each rung is measured: the function is run under that noise, and the differences that it
makes are compared with the one observed, d = a - b, leaf by leaf. docs/noise/explain.md
says which difference is on which rung, and which of the two results is right.

Between *order and rounding* a difference is given to the nearer in the plane of (log10
RMS, fraction of elements that differ), in units of the spread of the samples:
differences of a noisy run from the plain one if a or b is the plain result bit for bit,
and of two noisy runs otherwise.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import numpy as np
from jax import Array

from prednet_jax.noise import specs
from prednet_jax.noise._coverage import coverage
from prednet_jax.noise._inject import inject
from prednet_jax.noise.errors import integer
from prednet_jax.noise.questions.exact import Exact, exact
from prednet_jax.noise.questions.leaves import (
    Leaf,
    Result,
    check_same_structure,
    equal_elements,
    rms,
    subtract,
    wide_leaves,
)
from prednet_jax.noise.questions.sampling import (
    BoundCall,
    reach_notes,
    with_routines,
)
from prednet_jax.noise.questions.signs import NOTE, Signs, signs
from prednet_jax.noise.questions.tables import (
    format_cell,
    format_table,
)

RUNGS = ("identical", "order", "rounding", "tf32", "bf16", "beyond")
NOT_MODELLED = (
    "not modelled: algebraic rewrites by the compiler, collectives that the "
    "partitioner inserts, other algorithms of a library"
)
# Of order and rounding, in units of the largest RMS or element seen.
MARGIN = 4.0
# Of TF32 and bfloat16: size, and |cosine| in leaves of so many elements or more.
WITHIN = (1 / 8, 4.0)
PATTERN = 0.2
PATTERN_SIZE = 32
# How much further the other is; float64's own error, of the larger distance.
NEARER = 1.1
KNOWN = 0.05


class ExplainedLeaf(NamedTuple):
    """What one leaf's difference is.

    Attributes:
        rung: one of `RUNGS`.
        difference: RMS of a - b; None if an element is finite in one of them alone.
        relative: the same in units of the RMS of b; 0 where b is all zeros.
        ratios: the difference in units of the typical one of each rung (RMS); None for
            a rung that does not move this leaf.
        plausible: the rung, and others that made a larger and a smaller difference.
        reason: why none does, for `beyond`.
        closer: which of the two is nearer to float64: "a", "b" or "neither".
        error_a: RMS distance of a from float64, in units of its RMS; None: not known.
        ulps: of a and b in units of the type's epsilon; None: not known, or no floats.
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
    """What `explain` found.

    Attributes:
        rung: one of `RUNGS`, or a pytree like the result with one for each leaf; so are
            `closer`, `error_a` and `error_b`, as in `ExplainedLeaf`.
        leaves: the same with numbers, one entry per leaf.
        notes: what no noise reached, and library routines.
    """

    rung: Any
    leaves: tuple[ExplainedLeaf, ...]
    draws: int
    notes: tuple[str, ...] = ()
    closer: Any = None
    error_a: Any = None
    error_b: Any = None

    def __str__(self) -> str:
        columns = [*RANDOM, *FORMATS]
        head = ["", "rung", "relative", *columns, "ulps of a", "of b", "closer", ""]
        rows: list[list[Any]] = []
        for one in self.leaves:
            ulps = one.ulps or (None, None)
            numbers = one.relative, *map(one.ratios.get, columns), *ulps
            others = [name for name in one.plausible if name != one.rung]
            notes = [f"or {', '.join(others)}"] * bool(others) + [one.reason]
            words = "; ".join(filter(None, notes))
            rows.append([one.path, one.rung, *numbers, one.closer, words])
        lines = [
            *format_table(head, rows, "<<>>>>>>><<"),
            "columns: the difference over the one that a rung makes; the distances of",
            "a and b from the function in float64, in units in the last place",
        ]
        return "\n".join([*lines, *self.notes, NOT_MODELLED])

    def to_json(self) -> dict[str, Any]:
        """Numbers and texts, leaf by leaf."""
        told = {"leaves": self.leaves, "draws": self.draws, "notes": self.notes}
        return told | {"not_modelled": NOT_MODELLED}


def explain(
    fn: Callable, a: Any, b: Any, *, draws: int = 8
) -> Callable[..., Explanation]:
    """Place the difference of two results of `fn` on the ladder.

    Args:
        fn: the computation, as for `inject`. It is run here, at full precision.
        a: one result: pytree of arrays, of the structure and shapes of `fn`'s.
        b: another, likewise.
        draws: runs of each random noise, 2 or more.

    Returns:
        `measure(key, *args, **kwargs)`, which gives an `Explanation`; the arguments are
            those that gave a and b.

    Raises:
        NoiseError: as for `inject`, or a and b are no results of `fn`.
    """
    integer("draws", draws, 2)
    check_same_structure("a", a, "b", b)

    def measure(key: Array, /, *args: Any, **kwargs: Any) -> Explanation:
        call = BoundCall(fn, args, kwargs)
        rungs = ladder(call, key, draws=draws)
        try:
            truth = exact(call, key, rungs.signs.settled)
        except Exception as error:
            # A primitive that JAX has in narrow types alone must not stop the ladder.
            why = str(error).partition("\n")[0]
            return place(rungs, a, b, note=f"not computed in float64: {why}")
        return place(rungs, a, b, truth)

    return measure


def place(
    rungs: Ladder, a: Any, b: Any, truth: Exact | None = None, note: str = ""
) -> Explanation:
    """The difference of two results on a ladder; errors as for `explain`."""
    check_same_structure("a", a, "b", b)
    described = check_same_structure("b", b, "the result", rungs.tree)
    leaves = []
    pair = (rungs.signs.settled(wide_leaves(x)) for x in (a, b))
    for i, (leaf, x, y) in enumerate(zip(described, *pair, strict=True)):
        is_plain = any(
            equal_elements(v, p[i]).all() for v in (x, y) for p in rungs.plain
        )
        effects = {name: effect[i] for name, effect in rungs.formats.items()}
        placed = _place(leaf, x, y, rungs.clouds[i], effects, is_plain)
        if truth is not None:
            placed = _judged(placed, leaf, (x, y), truth.values[i], truth.errors[i])
        if rungs.signs.is_free[i]:
            reason = "; ".join(filter(None, [placed.reason, NOTE]))
            placed = placed._replace(reason=reason)
        leaves.append(placed)
    structure = jax.tree.structure(rungs.tree)
    notes = (*rungs.notes, *[note] * bool(note))
    rung, *columns = (
        jax.tree.unflatten(structure, [getattr(leaf, name) for leaf in leaves])
        for name in ("rung", "closer", "error_a", "error_b")
    )
    return Explanation(rung, tuple(leaves), rungs.draws, notes, *columns)


class Change(NamedTuple):
    """How a whole result differs from another.

    `difference` is the largest over the leaves: RMS of the difference in units of the
    RMS of the leaf; None if an element is finite in one of the two alone. `rung`: of
    several leaves the last on the ladder.
    """

    same_bits: bool
    difference: float | None
    rung: str


def changed(rungs: Ladder, a: Any, b: Any) -> Change:
    """What a result is beside another; `identical` if every bit is the same."""
    pairs = zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True)
    if all(np.asarray(x).tobytes() == np.asarray(y).tobytes() for x, y in pairs):
        return Change(True, 0.0, "identical")
    leaves = place(rungs, a, b).leaves
    sizes = [math.inf if one.relative is None else one.relative for one in leaves]
    difference = max(sizes) if math.isfinite(max(sizes)) else None
    return Change(False, difference, max((x.rung for x in leaves), key=RUNGS.index))


def _judged(
    one: ExplainedLeaf,
    leaf: Leaf,
    pair: tuple[np.ndarray, np.ndarray],
    truth: np.ndarray,
    error: float,
) -> ExplainedLeaf:
    """A leaf with the distances of its two values from that in float64."""
    far = [rms(subtract(value, truth)) for value in pair]
    far = [d if math.isfinite(d) else math.inf for d in far]
    size = rms(truth[np.isfinite(truth)]) or 1.0
    # As JSON has it, no number is infinite.
    first, second = (d / size if math.isfinite(d) else None for d in far)
    closer, reason = "neither", one.reason
    if not math.isfinite(error) or error > KNOWN * max(far):
        if one.rung != "identical":
            more = (
                f"float64 is no better, it errs by {format_cell(error / size)} itself"
            )
            reason = "; ".join(filter(None, [reason, more]))
    elif max(far) >= NEARER * min(far) < math.inf and max(far) > 0:
        closer = "a" if far[0] < far[1] else "b"
    ulps = None
    if leaf.epsilon and first is not None and second is not None:
        ulps = first / leaf.epsilon, second / leaf.epsilon
    return one._replace(
        closer=closer, error_a=first, error_b=second, ulps=ulps, reason=reason
    )


def _place(
    leaf: Leaf,
    x: np.ndarray,
    y: np.ndarray,
    clouds: list[Cloud],
    formats: dict[str, np.ndarray],
    is_plain: bool,
) -> ExplainedLeaf:
    difference = subtract(x, y)
    now = sample(difference)
    far = float(now[0])
    seen = {
        rung: [x for c in clouds if c.rung == rung for x in c.samples[:, 0]]
        for rung in RANDOM
    }
    scales = {rung: float(np.median(v)) for rung, v in seen.items() if v}
    scales |= {name: rms(formats[name]) for name in formats}
    # A format that overflows here makes no difference to compare with.
    scales = {name: scale for name, scale in scales.items() if 0 < scale < math.inf}
    ratios: dict[str, float | None] = dict.fromkeys((*RANDOM, *FORMATS))
    size = rms(np.where(np.isfinite(y), y, 0))
    relative = far / size if size else 0.0

    def placed(rung: str, *others: str, reason: str = "") -> ExplainedLeaf:
        plausible = tuple(dict.fromkeys((rung, *others)))
        return ExplainedLeaf(leaf.path, rung, far, relative, ratios, plausible, reason)

    if not math.isfinite(far):
        broken = placed("beyond", reason="finite in one of the two alone")
        return broken._replace(difference=None, relative=None)
    ratios |= {name: far / scale for name, scale in scales.items()}
    if far == 0:
        return placed("identical")
    near = [c for c in clouds if np.all(now[:2] <= MARGIN * c.samples.max(0)[:2])]
    if near:
        overlap = [rung for rung, v in seen.items() if v and min(v) <= far <= max(v)]
        return placed(_nearest(now, near, is_plain), *overlap)
    sized = [n for n in formats if WITHIN[0] <= (ratios[n] or 0.0) <= WITHIN[1]]
    alike = [name for name in sized if _same_pattern(difference, formats[name])]
    if alike:
        return placed(min(alike, key=lambda name: abs(math.log(far / scales[name]))))
    other = f"of the size of {' and '.join(sized)}, in another pattern"
    return placed("beyond", reason=other if sized else _between(ratios))


def _between(ratios: dict[str, float | None]) -> str:
    """Where a difference lies that no rung holds."""
    below = [name for name, r in ratios.items() if r is not None and r > 1]
    above = [name for name, r in ratios.items() if r is not None and r <= 1]
    if not above:
        return "larger than all" if below else "no noise moves this leaf"
    return f"between {below[-1]} and {above[0]}" if below else f"below {above[0]}"


def _nearest(now: np.ndarray, clouds: list[Cloud], is_plain: bool) -> str:
    chosen = [c.single if is_plain else c.pairs for c in clouds]
    chosen = [x if len(x) else c.samples for x, c in zip(chosen, clouds, strict=True)]
    here, *points = (
        np.column_stack([np.log10(x[:, 0]), x[:, 2]]) for x in (now[None], *chosen)
    )
    # One scale for all clouds, or the widest would draw everything to itself.
    spread = np.sqrt(np.mean([p.var(0) for p in points], axis=0)) + 0.05
    far = [float(np.sum(((here[0] - p.mean(0)) / spread) ** 2)) for p in points]
    return clouds[int(np.argmin(far))].rung


def _same_pattern(x: np.ndarray, y: np.ndarray) -> bool:
    """Whether two differences are alike but for their size."""
    least = PATTERN * np.linalg.norm(x) * np.linalg.norm(y)
    return x.size < PATTERN_SIZE or bool(abs(np.vdot(x, y)) >= least)


# Two noises are on the rung of rounding: errors of one operation, and at most an ulp.
RANDOM: dict[str, tuple[specs.NoiseSpec, ...]] = {
    "order": (specs.ReductionOrder(granularity="element"),),
    "rounding": (specs.StochasticRounding(), specs.UlpPerturbation()),
}
FORMATS = ("tf32", "bf16")


class Cloud(NamedTuple):
    """Differences that one noise makes in one leaf, those that are not zero.

    A `sample` in each row: `single` of noisy runs from the plain one, `pairs` of two
    noisy runs.
    """

    rung: str
    single: np.ndarray
    pairs: np.ndarray

    @property
    def samples(self) -> np.ndarray:
        """Of both kinds."""
        return np.concatenate([self.single, self.pairs])


class Ladder(NamedTuple):
    """What each rung does to a function at its arguments, measured once.

    Attributes:
        tree: the result without noise; `plain`: as arrays, compiled and not.
        signs: what makes results comparable that depend on signs of vectors.
        clouds: differences under random noises, for each leaf.
        formats: the difference that each narrower format makes, leaf by leaf.
        notes: what no noise reached, and library routines.
    """

    tree: Any
    plain: tuple[Result, Result]
    signs: Signs
    clouds: list[list[Cloud]]
    formats: dict[str, Result]
    draws: int
    notes: tuple[str, ...] = ()


def ladder(call: BoundCall, key: Array, *, draws: int) -> Ladder:
    """Runs a call under the noise of every rung; `draws` as for `explain`."""
    compiled = inject(call.fn, specs.UlpPerturbation(), only=())
    tree = call._replace(fn=compiled).result(key)
    clean = wide_leaves(tree)
    free = signs(call, clean)

    def values(result: Any) -> Result:
        return free.settled(wide_leaves(result))

    every = specs.compose(*itertools.chain.from_iterable(RANDOM.values()))
    formats = {}
    for name in FORMATS:
        spec = specs.ReducedPrecision(name)
        if _acts(spec, call):
            result = call._replace(fn=inject(call.fn, spec)).result(key)
            formats[name] = list(map(subtract, values(result), clean))
    plain = clean, values(call.result())
    clouds = _clouds(call, values, clean, key, draws)
    notes = reach_notes(call.reaches(with_routines(every)))
    return Ladder(tree, plain, free, clouds, formats, draws, notes)


def _acts(spec: specs.NoiseSpec, call: BoundCall) -> bool:
    return bool(coverage(call.fn, spec)(*call.args, **call.kwargs).perturbed)


def _clouds(
    call: BoundCall, values: Callable, clean: Result, key: Array, draws: int
) -> list[list[Cloud]]:
    """The clouds of every leaf, one for each noise that acts on the function."""
    clouds: list[list[Cloud]] = [[] for _ in clean]
    for rung, spec in [(rung, s) for rung, noises in RANDOM.items() for s in noises]:
        spec = with_routines(spec)
        if not _acts(spec, call):
            continue
        single: list[list[np.ndarray]] = [[] for _ in clean]
        pairs: list[list[np.ndarray]] = [[] for _ in clean]
        before = None
        for result in call.draw(inject(call.fn, spec), key, draws):
            now = values(result)
            for others, samples in ((clean, single), (before, pairs)):
                for x, y, of_leaf in zip(now, others or [], samples, strict=False):
                    drawn = sample(subtract(x, y))
                    of_leaf += [drawn] * bool(0 < drawn[0] < math.inf)
            before = now
        for cloud, *samples in zip(clouds, single, pairs, strict=True):
            if any(samples):
                cloud.append(Cloud(rung, *(np.reshape(x, (-1, 3)) for x in samples)))
    return clouds


def sample(difference: np.ndarray) -> np.ndarray:
    """Of a difference the RMS, the largest element, the fraction that differs: [3]."""
    largest = float(np.max(np.abs(difference), initial=0))
    fraction = np.count_nonzero(difference) / max(1, difference.size)
    return np.array([rms(difference), largest, fraction])
