"""Trained networks that come with the package (`experiments/ship_weights.py`).

In prednet_jax/pretrained/, NAME.npz has the arrays as a run's weights.npz has them, and
NAME.json says what they are.
"""

import hashlib
from pathlib import Path
from typing import Any

from prednet_jax import files, records, tasks
from prednet_jax.config import PredNetConfig
from prednet_jax.errors import UserError
from prednet_jax.weights.arrays import as_parameters

FOLDER = Path(__file__).parents[1] / "pretrained"


def pretrained(name: str = "walk") -> tuple[PredNetConfig, dict]:
    """A trained network, ready to predict, and its float32 parameters.

    `walk` was trained on walks through photographs; another is `moving_digits`. Raises
    a UserError if there is no such network, or its file is damaged.
    """
    about = manifest(name)
    path = FOLDER / f"{name}.npz"
    if hashlib.sha256(files.read_bytes(path)).hexdigest() != about["sha256"]:
        raise UserError(
            f"{path}: damaged; its SHA-256 is not the one in {name}.json; expected the "
            "file of this version: install the package again"
        )
    config = tasks.recorded(about["model"], about["network"]).config  # type: ignore[attr-defined]
    # Its SHA-256 says that these are the arrays that were trained.
    return config, as_parameters(config, records.read_tree(path))


def pretrained_names() -> tuple[str, ...]:
    """Names of the networks that come with the package."""
    return tuple(sorted(path.stem for path in FOLDER.glob("*.json")))


def manifest(name: str) -> dict[str, Any]:
    """What NAME.json says of a network."""
    if name not in pretrained_names():
        known = ", ".join(pretrained_names()) or "none in this version"
        raise UserError(f"name={name!r}: no such trained network; known are: {known}")
    return records.read_json(FOLDER / f"{name}.json")
