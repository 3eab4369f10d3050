"""The band in which the losses of equal trainings lie, and whether a curve leaves it.

A training step is run under noise, `draws` times from one state on the same batches.
With y the log loss (the loss itself where one is not positive), m_t its mean over the
draws and s_t^2 its variance, averaged over updates within 5 % of t,

    z_t = |y_t - m_t| / sqrt((1 + 1/draws) (s_t^2 + floor_t^2)).

The floor is one unit in the last place of the loss, or half a digit of a curve that was
printed with few digits. Noise begins at the size of rounding, grows, jumps where it
flips a decision, and ends as the scatter of repeated trainings ("redraws" in
docs/study/rule.md). So updates are judged in blocks 0, 1-2, 3-6, 7-14, ...: a curve is
beyond noise if in some block

    max_t z_t > c = exp(mean_i L_i + q sqrt(1 + 1/draws) sd_i L_i)

with L_i the log of the same maximum of draw i against all others, and q the quantile of
Student's t with draws - 1 degrees of freedom: a prediction bound for the maximum of one
more draw (G. J. Hahn, J. Am. Stat. Assoc. 64, 1969), in which correlation between
updates and heavy tails are contained; c is at least the largest exp(L_i). The blocks
share the error rate.

With few draws c is large. Where a curve lies between the bounds of few and of many
draws, `Band.compare` runs more of them, each look at a quarter of `RATE`.
"""

import dataclasses
import math
import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np
from jax import Array, lax
from jax import numpy as jnp

from prednet_jax.noise import quantiles, random_bits
from prednet_jax.noise._inject import inject
from prednet_jax.noise.arguments import Static, is_mutable, split
from prednet_jax.noise.errors import NoiseError, expect, integer
from prednet_jax.noise.questions.first_difference import NOISE
from prednet_jax.noise.questions.sampling import computation_part
from prednet_jax.noise.questions.tables import format_table
from prednet_jax.noise.specs import NoiseSpec

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
    """What a curve is compared with equal trainings.

    Attributes:
        answer: `noise` or `beyond`.
        first: the first update outside of the band, from 0; None: there is none.
        ratio: distance of the curve from the centre at `first` (of `noise`: where it is
            largest) over the half width of the band.
        relative: the same distance over the value of the centre.
        quantity: the curve that this is about, `loss` or the name of a metric.
        draws: number of noisy trainings that were used.
        note: what else there is to know, such as what more draws have cost.
    """

    answer: str
    first: int | None
    ratio: float
    relative: float
    quantity: str = "loss"
    draws: int = 0
    note: str = ""

    def __str__(self) -> str:
        where = "at most" if self.first is None else f"first at update {self.first}:"
        text = (
            f"{self.answer}: {self.quantity} is {where} {self.ratio:.2g} half widths "
            f"of the band off, {self.relative:.2g} relative; {self.draws} draws, at "
            f"most {RATE:.0%} of equal trainings are called beyond"
        )
        return f"{text}; {self.note}" if self.note else text


