"""The transform: a function with numerical noise in its arithmetic.

`inject(fn, spec)` traces `fn` to a jaxpr and evaluates it equation by equation, each by
the rule of its primitive (`rules`). Loops, branches and calls are rebuilt around the
evaluation of their bodies, so that the result is an ordinary JAX function, to be
compiled, differentiated, mapped and nested.

Randomness. An equation's noise is a hash of the key, of the equation's path, such as
`3:scan/0:dot_general`, and of the counters of the loops around it (`streams`). Hence
the same key gives the same bits, compiled or not, mapped or not, and each execution of
an equation within one call has noise of its own.

Derivatives. `inject(grad(f), spec)` perturbs the forward and the backward pass: the
experiment that a GPU makes. `grad(inject(f, spec))` is the plain derivative taken at
the perturbed intermediate values: noise is a constant there, and the backward pass
itself has none. Rules of custom_jvp and custom_vjp survive the transform: inside, the
function is perturbed; its rule is applied as written, at perturbed inputs.

Recomputation. In `grad(inject(checkpoint(f)))` the recomputed values repeat the noise
of the forward pass. In `inject(grad(checkpoint(f)))` recomputation is an execution of
its own and draws afresh, as atomics do.

Devices. Inside shard_map, the words are folded with the index along the mesh axes over
which an equation's operands vary, as far as JAX tracks them (`check_vma=True`); without
that, all devices draw the same. A psum has one order, the same on all devices.
"""

from __future__ import annotations

import functools
import math
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple

import jax
import numpy as np
from jax import Array, lax
from jax import numpy as jnp
from jax.extend import core

from prednet_jax.noise import compat, elementwise, random_bits, reductions, rules
from prednet_jax.noise.arguments import Static, split_static
from prednet_jax.noise.barrier import materialised
from prednet_jax.noise.control_flow import HIGHER_ORDER, INLINED, RUN_ONCE
from prednet_jax.noise.partials import Cut, NoOrder
from prednet_jax.noise.specs import (
    Elementwise,
    NoiseSpec,
    ReducedPrecision,
    ReductionOrder,
    at,
    compose,
    parts,
)
from prednet_jax.noise.streams import State, initial_state, on_device, path_salt

Equation = compat.Equation


class UnsupportedPrimitiveError(NotImplementedError):
    """A higher-order primitive for which there is no rule."""


class Entry(NamedTuple):
    """What happens to one equation.

    Attributes:
        primitive: its name.
        path: where it is, such as `3:scan/0:dot_general`.
        reason: the noise that acts on it, or why none does.
        has_order: False for a reduction of which every order gives the same bits.
    """

    primitive: str
    path: str
    reason: str
    has_order: bool = True


Record = dict[str, tuple[bool, Entry]]
# For the path of an equation, its drawn orders: arrays over its grid of tiles.
Drawn = Mapping[str, tuple[Array, ...]]


class Seen(NamedTuple):
    """Paths of equations and names of primitives, noted while tracing."""

    paths: set[str]
    names: set[str]


class Noise(NamedTuple):
    """A spec, sorted by what it acts on.

    Attributes:
        order: acts on reductions.
        operands: acts on the operands of matrix products.
        results: elementwise noises, which act on results.
        only: paths of the equations that are perturbed; None: all.
        record: where `coverage` wants to be told what happens to each equation.
        active: booleans by path, known at run time: where False, the noise of the
            equation is computed and discarded (`localize`); None: all True.
        seen: where what a program holds is noted; None: nowhere.
    """

    order: ReductionOrder | None
    operands: ReducedPrecision | None
    results: NoiseSpec | None
    only: frozenset[str] | None = None
    record: Record | None = None
    active: Mapping[str, Array] | None = None
    seen: Seen | None = None

    def chooses(self, path: str) -> bool:
        """Whether the equation at `path` may be perturbed."""
        return self.only is None or path in self.only

    def in_vain(self, seen: Seen) -> list[str]:
        """Paths that a program has not, and primitives that neither it nor JAX has."""
        results = [] if self.results is None else parts(self.results)
        named = {name for part in results for name in _primitives(part)} - seen.names
        if named:
            named -= rules.known()
        return sorted(named) + sorted((self.only or frozenset()) - seen.paths)


