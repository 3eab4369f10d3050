r"""Part A of the study: trainings from a symmetric start, and their linear theory.

A run takes the initial weights of its seed, makes their channels twins
(`symmetric_start.symmetrise`), splits these by delta, and trains in the precision of
its arm. The twins are compared after each update.

*How small a split has to be for noise to matter.* Near the symmetric start the
difference D = W - s W grows by a factor r per update along one direction u. Noise adds
to it at each update. All of it together acts like a split of

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

import functools
import itertools
import math
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import numpy as np

from prednet_jax import data, errors, escape, keys, noise, process, records, tasks
from prednet_jax.config import PredNetConfig
from prednet_jax.studies import symmetric_start
from prednet_jax.training import loop, truncated
from prednet_jax.training.trainer import Trainer

NETWORK = PredNetConfig(channels=(3, 4, 4), r_channels=(2, 4, 4), height=24, width=32)
# The blocks (`symmetric_start.BLOCKS`) that the twins of each program start with.
PROGRAMS = {"ordinary": "mirrored", "symmetric": "equal"}
ARMS = {
    "float32": "",
    "float64": "",
    "shared": "reduction_order:granularity=shared",
    "tile": "reduction_order:tile={tile}",
    "run": "reduction_order:tile={tile},schedule=run",
    # The noise of part C: an order for each block of 32 x 32 outputs.
    "blocks": "reduction_order",
}
DELTAS = (0.0, 1e-8, 1e-7, 1e-6, 1e-4, 1e-1)
# Arms that are run at delta 0 only.
AT_ZERO = ("float64", "run", "blocks")
# Twins have separated when the asymmetry first exceeds this; fixed before the study.
SEPARATED = 1e-2
# Number of equal parts of a run whose mean losses are recorded.
BINS = 20
_FIRST_DECAY = 0.9  # of chainer_adam


class Run(NamedTuple):
    """What identifies a run.

    Attributes:
        program: one of `PROGRAMS`.
        arm: one of `ARMS`.
        delta: relative split of the twins, from 0 to below 1.
        seed: root seed of weights, split, data and noise.
    """

    program: str
    arm: str
    delta: float
    seed: int


@dataclass(frozen=True, kw_only=True)
class Design:
    """What all runs of a table share.

    Attributes:
        config: the network; every even width is paired.
        window: transitions per update, >= 2.
        updates: number of updates of a run, a multiple of `BINS`.
        tile: edge of a tile of the noise. At most half of the smallest paired width,
            since twins in one tile would share an order of sums.
    """

    config: PredNetConfig = NETWORK
    window: int = 10
    updates: int = 3000
    tile: int = 1

    def __post_init__(self) -> None:
        errors.whole("window", self.window, 2)
        if errors.whole("updates", self.updates, BINS) % BINS:
            raise errors.UserError(
                f"updates={self.updates}: expected a multiple of {BINS}"
            )
        widths = symmetric_start.paired_widths(self.config)
        errors.whole("tile", self.tile, 1, min(widths) // 2)

    def noise(self, arm: str) -> str:
        """The arm's noise spec as text; empty: no noise."""
        return ARMS[arm].format(tile=self.tile)


def runs(
    programs: list[str], arms: list[str], deltas: list[float], seeds: list[int]
) -> list[Run]:
    """All combinations, seed by seed; arms in `AT_ZERO` have delta 0 only."""
    for program in programs:
        errors.one_of("program", program, tuple(PROGRAMS))
    for arm in arms:
        errors.one_of("arm", arm, tuple(ARMS))
    return [
        Run(program, arm, delta, seed)
        for seed in seeds
        for program in programs
        for arm in arms
        for delta in deltas
        if delta == 0 or arm not in AT_ZERO
    ]


