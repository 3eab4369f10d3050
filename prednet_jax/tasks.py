"""Tasks: a network and its training, as one object.

Training and comparison ask a network through its `Task`, except for features that only
PredNet has. A new network is one file with a subclass of `Task`, perhaps outside this
package (docs/own_network.md). Here are PredNet and the article's control experiment.
"""

import abc
import ast
import contextlib
import dataclasses
import importlib
import importlib.machinery
import math
import os
import sys
from collections.abc import Mapping
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import optax

from prednet_jax import objectives, optimizers
from prednet_jax.config import AutoencoderConfig, PredNetConfig, convolutions
from prednet_jax.errors import UserError, expect, shown
from prednet_jax.models import convolution, prednet
from prednet_jax.models.parameters import init_params, parameter_shapes
from prednet_jax.models.products import operand
from prednet_jax.objectives import Method, WindowResult

__all__ = ["NAMED", "Adam", "AutoencoderTask", "Network", "PredNetTask", "Task", "of"]


class Adam(NamedTuple):
    """Settings of `optimizers.chainer_adam`: rate or schedule, and epsilon."""

    rate: float | optax.Schedule = 1e-3
    eps: float = 1e-8

    def at(self, update: int) -> float:
        """Returns the learning rate of an update; here updates count from 1."""
        return float(self.rate(update - 1)) if callable(self.rate) else self.rate


class Task(abc.ABC):
    """A network and its training; programs are compiled once per instance.

    Attributes:
        name: name in tables and manifests, by which `recorded` finds the task again.
        frame: height, width and channels of its frames; 1 or 3 channels.
        data: the default source of frames (`data.open_source`).
        windowed: whether an update sees a window of T transitions. If False it sees one
            image, which has no next frame and on which stale targets have no effect.
        fresh_windows: whether each window is a sequence, started from the zero state.
        warm_up: frames shown before the predictions that are kept as examples.
        weights: count of numbers in the parameters, to estimate memory. Defaults to 0,
            unknown.
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
        """Initialises float32 parameters: nested dictionaries of arrays."""

    def outputs(
        self, params: dict, carry: Any, frames: jax.Array, first: jax.Array
    ) -> tuple[jax.Array, Any]:
        """Returns the predictions of a window, and the state for the next window.

        `frames` are `[T + 1, B, H, W, C]` in [0, 1]; frame 0 is the last one of the
        window before, or a stand-in if `first`, a boolean scalar. The predictions `[T,
        B, H, W, C]` are of frames[1:]. If not `windowed`, frames and predictions are
        `[1, B, H, W, C]`.
        """
        raise NotImplementedError(
            f"{type(self).__name__} defines neither `outputs` nor `loss` and "
            "`predict`; define one of the two"
        )

    def initial_carry(self, batch: int, dtype: jnp.dtype) -> Any:
        """Returns the state before the first window, or None without a state."""
        del batch, dtype

    def loss(
        self,
        params: dict,
        carry: Any,
        frames: jax.Array,
        first: jax.Array,
        method: Method,
    ) -> tuple[jax.Array, WindowResult]:
        """Returns the loss of an update, here `objectives.squares` of `outputs`."""
        carry = objectives.cut(carry, first)
        predictions, carry = self._checked_outputs(params, carry, frames, first)
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
        prednets = (
            *("objective", "layer_weights", "truncation_leak", "extrapolate_from"),
            "rematerialize",
        )
        for name in prednets:
            if getattr(method, name):
                raise UserError(
                    f"{name}={getattr(method, name)!r} has no effect with "
                    f"model={self.name}, only with prednet; leave it out"
                )

    def adam(self, updates: int) -> Adam:
        """Returns the settings of the published Adam for a number of updates."""
        del updates
        return Adam()

    def optimizer(self, updates: int) -> optax.GradientTransformation:
        """Returns the default optimiser."""
        rate, eps = self.adam(updates)
        return optimizers.chainer_adam(rate, eps=eps)

    def predict(self, params: dict, frames: jax.Array) -> jax.Array:
        """Predicts each frame of `[T, H, W, C]` before it is seen; starts from zero."""
        carry = self.initial_carry(1, frames.dtype)
        if self.windowed:
            frames = jnp.concatenate([frames[:1], frames])
        inputs = params, carry, frames[:, None], jnp.asarray(True)
        return self._checked_outputs(*inputs)[0][:, 0]

    def _checked_outputs(
        self, params: dict, carry: Any, frames: jax.Array, first: jax.Array
    ) -> tuple[jax.Array, Any]:
        """Returns `outputs`, and refuses predictions that are unlike their frames."""
        predictions, carry = self.outputs(params, carry, frames, first)
        check_predictions(self, predictions, frames[1:] if self.windowed else frames)
        return predictions, carry

    def with_convolution(self, name: str, *, where: str | None = None) -> "Task":
        """Returns the network with another convolution; with `where`, in its place."""
        del name, where
        return self

    def network(self) -> dict[str, Any]:
        """Returns the network's settings, for the manifest."""
        return {}

    def algorithms(self, dtype: jnp.dtype, batch: int = 1) -> dict[str, str]:
        """Returns the algorithm of each convolution by name, if there is a choice."""
        del dtype, batch
        return {}

    def kept_values(self) -> int:
        """Returns a lower bound of the numbers kept for the gradient; 0 if unknown.

        The numbers that a step keeps for one sequence are counted.
        """
        return 0

    def settings(self) -> dict[str, Any]:
        """Returns the settings of `train.py` that select this network, by name."""
        return {"model": self.name}


