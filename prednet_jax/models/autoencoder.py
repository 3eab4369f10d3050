"""A dense autoencoder, the control experiment of arXiv 2109.01451.

    y = sigmoid(W_n relu(... relu(W_1 x + b_1) ...) + b_n)

The article trains such a network on MNIST with one image per batch and reports no
difference between CPU and GPU. It does not give the widths, so they are settings
(`AutoencoderConfig.hidden`).
"""

from collections.abc import Mapping

import jax
from jaxtyping import Array, Float

from prednet_jax.config import AutoencoderConfig
from prednet_jax.errors import UserError

Params = Mapping[str, Mapping[str, jax.Array]]


def reconstruct(
    params: Params, config: AutoencoderConfig, images: Float[Array, "B H W C"]
) -> Float[Array, "B H W C"]:
    """Encodes and decodes images, pixels in [0, 1], to (0, 1)."""
    expected = (config.height, config.width, config.channels)
    if images.ndim != 4 or tuple(images.shape[1:]) != expected:
        raise UserError(
            f"images of shape {tuple(images.shape)}: expected [B, H, W, C] with "
            f"H, W, C = {expected}"
        )
    x = images.reshape(images.shape[0], config.pixels)
    last = len(config.hidden)
    for i in range(last + 1):
        layer = params[f"dense_{i}"]
        x = x @ layer["kernel"] + layer["bias"]
        x = jax.nn.sigmoid(x) if i == last else jax.nn.relu(x)
    return x.reshape(images.shape)