@dataclasses.dataclass(eq=False)
class Band:
    """The curves of equal trainings.

    Attributes:
        losses: of each draw at each update [draws, T].
        metrics: further curves by name, of the same shape.
        seconds: that these draws took, compilation included.
        most: how many draws `compare` may use.
    """

    losses: Curves
    metrics: dict[str, Curves]
    seconds: float
    most: int
    _all: list[dict[str, Curves]] = dataclasses.field(repr=False)
    _draw: Callable[[int], dict[str, Curves]] = dataclasses.field(repr=False)

    def compare(self, losses: Any, **metrics: Any) -> Comparison:
        """Says whether a training differs from this one by more than noise does.

        Args:
            losses: one loss an update [T], of a training that begins at the same
                weights and sees the same batches.
            **metrics: further curves [T] by the names of `Band.metrics`.

        Returns:
            The comparison. More draws are run, up to `most`, if these may change it.

        Raises:
            NoiseError: a curve has another length, or there is no metric of its name.
        """
        given = {"loss": losses, **metrics}
        for name in metrics:
            known = ", ".join(sorted(self.metrics)) or "none: the step returns no more"
            expect(name in self.metrics, "metric", name, f"one of the band's, {known}")
        length = self.losses.shape[1]
        curves = {name: _curve(name, x, length) for name, x in given.items()}
        begun, before = time.perf_counter(), len(self._all)
        draws = len(self.losses)
        while True:
            bounds = {n: self._bounds(n, curves[n], draws, len(curves)) for n in curves}
            judged = [_judge(n, curves[n], b) for n, b in bounds.items()]
            if draws >= self.most or not any(undecided for _, undecided in judged):
                break
            draws = min(2 * draws, self.most)
        comparisons = [comparison for comparison, _ in judged]
        outside = [c for c in comparisons if c.first is not None]
        first = min(outside, key=lambda c: c.first or 0, default=None)
        told = first or max(comparisons, key=lambda c: c.ratio)
        more = sum(len(x["loss"]) for x in self._all[before:])
        seconds = time.perf_counter() - begun
        cost = f"{more} more draws took {seconds:.2g} s" if more else ""
        notes = "; ".join(filter(None, [told.note, cost]))
        return told._replace(draws=draws, note=notes)

    def _bounds(self, name: str, curve: Curve, draws: int, curves: int) -> "_Bounds":
        """The band of one quantity by so many draws, which are run if need be."""
        have = sum(len(more["loss"]) for more in self._all)
        if have < draws:
            self._all.append(self._draw(draws - have))
        values = np.concatenate([more[name] for more in self._all])[:draws]
        return _bounds(values, curve, RATE / LOOKS / curves)

    def __str__(self) -> str:
        length = self.losses.shape[1]
        shown = sorted({*np.geomspace(1, length, 8).astype(int) - 1, length - 1})
        rows: list[list[Any]] = []
        for name, values in [("loss", self.losses), *self.metrics.items()]:
            bounds = _bounds(values, values[0], RATE / LOOKS)
            low, high = bounds.interval()
            for t in shown:
                middle = float(bounds.values(bounds.center)[t])
                half = float(high[t] - low[t]) / 2
                of_size = half / abs(middle) if middle else None
                rows.append([name, t, f"{middle:.6g}", half, of_size])
        head = ["", "update", "middle", "half width", "relative"]
        last = (
            f"{len(self.losses)} draws in {self.seconds:.2g} s; compare(losses) runs "
            f"up to {self.most} if these do not decide"
        )
        return "\n".join([*format_table(head, rows, "<>>>>"), last])

    def to_json(self) -> dict[str, Any]:
        """Returns the curves of all draws, and the seconds they took."""
        every = {"losses": self.losses, "metrics": self.metrics}
        return every | {"seconds": self.seconds}


class _Bounds(NamedTuple):
    """A band of one quantity, on the scale on which it is compared.

    `end` is the first update at which a draw is not finite, `broken` how many draws are
    so somewhere.
    """

    is_log: bool
    center: Curve
    unit: Curve
    limit: Curve
    end: int
    broken: int
    draws: int

    def values(self, x: np.ndarray) -> np.ndarray:
        """Numbers of the scale as losses."""
        return np.exp(x) if self.is_log else x

    def interval(self) -> tuple[Curve, Curve]:
        """The ends of the band, as losses [T]."""
        half = self.limit * self.unit
        return self.values(self.center - half), self.values(self.center + half)


def _bounds(values: Curves, curve: Curve, rate: float) -> _Bounds:
    """The band of some draws, for a curve."""
    finite = np.isfinite(values).all(0)
    end = int(np.argmin(finite)) if not finite.all() else values.shape[1]
    inside = np.r_[values[:, :end], curve[None, :end]]
    is_log = bool((inside[np.isfinite(inside)] > 0).all())
    scale = np.log if is_log else np.asarray
    y = scale(values[:, :end])
    floor = _floor(values[:, :end], curve[:end], is_log)
    center, unit = _moments(y, floor)
    limit = _limits(y, floor, rate) if end else floor
    broken = int((~np.isfinite(values)).any(1).sum())
    return _Bounds(is_log, center, unit, limit, end, broken, len(values))


