"""How many decimal digits of a result are significant.

docs/noise/digits.md has D(p), the digits that an element has with probability p, and
its source (Sohier et al., ACM TOMS 47(2), 2021). Since the standard deviation of n runs
is an estimate, with confidence c the digits are at least

    D(p) - 1/2 log10((n - 1) / chi2(1 - c; n - 1))

An element that is infinite in some runs alone has none.
"""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import numpy as np
from jax import Array

from prednet_jax.noise import quantiles
from prednet_jax.noise._inject import inject
from prednet_jax.noise.errors import expect, integer
from prednet_jax.noise.questions.leaves import (
    describe_leaves,
    rms,
)
from prednet_jax.noise.questions.sampling import (
    BoundCall,
    computation_part,
    reach_notes,
    sample_moments,
    unreached_leaves,
    with_routines,
)
from prednet_jax.noise.questions.tables import (
    format_table,
)
from prednet_jax.noise.specs import FixedOrder, NoiseSpec, ReducedPrecision, parts


class DigitsRow(NamedTuple):
    """One leaf of the table of digits.

    Attributes:
        worst: digits of the element that has fewest; `median`: over the elements.
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
    """The significant digits of a result.

    Attributes:
        rows: one per leaf that has elements.
        elements: what `digits` returns.
        notes: what noise did not reach, and library routines.
    """

    rows: tuple[DigitsRow, ...]
    draws: int
    elements: Any
    notes: tuple[str, ...] = ()

    def __str__(self) -> str:
        head = ("significant digits", "worst", "median", "whole", "assured", "of")
        rows = []
        for r in self.rows:
            numbers = r.worst, r.median, r.whole, r.assured
            known = [f"{number:.1f}" if r.reached else "-" for number in numbers]
            leaf = f"{r.path} {r.dtype}{list(r.shape)}"
            rows.append((leaf, *known, f"{r.precision:.1f}"))
        last = (
            f"{self.draws} draws; assured: of the whole leaf, in {ASSURED:.0%} of "
            f"runs, with {ASSURED:.0%} confidence, if errors are normal"
        )
        return "\n".join([*format_table(head, rows, "<>>>><"), last, *self.notes])

    def to_json(self) -> dict[str, Any]:
        """Numbers and texts; without `elements`."""
        rest = {name: x for name, x in self._asdict().items() if name != "elements"}
        return rest | {"assured": ASSURED}


# Probability and confidence of the column `assured`: the defaults of significantdigits.
ASSURED = 0.95


def digits(fn: Callable, spec: NoiseSpec, *, draws: int = 16) -> Callable[..., Any]:
    """Significant decimal digits of every element of the result of `fn`: D(0.5).

    Args:
        fn: as for `inject`.
        spec: the noise, such as `parse("reduction_order+stochastic_rounding")`.
        draws: number of runs, 2 or more.

    Returns:
        `measure(key, *args, **kwargs)`, a pytree like the result of `fn`, of float64
            arrays of its shapes, finite, from 0 to the digits of the type: 7.2 for
            float32, 2.4 for bfloat16. What is no floating-point number is exact unless
            noise changes it.

    Raises:
        NoiseError: as for `inject`, `spec` acts on no computation, or is the same in
            every run, as bfloat16 is.
    """
    table = digits_table(fn, spec, draws=draws)
    return lambda key, /, *args, **kwargs: table(key, *args, **kwargs).elements


def digits_table(
    fn: Callable, spec: NoiseSpec, *, draws: int = 16
) -> Callable[..., DigitsTable]:
    """As `digits`, and a row for each leaf: `print(digits_table(fn, spec)(key, x))`."""
    integer("draws", draws, 2)
    each = "a noise that differs from run to run; `tolerance` takes others"
    differ = (
        not isinstance(part, ReducedPrecision | FixedOrder)
        and not getattr(part, "deterministic", False)
        for part in parts(computation_part(spec))
    )
    expect(any(differ), "spec", spec, each)
    spec = with_routines(spec)
    noisy = inject(fn, spec)
    # How far D(0.95) with confidence lies below D(0.5).
    z, cautious = quantiles.two_sided(0.5), quantiles.two_sided(1 - ASSURED)
    caution = math.log10(cautious / z * quantiles.spread_bound(draws, ASSURED))

    def measure(key: Array, /, *args: Any, **kwargs: Any) -> DigitsTable:
        call = BoundCall(fn, args, kwargs)
        tree, means, spreads = sample_moments(call.draw(noisy, key, draws))
        reaches = call.reaches(spec)
        columns = describe_leaves(tree), means, spreads, unreached_leaves(tree, reaches)
        every, rows = [], []
        for leaf, mean, spread, blind in zip(*columns, strict=True):
            elements = _digits(mean, z * spread, leaf.precision, blind)
            every.append(elements)
            if not elements.size:
                continue
            # An infinite mean is no size to measure the others by.
            size = rms(np.where(np.isinf(mean), 0, mean))
            error = z * rms(spread)
            whole = float(_digits(size, error, leaf.precision, blind))
            assured = float(_digits(size, error * 10**caution, leaf.precision, blind))
            median = float(np.median(elements))
            numbers = float(elements.min()), median, whole, assured
            rows.append(DigitsRow(*leaf[:3], *numbers, leaf.precision, not blind))
        elements = jax.tree.unflatten(jax.tree.structure(tree), every)
        return DigitsTable(tuple(rows), draws, elements, reach_notes(reaches))

    return measure


def _digits(mean: Any, error: Any, precision: float, blind: bool) -> np.ndarray:
    """-log10(error / |mean|), from 0 to the precision of the type; 0 if not known."""
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        digits = -np.log10(np.divide(error, np.abs(mean)))
    digits = np.where(np.equal(error, 0), precision, digits)
    digits = np.where(np.isnan(digits) | np.isnan(mean) | blind, 0.0, digits)
    return np.asarray(np.clip(digits, 0.0, precision), np.float64)
