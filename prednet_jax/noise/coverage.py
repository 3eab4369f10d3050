"""What a noise reaches in a function, and what it leaves alone.

The report comes from a dry run of the transform itself, on shapes alone: every decision
that `inject` would make is listed, with the path by which `inject(only=...)` and
`localize` know the equation.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
from jax import numpy as jnp

from prednet_jax.noise import transform
from prednet_jax.noise.arguments import split_static
from prednet_jax.noise.specs import NoiseSpec
from prednet_jax.noise.streams import State
from prednet_jax.noise.transform import Entry


class UncoveredReductionError(ValueError):
    """Strict coverage found a float reduction that is left alone."""


class Report(NamedTuple):
    """What happens to the equations of a function.

    Attributes:
        perturbed: the equations on which noise acts, and which noise.
        untouched: the float reductions on which none does, and why.
    """

    perturbed: tuple[Entry, ...]
    untouched: tuple[Entry, ...]

    @property
    def uncovered(self) -> tuple[Entry, ...]:
        """The untouched reductions that do have more than one order."""
        return tuple(entry for entry in self.untouched if entry.has_order)

    def __str__(self) -> str:
        lines = [f"perturbed: {len(self.perturbed)}"]
        lines += [f"  {e.path}  {e.reason}" for e in self.perturbed]
        lines += [f"untouched: {len(self.untouched)}"]
        lines += [f"  {e.path}  {e.reason}" for e in self.untouched]
        return "\n".join(lines)


def coverage(
    fn: Callable, spec: NoiseSpec, *, strict: bool = False
) -> Callable[..., Report]:
    """Report on the equations of `fn` under `spec`.

    Args:
        fn: as for `inject`.
        spec: any noise spec.
        strict: raise when a float reduction that has an order is left alone.

    Returns:
        A function of the arguments of `fn` (arrays or `jax.ShapeDtypeStruct`s; nothing
        is computed) that gives the report. Every float reduction of `fn` is in one of
        its two lists.

    Raises:
        UncoveredReductionError: on a call, under `strict`, naming the reductions.
    """

    def report(*args: Any, **kwargs: Any) -> Report:
        record: dict[str, tuple[bool, Entry]] = {}
        acting = transform.sort_noise(spec)
        noise = (acting or transform.Noise(None, None, None))._replace(record=record)
        static, arrays = split_static((args, kwargs))

        def dry(words: jax.Array, *arrays: jax.Array) -> Any:
            state = State(words, words)
            return transform.evaluate(noise, state, static.call(fn), arrays)

        jax.eval_shape(dry, jax.ShapeDtypeStruct((2,), jnp.uint32), *arrays)
        entries = list(record.values())
        found = Report(
            tuple(entry for acted, entry in entries if acted),
            tuple(entry for acted, entry in entries if not acted),
        )
        if strict and found.uncovered:
            listed = "; ".join(f"{e.path} ({e.reason})" for e in found.uncovered)
            raise UncoveredReductionError(
                f"left alone by {spec!r}: {listed}; expected every float reduction to "
                "be perturbed"
            )
        return found

    return report
