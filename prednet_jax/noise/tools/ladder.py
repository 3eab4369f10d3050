"""The rungs of `explain`, measured: what each noise does to a function.

A random noise makes a cloud of differences for each leaf; a narrower format makes one.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
from jax import Array

from prednet_jax.noise.coverage import coverage
from prednet_jax.noise.inject import inject
from prednet_jax.noise.specs import (
    NoiseSpec,
    ReducedPrecision,
    ReductionOrder,
    StochasticRounding,
    UlpPerturbation,
)
from prednet_jax.noise.tools import runs
from prednet_jax.noise.tools.runs import Result

# Two noises are on the rung of rounding: errors of one operation, and at most an ulp.
RANDOM: dict[str, tuple[NoiseSpec, ...]] = {
    "order": (ReductionOrder(granularity="element"),),
    "rounding": (StochasticRounding(), UlpPerturbation()),
}
FORMATS = ("tf32", "bf16")


class Sample(NamedTuple):
    """One difference of a leaf: RMS, largest element, fraction that differs."""

    rms: float
    largest: float
    fraction: float


class Cloud(NamedTuple):
    """Differences that one noise makes in one leaf, those that are not zero.

    Attributes:
        rung: of the noise.
        single: of noisy runs from the plain one.
        pairs: of two noisy runs.
    """

    rung: str
    single: list[Sample]
    pairs: list[Sample]

    @property
    def samples(self) -> list[Sample]:
        """Of both kinds."""
        return self.single + self.pairs


class Ladder(NamedTuple):
    """What each rung does to a function at its arguments, measured once.

    Attributes:
        tree: the result without noise.
        plain: the same as arrays, compiled and not.
        clouds: differences under random noises, for each leaf.
        formats: the difference that each narrower format makes, leaf by leaf.
        draws: runs of each random noise.
    """

    tree: Any
    plain: tuple[Result, Result]
    clouds: list[list[Cloud]]
    formats: dict[str, Result]
    draws: int


def ladder(
    fn: Callable, key: Array, args: Sequence[Any], kwargs: dict, *, draws: int
) -> Ladder:
    """Runs `fn` under the noise of every rung; arguments as for `explain`."""
    tree = runs.without_noise(fn, UlpPerturbation())(key, *args, **kwargs)
    clean = runs.values(tree)
    return Ladder(
        tree,
        (clean, runs.values(runs.plain(fn, args, kwargs))),
        _clouds(fn, clean, key, draws, args, kwargs),
        _formats(fn, clean, key, args, kwargs),
        draws,
    )


def _clouds(
    fn: Callable, clean: Result, key: Array, draws: int, args: Any, kwargs: dict
) -> list[list[Cloud]]:
    """The clouds of every leaf, one for each noise that acts on `fn`."""
    found: list[list[Cloud]] = [[] for _ in clean]
    for rung, specs in RANDOM.items():
        for spec in specs:
            if not coverage(fn, spec)(*args, **kwargs).perturbed:
                continue
            here = [Cloud(rung, [], []) for _ in clean]
            before = None
            for result in runs.draw(inject(fn, spec), key, draws, args, kwargs):
                now = runs.values(result)
                for i, cloud in enumerate(here):
                    _add(cloud.single, runs.difference(now[i], clean[i]))
                    if before is not None:
                        _add(cloud.pairs, runs.difference(now[i], before[i]))
                before = now
            for i, cloud in enumerate(here):
                if cloud.samples:
                    found[i].append(cloud)
    return found


def _formats(
    fn: Callable, clean: Result, key: Array, args: Any, kwargs: dict
) -> dict[str, Result]:
    """The difference that each narrower format makes, leaf by leaf."""
    found = {}
    for name in FORMATS:
        spec = ReducedPrecision(name)
        if coverage(fn, spec)(*args, **kwargs).perturbed:
            result = inject(fn, spec)(key, *args, **kwargs)
            found[name] = list(map(runs.difference, runs.values(result), clean))
    return found


def _add(samples: list[Sample], difference: np.ndarray) -> None:
    now = sample(difference)
    if 0 < now.rms < math.inf:
        samples.append(now)


def sample(difference: np.ndarray) -> Sample:
    """What a difference is like."""
    if not difference.size:
        return Sample(0.0, 0.0, 0.0)
    return Sample(
        runs.rms(difference),
        float(np.max(np.abs(difference))),
        np.count_nonzero(difference) / difference.size,
    )
