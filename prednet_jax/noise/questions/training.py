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

import dataclasses
import functools
import math
import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

import jax
import numpy as np
from jax import Array, lax
from jax import numpy as jnp

from prednet_jax.noise import quantiles, random_bits
from prednet_jax.noise._inject import Traced, inject, traced
from prednet_jax.noise.arguments import Static, is_mutable, split
from prednet_jax.noise.errors import (
    NoiseError,
    check_draws,
    check_function,
    check_int,
    expect,
)
from prednet_jax.noise.leaves import as_array, fits_in, given_array, real_numbers
from prednet_jax.noise.loops import asking
from prednet_jax.noise.plan import plan
from prednet_jax.noise.questions.precision import Doubling, rounded_products
from prednet_jax.noise.questions.sampling import computation_part, reporting, say
from prednet_jax.noise.specs import Identity, NoiseSpec
from prednet_jax.noise.tables import format_table, joined
from prednet_jax.noise.types import Function, PyTree

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
        far = f"{self.ratio:.2g} half widths from its middle ({self.relative:.2g} "
        # A curve that is NaN or infinite has no distance.
        far = f", {far}relative)" if math.isfinite(self.ratio) else ""
        text = (
            f"{self.answer}: {self.quantity} {where}{far}; {self.draws} draws, at most "
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
        given = {"loss": losses, **metrics}
        for name in metrics:
            known = ", ".join(map(str, self.metrics))
            known = known or "none: the step returns no more"
            expect(name in self.metrics, "metric", name, f"one of the band's, {known}")
        length = self.losses.shape[1]
        arrays = {name: _curve(name, x, length) for name, x in given.items()}
        curves = {name: x.astype(float) for name, x in arrays.items()}
        precisions = {name: _precision(x) for name, x in arrays.items()}
        begun, before = time.perf_counter(), len(self._all)
        draws = len(self.losses)
        exact: dict[str, Curve] | None = None
        note = ""
        while True:
            bounds = {
                n: self._bounds(n, x, precisions[n], draws, RATE / LOOKS / len(curves))
                for n, x in curves.items()
            }
            judged = [_judge(n, curves[n], b, exact) for n, b in bounds.items()]
            if exact is None and any(c.first is not None for c, _ in judged):
                exact, note = self._in_float64()
                judged = [_judge(n, curves[n], b, exact) for n, b in bounds.items()]
            if draws >= self.most or not any(undecided for _, undecided in judged):
                break
            draws = min(2 * draws, self.most)
        comparisons = [comparison for comparison, _ in judged]
        outside = [c for c in comparisons if c.first is not None]
        first = min(outside, key=lambda c: c.first or 0, default=None)
        found = first or max(comparisons, key=lambda c: c.ratio)
        more = sum(len(x["loss"]) for x in self._all[before:])
        seconds = time.perf_counter() - begun
        cost = f"{more} more draws took {seconds:.2g} s" if more else ""
        alone = (_judge(n, curves[n], b)[0] for n, b in bounds.items())
        if exact and not first and any(c.first is not None for c in alone):
            note = (
                "the training in float64 leaves the band too: a rounding that is the "
                "same in every draw explains the difference"
            )
        note = joined(found.note, note, cost)
        return found._replace(draws=draws, note=note)

    def _bounds(
        self, name: str, curve: Curve, precision: Curve, draws: int, rate: float
    ) -> "_Bounds":
        """Returns the band of one quantity, and runs the draws that are missing."""
        have = sum(len(more["loss"]) for more in self._all)
        if have < draws:
            self._all.append(self._draw(draws - have))
        values = np.concatenate([more[name] for more in self._all])[:draws]
        return _bounds(values, curve, rate, precision)

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

    def values(self, x: np.ndarray) -> np.ndarray:
        """Returns losses from numbers on the scale that is compared."""
        return np.exp(x) if self.is_log else x

    def nearest(self, y: Curve, exact: Curve | None) -> Curve:
        """Returns the points next to `y` between the center and the exact losses."""
        center = self.center[: len(y)]
        if exact is None:
            return center
        x = exact[: len(y)]
        known = np.isfinite(x) & ((x > 0) | (not self.is_log))
        other = np.where(
            known, np.log(np.where(known, x, 1)) if self.is_log else x, center
        )
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
        given = curve[:end]
        share = np.divide(own, given, out=np.zeros(end), where=np.isfinite(given))
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
    given = [curve.dtype] if jnp.issubdtype(curve.dtype, jnp.floating) else []
    kinds = [k for k in (jnp.bfloat16, jnp.float16, *given) if fits_in(x, k)]
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
    name: str, curve: Curve, bounds: _Bounds, exact: Mapping[str, Curve] | None = None
) -> tuple[Comparison, bool]:
    """Returns the comparison with a band, and whether more draws may change it.

    Args:
        name: the quantity.
        curve: the curve.
        bounds: the band.
        exact: curves of the training in float64, by quantity.
    """
    end = bounds.end
    broken = np.flatnonzero(~np.isfinite(curve))
    stop = min([end, *broken[:1].tolist()])
    y = np.log(curve[:stop]) if bounds.is_log else curve[:stop]
    center = bounds.nearest(y, (exact or {}).get(name))
    with np.errstate(over="ignore"):
        z = np.abs(y - center) / bounds.unit[:stop]
    ratios = z / bounds.limit[:stop]
    over = np.flatnonzero(ratios > 1)
    first = int(over[0]) if over.size else None
    at = first if first is not None else int(np.argmax(ratios)) if stop else 0
    near = z[: stop if first is None else first] > WITHIN
    ratio = float(ratios[at]) if stop else 0.0
    middle = float(bounds.values(bounds.center[at : at + 1])[0]) if stop else math.nan
    relative = float(abs(curve[at] / middle - 1)) if stop and middle else math.inf
    result = Comparison("noise", None, ratio, relative, name)
    if first is not None:
        return result._replace(answer="beyond", first=first), bool(near.any())
    # If only some draws become NaN, noise decides whether a training does.
    if 0 < len(bounds.broken) < bounds.draws:
        count = f"{len(bounds.broken)} of {bounds.draws}"
        note = f"{count} draws become NaN or infinite too"
        return result._replace(note=note), bool(near.any())
    if bool(broken.size) != bool(bounds.broken.size):
        at, who = (int(broken[0]), "the curve") if broken.size else (end, "every draw")
        note = f"{who} is NaN or infinite from update {at} on, and not the other"
        # Draws that all stay finite have decided; draws that all break may be few.
        found = Comparison("beyond", at, math.inf, math.inf, name, note=note)
        return found, not broken.size
    if broken.size:
        # The update at which a training breaks varies between draws as well.
        begin, begins = broken[:1] + 0.0, bounds.broken[:, None] + 0.0
        half = np.array([0.5])
        of_updates = _bounds(begins, begin, bounds.rate, half, updates=True)
        when, undecided = _judge(name, begin, of_updates)
        many = f"{bounds.broken.min()} to {bounds.broken.max()}"
        note = f"NaN or infinite from update {broken[0]} on, the draws from {many} on"
        if when.first is not None:
            at = min(end, int(broken[0]))
            found = Comparison("beyond", at, math.inf, math.inf, name, note=note)
        else:
            ratio = ratio if stop else math.inf
            found = result._replace(note=note, ratio=ratio)
        return found, undecided or bool(near.any())
    return result, bool(near.any())


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


