r"""The Hessian of a loss as an operator, and its extreme eigenpairs.

With L the loss, w the weights and P a positive diagonal (the `scale`):

    raw:             H v = d/dt grad L(w + t v) at t = 0
    preconditioned:  P^{-1/2} H P^{-1/2} v

The second is the Hessian in the coordinates y = P^{1/2} w, in which a step of Adam with
frozen second moments is a step of heavy ball. The two have the same number of negative
eigenvalues (Sylvester).

From a random start, k products build an orthonormal Q and a tridiagonal T = Q H Q'
(Lanczos), whose extreme eigenvalues (Ritz values) approach H's eigenvalues from inside:

    lambda_min <= theta_low,    theta_high <= lambda_max.

For a unit vector v, H has an eigenvalue within the residual |H v - theta v| of theta,
which the Rayleigh quotient theta = v'Hv makes smallest.

The factorisation is matfree's `hessenberg` with full re-orthogonalisation, which shows
when the Krylov space is exhausted: at simple saddles with two distinct eigenvalues
`eig.eigh_partial` returns NaN.

References:
    Pearlmutter, "Fast exact multiplication by the Hessian", Neural Computation 1994.
    Cohen et al. 2022, arXiv 2207.14484, section 2 (the preconditioner).
    Parlett, "The symmetric eigenvalue problem", 1998, chapters 4 (residual bound) and
    13. Kraemer et al. 2024, arXiv 2405.17277 (matfree).
"""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from matfree import decomp

from prednet_jax.errors import UserError, check_int
from prednet_jax.optimizers import one_minus_power

PyTree = Any
Loss = Callable[[PyTree], jax.Array]


def hessian_operator(
    loss: Loss, params: PyTree, scale: PyTree | None = None
) -> tuple[Callable[[jax.Array], jax.Array], jax.Array, Callable]:
    """Returns the Hessian, or P^{-1/2} H P^{-1/2}, as an operator on flat vectors [n].

    It is forward over reverse. Also returns P^{-1/2} as [n], which is ones for the raw
    Hessian, and the function that converts [n] to a pytree like `params`.
    """
    check(params, scale)
    flat, unravel = ravel_pytree(params)
    inverse_root = jnp.ones_like(flat)
    if scale is not None:
        inverse_root = jax.lax.rsqrt(ravel_pytree(scale)[0].astype(flat.dtype))

    def flat_gradient(vector: jax.Array) -> jax.Array:
        return ravel_pytree(jax.grad(loss)(unravel(vector)))[0]

    def matvec(vector: jax.Array) -> jax.Array:
        _, product = jax.jvp(flat_gradient, (flat,), (inverse_root * vector,))
        return inverse_root * product

    return matvec, inverse_root, unravel


def adam_scale(
    second_moment: PyTree,
    count: int | jax.Array,
    *,
    b1: float = 0.9,
    b2: float = 0.999,
    eps: float = 1e-8,
) -> PyTree:
    r"""Computes the P for which a step of Adam is exactly -learning_rate P^{-1} m.

    With m and v the running means after t updates, before bias correction,

        P = (1 - b1^t) (sqrt(v) + eps) / sqrt(1 - b2^t).

    Here eps is added before the bias correction, as in `chainer_adam`. P is a pytree
    like `second_moment`, v after `count` = t >= 1 updates (Cohen et al. 2022, eq. 3).
    """

    def leaf(v: jax.Array) -> jax.Array:
        v = jnp.asarray(v)
        t = jnp.asarray(count).astype(v.dtype)
        first, second = one_minus_power(b1, t), one_minus_power(b2, t)
        return first * (jnp.sqrt(v) + eps) / jnp.sqrt(second)

    return jax.tree.map(leaf, second_moment)


