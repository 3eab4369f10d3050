"""The compiled program, read for what decides about the bits of its results.

Each instruction that the GPU is told to run is looked at together with its kernel's
PTX. Source of what XLA does: openxla/xla, xla/service/gpu and xla/backends/gpu/codegen.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from prednet_jax.noise.gpu import hlo
from prednet_jax.noise.gpu.compilation import Compiled
from prednet_jax.noise.gpu.libraries import library
from prednet_jax.noise.plan import Step

# From the worst on.
VARIES = ("call", "compilation", "device", "no")
KINDS = ("atomic", "library", "collective", "reduced_precision", "reduction")


class Entry(NamedTuple):
    """One thing that decides about the bits of a result.

    Attributes:
        kind: one of `KINDS`.
        primitive: JAX's name, such as `scatter-add`; "" if unknown.
        source: the user's line that made it, such as `model.py:12 in loss`; "" if
            unknown.
        varies: `call` (two runs of one compiled program may differ), `compilation`
            (two compilations may), `device` (fixed for this GPU and this version of
            XLA), or `no`.
        detail: what happens, in words.
        kernel: of XLA's own, or the name of the instruction that calls a library.
    """

    kind: str
    primitive: str
    source: str
    varies: str
    detail: str
    kernel: str


_CALLS = ("Gemm", "CublasLt", "Convolution", "CustomCall", "Fft", "Cholesky")


def is_call(kind: str) -> bool:
    """Whether a launch is a call of a library."""
    return any(name in kind for name in (*_CALLS, "TriangularSolve", "Cudnn", "Norm"))


# What the kernel of an instruction adds or multiplies; all else gives the same bits in
# every order.
_ROUNDING = frozenset({"add", "multiply", "subtract", "divide"})
_FLOAT = re.compile(r"\b(?:f\d+|bf16|c64|c128)\w*\[")
_ATOMIC = re.compile(r"\b(?:atom|red|multimem\.red)\.[\w.:]+")
_FLOAT_ATOMIC = re.compile(r"\.add(?:\.noftz)?\.(?:f16|bf16|f32|f64)")
_MATRIX = re.compile(r"\b(?:mma|wgmma|wmma|tcgen05)\S*\.(?:mma)?\S*")

# Operations whose lowering is made of others, by the name those have.
_PARTS = {"select_and_scatter": "select_and_scatter_add"}
# What primitives become an instruction.
_EXPECTED = {
    "dot": "dot",
    "convolution": "conv",
    "scatter": "scatter|addupdate",
    "reduce": "reduce|dot|conv|cum|sum|mean|arg",
    "all-reduce": "psum|pmax|pmin|dot|conv|scatter|reduce|cum|sum|mean|arg",
    "reduce-scatter": "reduce_scatter|psum|dot|conv|scatter|reduce|sum|mean",
}
# Primitives that XLA writes anew without their names.
_REWRITTEN = "^cum|^reduce_window"


def entries_of(
    made: Compiled, steps: Sequence[Step], modern: bool, deterministic: bool
) -> tuple[Entry, ...]:
    """All entries of a compiled program, the worst first."""
    program = hlo.read(made.hlo)
    kernels = {x.instruction: x.kernel for x in made.launches if x.kernel}
    launched = dict.fromkeys(x.instruction for x in made.launches)
    # XLA launches some collectives under a name that its program does not have.
    launched |= dict.fromkeys(
        name
        for name, x in program.instructions.items()
        if x.opcode.removesuffix("-start") in _COLLECTIVES
    )
    found: list[Entry] = []
    seen: set[str] = set()
    for name in launched:
        instruction = program.instructions.get(name)
        if instruction is None:
            continue
        kernel = kernels.get(name, "")
        seen.add(kernel)
        ptx = made.ptx.get(kernel, "")
        for each in program.inside(instruction):
            where = _where(program, each, instruction, steps)
            for kind, varies, detail in (
                *_atomic(program, each, ptx),
                *_reduction(program, each, ptx, deterministic),
                *_called(each, deterministic),
                *_reduced(program, each, ptx, modern),
            ):
                found.append(Entry(kind, *where, varies, detail, kernel or name))
            places = [] if where[1] else _joined(program, each, steps)
            for place in places or [where]:
                for kind, varies, detail in _collective(program, each, place[0]):
                    found.append(Entry(kind, *place, varies, detail, name))
        if not any(e.kind == "atomic" and e.kernel == kernel for e in found):
            found += _unnamed(
                ptx, kernel, _where(program, instruction, instruction, steps)
            )
    for kernel in made.ptx.keys() - seen:
        found += _unnamed(made.ptx[kernel], kernel, ("", ""))
    return tuple(
        sorted(
            dict.fromkeys(found),
            key=lambda e: (VARIES.index(e.varies), KINDS.index(e.kind)),
        )
    )


def _where(
    program: hlo.Program,
    each: hlo.Instruction,
    around: hlo.Instruction,
    steps: Sequence[Step],
) -> tuple[str, str]:
    """JAX's primitive and the user's line of an instruction."""
    expected = _EXPECTED.get(each.opcode.removesuffix("-start"), "")
    if "__cudnn$" in each.attributes:
        expected = _EXPECTED["convolution"]
    elif "__cublas$" in each.attributes:
        expected = _EXPECTED["dot"]
    for instruction in (each, around):
        name = instruction.operation.rsplit("/", 1)[-1]
        name = _PARTS.get(name, name)
        source = program.source(instruction.frame)
        if source:
            return _fitting(name, source, expected, steps), source
    rewritten = {(x.name, x.source) for x in steps if re.search(_REWRITTEN, x.name)}
    if each.opcode == "reduce-window" and len(rewritten) == 1:
        return rewritten.pop()
    known = {step.name for step in steps}
    names = [x.operation.rsplit("/", 1)[-1] for x in (each, around)]
    return next((name for name in names if name in known), ""), ""


def _fitting(name: str, source: str, expected: str, steps: Sequence[Step]) -> str:
    """The name; where XLA moved that of a neighbour here, another one of the line."""
    if re.search(expected, name):
        return name
    here = [step.name for step in steps if step.source == source]
    return next((x for x in here if re.search(expected, x)), name)


def _joined(
    program: hlo.Program, each: hlo.Instruction, steps: Sequence[Step]
) -> list[tuple[str, str]]:
    """Primitives and lines of collectives that XLA made into one, without a name.

    What takes the parts of its result apart still has the names of those that the user
    wrote, and the operands those of the sums that the partitioner spread.
    """
    opcode = each.opcode.removesuffix("-start")
    if opcode not in ("all-reduce", "reduce-scatter"):
        return []
    expected = _EXPECTED[opcode]
    body = program.computations[each.computation]
    by_name = {x.name: x for x in body}

    def users(x: hlo.Instruction) -> list[hlo.Instruction]:
        moves = ("bitcast", "get-tuple-element", "copy", "slice", "fusion")
        taken = [y for y in body if x.name in y.operands]
        return [y for y in taken if y.opcode.endswith((*moves, "-done"))]

    def operands(x: hlo.Instruction) -> list[hlo.Instruction]:
        return [by_name[name] for name in x.operands if name in by_name]

    found: dict[tuple[str, str], None] = {}
    for neighbours in (users, operands):
        todo, seen = [each], {each.name}
        while todo:
            for near in neighbours(todo.pop()):
                name = near.operation.rsplit("/", 1)[-1]
                source = program.source(near.frame)
                if not name and near.name not in seen:
                    seen.add(near.name)
                    todo.append(near)
                elif source and neighbours is operands:
                    name = _fitting(name, source, expected, steps)
                    if re.search(expected, name):
                        found[name, source] = None
                elif source and name.startswith(_WRITTEN):
                    found[name, source] = None
    return list(found)


def _combines(program: hlo.Program, each: hlo.Instruction) -> bool:
    """Whether the order in which an instruction combines floats changes their bits."""
    if not _FLOAT.search(each.type):
        return False
    body = program.computations.get(each.attribute("to_apply"), ())
    return any(x.opcode in _ROUNDING and _FLOAT.search(x.type) for x in body)


Finding = tuple[str, str, str]


def _atomic(program: hlo.Program, each: hlo.Instruction, ptx: str) -> Iterator[Finding]:
    """Additions of threads to one place, in the order in which they come."""
    operations = _ATOMIC.findall(ptx)
    if each.opcode != "scatter" or not operations:
        return
    if _combines(program, each):
        loop = any(".cas" in operation for operation in operations)
        how = "compare-and-swap loop" if loop else operations[0]
        yield "atomic", "call", f"floats are combined in the order of arrival ({how})"
    else:
        yield "atomic", "no", f"{operations[0]}: the same bits in every order"


def _unnamed(ptx: str, kernel: str, where: tuple[str, str]) -> Iterator[Entry]:
    """Atomics of a kernel in whose program there is no scatter."""
    operations = _ATOMIC.findall(ptx)
    if not operations:
        return
    unknown = [x for x in operations if ".cas" in x or ".exch" in x]
    if any(_FLOAT_ATOMIC.search(x) for x in operations):
        detail = f"floats are combined in the order of arrival ({operations[0]})"
        yield Entry("atomic", *where, "call", detail, kernel)
    elif unknown:
        detail = f"{unknown[0]}: what it combines could not be read"
        yield Entry("atomic", *where, "call", detail, kernel)
    else:
        detail = f"{operations[0]}: the same bits in every order"
        yield Entry("atomic", *where, "no", detail, kernel)


def _reduction(
    program: hlo.Program, each: hlo.Instruction, ptx: str, deterministic: bool
) -> Iterator[Finding]:
    """Sums in an order that the kernel fixes."""
    if each.opcode in ("dot", "convolution") and _FLOAT.search(each.type):
        tiles = ".target" in ptx and bool(_MATRIX.search(ptx))
        unit = "on matrix units" if tiles else "fused multiply-adds"
        if deterministic:
            yield "reduction", "device", f"a product, {unit}; tree not read"
        else:
            yield (
                "reduction",
                "compilation",
                f"a product, {unit}; autotuning chooses its blocks",
            )
    elif each.opcode in ("reduce", "reduce-window") and _combines(program, each):
        yield "reduction", "device", f"{_terms(program, each)}; tree not read"
    elif (
        each.opcode == "scatter"
        and deterministic
        and _combines(program, each)
        and not _ATOMIC.search(ptx)
    ):
        yield "reduction", "device", "sorted by index first, then in a fixed order"


def _terms(program: hlo.Program, each: hlo.Instruction) -> str:
    """How many terms each sum has."""
    if each.opcode == "reduce-window":
        sizes = re.search(r"window=\{size=([\dx]+)", each.attributes)
        count = math.prod(int(x) for x in sizes[1].split("x")) if sizes else 0
        return f"a sum of up to {count} terms"
    operands = program.operand_types(each)
    terms, sums = (math.prod(_dimensions(x)) for x in (operands[0], each.type))
    return f"a sum of {terms // max(1, sums)} terms"


def _dimensions(type_: str) -> list[int]:
    """Of the first array of a type."""
    found = re.search(r"\[([\d,]*)\]", type_)
    return [int(x) for x in found[1].split(",") if x] if found else []


def _called(each: hlo.Instruction, deterministic: bool) -> Iterator[Finding]:
    """Calls of libraries."""
    target = each.attribute("custom_call_target").strip('"') or each.opcode
    found = library(each.opcode, target)
    if found is None:
        return
    varies = found.deterministic if deterministic else found.varies
    chosen = "" if deterministic or varies == "device" else "; autotuning chooses one"
    source = f" [{found.documentation}]" if found.documentation else ""
    name = f"{found.name} {target}".strip()
    yield "library", varies, f"{name}: {found.promise}{chosen}{source}"


_COLLECTIVES = {
    "all-reduce": "all-reduce",
    "reduce-scatter": "reduce-scatter",
    "all-gather": "all-gather",
    "all-to-all": "all-to-all",
    "ragged-all-to-all": "all-to-all",
    "collective-permute": "exchange",
    "collective-broadcast": "broadcast",
}
_WRITTEN = (
    "psum",
    "pmax",
    "pmin",
    "all_gather",
    "reduce_scatter",
    "all_to_all",
    "ppermute",
    "pbroadcast",
)


def _collective(
    program: hlo.Program, each: hlo.Instruction, name: str
) -> Iterator[Finding]:
    """Sums over devices, and exchanges."""
    opcode = each.opcode.removesuffix("-start")
    if opcode not in _COLLECTIVES:
        return
    groups = re.search(
        r"(?:replica_groups|source_target_pairs)="
        r"(\{\{.*?\}\}|mesh\[[^\]]*\] \{[^}]*\}|\[[^ ]*?\]<=\[[^\]]*\]|\{\})",
        each.attributes,
    )
    written = not name or name.startswith(_WRITTEN)
    by = "" if written else ", inserted by the partitioner"
    detail = f"{_COLLECTIVES[opcode]} over {groups[1] if groups else 'all'}{by}"
    sums = opcode in ("all-reduce", "reduce-scatter") and _combines(program, each)
    if sums:
        detail += "; NCCL's algorithm fixes the order, by devices and message size"
    yield "collective", "device" if sums else "no", detail


def _reduced(
    program: hlo.Program, each: hlo.Instruction, ptx: str, modern: bool
) -> Iterator[Finding]:
    """Products of float32 whose operands are rounded."""
    target = each.attribute("custom_call_target").strip('"')
    if not any(x.startswith("f32[") for x in program.operand_types(each)):
        return
    if each.opcode in ("dot", "convolution"):
        units = " ".join(_MATRIX.findall(ptx))
        if "tf32" in units:
            yield "reduced_precision", "device", "float32 operands are rounded to TF32"
        elif "bf16" in units:
            yield (
                "reduced_precision",
                "device",
                "float32 operands become sums of bfloat16",
            )
    elif modern and target.startswith(("__cublas$gemm", "__cublas$lt", "__cudnn$conv")):
        # A function's name, in the metadata, says nothing about its precision.
        said = each.attributes.replace(each.operation, "")
        precise = re.search(r"highest|\"HIGHEST\"|ALG_DOT_F32", said)
        if not precise:
            yield (
                "reduced_precision",
                "device",
                f"{target}: float32 operands may be rounded to TF32",
            )
