r"""A report on the lowest and highest curvature that says only what was shown.

The Lanczos runs of `lanczos` are repeated from several starts and with the number of
steps doubled until the values stop moving; the result is compared with finite
differences of the loss itself along the vector, which no differentiation rule enters.

What may be claimed is one-sided. A Rayleigh quotient is never below lambda_min, so

    lambda_min <= theta_low + rounding,

and a negative right-hand side proves negative curvature, converged or not. That no
negative value was found proves nothing, and the report says that. `rounding` stands
for the error of the product: sqrt(n) eps |H|, the size of the rounding error of an
inner product of n numbers (Higham and Mary, SIAM J. Sci. Comput. 2019); with it a
positive semi-definite Hessian in float32 is not taken for a saddle.
"""

import dataclasses
import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree

from prednet_jax.curvature.hvp import Loss, PyTree, hessian_operator
from prednet_jax.curvature.lanczos import (
    Eigenpairs,
    capped_steps,
    rayleigh,
    ritz_pairs,
)

# Half-decades of |h d| / |w|; the smaller ones suit float64, the larger ones float32.
_ALLOWANCE = 0.05  # Of the expected value, beside the estimated error.
_RELATIVE_STEPS = tuple(10.0 ** (-k / 2) for k in range(10))


@dataclasses.dataclass(frozen=True, kw_only=True)
class FiniteDifference:
    """Second difference of the loss along a direction d in the weights.

    Attributes:
        step: h, in units of d.
        curvature: (L(w + h d) - 2 L(w) + L(w - h d)) / h^2.
        error: Estimated error of `curvature`: rounding of the loss and truncation.
        expected: The value it is compared with, a Rayleigh quotient.
        loss: L(w).
        reach: |h d| up to which the second difference stays within the allowance of
            `expected`, on the ladder of steps; 0 where it never is. Beyond it the loss
            curves otherwise: at a kink of a ReLU, all at once.
    """

    step: float
    curvature: float
    error: float
    expected: float
    loss: float
    reach: float

    @property
    def verdict(self) -> str:
        """'agrees', 'disagrees', or 'too noisy' where the error exceeds the value."""
        if not abs(self.expected) > self.error:
            return "too noisy"
        gap = abs(self.curvature - self.expected)
        allowed = self.error + _ALLOWANCE * abs(self.expected)
        return "agrees" if gap <= allowed else "disagrees"


@dataclasses.dataclass(frozen=True, kw_only=True)
class CurvatureReport:
    """Extreme curvature with everything needed to judge it.

    Attributes:
        pairs: Best pairs over all starts (lowest of the low, highest of the high).
        dimension: n, the number of weights.
        steps: Lanczos steps of the last round.
        movement: (low, high): relative change of the best value from half the steps.
        spread: (low, high): relative distance between the best and worst start.
        converged: (low, high): whether the movement is below the tolerance or below
            the rounding.
        rounding: Allowance for rounding in a value, sqrt(n) eps max|theta|.
        finite_difference: Of the loss along the lowest vector.
    """

    pairs: Eigenpairs
    dimension: int
    steps: int
    movement: tuple[float, float]
    spread: tuple[float, float]
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
    def loss(self) -> float:
        """The loss at the weights."""
        return self.finite_difference.loss

    @property
    def upper_bound(self) -> float:
        """An upper bound of lambda_min: the Rayleigh quotient with its rounding."""
        return self.lowest + self.rounding

    @property
    def negative_curvature_proved(self) -> bool:
        """Whether `upper_bound` is negative. False does not mean its absence."""
        return self.upper_bound < 0.0

    @property
    def statement(self) -> str:
        """The claim in plain language; never that there is no negative curvature."""
        residual = float(self.pairs.residuals[0])
        if not self.negative_curvature_proved:
            return (
                f"not found (proves nothing): lowest value {self.lowest:.3g} after "
                f"{self.steps} steps, residual {residual:.1g}, "
                f"rounding {self.rounding:.1g}"
            )
        settled = "" if self.converged[0] else ", not converged: it may lie lower"
        return (
            f"negative curvature proved: lambda_min <= {self.upper_bound:.4g}, an "
            f"eigenvalue within {residual + self.rounding:.1g} of {self.lowest:.4g}"
            f"{settled}"
        )


