"""Compares two results that are logits or log-probabilities: trainer and sampler.

With la and lb the log-softmax of two results over the vocabulary,

    ratio = exp(la - lb) of a token,    KL = sum exp(la) (la - lb)    at each position,

and the fraction of positions whose most likely token, or set of the most likely k,
differs. The same measures of pairs of runs under noise show the expected values.
"""

import itertools
from collections.abc import Callable, Sequence
from numbers import Integral
from typing import NamedTuple

import jax
import numpy as np
from jax import Array
from jax.typing import DTypeLike

from prednet_jax.noise.errors import NoiseError, check_draws, check_int, expect
from prednet_jax.noise.leaves import (
    check_same_structure,
    own_leaves,
    units_in_the_last_place,
    wide_leaves,
)
from prednet_jax.noise.questions.explain import explain
from prednet_jax.noise.questions.sampling import BoundCall, keyed, with_routines
from prednet_jax.noise.specs import NoiseSpec
from prednet_jax.noise.tables import format_table
from prednet_jax.noise.types import Function, PyTree

# A measure is beyond noise above so many times its largest value under noise. KL grows
# with the square of a difference.
MARGIN = {"ratio": 4.0, "kl": 16.0, "flips": 1.0, "top": 1.0}
# The rounding of sums in float64: no smaller difference counts.
FLOOR = 1e-14


class Measure(NamedTuple):
    """A measure of two results, and the effect of noise on it.

    Attributes:
        found: the value for the two results; for `ratio` the largest exp(|la - lb|).
        typical: the median over pairs of noisy runs.
        largest: the largest value over pairs of noisy runs.
        beyond: whether `found` exceeds the effect of noise.
    """

    found: float
    typical: float
    largest: float
    beyond: bool


class Logits(NamedTuple):
    """The result of `compare_logits`.

    Attributes:
        ratio: the ratio of the probabilities of a token; 1 if they are the same.
        kl: the mean Kullback-Leibler divergence of a position, in nats.
        flips: the fraction of positions whose most likely token differs.
        top: the fraction of positions whose set of the most likely k differs.
        mean: the mean ratio, lowest and highest.
        rung: the cause, as in `explain`, for the log-probabilities.
        worst: the position of the largest ratio.
    """

    ratio: Measure
    kl: Measure
    flips: Measure
    top: Measure
    mean: tuple[float, float, float]
    rung: str
    worst: tuple[int, ...]

    def __str__(self) -> str:
        names = ["largest ratio of a token", "KL (nats)"]
        names += ["most likely token flips", "most likely set flips"]
        rows = []
        for name, m in zip(names, self[:4], strict=True):
            less = m is self.ratio
            cells = [f"{'1 + ' * less}{x - less:.3g}" for x in m[:3]]
            rows.append([name, *cells, "beyond noise" if m.beyond else "noise"])
        mean, low, high = self.mean
        return "\n".join(
            [
                *format_table(["", "found", "of noise", "at most", ""], rows, "<>>><"),
                f"ratio: mean {mean:.6g}, from {low:.6g} to {high:.6g}, the furthest "
                f"from 1 at position {self.worst}",
                f"cause of the difference: {self.rung}",
            ]
        )


