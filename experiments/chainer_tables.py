"""The tables and the figure of docs/chainer.md and docs/claims.md, from the records.

`blocks()` returns Markdown by the name in the documents' marks (`<!-- table: NAME -->`
.. `<!-- end -->`), `figures()` the files by path. Both only read results/chainer/.
"""

import json
import math
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

import _rows
import chainer_figure
import chainer_judgement as judgement
import chainer_plans as plans
import numpy as np
import transplant

from prednet_jax.report import documents

RESULTS = Path(__file__).parents[1] / "results" / "chainer"
NOT_MEASURED = "Not measured yet."
# The article compares 4 runs with 8; how often such a comparison is resampled.
DRAWS = 20_000
ARTICLE = (4, 8)


def read(name: str) -> list[dict]:
    """Rows of results/chainer/NAME.csv; none if there is no such record."""
    return _rows.read(RESULTS / f"{name}.csv")


def blocks() -> dict[str, str]:
    """Every block of the documents, by name."""
    makers: dict[str, Callable[[], str]] = {
        "chainer-recording": recording,
        "chainer-interventions": interventions,
        "chainer-bisection": bisection,
        "chainer-long": long_runs,
        "chainer-agreement": agreement,
        "chainer-transplant": transplanted,
        "chainer-predictions": predictions,
        "chainer-gaps": gaps,
        "chainer-fingerprint": fingerprint,
        "chainer-threads": threads,
        "chainer-others": others,
    }
    return {name: make() or NOT_MEASURED for name, make in makers.items()}


def figures() -> dict[str, bytes]:
    """Every figure of the documents, by its path from the project's root."""
    drawn = chainer_figure.draw(read("interventions_full"), read("bisection"))
    return {"docs/chainer.svg": drawn}


def table(header: Sequence[str], rows: Sequence[Iterable[object]]) -> str:
    """A Markdown table; empty text if there is no row."""
    if not rows:
        return ""
    return documents.markdown(header, [list(map(str, row)) for row in rows])


def recording() -> str:
    """Our training in Chainer compared with the recorded one."""
    words = {"copied": "copied", "aliased": "shared (as published, on a CPU)"}
    lines = [
        (
            words[row["targets"]],
            f"{row['arrays_equal']} of {row['arrays']}",
            f"{row['losses_equal']} of {row['losses']}",
            row["worst"],
        )
        for row in read("recording")
    ]
    head = (
        "target's buffer",
        "weight arrays equal bit for bit",
        "losses equal bit for bit",
        "worst distance / update",
    )
    return table(head, lines)


def interventions() -> str:
    """What each change does to the final weights, over all seeds."""
    finals = _rows.by(read("interventions_full"), "arm", "seed", value="final_sha256")
    groups = judgement.groups(finals)
    rows = []
    for arm, ends in finals.items():
        first = ends[min(ends, key=int)]
        rows.append(
            (arm, plans.MEANING[arm], groups[arm], f"`{first[:12]}`", len(ends))
        )
    head = ("arm", "what is changed", "same weights as", "seed 0", "seeds")
    return table(head, rows)


def bisection() -> str:
    """Final weights of both loops by release of Chainer."""
    finals = _rows.by(read("bisection"), "release", "arm", value="final_sha256")
    lines = []
    for release, ends in finals.items():
        gap = "no" if len(set(ends.values())) == 1 else "yes"
        shown = [f"`{ends[arm][:12]}`" for arm in plans.PAIR]
        lines.append((release, *shown, gap))
    return table(("Chainer", *plans.PAIR, "gap"), lines)


def long_runs() -> str:
    """Loss of published and copied targets at 64x48, by seed."""
    rows = []
    for seed, mean in _rows.by(read("long"), "seed", "arm", value="mean_loss").items():
        if len(mean) == 2:
            copied, stale = float(mean["target copied"]), float(mean["published"])
            shown = f"{copied:.5f}", f"{stale:.5f}", f"{stale / copied:.3f}"
            rows.append((seed, *shown))
    head = ("seed", "target copied", "published", "published / copied")
    return table(head, rows)


def agreement() -> str:
    """Distances between trainings in JAX and in Chainer, by update."""
    lines = []
    for update, both in _rows.by(read("agreement"), "update", "targets").items():
        true, stale = both["true"], both["stale"]
        lines.append((update, true["distance"], stale["distance"], true["gap"]))
    head = (
        "updates",
        "JAX true to Chainer copied",
        "JAX stale to Chainer published",
        "Chainer published to Chainer copied",
    )
    return table(head, lines)


