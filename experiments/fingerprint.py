"""Whether a saved PredNet looks trained on true or on stale targets.

    .venv/bin/python experiments/fingerprint.py WEIGHTS

Stale targets are later frames of the window, so a network trained on them predicts
something nearer to the future. Shown a walk, its predictions of frame t are compared
with the frames four before and four after t:

    asymmetry = log(MSE against frame t + 4 / MSE against frame t - 4)

Blur raises both errors alike; a pull towards the future lowers the asymmetry. A model
is called stale below the limit half way between the means of reference models trained
on true and on stale targets (results/chainer/stale_horizons.csv, or --reference). The
rate of false alarms is that of the reference models trained on true targets, each
judged by the limit of the other seeds.

The references are of one size and length of training; for models far from it, train
references of their own (experiments/stale_predictions.py) and give them.

WEIGHTS: a Chainer model file (npz) of the `watanabe` form.
"""

import argparse
import csv
import json
import sys
from pathlib import Path

import chainer_judgement as judgement
from stale_predictions import HORIZONS, UNSEEN, horizon_errors

from prednet_jax import weights

REFERENCE = Path(__file__).parents[1] / "results" / "chainer" / "stale_horizons.csv"


def main() -> int:
    """Judges one file; the exit status."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("weights", metavar="WEIGHTS")
    parser.add_argument("--reference", type=Path, default=REFERENCE)
    parser.add_argument(
        "--walks", type=int, default=4, help="walks shown; their errors are averaged"
    )
    args = parser.parse_args()
    try:
        config, params = weights.load_chainer(args.weights)
        with open(args.reference, newline="") as file:
            reference = list(csv.DictReader(file))
    except (ValueError, OSError) as error:
        parser.error(str(error))
    errors = sum(
        horizon_errors(params, config, 2 * UNSEEN + walk) for walk in range(args.walks)
    )
    print(json.dumps(judge(dict(zip(HORIZONS, errors, strict=True)), reference)))
    return 0


def judge(mse: dict[int, float], reference: list[dict]) -> dict:
    """The verdict on one model.

    Args:
        mse: of its predictions, by horizon.
        reference: rows of results/chainer/stale_horizons.csv.

    Returns:
        `looks_like` (`true` or `stale`), the asymmetry, the limit, and the rate of
        false alarms with its 95 % interval.
    """
    limit = judgement.threshold(reference)
    value = judgement.asymmetry(mse)
    alarms = judgement.false_alarms(reference)
    low, high = judgement.proportion(sum(alarms), len(alarms))
    return {
        "looks_like": "stale" if value < limit else "true",
        "asymmetry": round(value, 4),
        "limit": round(limit, 4),
        "false_alarms": f"{sum(alarms)} of {len(alarms)}",
        "false_alarm_rate": [round(low, 3), round(high, 3)],
    }


if __name__ == "__main__":
    sys.exit(main())