def check(params: PyTree, scale: PyTree | None) -> None:
    """Refuses weights, or a scale of them, without a Hessian."""
    leaves = [jnp.asarray(leaf) for leaf in jax.tree.leaves(params)]
    dtypes = sorted({str(leaf.dtype) for leaf in leaves})
    if dtypes not in (["float32"], ["float64"]) or not any(x.size for x in leaves):
        received = ", ".join(dtypes) * any(x.size for x in leaves)
        raise UserError(
            f"params hold {received or 'no number'}: expected real arrays of float32, "
            "or of float64"
        )
    expected = jax.tree.map(jnp.shape, params)
    if scale is not None and (received := jax.tree.map(jnp.shape, scale)) != expected:
        raise UserError(f"scale has leaves of {received}: expected {expected}")
    given = jax.tree.leaves(scale)
    if not any(isinstance(x, jax.core.Tracer) for x in given):
        for lowest in [np.min(np.asarray(x, float), initial=np.inf) for x in given]:
            if not lowest > 0:
                raise UserError(f"scale has {lowest}: expected positive numbers")


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
    """Unit Ritz vectors [2, n], values [2], and the values [2] after half the steps."""

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

    A second call with the same function `loss` does not compile again. Needs memory for
    steps * n numbers. An invalid argument is a UserError.

    Args:
        loss: Maps a pytree of weights to a scalar, deterministically: with noise the
            Hessian product would not be a linear operator.
        params: The weights, a pytree of n real numbers of one dtype.
        key: Consumed for the start vector.
        steps: Number of Hessian products, at least 1. At most n are made; the result is
            then exact up to rounding.
        scale: A pytree P like `params`, positive, for P^{-1/2} H P^{-1/2}.
    """
    check(params, scale)
    steps = capped_steps(params, steps)
    ritz = ritz_pairs(loss, params, scale, key, steps=steps)
    return rayleigh(loss, params, scale, ritz.vectors)


def capped_steps(params: PyTree, steps: int) -> int:
    """Checks a number of Lanczos steps and limits it to the dimension."""
    dimension = sum(jnp.size(leaf) for leaf in jax.tree.leaves(params))
    return min(check_int("steps", steps, 1), dimension)


@functools.partial(jax.jit, static_argnames=("loss", "steps"))
def ritz_pairs(
    loss: Loss, params: PyTree, scale: PyTree | None, key: jax.Array, *, steps: int
) -> Ritz:
    """Executes 1 to n Lanczos steps from one Gaussian start; consumes the key."""
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
    """Returns Rayleigh quotients v'Hv and residuals of two unit vectors `[2, n]`."""
    matvec, _, unravel = hessian_operator(loss, params, scale)
    products = jax.lax.map(matvec, vectors)
    values = jnp.sum(vectors * products, axis=1)
    residuals = jnp.linalg.norm(products - values[:, None] * vectors, axis=1)
    low, high = (unravel(vector) for vector in vectors)
    return Eigenpairs(values=values, vectors=(low, high), residuals=residuals)


def _alive(diagonal: jax.Array, lengths: jax.Array) -> jax.Array:
    """Marks the Krylov vectors [k] that come before the space is exhausted."""
    # Vector j + 1 exists if lengths[j], the length left after orthogonalisation,
    # exceeds the rounding error of the product; if that length is NaN, it does not.
    size = jnp.maximum(jnp.abs(diagonal[:-1]), jnp.abs(lengths))
    size = jax.lax.cummax(jnp.where(jnp.isfinite(size), size, 0.0))
    goes_on = lengths > jnp.finfo(diagonal.dtype).eps * size
    first = jnp.ones((1,), bool)
    return jnp.concatenate([first, jnp.cumprod(goes_on).astype(bool)])


def _extremes(
    diagonal: jax.Array, lengths: jax.Array, alive: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """Diagonalises the block of T that is `alive`: values [2], coordinates [2, k]."""
    # The other rows are uncoupled and their eigenvalues are put beyond the opposite end
    # of the spectrum, so that they cannot be the result.
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
