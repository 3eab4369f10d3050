"""The band in which the losses of equal trainings lie, and whether a curve leaves it.

A training step is run under noise, `draws` times from one state on the same batches.
With y the log loss (the loss itself where one is not positive), m_t its mean over the
draws and s_t^2 its variance, averaged over updates within 5 % of t,

    z_t = |y_t - m_t| / sqrt((1 + 1/draws) (s_t^2 + floor_t^2)).

The floor is one unit in the last place of the loss, or half a digit of a curve that was
printed with few digits. Noise begins at the size of rounding, grows, jumps where it
flips a decision, and ends as the scatter of repeated trainings ("redraws" in
study/pages/rule.md). So updates are judged in blocks 0, 1-2, 3-6, 7-14, ...: a curve is
beyond noise if in some block

    max_t z_t > c = exp(mean_i L_i + q sqrt(1 + 1/draws) sd_i L_i)

with L_i the log of the same maximum of draw i against all others, and q the quantile of
Student's t with draws - 1 degrees of freedom: a prediction bound for the maximum of one
more draw (G. J. Hahn, J. Am. Stat. Assoc. 64, 1969), in which correlation between
updates and heavy tails are contained; c is at least the largest exp(L_i). The blocks
share the error rate.

A rounding that is the same in every run, such as the one of the constant 0.999 of Adam,
does not show as noise. A curve outside of the band is therefore compared again, with
the interval from m_t to the training in float64 in place of m_t.

With few draws c is large. Where a curve lies between the bounds of few and of many
draws, `Band.compare` runs more of them, each look at a quarter of `RATE`.
"""

from __future__ import annotations

import dataclasses
import math
import time
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from jax import numpy as jnp

from prednet_jax.noise import quantiles
from prednet_jax.noise.errors import NoiseError, expect
from prednet_jax.noise.leaves import fits_in, given_array, real_numbers
from prednet_jax.noise.tables import format_table, joined

#: Probability of `beyond` for a training that differs by noise alone.
RATE = 0.01
# Times that `compare` may look: at the draws given, twice as many, and so on.
LOOKS = 4
# No curve within so many standard deviations is beyond noise, whatever the draws; the
# error rate of a normal number in a block.
WITHIN = 3.3
# Share of an update's number within which variances are averaged.
NEAR = 0.05

Curve = np.ndarray  # [T]
Curves = np.ndarray  # [n, T]


class Comparison(NamedTuple):
    """The result of comparing a curve with the band of equal trainings.

    Attributes:
        answer: `noise` or `beyond`.
        first: the first update outside of the band, counted from 0. None if the answer
            is `noise`.
        ratio: distance of the curve from the centre of the band over half its width, at
            `first`, or where it is largest if the answer is `noise`.
        relative: the same distance over the value of the centre.
        quantity: the curve that these numbers describe, `loss` or a metric's name.
        draws: number of noisy trainings that were used.
        note: a remark, such as how long more draws took.
    """

    answer: str
    first: int | None
    ratio: float
    relative: float
    quantity: str = "loss"
    draws: int = 0
    note: str = ""

    def __str__(self) -> str:
        where = "stays within the band"
        if self.first is not None:
            where = f"leaves the band at update {self.first}"
        gap = f"{self.ratio:.2g} half widths from its middle ({self.relative:.2g} "
        # A curve that is NaN or infinite has no distance.
        gap = f", {gap}relative)" if math.isfinite(self.ratio) else ""
        text = (
            f"{self.answer}: {self.quantity} {where}{gap}; {self.draws} draws, at most "
            f"{RATE:.0%} of equal trainings leave it"
        )
        return joined(text, self.note)


