"""Finds the equations whose noise moves the result, by delta debugging over paths.

The effect of a set S of equations is

    effect(S) = sqrt(mean over keys of |f with noise in S alone - f|^2)

and S explains the change if effect(S) >= share * effect(all). `localize` finds small
sets that do by ddmin (A. Zeller & R. Hildebrandt, "Simplifying and isolating
failure-inducing input", IEEE TSE 28, 2002). It finds one set after another, each
without the members of the sets before, as verrou_dd's rddmin does (F. Févotte & B.
Lathuilière, Correctness 2019). Each set is 1-minimal: without any one of its members it
no longer explains the change.
"""

import functools
import itertools
import re
from collections.abc import Callable, Collection, Sequence
from typing import NamedTuple

import jax
import numpy as np
from jax import Array

from prednet_jax.noise import random_bits
from prednet_jax.noise._coverage import CoverageEntry, report_of
from prednet_jax.noise.errors import NoiseError, check_draws, number, texts
from prednet_jax.noise.leaves import check_some, rms
from prednet_jax.noise.plan import Step, plan
from prednet_jax.noise.questions.sampling import BoundCall, computation_part, keyed
from prednet_jax.noise.run import Evaluation
from prednet_jax.noise.specs import NoiseSpec
from prednet_jax.noise.tables import bracketed
from prednet_jax.noise.variability import l2_distance

_INCONCLUSIVE = (
    "inconclusive: fresh draws of noise gave another ranking; increase --draws "
    "(samples=)"
)


class Culprit(NamedTuple):
    """One equation of a set that explains the change, or one of the parts given.

    Attributes:
        path: the equation's path, as `coverage` lists it and `inject(only=...)` takes
            it, or the part.
        primitive: the primitive's name, or "" for a part.
        effect: the effect of this equation, or part, alone.
        source: the user's line that made it, such as `model.py:12 in loss`.
    """

    path: str
    primitive: str
    effect: float
    source: str = ""


class Findings(NamedTuple):
    """The result of `localize`.

    Attributes:
        sets: disjoint minimal sets that explain the change, in the order of discovery;
            within each, the largest effect first. Empty if noise changes nothing. If
            parts were given, they are the only set.
        effect: the effect of all equations together.
        rest: the effect of all equations that are in none of the sets.
        equations: the number of equations on which noise acts. Equations that compute
            the same of the same values count as one, the first.
        settled: whether the sets also explain the change, and have a larger effect than
            the rest, on fresh keys. If not, use more samples.
    """

    sets: tuple[tuple[Culprit, ...], ...]
    effect: float
    rest: float
    equations: int
    settled: bool = True

    @property
    def culprits(self) -> tuple[Culprit, ...]:
        """Returns the members of all sets, the largest effect first."""
        members = (culprit for each in self.sets for culprit in each)
        return tuple(sorted(members, key=lambda c: -c.effect))

    def __str__(self) -> str:
        lines = [
            f"effect of all {self.equations} equations: {self.effect:.3g}; "
            f"of those not listed: {self.rest:.3g}"
        ]
        lines += [
            f"  {c.effect:.3g}  {c.path}{bracketed(c.source)}" for c in self.culprits
        ]
        if not self.settled:
            lines.append(_INCONCLUSIVE)
        return "\n".join(lines)


def localize(
    fn: Callable,
    spec: NoiseSpec,
    *,
    share: float = 0.5,
    samples: int = 8,
    parts: Sequence[str] | None = None,
) -> Callable[..., Findings]:
    """Finds the equations whose noise moves the result of `fn` most.

    Args:
        fn: the function, as for `inject`.
        spec: the noise; its parts that act on a computation.
        share: the fraction of the effect of all equations that a set must have, in
            (0, 1].
        samples: the number of keys over which effects are averaged.
        parts: parts to measure instead of a search: beginnings of paths, such as
            `"3:scan"`, or named scopes, such as `"Dense_0"` or `"Block_0/Dense_0"`.

    Returns:
        `search(key, *args, **kwargs)`, which returns the report; `key` is a typed PRNG
            key.

    Raises:
        NoiseError: an option is not accepted, or `spec` does not act on a computation.
            On a call: as for `inject`, or no noise acts in one of the parts.
    """
    parts = texts("parts", parts, "a sequence of texts")
    number("share", share, lambda x: 0 < x <= 1, "a number in (0, 1]")
    check_draws(samples, 1, "samples")
    acting = computation_part(spec)

    def search(call: BoundCall, key: Array) -> Findings:
        check_some(call.program.shapes.result())
        planned = plan(call.program.jaxpr, acting)
        steps = {step.path: step for step in planned.walk()}
        # XLA computes equal equations once, so they have one noise, or none.
        equal: dict[str, list[CoverageEntry]] = {}
        for entry in report_of(planned).perturbed:
            equal.setdefault(steps[entry.path].salt, []).append(entry)
        together = [[steps[entry.path] for entry in each] for each in equal.values()]
        entries = [each[0] for each in equal.values()]
        *_, other = keys = random_bits.split(key, samples + 1)
        measure = effect_of(call, acting, together)
        effect = functools.cache(functools.partial(measure, keys[:-1]))
        every = frozenset(range(len(entries)))

        def culprit(i: int) -> Culprit:
            entry, own = entries[i], effect(frozenset([i]))
            return Culprit(entry.path, entry.primitive, own, entry.source)

        if parts is not None:
            members = _members(parts, together)
            chosen = list(members.values())
            sets = [[Culprit(p, "", effect(subset)) for p, subset in members.items()]]
        else:
            chosen = _minimal_sets(effect, every, share)
            sets = [[culprit(i) for i in each] for each in chosen]
        rest = every.difference(*chosen)
        settled = True
        if parts is None and chosen:
            again = functools.partial(measure, random_bits.split(other, samples))
            least = max(share * again(every), again(rest) if rest else 0.0)
            settled = again(every - rest) >= least
        ordered = tuple(tuple(sorted(each, key=lambda c: -c.effect)) for each in sets)
        return Findings(ordered, effect(every), effect(rest), len(entries), settled)

    return keyed(fn, search)