def training(
    step: Function,
    state: PyTree,
    batches: Iterable[PyTree] | Callable[[int], PyTree],
    *,
    updates: int | None = None,
    spec: NoiseSpec | None = None,
    draws: int = 8,
    most: int = 64,
) -> Callable[[Array], Band]:
    """Runs a training step under noise, for the band of curves of equal trainings.

    Args:
        step: pure function `step(state, batch) -> (state, loss)`, or `(state, (loss,
            metrics))` with a mapping, of which the floating-point numbers are kept.
        state: weights, optimiser, counters, PRNG keys: any pytree, which may hold Flax
            NNX objects.
        batches: sequence of batches, or a function of the update, counted from 0.
        updates: number of updates. Defaults to all of a sequence, and to 100 of a
            function.
        spec: noise. Defaults to `specs.default()`.
        draws: number of noisy trainings, 4 or more. They take `draws` times as long as
            one, and one compilation.
        most: largest number of noisy trainings that `Band.compare` may use if `draws`
            do not decide.

    Returns:
        `run(key)`, which gives the `Band`.

    Raises:
        NoiseError: there is no batch; on a call, as for `inject`, and when the step is
            not pure or changes the structure of its state.
    """
    check_function(step, "step")
    check_draws(draws, 4)
    check_draws(most, 4, "most")
    noise = computation_part(spec)
    many = _batches(batches, updates)

    def run(key: Array) -> Band:
        random_bits.check(key)
        program = NoisyTraining(step, state, next(many())[1], noise)

        def draw(count: int) -> dict[str, Curves]:
            nonlocal key
            key, own = random_bits.split(key, 2)
            return program.curves(random_bits.split(own, count), many())

        begun = time.perf_counter()
        curves = draw(draws)
        seconds = time.perf_counter() - begun
        metrics = {name: x for name, x in curves.items() if name != "loss"}
        limit = max(draws, most)
        in_float64 = functools.cache(lambda: program.in_float64(many()))
        return Band(curves["loss"], metrics, seconds, limit, [curves], draw, in_float64)

    return run