def _floor(values: Curves, curve: Curve, is_log: bool) -> Curve:
    """What a number of the curve is known to, on the scale that is compared [T]."""
    size = np.maximum(np.abs(values).max(0, initial=0), np.finfo(np.float32).tiny)
    grid = np.spacing(size.astype(values.dtype)).astype(float)
    some = curve[np.isfinite(curve)].astype(float)
    digits = next((k for k in range(1, 7) if (np.round(some, k) == some).all()), None)
    if digits is not None and some.any():  # Printed with so many digits.
        grid = np.maximum(grid, 0.5 * 10.0**-digits)
    return grid / size if is_log else grid


def _moments(y: Curves, floor: Curve) -> tuple[Curve, Curve]:
    """Mean and the unit of distances of one more curve, for each update."""
    draws, length = y.shape
    total = np.r_[0, np.cumsum(y.var(0, ddof=1))]
    t = np.arange(length)
    reach = np.maximum(1, NEAR * t).astype(int)
    low, high = np.maximum(0, t - reach), np.minimum(length, t + reach + 1)
    variance = (total[high] - total[low]) / (high - low)
    unit = np.sqrt((1 + 1 / draws) * (np.maximum(variance, 0) + floor**2))
    return y.mean(0), unit


def _limits(y: Curves, floor: Curve, rate: float) -> Curve:
    """What z of one more draw exceeds anywhere with probability `rate` [T]."""
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


def _judge(name: str, curve: Curve, bounds: _Bounds) -> tuple[Comparison, bool]:
    """What a curve is beside a band, and whether more draws may say otherwise."""
    end = bounds.end
    broken = np.flatnonzero(~np.isfinite(curve))
    stop = min([end, *broken[:1].tolist()])
    y = np.log(curve[:stop]) if bounds.is_log else curve[:stop]
    z = np.abs(y - bounds.center[:stop]) / bounds.unit[:stop]
    ratios = z / bounds.limit[:stop]
    over = np.flatnonzero(ratios > 1)
    first = int(over[0]) if over.size else None
    at = first if first is not None else int(np.argmax(ratios)) if stop else 0
    near = z[: stop if first is None else first] > WITHIN
    ratio = float(ratios[at]) if stop else 0.0
    middle = float(bounds.values(bounds.center[at : at + 1])[0]) if stop else math.nan
    relative = float(abs(curve[at] / middle - 1)) if stop and middle else math.inf
    found = Comparison("noise", None, ratio, relative, name)
    if first is not None:
        return found._replace(answer="beyond", first=first), bool(near.any())
    # Where some draws are finite and others are not, noise decides.
    mine = broken.size > 0
    if 0 < bounds.broken < bounds.draws:
        note = f"{bounds.broken} of {bounds.draws} draws become NaN or infinite too"
        return found._replace(note=note), bool(near.any())
    if mine != (bounds.broken > 0):
        at, who = (int(broken[0]), "the curve") if mine else (end, "every draw")
        note = f"{who} is NaN or infinite from update {at} on, and not the other"
        answer = found._replace(answer="beyond", first=at, ratio=math.inf, note=note)
        return answer, True
    return found, bool(near.any())


def _curve(name: str, x: Any, length: int) -> Curve:
    """A curve of the length of the band."""
    array = np.asarray(x, np.float64)
    if array.shape != (length,):
        raise NoiseError(
            f"{name} of shape {list(array.shape)}: expected one number for each of "
            f"the {length} updates of the band, [{length}]"
        )
    return array