def compare_logits(
    fn: Function,
    a: PyTree,
    b: PyTree,
    *,
    axis: int | None = -1,
    tokens: np.ndarray | Sequence | None = None,
    top: int = 5,
    spec: NoiseSpec | None = None,
    draws: int = 8,
) -> Callable[..., Logits]:
    """Compares two results that are logits or log-probabilities.

    Args:
        fn: the computation; its result is one array of logits or log-probabilities.
        a: one result, such as the trainer's.
        b: another, such as the sampler's.
        axis: the axis of the vocabulary. None if the results are log-probabilities of
            chosen tokens: then there are no flips, and KL is estimated from b's tokens
            as the mean of r - 1 - log r.
        tokens: the tokens whose ratio is measured, of the shape of the result without
            `axis`. Defaults to the most likely ones of b.
        top: how many of the most likely tokens make a set.
        spec: the noise that does not count as a difference. Defaults to another order
            of sums and the rounding of the last place.
        draws: number of noisy runs, 2 or more.

    Returns:
        `compare(key, *args, **kwargs)`, which returns the `Logits`.

    Raises:
        NoiseError: as for `inject`; a, b and the result are not arrays of one shape, or
            a number is NaN.
    """
    check_draws(draws, 2)
    check_int("top", top, 1)
    check_same_structure("a", a, "b", b)
    pair = [_checked(name, x, axis) for name, x in (("a", a), ("b", b))]
    noise = with_routines(spec)

    def compare(call: BoundCall, key: Array) -> Logits:
        plain = call.result()
        check_same_structure("a", a, "the result", plain)
        runs = [plain, *call.draw(noise, key, draws)]
        for i, x in enumerate(runs):
            _checked(f"the result{' under noise' * (i > 0)}", x, axis)
        wide = [wide_leaves(x)[0] for x in (a, b, *runs)]
        dtype = jax.tree.leaves(plain)[0].dtype
        if all(np.array_equal(x, wide[2]) for x in wide[3:]):
            # Without other noise there is the rounding of the result.
            wide[3:] = _moved(wide[3:], dtype, key)
        logs = [_logs(x, axis) for x in wide]
        chosen = None if axis is None else _tokens(tokens, logs[1])
        pairs = [(logs[0], logs[1]), *itertools.pairwise(logs[2:])]
        measures, *noisy = (_measures(x, y, chosen, top) for x, y in pairs)
        ratios = _ratios(logs[0], logs[1], chosen)
        with np.errstate(divide="ignore"):
            sizes = np.abs(np.log(ratios))
        both = [jax.numpy.asarray(x, dtype) for x in pair]
        never = _never(logs[0], logs[1], chosen, axis)
        return Logits(
            **{n: _measure(n, measures[n], [x[n] for x in noisy]) for n in MARGIN},
            mean=(float(ratios.mean()), float(ratios.min()), float(ratios.max())),
            rung=_cause(call, both, never, axis, draws, key),
            worst=tuple(map(int, np.unravel_index(np.argmax(sizes), sizes.shape))),
        )

    return keyed(fn, compare)


def _never(
    x: np.ndarray, y: np.ndarray, tokens: np.ndarray | None, axis: int | None
) -> np.ndarray:
    """Returns what has the probability 0 in both results, as under a mask, bool.

    The tokens whose ratio is measured are compared in any case.
    """
    if tokens is None or axis is None:
        return np.zeros(x.shape, bool)
    never = (np.exp(x) == 0) & (np.exp(y) == 0)
    np.put_along_axis(never, tokens[..., None], False, -1)
    return np.moveaxis(never, -1, axis)


def _moved(
    runs: Sequence[np.ndarray], dtype: DTypeLike, key: Array
) -> list[np.ndarray]:
    """Returns arrays, their numbers moved by half a unit in the last place."""
    signs = jax.random.rademacher(key, (len(runs), *runs[0].shape))
    return [
        x + s * units_in_the_last_place(x, dtype) / 2
        for x, s in zip(runs, np.asarray(signs), strict=True)
    ]


def _cause(
    call: BoundCall,
    pair: Sequence[Array],
    never: np.ndarray,
    axis: int | None,
    draws: int,
    key: Array,
) -> str:
    """Returns the cause of the difference of two results, apart from shifts of rows.

    The logits of a row have no mean here, which a temperature then multiplies. What is
    `never` is -inf: the mean would have the rounding of a mask of -1e9.
    """

    def masked(x: Array) -> Array:
        return jax.numpy.where(never, -np.inf, x)

    def centred(x: Array) -> Array:
        # In a narrow type the mean here would have more noise than the logits.
        x = x.astype("float32") if x.dtype.itemsize < 4 else x
        if axis is None:
            return x
        x = masked(x)
        possible = jax.numpy.isfinite(x)
        return x - jax.numpy.mean(x, axis, keepdims=True, where=possible)

    def cause(change: Callable[[Array], Array]) -> str:
        def logits(*args: PyTree, **kwargs: PyTree) -> Array:
            (x,) = jax.tree.leaves(call.fn(*args, **kwargs))
            return change(x)

        explained = explain(logits, *map(change, pair), draws=draws)
        return explained(key, *call.args, **call.kwargs).leaves[0].rung

    rung = cause(centred)
    # Where the rows are centred, a rounded result is no longer one.
    return cause(masked) if rung == "beyond" else rung