def inject(
    fn: Callable,
    spec: NoiseSpec,
    *,
    only: Collection[str] | None = None,
    run_key: Array | None = None,
) -> Callable:
    """A function that computes what `fn` computes, with numerical noise.

    Args:
        fn: a function that JAX can trace. Arrays among its arguments are traced;
            anything else, Python numbers included, is passed to it as it is.
        spec: the noise. Its parts for the sites `gradient` and `weights` do nothing
            here (see `trees.perturb_tree`).
        only: paths of the equations that are perturbed, as `coverage` lists them; None:
            all. An equation's noise does not depend on which others are perturbed.
        run_key: from which orders of `schedule="run"` are drawn; None: from the key of
            each call. A training step that is given a key of its own for each update
            passes the key of the run here, so that all its updates add in one order.

    Returns:
        `noisy(key, *args, **kwargs)`. `key` is a typed PRNG key or raw key data; a
        keyword `key` is one of `fn`'s own. The result has the structure, shapes and
        types of `fn`'s. Outside of any transform it is compiled, so that it agrees
        bitwise with `jax.jit(noisy)`; with nothing to perturb, `fn` itself is called.

    Raises:
        ValueError: when `spec` is no noise spec or `only` a single text. On a call,
            when `fn` has no equation at a path of `only`, or holds no primitive of a
            name in `spec` and JAX has none of it either.
        UnsupportedPrimitiveError: on a call, when `fn` holds a higher-order primitive
            without a rule.
    """
    noise = sort_noise(spec, only)
    if noise is None:
        return _named(lambda key, /, *args, **kwargs: fn(*args, **kwargs), fn, spec)

    def run(static: Static, key: Array, of_run: Array | None, *arrays: Array) -> Any:
        return evaluate(noise, initial_state(key, of_run), static.call(fn), arrays)

    compiled = jax.jit(run, static_argnums=0)

    def noisy(key: Array, /, *args: Any, **kwargs: Any) -> Any:
        static, arrays = split_static((args, kwargs))
        if static.hashable:
            return compiled(static, key, run_key, *arrays)
        return jax.jit(functools.partial(run, static))(key, run_key, *arrays)

    return _named(noisy, fn, spec)


def _named(noisy: Callable, fn: Callable, spec: NoiseSpec) -> Callable:
    """Name a transformed function, but not by `wraps`: its signature differs."""
    name = getattr(fn, "__name__", "function")
    noisy.__name__ = noisy.__qualname__ = f"noisy_{name}"
    noisy.__doc__ = f"{name} under {spec!r}; takes a PRNG key first."
    return noisy


def sort_noise(spec: NoiseSpec, only: Iterable[str] | None = None) -> Noise | None:
    """The parts of a spec that act on a computation, or None when there are none."""
    acting = at(spec, "computation")
    if acting is None:
        return None
    found = parts(acting)
    results = [part for part in found if isinstance(part, Elementwise)]
    if isinstance(only, str):
        raise ValueError(
            f"only={only!r}: expected a collection of paths, such as [...]"
        )
    return Noise(
        order=next((p for p in found if isinstance(p, ReductionOrder)), None),
        operands=next((p for p in found if isinstance(p, ReducedPrecision)), None),
        results=compose(*results) if results else None,
        only=None if only is None else frozenset(only),
    )


def evaluate(noise: Noise, state: State, fn: Callable, arrays: Sequence[Array]) -> Any:
    """Trace `fn` at `arrays` and evaluate it under `noise`."""
    closed, shapes = jax.make_jaxpr(fn, return_shape=True)(*arrays)
    jaxpr, consts = compat.open_jaxpr(closed)
    seen = Seen(set(), set())
    noise = noise._replace(seen=seen)
    out = interpret(noise, state, jaxpr, consts, jax.tree.leaves(arrays), "", "")
    missing = noise.in_vain(seen)
    if missing and noise.record is None:
        raise ValueError(
            f"nothing to perturb at {', '.join(map(repr, missing))}: expected paths "
            "that coverage lists, and names of primitives"
        )
    weak = [getattr(s, "weak_type", False) for s in jax.tree.leaves(shapes)]
    out = [compat.weakly_typed(x) if w else x for x, w in zip(out, weak, strict=True)]
    return jax.tree.unflatten(jax.tree.structure(shapes), out)


def _primitives(part: NoiseSpec) -> tuple[str, ...]:
    return (part.primitives or ()) if isinstance(part, Elementwise) else ()


