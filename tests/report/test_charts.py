"""Figures with dots, and lines with their values: what Vega really draws."""

import json
import re
import xml.etree.ElementTree as ET

import numpy as np
import pytest

from prednet_jax import report
from prednet_jax.report import charts, comparison_figures, curves

PANEL = charts.Panel("loss, %", -10, 10, (-10, 0, 10), zone=(-2, 2))
GOLDEN_LINES = ("float32", "stale_targets", "reduction_order")


def dots(values, intervals=()):
    row = charts.Row("tile <order>", "#0072B2", [values], intervals)
    return charts.Dots("What is shown & where", [PANEL], [row])


def places(svg):
    """Where the dots stand, in pixels, from the left."""
    marks = re.findall(
        r'translate\(([\d.]+),([\d.]+)\)" d="M[^"]*" fill="#0072B2"', svg
    )
    return [(float(x), float(y)) for x, y in marks]


def test_dots_stand_at_their_values_and_apart():
    drawn = places(dots([0.0, -10.0, 5.0, float("nan")]).svg().decode())
    assert sorted(x for x, _ in drawn) == [0, 150, 225]
    heights = {y for _, y in places(dots([1.0] * 5).svg().decode())}
    assert len(heights) == 5


@pytest.mark.parametrize(("value", "end"), [(30.0, 300), (-30.0, 0)])
def test_what_is_beyond_an_end_is_a_triangle_there(value, end):
    inside, beyond = (dots([v]).svg().decode() for v in (9.0, value))
    ((x, _),) = places(beyond)
    assert x == end
    # A triangle has corners, a circle arcs.
    marks = [re.search(r'd="(M[^"]*)" fill="#0072B2"', s)[1] for s in (inside, beyond)]
    assert "A" in marks[0]
    assert "A" not in marks[1]


def test_an_interval_beyond_an_end_does_not_widen_the_figure():
    def width(interval):
        svg = dots([30.0], [interval]).svg()
        return float(ET.fromstring(svg).get("viewBox").split()[2])

    assert width((180.0, 220.0)) == width(None)
    # A bar that ends at the edge sticks out by half of its thickness.
    assert width((5.0, 220.0)) < width(None) + 10


def test_high_stacks_and_long_labels_take_more_room():
    def size(label, values):
        row = charts.Row(label, "#0072B2", [values])
        svg = charts.Dots("alt", [PANEL], [row]).svg()
        _, _, width, height = map(float, ET.fromstring(svg).get("viewBox").split())
        return width, height

    few, many = size("arm", [0] * 5), size("a" * 60, [0] * 40)
    assert many[0] > few[0] + 100
    # 40 dots, one above another, each 4.5 pixels from the next.
    assert many[1] - few[1] > 40 * 4.5 - 26
    # What is beyond the end needs no room of its own.
    assert size("arm", [99] * 40)[1] <= few[1]


def test_an_svg_is_the_same_again_and_says_what_it_shows():
    drawn = dots([1.0], [(-5.0, 5.0)])
    svg = drawn.svg()
    assert svg == drawn.svg()
    root = ET.fromstring(svg)
    assert root.get("role") == "img"
    assert root[0].text == "What is shown & where"
    text = "".join(root.itertext())
    for words in ("tile <order>", "loss, %", "−10"):
        assert words in text
    # Nothing in it asks for a font that a machine may lack.
    assert set(re.findall(rb'font-family="([^"]*)"', svg)) == {b"sans-serif"}


def values(drawn):
    """Median and quartiles at the cursor, by line, as Vega wrote them."""
    svg = charts.svg({**curves.chart(drawn, drawn.rows()), "width": 500}, "")
    written = {}
    for text in ET.fromstring(svg).itertext():
        parts = re.fullmatch(r"(\S+)  (\S+)(?: %)?(?: \((\S+) to (\S+)\))?", text)
        if parts:
            numbers = [n.replace("−", "-") for n in parts.groups()[1:] if n]
            written[parts[1]] = [float(n) for n in numbers]
    return written


@pytest.mark.parametrize("draw", ["losses", "relative_losses"])
@pytest.mark.parametrize("model", ["prednet", "autoencoder"])
def test_vega_writes_median_and_quartiles_of_the_seeds(comparison, golden, draw, model):
    drawn = getattr(comparison_figures, draw)(report.load(comparison), model)
    written = values(drawn)
    assert tuple(written) == GOLDEN_LINES
    for line, numbers in written.items():
        low, middle, high = golden[drawn.name]["last"][line]
        expected = [middle, low, high] if low < high else [middle]
        # Three digits are written, four of a loss.
        assert numbers == pytest.approx(expected, rel=5e-3, abs=1e-12), line


@pytest.fixture
def golden(pytestconfig):
    path = pytestconfig.rootpath / "tests" / "golden" / "figure_data.json"
    return json.loads(path.read_text())["page"]


def test_a_seed_that_diverged_is_left_out():
    line = np.ones(5)
    broken = np.array([1, 9, 9, np.nan, np.nan])
    series = curves.Series(
        name="arm",
        colour=charts.INK,
        curves={"0": line, "1": 3 * line, "2": broken},
    )
    drawn = curves.Curves(
        name="n", x=np.arange(5), x_name="update", y_name="loss", series=(series,)
    )
    assert values(drawn) == {"arm": [2.0, 1.5, 2.5]}
    assert drawn.csv().splitlines()[-1] == "4,1,3,"


def test_copying_the_last_frame_is_a_line_where_it_does_not_hide_the_others(comparison):
    found = report.load(comparison)
    found.copied["prednet"] = {seed: np.full(60, 0.5) for seed in range(6)}
    loss = comparison_figures.losses(found, "prednet")
    relative = comparison_figures.relative_losses(found, "prednet")
    assert loss.series[-1].name == relative.series[-1].name == comparison_figures.COPY
    assert loss.series[-1].shown
    assert not relative.series[-1].shown
    assert loss.csv().splitlines()[0].endswith(f"{comparison_figures.COPY} 5")


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
    drawn = comparison_figures.seeds(verdict)
    assert [(row.label, row.values) for row in drawn.rows] == [("ulp", [[50.0]])]
    assert drawn.panels[0].zone == (-2, 2)
