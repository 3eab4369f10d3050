"""Compares the observed difference of two results with the effects of its causes.

A format's effect on a leaf is the difference that it makes there. It explains a share
of the observed difference d: 1 - |d - effect|^2 / |d|^2, for either sign of the effect.
"""

import functools
import math
import operator
from collections.abc import Iterator

import numpy as np
from jax import numpy as jnp

from prednet_jax.noise.leaves import Leaf, equal_elements, fits_in, rms, subtract
from prednet_jax.noise.questions.precision import CASTS
from prednet_jax.noise.questions.reference import (
    FORMAT_RUNGS,
    RANDOM,
    RATIO_LIMIT,
    NoiseReference,
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
ALIKE = 1 - REPEATED**2
# The largest probability that some sum of effects explains a random difference.
LUCK = 1e-3
# So many binary digits, after the second of each number, tell in which format it is.
DIGITS = 16
# Formats narrower than float32, the finest first, by the names of their rungs.
NARROW = {
    np.dtype(np.float16): "fp16",
    np.dtype(jnp.bfloat16): "bf16",
    **{np.dtype(getattr(jnp, n)): "fp8" for n in ("float8_e4m3fn", "float8_e5m2")},
}
# A difference whose |cosine| with the value is larger is a factor of the value.
FACTOR = 0.99


class ObservedLeaf:
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
        effects: the differences that formats and casts make in the leaf; 0 where the
            leaf is broken.
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
        self.effects = {n: self._known(e[i]) for n, e in reference.effects.items()}
        typical = {n: float(np.median(v)) for n, v in reference.sizes(i).items() if v}
        typical |= {name: rms(effect) for name, effect in self.effects.items()}
        size = rms(self.difference)
        # A format that overflows here makes no difference to compare with.
        by_name = {name: size / x for name, x in typical.items() if 0 < x < math.inf}
        self.ratios = {n: by_name.get(n) for n in (*RANDOM, CASTS, *FORMAT_RUNGS)}
        low, high = FORMAT_RATIO_RANGE
        ratios = {name: by_name.get(name, 0.0) for name in self.effects}
        self.sized = {name: r for name, r in ratios.items() if low <= r <= high}
        # Elements, or weights behind them if there are fewer.
        self.weights = min(difference.size, reference.weights)

    def _known(self, effect: np.ndarray) -> np.ndarray:
        """Returns an effect without the elements that have no finite difference."""
        return np.where(self.broken, 0, effect)

    def breaks(self, name: str) -> bool:
        """Returns whether a format or casts make what has no finite difference.

        The value that is finite then differs by noise from the value here, or is about
        the value without casts if that here is not finite.
        """
        reference, noise = self.reference, self.noise
        plain, effect = reference.plain[0][self.i], reference.effects[name][self.i]
        if np.any(self.broken & np.isfinite(effect)):
            return False
        is_lost = ~np.isfinite(plain)
        for x in self.pair:
            finite = self.broken & np.isfinite(x)
            gap = np.where(finite & ~is_lost, subtract(x, plain), 0)
            if noise.outside(gap, RATIO_LIMIT, reference.flips).number:
                return False
            if not np.any(finite & is_lost):
                continue
            if name != CASTS:
                return False
            wide = reference.uncast[self.i][finite & is_lost]
            gap = np.abs(subtract(x[finite & is_lost], wide))
            if not np.all(gap <= REPEATED * np.abs(wide)):
                return False
        return True

    def without_noise(self) -> Iterator[np.ndarray]:
        """Yields values without noise; the function is called only if asked for."""
        yield from (plain[self.i] for plain in self.reference.plain)
        yield self.reference.called[self.i]

    def is_plain(self) -> bool:
        """Returns whether one of the two values is a value without noise."""
        plain = self.without_noise()
        return any(equal_elements(x, p).all() for p in plain for x in self.pair)

    @functools.cached_property
    def stored(self) -> str:
        """The format to which one of the two results was rounded, or both, or "".

        Rounding keeps the order of numbers. So each number of a rounded result lies
        between the rounded ends of the interval that noise gives it here, and so do the
        parts of a complex number. The other result differs by noise.
        """
        plain, flips = self.reference.plain[0][self.i], self.reference.flips
        gaps = [subtract(x, plain) for x in self.pair]
        near = [self.noise.outside(x, RATIO_LIMIT, flips).number == 0 for x in gaps]
        limit = RATIO_LIMIT * self.noise.limits()
        plain, *pair = (np.stack([x.real, x.imag]) for x in (plain, *self.pair))
        for kind, name in NARROW.items():
            if fits_in(plain, kind):
                continue
            with np.errstate(over="ignore", invalid="ignore"):
                low, high = ((plain + s * limit).astype(kind) * 1.0 for s in (-1, 1))
            is_rounded = [
                fits_in(x, kind)
                and _has_digits(x)
                and bool(((low <= x) & (x <= high) | self.broken).all())
                for x in pair
            ]
            if any(is_rounded) and all(map(operator.or_, is_rounded, near)):
                return name
        return ""

    def share(self, name: str) -> float:
        """Returns the share of the squared difference that a format explains.

        The format may be that of all products, or only of some operands: a device
        multiplies small matrices in float32, and a program may cast the weights of one
        layer. The share is 0 if it is small, or if errors of any kind explain as much.
        """
        whole, part, _ = self._shares(name)
        return max(whole, part)

    def is_partial(self, name: str) -> bool:
        """Returns whether a format explains enough only in some operands."""
        return not self._shares(name)[0]

    def excludes(self, name: str) -> bool:
        """Returns whether a format, also of some operands, cannot make the difference.

        It is too large, or there are many numbers and the format explains few of them.
        """
        if (self.ratios[name] or 0.0) > FORMAT_RATIO_RANGE[1]:
            return True
        many = name in self.sized and self.difference.size > CHANCE**2
        return many and self._shares(name)[2] < SHARE

    def _shares(self, name: str) -> tuple[float, float, float]:
        """Returns the shares that count, of all and of some operands, and any share."""
        effect = self.effects[name]
        if self._is_factor(effect):
            return 0.0, 0.0, 0.0
        seen, least, _ = self._fit(effect)
        whole = seen
        if whole < least or (least >= ALIKE and not self._is_exact(name, whole)):
            whole = 0.0
        if whole >= ALIKE:
            return whole, 0.0, seen
        parts = list(map(self._known, self.reference.parts(name, self.i)))
        compared = self._compared()
        subset = _adding_up(self.difference[compared], [x[compared] for x in parts])
        if not subset:
            return whole, 0.0, seen
        part, least, chance = self._of_operands(name, subset)
        for i in {*range(len(parts))} - {*subset} if part >= SHARE else ():
            # The effect of several is not the sum of their effects.
            more = sorted([*subset, i])
            if part < ALIKE and (better := self._of_operands(name, more))[0] > part:
                subset, (part, least, chance) = more, better
        # n effects have 2^n sums. Each explains a random difference of m independent
        # numbers to this share with a probability of about (1 - share)^(m / 2).
        found_by_luck = 2 ** len(parts) * (1 - part) ** (1 / chance**2 / 2)
        counts = part >= least and found_by_luck < LUCK
        return whole, part if counts else 0.0, max(seen, part)

    def _of_operands(self, name: str, subset: list[int]) -> tuple[float, float, float]:
        """Returns `_fit` of a format in some operands."""
        return self._fit(self._known(self.reference.together(name, subset, self.i)))

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
        delta, effect = self.difference[compared], effect[compared]
        if few or not np.isfinite(effect).all():
            return 0.0, 1.0, 1.0
        rest = min(_square(x) for x in (delta - effect, delta + effect))
        noises = self.reference.noises[self.i]
        deviations = (x[compared] for n in noises for x in n.deviations)
        cosines = [_cosine(x.astype(effect.dtype), effect) for x in deviations]
        chance = max(rms(np.array(cosines)), 1 / math.sqrt(delta.size))
        least = (CHANCE * max(chance, 1 / math.sqrt(self.weights))) ** 2
        share = max(0.0, 1 - rest / _square(delta))
        return share, min(max(SHARE, least), ALIKE), chance

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
        return np.nan_to_num(self.noise.ratios(difference, 1), nan=2.0) > 1

    def _is_factor(self, effect: np.ndarray) -> bool:
        """Returns whether the difference is a factor of the value, the effect not.

        A fault may scale a column: only elements that differ by more than their noise
        are compared. Where one of them is larger than all others, the effect looks like
        a factor too, but only a factor leaves nothing but noise.
        """
        differs = self._differs(self.difference)
        delta, value = self.difference[differs], self.value[differs]
        if _cosine(delta, value) <= FACTOR:
            return False
        rest = np.zeros_like(self.difference)
        rest[differs] = delta - value * np.vdot(value, delta) / np.vdot(value, value)
        is_exact = differs.sum() > 1 and not self.noise.outside(rest, 1, False).number
        return bool(is_exact) or _cosine(effect[differs], value) < FACTOR

    def repeats(self, name: str) -> bool:
        """Returns whether the difference is a format's effect, or its opposite."""
        effect = self.effects[name]
        gaps = [rms(subtract(self.difference, x)) for x in (effect, -effect)]
        return min(gaps) <= REPEATED * rms(effect)

    def is_within(self, name: str) -> bool:
        """Returns whether each element differs by no more than a format's effect."""
        effect = self.effects[name]
        return self.noise.within_effect(self.difference, effect, ELEMENT_RATIO)


def _has_digits(x: np.ndarray) -> bool:
    """Returns whether the different numbers of an array tell in which format they are.

    Numbers such as 3 and 0.25 are in all formats. The binary digits of the others are
    counted, from the third digit of each.
    """
    sizes = np.unique(np.abs(x[np.isfinite(x) & (x != 0)]).astype(float))
    mantissas = np.ldexp(np.frexp(sizes)[0], 24).astype(int)
    digits = 24 - np.log2(mantissas & -mantissas)
    return np.maximum(digits - 2, 0).sum() >= DIGITS


def _adding_up(difference: np.ndarray, effects: list[np.ndarray]) -> list[int]:
    """Returns the positions of the effects that nearly add up to a difference.

    They are chosen one by one, always the one that explains most. The difference may
    have either sign.
    """
    best: list[int] = []
    least = _square(difference)
    for sign in 1, -1:
        remainder, chosen = sign * difference, []
        candidates = [i for i, x in enumerate(effects) if np.isfinite(x).all()]
        while candidates:
            remainders = [remainder - effects[i] for i in candidates]
            sizes = list(map(_square, remainders))
            first = int(np.argmin(sizes))
            if sizes[first] >= _square(remainder):
                break
            remainder = remainders[first]
            chosen.append(candidates.pop(first))
        if _square(remainder) < least:
            best, least = chosen, _square(remainder)
    return best


def _square(x: np.ndarray) -> float:
    """Returns the sum of the squared sizes of an array's elements."""
    return float(np.vdot(x, x).real)


def _cosine(x: np.ndarray, y: np.ndarray) -> float:
    """Returns the size of the cosine of the angle between two arrays, 0 to 1."""
    size = np.linalg.norm(x) * np.linalg.norm(y)
    return float(abs(np.vdot(x, y)) / size) if size else 0.0
