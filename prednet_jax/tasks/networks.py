"""`Task`, the base class of every network that can be trained here, and two of them.

They are PredNet, in every published form, and the article's control experiment.
"""

import abc
import dataclasses
import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from prednet_jax import objectives, optimizers
from prednet_jax.config import AutoencoderConfig, PredNetConfig
from prednet_jax.errors import UserError
from prednet_jax.models import autoencoder, prednet
from prednet_jax.models.parameters import init_params, parameter_shapes
from prednet_jax.objectives import Method, WindowResult


class Adam(NamedTuple):
    """Settings of `optimizers.chainer_adam`: rate or schedule, and epsilon."""

    rate: float | optax.Schedule = 1e-3
    eps: float = 1e-8

    def at(self, update: int) -> float:
        """Learning rate of an update; here updates count from 1."""
        return float(self.rate(update - 1)) if callable(self.rate) else self.rate


class Task(abc.ABC):
    """A network and how it is trained; programs are compiled once per instance.

    Attributes:
        name: name in tables and manifests, by which `recorded` finds the task again.
        frame: height, width and channels of its frames; 1 or 3 channels.
        data: the default source of frames (`data.open_source`).
        windowed: whether an update sees a window of T transitions; False: one image,
            which has no next frame. Stale targets have no effect on one image.
        fresh_windows: whether each window is a sequence of its own, which starts from
            the zero state.
        warm_up: frames shown before the predictions that are kept as examples.
        weights: count of numbers in the parameters, to estimate memory; 0: unknown.
    """

    name: str = ""
    frame: tuple[int, int, int]
    data: str = "walk"
    windowed: bool = True
    fresh_windows: bool = False
    warm_up: int = 10
    weights: int = 0

    @abc.abstractmethod
    def init_params(self, key: jax.Array) -> dict:
        """Draws float32 parameters: nested dictionaries of arrays."""

    def outputs(
        self, params: dict, carry: Any, frames: jax.Array, first: jax.Array
    ) -> tuple[jax.Array, Any]:
        """Predictions of a window, and the state carried to the next window.

        `frames` are `[T + 1, B, H, W, C]` in [0, 1]; frame 0 is the last one of the
        window before, or a stand-in if `first`, a boolean scalar. The predictions
        `[T, B, H, W, C]` are of frames[1:]. Not `windowed`: both are `[1, B, H, W, C]`.
        """
        raise NotImplementedError(
            f"{type(self).__name__}: outputs, or loss and predict"
        )

    def initial_carry(self, batch: int, dtype: jnp.dtype) -> Any:
        """The state before the first window; None for a network without one."""
        del batch, dtype

    def loss(
        self,
        params: dict,
        carry: Any,
        frames: jax.Array,
        first: jax.Array,
        method: Method,
    ) -> tuple[jax.Array, WindowResult]:
        """What an update minimises, here `objectives.squares` of `outputs`."""
        carry = objectives.cut(carry, first)
        predictions, carry = self.outputs(params, carry, frames, first)
        scored = jnp.ones(len(predictions), frames.dtype)
        if self.windowed:  # The transition from a stand-in does not count.
            scored = scored.at[0].set(1 - first.astype(scored.dtype))
        stale = method.targets == "stale"
        pulled, result = objectives.squares(
            predictions, frames, scored, carry, stale=stale
        )
        return (pulled * scored).sum(), result

    def check(self, method: Method) -> None:
        """Refuses, with a UserError, a method that cannot train this network."""
        prednets = "objective", "layer_weights", "truncation_leak", "extrapolate_from"
        for name in prednets:
            if getattr(method, name):
                raise UserError(
                    f"{name}={getattr(method, name)!r}: expected none with "
                    f"model={self.name}; it applies to prednet"
                )

    def adam(self, updates: int) -> Adam:
        """Settings of the published Adam, for a training of `updates` updates."""
        del updates
        return Adam()

    def optimizer(self, updates: int) -> optax.GradientTransformation:
        """The default optimiser."""
        rate, eps = self.adam(updates)
        return optimizers.chainer_adam(rate, eps=eps)

    def predict(self, params: dict, frames: jax.Array) -> jax.Array:
        """Predicts each frame of `[T, H, W, C]` before it is seen; starts from zero."""
        carry = self.initial_carry(1, frames.dtype)
        if self.windowed:
            frames = jnp.concatenate([frames[:1], frames])
        return self.outputs(params, carry, frames[:, None], jnp.asarray(True))[0][:, 0]

    def with_convolution(self, name: str, *, where: str | None = None) -> "Task":
        """The same network with another convolution; with `where`, in place of that."""
        del name, where
        return self

    def network(self) -> dict[str, Any]:
        """The network's settings, for the manifest."""
        return {}

    def algorithms(self, dtype: jnp.dtype) -> dict[str, str]:
        """Algorithm of each convolution by name; empty if the network has no choice."""
        del dtype
        return {}

    def flags(self) -> tuple[str, ...]:
        """Flags of `train.py` that select this network with these settings."""
        return (f"--model={self.name}",)


