"""The design of a comparison: networks, arms, seeds, and the jobs to run.

`check` finds settings that the runs would refuse, before the first run starts.
"""

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from prednet_jax import data, process, statistics, tasks
from prednet_jax.errors import UserError, check_int, each_once, named, open_unit
from prednet_jax.runs import arms
from prednet_jax.runs.arms import Arm
from prednet_jax.runs.jobs import Job
from prednet_jax.tasks import PredNetTask, Task
from prednet_jax.training import loop
from prednet_jax.training.recipe import Recipe
from prednet_jax.training.settings import DataSettings, Settings, TrainingSettings

# There is no verdict without the control and the treatment.
REQUIRED_ARMS = (arms.CONTROL, arms.TREATMENT)


@dataclass(frozen=True, kw_only=True)
class Setup:
    """The networks of a comparison or sweep, and the settings that all arms share.

    Attributes:
        root: directory for everything that is written.
        script: path of `train.py`, as the commands name it.
        tasks: the networks; their names differ.
        data: frames for networks that see windows, as in train.py. Defaults to each
            network's own: walk for prednet.
        images: images for networks that see one per update. Defaults to each network's
            own: digits for the autoencoder.
        layout: axes of an array of `data` by letter, as in train.py.
        crop: how frames of `data` are cut or scaled, as in train.py.
        allow_outside: let a text list name files outside its own folder.
        window: transitions per update.
        updates: number of updates of networks that see windows.
        image_updates: number of updates of networks that see images.
        last: losses are means over this last fraction of the updates.
    """

    root: Path
    script: str
    tasks: tuple[Task, ...]
    data: str | None = None
    images: str | None = None
    layout: str | None = None
    crop: str = "auto"
    allow_outside: bool = False
    window: int = 10
    updates: int = 400
    image_updates: int = 500
    last: float = 0.2

    def __post_init__(self) -> None:
        check_int("window", self.window, 2)
        for name in ("updates", "image_updates"):
            check_int(name, getattr(self, name), 5)
        if not 0 < self.last <= 1:
            raise UserError(f"last={self.last}: expected a fraction in (0, 1]")
        each_once("models", [task.name for task in self.tasks])

    def run_settings(self, task: Task, arm: Arm, **own: Any) -> Settings:
        """Returns the settings of `train.py` for an arm of a network."""
        shared = {
            "data": self.data_of(task),
            "updates": self.updates_of(task),
            "allow_outside": self.allow_outside,
        }
        if task.windowed:
            shared |= {"window": self.window, "layout": self.layout, "crop": self.crop}
        return Settings.layered(task.settings(), shared, own, arm.changes)

    def data_of(self, task: Task) -> str:
        """Returns the frames of a network, as `train.py --data` takes them."""
        return (self.data if task.windowed else self.images) or task.data

    def updates_of(self, task: Task) -> int:
        """Returns the number of updates of a network."""
        return self.updates if task.windowed else self.image_updates


