"""Which primitives round, so that noises on results act on them.

Copies, comparisons, maxima, negation and conversions do not round, and are perturbed
only where a spec names them.
"""

from __future__ import annotations

from prednet_jax.noise import compat

ROUNDING = frozenset(
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

# The primitives whose operands `ReducedPrecision` rounds.
MATRIX_PRODUCTS = frozenset({"dot_general", "conv_general_dilated"})
