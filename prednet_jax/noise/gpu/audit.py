"""What on a GPU will vary, told without one.

The function is compiled for the GPU (`compilation`) and never run. What can change the
bits of a result is read from the compiled program (`entries`): atomics of floats, calls
of libraries, sums over devices, operands that are rounded, and sums in a fixed order.
An instruction of the compiled program knows its line and its operation in the source
from the metadata that XLA carries along.
"""

from __future__ import annotations

import contextlib
import re
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
from jax.sharding import AbstractMesh, NamedSharding, PartitionSpec

from prednet_jax.noise import compat
from prednet_jax.noise.arguments import pure
from prednet_jax.noise.errors import NoiseError, flag, integer, positive
from prednet_jax.noise.gpu import hlo
from prednet_jax.noise.gpu.compilation import TIME_LIMIT, Compiled, compiled_for, lower
from prednet_jax.noise.gpu.entries import VARIES, Entry, entries_of, is_call
from prednet_jax.noise.gpu.targets import CARDS, config_of
from prednet_jax.noise.plan import Step, plan
from prednet_jax.noise.specs import Identity


class Memory(NamedTuple):
    """Bytes on one device.

    Attributes:
        arguments: of the function.
        results: those that do not take the place of an argument included.
        temporaries: in use at one time at most.
    """

    arguments: int
    results: int
    temporaries: int


class Advice(NamedTuple):
    """What to do, and what came of it.

    Attributes:
        change: what to write.
        left: entries that are still there although the change was made against them,
            in the program compiled again with it; None where only the user can try it.
        outcome: in words.
    """

    change: str
    left: tuple[Entry, ...] | None
    outcome: str


class Report(NamedTuple):
    """What on a GPU will vary.

    Attributes:
        entries: the worst first; one for each operation in each kernel.
        kernels: number of kernels and library calls that one run launches, the body of
            a loop counted once.
        memory: on one device.
        gpu: name of the GPU, or "as described".
        devices: their number.
        deterministic: whether compiled under `--xla_gpu_deterministic_ops=true`.
        advice: each tried by compiling again, where it can be.
        notes: what cannot be known without the device, or without the values.
        compiled: the compiled program.
    """

    entries: tuple[Entry, ...]
    kernels: int
    memory: Memory
    gpu: str
    devices: int
    deterministic: bool
    advice: tuple[Advice, ...]
    notes: tuple[str, ...]
    compiled: Compiled

    @property
    def varies(self) -> str:
        """The worst of all entries."""
        return min((e.varies for e in self.entries), key=VARIES.index, default="no")

    def to_json(self) -> dict[str, Any]:
        """All but the compiled program itself."""
        fields = self._asdict()
        del fields["compiled"]
        return {"varies": self.varies, **fields}

    def __str__(self) -> str:
        return "\n".join(_table(self))


def audit(
    fn: Callable,
    *,
    gpu: str = "h100",
    devices: int = 1,
    deterministic: bool = False,
    advice: bool = True,
    time_limit: float = TIME_LIMIT,
) -> Callable[..., Report]:
    """What on a GPU will vary in a function, read from the program compiled for it.

    Args:
        fn: of arrays and anything else to a result; never run.
        gpu: a name of `targets.CARDS`, or XLA's own description of another GPU (the
            text of a GpuTargetConfigProto).
        devices: number of GPUs. Shardings are PartitionSpecs over an
            `AbstractMesh((devices,), ("x",))` or one of another shape, on the
            arguments or inside of the function.
        deterministic: compile under `--xla_gpu_deterministic_ops=true`.
        advice: whether to try what would help, by compiling again.
        time_limit: seconds for each compilation.

    Returns:
        `report(*args, **kwargs)` that gives a `Report`; arguments are arrays or
        `jax.ShapeDtypeStruct`, of which shapes, types and shardings count.

    Raises:
        NoiseError: bad options; on a call, when XLA's CUDA compiler is not installed,
            the function cannot be compiled for CUDA, or time is over.
    """
    config = config_of(gpu)
    integer("devices", devices, 1)
    flag("deterministic", deterministic)
    flag("advice", advice)
    positive("time_limit", time_limit)
    # The newest GPU if the description does not say.
    major = re.search(r"cuda_compute_capability[^}]*?major:\s*(\d+)", config)
    tf32 = major is None or int(major[1]) >= 8

    def report(*args: Any, **kwargs: Any) -> Report:
        program, arrays = pure(fn, args, kwargs)
        mesh = _mesh(arrays, devices)
        shapes = [_shape(x, mesh) for x in arrays]
        with _context(mesh):
            closed = jax.make_jaxpr(program)(*shapes)
            steps = _steps(closed)

        def tried(
            deterministic: bool, setting: Any = _NOTHING
        ) -> tuple[Compiled, hlo.Program, tuple[Entry, ...]]:
            with _context(mesh), setting:
                module = _lowered(program, shapes, compat.donated(closed), steps)
            try:
                (made,) = compiled_for(
                    [module],
                    gpu,
                    devices=devices,
                    deterministic=deterministic,
                    time_limit=time_limit,
                )
            except NoiseError as error:
                own = next((s for s in steps if s.name in _KERNELS), None)
                if own is None:
                    raise
                raise NoiseError(
                    f"{error}; {own.path} [{own.source}] brings a kernel of its own"
                ) from error
            text = hlo.read(made.hlo)
            return made, text, entries_of(made, text, steps, tf32, deterministic)

        made, text, entries = tried(deterministic)
        changes: list[Advice] = []
        if advice and not deterministic and any(e.varies == "call" for e in entries):
            left = [e for e in tried(True)[2] if e.varies == "call"]
            changes = [_advice(_FLAG, left), *_formulations(entries)]
        if advice and any(e.kind == _ROUNDED for e in entries):
            highest = jax.default_matmul_precision("highest")
            again = tried(deterministic, highest)[2]
            changes.append(_advice(_HIGHEST, [e for e in again if e.kind == _ROUNDED]))
        memory = made.memory
        return Report(
            entries,
            len([x for x in made.launches if x.kernel or is_call(x.kind)]),
            Memory(
                memory["argument"], memory["output"] - memory["alias"], memory["temp"]
            ),
            gpu if gpu in CARDS else "as described",
            devices,
            deterministic,
            tuple(changes),
            _notes(entries, text, deterministic),
            made,
        )

    return report


