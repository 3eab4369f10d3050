"""The paper's figures, from records that the tests write."""

import xml.etree.ElementTree as ET

from prednet_jax.studies import described_parts, study_figures
from prednet_jax.studies.symmetric_findings import Effect
from tests.studies.test_study_judgement import FEW, study, verdict


def count(svg, tag):
    return len(list(ET.fromstring(svg).iter(f"{{http://www.w3.org/2000/svg}}{tag}")))


def test_a_dot_per_seed_of_every_contrast():
    record = verdict(study(effects={"stale_targets": 0.5}))
    svg = study_figures.contrasts(record)
    seen = count(svg, "circle") + count(svg, "polygon")
    expected = sum(one["n"] for one in record["contrasts"])
    assert seen == expected
    # Stale targets are far outside what the others need.
    assert count(svg, "polygon") == len(FEW)


def test_parts_without_a_verdict_show_every_seed_too():
    found = study()
    compared = described_parts.against_control(found)
    svg = study_figures.against_control("D", compared)
    expected = sum(one.result.n for one in compared)
    assert count(svg, "circle") + count(svg, "polygon") == expected


def test_of_two_arms_the_nearer_one_has_the_room():
    def arm(name, ratios):
        return described_parts.AgainstControl(
            name, "float32", None, ratios, None, None, 0
        )

    compared = [arm("near", (0.99, 1.01)), arm("far", (4.0, 5.0, 6.0))]
    svg = study_figures.against_control("D", compared)
    assert (count(svg, "circle"), count(svg, "polygon")) == (2, 3)


def test_part_a_shows_separation_and_loss_of_one_program():
    def effect(program, arm):
        return Effect(program, arm, 0.0, (700, 3001), (1, 2), (1, 0.3), "", "")

    found = [effect("symmetric", "tile"), effect("ordinary", "tile")]
    svg = study_figures.saddle(found, "symmetric", 3000)
    assert count(svg, "circle") == 4
    assert svg.count(b"delta 0, tile") == 1


def test_no_figure_before_the_last_record(tmp_path, monkeypatch):
    monkeypatch.setattr(
        "prednet_jax.studies.symmetric_findings.read", lambda path: [object()]
    )
    assert study_figures.figures(tmp_path, {}) == {}
