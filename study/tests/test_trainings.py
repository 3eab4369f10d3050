import json
import sys

import jax
import numpy as np
import pytest

from prednet_jax import PredNetConfig, init_params, records, weights
from prednet_jax.errors import UserError
from study import __main__ as study
from study.chainer import commands as command
from study.chainer import fingerprint, tables, trainings


def test_the_records_are_those_of_the_plans_and_as_predicted():
    for name, plan in (("interventions_full", "full"), ("long", "long")):
        plan = trainings.PLANS[plan]
        rows = records.read_csv(tables.RESULTS / f"{name}.csv")
        recorded = [(row["arm"], row["seed"], row["frames"]) for row in rows]
        assert recorded == [(t.arm, str(t.seed), str(t.frames)) for t in plan]
        assert list(rows[0]) == list(command.COLUMNS)
        assert len({t.name for t in plan}) == len(plan)
    checked = trainings.check(
        records.read_csv(tables.RESULTS / "interventions_full.csv")
    )
    assert len(checked) == 5 * len(trainings.PREDICTIONS)
    assert all(held for _, held in checked), checked


def failed(finals):
    rows = [{"seed": 0, "arm": a, "final_sha256": f} for a, f in finals.items()]
    return [text for text, held in trainings.check(rows) if not held]


def test_the_interventions_hold_under_the_explanation_alone():
    explained = {
        **dict.fromkeys(("published", "input copied", "remade"), "A"),
        **dict.fromkeys(("target copied", "both copied"), "B"),
        **dict.fromkeys(("difference kept", "remade, target copied"), "B"),
        **dict.fromkeys(("static", "static, target copied"), "C"),
        **dict.fromkeys(("window 1", "window 1, target copied"), "D"),
    }
    assert set(explained) == set(trainings.ARMS)
    assert failed(explained) == []
    expected = ["seed 0: target copied: other weights than published"]
    assert failed(dict.fromkeys(trainings.ARMS, "A")) == expected


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("train --part=C --shard=0/0", "--shard=0/0: expected I/N"),
        ("train --part=C --seeds=1", "--seeds=1: expected one of"),
        ("train --part=C --workdir=/proc/x", "/proc is no directory that can be"),
        ("train --part=C --compare_with={}", "has no record of seed 8300 of part C"),
        ("gpu --updates=-1", "--updates=-1: expected a whole number, from 1 to"),
        ("gpu --updates=9999999", "--updates=9999999: expected a whole number"),
        ("gpu --workdir=/proc/x", "/proc is no directory that can be written"),
        ("interventions --workdir=/proc/x", "/proc is no directory that can be"),
        ("pack {}", "has no records"),
        ("pack {}/file", "file: has no records; expected"),
        ("fingerprint {}", "is a directory, not a regular file"),
        ("fingerprint {}/" + 300 * "x", "File name too long"),
        ("tables no_such_table", "no_such_table"),
    ],
)
def test_what_is_wrong_is_said_in_one_line(tmp_path, capsys, words, message):
    (tmp_path / "file").write_text("")
    assert study.main(words.format(tmp_path).split()) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"python -m study {words.split()[0]}: ")
    assert message in line
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_updates_of_a_stream():
    """As the published loop counts: after frame i where (i + 1) % window == 0."""
    for frames, window, updates in (201, 10, 20), (41, 5, 8), (7, 1, 6), (9, 10, 0):
        row = trainings.row_of(
            trainings.Training("x", "x", trainings.QUICK, frames - 1),
            {"losses": [float(i) for i in range(1, frames)], "window": window},
        )
        assert (row["frames"], row["updates"]) == (frames - 1, updates)
    assert row["mean_loss"] == "7.5"  # The last quarter of 1 .. 8.


def test_a_kept_record_is_used_and_a_broken_one_is_named(tmp_path):
    training = trainings.Training("x", "published", trainings.QUICK, 4)
    (tmp_path / "x.json").write_text('{"losses": [1.0')
    with pytest.raises(UserError, match=r"x\.json: no record .*; remove it"):
        trainings.run(training, tmp_path, tmp_path / "no_python", tmp_path)
    kept = {"losses": [1.0] * 4, "window": 2, "final_sha256": "ab"}
    records.write_json(tmp_path / "x.json", kept)
    assert (
        trainings.run(training, tmp_path, tmp_path / "none", tmp_path)["updates"] == 2
    )


