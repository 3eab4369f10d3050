"""What a GPU varies: of each line, the figure of docs/gpu.md; of each sum, a table."""

import itertools
from collections.abc import Mapping
from typing import Any

import pandas as pd

from prednet_jax.report import charts
from prednet_jax.report.documents import markdown
from prednet_jax.report.numbers import MISSING

GPUS = ("gtx1080", "rtx2080ti", "h100")
#: What a line varies by, worst first, as `noise.audit` has it: colour and words.
VARIES = {
    "call": (charts.ROLES["stale"], "from call to call"),
    "compilation": (charts.ROLES["gaussian"], "from compilation to compilation"),
    "device": (charts.ROLES["descriptive"], "from device to device"),
    "no": (charts.FAINT, "by nothing"),
}


def svg(record: Mapping[str, Any]) -> bytes:
    """The lines of the base program of both networks, a column for each of `GPUS`."""
    colours, words = zip(*VARIES.values(), strict=True)
    encoding = {
        "x": charts.names("gpu", axis={"orient": "top", "labelAngle": 0}),
        "y": charts.names("line"),
        "color": charts.names(
            "varies",
            scale={"domain": list(words), "range": list(colours)},
            legend={"title": "varies", "columns": 2, "symbolType": "square"},
        ),
    }
    drawn = []
    autoencoder = {"model": "autoencoder", "variant": "", "size": ""}
    for program in (record["base"], {**record["base"], **autoencoder}):
        lines = {
            row["gpu"]: row["lines"]
            for row in record["rows"]
            if row["gpu"] in GPUS and all(row[k] == v for k, v in program.items())
        }
        values = [
            {"line": line or "no line known", "gpu": gpu, "varies": VARIES[varies][1]}
            for gpu in GPUS
            for line, varies in lines[gpu].items()
        ]
        mark = charts.layer("rect", encoding, data=values, stroke="white")
        drawn.append({**mark, "title": program["model"], "width": {"step": 90}})
    return charts.svg(
        {"vconcat": drawn},
        "Lines of the training steps of PredNet and of the autoencoder, coloured by "
        "what a GPU varies there: only convolutions and their gradients vary from call "
        "to call.",
    )


def sums(record: Mapping[str, Any]) -> str:
    """For each primitive that sums, what varies on each of `GPUS` (docs/noise.md)."""
    rows = []
    for name, primitives in record[GPUS[0]].items():
        row = {"function": name, "primitive": ", ".join(primitives)}
        for gpu in GPUS:
            row[gpu] = ", ".join(itertools.chain(*record[gpu][name].values()))
        rows.append(row)
    return markdown(pd.DataFrame(rows).replace("", MISSING))
