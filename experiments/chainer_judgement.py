"""Evaluates the records of the stale-target studies: pure functions of their rows."""

import math
from collections.abc import Mapping, Sequence

import _rows
import numpy as np
from scipy import stats

Rows = Sequence[Mapping[str, str]]
Condition = tuple[str, str, str]
NOT_MEASURED = ("not measured", 0, "open")
# (window, speed, rate) of the base condition, as text like in the tables. The other
# conditions vary one of the three.
BASE: Condition = ("10", "1", "0.001")
# Window and rate of the models from which the limit of the fingerprint is taken: those
# of the published script.
REFERENCES = (("20", "0.001"),)


def groups(finals: Mapping[str, Mapping[str, str]]) -> dict[str, str]:
    """For each arm the first arm that ends in the same weights on every seed.

    Args:
        finals: SHA-256 of the final weights, by arm and seed.
    """
    found = {}
    for arm, ends in finals.items():
        for first, others in finals.items():
            common = ends.keys() & others.keys()
            if common and all(ends[seed] == others[seed] for seed in common):
                found[arm] = first
                break
    return found


def gaps(runs: Rows) -> dict[Condition, dict[str, float]]:
    """log(loss stale / loss true) by condition and seed, if both were run."""
    loss: dict[tuple, dict[str, float]] = {}
    for row in runs:
        place = (row["window"], row["speed"], row["rate"], row["seed"])
        loss.setdefault(place, {})[row["targets"]] = float(row["loss"])
    out: dict[Condition, dict[str, float]] = {}
    for (*condition, seed), by in loss.items():
        if len(by) == 2:
            gap = math.log(by["stale"] / by["true"])
            out.setdefault(tuple(condition), {})[seed] = gap  # type: ignore[arg-type]
    return out


def interval(values: Sequence[float]) -> tuple[float, float, float]:
    """Lower end, mean and upper end of the 95 % t interval; infinite for one value."""
    middle = float(np.mean(values))
    if len(values) < 2:
        return -math.inf, middle, math.inf
    half = stats.t.ppf(0.975, len(values) - 1) * stats.sem(values)
    return middle - float(half), middle, middle + float(half)


def judge(runs: Rows, positions: Rows, horizons: Rows) -> dict[str, tuple]:
    """`(measured, seeds, verdict)` of each prediction in predictions.json, by id."""
    gap = gaps(runs)

    def grows(low: Condition, high: Condition) -> list[float]:
        one, other = gap.get(low, {}), gap.get(high, {})
        return [other[s] - one[s] for s in sorted(one.keys() & other.keys())]

    def values(condition: Condition) -> list[float]:
        return list(gap.get(condition, {}).values())

    def at(window: str = "10", speed: str = "1", rate: str = "0.001") -> Condition:
        return window, speed, rate

    ahead = log_ratios(horizons)
    return {
        "window_1": exact(runs, at(window="1")),
        "static": exact(runs, at(speed="0")),
        "window_10": above(values(BASE)),
        "window_2_to_5": above(grows(at("2"), at("5"))),
        "window_5_to_10": above(grows(at("5"), BASE)),
        "window_10_to_20": above(grows(BASE, at("20"))),
        "speed_1_to_2": above(grows(BASE, at(speed="2"))),
        "rate_0.0003": above(values(at(rate="0.0003"))),
        "rate_0.003": above(values(at(rate="0.003"))),
        "position": above(position_contrast(positions)),
        "horizon_1": above([s[1] for s in ahead]),
        "horizon_5": above([-s[5] for s in ahead]),
        "slope": above([s[1] - s[5] for s in ahead]),
    }


def exact(runs: Rows, condition: Condition) -> tuple[str, int, str]:
    """Whether both kinds of target end in the same bits on every seed."""
    rows = [r for r in runs if (r["window"], r["speed"], r["rate"]) == condition]
    ends = _rows.by(rows, "seed", "targets", value="final_sha256")
    pairs = [len(set(both.values())) == 1 for both in ends.values() if len(both) == 2]
    if not pairs:
        return NOT_MEASURED
    words = f"equal on {sum(pairs)} of {len(pairs)}"
    return words, len(pairs), "came true" if all(pairs) else "false"


