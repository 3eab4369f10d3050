"""Records the value of every equation of a program while it runs."""

import hashlib
import math
import re
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
from jax import Array
from jax import numpy as jnp

from prednet_jax.noise import random_bits
from prednet_jax.noise._inject import evaluate
from prednet_jax.noise.arguments import array_paths, python_numbers
from prednet_jax.noise.errors import NoiseError
from prednet_jax.noise.fusion import materialised
from prednet_jax.noise.leaves import as_array, check_no_texts
from prednet_jax.noise.plan import Step
from prednet_jax.noise.questions.recording import (
    FACTS,
    SAMPLE,
    WHOLE,
    Recorded,
    Recording,
)
from prednet_jax.noise.questions.sampling import BoundCall, reporting, say
from prednet_jax.noise.random_bits import Words
from prednet_jax.noise.run import Call
from prednet_jax.noise.sketch import (
    COLUMNS,
    HUGE,
    classes,
    numbers,
    summaries,
    summary,
)
from prednet_jax.noise.specs import Identity, NoiseSpec
from prednet_jax.noise.types import PyTree, Values
from prednet_jax.noise.watch import Watched

# The most elements in the samples of all executions of a value.
SAMPLES = 1 << 16
# The number of executions of a value in loops that are kept, from the first steps.
EXECUTIONS = 256
# Bytes of a value, in all its executions, that may be copied from the device whole.
LEAVES = 1 << 20


def record(fn: Callable) -> Callable[..., Recording]:
    """Records the values of all equations of `fn`, loop steps included.

    Returns:
        `run(*args, **kwargs)`, which returns the `Recording`; `fn` is compiled as a
            whole. For a loop, up to `EXECUTIONS` executions of each equation, and
            the loop's results, are kept.

    Raises:
        NoiseError: on a call, as for `inject`, and when `fn` has no array at all.
    """

    @reporting()
    def run(*args: PyTree, **kwargs: PyTree) -> Recording:
        call = BoundCall(fn, args, kwargs)
        call.check_ends()
        watch = Watch(call)
        device = jax.devices()[0]
        machine = f"jax {jax.__version__}, {device.platform} ({device.device_kind})"
        say(f"compiling {watch.name} so that its values are seen, and running it")
        values = watch.run(jax.random.key(0))
        if not values:
            raise NoiseError(
                f"{watch.name}: nothing to record: expected a function of arrays, or "
                "one that computes any"
            )
        return Recording(watch.name, machine, values)

    return run