def _batches(
    batches: Iterable[PyTree] | Callable[[int], PyTree], updates: int | None
) -> Callable[[], Iterator[tuple[int, PyTree]]]:
    """Returns a function that gives the updates and their batches, from the first."""
    if updates is not None:
        check_int("updates", updates, 1)
    if callable(batches):
        count = 100 if updates is None else updates
        return lambda: ((t, batches(t)) for t in range(count))
    several = isinstance(batches, Iterable) or hasattr(batches, "__getitem__")
    # The elements of these are names or letters, no batches.
    several = several and not isinstance(batches, Mapping | str | bytes)
    several = several and getattr(batches, "shape", None) != ()
    expect(several, "batches", batches, "a list, or a function of the update")
    listed = batches if isinstance(batches, Sequence) else list(batches)
    expect(len(listed), "batches", batches, "one or more")
    count = len(listed) if updates is None else updates
    most = f"at most {len(listed)}, as many as batches, or batches as a function"
    expect(count <= len(listed), "updates", updates, most)
    return lambda: zip(range(count), listed, strict=False)


class NoisyTraining:
    """A training step under noise, compiled once, for many trainings at once.

    Attributes:
        arrays: arrays of the first state.
    """

    def __init__(
        self, step: Function, state: PyTree, batch: PyTree, spec: NoiseSpec
    ) -> None:
        def typed(x: PyTree) -> PyTree:
            is_number = isinstance(x, bool | int | float | complex)
            return np.asarray(x, jnp.asarray(x).dtype) if is_number else x

        state = jax.tree.map(typed, state, is_leaf=is_mutable)
        static, self.arrays, _ = split((state,))
        self.names: list[str] = []

        def advance(arrays: list[Array], batch: PyTree) -> tuple[list, list]:
            (before,), _ = static.filled(arrays)
            after, numbers = _checked(step(before, batch))
            static_after, arrays_after, _ = split((after,))
            if static_after != static:
                raise NoiseError(
                    f"step: its state is {static.tree} before and {static_after.tree} "
                    "after an update: expected the same leaves, of the same shapes"
                )
            for i, pair in enumerate(zip(arrays, arrays_after, strict=True)):
                shape, shape_after = (list(jnp.shape(x)) for x in pair)
                if shape != shape_after:
                    raise NoiseError(
                        f"step: array {i} of its state has shape {shape} before and "
                        f"{shape_after} after an update: expected the same"
                    )
            self.names = list(numbers)
            return arrays_after, list(numbers.values())

        _check_pure(advance, self.arrays, batch)
        self.advance = advance
        noisy = inject(advance, spec)

        def many(
            keys: Array, update: Array, arrays: list, given: list, static: Static
        ) -> tuple[list, list]:
            (batch,), _ = static.filled(given)

            def one(key_and_arrays: tuple[Array, list]) -> tuple[list, list]:
                key, arrays = key_and_arrays
                return noisy(jax.random.fold_in(key, update), arrays, batch)

            return lax.map(one, (keys, arrays))

        self.many = jax.jit(many, static_argnums=4)

    def curves(self, keys: Array, batches: Iterator[tuple[int, PyTree]]) -> dict:
        """Returns the curves [draws, T] by name, of one training for each key."""
        count = len(keys)
        arrays = [jnp.broadcast_to(x, (count, *jnp.shape(x))) for x in self.arrays]
        outputs = []
        with reporting(), asking():
            for update, batch in batches:
                say(f"update {update} of {count} noisy trainings")
                static, given, _ = split((batch,))
                inputs = np.uint32(update), arrays, given, static.checked()
                arrays, numbers = self.many(keys, *inputs)
                outputs.append(numbers)
            columns = zip(*jax.device_get(outputs), strict=True)
        return {n: np.stack(x, 1) for n, x in zip(self.names, columns, strict=True)}

    @reporting()
    def in_float64(
        self, batches: Iterator[tuple[int, PyTree]]
    ) -> tuple[dict[str, Curve], str]:
        """Returns the curves [T] by name in float64, without noise, and a note.

        There are no curves if a part of the step exists in narrow types only, or if
        this device rounds the step's products.
        """
        doubling, programs, rows = Doubling(), {}, []
        types: list = self.arrays
        arrays = list(map(jnp.array, types))
        try:
            for update, batch in batches:
                say(f"update {update} of the training in float64")
                static, given, _ = split((batch,))
                given = list(map(jnp.array, given))
                of_types = [(jnp.shape(x), str(x.dtype)) for x in (*types, *given)]
                kinds = static.checked(), *of_types
                if kinds not in programs:
                    program = self._traced(static, types, given)
                    if rounded_products(list(plan(program.jaxpr, Identity()).walk())):
                        return {}, ""
                    programs[kinds] = program, doubling.compiled(program)
                program, run = programs[kinds]
                with jax.enable_x64(True), asking():
                    wide = map(doubling.widened, (*arrays, *given))
                    arrays, numbers = jax.block_until_ready(run(*wide))
                rows.append(numbers)
                types, _ = program.shapes
            columns = np.array(jax.device_get(rows), float).T
        except Exception as error:  # Some primitives exist in narrow types only.
            why = str(error).partition("\n")[0]
            return {}, f"not compared with float64: {why}"
        return dict(zip(self.names, columns, strict=True)), ""

    def _traced(self, static: Static, arrays: list, given: list) -> Traced:
        """Returns the program of an update for a batch whose arrays are `given`."""

        def update(*arrays: Array) -> tuple[list, list]:
            count = len(self.arrays)
            (batch,), _ = static.filled(arrays[count:])
            return self.advance(list(arrays[:count]), batch)

        return traced(update, [*arrays, *given])


