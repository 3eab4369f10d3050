"""Tells whether a saved PredNet was probably trained on true or on stale targets.

    .venv/bin/python experiments/fingerprint.py WEIGHTS

Stale targets are later frames of the window, so a network trained on them predicts
something between the next frame and later ones. The network is shown a walk, and its
predictions of frame t are compared with frame t and with frame t + 4:

    slope = log(MSE against frame t + 4 / MSE against frame t)

A model is called stale if its slope is below a limit. The limit is half way between the
mean slopes of reference models trained on true and on stale targets, with the published
window and learning rate (results/chainer/fingerprint.csv, or --reference). The rate of
false alarms is that of the reference models with true targets, each judged by the limit
from the other seeds.

A network that has hardly learned predicts blur, which is equally far from every frame,
so it looks stale. So judge only models that were trained about as well as the
references, which have one size and length of training. For very different models, train
references of their own (experiments/stale_predictions.py), make a table of them
(--calibrate=FOLDER --reference=NEW.csv) and use that (--reference=NEW.csv).

WEIGHTS is a Chainer model file (npz) of the variant `watanabe`.
"""

import json
import sys
from pathlib import Path

import _rows
import chainer_judgement as judgement
import numpy as np
from stale_predictions import HORIZONS, UNSEEN, horizon_errors

from prednet_jax import PredNetConfig, weights

REFERENCE = Path(__file__).parents[1] / "results" / "chainer" / "fingerprint.csv"
# Number of walks; every model and every reference is shown the same ones.
WALKS = 4
FIELDS = ("seed", "targets", "window", "rate", "horizon", "mse")


def main() -> int:
    """Judges one file; the exit status."""
    parser = _rows.parser(__doc__)
    parser.add_argument("weights", metavar="WEIGHTS", nargs="?")
    parser.add_argument("--reference", type=Path, default=REFERENCE)
    parser.add_argument(
        "--calibrate", type=Path, help="folder of models: writes --reference from them"
    )
    args = parser.parse_args()
    if args.calibrate:
        calibrate(args.calibrate, args.reference)
        return 0
    if args.weights is None:
        parser.error("expected WEIGHTS, or --calibrate=FOLDER")
    try:
        config, params = weights.load_chainer(args.weights)
    except (ValueError, OSError) as error:
        parser.error(str(error))
    reference = _rows.read(args.reference)
    if not reference:
        parser.error(f"--reference={args.reference}: expected a table of models")
    print(json.dumps(judge(errors_of(params, config), reference)))
    return 0


def errors_of(params: dict, config: PredNetConfig) -> dict[int, float]:
    """MSE of a model's predictions by horizon, over the common walks."""
    errors = [horizon_errors(params, config, 2 * UNSEEN + i) for i in range(WALKS)]
    return dict(zip(HORIZONS, np.mean(errors, axis=0).tolist(), strict=True))


def calibrate(folder: Path, path: Path) -> None:
    """Writes the reference table from the models of experiments/stale_predictions.py.

    Args:
        folder: folder of the files SEED_TARGETS_WINDOW_RATE.model.
        path: the table to write.
    """
    rows = []
    for model in sorted(folder.glob("*.model")):
        where = dict(zip(FIELDS, model.stem.split("_"), strict=False))
        config, params = weights.load_chainer(model)
        for horizon, mse in errors_of(params, config).items():
            rows.append({**where, "horizon": horizon, "mse": f"{mse:.9g}"})
    _rows.write(path, rows, FIELDS)


def judge(mse: dict[int, float], reference: list[dict]) -> dict:
    """The verdict on one model.

    Args:
        mse: MSE of its predictions, by horizon.
        reference: rows of results/chainer/fingerprint.csv.

    Returns:
        A JSON object: `looks_like` (`true` or `stale`), the slope, the limit, the MSE
        of the model, the largest MSE of a reference model, and the rate of false alarms
        among the reference models, with its 95 % interval.
    """
    limit = judgement.threshold(reference)
    value = judgement.slope(mse)
    known = judgement.by_model(reference).items()
    alarms = judgement.false_alarms(reference)
    low, high = judgement.proportion(sum(alarms), len(alarms))
    return {
        "looks_like": "stale" if value < limit else "true",
        "slope": round(value, 4),
        "limit": round(limit, 4),
        "mse": round(mse[1], 5),
        "largest_reference_mse": round(
            max(m[1] for model, m in known if model[2:] in judgement.REFERENCES), 5
        ),
        "false_alarms": f"{sum(alarms)} of {len(alarms)}",
        "false_alarm_rate": [round(low, 3), round(high, 3)],
    }


if __name__ == "__main__":
    sys.exit(main())
