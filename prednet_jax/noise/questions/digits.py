"""How many decimal digits of a result are significant.

Run a function n times under noise. Let m and s be mean and standard deviation (divisor
n - 1) of an element over the runs. If errors are normal, an element agrees with its
mean to at least

    D(p) = -log10(s / |m|) - log10(z(p)),     P(|N(0, 1)| <= z(p)) = p

decimal digits with probability p: the significant digits of D. Sohier, P. de Oliveira
Castro, F. Févotte, B. Lathuilière, E. Petit & O. Jamond ("Confidence intervals for
stochastic arithmetic", ACM TOMS 47(2), 2021; the centred normality hypothesis), in base
10. Since s is an estimate, with confidence c the digits are at least

    D(p) - 1/2 log10((n - 1) / chi2(1 - c; n - 1))

At p = 0.68, z = 1: the digits of D. S. Parker (1997). `digits` takes p = 1/2: half of
all runs have more digits, half have fewer.

Both are cut at 0 and at the precision of the type. An element that is the same in every
run has the type's precision: noise could not be seen. An element of mean 0 that varies,
or that is NaN, or infinite in some runs alone, has none. Of a leaf that is computed but
that noise does not reach nothing is known: no digits, and `-` in the table, which names
equations that noise does not reach (`coverage.reach`).

The error of library routines is modelled by a rounding of their operands
(`Elementwise.routines`). What noise does not touch is not counted: a biased algorithm
gives the same wrong digits in every run.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import numpy as np
from jax import Array

from prednet_jax.noise.errors import integer, unit_interval
from prednet_jax.noise.inject import inject
from prednet_jax.noise.questions import runs
from prednet_jax.noise.questions.runs import Leaf
from prednet_jax.noise.specs import NoiseSpec


class DigitsRow(NamedTuple):
    """One leaf of the table of digits.

    Attributes:
        path: of the leaf.
        dtype: of the leaf.
        shape: of the leaf.
        worst: digits of the element that has fewest.
        median: over the elements.
        whole: of the leaf as one vector: s and |m| are RMS over its elements.
        assured: what `whole` is at least in 95 % of runs, with 95 % confidence.
        precision: of the type; nothing has more.
        reached: whether noise acts on anything that the leaf is computed from. If not,
            though there is arithmetic, its digits are not known, and are 0 here.
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
    """The significant digits of a result, leaf by leaf.

    Attributes:
        rows: one per leaf that has elements.
        draws: number of runs.
        elements: what `digits` returns.
        notes: what noise did not reach, and library routines.
    """

    rows: tuple[DigitsRow, ...]
    draws: int
    elements: Any
    notes: tuple[str, ...] = ()

    def __str__(self) -> str:
        names = [f"{r.path} {r.dtype}{list(r.shape)}" for r in self.rows]
        width = max(map(len, ["significant digits", *names]))
        lines = [f"{'significant digits':{width}}  worst  median  whole  assured  of"]
        for name, r in zip(names, self.rows, strict=True):
            cells = [
                f"{number:.1f}" if r.reached else "-"
                for number in (r.worst, r.median, r.whole, r.assured)
            ]
            line = "  ".join(
                f"{c:>{w}}" for c, w in zip(cells, (5, 6, 5, 7), strict=True)
            )
            lines.append(f"{name:{width}}  {line}  {r.precision:.1f}")
        lines.append(
            f"{self.draws} draws; assured: of the whole leaf, in {ASSURED:.0%} of "
            f"runs, with {ASSURED:.0%} confidence, if errors are normal"
        )
        return "\n".join([*lines, *self.notes])

    def to_json(self) -> dict[str, Any]:
        """The rows as dictionaries of numbers and texts; without `elements`."""
        return {
            "rows": [{**r._asdict(), "shape": list(r.shape)} for r in self.rows],
            "draws": self.draws,
            "assured": ASSURED,
            "notes": list(self.notes),
        }


