import dataclasses
import json
import math

import numpy as np
import pytest

from prednet_jax import records, report
from prednet_jax.errors import UserError
from prednet_jax.files import FileError
from prednet_jax.records.verdict import (
    Answer,
    Claim,
    Contrast,
    Estimate,
    Kind,
    Verdict,
)
from prednet_jax.report import numbers, results, verdict_text
from tests.processes import ROOT


def test_load_finds_every_run(comparison):
    found = results.load(comparison)
    assert found.models == ["prednet", "autoencoder"]
    assert len(found.losses["prednet"]) == 8
    assert sorted(found.losses["prednet"]["float32"]) == [0, 1, 2, 3, 4, 5]
    assert found.losses["prednet"]["ulp"][3].shape == (60,)
    names = {"float32", "reduction_order", "stale_targets"}
    assert set(found.examples["prednet"]) == names
    one = found.examples["prednet"]["float32"]
    assert one.frames.max() <= 1
    assert one.before.shape == one.frames.shape
    # One frame short, as the first frame of a source has none before it.
    assert found.examples["autoencoder"]["float32"].before is None


def test_replicates_are_averaged_inside_the_seed(broken):
    arm = broken / "runs" / "prednet" / "reduction_order"
    one = results.load(broken).losses["prednet"]["reduction_order"][0]
    again = arm / "draw_1" / "seed_0"
    again.mkdir(parents=True)
    (again / "manifest.json").write_text(json.dumps({"seed": 0}))
    (again / "metrics.jsonl").write_text('{"update": 1, "loss": 1.0}\n' * 60)
    two = results.load(broken).losses["prednet"]["reduction_order"][0]
    # Mean of two float64 numbers: exact to a rounding.
    np.testing.assert_allclose(two, (one + 1) / 2, rtol=1e-15)
    # An interrupted run of another comparison, of which the verdict says nothing.
    (arm / "seed_77").mkdir()
    losses = {"prednet": {"reduction_order": {"0": [1.0, 1.0]}}}
    verdict = json.loads((broken / "verdict.json").read_text()) | {"losses": losses}
    (broken / "verdict.json").write_text(json.dumps(verdict))
    assert list(results.load(broken).losses["prednet"]["reduction_order"]) == [0]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda v: v.pop("contrasts"), "contrasts is None; expected a list"),
        (lambda v: v.update(verdict="refuted"), "expected an obj"),
        (lambda v: v["contrasts"].append(3), r"contrasts\[1\] is 3; expected an obj"),
        (lambda v: v["contrasts"][0].pop("treatment"), r"contrasts\[0\].treatment"),
        (lambda v: v["contrasts"][0].update(tost_p="x"), "expected a number"),
        (lambda v: v.update(losses={"prednet": [1]}), "losses.prednet is"),
    ],
)
def test_a_wrong_verdict_is_named(tmp_path, verdict, change, message):
    verdict = {"contrasts": verdict["contrasts"][:1], "verdict": verdict["verdict"]}
    path = tmp_path / "verdict.json"
    change(verdict)
    path.write_text(json.dumps(verdict))
    with pytest.raises(FileError, match=message) as raised:
        results.load(tmp_path)
    assert str(path) in str(raised.value)
    for content in (b"{", b"[]"):
        path.write_bytes(content)
        with pytest.raises(FileError, match=r"verdict\.json.*expected"):
            results.load(tmp_path)


@pytest.mark.parametrize(
    "section",
    [
        {"claims": [{"claim": "noise lowers the loss", "model": []}]},
        {"manipulation": {"prednet": 5}},
        {"claims": [{"claim": 3, "model": "prednet"}]},
        {"seconds": 10**400},
        *(
            {"design": {name: value}}
            for name, value in {
                "seeds": 3,
                "networks": {"prednet": 3},
                "updates": [5],
                "data": "walk",
                "differs_from_study": {"prednet": 3},
                "given_up": 1,
            }.items()
        ),
    ],
)
def test_a_section_of_another_kind_is_named(section, verdict):
    """They ended in a TypeError, an AttributeError or an OverflowError."""
    least = {"contrasts": [], "verdict": {}}
    with pytest.raises(UserError, match=f"{next(iter(section))}.*expected"):
        Verdict.from_json(least | section)
    study = records.read_json(ROOT / "results" / "study" / "verdict.json")
    claim = study["claims"][0] | {"predicted": [1.0]}
    with pytest.raises(UserError, match=r"predicted is \[1.0\]; expected 2 values"):
        Verdict.from_json(study | {"claims": [claim]})


