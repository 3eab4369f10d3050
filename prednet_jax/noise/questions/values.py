"""Computes values of a program, each from the reference's values before it.

Each is compared with the reference's value as in `distances`.
"""

import functools
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple

import jax
import numpy as np
from jax import Array
from jax import numpy as jnp
from jax.typing import ArrayLike

from prednet_jax.noise._inject import inject
from prednet_jax.noise.leaves import (
    describe_leaves,
    equal_elements,
    fits_in,
    rms,
    subtract,
    units_in_the_last_place,
    wide_leaves,
)
from prednet_jax.noise.questions import hints
from prednet_jax.noise.questions.distances import NoiseEffect
from prednet_jax.noise.questions.explain import explain
from prednet_jax.noise.questions.observed import NARROW
from prednet_jax.noise.questions.sampling import BoundCall, draw_keys, with_routines
from prednet_jax.noise.questions.segments import Program
from prednet_jax.noise.questions.widening import widened_program
from prednet_jax.noise.specs import NoiseSpec

# A value is too narrow if it is so many times nearer to the reference in float32.
NARROWER = 8.0
# In which a reference may be recorded, the one of the fewest digits first, and how many
# numbers tell it: some like .5 are in every format.
_FORMATS = {kind: NARROW[kind] for kind in map(np.dtype, (jnp.bfloat16, np.float16))}
_DISTINCT = 16
# For each value the differences that noise makes in it, in float64.
Drawn = Mapping[int, list[np.ndarray]]
_NOTHING: Mapping[int, Callable] = MappingProxyType({})