def _checked(name: str, result: PyTree, axis: int | None) -> np.ndarray:
    """Returns the one array of a result, or raises an error."""
    arrays = own_leaves(result)
    wanted = "one array of logits or log-probabilities"
    real = len(arrays) == 1 and arrays[0].dtype.kind not in "bc"
    expect(real and arrays[0].size, name, result, wanted)
    x = arrays[0].astype(float)
    valid = axis is None or (isinstance(axis, Integral) and not isinstance(axis, bool))
    expect(valid, "axis", axis, "the axis of the vocabulary, or None")
    one_of = f"one of the {x.ndim} axes of {name}, or None for chosen tokens"
    expect(axis is None or -x.ndim <= axis < x.ndim, "axis", axis, one_of)
    lost = x.max(axis, keepdims=True) == -np.inf if axis is not None else False
    wrong = np.argwhere(np.isnan(x) | (x == np.inf) | lost)
    if len(wrong):
        where = tuple(wrong[0].tolist())
        raise NoiseError(
            f"{name} is {x[where]} at {where}: expected numbers, or -inf for an "
            "impossible token among others; noise.first_nan finds where a NaN comes "
            "from"
        )
    return x


def _logs(x: np.ndarray, axis: int | None) -> np.ndarray:
    """Returns log-probabilities with the vocabulary as the last axis.

    Without an axis they are the log-probabilities of chosen tokens, unchanged.
    """
    if axis is None:
        return x
    x = np.moveaxis(x, axis, -1)
    x = x - x.max(-1, keepdims=True)
    return x - np.log(np.exp(x).sum(-1, keepdims=True))


def _tokens(tokens: np.ndarray | Sequence | None, logs: np.ndarray) -> np.ndarray:
    """Returns the tokens whose ratio is measured."""
    if tokens is None:
        return logs.argmax(-1)
    (*shape, size), tokens = logs.shape, np.asarray(tokens)
    if tokens.shape != tuple(shape) or tokens.dtype.kind not in "iu":
        raise NoiseError(
            f"tokens have the shape {tokens.shape} and type {tokens.dtype}: expected "
            f"whole numbers of the shape {tuple(shape)}"
        )
    if ((tokens < 0) | (tokens >= size)).any():
        raise NoiseError(f"tokens outside of the vocabulary: expected 0 to {size - 1}")
    return tokens


def _ratios(x: np.ndarray, y: np.ndarray, tokens: np.ndarray | None) -> np.ndarray:
    """Returns the ratios of the probabilities of the tokens."""
    if tokens is not None:
        at = tokens[..., None]
        x, y = (np.take_along_axis(z, at, -1)[..., 0] for z in (x, y))
    with np.errstate(invalid="ignore"):
        return np.exp(np.where(x == y, 0.0, x - y))


def _measures(
    x: np.ndarray, y: np.ndarray, tokens: np.ndarray | None, top: int
) -> dict[str, float]:
    """Returns the measures of two arrays of log-probabilities."""
    ratios = _ratios(x, y, tokens)
    with np.errstate(divide="ignore"):  # A token may be impossible in one of the two.
        ratio = float(np.exp(np.max(np.abs(np.log(ratios)), initial=0)))
    if tokens is None:
        kl = float(np.mean(ratios - 1 - np.log(ratios)))
        return {"ratio": ratio, "kl": kl, "flips": 0.0, "top": 0.0}
    # Each term p (r - 1 - log r) is positive: a small sum does not cancel.
    with np.errstate(invalid="ignore", over="ignore"):
        terms = np.exp(x) * (np.expm1(y - x) - (y - x))
        terms = np.where(np.exp(x) == 0, np.exp(y), terms)
    # Of equal ones the first, as `jax.lax.top_k`.
    order = (np.argsort(-z, kind="stable") for z in (x, y))
    best = [np.sort(z[..., :top]) for z in order]
    return {
        "ratio": ratio,
        "kl": float(np.maximum(0.0, terms.sum(-1).mean())),
        "flips": float(np.mean(x.argmax(-1) != y.argmax(-1))),
        "top": float(np.mean((best[0] != best[1]).any(-1))),
    }


def _measure(name: str, value: float, noise: Sequence[float]) -> Measure:
    """Returns a measure together with its values under noise."""
    values = value, max(noise)
    above, most = np.log(values) if name == "ratio" else values
    # A KL that is NaN is beyond.
    least = FLOOR if name == "ratio" else FLOOR**2
    beyond = not above <= max(MARGIN[name] * most, least)
    return Measure(value, float(np.median(noise)), max(noise), beyond)