def check_predictions(task: Task, predictions: Any, frames: Any) -> None:
    """Raises a UserError if predictions would be broadcast to their frames.

    Args:
        task: the network, for the message.
        predictions: expected to be floating point, [T, B, H, W, C].
        frames: the frames that they predict, [T, B, H, W, C].
    """
    like = jnp.shape(predictions) == frames.shape
    if not (like and jnp.issubdtype(jnp.result_type(predictions), jnp.floating)):
        raise UserError(
            f"{type(task).__name__} predicts {jnp.result_type(predictions)} of shape "
            f"{jnp.shape(predictions)}: expected floating point of shape {frames.shape}"
        )


@dataclasses.dataclass(unsafe_hash=True)
class Configured(Task):
    """A network of this package, which its configuration describes completely."""

    config: Any
    always: ClassVar[tuple[str, ...]] = ()

    def __post_init__(self) -> None:
        groups = parameter_shapes(self.config).values()
        self.weights = sum(math.prod(s) for group in groups for s in group.values())

    def init_params(self, key: jax.Array) -> dict:
        """Initialises parameters as published."""
        return init_params(self.config, key)

    def network(self) -> dict[str, Any]:
        """Returns the configuration."""
        return dataclasses.asdict(self.config)

    def settings(self) -> dict[str, Any]:
        """Returns the sizes of a PredNet, and settings that are not the default."""
        always = {n: getattr(self.config, n) for n in self.always}
        default = vars(type(self.config)(**always))
        chosen = vars(self.config).items()
        others = {n: value for n, value in chosen if value != default[n]}
        return {"model": self.name} | always | others