def transplanted() -> str:
    """PyTorch with the buffer shared and copied."""
    rows = read("transplant")
    held = dict(transplant.check(rows))
    loss: dict[tuple, dict[str, list[float]]] = {}
    for row in rows:
        case = (row["network"], int(row["losses_per_update"]))
        by = loss.setdefault(case, {})
        by.setdefault(row["target"], []).append(float(row["mean_loss"]))
    lines = []
    for (network, every), by in loss.items():
        expected = "a gap" if every > 1 else "no gap"
        words = "differ" if every > 1 else "equal, bit for bit"
        verdict = held[f"{network}, {every} losses per update: {expected}"]
        ratio = np.mean(by["shared"]) / np.mean(by["copied"])
        found = words if verdict else "not as predicted"
        lines.append((network, every, found, f"{ratio:.3f}", len(by["shared"])))
    head = (
        "network",
        "losses per update",
        "final weights, shared and copied",
        "loss, shared / copied",
        "seeds",
    )
    return table(head, lines)


def predictions() -> str:
    """Each prediction, what was measured, and whether it came true."""
    text = json.loads((RESULTS / "predictions.json").read_text())["predictions"]
    found = judgement.judge(
        read("stale_runs"), read("stale_positions"), read("stale_horizons")
    )
    rows = [(p["text"], *found[p["id"]]) for p in text]
    return table(("prediction", "measured", "seeds", "verdict"), rows)


def gaps() -> str:
    """The gap in every condition."""
    rows = []
    for (window, speed, rate), values in judgement.gaps(read("stale_runs")).items():
        low, middle, high = judgement.interval(list(values.values()))
        shown = f"{math.exp(middle):.3f}"
        span = f"{math.exp(low):.3f} to {math.exp(high):.3f}"
        rows.append((window, speed, f"{float(rate):g}", shown, span, len(values)))
    head = ("window", "speed", "rate", "loss, stale / true", "95 % interval", "seeds")
    return table(head, rows)


def fingerprint() -> str:
    """How often models are called stale, by a limit from other seeds."""
    rows = judgement.fingerprint_table(read("fingerprint"))
    head = ("trained with", "models", "called stale", "95 % interval of the rate")
    return table(head, rows)


def threads() -> str:
    """Final weights and losses by the number of threads of the BLAS."""
    rows = [row for row in read("others") if row["study"] == "threads"]
    by = _rows.by(rows, "threads", "arm")
    processors = {row["processors"] for row in rows}
    lines = [
        (
            count,
            *(f"`{arms[arm]['final_sha256'][:12]}`" for arm in plans.PAIR),
            *(f"{float(arms[arm]['mean_loss']):.6f}" for arm in plans.PAIR),
        )
        for count, arms in by.items()
    ]
    head = ("threads", "published", "target copied", "loss, published", "copied")
    if not lines:
        return ""
    note = f"Processors of the machine: {', '.join(sorted(processors))}."
    return f"{table(head, lines)}\n\n{note}"


def others() -> str:
    """By other explanation: how much copied runs vary, compared with the gap."""
    by: dict[str, dict[str, list[float]]] = {}
    for row in read("others"):
        study = by.setdefault(row["study"], {})
        study.setdefault(row["arm"], []).append(float(row["mean_loss"]))
    lines = []
    for study, arms in by.items():
        if len(arms) < 2:
            continue
        copied, published = np.array(arms["target copied"]), np.array(arms["published"])
        varies = copied.max() / copied.min()
        gap = published.mean() / copied.mean()
        lines.append((study, len(copied), f"{varies:.6f}", f"{gap:.6f}"))
    head = (
        "explanation",
        "runs",
        "copied targets: largest / smallest loss",
        "published / copied",
    )
    made = table(head, lines)
    return f"{made}\n\n{chance(by['seeds'])}" if len(by.get("seeds", ())) == 2 else made


def chance(arms: dict[str, list[float]]) -> str:
    """How often 4 runs against 8 show as large a gap without any bug."""
    copied = np.array(arms["target copied"])
    gap = np.mean(arms["published"]) / copied.mean()
    few, many = ARTICLE
    if len(copied) < few + many:
        return f"{len(copied)} seeds are too few to resample {few} against {many}."
    # RandomState draws the same numbers in every version of NumPy.
    draw = np.random.RandomState(0)
    ratios = np.empty(DRAWS)
    for i in range(DRAWS):
        chosen = copied[draw.permutation(len(copied))[: few + many]]
        ratios[i] = chosen[:few].mean() / chosen[few:].mean()
    share = np.mean(ratios >= gap)
    return (
        f"Four runs against eight, drawn {DRAWS} times from the {len(copied)} seeds "
        f"with copied targets: in {100 * share:.1f} % the four had a mean loss at "
        f"least {gap:.4f} times that of the eight, which is the ratio of published to "
        "copied over the same seeds."
    )
