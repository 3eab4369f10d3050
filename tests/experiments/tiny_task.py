"""A third network, as a user would write one: a small convolutional predictor."""

import jax
import jax.numpy as jnp

from prednet_jax.tasks import Task


def convolve(x, kernel):
    return jax.lax.conv_general_dilated(
        x, kernel, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC")
    )


class Tiny(Task):
    """h <- tanh(conv([x, h])); the next frame is sigmoid(conv(h))."""

    frame = (8, 8, 3)
    width = 4

    def init_params(self, key):
        a, b = jax.random.split(key)
        channels = self.frame[2]
        return {
            "state": {"kernel": 0.2 * jax.random.normal(a, (3, 3, channels + 4, 4))},
            "frame": {"kernel": 0.2 * jax.random.normal(b, (3, 3, 4, channels))},
        }

    def initial_carry(self, batch, dtype):
        return jnp.zeros((batch, *self.frame[:2], self.width), dtype)

    def outputs(self, params, carry, frames, first):
        def step(h, x):
            seen = jnp.concatenate([x, h], axis=-1)
            h = jnp.tanh(convolve(seen, params["state"]["kernel"]))
            return h, jax.nn.sigmoid(convolve(h, params["frame"]["kernel"]))

        carry, predictions = jax.lax.scan(step, carry, frames[:-1])
        return predictions, carry


TINY = Tiny()
