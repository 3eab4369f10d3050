r"""Extreme eigenpairs of a Hessian by the Lanczos method.

k products with the Hessian from a random start build an orthonormal Q and a
tridiagonal T = Q H Q', whose extreme eigenvalues (Ritz values) approach those of H
from inside:

    lambda_min <= theta_low,    theta_high <= lambda_max.

So a negative Ritz value proves negative curvature and its absence proves nothing. For
a unit vector v, H has an eigenvalue within |H v - theta v| of theta (the residual);
theta is the Rayleigh quotient v'Hv, which makes that residual smallest.

The factorisation is matfree's, with full re-orthogonalisation. Its `hessenberg` is
used, of which its `tridiag_sym` is the symmetrised form, because only there the
lengths are left that say when the Krylov space is exhausted. `eig.eigh_partial` would
return NaN then, which happens at the plainest of saddles (two distinct eigenvalues).

References:
    Lanczos 1950; Paige 1971; Parlett, "The symmetric eigenvalue problem", 1998,
    chapters 4 (residual bound) and 13. Kraemer et al. 2024, arXiv 2405.17277 (matfree).
"""

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
from matfree import decomp

from prednet_jax.curvature.hvp import Loss, PyTree, hessian_operator
from prednet_jax.errors import whole


class Eigenpairs(NamedTuple):
    """The lowest and the highest Ritz pair.

    Attributes:
        values: [2], lowest then highest, in units of loss per squared weight.
        vectors: The pair (lowest, highest) of unit vectors, each a pytree like the
            weights. With a `scale` P they live in y = P^{1/2} w: the direction in
            weights is P^{-1/2} times the vector.
        residuals: [2], |H v - theta v|: an eigenvalue lies this near to each value.
    """

    values: jax.Array
    vectors: tuple[PyTree, PyTree]
    residuals: jax.Array


class Ritz(NamedTuple):
    """What one Lanczos run of k steps leaves.

    Attributes:
        vectors: [2, n], unit Ritz vectors, lowest then highest.
        values: [2], the Ritz values after k steps.
        halfway: [2], the Ritz values that k // 2 steps had given: Krylov spaces are
            nested, so they cost nothing.
    """

    vectors: jax.Array
    values: jax.Array
    halfway: jax.Array


def extreme_eigenpairs(
    loss: Loss,
    params: PyTree,
    *,
    key: jax.Array,
    steps: int = 40,
    scale: PyTree | None = None,
) -> Eigenpairs:
    """Estimates the lowest and highest eigenpair of a loss's Hessian.

    The work is jitted with `loss` as part of the cache key: pass the same function
    object again and nothing is compiled again. Memory: steps * n numbers.

    Args:
        loss: Maps a pytree of weights to a scalar, deterministically (a noisy Hessian
            product is not a linear operator; probe the clean loss).
        params: The weights, a pytree of n real numbers of one dtype.
        key: Consumed for the start vector.
        steps: Number of Hessian products, at least 1; capped at n, where the result is
            exact up to rounding.
        scale: A pytree P like `params`, positive, for P^{-1/2} H P^{-1/2}.

    Returns:
        Values [2], vectors (lowest, highest) and residuals [2].

    Raises:
        UserError: If `steps` is not a positive integer, or as `hessian_operator`.
    """
    steps = capped_steps(params, steps)
    ritz = ritz_pairs(loss, params, scale, key, steps=steps)
    return rayleigh(loss, params, scale, ritz.vectors)


def capped_steps(params: PyTree, steps: int) -> int:
    """Validates a number of Lanczos steps and caps it at the dimension."""
    dimension = sum(jnp.size(leaf) for leaf in jax.tree.leaves(params))
    return min(whole("steps", steps, 1), dimension)


