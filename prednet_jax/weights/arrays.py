"""Checks of the arrays of any weight file, before a network is made of them."""

import contextlib
import os
import re
from collections.abc import Iterable, Iterator, Mapping

import jax
import jax.numpy as jnp
import numpy as np

from prednet_jax.config import PredNetConfig
from prednet_jax.data.images import PIXELS
from prednet_jax.errors import UserError
from prednet_jax.models.parameters import parameter_shapes

# Our gates i, f, o, g in the words of Chainer and Keras.
GATES = ("i", "f", "o", "c")
# Axes of an array by the last part of its name, in Chainer's, Keras's and PyTorch's.
_AXES = {"W": 4, "kernel": 4, "weight": 4, "b": 1, "bias": 1}


def check_arrays(path: str | os.PathLike, arrays: Mapping[str, np.ndarray]) -> None:
    """Refuses arrays of other types, of other numbers of axes, or not finite.

    Names end with /W, /kernel, /b, /bias, .weight or .bias, or the last two and a part
    of PyTorch's cell, such as .weight_ih. A UserError names the first such array.
    """
    for name, array in arrays.items():
        if array.dtype.kind != "f":
            raise UserError(
                f"{path}: {name} is {array.dtype}; expected floating-point numbers"
            )
        last = re.split(r"[/.]", name)[-1]
        axes = _AXES.get(re.sub(r"_[ihc]h$", "", last), array.ndim)
        if array.ndim != axes or not array.size:
            raise UserError(
                f"{path}: {name} of shape {array.shape}; expected {axes} axes, none "
                "of them empty"
            )
        with np.errstate(over="ignore"):
            finite = np.isfinite(array.astype(np.float32))
        if broken := array.size - int(finite.sum()):
            raise UserError(
                f"{path}: {name} holds {broken} values that are not finite in float32, "
                f"of {array.size}; expected trained weights"
            )


def of_one_network(
    path: str | os.PathLike, stored: Mapping[str, np.ndarray], pattern: re.Pattern
) -> dict[str, np.ndarray]:
    """Returns the arrays of one network, by the match of `pattern` in their names.

    Arrays of several networks, with different prefixes, are a UserError, and so are
    arrays that `check_arrays` refuses.
    """
    matches = {name: match for name in stored if (match := pattern.search(name))}
    prefixes = {name[: match.start("name")] for name, match in matches.items()}
    if len(prefixes) > 1:
        first, second = sorted(prefixes)[:2]
        raise UserError(
            f"{path}: holds {len(prefixes)} networks, below {first!r} and {second!r}; "
            "expected one"
        )
    arrays = {match["name"]: stored[name] for name, match in matches.items()}
    check_arrays(path, arrays)
    return arrays


def sizes(
    arrays: Mapping[str, np.ndarray], name: str, numbers: Iterable[int], axis: int
) -> tuple[int, ...]:
    """Returns an axis's size in each of the arrays named by a numbered template."""
    return tuple(arrays[name.format(i)].shape[axis] for i in numbers)


@contextlib.contextmanager
def reading(path: str | os.PathLike, expected: str) -> Iterator[None]:
    """Names the file in the error of a missing array or of another network."""
    try:
        yield
    except (KeyError, ValueError, IndexError) as error:
        missing = f"no array {error}" if isinstance(error, KeyError) else error
        raise UserError(f"{path}: {missing}; expected {expected}") from None


def for_fractions(config: PredNetConfig, params: Mapping, scale: float) -> dict:
    """Returns the weights, for frames in [0, 1], of a network for frames in [0, scale].

    Ahat_0 is divided by the scale, and kernels over E_0 are multiplied by it. Other
    values of the network do not change.
    """
    scaled = {name: dict(leaves) for name, leaves in params.items()}
    errors = np.ones(scaled["gates_0"]["kernel"].shape[2], np.float32)
    errors[config.recurrent[0] :] = scale
    scaled["gates_0"]["kernel"] = scaled["gates_0"]["kernel"] * errors[:, None]
    if config.layers > 1:
        scaled["features_0"]["kernel"] = scaled["features_0"]["kernel"] * errors[-1]
    scaled["prediction_0"] = {
        k: x / errors[-1] for k, x in params["prediction_0"].items()
    }
    return as_parameters(config, scaled)


def as_parameters(config: PredNetConfig, params: Mapping) -> dict:
    """Returns the float32 parameters; a missing array is a KeyError.

    Raises a UserError if an array is not one of the network's, or has another shape, or
    a frame has more than `PIXELS`, which the weights of `lotter` leave open.
    """
    if config.height * config.width > PIXELS:
        raise UserError(
            f"height={config.height}, width={config.width}: expected at most {PIXELS} "
            "pixels"
        )
    shapes = parameter_shapes(config)
    for name, leaves in shapes.items():
        for leaf, shape in leaves.items():
            actual = np.shape(params[name][leaf])
            if actual != shape:
                raise UserError(f"{name}/{leaf} of shape {actual}: expected {shape}")
        if others := sorted(params[name].keys() - leaves.keys()):
            raise UserError(f"{name}/{others[0]}: the network has no such array")
    if others := sorted(params.keys() - shapes.keys()):
        raise UserError(f"{others[0]}: the network has no such module")
    return jax.tree.map(lambda x: jnp.asarray(x, jnp.float32), dict(params))
