"""Predicts which operations will vary on a GPU, on a machine without one.

Everything that can change the bits of a result is read from the program compiled for
the GPU (`compilation`, `entries`). XLA's metadata gives the source line and the
operation of each instruction.
"""

import contextlib
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import jax
from jax.sharding import AbstractMesh, NamedSharding, PartitionSpec

from prednet_jax.noise import compat
from prednet_jax.noise.arguments import pure
from prednet_jax.noise.errors import NoiseError, check_int, expect, flag, positive
from prednet_jax.noise.gpu import compilation
from prednet_jax.noise.gpu.compilation import TIME_LIMIT, Compiled
from prednet_jax.noise.gpu.entries import VARIES, AuditEntry, entries_of, is_call
from prednet_jax.noise.gpu.targets import CARDS, described
from prednet_jax.noise.plan import Step, plan
from prednet_jax.noise.specs import Identity
from prednet_jax.noise.tables import format_table
from prednet_jax.noise.types import PyTree, Values


class Memory(NamedTuple):
    """Bytes on one device; results do not count where they replace an argument."""

    arguments: int
    results: int
    temporaries: int


class Advice(NamedTuple):
    """A change, and the entries left after compiling with it (None: not tried)."""

    change: str
    left: tuple[AuditEntry, ...] | None


class AuditReport(NamedTuple):
    """The operations of a function that will vary on a GPU.

    Attributes:
        entries: one for each operation in each kernel, the worst first.
        kernels: the number of kernels and library calls that one run launches, with the
            body of a loop counted once.
        gpu: the name of the GPU, or "described".
        devices: the number of GPUs.
        deterministic: whether compiled under `--xla_gpu_deterministic_ops=true`.
    """

    entries: tuple[AuditEntry, ...]
    kernels: int
    memory: Memory
    gpu: str
    devices: int
    deterministic: bool
    advice: tuple[Advice, ...]
    compiled: Compiled

    @property
    def varies(self) -> str:
        """Returns the worst of all entries."""
        return min((e.varies for e in self.entries), key=VARIES.index, default="no")

    def to_json(self) -> dict[str, object]:
        """Returns everything except the compiled program."""
        fields = self._asdict()
        del fields["compiled"]
        return {"varies": self.varies, **fields}

    def __str__(self) -> str:
        card = CARDS.get(self.gpu)
        title = f"{card.title} ({card.sm})" if card else "the GPU described"
        if self.devices > 1:
            title = f"{self.devices} x {title}"
        if self.deterministic:
            title += ", --xla_gpu_deterministic_ops=true"
        calls = sum(1 for x in self.compiled.launches if is_call(x.kind))
        arguments, results, temporaries = map(_bytes, self.memory)
        lines = [
            f"{title}: {_MEANING[self.varies]}",
            f"kernels: {self.kernels}, {calls} of them calls of libraries; memory: "
            f"{arguments} arguments, {results} results, {temporaries} temporaries",
        ]
        rows: Counter[tuple[str, ...]] = Counter()
        promises: dict[str, None] = {}
        for e in self.entries:
            what = e.detail
            if e.kind == "library":
                what, _, promise = what.partition(": ")
                promises[f"{what.partition(' ')[0]}: {promise}"] = None
            rows[e.varies, e.kind, e.primitive or "-", e.source or "-", what] += 1
        if rows:
            cells = [(row[0], str(n), *row[1:]) for row, n in rows.items()]
            present = dict.fromkeys(e.varies for e in self.entries)
            lines += ["", *format_table(_HEAD, cells, "<<<<<<"), ""]
            lines += [f"{name}: {_MEANING[name]}" for name in present]
            lines += promises
        unknown = {e.varies: _UNKNOWN.get(e.varies, "") for e in self.entries}
        if any(unknown.values()) and not self.deterministic:
            lines += ["", "Not known without the device:"]
            lines += [f"  {each}" for each in unknown.values() if each]
        if self.advice:
            lines += ["", "What to do:"]
            for change, after in self.advice:
                where = ", ".join(sorted({e.source or e.kernel for e in after or ()}))
                outcome = f"; compiled again: {where or 'none'} left"
                lines.append(f"  {change}{outcome if after is not None else ''}")
        return "\n".join(lines)


