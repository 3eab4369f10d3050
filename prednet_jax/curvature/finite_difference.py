"""The curvature of a loss along a vector, from differences of its values.

The loss is not differentiated, so this check detects a wrong derivative rule.
"""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree

from prednet_jax.curvature.hvp import Loss, PyTree, hessian_operator

# Accepted difference as a fraction of the expected value, added to the estimated error.
_ALLOWANCE = 0.05
# Ladder of |h d| / |w|, in half decades. The small ones are for float64, the large ones
# for float32.
_RELATIVE_STEPS = tuple(10.0 ** (-k / 2) for k in range(10))


@dataclasses.dataclass(frozen=True, kw_only=True)
class FiniteDifference:
    """Second difference of the loss along a direction d in the weights.

    Attributes:
        step: h, in units of d.
        curvature: (L(w + h d) - 2 L(w) + L(w - h d)) / h^2.
        error: Estimated error of `curvature`, from rounding and truncation.
        expected: The value that it is compared with, a Rayleigh quotient.
        loss: L(w).
        reach: The largest |h d| on the ladder of steps up to which the second
            difference agrees with `expected`; 0: it never does. Beyond it the loss is
            not the quadratic any more, abruptly so at a kink of a ReLU.
    """

    step: float
    curvature: float
    error: float
    expected: float
    loss: float
    reach: float

    @property
    def verdict(self) -> str:
        """'agrees', 'disagrees', or 'too noisy' if the error exceeds the value."""
        if not abs(self.expected) > self.error:
            return "too noisy"
        gap = abs(self.curvature - self.expected)
        allowed = self.error + _ALLOWANCE * abs(self.expected)
        return "agrees" if gap <= allowed else "disagrees"


def finite_difference(
    loss: Loss,
    params: PyTree,
    vector: PyTree,
    *,
    expected: float,
    scale: PyTree | None = None,
) -> FiniteDifference:
    """Measures the curvature of the loss along a vector without differentiating it.

    A ladder of steps h is tried, from |w| down to 10^-4.5 |w|. The result is that of
    the smallest step whose rounding error, 8 eps max|L| / h^2, is below a tenth of the
    expected value; if there is none, that of the step with the least error. Larger
    steps leave the neighbourhood, which in a network of ReLUs ends at the next kink.
    The truncation error is Richardson's estimate, a ninth of the change from the next
    larger step.

    Args:
        loss: Maps a pytree of weights to a scalar.
        params: The weights.
        vector: The direction, in the coordinates of `scale` if that is given.
        expected: The value to compare with.
        scale: None or P; the direction in weights is then P^{-1/2} `vector`.

    Returns:
        The second difference with its estimated error.
    """
    # From here on float64 on the host: only a few numbers, but differences of losses.
    weights_step, values, direction_length = _losses_along(loss, params, scale, vector)
    steps = np.asarray(weights_step, float)
    plus, centre, minus = np.asarray(values, float)
    curvature = (plus - 2.0 * centre + minus) / steps**2
    eps = float(jnp.finfo(values.dtype).eps)
    size = np.max(np.abs([plus, centre, minus]), axis=0)
    rounding = 8.0 * eps * size / steps**2
    # Steps descend by the square root of 10, so the square of h by 10.
    truncation = np.abs(np.diff(curvature, prepend=np.nan)) / 9.0
    error = np.where(np.isnan(truncation), np.inf, rounding + truncation)
    error = np.where(np.isfinite(error), error, np.inf)
    clear = np.flatnonzero(rounding < 0.1 * abs(expected))
    best = int(clear[-1]) if clear.size else int(np.argmin(error))
    allowed = error[best] + _ALLOWANCE * abs(expected)
    near = np.abs(curvature[best::-1] - expected) <= allowed
    reached = int(np.argmin(near)) if not near.all() else near.size
    lengths = steps * float(direction_length)
    return FiniteDifference(
        step=float(steps[best]),
        curvature=float(curvature[best]),
        error=float(error[best]),
        expected=expected,
        loss=float(centre[best]),
        reach=float(lengths[best - reached + 1]) if reached else 0.0,
    )


@functools.partial(jax.jit, static_argnames=("loss",))
def _losses_along(
    loss: Loss, params: PyTree, scale: PyTree | None, vector: PyTree
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Steps [k], losses [3, k] at w + h d, w and w - h d, and |d|."""
    _, inverse_root, unravel = hessian_operator(loss, params, scale)
    centre, direction = ravel_pytree(params)[0], ravel_pytree(vector)[0] * inverse_root
    # The steps are relative to |w|; for w = 0 they are of order one.
    norm = jnp.linalg.norm(centre)
    length = jnp.linalg.norm(direction)
    unit = jnp.where(norm > 0.0, norm, 1.0) / length
    steps = unit * jnp.asarray(_RELATIVE_STEPS, centre.dtype)

    def along(step: jax.Array) -> jax.Array:
        return loss(unravel(centre + step * direction))

    offsets = jnp.stack([steps, jnp.zeros_like(steps), -steps])
    values = jax.lax.map(along, offsets.ravel()).reshape(offsets.shape)
    return steps, values, length
