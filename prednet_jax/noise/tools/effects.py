"""How far the noise of each part of a program moves the result.

A part is what shares a prefix of the paths that `coverage` lists ("3:scan" is a loop
and all that is inside), or a named scope, such as the name of a Flax layer, of which
`jax.named_scope` makes one. Of a part S

    effect(S) = sqrt(mean over keys of distance(f with noise in S alone, f)^2)

as in `localize`, whose search this is not: the parts are given, one effect each.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
from jax import Array

from prednet_jax.noise import compat
from prednet_jax.noise.arguments import split_static
from prednet_jax.noise.errors import NoiseError, integer
from prednet_jax.noise.inject import traced
from prednet_jax.noise.localize import effect_of
from prednet_jax.noise.plan import Step, plan
from prednet_jax.noise.specs import NoiseSpec
from prednet_jax.noise.tools import runs
from prednet_jax.noise.variability import l2_distance


class Effect(NamedTuple):
    """What the noise of one part does.

    Attributes:
        part: as it was named.
        equations: number of its equations on which noise acts.
        effect: root mean square distance from the result without noise.
    """

    part: str
    equations: int
    effect: float


def effects(
    fn: Callable,
    spec: NoiseSpec,
    parts: Sequence[str],
    *,
    samples: int = 3,
    distance: Callable[[Any, Any], float] = l2_distance,
) -> Callable[..., tuple[Effect, ...]]:
    """The effect of the noise of each part alone.

    Args:
        fn: as for `inject`.
        spec: the noise; its parts that act on a computation.
        parts: prefixes of paths, such as `"3:scan"`, or named scopes, such as
            `"Dense_0"` or `"Block_0/Dense_0"`; `""` is all.
        samples: number of keys over which effects are averaged.
        distance: `distance(noisy, clean)` of two results of `fn`.

    Returns:
        `measure(key, *args, **kwargs)` that gives one effect per part, in their order.

    Raises:
        NoiseError: when `spec` acts on no computation; on a call, when noise acts on no
            equation of a part.
    """
    integer("samples", samples, 1)
    if isinstance(parts, str) or not all(isinstance(part, str) for part in parts):
        raise NoiseError(f"parts={parts!r}: expected a sequence of texts")
    acting = runs.acting(spec)

    def measure(key: Array, /, *args: Any, **kwargs: Any) -> tuple[Effect, ...]:
        static, arrays = split_static((args, kwargs))
        closed = traced(static.call(fn), arrays).jaxpr
        steps = [s for s in plan(closed, acting).walk() if s.action.any]
        members = {part: [_belongs(step, part) for step in steps] for part in parts}
        for part, chosen in members.items():
            if not any(chosen):
                raise NoiseError(
                    f"parts: noise acts on nothing in {part!r}: expected the beginning "
                    "of a path that coverage lists, or a named scope"
                )

        keys = jax.random.split(key, samples)
        paths = [step.path for step in steps]
        effect = effect_of(fn, acting, paths, (args, kwargs), keys, distance)
        return tuple(
            Effect(part, sum(chosen), effect([i for i, c in enumerate(chosen) if c]))
            for part, chosen in members.items()
        )

    return measure


def _belongs(step: Step, part: str) -> bool:
    """Whether an equation belongs to a part, by its path or by a scope around it."""
    if step.path.startswith(part):
        rest = step.path[len(part) :]
        # Not "1:dot" or "1" for what begins so by chance.
        if not part or part.endswith("/") or not rest or rest[0] in "/[":
            return True
    scopes: list[str] = []
    around: Step | None = step
    while around is not None:
        # Derivatives are named after what they are of: "transpose(jvp(Dense_0))".
        scope = re.sub(r"\w+\(", "", compat.scope(around.equation))
        scopes = [*re.split(r"[/()]+", scope), *scopes]
        _, around = around.within
    return f"/{part}/" in f"/{'/'.join(filter(None, scopes))}/"
