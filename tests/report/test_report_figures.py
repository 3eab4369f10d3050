"""What figures hold: their data, their command, their words."""

import csv
import html
import io
import re
import shutil
from urllib.parse import unquote

import numpy as np
import pytest

from prednet_jax import report
from prednet_jax.report import differences, figures, lines

MODELS = ("prednet", "autoencoder")


def csv_of(page: str, name: str) -> list[list[str]]:
    """The rows of a file that the page holds."""
    held = re.search(f'download="{name}.csv" href="data:[^,]*,([^"]*)"', page)[1]
    return list(csv.reader(io.StringIO(unquote(html.unescape(held)))))


def test_each_figure_has_its_data_and_its_command(built, verdict):
    page = (built / report.PAGE).read_text()
    figures_of = re.findall(r"<figure.*?</figure>", page, re.DOTALL)
    assert len(figures_of) == 8
    for one in figures_of:
        assert "data:text/csv" in one or 'href="#loss_' in one
        for word in verdict["design"]["command"].split():
            assert f"<span>{word}</span>" in one


def test_a_figure_can_be_made_again_from_its_file(built):
    page = (built / report.PAGE).read_text()
    found = report.load(built)
    for model in MODELS:
        rows = csv_of(page, f"loss_{model}")
        assert rows[0][0] == "update"
        column = rows[0].index("stale_targets 3")
        arm = found.losses[model]["stale_targets"][3]
        assert int(rows[-1][0]) == len(arm) == 60
        # Nine digits are written.
        assert float(rows[-1][column]) == pytest.approx(arm[-6:].mean(), rel=1e-8)
        rows = csv_of(page, f"differences_{model}")
        one = found.contrast(model, "treatment")
        row = next(row for row in rows if row[0] == one["treatment"])
        assert float(row[rows[0].index("mean_difference")]) == pytest.approx(
            one["mean_difference"], rel=1e-8
        )
        rows = csv_of(page, f"frames_{model}")
        examples = found.examples[model]["float32"]
        error = np.mean((examples.predictions[0] - examples.frames[0]) ** 2)
        assert rows[0][1] == "float32"
        assert float(rows[1][1]) == pytest.approx(error, rel=1e-8)


def test_pictures_say_what_they_show(built):
    page = (built / report.PAGE).read_text()
    said = [
        html.unescape(alt) for alt in re.findall(r'<img src=[^>]*alt="(.*?)"', page)
    ]
    assert len(said) == 6
    assert "PredNet, stale targets: +32 % loss; random order: equivalent." in said
    assert any("stale_targets +32 %" in alt for alt in said)
    assert any("same bits" in alt for alt in said)
    assert any("float32 · MSE" in alt for alt in said)


def test_the_axis_of_differences_shows_rounding_and_a_bug():
    axis = differences.Axis(1e-10, 25.0)
    values = [-30, -25, -1, -1e-3, -1e-10, 0, 1e-11, 1e-10, 1e-3, 1, 20, 25]
    places = [axis.place(value) for value in values]
    assert places[1:] == sorted(places[1:])
    assert len(set(places[1:])) == len(values) - 1
    assert (places[0], places[1], axis.place(0), places[-1]) == (0, 0, 50, 100)
    ticks = dict(axis.ticks())
    assert ticks[0.0] == "0"
    assert ticks[1.0] == "1"
    assert ticks[-1.0] == "−1"
    assert min(abs(value) for value in ticks if value) < 1e-3


def test_differences_show_every_contrast(comparison, verdict):
    found = report.load(comparison)
    drawn = differences.figure(found, "prednet")
    for one in verdict["contrasts"][:7]:
        assert one["treatment"] in drawn
    assert drawn.count('class="dot') == 7
    assert drawn.count("identical bits") == 1  # threads_1
    assert "higher loss" in drawn


def test_copying_the_last_frame_is_a_line_where_it_does_not_hide_the_others(comparison):
    found = report.load(comparison)
    found.copied["prednet"] = {seed: np.full(60, 0.5) for seed in range(6)}
    loss, relative = lines.losses(found, "prednet"), lines.finding(found, "prednet")
    assert loss.series[-1].name == relative.series[-1].name == lines.COPY
    assert loss.series[-1].shown
    assert not relative.series[-1].shown
    assert loss.csv().splitlines()[0].endswith(f"{lines.COPY} 5")
    shown = [one.name for one in loss.series if one.shown]
    assert shown == ["float32", "stale_targets", "reduction_order", lines.COPY]


def test_a_control_alone_has_a_picture_and_no_chart(broken):
    for model in MODELS:
        for run in (broken / "runs" / model).iterdir():
            if run.name != "float32":
                shutil.rmtree(run)
    page = report.build(broken).read_text()
    assert "<figure data-chart" not in page
    assert 'href="#loss_' not in page


def test_frame_rows_carry_their_error(comparison):
    found = report.load(comparison)
    rows = figures.frame_rows(found, "prednet")
    titles = [title for title, _ in rows]
    assert [title.split(" · ")[0] for title in titles] == [
        "true frames",
        "float32",
        "stale targets",
        "copy of the frame before",
    ]
    one = found.examples["prednet"]["float32"]
    expected = np.mean((one.predictions - one.frames) ** 2)
    # Three digits are shown.
    assert float(titles[1].split()[-1]) == pytest.approx(expected, rel=5e-3)
    assert len(figures.frame_rows(found, "autoencoder")) == 3
