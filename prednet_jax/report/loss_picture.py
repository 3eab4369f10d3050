"""The losses of one training as a picture, which `train.py` puts beside the metrics."""

import os

import numpy as np

from prednet_jax import records
from prednet_jax.report import charts

# Points of a line: each is a mean over as many updates.
_POINTS = 200


def loss_picture(folder: str | os.PathLike) -> bytes:
    """Loss and that of copying the last frame, as PNG; with the frozen, if scored.

    `folder` is the directory of a run, which may still go on.
    """
    metrics = records.read_run(folder).metrics
    width = max(1, -(-len(metrics["loss"]) // _POINTS))
    rows: list[tuple[str, int, float]] = []
    for name, field in (
        ("while training", "loss"),
        ("copying the last frame", "copy_last_frame_loss"),
    ):
        for begin in range(0, len(metrics[field]), width):
            part = metrics[field][begin : begin + width]
            rows.append((name, begin + len(part), float(np.mean(part))))
    for row in records.read_validation(folder):
        rows.append(("frozen, held out", row["update"], row["loss"]))
        copied = row["copy_last_frame_loss"]
        rows.append(("copying, held out", row["update"], copied))
    values = [
        {"line": name, "update": update, "loss": loss}
        for name, update, loss in rows
        if np.isfinite(loss)
    ]
    positive = [value for value in values if value["loss"] > 0]  # type: ignore[operator]
    update, loss = charts.channel("update", "update"), charts.channel("loss", "loss")
    if positive:
        loss["scale"] = {"type": "log"}
    encoding = {"x": update, "y": loss, "color": charts.names("line")}
    point = len(rows) < _POINTS
    chart = charts.layer("line", encoding, data=positive or values, point=point)
    return charts.png(chart | {"width": 480, "height": 260})