def test_a_verdict_is_read_as_it_was_written(verdict):
    study = records.read_json(ROOT / "results" / "study" / "verdict.json")
    for content in (verdict, study):
        first = Verdict.from_json(content)
        written = json.loads(records.json_bytes(first.to_json()))
        assert Verdict.from_json(written) == first
        for now, before in zip(
            written["claims"], content.get("claims", []), strict=True
        ):
            assert before.items() <= now.items()
        assert written["losses"] == content.get("losses", {})
        assert len(written["contrasts"]) == len(content["contrasts"])


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("metrics.jsonl", b'{"loss": 1.0}\n{"lo'),
        ("metrics.jsonl", b'{"loss": "much"}\n'),
        ("manifest.json", b"{"),
        ("examples.npz", b"PK"),
    ],
)
def test_a_broken_record_is_named(broken, name, content):
    path = broken / "runs" / "prednet" / "float32" / "seed_0" / name
    path.write_bytes(content)
    with pytest.raises(FileError, match="expected") as raised:
        report.build(broken)
    assert str(path) in str(raised.value)
    assert not (broken / report.PAGE).exists()


def test_examples_of_two_shapes_or_two_arms_must_be_the_same(broken):
    path = broken / "runs" / "prednet" / "stale_targets" / "seed_0" / "examples.npz"
    with np.load(path) as file:
        arrays = dict(file)
    np.savez(path, **arrays | {"frames": arrays["frames"][::-1]})
    with pytest.raises(FileError, match="different frames"):
        report.build(broken)
    np.savez(path, **arrays | {"frames": arrays["frames"][1:]})
    with pytest.raises(FileError, match="expected one shape"):
        report.build(broken)


def test_significant():
    for value, digits, text in (
        (0.030582, 3, "0.0306"),
        (0.9996, 3, "1.00"),
        (9.996e-5, 3, "1.00e-04"),
        (-1.234e-5, 2, "-1.2e-05"),
        (431.7, 2, "432"),
        (123456.0, 3, "1.23e+05"),
        (0.0, 3, "0"),
        (-0.0, 3, "0"),
        (math.inf, 3, "inf"),
        (-math.inf, 3, "-inf"),
        (None, 3, "-"),
        (math.nan, 3, "-"),
    ):
        assert numbers.significant(value, digits) == text


def test_signs_and_percent():
    assert numbers.significant(0.5, 2, sign=True) == "+0.50"
    assert numbers.interval(-1.2e-5, 3.4e-5) == "[-1.2e-05, +3.4e-05]"
    assert numbers.interval(None, 1.0) == "-"
    found = [numbers.probability(p) for p in (1.0, 0.0, 2 / 2**10, None)]
    assert found == ["1", "0", "0.0020", "-"]


def test_the_ends_of_a_change_are_zero_only_if_they_are():
    for values, text in (
        ((-0.167, -0.82, 0.486), "-0.17 % [-0.82, +0.49]"),
        ((31.2, 14.4, 69.0), "+31 % [+14, +69]"),
        ((0.0, 0.0, 0.0), "0 % [0, 0]"),
        ((-1.1, -3.0, -0.012), "-1.1 % [-3.0, -0.012]"),
        ((1.3e5, 1e4, 3e5), "+1.3e+05 % [+10000, +3.0e+05]"),
        ((1.234, -math.inf, math.inf), "+1.2 %"),
        ((1.234, None, None), "+1.2 %"),
    ):
        assert numbers.change(*values) == text


def test_text_table_names_every_contrast_and_fits(verdict):
    text = report.text_table(Verdict.from_json(verdict))
    lines = text.splitlines()
    assert max(map(len, lines)) <= 100
    assert text.isascii()
    assert "prednet, by the rule for these seeds: refuted" in lines
    assert "autoencoder, by the rule for these seeds: inconclusive" in lines
    for one in verdict["contrasts"]:
        rows = [line for line in lines if line.split()[:1] == [one["treatment"]]]
        # A row in each model.
        assert len(rows) == 2, one["treatment"]
    assert "+0.0" in next(line for line in lines if line.startswith("stale_targets"))
    assert "6/6" in next(line for line in lines if line.startswith("threads_1"))
    one |= {"scale": "log", "mean_difference": 0.5, "bitwise_equal": 0}
    assert verdict_text.text_row(Contrast.from_json(one))[3].startswith(
        "+65 % "
    )  # exp(0.5) - 1
    for model in ("prednet", "autoencoder"):
        assert f"p Holm: over all 7 contrasts of {model}" in lines
    assert lines[-1] == "This is about emulated noise only: no GPU was used."
    with_gpu = [verdict["arms"][0] | {"gpu": "H100"}]
    other = Verdict.from_json(verdict | {"arms": with_gpu})
    assert "emulated noise" not in report.text_table(other)


