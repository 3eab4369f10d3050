r"""The lowest and highest curvature, with a statement of what has been proved.

The Lanczos iteration of `hessian` is repeated from several starts, and its number of
steps is doubled until the values stop moving. The result is compared with finite
differences of the loss along the vector, which detect a wrong derivative rule.

The proof is one-sided. A Rayleigh quotient is never below lambda_min, so a negative
theta_low + rounding proves negative curvature, whether Lanczos has converged or not; if
none is found, nothing is proved. `rounding` allows for the error of the Hessian
product: sqrt(n) eps |H|, as of an inner product of n numbers (Higham and Mary, SIAM J.
Sci. Comput. 2019).
"""

import dataclasses
import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree

from prednet_jax.curvature import hessian
from prednet_jax.curvature.hessian import Eigenpairs, Loss, PyTree
from prednet_jax.errors import UserError, whole

# Accepted difference as a fraction of the expected value, added to the estimated error.
_ALLOWANCE = 0.05
# A value has settled if the second half of the steps moves it by a smaller fraction.
_SETTLED = 0.05
# Ladder of |h d| / |w|, in half decades: small ones for float64, large for float32.
_RELATIVE_STEPS = tuple(10.0 ** (-k / 2) for k in range(10))


@dataclasses.dataclass(frozen=True, kw_only=True)
class FiniteDifference:
    """Second difference of the loss along a direction d in the weights.

    Attributes:
        step: h, in units of d.
        curvature: (L(w + h d) - 2 L(w) + L(w - h d)) / h^2, with `error`, estimated
            from rounding and truncation.
        expected: the value that it is compared with, a Rayleigh quotient.
        loss: L(w).
        reach: the largest |h d| on the ladder of steps up to which the second
            difference agrees with `expected`; 0: it never does.
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
    steps leave the neighbourhood, which ends at the next kink of a ReLU. The truncation
    error is Richardson's estimate, a ninth of the change from the next larger step.
    With a `scale` P the direction in weights is P^{-1/2} `vector`.
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
    error = rounding + np.abs(np.diff(curvature, prepend=np.nan)) / 9.0
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
    _, inverse_root, unravel = hessian.hessian_operator(loss, params, scale)
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


@dataclasses.dataclass(frozen=True, kw_only=True)
class Certificate:
    """The extreme curvatures over all starts, with what is needed to judge them.

    Attributes:
        dimension: n, the number of weights.
        steps: Lanczos steps of the last round.
        converged: whether the second half of the steps moved the lowest and the highest
            value by less than 5 % or less than the rounding.
        rounding: allowance for rounding in a value, sqrt(n) eps max|theta|.
        finite_difference: finite differences of the loss along the lowest vector.
    """

    pairs: Eigenpairs
    dimension: int
    steps: int
    converged: tuple[bool, bool]
    rounding: float
    finite_difference: FiniteDifference

    @property
    def lowest(self) -> float:
        """The lowest Rayleigh quotient found."""
        return float(self.pairs.values[0])

    @property
    def highest(self) -> float:
        """The highest Rayleigh quotient found."""
        return float(self.pairs.values[1])

    @property
    def negative_curvature_proved(self) -> bool:
        """Whether lambda_min is certainly negative. False proves nothing."""
        return self.lowest + self.rounding < 0.0


def certify(
    loss: Loss,
    params: PyTree,
    *,
    key: jax.Array,
    scale: PyTree | None = None,
    steps: int = 40,
    starts: int = 2,
) -> Certificate:
    """Searches for the extreme curvatures and says what is proved.

    Arguments and errors are those of `extreme_eigenpairs`; `steps` are doubled where a
    value has not settled, and `starts` random vectors are tried. The function runs on
    the host and cannot be jitted. A UserError also: the loss has no finite curvature.
    """
    whole("starts", starts, 1)
    hessian.check(params, scale)
    dimension = sum(jnp.size(leaf) for leaf in jax.tree.leaves(params))
    eps = float(jnp.finfo(jnp.result_type(*jax.tree.leaves(params))).eps)
    for count in (steps, 2 * steps):
        products = hessian.capped_steps(params, count)
        key, *start_keys = jax.random.split(key, starts + 1)
        runs = [
            hessian.ritz_pairs(loss, params, scale, k, steps=products)
            for k in start_keys
        ]
        values = np.array([run.values for run in runs], float)
        if not np.isfinite(values).all():
            raise UserError(
                f"curvature is {values.min(0)[0]} at these weights: expected a loss "
                "with finite second derivatives"
            )
        best = _outermost(values)
        before = _outermost(np.array([run.halfway for run in runs], float))
        rounding = math.sqrt(dimension) * eps * max(map(abs, best))
        # n steps span the whole space, so no value can move any more.
        low, high = (
            products == dimension
            or abs(now - then) <= max(_SETTLED * abs(now), rounding)
            for now, then in zip(best, before, strict=True)
        )
        if low and high:
            break
    lowest, highest = int(values[:, 0].argmin()), int(values[:, 1].argmax())
    vectors = jnp.stack([runs[lowest].vectors[0], runs[highest].vectors[1]])
    pairs = hessian.rayleigh(loss, params, scale, vectors)
    return Certificate(
        pairs=pairs,
        dimension=dimension,
        steps=products,
        converged=(low, high),
        rounding=rounding,
        finite_difference=finite_difference(
            loss, params, pairs.vectors[0], scale=scale, expected=float(pairs.values[0])
        ),
    )


def _outermost(values: np.ndarray) -> tuple[float, float]:
    """The lowest of the low and the highest of the high values `[starts, 2]`."""
    return float(values[:, 0].min()), float(values[:, 1].max())