@dataclasses.dataclass(eq=False)
class Band:
    """The curves of equal trainings.

    Attributes:
        losses: loss of each noisy training at each update [draws, T].
        metrics: further curves [draws, T] by name.
        seconds: time that these trainings took, compilation included.
        most: largest number of noisy trainings that `compare` may use.
    """

    losses: Curves
    metrics: dict[str, Curves]
    seconds: float
    most: int
    _all: list[dict[str, Curves]] = dataclasses.field(repr=False)
    _draw: Callable[[int], dict[str, Curves]] = dataclasses.field(repr=False)
    _in_float64: Callable[[], tuple[dict[str, Curve], str]] = dataclasses.field(
        default=lambda: ({}, ""), repr=False
    )

    def compare(self, losses: object, /, **metrics: object) -> Comparison:
        """Compares the curves of another training with the band.

        Args:
            losses: losses [T] of a training that begins at the same weights and sees
                the same batches.
            **metrics: further curves [T] by the names of `Band.metrics`.

        Returns:
            The comparison. Up to `most` noisy trainings are run if they may change it.

        Raises:
            NoiseError: a curve has another length, or there is no metric of its name.
        """
        inputs = {"loss": losses, **metrics}
        for name in metrics:
            names = ", ".join(map(str, self.metrics))
            names = names or "none: the step returns no more"
            expect(name in self.metrics, "metric", name, f"one of the band's, {names}")
        length = self.losses.shape[1]
        arrays = {name: _curve(name, x, length) for name, x in inputs.items()}
        curves = {name: x.astype(float) for name, x in arrays.items()}
        precisions = {name: _precision(x) for name, x in arrays.items()}
        begun, before = time.perf_counter(), len(self._all)
        draws, rate = len(self.losses), RATE / LOOKS / len(curves)
        exact: dict[str, Curve] = {}
        note = ""
        while True:
            bounds = {
                n: _bounds(self._values(n, draws), x, rate, precisions[n])
                for n, x in curves.items()
            }
            judged = [_judge(n, curves[n], b) for n, b in bounds.items()]
            leaves = any(c.first is not None for c, _ in judged)
            if leaves and not exact:
                exact, note = self._in_float64()
            if exact:
                judged = [_judge(n, curves[n], b, exact[n]) for n, b in bounds.items()]
            if draws >= self.most or not any(undecided for _, undecided in judged):
                break
            draws = min(2 * draws, self.most)
        comparisons = [comparison for comparison, _ in judged]
        outside = [c for c in comparisons if c.first is not None]
        first = min(outside, key=lambda c: c.first or 0, default=None)
        worst = first or max(comparisons, key=lambda c: c.ratio)
        more = sum(len(x["loss"]) for x in self._all[before:])
        seconds = time.perf_counter() - begun
        cost = f"{more} more draws took {seconds:.2g} s" if more else ""
        if exact and leaves and not first:
            note = (
                "the training in float64 leaves the band too: a rounding that is the "
                "same in every draw explains the difference"
            )
        return worst._replace(draws=draws, note=joined(worst.note, note, cost))

    def _values(self, name: str, draws: int) -> Curves:
        """Returns the curves of some draws, and runs the draws that are missing."""
        have = sum(len(more["loss"]) for more in self._all)
        if have < draws:
            self._all.append(self._draw(draws - have))
        return np.concatenate([more[name] for more in self._all])[:draws]

    def __str__(self) -> str:
        length = self.losses.shape[1]
        shown = sorted({*np.geomspace(1, length, 8).astype(int) - 1, length - 1})
        rows, notes = [], []
        for name, values in [("loss", self.losses), *self.metrics.items()]:
            bounds = _bounds(values, values[0], RATE / LOOKS)
            low, high = bounds.interval()
            if bounds.end < length:
                count = f"{len(bounds.broken)} of {bounds.draws} draws"
                notes.append(f"{name}: {count} NaN or infinite, from {bounds.end} on")
            for t in [t for t in shown if t < bounds.end]:
                middle = float(bounds.values(bounds.center)[t])
                half = float(high[t] - low[t]) / 2
                relative = half / abs(middle) if middle else None
                rows.append([name, t, f"{middle:.6g}", half, relative])
        head = ["", "update", "middle", "half width", "relative"]
        last = (
            f"{len(self.losses)} draws in {self.seconds:.2g} s; compare(losses) runs "
            f"up to {self.most} if these do not decide"
        )
        return "\n".join([*format_table(head, rows, "<>>>>"), *notes, last])

    def to_json(self) -> dict[str, object]:
        """Returns the curves of all draws, and the seconds they took."""
        return {n: getattr(self, n) for n in ("losses", "metrics", "seconds")}


