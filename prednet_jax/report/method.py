"""The second half of the page: how the comparison was made, and what limits it."""

import html
from collections.abc import Mapping

from prednet_jax.report import answers
from prednet_jax.report.answers import display_name
from prednet_jax.report.numbers import probability, significant, typeset
from prednet_jax.report.results import Results, label
from prednet_jax.report.tables import arms_list, nested, table


def arms(results: Results) -> str:
    """What was run, by which commands, from which bytes."""
    listed = results.verdict.get("arms") or []
    if not listed:
        return ""
    parts = [
        "<section><h2>Arms and their commands</h2><p>Each arm is a process of its own, "
        "because threads and compiler flags are fixed when a process starts.</p>"
    ]
    for model in dict.fromkeys(arm.get("model") for arm in listed):
        parts.append(f"<h3>{html.escape(display_name(str(model)))}</h3>")
        parts.append(arms_list([arm for arm in listed if arm.get("model") == model]))
    prints = results.section("fingerprints")
    for model, seeds in prints.items():
        rows = [
            [html.escape(str(seed))]
            + [
                f"<code>{html.escape(str(pair.get(name, '-')))}</code>"
                for name in ("initial_params_sha256", "data_order_sha256")
            ]
            for seed, pair in seeds.items()
        ]
        head = ("Seed", "Initial weights, SHA-256", "Data order, SHA-256")
        parts.append(
            f"<details><summary>Fingerprints of {html.escape(display_name(model))}, "
            f'shared by all arms</summary><div class="wide">{table(head, rows)}</div>'
            "</details>"
        )
    return "\n".join([*parts, "</section>"])


def design(results: Results) -> str:
    """Seeds, margins, power, methods, controls and the record of the process."""
    parts = ["<section><h2>Design</h2>"]
    record = results.section("design")
    if record.get("command"):
        parts.append(f"<pre>{html.escape(str(record['command']))}</pre>")
    rows = [_design_row(results, model) for model in results.models]
    head = (
        "Model",
        "Seeds",
        "Margin",
        "Origin of the margin",
        "Power",
        "Seeds needed",
    )
    parts.append(f'<div class="wide design">{table(head, rows)}</div>')
    methods = {
        str(one[name])
        for one in results.verdict["contrasts"]
        for name in ("p_method", "ci_method", "tost_method")
        if one.get(name)
    }
    if methods:
        listed = "".join(f"<li>{typeset(name)}</li>" for name in sorted(methods))
        parts.append(f"<h3>Methods</h3><ul>{listed}</ul>")
    controls = results.section("controls")
    if controls:
        parts.append("<h3>Positive controls</h3>")
        parts.append(_record(controls, opened=True))
    parts.append("<h3>Record</h3>")
    shown = {name: value for name, value in record.items() if name != "command"}
    parts.append(_record(shown) if shown else "<p>The design was not recorded.</p>")
    return "\n".join([*parts, "</section>"])


def _design_row(results: Results, model: str) -> list[str]:
    margin = results.section("margins").get(model) or {}
    record = answers.details(results, model)
    chosen = results.contrasts(model)
    value = margin.get("value", chosen[0].get("margin") if chosen else None)
    needed = record.get("seeds_needed")
    return [
        html.escape(display_name(model)),
        str(record.get("n", chosen[0].get("n", "-") if chosen else "-")),
        typeset(significant(value)),
        typeset(str(margin.get("origin") or "not recorded")),
        typeset(probability(record.get("achieved_power"))),
        "-" if needed is None else str(needed),
    ]


def _record(values: Mapping[str, object], *, opened: bool = False) -> str:
    """Short entries as a list, the others under their names, to be unfolded."""
    long = {k: v for k, v in values.items() if isinstance(v, Mapping)}
    short = {k: v for k, v in values.items() if k not in long}
    state = " open" if opened else ""
    return (nested(short) if short else "") + "".join(
        f"<details{state}><summary>{html.escape(str(name).replace('_', ' '))}</summary>"
        f"{nested(value)}</details>"
        for name, value in long.items()
    )


def excluded(results: Results) -> str:
    """What was left out, and why."""
    left_out = results.verdict.get("excluded")
    if left_out is None:
        return ""
    if left_out and all(isinstance(one, Mapping) for one in left_out):
        body = nested(left_out)
    else:
        listed = "".join(f"<li>{html.escape(str(one))}</li>" for one in left_out)
        body = f"<ul>{listed}</ul>" if left_out else "<p>Nothing was left out.</p>"
    rule = results.section("design").get("exclusion_rule")
    stated = f"<p>Rule: {html.escape(str(rule))}.</p>" if rule else ""
    return f"<section><h2>Left out</h2>{stated}{body}</section>"


def variability(results: Results) -> str:
    """How far the predictions of the arms are from the control's."""
    rows = [
        [
            html.escape(display_name(one["model"])),
            f"<code>{html.escape(label(one))}</code>",
            *(
                typeset(significant(one["variability"].get(name)))
                for name in ("v_ermv", "v_c", "l2", "churn")
            ),
        ]
        for one in results.verdict["contrasts"]
        if one.get("variability")
    ]
    if not rows:
        return ""
    head = ("Model", "Treatment", "V_ermv", "V_c", "L2 distance", "Churn")
    return (
        "<section><h2>How far predictions are apart</h2><p>The same frames predicted "
        "after training, against the control, mean over seeds. V_ermv: mean relative "
        "difference; V_c: fraction of values that differ at all; churn: fraction of "
        "pixels whose shade of 256 differs.</p>"
        f'<div class="wide">{table(head, rows)}</div></section>'
    )


def limits(results: Results) -> str:
    """What the verdict does not say."""
    listed = "".join(f"<li>{html.escape(one)}</li>" for one in answers.limits(results))
    return f"<section><h2>Limits</h2><ul>{listed}</ul></section>"