# Equations whose kernels XLA does not write.
_KERNELS = ("pallas_call", "ffi_call")
_ROUNDED = "reduced_precision"
_NOTHING = contextlib.nullcontext()


def _mesh(arrays: Sequence[Any], devices: int) -> AbstractMesh:
    """The mesh of the arguments; else the user's current one; else one named `x`.

    Raises:
        NoiseError: when it has not as many devices.
    """
    shardings = [getattr(x, "sharding", None) for x in arrays]
    meshes = [s.mesh for s in shardings if isinstance(s, NamedSharding)]
    current = jax.sharding.get_abstract_mesh()
    mesh = meshes[0].abstract_mesh if meshes else current
    if mesh.empty:
        mesh = AbstractMesh((devices,), ("x",))
    if mesh.size != devices:
        raise NoiseError(f"devices={devices}: expected {mesh.size}, as the mesh has")
    return mesh


def _shape(x: Any, mesh: AbstractMesh) -> jax.ShapeDtypeStruct:
    """Shape, type and sharding over the mesh; replicated where nothing is said."""
    sharding = getattr(x, "sharding", None)
    spec = sharding.spec if isinstance(sharding, NamedSharding) else PartitionSpec()
    return jax.ShapeDtypeStruct(
        x.shape,
        jax.dtypes.canonicalize_dtype(x.dtype, allow_extended_dtype=True),
        sharding=NamedSharding(mesh, spec) if mesh.size > 1 else None,
        weak_type=bool(getattr(x, "weak_type", False)),
    )


def _context(mesh: AbstractMesh) -> contextlib.AbstractContextManager:
    """Where a PartitionSpec inside of a function is one of the mesh."""
    return _NOTHING if mesh.size == 1 else jax.sharding.use_abstract_mesh(mesh)


def _steps(closed: Any) -> list[Step]:
    """The equations of a program; none if it holds a primitive that noise refuses."""
    try:
        return list(plan(closed, Identity()).walk())
    except NoiseError:
        return []


def _lowered(
    program: Callable, shapes: Sequence[Any], donate: Sequence[int], steps: list[Step]
) -> bytes:
    """The program for CUDA.

    Raises:
        NoiseError: names the equation that has no lowering for CUDA, and its line.
    """
    try:
        return lower(program, *shapes, donate=donate)
    except Exception as error:
        said = _first_line(error)
        for step in steps:
            if not step.bodies and _fails(step, said):
                calls = "callback" in step.name or step.name == "debug_print"
                why = "it calls Python" if calls else said
                raise NoiseError(
                    f"{step.path} [{step.source}] cannot be compiled for a GPU that is "
                    f"not there: {why}"
                ) from error
        raise


def _first_line(error: Exception) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0]


def _fails(step: Step, said: str) -> bool:
    """Whether an equation by itself cannot be lowered either, for the same reason."""
    avals = [atom.aval for atom in step.equation.invars]
    shapes = [jax.ShapeDtypeStruct(x.shape, x.dtype) for x in avals]
    try:
        lower(lambda *xs: compat.bind(step.equation, *xs), *shapes)
    except Exception as error:
        return _first_line(error) == said
    return False


