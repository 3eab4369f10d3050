"""Plans, checks and environments of the Chainer study; no Chainer is needed."""

import subprocess
import sys

import _rows
import chainer_bisect
import chainer_plans as plans
import chainer_study
import environments
import pytest
import transplant


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


def test_every_arm_is_explained_and_predicted():
    assert set(plans.ARMS) == set(plans.MEANING) == set(explained())
    named = {p.one for p in plans.PREDICTIONS} | {p.other for p in plans.PREDICTIONS}
    assert named == set(plans.ARMS)


def test_the_predictions_hold_under_the_explanation_alone():
    assert all(held for _, held in plans.check(explained()))
    for arm in plans.ARMS:
        wrong = [p for p, held in plans.check(explained() | {arm: "E"}) if not held]
        # Other weights that differ again still differ: only that one may pass.
        assert wrong or arm == "published", arm
    assert not plans.check(dict.fromkeys(plans.ARMS, "A"))[2][1]


@pytest.mark.parametrize(
    ("frames", "window", "updates"), [(201, 10, 20), (41, 5, 8), (7, 1, 6), (9, 10, 0)]
)
def test_updates_of_a_stream(frames, window, updates):
    """As the published loop counts: after frame i where (i + 1) % window == 0."""
    by_hand = sum((i + 1) % window == 0 for i in range(1, frames))
    assert chainer_study.updates(frames, window) == by_hand == updates


def test_losses_are_cut_into_the_windows_of_their_updates():
    losses = [float(i) for i in range(1, 12)]  # loss of frames 1 .. 11
    record = {"arm": "x", "seed": 0, "frames": 12, "job": {"window": 4}}
    rows = chainer_study.losses_of([record | {"losses": losses}])
    found = [tuple(row.values()) for row in rows]
    # Updates after frames 3, 7, 11: windows of frames 1-3, 4-7, 8-11.
    assert found == [("x", 0, 1, "3", "2"), ("x", 0, 2, "7", "5.5"), *found[2:]]
    assert found[2] == ("x", 0, 3, "11", "9.5")


def bisected(**changes):
    rows = []
    for release in environments.RELEASES:
        late = release not in ("2.1.0", "3.0.0b1")
        ends = {"published": "late" if late else "early", "target copied": "early"}
        for arm, final in (ends | changes.get(release, {})).items():
            rows.append({"release": release, "arm": arm, "final_sha256": final})
    return rows


def test_the_bisection_is_judged():
    assert all(held for _, held in chainer_bisect.check(bisected()))
    early = bisected(**{"2.1.0": {"published": "other"}})
    assert ("Chainer 2.1.0: no gap", False) in chainer_bisect.check(early)
    late = bisected(**{"5.0.0": {"published": "early"}})
    assert ("Chainer 5.0.0: a gap", False) in chainer_bisect.check(late)


def test_tables_are_read_as_they_were_written(tmp_path):
    fields = dict.fromkeys(chainer_bisect.FIELDS, "1")
    rows = [fields | row for row in bisected()]
    _rows.write(tmp_path / "new" / "b.csv", rows, chainer_bisect.FIELDS)
    assert _rows.read(tmp_path / "new" / "b.csv") == rows
    assert _rows.read(tmp_path / "none.csv") == []


def test_the_transplant_is_judged():
    rows = [
        {
            "network": network,
            "losses_per_update": every,
            "seed": 0,
            "target": target,
            "final_sha256": target if every > 1 else "same",
        }
        for network in ("predictor", "autoencoder")
        for every in (1, 5)
        for target in ("shared", "copied")
    ]
    assert all(held for _, held in transplant.check(rows))
    rows[0]["final_sha256"] = "other"
    failed = [text for text, held in transplant.check(rows) if not held]
    assert failed == ["predictor, 1 losses per update: no gap"]


def test_this_python_is_found_and_a_missing_one_is_named(monkeypatch, tmp_path):
    here = f"{sys.version_info.major}.{sys.version_info.minor}"
    found = environments.find_python((here,))
    code = "import sys; print('%d.%d' % sys.version_info[:2])"
    done = subprocess.run(
        [found, "-c", code], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == here
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(
        environments.MissingPythonError, match=r"no Python 2\.9 or 2\.8"
    ):
        environments.find_python(("2.9", "2.8"))


def test_an_environment_that_is_there_is_not_built_again(monkeypatch, tmp_path):
    monkeypatch.setattr(environments, "ROOT", tmp_path)
    requirements = tmp_path / "requirements.txt"
    requirements.write_text("six==1.17.0\n")
    environment = environments.Environment("x", ("2.9",), requirements)
    with pytest.raises(environments.MissingPythonError):
        environments.ensure(environment)
    assert not environment.directory.exists()