_UNKNOWN = {
    "call": "which algorithm a library takes, and in which order it adds",
    "compilation": "which blocks and algorithms autotuning chooses: it measures there",
}
_MEANING = {
    "call": "two runs of one compiled program may differ",
    "compilation": "fixed once compiled; compiling again may choose another order",
    "device": "the same bits at every run on this GPU; others on another, or a CPU",
    "no": "the same bits everywhere, as far as these operations decide",
}
_HEAD = ("varies", "times", "kind", "primitive", "line", "what happens")


def _bytes(count: float) -> str:
    for unit in ("B", "KiB", "MiB"):
        if abs(count) < 1024:
            return f"{count:.4g} {unit}"
        count /= 1024
    return f"{count:.4g} GiB"


def audit(
    fn: Callable,
    *,
    gpu: str = "h100",
    devices: int = 1,
    deterministic: bool = False,
    advise: bool = True,
    time_limit: float = TIME_LIMIT,
) -> Callable[..., AuditReport]:
    """Predicts what will vary on a GPU, from the program compiled for that GPU.

    Args:
        fn: a function of arrays and any other arguments; it is never run.
        gpu: a name of `targets.CARDS`, or XLA's own description of another GPU (the
            text of a GpuTargetConfigProto).
        devices: the number of GPUs. Shardings are PartitionSpecs over an
            `AbstractMesh((devices,), ("x",))` or one of another shape, on the
            arguments or inside of the function.
        deterministic: whether to compile under `--xla_gpu_deterministic_ops=true`.
        advise: whether to compile again with each change that may help.
        time_limit: seconds that each compilation may take.

    Returns:
        `report(*args, **kwargs)`, which returns an `AuditReport`; arguments are
        arrays or `jax.ShapeDtypeStruct`, and only shapes, types and shardings matter.

    Raises:
        NoiseError: bad options. On a call: XLA's CUDA compiler is not installed, or
            the function cannot be compiled for CUDA, or not within the time limit.
    """
    _, capability = described(gpu)
    check_int("devices", devices, 1)
    flag("deterministic", deterministic)
    flag("advise", advise)
    positive("time_limit", time_limit)

    def report(*args: PyTree, **kwargs: PyTree) -> AuditReport:
        program, arrays = pure(fn, args, kwargs)
        mesh = _mesh(arrays, devices)
        shapes = [_shape(x, mesh) for x in arrays]
        with _spread(mesh):
            closed = jax.make_jaxpr(program)(*shapes)
            steps = _steps(closed)
        compilation.found_wheels()
        donated = compat.donated(closed)
        limits: dict[str, Any] = {"devices": devices, "time_limit": time_limit}

        def build(deterministic: bool) -> tuple[Compiled, tuple[AuditEntry, ...]]:
            with _refusing(steps):
                with _spread(mesh):
                    module = compilation.lower(program, *shapes, donate=donated)
                (compiled,) = compilation.compiled_for(
                    [module], gpu, deterministic=deterministic, **limits
                )
            return compiled, entries_of(compiled, steps, capability, deterministic)

        compiled, entries = build(deterministic)
        advice = _advice(build, entries, deterministic) if advise else ()
        kernels = sum(1 for x in compiled.launches if x.kernel or is_call(x.kind))
        used = compiled.memory
        memory = used["argument"], used["output"] - used["alias"], used["temp"]
        name = gpu if gpu in CARDS else "described"
        about = kernels, Memory(*memory), name, devices, deterministic
        return AuditReport(entries, *about, advice, compiled)

    return report


