"""Defines which sums each profile of `ReductionOrder` perturbs, with the sources.

`uniform_worst_case`: every sum, forward and backward.

`xla_gpu`: the operations that XLA's page on GPU determinism lists: scatter,
select-and-scatter, GEMM and convolution. XLA's own reductions are trees in a fixed
order, and left out, though autotuning can choose Triton's from sm_80 on. Autotuning
chooses kernels as `schedule="run"` does, and atomics act as `schedule="call"` does.

`chainer_cudnn`: the operations that varied under Chainer with cuDNN. cuDNN's
documentation ("Reproducibility") names convolution's filter gradient
(BWD_FILTER_ALGO_0, _3), its input gradient (BWD_DATA_ALGO_0) and max-pooling's backward
pass with overlapping windows; CuPy's scatter_add is atomic. Forward convolution and
cuBLAS on one stream repeat bitwise. `ReductionOrder` lists the scopes that it reads.

`collectives`: sums over devices alone.
"""

import re

from prednet_jax.noise.types import Params

SUMS_OVER_DEVICES = frozenset({"psum", "psum_invariant", "reduce_scatter"})
_XLA_GPU = frozenset(
    {"dot_general", "conv_general_dilated", "scatter-add", "select_and_scatter_add"}
)


def excluded(profile: str, name: str, params: Params, scope: str) -> str | None:
    """Returns why a profile ignores a sum, or None; `scope` joins scopes by `/`."""
    reason = None
    if profile == "xla_gpu" and name not in _XLA_GPU:
        reason = "deterministic in XLA on a GPU"
    elif profile == "chainer_cudnn":
        reason = _chainer_cudnn(name, params, scope)
    elif profile == "collectives" and name not in SUMS_OVER_DEVICES:
        reason = "not a sum over devices"
    return None if reason is None else f"profile {profile}: {reason}"


def _chainer_cudnn(name: str, params: Params, scope: str) -> str | None:
    if name in ("select_and_scatter_add", "scatter-add"):
        return None
    convolution = name == "conv_general_dilated"
    in_one = name == "dot_general" and re.search(r"(^|[/(])conv", scope)
    if convolution or in_one:
        # Recomputation in a backward pass belongs to the forward pass.
        backward = "rematted_computation" not in scope and re.search(
            r"transpose\(|gradient|backward", scope
        )
        if backward or (convolution and _gradient_layout(params)):
            return None
        return "a forward convolution, deterministic in cuDNN"
    if name == "dot_general":
        return "a dense product, deterministic in cuBLAS on one stream"
    return "deterministic in Chainer with cuDNN"


def _gradient_layout(params: Params) -> bool:
    """Returns whether the dimension numbers are those a convolution's gradient has."""
    # The batch is the first axis (NCHW, NHWC), and kernels are OIHW or HWIO. JAX's
    # filter gradient exchanges batch and features of the left operand; its input
    # gradient exchanges the kernel's features.
    numbers = params["dimension_numbers"]
    last = len(numbers.rhs_spec) - 1
    forward_kernel = tuple(numbers.rhs_spec[:2]) in ((0, 1), (last, last - 1))
    return numbers.lhs_spec[0] != 0 or not forward_kernel
