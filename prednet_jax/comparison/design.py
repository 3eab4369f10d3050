"""What is run: networks, arms, seeds, and the exact command of each process."""

import shlex
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from prednet_jax import device, statistics
from prednet_jax.comparison import arms
from prednet_jax.comparison.arms import Arm
from prednet_jax.errors import UserError, open_unit, whole
from prednet_jax.tasks import Task

# The control and the treatment in question: no verdict without them.
ALWAYS = (arms.CONTROL, arms.TREATMENT)
# For estimates of time: operations per second of small networks, and seconds to start
# and compile, on two cores. Rough: right within a factor of two or so.
_RATE, _START = 5e9, 12.0


@dataclass(frozen=True)
class Job:
    """One process: one draw of one arm of one network, all its seeds.

    Attributes:
        task: the network.
        arm: the arm.
        draw: number of the noise draw, from 0.
        seeds: root seeds, trained one after the other.
        folder: where the runs lie, `folder/seed_N` each.
        command: arguments of the Python interpreter.
    """

    task: Task
    arm: Arm
    draw: int
    seeds: tuple[int, ...]
    folder: Path
    command: tuple[str, ...]

    @property
    def model(self) -> str:
        """Name of the network."""
        return self.task.name

    @property
    def shown(self) -> str:
        """The exact command line, environment in front."""
        variables = [f"{k}={v}" for k, v in self.arm.environment]
        return shlex.join([*variables, "python", *self.command])

    def run_folder(self, seed: int) -> Path:
        """The directory of one seed's run."""
        return self.folder / f"seed_{seed}"


@dataclass(frozen=True, kw_only=True)
class Design:
    """A comparison, whole.

    Attributes:
        root: directory of the comparison.
        script: path of `train.py`, as the commands name it.
        tasks: networks to compare, each name once.
        arms: names of arms; `ALWAYS` are added in front.
        first_seed: the first root seed.
        seeds: number of seeds: first_seed, first_seed + 1, ...
        data: frames of networks that see windows; None: each one's own.
        images: images of networks that see one per update; None: each one's own.
        window: transitions per update.
        updates: updates of networks that see windows.
        image_updates: updates of networks that see images.
        last: the metric is the mean loss of this last fraction of the updates.
        margin: of equivalence, as a fraction of the control's mean metric.

    Raises:
        UserError: a value is outside what is accepted.
    """

    root: Path
    script: str
    tasks: tuple[Task, ...]
    arms: tuple[str, ...] = ()
    first_seed: int = 3000
    seeds: int = 8
    data: str | None = None
    images: str | None = None
    window: int = 10
    updates: int = 400
    image_updates: int = 500
    last: float = 0.2
    margin: float = statistics.MARGIN_FRACTION

    def __post_init__(self) -> None:
        whole("first_seed", self.first_seed, 0)
        whole("seeds", self.seeds, 2)
        whole("window", self.window, 2)
        for name in ("updates", "image_updates"):
            whole(name, getattr(self, name), 5)
        if not 0 < self.last <= 1:
            raise UserError(f"last={self.last}: expected a fraction in (0, 1]")
        open_unit("margin", self.margin)
        names = [task.name for task in self.tasks]
        if not names or len(set(names)) < len(names):
            raise UserError(
                f"models={','.join(names)}: expected at least one, each once"
            )
        _ = self.chosen

    @cached_property
    def chosen(self) -> tuple[Arm, ...]:
        """Every arm asked for, the control first."""
        return tuple(dict.fromkeys((*ALWAYS, *map(arms.arm, self.arms))))

    @cached_property
    def skipped(self) -> tuple[tuple[str, str], ...]:
        """Arms that cannot run here, with the reason."""
        if device.gpu_found():
            return ()
        return tuple((arm.name, "no GPU found") for arm in self.chosen if arm.gpu)

    @property
    def runnable(self) -> tuple[Arm, ...]:
        """Arms that can run here."""
        without = {name for name, _ in self.skipped}
        return tuple(arm for arm in self.chosen if arm.name not in without)

    def runs(self) -> list[Job]:
        """Every process, the control's first, the draws of an arm together."""
        return [
            self._job(task, arm, draw)
            for task in self.tasks
            for arm in self.runnable
            for draw in range(arm.draws)
        ]

    def _job(self, task: Task, arm: Arm, draw: int) -> Job:
        seeds = tuple(range(self.first_seed, self.first_seed + self.seeds))
        folder = self.root / "runs" / task.name / arm.name
        if draw:
            folder /= f"draw_{draw}"
        command = [
            self.script,
            *task.flags(),
            f"--seeds={','.join(map(str, seeds))}",
            f"--workdir={folder}",
            f"--updates={self.updates_of(task)}",
            f"--data={self.data_of(task)}",
        ]
        if task.windowed:
            command.append(f"--window={self.window}")
        if draw:
            command.append(f"--draw={draw}")
        elif arm.examples:
            command.append("--examples=6")
        return Job(task, arm, draw, seeds, folder, (*command, *arm.flags))

    def data_of(self, task: Task) -> str:
        """Frames of a network, as `train.py --data`."""
        return (self.data if task.windowed else self.images) or task.data

    def updates_of(self, task: Task) -> int:
        """Updates of a network."""
        return self.updates if task.windowed else self.image_updates

    def metric_updates(self, task: Task) -> int:
        """How many last updates the metric averages."""
        return max(1, round(self.last * self.updates_of(task)))

    def metric_name(self, task: Task) -> str:
        """The metric in words."""
        return f"mean loss of the last {self.metric_updates(task)} updates"

    def seconds(self, jobs: list[Job]) -> float:
        """Roughly how long the jobs take on two cores, one after the other."""
        return sum(
            _START + job.arm.cost * self._operations(job) / _RATE for job in jobs
        )

    def _operations(self, job: Job) -> float:
        """Forward and two backward passes, a multiplication and an addition each."""
        frames = self.updates_of(job.task) * (self.window if job.task.windowed else 1)
        return 6.0 * job.task.multiplications * frames * len(job.seeds)
