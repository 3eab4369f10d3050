"""Finds, in a compiled program, the operations that affect the bits of its results.

Each instruction that the GPU executes is examined together with its kernel's PTX.
Source for XLA's behaviour: openxla/xla, xla/service/gpu and xla/backends/gpu/codegen.
"""

import re
from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import NamedTuple

from prednet_jax.noise.gpu.compilation import Compiled, KernelLaunch
from prednet_jax.noise.gpu.hlo import Instruction, Program, read
from prednet_jax.noise.plan import Step
from prednet_jax.noise.types import names_in

# From the worst to the best.
VARIES = ("call", "compilation", "device", "no")
KINDS = (
    *("atomic", "library", "collective", "reduced_precision", "reduction"),
    "arithmetic",
)


class AuditEntry(NamedTuple):
    """One property of a program that affects the bits of a result.

    Attributes:
        kind: one of `KINDS`.
        primitive: JAX's name, such as `scatter-add`; "" if unknown.
        source: the user's line, such as `model.py:12 in loss`; "" if unknown.
        varies: one of `VARIES`: the bits may differ between two runs of one compiled
            program, between compilations, between GPUs or versions of XLA, or never.
        detail: a description of the cause.
        kernel: the name of XLA's kernel, or of the instruction that calls a library.
    """

    kind: str
    primitive: str
    source: str
    varies: str
    detail: str
    kernel: str


def entries_of(
    compiled: Compiled,
    steps: Sequence[Step],
    capability: tuple[int, int],
    deterministic: bool,
) -> tuple[AuditEntry, ...]:
    """Returns the entries of a program compiled from `steps`, the worst first."""
    program = read(compiled.hlo)
    # From this capability on, operands may be rounded to TF32, and kernels be Triton's.
    ampere = capability >= (8, 0)
    tuned = ampere and not deterministic
    launched = {x.instruction: x for x in compiled.launches}
    # XLA launches some collectives under a name that its program does not have.
    for x in program.instructions.values():
        if _opcode(x) in _COLLECTIVES:
            launched.setdefault(x.name, KernelLaunch("", x.name, "", (), ()))
    entries: list[AuditEntry] = []

    def add(findings: Iterable[Finding], site: Place, kernel: str) -> None:
        for kind, varies, detail in findings:
            entries.append(AuditEntry(kind, *site, varies, detail, kernel))

    unseen = dict(compiled.ptx)
    for name, launch in launched.items():
        instruction, kernel = program.instructions.get(name), launch.kernel
        if instruction is None:
            continue
        text = compiled.ptx.get(kernel, "")
        unseen.pop(kernel, None)
        inside = list(program.inside(instruction))
        opcodes = {x.opcode for x in inside if _FLOAT.search(x.type)}
        atomics = _ATOMIC.findall(text)
        explained = False
        for each in inside:
            site = _where(program, each, instruction, steps)
            add(_arithmetic(program, each, opcodes, text), site, kernel)
            if each.opcode == "scatter" and atomics:
                explained = True
                add([_atomic(atomics, _combines(program, each))], site, kernel)
            add(_reduction(program, each, text, deterministic, tuned), site, kernel)
            add(_called(each, deterministic), site, kernel or name)
            add(_reduced(program, each, text, ampere), site, kernel or name)
            if _opcode(each) in _COLLECTIVES:
                sites = [] if site[1] else _joined(program, each, steps)
                for at in sites or [site]:
                    add([_collective(program, each, at[0])], at, each.name)
        if atomics and not explained:
            site = _where(program, instruction, instruction, steps)
            add([_atomic(atomics, None)], site, kernel)
    for kernel, text in unseen.items():
        if atomics := _ATOMIC.findall(text):
            add([_atomic(atomics, None)], ("", ""), kernel)
    entries += _ties(steps)
    if not any(e.varies == "device" for e in entries):
        entries += _denormals(program, compiled, steps)
    order = {x: i for i, x in enumerate((*VARIES, *KINDS))}
    return tuple(
        sorted(dict.fromkeys(entries), key=lambda e: (order[e.varies], order[e.kind]))
    )


