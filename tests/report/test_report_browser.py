"""The page in headless Chromium: drawn, quiet, offline, worked by keyboard."""

import shutil

import browser
import numpy as np
import pytest

from prednet_jax import report
from prednet_jax.report import finding, script

pytestmark = pytest.mark.skipif(
    browser.find() is None, reason="no Chromium on this machine (apt-get: chromium)"
)
WIDE, PHONE = 1200, 390
CHART = "document.querySelectorAll('figure[data-chart]')[{}]"


@pytest.fixture(scope="module")
def window(tmp_path_factory):
    """One browser for all tests of this file."""
    with browser.browse(tmp_path_factory.mktemp("profile")) as page:
        yield page


@pytest.fixture
def page(window, built):
    """The page of a comparison, freshly loaded in a wide window."""
    window.complaints.clear()
    window.open(built / report.PAGE, WIDE)
    yield window
    assert window.complaints == []


def values(page, number: int) -> dict[str, str]:
    """What a chart says at its cursor, by line."""
    pairs = page.value(
        f"[...{CHART.format(number)}.querySelectorAll('.switches > div')]"
        ".map(row => [row.firstChild.textContent, row.lastChild.textContent])"
    )
    return dict(pairs)


def number_of(text: str) -> float:
    return float(text.split()[0].removesuffix("\u00a0%").replace("−", "-"))


def focus(page, number: int, selector: str) -> None:
    page.value(f"{CHART.format(number)}.querySelector('{selector}').focus()")


@pytest.mark.parametrize("width", [WIDE, PHONE])
@pytest.mark.parametrize("dark", [False, True])
def test_every_figure_is_drawn(page, built, width, dark):
    page.open(built / report.PAGE, width, dark=dark)
    drawn = page.value(
        "[...document.querySelectorAll('figure[data-chart]')].map(f => ["
        "f.querySelectorAll('.middle').length, "
        "[...f.querySelectorAll('.middle')].every(p => p.getBBox().width > 100), "
        "f.querySelectorAll('picture')[0].checkVisibility()])"
    )
    assert drawn == [[3, True, False]] * 4
    assert page.value("document.querySelectorAll('.slides:not([hidden])').length") == 2
    assert page.value("[...document.images].every(i => i.complete && i.naturalWidth)")
    # Nothing sticks out, and no letter is smaller than 11 pixels.
    assert page.value("document.documentElement.scrollWidth") == width
    smallest = page.value(
        "Math.min(...[...document.querySelectorAll('.plot text')].map("
        "t => parseFloat(getComputedStyle(t).fontSize) * t.getScreenCTM().a))"
    )
    assert smallest > 11


def test_switches_work_by_keyboard(page):
    focus(page, 0, "input[type=range]")
    page.press("Tab")
    page.press("Tab")
    assert (
        page.value("document.activeElement.parentNode.textContent") == "stale_targets"
    )
    assert values(page, 0)["stale_targets"]
    page.press("Space")
    assert values(page, 0)["stale_targets"] == ""
    lines = f"{CHART.format(0)}.querySelectorAll('.middle').length"
    assert page.value(lines) == 2
    page.press("Space")
    assert page.value(lines) == 3


def test_values_are_those_of_the_records(page, comparison):
    found = report.load(comparison)
    band = finding.relative_band(found, "prednet", "stale_targets")
    # Three digits are shown.
    shown = values(page, 0)["stale_targets"]
    assert number_of(shown) == pytest.approx(band.middle[-1], rel=5e-3)
    assert number_of(shown.partition("(")[2]) == pytest.approx(band.low[-1], rel=5e-3)
    loss = found.losses["prednet"]["float32"]
    middle = np.median([curve[-6:].mean() for curve in loss.values()])
    assert number_of(values(page, 2)["float32"]) == pytest.approx(middle, rel=5e-4)

    focus(page, 0, "input[type=range]")
    page.press("ArrowLeft")
    shown = values(page, 0)["stale_targets"]
    assert number_of(shown) == pytest.approx(band.middle[-2], rel=5e-3)
    assert "stale_targets" in page.value("document.activeElement.ariaValueText")


