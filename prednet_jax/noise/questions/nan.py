"""Finds where a NaN or an infinity comes from, and how often noise makes one."""

from collections import Counter
from collections.abc import Callable
from typing import NamedTuple

import jax
import numpy as np
from jax import Array

from prednet_jax.noise import quantiles
from prednet_jax.noise.errors import check_draws
from prednet_jax.noise.leaves import check_some, named_leaves, wide_leaves
from prednet_jax.noise.loops import LoopError
from prednet_jax.noise.questions import sampling
from prednet_jax.noise.questions.nan_search import NotFinite, Search
from prednet_jax.noise.specs import Identity, NoiseSpec, rounding
from prednet_jax.noise.types import Function, PyTree


class NanRate(NamedTuple):
    """How often noise makes a NaN or an infinity.

    Attributes:
        fraction: share of noisy runs whose result has a NaN, or is infinite where the
            result without noise is not, 0 to 1.
        low: lower end of the 95 % interval of `fraction`.
        high: upper end.
        entries: the equations that are the first to make one in some noisy run, the
            most frequent first.
        clean: the equation that makes one without noise, or None.
        draws: number of noisy runs.
    """

    fraction: float
    low: float
    high: float
    entries: tuple[NotFinite, ...]
    clean: NotFinite | None
    draws: int

    def __str__(self) -> str:
        count = round(self.fraction * self.draws)
        lines = [
            f"{count} of {self.draws} runs under noise give a NaN or an infinity "
            f"({self.low:.0%} to {self.high:.0%} of all), the run without noise "
            f"{'gives one too' if self.clean else 'gives none'}"
        ]
        lines += [f"  {entry.fraction:.0%}: {entry}" for entry in self.entries]
        return "\n".join(lines)


def first_nan(fn: Function) -> Callable[..., NotFinite | None]:
    """Finds the first equation of `fn` that makes a NaN or an infinity.

    Args:
        fn: the function, as for `inject`, compiled or not.

    Returns:
        `find(*args, **kwargs)`, which returns the equation that makes the result not
            finite, or the argument. If the result is finite, it is the first equation
            that makes a NaN or an infinity anyway, or None without such an equation.
            `compilation` stands for a NaN that XLA makes in the function itself alone.

    Raises:
        NoiseError: on a call, as for `inject`.

    Example:
        >>> import numpy as np
        >>> from jax import numpy as jnp
        >>> from prednet_jax import noise
        >>> noise.first_nan(lambda x: jnp.log(x) + 1)(np.float32(-1)).primitive
        'log'
    """

    @sampling.reporting()
    def find(*args: PyTree, **kwargs: PyTree) -> NotFinite | None:
        call, key = sampling.BoundCall(fn, args, kwargs), jax.random.key(0)
        search = Search(call, Identity())
        try:
            executions, result = search.run(key)
            seen = any(np.isnan(x).any() for x in result)
            unseen = None if seen else _unwatched(call)
            return unseen or search.first(key, executions, result)
        except LoopError:
            # A NaN may be why a loop does not end.
            search = Search(call, Identity())
            search.refuses_loops = False
            first = search.first(key, *search.run(key))
            if first is None or first.kind != "NaN":
                raise
            return first

    return find


def _unwatched(call: sampling.BoundCall) -> NotFinite | None:
    """Returns the first result with a NaN, for which no watched equation is a cause."""
    watched = ("a result that has none where equations are watched",)
    for path, x in named_leaves(call.result()):
        count = int(np.count_nonzero(np.isnan(wide_leaves(x)[0])))
        if count:
            return NotFinite(path, "compilation", "", "NaN", (), watched, count)
    return None


def nan_rate(
    fn: Function, spec: NoiseSpec | None = None, draws: int = 16
) -> Callable[..., NanRate]:
    """Counts the runs in which noise makes a NaN or an infinity, and finds where.

    Args:
        fn: the function, as for `inject`.
        spec: noise. Defaults to `specs.rounding()`.
        draws: number of noisy runs.

    Returns:
        `measure(key, *args, **kwargs)`, which gives the `NanRate`.

    Raises:
        NoiseError: as for `inject`.
    """
    check_draws(draws, 1)
    noise = sampling.with_routines(rounding() if spec is None else spec)

    def measure(call: sampling.BoundCall, key: Array) -> NanRate:
        result = jax.device_get(call.eager())
        check_some(result)
        plain = wide_leaves(result)
        clean = None
        if any(_is_worse(x, np.zeros_like(x)) for x in plain):
            clean = first_nan(fn)(*call.args, **call.kwargs)
        search = Search(call, noise)
        firsts = []
        for draw_key in sampling.draw_keys(key, draws):
            seen = search.run(draw_key)
            if any(map(_is_worse, seen[1], plain)):
                firsts.append(search.first(draw_key, *seen))
        counts = Counter(first.path for first in firsts if first)
        examples = {first.path: first for first in firsts if first}
        entries = tuple(
            examples[path]._replace(fraction=count / draws)
            for path, count in counts.most_common()
        )
        interval = quantiles.interval(len(firsts), draws)
        return NanRate(len(firsts) / draws, *interval, entries, clean, draws)

    return sampling.keyed(fn, measure)


def _is_worse(x: np.ndarray, plain: np.ndarray) -> bool:
    """Returns whether a result has a NaN, or an infinity that the plain one lacks."""
    return bool(np.any(np.isnan(x) | (np.isinf(x) & (x != plain))))
