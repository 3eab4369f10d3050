"""Decides whether a saved PredNet was trained on true or on stale targets.

Stale targets are later frames of the window, so a network trained on them predicts
something between the next frame and later ones. A model is shown a walk, and its
predictions of frame t are compared with frame t and with frame t + 4 (`slope`), and the
result is compared with models whose targets are known
(results/chainer/fingerprint.csv).
"""

import math
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pandas as pd

from prednet_jax import PredNetConfig, predict, weights
from prednet_jax.data import open_source
from prednet_jax.errors import UserError

# Window and rate of the models that give the limit, as in the published script.
REFERENCE = ("20", "0.001")
# Seeds of the walks, on which no model was trained.
WALKS = range(200_000, 200_004)
# Frames of a walk that are shown, and how many at its start are not counted.
_LENGTH, _SKIP = 400, 20


def errors_by_model(table: pd.DataFrame) -> pd.DataFrame:
    """Returns the MSE of reference models `(targets, seed)`, a column per horizon."""
    window, rate = REFERENCE
    chosen = table[(table["window"] == window) & (table["rate"] == rate)]
    index = ["targets", "seed"]
    return chosen.pivot(index=index, columns="horizon", values="mse").astype(float)


def threshold(slopes: pd.Series, *without: str) -> float:
    """Returns the midpoint of other seeds' mean true and mean stale slopes."""
    known = slopes.drop(list(without), level="seed")
    return float(known.groupby("targets").mean().mean())


def verdict(errors: dict[str, float], known: pd.DataFrame) -> dict[str, object]:
    """Calls a model with these MSE by horizon stale below the references' limit.

    The fingerprint is log(MSE against frame t + 4 / against frame t), small if targets
    were stale. The false alarms are the references with true targets that are called
    stale, each judged by the limit from the other seeds.
    """
    slopes = np.log(known["5"] / known["1"])
    limit, own = threshold(slopes), math.log(errors["5"] / errors["1"])
    of_true = slopes.xs("true", level="targets").items()
    alarms = [slope < threshold(slopes, str(seed)) for seed, slope in of_true]
    return {
        "looks_like": "stale" if own < limit else "true",
        "slope": round(own, 4),
        "limit": round(limit, 4),
        "mse": round(errors["1"], 5),
        "largest_reference_mse": round(float(known["1"].max()), 5),
        "false_alarms": f"{sum(alarms)} of {len(alarms)}",
    }


def errors_of(model: Path) -> dict[str, float]:
    """Returns the MSE of a Chainer model's predictions over the walks, by horizon.

    The predictions are made for frame t. "1" compares them with frame t, one ahead of
    the last frame seen, and "5" with frame t + 4.
    """
    config, params = weights.load_chainer(model)
    means = np.mean([_errors(params, config, seed) for seed in WALKS], axis=0)
    if not np.isfinite(means).all():
        raise UserError(f"{model}: predicts NaN or infinity; expected trained weights")
    return dict(zip(("1", "5"), means.tolist(), strict=True))


def _errors(params: dict, config: PredNetConfig, seed: int) -> list[float]:
    source = open_source("walk", height=config.height, width=config.width, seed=seed)
    frames = source.read(0, _LENGTH).astype(np.float32) / 255
    predictions = np.asarray(predict(params, config, jnp.asarray(frames[:, None]))[0])[
        :, 0
    ]
    stop = _LENGTH - 4
    return [
        float(np.square(predictions[_SKIP:stop] - frames[_SKIP + k : stop + k]).mean())
        for k in (0, 4)
    ]
