"""Settings of a training: network, data, training, records and computation.

The flags of `train.py` are the fields of these frozen dataclasses. `fill` makes one
from layers of values by name, such as defaults, a preset, the settings that a run
recorded and the flags that a user gave; a later layer wins. Nothing else merges
settings.
"""

import dataclasses
import functools
import os
import typing
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from prednet_jax import data, tasks
from prednet_jax import noise as noise_lib
from prednet_jax.config import AutoencoderConfig, PredNetConfig
from prednet_jax.data import FrameSource
from prednet_jax.errors import UserError, check_int, named, one_of, positive, shown
from prednet_jax.objectives import Method
from prednet_jax.tasks import Task

T = TypeVar("T")
Values = Mapping[str, Any]
SAMPLINGS = ("stream", "windows")
RATE_SCHEDULES = ("constant", "cosine")
MODES = ("train", "finetune_rollout")
# Updates before a trace begins; they compile and warm up.
TRACE_AFTER = 2
#: Rate at the end of a cosine schedule, as a share of the rate at its start.
RATE_FLOOR = 0.02


def fill(record: type[T], *layers: Values) -> T:
    """Returns a dataclass whose fields are taken from layers by name; the last wins.

    Lists and texts are converted to the field's type, so that a layer may come from
    flags or from JSON. A UserError names the value that cannot.
    """
    hints = typing.get_type_hints(record)
    values: dict[str, Any] = {}
    for layer in layers:
        values |= {name: layer[name] for name in hints if name in layer}
    return record(**{k: _converted(k, str(hints[k]), v) for k, v in values.items()})


def _converted(name: str, hint: str, value: Any) -> Any:
    if value is None:
        return None
    if "tuple" in hint:
        entries = value if isinstance(value, list | tuple) else [value]
        kind: type = float if "float" in hint else int
        try:
            converted = tuple(kind(entry) for entry in entries)
        except (TypeError, ValueError, OverflowError):
            text = ",".join(map(str, entries))
            numbers = "numbers" if kind is float else "whole numbers, as 3,48,96"
            raise UserError(f"--{name}={text}: expected {numbers}") from None
        # One filter size means all layers; no layer weights mean the default ones.
        if "None" in hint and "filters" not in name and not converted:
            return None
        return converted[0] if "filters" in name and len(converted) == 1 else converted
    for kind in (bool, int, float, str):
        if kind.__name__ in hint:
            accepted = (int, float) if kind is float else kind
            if isinstance(value, accepted) and isinstance(value, bool) == (
                kind is bool
            ):
                return kind(value)
    kinds = {"bool": "true or false", "int": "a whole number", "float": "a number"}
    wanted = next((text for kind, text in kinds.items() if kind in hint), "a text")
    raise UserError(f"--{name}={shown(value)}: expected {wanted}")


@dataclasses.dataclass(frozen=True, kw_only=True)
class NetworkSettings:
    """The network by its name, and the fields of its configuration.

    None means the default of a script. docs/models.md explains the fields, which
    `PredNetConfig` and `AutoencoderConfig` have too.
    """

    model: str = "prednet"
    variant: str = "watanabe"
    channels: tuple[int, ...] = (3, 48, 96, 192)
    r_channels: tuple[int, ...] | None = None
    height: int | None = None
    width: int | None = None
    pixel_max: float = 1.0
    a_filters: int | tuple[int, ...] = 3
    ahat_filters: int | tuple[int, ...] = 3
    r_filters: int | tuple[int, ...] = 3
    convolution: str = "auto"
    hidden: tuple[int, ...] = (128, 32, 128)

    def config(self, height: int = 120, width: int = 160) -> PredNetConfig:
        """Returns the PredNet; `height` and `width` are the default sizes."""
        names = (field.name for field in dataclasses.fields(PredNetConfig))
        values = {name: getattr(self, name) for name in names}
        sizes = {"height": height, "width": width}
        return PredNetConfig(
            **values | {k: sizes[k] for k in sizes if values[k] is None}
        )

    def task(self, images: str | None, height: int = 120, width: int = 160) -> Task:
        """Returns the network; an autoencoder has the channels of its `images`."""
        if self.model == "prednet":
            return tasks.of(self.config(height, width))
        if self.model != "autoencoder":
            return tasks.load(self.model)
        sides = {"height": self.height, "width": self.width}
        return tasks.of(
            AutoencoderConfig(
                channels=data.own_size(images or "digits")[2],
                hidden=self.hidden,
                **{name: side for name, side in sides.items() if side is not None},
            )
        )