@dataclass(frozen=True, kw_only=True)
class Design(Setup):
    """The design of a comparison.

    Attributes:
        arms: names of arms; `REQUIRED_ARMS` are added in front. None means the
            `default_arms` of each network.
        without: names of arms that are left out.
        first_seed: the first root seed.
        seeds: number of seeds: first_seed, first_seed + 1, ...
        threads: processors of each training. Defaults to all. Arms may have their own
            number.
        keep_every: updates between checkpoints that are kept. Defaults to 0: only the
            last one is kept.
        margin: margin of equivalence, as a fraction of the control's mean metric.
    """

    arms: tuple[str, ...] | None = ()
    without: tuple[str, ...] = ()
    first_seed: int = 3000
    seeds: int = 8
    threads: int | None = None
    keep_every: int = 0
    margin: float = statistics.MARGIN_FRACTION

    def __post_init__(self) -> None:
        super().__post_init__()
        check_int("seeds", self.seeds, 1)
        check_int("first_seed", self.first_seed, 0, 2**32 - self.seeds)
        open_unit("margin", self.margin)
        _ = self.chosen

    @cached_property
    def chosen(self) -> tuple[Arm, ...]:
        """Returns the arms of all networks, the control first."""
        every = [arm for task in self.tasks for arm in self.arms_of(task)]
        return tuple(dict.fromkeys(every))

    def arms_of(self, task: Task) -> tuple[Arm, ...]:
        """Returns the arms of a network, the control first."""
        chosen = default_arms(task) if self.arms is None else self.arms
        names = [name for name in chosen if name not in self.without]
        return tuple(dict.fromkeys((*REQUIRED_ARMS, *map(arms.arm, names))))

    @cached_property
    def skipped(self) -> tuple[tuple[str, str], ...]:
        """Arms that cannot run here, with the reason."""
        threads = self.threads
        reasons = (
            (arm.name, missing_hardware(arm, arm.threads or threads))
            for arm in self.chosen
        )
        return tuple((name, reason) for name, reason in reasons if reason)

    def runs(self) -> list[Job]:
        """Returns one job per process.

        The control's job comes first, and the draws of an arm are adjacent.
        """
        skipped = dict(self.skipped)
        return [
            self._job(task, arm, draw)
            for task in self.tasks
            for arm in self.arms_of(task)
            if arm.name not in skipped
            for draw in range(arm.draws)
        ]

    def _job(self, task: Task, arm: Arm, draw: int) -> Job:
        folder = self.root / "runs" / task.name / arm.name
        confined = self.threads if self.threads and not arm.gpu else 0
        return Job(
            task=task,
            arm=arm,
            seeds=tuple(range(self.first_seed, self.first_seed + self.seeds)),
            folder=folder / f"draw_{draw}" if draw else folder,
            script=self.script,
            settings=self.run_settings(
                task,
                arm,
                draw=draw,
                examples=6 if arm.examples and not draw else 0,
                checkpoint_every=self.keep_every if task.windowed else 0,
                threads=confined,
            ),
        )

    def metric_updates(self, task: Task) -> int:
        """Returns the number of last updates over which the metric is averaged."""
        return max(1, round(self.last * self.updates_of(task)))

    def metric_name(self, task: Task) -> str:
        """Returns the metric in words; it is the primary endpoint of the study."""
        loss = "loss of the window's last frame" if task.windowed else "loss"
        return f"{loss}, mean over the last {self.metric_updates(task)} updates"


def default_arms(task: Task) -> tuple[str, ...]:
    """Returns the default arms of a network: another fixed order, stale targets.

    A network that sees single images cannot have stale targets.
    """
    if not task.windowed:
        return ()
    prednet = isinstance(task, PredNetTask)
    another = "convolution_im2col" if prednet else "reduction_order_run"
    return another, arms.STALE.name


def missing_hardware(arm: Arm, threads: int | None) -> str:
    """Returns what this machine lacks that a run needs: a GPU, or processors.

    The text is empty if nothing is missing.
    """
    if arm.gpu and process.gpu_found() is None:
        return "no GPU found"
    try:
        if threads is not None:
            process.check_threads(threads)
    except UserError as error:
        return str(error)
    return ""


def check(setup: Setup) -> None:
    """Refuses a root that is no directory, and frames that a network cannot use."""
    for folder in (setup.root, setup.root / "runs"):
        if folder.exists() and not folder.is_dir():
            raise UserError(f"workdir={folder}: a file; expected a directory")
    for task in setup.tasks:
        window, updates = setup.window, setup.updates_of(task)
        Recipe(
            task=task,
            data=DataSettings(window=window),
            training=TrainingSettings(updates=updates),
        ).check_sizes(1)
        options = tasks.frame_size(task) | {"allow_outside": setup.allow_outside}
        if task.windowed:
            options |= {"layout": setup.layout, "crop": setup.crop}
        with named("data" if task.windowed else "images"):
            source = data.open_source(setup.data_of(task), **options)
            loop.frame_schedule(task, source, window=window, updates=updates)