def certify(
    loss: Loss,
    params: PyTree,
    *,
    key: jax.Array,
    scale: PyTree | None = None,
    steps: int = 40,
    max_steps: int = 160,
    starts: int = 3,
    tolerance: float = 0.05,
) -> CurvatureReport:
    """Searches the extreme curvatures until they settle, and reports what is proved.

    Args:
        loss: Maps a pytree of weights to a scalar, deterministically.
        params: The weights, a pytree of n real numbers of one dtype.
        key: Consumed for the start vectors.
        scale: None, or P for the preconditioned Hessian P^{-1/2} H P^{-1/2}.
        steps: Lanczos steps of the first round, at least 1, capped at n.
        max_steps: No round has more; at least `steps`.
        starts: Number of random start vectors in each round, at least 1.
        tolerance: Relative movement between half the steps and all of them below
            which a value counts as settled, in (0, 1).

    Returns:
        The report, computed on the host (not for use under jit).

    Raises:
        ValueError: If an argument is outside its range, or the loss has no finite
            curvature at these weights.
    """
    if max_steps < steps:
        raise ValueError(f"max_steps={max_steps!r}: expected at least steps={steps!r}")
    if starts < 1:
        raise ValueError(f"starts={starts!r}: expected at least 1")
    if not 0.0 < tolerance < 1.0:
        raise ValueError(f"tolerance={tolerance!r}: expected a number in (0, 1)")
    dimension = sum(jnp.size(leaf) for leaf in jax.tree.leaves(params))
    steps, max_steps = capped_steps(params, steps), capped_steps(params, max_steps)

    eps = float(jnp.finfo(jnp.result_type(*jax.tree.leaves(params))).eps)
    round_key = key
    while True:
        round_key, *start_keys = jax.random.split(round_key, starts + 1)
        runs = [ritz_pairs(loss, params, scale, k, steps=steps) for k in start_keys]
        values = np.array([run.values for run in runs], float)
        halfway = np.array([run.halfway for run in runs], float)
        if not np.isfinite(values).all():
            raise ValueError(
                f"curvature is {values.min(0)[0]} at these weights: expected a loss "
                "with finite second derivatives"
            )
        best = values[:, 0].min(), values[:, 1].max()
        before = halfway[:, 0].min(), halfway[:, 1].max()
        worst = values[:, 0].max(), values[:, 1].min()
        rounding = math.sqrt(dimension) * eps * max(abs(best[0]), abs(best[1]))
        # All n steps span the whole space: there is nothing left to move.
        low, high = (
            steps == dimension
            or abs(best[end] - before[end]) <= max(tolerance * abs(best[end]), rounding)
            for end in (0, 1)
        )
        if (low and high) or steps == max_steps:
            break
        steps = min(2 * steps, max_steps)

    vectors = jnp.stack(
        [
            runs[int(values[:, 0].argmin())].vectors[0],
            runs[int(values[:, 1].argmax())].vectors[1],
        ]
    )
    pairs = rayleigh(loss, params, scale, vectors)
    return CurvatureReport(
        pairs=pairs,
        dimension=dimension,
        steps=steps,
        movement=(_relative(best[0], before[0]), _relative(best[1], before[1])),
        spread=(_relative(best[0], worst[0]), _relative(best[1], worst[1])),
        converged=(low, high),
        rounding=rounding,
        finite_difference=finite_difference(
            loss, params, pairs.vectors[0], scale=scale, expected=float(pairs.values[0])
        ),
    )


def finite_difference(
    loss: Loss,
    params: PyTree,
    vector: PyTree,
    *,
    expected: float,
    scale: PyTree | None = None,
) -> FiniteDifference:
    """Measures the curvature of the loss along a vector without differentiating it.

    A ladder of steps h is tried, from |w| down to 10^-4.5 |w|. Kept is the smallest
    whose rounding error, 8 eps max|L| / h^2, is below a tenth of the expected value
    (the one with the least error where none is): a larger step leaves the
    neighbourhood, which in a network of ReLUs ends at the next kink. The truncation
    error is that of Richardson, a ninth of the change from the next larger step.

    Args:
        loss: Maps a pytree of weights to a scalar.
        params: The weights.
        vector: The direction, in the coordinates of `scale` if that is given.
        expected: The value to compare with.
        scale: None or P; the direction in weights is then P^{-1/2} `vector`.

    Returns:
        The second difference with its estimated error.
    """
    # Float64 on the host: differences of losses, then only a handful of numbers.
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
    # A zero weight vector has no size of its own: steps of order one then.
    norm = jnp.linalg.norm(centre)
    length = jnp.linalg.norm(direction)
    unit = jnp.where(norm > 0.0, norm, 1.0) / length
    steps = unit * jnp.asarray(_RELATIVE_STEPS, centre.dtype)

    def along(step: jax.Array) -> jax.Array:
        return loss(unravel(centre + step * direction))

    offsets = jnp.stack([steps, jnp.zeros_like(steps), -steps])
    values = jax.lax.map(along, offsets.ravel()).reshape(offsets.shape)
    return steps, values, length


def _relative(value: np.floating, other: np.floating) -> float:
    """Distance of two numbers relative to the first; 0 for two zeros."""
    gap = abs(float(value) - float(other))
    if gap == 0.0:
        return 0.0
    return gap / abs(float(value)) if value != 0.0 else math.inf
