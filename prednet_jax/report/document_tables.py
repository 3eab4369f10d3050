"""What the documents' tables show, each a function of one record."""

from collections.abc import Mapping, Sequence
from typing import Any

from prednet_jax.report.documents import markdown
from prednet_jax.report.numbers import MISSING, interval, probability, significant
from prednet_jax.report.results import contrasts


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
        for one in contrasts(verdict, model):
            difference = significant(one["mean_difference"], sign=True)
            same = one.get("bitwise_equal")
            rows.append(
                (
                    model,
                    one["treatment"],
                    str(one["n"]),
                    significant(one.get("treatment_mean"), 4),
                    f"{difference} {interval(one['ci_low'], one['ci_high'])}",
                    probability(one["p_holm"]),
                    probability(one["tost_p"]),
                    one["verdict"],
                    MISSING if same is None else f"{same}/{one['n']}",
                )
            )
        rows.append(
            (f"**{model}**", "**does noise help?**", *[""] * 5, f"**{word}**", "")
        )
    return markdown(head, rows)


def noise_cost(record: Mapping[str, Any]) -> str:
    """Time and compile time of noisy steps over the clean step's.

    Args:
        record: what `experiments/benchmark.py --suite=noise` prints.
    """
    head = ("noise", "time, of the clean step", "time to compile, of the clean step's")
    rows = [
        (f"`{row['noise']}`", f"{row['time_ratio']:.2f}", f"{row['compile_ratio']:.2f}")
        for row in record["rows"]
        if row["noise"] != "none"
    ]
    return markdown(head, rows)


def gradient_noise(by_network: Mapping[str, Mapping[str, Any]]) -> str:
    """Spread and shift of the gradient under each noise, smallest to largest stage.

    Args:
        by_network: what `experiments/gradient_noise.py` wrote, by name of network.
    """
    head = ["noise"]
    for network in by_network:
        head += [f"{network}, spread", "shift"]
    texts = dict.fromkeys(
        row["noise"] for record in by_network.values() for row in record["rows"]
    )
    rows = []
    for text in texts:
        cells = [f"`{text}`"]
        for record in by_network.values():
            mine = [row for row in record["rows"] if row["noise"] == text]
            cells += [
                _range([row[name] for row in mine]) for name in ("spread", "shift")
            ]
        rows.append(cells)
    return markdown(head, rows)


def _range(values: Sequence[float]) -> str:
    return f"{min(values):.1e} to {max(values):.1e}"
