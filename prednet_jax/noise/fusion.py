"""Prevents XLA from computing noise twice, in one optional pass over a plan.

XLA's CPU backend fuses the computation of a value into each of its consumers, and drops
`optimization_barrier` before it does: a noisy result that two equations read would be
computed twice, along a chain of such results 2^n times. Without this pass noise has the
same distribution, but a different cost and different last bits.

Loops, branches and calls end a fusion. Here a call that XLA may not inline returns its
argument: it computes, compiles and copies nothing.
"""

from collections import Counter
from collections.abc import Iterable, Sequence

import jax
from jax import Array
from jax.experimental.xla_metadata import set_xla_metadata

from prednet_jax.noise import compat
from prednet_jax.noise.rules import registry
from prednet_jax.noise.types import Atom, names_in

# Primitives without rounding that XLA computes anew in each reader.
PASSED_ON = names_in(
    "reshape transpose broadcast_in_dim squeeze expand_dims rev slice split copy "
    "convert_element_type neg abs max min select_n"
)

# Arithmetic so cheap that XLA computes it, and its inputs, anew in each reader.
CHEAP = frozenset({"add", "sub", "mul", "div", "add_any", "integer_pow", "square"})


def materialised(x: Array) -> Array:
    """Makes XLA compute `x` only once; GPUs respect its barrier and need no more."""
    # Single numbers count too: each kernel that reads one would contain its noise. A
    # Python number and an empty array have none.
    if not getattr(x, "size", 0) or jax.default_backend() != "cpu":
        return x
    with set_xla_metadata(inlineable="false"):
        return _computed_once(x)


@jax.jit
def _computed_once(x: Array) -> Array:
    return x


def held(
    steps: Iterable[tuple[compat.Equation, Sequence[Atom], bool]], reads: Counter[Atom]
) -> list[tuple[bool, ...]]:
    """Returns which results of each step to compute once, one boolean per result.

    `steps` are tuples, in order: the equation, its inputs, and whether noise acts.
    """
    holds = []
    # Variables that XLA would compute together with a noisy result.
    noisy: set[Atom] = set()
    for equation, atoms, acts in steps:
        name, outvars = equation.primitive.name, equation.outvars
        counts = [reads[var] for var in outvars]
        read = [atom for atom in atoms if not compat.is_literal(atom)]
        joined = not noisy.isdisjoint(read)
        hold = acts or (joined and name in CHEAP)
        if hold:
            noisy.update(v for v, n in zip(outvars, counts, strict=True) if n == 1)
        elif joined and (name in PASSED_ON or joined_body(equation) is not None):
            noisy.update(outvars)
        # Noise uses its operand several times. Where that is put together from parts,
        # its code has branches, in which XLA computes the parts anew for each use.
        parts = joined and name in ("concatenate", "pad", "stack")
        holds.append(tuple(parts or (hold and n > 1) for n in counts))
    return holds


def readers(
    jaxpr: compat.Jaxpr, of_results: Sequence[int] | None = None
) -> Counter[Atom]:
    """Counts how often each variable of an open jaxpr is computed without barriers.

    A computation that XLA fuses into its readers counts as they do: an equation of
    `PASSED_ON`, or the body of a call. `of_results` counts the readers of each result.
    It defaults to one each.
    """
    reads: Counter[Atom] = Counter()

    def add(atoms: Sequence[Atom], counts: Sequence[int]) -> None:
        for atom, count in zip(atoms, counts, strict=True):
            if not compat.is_literal(atom):
                reads[atom] += count

    add(jaxpr.outvars, [1] * len(jaxpr.outvars) if of_results is None else of_results)
    for equation in reversed(jaxpr.eqns):
        name, atoms = equation.primitive.name, equation.invars
        results = [reads[var] for var in equation.outvars]
        if name in PASSED_ON:
            # The results of a split are different parts: no element is read twice. For
            # slices this is unknown.
            counts = [max(results)] * len(atoms)
            size = equation.outvars[0].aval.size
            if name == "broadcast_in_dim" and 1 < atoms[0].aval.size < size:
                # Each copy computes the operand anew.
                counts[0] *= 2
        elif (body := joined_body(equation)) is not None:
            inner, _ = compat.open_jaxpr(body)
            inside = readers(inner, results)
            counts = [inside[var] for var in inner.invars]
        else:
            counts = [1] * len(atoms)
        add(atoms, counts)
    return reads


def joined_body(equation: compat.Equation) -> compat.Jaxpr | None:
    """Returns the body of an equation that is inlined into its program, or None."""
    rule = registry.higher_order(equation.primitive.name)
    if rule is None or not rule.joins:
        return None
    (body,) = rule.programs(equation).values()
    # A call of nothing is the one above, or as good as that.
    return body if compat.open_jaxpr(body)[0].eqns else None