@dataclasses.dataclass(frozen=True, kw_only=True)
class DataSettings:
    """The frames, how they are brought to size, and which of them an update sees.

    Attributes:
        data: frames: walk, varied_walk, digits, mnist, moving_mnist, moving_digits, or
            a PATH: a video, an array (.npy, .npz, .hkl), a folder of images, videos,
            arrays or such folders, or a text list of such files. Defaults to walk; to
            digits for the autoencoder.
        layout: axes of an array by letter: N sequences, T frames, C channels, H rows, W
            columns, such as NTHWC. Defaults to the only layout that the shape can have.
        every: read only every Nth frame of each sequence, such as every second one of a
            film.
        crop: how frames are brought to size. center: the middle is cut out; antialias:
            the whole picture is scaled with antialiasing; resize: it is scaled without,
            as published; auto: center if at least half of the picture is left, else
            antialias.
        offset: columns right, rows down, from the centre of the crop.
        allow_outside: let a text list name files outside its own folder.
        sampling: what an update sees. stream: the next frames in order, with the state
            carried over, as published; windows: random windows of many sequences, each
            from the zero state.
        sequences: training sequences of --sampling=windows. Defaults to 256 walks, 4096
            sequences of moving digits, or all sequences of files.
        window: transitions per update (truncation length), at least 2.
        batch: sequences that are trained together, spread over the devices. With
            stream, these are the sequences of the source; a source with fewer
            sequences is cut into equal parts. With windows, it is the number of windows
            of an update.
        validate_every: updates between scores of the frozen weights on held-out
            sequences, written to validation.jsonl from update 0 on; 0 means never.
        validation_data: held-out frames for --validate_every, a PATH or name as in
            --data. Defaults to the part val next to train in --data, else to a split of
            --data.
    """

    data: str | None = None
    layout: str | None = None
    every: int = 1
    crop: str = "auto"
    offset: tuple[int, int] = (0, 0)
    allow_outside: bool = False
    sampling: str = "stream"
    sequences: int | None = None
    window: int = 20
    batch: int = 1
    validate_every: int = 0
    validation_data: str | None = None

    def __post_init__(self) -> None:
        one_of("sampling", self.sampling, SAMPLINGS)
        check_int("window", self.window, 2)
        check_int("batch", self.batch, 1)
        check_int("validate_every", self.validate_every, 0)

    def name(self, task: Task) -> str:
        """Returns the name or path of the frames; a network has default ones."""
        return self.data or task.data

    def open_source(self, task: Task, seed: int = 0) -> FrameSource:
        """Opens all frames, at the network's size.

        Frames on disk are checked and read through once, and not for every seed.
        """
        name = self.name(task)
        seed = seed if name in data.NAMES else 0
        return _opened(name, seed=seed, **self._options(task))

    def open_split(
        self, task: Task, split: str, sequences: int | None = None
    ) -> FrameSource:
        """Opens the sequences of a split."""
        options = self._options(task)
        return data.open_split(self.name(task), split, sequences=sequences, **options)

    def open_training(self, task: Task, seed: int) -> FrameSource:
        """Opens the frames to train on."""
        if self.sampling == "windows":
            return self.open_split(task, "train", self.sequences)
        return self.open_source(task, seed)

    def open_validation(self, task: Task) -> FrameSource:
        """Opens the held-out sequences."""
        own = self.validation_data
        if own is None or own in data.NAMES or data.split_parts(own):
            held_out = dataclasses.replace(self, data=own or self.data)
            return held_out.open_split(task, "validation")
        return _opened(own, **self._options(task))

    def _options(self, task: Task) -> Values:
        names = ("crop", "offset", "allow_outside", "layout", "every")
        own = {name: getattr(self, name) for name in names}
        return own | tasks.frame_size(task)

    def check(self, task: Task, method: Method) -> None:
        """Refuses what this network and method cannot see."""
        own, every = self.validation_data, self.validate_every
        if self.sampling == "windows" and not task.windowed:
            raise UserError(
                f"sampling='windows': expected 'stream' with model={task.name}, which "
                "sees single images"
            )
        unseen_from = method.extrapolate_from
        if unseen_from is not None and unseen_from > self.window:
            raise UserError(
                f"extrapolate_from={unseen_from}: expected 1 to {self.window}, the "
                "window"
            )
        if every and (unseen_from is not None or not task.windowed):
            raise UserError(
                f"validate_every={every} scores predictions of the next frame, so it "
                "cannot be used with extrapolate_from or with a network of single "
                "images; give validate_every=0, or remove extrapolate_from"
            )
        name = self.name(task)
        parts = data.split_parts(name)
        kept_out = self.sampling == "windows" or name in data.NAMES or parts or own
        if every and not kept_out:
            raise UserError(
                f"--validate_every={every} with --data={name}: expected "
                "--sampling=windows, which keeps sequences out of training, "
                "--validation_data, or a folder that holds train and val"
            )
        trained = parts.get("train", name)
        if own and os.path.realpath(own) == os.path.realpath(trained):
            raise UserError(
                f"--validation_data={own}: these frames are trained on; expected others"
            )


