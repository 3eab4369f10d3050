r"""More of the same noise: gradients with their own rounding noise, amplified.

With g the plain gradient and a, b two gradients under a noise spec with independent
keys, xi = (a - b) / sqrt(2) has mean zero, whatever the mean of a is, and the
covariance of the noise. That matters: a noisy program and a plain one round
differently, and a - g has a fixed part larger than the random one, which amplified
would be a drift.

    order         g + k xi                           the noise itself, k times
    coordinates   g + k xi * n                       n ~ N(0, 1) in each coordinate
    isotropic     g + k |xi| n / |n|                 its norm, in a random direction

The first and the last have the norm k |xi|, the second has it in the mean square. What
all three do is decided by the norm, what only the first two do by where the noise lies,
what only the first does by its structure.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from prednet_jax import errors, noise

KINDS = ("order", "coordinates", "isotropic")


def amplified(spec: noise.NoiseSpec, factor: float, kind: str) -> Callable:
    """A transform of a gradient function that amplifies the noise of `spec`.

    Args:
        spec: noise that acts on a computation.
        factor: k above, above 0.
        kind: of `KINDS`.

    Returns:
        `transform(gradient)(key, *inputs) -> (grads, result)` for
        `gradient(*inputs) -> (grads, result)`; the result is that of the plain call.
        Four gradients' work, less what the calls share.

    Raises:
        UserError: the factor or the kind is outside what is accepted.
    """
    errors.positive("factor", factor)
    errors.one_of("kind", kind, KINDS)

    def transform(gradient: Callable) -> Callable:
        noisy = noise.inject(lambda *inputs: gradient(*inputs)[0], spec)

        def perturbed(key: jax.Array, *inputs: Any) -> tuple[Any, Any]:
            first, second, direction = jax.random.split(key, 3)
            grads, result = gradient(*inputs)
            xi = jax.tree.map(
                lambda a, b: (a - b) * jnp.asarray(0.5**0.5, a.dtype),
                noisy(first, *inputs),
                noisy(second, *inputs),
            )
            if kind != "order":
                normal = _normal_like(direction, xi)
                if kind == "coordinates":
                    xi = jax.tree.map(jnp.multiply, xi, normal)
                else:
                    scale = _norm(xi) / _norm(normal)
                    xi = jax.tree.map(lambda n: scale * n, normal)
            k = jnp.asarray(factor, jax.tree.leaves(grads)[0].dtype)
            return jax.tree.map(lambda g, x: g + k * x, grads, xi), result

        return perturbed

    return transform


def _normal_like(key: jax.Array, tree: Any) -> Any:
    leaves, structure = jax.tree.flatten(tree)
    keys = jax.random.split(key, len(leaves))
    drawn = [
        jax.random.normal(k, leaf.shape, leaf.dtype)
        for k, leaf in zip(keys, leaves, strict=True)
    ]
    return jax.tree.unflatten(structure, drawn)


def _norm(tree: Any) -> jax.Array:
    return jnp.sqrt(sum(jnp.sum(jnp.square(leaf)) for leaf in jax.tree.leaves(tree)))
