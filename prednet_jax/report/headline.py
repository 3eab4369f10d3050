"""The README's table: the results in a row each, with the command behind it."""

from collections.abc import Mapping, Sequence
from typing import Any

from prednet_jax.report.answers import display_name
from prednet_jax.report.documents import markdown
from prednet_jax.report.numbers import change, significant
from prednet_jax.report.results import contrasts, identical, relative

Record = Mapping[str, Any]
Rows = list[tuple[str, str, str]]


def headline(
    chainer: Sequence[Record],
    verdict: Record,
    study: Record | None,
    gradient: Mapping[str, Record],
    saddles: Record,
    cost: Record,
) -> str:
    """Results and their commands as Markdown.

    Args:
        chainer: rows of interventions_full.csv.
        verdict: verdict.json of the small comparison.
        study: verdict.json of the study; None: it has no verdict yet.
        gradient: what gradient_noise.py wrote, by network.
        saddles: what saddle_escape.py wrote.
        cost: what `benchmark.py --suite=noise` printed.
    """
    rows = [
        *_chainer(chainer),
        *_comparison(verdict),
        *(_study(study) if study else []),
        *_gradient(gradient),
        *_saddles(saddles),
        *_cost(cost),
    ]
    return markdown(("result", "figure", "command"), rows)


def _chainer(rows: Sequence[Record]) -> Rows:
    finals: dict[str, dict[str, str]] = {}
    for row in rows:
        finals.setdefault(row["seed"], {})[row["arm"]] = row["final_sha256"]
    same = sum(end["published"] == end["input copied"] for end in finals.values())
    other = sum(end["published"] != end["target copied"] for end in finals.values())
    command = "`make chainer ARGS=--full`"
    return [
        (
            "Chainer on a CPU, target's buffer copied: other final weights",
            f"{other} of {len(finals)} seeds",
            command,
        ),
        (
            "Chainer on a CPU, input's buffer copied: the same weights, bit for bit",
            f"{same} of {len(finals)} seeds",
            command,
        ),
    ]


def _comparison(verdict: Record) -> Rows:
    rows: Rows = []
    for model, word in verdict["verdict"].items():
        for one in contrasts(verdict, model):
            if one.get("role") not in ("treatment", "stale"):
                continue
            what = "stale targets" if one["role"] == "stale" else "random order of sums"
            rows.append(
                (
                    f"{display_name(model)}, loss with {what}",
                    _effect(one),
                    "`make compare`",
                )
            )
        question = f"{display_name(model)}: does noise help, by the rule?"
        rows.append((question, f"**{word}**", "`make compare`"))
    return rows


def _study(verdict: Record) -> Rows:
    command = "`experiments/study.py --part=C`"
    made = {(one["treatment"], one["control"]): one for one in verdict["contrasts"]}
    rows: Rows = []
    for arm, what in (
        ("reduction_order", "random order of sums"),
        ("reduction_order_run", "one fixed random order"),
        ("stale_targets", "stale targets"),
    ):
        if one := made.get((arm, "float32")):
            trainings = f"PredNet, long trainings, {one['n']} seeds"
            rows.append((f"{trainings}: loss with {what}", _effect(one), command))
    for word in verdict["verdict"].values():
        question = "PredNet, long trainings: does noise help, by the rule?"
        rows.append((question, f"**{word}**", "`make tables`"))
    return rows


def _effect(one: Record) -> str:
    """A difference in percent of the control's loss, with interval and finding."""
    if identical(one):
        return "0, bit for bit"
    mean, low, high = (
        100 * (relative(one, name) or 0)
        for name in ("mean_difference", "ci_low", "ci_high")
    )
    return f"{change(mean, low, high)}, {one['verdict']}"


def _gradient(records: Mapping[str, Record]) -> Rows:
    rows = []
    for model, record in records.items():
        spreads = [
            row["spread"] for row in record["rows"] if row["noise"] == "reduction_order"
        ]
        rows.append(
            (
                f"{display_name(model)}, spread of the gradient in random order, "
                "of its norm",
                f"{min(spreads):.1e} to {max(spreads):.1e}",
                "`experiments/gradient_noise.py`",
            )
        )
    return rows


def _saddles(record: Record) -> Rows:
    stuck, runs = 0, 0
    for group in record["groups"]:
        if group["form"] == "aligned" and group["noise"] == "none":
            stuck += group["escaped"].count(False)
            runs += len(group["escaped"])
    return [
        (
            "known saddles, aligned start, no noise: runs that never leave",
            f"{stuck} of {runs}",
            "`experiments/saddle_escape.py`",
        )
    ]


def _cost(record: Record) -> Rows:
    ratios = [
        row["time_ratio"]
        for row in record["rows"]
        if row["noise"].startswith("reduction_order")
    ]
    return [
        (
            "a training step with random order, time of the clean step",
            f"{significant(min(ratios))} to {significant(max(ratios))}",
            "`experiments/benchmark.py --suite=noise`",
        )
    ]