def _advice(
    build: Callable, entries: Sequence[AuditEntry], deterministic: bool
) -> tuple[Advice, ...]:
    """Returns the changes that help, each tried by compiling again."""
    advice = []
    if not deterministic and any(e.varies == "call" for e in entries):
        after = [e for e in build(True)[1] if e.varies == "call"]
        advice.append(Advice(_FLAG, tuple(after)))
        names = dict.fromkeys(e.primitive for e in entries if e.kind == "atomic")
        advice += [Advice(_OTHERS[x], None) for x in names if x in _OTHERS]
    if any(e.kind == "reduced_precision" for e in entries):
        with jax.default_matmul_precision("highest"):
            again = build(deterministic)[1]
        after = [e for e in again if e.kind == "reduced_precision"]
        advice.append(Advice(_HIGHEST, tuple(after)))
    return tuple(advice)


_FLAG = "XLA_FLAGS=--xla_gpu_deterministic_ops=true, which may be slower"
_HIGHEST = 'jax.default_matmul_precision("highest"): slower, no operand is rounded'
# Alternatives to operations that become atomics.
_OTHERS = {
    "scatter-add": "scatter-add: unique_indices=True where no index occurs twice; or a "
    "product, jax.nn.one_hot(ids, n).T @ x, where segments are few",
    "scatter-mul": "scatter-mul: unique_indices=True where no index occurs twice",
    "select_and_scatter_add": "max-pooling of windows that do not overlap: a reshape "
    "and a maximum, whose gradient has no atomics",
}


@contextlib.contextmanager
def _refusing(steps: Sequence[Step]) -> Iterator[None]:
    """Adds to errors the first equation that XLA does not compile alone, if any."""
    try:
        yield
    except Exception as error:
        said = (str(error).strip() or type(error).__name__).splitlines()[0]
        for step in steps:
            # Some equations call Python, or have kernels from other sources.
            foreign = step.name in ("debug_print", "pallas_call", "ffi_call")
            if foreign or "callback" in step.name or f"'{step.name}'" in said:
                said = f"{said}; {step.path} [{step.source}] is not XLA's own"
                break
        raise NoiseError(
            f"XLA could not compile this program for CUDA: {said}; expected a "
            "program that JAX runs on a GPU, without callbacks to Python"
        ) from error


def _mesh(arrays: Values, devices: int) -> AbstractMesh:
    """Returns the mesh of the arguments, else the current one, else one named `x`."""
    shardings = [getattr(x, "sharding", None) for x in arrays]
    meshes = [s.mesh for s in shardings if isinstance(s, NamedSharding)]
    current = jax.sharding.get_abstract_mesh()
    mesh = meshes[0].abstract_mesh if meshes else current
    if mesh.empty:
        mesh = AbstractMesh((devices,), ("x",))
    expect(mesh.size == devices, "devices", devices, f"{mesh.size}, as the mesh has")
    return mesh


def _spread(mesh: AbstractMesh) -> contextlib.AbstractContextManager:
    """Makes PartitionSpecs inside a function refer to the mesh."""
    if mesh.size == 1:
        return contextlib.nullcontext()
    return jax.sharding.use_abstract_mesh(mesh)


def _shape(x: jax.Array, mesh: AbstractMesh) -> jax.ShapeDtypeStruct:
    """Returns shape, type and sharding over the mesh; the default is replicated."""
    sharding = getattr(x, "sharding", None)
    spec = sharding.spec if isinstance(sharding, NamedSharding) else PartitionSpec()
    return jax.ShapeDtypeStruct(
        x.shape,
        jax.dtypes.canonicalize_dtype(x.dtype, allow_extended_dtype=True),
        sharding=NamedSharding(mesh, spec) if mesh.size > 1 else None,
        weak_type=bool(getattr(x, "weak_type", False)),
    )


def _steps(closed: compat.Jaxpr) -> list[Step]:
    """Returns a program's equations; none if noise does not accept a primitive."""
    try:
        return list(plan(closed, Identity()).walk())
    except NoiseError:
        return []
