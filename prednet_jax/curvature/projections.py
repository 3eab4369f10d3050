"""Projections on an escape direction, for the theory in `prednet_jax.escape`.

In a quadratic model with curvature -gamma along a unit direction u, the gradient g
gives the projection z of the weights, measured from the stationary point of the model:
u'g = -gamma z.
"""

import dataclasses

import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree

from prednet_jax.curvature.hvp import PyTree
from prednet_jax.errors import UserError
from prednet_jax.escape import Growth, growing_projection


@dataclasses.dataclass(frozen=True, kw_only=True)
class Projections:
    """Projections on one escape direction, in the coordinates of `scale`.

    Attributes:
        gamma: Minus the curvature along the direction, positive.
        displacement: z, the projection of the weights, measured from the stationary
            point of the local quadratic model.
        step: Projection of the last change of the weights.
        step_cosine: `step` over the length of that change, in [-1, 1].
        noise_gain: Standard deviation, along the direction, of gradient noise that has
            unit standard deviation in each weight.
    """

    gamma: float
    displacement: float
    step: float
    step_cosine: float
    noise_gain: float

    def projection(self, growth: Growth) -> float:
        """C of `escape`: the start at rest that has the same growing mode."""
        return growing_projection(self.displacement, self.step, growth)


def project(
    gradient: PyTree,
    step: PyTree,
    vector: PyTree,
    value: float,
    *,
    scale: PyTree | None = None,
) -> Projections:
    """Projects gradient and last update on the direction of lowest curvature.

    Args:
        gradient: Gradient of the loss at the weights, a pytree like the weights.
        step: The last change of the weights made by the optimiser.
        vector: Unit escape direction u, in the coordinates of `scale`.
        value: Its curvature, negative.
        scale: None or P, the preconditioner that u belongs to.

    Returns:
        The projections on u.

    Raises:
        UserError: If `value` is not negative, since u is no escape direction then.
    """
    if not value < 0.0:
        raise UserError(f"value={value!r}: expected a negative curvature")
    u, g, d = (ravel_pytree(tree)[0] for tree in (vector, gradient, step))
    root = (
        jnp.ones_like(u)
        if scale is None
        else jnp.sqrt(ravel_pytree(scale)[0].astype(u.dtype))
    )
    along, length = jnp.vdot(u, root * d), jnp.linalg.norm(root * d)
    return Projections(
        gamma=-value,
        displacement=float(jnp.vdot(u, g / root)) / value,
        step=float(along),
        step_cosine=_ratio(along, length),
        noise_gain=float(jnp.linalg.norm(u / root)),
    )


def _ratio(part: jax.Array, whole: jax.Array) -> float:
    return float(part) / float(whole) if float(whole) > 0.0 else 0.0
