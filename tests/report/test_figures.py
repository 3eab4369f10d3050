import hashlib
import json
import re
import xml.etree.ElementTree as ET

import numpy as np
import pytest

from prednet_jax import report
from prednet_jax.records.verdict import Verdict
from prednet_jax.report import charts, figures
from prednet_jax.report.numbers import significant
from tests.processes import ROOT

GOLDEN = json.loads((ROOT / "tests" / "golden" / "figure_data.json").read_text())
PANEL = charts.Panel("loss, %", -10, 10, (-10, 0, 10), zone=(-2, 2))


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
    assert float(f"{relative.zone:.6g}") == golden[relative.name]["zone"]
    _, *shown = figures.predicted_frames(found, model)
    errors = dict(name.split(", MSE ") for name in shown)
    expected = golden[f"frames_{model}"]
    assert errors == {name: significant(np.median(of)) for name, of in expected.items()}


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


def test_a_run_that_ended_early_shortens_no_curve(comparison):
    found = report.load(comparison)
    found.losses["prednet"]["ulp"][3] = np.ones(12)
    lines = {s.name: s.curves for s in figures.losses(found, "prednet").series}
    assert "3" not in lines["ulp"]
    assert "3" in lines["float32"]
    assert figures.losses(found, "prednet").x[-1] == 60
    found.losses["prednet"]["float32"] = {0: np.ones(12)}
    assert figures.losses(found, "prednet") is None


def dots(values, intervals=(), label="tile <order>"):
    row = charts.Row(label, "#0072B2", [values], intervals)
    return charts.Dots("What is shown & where", [PANEL], [row]).svg().decode()


def places(svg):
    """Where the dots stand, in pixels, from the left."""
    marks = re.findall(
        r'translate\(([\d.]+),([\d.]+)\)" d="M[^"]*" fill="#0072B2"', svg
    )
    return [(float(x), float(y)) for x, y in marks]


def test_dots_stand_at_their_values_and_apart():
    drawn = places(dots([0.0, -10.0, 5.0, float("nan")]))
    assert sorted(x for x, _ in drawn) == [0, 150, 225]
    assert len({y for _, y in places(dots([1.0] * 5))}) == 5
    for value, end in ((30.0, 300), (-30.0, 0)):
        inside, beyond = dots([9.0]), dots([value])
        ((x, _),) = places(beyond)
        assert x == end
        # What is beyond an end is a triangle there: corners, where a circle has arcs.
        marks = [re.search(r'd="(M[^"]*)" fill="#0072', s)[1] for s in (inside, beyond)]
        assert ["A" in mark for mark in marks] == [True, False]


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
    about |= {"margin": 0.02, "control_mean": 1.0, "verdict": "inconclusive"}
    controls = ("float32", "fixed_orders")
    # Draws of the noise are averaged within a seed; seed 2 has no partner.
    losses = {"float32": {"1": [2.0], "2": [1]}, "ulp": {"1": [1, 5]}}
    verdict = {
        "contrasts": [about | {"control": control} for control in controls],
        "losses": {"prednet": losses},
        "verdict": {},
    }
    drawn = figures.seeds(Verdict.from_json(verdict))
    assert [(row.label, row.values) for row in drawn.rows] == [("ulp", [[50.0]])]
    assert drawn.panels[0].zone == (-2, 2)
