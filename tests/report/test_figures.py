"""What the figures show: their numbers, and what Vega really draws."""

import hashlib
import json
import re
import xml.etree.ElementTree as ET

import numpy as np
import pytest

from prednet_jax import report
from prednet_jax.report import charts, figures
from prednet_jax.studies import study_figures, study_tables
from tests.test_imports import ROOT

GOLDEN = json.loads((ROOT / "tests" / "golden" / "figure_data.json").read_text())
STUDY = ROOT / "results" / "study"
PANEL = charts.Panel("loss, %", -10, 10, (-10, 0, 10), zone=(-2, 2))


def rounded(values):
    """Six digits, as the golden has them; None where a value is not finite."""
    return [float(f"{v:.6g}") if np.isfinite(v) else None for v in values]


def test_figures_of_the_study_show_the_recorded_numbers():
    verdict = json.loads((STUDY / "verdict.json").read_text())
    drawn = study_figures.figures(STUDY, study_tables.load(STUDY), verdict)
    golden = GOLDEN["documents"]
    # Parts that came later have no golden, nor have the contrasts of a later rule.
    assert {f"docs/study/{name}" for name in drawn} >= golden.keys()
    for name, figure in drawn.items():
        if f"docs/study/{name}" not in golden:
            continue
        shown = {}
        for i, panel in enumerate(figure.panels):
            rows = {}
            for row in figure.rows:
                rows[row.label] = {"seeds": rounded(row.values[i])}
                if i < len(row.intervals) and row.intervals[i]:
                    rows[row.label]["interval"] = rounded(row.intervals[i])
            ends = rounded([panel.low, panel.high])
            shown[panel.title] = {"ends": ends, "rows": rows}
        assert shown == golden[f"docs/study/{name}"], name


def drawn_by_vega(curves):
    """Median and quartiles at the last update by line, from a drawing of texts."""
    rows = [
        {"x": float(x), "k": k, "seed": seed, "value": float(value)}
        for k, seed in curves.columns()
        for x, value in zip(curves.x, curves.series[k].curves[seed], strict=True)
        if np.isfinite(value)
    ]
    chart = curves.chart()
    last = {"filter": f"datum.x == {curves.x[-1]}"}
    said = "datum.line + ' ' + [datum.low, datum.middle, datum.high]"
    transform = [*chart["transform"], last, {"calculate": said, "as": "said"}]
    drawn = charts.layer("text", {"text": {"field": "said"}}, data=rows)
    drawn["transform"] = transform
    params = [{k: v for k, v in one.items() if k != "bind"} for one in chart["params"]]
    texts = ET.fromstring(charts.svg(drawn | {"params": params}, "")).itertext()
    found = [text.rpartition(" ")[::2] for text in texts if "," in text]
    return {line: [float(n) for n in numbers.split(",")] for line, numbers in found}


@pytest.mark.parametrize("model", ["prednet", "autoencoder"])
def test_figures_of_a_comparison_show_the_runs(comparison, model):
    found, golden = report.load(comparison), GOLDEN["page"]
    loss = figures.losses(found, model)
    relative = figures.relative_losses(found, model)
    for curves in (loss, relative):
        table = golden[curves.name]
        digest = hashlib.sha256(curves.csv().encode()).hexdigest()[:16]
        assert digest == golden[loss.name]["csv"]
        assert [one.name for one in curves.series if one.shown] == table["shown"]
        medians = drawn_by_vega(curves)
        assert set(medians) == set(table["shown"])
        for line, numbers in medians.items():
            # The golden has six digits.
            expected = pytest.approx(table["last"][line], rel=1e-5, abs=1e-12)
            assert numbers == expected, line
        spec = curves.chart() | {"data": {"values": [{"x": 1, "k": 0, "value": 1}]}}
        assert b"stale_targets" in charts.svg(spec | {"width": 500}, "")
    assert rounded([relative.zone]) == [golden[relative.name]["zone"]]
    slides = figures.slides(found, model)
    errors = {s.name: rounded(s.errors) for s in slides if s.errors is not None}
    assert errors == golden[f"frames_{model}"]


