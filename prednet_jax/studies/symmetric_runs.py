"""Trainings from a symmetric start; `measure` makes one run and returns its table row.

A run takes the initial weights of its seed, makes their channels twins
(`symmetric_start.symmetrise`), splits these by delta, and trains in the precision of
its arm. The twins are compared after each update.
"""

import functools
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import numpy as np

from prednet_jax import data, errors, keys, noise, process, records
from prednet_jax.config import PredNetConfig
from prednet_jax.studies import symmetric_start
from prednet_jax.training import loop
from prednet_jax.training.trainer import Trainer

# The blocks (`symmetric_start.BLOCKS`) that the twins of each program start with.
PROGRAMS = {"ordinary": "mirrored", "symmetric": "equal"}
ARMS = {
    "float32": None,
    "float64": None,
    "shared": "reduction_order:granularity=shared",
    "tile": "reduction_order:tile={tile}",
    "run": "reduction_order:tile={tile},schedule=run",
    # The noise of part C: an order for each block of 32 x 32 outputs.
    "blocks": "reduction_order",
}
# Arms that are run at delta 0 only.
AT_ZERO = ("float64", "run", "blocks")
# Twins have separated when the asymmetry first exceeds this; fixed before the study.
SEPARATED = 1e-2
# Number of equal parts of a run whose mean losses are recorded.
BINS = 20


class Run(NamedTuple):
    """What identifies a run (not its records on disk: `records.Run`).

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

    Raises:
        UserError: a value is outside what is accepted.
    """

    config: PredNetConfig
    window: int
    updates: int
    tile: int

    def __post_init__(self) -> None:
        errors.whole("window", self.window, 2)
        if errors.whole("updates", self.updates, BINS) % BINS:
            raise errors.UserError(
                f"updates={self.updates}: expected a multiple of {BINS}"
            )
        widths = [self.config.channels[layer] for layer in self.pairs.features]
        widths += [self.config.recurrent[layer] for layer in self.pairs.recurrent]
        errors.whole("tile", self.tile, 1, min(widths) // 2)

    @functools.cached_property
    def pairs(self) -> symmetric_start.Pairs:
        """The layers whose channels are twins."""
        return symmetric_start.all_pairs(self.config)

    def noise(self, arm: str) -> str:
        """The arm's noise spec as text; empty: no noise."""
        return (ARMS[arm] or "").format(tile=self.tile)


def runs(
    programs: list[str], arms: list[str], deltas: list[float], seeds: list[int]
) -> list[Run]:
    """All combinations, seed by seed; arms in `AT_ZERO` have delta 0 only.

    Raises:
        UserError: a program or an arm is unknown.
    """
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
    params, losses, asymmetries, counts = train(run, design, params)
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
    config, pairs = design.config, design.pairs
    process.set_precision("float32")
    params = loop.initial_params(config, run.seed)
    blocks = PROGRAMS[run.program]
    params = symmetric_start.symmetrise(params, config, pairs, blocks=blocks)
    key = keys.stream(run.seed, "probe")
    params = symmetric_start.split(params, config, pairs, run.delta, key)
    dtype = process.set_precision("float64" if run.arm == "float64" else "float32")
    return jax.tree.map(lambda x: jax.numpy.asarray(x, dtype), params)


def train(
    run: Run, design: Design, params: dict
) -> tuple[dict, np.ndarray, np.ndarray, np.ndarray]:
    """Trains from `params`.

    Returns:
        The final weights; and per update, `[updates]`: the loss, the asymmetry, and the
        number of weights that differ from their twins.
    """
    source, schedule = frames(run.seed, design)
    trainer, compare = compiled(design, run.arm)
    state = trainer.init(params)
    values = []
    for after, record in loop.train(trainer, state, source, schedule, seed=run.seed):
        params = after.params
        away, count = compare(params)
        values.append((record.loss, float(away), int(count)))
    losses, asymmetries, counts = np.array(values).T
    return params, losses, asymmetries, counts


def frames(seed: int, design: Design) -> tuple[data.FrameSource, data.Schedule]:
    """The embedded walk of a seed, and the schedule of its updates."""
    config = design.config
    source = data.open_source(
        "walk",
        height=config.height,
        width=config.width,
        channels=config.channels[0],
        seed=seed,
    )
    return source, loop.frame_schedule(
        config, source, window=design.window, updates=design.updates
    )


@functools.cache
def compiled(design: Design, arm: str) -> tuple[Trainer, Callable]:
    """The trainer and the compiled comparison of twins, for all seeds."""
    config, pairs = design.config, design.pairs
    text = design.noise(arm)
    trainer = Trainer(
        config,
        loop.default_optimizer(config, design.updates),
        noise=noise.parse(text) if text else None,
    )

    @jax.jit
    def compare(params: dict) -> tuple[jax.Array, jax.Array]:
        return (
            symmetric_start.asymmetry(params, config, pairs),
            symmetric_start.unequal(params, config, pairs),
        )

    return trainer, compare