class PredNetTask(Configured):
    """The PredNet of `models.prednet`."""

    config: PredNetConfig
    name = "prednet"
    always = ("channels", "height", "width")

    def __post_init__(self) -> None:
        super().__post_init__()
        config = self.config
        self.frame = config.height, config.width, config.channels[0]
        # `lotter` was published with sequences of one window each.
        self.fresh_windows = config.pass_order == "lotter"

    def initial_carry(self, batch, dtype):
        """Returns the zero state."""
        return prednet.initial_state(self.config, batch, dtype)

    def loss(self, params, carry, frames, first, method):
        """Returns `objectives.window_loss`, by default of the published loss."""
        method = dataclasses.replace(method, objective=self._objective(method))
        return objectives.window_loss(params, self.config, carry, frames, first, method)

    def check(self, method):
        """Checks the method by `objectives.check`; see `Task`."""
        objectives.check(self.config, method, self._objective(method))

    def _objective(self, method: Method) -> str:
        published = "errors" if self.config.pass_order == "lotter" else "squares"
        return method.objective or published

    def adam(self, updates):
        """Returns Chainer's Adam; for `lotter` Keras's, with its schedule."""
        if self.config.pass_order == "lotter":
            return Adam(optimizers.lotter_schedule(updates), 1e-7)
        return Adam()

    def predict(self, params, frames):
        """Predicts one sequence by `models.prednet.predict`."""
        return prednet.predict(params, self.config, frames[:, None])[0][:, 0]

    def with_convolution(self, name, *, where=None):
        """Returns the task with another convolution; see `Task`."""
        if where not in (None, self.config.convolution):
            return self
        return PredNetTask(dataclasses.replace(self.config, convolution=name))

    def kept_values(self):
        """Counts inputs and outputs of convolutions, and the cells' values."""
        config = self.config
        count = 0
        for name, shape in convolutions(config).items():
            area = shape.height * shape.width
            kind, layer = name.rsplit("_", 1)
            if kind == "top_down":  # Its output is part of the gates', its input small.
                count += area // 4 * shape.in_channels
            else:
                count += area * (shape.in_channels + shape.out_channels)
            if kind == "gates":
                count += 6 * area * config.recurrent[int(layer)]
        return count

    def algorithms(self, dtype, batch=1):
        """Returns the algorithm of each convolution; `auto` is resolved."""
        return {
            name: convolution.resolve(shape, dtype, batch)
            for name, shape in convolutions(self.config).items()
        }


class AutoencoderTask(Configured):
    """A dense autoencoder, the control experiment of arXiv 2109.01451.

        y = sigmoid(W_n relu(... relu(W_1 x + b_1) ...) + b_n)

    The article trains it on MNIST with one image per batch and does not give the
    widths, so they are settings (`AutoencoderConfig.hidden`).
    """

    config: AutoencoderConfig
    name = "autoencoder"
    data = "digits"
    windowed = False
    warm_up = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        self.frame = self.config.height, self.config.width, self.config.channels

    def loss(self, params, carry, frames, first, method):
        """Returns squared errors of images `[T, B, H, W, C]`; T = 1: stale is true."""
        steps, batch = frames.shape[:2]
        flat = frames.reshape(steps * batch, *frames.shape[2:])
        outputs = self.predict(params, flat).reshape(frames.shape)
        frame_losses = jnp.square(outputs - frames).mean(axis=(1, 2, 3, 4))
        scored = jnp.ones(steps, frames.dtype)
        result = WindowResult(None, jax.lax.stop_gradient(frame_losses), scored)
        goal = frames[-1] if method.targets == "stale" else frames
        return jnp.square(outputs - goal).mean(axis=(1, 2, 3, 4)).sum(), result

    def predict(self, params, frames):
        """Reconstructs images `[B, H, W, C]` in [0, 1]; the result is in (0, 1)."""
        if frames.ndim != 4 or frames.shape[1:] != self.frame:
            raise UserError(
                f"images of shape {tuple(frames.shape)}: expected [B, H, W, C] with "
                f"H, W, C = {self.frame}"
            )
        x = frames.reshape(frames.shape[0], self.config.pixels)
        last = len(self.config.hidden)
        for i in range(last + 1):
            layer = params[f"dense_{i}"]
            product = operand(x) @ operand(layer["kernel"])
            x = product.astype(x.dtype) + layer["bias"]
            x = jax.nn.sigmoid(x) if i == last else jax.nn.relu(x)
        return x.reshape(frames.shape)

    def settings(self):
        """Returns the settings without the channels, which come from the images."""
        return {k: v for k, v in super().settings().items() if k != "channels"}


