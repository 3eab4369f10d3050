"""The table, the CSV file and the figures of `saddle_escape`."""

import csv
import io
import math
import textwrap

from scipy import stats

from prednet_jax.report import charts
from prednet_jax.report.documents import columns
from prednet_jax.studies.saddle_escape import (
    EVENTS,
    QUIET,
    SETTLE,
    Group,
    cases,
    censored,
    differs,
)

_WIDTH = 100


def text_table(groups: list[Group]) -> str:
    """One row per case: when the runs leave, and how many pass every saddle.

    Args:
        groups: the result of `saddle_escape.compare`.

    Returns:
        The table as text, under a legend.
    """
    names = list(dict.fromkeys(g["noise"] for g in groups))
    tests = sum(g[f"{event}_p"] is not None for g in groups for event in EVENTS)
    runs = len(groups[0]["escaped"])
    legend = (
        f"Medians of {runs} runs, in steps. Left: the first saddle, in brackets what "
        f"theory expects from the projection after {SETTLE} steps. Passed: runs past "
        f"every saddle. *: differs from the same runs without noise (log-rank, Holm "
        f"over {tests} tests, .05)."
    )
    lines = textwrap.wrap(legend, _WIDTH)
    lines += [f"  {i} = {name}" for i, name in enumerate(names)]
    head = ["function", "optimizer", "form", "precision"]
    head += [f"left {i}" for i in range(len(names))]
    head += [f"passed {i}" for i in range(len(names))]
    rows = [head]
    for key, same in cases(groups).items():
        mine = [same.get(name) for name in names]
        left = [_left(g) if g else "-" for g in mine]
        rows.append([*key, *left, *[_passed(g) if g else "-" for g in mine]])
    return "\n".join([*lines, "", columns(rows)])


def _left(group: Group) -> str:
    cell = _steps(group["escape_median"])
    expected = group["predicted_median"]
    if expected is not None and (math.isfinite(expected) or cell != "never"):
        cell += f" ({_steps(expected)})"
    return cell + "*" * differs(group, "escape")


def _passed(group: Group) -> str:
    return f"{sum(group['arrived'])}" + "*" * differs(group, "arrival")


def _steps(value: float) -> str:
    return "never" if math.isinf(value) else f"{value:.0f}"


def csv_table(groups: list[Group]) -> str:
    """One row per group; a time that is infinite or unknown is an empty field."""
    text = io.StringIO()
    names = [k for k, v in groups[0].items() if not isinstance(v, list)]
    counts = [*EVENTS.values(), "runs"]
    writer = csv.DictWriter(text, [*names, *counts], lineterminator="\n")
    writer.writeheader()
    for group in groups:
        row = {k: "" if group[k] == math.inf else group[k] for k in names}
        row |= {happened: sum(group[happened]) for happened in EVENTS.values()}
        writer.writerow(row | {"runs": len(group["escaped"])})
    return text.getvalue()


def survival_figure(groups: list[Group], budget: int) -> bytes:
    """PNG: fraction of runs not past every saddle against steps; one row per function.

    Args:
        groups: groups of one optimiser.
        budget: steps of a run.
    """
    rows = []
    for group in groups:
        panel = ", ".join((group["function"], group["form"], group["precision"]))
        noise = "no noise" if group["noise"] == QUIET else group["noise"]
        # Kaplan & Meier 1958, J. Am. Stat. Assoc. 53:457.
        left = stats.ecdf(censored(group["arrival_steps"], group["arrived"])).sf
        curve = [(1, 1), *zip(left.quantiles, left.probabilities, strict=True)]
        rows += [
            {"panel": panel, "noise": noise, "step": float(step), "left": float(share)}
            for step, share in [*curve, (budget, curve[-1][1])]
        ]
    names = list(dict.fromkeys(row["noise"] for row in rows))
    # Later lines are thinner, so that equal curves stay visible.
    width = {"domain": names, "range": [4 * 0.65**i for i in range(len(names))]}
    encoding = {
        "x": charts.channel("step", "steps", type="log", domain=[SETTLE, budget]),
        "y": charts.channel("left", "not past all saddles", domain=[0, 1]),
        "color": charts.names("noise"),
        "size": charts.names("noise", scale=width, legend=None),
    }
    curves = charts.layer("line", encoding, interpolate="step-after", clip=True)
    return charts.png(
        {
            "data": {"values": rows},
            "title": groups[0]["optimizer"].replace("_", " "),
            "facet": charts.names("panel"),
            "columns": len({(g["form"], g["precision"]) for g in groups}),
            "spec": {"width": 260, "height": 150, **curves},
        }
    )


def predicted_figure(groups: list[Group], budget: int) -> bytes:
    """PNG: measured against predicted escape times, one point per run."""
    rows = [
        {
            "optimizer": group["optimizer"].replace("_", " ")
            + (", no noise: radius / rate" if group["optimizer"] == "adam" else ""),
            "expected": expected,
            "steps": steps,
        }
        for group in groups
        for expected, steps, left in zip(
            group["predicted_steps"],
            group["escape_steps"],
            group["escaped"],
            strict=True,
        )
        if left and expected is not None and math.isfinite(expected)
    ]
    words = "predicted steps to leave the first saddle"
    x = charts.channel("expected", words, type="log")
    y = charts.channel("steps", "measured", type="log")
    kind = charts.names("optimizer")
    equal = [{"expected": end, "steps": end} for end in (1, budget)]
    dots = {"x": x, "y": y, "color": kind, "shape": kind}
    layers = [
        charts.layer("line", {"x": x, "y": y}, data=equal, color=charts.MUTED),
        charts.layer("point", dots, data=rows),
    ]
    return charts.png({"width": 400, "height": 360, "layer": layers})
