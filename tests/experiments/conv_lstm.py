r"""A ConvLSTM of about as many weights as the PredNet of walks.

    python experiments/train.py --workdir=RUN \
        --model=tests.experiments.conv_lstm:WALK ...
    python experiments/evaluate.py --weights=RUN --split=unseen

The network of Shi et al. 2015 (arXiv 1506.04214): frames cut into patches of 2x2
pixels; three layers of ConvLSTM, eq. 3 without the peepholes, as OpenSTL has it; the
next frame's patches from a convolution of the last layer. How it is trained:
study/pages/learned_plan.md, `convlstm-b`.
"""

import jax
import jax.numpy as jnp
from flax import linen as nn

from prednet_jax.models.convolution import conv2d
from prednet_jax.tasks import Task

LAYERS, CHANNELS, PATCH = 3, 48, 2


class Convolution(nn.Module):
    """3x3, zero 'same' padding, with a bias: `[B, H, W, C]` -> `[B, H, W, channels]`.

    Computed by `models.convolution`, as PredNet's.
    """

    channels: int

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        """Convolves the maps x."""
        shape = (3, 3, x.shape[-1], self.channels)
        kernel = self.param("kernel", nn.initializers.lecun_normal(), shape)
        bias = self.param("bias", nn.initializers.zeros, (self.channels,))
        return conv2d(x, kernel) + bias


class Network(nn.Module):
    """One step: `(state, frame [B, H, W, C]) -> (state, next frame [B, H, W, C])`."""

    @nn.compact
    def __call__(self, state: list, frame: jax.Array) -> tuple[list, jax.Array]:
        """Advances the state, a list of `(h, c)`, both `[B, H / 2, W / 2, 48]`."""
        x, after = to_patches(frame), []
        for h, c in state:
            gates = Convolution(4 * CHANNELS)(jnp.concatenate([x, h], -1))
            i, f, o, g = jnp.split(gates, 4, axis=-1)
            c = nn.sigmoid(f) * c + nn.sigmoid(i) * jnp.tanh(g)
            x = nn.sigmoid(o) * jnp.tanh(c)
            after.append((x, c))
        patches = Convolution(frame.shape[-1] * PATCH**2)(x)
        return after, to_frame(patches)


def to_patches(frame: jax.Array) -> jax.Array:
    """Converts `[B, H, W, C]` to `[B, H / 2, W / 2, 4 C]`."""
    batch, height, width, channels = frame.shape
    cut = frame.reshape(batch, height // PATCH, PATCH, width // PATCH, PATCH, channels)
    return cut.swapaxes(2, 3).reshape(batch, height // PATCH, width // PATCH, -1)


def to_frame(patches: jax.Array) -> jax.Array:
    """Inverts `to_patches`."""
    batch, rows, columns, _ = patches.shape
    cut = patches.reshape(batch, rows, columns, PATCH, PATCH, -1).swapaxes(2, 3)
    return cut.reshape(batch, rows * PATCH, columns * PATCH, -1)


class ConvLstm(Task):
    """The network as a task of `train.py`; the loss is the mean over the window."""

    def __init__(self, height: int, width: int, channels: int, data: str):
        self.frame, self.data = (height, width, channels), data

    def init_params(self, key):
        """Applies Flax's initialisers (LeCun normal, zero biases)."""
        state = self.initial_carry(1, jnp.float32)
        return Network().init(key, state, jnp.zeros((1, *self.frame)))["params"]

    def initial_carry(self, batch, dtype):
        """Returns zeros."""
        height, width, _ = self.frame
        zeros = jnp.zeros((batch, height // PATCH, width // PATCH, CHANNELS), dtype)
        return [(zeros, zeros)] * LAYERS

    def outputs(self, params, carry, frames, first):
        """Predicts frames[1:]."""

        def step(state, x):
            frame, reset = x
            state, prediction = Network().apply({"params": params}, state, frame)
            zeroed = jax.tree.map(lambda s: jnp.where(reset, 0.0, s), state)
            return zeroed, prediction

        # Where a sequence starts frame 0 is a stand-in: the state after it is zero.
        resets = jnp.zeros(len(frames) - 1, bool).at[0].set(first)
        carry, predictions = jax.lax.scan(step, carry, (frames[:-1], resets))
        return predictions, carry

    def loss(self, params, carry, frames, first, method):
        """Returns the mean squared error, to clip gradients at PredNet's norm."""
        total, result = super().loss(params, carry, frames, first, method)
        return total / result.scored.sum(), result


WALK = ConvLstm(24, 32, 3, "varied_walk")
