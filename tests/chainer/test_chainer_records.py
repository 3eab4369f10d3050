"""The documents say what the committed records say."""

import re
import xml.etree.ElementTree as ET

import chainer_bisect
import chainer_figure
import chainer_plans as plans
import chainer_tables as tables
import environments
import pytest
import transplant

from prednet_jax.report import documents

ROOT = tables.RESULTS.parents[1]
DOCUMENTS = ("docs/chainer.md", "docs/chainer_predictions.md", "docs/claims.md")


@pytest.mark.parametrize("name", DOCUMENTS)
def test_the_blocks_of_a_document_are_those_of_the_records(name):
    text = (ROOT / name).read_text()
    assert documents.fill(text, tables.blocks()) == text


def test_every_block_is_in_a_document():
    text = "".join((ROOT / name).read_text() for name in DOCUMENTS)
    found = re.findall(r"<!-- table: (\S+) -->", text)
    assert sorted(found) == sorted(tables.blocks())


def test_the_figure_is_that_of_the_records():
    for path, data in tables.figures().items():
        assert (ROOT / path).read_bytes() == data


def test_the_recorded_bisection_came_true_and_the_document_shows_it():
    rows = tables.read("bisection")
    assert {row["release"] for row in rows} == set(environments.RELEASES)
    checked = chainer_bisect.check(rows)
    assert checked
    assert all(held for _, held in checked), checked
    text = (ROOT / "docs" / "chainer.md").read_text()
    for release in environments.RELEASES:
        [line] = [x for x in text.splitlines() if x.startswith(f"| {release} |")]
        for row in rows:
            if row["release"] == release:
                assert f"`{row['final_sha256'][:12]}`" in line
        late = environments.RELEASES.index(release) >= 2
        assert line.endswith("| yes |" if late else "| no |")


def test_the_recorded_interventions_came_true():
    finals = {}
    for row in tables.read("interventions_full"):
        finals.setdefault(row["seed"], {})[row["arm"]] = row["final_sha256"]
    complete = [ends for ends in finals.values() if set(ends) == set(plans.ARMS)]
    assert complete
    for ends in finals.values():
        assert all(held for _, held in plans.check(ends))


def test_the_recorded_transplant_came_true():
    checked = transplant.check(tables.read("transplant"))
    assert len(checked) == 6
    assert all(held for _, held in checked), checked


def test_the_figure_counts_seeds_on_both_sides():
    runs = [
        {"arm": arm, "seed": seed, "final_sha256": final}
        for arm, ends in (("target copied", "xy"), ("published", "xz"))
        for seed, final in zip("01", ends, strict=True)
    ]
    [line] = chainer_figure.of_arms(runs)
    assert line.agrees == [True, False]
    drawn = ET.fromstring(chainer_figure.draw(runs, []))
    colours = [c.get("fill") for c in drawn.iter() if c.tag.endswith("circle")]
    assert colours == [chainer_figure.SAME, chainer_figure.OTHER]


def test_chance_of_a_gap_between_four_and_eight():
    """Equal runs never show a gap; a gap of one is always reached."""
    equal = {"target copied": [1.0] * 12, "published": [2.0] * 12}
    assert "in 0.0 %" in tables.chance(equal)
    assert "in 100.0 %" in tables.chance(equal | {"published": [1.0] * 12})
    few = {"target copied": [1.0] * 3, "published": [1.0] * 3}
    assert "too few" in tables.chance(few)
