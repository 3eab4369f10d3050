"""The published numbers of the study that a comparison repeats.

`published.json` holds, for PredNet at 24x32, the losses of 40 seeds after 1000, 2000
and 3000 updates, how far random orders had moved the weights by then, and the losses of
runs that started on an exact saddle. These records show, before a repetition is run,
which effects one of its size can detect.
"""

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from prednet_jax import records, statistics
from prednet_jax.runs.arms import FIXED_ORDERS
from prednet_jax.saddles.symmetric import SaddleRow
from prednet_jax.training.settings import as_flag

if TYPE_CHECKING:
    from prednet_jax.runs.design import Design

PATH = Path(__file__).with_name("published.json")
#: Numbers of updates after which the study's losses are published.
UPDATES = (1000, 2000, 3000)
#: Updates after which losses from the saddle are published; twins leave it by 1500.
SADDLE_UPDATES = (1500, 2250, 3000)
#: Runs from the saddle: float32, a fresh order at every call, one order for the run.
SADDLE_ARMS = ("float32", "tile", "run")
#: The metric is the mean over this last fraction of the updates.
LAST = 0.2
_TREATMENT, _STALE = "reduction_order", "stale_targets"
_RESAMPLES = 10_000


@dataclass(frozen=True)
class PublishedRuns:
    """The results of the study after a given number of updates.

    Attributes:
        losses: the metric by arm, seed and draw.
        distance: distance of the final weights of a random order from the control's,
            over the distance that training moved the control, one number per seed.
    """

    losses: statistics.Arms = field(hash=False)
    distance: tuple[float, ...]

    @functools.cache  # noqa: B019 (there are three objects)
    def chance_to_separate(self, seeds: int) -> float:
        """Returns the chance that the median of `seeds` seeds has separated."""
        drawn = np.random.default_rng(0).choice(self.distance, (_RESAMPLES, seeds))
        medians = np.median(drawn, axis=1)
        return float((medians >= statistics.SEPARATED).mean())

    def stale_effect(self) -> tuple[float, int, int]:
        """Returns the effect of stale targets, seeds with a higher loss, and seeds."""
        runs = statistics.collect_redraws(self.losses, _STALE, FIXED_ORDERS)
        stale, control = runs.logs
        higher = int((stale > control).sum())
        return statistics.effect(runs).estimate, higher, len(runs.seeds)


@dataclass(frozen=True)
class Published:
    """The content of `published.json`; `saddle` has losses by updates, arm and seed."""

    setting: Mapping[str, object]
    by_updates: Mapping[int, PublishedRuns]
    saddle: Mapping[int, Mapping[str, Mapping[str, float]]]
    orders_away: float

    def losses(self, design: "Design") -> dict[str, statistics.Arms]:
        """Returns the published losses by network, where a design repeats the study."""
        runs = self.by_updates.get(design.updates)
        return {
            task.name: runs.losses
            for task in design.tasks
            if runs is not None and not self.other_setting(design, task)
        }

    def other_setting(self, design: "Design", task: Any) -> list[str]:
        """Describes how a design differs from the study; [] if it does not."""
        config = getattr(task, "config", None)
        network = {
            name: getattr(config, name, None)
            for name in ("channels", "variant", "height", "width")
        }
        mine = {
            **network,
            "convolution": getattr(config, "convolution", None),
            "data": design.data_of(task),
            "window": design.window,
            "last": design.last,
        }
        study = {**self.setting, "convolution": "auto"}
        return [
            f"{name} {as_flag(value)} instead of {as_flag(study[name])}"
            for name, value in mine.items()
            if as_flag(value) != as_flag(study[name])
        ]

    def saddle_claim(
        self, rows: Sequence[SaddleRow], margin: float = statistics.MARGIN_FRACTION
    ) -> statistics.Claim:
        """Returns the claim about an exact saddle, which plain float32 does not leave.

        `rows` are runs of one length from a symmetric start, of float32 and of other
        arms of `SADDLE_ARMS`.
        """
        escaped = all(
            row.equal if row.arm == "float32" else row.separated_at <= row.updates
            for row in rows
        )
        arms = list(dict.fromkeys(row.arm for row in rows))
        study = self.saddle.get(rows[0].updates)
        mine: dict[str, dict[str, float]] = {}
        for row in rows:
            mine.setdefault(row.arm, {})[str(row.seed)] = row.loss
        return statistics.saddle_claim(
            "prednet",
            statistics.effect(_between_twins(mine, arms), margin),
            escaped,
            _between_twins(study, arms) if study else None,
            self.orders_away,
        )


def _between_twins(
    losses: Mapping[str, Mapping[str, float]], arms: Sequence[str]
) -> statistics.Redraws:
    """Returns the runs whose orders differ between twins, against float32."""
    groups: dict[str, dict[str, list[float | None]]] = {"control": {}, "twins": {}}
    for arm in sorted(arms, key=SADDLE_ARMS.index):
        group = groups["control" if arm == "float32" else "twins"]
        for seed, loss in losses[arm].items():
            group.setdefault(seed, []).append(loss)
    return statistics.collect_redraws(groups, "twins", "control")


@functools.cache
def load() -> Published:
    """Reads the published numbers of the package."""
    stored = records.read_json(PATH)
    by_updates = {
        int(updates): PublishedRuns(
            runs["losses"], tuple(runs["distance_over_travelled"].values())
        )
        for updates, runs in stored["by_updates"].items()
    }
    setting = {k: v for k, v in stored["setting"].items() if k != "seeds"}
    saddle = stored["saddle"]
    lengths = {int(updates): arms for updates, arms in saddle["losses"].items()}
    return Published(setting, by_updates, lengths, saddle["orders_away"])