def test_a_seed_that_diverged_is_left_out():
    line, broken = np.ones(5), np.array([1, 9, 9, np.nan, np.nan])
    seeds = {"0": line, "1": 3 * line, "2": broken}
    series = (figures.Series(name="arm", colour=charts.INK, curves=seeds),)
    drawn = figures.Curves(name="n", x=np.arange(5), y_name="loss", series=series)
    assert drawn_by_vega(drawn) == {"arm": [1.5, 2.0, 2.5]}
    assert drawn.csv().splitlines()[-1] == "4,1,3,"


def test_copying_the_last_frame_is_a_line_where_it_does_not_hide_the_others(comparison):
    found = report.load(comparison)
    found.copied["prednet"] = {seed: np.full(60, 0.5) for seed in range(6)}
    loss = figures.losses(found, "prednet")
    relative = figures.relative_losses(found, "prednet")
    assert loss.series[-1].name == relative.series[-1].name == figures.COPY
    assert loss.series[-1].shown
    assert not relative.series[-1].shown
    assert loss.csv().splitlines()[0].endswith(f"{figures.COPY} 5")


def dots(values, intervals=(), label="tile <order>"):
    row = charts.Row(label, "#0072B2", [values], intervals)
    return charts.Dots("What is shown & where", [PANEL], [row]).svg().decode()


def places(svg):
    """Where the dots stand, in pixels, from the left."""
    marks = re.findall(
        r'translate\(([\d.]+),([\d.]+)\)" d="M[^"]*" fill="#0072B2"', svg
    )
    return [(float(x), float(y)) for x, y in marks]


def size(*arguments):
    view = ET.fromstring(dots(*arguments)).get("viewBox")
    return tuple(map(float, view.split()))[2:]


def test_dots_stand_at_their_values_and_apart():
    drawn = places(dots([0.0, -10.0, 5.0, float("nan")]))
    assert sorted(x for x, _ in drawn) == [0, 150, 225]
    assert len({y for _, y in places(dots([1.0] * 5))}) == 5
    few, many = size([0] * 5, (), "arm"), size([0] * 40, (), "a" * 60)
    assert many[0] > few[0] + 100
    # 40 dots, one above another, each 4.5 pixels from the next.
    assert many[1] - few[1] > 40 * 4.5 - 26
    # What is beyond the end needs no room of its own.
    assert size([99] * 40, (), "arm")[1] <= few[1]


def test_what_is_beyond_an_end_is_a_triangle_there():
    for value, end in ((30.0, 300), (-30.0, 0)):
        inside, beyond = dots([9.0]), dots([value])
        ((x, _),) = places(beyond)
        assert x == end
        # A triangle has corners, a circle arcs.
        marks = [re.search(r'd="(M[^"]*)" fill="#0072', s)[1] for s in (inside, beyond)]
        assert ["A" in mark for mark in marks] == [True, False]
    # Nor does an interval beyond an end widen the figure.
    assert size([30.0], [(180.0, 220.0)]) == size([30.0], [None])
    # A bar that ends at the edge sticks out by half of its thickness.
    assert size([30.0], [(5.0, 220.0)])[0] < size([30.0], [None])[0] + 10


def test_an_svg_is_the_same_again_and_says_what_it_shows():
    svg = dots([1.0], [(-5.0, 5.0)])
    assert svg == dots([1.0], [(-5.0, 5.0)])
    root = ET.fromstring(svg)
    assert root.get("role") == "img"
    assert root[0].text == "What is shown & where"
    text = "".join(root.itertext())
    for words in ("tile <order>", "loss, %", "−10"):
        assert words in text
    # Nothing in it asks for a font that a machine may lack.
    assert set(re.findall(r'font-family="([^"]*)"', svg)) == {"sans-serif"}


def test_a_dot_per_seed_of_every_contrast_of_a_verdict():
    about = {"model": "prednet", "treatment": "ulp", "role": "treatment"}
    about |= {"margin": 0.02, "control_mean": 1.0}
    controls = ("float32", "fixed_orders")
    # Draws of the noise are averaged within a seed; seed 2 has no partner.
    losses = {"float32": {"1": [2.0], "2": [1]}, "ulp": {"1": [1, 5]}}
    verdict = {
        "contrasts": [about | {"control": control} for control in controls],
        "losses": {"prednet": losses},
    }
    drawn = figures.seeds(verdict)
    assert [(row.label, row.values) for row in drawn.rows] == [("ulp", [[50.0]])]
    assert drawn.panels[0].zone == (-2, 2)
