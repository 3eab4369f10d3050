r"""The lowest and highest curvature, with a statement of what was proved and no more.

The Lanczos runs of `lanczos` are repeated from several starts and with the number of
steps doubled until the values stop moving; the result is compared with finite
differences of the loss itself along the vector, which no differentiation rule enters.

What may be claimed is one-sided. A Rayleigh quotient is never below lambda_min, so

    lambda_min <= theta_low + rounding,

and a negative right-hand side proves negative curvature, converged or not. That no
negative value was found proves nothing, and the statement says that. `rounding` stands
for the error of the product: sqrt(n) eps |H|, the size of the rounding error of an
inner product of n numbers (Higham and Mary, SIAM J. Sci. Comput. 2019); with it a
positive semi-definite Hessian in float32 is not taken for a saddle.
"""

import dataclasses
import math

import jax
import jax.numpy as jnp
import numpy as np

from prednet_jax.curvature.finite_difference import (
    FiniteDifference,
    finite_difference,
)
from prednet_jax.curvature.hvp import Loss, PyTree
from prednet_jax.curvature.lanczos import (
    Eigenpairs,
    capped_steps,
    rayleigh,
    ritz_pairs,
)
from prednet_jax.errors import UserError, open_unit, whole


@dataclasses.dataclass(frozen=True, kw_only=True)
class Certificate:
    """Extreme curvature with everything needed to judge it.

    Pairs are (low, high).

    Attributes:
        pairs: Best pairs over all starts (lowest of the low, highest of the high).
        dimension: n, the number of weights.
        steps: Lanczos steps of the last round.
        movement: Relative change of the best value from half the steps.
        spread: Relative distance between the best and worst start.
        converged: Whether the movement is below the tolerance or below the rounding.
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
) -> Certificate:
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
        Computed on the host (not for use under jit).

    Raises:
        UserError: If an argument is outside its range, or the loss has no finite
            curvature at these weights.
    """
    if max_steps < steps:
        raise UserError(f"max_steps={max_steps!r}: expected at least steps={steps!r}")
    whole("starts", starts, 1)
    open_unit("tolerance", tolerance)
    dimension = sum(jnp.size(leaf) for leaf in jax.tree.leaves(params))
    steps, max_steps = capped_steps(params, steps), capped_steps(params, max_steps)
    eps = float(jnp.finfo(jnp.result_type(*jax.tree.leaves(params))).eps)
    round_key = key
    while True:
        round_key, *start_keys = jax.random.split(round_key, starts + 1)
        runs = [ritz_pairs(loss, params, scale, k, steps=steps) for k in start_keys]
        values = np.array([run.values for run in runs], float)
        if not np.isfinite(values).all():
            raise UserError(
                f"curvature is {values.min(0)[0]} at these weights: expected a loss "
                "with finite second derivatives"
            )
        best = _outermost(values)
        before = _outermost(np.array([run.halfway for run in runs], float))
        rounding = math.sqrt(dimension) * eps * max(map(abs, best))
        # All n steps span the whole space: there is nothing left to move.
        low, high = (
            steps == dimension or abs(now - then) <= max(tolerance * abs(now), rounding)
            for now, then in zip(best, before, strict=True)
        )
        if (low and high) or steps == max_steps:
            break
        steps = min(2 * steps, max_steps)

    lowest, highest = int(values[:, 0].argmin()), int(values[:, 1].argmax())
    vectors = jnp.stack([runs[lowest].vectors[0], runs[highest].vectors[1]])
    pairs = rayleigh(loss, params, scale, vectors)
    worst = float(values[:, 0].max()), float(values[:, 1].min())
    return Certificate(
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


def _outermost(values: np.ndarray) -> tuple[float, float]:
    """The lowest of the low and the highest of the high values `[starts, 2]`."""
    return float(values[:, 0].min()), float(values[:, 1].max())


def _relative(value: float, other: float) -> float:
    """Distance of two numbers relative to the first; 0 for two zeros."""
    gap = abs(value - other)
    if gap == 0.0:
        return 0.0
    return gap / abs(value) if value != 0.0 else math.inf
