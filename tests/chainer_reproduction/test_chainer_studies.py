"""Plans, predictions, records and environments of the studies; no Chainer is needed."""

import re
import sys
import xml.etree.ElementTree as ET

import numpy as np
import pandas as pd
import pytest

from chainer_reproduction import __main__ as command
from chainer_reproduction import environments, plans, runs, tables
from prednet_jax import records
from prednet_jax.errors import UserError
from prednet_jax.report import charts

ROOT = environments.ROOT
DOCUMENTS = ("docs/chainer.md", "docs/chainer_predictions.md", "docs/claims.md")


def test_every_block_is_in_a_document_and_is_that_of_the_records():
    blocks = tables.blocks()
    text = "".join((ROOT / name).read_text() for name in DOCUMENTS)
    assert sorted(re.findall(r"<!-- table: (\S+) -->", text)) == sorted(blocks)
    for block in blocks.values():
        assert block in text
    for path, data in tables.figures().items():
        assert (ROOT / path).read_bytes() == data


@pytest.mark.parametrize(
    ("name", "check", "count"),
    [
        ("bisection", plans.check_bisection, 6),
        ("interventions_full", plans.check_interventions, 5 * len(plans.PREDICTIONS)),
        ("transplant", plans.check_transplant, 6),
    ],
)
def test_the_recorded_predictions_came_true(name, check, count):
    checked = check(records.read_csv(tables.RESULTS / f"{name}.csv"))
    assert len(checked) == count
    assert all(held for _, held in checked), checked


def test_the_plans_are_those_of_the_records():
    """A record that is made again has the same runs in the same order."""
    for name, plan, columns in (
        ("interventions_full", plans.full(), ("arm", "seed", "frames", "threads")),
        ("long", plans.long(ROOT), ("arm", "seed", "frames")),
        ("bisection", plans.bisection(), ("arm",)),
        (
            "others",
            [run for study in plans.OTHERS for run in plans.others(study)],
            ("study", "arm", "seed", "data_seed", "threads", "frames"),
        ),
    ):
        rows = records.read_csv(tables.RESULTS / f"{name}.csv")
        recorded = [tuple(row[column] for column in columns) for row in rows]
        planned = [tuple(str(getattr(run, c)) for c in columns) for run in plan]
        assert recorded == planned, name
        assert len({run.name for run in plan}) == len(plan)


def explained():
    """Final weights as the explanation has them."""
    groups = {
        "A": ("published", "input copied", "remade"),
        "B": (
            "target copied",
            "both copied",
            "difference kept",
            "remade, target copied",
        ),
        "C": ("static", "static, target copied"),
        "D": ("window 1", "window 1, target copied"),
    }
    return {arm: name for name, arms in groups.items() for arm in arms}


def failed(finals):
    rows = [{"seed": 0, "arm": a, "final_sha256": f} for a, f in finals.items()]
    return [text for text, held in plans.check_interventions(rows) if not held]


def test_the_interventions_hold_under_the_explanation_alone():
    assert set(explained()) == set(plans.ARMS)
    assert failed(explained()) == []
    for arm in plans.ARMS:
        # Other weights that differ again still differ: only that one may pass.
        assert failed(explained() | {arm: "E"}) or arm == "published", arm
    expected = ["seed 0: target copied: other weights than published"]
    assert failed(dict.fromkeys(plans.ARMS, "A")) == expected


def bisected(**changes):
    rows = []
    for release in environments.RELEASES:
        late = release not in ("2.1.0", "3.0.0b1")
        ends = {"published": "late" if late else "early", "target copied": "early"}
        for arm, final in (ends | changes.get(release, {})).items():
            rows.append({"release": release, "arm": arm, "final_sha256": final})
    return rows


def test_the_bisection_is_judged():
    assert all(held for _, held in plans.check_bisection(bisected()))
    early = bisected(**{"2.1.0": {"published": "other"}})
    assert ("Chainer 2.1.0: no gap", False) in plans.check_bisection(early)
    late = bisected(**{"5.0.0": {"published": "early"}})
    assert ("Chainer 5.0.0: a gap", False) in plans.check_bisection(late)


def test_the_transplant_is_judged():
    rows = [
        {
            "network": network,
            "losses_per_update": losses,
            "seed": 0,
            "target": target,
            "final_sha256": target if losses > 1 else "same",
        }
        for network in ("predictor", "autoencoder")
        for losses in (1, 5)
        for target in ("shared", "copied")
    ]
    assert all(held for _, held in plans.check_transplant(rows))
    rows[0]["final_sha256"] = "other"
    failed = [text for text, held in plans.check_transplant(rows) if not held]
    assert failed == ["predictor, 1 losses per update: no gap"]