class _Bounds(NamedTuple):
    """The band of one quantity.

    Attributes:
        is_log: whether logarithms are compared.
        center: mean of the draws before `end`, on the scale that is compared.
        unit: scale of distances from the center.
        limit: half width of the band in these units.
        end: first update at which a draw is NaN or infinite, or the length.
        broken: first updates at which draws are NaN or infinite, for the ones that are.
        draws: number of draws.
        rate: probability that one more draw leaves the band.
    """

    is_log: bool
    center: Curve
    unit: Curve
    limit: Curve
    end: int
    broken: np.ndarray
    draws: int
    rate: float

    def scaled(self, losses: Curve) -> Curve:
        """Returns losses on the scale that is compared."""
        return np.log(losses) if self.is_log else losses

    def values(self, x: np.ndarray) -> np.ndarray:
        """Returns losses from numbers on the scale that is compared."""
        return np.exp(x) if self.is_log else x

    def nearest(self, y: Curve, exact: Curve | None) -> Curve:
        """Returns the points next to `y` between the center and the exact losses."""
        center = self.center[: len(y)]
        if exact is None:
            return center
        with np.errstate(divide="ignore", invalid="ignore"):
            x = self.scaled(exact[: len(y)])
        other = np.where(np.isfinite(x), x, center)
        return np.clip(y, np.minimum(center, other), np.maximum(center, other))

    def interval(self) -> tuple[Curve, Curve]:
        """Returns the ends of the band as losses."""
        half = self.limit * self.unit
        return self.values(self.center - half), self.values(self.center + half)


def _bounds(
    values: Curves,
    curve: Curve,
    rate: float,
    precision: Curve | None = None,
    *,
    updates: bool = False,
) -> _Bounds:
    """Returns the band of some draws for a curve, which an equal one leaves at `rate`.

    Args:
        values: the draws, in the type of the loss.
        curve: the curve; its sign chooses the scale.
        rate: probability that one more draw leaves the band.
        precision: largest rounding error of each number of the curve. Defaults to 0.
        updates: whether the numbers are updates: whole, and compared as they are.
    """
    info = jnp.finfo(values.dtype)
    values = values.astype(float)
    finite = np.isfinite(values)
    end = int(np.argmin(np.r_[finite.all(0), False]))
    inside = np.r_[values[:, :end], curve[None, :end]]
    is_log = not updates and bool((inside[np.isfinite(inside)] > 0).all())
    size = np.abs(values[:, :end]).max(0)
    # Losses that are zero in every draw have a floor too.
    floor = np.maximum(float(info.eps) * size, float(info.smallest_subnormal))
    own = np.zeros(end) if precision is None else precision[:end]
    y = values[:, :end]
    if is_log:
        # The logarithm of a rounded number is furthest from its own below it.
        start = curve[:end]
        share = np.divide(own, start, out=np.zeros(end), where=np.isfinite(start))
        y, floor, own = np.log(y), floor / size, -np.log1p(-np.minimum(share, 0.5))
    floor = np.maximum(floor, own)
    center, unit = _moments(y, floor)
    limit = _limits(y, floor, rate) if end else floor
    broken = np.argmin(finite, 1)[~finite.all(1)]
    return _Bounds(is_log, center, unit, limit, end, broken, len(values), rate)


def _precision(curve: np.ndarray) -> Curve:
    """Returns the largest rounding error of each number of a curve.

    It is half of the last digit if all numbers have few digits, either the same number
    of decimals or of significant digits, or half a unit in the last place of the type.
    A wide type may hold the numbers of a narrow one.
    """
    x = curve.astype(float)
    x = np.where(np.isfinite(x), x, 0)
    if not x.any():
        return x
    size = np.abs(x)
    own_types = [curve.dtype] if jnp.issubdtype(curve.dtype, jnp.floating) else []
    kinds = [k for k in (jnp.bfloat16, jnp.float16, *own_types) if fits_in(x, k)]
    error = np.zeros(len(x))
    if kinds:
        info = jnp.finfo(kinds[0])
        error = float(info.eps) / 2 * np.maximum(size, float(info.smallest_normal))

    def printed(form: str) -> bool:
        texts = np.array([float(format(number, form)) for number in x])
        return bool((texts.astype(curve.dtype).astype(float) == x).all())

    for digits in range(1, 7):
        if printed(f".{digits}f"):
            error = np.maximum(error, 0.5 * 10.0**-digits)
            break
    for digits in range(2, 8):
        if printed(f".{digits}g"):
            exponent = np.floor(np.log10(np.where(size > 0, size, 1)))
            own = 0.5 * 10.0 ** (exponent + 1 - digits)
            if (x == np.round(x)).all():  # Such as the constant 100, which is exact.
                own = np.minimum(own, 0.5)
            return np.maximum(error, np.where(size > 0, own, 0))
    return error