@pytest.mark.parametrize("explained", [True, False])
def test_interventions_end_with_the_verdict(tmp_path, monkeypatch, capsys, explained):
    """The whole command, a function that trains nothing in the place of Chainer."""

    def train(_python, _script, *words):
        flags = dict(word.lstrip("-").partition("=")[::2] for word in words)
        copied = flags.get("target") == "copied" or "loss" in flags
        with np.load(flags["frames"]) as file:
            shape = file["frames"][: int(flags["length"])].shape
        record = dict.fromkeys(command.COLUMNS, "-")
        record |= {"losses": [0.25] * (shape[0] - 1), "window": int(flags["window"])}
        record |= {"seed": int(flags["seed"]), "height": shape[1], "width": shape[2]}
        if "weights" in flags:
            mode = "copied" if copied else "aliased"
            final = np.load(command.GOLDEN / f"final.{mode}.model.npz")
            np.savez(flags["weights"], **final)
            trace = np.load(command.GOLDEN / f"trace.{mode}.npz")
            record["losses"] = trace["frame_loss"].tolist()
        alike = flags["window"] == "1" or "static" in flags or not explained
        final = (copied and not alike, flags["window"], "static" in flags)
        record["final_sha256"] = str(final)
        records.write_json(flags["output"], record)

    monkeypatch.setattr(trainings, "start", train)
    monkeypatch.setattr(trainings, "ensure", lambda: None)
    status = study.main(["interventions", f"--workdir={tmp_path}"])
    said = capsys.readouterr().out
    assert status == (not explained)
    assert said.count("came true") == len(trainings.PREDICTIONS) - (not explained)
    assert ("copied: other weights than published: FAILED" in said) != explained
    assert said.count("86 of 86 weight arrays and 40 of 40 losses equal bit for") == 2
    rows = records.read_csv(tmp_path / "interventions_quick.csv")
    assert [row["arm"] for row in rows] == list(trainings.ARMS)
    assert rows[0]["mean_loss"] == "0.25"


def test_this_python_is_found_and_a_missing_one_is_named(monkeypatch, tmp_path):
    here = f"{sys.version_info.major}.{sys.version_info.minor}"
    assert here in trainings.find_python((here,)).name
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(UserError, match=r"no Python 2\.9 or 2\.8"):
        trainings.find_python(("2.9", "2.8"))


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["interventions", "--ful"], "unrecognized arguments: --ful"),
        (["intervention"], "invalid choice: 'intervention'"),
        (["fingerprint", "none.npz"], "none.npz"),
    ],
)
def test_a_mistake_is_named_in_one_line(arguments, said, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    try:
        status = study.main(arguments)
    except SystemExit as end:
        status = end.code
    captured = capsys.readouterr()
    assert status == 2
    assert said in captured.err
    assert captured.err.count("\n") == 1
    assert not list(tmp_path.iterdir())


def test_the_fingerprint_of_a_model_that_predicts_four_frames_late(
    tmp_path, monkeypatch, capsys
):
    """Its predictions of frame t are those that are right for frame t + 4."""

    def ahead(params, config, frames):
        return np.concatenate([frames[4:], frames[:4]]), None

    monkeypatch.setattr(fingerprint, "predict", ahead)
    monkeypatch.setattr(fingerprint, "_LENGTH", 40)
    path = tmp_path / "x.model"
    config = PredNetConfig(channels=(3,), height=24, width=32)
    weights.save_chainer(path, config, init_params(config, jax.random.key(0)))
    errors = fingerprint.errors_of(path)
    assert errors["5"] == 0
    assert errors["1"] > 1e-4
    monkeypatch.setattr(fingerprint, "errors_of", lambda _: {"1": 0.5, "5": 0.5})
    assert study.main(["fingerprint", str(path)]) == 0
    assert json.loads(capsys.readouterr().out)["slope"] == 0
