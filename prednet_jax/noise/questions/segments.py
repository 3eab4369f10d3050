"""Cuts a program at named values, each computed from the reference's values before.

A traced call becomes a flat list of nodes: calls are inlined, and a loop whose body
names values (`jax.ad_checkpoint.checkpoint_name`) is unrolled. Nodes read and write
numbered values. `Program.values` evaluates it; where `known` holds a value, whatever
reads that value reads the known one. So a difference upstream does not reach the
values after it, and each is the result of its own lines alone.
"""

import functools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple

import jax
import numpy as np
from jax import Array
from jax import numpy as jnp
from jax.ad_checkpoint import checkpoint_name

from prednet_jax.noise import compat
from prednet_jax.noise.arguments import array_paths
from prednet_jax.noise.plan import Plan, Step, plan
from prednet_jax.noise.questions.sampling import BoundCall
from prednet_jax.noise.random_bits import first_words
from prednet_jax.noise.run import Call, Evaluation
from prednet_jax.noise.specs import Identity
from prednet_jax.noise.types import Atom, Aval, Values

_APART = ("scan", "while", "cond", "shard_map", "custom_linear_solve")


class Node(NamedTuple):
    """One operation: `apply(*operands)` returns a list; operands are value numbers.

    `step` is the equation that it stands for, and `sources` are the user's lines that
    made it, callers last.
    """

    apply: Callable[..., list[Array]]
    operands: tuple[int, ...]
    results: tuple[int, ...]
    step: Step
    sources: tuple[str, ...]


