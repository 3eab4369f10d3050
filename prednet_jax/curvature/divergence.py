r"""Growth of a tiny difference along training: the finite-time Lyapunov exponent.

Two trainings with the same step function start from weights that differ by one unit in
the last place. d_t is the L2 distance of their weights after update t. Over a range of
updates the exponent per update is

    exponent = (ln d_last - ln d_first) / (last - first) = mean of ln(d_t / d_{t-1}).

If it is positive, every rounding error is amplified. It does not say whether the loss
gets better or worse. The confidence interval is Student's, with the Newey-West variance
of a mean (Bartlett weights), since successive growths are dependent.

References:
    Benettin et al., Meccanica 15, 1980 (exponents from two trajectories).
    Newey and West, Econometrica 55, 1987.
"""

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import scipy.stats

from prednet_jax.errors import UserError

PyTree = Any


class Exponent(NamedTuple):
    """A finite-time Lyapunov exponent per update, its 95 % interval and its range."""

    rate: float
    low: float
    high: float
    first: int
    last: int


def perturb_one_ulp(params: PyTree, key: jax.Array) -> PyTree:
    """Moves every weight to a neighbouring number, up or down at random.

    Args:
        params: A pytree of floating arrays.
        key: Consumed for the signs.

    Returns:
        A pytree like `params`. A zero stays zero: its neighbours are denormal numbers,
        which the processor flushes to zero.
    """
    leaves, treedef = jax.tree.flatten(params)
    moved = []
    for leaf, leaf_key in zip(leaves, jax.random.split(key, len(leaves)), strict=True):
        up = jax.random.bernoulli(leaf_key, shape=leaf.shape)
        towards = jnp.where(up, jnp.inf, -jnp.inf).astype(leaf.dtype)
        moved.append(jnp.where(leaf == 0.0, leaf, jnp.nextafter(leaf, towards)))
    return jax.tree.unflatten(treedef, moved)


def weight_distance(a: PyTree, b: PyTree) -> jax.Array:
    """Computes the L2 distance of two pytrees of floating arrays, a scalar."""
    squares = jax.tree.map(lambda x, y: jnp.sum(jnp.square(x - y)), a, b)
    return jnp.sqrt(sum(jax.tree.leaves(squares)))


def log_distances(
    step: Callable[[Any, Any], Any],
    start_a: Any,
    start_b: Any,
    batches: Iterable[Any],
    *,
    step_b: Callable[[Any, Any], Any] | None = None,
    weights: Callable[[Any], PyTree] = lambda state: state,
) -> np.ndarray:
    """Trains twice on the same batches and follows the distance of the weights.

    Args:
        step: One update, `step(state, batch) -> state`; should be jitted.
        start_a: State of the first training.
        start_b: State of the second training.
        batches: The T batches in order, one per update.
        step_b: Step of the second training; None: `step`.
        weights: Picks the weights from a state.

    Returns:
        Natural logarithms [T + 1] of the L2 distance before the first update and after
        each update; -inf where the weights are equal.
    """
    distance = jax.jit(weight_distance)
    a, b = start_a, start_b
    distances = [distance(weights(a), weights(b))]
    for batch in batches:
        a, b = step(a, batch), (step_b or step)(b, batch)
        distances.append(distance(weights(a), weights(b)))
    with np.errstate(divide="ignore"):
        return np.log(np.array([float(d) for d in distances]))


def saturation(
    log_distance: np.ndarray, travelled: np.ndarray, *, fraction: float = 0.1
) -> int:
    """Finds where the distance stops to grow exponentially.

    Args:
        log_distance: ln d_t [T + 1].
        travelled: L2 distance [T + 1] of the weights from their start.
        fraction: d_t saturates near this fraction of the distance travelled.

    Returns:
        The last t such that d_s < fraction * travelled_s for all s from 1 to t.
    """
    with np.errstate(divide="ignore"):
        beyond = log_distance[1:] >= np.log(fraction) + np.log(travelled[1:])
    return int(np.argmax(beyond)) if beyond.any() else len(log_distance) - 1


def fit_exponent(
    log_distance: np.ndarray, *, first: int = 0, last: int | None = None
) -> Exponent:
    """Estimates the finite-time Lyapunov exponent over a range of updates.

    Args:
        log_distance: ln d_t [T + 1], t from 0, the result of `log_distances`.
        first: First t of the range.
        last: Last t of the range; None: T. The range should end before the distance
            saturates (see `saturation`).

    Returns:
        The exponent per update, with its 95 % interval and range.

    Raises:
        UserError: If the range has fewer than 4 updates, or if a distance in it is zero
            or not finite.
    """
    log_distance = np.asarray(log_distance, float)
    last = len(log_distance) - 1 if last is None else last
    if not 0 <= first <= last - 4 or last >= len(log_distance):
        raise UserError(
            f"range {first}..{last}: expected at least 4 updates within "
            f"0..{len(log_distance) - 1}"
        )
    window = log_distance[first : last + 1]
    if not np.isfinite(window).all():
        bad = first + int(np.argmin(np.isfinite(window)))
        raise UserError(
            f"ln d is {log_distance[bad]} at update {bad}: expected finite values "
            f"within {first}..{last}"
        )
    growths = np.diff(window)
    rate = float(growths.mean())
    quantile = scipy.stats.t.ppf(0.975, len(growths) - 1)
    half_width = float(quantile * _standard_error(growths))
    return Exponent(rate, rate - half_width, rate + half_width, first, last)


def _standard_error(x: np.ndarray) -> float:
    """Newey-West standard error of the mean of x [n], lag 4 (n / 100)^(2/9)."""
    n = len(x)
    lag = min(n - 1, int(4.0 * (n / 100.0) ** (2.0 / 9.0)))
    centred = x - x.mean()
    products = np.array([centred[k:] @ centred[: n - k] for k in range(lag + 1)])
    weights = 2.0 * (1.0 - np.arange(lag + 1) / (lag + 1.0))
    weights[0] = 1.0
    # Divided by n - 1, not n, so that it is exact for independent values.
    return float(np.sqrt(max(weights @ products, 0.0) / (n - 1) / n))
