"""What the documents' tables show, each a function of one record."""

from collections.abc import Mapping, Sequence
from typing import Any

from prednet_jax.report.documents import markdown
from prednet_jax.report.numbers import MISSING, significant
from prednet_jax.report.results import contrasts
from prednet_jax.report.tables import text_row


def comparison(verdict: Mapping[str, Any]) -> str:
    """The contrasts of a verdict.json and the verdict of each network.

    Args:
        verdict: the content of verdict.json.
    """
    head = (
        "network",
        "arm",
        "n",
        "mean loss",
        "difference [95 %]",
        "p (Holm)",
        "p (equivalence)",
        "finding",
        "same bits",
    )
    rows: list[Sequence[str]] = []
    for model, word in verdict["verdict"].items():
        rows += [(model, *text_row(one)) for one in contrasts(verdict, model)]
        rows.append(
            (f"**{model}**", "**does noise help?**", *[""] * 5, f"**{word}**", "")
        )
    return markdown(head, rows)


def again(verdict: Mapping[str, Any], other: Mapping[str, Any]) -> str:
    """The same comparison on another processor: losses of each arm, and findings.

    Args:
        verdict: the content of verdict.json.
        other: that of the other processor.
    """
    processors = [one["design"]["device"]["processor"] for one in (verdict, other)]
    findings = [
        {(one["model"], one["treatment"]): one["verdict"] for one in found["contrasts"]}
        for found in (verdict, other)
    ]
    rows = []
    for model, arms in verdict["losses"].items():
        for arm, seeds in arms.items():
            differ = max(
                abs(there / here - 1)
                for seed, draws in seeds.items()
                for here, there in zip(
                    draws, other["losses"][model][arm][seed], strict=True
                )
            )
            said = [found.get((model, arm), MISSING) for found in findings]
            largest = f"{100 * differ:.2g} %" if differ else "same bits"
            rows.append((model, arm, largest, *said))
        words = (f"**{found['verdict'][model]}**" for found in (verdict, other))
        rows.append((f"**{model}**", "**does noise help?**", "", *words))
    head = ("network", "arm", "largest difference of a loss", *processors)
    return markdown(head, rows)


def learning_curves(rows: Sequence[Mapping[str, Any]]) -> str:
    """Loss over that of copying the last frame, a row per number of updates.

    Args:
        rows: of the file that `experiments/learning_curve.py` wrote.
    """
    seeds = sorted({int(row["seed"]) for row in rows})
    cells: dict[int, dict[int, str]] = {}
    for row in rows:
        ratio = float(row["loss"]) / float(row["copy_last_frame_loss"])
        cells.setdefault(int(row["update"]), {})[int(row["seed"])] = f"{ratio:.2f}"
    head = ["updates", *(f"seed {seed}" for seed in seeds)]
    lines = [
        [f"{update}", *(of.get(seed, "") for seed in seeds)]
        for update, of in sorted(cells.items())
    ]
    return markdown(head, lines, numbers=len(head))


def verdict_rates(records: Sequence[Mapping[str, Any]]) -> str:
    """Rates of the verdicts in percent, a row per truth.

    Args:
        records: of `statistics.rates.simulate`, or rows of its CSV file.
    """
    seeds = sorted({int(record["seeds"]) for record in records})
    rows: dict[tuple[str, str, str], dict[int, str]] = {}
    for record in records:
        row = rows.setdefault((record["truth"], record["shape"], record["answer"]), {})
        row[int(record["seeds"])] = " / ".join(
            f"{100 * float(record[name]):.1f}"
            for name in ("supported", "refuted", "inconclusive")
        )
    head = [
        "truth",
        "scatter of the losses",
        "right answer",
        *(f"{n} seeds" for n in seeds),
    ]
    lines = [[*key, *(row.get(n, "") for n in seeds)] for key, row in rows.items()]
    return markdown(head, lines, numbers=len(seeds))


def interval_coverage(records: Sequence[Mapping[str, Any]]) -> str:
    """Rates of coverage and of false equivalence in percent, a row per record.

    Args:
        records: of `statistics.coverage.simulate`, or rows of its CSV file.
    """
    rates = [name for name in records[0] if name.endswith(("coverage", "level"))]
    head = [name.replace("_", " ") for name in ("differences", "seeds", *rates)]
    rows = [
        [r["differences"], str(r["seeds"])]
        + [f"{100 * float(r[name]):.1f}" for name in rates]
        for r in records
    ]
    return markdown(head, rows, numbers=len(head) - 1)


def hostile_inputs(record: Mapping[str, Any]) -> str:
    """What train.py said of each input that should not be trusted.

    Args:
        record: what `experiments/hostile_inputs.py` wrote.
    """
    rows = []
    for row in record["rows"]:
        said = row["said"].removeprefix("train.py: ") if row["status"] else "trains"
        # The reason; what would be accepted instead is the same again and again.
        reason = said.split("; accepted")[0].split("; expected")[0]
        shown = reason if len(reason) <= 110 else f"{reason[:107]}..."
        rows.append(
            (
                row["input"],
                str(row["status"]),
                shown.replace("|", "\\|").replace("*", "\\*").replace("~", "\\~"),
                "yes" if row["as_expected"] else "**no**",
            )
        )
    return markdown(("input", "status", "what it says", "as it should"), rows)


def saddles(record: Mapping[str, Any]) -> str:
    """Runs that have not passed every saddle, a row per group of runs.

    Args:
        record: what `experiments/saddle_escape.py` wrote.
    """
    head = ("function", "optimizer", "precision", "form", "noise", "not past all")
    rows = [
        (
            *(group[name].replace("_", " ") for name in head[:4]),
            "none" if group["noise"] == "none" else f"`{group['noise']}`",
            f"{group['arrived'].count(False)} of {len(group['arrived'])}",
        )
        for group in record["groups"]
    ]
    return _with_command(markdown(head, rows), record)


def curvature(record: Mapping[str, Any]) -> str:
    """Extreme eigenvalues along training and what noise could save, a row per stop.

    Args:
        record: what `experiments/probe_curvature.py` wrote.
    """
    head = (
        "network",
        "update",
        "loss",
        "lowest, raw",
        "highest, raw",
        "lowest, Adam",
        "highest, Adam",
        "negative",
        "noise for one update",
    )
    rows = []
    for row in record["rows"]:
        raw, scaled = row["raw"], row["preconditioned"]
        values = (raw["lowest"], raw["highest"], scaled["lowest"], scaled["highest"])
        escape = row["escape"]
        rows.append(
            (
                row["model"],
                str(row["update"]),
                significant(row["loss"]),
                *(significant(value) for value in values),
                "proved" if scaled["negative_curvature_proved"] else "not found",
                significant(escape["noise_for_one_update"], 2) if escape else MISSING,
            )
        )
    return _with_command(markdown(head, rows), record)


def _with_command(table: str, record: Mapping[str, Any]) -> str:
    return f"{table}\n\n```\n{record['command']}\n```"