class Watch(Watched):
    """A function with its arguments, compiled so that all its values are seen.

    `name` is the function's name; `labels` describes each value by path. Traced values
    are marked with the numbers of the recorded values that they are or come from.
    """

    def __init__(self, call: BoundCall, spec: NoiseSpec | None = None) -> None:
        """Prepares runs of a call; `spec` is the noise of each run, if any."""
        super().__init__(EXECUTIONS)
        self.name = getattr(call.fn, "__name__", type(call.fn).__name__)
        arguments, program = call.arguments(), call.program
        self._unread = call.unread
        self._arrays = call.pure()[1]
        # By the path of an equation, for each of its results, the sources in its
        # bodies.
        self._left: dict[str, list[tuple[int, ...]]] = {}

        @jax.jit
        def watched(key: Array, *arrays: Array) -> None:
            self._marks.clear()
            self._left.clear()
            plain, inside = array_paths(arguments)
            variables = program.jaxpr.jaxpr.invars
            names = [*plain, *inside]
            for name, x, var in zip(names, arrays, variables, strict=True):
                self._note(name, "argument", x, unread=id(var) in self._unread)
            for name, number in python_numbers(arguments):
                self._note(name, "argument", jnp.asarray(number))
            for i, x in enumerate(filter(_is_array, program.jaxpr.consts)):
                self._note(f"constant {i}", "constant", jnp.asarray(x))
            outcome = evaluate(spec or Identity(), key, program, arrays, hooks=self)
            arrays_out = iter(jax.tree.leaves(outcome))
            of_result = program.shapes.result()
            check_no_texts(of_result)
            # A Python number of the result is in no equation.
            out = [
                jnp.asarray(as_array(x))
                if isinstance(x, _NUMBERS)
                else next(arrays_out)
                for x in filter(_is_array, jax.tree.leaves(of_result))
            ]
            out += arrays_out
            states = [f"result, the state of {name}" for name in inside]
            names = _names("result", of_result, len(out) - len(states)) + states
            for name, x in zip(names, out, strict=True):
                self._note(name, "result", x, sources=self._sources(x))

        self._compiled = watched

    def after(self, step: Step, words: Words, operands: list, results: list) -> list:
        """Notes the results, and a loop's final ones, as late steps are not kept."""
        loop = step.name in ("scan", "while")
        read = tuple(number for x in operands for number in self._sources(x))
        inside = self._left.get(step.path, [])
        if not step.bodies:
            # The host reads every value, so that XLA would compute a chain of values
            # anew for each of them. Compiling a chain of hundreds takes minutes.
            results = [materialised(x) if _is_array(x) else x for x in results]
        for i, x in enumerate(results):
            sources = read
            if step.bodies:
                sources = inside[i] if i < len(inside) else ()
            if step.bodies and not loop:
                if sources and not self._sources(x):
                    self.mark(x, sources)
                continue
            is_numbered = loop or len(results) > 1
            path = f"{step.path}[{i}]" if is_numbered else step.path
            unread = id(step.equation.outvars[i]) in self._unread
            self._note(path, step.name, x, step, words, sources, unread=unread)
        return results

    def body(
        self, call: Call, words: Words, operands: Values, label: str
    ) -> list[Array]:
        """Keeps what the results of a body come from."""
        results = super().body(call, words, operands, label)
        if label != "[cond]":
            before = self._left.get(call.step.path, [()] * len(results))
            sources = [
                tuple(dict.fromkeys((*earlier, *self._sources(x))))
                for earlier, x in zip(before, results, strict=False)
            ]
            self._left[call.step.path] = sources
        return results

    def _sources(self, value: object) -> tuple[int, ...]:
        """Returns the numbers of the recorded values that a value is or comes from."""
        return self.marked(value, ())

    def _note(
        self,
        path: str,
        primitive: str,
        value: Array,
        step: Step | None = None,
        words: Words | None = None,
        sources: tuple[int, ...] = (),
        *,
        unread: bool = False,
    ) -> None:
        """Sends a value, if it is an array of numbers."""
        if not _is_array(value):
            return
        site, x = self.place(words), numbers(value)
        # A predicate is traced twice in a while loop.
        if path not in self.labels:
            self.labels[path] = {
                "number": len(self.labels),
                "path": path,
                "primitive": primitive,
                "source": step.source if step else "",
                "shape": x.shape,
                "dtype": str(x.dtype),
                "within": _within(step.path) if step else "",
                "operands": sources,
                "starts": tuple(site.starts),
                "sampled": min(SAMPLE, max(1, SAMPLES // site.most)),
                "text": _hash(step.source_text) if step else "",
                "unread": unread,
                "complex": jnp.iscomplexobj(value),
            }
        if primitive != "result":
            self.mark(value, (self.labels[path]["number"],))
        small = x.size * site.most * x.dtype.itemsize <= LEAVES
        count, of_complex = (self.labels[path][k] for k in ("sampled", "complex"))
        is_whole = x.size <= WHOLE or small
        for i, part in enumerate([x] if is_whole else summary(x, count, of_complex)):
            self.send_later((path, i), part, words)

    def run(self, key: Array, arrays: Values = ()) -> tuple[Recorded, ...]:
        """Returns all values of one run; at `arrays`, or those that were traced."""
        words = random_bits.words(key)
        seen, _ = self.seen(lambda: self._compiled(words, *(arrays or self._arrays)))
        parts: dict[str, dict[int, dict[tuple, np.ndarray]]] = {}
        for ((path, i), *step), part in seen.items():
            parts.setdefault(path, {}).setdefault(i, {})[tuple(step)] = part
        facts = self.labels.values()
        return tuple(_recorded(f, parts.get(f["path"], {0: {}})) for f in facts)


_NUMBERS = (bool, int, float, complex)


def _names(kind: str, tree: PyTree, count: int) -> list[str]:
    """Returns the names of arrays: pytree paths, or numbers if these are unclear."""
    leaves = jax.tree_util.tree_flatten_with_path(tree)[0]
    named = [f"{kind}{jax.tree_util.keystr(p)}" for p, x in leaves if _is_array(x)]
    return named if len(named) == count else [f"{kind} {i}" for i in range(count)]


def _is_array(x: object) -> bool:
    """Returns whether a value is an array of numbers, not mutable and not a token."""
    if isinstance(x, (*_NUMBERS, np.ndarray, np.generic)):
        return not isinstance(x, np.ndarray) or x.dtype.kind in "biufcV"
    aval = x if isinstance(x, jax.ShapeDtypeStruct) else getattr(x, "aval", None)
    kind = getattr(aval, "dtype", None)
    if kind is None or hasattr(aval, "inner_aval"):
        return False
    return kind != jax.dtypes.float0


_CALLS = re.compile(
    r"(p?jit|closed_call|core_call|call|eval_jaxpr|custom_[jv]+p_call|remat2|checkpoint"
    r"|composite|custom_linear_solve)(\[\w+\])?$"
)


def _within(path: str) -> str:
    """Returns the loops and branches of a path, without positions and calls."""
    names = [part.partition(":")[2] for part in path.split("/")[:-1]]
    return "/".join(name for name in names if not _CALLS.match(name))


def _hash(text: str) -> str:
    """Returns a short hash of a text; of an empty text an empty one."""
    return text and hashlib.blake2b(text.encode(), digest_size=4).hexdigest()


def _recorded(
    fact: dict[str, Any], parts: dict[int, dict[tuple, np.ndarray]]
) -> Recorded:
    """Builds a recorded value from its parts by number and step."""
    steps, shape, loops = sorted(parts[0]), fact["shape"], len(fact["starts"])
    n = len(steps)
    # Empty if the value is in a branch that was not taken.
    arrays = [np.stack([parts[i][s] for s in steps]) for i in sorted(parts) if steps]
    size = math.prod(shape)
    sample = np.zeros((n, 0 if size <= WHOLE else fact["sampled"]))
    others = None
    columns: Any = [np.zeros((0, size if size <= WHOLE else COLUMNS))] * 5
    if steps and size > WHOLE:
        whole = len(arrays) == 1
        if whole:
            rows = arrays[0].reshape(n, *shape)
            arrays = summaries(rows, fact["sampled"], fact["complex"])
        columns, (sample, *_) = arrays[:5], arrays[5:]
        others = np.asarray(arrays[-1], float) if fact["complex"] else None
    elif steps:
        numbers = arrays[0].astype(np.float64)
        bounded = np.abs(numbers) < HUGE
        values = np.where(bounded, numbers, 0)
        if fact["complex"]:
            others = np.flip(values.reshape(n, -1, 2), 2).reshape(n, -1)
        columns = [*arrays, values, np.square(values), np.abs(values), classes(numbers)]
    hashed, *tables = map(np.asarray, columns)
    values, squares, tops, counts = (table.astype(float) for table in tables)
    hashes = [hashlib.blake2b(row.tobytes(), digest_size=8).digest() for row in hashed]
    return Recorded(
        **{name: fact[name] for name in FACTS},
        steps=np.array(steps, int).reshape(n, loops),
        hashes=np.array([int.from_bytes(h, "little") for h in hashes], np.uint64),
        norms=np.sqrt(np.sum(squares, 1)),
        largest=np.max(tops, 1, initial=0),
        unbounded=np.sum(counts, 1).astype(np.int64),
        values=values,
        sample=np.asarray(sample, float),
        others=others,
    )
