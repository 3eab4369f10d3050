"""Part I: the article's figure of twelve machines, rebuilt (study/pages/machines.md).

A machine is a fixed order of sums. Eight train with true targets, four with stale ones,
all from one initial model or each from its own. A run's loss is the loss of the
window's last frame, averaged over the last fifth of the updates.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd
import scipy.stats

from prednet_jax import statistics
from prednet_jax.report.charts import ROLES, Dots, Panel, Row
from prednet_jax.report.numbers import MISSING, significant
from prednet_jax.report.tables import markdown
from prednet_jax.statistics.sign_flip import Floats
from study import on_gpu
from study.judgement import PRIMARY, Records, losses
from study.parts import (
    CONTROL,
    FIXED,
    FIXED_ORDERS,
    SEEDS_WITH_TWELVE_MACHINES,
    STALE,
    STALE_RUN,
)

#: What the machines of a seed start from, by the prefix of their arms.
STARTS = {"": "one initial model", "free_": "initial weights of their own"}
HIGHER, LOWER, OVERLAP = "apart, stale higher", "apart, stale lower", "overlap"
#: At the article's size, by targets and machine: the part and its arm.
ARTICLE_SIZE = {
    "true": {
        "Intel Xeon": ("E", CONTROL),
        "AMD EPYC": ("E-null", CONTROL),
        "an order drawn": ("E", FIXED),
        "NVIDIA H200": ("G", "gpu_cudnn"),
    },
    "stale": {
        "Intel Xeon": ("E", STALE),
        "AMD EPYC": ("E-stale", STALE),
        "an order drawn": ("E-stale", STALE_RUN),
        "NVIDIA H200": ("G", "gpu_cudnn_stale"),
    },
}
ALT = (
    f"The twelve machines of {SEEDS_WITH_TWELVE_MACHINES} seeds, a dot each: loss over "
    "the mean of those with true targets. Left from one initial model, right from "
    "weights of their own."
)


class Machines(NamedTuple):
    """The losses of a seed's machines: `stale` `[4]` and `true` `[8]`."""

    stale: Floats
    true: Floats

    @property
    def picture(self) -> str:
        """Whether the two groups are completely separate, and which is higher."""
        if self.stale.min() > self.true.max():
            return HIGHER
        return LOWER if self.stale.max() < self.true.min() else OVERLAP


def twelve(seeds: Records, prefix: str) -> dict[str, Machines]:
    """Returns the machines by seed, without seeds of which a machine diverged."""
    true = tuple(prefix + arm for arm in FIXED_ORDERS.arms)
    stale = prefix + STALE_RUN
    groups = statistics.collect_redraws(
        losses(seeds, PRIMARY), stale, statistics.Group("true targets", true)
    )
    machines = map(Machines, groups.treatment, groups.control)
    return dict(zip(groups.seeds, machines, strict=True))


def blocks(seeds: Records) -> dict[str, str]:
    """Returns the two tables of study/pages/machines.md."""
    made = {}
    for prefix in STARTS:
        rows = [
            {
                "seed": seed,
                "true targets, 8 machines": _range(machines.true),
                "stale targets, 4 machines": _range(machines.stale),
                "stale over true": significant(
                    _mean(machines.stale) / _mean(machines.true)
                ),
                "groups": machines.picture,
            }
            for seed, machines in twelve(seeds, prefix).items()
        ]
        table = markdown(pd.DataFrame(rows))
        if not prefix:
            table = f"![{ALT}](machines.svg)\n\n{table}"
        made[f"study-I-{prefix}machines"] = table
    return made


def article(gpu: Path, parts: Mapping[str, Records]) -> dict[str, str]:
    """Returns the table at the article's size, and how many seeds are `HIGHER`.

    `gpu` is results/study/G.
    """
    known = {
        (part, run.arm, record.seed): run.last_frame_loss
        for part in ("E", "E-null", "E-stale")
        for record in parts[part]
        for run in record.runs
    }
    for arm, runs in on_gpu.read(gpu, "E").items():
        known |= {("G", arm, int(seed)): runs[seed][PRIMARY] for seed in runs}
    rows, pictures = [], []
    for seed in [record.seed for record in parts["E"]]:
        groups = {
            targets: {
                name: known[*arm, seed]
                for name, arm in arms.items()
                if (*arm, seed) in known
            }
            for targets, arms in ARTICLE_SIZE.items()
        }
        both = Machines(**{t: np.array([*arms.values()]) for t, arms in groups.items()})
        pictures.append(both.picture)
        for targets, arms in groups.items():
            shown = {name: significant(loss) for name, loss in arms.items()}
            ends = {"from, to": _range(getattr(both, targets)), "groups": both.picture}
            rows.append({"seed": seed, "targets": targets} | shown | ends)
    separate = f"{pictures.count(HIGHER)} of {len(pictures)}"
    table = markdown(pd.DataFrame(rows).fillna(MISSING))
    return {"study-E-machines": table, "E.apart": separate}


def _mean(group: Floats) -> float:
    """Returns the geometric mean of a group's losses."""
    return float(np.exp(np.log(group).mean()))


def _range(group: Floats) -> str:
    """Returns the lowest and highest loss of a group, and their distance."""
    low, high = float(group.min()), float(group.max())
    separate = significant(100 * (high / low - 1), 2)
    return f"{significant(low)} to {significant(high)} ({separate} %)"


def values(seeds: Records) -> dict[str, str]:
    """Returns numbers in sentences: pictures like the article's, stale against true."""
    made = {}
    for prefix in STARTS:
        pictures = [machines.picture for machines in twelve(seeds, prefix).values()]
        made[f"I.{prefix}apart"] = f"{pictures.count(HIGHER)} of {len(pictures)}"
    pairs = statistics.collect_redraws(losses(seeds, PRIMARY), STALE, CONTROL)
    stale, true = pairs.logs
    count = int((stale > true).sum())
    exact = scipy.stats.binomtest(count, len(true)).proportion_ci(method="exact")
    ends = f"{100 * exact.low:.0f} to {100 * exact.high:.0f} %"
    made["I.higher"] = f"{count} of {len(true)} ({ends})"
    made["I.stale"] = on_gpu.value(statistics.effect(pairs))
    return made


def figure(seeds: Records) -> Dots:
    """Returns the loss of each machine over the mean of those with true targets."""
    starts = [twelve(seeds, prefix) for prefix in STARTS]
    rows = [
        Row(
            f"{seed}, {targets} targets",
            ROLES["stale" if targets == "stale" else "treatment"],
            [
                (getattr(start[seed], targets) / _mean(start[seed].true)).tolist()
                if seed in start
                else []
                for start in starts
            ],
        )
        for seed in sorted({seed for start in starts for seed in start})
        for targets in ("true", "stale")
    ]
    highest = max(max(values) for row in rows for values in row.values if values)
    end = min(4.0, float(np.ceil(2 * highest) / 2))
    ticks = np.arange(0, end + 0.1, 0.5).tolist()
    panels = [Panel(start, 0.0, end, ticks) for start in STARTS.values()]
    return Dots(ALT, panels, rows)