Network = Task | PredNetConfig | AutoencoderConfig
NAMED = {
    "prednet": (PredNetTask, PredNetConfig),
    "autoencoder": (AutoencoderTask, AutoencoderConfig),
}


def of(network: Network) -> Task:
    """Returns the task of a configuration, or a given task unchanged."""
    if isinstance(network, Task):
        return network
    for task, config in NAMED.values():
        if isinstance(network, config):
            return task(network)
    accepted = " or ".join(config.__name__ for _, config in NAMED.values())
    raise TypeError(
        f"network of type {type(network).__name__}: expected a Task, {accepted}"
    )


def recorded(model: str, network: Mapping[str, Any]) -> Task:
    """Returns the task that a manifest names, with its recorded settings."""
    check_recorded(model)
    if model not in NAMED:
        return load(model)
    told = network and isinstance(network, Mapping)
    expect(told, "network", network, f"the settings of {model}")
    task, config = NAMED[model]
    return task(config(**network))


def frame_size(task: Task) -> dict[str, Any]:
    """Returns height, width and channels of a frame, as sources take them."""
    return dict(zip(("height", "width", "channels"), task.frame, strict=True))


def check_recorded(model: str) -> None:
    """Refuses the name of a task, from a manifest, if its module may not be imported.

    A manifest may come from somebody else, and must not be able to run any installed
    module. So only a module that imports this package is accepted. This check reads the
    module's source and imports nothing.
    """
    if model in NAMED:
        return
    module, _ = _parts(model)
    search_path, spec = None, None
    for part in module.split("."):
        # importlib.util.find_spec would import the packages above it. Whole names would
        # make the paths of folders without __init__ look for what is not imported.
        spec = importlib.machinery.PathFinder.find_spec(part, search_path)
        search_path = list((spec and spec.submodule_search_locations) or [])
    package, nodes = __name__.partition(".")[0], []
    # A module that is no text, or that is not found, has no source.
    with contextlib.suppress(AttributeError, ImportError, SyntaxError, ValueError):
        source = spec.loader.get_source(spec.name)  # type: ignore[union-attr]
        nodes = list(ast.walk(ast.parse(source or "")))
    names = [n.module for n in nodes if isinstance(n, ast.ImportFrom) and not n.level]
    names += [a.name for n in nodes if isinstance(n, ast.Import) for a in n.names]
    own = package in {str(name).partition(".")[0] for name in names}
    wanted = f"{', '.join(NAMED)} or an object of a module that imports {package}"
    expect(own, "model", model, f"{wanted}; a record cannot have another one imported")


def load(name: str) -> Task:
    """Imports a task, `module:object`, from Python's path or the working directory.

    An error that the module raises when it runs is raised unchanged.
    """
    module, attribute = _parts(name)
    try:
        task = getattr(importlib.import_module(module), attribute, None)
    except SyntaxError as error:
        raise UserError(f"model={name!r}: {error}; expected Python") from None
    except ModuleNotFoundError as error:
        if error.name is None or not f"{module}.".startswith(f"{error.name}."):
            raise
        raise UserError(f"model={name!r}: no module {module}; {_ACCEPTED}") from None
    if not isinstance(task, Task):
        raise UserError(f"model={name!r}: found {shown(task)}; {_ACCEPTED}")
    task.name = name
    return task


_ACCEPTED = f"expected {', '.join(NAMED)} or module:object, a prednet_jax.tasks.Task"


def _parts(name: str) -> tuple[str, str]:
    """Splits a name into module and object; adds the working directory to the path."""
    module, _, attribute = str(name).partition(":")
    if not all(part.isidentifier() for part in (*module.split("."), attribute)):
        raise UserError(f"model={name!r}: {_ACCEPTED}")
    if os.getcwd() not in sys.path:
        sys.path.append(os.getcwd())
    return module, attribute
