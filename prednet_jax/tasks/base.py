"""`Task`, the base class of every network that can be trained here."""

import abc
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from prednet_jax import objectives, optimizers
from prednet_jax.errors import UserError
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

        Args:
            params: the parameters.
            carry: the state after the window before; a tree like `initial_carry`'s.
            frames: `[T + 1, B, H, W, C]` in [0, 1]; frame 0 is the last one of the
                window before, or a stand-in if `first`. If not `windowed`:
                `[1, B, H, W, C]`.
            first: boolean scalar, whether the window starts a sequence.

        Returns:
            Predictions `[T, B, H, W, C]` of frames[1:] (if not `windowed`: of frames).
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
        targets = frames[1:] if self.windowed else frames
        return objectives.squares(
            *(predictions, targets, carry, first),
            stale=method.targets == "stale",
            stand_in=self.windowed,
        )

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
        """The same network with another convolution algorithm, if it has a choice.

        `name` is one of `config.CONVOLUTIONS`; with `where` only that one is replaced.
        """
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