class SubstitutedValues:
    """The values of a program, each computed from the reference's before it."""

    def __init__(self, program: Program, known: Mapping[int, np.ndarray]) -> None:
        self.program, self.known = program, known
        types = program.types
        cast = {i: jax.numpy.asarray(x, types[i].dtype) for i, x in known.items()}
        self.given = cast, program.arrays
        self.plain = jax.device_get(program.alone(*self.given))
        # Lines that are running whatever layer is computed.
        segments = [program.segment([i], known) for i in known]
        every = [{x for n in nodes for x in n.sources} for nodes in segments if nodes]
        have_common = len(known) > 1 and every  # What returns an argument has no line.
        self.shared: set[str] = set.intersection(*every) if have_common else set()

    def function(
        self, numbers: Iterable[int], changed: Mapping[int, Callable] = _NOTHING
    ) -> Callable:
        """Returns some values as a function of the known ones and the arguments."""
        return lambda known, arrays: self.program.values(
            numbers, arrays, known, changed
        )

    def drawn(self, spec: NoiseSpec, key: Array, draws: int) -> Drawn:
        """Returns the differences that noise makes in each value.

        Values of the reference that the program has in a narrower type move by a step
        of it in each draw: what a later layer loses by that is no fault of its own.
        """
        noisy = inject(self.function(self.plain), with_routines(spec))
        random, results = np.random.default_rng(0), []
        for draw_key in draw_keys(key, draws):
            known, arrays = self.given
            known = known | {i: self._rounded(i, random) for i in self._narrowed}
            results.append(jax.device_get(noisy(draw_key, known, arrays)))
        plain = {i: _wide(x) for i, x in self.plain.items()}
        return {i: [subtract(_wide(x[i]), plain[i]) for x in results] for i in plain}

    @functools.cached_property
    def _narrowed(self) -> list[int]:
        """The numbers of values that are rounded when they are given to the program."""
        types = {i: x.dtype for i, x in self.given[0].items() if x.dtype in NARROW}
        return [i for i, kind in types.items() if not fits_in(self.known[i], kind)]

    def _rounded(self, i: int, random: np.random.Generator) -> Array:
        """Returns a value of the reference in the program's type, a step up or down."""
        x, dtype = self.known[i].astype(float), self.program.types[i].dtype
        # Each element that was rounded moves, or few draws would leave some without
        # noise of their own; zeros and others that the type holds stay.
        step = units_in_the_last_place(x, dtype)
        step[equal_elements(_wide(np.asarray(self.given[0][i])), x)] = 0
        return jnp.asarray(x + random.choice((-1, 1), x.shape) * step, dtype)

    def rungs(self, numbers: Sequence[int], key: Array) -> dict[int, str]:
        """Returns the rung by `explain` for values that differ by more than noise."""
        away = {
            i: subtract(_wide(self.known[i]), _wide(self.plain[i])) for i in numbers
        }
        finite = [i for i in numbers if np.isfinite(away[i]).all()]
        by_number = dict.fromkeys(numbers, "beyond")
        if finite:
            pair = ({i: side[i] for i in finite} for side in (self.plain, self.known))
            by_number |= explain(self.function(finite), *pair)(key, *self.given).rung
        return by_number

    def too_narrow(self, i: int) -> str:
        """Returns the format of a value that the reference has in float32, or ""."""
        nodes = self.program.segment([i], self.known)
        types = {var.aval.dtype for n in nodes for var in n.step.equation.outvars}
        formats = [name for kind, name in NARROW.items() if kind in types]
        narrow, theirs = _wide(self.plain[i]), _wide(self.known[i])
        away = rms(subtract(narrow, theirs))
        if not formats or away == 0:
            return ""
        own = self.program.types[i].dtype
        if own in NARROW and not fits_in(theirs, own):
            return NARROW[own]
        call = BoundCall(self.function([i]), self.given, {})
        (wide,) = widened_program(call, np.dtype(np.float32))(jax.random.key(0))
        return formats[-1] if NARROWER * rms(subtract(wide, theirs)) < away else ""

    def formats_there(self, beyond: Iterable[int]) -> dict[int, np.dtype]:
        """Returns the narrow formats to which the reference was rounded, by number.

        Args:
            beyond: the values whose difference is more than noise, and no factor. Only
                these show a rounding: pixels, too, are numbers of narrow formats.
        """
        types = self.program.types
        formats: dict[int, np.dtype] = {}
        floats = {i: x for i, x in self.known.items() if _is_wide(types[i].dtype)}
        for kind in _FORMATS:
            exact = {i: x for i, x in floats.items() if fits_in(x, kind)}
            shown = [
                _wide(exact[i]).ravel()
                for i in exact.keys() & set(beyond)
                if not fits_in(self.plain[i], kind)
            ]
            if shown and np.unique(np.concatenate(shown)).size >= _DISTINCT:
                formats = dict.fromkeys(exact, kind) | formats
        return formats | {i: x.dtype for i, x in floats.items() if x.dtype in _FORMATS}

    def format_of(self, i: int, formats: Mapping[int, np.dtype]) -> str:
        """Returns the format there of a value, or of one that it is computed from."""
        nodes = self.program.segment([i], self.known)
        read = (j for n in nodes for j in n.operands)
        return next((NARROW[formats[j]] for j in (i, *read) if j in formats), "")

    def rounded(self, formats: Mapping[int, np.dtype], drawn: Drawn) -> Drawn:
        """Returns the differences under noise where the reference was rounded, too.

        In each draw its values move by up to half a step of their format.
        """
        if not formats:
            return drawn
        (known, arrays), random = self.given, np.random.default_rng(0)
        there = {i: _wide(self.known[i]) for i in formats}
        differences: dict[int, list[np.ndarray]] = {i: [] for i in drawn}
        for draw in zip(*drawn.values(), strict=True):
            away = {
                i: random.uniform(-0.5, 0.5, there[i].shape)
                * units_in_the_last_place(there[i], kind)
                for i, kind in formats.items()
            }
            moved = {
                i: jnp.asarray(there[i] + x, known[i].dtype) for i, x in away.items()
            }
            results = jax.device_get(self.program.alone(known | moved, arrays))
            for i, noise in zip(drawn, draw, strict=True):
                by_input = subtract(_wide(results[i]), _wide(self.plain[i]))
                differences[i].append(noise + by_input + away.get(i, 0))
        return differences

    def factor(self, i: int, drawn: Sequence[np.ndarray]) -> str:
        """Returns the factor or offset that gives the reference, in words, or ""."""
        return hints.fitted_hint(self.plain[i], self.known[i], self._explains(i, drawn))

    def _explains(self, i: int, drawn: Sequence[np.ndarray]) -> Callable:
        """Returns the function that says whether a change leaves nothing but noise."""
        ours, theirs = self.plain[i], self.known[i]

        def explains(changed: np.ndarray, part: tuple[slice, ...]) -> bool:
            cut = [x[part] for x in drawn]
            return judge(changed[part].astype(ours.dtype), theirs[part], cut).over <= 1

        return explains

    def hint(self, i: int, drawn: Sequence[np.ndarray]) -> str:
        """Returns a hint to the cause, from a value and its lines."""
        ours, theirs, explains = self.plain[i], self.known[i], self._explains(i, drawn)

        def evaluate(changed: Mapping[int, Callable]) -> np.ndarray:
            return np.asarray(self.function([i], changed)(*self.given)[i])

        nodes = self.program.segment([i], self.known)
        return (
            hints.array_hint(ours, theirs, explains)
            or hints.program_hint(self.program, nodes, evaluate, theirs, explains)
            or self.factor(i, drawn)
            or hints.few_hint(ours, theirs, np.max(np.abs(drawn), 0), explains)
        )

    def where(self, i: int) -> tuple[tuple[str, ...], ...]:
        """Returns the lines of a value, those before it, and the arguments read.

        Lines that call those functions are among them, unless they call all layers.
        """
        nodes = self.program.segment([i], self.known)
        read = {i for n in nodes for i in n.operands} & self.known.keys()
        before = [n for n in self.program.nodes if read.intersection(n.results)]
        lines = dict.fromkeys(n.sources[0] for n in nodes if n.sources)
        after = dict.fromkeys(n.sources[0] for n in before if n.sources)
        callers = (line for n in nodes for line in n.sources[1:])
        lines |= dict.fromkeys(line for line in callers if line not in self.shared)
        elsewhere = tuple(line for line in after if line not in lines)
        return tuple(lines), elsewhere, tuple(self.program.arguments(nodes))