_opened = functools.cache(data.open_source)


@dataclasses.dataclass(frozen=True, kw_only=True)
class TrainingSettings:
    """How many updates are made, from which weights, and how large they are.

    Attributes:
        mode: finetune_rollout: each window is a sequence of its own, and from frame
            --extrapolate_from on (default: two thirds of --window; Lotter et al. 2017:
            10 of 15) the network sees its own predictions instead of the frames. It
            starts from --init_weights.
        updates: updates to make, at least 1.
        init_weights: start from these weights: a file of any kind, a name of
            prednet_jax.pretrained or a run (directory, weights or a checkpoint). A run
            also supplies its data and crop.
        learning_rate: learning rate of Adam. Defaults to the published one.
        schedule: cosine: the rate falls from --learning_rate at the first update to
            --rate_floor times this rate after the last.
        rate_floor: end of the cosine schedule, as a share of the first rate.
        clip_gradient: largest L2 norm of the gradient; larger gradients are scaled down
            to it. Defaults to no limit.
        noise: noise spec, such as reduction_order:granularity=element or ulp.
        draw: number of the noise draw. Another number changes the noise and nothing
            else; published runs have 0.
    """

    mode: str = "train"
    updates: int = 250
    init_weights: str | None = None
    learning_rate: float | None = None
    schedule: str = "constant"
    rate_floor: float = RATE_FLOOR
    clip_gradient: float | None = None
    noise: str = "none"
    draw: int = 0

    def __post_init__(self) -> None:
        check_int("updates", self.updates, 1)
        check_int("draw", self.draw, 0, 2**31 - 1)
        for name in ("learning_rate", "clip_gradient"):
            if getattr(self, name) is not None:
                positive(name, getattr(self, name))
        one_of("mode", self.mode, MODES)
        one_of("schedule", self.schedule, RATE_SCHEDULES)
        if self.schedule != "constant" and self.learning_rate is None:
            raise UserError(
                f"schedule={self.schedule!r} needs the rate that it begins with: "
                "expected learning_rate too"
            )
        _ = self.noise_spec

    @functools.cached_property
    def noise_spec(self) -> noise_lib.NoiseSpec:
        """The noise; a UserError names the flag where there is no such noise."""
        return parse_noise(self.noise)


def parse_noise(text: str) -> noise_lib.NoiseSpec:
    """Returns a noise spec; a UserError names the flag if the text is not a noise."""
    with named("--noise"):
        return noise_lib.parse(text)


@dataclasses.dataclass(frozen=True, kw_only=True)
class RecordSettings:
    """The files that a run writes, and the treatment of a run that exists already.

    Attributes:
        checkpoint_every: updates between checkpoints; 0 means one every five minutes
            and when interrupted, each of which replaces the one before. The final state
            always stays.
        keep_checkpoints: how many of the last checkpoints stay; 0 means all.
        keep_best: how many more checkpoints stay: the ones with the lowest loss of the
            frozen weights if validate_every is given, else with the lowest mean loss
            since the checkpoint before.
        examples: frames to predict after training, kept in examples.npz.
        resume: continue the run in workdir from its newest good checkpoint, with the
            flags that it started with; updates may be larger. Without a run there, one
            is started.
        overwrite: start anew, and replace a run that is there.
        profile: directory for a trace of updates 3 to 5, for TensorBoard, XProf or
            Perfetto.
        progress: show on stderr how far the training is: a bar on a terminal, else a
            line every 15 seconds.
        plot: draw the losses of a single run at its end, as workdir/loss.png (extra
            report).
    """

    checkpoint_every: int = 0
    keep_checkpoints: int = 0
    keep_best: int = 0
    examples: int = 0
    resume: bool = False
    overwrite: bool = False
    profile: str | None = None
    progress: bool = False
    plot: bool = True

    def __post_init__(self) -> None:
        for name in ("checkpoint_every", "keep_checkpoints", "keep_best", "examples"):
            check_int(name, getattr(self, name), 0)
        if self.keep_best and not self.checkpoint_every:
            raise UserError(
                f"keep_best={self.keep_best} keeps the best of several checkpoints: "
                "expected checkpoint_every too"
            )
        if self.resume and self.overwrite:
            raise UserError(
                "resume continues a run and overwrite begins it anew: expected one "
                "of them, or neither"
            )

    def check(self, updates: int, validate_every: int) -> None:
        """Refuses records that this training cannot have."""
        if self.profile and updates <= TRACE_AFTER:
            raise UserError(
                f"updates={updates}: the trace of profile begins after update "
                f"{TRACE_AFTER}; expected at least {TRACE_AFTER + 1} updates"
            )
        uneven = validate_every and self.checkpoint_every % validate_every
        if self.keep_best and uneven:
            raise UserError(
                f"checkpoint_every={self.checkpoint_every}: expected a multiple of "
                f"validate_every={validate_every} with keep_best, which compares "
                "validation losses"
            )