# Probability and confidence of the column `assured`: the defaults of significantdigits.
ASSURED = 0.95


def digits(
    fn: Callable, spec: NoiseSpec, *, draws: int = 16, probability: float = 0.5
) -> Callable[..., Any]:
    """Significant decimal digits of every element of the result of `fn`.

    Args:
        fn: as for `inject`.
        spec: the noise, such as `parse("reduction_order+stochastic_rounding")`.
        draws: number of runs, 2 or more.
        probability: p above, in (0, 1): the digits hold in this fraction of runs.

    Returns:
        `measure(key, *args, **kwargs)`, which gives a pytree like the result of `fn`.
        Its leaves are float64 NumPy arrays of the shapes of the result, finite, from 0
        to the digits of the leaf's type: 7.2 for float32, 2.4 for bfloat16. Integers,
        booleans and what is no number are exact unless noise changes them.

    Raises:
        NoiseError: when an option is outside what is accepted, or `spec` acts on no
            computation; on a call, as for `inject`.
    """
    table = digits_table(fn, spec, draws=draws, probability=probability)

    def measure(key: Array, /, *args: Any, **kwargs: Any) -> Any:
        return table(key, *args, **kwargs).elements

    return measure


def digits_table(
    fn: Callable, spec: NoiseSpec, *, draws: int = 16, probability: float = 0.5
) -> Callable[..., DigitsTable]:
    """As `digits`, and a row for each leaf: `print(digits_table(fn, spec)(key, x))`."""
    integer("draws", draws, 2)
    unit_interval("probability", probability)
    spec = runs.reaching(spec)
    noisy = inject(fn, spec)
    # How far D(0.95) with confidence lies below D(p).
    z, cautious = runs.two_sided(1 - probability), runs.two_sided(1 - ASSURED)
    caution = math.log10(cautious / z * runs.spread_bound(draws, ASSURED))

    def measure(key: Array, /, *args: Any, **kwargs: Any) -> DigitsTable:
        results = runs.draw(noisy, key, draws, args, kwargs)
        tree, means, spreads = runs.moments(results)
        reaches = runs.reaches(fn, spec, args, kwargs)
        unknown = runs.not_reached(tree, reaches)
        found, rows = [], []
        for leaf, mean, spread, blind in zip(
            runs.leaves(tree), means, spreads, unknown, strict=True
        ):
            elements = _digits(mean, z * spread, leaf.precision)
            if blind:
                elements = np.zeros_like(elements)
            found.append(elements)
            if elements.size:
                size, error = np.asarray(runs.rms(mean)), z * runs.rms(spread)
                whole = float(_digits(size, np.asarray(error), leaf.precision))
                row = _row(leaf, elements, 0.0 if blind else whole, caution)
                rows.append(row._replace(reached=not blind))
        elements = jax.tree.unflatten(jax.tree.structure(tree), found)
        return DigitsTable(tuple(rows), draws, elements, tuple(runs.notes(reaches)))

    return measure


def _row(leaf: Leaf, elements: np.ndarray, whole: float, caution: float) -> DigitsRow:
    # Where no noise was seen, its spread has no estimate and no bound.
    seen = whole < leaf.precision
    return DigitsRow(
        leaf.path,
        leaf.dtype,
        leaf.shape,
        worst=float(elements.min()),
        median=float(np.median(elements)),
        whole=whole,
        assured=max(whole - caution, 0.0) if seen else whole,
        precision=leaf.precision,
    )


def _digits(mean: np.ndarray, error: np.ndarray, precision: float) -> np.ndarray:
    """-log10(error / |mean|), cut at 0 and at the precision of the type."""
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        found = -np.log10(error / np.abs(mean))
    found = np.where(error == 0, precision, found)
    found = np.where(np.isnan(found) | np.isnan(mean), 0.0, found)
    return np.asarray(np.clip(found, 0.0, precision), np.float64)
