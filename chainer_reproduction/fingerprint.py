"""Tells whether a saved PredNet was probably trained on true or on stale targets.

Stale targets are later frames of the window, so a network trained on them predicts
something between the next frame and later ones. The network is shown a walk, and its
predictions of frame t are compared with frame t and with frame t + 4:

    slope = log(MSE against frame t + 4 / MSE against frame t)

A model is called stale if its slope is below a limit. The limit is half way between the
mean slopes of reference models trained on true and on stale targets, with the published
window and learning rate (results/chainer/fingerprint.csv). The rate of false alarms is
that of the reference models with true targets, each judged by the limit from the other
seeds.

A network that has hardly learned predicts blur, which is equally far from every frame,
so it looks stale. So only models that were trained about as well as the references can
be judged.
"""

from pathlib import Path

import numpy as np
import pandas as pd

from chainer_reproduction import judgement
from chainer_reproduction.stale_predictions import HORIZONS, UNSEEN, horizon_errors
from prednet_jax import PredNetConfig, records, weights
from prednet_jax.errors import UserError

# Number of walks; every model and every reference is shown the same ones.
WALKS = 4


def errors_of(params: dict, config: PredNetConfig) -> dict[str, float]:
    """MSE of a model's predictions by horizon, over the common walks."""
    errors = [horizon_errors(params, config, 2 * UNSEEN + i) for i in range(WALKS)]
    names = map(str, HORIZONS)
    return dict(zip(names, np.mean(errors, axis=0).tolist(), strict=True))


def calibrate(folder: Path) -> list[dict[str, str]]:
    """A table of references.

    Args:
        folder: folder of the files SEED_TARGETS_WINDOW_RATE.model that
            `stale_predictions.measure` wrote.
    """
    rows = []
    for model in sorted(folder.glob("*.model")):
        seed, targets, window, rate = model.stem.split("_")
        where = {"seed": seed, "targets": targets, "window": window, "rate": rate}
        config, params = weights.load_chainer(model)
        for horizon, mse in errors_of(params, config).items():
            rows.append({**where, "horizon": horizon, "mse": f"{mse:.9g}"})
    if not rows:
        raise UserError(f"{folder}: expected files SEED_TARGETS_WINDOW_RATE.model")
    return rows


def judge(model: Path, reference: Path) -> dict[str, object]:
    """The verdict on one model.

    Args:
        model: a Chainer model file.
        reference: the table that `calibrate` made.

    Returns:
        A JSON object: `looks_like` (`true` or `stale`), the slope, the limit, the MSE
        of the model, the largest MSE of a reference model, and the rate of false alarms
        among the reference models, with its 95 % interval.
    """
    config, params = weights.load_chainer(model)
    known = judgement.errors_by_model(pd.DataFrame(records.read_csv(reference)))
    return verdict(errors_of(params, config), known)


def verdict(errors: dict[str, float], known: pd.DataFrame) -> dict[str, object]:
    """As `judge`, of a model's MSE by horizon and those of the reference models."""
    slopes = judgement.slope(known)
    limit = judgement.threshold(slopes)
    slope = float(judgement.slope(pd.DataFrame([errors])).iloc[0])
    published = known.xs(judgement.REFERENCE, level=("window", "rate"))
    alarms = judgement.called_stale(slopes).xs(
        ("true", *judgement.REFERENCE), level=("targets", "window", "rate")
    )
    low, high = judgement.proportion(alarms)
    return {
        "looks_like": "stale" if slope < limit else "true",
        "slope": round(slope, 4),
        "limit": round(limit, 4),
        "mse": round(errors["1"], 5),
        "largest_reference_mse": round(float(published["1"].max()), 5),
        "false_alarms": f"{alarms.sum()} of {len(alarms)}",
        "false_alarm_rate": [round(low, 3), round(high, 3)],
    }
