"""The article's control experiment as a task: one image per update."""

import math
from itertools import pairwise

import jax
import jax.numpy as jnp

from prednet_jax.config import AutoencoderConfig
from prednet_jax.models import autoencoder
from prednet_jax.models.parameters import init_params
from prednet_jax.objectives import WindowResult
from prednet_jax.tasks.base import Configured


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
        self.multiplications = sum(math.prod(pair) for pair in pairwise(widths))
        self.weights = self.multiplications + sum(widths[1:])

    def init_params(self, key):
        """The published initialisers."""
        return init_params(self.config, key)

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
