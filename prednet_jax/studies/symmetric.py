"""Part A of the study: trainings from a symmetric start, and what they show.

A run makes the channels of its seed's initial weights twins, splits these by delta
(`symmetric_start`), and trains in the precision of its arm. The criteria are those of
docs/study/plan.md: an arm, at one delta of one program, separates earlier than float32
if in every seed it needs less than 95 % of float32's updates, and lowers the loss if in
every seed its loss is lower by more than the margin. A run that never separates counts
as separating one update after the last.
"""

import functools
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np

from prednet_jax import data, errors, noise, process, records, tasks
from prednet_jax.config import PredNetConfig
from prednet_jax.statistics import MARGIN_FRACTION
from prednet_jax.studies import symmetric_start
from prednet_jax.training import keys, loop
from prednet_jax.training.trainer import Trainer

NETWORK = PredNetConfig(channels=(3, 4, 4), r_channels=(2, 4, 4), height=24, width=32)
#: The blocks (`symmetric_start.BLOCKS`) that the twins of each program start with.
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
SEPARATED = 1e-2
#: Number of equal parts of a run whose mean losses are recorded.
BINS = 20
#: How much earlier separation has to be, as a fraction of the control's update.
EARLIER = 0.05
#: How much higher the loss of the symmetric network has to be than that of the free
#: one, as a fraction.
WORSE = 0.2
CONTROL, TREATMENT, NULL = "float32", "tile", "shared"
#: Split at which twins are separate before the first update.
FREE = 0.1


class Run(NamedTuple):
    """What identifies a run; the seed is that of weights, split, data and noise."""

    program: str
    arm: str
    delta: float
    seed: int