def training(
    step: Callable,
    state: Any,
    batches: Any,
    *,
    updates: int | None = None,
    spec: NoiseSpec | None = None,
    draws: int = 8,
    most: int = 64,
) -> Callable[[Array], Band]:
    """Runs a training step under noise: the band of curves of equal trainings.

    Args:
        step: `step(state, batch) -> (state, loss)`, or `(state, (loss, metrics))` with
            a mapping, of which the numbers are taken; pure, so that counters and PRNG
            keys are in the state.
        state: weights, optimiser and so on: any pytree, Flax NNX objects included.
        batches: what each update sees: a sequence, or a function of the update, counted
            from 0.
        updates: how many. Defaults to all of a sequence, and 100 of a function.
        spec: the noise. Defaults to an order of sums for each element, and an ulp.
        draws: number of noisy trainings, 4 or more; they take `draws` times as long as
            one, and one compilation.
        most: how many `Band.compare` may use where `draws` of them do not decide.

    Returns:
        `run(key)`, which gives the `Band`.

    Raises:
        NoiseError: there is no batch; on a call, as for `inject`, and when the step is
            not pure or changes the structure of its state.
    """
    integer("draws", draws, 4)
    integer("most", most, 4)
    noise = computation_part(NOISE if spec is None else spec)
    many = _batches(batches, updates)

    def run(key: Array) -> Band:
        random_bits.check(key)
        program = Program(step, state, next(many())[1], noise)

        def draw(count: int) -> dict[str, Curves]:
            nonlocal key
            key, own = random_bits.split(key, 2)
            return program.curves(random_bits.split(own, count), many())

        begun = time.perf_counter()
        curves = draw(draws)
        seconds = time.perf_counter() - begun
        metrics = {name: x for name, x in curves.items() if name != "loss"}
        limit = max(draws, most)
        return Band(curves["loss"], metrics, seconds, limit, [curves], draw)

    return run


def _batches(
    batches: Any, updates: int | None
) -> Callable[[], Iterator[tuple[int, Any]]]:
    """Numbers of updates and their batches, from the first at each call."""
    if updates is not None:
        integer("updates", updates, 1)
    if callable(batches):
        count = 100 if updates is None else updates
        return lambda: ((t, batches(t)) for t in range(count))
    listed = batches if isinstance(batches, Sequence) else list(batches)
    count = len(listed) if updates is None else updates
    expect(0 < count <= len(listed), "batches", f"{len(listed)} of them", "one or more")
    return lambda: zip(range(count), listed, strict=False)


class Program:
    """A training step under noise, of many draws at once, compiled once."""

    def __init__(self, step: Callable, state: Any, batch: Any, spec: NoiseSpec) -> None:
        numbers = bool, int, float, complex
        state = jax.tree.map(
            lambda x: _number(x) if isinstance(x, numbers) else x,
            state,
            is_leaf=is_mutable,
        )
        static, self.arrays, _ = split((state,))
        self.names: list[str] = []

        def advance(arrays: list[Any], batch: Any) -> tuple[list[Any], list[Array]]:
            (given,), _ = static.filled(arrays)
            after, told = _checked(step(given, batch))
            now, arrays_after, _ = split((after,))
            shapes = [jnp.shape(x) for x in arrays]
            same = (now.tree, now.values, now.definition) == (
                *(static.tree, static.values),
                static.definition,
            )
            if not same or shapes != [jnp.shape(x) for x in arrays_after]:
                raise NoiseError(
                    f"step: its state has the structure {static.tree} before and "
                    f"{now.tree} after an update: expected the same leaves and shapes"
                )
            self.names = list(told)
            return arrays_after, [jnp.asarray(x) for x in told.values()]

        _check_pure(advance, self.arrays, batch)
        noisy = inject(advance, spec)

        def many(
            keys: Array, update: Array, arrays: Any, given: Any, static: Static
        ) -> Any:
            (batch,), _ = static.filled(given)

            def one(key_and_arrays: Any) -> Any:
                key, arrays = key_and_arrays
                return noisy(jax.random.fold_in(key, update), arrays, batch)

            return lax.map(one, (keys, arrays))

        self.many = jax.jit(many, static_argnums=4)

    def curves(self, keys: Array, batches: Iterator[tuple[int, Any]]) -> dict:
        """The curves of one training for each key, by name: [draws, T]."""
        count = len(keys)
        arrays = [jnp.broadcast_to(x, (count, *jnp.shape(x))) for x in self.arrays]
        seen = []
        for update, batch in batches:
            static, given, _ = split((batch,))
            about = np.uint32(update), arrays, given, static.checked()
            arrays, told = self.many(keys, *about)
            seen.append(told)
        columns = zip(*jax.device_get(seen), strict=True)
        return {n: np.stack(x, 1) for n, x in zip(self.names, columns, strict=True)}


