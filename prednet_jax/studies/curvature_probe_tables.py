"""The table and the figure of curvature along a training (`curvature_probe`)."""

from typing import Any

from prednet_jax.report import charts

Row = dict[str, Any]
_COLUMNS = (
    ("model", 11),
    ("update", 6),
    ("loss", 9),
    ("|g|", 8),
    ("raw low", 10),
    ("resid", 7),
    ("raw high", 9),
    ("resid", 7),
    ("Adam low", 10),
    ("resid", 7),
    ("Adam high", 10),
    ("resid", 7),
    ("steps", 5),
    ("negative", 8),
    ("diff", 9),
    ("reach", 7),
    ("cos step", 8),
    ("growth", 7),
    ("saved", 8),
    ("needed", 8),
)
HEADER = " ".join(name.rjust(width) for name, width in _COLUMNS)
_LEGEND = """\
raw: eigenvalues of H. Adam: eigenvalues of P^-1/2 H P^-1/2. resid: an eigenvalue lies
this close to the value. *: the value still moved by 5 % when the steps were last
doubled. steps: Lanczos steps of the last round (Adam). negative: whether negative
curvature is proved; '-': none was found, which proves nothing. diff: whether finite
differences of the loss along the lowest direction agree. reach: how far along it they
agree, in lengths of Adam's last step. Below 1 the loss stops being quadratic (at kinks
of ReLUs) within one step, and growth and saved hold near the weights only. cos step:
cosine between Adam's last step and that direction. growth: factor per update along it.
saved: updates that relative noise {noise:g} saves. needed: relative noise that would
save one update."""


def legend(noise: float) -> str:
    """What the columns mean; `noise` is the relative noise of the column `saved`."""
    return _LEGEND.format(noise=noise)


def line(row: Row) -> str:
    """One line of the table, under `HEADER`."""
    raw, scaled, found = row["raw"], row["preconditioned"], row["escape"]
    cells = [row["model"], row["update"], f"{row['loss']:.3g}"]
    cells.append(f"{row['grad_norm']:.2g}")
    for form in (raw, scaled):
        for end, name in enumerate(("lowest", "highest")):
            star = "" if form["converged"][end] else "*"
            cells.append(f"{form[name]:.3g}{star}")
            cells.append(f"{form[f'residual_{name}']:.0e}")
    cells.append(scaled["steps"])
    cells.append("proved" if scaled["negative_curvature_proved"] else "-")
    cells.append(scaled["finite_difference"]["verdict"])
    if found:
        cells += [
            f"{scaled['finite_difference']['reach'] / found['step_length']:.2g}",
            f"{found['step_cosine']:.3f}",
            f"{found['growth_per_update']:.4f}",
            f"{found['updates_saved']:.1e}",
            f"{found['noise_for_one_update']:.1e}",
        ]
    else:
        cells += ["-"] * 5
    widths = [width for _, width in _COLUMNS]
    return " ".join(str(c).rjust(w) for c, w in zip(cells, widths, strict=True))


def findings(rows: list[Row], noise: float) -> list[str]:
    """The findings, one sentence per model, computed from the rows."""
    found = []
    for model in dict.fromkeys(row["model"] for row in rows):
        mine = [row for row in rows if row["model"] == model]
        proved = [r for r in mine if r["preconditioned"]["negative_curvature_proved"]]
        text = f"{model}: negative curvature proved at {len(proved)} of {len(mine)} "
        text += "stops"
        if len(proved) < len(mine):
            text += " (at the others it was not found, which proves nothing)"
        checks = [r["preconditioned"]["finite_difference"]["verdict"] for r in proved]
        if proved:
            text += (
                f"; differences of the loss agree at {checks.count('agrees')} of these"
            )
        escapes = [row["escape"] for row in proved if row["escape"]]
        if escapes:
            most = max(e["updates_saved"] for e in escapes)
            least = min(e["noise_for_one_update"] for e in escapes)
            text += (
                f"; noise of {noise:g} of the gradient would save at most {most:.1e} "
                f"updates, one update takes {least:.1e}"
            )
        sampled = [row["sampling_noise"] for row in mine if row["sampling_noise"]]
        if sampled:
            text += f" (gradients differ by {min(sampled):.2g} from sample to sample)"
        found.append(text + ".")
    return found


def figure(rows: list[Row], noise: float) -> bytes:
    """PNG: lowest curvature, and the noise that would save an update."""
    lowest = [
        {
            "update": row["update"],
            "value": row[form]["lowest"],
            "line": f"{row['model']}, {form}",
        }
        for row in rows
        for form in ("raw", "preconditioned")
    ]
    needed = [
        {"update": row["update"], "value": value, "line": f"{row['model']}: {words}"}
        for row in rows
        for words, value in (
            ("to save one update", (row["escape"] or {}).get("noise_for_one_update")),
            ("from sample to sample", row["sampling_noise"] or None),
        )
        if value is not None
    ]
    needed += [
        {"update": row["update"], "value": noise, "line": f"asked about: {noise:g}"}
        for row in rows
    ]
    smallest = max(min(abs(row["value"]) for row in lowest), 1e-12)
    x = charts.channel("update", "update", type="log")
    first = charts.channel(
        "value", "lowest eigenvalue", type="symlog", constant=smallest
    )
    second = charts.channel("value", "noise / gradient", type="log")
    line = charts.names("line", legend={"columns": 1})
    panels = [
        charts.layer("line", {"x": x, "y": y, "color": line}, data=values, point=True)
        | {"width": 380, "height": 280}
        for values, y in ((lowest, first), (needed, second))
    ]
    scales = {"color": "independent"}
    return charts.png({"hconcat": panels, "resolve": {"scale": scales}})
