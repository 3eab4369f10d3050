"""Which sums each profile of `ReductionOrder` perturbs, with the sources.

The scopes that `chainer_cudnn` looks for are a part of its interface: they are listed
in the documentation of `ReductionOrder`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

SUMS_OVER_DEVICES = frozenset({"psum", "psum_invariant", "reduce_scatter"})
_XLA_GPU = frozenset(
    {"dot_general", "conv_general_dilated", "scatter-add", "select_and_scatter_add"}
)


def excluded(
    profile: str, name: str, params: Mapping[str, Any], scope: str
) -> str | None:
    """Why a profile leaves a sum alone, or None.

    Args:
        profile: a name in `specs.PROFILES`.
        name: of the primitive.
        params: the equation's parameters.
        scope: named scopes and transformations around the equation, joined by `/`.
    """
    reason = _PROFILES[profile](name, params, scope)
    return None if reason is None else f"profile {profile}: {reason}"


def _uniform_worst_case(name: str, params: Mapping[str, Any], scope: str) -> str | None:
    """Every sum, forward and backward."""
    del name, params, scope
    return None


def _xla_gpu(name: str, params: Mapping[str, Any], scope: str) -> str | None:
    """What XLA's page on GPU determinism lists.

    Scatter, select-and-scatter, GEMM and convolution. XLA's own reductions are trees in
    a fixed order. The choice of a kernel by autotuning is `schedule="run"`, atomics are
    `schedule="call"`.
    """
    del params, scope
    return None if name in _XLA_GPU else "deterministic in XLA on a GPU"


def _chainer_cudnn(name: str, params: Mapping[str, Any], scope: str) -> str | None:
    """What varied under Chainer with cuDNN.

    cuDNN's documentation ("Reproducibility") excepts convolution's filter gradient
    (BWD_FILTER_ALGO_0, _3), its input gradient (BWD_DATA_ALGO_0) and max-pooling's
    backward pass with overlapping windows; CuPy's scatter_add is atomic. Forward
    convolution and cuBLAS on one stream repeat bitwise.
    """
    if name in ("select_and_scatter_add", "scatter-add"):
        return None
    if name == "conv_general_dilated":
        gradient = is_gradient(scope) or has_gradient_layout(params)
        return None if gradient else "a forward convolution, deterministic in cuDNN"
    if name == "dot_general" and in_convolution(scope):
        gradient = is_gradient(scope)
        return None if gradient else "a forward convolution, deterministic in cuDNN"
    if name == "dot_general":
        return "a dense product, deterministic in cuBLAS on one stream"
    return "deterministic in Chainer with cuDNN"


def _collectives(name: str, params: Mapping[str, Any], scope: str) -> str | None:
    """Sums over devices alone."""
    del params, scope
    return None if name in SUMS_OVER_DEVICES else "not a sum over devices"


_PROFILES: Mapping[str, Callable[[str, Mapping[str, Any], str], str | None]] = (
    MappingProxyType(
        {
            "uniform_worst_case": _uniform_worst_case,
            "xla_gpu": _xla_gpu,
            "chainer_cudnn": _chainer_cudnn,
            "collectives": _collectives,
        }
    )
)


def in_convolution(scope: str) -> bool:
    """Whether one of the scopes begins with `conv`."""
    return re.search(r"(^|[/(])conv", scope) is not None


def is_gradient(scope: str) -> bool:
    """Whether an equation belongs to a backward pass, and not to its recomputation."""
    if "rematted_computation" in scope:
        return False
    return "transpose(" in scope or re.search(r"gradient|backward", scope) is not None


def has_gradient_layout(params: Mapping[str, Any]) -> bool:
    """Whether the dimension numbers are those of a gradient of a usual convolution.

    In usual layouts the batch is the first axis (NCHW, NHWC), and kernels are OIHW or
    HWIO. JAX's filter gradient exchanges batch and features of the left operand; its
    input gradient exchanges the kernel's features.
    """
    numbers = params["dimension_numbers"]
    last = len(numbers.rhs_spec) - 1
    forward_kernel = tuple(numbers.rhs_spec[:2]) in ((0, 1), (last, last - 1))
    return numbers.lhs_spec[0] != 0 or not forward_kernel
