"""The training in Chainer, run in its own environment if that exists."""

import json
import os
import subprocess
from pathlib import Path

import numpy as np
import pytest

ROOT = Path(__file__).parents[2]
GOLDEN = ROOT / "tests" / "golden" / "chainer_tiny"
RUN = ROOT / "chainer_reproduction" / "in_chainer" / "run.py"


def run(python, tmp_path, *flags):
    weights, output = tmp_path / "weights.npz", tmp_path / "record.json"
    common = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
    subprocess.run(
        [
            *(python, RUN, f"--frames={GOLDEN / 'frames.npz'}"),
            *(f"--initial={GOLDEN / 'initial.model.npz'}", "--channels=3,4,6,8"),
            *("--window=5", f"--output={output}", f"--weights={weights}", *flags),
        ],
        check=True,
        env=common | {"OPENBLAS_NUM_THREADS": "1"},
    )
    return json.loads(output.read_text()), np.load(weights)


@pytest.mark.parametrize(
    ("mode", "target"), [("copied", "copied"), ("aliased", "shared")]
)
def test_our_network_trains_as_the_recorded_one(environment, tmp_path, mode, target):
    record, found = run(environment("chainer"), tmp_path, f"--target={target}")
    expected = np.load(GOLDEN / f"final.{mode}.model.npz")
    start = np.load(GOLDEN / "initial.model.npz")
    losses = np.load(GOLDEN / f"trace.{mode}.npz")["frame_loss"]
    np.testing.assert_allclose(record["losses"], losses, rtol=1e-5)
    assert sorted(found.files) == sorted(expected.files)
    for name in expected.files:
        size = np.linalg.norm(expected[name] - start[name])
        assert np.linalg.norm(found[name] - expected[name]) <= 1e-5 * size, name


def test_the_network_bit_for_bit_under_the_interventions(environment, tmp_path):
    python = environment("chainer")
    flags = ("--input=copied", "--remake", "--target=copied", "--loss=difference_kept")
    published, x_copied, remade, y_copied, kept = (
        run(python, tmp_path, "--length=11", *flag)[0]["final_sha256"]
        for flag in ((), *((flag,) for flag in flags))
    )
    assert published == x_copied == remade
    assert y_copied == kept
    assert published != y_copied


def test_the_documents_one_line_example(environment):
    """The gradient in docs/chainer.md, run as it stands there."""
    text = (ROOT / "docs" / "chainer.md").read_text()
    [code] = [b for b in text.split("```python\n") if b.startswith("w = chainer")]
    code = code.split("```")[0]
    head = "import chainer, numpy as np, chainer.functions as F\n"
    for change, expected in (("", "-2.0"), ("y[...] = 5\n", "0.5")):
        program = head + code.replace(change, "", 1) + "print(w.grad[0])"
        done = subprocess.run(
            [environment("chainer"), "-W", "ignore", "-c", program],
            capture_output=True,
            text=True,
            check=True,
            env={k: v for k, v in os.environ.items() if k != "PYTHONPATH"},
        )
        assert done.stdout.strip() == expected