@dataclasses.dataclass(frozen=True, kw_only=True)
class ComputationSettings:
    """Which seeds are trained, on what, together or not, and how exactly.

    Attributes:
        precision: floating-point precision of the computation. tf32 and bfloat16 round
            only the operands of products, tf32 on devices that have it.
        threads: processors to use, enforced; 0: all.
        seed: root seed of weights, data and noise.
        seeds: several seeds one after the other, in workdir/seed_N each.
        replicas: seeds seed, seed+1, ... trained in one program on all devices, in
            workdir/seed_N each; 0: one run.
        replica_mode: replicas of a device one after the other or at once. auto: map on
            a CPU, else vmap.
        devices: devices that a CPU is split into, for --replicas and --batch. 0: as
            many as there are processors, or fewer where that divides the work evenly.
        coordinator: host:port of process 0, where several processes train together
            (--replicas, --batch). auto: as SLURM, Open MPI or Kubernetes report; none:
            this one alone.
        processes: processes that --coordinator=host:port joins; mpirun and srun set it.
        process: index of this process, from 0; launchers set it.
    """

    precision: str = "float32"
    threads: int = 0
    seed: int = 0
    seeds: tuple[int, ...] | None = None
    replicas: int = 0
    replica_mode: str = "auto"
    devices: int = 0
    coordinator: str = "auto"
    processes: int = 1
    process: int = 0

    def __post_init__(self) -> None:
        check_int("replicas", self.replicas, 0)
        check_int("devices", self.devices, 0)

    def directories(self, workdir: Path) -> dict[int, Path]:
        """Returns the directory of each seed; a single run has the directory itself."""
        seeds = self.seeds or range(self.seed, self.seed + max(1, self.replicas))
        nested = self.seeds or self.replicas
        return {seed: workdir / f"seed_{seed}" if nested else workdir for seed in seeds}


class Settings(NamedTuple):
    """All that determines a training, except its seeds and its directory."""

    network: NetworkSettings = NetworkSettings()
    data: DataSettings = DataSettings()
    method: Method = Method()
    training: TrainingSettings = TrainingSettings()
    records: RecordSettings = RecordSettings()
    computation: ComputationSettings = ComputationSettings()

    @classmethod
    def layered(cls, *layers: Values) -> "Settings":
        """Returns the settings of layers of values by name; see `fill`."""
        kinds = typing.get_type_hints(cls).values()
        return cls(*(fill(kind, *layers) for kind in kinds))

    def values(self) -> Values:
        """Returns every field by name as JSON holds it, as in a manifest."""
        by_name: dict[str, Any] = {}
        for part in self:
            for field in dataclasses.fields(part):
                value = getattr(part, field.name)
                if field.name.endswith("_filters") and isinstance(value, int):
                    value = (value,)
                listed = isinstance(value, tuple)
                by_name[field.name] = list(map(str, value)) if listed else value
        return by_name

    def flags(self, *always: str) -> dict[str, str]:
        """Returns the flags of `train.py` for these settings, by name.

        Flags with their default values are left out, except those named.
        """
        default = Settings().values()
        return {
            name: as_flag(value)
            for name, value in self.values().items()
            if name in always or value != default[name]
        }

    def replaced(self, **changes: Any) -> "Settings":
        """Returns the settings with other values of some fields."""
        return Settings.layered(self.values(), changes)


def as_flag(value: Any) -> str:
    """Returns a value as a flag of `train.py` has it, a list with commas."""
    if isinstance(value, list | tuple):
        return ",".join(map(str, value))
    return str(value).lower() if isinstance(value, bool) else str(value)
