"""Compiles a JAX program for a GPU on a machine without one.

XLA's CUDA compiler needs only the description of a device. It comes as a plugin of JAX,
which a separate process (`worker`) loads, so that it never affects the user's process.
The process gets the program as StableHLO with source lines, which survive in the
metadata of the compiled text.

The plugin's wheels are in the folder `gpu-audit` of the environment, where `install`
puts them, or in the same environment as JAX (extra `gpu-audit`).
"""

import importlib.metadata
import io
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax

from prednet_jax.noise.errors import NoiseError
from prednet_jax.noise.gpu.targets import described
from prednet_jax.noise.types import PyTree

# The plugin and XLA itself, of JAX's version, and NVIDIA's assembler. CUDA 12 compiles
# for all cards from Maxwell to Blackwell, CUDA 13 no longer for Maxwell, Pascal, Volta.
WHEELS = {
    "jax-cuda12-plugin": jax.__version__,
    "jax-cuda12-pjrt": jax.__version__,
    "nvidia-cuda-nvcc-cu12": "12.9.86",
}
# Seconds that a compilation may take.
TIME_LIMIT = 600.0
_OPTIMIZATION = (
    *("JAX_DISABLE_MOST_OPTIMIZATIONS", "JAX_OPTIMIZATION_LEVEL"),
    *("JAX_EXEC_TIME_OPTIMIZATION_EFFORT", "JAX_MEMORY_FITTING_EFFORT"),
    "JAX_MEMORY_FITTING_LEVEL",
)


class KernelLaunch(NamedTuple):
    """One operation that the GPU executes.

    Attributes:
        kind: XLA's name, such as `kCustomKernel`, `kGemm`, `kAllReduce`.
        instruction: the name of the instruction in the program; "" if unknown.
        kernel: the key in `Compiled.ptx`; "" if XLA did not write the kernel.
        grid: blocks of a kernel along x, y, z.
        threads: threads of a block along x, y, z.
    """

    kind: str
    instruction: str
    kernel: str
    grid: tuple[int, ...]
    threads: tuple[int, ...]


class Compiled(NamedTuple):
    """A program compiled for a GPU.

    Attributes:
        hlo: text of XLA's optimised, scheduled program with metadata.
        ptx: the module of each kernel that XLA wrote, by the kernel's name.
        launches: the operations in the order of the schedule; bodies of loops come
            before the operations after the loop.
        memory: bytes of `argument`, `output`, `alias` (outputs that reuse donated
            arguments) and `temp`.
        cost: `flops` and `bytes accessed` by XLA's cost model, in which library calls
            have no operations and the body of a loop counts once.
    """

    hlo: str
    ptx: dict[str, str]
    launches: tuple[KernelLaunch, ...]
    memory: dict[str, int]
    cost: dict[str, float]


def lower(fn: Callable, *args: PyTree, donate: Sequence[int] = ()) -> bytes:
    """Returns a program for CUDA, as bytecode of StableHLO with source lines.

    `args` are arrays or `jax.ShapeDtypeStruct`s. Results may reuse the memory of the
    arguments at the positions `donate`.
    """
    program = jax.jit(fn, donate_argnums=tuple(donate)).trace(*args)
    lowered = program.lower(lowering_platforms=("cuda",))
    buffer = io.BytesIO()
    lowered.compiler_ir("stablehlo").operation.write_bytecode(buffer)
    return buffer.getvalue()


def compiled_for(
    modules: Sequence[bytes],
    gpu: str,
    *,
    devices: int = 1,
    deterministic: bool = False,
    time_limit: float = TIME_LIMIT,
) -> list[Compiled]:
    """Compiles programs (from `lower`) for a GPU, in a separate process.

    Flags of `XLA_FLAGS` that begin with `--xla_gpu` are used. `gpu` is described in
    `targets.described`, `devices` is the number of devices of each program, and
    `deterministic` adds `--xla_gpu_deterministic_ops=true`. A NoiseError is raised if
    no compiler is installed, or if it fails or takes over `time_limit` seconds.
    """
    environment = _environment(deterministic)
    with tempfile.TemporaryDirectory(prefix="gpu-audit-") as name:
        root = Path(name)
        request = json.dumps({"target": described(gpu)[0], "devices": devices})
        folders = [root / str(i) for i in range(len(modules))]
        for folder, module in zip(folders, modules, strict=True):
            folder.mkdir()
            (folder / "module.mlirbc").write_bytes(module)
        worker = Path(__file__).with_name("worker.py")
        with subprocess.Popen(
            [sys.executable, "-P", "-W", "ignore", worker, request, *folders],
            env=environment,
            cwd=root,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            # The compiler starts NVIDIA's assembler, which ends with it.
            start_new_session=True,
        ) as child:
            try:
                output, _ = child.communicate(timeout=time_limit)
            except BaseException as error:
                os.killpg(child.pid, signal.SIGKILL)
                if not isinstance(error, subprocess.TimeoutExpired):
                    raise
                raise NoiseError(
                    f"time_limit={time_limit:g}: compiling for the GPU took longer; "
                    "expected more seconds, or a smaller program"
                ) from None
        if child.returncode:
            lines = [line.strip() for line in output.splitlines()]
            said = next((x for x in reversed(lines) if _ERROR.match(x)), "")
            status = f"its process ended with status {child.returncode}"
            raise NoiseError(f"XLA's CUDA compiler: {said or status}")
        return [_compiled(folder) for folder in folders]