def _checked(result: PyTree) -> tuple[PyTree, dict[str, Array]]:
    """Returns the state after a step, and the loss and the metrics that are numbers."""
    expected = "step: expected (state, loss), or (state, (loss, {name: number}))"
    if not isinstance(result, tuple) or len(result) != 2:
        raise NoiseError(f"{expected}, not {type(result).__name__}")
    after, output = result
    is_pair = isinstance(output, tuple) and len(output) == 2
    loss, metrics = output if is_pair else (output, {})
    if not isinstance(metrics, Mapping):
        raise NoiseError(f"{expected}, not metrics of type {type(metrics).__name__}")
    if not _is_number(loss):
        kind = getattr(loss, "dtype", type(loss).__name__)
        shape = list(getattr(loss, "shape", ()))
        raise NoiseError(
            f"{expected}; the loss is {kind}{shape}, no floating-point array []"
        )
    numbers = {name: x for name, x in metrics.items() if _is_number(x)}
    return after, {"loss": loss} | numbers | {"loss": loss}


def _is_number(x: object) -> bool:
    """Returns whether an output of a step is one floating-point number."""
    kind = getattr(x, "dtype", np.dtype(bool))
    return jnp.issubdtype(kind, jnp.floating) and getattr(x, "shape", None) == ()


def _check_pure(advance: Callable, arrays: list[Array], batch: PyTree) -> None:
    """Refuses a step that gives another program when it is traced again."""
    hint = (
        "expected a pure function, whose counters, PRNG keys and running statistics "
        "are in its state"
    )
    static, given, _ = split((batch,))

    def program() -> str:
        # JAX keeps traces by function; this one is new at each call.
        jaxpr = jax.make_jaxpr(lambda xs, ys: advance(xs, static.filled(ys)[0][0]))(
            arrays, given
        )
        constants = [hash(as_array(x).tobytes()) for x in jaxpr.consts]
        return re.sub(r"0x[0-9a-f]+", "", f"{jaxpr.jaxpr} {constants}")

    try:
        is_pure = program() == program()
    except Exception as error:
        # Flax NNX has an error of its own for objects that the step closes over.
        of_jax = isinstance(error, jax.errors.JAXTypeError)
        if not of_jax and "trace level" not in str(error):
            raise
        why = str(error).partition("\n")[0]
        raise NoiseError(f"step: JAX cannot trace it ({why}); {hint}") from error
    if not is_pure:
        raise NoiseError(f"step: two traces give two programs; {hint}")
