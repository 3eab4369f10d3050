"""A recording: what every equation of a program computed, in little space.

The program is traced and evaluated as it stands, and each value becomes a few numbers
on the device (`taps.reap` brings them out):

    up to `WHOLE` elements  the values themselves
    larger                  64 sums of the elements with random signs (a count sketch),
                            64 elements at fixed places, the largest magnitude, a hash

The sketch s(x) is linear and E |s(x)|^2 = |x|^2 (M. Charikar, K. Chen & M.
Farach-Colton, "Finding frequent items in data streams", ICALP 2002): the distance of
two values that were never on one machine is |s(x) - s(y)|, to within 9 % (standard
deviation), and no single element can hide from it.

The recorded program, whose every value is a result, is fused otherwise by XLA than the
plain one: right to rounding.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import json
import math
import os
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
from jax import Array, lax
from jax import numpy as jnp

from prednet_jax.noise import random_bits, taps
from prednet_jax.noise.errors import NoiseError
from prednet_jax.noise.hooks import Hooks
from prednet_jax.noise.inject import evaluate, traced
from prednet_jax.noise.plan import Step
from prednet_jax.noise.questions.runs import Call
from prednet_jax.noise.specs import Identity, NoiseSpec

VERSION = 1
WHOLE = 1024
COLUMNS = 64
# Of a value in a loop, the first executions are kept.
EXECUTIONS = 256
# Bytes of a value, in all its executions, that may leave the device whole.
LEAVES = 1 << 20
# Masks of -1e30 would drown all else: such numbers count as infinite.
HUGE = 1e18
NO_NOISE = Identity()


@dataclass(frozen=True)
class Value:
    """A value of a program: of an equation, an argument, a constant or a result.

    Attributes:
        path: as `coverage` lists it; of an argument or a result its name.
        primitive: JAX's name; `argument`, `constant`, `result`.
        source: the user's line, such as `model.py:12 in loss`.
        shape: of the value; of complex numbers their parts are a last axis.
        dtype: its type.
        within: loops and branches around, such as `scan/cond[0]`; no calls.
        operands: which of the recorded values it was computed from, where known.
    """

    path: str
    primitive: str
    source: str
    shape: tuple[int, ...]
    dtype: str
    within: str
    operands: tuple[int, ...]


@dataclass(frozen=True, eq=False)
class Recorded(Value):
    """What was computed of a value, in each of n executions.

    Attributes:
        place: as `taps.Tapped.place`.
        shape_of_loops: executions, along each loop around.
        ran: bool [n], of the executions which took place: others are in a branch that
            was not taken, or after the end of a loop.
        hashes: uint64 [n], of the bits.
        norms: [n], Euclidean; `largest`: [n], the largest magnitude.
        unbounded: [n], number of elements that are NaN, infinite or above `HUGE`.
        values: [n, m], the elements themselves or the sketch, those being 0.
        sample: [n, k], elements at fixed places; none of a value that is whole.
    """

    place: tuple[int, ...]
    shape_of_loops: tuple[int, ...]
    ran: np.ndarray
    hashes: np.ndarray
    norms: np.ndarray
    largest: np.ndarray
    unbounded: np.ndarray
    values: np.ndarray
    sample: np.ndarray

    @property
    def size(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)


_ARRAYS = ("ran", "hashes", "norms", "largest", "unbounded", "values", "sample")
_FACTS = [f.name for f in dataclasses.fields(Recorded) if f.name not in _ARRAYS]


@dataclass(frozen=True, eq=False)
class Recording:
    """What a program computed.

    Attributes:
        function: its name.
        machine: versions, platform and device, in words.
        equations: every value, in the order of the program.
    """

    function: str
    machine: str
    equations: tuple[Recorded, ...]

    def save(self, path: Any) -> None:
        """Write an .npz, which any machine with NumPy reads.

        `about` is a text in JSON: of each equation all attributes that are no arrays.
        The arrays hold those of all equations one after another.

        Raises:
            NoiseError: the file cannot be written.
        """
        about = {
            "version": VERSION,
            "function": self.function,
            "machine": self.machine,
            "equations": [{n: getattr(e, n) for n in _FACTS} for e in self.equations],
        }
        arrays: dict[str, Any] = {
            name: np.concatenate([np.ravel(getattr(e, name)) for e in self.equations])
            for name in _ARRAYS
        }
        # Beside it first, so that no half of a file is left.
        beside = f"{os.fspath(path)}.{os.getpid()}"
        try:
            with open(beside, "wb") as file:
                np.savez_compressed(file, about=np.array(json.dumps(about)), **arrays)
            os.replace(beside, path)
        except OSError as error:
            raise NoiseError(
                f"{path}: {error.strerror}: expected a file that can be written"
            ) from None
        finally:
            with contextlib.suppress(OSError):
                os.remove(beside)

    def __str__(self) -> str:
        count = sum(int(one.ran.sum()) for one in self.equations)
        return (
            f"{self.function} on {self.machine}: {len(self.equations)} values, "
            f"computed {count} times"
        )


def load_recording(path: Any) -> Recording:
    """Read what `Recording.save` wrote.

    Raises:
        NoiseError: when it is no such file, is damaged or of another version.
    """
    try:
        # Opened here, since NumPy leaves a file open that it cannot read.
        with open(path, "rb") as file, np.load(file, allow_pickle=False) as held:
            about = json.loads(str(held["about"]))
            arrays = {name: held[name] for name in _ARRAYS}
        if about["version"] != VERSION:
            raise NoiseError(
                f"{path}: a recording of version {about['version']}: expected {VERSION}"
            )
        return Recording(
            about["function"], about["machine"], tuple(_cut(about["equations"], arrays))
        )
    except NoiseError:
        raise
    except Exception as error:
        # NumPy, zipfile, zlib and JSON each have their own.
        why = getattr(error, "strerror", None) or "it is none, or damaged"
        raise NoiseError(
            f"{path}: expected a recording, as noise.record(fn)(*args).save(path) "
            f"writes it ({why})"
        ) from None


def _cut(facts: Sequence[dict], arrays: dict[str, np.ndarray]) -> Iterator[Recorded]:
    """Equations of the arrays of all."""
    start = dict.fromkeys(_ARRAYS, 0)
    for fact in facts:
        own: dict[str, Any] = {
            k: tuple(v) if isinstance(v, list) else v for k, v in fact.items()
        }
        n, size = math.prod(own["shape_of_loops"]), math.prod(own["shape"])
        kept, shown = (size, 0) if size <= WHOLE else (COLUMNS, COLUMNS)
        widths = {"values": kept, "sample": shown}
        for name in _ARRAYS:
            stop = start[name] + n * widths.get(name, 1)
            part = arrays[name][start[name] : stop]
            own[name] = part.reshape(n, widths[name]) if name in widths else part
            start[name] = stop
        yield Recorded(**own)
    if any(start[name] != arrays[name].size for name in _ARRAYS):
        raise ValueError("its arrays have other lengths than its equations say")


def record(fn: Callable) -> Callable[..., Recording]:
    """What every equation of `fn` computes, loop steps included, on this machine.

    Args:
        fn: as for `inject`; compiled here as a whole.

    Returns:
        `run(*args, **kwargs)`, which gives the `Recording`. Of a loop the first
        `EXECUTIONS` executions of each equation are kept, and its results.

    Raises:
        NoiseError: on a call, as for `inject`, and when `fn` has no array at all.
    """

    def run(*args: Any, **kwargs: Any) -> Recording:
        watch = Watch(fn, args, kwargs)
        device = jax.devices()[0]
        machine = f"jax {jax.__version__}, {device.platform} ({device.device_kind})"
        values = watch.run(jax.random.key(0))
        if not values:
            raise NoiseError(
                f"{watch.name}: nothing to record: expected a function of arrays, or "
                "one that computes any"
            )
        return Recording(watch.name, machine, values)

    return run


class Watch:
    """A function at its arguments, compiled so that all its values come out.

    Attributes:
        name: of the function.
    """

    def __init__(
        self, fn: Callable, args: Any, kwargs: Any, spec: NoiseSpec = NO_NOISE
    ) -> None:
        """Trace and plan; `spec` is the noise of each run."""
        self.name = getattr(fn, "__name__", type(fn).__name__)
        args, kwargs = Call(fn, args, kwargs).arguments()
        pure, self._arrays = Call(fn, args, kwargs).pure()
        self._facts: list[Value] = []
        self._numbers: dict[int, tuple[Any, int]] = {}
        self._places: list[tuple[int, tuple[int, ...]]] = []
        program = traced(pure, self._arrays)
        names = _names("argument", (args, kwargs), len(self._arrays))
        outcome = program.shapes.result()
        results = _names("result", outcome, len(program.jaxpr.jaxpr.outvars))

        def observed(key: Array, *arrays: Array) -> Any:
            for name, x in zip(names, arrays, strict=True):
                self._tap(name, "argument", x)
            for i, x in enumerate(filter(_is_array, program.jaxpr.consts)):
                self._tap(f"constant {i}", "constant", jnp.asarray(x))
            hooks = Hooks(observe=self._observe, finished=self._finished)
            out = evaluate(spec, key, program, arrays, hooks=hooks)
            for name, x in zip(results, jax.tree.leaves(out), strict=True):
                self._tap(name, "result", x, operands=(x,))
            return out

        # Of a key of any kind its words, which are raw key data.
        words = jnp.zeros((2,), jnp.uint32)
        self._jaxpr = jax.make_jaxpr(observed)(words, *self._arrays)
        self._numbers.clear()
        self._compiled = jax.jit(self._reaped)

    def _observe(
        self, step: Step, words: Any, operands: Sequence[Any], results: Sequence[Any]
    ) -> None:
        for i, x in enumerate(results):
            path = step.path if len(results) == 1 else f"{step.path}[{i}]"
            self._tap(path, step.name, x, step, operands)

    def _finished(self, step: Step, results: Sequence[Any]) -> None:
        """What a loop leaves behind, since its late steps are not kept."""
        if step.name in ("scan", "while"):
            for i, x in enumerate(results):
                self._tap(f"{step.path}[{i}]", step.name, x, step)

    def _tap(
        self,
        path: str,
        primitive: str,
        x: Any,
        step: Step | None = None,
        operands: Sequence[Any] = (),
    ) -> None:
        """Mark a value, if it is an array of numbers."""
        if not _is_array(x):
            return
        from_ = [self._numbers[id(o)][1] for o in operands if id(o) in self._numbers]
        number = len(self._facts)
        if primitive != "result":
            # Objects are kept, so that no other gets the same id.
            self._numbers[id(x)] = x, number
        x = _numbers(x)
        source, within = (step.source, _within(step.path)) if step else ("", "")
        self._facts.append(
            Value(path, primitive, source, x.shape, str(x.dtype), within, (*from_,))
        )
        taps.tap(number, x)

    def _reaped(self, *args: Any) -> list[Any]:
        _, found = taps.reap(self._jaxpr, args, taps.Room(_shrunk, EXECUTIONS))
        # A predicate is traced twice in a while loop.
        once = {self._facts[t.label].path: t for t in reversed(found)}
        chosen = sorted(once.values(), key=lambda t: t.label)
        self._places = [(t.label, t.place) for t in chosen]
        return [(t.ran, t.values) for t in chosen]

    def run(self, key: Array, arrays: Sequence[Any] = ()) -> tuple[Recorded, ...]:
        """All values of one run; at `arrays`, or those that were traced."""
        values = self._compiled(random_bits.words(key), *(arrays or self._arrays))
        position = {label: i for i, (label, _) in enumerate(self._places)}
        found = []
        for (label, place), (ran, arrays) in zip(self._places, values, strict=True):
            fact = self._facts[label]
            operands = tuple(position[o] for o in fact.operands if o in position)
            fact = dataclasses.replace(fact, operands=operands)
            found.append(_decoded(fact, place, np.asarray(ran), arrays))
        return tuple(found)


def _names(kind: str, tree: Any, count: int) -> list[str]:
    """Names of arrays: their places in a pytree, or numbers where those do not tell."""
    leaves = jax.tree_util.tree_flatten_with_path(tree)[0]
    named = [f"{kind}{jax.tree_util.keystr(p)}" for p, x in leaves if _is_array(x)]
    return named if len(named) == count else [f"{kind} {i}" for i in range(count)]


def _is_array(x: Any) -> bool:
    """Whether a value is an array of numbers: no mutable array, no token."""
    if isinstance(x, bool | int | float | complex | np.ndarray | np.generic):
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
    """The loops and branches of a path, without positions and calls."""
    names = [part.partition(":")[2] for part in path.split("/")[:-1]]
    return "/".join(name for name in names if not _CALLS.match(name))


def _numbers(x: Any) -> Array:
    """A value as an array of real numbers of a type that NumPy has too."""
    x = jnp.asarray(x)
    if jnp.issubdtype(x.dtype, jax.dtypes.prng_key):
        x = jax.random.key_data(x)
    if jnp.issubdtype(x.dtype, jnp.complexfloating):
        x = jnp.stack([x.real, x.imag], -1)
    return x


def _wide(dtype: Any) -> Any:
    """The type in which numbers are summed: float32, or wider if they are."""
    wide = np.dtype(dtype).itemsize > 4 and np.dtype(dtype).kind in "fiu"
    return jnp.dtype("float64" if wide else "float32")


def _as_words(x: Array) -> Array:
    """Bits as uint32 [n], in two words where a number has 64; narrow types widened."""
    flat = jnp.ravel(x)
    if flat.dtype.itemsize < 4 or flat.dtype == np.bool_:
        wide = "float32" if jnp.issubdtype(flat.dtype, jnp.inexact) else "int32"
        flat = lax.convert_element_type(flat, wide)
    return jnp.ravel(lax.bitcast_convert_type(flat, jnp.uint32))


def _shrunk(x: Array, made: int) -> list[Array]:
    """A value as it leaves the program: small ones whole, they compile far faster."""
    if x.size <= WHOLE or x.size * made * x.dtype.itemsize <= LEAVES:
        return [x]
    return digest(x)


# Traced once for each shape and type.
@jax.jit
def digest(x: Array) -> list[Array]:
    """A large value of real numbers in few.

    For each of `COLUMNS` columns of the flat array: a hash, the signed sum, the sum of
    squares, the largest magnitude, the number of unbounded elements; and the sample.
    """
    wide, rows = _wide(x.dtype), -(-x.size // COLUMNS)

    def table(flat: Array) -> Array:
        return jnp.pad(flat, (0, rows * COLUMNS - x.size)).reshape(rows, COLUMNS)

    number = random_bits.mix(lax.iota(jnp.uint32, rows * COLUMNS)).reshape(
        rows, COLUMNS
    )
    words = _as_words(x).reshape(x.size, -1)
    hashed = number
    for i in range(words.shape[1]):
        hashed = random_bits.mix(hashed ^ table(words[:, i]))
    numbers = lax.convert_element_type(table(jnp.ravel(x)), wide)
    bounded = jnp.abs(numbers) < HUGE
    tame = jnp.where(bounded, numbers, 0)
    signed = jnp.where(number >> np.uint32(31) == 0, tame, -tame)
    columns = lax.reduce(
        [hashed, signed, tame * tame, jnp.abs(tame), (~bounded).astype(jnp.int32)],
        [np.uint32(0), *[np.zeros((), wide)] * 3, np.int32(0)],
        lambda a, b: [
            *(p + q for p, q in zip(a[:3], b[:3], strict=True)),
            jnp.maximum(a[3], b[3]),
            a[4] + b[4],
        ],
        (0,),
    )
    # Every k-th element, k and the last axis coprime, so that columns differ.
    step = x.size // COLUMNS
    while math.gcd(step, x.shape[-1]) > 1:
        step -= 1
    sample = jnp.ravel(x)[: step * (COLUMNS - 1) + 1 : step]
    return [*columns, lax.convert_element_type(sample, wide)]


_digests = jax.jit(jax.vmap(digest))


def _decoded(
    fact: Value, place: tuple[int, ...], ran: np.ndarray, arrays: Sequence[Array]
) -> Recorded:
    """A value of what left the program."""
    if len(arrays) == 1 and math.prod(fact.shape) > WHOLE:
        arrays = _digests(arrays[0].reshape(ran.size, *fact.shape))
    hashed, *tables = (np.asarray(a).reshape(ran.size, -1) for a in arrays)
    if tables:
        values, squares, tops, counts, sample = (t.astype(float) for t in tables)
    else:
        numbers = hashed.astype(np.float64)
        bounded = np.abs(numbers) < HUGE
        values = np.where(bounded, numbers, 0)
        squares, tops = np.square(values), np.abs(values)
        counts, sample = np.asarray(~bounded, float), numbers[:, :0]
    hashes = [hashlib.blake2b(row.tobytes(), digest_size=8).digest() for row in hashed]
    return Recorded(
        **vars(fact),
        place=place,
        shape_of_loops=ran.shape,
        ran=np.ravel(ran),
        hashes=np.array([int.from_bytes(h, "little") for h in hashes], np.uint64),
        norms=np.sqrt(np.sum(squares, 1)),
        largest=np.max(tops, 1, initial=0),
        unbounded=np.sum(counts, 1).astype(np.int64),
        values=values,
        sample=sample,
    )