def _number(x: Any) -> np.ndarray:
    return np.asarray(x, jnp.asarray(x).dtype)


def _checked(result: Any) -> tuple[Any, dict[str, Any]]:
    """The state after a step and what it told, the loss first."""
    expected = "step: expected (state, loss), or (state, (loss, {name: number}))"
    if not isinstance(result, tuple) or len(result) != 2:
        raise NoiseError(f"{expected}, not {type(result).__name__}")
    after, told = result
    loss, metrics = told if isinstance(told, tuple) and len(told) == 2 else (told, {})
    if not isinstance(metrics, Mapping):
        raise NoiseError(f"{expected}, not metrics of type {type(metrics).__name__}")
    if jnp.shape(loss) != () or not jnp.issubdtype(jnp.result_type(loss), np.floating):
        kind = f"{jnp.result_type(loss)}{list(jnp.shape(loss))}"
        raise NoiseError(f"{expected}; the loss is {kind}, and has to be a real number")
    numbers = {n: x for n, x in metrics.items() if _is_number(x)}
    return after, {"loss": jnp.asarray(loss)} | numbers


def _is_number(x: Any) -> bool:
    """Whether a metric is one real number; others have no curve."""
    numeric = hasattr(x, "dtype") and jnp.issubdtype(x.dtype, jnp.number)
    return numeric and x.shape == () and not jnp.iscomplexobj(x)


def _check_pure(advance: Callable, arrays: list[Any], batch: Any) -> None:
    """Refuses a step that does not give the same program when it is traced again."""
    hint = (
        "expected a pure function, whose counters, PRNG keys and running statistics "
        "are in its state"
    )

    static, given, _ = split((batch,))

    def program() -> tuple[list[str], list[Any]]:
        # A new function each time, which JAX cannot have traced before.
        traced = jax.make_jaxpr(lambda *xs: advance(xs[0], static.filled(xs[1])[0][0]))(
            arrays, given
        )
        text = re.sub(r"0x[0-9a-f]+", "", str(traced.jaxpr))
        return text.splitlines(), traced.consts

    try:
        (first, consts), (second, others) = program(), program()
    except Exception as error:
        # Flax NNX has an error of its own for objects that the step closes over.
        of_jax = isinstance(error, jax.errors.JAXTypeError)
        if not of_jax and "trace level" not in str(error):
            raise
        why = str(error).partition("\n")[0]
        raise NoiseError(f"step: JAX cannot trace it ({why}); {hint}") from error
    pairs = zip(first, second, strict=False)
    line = next((f"{a.strip()} / {b.strip()}" for a, b in pairs if a != b), "")
    same = len(consts) == len(others) and all(
        np.array_equal(np.asarray(a), np.asarray(b))
        for a, b in zip(consts, others, strict=True)
        if not isinstance(a, jax.core.Tracer)
        and getattr(a, "dtype", None) is not None
        and not jnp.issubdtype(a.dtype, jax.dtypes.prng_key)
    )
    if line or len(first) != len(second) or not same:
        line = line or "a constant array"
        raise NoiseError(
            f"step: traced twice, it is two programs ({line[:160]}); {hint}"
        )
