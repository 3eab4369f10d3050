"""Dot plots: where the dots stand."""

import re
import xml.etree.ElementTree as ET

import pytest

from prednet_jax.report import dots

PANEL = dots.Panel("loss, %", -10, 10, (-10, 0, 10), band=(-2, 2))


def drawn(values, intervals=()):
    row = dots.Row("tile <order>", "#0072B2", [values], intervals)
    return dots.draw("What is shown & where", [PANEL], [row])


def marks(svg, tag):
    found = ET.fromstring(svg).iter(f"{{http://www.w3.org/2000/svg}}{tag}")
    return [element.attrib for element in found]


def test_dots_stand_at_their_values():
    places = [float(one["cx"]) for one in marks(drawn([0.0, -10.0, 5.0]), "circle")]
    left, middle = dots.LABELS, dots.LABELS + dots.PANEL / 2
    assert places == [left, middle, middle + dots.PANEL / 4]


def test_dots_that_coincide_stand_apart():
    heights = {one["cy"] for one in marks(drawn([1.0] * 5), "circle")}
    assert len(heights) == 5


@pytest.mark.parametrize(("value", "end"), [(30.0, 1), (-30.0, 0)])
def test_what_is_beyond_an_end_is_a_triangle_there(value, end):
    svg = drawn([value])
    assert not marks(svg, "circle")
    (shape,) = marks(svg, "polygon")
    tip = float(re.match(r"[\d.]+", shape["points"])[0])
    assert tip == pytest.approx(dots.LABELS + end * dots.PANEL, abs=6)


def test_what_is_not_finite_is_left_out():
    assert not marks(drawn([float("nan")]), "circle")


def test_interval_band_and_texts():
    svg = drawn([1.0], [(-5.0, 5.0)])
    (bar,) = (one for one in marks(svg, "line") if one.get("stroke-width") == "9")
    quarter = dots.PANEL / 4
    assert float(bar["x1"]) == dots.LABELS + quarter
    assert float(bar["x2"]) == dots.LABELS + 3 * quarter
    assert b"tile &lt;order&gt;" in svg
    assert b"<title>What is shown &amp; where</title>" in svg
    assert svg == drawn([1.0], [(-5.0, 5.0)])


def test_high_stacks_and_long_labels_take_more_room():
    def size(label, values):
        svg = dots.draw("alt", [PANEL], [dots.Row(label, "#0072B2", [values])])
        _, _, width, height = map(float, ET.fromstring(svg).get("viewBox").split())
        return width, height

    few, many = size("arm", [0] * 5), size("a" * 60, [0] * 40)
    assert many[0] > few[0] + 100
    # 40 dots, one above another, each a step from the next.
    assert many[1] - few[1] == pytest.approx(40 * dots.STEP + 7 - dots.ROW, abs=5)
    # What is beyond the end needs no room of its own.
    assert size("arm", [99] * 40) == few
