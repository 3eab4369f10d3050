"""What is run: arms, seeds, sizes, and the exact command of each process."""

import shlex
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from pathlib import Path

from prednet_jax import backends
from prednet_jax.config import AutoencoderConfig, PredNetConfig
from prednet_jax.models import prednet

CONTROL, EMULATED, STALE = "float32", "reduction_order", "stale_targets"
# The control and the treatment in question: no verdict without them.
ALWAYS = (CONTROL, EMULATED)
# Arms whose predictions are kept, to be shown and compared pixel by pixel; predicting
# is one more program a process to compile.
KEEP_PREDICTIONS = (CONTROL, EMULATED, "ulp", STALE)
MODELS = ("prednet", "autoencoder")
# Seeds of the pilot: none is of the main runs, nor of 1000 to 1009, by whose losses the
# length of the small study was chosen.
PILOT_FIRST = 2000


@dataclass(frozen=True)
class Job:
    """One process: one arm of one model, all its seeds.

    Attributes:
        model: `prednet` or `autoencoder`.
        arm: the arm.
        seeds: root seeds, trained one after the other.
        folder: where the runs lie, `folder/seed_N` each.
        command: arguments of the Python interpreter.
    """

    model: str
    arm: backends.Arm
    seeds: tuple[int, ...]
    folder: Path
    command: tuple[str, ...]

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
        models: networks to compare, of `MODELS`.
        arms: names of arms; `ALWAYS` are added in front.
        seeds: number of seeds of the main runs: 0, 1, ...
        pilot_seeds: number of seeds of the pilot: 2000, 2001, ...
        channels: widths of PredNet's layers.
        height: rows of PredNet's frames.
        width: columns of PredNet's frames.
        data: frames of PredNet, as `train.py --data`.
        images: images of the autoencoder.
        window: transitions an update of PredNet.
        updates: updates of PredNet.
        image_updates: updates of the autoencoder.
        last: the metric is the mean loss of this last fraction of the updates.

    Raises:
        ValueError: a value is outside what is accepted.
    """

    root: Path
    script: str
    models: tuple[str, ...] = MODELS
    arms: tuple[str, ...] = ()
    seeds: int = 10
    pilot_seeds: int = 4
    channels: tuple[int, ...] = (3, 6, 12)
    height: int = 24
    width: int = 32
    data: str = "walk"
    images: str = "digits"
    window: int = 10
    updates: int = 200
    image_updates: int = 500
    last: float = 0.2

    def __post_init__(self) -> None:
        for name, low in (
            ("seeds", 2),
            ("pilot_seeds", 2),
            ("updates", 5),
            ("image_updates", 5),
            ("window", 2),
        ):
            value = getattr(self, name)
            if value < low:
                raise ValueError(f"{name}={value}: expected at least {low}")
        if not 0 < self.last <= 1:
            raise ValueError(f"last={self.last}: expected a fraction in (0, 1]")
        if self.seeds > PILOT_FIRST:
            raise ValueError(f"seeds={self.seeds}: expected at most {PILOT_FIRST}")
        for model in self.models:
            if model not in MODELS:
                raise ValueError(
                    f"models={model!r}: expected some of {', '.join(MODELS)}"
                )
        if len(set(self.models)) < len(self.models):
            raise ValueError(f"models={','.join(self.models)}: expected each once")
        if not self.models:
            raise ValueError(f"models=(): expected some of {', '.join(MODELS)}")
        _ = self.network, self.chosen

    @cached_property
    def network(self) -> PredNetConfig:
        """The PredNet that is trained."""
        return PredNetConfig(
            channels=self.channels, height=self.height, width=self.width
        )

    @cached_property
    def chosen(self) -> tuple[backends.Arm, ...]:
        """Every arm asked for, the control first."""
        return tuple(backends.arm(n) for n in dict.fromkeys(ALWAYS + self.arms))

    @cached_property
    def skipped(self) -> tuple[tuple[str, str], ...]:
        """Arms that cannot run here, with the reason."""
        if backends.gpu_found():
            return ()
        return tuple((arm.name, "no GPU found") for arm in self.chosen if arm.gpu)

    @property
    def runnable(self) -> tuple[backends.Arm, ...]:
        """Arms that can run here."""
        without = {name for name, _ in self.skipped}
        return tuple(arm for arm in self.chosen if arm.name not in without)

    def pilot(self) -> list[Job]:
        """The jobs that fix the margin: control, treatment, stale targets."""
        seeds = range(PILOT_FIRST, PILOT_FIRST + self.pilot_seeds)
        return [
            self.job(model, backends.arm(name), tuple(seeds), self.root / "pilot")
            for model in self.models
            for name in (CONTROL, EMULATED, STALE)
        ]

    def runs(self) -> list[Job]:
        """The main jobs."""
        return [
            self.job(model, arm, tuple(range(self.seeds)), self.root / "runs")
            for model in self.models
            for arm in self.runnable
        ]

    def job(
        self, model: str, arm: backends.Arm, seeds: tuple[int, ...], root: Path
    ) -> Job:
        """The process that trains one model under one arm."""
        folder = root / model / arm.name
        command = [
            self.script,
            f"--model={model}",
            f"--seeds={','.join(map(str, seeds))}",
            f"--workdir={folder}",
            f"--updates={self.updates_of(model)}",
        ]
        if model == "prednet":
            command += [
                f"--channels={','.join(map(str, self.channels))}",
                f"--height={self.height}",
                f"--width={self.width}",
                f"--data={self.data}",
                f"--window={self.window}",
            ]
        else:
            command += [f"--data={self.images}"]
        if arm.name in KEEP_PREDICTIONS and root.name == "runs":
            command += ["--examples=6"]
        return Job(model, arm, seeds, folder, (*command, *arm.flags))

    def updates_of(self, model: str) -> int:
        """Updates of a model."""
        return self.updates if model == "prednet" else self.image_updates

    def metric_updates(self, model: str) -> int:
        """How many last updates the metric averages."""
        return max(1, round(self.last * self.updates_of(model)))

    def metric_name(self, model: str) -> str:
        """The metric in words."""
        return f"mean loss of the last {self.metric_updates(model)} updates"


# Rough costs for estimates, measured on two cores: operations a second of small
# networks, seconds to start and compile, and time against the clean step.
_RATE = {"prednet": 7e9, "autoencoder": 2e9}
_START = {"prednet": 18.0, "autoencoder": 6.0}
_COST = {"float64": 1.5, "threads_1": 1.3, "reduction_order": 2.0, "ulp": 2.0}


def estimate(design: Design, jobs: list[Job]) -> float:
    """Seconds that the jobs take on two cores, within a factor of two or so."""
    per_frame = sum(
        conv.height
        * conv.width
        * conv.filter_size**2
        * conv.in_channels
        * conv.out_channels
        for conv in prednet.convolutions(design.network).values()
    )
    widths = (784, *AutoencoderConfig().hidden, 784)
    per_image = sum(a * b for a, b in pairwise(widths))
    # Forward pass and two backward passes, a multiplication and an addition each.
    work = {
        "prednet": 6 * per_frame * design.updates * design.window,
        "autoencoder": 6 * per_image * design.image_updates,
    }
    return sum(
        _START[job.model]
        + _COST.get(job.arm.name, 1.0)
        * len(job.seeds)
        * work[job.model]
        / _RATE[job.model]
        for job in jobs
    )
