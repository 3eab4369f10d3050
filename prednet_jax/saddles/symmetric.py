r"""Trains PredNet from a saddle that a symmetry makes, and keeps a table of the runs.

Equal hidden units (twins) have equal gradients, so in exact arithmetic gradient
descent, momentum and Adam keep them equal for ever (Fukumizu and Amari, Neural Networks
13(3), 2000). Let s exchange the twins, channel i with channel i + n/2, in all paired
layers at once: in all even widths but the frame's. With W the weights, f the loss,

    f(s W) = f(W),   s s W = W,   grad f (s W) = s grad f (W).

W = s W is the symmetric start. A kernel from paired channels to paired channels then
has four blocks [[P, Q], [Q, P]], and f depends on P + Q only. Two kinds of blocks,
which training keeps, give the same function but different arithmetic:

    equal     P = Q: a unit adds the same terms as its twin, in the same order. If a
              program rounds all columns in the same way, twins stay equal bit for bit.
    mirrored  P != Q: a unit adds the same terms as its twin in another order, so
              rounding separates the twins.

A run makes the channels of its seed's initial weights twins, splits these by delta,
and trains in the precision of its arm. A run that never separates counts as separating
one update after the last.
"""

import functools
import itertools
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree

from prednet_jax import data, errors, files, noise, process, records, tasks
from prednet_jax.config import PredNetConfig
from prednet_jax.training import keys, loop
from prednet_jax.training.trainer import Trainer

NETWORK = PredNetConfig(channels=(3, 4, 4), r_channels=(2, 4, 4), height=24, width=32)
BLOCKS = ("equal", "mirrored")
#: The blocks that the twins of each program start with.
PROGRAMS = {"ordinary": "mirrored", "symmetric": "equal"}
#: The noise of each arm. A tile of one output gives twins different orders; `blocks` is
#: the noise of part C, an order for each block of 32 x 32 outputs.
ARMS = {
    "float32": "",
    "float64": "",
    "shared": "reduction_order:granularity=shared",
    "tile": "reduction_order:tile=1",
    "run": "reduction_order:tile=1,schedule=run",
    "blocks": "reduction_order",
}
DELTAS = (0.0, 1e-8, 1e-7, 1e-6, 1e-4, 1e-1)
#: Arms that are run at delta 0 only.
AT_ZERO = ("float64", "run", "blocks")
#: Twins have separated when the asymmetry first exceeds this; fixed before the study.
TWINS_SEPARATED = 1e-2
#: Number of equal parts of a run whose mean losses are recorded.
BINS = 20
Params = Mapping[str, Mapping[str, jax.Array]]


class SaddleRun(NamedTuple):
    """The identity of a run; `seed` determines weights, split, data and noise."""

    program: str
    arm: str
    delta: float
    seed: int


@dataclass(frozen=True, kw_only=True)
class SaddleDesign:
    """The settings that all runs of a table share; `updates` is at least `BINS`."""

    config: PredNetConfig = NETWORK
    window: int = 10
    updates: int = 3000

    def __post_init__(self) -> None:
        errors.check_int("updates", self.updates, BINS)


def runs(
    programs: list[str], arms: list[str], deltas: list[float], seeds: list[int]
) -> list[SaddleRun]:
    """Returns all combinations, seed by seed; arms in `AT_ZERO` have delta 0 only."""
    named: dict[str, list[Any]] = {"programs": programs, "arms": arms}
    named |= {"deltas": deltas, "seeds": seeds}
    for name, values in named.items():
        errors.each_once(name, values)
    asked = [("program", p, PROGRAMS) for p in programs]
    for name, value, accepted in asked + [("arm", arm, ARMS) for arm in arms]:
        errors.one_of(name, value, tuple(accepted))
    for delta in deltas:
        _check_delta(delta)
    return [
        SaddleRun(program, arm, delta, seed)
        for seed in seeds
        for program in programs
        for arm in arms
        for delta in deltas
        if delta == 0 or arm not in AT_ZERO
    ]


def _check_delta(delta: float) -> None:
    errors.expect(0 <= delta < 1, "delta", delta, "a number from 0 to below 1")


