"""Decisions about trainings from a symmetric start, from tables that the tests make."""

import csv

import pytest

from prednet_jax import errors
from prednet_jax.studies import study_tables, symmetric_runs
from prednet_jax.studies import symmetric_findings as findings
from prednet_jax.studies.symmetric_findings import Row

SEEDS = range(5)


def runs(program, arm, delta, at, loss, equal=False):
    return [
        Row(program, arm, delta, seed, at + seed, equal, loss, 3000) for seed in SEEDS
    ]


def table(**changes):
    """Both programs: noise helps on the exact saddle of the symmetric one alone."""
    rows = []
    for program in ("ordinary", "symmetric"):
        for arm in ("float32", "shared", "tile"):
            for delta in symmetric_runs.DELTAS:
                stuck = (program, delta) == ("symmetric", 0.0) and arm != "tile"
                at, loss = (3001, 3.0) if stuck else (700, 1.0)
                at, loss = changes.get(f"{program} {arm} {delta:g}", (at, loss))
                rows += runs(program, arm, delta, at, loss, equal=stuck)
    return rows


def test_decisions_by_hand():
    rows = table(**{"symmetric tile 0.0001": (900, 1.1)})
    found = {(e["program"], e["arm"], e["delta"]): e for e in findings.effects(rows)}
    exact = found["symmetric", "tile", 0.0]
    assert (exact["separation"], exact["loss"]) == ("earlier", "lower")
    assert exact["over_control"] == pytest.approx([1 / 3] * 5)
    assert found["symmetric", "shared", 0.0]["separation"] == "no effect"
    assert found["ordinary", "tile", 0.0]["loss"] == "no effect"
    assert found["ordinary", "float32", 0.0]["separation"] == "control"
    harm = found["symmetric", "tile", 1e-4]
    assert (harm["separation"], harm["loss"]) == ("later", "higher")
    assert findings.largest_delta(found.values(), "symmetric") == 0.0
    assert findings.largest_delta(found.values(), "ordinary") is None


def test_all_five_seeds_have_to_agree():
    rows = table(**{"ordinary tile 0": (300, 0.9)})
    tile = [e for e in findings.effects(rows) if e["arm"] == "tile"]
    changed = next(e for e in tile if (e["program"], e["delta"]) == ("ordinary", 0.0))
    assert (changed["separation"], changed["loss"]) == ("earlier", "lower")
    index = next(
        i for i, row in enumerate(rows) if row[:4] == ("ordinary", "tile", 0.0, 2)
    )
    rows[index] = rows[index]._replace(loss=0.99, separated_at=690)
    again = {(e["program"], e["arm"], e["delta"]): e for e in findings.effects(rows)}
    assert again["ordinary", "tile", 0.0]["separation"] == "no effect"
    assert again["ordinary", "tile", 0.0]["loss"] == "no effect"


def test_checks_pass_and_fail():
    assert all(check.passed for check in findings.checks(table()).values())
    broken = [row._replace(equal=False) for row in table()]
    stays, worse, helps = findings.checks(broken).values()
    assert not stays.passed
    assert worse.passed
    assert helps.passed
    flat = table(**{"symmetric float32 0": (3001, 1.1)})
    _, worse, helps = findings.checks(flat).values()
    assert not worse.passed
    assert helps.passed
    # Two seeds separate after the last update, which is never.
    late = table(**{"symmetric tile 0": (2999, 1.0)})
    assert not findings.checks(late)["noise separates and lowers the loss"].passed
    assert not any(check.passed for check in findings.checks([]).values())


def test_an_arm_without_all_seeds_is_not_judged():
    rows = [row for row in table() if (row.arm, row.seed) != ("tile", 4)]
    assert {effect["arm"] for effect in findings.effects(rows)} == {"float32", "shared"}


def test_rows_are_read_as_they_were_written(tmp_path):
    path = tmp_path / "runs.csv"
    entry = {"program": "ordinary", "arm": "tile", "delta": 1e-8, "seed": 8100}
    entry |= {"updates": 3000, "separated_at": None, "unequal_at": 1}
    with open(path, "w", newline="") as file:
        writer = csv.DictWriter(file, [*entry, "final_loss", "final_params_sha256"])
        writer.writeheader()
        writer.writerow(entry | {"final_loss": 0.004, "final_params_sha256": "ab"})
    expected = Row("ordinary", "tile", 1e-8, 8100, 3001, False, 0.004, 3000, "ab")
    assert findings.read(path) == [expected]
    text = path.read_text()
    path.write_text(text.replace("0.004", "nan"))
    with pytest.raises(errors.UserError, match="diverged"):
        findings.read(path)
    path.write_text(text + text.splitlines()[1] + "\n")
    with pytest.raises(errors.UserError, match="twice"):
        findings.read(path)


def test_the_table_of_the_paper():
    found = findings.effects(table())
    text = study_tables.saddle(found)
    assert (
        "| symmetric | 0 | tile | 702 (700 to 704) | 1 | 0.33 | earlier | lower |"
        in text
    )
    record = {
        "seeds": [
            {"seed": 1, "rate": 0.01, "c_sigma": 1e-8, "useful": 1e-7}
            | {"initial": 1.4, "orders": 7.1}
        ]
    }
    text = study_tables.saddle_theory(record, found)
    assert "| 1 | 0.0100 | 1.0e-08 | 1.0e-07 | 1.40 | 7.1 |" in text
    assert "symmetric program: 0; ordinary program: none" in text


def test_the_planned_runs_are_those_of_the_script():
    arms = [arm for arm in symmetric_runs.ARMS if arm != "blocks"]
    deltas = list(symmetric_runs.DELTAS)
    planned = symmetric_runs.runs(["ordinary", "symmetric"], arms, deltas, [1] * 5)
    assert len(planned) == study_tables.SADDLE_RUNS