@pytest.mark.parametrize(
    ("frames", "window", "updates"), [(201, 10, 20), (41, 5, 8), (7, 1, 6), (9, 10, 0)]
)
def test_updates_of_a_stream(frames, window, updates):
    """As the published loop counts: after frame i where (i + 1) % window == 0."""
    by_hand = sum((i + 1) % window == 0 for i in range(1, frames))
    assert runs.updates(frames - 1, window) == by_hand == updates


def test_losses_are_cut_into_the_windows_of_their_updates():
    record = {
        "losses": [float(i) for i in range(1, 12)],  # loss of frames 1 .. 11
        "chainer": "7.8.1",
        "window": 4,
        "seed": 0,
    }
    row = runs.row_of(runs.Run("x", "x", runs.QUICK, 11), record)
    assert (row["frames"], row["updates"], row["mean_loss"]) == (11, 3, "10.5")
    # Updates after frames 3, 7, 11: windows of frames 1-3, 4-7, 8-11.
    found = [tuple(losses.values()) for losses in runs.losses_of([row])]
    assert found == [
        ("x", 0, 1, "3", "2"),
        ("x", 0, 2, "7", "5.5"),
        ("x", 0, 3, "11", "9.5"),
    ]


def test_a_kept_record_is_used_and_a_broken_one_is_named(tmp_path):
    run = runs.Run("x", "published", runs.QUICK, 4)
    (tmp_path / "x.json").write_text('{"losses": [1.0')
    with pytest.raises(UserError, match=r"x\.json: no record .*; remove it"):
        runs.train(run, tmp_path, tmp_path / "no_python", tmp_path)
    kept = {"losses": [1.0] * 4, "window": 2, "chainer": "7.8.1", "final_sha256": "ab"}
    records.write_json(tmp_path / "x.json", kept)
    assert runs.train(run, tmp_path, tmp_path / "none", tmp_path)["updates"] == 2


def test_the_figure_counts_seeds_on_both_sides():
    rows = [
        {"arm": arm, "seed": seed, "final_sha256": final}
        for arm, ends in (("target copied", "xy"), ("published", "xz"))
        for seed, final in zip("01", ends, strict=True)
    ]
    assert list(tables.agreements(rows).values()) == [[True, False]]
    drawn = ET.fromstring(tables.figure(rows, []))
    blue, red = charts.ROLES["treatment"], charts.ROLES["stale"]
    colours = [c.get("fill") for c in drawn.iter() if c.get("fill") in (blue, red)]
    assert colours == [blue, red]


def test_chance_of_a_gap_between_four_and_eight():
    """Equal runs never show a gap; a gap of one is always reached."""
    arms = np.repeat(["published", "target copied"], 12)
    for published, share in ((2.0, "in 0.0 %"), (1.0, "in 100.0 %")):
        losses = np.repeat([str(published), "1.0"], 12)
        rows = pd.DataFrame({"arm": arms, "mean_loss": losses})
        assert share in tables.chance(rows)


def test_this_python_is_found_and_a_missing_one_is_named(monkeypatch, tmp_path):
    here = f"{sys.version_info.major}.{sys.version_info.minor}"
    assert here in environments.find_python((here,)).name
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(environments.UnavailableError, match=r"no Python 2\.9 or 2\.8"):
        environments.find_python(("2.9", "2.8"))


def test_a_study_without_its_python_is_skipped_with_the_reason(
    monkeypatch, tmp_path, capsys
):
    monkeypatch.setattr(environments, "ROOT", tmp_path)
    absent = environments.IDEEP._replace(pythons=("2.9",))
    with pytest.raises(environments.UnavailableError):
        environments.ensure(absent)
    assert not absent.directory.exists()
    run = runs.Run("x", "published", runs.QUICK, 4, environment=absent)
    assert runs.train_all([run], tmp_path, tmp_path) == []
    assert "chainer-ideep: skipped: no Python 2.9 found" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (
            ["others", "--studies=threads,order,moon"],
            "--studies=moon: expected threads",
        ),
        (
            ["interventions", "--jobs=0"],
            "--jobs: '0': expected a whole number, at least",
        ),
        (["interventions", "--ful"], "unrecognized arguments: --ful"),
        (["intervention"], "invalid choice: 'intervention'"),
        (["fingerprint", "none.npz"], "none.npz"),
    ],
)
def test_a_mistake_is_named_in_one_line(arguments, said, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    try:
        status = command.main(arguments)
    except SystemExit as end:
        status = end.code
    captured = capsys.readouterr()
    assert status == 2
    assert said in captured.err
    assert captured.err.count("\n") == 1
    assert not list(tmp_path.iterdir())
