"""Evaluate one equation without programs inside, under what acts on it."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
from jax import Array, lax
from jax import numpy as jnp

from prednet_jax.noise import compat
from prednet_jax.noise.action import Action, result_type
from prednet_jax.noise.arithmetic import elementwise, permutations
from prednet_jax.noise.plan import Step
from prednet_jax.noise.words import Words, on_device, path_salt


def evaluate(
    step: Step,
    words: Words,
    operands: list[Any],
    orders: tuple[Array, ...] | None,
    switch: Array | None,
) -> list[Any]:
    """The results of a step.

    Args:
        step: of a plan, its primitive first-order.
        words: of the generator, here.
        operands: values of `step.atoms`.
        orders: drawn ahead, over the grid of the sum; None: to be drawn here.
        switch: bool []; where False, the results are those without noise; None: True.
    """
    equation, action = step.equation, step.action
    if not action.any:
        return compat.bind(equation, *operands)
    # Literals are bare numbers, whose type only the equation knows.
    operands = [
        x if hasattr(x, "aval") else np.asarray(x, atom.aval.dtype)
        for x, atom in zip(operands, step.atoms, strict=True)
    ]
    if step.name == "addupdate":
        return _accumulated(step, words, operands, switch)
    clean = _plain(step, operands) if switch is not None else []
    summed_over = equation.params["axes"] if step.name.startswith("psum") else ()
    here = on_device(words, operands, summed_over)
    salt = path_salt(step.path)
    if action.operands is not None:
        operands = [elementwise.round_operand(action.operands, x) for x in operands]
    if action.results is not None:
        operands = list(
            elementwise.perturb_operands(
                action.results, step.name, operands, here.call, salt[0]
            )
        )
    if action.order is not None:
        results = [_ordered(step, here, operands, orders if here is words else None)]
    else:
        results = compat.bind(equation, *operands)
    if action.results is not None:
        results = _perturbed(step, action, results, operands, here.call, salt[0])
    if switch is not None:
        results = [jnp.where(switch, r, c) for r, c in zip(results, clean, strict=True)]
    return results


def _accumulated(
    step: Step, words: Words, operands: Sequence[Any], switch: Array | None
) -> list[Any]:
    """A sum into a mutable array, then the noise on what the array holds there.

    Indices may repeat, so that old value and addend do not tell the rounding error: it
    is modelled, as for operations whose exact result is unknown.
    """
    spec, (ref, addend, *indices) = step.action.results, operands
    assert spec is not None
    here, salt = on_device(words, [addend]).call, path_salt(step.path)[0]
    (moved,) = elementwise.perturb_operands(spec, step.name, [addend], here, salt)
    if switch is not None:
        moved = jnp.where(switch, moved, addend)
    compat.bind(step.equation, ref, moved, *indices)
    value = compat.array_in(step.equation, ref, indices)
    noisy = elementwise.apply(spec, value, (), here, salt, primitive=step.name)
    if switch is not None:
        noisy = jnp.where(switch, noisy, value)
    compat.put_array(step.equation, ref, noisy, indices)
    return []


def _perturbed(
    step: Step,
    action: Action,
    results: Sequence[Any],
    operands: Sequence[Any],
    words: Array,
    salt: int,
) -> list[Any]:
    """The noises on results; of types that have none, the results as they are."""
    assert action.results is not None
    return [
        elementwise.apply(
            action.results, r, operands, words, salt + i, primitive=step.name
        )
        if elementwise.has_noise(r.dtype)
        else r
        for i, r in enumerate(results)
    ]


def _plain(step: Step, operands: Sequence[Any]) -> list[Any]:
    """A step without noise; add_any of a joined chain has many terms."""
    if step.name == "add_any":
        return [functools.reduce(lax.add, operands)]
    return compat.bind(step.equation, *operands)


def _ordered(
    step: Step,
    words: Words,
    operands: Sequence[Any],
    drawn: tuple[Array, ...] | None,
) -> Array:
    """A sum in drawn order, with the derivative of the plain sum."""
    spec, cut = step.action.order, step.action.cut
    assert spec is not None
    assert cut is not None
    dtype = result_type(step.equation)
    # Indices of a scatter are integers, and none of these.
    narrow = permutations.narrow_type(spec.accumulate, [x.dtype for x in operands])

    @jax.custom_jvp
    def ordered(source: Any, *operands: Array) -> Array:
        return compat.automatic(added, step.equation)(source, *operands)

    def added(source: Any, *operands: Array) -> Array:
        initial, sums = cut.split(*operands)
        if drawn is None:
            grid = permutations.tile_grid(sums[0].shape, spec.granularity, spec.tile)
            salt = path_salt(step.path)
            orders = permutations.draw_orders(source, grid, cut.pieces, salt)
        else:
            orders = source
        total = permutations.randomly_ordered_sum(
            orders, sums, spec.tile, initial, narrow
        )
        return lax.convert_element_type(total, dtype)

    @ordered.defjvp
    def rule(primals: Sequence[Array], tangents: Sequence[Array]) -> tuple:
        def plain(*operands: Array) -> Array:
            return _plain(step, operands)[0]

        tangent = jax.jvp(plain, primals[1:], tangents[1:])[1]
        return ordered(*primals), tangent

    return ordered(words.of(spec.schedule) if drawn is None else drawn, *operands)
