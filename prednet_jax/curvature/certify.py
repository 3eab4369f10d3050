r"""The lowest and highest curvature, and whether negative curvature is proved.

The Lanczos iteration of `hessian` is repeated from several starts, and its number of
steps is doubled until the values stop moving.

The proof is one-sided. A Rayleigh quotient is never below lambda_min, so a negative
theta_low + rounding proves negative curvature, whether Lanczos has converged or not; if
none is found, nothing is proved. `rounding` allows for the error of the Hessian
product: sqrt(n) eps |H|, as of an inner product of n numbers (Higham and Mary, SIAM J.
Sci. Comput. 2019).
"""

import dataclasses
import math

import jax
import jax.numpy as jnp
import numpy as np

from prednet_jax.curvature import hessian
from prednet_jax.curvature.hessian import Eigenpairs, Loss, PyTree
from prednet_jax.errors import UserError, check_int

# A value has settled if the second half of the steps moves it by a smaller fraction.
_SETTLED = 0.05


@dataclasses.dataclass(frozen=True, kw_only=True)
class Certificate:
    """The extreme curvatures over all starts, with the evidence needed to judge them.

    Attributes:
        dimension: n, the number of weights.
        steps: Lanczos steps of the last round.
        converged: whether the second half of the steps moved the lowest and the highest
            value by less than 5 % or less than the rounding.
        rounding: allowance for rounding in a value, sqrt(n) eps max|theta|.
    """

    pairs: Eigenpairs
    dimension: int
    steps: int
    converged: tuple[bool, bool]
    rounding: float

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
    """Searches for the extreme curvatures and reports which bounds are proved.

    Arguments and errors are as in `extreme_eigenpairs`. `steps` are doubled where a
    value has not settled, and `starts` random vectors are tried. The function runs on
    the host and cannot be jitted. A loss without finite curvature is also a UserError.
    """
    check_int("starts", starts, 1)
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
    return Certificate(
        pairs=hessian.rayleigh(loss, params, scale, vectors),
        dimension=dimension,
        steps=products,
        converged=(low, high),
        rounding=rounding,
    )


def _outermost(values: np.ndarray) -> tuple[float, float]:
    """Returns the lowest low and the highest high value of `[starts, 2]`."""
    return float(values[:, 0].min()), float(values[:, 1].max())