def _opcode(each: Instruction) -> str:
    """Returns the opcode, whether the instruction waits for its result or starts it."""
    return each.opcode.removesuffix("-start")


# A primitive and the user's line.
Place = tuple[str, str]
# Operations lowered to other operations, by the names of those.
_PARTS = {"select_and_scatter": "select_and_scatter_add"}
# The primitives that become an instruction.
_EXPECTED = {
    "dot": "dot",
    "convolution": "conv",
    "scatter": "scatter|addupdate",
    "reduce": "reduce|dot|conv|cum|sum|mean|arg",
    "all-reduce": "psum|pmax|pmin|dot|conv|scatter|reduce|cum|sum|mean|arg",
    "reduce-scatter": "reduce_scatter|psum|dot|conv|scatter|reduce|sum|mean",
}


def _where(
    program: Program, each: Instruction, around: Instruction, steps: Sequence[Step]
) -> Place:
    """Returns JAX's primitive and the user's line of an instruction."""
    expected = _EXPECTED.get(_opcode(each), "")
    if "__cudnn$" in each.attributes:
        expected = _EXPECTED["convolution"]
    elif "__cublas$" in each.attributes:
        expected = _EXPECTED["dot"]
    for instruction in (each, around):
        if source := program.source(instruction.frame):
            name = _PARTS.get(instruction.operation, instruction.operation)
            return _fitting(name, source, expected, steps), source
    # XLA writes these primitives anew, without their names.
    anew = ("cum", "reduce_window")
    rewritten = {(x.name, x.source) for x in steps if x.name.startswith(anew)}
    if each.opcode == "reduce-window" and len(rewritten) == 1:
        return rewritten.pop()
    names = {step.name for step in steps}
    return next((x.operation for x in (each, around) if x.operation in names), ""), ""


def _fitting(name: str, source: str, expected: str, steps: Sequence[Step]) -> str:
    """Returns the name, or another of this line if XLA moved a neighbour's here."""
    candidates = [name, *(step.name for step in steps if step.source == source)]
    return next((x for x in candidates if re.search(expected, x)), name)


def _joined(program: Program, each: Instruction, steps: Sequence[Step]) -> list[Place]:
    """Returns primitives and lines of collectives that XLA merged, without names."""
    expected = _EXPECTED.get(_opcode(each))
    if expected is None:
        return []
    body = next(body for body in program.computations.values() if each in body)
    by_name = {x.name: x for x in body}
    moves = ("bitcast", "get-tuple-element", "copy", "slice", "fusion", "-done")

    def users(x: Instruction) -> list[Instruction]:
        return [y for y in body if x.name in y.operands and y.opcode.endswith(moves)]

    def operands(x: Instruction) -> list[Instruction]:
        return [by_name[name] for name in x.operands if name in by_name]

    # The instructions that unpack its result keep the names of the user's collectives;
    # its operands keep the names of the sums that the partitioner distributed.
    places: dict[Place, None] = {}
    for neighbours in (users, operands):
        todo = [each]
        # The list grows while it is read.
        for near in (near for x in todo for near in neighbours(x)):
            name, source = near.operation, program.source(near.frame)
            if not name and near not in todo:
                todo.append(near)
            written = name.startswith(_WRITTEN)
            if neighbours is operands:
                name = _fitting(name, source, expected, steps)
                written = re.search(expected, name) is not None
            if near.operation and source and written:
                places[name, source] = None
    return list(places)


_FLOAT = re.compile(r"\b(?:f\d+|bf16|c64|c128)\w*\[")
# Additions or products in the kernel of an instruction; all other operations give the
# same bits in every order.
_ROUNDING = frozenset({"add", "multiply", "subtract", "divide"})


