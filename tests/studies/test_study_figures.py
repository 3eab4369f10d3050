"""The paper's figures, from records that the tests write."""

from prednet_jax.studies import described_parts, study_figures
from prednet_jax.studies.symmetric_findings import Effect
from tests.studies.test_study_judgement import FEW, study, verdict


def dots(figure):
    """Number of dots inside the panels, and of those beyond an end."""
    inside = beyond = 0
    for row in figure.rows:
        for panel, values in zip(figure.panels, row.values, strict=True):
            shown = sum(panel.low <= value <= panel.high for value in values)
            inside, beyond = inside + shown, beyond + len(values) - shown
    return inside, beyond


def test_a_dot_per_seed_of_every_contrast():
    record = verdict(study(effects={"stale_targets": 0.5}))
    inside, beyond = dots(study_figures.contrasts(record))
    assert inside + beyond == sum(one["n"] for one in record["contrasts"])
    # Stale targets are far outside what the others need.
    assert beyond == len(FEW)


def test_parts_without_a_verdict_show_every_seed_too():
    compared = described_parts.against_control(study())
    figure = study_figures.against_control("D", compared)
    assert sum(dots(figure)) == sum(one.result.n for one in compared)


def test_of_two_arms_the_nearer_one_has_the_room():
    def arm(name, ratios):
        return described_parts.AgainstControl(
            name, "float32", None, ratios, None, None, 0
        )

    compared = [arm("near", (0.99, 1.01)), arm("far", (4.0, 5.0, 6.0))]
    assert dots(study_figures.against_control("D", compared)) == (2, 3)


def test_part_a_shows_separation_and_loss_of_one_program():
    def effect(program, arm):
        return Effect(program, arm, 0.0, (700, 3001), (1, 2), (1, 0.3), "", "")

    found = [effect("symmetric", "tile"), effect("ordinary", "tile")]
    figure = study_figures.saddle(found, "symmetric", 3000)
    assert [row.label for row in figure.rows] == ["delta 0, tile"]
    assert dots(figure) == (4, 0)


def test_no_figure_before_the_last_record(tmp_path, monkeypatch):
    monkeypatch.setattr(
        "prednet_jax.studies.symmetric_findings.read", lambda path: [object()]
    )
    assert study_figures.figures(tmp_path, {}) == {}