# What the user sets, and what is said if it leaves no entry of its kind.
_FLAG = (
    "XLA_FLAGS=--xla_gpu_deterministic_ops=true",
    "nothing varies from call to call any more; it may be slower",
)
_HIGHEST = (
    'jax.default_matmul_precision("highest")',
    "no operand is rounded to TF32 any more; products are slower",
)


def _advice(setting: tuple[str, str], left: Sequence[Entry]) -> Advice:
    """A setting, and what it leaves of the entries that it is to remove."""
    change, gone = setting
    places = ", ".join(sorted({entry.source or entry.kernel for entry in left}))
    return Advice(change, tuple(left), f"still there: {places}" if left else gone)


# Other ways to write what becomes atomics.
_FORMULATIONS = {
    "scatter-add": "where no index occurs twice, say so: unique_indices=True (x.at[i]."
    "add, segment_sum); a sum over few segments or a small table is a product too: "
    "jax.nn.one_hot(ids, n).T @ x",
    "scatter-mul": "where no index occurs twice, say so: unique_indices=True",
    "select_and_scatter_add": "windows of max-pooling that do not overlap are a "
    "reshape and a maximum, whose gradient has no atomics",
}


def _formulations(entries: Sequence[Entry]) -> list[Advice]:
    names = dict.fromkeys(e.primitive for e in entries if e.kind == "atomic")
    return [
        Advice(_FORMULATIONS[name], None, f"another formulation of {name}")
        for name in names
        if name in _FORMULATIONS
    ]


def _notes(
    entries: Sequence[Entry], program: hlo.Program, deterministic: bool
) -> tuple[str, ...]:
    """What cannot be known here."""
    found = []
    if not deterministic and any(e.varies == "compilation" for e in entries):
        found.append(
            "which blocks and algorithms autotuning would choose: it measures on the "
            "device"
        )
    if any(e.kind == "library" for e in entries):
        found.append("in which order a library adds: nobody publishes it")
    for each in program.instructions.values():
        body = program.computations.get(each.attribute("to_apply"), ())
        overwrites = any(x.root and x.opcode == "parameter" for x in body)
        unique = "unique_indices=true" in each.attributes
        if each.opcode == "scatter" and overwrites and not unique:
            source = program.source(each.frame)
            place = f" ({source})" if source else ""
            note = "which write remains where an index occurs twice, if one does"
            found.append(note + place)
    return tuple(dict.fromkeys(found))


_MEANING = {
    "call": "two runs of one compiled program may differ",
    "compilation": "fixed once compiled; compiling again may choose another order",
    "device": "the same bits at every run on this GPU; others on another, or a CPU",
    "no": "the same bits everywhere, as far as these operations decide",
}
_HEAD = ("varies", "times", "kind", "primitive", "line", "what happens")


def _table(report: Report) -> list[str]:
    """A report as lines of text."""
    card = CARDS.get(report.gpu)
    title = f"{card.title} ({card.sm})" if card else f"a GPU {report.gpu}"
    if report.devices > 1:
        title = f"{report.devices} x {title}"
    if report.deterministic:
        title += ", --xla_gpu_deterministic_ops=true"
    calls = sum(1 for x in report.compiled.launches if is_call(x.kind))
    arguments, results, temporaries = map(_bytes, report.memory)
    lines = [
        f"{title}: {_MEANING[report.varies]}",
        f"kernels: {report.kernels}, {calls} of them calls of libraries; memory: "
        f"{arguments} arguments, {results} results, {temporaries} temporaries",
    ]
    rows: Counter[tuple[str, ...]] = Counter()
    promises: dict[str, None] = {}
    for e in report.entries:
        what = e.detail
        if e.kind == "library":
            what, _, promise = what.partition(": ")
            promises[f"{what.partition(' ')[0]}: {promise}"] = None
        rows[e.varies, e.kind, e.primitive or "-", e.source or "-", what] += 1
    if rows:
        cells = [_HEAD, *((row[0], str(n), *row[1:]) for row, n in rows.items())]
        widths = [max(len(row[i]) for row in cells) for i in range(5)]
        lines.append("")
        lines += ["  ".join([*map(str.ljust, row, widths), row[5]]) for row in cells]
        lines.append("")
        present = dict.fromkeys(e.varies for e in report.entries)
        lines += [f"{name}: {_MEANING[name]}" for name in present]
        lines += promises
    if report.notes:
        lines += ["", "Not known without the device:"]
        lines += [f"  {note}" for note in report.notes]
    if report.advice:
        lines += ["", "What to do:"]
        for change, left, outcome in report.advice:
            tried = left is not None
            said = (
                (change, f"compiled again, {outcome}") if tried else (outcome, change)
            )
            lines.append("  " + ": ".join(said))
    return lines


def _bytes(count: float) -> str:
    for unit in ("B", "KiB", "MiB"):
        if abs(count) < 1024:
            return f"{count:.4g} {unit}"
        count /= 1024
    return f"{count:.4g} GiB"