def _combines(program: Program, each: Instruction) -> bool:
    """Returns whether an instruction combines floats in an order that matters."""
    body = program.computations.get(each.attribute("to_apply"), ())
    return _FLOAT.search(each.type) is not None and any(
        x.opcode in _ROUNDING and _FLOAT.search(x.type) for x in body
    )


_ATOMIC = re.compile(r"\b(?:atom|red|multimem\.red)\.[\w.:]+")
_FLOAT_ATOMIC = re.compile(r"\.add(?:\.noftz)?\.(?:f16|bf16|f32|f64)")


# Kind, what varies, and a description.
Finding = tuple[str, str, str]


def _atomic(operations: Sequence[str], combines: bool | None) -> Finding:
    """Describes atomic operations of threads, which run in order of arrival.

    `combines` is whether they combine floats; None if it is unknown.
    """
    unknown = next((x for x in operations if ".cas" in x or ".exch" in x), "")
    if combines is None:
        combines = any(_FLOAT_ATOMIC.search(x) for x in operations)
        if unknown and not combines:
            return "atomic", "call", f"{unknown}: what it combines could not be read"
    if not combines:
        return "atomic", "no", f"{operations[0]}: the same bits in every order"
    loops = any(".cas" in x for x in operations)
    how = "compare-and-swap loop" if loops else operations[0]
    return "atomic", "call", f"floats are combined in the order of arrival ({how})"


_FIXED = "the kernel fixes the order"
_MATRIX = re.compile(r"\b(?:mma|wgmma|wmma|tcgen05)\S*\.(?:mma)?\S*")


def _reduction(
    program: Program, each: Instruction, text: str, deterministic: bool, tuned: bool
) -> Iterator[Finding]:
    """Describes sums in an order that the kernel fixes."""
    if each.opcode in ("dot", "convolution") and _FLOAT.search(each.type):
        unit = "on matrix units" if _MATRIX.search(text) else "fused multiply-adds"
        if blocks := re.search(r'"sizes":\["(\d+)"\]', each.attributes):
            unit += f", k in blocks of {blocks[1]}"
        chosen = _FIXED if deterministic else "autotuning chooses its blocks"
        varies = "device" if deterministic else "compilation"
        yield "reduction", varies, f"a product, {unit}; {chosen}"
    elif not _combines(program, each):
        return
    elif each.opcode == "reduce":
        (_, size), *_ = program.instructions[each.operands[0]].arrays
        (_, result), *_ = each.arrays
        terms = size // max(result, 1)
        varies, detail = "device", f"a sum of {terms}: of which there is one order"
        if terms > 2:
            detail = f"a sum of {terms}: {_FIXED}"
            # The kernel, XLA's own or Triton's, is chosen by measuring on the device.
            # It was Triton's for 32 of 72 sums on an H200 (docs/noise/gpu_order.md).
            if tuned:
                varies = "compilation"
                detail += "; or autotuning takes Triton's"
        yield "reduction", varies, detail
    elif each.opcode == "reduce-window":
        yield "reduction", "device", f"sums of windows: {_FIXED}"
    elif each.opcode == "scatter" and deterministic and not _ATOMIC.search(text):
        yield "reduction", "device", "sorted by index first, then in a fixed order"


class Library(NamedTuple):
    """A library's guarantees about repeating bits (docs/noise/audit.md has sources).

    XLA chooses among its algorithms by measuring them when a program is compiled
    (autotuning). Under `--xla_gpu_deterministic_ops=true` it does not measure, and
    leaves out algorithms that do not repeat: `deterministic` lists what then varies.
    """

    name: str
    promise: str
    varies: str
    deterministic: str = "device"