@dataclass(frozen=True, kw_only=True)
class Design:
    """What all runs of a table share; updates are a multiple of `BINS`."""

    config: PredNetConfig = NETWORK
    window: int = 10
    updates: int = 3000

    def __post_init__(self) -> None:
        if errors.whole("updates", self.updates, BINS) % BINS:
            raise errors.UserError(
                f"updates={self.updates}: expected a multiple of {BINS}"
            )


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
    """Makes one run, on the embedded walk of its seed.

    Returns:
        Its row: the fields of `Run`; `separated_at` and `unequal_at`, the first updates
        with an asymmetry above `SEPARATED` and with any difference in bits (None:
        never); `final_loss`, mean of the last fifth; and for each of the `BINS` parts
        the mean loss and the asymmetry at its end.
    """
    started = time.perf_counter()
    config, params = design.config, start(run, design)
    source = data.open_source("walk", **config.frame_size, seed=run.seed)
    schedule = loop.frame_schedule(
        config, source, window=design.window, updates=design.updates
    )
    trainer, initial = _trainer(design, run.arm), records.fingerprint(params)
    state, values = trainer.init(params), []
    for after, record in loop.train(trainer, state, source, schedule, seed=run.seed):
        params = after.params
        away, count = _compare(design)(params)
        values.append((record.loss, float(away), int(count)))
    losses, asymmetries, counts = np.array(values).T
    means = losses.reshape(BINS, -1).mean(axis=1)
    ends = asymmetries.reshape(BINS, -1)[:, -1]
    return {
        **run._asdict(),
        "noise": ARMS[run.arm],
        "updates": len(losses),
        "separated_at": _first(asymmetries > SEPARATED),
        "unequal_at": _first(counts > 0),
        "unequal_weights": int(counts[-1]),
        "final_loss": float(means[-BINS // 5 :].mean()),
        **{f"loss_{i:02d}": float(x) for i, x in enumerate(means, 1)},
        **{f"asymmetry_{i:02d}": float(x) for i, x in enumerate(ends, 1)},
        "initial_params_sha256": initial,
        "final_params_sha256": records.fingerprint(params),
        "seconds": round(time.perf_counter() - started, 1),
    }


def _first(happened: np.ndarray) -> int | None:
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


@functools.cache
def _trainer(design: Design, arm: str) -> Trainer:
    return Trainer(
        design.config,
        tasks.of(design.config).optimizer(design.updates),
        noise=noise.parse(ARMS[arm]) if ARMS[arm] else None,
    )


@functools.cache
def _compare(design: Design) -> Callable[[dict], tuple[jax.Array, jax.Array]]:
    """The compiled comparison of twins: `asymmetry` and `unequal`."""
    return jax.jit(
        lambda params: (
            symmetric_start.asymmetry(params, design.config),
            symmetric_start.unequal(params, design.config),
        )
    )


class Row(NamedTuple):
    """What decides about one run: the fields of `Run`, and its end.

    That is the update of separation (updates + 1: never), whether every weight always
    had the same bits as its twin, and the mean loss over the last fifth of the updates.
    """

    program: str
    arm: str
    delta: float
    seed: int
    separated_at: int
    equal: bool
    loss: float
    updates: int


def read(path: Path) -> list[Row]:
    """The rows of runs.csv; one that occurs twice, or diverged, is a UserError."""
    rows = [
        Row(
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
    if diverged := [row for row in rows if not np.isfinite(row.loss)]:
        raise errors.UserError(
            f"{path}: {diverged[0]} diverged; expected finite losses"
        )
    names = [row[:4] for row in rows]
    if twice := {name for name in names if names.count(name) > 1}:
        raise errors.UserError(f"{path}: {sorted(twice)} twice; expected one row each")
    return rows


def _of(rows: Iterable[Row], program: str, arm: str, delta: float) -> list[Row]:
    """The runs of one arm at one delta of one program, in the order of the seeds."""
    mine = [r for r in rows if (r.program, r.arm, r.delta) == (program, arm, delta)]
    return sorted(mine, key=lambda row: row.seed)


def effects(rows: Sequence[Row]) -> list[dict[str, Any]]:
    """Every arm against float32, by program (the symmetric one first), delta and arm.

    Returns:
        For each `program`, `delta` and `arm`; one number per seed: `separated_at`,
        `losses`, and `over_control`, final loss over that of float32; and in a word
        `separation` ("earlier", "later") and `loss` ("lower", "higher"; both "no
        effect" or "control").
    """
    groups = dict.fromkeys((row.program, row.delta, row.arm) for row in rows)
    found = []
    for program, delta, arm in sorted(groups, key=lambda k: (k[0] == "ordinary", k[1])):
        mine, control = (_of(rows, program, name, delta) for name in (arm, CONTROL))
        ratios, at = _ratios(mine, control), [row.separated_at for row in mine]
        words = {"separation": "control", "loss": "control"}
        if arm != CONTROL:
            sooner = np.array(at) / [row.separated_at for row in control]
            words["separation"] = _word(sooner, EARLIER, "earlier", "later")
            words["loss"] = _word(np.array(ratios), MARGIN_FRACTION, "lower", "higher")
        found.append(
            {"program": program, "delta": delta, "arm": arm, "separated_at": at}
            | {"losses": [row.loss for row in mine], "over_control": ratios}
            | words
        )
    return found


def _ratios(mine: Sequence[Row], control: Sequence[Row]) -> list[float]:
    return [a.loss / b.loss for a, b in zip(mine, control, strict=False)]


def _word(ratios: np.ndarray, margin: float, less: str, more: str) -> str:
    """The finding from one ratio per seed."""
    if (ratios < 1 - margin).all():
        return less
    return more if (ratios > 1 + margin).all() else "no effect"


class Check(NamedTuple):
    """A check of the plan: whether it passed, and what was measured, in words."""

    passed: bool
    figure: str


def checks(rows: Sequence[Row]) -> dict[str, Check]:
    """The checks of the plan; if one of the first two fails, part A has no result."""
    quiet, null, noisy = (
        _of(rows, "symmetric", arm, 0.0) for arm in (CONTROL, NULL, TREATMENT)
    )
    kept = quiet + null
    equal = sum(row.equal for row in kept)
    worse = _ratios(quiet, _of(rows, "symmetric", CONTROL, FREE))
    lower = _ratios(noisy, quiet)
    left = sum(row.separated_at <= row.updates for row in noisy)
    return {
        "stays symmetric without noise": Check(
            passed=bool(kept) and equal == len(kept),
            figure=f"{equal} of {len(kept)} runs without noise, or with one order "
            "shared by all outputs, keep every bit of the twins equal at every update",
        ),
        "the symmetric solution is worse": Check(
            passed=len(worse) == len(quiet) and min(worse, default=0.0) > 1 + WORSE,
            figure="loss of the symmetric network over that of the free one: "
            f"{_numbers(worse)}",
        ),
        "noise separates and lowers the loss": Check(
            passed=0 < left == len(quiet)
            and max(lower, default=1) < 1 - MARGIN_FRACTION,
            figure=f"tile order leaves the exact saddle in {left} of {len(noisy)} "
            f"seeds; its loss over that without noise: {_numbers(lower)}",
        ),
    }


def _numbers(values: Sequence[float]) -> str:
    return ", ".join(f"{value:.2f}" for value in values) or "not run"