def of_claims(*claims, **others):
    least = {"contrasts": [], "verdict": {}, "claims": claims}
    return Verdict.from_json(least | others)


def test_claims_and_a_repetition_in_sentences():
    stale = {
        "claim": "stale targets raise the loss",
        "model": "prednet",
        "answer": "yes",
        "estimate": 2.12,
        "low": None,
        "high": None,
        "published": {"estimate": 2.06, "low": 1.85, "high": 2.28},
        "predicted": [1.36, 3.05],
        "holds": True,
    }
    noise = stale | {
        "claim": "random order of sums changes the loss",
        "answer": "no effect within the margin",
        "estimate": 0.06,
        "predicted": [-0.0002, 0.049],
        "holds": False,
    }
    both = {"claim": noise["claim"], "model": "prednet", "seeds": 42}
    both |= {"estimate": 0.001, "low": -0.003, "high": 0.005}
    margins = {"prednet": {"value": 1e-4, "fraction": 0.02}}
    verdict = of_claims(stale, noise, together=[both], margins=margins)
    assert verdict_text.claim_sentences(verdict) == [
        "PredNet: the mistake of the article's script (stale targets) raises the loss, "
        "the error of the predictions. In these runs the loss changes by +212 %. "
        "After as many updates the study found +206 % [+185, +228], and expects +136 % "
        "to +305 % from a repetition of this size.",
        "PredNet: adding sums in a random order changes the loss by less than the "
        "margin of 2 % (42 seeds of the study and these runs together: +0.1 % [-0.3, "
        "+0.5]). In these runs the loss changes by +6.0 %. After as many updates the "
        "study found +206 % [+185, +228], and expects 0.0 % to +4.9 % from a "
        "repetition of this size. This one lies outside, as 1 honest repetition in 14 "
        "does.",
    ]
    lines = report.claim_lines(verdict).splitlines()
    assert max(map(len, lines)) <= 100


@pytest.mark.parametrize("kind", Kind)
def test_a_claim_says_the_same_before_and_after_it_is_written(kind):
    found = Estimate(0.001, -0.05, 0.06)
    claim = Claim(
        kind=kind,
        model="prednet",
        answer=Answer.CANNOT_TELL,
        found=found,
        distance=0.03,
    )
    least = Verdict.from_json({"contrasts": [], "verdict": {}, "claims": []})
    verdict = dataclasses.replace(least, claims=(claim,))
    said = verdict_text.claim_sentences(verdict)
    of_noise = kind not in (Kind.STALE, Kind.SADDLE)
    assert ("only 3 % of the distance" in said[0]) == of_noise
    written = json.loads(records.json_bytes(verdict.to_json()))
    assert verdict_text.claim_sentences(Verdict.from_json(written)) == said


def test_each_answer_has_its_sentence_and_what_it_rests_on():
    claim = {
        "claim": "random order of sums changes the loss",
        "model": "prednet",
        "answer": "cannot tell",
        **{"estimate": 2e-7, "low": None, "high": None},
    }
    claim |= dict.fromkeys(("published", "predicted", "holds"))
    checks = {"prednet": {"distance_over_travelled": 3.1e-6}}
    (said,) = verdict_text.claim_sentences(of_claims(claim, manipulation=checks))
    assert said.startswith("PredNet: these runs cannot tell whether")
    assert "too short" in said
    assert "0.0003 %" in said
    (why,) = verdict_text.unpublished(of_claims(claim))
    assert "no numbers" in why
    design = {"differs_from_study": {"prednet": ["window 9 instead of 10"]}}
    (why,) = verdict_text.unpublished(of_claims(claim, design=design))
    assert "window 9 instead of 10" in why

    claim |= {"model": "autoencoder", "answer": "same bits", "estimate": 0}
    (said,) = verdict_text.claim_sentences(of_claims(claim))
    assert said.endswith("leaves the same bits. Here the losses are equal.")
    claim["answer"] = "perhaps"
    with pytest.raises(UserError, match="perhaps"):
        verdict_text.claim_sentences(of_claims(claim))


def test_the_report_is_written_anew(forked, verdict, tmp_path):
    verdict["contrasts"] = verdict["contrasts"][:2]
    (tmp_path / "verdict.json").write_text(json.dumps(verdict))
    done = forked("report.py", f"--directory={tmp_path}")
    assert "prednet, by the rule for these seeds: refuted" in done.stdout
    assert done.stdout.splitlines()[-1] == str(tmp_path / "report.html")
    assert (tmp_path / "report.html").stat().st_size > 10_000


def test_no_results_end_in_one_line(refused, tmp_path):
    done = refused(str(tmp_path), "report.py", f"--directory={tmp_path}")
    assert "make compare" in done.stderr
    assert not list(tmp_path.iterdir())
