"""Reading a comparison, whole or broken."""

import json

import numpy as np
import pytest

from prednet_jax import report
from prednet_jax.records import RecordError
from prednet_jax.report import results


def test_load_finds_every_run(comparison):
    found = results.load(comparison)
    assert found.models == ["prednet", "autoencoder"]
    assert len(found.losses["prednet"]) == 8
    assert sorted(found.losses["prednet"]["float32"]) == [0, 1, 2, 3, 4, 5]
    assert found.losses["prednet"]["ulp"][3].shape == (60,)
    assert set(found.examples["prednet"]) == {
        "float32",
        "reduction_order",
        "stale_targets",
    }
    one = found.examples["prednet"]["float32"]
    assert one.frames.max() <= 1
    assert one.before.shape == one.frames.shape
    # One frame short, as the first frame of a source has none before it.
    assert found.examples["autoencoder"]["float32"].before is None


def test_replicates_are_averaged_inside_the_seed(broken):
    arm = broken / "runs" / "prednet" / "reduction_order"
    one = results.load(broken).losses["prednet"]["reduction_order"][0]
    again = arm / "seed_0_replicate_1"
    again.mkdir()
    (again / "manifest.json").write_text(json.dumps({"seed": 0}))
    (again / "metrics.jsonl").write_text('{"update": 1, "loss": 1.0}\n' * 60)
    two = results.load(broken).losses["prednet"]["reduction_order"][0]
    # Mean of two float64 numbers: exact to a rounding.
    np.testing.assert_allclose(two, (one + 1) / 2, rtol=1e-15)


def _keep_one(verdict):
    return {"contrasts": verdict["contrasts"][:1], "verdict": verdict["verdict"]}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda v: v.pop("contrasts"), "contrasts is None; expected a list"),
        (lambda v: v.update(verdict="refuted"), "expected a dict"),
        (lambda v: v["contrasts"].append(3), r"contrasts\[1\] is 3; expected an obj"),
        (lambda v: v["contrasts"][0].pop("treatment"), r"contrasts\[0\].treatment"),
        (lambda v: v["contrasts"][0].update(tost_p="x"), "expected a number"),
    ],
)
def test_a_wrong_verdict_is_named(tmp_path, verdict, change, message):
    verdict = _keep_one(verdict)
    path = tmp_path / "verdict.json"
    path.write_text(json.dumps(verdict))
    assert results.load(tmp_path).models
    change(verdict)
    path.write_text(json.dumps(verdict))
    with pytest.raises(RecordError, match=message) as raised:
        results.load(tmp_path)
    assert str(path) in str(raised.value)


@pytest.mark.parametrize("content", [None, b"{", b"[]"])
def test_a_verdict_that_is_no_json_object_is_named(tmp_path, content):
    if content is not None:
        (tmp_path / "verdict.json").write_bytes(content)
    with pytest.raises(RecordError, match=r"verdict\.json.*expected"):
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
    """Nothing is written then."""
    path = broken / "runs" / "prednet" / "float32" / "seed_0" / name
    path.write_bytes(content)
    with pytest.raises(RecordError, match="expected") as raised:
        report.build(broken)
    assert str(path) in str(raised.value)
    assert not (broken / report.PAGE).exists()


def test_examples_of_two_shapes_or_two_arms_must_be_the_same(broken):
    path = broken / "runs" / "prednet" / "stale_targets" / "seed_0" / "examples.npz"
    with np.load(path) as file:
        arrays = dict(file)
    np.savez(path, **arrays | {"frames": arrays["frames"][::-1]})
    with pytest.raises(RecordError, match="different frames"):
        report.build(broken)
    np.savez(path, **arrays | {"frames": arrays["frames"][1:]})
    with pytest.raises(RecordError, match="expected one shape"):
        report.build(broken)


def test_relative_and_identical():
    one = {"mean_difference": 0.01, "control_mean": 0.05, "n": 3, "bitwise_equal": 3}
    # One division of float64 numbers.
    assert results.relative(one, "mean_difference") == pytest.approx(0.2, rel=1e-15)
    assert results.relative(one, "ci_low") is None
    assert results.relative(None, "ci_low") is None
    assert results.identical(one)
    assert not results.identical(one | {"bitwise_equal": 2})
    assert not results.identical({"n": 3})
