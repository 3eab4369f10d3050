"""PredNet, in either published form, and the article's control experiment as tasks."""

import dataclasses
import math
from itertools import pairwise
from typing import Any

import jax
import jax.numpy as jnp

from prednet_jax import objectives, optimizers
from prednet_jax.config import AutoencoderConfig, PredNetConfig
from prednet_jax.models import autoencoder, prednet
from prednet_jax.models.parameters import init_params
from prednet_jax.objectives import WindowResult
from prednet_jax.tasks.base import Adam, Task


class Configured(Task):
    """A network of this package: its configuration says all about it."""

    config: Any

    def __init__(self, config: PredNetConfig | AutoencoderConfig):
        self.config = config

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
        self.weights = 0
        for name, conv in prednet.convolutions(config).items():
            kind, layer = name.rsplit("_", 1)
            self.weights += conv.filter_size**2 * conv.in_channels * conv.out_channels
            if kind not in ("top_down", "cell"):  # those have no bias
                self.weights += conv.out_channels
            if kind == "gates" and config.peepholes:
                self.weights += (
                    3 * conv.height * conv.width * config.recurrent[int(layer)]
                )

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
        widths = (config.pixels, *config.hidden, config.pixels)
        self.weights = sum(math.prod(pair) for pair in pairwise(widths))
        self.weights += sum(widths[1:])

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
