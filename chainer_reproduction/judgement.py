"""Evaluates the records of the stale-target studies: pure functions of their tables.

Tables are data frames of text, as `pandas.read_csv(path, dtype=str)` reads them. A
condition is (window, speed, rate), also as text.
"""

import math
from collections.abc import Sequence

import numpy as np
import pandas as pd
from scipy import stats

Condition = tuple[str, str, str]
CONDITION = ["window", "speed", "rate"]
# Window and rate of the models from which the limit of the fingerprint is taken: those
# of the published script.
REFERENCE = ("20", "0.001")


def log_ratio(rows: pd.DataFrame, index: list[str], value: str) -> pd.Series:
    """log(stale / true) of a column, by other columns."""
    both = rows.pivot(index=index, columns="targets", values=value).dropna()
    both = both.astype(float)
    return np.log(both["stale"] / both["true"])


def gaps(runs: pd.DataFrame) -> pd.Series:
    """log(loss stale / loss true) by condition and seed."""
    return log_ratio(runs, [*CONDITION, "seed"], "loss")


def interval(values: Sequence[float] | pd.Series) -> tuple[float, float, float]:
    """Lower end, mean and upper end of the 95 % t interval; infinite for one value."""
    middle = float(np.mean(values))
    if len(values) < 2:
        return -math.inf, middle, math.inf
    half = float(stats.t.ppf(0.975, len(values) - 1) * stats.sem(values))
    return middle - half, middle, middle + half


def judge(
    runs: pd.DataFrame, positions: pd.DataFrame, horizons: pd.DataFrame
) -> dict[str, tuple[str, int, str]]:
    """`(measured, seeds, verdict)` of each prediction in predictions.json, by id."""
    gap = gaps(runs)

    def at(window: str = "10", speed: str = "1", rate: str = "0.001") -> Condition:
        return window, speed, rate

    def grows(low: Condition, high: Condition) -> pd.Series:
        return (gap.loc[high] - gap.loc[low]).dropna()

    base = horizons[(horizons["window"] == "10") & (horizons["rate"] == "0.001")]
    ahead = log_ratio(base, ["seed", "horizon"], "mse").unstack("horizon")
    return {
        "window_1": exact(runs, at(window="1")),
        "static": exact(runs, at(speed="0")),
        "window_10": above(gap.loc[at()]),
        "window_2_to_5": above(grows(at("2"), at("5"))),
        "window_5_to_10": above(grows(at("5"), at())),
        "window_10_to_20": above(grows(at(), at("20"))),
        "speed_1_to_2": above(grows(at(), at(speed="2"))),
        "rate_0.0003": above(gap.loc[at(rate="0.0003")]),
        "rate_0.003": above(gap.loc[at(rate="0.003")]),
        "position": above(position_contrast(positions)),
        "horizon_1": above(ahead["1"]),
        "horizon_5": above(-ahead["5"]),
        "slope": above(ahead["1"] - ahead["5"]),
    }


def exact(runs: pd.DataFrame, condition: Condition) -> tuple[str, int, str]:
    """Whether both kinds of target end in the same bits on every seed."""
    rows = runs[(runs[CONDITION] == list(condition)).all(axis=1)]
    ends = rows.pivot(index="seed", columns="targets", values="final_sha256")
    equal = ends["stale"] == ends["true"]
    verdict = "came true" if equal.all() else "false"
    return f"equal on {equal.sum()} of {len(equal)}", len(equal), verdict


def above(values: Sequence[float] | pd.Series) -> tuple[str, int, str]:
    """Judges a quantity predicted to be above 0, by the rule in predictions.json."""
    low, middle, high = interval(values)
    verdict = "came true" if low > 0 else "false" if high < 0 else "undecided"
    return f"{middle:+.3f} [{low:+.3f}, {high:+.3f}]", len(values), verdict


def position_contrast(positions: pd.DataFrame, window: int = 10) -> pd.Series:
    """Mean log ratio over the first half of the positions minus the second half."""
    rows = positions[positions["window"] == str(window)]
    ratio = log_ratio(rows, ["seed", "position"], "loss").unstack("position")
    first = [str(i) for i in range(1, window // 2 + 1)]
    return ratio[first].mean(axis=1) - ratio.drop(columns=first).mean(axis=1)


#: Of the table of reference models.
COLUMNS = ("seed", "targets", "window", "rate", "horizon", "mse")


def errors_by_model(horizons: pd.DataFrame) -> pd.DataFrame:
    """MSE of each model `(seed, targets, window, rate)`, a column per horizon."""
    *index, horizon, mse = COLUMNS
    return horizons.pivot(index=index, columns=horizon, values=mse).astype(float)


def slope(errors: pd.DataFrame) -> pd.Series:
    """The fingerprint: log(MSE against frame t + 4 / MSE against frame t).

    Of predictions of frame t; it is small for one that is pulled towards later frames.
    """
    return np.log(errors["5"] / errors["1"])


def threshold(slopes: pd.Series, leave_out: str | None = None) -> float:
    """The limit: half way between the mean slopes of true and stale references.

    `leave_out` is a seed whose models are not used.
    """
    known = slopes.xs(REFERENCE, level=("window", "rate"))
    if leave_out is not None:
        known = known.drop(leave_out, level="seed")
    return float(known.groupby("targets").mean().mean())


def called_stale(slopes: pd.Series) -> pd.Series:
    """Whether each model is called stale, by the limit from the other seeds."""
    limits = [threshold(slopes, leave_out=model[0]) for model in slopes.index]
    return slopes < limits


def proportion(calls: pd.Series) -> tuple[float, float]:
    """Clopper-Pearson interval, 95 %, of the proportion of true values."""
    test = stats.binomtest(int(calls.sum()), len(calls))
    limits = test.proportion_ci(0.95, method="exact")
    return float(limits.low), float(limits.high)


def verdict(errors: dict[str, float], known: pd.DataFrame) -> dict[str, object]:
    """The fingerprint of a model with these MSE by horizon.

    A model is called stale if its slope is below the limit of the references `known`.
    The rate of false alarms, with its 95 % interval, is that of the references with
    true targets, each judged by the limit from the other seeds.
    """
    slopes = slope(known)
    limit, own = threshold(slopes), float(slope(pd.DataFrame([errors])).iloc[0])
    published = known.xs(REFERENCE, level=("window", "rate"))
    alarms = called_stale(slopes).xs(
        ("true", *REFERENCE), level=("targets", "window", "rate")
    )
    return {
        "looks_like": "stale" if own < limit else "true",
        "slope": round(own, 4),
        "limit": round(limit, 4),
        "mse": round(errors["1"], 5),
        "largest_reference_mse": round(float(published["1"].max()), 5),
        "false_alarms": f"{alarms.sum()} of {len(alarms)}",
        "false_alarm_rate": [round(end, 3) for end in proportion(alarms)],
    }
