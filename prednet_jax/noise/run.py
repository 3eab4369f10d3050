"""Evaluates a plan in one short loop over its equations.

Each equation is evaluated with its noise. An equation that runs other programs is
evaluated by its rule (`rules`), which calls this module for its bodies. The result is
an ordinary JAX computation, to be compiled, differentiated, mapped and nested.
"""

import functools
import math
from collections.abc import Callable, Collection, Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple

import jax
import numpy as np
from jax import Array, lax
from jax import numpy as jnp

from prednet_jax.noise import compat, random_bits
from prednet_jax.noise.errors import expect
from prednet_jax.noise.fusion import materialised
from prednet_jax.noise.order import permutations
from prednet_jax.noise.plan import Plan, Step
from prednet_jax.noise.random_bits import Words, first_words, on_device, path_salt
from prednet_jax.noise.rounding import elementwise, error_free, whole
from prednet_jax.noise.rules import registry
from prednet_jax.noise.rules.registry import HigherOrder
from prednet_jax.noise.types import Atom, Params, PyTree, Values

# By the path of an equation, its drawn orders: an array over its grid of tiles.
Drawn = Mapping[str, Array]
_NOTHING: Drawn = MappingProxyType({})


class Evaluation:
    """Evaluates equations; subclasses switch noise on and off, or observe values.

    `switch` returns for a path a boolean that is known at run time: where it is False,
    noisy values are computed but clean ones used. `watches` adds loop counters to
    words. `changes` says where values may differ from the program's own, so that loops
    may not end, as in "in float64"; noise alone does it "under this noise". `is_plain`
    is whether it is a run without noise that only counts a loop's steps, and
    `refuses_loops` whether a loop that does not end is an error, not only stopped.
    `counted` are the steps that loops take without noise, by path, if they are known.
    `unread` are the ids of variables that no result depends on: `after` is not called
    for equations that make these alone.
    """

    watches = False
    changes = ""
    counted: Mapping[str, int] = MappingProxyType({})
    unread: Collection[int] = frozenset()
    is_plain = False
    refuses_loops = True

    def __init__(self, switch: Callable[[str], Array | None] = lambda path: None):
        self.switch = switch

    def read(self, values: Mapping[Atom, Array], atom: Atom) -> Any:
        """Returns the value of an atom, given the values by variable."""
        return atom.val if compat.is_literal(atom) else values[atom]

    def after(self, step: Step, words: Words, operands: list, results: list) -> list:
        """Returns the results to use in place of an equation's results."""
        return results

    def wide_type(self, dtype: np.dtype) -> np.dtype:
        """Returns the type that takes the place of a type."""
        return dtype

    def first_order(self, call: "Call", words: Words, operands: list) -> list:
        """Returns the results of an equation without programs inside."""
        step, switch = call.step, self.switch(call.step.path)
        orders = call.drawn.get(step.salt)
        if switch is None or not step.action.any:
            return perturbed(step, words, operands, orders)
        if step.name == "addupdate":
            return _accumulated(step, words, typed(step, operands), switch)
        clean = plain(step, typed(step, operands))
        noisy = perturbed(step, words, operands, orders)
        return [jnp.where(switch, n, c) for n, c in zip(noisy, clean, strict=True)]

    def higher_order(self, call: "Call", words: Words, operands: list) -> list:
        """Returns the results of an equation that runs other programs."""
        return list(call.rule.run(call, words, operands))

    def body(
        self, call: "Call", words: Words, operands: Values, label: str
    ) -> list[Array]:
        """Evaluates one of the programs of an equation."""
        drawn = call.drawn if call.rule.inlined else None
        return at_words(call.step.bodies[label], words, operands, self, drawn)

    def plain(self) -> "Evaluation":
        """Returns an evaluation of the same programs without noise."""
        return Plain()

    def decided(self, step: Step, words: Words, number: Array) -> None:
        """Records the number of steps of a while loop, or the index of a branch."""

    def program(self, plan: Plan, words: Words, values: dict, drawn: Drawn) -> None:
        """Evaluates all steps of a program; adds to `values`, a dict by variable."""
        self.advance(plan.steps, words, values, drawn)

    def advance(
        self, steps: Sequence[Step], words: Words, values: dict, drawn: Drawn
    ) -> None:
        """Evaluates steps one after another; adds to `values`, a dict by variable."""
        for step in steps:
            operands = [self.read(values, atom) for atom in step.atoms]
            rule = registry.higher_order(step.name)
            evaluate = self.first_order if rule is None else self.higher_order
            # Derivative rules outlive the trace and hold a call, so it must not hold
            # values.
            own = drawn if rule is None or rule.inlined else _NOTHING
            with compat.context(step.equation):
                results = evaluate(Call(step, own, self), words, operands)
                outvars = step.equation.outvars
                if not outvars or any(id(var) not in self.unread for var in outvars):
                    results = self.after(step, words, operands, results)
            rows = zip(outvars, results, step.held, strict=True)
            for var, x, hold in rows:
                values[var] = materialised(x) if hold else x