def interpret(
    noise: Noise,
    state: State,
    jaxpr: Any,
    consts: Sequence[Any],
    args: Sequence[Any],
    path: str,
    scope: str,
    drawn: Drawn | None = None,
    readers: Sequence[int] | None = None,
) -> list[Any]:
    """Evaluate a jaxpr under noise.

    Args:
        noise: what acts.
        state: the generator's words here.
        jaxpr: an open jaxpr.
        consts: values of its constants.
        args: values of its arguments.
        path: prefix of the paths of its equations.
        scope: named scopes around it.
        drawn: orders that were drawn ahead by an enclosing jaxpr, of which this one is
            an inlined part; None: this one draws its own.
        readers: how often each result is read; None: once.
    """
    values: dict[Any, Any] = {}

    def read(atom: Any) -> Any:
        return atom.val if isinstance(atom, core.Literal) else values[atom]

    values.update(zip(jaxpr.constvars, consts, strict=True))
    values.update(zip(jaxpr.invars, args, strict=True))
    steps, needs = _plan(noise, jaxpr, path, scope)
    reads = _readers(jaxpr, readers)
    # Variables that XLA would compute together with a noisy result.
    noisy: set[Any] = set()
    if drawn is None:
        drawn = _draw_ahead(noise, state, needs, path)
    for step in steps:
        name, outvars = step.equation.primitive.name, step.equation.outvars
        counts = [reads[var] for var in outvars]
        here = step.here._replace(drawn=drawn, readers=counts)
        operands = [read(atom) for atom in step.atoms]
        with compat.context(step.equation):
            results = _evaluate_equation(here, state, step, operands)
        joined = not noisy.isdisjoint(
            atom for atom in step.atoms if not isinstance(atom, core.Literal)
        )
        if step.action.any or (joined and name in rules.CHEAP):
            results = [
                materialised(r) if n > 1 else r
                for r, n in zip(results, counts, strict=True)
            ]
            noisy.update(v for v, n in zip(outvars, counts, strict=True) if n == 1)
        elif joined and name in rules.PASSED_ON | RUN_ONCE:
            noisy.update(outvars)
        values.update(zip(outvars, results, strict=True))
    return [read(atom) for atom in jaxpr.outvars]


class _Place(NamedTuple):
    """An equation's surroundings."""

    noise: Noise
    path: str
    scope: str
    drawn: Drawn = MappingProxyType({})
    readers: Sequence[int] | None = None

    def inside(
        self,
        state: State,
        jaxpr: Any,
        args: Sequence[Any],
        label: str = "",
        inlined: bool = False,
    ) -> list[Any]:
        """Evaluate a jaxpr that belongs to the equation.

        Args:
            state: the generator's words there.
            jaxpr: open or closed.
            args: values of its arguments.
            label: tells several jaxprs of one equation apart.
            inlined: whether it runs exactly once, here, with the same words.
        """
        opened, consts = compat.open_jaxpr(jaxpr)
        return interpret(
            self.noise,
            state,
            opened,
            consts,
            args,
            f"{self.path}{label}/",
            self.scope,
            self.drawn if inlined else None,
            self.readers if inlined else None,
        )


class _Step(NamedTuple):
    """One equation of a plan: what it reads, where it stands and what acts on it."""

    equation: Equation
    atoms: Sequence[Any]
    here: _Place
    action: _Action


class _Need(NamedTuple):
    """Orders to be drawn: `pieces!` of them are possible, one for each of `grid`."""

    path: str
    pieces: int
    grid: tuple[int, ...]


