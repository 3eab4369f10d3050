r"""Hessian-vector products on pytrees, raw and in the coordinates of Adam.

With L the loss, w the weights and P a positive diagonal (the `scale`):

    raw:             H v = d/dt grad L(w + t v) at t = 0
    preconditioned:  P^{-1/2} H P^{-1/2} v

The second is the Hessian in the coordinates y = P^{1/2} w, in which a step of Adam with
frozen second moments is a step of heavy ball. The two matrices are congruent, so by
Sylvester's law of inertia they have the same number of negative eigenvalues.

References:
    Pearlmutter, "Fast exact multiplication by the Hessian", Neural Computation 1994.
    Cohen et al., "Adaptive gradient methods at the edge of stability",
    arXiv 2207.14484, section 2 (the preconditioner with its bias corrections).
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree

from prednet_jax.errors import UserError, decay, positive, whole
from prednet_jax.optimizers import one_minus_power

PyTree = Any
Loss = Callable[[PyTree], jax.Array]


def hvp(loss: Loss, params: PyTree, tangent: PyTree) -> PyTree:
    """Multiplies the Hessian of a loss by a vector, forward over reverse.

    Args:
        loss: Maps a pytree of weights to a scalar. It may use custom_vjp functions, but
            not ones whose forward rule calls the function itself.
        params: The weights, a pytree of floating arrays.
        tangent: The vector, a pytree like `params`.

    Returns:
        H v, a pytree like `params`.
    """
    return jax.jvp(jax.grad(loss), (params,), (tangent,))[1]


def hessian_operator(
    loss: Loss, params: PyTree, scale: PyTree | None = None
) -> tuple[Callable[[jax.Array], jax.Array], jax.Array, Callable]:
    """Builds the Hessian as an operator on flat vectors.

    Args:
        loss: Maps a pytree of weights to a scalar.
        params: The weights, a pytree of n floating numbers in all, of one dtype.
        scale: None for the raw Hessian, or a pytree like `params` of positive
            numbers P for P^{-1/2} H P^{-1/2} (see `adam_scale`).

    Returns:
        matvec: Maps [n] to [n].
        inverse_root: P^{-1/2} as [n]; ones for the raw Hessian.
        unravel: Maps [n] to a pytree like `params`.

    Raises:
        UserError: If the leaves are not all real floating arrays of one dtype, or if
            `scale` differs from `params` in structure or shapes.
    """
    flat, unravel = ravel_pytree(_checked(params))
    if scale is None:
        inverse_root = jnp.ones_like(flat)
    else:
        _check_like(scale, params)
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

    Here eps is added before the bias correction, as in Chainer, Keras and
    `chainer_adam`. Both factors tend to 1, so late in training P is the
    diag(sqrt(v) + eps) of `prednet_jax.escape`.

    Args:
        second_moment: v, a pytree of non-negative arrays.
        count: t, the number of updates that made v, at least 1.
        b1: Decay of the first moment, in [0, 1).
        b2: Decay of the second moment, in [0, 1).
        eps: The epsilon of the optimiser, positive.

    Returns:
        P, a pytree like `second_moment`.

    Raises:
        UserError: If an argument is outside its range.

    References:
        Kingma and Ba 2015, algorithm 1; chainer/optimizers/adam.py (7.8.1);
        Cohen et al. 2022, equation 3.
    """
    decay("b1", b1)
    decay("b2", b2)
    positive("eps", eps)
    if not isinstance(count, jax.core.Tracer):
        whole("count", int(count), 1)

    def leaf(v: jax.Array) -> jax.Array:
        v = jnp.asarray(v)
        t = jnp.asarray(count).astype(v.dtype)
        first, second = one_minus_power(b1, t), one_minus_power(b2, t)
        return first * (jnp.sqrt(v) + eps) / jnp.sqrt(second)

    return jax.tree.map(leaf, second_moment)


def _checked(params: PyTree) -> PyTree:
    leaves = [jnp.asarray(leaf) for leaf in jax.tree.leaves(params)]
    dtypes = sorted({str(leaf.dtype) for leaf in leaves})
    if (
        len(dtypes) != 1
        or not jnp.issubdtype(leaves[0].dtype, jnp.floating)
        or sum(leaf.size for leaf in leaves) == 0
    ):
        received = ", ".join(dtypes) or "an empty pytree"
        raise UserError(
            f"params hold {received}: expected real floating arrays of one dtype"
        )
    return params


def _check_like(scale: PyTree, params: PyTree) -> None:
    received, expected = str(jax.tree.structure(scale)), str(jax.tree.structure(params))
    if received != expected:
        raise UserError(f"scale has structure {received}: expected {expected}")
    for a, b in zip(jax.tree.leaves(scale), jax.tree.leaves(params), strict=True):
        if jnp.shape(a) != jnp.shape(b):
            raise UserError(
                f"scale has a leaf of shape {jnp.shape(a)}: expected {jnp.shape(b)}"
            )
