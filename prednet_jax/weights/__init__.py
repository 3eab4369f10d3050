"""Import and export of published weight files."""

from prednet_jax.weights.chainer import load_chainer, save_chainer
from prednet_jax.weights.keras import load_keras

__all__ = ["load_chainer", "load_keras", "save_chainer"]