def _environment(deterministic: bool) -> dict[str, str]:
    """Returns the environment of the process that compiles."""
    path = [*found_wheels(), os.environ.get("PYTHONPATH", "")]
    flags = [x for x in os.environ.get("XLA_FLAGS", "").split() if "--xla_gpu" in x]
    # Autotuning measures kernels, which needs a device.
    flags.append("--xla_gpu_autotune_level=0")
    newer = jax.__version_info__ >= (0, 11)
    # Since then, XLA writes PTX only on request.
    flags += ["--xla_dump_emitter_re=ptx"] * newer
    if deterministic:
        flags.append("--xla_gpu_deterministic_ops=true")
        # Unmeasured, the newer compiler has no deterministic product of Triton.
        flags += ["--xla_gpu_enable_triton_gemm=false"] * newer
    # Kernels are those of an optimized program, whatever this process compiles.
    kept = {k: v for k, v in os.environ.items() if k not in _OPTIMIZATION}
    return kept | {
        "JAX_PLATFORMS": "cpu",
        "XLA_FLAGS": " ".join(flags),
        "PYTHONPATH": os.pathsep.join(filter(None, path)),
    }


_ERROR = re.compile(r"[\w.]*(Error|Exception|RuntimeError)\b")
_ENTRY = re.compile(r"^\s*(?:\.visible\s+)?\.entry\s+([\w$.]+)", re.MULTILINE)


def _compiled(folder: Path) -> Compiled:
    """Returns the files that the worker and XLA wrote for one program."""
    texts = [file.read_text() for file in sorted(folder.glob("*.ptx"))]
    ptx = {entry: text for text in texts for entry in _ENTRY.findall(text)}
    answer = json.loads((folder / "answer.json").read_text())
    launches = tuple(_launches(folder))
    # `topk` comes compiled, so XLA never writes it.
    if {x.kernel for x in launches if x.kernel} - ptx.keys() - {"topk"}:
        raise NoiseError(
            f"XLA's CUDA compiler: jax {jax.__version__} does not write its kernels "
            "down; expected jax 0.10.2 or 0.11.2"
        )
    return Compiled(ptx=ptx, launches=launches, **answer)


def _launches(folder: Path) -> Iterator[KernelLaunch]:
    """Yields the kernels and calls listed in XLA's dump, in sequence."""
    (sequence,) = folder.glob("*.thunk_sequence.txt")
    (metadata,) = folder.glob("*.thunk_metadata.txt")
    names = {}
    for block in metadata.read_text().split("thunk_metadata {")[1:]:
        number = re.search(r"thunk_id: (\d+)", block)
        name = re.search(r'profile_annotation: "([^"]*)"', block)
        if number and name:
            names[number[1]] = name[1]
    for number, kind, details in _THUNK.findall(sequence.read_text()):
        shape = _SHAPE.search(details)
        kernel, *sizes = shape.groups() if shape else ("", "", "")
        grid, threads = (tuple(int(x) for x in s.split(",") if x) for s in sizes)
        yield KernelLaunch(kind, names.get(number, ""), kernel, grid, threads)


# "004: kCustomKernel [prev=... | next=...] name grid: [4, 1, 1] threads: [64, 1, 1]"
_THUNK = re.compile(r"^\s*0*(\d+): (k\w+)\s*(?:\[[^\]]*\])?(.*)", re.MULTILINE)
_SHAPE = re.compile(r"(\S+) grid: \[([^\]]*)\] threads: \[([^\]]*)\]")


def found_wheels() -> list[str]:
    """Returns the folders, at most one, in which the worker finds the compiler.

    A NoiseError is raised if it is not installed, or its version is not JAX's.
    """
    folder = Path(sys.prefix) / "gpu-audit"
    beside = [str(folder)] if folder.is_dir() else []
    path: dict[str, Any] = {"path": beside} if beside else {}
    for name, wanted in WHEELS.items():
        wheel = next(iter(importlib.metadata.distributions(name=name, **path)), None)
        if wheel is None or wheel.version != wanted:
            state = "is not installed" if wheel is None else f"is {wheel.version}"
            raise NoiseError(
                f"XLA's CUDA compiler: {name} {state}, with jax {jax.__version__}; "
                f"expected what {sys.executable} -m prednet_jax.noise audit --install "
                f"installs, by {' '.join(_pip(folder))}"
            )
    return beside


def install() -> Path:
    """Installs the compiler of this JAX's version, and returns the folder.

    Raises:
        NoiseError: pip failed.
    """
    folder = Path(sys.prefix) / "gpu-audit"
    pip = _pip(folder)
    done = subprocess.run(pip, capture_output=True, text=True, check=False)
    if done.returncode:
        said = next((x for x in done.stderr.splitlines() if "ERROR" in x), "no reason")
        raise NoiseError(f"{' '.join(pip)}: {said}")
    return folder


def _pip(folder: Path) -> list[str]:
    """Returns the command that installs the wheels into a folder."""
    wheels = [f"{name}=={version}" for name, version in WHEELS.items()]
    options = ["--quiet", "--no-deps", "--upgrade", "--target", str(folder)]
    return [sys.executable, "-m", "pip", "install", *options, *wheels]
