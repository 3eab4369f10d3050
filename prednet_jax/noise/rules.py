"""Which primitives a noise acts on, and how: the registry of rules.

Reductions whose order `ReductionOrder` draws are in `REDUCTIONS`, with the function
that cuts them (see `partials`). `LEFT_ALONE` names the other float reductions, with the
reason. `ARITHMETIC` names the primitives whose results elementwise noise perturbs:
those that round. Copies, comparisons, maxima, negation and conversions do not, and are
never touched.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

from jax import numpy as jnp

from prednet_jax.noise import compat, partials
from prednet_jax.noise.partials import Cut
from prednet_jax.noise.specs import ReductionOrder

REDUCTIONS: Mapping[str, Callable[..., Cut | str]] = MappingProxyType(
    {
        "dot_general": partials.plan_dot,
        "conv_general_dilated": partials.plan_conv,
        "reduce_sum": partials.plan_sum,
        "reduce_window_sum": partials.plan_window,
        "cumsum": partials.plan_cumsum,
        "scatter-add": partials.plan_scatter_add,
        "select_and_scatter_add": partials.plan_select_and_scatter_add,
        "psum": partials.plan_psum,
        "psum_invariant": partials.plan_psum,
        # Planned by the interpreter, which sees whole chains of them.
        "add_any": lambda spec, params, *terms: partials.plan_add_any(terms),
    }
)

_ROUTINE = "sums inside a library routine, out of reach"
_NOT_A_SUM = "a reduction, but not a sum"
LEFT_ALONE: Mapping[str, str] = MappingProxyType(
    {
        "reduce_prod": _NOT_A_SUM,
        "cumprod": _NOT_A_SUM,
        "cumlogsumexp": _NOT_A_SUM,
        "scatter-mul": _NOT_A_SUM,
        "scatter_mul": _NOT_A_SUM,
        "scatter-sub": "differences; adding the negative has an order",
        "reduce": "a reduction by a function of the user's",
        "reduce_window": "a reduction by a function of the user's",
        "ragged_dot_general": "groups of unknown length",
        "reduce_scatter": "each device holds a part of the sum",
        "addupdate": "accumulation into a mutable array, in the program's order",
        **dict.fromkeys(
            (
                "fft",
                "cholesky",
                "triangular_solve",
                "tridiagonal_solve",
                "tridiagonal",
                "lu",
                "qr",
                "geqrf",
                "eig",
                "eigh",
                "svd",
                "schur",
                "hessenberg",
                "householder_product",
                "ormqr",
                "cholesky_update",
                "symmetric_product",
                "ffi_call",
                "pure_callback",
                "io_callback",
            ),
            _ROUTINE,
        ),
    }
)

# Primitives with a jaxpr among their parameters that is no program of its own, but the
# combining function of a reduction or a scatter.
COMBINERS = frozenset(
    (  # noqa: SIM905
        "reduce reduce_window select_and_scatter sort scatter scatter-add scatter-sub "
        "scatter-mul scatter_mul scatter-min scatter-max"
    ).split()
)

ARITHMETIC = frozenset(
    (  # noqa: SIM905
        "add sub mul div rem pow integer_pow square sqrt rsqrt cbrt exp exp2 expm1 log "
        "log1p logistic tanh sinh cosh asinh acosh atanh sin cos tan asin acos atan "
        "atan2 erf erfc erf_inv lgamma digamma polygamma igamma igammac zeta "
        "bessel_i0e bessel_i1e regularized_incomplete_beta add_any dot_general "
        "conv_general_dilated ragged_dot_general reduce_sum reduce_prod cumsum cumprod "
        "cumlogsumexp reduce_window_sum scatter-add scatter-sub scatter-mul "
        "select_and_scatter_add "
        "psum psum_invariant reduce_scatter fft cholesky cholesky_update lu qr ormqr "
        "geqrf householder_product eig eigh svd schur hessenberg tridiagonal "
        "symmetric_product triangular_solve tridiagonal_solve random_gamma "
        "igamma_grad_a random_gamma_grad"
    ).split()
).union(compat.NEW_ARITHMETIC)

MATRIX_PRODUCTS = frozenset({"dot_general", "conv_general_dilated"})

# Primitives without rounding that XLA computes anew in each reader.
PASSED_ON = frozenset(
    (  # noqa: SIM905
        "reshape transpose broadcast_in_dim squeeze expand_dims rev slice split copy "
        "convert_element_type neg abs max min select_n"
    ).split()
)

# Arithmetic so cheap that XLA computes it anew in each reader, with what it reads.
CHEAP = frozenset({"add", "sub", "mul", "div", "add_any", "integer_pow", "square"})

_XLA_GPU = frozenset(
    {"dot_general", "conv_general_dilated", "scatter-add", "select_and_scatter_add"}
)


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

    A convolution written as matrix products is a convolution here if it stands in a
    named scope that begins with `conv`. It is a gradient if JAX transposed it, if its
    scope names a `gradient`, or if its dimension numbers are those of one.
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


PROFILES: Mapping[str, Callable[[str, Mapping[str, Any], str], str | None]] = (
    MappingProxyType(
        {
            "uniform_worst_case": _uniform_worst_case,
            "xla_gpu": _xla_gpu,
            "chainer_cudnn": _chainer_cudnn,
        }
    )
)


def plan(
    spec: ReductionOrder,
    name: str,
    params: Mapping[str, Any],
    operands: Sequence[Any],
    scope: str = "",
) -> Cut | str:
    """How a reduction is cut, or why its order is left alone.

    Args:
        spec: the reduction order asked for.
        name: a primitive of `REDUCTIONS`.
        params: the equation's parameters.
        operands: abstract values (shapes and types) of its operands.
        scope: named scopes and transformations around the equation.
    """
    reason = PROFILES[spec.profile](name, params, scope)
    if reason is not None:
        return f"profile {spec.profile}: {reason}"
    return REDUCTIONS[name](spec, params, *operands)


def known() -> frozenset[str]:
    """Names of primitives that are there, whether a program holds them or not."""
    return ARITHMETIC | compat.primitive_names()


def is_float_reduction(name: str, dtype: Any) -> bool:
    """Whether a primitive with results of `dtype` is a float reduction."""
    known = name in REDUCTIONS or name in LEFT_ALONE
    return known and jnp.issubdtype(dtype, jnp.inexact)


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
