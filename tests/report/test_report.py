import json
import math

import numpy as np
import pytest

from prednet_jax import report
from prednet_jax.files import FileError
from prednet_jax.report import numbers, results, verdict_text


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
        (lambda v: v.update(verdict="refuted"), "expected a dict"),
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
    assert numbers.percent(0.3213) == "+32 %"
    assert numbers.percent(None) == "-"
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
    text = report.text_table(verdict)
    lines = text.splitlines()
    assert max(map(len, lines)) <= 100
    assert text.isascii()
    assert "prednet, these seeds alone: refuted" in lines
    assert "autoencoder, these seeds alone: inconclusive" in lines
    for one in verdict["contrasts"]:
        rows = [line for line in lines if line.split()[:1] == [one["treatment"]]]
        # A row in each model.
        assert len(rows) == 2, one["treatment"]
    assert "+0.0" in next(line for line in lines if line.startswith("stale_targets"))
    assert "6/6" in next(line for line in lines if line.startswith("threads_1"))
    one |= {"scale": "log", "mean_difference": 0.5, "bitwise_equal": 0}
    assert verdict_text.text_row(one)[3].startswith("+65 % ")  # exp(0.5) - 1
    assert "about emulated noise only" in " ".join(lines)
    for model in ("prednet", "autoencoder"):
        assert f"p Holm: over all 7 contrasts of {model}" in lines


def test_claims_and_a_repetition_in_sentences():
    claim = {"claim": "noise helps", "model": "prednet", "answer": "cannot tell"}
    measured = claim | {"estimate": 0.0123, "low": -0.01, "high": 0.05}
    few = claim | {"estimate": 0.0123, "low": None, "high": None}
    same = claim | {"answer": "same bits", "estimate": 0, "low": None, "high": None}
    assert report.claim_lines({"claims": [measured, few, same]}).splitlines() == [
        "prednet: noise helps: cannot tell, +1.2 % [-1.0, +5.0]",
        "prednet: noise helps: cannot tell, +1.2 % (too few seeds for an interval)",
        "prednet: noise helps: no, same bits",
    ]
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
    both = {"claim": noise["claim"], "model": "prednet"}
    both |= {"seeds": 43, "estimate": 0.004, "low": -0.002, "high": 0.011}
    verdict = {"claims": [stale, noise], "together": [both]}
    assert verdict_text.claim_sentences(verdict) == [
        "prednet: stale targets raise the loss: yes, +212 % here, predicted +136 to "
        "+305 (published +206 % [+185, +228])",
        "prednet: random order of sums changes the loss: no, +6.0 % here, predicted "
        "0.0 to +4.9, outside, as one honest run in 14 is (published +206 % [+185, "
        "+228]; together +0.4 % [-0.2, +1.1])",
    ]
    unsure = dict.fromkeys(("predicted", "published", "holds"))
    unsure |= {"answer": "cannot tell", "estimate": 2e-7}
    verdict["claims"] = [noise | unsure]
    verdict["manipulation"] = {"prednet": {"distance_over_travelled": 3.1e-6}}
    assert verdict_text.claim_sentences(verdict) == [
        "prednet: random order of sums changes the loss: not in this length, 0.0 %; "
        "the runs are 3e-06 of the way apart, too little to say more"
    ]


def test_the_report_is_written_anew(forked, verdict, tmp_path):
    verdict["contrasts"] = verdict["contrasts"][:2]
    (tmp_path / "verdict.json").write_text(json.dumps(verdict))
    done = forked("report.py", f"--directory={tmp_path}")
    assert "prednet, these seeds alone: refuted" in done.stdout
    assert done.stdout.splitlines()[-1] == str(tmp_path / "report.html")
    assert (tmp_path / "report.html").stat().st_size > 10_000


def test_no_results_end_in_one_line(refused, tmp_path):
    done = refused(str(tmp_path), "report.py", f"--directory={tmp_path}")
    assert "make compare" in done.stderr
    assert not list(tmp_path.iterdir())