class Plain(Evaluation):
    """Evaluates a plan without its noise, in the types of its program.

    `steps`, if it is not None, gets the most steps of each while loop, by path. Then a
    loop that does not end is an error.
    """

    changes = "without noise"
    is_plain = True

    def __init__(self, steps: dict[str, int] | None = None) -> None:
        super().__init__()
        self.steps, self.refuses_loops = steps, steps is not None

    def plain(self) -> Evaluation:
        """Returns itself: loops inside of loops are counted, too."""
        return self

    def decided(self, step: Step, words: Words, number: Array) -> None:
        """Sends the number of steps of a while loop to the host."""
        steps = self.steps
        if steps is not None and step.name == "while":

            def count(number: Array) -> None:
                steps[step.path] = max(steps.get(step.path, 0), int(number))

            jax.debug.callback(count, number)

    def first_order(self, call: "Call", words: Words, operands: list) -> list:
        """Returns the results of an equation without programs inside."""
        if call.step.name in ("debug_callback", "debug_print"):
            return []  # Only the noisy run shows its values.
        return plain(call.step, typed(call.step, operands))

    def body(
        self, call: "Call", words: Words, operands: Values, label: str
    ) -> list[Array]:
        """Evaluates one of the programs of an equation."""
        return at_words(call.step.bodies[label], words, operands, self, _NOTHING)


class Call(NamedTuple):
    """A higher-order equation while it is evaluated; see `HigherOrder.run`."""

    step: Step
    drawn: Drawn
    evaluation: Evaluation

    @property
    def rule(self) -> HigherOrder:
        """Returns the rule of its primitive."""
        rule = registry.higher_order(self.step.name)
        assert rule is not None
        return rule

    @property
    def params(self) -> Params:
        """Returns the equation's parameters."""
        return self.step.equation.params

    def bind(self, *operands: Array) -> list[Array]:
        """Evaluates the equation without noise."""
        return compat.bind(self.step.equation, *operands)

    def body(self, words: Words, operands: Values, label: str = "") -> list[Array]:
        """Evaluates one of the equation's bodies under noise."""
        return self.evaluation.body(self, words, operands, label)

    def plainly(self, words: Words, operands: Values, label: str) -> list[Array]:
        """Evaluates one of the equation's bodies without noise."""
        return self._replace(evaluation=self.evaluation.plain()).body(
            words, operands, label
        )

    def decided(self, words: Words, number: Array) -> None:
        """Records the decision of the equation itself."""
        self.evaluation.decided(self.step, words, number)


def run(
    plan: Plan,
    key: Array,
    args: Values,
    *,
    run_key: Array | None = None,
    evaluation: Evaluation | None = None,
) -> list[Array]:
    """Returns the values of a plan's results at the values `args` of its arguments.

    The plan was made in the same trace. `key`, typed or raw, must not be used again.
    Orders of `schedule="run"` are drawn from `run_key`, which defaults to `key`.
    """
    evaluation = evaluation or Evaluation()
    if any(step.action.any for step in plan.walk()):
        evaluation.changes = "under this noise"
    words = first_words(key, run_key)
    if evaluation.watches:
        words = words._replace(steps=())
    return at_words(plan, words, args, evaluation)


def at_words(
    plan: Plan,
    words: Words,
    args: Values,
    evaluation: Evaluation,
    drawn: Drawn | None = None,
) -> list[Array]:
    """Evaluates a plan as `run` does; `drawn` are orders drawn by an outer plan."""
    values: dict[Atom, Array] = {}
    values.update(zip(plan.jaxpr.constvars, plan.consts, strict=True))
    values.update(zip(plan.jaxpr.invars, args, strict=True))
    if drawn is None:
        drawn = _draw_ahead(plan, words)
    if words.made is None and plan.elements:
        first, second = random_bits.make_pool(words.call, plan.elements)
        words = words._replace(made=(materialised(first), materialised(second)))

    evaluation.program(plan, words, values, drawn)
    return [evaluation.read(values, atom) for atom in plan.jaxpr.outvars]


