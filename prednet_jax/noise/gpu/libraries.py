"""NVIDIA's libraries as XLA calls them, and what they promise about repeating bits.

The promises are those of NVIDIA's documentation, in its words where quoted. XLA chooses
among a library's algorithms by measuring them on the device when a program is compiled
(autotuning), so that what repeats from call to call may still differ after the next
compilation; under `--xla_gpu_deterministic_ops=true` it does not measure, and leaves
out algorithms that do not repeat.
"""

from __future__ import annotations

from typing import NamedTuple


class Library(NamedTuple):
    """What a call of a library promises.

    Attributes:
        name: of the library.
        varies: what may change its bits by default.
        deterministic: likewise under `--xla_gpu_deterministic_ops=true`.
        promise: of its documentation.
        documentation: where it says so.
    """

    name: str
    varies: str
    deterministic: str
    promise: str
    documentation: str


_CUDNN = "docs.nvidia.com/deeplearning/cudnn, Reproducibility (Determinism)"
_CUBLAS = Library(
    "cuBLAS",
    "compilation",
    "device",
    "the same bits at every run on one stream, for one version, architecture and "
    "number of multiprocessors",
    "docs.nvidia.com/cuda/cublas, Results Reproducibility",
)
_CUDNN_FORWARD = Library(
    "cuDNN",
    "compilation",
    "device",
    "forward algorithms repeat their bits on one architecture",
    _CUDNN,
)
_CUDNN_BACKWARD = Library(
    "cuDNN",
    "call",
    "device",
    "some backward algorithms use atomics and do not repeat their bits",
    _CUDNN,
)
_CUSOLVER = Library(
    "cuSOLVER",
    "device",
    "device",
    "deterministic results are its default (cusolverDnSetDeterministicMode)",
    "docs.nvidia.com/cuda/cusolver, cusolverDnSetDeterministicMode",
)
_CUFFT = Library(
    "cuFFT",
    "device",
    "device",
    "the same bits for the same plan, version and GPU model",
    "docs.nvidia.com/cuda/cufft, Accuracy and Performance",
)
_CUSPARSE = Library(
    "cuSPARSE",
    "call",
    "call",
    "each routine has a promise of its own; some use atomics",
    "docs.nvidia.com/cuda/cusparse",
)

# By the beginning of the target of a custom call; the first that fits.
_TARGETS = {
    "__cudnn$convBackward": _CUDNN_BACKWARD,
    "__cudnn$conv": _CUDNN_FORWARD,
    "__cudnn$": _CUDNN_BACKWARD,
    "__cublas$": _CUBLAS,
    "cublas_": _CUBLAS,
    "cusolver_": _CUSOLVER,
    "cusparse": _CUSPARSE,
}

# Calls that move data, sort or work on integers.
_EXACT = (
    "__cub$",
    "cu_threefry",
    "cu_lu_pivots",
    "AllocateBuffer",
    "Sharding",
    "SPMD",
    "annotate_device_placement",
    "PadToStatic",
    "SliceToDynamic",
)


def library(opcode: str, target: str) -> Library | None:
    """The library behind an instruction; None if none is, or it has no arithmetic.

    Args:
        opcode: of the instruction.
        target: of a custom call.
    """
    if opcode == "fft":
        return _CUFFT
    if opcode == "triangular-solve":
        return _CUBLAS
    if opcode == "cholesky":
        return _CUSOLVER
    if opcode != "custom-call" or target.startswith(_EXACT):
        return None
    for beginning, found in _TARGETS.items():
        if target.startswith(beginning):
            return found
    return Library("", "call", "call", "not known to audit: nothing is promised", "")
