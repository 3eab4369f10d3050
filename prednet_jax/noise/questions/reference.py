"""Measures the effect of each cause of a difference on a function's result.

`NoiseReference` runs the function once under every random noise, in every format of
operands, and with and without the program's own rounding (`own_rounding`). `explain`
compares observed differences with these.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple

import jax
import numpy as np
from jax import Array, lax
from jax import numpy as jnp

from prednet_jax.noise import specs
from prednet_jax.noise.arguments import Outcome
from prednet_jax.noise.leaves import (
    Result,
    check_some,
    describe_leaves,
    rms,
    subtract,
    wide_leaves,
)
from prednet_jax.noise.loops import CheckError, LoopError
from prednet_jax.noise.plan import Step
from prednet_jax.noise.questions.elements import ElementNoise, takes_decisions
from prednet_jax.noise.questions.precision import CASTS, own_rounding
from prednet_jax.noise.questions.sampling import (
    BoundCall,
    draw_keys,
    reach_notes,
    with_routines,
)
from prednet_jax.noise.questions.signs import Signs, signs
from prednet_jax.noise.random_bits import Words
from prednet_jax.noise.rounding import steps
from prednet_jax.noise.rules.primitives import MATRIX_PRODUCTS
from prednet_jax.noise.run import Call, Evaluation, typed
from prednet_jax.noise.types import PyTree

# Two noises are on the rung of rounding: errors of one operation, and at most an ulp.
# Neither moves exact numbers: n - 1 of a whole number n is the same everywhere.
RANDOM: dict[str, tuple[specs.NoiseSpec, ...]] = {
    "order": (specs.ReductionOrder(granularity="element"),),
    "rounding": (specs.StochasticRounding(), specs.UlpPerturbation(keep_exact=True)),
}
# All terms of a sum added one after another; tried where the others are too small.
CHAIN = specs.ReductionOrder(granularity="element", chain="terms")
LONG_CHAIN = "a longer chain of additions, or another formula"
# An operand next to the middle of two numbers of a format is rounded to the other one
# in few runs. Noise that is n times as large makes it n times as frequent, so that 8
# draws show what 128 would; a jump that no draw shows then comes in less than one run
# of 300, as q (1 - q)^128 < 1 / 300 for every chance q of a jump.
JUMPS = specs.compose(*RANDOM["order"], specs.UlpPerturbation(16, keep_exact=True))
# From the finest on.
FORMAT_RUNGS = tuple(
    sorted(specs.FORMATS, key=lambda n: specs.FORMATS[n].mantissa, reverse=True)
)
RUNGS = ("identical", *RANDOM, CASTS, *FORMAT_RUNGS, "beyond")
# Limit of order and rounding, in units of the largest RMS or element seen.
RATIO_LIMIT = 4.0
# Most products, or shapes of products, whose effects are measured one by one.
MOST_COLUMNS = 32


class NoiseSamples(NamedTuple):
    """Differences that one noise makes in one leaf, those that are not zero.

    rung: the cause of the differences.
    single: [n, 3], a `sample` for each difference of a noisy run from the plain.
    pairs: [m, 3], a `sample` for each difference of two noisy runs.
    deviations: the differences of `single`, bfloat16 or complex64: they are many, and
        only their patterns are needed.
    """

    rung: str
    single: np.ndarray
    pairs: np.ndarray
    deviations: Sequence[np.ndarray]

    @property
    def samples(self) -> np.ndarray:
        """Both kinds, [n + m, 3]."""
        return np.concatenate([self.single, self.pairs])

    def holds(self, now: np.ndarray) -> bool:
        """Returns whether RMS and largest element of a sample are within the limit."""
        return bool(np.all(now[:2] <= RATIO_LIMIT * self.samples.max(0)[:2]))


class NoiseReference:
    """The effect of each cause on a function's result, measured once.

    Attributes:
        tree: the result without noise, at the highest precision.
        plain: the same as arrays, and with this device's rounding.
        signs: the signs of vectors, which make results comparable.
        noises: the differences under each random noise, for each leaf.
        elements: the noise of each element, for each leaf.
        effects: the difference that each format and the function's casts make, leaf by
            leaf.
        weights: the fewest operands of any product, on which a pattern can depend.
        flips: whether the function takes discrete decisions.
        notes: leaves that no noise reached, library routines, and the device's
            rounding.
    """

    def __init__(self, call: BoundCall, key: Array, *, draws: int) -> None:
        self.draws, self._key = draws, key
        own = own_rounding(call)
        self.tree = own.call.plain
        clean = wide_leaves(self.tree)
        self.signs: Signs = signs(own.call, clean)
        if self.signs.free:
            own = own_rounding(call, self.signs.settled)
        self._call, self._own, self._clean = call, own, clean
        self.flips = takes_decisions(call)
        products = [s for s in call.equations() if s.name in MATRIX_PRODUCTS]
        sizes = [atom.aval.size for s in products for atom in s.atoms[:2]]
        self.weights: int = min(filter(None, sizes), default=1 << 62)
        self.effects: dict[str, Result] = {}
        self._formats: FormatEffects | None = None
        if products:
            self._formats = FormatEffects(own.call, products, self._values, key)
            self.effects |= self._formats.whole()
        self.effects |= own.effects
        self.plain = [clean]
        if own.products:
            total = own.total() or [np.zeros(())] * len(clean)
            self.plain.append(list(map(np.add, clean, total)))
        self._wider: dict[str, list[tuple[NoiseSamples | None, ElementNoise]]] = {}
        self.noises: list[list[NoiseSamples]] = [[] for _ in clean]
        self.elements = self._element_noise()
        for rung, spec in [(r, s) for r, noises in RANDOM.items() for s in noises]:
            sampled = self._sampled(rung, spec, own.call, self.elements)
            for seen, samples in zip(self.noises, sampled, strict=True):
                if samples is not None:
                    seen.append(samples)
        every = specs.compose(*itertools.chain(*RANDOM.values()))
        reached = call.reaches(with_routines(every))
        self.notes = (*own.notes, *reach_notes(reached))

    @functools.cached_property
    def called(self) -> Result:
        """The result of the function itself, not compiled, as arrays."""
        return self._values(self._call.result())

    @functools.cached_property
    def uncast(self) -> Result:
        """The result without the casts of the function, which has some."""
        assert self._own.uncast is not None
        return self.signs.settled(self._own.uncast(self._key))

    def _values(self, result: PyTree) -> Result:
        return self.signs.settled(wide_leaves(result))

    def _element_noise(self) -> list[ElementNoise]:
        check_some(self.tree)
        described = zip(self._clean, describe_leaves(self.tree), strict=True)
        return [ElementNoise(x, leaf.epsilon) for x, leaf in described]

    def sizes(self, i: int) -> dict[str, list[float]]:
        """Returns the RMS of all differences of leaf `i`, by the cause."""
        noises = self.noises[i]
        return {
            rung: [v for c in noises if c.rung == rung for v in c.samples[:, 0]]
            for rung in RANDOM
        }

    def relative(self) -> list[float]:
        """Returns the largest RMS of the differences of each leaf, in units of its own.

        It is infinite for a leaf that noise makes NaN, infinite or different from zero.
        """
        shares = []
        for i, clean in enumerate(self._clean):
            moved = max(itertools.chain(*self.sizes(i).values()), default=0.0)
            size = rms(_finite(clean))
            share = moved / size if size else math.inf if moved else 0.0
            shares.append(math.inf if self.elements[i].broken.any() else share)
        return shares

    def parts(self, name: str, i: int) -> list[np.ndarray]:
        """Returns the effects of a format on leaf `i`, in one operand each.

        There are none for casts, and for a function of very many products.
        """
        formats = self._formats
        many = formats is not None and formats.columns > MOST_COLUMNS
        if formats is None or many or name not in FORMAT_RUNGS:
            return []
        return [self.together(name, [k], i) for k in range(2 * formats.columns)]

    def together(self, name: str, operands: list[int], i: int) -> np.ndarray:
        """Returns the effect of a format on leaf `i`, in some of these operands.

        It is not the sum of their effects, since each changes what the next ones round.
        It is NaN if the function has no result then.
        """
        effect = self._formats.effect(name, operands) if self._formats else None
        return effect[i] if effect else np.full(self._clean[i].shape, np.nan)

    def residual(self, name: str, i: int) -> float:
        """Returns how far noise moves leaf `i` from an effect; infinite for casts.

        It is 0 if the function has no result then.
        """
        if self._formats is None or name not in FORMAT_RUNGS:
            return math.inf
        try:
            residuals = self._formats.residuals(name, self.draws)
        except (CheckError, LoopError):
            return 0.0
        return max(rms(result[i]) for result in residuals)

    def wider(self, i: int) -> Iterator[tuple[str, NoiseSamples, ElementNoise]]:
        """Yields causes that are tried where the others are too small for leaf `i`.

        Each has the words for it, the leaf's differences and the noise of its elements.
        """
        causes: list[tuple[str, specs.NoiseSpec, BoundCall, str]]
        causes = [("order", CHAIN, self._own.call, LONG_CHAIN)]
        for name in self._own.effects.keys() - {CASTS}:
            words = f"two runs that both multiply in {name} on this device"
            causes.append((name, JUMPS, self._call, words))
        for rung, spec, call, words in causes:
            if words not in self._wider:
                elements = self._element_noise()
                sampled = self._sampled(rung, spec, call, elements)
                self._wider[words] = list(zip(sampled, elements, strict=True))
            samples, noise = self._wider[words][i]
            if samples is not None:
                yield words, samples, noise

    def _sampled(
        self,
        rung: str,
        spec: specs.NoiseSpec,
        call: BoundCall,
        elements: list[ElementNoise],
    ) -> list[NoiseSamples | None]:
        """Returns each leaf's differences under a noise, or None if none moves it."""
        spec = with_routines(spec)
        empty: list[NoiseSamples | None] = [None] * len(self._clean)
        if not any(step.action.any for step in call.equations(spec)):
            return empty
        single: list[list[np.ndarray]] = [[] for _ in empty]
        patterns: list[list[np.ndarray]] = [[] for _ in empty]
        pairs: list[list[np.ndarray]] = [[] for _ in empty]
        clean, before = self._clean, None
        if call is not self._own.call:
            clean = self.plain[-1]
        for result in call.draw(spec, self._key, self.draws):
            now = self._values(result)
            for x, y, noise, seen in zip(now, clean, elements, patterns, strict=True):
                deviation = subtract(x, y)
                noise.see(deviation)
                finite = _finite(deviation)
                largest = np.abs(finite).max(initial=0) or 1
                narrow = np.complex64 if np.iscomplexobj(x) else jnp.bfloat16
                seen.append((finite / largest).astype(narrow))
            for origins, samples in ((clean, single), (before, pairs)):
                for x, y, of_leaf in zip(now, origins or [], samples, strict=False):
                    drawn = sample(_finite(subtract(x, y)))
                    of_leaf += [drawn] * bool(drawn[0])
            before = now
        return [
            NoiseSamples(
                rung, np.reshape(alone, (-1, 3)), np.reshape(paired, (-1, 3)), seen
            )
            if alone or paired
            else None
            for alone, paired, seen in zip(single, pairs, patterns, strict=True)
        ]