def _is_wide(dtype: np.dtype) -> bool:
    return jnp.issubdtype(dtype, jnp.floating) and dtype not in NARROW


def _wide(x: ArrayLike) -> np.ndarray:
    return wide_leaves(x)[0]


class Judged(NamedTuple):
    """A relative difference, the effect of noise, and its part of the bound."""

    difference: float | None
    expected: float
    ratio: float | None
    over: float


def judge(ours: ArrayLike, theirs: ArrayLike, drawn: Sequence[np.ndarray]) -> Judged:
    """Compares a value with the reference's.

    `drawn` are the differences that noise makes, in float64.
    """
    epsilon = describe_leaves(ours)[0].epsilon
    value, away = _wide(ours), subtract(_wide(ours), _wide(theirs))
    if not np.isfinite(away).all():
        return Judged(None, 0.0, None, math.inf)
    value = np.where(np.isfinite(value), value, 0)
    scale = rms(value) or 1.0
    effect = NoiseEffect(_row(value), epsilon)

    def distance(x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        finite = np.isfinite(x)
        relative = rms(x) / scale if epsilon else np.count_nonzero(x) / max(1, x.size)
        return np.array([relative if finite.all() else math.inf]), _row(x * finite)

    for x in drawn:
        effect.see(*distance(x))
    (relative,), (expected,) = distance(away)[0], effect.expected
    over = float(effect.judge(*distance(away)).over[0])
    # A unit in the last place is no fault, also of a copy, which noise never moves. In
    # narrow types it is as large as a fault.
    dtype = np.asarray(ours).dtype
    if _is_wide(dtype):
        unit = units_in_the_last_place(_row(value), np.finfo(dtype).dtype)
        over = min(over, 1.0) if (np.abs(_row(away)) <= unit).all() else over
    ratio = relative / expected if expected else None
    return Judged(float(relative), float(expected), ratio if relative else 0.0, over)


def _row(x: np.ndarray) -> np.ndarray:
    """Returns the real numbers of an array as one row, [1, m]."""
    parts = (x.real, x.imag) if np.iscomplexobj(x) else (x,)
    return np.stack(parts).reshape(1, -1)