_CUBLAS = Library(
    "cuBLAS",
    "the same bits at every run on one stream, for one version, architecture and "
    "number of multiprocessors",
    "compilation",
)
_CUDNN = Library("cuDNN", "some backward algorithms do not repeat their bits", "call")
_CUSOLVER = Library("cuSOLVER", "deterministic results are its default", "device")
_UNKNOWN = Library("", "not known to audit: nothing is promised", "call", "call")
# By the beginning of an opcode, or of a custom call's target; the first match counts.
# None stands for calls that move data, sort or compute with integers.
_LIBRARIES: dict[str, Library | None] = {
    "fft": Library(
        "cuFFT", "the same bits for one plan, version and GPU model", "device"
    ),
    "triangular-solve": _CUBLAS,
    "cholesky": _CUSOLVER,
    "__cudnn$convBackward": _CUDNN,
    "__cudnn$conv": Library(
        "cuDNN", "forward algorithms repeat on one architecture", "compilation"
    ),
    "__cudnn$": _CUDNN,
    "__cublas$": _CUBLAS,
    "cublas_": _CUBLAS,
    "cusolver_": _CUSOLVER,
    "cusparse": Library(
        "cuSPARSE", "each routine has a promise of its own", "call", "call"
    ),
    **dict.fromkeys(("__cub$", "__gpu$TopK", "cu_threefry", "cu_lu_pivots")),
    **dict.fromkeys(("AllocateBuffer", "Sharding", "SPMD")),
    **dict.fromkeys(("annotate_device_placement", "PadToStatic", "SliceToDynamic")),
}


_CALLS = re.compile(
    "Gemm|CublasLt|Convolution|CustomCall|Fft|Cholesky|TriangularSolve|Cudnn|Norm"
)


def is_call(kind: str) -> bool:
    """Returns whether XLA's name for a kind of launch means a library call."""
    return _CALLS.search(kind) is not None


def _called(each: Instruction, deterministic: bool) -> Iterator[Finding]:
    if each.opcode not in ("custom-call", "fft", "triangular-solve", "cholesky"):
        return
    target = each.attribute("custom_call_target") or each.opcode
    fits = (x for beginning, x in _LIBRARIES.items() if target.startswith(beginning))
    library = next(fits, _UNKNOWN)
    if library is None:
        return
    varies = library.deterministic if deterministic else library.varies
    settled = deterministic or varies == "device" or library is _UNKNOWN
    chosen = "" if settled else "; autotuning chooses one"
    name = f"{library.name} {target}".strip()
    yield "library", varies, f"{name}: {library.promise}{chosen}"


_COLLECTIVES = {
    "all-reduce": "all-reduce",
    "reduce-scatter": "reduce-scatter",
    "all-gather": "all-gather",
    "all-to-all": "all-to-all",
    "ragged-all-to-all": "all-to-all",
    "collective-permute": "exchange",
    "collective-broadcast": "broadcast",
}
# Beginnings of the names of primitives for collectives that users write.
_WRITTEN = (
    *("psum", "pmax", "pmin", "all_gather", "reduce_scatter", "all_to_all"),
    *("ppermute", "pbroadcast"),
)
_GROUPS = re.compile(
    r"(?:replica_groups|source_target_pairs)="
    r"(\{\{.*?\}\}|mesh\[[^\]]*\] \{[^}]*\}|\[[^ ]*?\]<=\[[^\]]*\]|\{\})"
)


def _collective(program: Program, each: Instruction, primitive: str) -> Finding:
    groups = _GROUPS.search(each.attributes)
    written = not primitive or primitive.startswith(_WRITTEN)
    by = "" if written else ", inserted by the partitioner"
    name = _COLLECTIVES[_opcode(each)]
    detail = f"{name} over {groups[1] if groups else 'all'}{by}"
    sums = name in ("all-reduce", "reduce-scatter") and _combines(program, each)
    if sums:
        detail += "; NCCL's algorithm fixes the order, by devices and message size"
    return "collective", "device" if sums else "no", detail


# Functions that differ between platforms in the last bits.
_FUNCTIONS = names_in(
    "acos acosh asin asinh atan atan2 atanh cbrt cosh cosine erf exponential "
    "exponential-minus-one log log-plus-one logistic power rsqrt sine sinh tan "
    "tanh"
)
# Those of complex numbers that compute products and their sums.
_OF_COMPLEX = frozenset({"abs", "divide", "multiply", "sign"})
_FUSED = re.compile(r"\bfma\.rn(?:\.ftz)?\.(?:f32|f64|f16|bf16)")
_APPROXIMATE = re.compile(r"\b(?:div\.(?:full|approx)|(?:sqrt|rcp)\.approx)[\w.]*")