class _RoundedOperands(Evaluation):
    """Evaluates a program with operands of products in narrower formats.

    Each operand has its number of a format, 1 for the first of `FORMAT_RUNGS`, and 0
    for none. The numbers are known at run time, so that all share one compiled program.
    """

    changes = "with operands of products in a narrower format"

    def __init__(self, columns: Mapping[str, int], formats: Array) -> None:
        super().__init__()
        self.columns, self.formats = columns, formats

    def first_order(self, call: Call, words: Words, operands: list) -> list:
        """Rounds the operands of products."""
        column = self.columns.get(call.step.path)
        if column is not None:
            a, b, *others = typed(call.step, operands)
            first, second = self.formats[column]
            operands = [self._rounded(a, first), self._rounded(b, second), *others]
        return super().first_order(call, words, operands)

    def _rounded(self, x: Array, which: Array) -> Array:
        if jnp.issubdtype(x.dtype, jnp.complexfloating):
            return x
        x = jnp.asarray(x)
        formats = (steps.to_format(name, x) for name in FORMAT_RUNGS)
        return lax.select_n(which, x, *formats)


class FormatEffects:
    """The differences that operands of products in a format make in a result.

    `columns` is the number of products, or of their shapes if there are many products.
    """

    def __init__(
        self,
        call: BoundCall,
        products: Sequence[Step],
        values: Callable[[PyTree], Result],
        key: Array,
    ) -> None:
        self._values, self._key = values, key
        paths = [step.path for step in products]
        # Products of the same shapes share a column where each alone would take long.
        same = paths if len(paths) <= MOST_COLUMNS else list(map(_shapes, products))
        numbers = {name: i for i, name in enumerate(dict.fromkeys(same))}
        self.columns: int = len(numbers)
        columns = {path: numbers[name] for path, name in zip(paths, same, strict=True)}
        self._hooks = functools.partial(_RoundedOperands, columns)
        self._call, self._run = call, call.hooked(specs.Identity(), self._hooks)
        self._plain = self._result(np.zeros((self.columns, 2), np.int32))
        self._effects: dict[tuple, Result | None] = {}
        self._residuals: dict[str, list[Result]] = {}

    def _result(self, formats: np.ndarray) -> Result:
        outcome = self._run(self._key, jnp.asarray(formats))
        return self._values(jax.device_get(outcome).result())

    def effect(self, name: str, operands: Sequence[int]) -> Result | None:
        """Returns the effect of a format in some operands, two of each column.

        It is None if there is no result: the function may refuse what the format makes,
        or not end.
        """
        asked = name, *sorted(operands)
        if asked not in self._effects:
            number = 1 + FORMAT_RUNGS.index(name)
            formats = np.zeros((self.columns, 2), np.int32)
            formats.flat[list(operands)] = number
            try:
                result = self._result(formats)
                self._effects[asked] = list(map(subtract, result, self._plain))
            except (CheckError, LoopError):
                self._effects[asked] = None
        return self._effects[asked]

    def whole(self) -> dict[str, Result]:
        """Returns the effects of all formats that have one, in all products."""
        every = range(2 * self.columns)
        effects = {name: self.effect(name, every) for name in FORMAT_RUNGS}
        return {name: x for name, x in effects.items() if x and any(map(np.any, x))}

    @functools.cached_property
    def _noisy(self) -> Callable[..., Outcome]:
        """The program under noise, compiled once for all formats."""
        return self._call.hooked(with_routines(specs.default()), self._hooks)

    def residuals(self, name: str, draws: int) -> list[Result]:
        """Returns what noise adds to the effect of a format in all products."""
        if name not in self._residuals:
            number = 1 + FORMAT_RUNGS.index(name)
            formats = np.full((self.columns, 2), number, np.int32)
            clean, of_format = self._result(formats), jnp.asarray(formats)
            outcomes = (
                self._noisy(key, of_format) for key in draw_keys(self._key, draws)
            )
            noisy = (self._values(jax.device_get(x).result()) for x in outcomes)
            self._residuals[name] = [list(map(subtract, x, clean)) for x in noisy]
        return self._residuals[name]


def _shapes(step: Step) -> str:
    return str([step.name, *(atom.aval for atom in step.atoms)])


def _finite(x: np.ndarray) -> np.ndarray:
    """Returns an array with zeros in place of NaN and infinities."""
    return np.where(np.isfinite(x), x, 0)


def sample(difference: np.ndarray) -> np.ndarray:
    """Returns RMS, largest element and fraction that differs of a difference, [3]."""
    largest = float(np.max(np.abs(difference), initial=0))
    fraction = np.count_nonzero(difference) / max(1, difference.size)
    return np.array([rms(difference), largest, fraction])
