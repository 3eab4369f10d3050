"""The table, the CSV file and the figures of `saddle_escape`."""

import csv
import io
import itertools
import math
import textwrap

import numpy as np
from matplotlib.figure import Figure

from prednet_jax import statistics
from prednet_jax.report.documents import columns
from prednet_jax.report.theme import plain_png
from prednet_jax.studies.saddle_escape import (
    EVENTS,
    QUIET,
    SETTLE,
    Group,
    cases,
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
    functions = list(dict.fromkeys(g["function"] for g in groups))
    columns = list(dict.fromkeys((g["form"], g["precision"]) for g in groups))
    size = (3.2 * len(columns) + 0.6, 2.1 * len(functions) + 1.1)
    figure = Figure(figsize=size, layout="constrained")
    axes = figure.subplots(len(functions), len(columns), squeeze=False, sharey=True)
    by_place: dict[tuple, list[Group]] = {}
    for group in groups:
        place = (group["function"], group["form"], group["precision"])
        by_place.setdefault(place, []).append(group)
    for (i, function), (j, column) in itertools.product(
        enumerate(functions), enumerate(columns)
    ):
        ax = axes[i, j]
        ax.set_title(", ".join((function, *column)), fontsize=8)
        # Later lines are thinner, so that equal curves stay visible.
        for rank, group in enumerate(by_place[function, *column]):
            times, left = statistics.survival_curve(
                group["arrival_steps"], group["arrived"]
            )
            ax.step(
                np.concatenate([[1], times, [budget]]),
                np.concatenate([[1], left, left[-1:]]),
                where="post",
                label="no noise" if group["noise"] == QUIET else group["noise"],
                linewidth=3.5 * 0.65**rank,
            )
        ax.set(xscale="log", xlim=(SETTLE, budget), ylim=(-0.05, 1.05))
        ax.tick_params(labelsize=7)
    for ax in axes[-1]:
        ax.set_xlabel("steps", fontsize=8)
    for ax in axes[:, 0]:
        ax.set_ylabel("not past all saddles", fontsize=8)
    handles, labels = axes[0, 0].get_legend_handles_labels()
    figure.suptitle(groups[0]["optimizer"].replace("_", " "), fontsize=10)
    figure.legend(handles, labels, loc="outside lower center", ncols=2, fontsize=8)
    return plain_png(figure, dpi=130)


def predicted_figure(groups: list[Group], budget: int) -> bytes:
    """PNG: measured against predicted escape times, one point per run."""
    figure = Figure(figsize=(5.5, 5), layout="constrained")
    ax = figure.subplots()
    names = dict.fromkeys(g["optimizer"] for g in groups)
    for name, marker in zip(names, "o^sv", strict=False):
        points = [
            (expected, steps)
            for g in groups
            if g["optimizer"] == name
            for expected, steps, left in zip(
                g["predicted_steps"], g["escape_steps"], g["escaped"], strict=True
            )
            if left and expected is not None and math.isfinite(expected)
        ]
        if points:
            text = name.replace("_", " ")
            if name == "adam":
                text += ", no noise: radius / rate"
            x, y = zip(*points, strict=True)
            ax.scatter(x, y, s=12, alpha=0.4, marker=marker, label=text)
    ax.plot([1, budget], [1, budget], color="grey", linewidth=0.8)
    ax.set(
        xscale="log",
        yscale="log",
        xlabel="predicted steps to leave the first saddle",
        ylabel="measured",
    )
    if ax.collections:
        ax.legend(fontsize=8)
    return plain_png(figure, dpi=130)
