"""Lists subtractions and sums of mixed sign that lose digits, and their effect.

A sum v of the terms x_i magnifies their relative errors by its condition number

    kappa = sum_i |x_i| / |v|        (N. J. Higham, Accuracy and Stability, section 1.7)

and so loses log10 kappa digits; of an array, 2 log10 of the mean of sqrt(kappa): where
all elements lose d digits, d, and nearly nothing where a few are small by chance (the
fraction of random sums that lose d digits is about 10^-d). An element that is 0 has
lost all digits if noise changes it, and none if not: x - max(x) is exact.

A run without noise and one with noise are computed together, as two rows of a batch.
The share of an equation is the reduction of the result's error, RMS over the draws,
when the equation's value under noise is replaced by its value without noise. Shares of
consecutive equations overlap.
"""

import math
from collections.abc import Callable
from typing import NamedTuple

import jax
import numpy as np
from jax import Array, lax
from jax import numpy as jnp

from prednet_jax.noise import compat, random_bits
from prednet_jax.noise.arguments import Outcome
from prednet_jax.noise.errors import NoiseError, check_draws
from prednet_jax.noise.leaves import (
    check_no_texts,
    check_some,
    is_float,
    rms,
    subtract,
    wide_leaves,
)
from prednet_jax.noise.plan import Step
from prednet_jax.noise.questions.sampling import BoundCall, reporting, with_routines
from prednet_jax.noise.random_bits import Words
from prednet_jax.noise.specs import NoiseSpec
from prednet_jax.noise.tables import format_table
from prednet_jax.noise.types import Function, PyTree, names_in
from prednet_jax.noise.watch import Watched

# Digits lost from which an equation is listed, and how many are.
LEAST, SHOWN = 1.0, 12
# Executions of an equation in a loop that are looked at.
EXECUTIONS = 1024
_PAIRS = frozenset({"add", "sub", "add_any"})
_SUMS = names_in(
    "reduce_sum dot_general conv_general_dilated cumsum reduce_window_sum scatter-add "
    "psum psum_invariant"
)


class Cancellation(NamedTuple):
    """An equation whose sum is small compared with its terms.

    Attributes:
        path: the equation's path as `coverage` lists it.
        primitive: the primitive's name.
        source: the user's line, such as `model.py:12 in loss`.
        digits_lost: decimal digits that the array loses, at the worst step of the loops
            around the equation.
        worst: decimal digits that the worst element loses at that step.
        step: that step of each loop, outermost first.
        share: share of the result's error that passes through this equation, 0 to 1.
            None if the result has no error.
    """

    path: str
    primitive: str
    source: str
    digits_lost: float
    worst: float
    step: tuple[int, ...] = ()
    share: float | None = None


class Cancellations(tuple[Cancellation, ...]):
    """The equations that lose a digit or more, the worst first.

    Attributes:
        equations: number of sums in the program.
        error: relative error of the result under noise, RMS over elements and draws.
    """

    equations: int
    error: float

    def __str__(self) -> str:
        rows = []
        for c in self:
            step = f"step {', '.join(map(str, c.step))}" if c.step else ""
            share = None if c.share is None else f"{c.share:.0%}"
            digits = f"{c.digits_lost:.1f}", f"{c.worst:.1f}"
            rows.append([*digits, share, f"{c.path} {step}".strip(), c.source])
        head = ["digits lost", "worst", "of the error", "", ""]
        last = (
            f"{self.equations} sums; error of the result under noise {self.error:.2g} "
            "relative"
        )
        return "\n".join([*format_table(head, rows, ">>><<"), last])


def cancellations(
    fn: Function,
    *,
    spec: NoiseSpec | None = None,
    draws: int = 4,
    key: Array | None = None,
) -> Callable[..., Cancellations]:
    """Lists the subtractions and sums of mixed sign of `fn` by digits lost.

    Args:
        fn: the function, as for `inject`.
        spec: noise. Defaults to `specs.default()`.
        draws: number of noisy runs from which the shares of the error are measured.
        key: PRNG key of these runs. Defaults to `jax.random.key(0)`.

    Returns:
        `measure(*args, **kwargs)`, which gives the `Cancellations`, the worst first.

    Raises:
        NoiseError: as for `inject`.
    """
    check_draws(draws, 1)
    noise = with_routines(spec)

    @reporting()
    def measure(*args: PyTree, **kwargs: PyTree) -> Cancellations:
        first = jax.random.key(0) if key is None else key
        keys = random_bits.split(first, draws)
        call = BoundCall(fn, args, kwargs)
        check_some(call.program.shapes.result())
        check_no_texts(call.program.shapes.result())
        pair = _Pair(call, noise)
        worst = pair.cancelling(keys[0])[:SHOWN]
        total = pair.error(keys)
        entries = []
        for entry in worst:
            without = pair.error(keys, entry.path)
            share = 1 - (without / total) ** 2 if 0 < total < math.inf else None
            entries.append(entry._replace(share=share and min(max(share, 0.0), 1.0)))
        report = Cancellations(entries)
        report.equations, report.error = len(pair.number), total
        return report

    return measure