def _arithmetic(
    program: Program, each: Instruction, opcodes: Collection[str], text: str
) -> Iterator[Finding]:
    """Describes an operation that has other bits on other platforms."""
    name, detail = each.opcode, ""
    approximate = _APPROXIMATE.search(text)
    own_way = "each platform computes it in its own way"
    by_name = program.instructions
    types = [by_name[x].type for x in each.operands if x in by_name]
    if name in _FUNCTIONS:
        detail = own_way
    elif name in ("divide", "sqrt") and approximate:
        detail = f"{approximate[0]} is not correctly rounded"
    elif name in ("add", "subtract") and "multiply" in opcodes:
        times = ("once", "twice") if _FUSED.search(text) else ("twice", "once")
        name = f"{name} and multiply"
        detail = (
            f"rounded {times[0]} here, and {times[1]} by compilers that treat fused "
            "multiply-adds otherwise"
        )
    elif name in _OF_COMPLEX and any(x.startswith(("c64[", "c128[")) for x in types):
        name, detail = f"complex {name}", own_way
    if detail and _FLOAT.search(each.type):
        yield "arithmetic", "device", f"{name}: {detail}"


def _ties(steps: Sequence[Step]) -> Iterator[AuditEntry]:
    """Yields the sorts that leave the order of equal keys open.

    The compiled program does not tell: XLA makes any sort of a GPU stable by a second
    key, or not, and drops the attribute.
    """
    for step in steps:
        params, operands = step.equation.params, step.equation.invars
        if step.name != "sort" or params["is_stable"]:
            continue
        if params["num_keys"] < len(operands):
            detail = "sort: equal keys may come in any order (is_stable=False)"
            site = step.name, step.source
            yield AuditEntry("arithmetic", *site, "device", detail, "")


def _denormals(
    program: Program, compiled: Compiled, steps: Sequence[Step]
) -> Iterator[AuditEntry]:
    """Yields the first operation on floats, because denormal results may be flushed."""
    for launch in compiled.launches:
        around = program.instructions.get(launch.instruction)
        if around is None:
            continue
        for each in program.inside(around):
            if each.opcode in _ROUNDING and _FLOAT.search(each.type):
                site = _where(program, each, around, steps)
                detail = (
                    "numbers below the smallest normal one (1.2e-38 in float32) are "
                    "kept on a GPU; XLA on a CPU makes them 0"
                )
                yield AuditEntry("arithmetic", *site, "device", detail, launch.kernel)
                return


def _reduced(
    program: Program, each: Instruction, text: str, tf32: bool
) -> Iterator[Finding]:
    """Finds products of float32 whose operands are rounded."""
    target = each.attribute("custom_call_target")
    by_name = program.instructions
    operands = [by_name[name].type for name in each.operands if name in by_name]
    if not any(kind.startswith("f32[") for kind in operands):
        return
    if each.opcode in ("dot", "convolution"):
        units = " ".join(_MATRIX.findall(text))
        if "tf32" in units:
            yield "reduced_precision", "device", "float32 operands are rounded to TF32"
        elif "bf16" in units:
            detail = "float32 operands become sums of bfloat16"
            yield "reduced_precision", "device", detail
    elif tf32 and target.startswith(("__cublas$gemm", "__cublas$lt", "__cudnn$conv")):
        # A function's name, in the metadata, does not describe its precision.
        said = re.sub(r'op_name="(?:[^"\\]|\\.)*"', "", each.attributes)
        if not re.search(r"highest|\"HIGHEST\"|ALG_DOT_F32", said):
            detail = f"{target}: float32 operands may be rounded to TF32"
            yield "reduced_precision", "device", detail
