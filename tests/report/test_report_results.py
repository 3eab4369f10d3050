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
    again = arm / "seed_0_replicate_1"
    again.mkdir()
    (again / "manifest.json").write_text(json.dumps({"seed": 0}))
    (again / "metrics.jsonl").write_text('{"update": 1, "loss": 1.0}\n' * 60)
    two = results.load(broken).losses["prednet"]["reduction_order"][0]
    # Mean of two float64 numbers: exact to a rounding.
    np.testing.assert_allclose(two, (one + 1) / 2, rtol=1e-15)


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
    verdict = {"contrasts": verdict["contrasts"][:1], "verdict": verdict["verdict"]}
    path = tmp_path / "verdict.json"
    change(verdict)
    path.write_text(json.dumps(verdict))
    with pytest.raises(RecordError, match=message) as raised:
        results.load(tmp_path)
    assert str(path) in str(raised.value)
    for content in (b"{", b"[]"):
        path.write_bytes(content)
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