class _Pair(Watched):
    """A run without noise and a run with noise, as two rows of a batch.

    Attributes:
        number: position of each sum, by `Step.salt`. `run` may choose one sum, whose
            value under noise is replaced by the value without noise.
        steps: the sums by path.
    """

    def __init__(self, call: BoundCall, spec: NoiseSpec) -> None:
        super().__init__(EXECUTIONS)
        self.steps = {step.path: step for step in call.equations(spec) if _is_sum(step)}
        # XLA computes equal equations once, so they lose their noise together.
        salts = dict.fromkeys(step.salt for step in self.steps.values())
        self.number = {salt: i for i, salt in enumerate(salts)}
        self.chosen = jnp.zeros(0, bool)

        def hooks(noisy: Array, chosen: Array) -> Watched:
            self.switch, self.chosen = lambda path: noisy, chosen
            return self

        run = call.hooked(spec, hooks)
        self.compiled = jax.vmap(run, (None, 0, None))

    def run(self, key: Array, path: str = "") -> Outcome:
        """Returns the outcome of both rows; the sum at `path` has no noise."""
        chosen = np.zeros(max(1, len(self.number)), bool)
        if path:
            chosen[self.number[self.steps[path].salt]] = True
        try:
            return self.compiled(key, np.array([False, True]), chosen)
        except NoiseError:
            raise
        except (NotImplementedError, ValueError) as error:
            why = str(error).partition("\n")[0] or type(error).__name__
            raise NoiseError(
                "cancellations runs the function under vmap, and a part of it cannot "
                f"be mapped: {why}; leave this part out of the function"
            ) from None

    def error(self, keys: Array, path: str = "") -> float:
        """Returns the result's relative RMS error if the sum at `path` has no noise."""
        errors = []
        for key in keys:
            leaves = wide_leaves(jax.device_get(self.run(key, path).arrays))
            errors += [rms(subtract(x[1], x[0])) / (rms(x[0]) or 1.0) for x in leaves]
        return rms(np.array(errors))

    def cancelling(self, key: Array) -> list[Cancellation]:
        """Returns the sums that lose digits, the worst first."""
        worst: dict[str, Cancellation] = {}
        for (path, *at), numbers in self.seen(lambda: self.run(key))[0].items():
            digits, most = map(float, numbers)
            step = self.steps[path]
            earlier = worst.get(step.salt)
            if digits >= LEAST and (earlier is None or digits > earlier.digits_lost):
                about = path, step.name, step.source, digits, most
                worst[step.salt] = Cancellation(*about, tuple(map(int, at)))
        return sorted(worst.values(), key=lambda c: -c.digits_lost)

    def after(self, step: Step, words: Words, operands: list, results: list) -> list:
        """Measures the digits that a sum loses, and removes a chosen sum's noise."""
        if step.path not in self.steps:
            return results
        self.labels[step.path] = step
        (x,) = results
        terms = _size_of_terms(step, operands)
        clean, noisy = _rows(x)
        size, _ = _rows(terms)
        digits = _digits_lost(clean, noisy, size)
        self.send({step.path: digits}, self.place(words))
        return [jnp.where(self.chosen[self.number[step.salt]], clean, x)]


@jax.custom_batching.custom_vmap
def _rows(x: Array) -> tuple[Array, Array]:
    """Returns the values of the run without noise and of the run with noise.

    Unlike a collective over the rows, it may be used inside a shard_map.
    """
    return x, x


@_rows.def_vmap
def _rows_of_batch(_: int, batched: list[bool], x: Array) -> tuple:
    rows = (x[0], x[1]) if batched[0] else (x, x)
    return rows, (False, False)


def _is_sum(step: Step) -> bool:
    avals = [v.aval for v in step.equation.outvars]
    floats = len(avals) == 1 and jnp.issubdtype(avals[0].dtype, jnp.floating)
    return step.name in _PAIRS | _SUMS and floats and avals[0].size > 0


def _size_of_terms(step: Step, operands: list) -> Array:
    """Returns the sum of the terms' magnitudes, with the shape of the result."""
    sizes = [jnp.abs(x) if is_float(x) else x for x in operands]
    if step.name in _PAIRS:
        total = sizes[0]
        for x in sizes[1:]:
            total = lax.add(total, x)
        return total
    return compat.bind(step.equation, *sizes)[0]


def _digits_lost(clean: Array, noisy: Array, size: Array) -> Array:
    """Returns the digits lost by an array of sums and by its worst element [2]."""
    info = jnp.finfo(clean.dtype)
    most, wide = -math.log10(float(info.eps)), f"float{max(32, info.bits)}"
    clean, noisy, size = (x.astype(wide) for x in (clean, noisy, size))
    valid = (size > 0) & jnp.isfinite(clean) & ((clean != 0) | (noisy != 0))
    value = jnp.where(clean == 0, 0, jnp.abs(clean))
    ratio = jnp.where(valid, size, 1) / jnp.where(valid, value, 1)
    each = jnp.minimum(jnp.log10(ratio), most)
    count = jnp.maximum(jnp.sum(valid, dtype=wide), 1)
    mean = jnp.sum(jnp.where(valid, 10 ** (each / 2), 0)) / count
    return jnp.stack(
        [2 * jnp.log10(jnp.maximum(mean, 1)), jnp.max(each, initial=0, where=valid)]
    )
