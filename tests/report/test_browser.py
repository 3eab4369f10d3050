"""The page in headless Chromium: drawn, quiet, offline, worked by keyboard."""

import browser
import numpy as np
import pytest

from prednet_jax import report

pytestmark = pytest.mark.skipif(
    browser.find() is None, reason="no Chromium on this machine (apt-get: chromium)"
)
WIDE, PHONE = 1200, 390
PLOT = "document.querySelectorAll('.plot')[{}]"
# Two relative losses, two of differences, two of losses.
PLOTS = 6


@pytest.fixture(scope="module")
def window(tmp_path_factory):
    """One browser for all tests of this file."""
    with browser.browse(tmp_path_factory.mktemp("profile")) as page:
        yield page


@pytest.fixture
def page(window, built):
    """The page of a comparison, freshly loaded in a wide window."""
    window.complaints.clear()
    load(window, built, WIDE)
    yield window
    assert window.complaints == []


def load(window, built, width, *, dark=False):
    """Opens the page and waits until its figures are drawn."""
    window.open(built / report.PAGE, width, dark=dark)
    drawn = "document.querySelectorAll('.plot svg').length"
    for _ in range(100):
        if window.value(drawn) == PLOTS:
            break
        window.value("new Promise(r => setTimeout(r, 100))")
    window.frame()
    assert window.value(drawn) == PLOTS


def values(page) -> dict[str, list[float]]:
    """What the first figure writes at its cursor, by line: median, then quartiles."""
    texts = page.value(
        f"[...{PLOT.format(0)}.querySelectorAll('.mark-text text')]"
        ".map(t => t.textContent)"
    )
    written = {}
    for text in texts:
        name, _, numbers = text.partition("  ")
        for sign in "()%":
            numbers = numbers.replace(sign, " ")
        numbers = numbers.replace("to", " ").replace("−", "-").split()
        if numbers:
            written[name] = list(map(float, numbers))
    return written


def focus(page, selector: str) -> None:
    page.value(f"{PLOT.format(0)}.querySelector('{selector}').focus()")


def at(results, model, arm, seeds, end):
    """Losses of an arm relative to the control's, in percent, around an update."""
    arms = results.losses[model]
    means = [
        np.mean([arms[a][s][end - 6 : end] for s in seeds], axis=1)
        for a in (arm, "float32")
    ]
    return 100 * (means[0] / means[1] - 1)


@pytest.mark.parametrize(("width", "dark"), [(WIDE, False), (PHONE, True)])
def test_every_figure_is_drawn_and_fits(page, built, width, dark):
    load(page, built, width, dark=dark)
    assert page.value("[...document.images].every(i => i.complete && i.naturalWidth)")
    assert page.value("document.documentElement.scrollWidth") == width
    # No figure is wider than its place, and no letter is smaller than 10 pixels.
    assert page.value(
        "[...document.querySelectorAll('.plot')].every(p => "
        "p.querySelector('svg').getBoundingClientRect().width <= p.clientWidth + 1)"
    )
    smallest = page.value(
        "Math.min(...[...document.querySelectorAll('.plot text')].map("
        "t => parseFloat(getComputedStyle(t).fontSize)))"
    )
    assert smallest >= 10
    assert page.value(
        "[...document.querySelectorAll('.plot')].every(p => "
        "p.getAttribute('aria-label').length > 20)"
    )
    ink = page.value(
        f"getComputedStyle({PLOT.format(0)}.querySelector('.mark-text text')).fill"
    )
    light = min(map(int, ink.removeprefix("rgb(").removesuffix(")").split(","))) > 128
    assert light == dark


def test_lines_are_switched_by_keyboard(page):
    focus(page, "input[type=checkbox]")
    page.press("Tab")
    assert (
        page.value("document.activeElement.parentNode.textContent") == "stale_targets"
    )
    assert set(values(page)) == {"float32", "stale_targets", "reduction_order"}
    page.press("Space")
    page.frame()
    assert set(values(page)) == {"float32", "reduction_order"}
    page.press("Space")
    page.frame()
    assert "stale_targets" in values(page)


def test_values_at_the_cursor_are_those_of_the_records(page, comparison):
    found = report.load(comparison)

    def check(end):
        low, middle, high = np.percentile(
            at(found, "prednet", "stale_targets", range(6), end), [25, 50, 75]
        )
        # Three digits are shown.
        assert values(page)["stale_targets"] == pytest.approx(
            [middle, low, high], rel=5e-3
        )

    check(60)
    focus(page, "input[type=range]")
    page.press("ArrowLeft")
    page.frame()
    check(59)
    said = page.value("document.activeElement.ariaValueText")
    assert "update 59" in said
    assert "stale_targets" in said


def test_one_seed_can_be_looked_at(page, comparison):
    focus(page, "select")
    page.press("ArrowDown")
    page.frame()
    (expected,) = at(report.load(comparison), "prednet", "stale_targets", [0], 60)
    assert values(page)["stale_targets"] == pytest.approx([expected], rel=5e-3)


def test_the_pointer_moves_the_cursor(page):
    page.value(f"{PLOT.format(0)}.scrollIntoView()")
    box = page.value(
        f"(b => [b.left, b.top, b.width, b.height])({PLOT.format(0)}"
        ".querySelector('svg').getBoundingClientRect())"
    )
    left, top, width, height = box
    for x in (width / 2 - 3, width / 2):
        page.call(
            "Input.dispatchMouseEvent",
            type="mouseMoved",
            x=left + x,
            y=top + height / 2,
        )
        page.frame()
    texts = page.value(f"{PLOT.format(0)}.querySelector('svg').textContent")
    update = int(texts.rpartition("update ")[2].split()[0])
    assert 20 < update < 45  # About the middle of sixty updates.


def test_the_slider_moves_through_the_frames(page, comparison):
    page.value("document.querySelector('.film input').focus()")
    page.press("ArrowRight")
    page.press("ArrowRight")
    one = report.load(comparison).examples["prednet"]["float32"]
    error = np.mean((one.predictions[2] - one.frames[2]) ** 2)
    shown = page.value("document.querySelector('.film [data-errors]').textContent")
    assert float(shown.removeprefix("MSE ")) == pytest.approx(error, rel=5e-3)
    # The sheet of six frames has moved by two.
    moved = page.value(
        "(([a, b]) => (b.left - a.left) / a.width)([...document.querySelectorAll("
        "'.film .window, .film .window img')].slice(0, 2)"
        ".map(e => e.getBoundingClientRect()))"
    )
    assert moved == pytest.approx(-2, abs=0.02)
    assert page.value("document.querySelector('.film output').value") == "3 of 6"


def test_no_other_script_runs(page):
    page.value(
        "document.body.append(Object.assign(document.createElement('script'), "
        "{textContent: 'window.ran = true'}))"
    )
    page.frame()
    assert page.value("window.ran") is None
    assert len(page.complaints) == 1
    assert "Content Security Policy" in page.complaints.pop()


def test_printed_from_a_dark_screen_it_is_dark_on_light(page, built):
    load(page, built, WIDE, dark=True)
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
    assert not page.value("document.querySelector('.vega-bindings').checkVisibility()")
    # Nor is a table cut off, on A4 paper.
    page.resize(718)
    assert page.value(
        "[...document.querySelectorAll('.wide')]"
        ".every(box => box.scrollWidth <= box.clientWidth + 1)"
    )