def _moments(y: Curves, floor: Curve) -> tuple[Curve, Curve]:
    """Returns for each update the mean, and the unit of another curve's distance."""
    draws, length = y.shape
    total = np.r_[0, np.cumsum(y.var(0, ddof=1))]
    t = np.arange(length)
    reach = np.maximum(1, NEAR * t).astype(int)
    low, high = np.maximum(0, t - reach), np.minimum(length, t + reach + 1)
    variance = (total[high] - total[low]) / (high - low)
    unit = np.hypot(np.sqrt(np.maximum(variance, 0)), floor)
    return y.mean(0), math.sqrt(1 + 1 / draws) * unit


def _limits(y: Curves, floor: Curve, rate: float) -> Curve:
    """Returns for each update the bound of z; any is exceeded at `rate` [T]."""
    draws, length = y.shape
    distances = []
    for i in range(draws):
        center, unit = _moments(np.delete(y, i, 0), floor)
        distances.append(np.abs(y[i] - center) / unit)
    starts = 2 ** np.arange(length.bit_length()) - 1
    largest = np.maximum.reduceat(distances, starts[starts < length], 1)
    logs = np.log(np.maximum(largest, 1))
    quantile = quantiles.student(rate / logs.shape[1], draws - 1)
    spread = math.sqrt(1 + 1 / draws) * logs.std(0, ddof=1)
    limits = np.exp(np.maximum(logs.mean(0) + quantile * spread, logs.max(0)))
    limits = np.maximum(WITHIN, limits)
    return np.repeat(limits, np.diff([*starts[starts < length], length]))


def _judge(
    name: str, curve: Curve, bounds: _Bounds, exact: Curve | None = None
) -> tuple[Comparison, bool]:
    """Returns the comparison with a band, and whether more draws may change it.

    Args:
        name: the quantity.
        curve: the curve.
        bounds: the band.
        exact: the curve of the training in float64.
    """
    broken = np.flatnonzero(~np.isfinite(curve))
    stop = min([bounds.end, *broken[:1].tolist()])
    y = bounds.scaled(curve[:stop])
    center = bounds.nearest(y, exact)
    with np.errstate(over="ignore"):
        z = np.abs(y - center) / bounds.unit[:stop]
    ratios = z / bounds.limit[:stop]
    over = np.flatnonzero(ratios > 1)
    first = int(over[0]) if over.size else None
    undecided = bool((z[:first] > WITHIN).any())
    result = Comparison("noise", None, 0.0, math.inf, name)
    if stop:
        at = int(np.argmax(ratios)) if first is None else first
        middle = float(bounds.values(bounds.center[at : at + 1])[0])
        relative = float(abs(curve[at] / middle - 1)) if middle else math.inf
        result = result._replace(ratio=float(ratios[at]), relative=relative)
    if first is not None:
        return result._replace(answer="beyond", first=first), undecided
    # If only some draws become NaN, noise decides whether a training does.
    if 0 < len(bounds.broken) < bounds.draws:
        count = f"{len(bounds.broken)} of {bounds.draws}"
        note = f"{count} draws become NaN or infinite too"
        return result._replace(note=note), undecided
    beyond = Comparison("beyond", stop, math.inf, math.inf, name)
    if bool(broken.size) != bool(bounds.broken.size):
        who = "the curve" if broken.size else "every draw"
        note = f"{who} is NaN or infinite from update {stop} on, and not the other"
        # Draws that all stay finite have decided; draws that all break may be few.
        return beyond._replace(note=note), not broken.size
    if broken.size:
        # The update at which a training breaks varies between draws as well.
        begin, begins = broken[:1] + 0.0, bounds.broken[:, None] + 0.0
        half = np.array([0.5])
        of_updates = _bounds(begins, begin, bounds.rate, half, updates=True)
        when, more = _judge(name, begin, of_updates)
        many = f"{bounds.broken.min()} to {bounds.broken.max()}"
        note = f"NaN or infinite from update {broken[0]} on, the draws from {many} on"
        undecided = undecided or more
        result = beyond if when.first is not None else result
        if not stop:
            result = result._replace(ratio=math.inf)
        return result._replace(note=note), undecided
    return result, undecided


def _curve(name: str, x: object, length: int) -> np.ndarray:
    """Returns a curve in its own type, and refuses one of another length."""
    array = given_array(x, name, "one number for each update")
    real_numbers(array, name)
    if array.shape != (length,):
        raise NoiseError(
            f"{name} of shape {list(array.shape)}: expected one number for each of "
            f"the {length} updates of the band, [{length}]; for a shorter curve, give "
            "noise.training the batches of its updates alone"
        )
    return array
