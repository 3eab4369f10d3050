r"""How small a split has to be for noise to matter, by the linear theory of escape.

Near the symmetric start the difference D = W - s W (see `symmetric_start`) grows by a
factor r per update along one direction u. Noise adds to it at each update. All of it
together acts like a split of

    c_sigma = 0.674 kick / ((r - b1) sqrt(1 - r^-2)),

with kick the standard deviation of what one noisy update adds along u, and b1 Adam's
first decay (`prednet_jax.escape`). Noise saves at least one update only if the split is
below c_sigma / sqrt(r^2 - 1). All three quantities are measured:

    r      growth of the asymmetry without noise, from a small split
    u      D of that run, whose largest part grows along u
    kick   one update under noise, drawn several times, from weights that are twins

Results are expressed as the asymmetry (|D| over the norm of the weights) of a random
split. u is one of the n independent directions of such a split, so the projection on u
is smaller by sqrt(n). Since r and u change while the network learns, the results are
orders of magnitude.
"""

import itertools
import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from prednet_jax import errors, escape, records
from prednet_jax.studies import symmetric_runs, symmetric_start
from prednet_jax.studies.symmetric_runs import Design, Run
from prednet_jax.training import loop, truncated

_FIRST_DECAY = 0.9  # of chainer_adam


class Usefulness(NamedTuple):
    """The largest random split at which noise matters; splits are asymmetries.

    Attributes:
        seed: root seed of the run.
        rate: ln r, growth of the asymmetry per update.
        kick: what one noisy update adds along u, as a random split.
        c_sigma: the split that acts like the noise of all updates.
        useful: the split below which noise saves at least one update.
        initial: asymmetry of the ordinary random weights of this seed.
        orders: log10 of `initial` over `useful`.
    """

    seed: int
    rate: float
    kick: float
    c_sigma: float
    useful: float
    initial: float
    orders: float


def usefulness(
    design: Design,
    seed: int,
    *,
    arm: str = "tile",
    delta: float = 1e-6,
    at: int = 400,
    until: int = 600,
    draws: int = 16,
) -> Usefulness:
    """Measures r, u and kick from trainings of `until` updates.

    Args:
        design: the network and its training.
        seed: root seed.
        arm: the arm with the noise.
        delta: split of the run from which r and u are measured.
        at: update after which the noisy update is made; r is measured from here on.
        until: update up to which r is measured.
        draws: number of noisy updates, at least 2.

    Raises:
        UserError: a number is outside what is accepted, the split does not grow, or
            the twins have separated by `until`.
    """
    errors.whole("at", at, 1, design.updates - 1)
    errors.whole("until", until, at + 1, design.updates)
    errors.whole("draws", draws, 2)
    away = _compare(design)
    begin, end = _states(design, Run("symmetric", "float32", delta, seed), (at, until))
    before, after = away(begin.params), away(end.params)
    if not before < after < symmetric_runs.SEPARATED:
        raise errors.UserError(
            f"at={at}, until={until}: asymmetry {before:.1e} and {after:.1e}; expected "
            f"it to grow, and to stay below {symmetric_runs.SEPARATED}"
        )
    rate = math.log(after / before) / (until - at)
    u = _difference(begin.params, design)
    (twins,) = _states(design, Run("symmetric", "float32", 0.0, seed), (at,))
    kicks = _kicks(design, twins, seed, arm, draws) @ u / np.linalg.norm(u)
    # Two twins have opposite differences, so half of the nonzero ones are independent.
    directions = np.count_nonzero(u) / 2
    kick = float(
        np.std(kicks, ddof=1)
        * math.sqrt(directions)
        / np.linalg.norm(records.vector(twins.params))
    )
    growth = _growth(rate)
    c_sigma = escape.noise_projection(kick, growth)
    useful = escape.useful_projection(c_sigma, growth)
    initial = away(loop.initial_params(design.config, seed))
    orders = math.log10(initial / useful) if useful else math.inf
    return Usefulness(seed, rate, kick, c_sigma, useful, initial, orders)


def _growth(rate: float) -> escape.Growth:
    """Adam's growth at a measured rate; `kick` is 1, since kicks are measured too."""
    r, decay = math.exp(rate), _FIRST_DECAY
    return escape.Growth(math.expm1(rate), r - decay / r, decay, kick=1.0)


def _compare(design: Design) -> Callable[[dict], float]:
    """The function that measures the asymmetry of weights."""
    _, compare = symmetric_runs.compiled(design, "float32")
    return lambda params: float(compare(params)[0])


def _states(
    design: Design, run: Run, stops: tuple[int, ...]
) -> list[truncated.TrainState]:
    """The states of a run after the updates `stops`, in order."""
    trainer, _ = symmetric_runs.compiled(design, run.arm)
    state = trainer.init(symmetric_runs.start(run, design))
    source, schedule = symmetric_runs.frames(run.seed, design)
    steps = loop.train(trainer, state, source, schedule, seed=run.seed)
    return [
        after
        for after, record in itertools.islice(steps, max(stops))
        if record.update in stops
    ]


def _kicks(
    design: Design, twins: truncated.TrainState, seed: int, arm: str, draws: int
) -> np.ndarray:
    """W - s W after one noisy update of twins, `[draws, weights]`."""
    trainer, _ = symmetric_runs.compiled(design, arm)
    source, schedule = symmetric_runs.frames(seed, design)
    kicks = []
    for draw in range(draws):
        # This seed is for the noise only; frames and weights are those of the run.
        after, _ = next(loop.train(trainer, twins, source, schedule, seed=draw))
        kicks.append(_difference(after.params, design))
    return np.stack(kicks)


def _difference(params: dict, design: Design) -> np.ndarray:
    """W - s W as one vector, in double precision."""
    other = symmetric_start.exchange(params, design.config, design.pairs)
    return records.vector(params) - records.vector(other)