@functools.partial(jax.jit, static_argnames=("loss", "steps"))
def ritz_pairs(
    loss: Loss, params: PyTree, scale: PyTree | None, key: jax.Array, *, steps: int
) -> Ritz:
    """Runs Lanczos once from a Gaussian start.

    Args:
        loss: Maps a pytree of weights to a scalar.
        params: The weights, n numbers.
        scale: None or P, a pytree like `params`.
        key: Consumed for the start vector.
        steps: Number of Hessian products, in 1..n.

    Returns:
        Ritz vectors [2, n] and values [2], also those after half the steps.
    """
    matvec, inverse_root, _ = hessian_operator(loss, params, scale)
    start = jax.random.normal(key, inverse_root.shape, inverse_root.dtype)
    decompose = decomp.hessenberg(steps, reortho="full", custom_vjp=False)
    # The parameters are closed over; matfree's closure_convert finds the tracers.
    basis, hessenberg, *_ = decompose(matvec, start)

    diagonal = jnp.diagonal(hessenberg)
    lengths = jnp.diagonal(hessenberg, -1)
    alive = _alive(diagonal, lengths)
    first_half = alive & (jnp.arange(steps) < max(1, steps // 2))
    values, coordinates = jax.vmap(_extremes, (None, None, 0))(
        diagonal, lengths, jnp.stack([alive, first_half])
    )

    # Rows of Q after the space is exhausted are rounding errors or NaN.
    vectors = coordinates[0] @ jnp.where(alive[:, None], basis, 0.0)
    vectors = vectors / jnp.linalg.norm(vectors, axis=1, keepdims=True)
    return Ritz(vectors=vectors, values=values[0], halfway=values[1])


@functools.partial(jax.jit, static_argnames=("loss",))
def rayleigh(
    loss: Loss, params: PyTree, scale: PyTree | None, vectors: jax.Array
) -> Eigenpairs:
    """Computes Rayleigh quotients and residuals of given unit vectors.

    Args:
        loss: Maps a pytree of weights to a scalar.
        params: The weights, n numbers.
        scale: None or P, a pytree like `params`.
        vectors: [2, n], unit vectors.

    Returns:
        Values [2] = v'Hv, the vectors as pytrees, residuals [2] = |Hv - theta v|.
    """
    matvec, _, unravel = hessian_operator(loss, params, scale)
    products = jax.lax.map(matvec, vectors)
    values = jnp.sum(vectors * products, axis=1)
    residuals = jnp.linalg.norm(products - values[:, None] * vectors, axis=1)
    low, high = (unravel(vector) for vector in vectors)
    return Eigenpairs(values=values, vectors=(low, high), residuals=residuals)


def _alive(diagonal: jax.Array, lengths: jax.Array) -> jax.Array:
    """Marks the Krylov vectors [k] before the space is exhausted.

    Step j + 1 exists if what was left after orthogonalisation, lengths[j], exceeds the
    rounding error of the product. Comparisons with NaN are false, as they should be.
    """
    size = jnp.maximum(jnp.abs(diagonal[:-1]), jnp.abs(lengths))
    size = jax.lax.cummax(jnp.where(jnp.isfinite(size), size, 0.0))
    goes_on = lengths > jnp.finfo(diagonal.dtype).eps * size
    first = jnp.ones((1,), bool)
    return jnp.concatenate([first, jnp.cumprod(goes_on).astype(bool)])


def _extremes(
    diagonal: jax.Array, lengths: jax.Array, alive: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """Diagonalises the living block of T: values [2] and coordinates [2, k].

    The dead rows are uncoupled and set beyond the spectrum on the side that is not
    read, so that they can be neither the answer nor tied with it.
    """
    diagonal = jnp.where(alive, diagonal, 0.0)
    lengths = jnp.where(alive[1:], lengths, 0.0)
    size = jnp.max(jnp.abs(jnp.concatenate([diagonal, lengths])))
    beyond = jnp.where(size > 0.0, 3.0 * size, 1.0)

    fill = jnp.stack([beyond, -beyond])
    padded = jnp.where(alive, diagonal, fill[:, None])
    coupling = jnp.diag(lengths, 1) + jnp.diag(lengths, -1)
    values, columns = jnp.linalg.eigh(jax.vmap(jnp.diag)(padded) + coupling)
    ends = jnp.stack([values[0, 0], values[1, -1]])
    return ends, jnp.stack([columns[0, :, 0], columns[1, :, -1]])