def _minimal_sets(
    effect: Callable[[frozenset[int]], float], every: frozenset[int], share: float
) -> list[frozenset[int]]:
    """Returns disjoint sets that explain the change, until the rest matters less."""
    needed = share * effect(every)
    sets: list[frozenset[int]] = []

    def explains(chosen: Collection[int]) -> bool:
        return effect(frozenset(chosen)) >= needed

    rest = every
    while needed > 0 and explains(rest):
        if sets and effect(rest) <= effect(every - rest):
            break
        sets.append(frozenset(minimise(sorted(rest), explains)))
        rest -= sets[-1]
    return sets


def effect_of(
    call: BoundCall, spec: NoiseSpec, together: Sequence[Sequence[Step]]
) -> Callable[[Array, Collection[int]], float]:
    """Returns `effect(keys, members)` of positions in `together`, compiled once.

    `together` are the equations on which `spec` acts, in sets that compute the same.
    """

    def switched(active: Array) -> Evaluation:
        pairs = zip(together, active, strict=True)
        return Evaluation({x.path: on for steps, on in pairs for x in steps}.get)

    run = call.hooked(spec, switched)
    nothing = np.zeros(len(together), bool)
    clean = jax.device_get(run(jax.random.key(0), nothing)).result()

    def effect(keys: Array, members: Collection[int]) -> float:
        active = nothing.copy()
        active[list(members)] = True
        noisy = (run(key, active).result() for key in keys)
        distances = np.array([l2_distance(result, clean) for result in noisy])
        distances[np.isnan(distances)] = np.inf
        return rms(distances)

    return effect


def minimise(items: Sequence[int], explains: Callable[[list[int]], bool]) -> list[int]:
    """Returns a 1-minimal subset of `items` for which `explains` is true, by ddmin."""
    items, pieces = list(items), 2
    while len(items) >= 2:
        edges = np.linspace(0, len(items), pieces + 1).astype(int)
        chunks = [items[a:b] for a, b in itertools.pairwise(edges)]
        smaller = next((c for c in chunks if explains(c)), None)
        if smaller is not None:
            items, pieces = smaller, 2
            continue
        rests = [[i for i in items if i not in set(c)] for c in chunks]
        smaller = next((r for r in rests if explains(r)), None) if pieces > 2 else None
        if smaller is not None:
            items, pieces = smaller, max(pieces - 1, 2)
        elif pieces < len(items):
            pieces = min(len(items), 2 * pieces)
        else:
            break
    return items


def _members(
    parts: Sequence[str], together: Sequence[Sequence[Step]]
) -> dict[str, frozenset[int]]:
    """Returns, for each part, the positions in `together` of the part's equations."""
    members = {}
    for part in parts:
        is_member = [any(_belongs(x.path, x.scope, part) for x in s) for s in together]
        if not any(is_member):
            raise NoiseError(
                f"parts: noise acts on nothing in {part!r}: expected the beginning of "
                "a path that coverage lists, or a named scope"
            )
        members[part] = frozenset(np.flatnonzero(is_member).tolist())
    return members


def _belongs(path: str, scope: str, part: str) -> bool:
    """Returns whether an equation belongs to a part, by its path or a scope."""
    # "1:dot" and "1" do not match a longer name that starts with them.
    if path.startswith(part) and path[len(part) :][:1] in ("", "/", "["):
        return True
    # Derivatives carry the name of the original scope: "transpose(jvp(Dense_0))".
    scopes = re.split(r"[/()]+", re.sub(r"\w+\(", "", scope))
    return f"/{part}/" in f"/{'/'.join(filter(None, scopes))}/"
