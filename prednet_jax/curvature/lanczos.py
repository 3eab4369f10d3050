r"""Extreme eigenpairs of a Hessian by the Lanczos method.

From a random start, k products with the Hessian H build an orthonormal Q and a
tridiagonal T = Q H Q'. The extreme eigenvalues of T (Ritz values) approach those of H
from inside:

    lambda_min <= theta_low,    theta_high <= lambda_max.

So a negative Ritz value proves negative curvature; the absence of one proves nothing.
For a unit vector v, H has an eigenvalue within the residual |H v - theta v| of theta.
The Rayleigh quotient theta = v'Hv makes that residual smallest.

The factorisation is matfree's, with full re-orthogonalisation. Its `hessenberg` is used
rather than its `tridiag_sym`, because it also returns the lengths that show when the
Krylov space is exhausted. That happens even at the simplest saddles, with only two
distinct eigenvalues; `eig.eigh_partial` returns NaN there.

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
        vectors: Unit vectors (lowest, highest), each a pytree like the weights. With a
            `scale` P they are in the coordinates y = P^{1/2} w; the direction in the
            weights is P^{-1/2} times the vector.
        residuals: [2], |H v - theta v|: an eigenvalue lies this close to each value.
    """

    values: jax.Array
    vectors: tuple[PyTree, PyTree]
    residuals: jax.Array


class Ritz(NamedTuple):
    """The result of one Lanczos iteration of k steps.

    Attributes:
        vectors: [2, n], unit Ritz vectors, lowest then highest.
        values: [2], the Ritz values after k steps.
        halfway: [2], the Ritz values after k // 2 steps. Krylov spaces are nested, so
            these cost nothing.
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

    The computation is jitted, with `loss` as part of the cache key: a second call with
    the same function object does not compile again. It needs memory for steps * n
    numbers.

    Args:
        loss: Maps a pytree of weights to a scalar, deterministically: with noise the
            Hessian product would not be a linear operator.
        params: The weights, a pytree of n real numbers of one dtype.
        key: Consumed for the start vector.
        steps: Number of Hessian products, at least 1. At most n are made; the result is
            then exact up to rounding.
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
    """Checks a number of Lanczos steps and limits it to the dimension."""
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
        Ritz vectors [2, n], Ritz values [2], and the Ritz values after half the steps.
    """
    matvec, inverse_root, _ = hessian_operator(loss, params, scale)
    start = jax.random.normal(key, inverse_root.shape, inverse_root.dtype)
    decompose = decomp.hessenberg(steps, reortho="full", custom_vjp=False)
    # matvec closes over the weights; matfree finds these tracers by closure_convert.
    basis, hessenberg, *_ = decompose(matvec, start)

    diagonal = jnp.diagonal(hessenberg)
    lengths = jnp.diagonal(hessenberg, -1)
    alive = _alive(diagonal, lengths)
    first_half = alive & (jnp.arange(steps) < max(1, steps // 2))
    values, coordinates = jax.vmap(_extremes, (None, None, 0))(
        diagonal, lengths, jnp.stack([alive, first_half])
    )

    # Once the space is exhausted, the rows of Q are rounding errors or NaN.
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
    """Marks the Krylov vectors [k] that come before the space is exhausted.

    Vector j + 1 exists if lengths[j], the length left after orthogonalisation, exceeds
    the rounding error of the product. If that length is NaN, the vector does not exist.
    """
    size = jnp.maximum(jnp.abs(diagonal[:-1]), jnp.abs(lengths))
    size = jax.lax.cummax(jnp.where(jnp.isfinite(size), size, 0.0))
    goes_on = lengths > jnp.finfo(diagonal.dtype).eps * size
    first = jnp.ones((1,), bool)
    return jnp.concatenate([first, jnp.cumprod(goes_on).astype(bool)])


def _extremes(
    diagonal: jax.Array, lengths: jax.Array, alive: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """Diagonalises the block of T that is `alive`: values [2] and coordinates [2, k].

    The other rows are uncoupled and their eigenvalues are put beyond the opposite end
    of the spectrum, so that they cannot be the result.
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