def _plan(
    noise: Noise, jaxpr: Any, path: str, scope: str
) -> tuple[list[_Step], list[_Need]]:
    """What happens to each equation of a jaxpr, and the orders that it takes.

    The orders do not depend on `noise.only`, so that an equation's noise is the same
    whichever others are perturbed.
    """
    equations = jaxpr.eqns
    places = [
        _Place(
            noise,
            f"{path}{i}:{equation.primitive.name}",
            f"{scope}/{compat.scope(equation)}",
        )
        for i, equation in enumerate(equations)
    ]
    if noise.seen is not None:
        noise.seen.paths.update(here.path for here in places)
        noise.seen.names.update(equation.primitive.name for equation in equations)
    needs: list[_Need] = []
    joined: dict[int, tuple[list[Any], _Action]] = {}
    absorbed: set[int] = set()
    for i, (terms, members) in _add_any_chains(jaxpr).items() if noise.order else ():
        action = _action(places[i], equations[i], terms)
        if action.order is not None:
            needs.append(_need(places[i], equations[i], action.order))
            if noise.chooses(places[i].path):
                joined[i] = (terms, action)
                absorbed |= members
    steps = []
    for i, (equation, here) in enumerate(zip(equations, places, strict=True)):
        if i in absorbed:
            continue
        if i in joined:
            steps.append(_Step(equation, joined[i][0], here, joined[i][1]))
            continue
        action = _action(here, equation, equation.invars)
        if action.order is not None and equation.primitive.name != "add_any":
            needs.append(_need(here, equation, action.order))
        if not noise.chooses(here.path):
            action = _Action(reason="not among the chosen paths")
        steps.append(_Step(equation, equation.invars, here, action))
        if noise.order and equation.primitive.name in INLINED:
            inner, _ = compat.open_jaxpr(compat.sub_jaxprs(equation.params)[0])
            needs += _plan(noise, inner, f"{here.path}/", here.scope)[1]
    return steps, needs


def _need(here: _Place, equation: Equation, order: _Order) -> _Need:
    shape = equation.outvars[0].aval.shape
    grid = reductions.tile_grid(shape, order.spec.granularity, order.spec.tile)
    return _Need(here.path, order.cut.pieces, grid)


def _lengths(needs: Sequence[_Need]) -> list[int]:
    return sorted({need.pieces for need in needs})