class Configured(Task):
    """A network of this package: its configuration says all about it."""

    config: Any

    def __init__(self, config: PredNetConfig | AutoencoderConfig):
        self.config = config
        groups = parameter_shapes(config).values()
        self.weights = sum(math.prod(s) for group in groups for s in group.values())

    def __eq__(self, other: object) -> bool:
        return type(self) is type(other) and self.config == getattr(
            other, "config", None
        )

    def __hash__(self) -> int:
        return hash((type(self), self.config))

    def init_params(self, key: jax.Array) -> dict:
        """The published initialisers."""
        return init_params(self.config, key)

    def network(self) -> dict[str, Any]:
        """The configuration."""
        return dataclasses.asdict(self.config)

    def changed(self, *, always: tuple[str, ...] = ()) -> tuple[str, ...]:
        """Flags of `train.py` for settings in `always` and those not at the default."""
        default = type(self.config)(**{n: getattr(self.config, n) for n in always})
        found = []
        for field in dataclasses.fields(self.config):
            value = getattr(self.config, field.name)
            if field.name in always or value != getattr(default, field.name):
                text = ",".join(map(str, value)) if isinstance(value, tuple) else value
                found.append(f"--{field.name}={text}")
        return tuple(found)


class PredNetTask(Configured):
    """The PredNet of `models.prednet`."""

    config: PredNetConfig
    name = "prednet"

    def __init__(self, config: PredNetConfig):
        super().__init__(config)
        self.frame = config.height, config.width, config.channels[0]
        # `lotter` was published with sequences of one window each.
        self.fresh_windows = config.order == "lotter"

    def initial_carry(self, batch, dtype):
        """The zero state."""
        return prednet.initial_state(self.config, batch, dtype)

    def loss(self, params, carry, frames, first, method):
        """`objectives.window_loss`, by default with the variant's published loss."""
        published = "errors" if self.config.order == "lotter" else "squares"
        method = dataclasses.replace(method, objective=method.objective or published)
        return objectives.window_loss(params, self.config, carry, frames, first, method)

    def check(self, method):
        """Accepts every method; `objectives.window_loss` checks it."""

    def adam(self, updates):
        """Chainer's Adam; for `lotter` Keras's, with its schedule."""
        if self.config.order == "lotter":
            return Adam(optimizers.lotter_schedule(updates), 1e-7)
        return Adam()

    def predict(self, params, frames):
        """`models.prednet.predict` of one sequence."""
        return prednet.predict(params, self.config, frames[:, None])[0][:, 0]

    def with_convolution(self, name, *, where=None):
        """See `Task`."""
        if where not in (None, self.config.convolution):
            return self
        return PredNetTask(dataclasses.replace(self.config, convolution=name))

    def algorithms(self, dtype):
        """The algorithm of each convolution; `auto` is resolved."""
        return prednet.algorithms(self.config, dtype)

    def flags(self):
        """Sizes always, other settings where they differ from the default."""
        sizes = ("channels", "height", "width")
        return (f"--model={self.name}", *self.changed(always=sizes))


class AutoencoderTask(Configured):
    """The dense autoencoder of `models.autoencoder`."""

    config: AutoencoderConfig
    name = "autoencoder"
    data = "digits"
    windowed = False
    warm_up = 0

    def __init__(self, config: AutoencoderConfig):
        super().__init__(config)
        self.frame = config.height, config.width, config.channels

    def loss(self, params, carry, frames, first, method):
        """The squared errors of images `[T, B, H, W, C]`; T = 1 in the article.

        With T = 1 stale targets are true: the backward pass follows directly, before
        the target buffer can change.
        """
        steps, batch = frames.shape[:2]
        flat = frames.reshape(steps * batch, *frames.shape[2:])
        outputs = self.predict(params, flat).reshape(frames.shape)
        frame_losses = jnp.square(outputs - frames).mean(axis=(1, 2, 3, 4))
        scored = jnp.ones(steps, frames.dtype)
        result = WindowResult(None, jax.lax.stop_gradient(frame_losses), scored)
        goal = frames[-1] if method.targets == "stale" else frames
        return jnp.square(outputs - goal).mean(axis=(1, 2, 3, 4)).sum(), result

    def predict(self, params, frames):
        """Reconstructions."""
        return autoencoder.reconstruct(params, self.config, frames)

    def flags(self):
        """All settings but the channels, which come from the images."""
        found = (f for f in self.changed() if not f.startswith("--channels="))
        return (f"--model={self.name}", *found)
