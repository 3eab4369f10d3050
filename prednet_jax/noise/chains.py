"""Sums of several cotangents, which JAX writes as chains of binary `add_any`."""

from __future__ import annotations

from collections import Counter
from typing import Any, NamedTuple

from jax.extend import core


class Chain(NamedTuple):
    """A chain, to be added as one sum.

    Attributes:
        terms: atoms of a jaxpr, what the chain adds.
        before: positions of its equations except the last.
    """

    terms: list[Any]
    before: set[int]


def add_any_chains(jaxpr: Any) -> dict[int, Chain]:
    """The chains of a jaxpr, by the position of their last equation.

    Only sums that nothing else reads are joined: an intermediate sum that is used
    elsewhere keeps its place.
    """
    uses = _uses(jaxpr)
    position: dict[Any, int] = {}
    chains: dict[int, Chain] = {}
    for i, equation in enumerate(jaxpr.eqns):
        if equation.primitive.name != "add_any":
            continue
        chain = Chain([], set())
        for atom in equation.invars:
            inner = None
            if not isinstance(atom, core.Literal) and uses[atom] == 1:
                inner = position.get(atom)
            if inner is None:
                chain.terms.append(atom)
            else:
                shorter = chains.pop(inner)
                chain.terms.extend(shorter.terms)
                chain.before.update(shorter.before, {inner})
        position[equation.outvars[0]] = i
        chains[i] = chain
    return chains


def _uses(jaxpr: Any) -> Counter[Any]:
    """How often each variable of a jaxpr is read, results included."""
    atoms = [a for e in jaxpr.eqns for a in e.invars] + list(jaxpr.outvars)
    return Counter(a for a in atoms if not isinstance(a, core.Literal))