class Program:
    """A call as a flat list of nodes.

    Attributes:
        nodes: the operations in the order of execution.
        arrays: the arrays of the arguments; `inputs`: the numbers of their values.
        outputs: `(keys, number)` of each array of the result, keys as in a pytree path.
        named: the numbers of the values of each `checkpoint_name`, in order.
        constants: the values that no argument changes, by number.
        hidden: names inside a branch or a while loop, which cannot be seen.
        types: shape and dtype of each value.
    """

    def __init__(self, call: BoundCall) -> None:
        """Traces and flattens a call."""
        traced, self.arrays = call.program, call.pure()[1]
        self.nodes: list[Node] = []
        self.named: dict[str, list[int]] = {}
        self.hidden: set[str] = set()
        self.types: list[Aval] = []
        self.constants: dict[int, Any] = {}
        program = plan(traced.jaxpr, Identity())
        self.inputs = [self._new(var.aval) for var in program.jaxpr.invars]
        results = self._flatten(program, self.inputs)
        paths, _ = jax.tree_util.tree_flatten_with_path(traced.shapes.result())
        shaped = (k for k, x in paths if isinstance(x, jax.ShapeDtypeStruct))
        self.outputs = list(zip(shaped, results, strict=False))
        plain, inside = array_paths((tuple(call.args), call.kwargs))
        self._input_names = [*plain, *inside]

    def values(
        self,
        wanted: Iterable[int],
        arrays: Values,
        known: Mapping[int, Array],
        changed: Mapping[int, Callable] = MappingProxyType({}),
    ) -> dict[int, Array]:
        """Returns the wanted values, each computed from the known values before it.

        `changed` maps nodes, by `id`, to functions that replace the nodes' own
        functions.
        """
        wanted = set(wanted)
        computed = dict(zip(self.inputs, arrays, strict=True))
        values = self.constants | computed | dict(known)
        nodes = {id(n) for i in wanted for n in self.segment([i], known)}
        for node in self.nodes:
            if id(node) in nodes:
                operands = [values[i] for i in node.operands]
                with compat.context(node.step.equation):
                    results = changed.get(id(node), node.apply)(*operands)
                computed |= zip(node.results, results, strict=True)
                values |= {i: known.get(i, computed[i]) for i in node.results}
        return {i: computed[i] if i in computed else self.constants[i] for i in wanted}

    @functools.cached_property
    def alone(self) -> Callable[..., dict[int, Array]]:
        """The compiled function of (known, arrays) that returns the known values anew.

        Each is computed from the known values before it.
        """
        return jax.jit(lambda known, arrays: self.values(known, arrays, known))

    def segment(self, numbers: Sequence[int], known: Iterable[int]) -> list[Node]:
        """Returns the nodes between the values given and the known ones before.

        A node that may have written to a mutable array which is read later is one.
        """
        known, nodes = set(known), []
        todo = set(numbers)
        for node in reversed(self.nodes):
            references = (i for i in node.operands if compat.is_ref(self.types[i]))
            written = references if node.step.name != "get" else ()
            if todo.intersection((*node.results, *written)):
                nodes.append(node)
                todo |= set(node.operands) - known
        return nodes[::-1]

    def arguments(self, nodes: Iterable[Node]) -> list[str]:
        """Returns the names of the arguments that nodes read."""
        read = {i for node in nodes for i in node.operands}
        pairs = zip(self._input_names, self.inputs, strict=True)
        return [name for name, i in pairs if i in read]

    def order(self, numbers: Sequence[int]) -> int:
        """Returns the position in the program at which values are known."""
        index = [k for k, n in enumerate(self.nodes) if set(n.results) & set(numbers)]
        return max(index, default=-1)

    def copied(self, number: int) -> int:
        """Makes a value a copy of what its node computes; returns that one's number."""
        aval, original = self.types[number], self._new(self.types[number])
        shape = jax.ShapeDtypeStruct(aval.shape, aval.dtype)
        copy = jax.make_jaxpr(lambda x: checkpoint_name(x, "copy"))(shape)
        (step,) = plan(copy, Identity()).steps

        def moved(numbers: Iterable[int]) -> tuple[int, ...]:
            return tuple(original if i == number else i for i in numbers)

        position = self.order([number])
        if position >= 0:
            node = self.nodes[position]
            self.nodes[position] = node._replace(results=moved(node.results))
        self.inputs = list(moved(self.inputs))
        if number in self.constants:
            self.constants[original] = self.constants.pop(number)
        node = Node(_applied(step), (original,), (number,), step, ())
        self.nodes.insert(position + 1, node)
        return original

    def _new(self, aval: Aval) -> int:
        self.types.append(aval)
        return len(self.types) - 1

    def _constant(self, value: Any, aval: Aval) -> int:
        number = self._new(aval)
        plain = hasattr(value, "aval") or not hasattr(aval, "dtype")
        self.constants[number] = value if plain else np.asarray(value, aval.dtype)
        return number

    def _is_number(self, number: int) -> bool:
        return np.ndim(self.constants.get(number, [])) == 0

    def _add(
        self,
        apply: Callable,
        operands: Sequence[int],
        avals: Iterable[Aval],
        step: Step,
    ) -> list[int]:
        results = tuple(map(self._new, avals))
        inside = (s for body in step.bodies.values() for s in body.walk())
        every = [*_sources(step), *(line for s in inside for line in _sources(s))]
        sources = tuple(dict.fromkeys(every))
        self.nodes.append(Node(apply, tuple(operands), results, step, sources))
        return list(results)

    def _flatten(self, program: Plan, inputs: Sequence[int]) -> list[int]:
        """Adds the nodes of a program; returns the numbers of its results."""
        constants = zip(program.jaxpr.constvars, program.consts, strict=True)
        numbers = {var: self._constant(x, var.aval) for var, x in constants}
        numbers |= zip(program.jaxpr.invars, inputs, strict=True)

        def read(atom: Atom) -> int:
            literal = compat.is_literal(atom)
            return self._constant(atom.val, atom.aval) if literal else numbers[atom]

        for step in program.steps:
            operands = [read(atom) for atom in step.atoms]
            inner = {
                s.equation.params["name"]
                for body in step.bodies.values()
                for s in body.walk()
                if s.name == "name"
            }
            if step.name not in _APART and len(step.bodies) == 1:
                results = self._flatten(next(iter(step.bodies.values())), operands)
            elif step.name == "scan" and inner:
                results = self._unroll(step, operands)
            elif step.name == "convert_element_type" and self._is_number(operands[0]):
                value = np.asarray(self.constants[operands[0]])
                results = [self._constant(value, step.equation.outvars[0].aval)]
            else:
                self.hidden |= inner
                avals = [var.aval for var in step.equation.outvars]
                results = self._add(_applied(step), operands, avals, step)
            if step.name == "name":
                self.named.setdefault(step.equation.params["name"], []).extend(results)
            numbers |= zip(step.equation.outvars, results, strict=True)
        return [read(atom) for atom in program.jaxpr.outvars]

    def _unroll(self, step: Step, operands: list[int]) -> list[int]:
        """Adds every step of a scan."""
        params, (body,) = step.equation.params, step.bodies.values()
        n_consts, n_carry = compat.scan_counts(params)
        consts, xs = operands[:n_consts], operands[n_consts + n_carry :]
        carry = operands[n_consts : n_consts + n_carry]
        steps = range(params["length"])
        rows: dict[int, list[int]] = {}
        slices = list(zip(xs, body.jaxpr.invars[n_consts + n_carry :], strict=True))
        for t in reversed(steps) if params["reverse"] else steps:
            row = [
                self._add(lambda x, t=t: [x[t]], [x], [var.aval], step)[0]
                for x, var in slices
            ]
            out = self._flatten(body, [*consts, *carry, *row])
            carry, rows[t] = out[:n_carry], out[n_carry:]

        def stacked(*parts: Array) -> list[Array]:
            return [jnp.stack(parts)]

        results = list(carry)
        for i, var in enumerate(step.equation.outvars[n_carry:]):
            parts = [rows[t][i] for t in steps]
            results += self._add(stacked, parts, [var.aval], step)
        return results


def _sources(step: Step | None) -> Iterator[str]:
    """Yields the lines of a step and of the calls around it."""
    while step is not None:
        jaxpr, around = step.within
        yield from compat.sources(step.equation, jaxpr)
        step = around


class _Bounded(Evaluation):
    """Evaluates an equation, and stops loops that do not end for other operands."""

    changes = "from the reference's values"


def _applied(step: Step) -> Callable[..., list[Array]]:
    """Returns an equation's function of its operands."""
    inside = (s for body in step.bodies.values() for s in body.walk())
    if all(s.name != "while" for s in (step, *inside)):
        return lambda *operands: compat.bind(step.equation, *operands)

    def evaluated(*operands: Array) -> list[Array]:
        evaluation, words = _Bounded(), first_words(jax.random.key(0))
        call = Call(step, {}, evaluation)
        return evaluation.higher_order(call, words, list(operands))

    return evaluated
