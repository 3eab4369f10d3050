"""The figure of docs/gpu.md: lines, coloured by what a GPU varies there."""

from collections.abc import Mapping
from typing import Any

from prednet_jax.report import charts

#: What a line varies by, worst first, as `noise.audit` has it: colour and words.
VARIES = {
    "call": (charts.ROLES["stale"], "from call to call"),
    "compilation": (charts.ROLES["gaussian"], "from compilation to compilation"),
    "device": (charts.ROLES["descriptive"], "from device to device"),
    "no": (charts.FAINT, "by nothing"),
}


def chart(record: Mapping[str, Any], gpus: tuple[str, ...]) -> charts.Spec:
    """The lines of the base program of both networks, a column for each GPU.

    Args:
        record: what `experiments/gpu.py` wrote.
        gpus: columns, names of cards.
    """
    autoencoder = {"model": "autoencoder", "variant": "", "size": ""}
    programs = (record["base"], {**record["base"], **autoencoder})
    colours: charts.Spec = {"domain": [], "range": []}
    for colour, words in VARIES.values():
        colours["domain"].append(words)
        colours["range"].append(colour)
    drawn = []
    for program in programs:
        lines = {
            row["gpu"]: row["lines"]
            for row in record["rows"]
            if row["gpu"] in gpus and all(row[k] == v for k, v in program.items())
        }
        values = [
            {"line": line or "no line known", "gpu": gpu, "varies": VARIES[varies][1]}
            for gpu in gpus
            for line, varies in lines[gpu].items()
        ]
        encoding = {
            "x": charts.names("gpu", axis={"orient": "top", "labelAngle": 0}),
            "y": charts.names("line"),
            "color": charts.names(
                "varies",
                scale=colours,
                legend={"title": "varies", "columns": 2, "symbolType": "square"},
            ),
        }
        mark = charts.layer("rect", encoding, data=values, stroke="white")
        drawn.append({**mark, "title": program["model"], "width": {"step": 90}})
    return {"vconcat": drawn}


def svg(record: Mapping[str, Any]) -> bytes:
    """The figure on three architectures, with a text for those who cannot see it."""
    return charts.svg(
        chart(record, ("gtx1080", "rtx2080ti", "h100")),
        "Lines of the training steps of PredNet and of the autoencoder, coloured by "
        "what a GPU varies there: only convolutions and their gradients vary from call "
        "to call.",
    )