def test_one_seed_can_be_looked_at(page, comparison):
    focus(page, 0, "select")
    page.press("ArrowDown")
    arms = report.load(comparison).losses["prednet"]
    ratio = arms["stale_targets"][0][-6:].mean() / arms["float32"][0][-6:].mean()
    shown = values(page, 0)["stale_targets"]
    assert number_of(shown) == pytest.approx(100 * (ratio - 1), rel=5e-3)
    assert "(" not in shown
    assert page.value(f"{CHART.format(0)}.querySelectorAll('.band').length") == 0


def test_the_pointer_moves_the_cursor(page):
    box = page.value(
        f"(b => [b.left, b.top, b.width, b.height])({CHART.format(0)}"
        ".querySelector('svg').getBoundingClientRect())"
    )
    left, top, width, height = box
    page.call(
        "Input.dispatchMouseEvent",
        type="mouseMoved",
        x=left + width / 2,
        y=top + height / 2,
    )
    page.frame()
    at = page.value(f"Number({CHART.format(0)}.querySelector('output').textContent)")
    assert 25 < at < 35  # The middle of sixty updates.


def test_the_slider_moves_through_the_frames(page, comparison):
    page.value("document.querySelector('.slides input').focus()")
    page.press("ArrowRight")
    page.press("ArrowRight")
    one = report.load(comparison).examples["prednet"]["float32"]
    error = np.mean((one.predictions[2] - one.frames[2]) ** 2)
    shown = page.value("document.querySelector('.slides .error').textContent")
    assert float(shown.removeprefix("MSE ")) == pytest.approx(error, rel=5e-3)
    # The sheet of six frames has moved by two.
    moved = page.value(
        "(([a, b]) => (b.left - a.left) / a.width)([...document.querySelectorAll("
        "'.slides .window, .slides .window img')].slice(0, 2)"
        ".map(e => e.getBoundingClientRect()))"
    )
    assert moved == pytest.approx(-2, abs=0.02)
    assert page.value("document.querySelector('.slides output').value") == "3 of 6"


def test_no_other_script_runs(page):
    page.value(
        "document.body.append(Object.assign(document.createElement('script'), "
        "{textContent: 'window.ran = true'}))"
    )
    page.frame()
    assert page.value("window.ran") is None
    assert len(page.complaints) == 1
    assert "Content Security Policy" in page.complaints.pop()


def test_without_its_script_the_page_shows_pictures(page, built, tmp_path):
    text = (built / report.PAGE).read_text()
    refused = tmp_path / report.PAGE
    refused.write_text(text.replace(script.POLICY, "default-src 'none'; img-src data:"))
    page.open(refused, PHONE)
    assert page.value(
        "[...document.querySelectorAll('picture')].every(p => p.checkVisibility())"
    )
    assert page.value("document.querySelectorAll('svg').length") == 0
    assert all("Content Security Policy" in one for one in page.complaints)
    page.complaints.clear()


def test_printed_from_a_dark_screen_it_is_dark_on_light(page, built):
    page.open(built / report.PAGE, WIDE, dark=True)
    dark = {"name": "prefers-color-scheme", "value": "dark"}
    page.call("Emulation.setEmulatedMedia", media="print", features=[dark])
    page.frame()
    ink = page.value("getComputedStyle(document.body).color")
    assert max(map(int, ink.removeprefix("rgb(").removesuffix(")").split(","))) < 64
    # What is folded on the screen is printed; what only moves is not.
    assert page.value(
        "[...document.querySelectorAll('details pre')]"
        ".every(p => p.checkVisibility({contentVisibilityAuto: true}))"
    )
    assert not page.value("document.querySelector('.cursor').checkVisibility()")
    # Nor is a table cut off, on A4 paper.
    page.resize(718)
    assert page.value(
        "[...document.querySelectorAll('.wide')]"
        ".every(box => box.scrollWidth <= box.clientWidth + 1)"
    )


def test_a_figure_that_cannot_be_drawn_keeps_its_picture(page, built, tmp_path):
    broken = tmp_path / report.PAGE
    shutil.copy(built / report.PAGE, broken)
    text = broken.read_text()
    broken.write_text(text.replace('id="loss_prednet"', 'id="gone"'))
    page.open(broken, WIDE)
    shown = page.value(
        "[...document.querySelectorAll('figure[data-chart] > picture')]"
        ".map(p => p.checkVisibility())"
    )
    assert shown == [True, False, True, False]
    assert len(page.complaints) == 2
    page.complaints.clear()