def measure(
    run: SaddleRun,
    design: SaddleDesign,
    see: Callable[[int, float], None] = lambda *_: None,
) -> dict[str, Any]:
    """Executes one run, on the embedded walk of its seed, and returns its row.

    `see` is called with the number of each update and its loss.

    `separated_at` and `unequal_at` are the first updates with an asymmetry above
    `TWINS_SEPARATED` and with any difference in bits, or None. `final_loss` is the mean
    of the last fifth. Each of the `BINS` parts of the training has its mean loss and
    its final asymmetry.
    """
    started = time.perf_counter()
    config, params = design.config, start(run, design)
    size = tasks.frame_size(tasks.of(config))
    source = data.open_source("walk", **size, seed=run.seed)
    schedule = loop.frame_schedule(
        config, source, window=design.window, updates=design.updates
    )
    trainer, initial = _trainer(design, run.arm), records.fingerprint(params)
    state, values = trainer.init(params), []
    for after, record in loop.train(trainer, state, source, schedule, seed=run.seed):
        params = after.params
        away, count = _compare(design)(params)
        values.append((record.loss, float(away), int(count)))
        see(record.update, record.loss)
    losses, asymmetries, counts = np.array(values).T
    edges = [round(part * len(losses) / BINS) for part in range(BINS + 1)]
    means = np.array([losses[i:j].mean() for i, j in itertools.pairwise(edges)])
    ends = asymmetries[np.array(edges[1:]) - 1]
    return {
        **run._asdict(),
        "noise": ARMS[run.arm],
        "updates": len(losses),
        "separated_at": _first(asymmetries > TWINS_SEPARATED),
        "unequal_at": _first(counts > 0),
        "unequal_weights": int(counts[-1]),
        "final_loss": float(losses[edges[-1 - BINS // 5] :].mean()),
        **{f"loss_{i:02d}": float(x) for i, x in enumerate(means, 1)},
        **{f"asymmetry_{i:02d}": float(x) for i, x in enumerate(ends, 1)},
        "initial_params_sha256": initial,
        "final_params_sha256": records.fingerprint(params),
        "seconds": round(time.perf_counter() - started, 1),
    }


def _first(happened: np.ndarray) -> int | None:
    """Returns the number, from 1, of the first update at which it happened, or None."""
    return int(np.argmax(happened)) + 1 if happened.any() else None


def start(run: SaddleRun, design: SaddleDesign) -> dict:
    """Returns the initial weights of a run, and sets JAX to its precision."""
    process.set_precision("float32")
    config = design.config
    key = keys.derive(run.seed, "probe")
    params = loop.initial_params(config, run.seed)
    params = symmetrise(params, config, blocks=PROGRAMS[run.program])
    params = split(params, config, run.delta, key)
    dtype = process.set_precision("float64" if run.arm == "float64" else "float32")
    return jax.tree.map(lambda x: jnp.asarray(x, dtype), params)


@functools.cache
def _trainer(design: SaddleDesign, arm: str) -> Trainer:
    return Trainer(
        design.config,
        tasks.of(design.config).optimizer(design.updates),
        noise=noise.parse(ARMS[arm]) if ARMS[arm] else None,
    )


@functools.cache
def _compare(design: SaddleDesign) -> Callable[[dict], tuple[jax.Array, jax.Array]]:
    config = design.config
    return jax.jit(lambda params: (asymmetry(params, config), unequal(params, config)))


class SaddleRow(NamedTuple):
    """The outcome of one run: the fields of `SaddleRun`, and its end.

    `equal` is whether every weight always had the same bits as its twin. `loss` is the
    mean over the last fifth of the updates. `separated_at` is `updates + 1` if the
    twins never separated.
    """

    program: str
    arm: str
    delta: float
    seed: int
    separated_at: int
    equal: bool
    loss: float
    updates: int


def done(path: Path) -> set[SaddleRun]:
    """Returns the finished runs of runs.csv; a diverged run counts as finished."""
    return {SaddleRun(*row[:4]) for row in _rows(path)}


def read(path: Path) -> list[SaddleRow]:
    """Reads runs.csv; a duplicate or diverged row is a UserError."""
    rows = _rows(path)
    if diverged := [row for row in rows if not np.isfinite(row.loss)]:
        raise errors.UserError(
            f"{path}: {diverged[0]} diverged; expected finite losses"
        )
    names = [row[:4] for row in rows]
    if twice := {name for name in names if names.count(name) > 1}:
        raise errors.UserError(f"{path}: {sorted(twice)} twice; expected one row each")
    return rows


def _rows(path: Path) -> list[SaddleRow]:
    wanted = "; expected the rows that symmetric_start.py wrote"
    with files.broken_as(f"{path}: a row that cannot be read", wanted):
        return [
            SaddleRow(
                program=row["program"],
                arm=row["arm"],
                delta=float(row["delta"]),
                seed=int(row["seed"]),
                separated_at=int(row["separated_at"] or int(row["updates"]) + 1),
                equal=not row["unequal_at"],
                loss=float(row["final_loss"]),
                updates=int(row["updates"]),
            )
            for row in records.read_csv(path)
        ]


def exchange(params: Params, config: PredNetConfig) -> dict:
    """Returns the weights with all twins exchanged; the network computes the same."""

    def exchanged(x: jax.Array, orders: dict[int, np.ndarray]) -> jax.Array:
        for axis, order in orders.items():
            x = jnp.take(x, order, axis=axis)
        return x

    return _mapped(exchanged, params, config)


def symmetrise(params: Params, config: PredNetConfig, *, blocks: str = "equal") -> dict:
    """Makes the channels of every pair twins, bit for bit.

    Both channels get the incoming weights of the first, and the mean of both channels'
    outgoing weights, so that the inputs of the next layer keep their variance. Channels
    that are twins already keep their bits. With `blocks` `mirrored`, D is added to the
    blocks P and -D to the blocks Q of kernels between paired channels, with D the part
    of `params` that has these signs.
    """
    errors.one_of("blocks", blocks, BLOCKS)

    def paired(x: jax.Array, orders: dict[int, np.ndarray]) -> jax.Array:
        *inputs, (last, outputs) = orders.items()
        y = jnp.take(x, np.minimum(outputs, np.arange(len(outputs))), axis=last)
        for axis, order in inputs:
            # Addition commutes: both twins get the same bits.
            y = (y + jnp.take(y, order, axis=axis)) * jnp.asarray(0.5, x.dtype)
            if blocks == "mirrored":
                other = jnp.take(x, order, axis=axis)
                total = x + jnp.take(other, outputs, axis=last)
                half = other + jnp.take(x, outputs, axis=last)
                y = y + (total - half) * jnp.asarray(0.25, x.dtype)
        return y

    return _mapped(paired, params, config)


def split(params: Params, config: PredNetConfig, delta: float, key: jax.Array) -> dict:
    """Moves twins apart: w becomes w (1 + delta u), with opposite u for the two twins.

    Otherwise u is standard normal, and zero for weights that the exchange does not
    move; it consumes the key. With `delta`, from 0 to below 1, the asymmetry becomes
    about 2 delta. 1e-8 changes only the few weights with |u| above 3.
    """
    _check_delta(delta)
    params = {name: dict(group) for name, group in params.items()}
    flat, unravel = ravel_pytree(jax.tree.map(lambda x: x.astype(jnp.float32), params))
    u = unravel(jax.random.normal(key, flat.shape, jnp.float32))

    def moved(x: jax.Array, u: jax.Array, other: jax.Array) -> jax.Array:
        # In double precision on the host: 1 + 1e-8 u is 1 in float32.
        opposite = (np.asarray(u, np.float64) - np.asarray(other)) / np.sqrt(2.0)
        return jnp.asarray((np.asarray(x) * (1.0 + delta * opposite)).astype(x.dtype))

    return jax.tree.map(moved, params, u, exchange(u, config))


def asymmetry(params: Params, config: PredNetConfig) -> jax.Array:
    """Returns |weights - exchanged weights| over |weights|, a scalar.

    It is 0 for twins, and about sqrt(2) for independent weights that are all paired.
    """
    other = exchange(params, config)
    away = jax.tree.map(lambda a, b: jnp.sum(jnp.square(a - b)), dict(params), other)
    squares = jax.tree.map(lambda a: jnp.sum(jnp.square(a)), dict(params))
    return jnp.sqrt(sum(jax.tree.leaves(away)) / sum(jax.tree.leaves(squares)))


def unequal(params: Params, config: PredNetConfig) -> jax.Array:
    """Counts the weights that differ from their exchanged ones, without underflow."""
    other = exchange(params, config)
    counts = jax.tree.map(lambda a, b: jnp.sum(a != b, dtype=jnp.int32), params, other)
    return sum(jax.tree.leaves(counts), jnp.zeros((), jnp.int32))


def _mapped(function: Callable, params: Params, config: PredNetConfig) -> dict:
    return jax.tree.map_with_path(
        lambda path, x: function(x, _orders(config, *(entry.key for entry in path))),
        dict(params),
    )


def _orders(config: PredNetConfig, group: str, leaf: str) -> dict[int, np.ndarray]:
    """Returns the axes of a parameter that hold channels, and their permutations.

    The output channels, the last axis of every leaf, come last.
    """
    kind, number = group.rsplit("_", 1)
    layer = int(number)

    def order(width: int) -> np.ndarray:
        return np.roll(np.arange(width), width // 2 if width % 2 == 0 else 0)

    def features(layer: int) -> np.ndarray:
        width = config.channels[layer]
        return order(width) if layer else np.arange(width)

    recurrent_order, both_errors = order(config.recurrent[layer]), [features(layer)] * 2
    if leaf == "peephole":
        return {3: recurrent_order}
    if kind == "gates":
        inputs, outputs = [recurrent_order, *both_errors], [recurrent_order] * 4
    elif kind == "top_down":
        inputs, outputs = [order(config.recurrent[layer + 1])], [recurrent_order] * 4
    elif kind == "prediction":
        inputs, outputs = [recurrent_order], [features(layer)]
    else:
        inputs, outputs = both_errors, [features(layer + 1)]
    if leaf == "bias":
        return {0: _side_by_side(outputs)}
    return {2: _side_by_side(inputs), 3: _side_by_side(outputs)}


def _side_by_side(orders: list[np.ndarray]) -> np.ndarray:
    """Returns one permutation for several concatenated blocks of channels."""
    starts = np.cumsum([0, *map(len, orders[:-1])])
    return np.concatenate([o + start for o, start in zip(orders, starts, strict=True)])