def _draw_ahead(noise: Noise, state: State, needs: Sequence[_Need], path: str) -> Drawn:
    """Draw the orders of all equations of a jaxpr at once.

    A draw for each equation would double the size of the program. An order for each
    output is drawn on the spot instead, where XLA fuses it with the sum.
    """
    spec = noise.order
    if spec is None or spec.granularity == "element":
        return {}
    if not needs:
        return {}
    words = state.run if spec.schedule == "run" else state.call
    salt = path_salt(path)
    alike = {n: [need for need in needs if need.pieces == n] for n in _lengths(needs)}
    totals = {n: sum(math.prod(need.grid) for need in alike[n]) for n in alike}

    def half(_: None, step: Array) -> tuple[None, dict[int, tuple[Array, ...]]]:
        inner = random_bits.fold(words, step)
        return None, {
            n: reductions.draw_orders(inner, (-(-total // 2),), n, (*salt, n))
            for n, total in totals.items()
        }

    # In a loop of two steps, since XLA fuses nothing out of a loop: it would repeat the
    # draw in the kernel of each sum.
    _, halves = lax.scan(half, None, lax.iota(jnp.uint32, 2))
    drawn = {}
    for n, found in alike.items():
        flat = [lax.reshape(word, (word.size,)) for word in halves[n]]
        start = 0
        for need in found:
            stop = start + math.prod(need.grid)
            drawn[need.path] = tuple(
                lax.reshape(word[start:stop], need.grid) for word in flat
            )
            start = stop
    return drawn


def _evaluate_equation(
    here: _Place, state: State, step: _Step, operands: list[Any]
) -> list[Any]:
    equation = step.equation
    name = equation.primitive.name
    if name in HIGHER_ORDER:
        return HIGHER_ORDER[name](here, state, equation, operands)
    if name not in rules.COMBINERS and compat.sub_jaxprs(equation.params):
        raise UnsupportedPrimitiveError(
            f"noise cannot enter the higher-order primitive {name!r} at {here.path!r}: "
            f"expected one of {', '.join(sorted(HIGHER_ORDER))}"
        )
    return _first_order(here, state, step, operands)


def _first_order(
    here: _Place, state: State, step: _Step, operands: list[Any]
) -> list[Any]:
    """Evaluate an equation without a program inside, under what acts on it."""
    equation, action = step.equation, step.action
    name = equation.primitive.name
    if here.noise.record is not None:
        _record(here.noise.record, here.path, equation, action)
    if not action.any:
        return compat.bind(equation, *operands)
    # Literals are bare numbers, whose type only the equation knows.
    operands = [
        x if hasattr(x, "aval") else np.asarray(x, atom.aval.dtype)
        for x, atom in zip(operands, step.atoms, strict=True)
    ]
    clean = _plain(equation, operands) if here.noise.active is not None else []
    summed_over = equation.params["axes"] if name.startswith("psum") else ()
    words = on_device(state, operands, summed_over)
    salt = path_salt(here.path)
    if action.operands is not None:
        operands = [elementwise.round_operand(action.operands, x) for x in operands]
    if action.results is not None:
        operands = list(
            elementwise.perturb_operands(
                action.results, name, operands, words.call, salt[0]
            )
        )
    if action.order is not None:
        drawn = here.drawn.get(here.path) if words is state else None
        results = [_ordered(action.order, drawn, words, equation, operands, salt)]
    else:
        results = compat.bind(equation, *operands)
    if action.results is not None:
        results = [
            elementwise.apply(
                action.results, r, operands, words.call, salt[0] + i, primitive=name
            )
            if elementwise.has_noise(r.dtype)
            else r
            for i, r in enumerate(results)
        ]
    if here.noise.active is not None:
        on = here.noise.active[here.path]
        results = [jnp.where(on, r, c) for r, c in zip(results, clean, strict=True)]
    return results


def _plain(equation: Equation, operands: Sequence[Any]) -> list[Any]:
    """Evaluate an equation without noise; add_any of a joined chain has many terms."""
    if equation.primitive.name == "add_any":
        return [functools.reduce(lax.add, operands)]
    return compat.bind(equation, *operands)


class _Order(NamedTuple):
    """A reduction order and how it cuts one equation."""

    spec: ReductionOrder
    cut: Cut


class _Action(NamedTuple):
    """What acts on one equation; `reason` says why its order is left alone."""

    order: _Order | None = None
    operands: ReducedPrecision | None = None
    results: NoiseSpec | None = None
    reason: str = ""

    @property
    def any(self) -> bool:
        return any(x is not None for x in self[:3])


def _action(here: _Place, equation: Equation, atoms: Sequence[Any]) -> _Action:
    noise, name, dtype = here.noise, equation.primitive.name, _result_type(equation)
    avals = [atom.aval for atom in atoms]
    if not jnp.issubdtype(dtype, jnp.inexact):
        return _Action(reason="no floating-point result")
    if not any(getattr(var.aval, "size", 1) for var in equation.outvars):
        return _Action(reason=NoOrder("an empty result"))
    operands, results = None, _acting_on_results(noise, equation)
    if noise.operands is not None and name in rules.MATRIX_PRODUCTS:
        wide = [elementwise.is_wider(aval.dtype, noise.operands) for aval in avals]
        operands = noise.operands if any(wide) else None
    order, reason = None, "not among what the spec perturbs"
    if noise.order is not None and name in rules.REDUCTIONS:
        cut = rules.plan(noise.order, name, equation.params, avals, here.scope)
        if isinstance(cut, Cut):
            order = _Order(noise.order, cut)
        else:
            reason = cut
    elif noise.order is not None:
        reason = rules.LEFT_ALONE.get(name, "no reduction")
    return _Action(order, operands, results, reason)


def _result_type(equation: Equation) -> Any:
    """Type of the first result; bool where there is none, or none with a type."""
    for var in equation.outvars:
        return getattr(var.aval, "dtype", np.dtype(bool))
    return np.dtype(bool)


def _acting_on_results(noise: Noise, equation: Equation) -> NoiseSpec | None:
    """The elementwise noises that act on the results of an equation."""
    types = [getattr(var.aval, "dtype", bool) for var in equation.outvars]
    if noise.results is None or not any(map(elementwise.has_noise, types)):
        return None
    found = [
        part
        for part in parts(noise.results)
        if equation.primitive.name in (_primitives(part) or rules.ARITHMETIC)
    ]
    return compose(*found) if found else None


def _record(record: Record, path: str, equation: Equation, action: _Action) -> None:
    """Note what happens to an equation, for `coverage`."""
    name = equation.primitive.name
    reasons = []
    if action.operands is not None:
        reasons.append(f"operands in {action.operands.format}")
    if action.order is not None:
        spec, cut = action.order
        reasons.append(f"{cut.pieces} pieces in random order, {spec.granularity}")
    if action.results is not None:
        reasons += [type(part).__name__ for part in parts(action.results)]
    if reasons:
        record[path] = (True, Entry(name, path, "; ".join(reasons)))
    elif rules.is_float_reduction(name, _result_type(equation)):
        has_order = not isinstance(action.reason, NoOrder)
        record[path] = (False, Entry(name, path, str(action.reason), has_order))


def _ordered(
    order: _Order,
    drawn: tuple[Array, ...] | None,
    state: State,
    equation: Equation,
    operands: Sequence[Any],
    salt: tuple[int, int],
) -> Array:
    """A sum in drawn order, with the derivative of the plain sum."""
    spec, cut = order
    dtype = _result_type(equation)
    words = state.run if spec.schedule == "run" else state.call

    @jax.custom_jvp
    def ordered(source: Any, *operands: Array) -> Array:
        return compat.automatic(added, equation)(source, *operands)

    def added(source: Any, *operands: Array) -> Array:
        initial, sums = cut.split(*operands)
        if drawn is None:
            grid = reductions.tile_grid(sums[0].shape, spec.granularity, spec.tile)
            orders = reductions.draw_orders(source, grid, cut.pieces, salt)
        else:
            orders = source
        total = reductions.randomly_ordered_sum(orders, sums, spec.tile, initial)
        return lax.convert_element_type(total, dtype)

    @ordered.defjvp
    def rule(primals: Sequence[Array], tangents: Sequence[Array]) -> tuple:
        def plain(*operands: Array) -> Array:
            return _plain(equation, operands)[0]

        tangent = jax.jvp(plain, primals[1:], tangents[1:])[1]
        return ordered(*primals), tangent

    return ordered(words if drawn is None else drawn, *operands)


def _uses(jaxpr: Any) -> Counter[Any]:
    """How often each variable of a jaxpr is read, results included."""
    atoms = [a for e in jaxpr.eqns for a in e.invars] + list(jaxpr.outvars)
    return Counter(a for a in atoms if not isinstance(a, core.Literal))


def _readers(jaxpr: Any, readers: Sequence[int] | None = None) -> Counter[Any]:
    """How often each variable of a jaxpr is computed, if nothing holds it.

    As `_uses`, but what XLA fuses into its readers stands for them: an equation of
    `rules.PASSED_ON`, or the body of a call.

    Args:
        jaxpr: an open jaxpr.
        readers: of its results; None: one each.
    """
    found: Counter[Any] = Counter()

    def add(atoms: Sequence[Any], counts: Sequence[int]) -> None:
        for atom, count in zip(atoms, counts, strict=True):
            if not isinstance(atom, core.Literal):
                found[atom] += count

    add(jaxpr.outvars, [1] * len(jaxpr.outvars) if readers is None else readers)
    for equation in reversed(jaxpr.eqns):
        name, atoms = equation.primitive.name, equation.invars
        results = [found[var] for var in equation.outvars]
        if name in rules.PASSED_ON:
            # The results of a split are different parts: no element is read twice. (Of
            # slices that is not known.)
            counts = [max(results)] * len(atoms)
            size = equation.outvars[0].aval.size
            if name == "broadcast_in_dim" and 1 < atoms[0].aval.size < size:
                # Each copy computes it anew.
                counts[0] *= 2
        elif name in RUN_ONCE:
            inner, _ = compat.open_jaxpr(compat.sub_jaxprs(equation.params)[0])
            inside = _readers(inner, results)
            counts = [inside[var] for var in inner.invars]
        else:
            counts = [1] * len(atoms)
        add(atoms, counts)
    return found


def _add_any_chains(jaxpr: Any) -> dict[int, tuple[list[Any], set[int]]]:
    """Sums of several cotangents, which JAX writes as chains of binary `add_any`.

    Only sums that nothing else reads are joined: an intermediate sum that is used
    elsewhere keeps its place.

    Returns:
        For the last equation of each chain: its terms, and the equations before it.
    """
    uses = _uses(jaxpr)
    position: dict[Any, int] = {}
    chains: dict[int, tuple[list[Any], set[int]]] = {}
    for i, equation in enumerate(jaxpr.eqns):
        if equation.primitive.name != "add_any":
            continue
        terms: list[Any] = []
        members: set[int] = set()
        for atom in equation.invars:
            inner = None
            if not isinstance(atom, core.Literal) and uses[atom] == 1:
                inner = position.get(atom)
            if inner is None:
                terms.append(atom)
            else:
                more, before = chains.pop(inner)
                terms += more
                members |= before | {inner}
        position[equation.outvars[0]] = i
        chains[i] = (terms, members)
    return chains