def _draw_ahead(plan: Plan, words: Words) -> Drawn:
    """Draws the orders of all equations of a plan at once: small programs."""
    order = plan.noise.order
    # An order for each output is drawn where it is used, so XLA fuses it with the sum.
    if order is None or order.granularity == "element" or not plan.to_draw:
        return _NOTHING
    source = words.of(order.schedule)
    salt = path_salt(plan.salt)
    alike: dict[int, dict[str, tuple[int, ...]]] = {}
    for step in plan.to_draw:
        assert step.action.cut is not None
        assert step.grid is not None
        pieces = step.action.cut.pieces
        alike.setdefault(pieces, {})[step.salt] = step.grid

    drawn = {}
    for n, grids in sorted(alike.items()):
        total = sum(math.prod(grid) for grid in grids.values())
        orders = permutations.draw_orders(source, (total,), n, (*salt, n))
        # Otherwise XLA would repeat the draw in the kernel of each sum.
        flat = materialised(lax.optimization_barrier(orders))
        start = 0
        for path, grid in grids.items():
            offset = random_bits.unfolded(start)
            start += (size := math.prod(grid))
            part = lax.dynamic_slice_in_dim(flat, offset[0], size, 1)
            drawn[path] = lax.reshape(part, (len(flat), *grid))
    return drawn


def perturbed(
    step: Step, words: Words, operands: list[Array], drawn: Array | None
) -> list[Array]:
    """Returns the results of a step under noise; `drawn` are orders drawn ahead."""
    equation, action = step.equation, step.action
    if not action.any:
        return compat.bind(equation, *operands)
    operands = exact = typed(step, operands)
    if step.name == "addupdate":
        return _accumulated(step, words, operands)
    summed_over = equation.params["axes"] if step.name.startswith("psum") else ()
    local = on_device(words, [atom.aval for atom in step.atoms], summed_over)
    salt, noise = path_salt(step.salt)[0], action.results
    if action.operands is not None:
        operands = [elementwise.round_operand(action.operands, x) for x in operands]
    if noise is not None:
        pool = local.pool(step.elements)
        operands = elementwise.perturb_operands(
            noise, step.name, operands, pool, (salt,), routine=action.routine
        )
    if action.order is not None:
        results = [_ordered(step, local, operands, drawn if local is words else None)]
    elif action.replay is not None:
        replay = action.replay.evaluate
        results = [_replaced(step, lambda _, *xs: replay(*xs), (), operands)]
    else:
        results = compat.bind(equation, *operands)
    if noise is None:
        return results
    noisy = [
        elementwise.apply(noise, r, operands, pool, (salt, i), primitive=step.name)
        if elementwise.has_noise(r.dtype)
        else r
        for i, r in enumerate(results)
    ]
    if step.name in ("scatter-add", "scatter-sub", "scatter-mul"):
        # An element that no update reaches is a copy.
        x, indices, updates = exact
        ones = jnp.ones_like(x), indices, jnp.full_like(updates, 2)
        noisy = [jnp.where(compat.bind(equation, *ones)[0] != 1, noisy[0], x)]
    if step.counts and elementwise.keeps_exact(noise):
        unrounded = whole.is_exact(step.name, equation.params, results[0], exact)
        if unrounded is not None:
            noisy = [jnp.where(unrounded, results[0], noisy[0])]
    for i in step.factors:
        # A product with 1, -1 or 0 is exact: a direction, a mask.
        noisy = [jnp.where(jnp.abs(exact[i]) <= 1, results[0], noisy[0])]
    return noisy


def typed(step: Step, operands: Values) -> list:
    """Returns operands as arrays; a literal gets its type from the equation."""
    return [
        x if hasattr(x, "aval") else np.asarray(x, atom.aval.dtype)
        for x, atom in zip(operands, step.atoms, strict=True)
    ]


