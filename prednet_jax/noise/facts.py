"""Reads from a jaxpr what decides where noise acts on its equations."""

from collections import Counter
from collections.abc import Collection

from prednet_jax.noise import compat, fusion
from prednet_jax.noise.actions import has_floats
from prednet_jax.noise.rules.primitives import FRACTIONS, INTEGRAL
from prednet_jax.noise.types import Atom


def paths(prefix: str, jaxpr: compat.Jaxpr) -> list[str]:
    """Returns the paths of the equations, which begin with `prefix`."""
    return [f"{prefix}{i}:{e.primitive.name}" for i, e in enumerate(jaxpr.eqns)]


def gathers(jaxpr: compat.Jaxpr) -> dict[Atom, int]:
    """Returns the results of `all_gather`, and the axes that number the devices."""
    return {
        equation.outvars[0]: equation.params["all_gather_dimension"]
        for equation in jaxpr.eqns
        if equation.primitive.name.startswith("all_gather")
        and not equation.params.get("tiled", True)
    }


def converted(jaxpr: compat.Jaxpr) -> set[int]:
    """Returns the ids of the float variables that integers or booleans become."""
    ids: set[int] = set()
    for equation in jaxpr.eqns:
        name, atoms = equation.primitive.name, equation.invars
        moved = name in ("broadcast_in_dim", "reshape") and id(atoms[0]) in ids
        cast = name == "convert_element_type" and not has_floats([atoms[0].aval])
        if moved or cast:
            ids.add(id(equation.outvars[0]))
    return ids


def fractions(jaxpr: compat.Jaxpr, arguments: Collection[int] = ()) -> set[int]:
    """Returns the ids of the float variables that are hardly ever whole numbers.

    They are results of divisions and of functions such as exp, and what copies, sums
    and products make of these. Some results of an operation with several, such as a
    loop, may be whole. `arguments` are the ids of such arguments.
    """
    ids = set(arguments)
    for equation in jaxpr.eqns:
        outvars = equation.outvars
        if (body := fusion.joined_body(equation)) is not None:
            inner, _ = compat.open_jaxpr(body)
            inside = fractions(inner, handed(equation, inner, ids))
            results = zip(outvars, inner.outvars, strict=True)
            outvars = [var for var, result in results if id(result) in inside]
        elif equation.primitive.name not in FRACTIONS and (
            len(outvars) > 1
            or equation.primitive.name in INTEGRAL
            or ids.isdisjoint(map(id, equation.invars))
        ):
            continue
        ids |= {id(var) for var in outvars if has_floats([var.aval])}
    return ids


def handed(equation: compat.Equation, body: compat.Jaxpr, ids: set[int]) -> set[int]:
    """Returns the ids of a body's arguments that are `ids` in its call."""
    inner, _ = compat.open_jaxpr(body)
    pairs = zip(equation.invars, inner.invars, strict=True)
    return {id(var) for atom, var in pairs if id(atom) in ids}


def joined_sums(jaxpr: compat.Jaxpr) -> dict[int, compat.Equation]:
    """Returns each sum of a sum as one sum, as which XLA computes it, by its position.

    The result of the inner sum has a type of 32 bits or more, so that its rounding is
    small.
    """
    sums: dict[Atom, compat.Equation] = {}
    joined: dict[int, compat.Equation] = {}
    for i, equation in enumerate(jaxpr.eqns):
        if equation.primitive.name != "reduce_sum":
            continue
        (atom,) = equation.invars
        inner = None if compat.is_literal(atom) else sums.get(atom)
        if inner is not None and atom.aval.dtype.itemsize >= 4:
            summed, axes = inner.params["axes"], equation.params["axes"]
            kept = [d for d in range(inner.invars[0].aval.ndim) if d not in summed]
            axes = tuple(sorted([*summed, *(kept[d] for d in axes)]))
            params = equation.params | {"axes": axes}
            joined[i] = equation = equation.replace(invars=inner.invars, params=params)
        sums[equation.outvars[0]] = equation
    return joined


def add_any_chains(jaxpr: compat.Jaxpr) -> dict[int, tuple[list[Atom], set[int]]]:
    """Returns sums of several cotangents, which JAX writes as chains of `add_any`.

    Only partial sums with a single reader are merged. The keys are the positions of the
    chains' last equations; the values are the atoms of the merged sum and the positions
    of the chain's other equations.
    """
    atoms = [a for e in jaxpr.eqns for a in e.invars] + list(jaxpr.outvars)
    uses = Counter(a for a in atoms if not compat.is_literal(a))
    position: dict[Atom, int] = {}
    chains: dict[int, tuple[list[Atom], set[int]]] = {}
    for i, equation in enumerate(jaxpr.eqns):
        if equation.primitive.name != "add_any":
            continue
        terms: list[Atom] = []
        before: set[int] = set()
        for atom in equation.invars:
            inner = None
            if not compat.is_literal(atom) and uses[atom] == 1:
                inner = position.get(atom)
            if inner is None:
                terms.append(atom)
            else:
                more, earlier = chains.pop(inner)
                terms += more
                before |= earlier | {inner}
        position[equation.outvars[0]] = i
        chains[i] = terms, before
    return chains
