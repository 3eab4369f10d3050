"""Which primitives are sums, and how each is cut; which are left alone, and why.

`CUTS` names the sums whose order `ReductionOrder` draws, with the function that cuts
each (see `arithmetic.partials`). `LEFT_ALONE` names the other float reductions, with
the reason.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType

from prednet_jax.noise.arithmetic import products, sums
from prednet_jax.noise.arithmetic.partials import Cut

CUTS: Mapping[str, Callable[..., Cut | str]] = MappingProxyType(
    {
        "dot_general": products.cut_dot,
        "conv_general_dilated": products.cut_conv,
        "reduce_sum": sums.cut_sum,
        "reduce_window_sum": sums.cut_window,
        "cumsum": sums.cut_cumsum,
        "scatter-add": sums.cut_scatter_add,
        "select_and_scatter_add": sums.cut_select_and_scatter_add,
        "psum": sums.cut_psum,
        "psum_invariant": sums.cut_psum,
        # Of whole chains of them; see `chains`.
        "add_any": lambda spec, params, *terms: sums.cut_add_any(terms),
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