def measure(run: Run, design: Design) -> dict[str, Any]:
    """Makes one run.

    Returns:
        Its row: the fields of `Run`; `separated_at` and `unequal_at`, the first updates
        with an asymmetry above `SEPARATED` and with any difference in bits (None:
        never); `final_loss`, the mean over the last fifth of the updates; for each of
        the `BINS` parts the mean loss and the asymmetry at its end; fingerprints of the
        weights; seconds.
    """
    started = time.perf_counter()
    params = start(run, design)
    initial = records.fingerprint(params)
    values = []
    state = _trainer(design, run.arm).init(params)
    for after, record in _train(run, design, state):
        params = after.params
        away, count = _compare(design)(params)
        values.append((record.loss, float(away), int(count)))
    losses, asymmetries, counts = np.array(values).T
    means = losses.reshape(BINS, -1).mean(axis=1)
    ends = asymmetries.reshape(BINS, -1)[:, -1]
    return {
        **run._asdict(),
        "noise": design.noise(run.arm),
        "updates": len(losses),
        "separated_at": first(asymmetries > SEPARATED),
        "unequal_at": first(counts > 0),
        "unequal_weights": int(counts[-1]),
        "final_loss": float(means[-BINS // 5 :].mean()),
        **{f"loss_{i:02d}": float(x) for i, x in enumerate(means, 1)},
        **{f"asymmetry_{i:02d}": float(x) for i, x in enumerate(ends, 1)},
        "initial_params_sha256": initial,
        "final_params_sha256": records.fingerprint(params),
        "seconds": round(time.perf_counter() - started, 1),
    }


def first(happened: np.ndarray) -> int | None:
    """Number, from 1, of the first update at which it happened; None: never."""
    return int(np.argmax(happened)) + 1 if happened.any() else None


def start(run: Run, design: Design) -> dict:
    """The initial weights of a run; also sets JAX to the precision of its arm."""
    process.set_precision("float32")
    params = symmetric_start.symmetrise(
        loop.initial_params(design.config, run.seed),
        design.config,
        blocks=PROGRAMS[run.program],
    )
    key = keys.stream(run.seed, "probe")
    params = symmetric_start.split(params, design.config, run.delta, key)
    dtype = process.set_precision("float64" if run.arm == "float64" else "float32")
    return jax.tree.map(lambda x: jax.numpy.asarray(x, dtype), params)


def _train(
    run: Run,
    design: Design,
    state: truncated.TrainState,
    *,
    noise_seed: int | None = None,
) -> Iterator[tuple[truncated.TrainState, Any]]:
    """States and records of a run's updates, on the embedded walk of its seed."""
    config = design.config
    source = data.open_source(
        "walk",
        height=config.height,
        width=config.width,
        channels=config.channels[0],
        seed=run.seed,
    )
    schedule = loop.frame_schedule(
        config, source, window=design.window, updates=design.updates
    )
    seed = run.seed if noise_seed is None else noise_seed
    return loop.train(_trainer(design, run.arm), state, source, schedule, seed=seed)


@functools.cache
def _trainer(design: Design, arm: str) -> Trainer:
    """The trainer of an arm, for all seeds."""
    text = design.noise(arm)
    return Trainer(
        design.config,
        tasks.of(design.config).optimizer(design.updates),
        noise=noise.parse(text) if text else None,
    )


@functools.cache
def _compare(design: Design) -> Callable[[dict], tuple[jax.Array, jax.Array]]:
    """The compiled comparison of twins: asymmetry, and number of unequal weights."""
    return jax.jit(
        lambda params: (
            symmetric_start.asymmetry(params, design.config),
            symmetric_start.unequal(params, design.config),
        )
    )


def theory(
    design: Design,
    seed: int,
    *,
    delta: float = 1e-6,
    at: int = 400,
    until: int = 600,
    draws: int = 16,
) -> dict[str, float]:
    """The largest random split at which noise matters, from trainings by the theory.

    Args:
        design: the network and its training.
        seed: root seed.
        delta: split of the run from which r and u are measured.
        at: update after which the noisy update is made; r is measured from here on.
        until: update up to which r is measured.
        draws: number of noisy updates in the order of tiles, at least 2.

    Returns:
        `seed`; `rate`, ln r; and as asymmetries `kick`, `c_sigma`, `useful` (the split
        below which noise saves at least one update) and `initial` (of random weights);
        `orders`, log10 of `initial` over `useful`.

    Raises:
        UserError: a number is outside what is accepted, the split does not grow, or
            the twins have separated by `until`.
    """
    errors.whole("at", at, 1, design.updates - 1)
    errors.whole("until", until, at + 1, design.updates)
    quiet, noisy = (Run("symmetric", arm, 0.0, seed) for arm in ("float32", "tile"))
    begin, end = _states(quiet._replace(delta=delta), design, (at, until))
    random = loop.initial_params(design.config, seed)
    before, after, initial = (
        float(_compare(design)(params)[0])
        for params in (begin.params, end.params, random)
    )
    if not before < after < SEPARATED:
        raise errors.UserError(
            f"at={at}, until={until}: asymmetry {before:.1e} and {after:.1e}; expected "
            f"it to grow, and to stay below {SEPARATED}"
        )
    rate = math.log(after / before) / (until - at)
    u = _difference(begin.params, design)
    (twins,) = _states(quiet, design, (at,))
    kicks = [
        _difference(
            next(_train(noisy, design, twins, noise_seed=draw))[0].params, design
        )
        for draw in range(draws)
    ]
    along = np.stack(kicks) @ u / np.linalg.norm(u)
    # Two twins have opposite differences, so half of the nonzero ones are independent.
    directions = np.count_nonzero(u) / 2
    size = math.sqrt(directions) / np.linalg.norm(records.vector(twins.params))
    kick = float(np.std(along, ddof=1) * size)
    # Adam's growth at the measured rate; its `kick` is 1, since kicks are measured too.
    r = math.exp(rate)
    gap = r - _FIRST_DECAY / r
    growth = escape.Growth(math.expm1(rate), gap, _FIRST_DECAY, kick=1.0)
    c_sigma = escape.noise_projection(kick, growth)
    useful = escape.useful_projection(c_sigma, growth)
    return {
        "seed": seed,
        "rate": rate,
        "kick": kick,
        "c_sigma": c_sigma,
        "useful": useful,
        "initial": initial,
        "orders": math.log10(initial / useful) if useful else math.inf,
    }


def _states(
    run: Run, design: Design, stops: tuple[int, ...]
) -> list[truncated.TrainState]:
    """The states of a run after the updates `stops`, in order."""
    state = _trainer(design, run.arm).init(start(run, design))
    steps = itertools.islice(_train(run, design, state), max(stops))
    return [after for after, record in steps if record.update in stops]


def _difference(params: dict, design: Design) -> np.ndarray:
    """W - s W as one vector, in double precision."""
    other = symmetric_start.exchange(params, design.config)
    return records.vector(params) - records.vector(other)
