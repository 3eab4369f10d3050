"""Part A, a start on a saddle, in sentences.

The module `prose` says why.
"""

import csv

import numpy as np

from prednet_jax import records
from prednet_jax.studies import symmetric_findings
from tests.studies.prose import STUDY, words


def test_paper_names_the_seeds_of_the_ordinary_program_that_move():
    page = words("docs/study/README.md")
    rows = {
        (row.program, row.delta, row.arm, row.seed): row
        for row in symmetric_findings.read(STUDY / "A" / "runs.csv")
    }
    losses = [
        rows["ordinary", 0.0, "run", seed].loss
        / rows["ordinary", 0.0, "float32", seed].loss
        for seed in range(8100, 8105)
    ]
    least, most = 100 * (1 - max(losses)), 100 * (1 - min(losses))
    assert f"lower in all five, by {least:.1f} % to {most:.0f} %" in page
    assert sum(loss > 0.98 for loss in losses) == 2
    (tile, clean), (other_tile, other_clean) = (
        [rows["ordinary", 1e-6, arm, seed].separated_at for arm in ("tile", "float32")]
        for seed in (8100, 8104)
    )
    shared = rows["ordinary", 1e-6, "shared", 8100].separated_at
    said = f"(at {tile} instead of {clean}, at {other_tile} instead of {other_clean})"
    assert f"{said}, the first of them under shared order too ({shared})" in page


def test_paper_says_for_which_seed_the_theory_of_the_saddle_is_off():
    page = words("docs/study/README.md")
    theory = records.read_json(STUDY / "A" / "theory.json")
    with (STUDY / "A" / "runs.csv").open() as file:
        rows = list(csv.DictReader(file))
    ratios = {}
    for one in theory["seeds"]:
        wanted = ("symmetric", "tile", 0.0, one["seed"])
        (run,) = (
            row
            for row in rows
            if (row["program"], row["arm"], float(row["delta"]), int(row["seed"]))
            == wanted
        )
        # Twenty values in a run, one after each 150 updates: after 600 and after 900.
        early, late = (float(run[f"asymmetry_{place:02d}"]) for place in (4, 6))
        growth = np.log(late / early) / (theory["until"] - theory["at"])
        ratios[one["seed"]] = growth / one["rate"]
        if one["seed"] == 8100:
            assert f"in the same updates ({growth:.3f}); for the others" in page
    assert ratios.pop(8100) > 5
    assert all(1 / 1.3 < ratio < 1.3 for ratio in ratios.values())


def test_paper_says_when_tile_order_leaves_the_saddle():
    page = words("docs/study/README.md")
    rows = symmetric_findings.read(STUDY / "A" / "runs.csv")
    updates = [
        row.separated_at
        for row in rows
        if (row.program, row.delta, row.arm) == ("symmetric", 0.0, "tile")
    ]
    assert f"between updates {min(updates)} and {max(updates)}" in page