def plain(step: Step, operands: Values) -> list[Array]:
    """Evaluates a step without noise; the add_any of a merged chain has many terms."""
    if step.name == "add_any":
        return [functools.reduce(lax.add, operands)]
    return compat.bind(step.equation, *operands)


def _accumulated(
    step: Step, words: Words, operands: Values, switch: Array | None = None
) -> list[Array]:
    """Adds to a mutable array, then perturbs the array's new elements."""
    spec, (ref, addend, *indices) = step.action.results, operands
    assert spec is not None
    pool = on_device(words, [step.atoms[1].aval]).pool(step.elements)
    salt = path_salt(step.salt)[:1]

    def chosen(noisy: Array, clean: Array) -> Array:
        return noisy if switch is None else jnp.where(switch, noisy, clean)

    (moved,) = elementwise.perturb_operands(spec, step.name, [addend], pool, salt)
    compat.bind(step.equation, ref, chosen(moved, addend), *indices)
    tree = step.equation.params["tree"]
    value = compat.get_p.bind(ref, *indices, tree=tree)
    # Indices may repeat, so the rounding error is modelled, as for unknown operations.
    noisy = elementwise.apply(spec, value, (), pool, salt, primitive=step.name)
    compat.swap_p.bind(ref, chosen(noisy, value), *indices, tree=tree)
    return []


def _ordered(step: Step, words: Words, operands: Values, drawn: Array | None) -> Array:
    spec, cut = step.action.order, step.action.cut
    assert spec is not None
    assert cut is not None
    dtype, salt = step.equation.outvars[0].aval.dtype, path_salt(step.salt)
    # Indices of a scatter are integers, and do not count.
    narrow = permutations.narrow_type(spec.accumulate, [x.dtype for x in operands])

    # The function outlives the trace, so values of the trace are its arguments.
    def added(source: PyTree, *operands: Array) -> Array:
        state, drawn = source
        if cut.total is not None:
            total = cut.total(state, salt, *operands)
            return lax.convert_element_type(total, dtype)
        initial, sums = cut.split(*operands)

        def ordered_sum(orders: Array | None, *number: int) -> Array:
            if orders is None:
                grid = permutations.tile_grid(
                    sums[0].shape, spec.granularity, spec.tile
                )
                draw = (*salt, *number)
                orders = permutations.draw_orders(
                    state, grid, cut.pieces, draw, sums[0].size
                )
            return permutations.randomly_ordered_sum(
                orders, sums, spec.tile, initial, narrow
            )

        total, own = ordered_sum(drawn), step.equation.outvars[0].aval.shape
        fits = total.shape == own and len(sums) == cut.pieces
        shapes = [jnp.shape(x) for x in (initial, *sums) if x is not None]
        wanted = f"{cut.pieces} partial sums, and any initial value, of shape {own}"
        expect(fits, f"the split of {step.name}: shapes", shapes, wanted)
        if spec.chain == "terms" and cut.terms > cut.pieces:
            # Two drawn orders differ by sqrt(2) times the error of one.
            scale = np.asarray(math.sqrt(cut.terms / cut.pieces / 2), total.dtype)
            longer = total + scale * (total - ordered_sum(None, 1))
            if cut.lost is not None and jnp.issubdtype(total.dtype, jnp.floating):
                zero = error_free.run_time_zero(state)

                def coin(shape: Sequence[int]) -> Array:
                    drawn = random_bits.bits(state, tuple(shape), (*salt, 2))
                    return drawn < np.uint32(1 << 31)

                longer += cut.lost(zero, coin, *operands)
            total = jnp.where(jnp.isfinite(longer), longer, total)
        return lax.convert_element_type(total, dtype)

    source = words.of(spec.schedule), drawn
    return _replaced(step, added, source, operands)


def _replaced(
    step: Step, evaluate: Callable[..., Array], source: PyTree, operands: Values
) -> Array:
    """Returns `evaluate(source, *operands)`, with the derivative of the plain sum."""

    @jax.custom_jvp
    def ordered(source: PyTree, *operands: Array) -> Array:
        return compat.automatic(evaluate, step.equation)(source, *operands)

    @ordered.defjvp
    def rule(primals: Sequence[Array], tangents: Sequence[Array]) -> tuple:
        def without(*operands: Array) -> Array:
            return plain(step, operands)[0]

        tangent = jax.jvp(without, primals[1:], tangents[1:])[1]
        return ordered(*primals), tangent

    return ordered(source, *operands)