def above(values: Sequence[float]) -> tuple[str, int, str]:
    """Judges a quantity predicted to be above 0, by the rule in predictions.json."""
    if not values:
        return NOT_MEASURED
    low, middle, high = interval(values)
    verdict = "came true" if low > 0 else "false" if high < 0 else "undecided"
    return f"{middle:+.3f} [{low:+.3f}, {high:+.3f}]", len(values), verdict


def position_contrast(positions: Rows, window: int = 10) -> list[float]:
    """Mean log ratio over the first half of the positions minus the second half."""
    loss: dict[str, dict[tuple[str, int], float]] = {}
    for row in positions:
        if int(row["window"]) == window:
            place = (row["targets"], int(row["position"]))
            loss.setdefault(row["seed"], {})[place] = float(row["loss"])
    out = []
    for by in loss.values():
        if len(by) == 2 * window:
            ratio = [
                math.log(by["stale", i] / by["true", i]) for i in range(1, window + 1)
            ]
            half = window // 2
            out.append(float(np.mean(ratio[:half]) - np.mean(ratio[half:])))
    return out


def log_ratios(horizons: Rows) -> list[dict[int, float]]:
    """log(MSE stale / MSE true) by horizon, one dictionary per seed, at `BASE`."""
    models = by_model(horizons)
    out = []
    for (seed, targets, window, rate), mse in models.items():
        other = models.get((seed, "true", window, rate))
        if targets == "stale" and other and (window, rate) == (BASE[0], BASE[2]):
            out.append({k: math.log(mse[k] / other[k]) for k in mse})
    return out


def by_model(horizons: Rows) -> dict[tuple, dict[int, float]]:
    """MSE by horizon of each model `(seed, targets, window, rate)`."""
    out: dict[tuple, dict[int, float]] = {}
    for row in horizons:
        model = (row["seed"], row["targets"], row["window"], row["rate"])
        out.setdefault(model, {})[int(row["horizon"])] = float(row["mse"])
    return out


def slope(mse: Mapping[int, float]) -> float:
    """The fingerprint: log(MSE against the frame five ahead / against the next frame).

    It is small for a prediction that is pulled towards later frames.
    """
    return math.log(mse[5] / mse[1])


def false_alarms(horizons: Rows) -> list[bool]:
    """For each reference model with true targets, whether it is called stale.

    Each is judged by the limit from the other seeds.
    """
    return [
        slope(mse) < threshold(horizons, leave_out=seed)
        for (seed, targets, *where), mse in by_model(horizons).items()
        if targets == "true" and tuple(where) in REFERENCES
    ]


def threshold(horizons: Rows, leave_out: str | None = None) -> float:
    """The limit: half way between the mean slopes of true and stale models.

    Args:
        horizons: rows of the reference models.
        leave_out: a seed whose models are not used.
    """
    values: dict[str, list[float]] = {"true": [], "stale": []}
    for (seed, targets, *where), mse in by_model(horizons).items():
        if seed != leave_out and tuple(where) in REFERENCES:
            values[targets].append(slope(mse))
    return float(np.mean(values["true"]) + np.mean(values["stale"])) / 2


def fingerprint_table(horizons: Rows) -> list[tuple]:
    """How many models of each kind are called stale, by the limit from other seeds."""
    calls: dict[str, list[bool]] = {}
    for (seed, targets, window, rate), mse in by_model(horizons).items():
        name = f"{targets} targets, window {window}, rate {float(rate):g}"
        if len({model[0] for model in by_model(horizons)}) < 2:
            return []  # No other seed to take the limit from.
        stale = slope(mse) < threshold(horizons, leave_out=seed)
        calls.setdefault(name, []).append(stale)
    rows = []
    for name, called in sorted(calls.items()):
        low, high = proportion(sum(called), len(called))
        rows.append((name, len(called), sum(called), f"{low:.2f} to {high:.2f}"))
    return rows


def proportion(count: int, total: int) -> tuple[float, float]:
    """Clopper-Pearson interval, 95 %, of a proportion."""
    found = stats.binomtest(count, total).proportion_ci(0.95, method="exact")
    return float(found.low), float(found.high)
