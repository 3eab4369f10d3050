"""Files that earlier versions wrote stay readable: golden/old_files.zip has them.

They are a run that was killed after its fifth update, its manifest and checkpoint; the
same run whole, with the receipt of a comparison; a recording of a function; tolerances
that a test suite keeps.
"""

import json
import zipfile

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from prednet_jax import noise, records
from prednet_jax.noise.questions.kept import StoredTolerance
from prednet_jax.runs import store
from prednet_jax.runs.jobs import FILES
from tests.processes import ROOT, SCRIPTS, python


@pytest.fixture(scope="module")
def old(tmp_path_factory):
    folder = tmp_path_factory.mktemp("old")
    with zipfile.ZipFile(ROOT / "tests" / "golden" / "old_files.zip") as archive:
        archive.extractall(folder)
    return folder


def losses(folder):
    lines = (folder / "metrics.jsonl").read_text().splitlines()
    return [json.loads(line)["loss"] for line in lines]


def test_a_refused_run_says_which_variable_changed(old):
    """Without optimizations the initial weights have other bits."""
    words = (f"--workdir={old / 'run'}", "--resume", "--noprogress", "--noplot")
    done = python(
        SCRIPTS / "train.py", *words, status=2, JAX_DISABLE_MOST_OPTIMIZATIONS="1"
    )
    assert "'JAX_DISABLE_MOST_OPTIMIZATIONS': '1'" in done.stdout + done.stderr


def test_a_killed_run_is_resumed(old):
    """The initial weights have the bits of a user's process."""
    words = (f"--workdir={old / 'run'}", "--resume", "--noprogress", "--noplot")
    python(SCRIPTS / "train.py", *words, JAX_DISABLE_MOST_OPTIMIZATIONS="0")
    np.testing.assert_allclose(
        losses(old / "run"), losses(old / "sealed"), rtol=1e-5, strict=True
    )


def test_a_receipt_still_counts(old):
    receipt = records.read_json(old / "sealed" / "receipt.json")
    facts = receipt["contents"]
    assert store.state(old / "sealed", facts, FILES).kept
    changed = facts | {"source": "0"}
    assert str(store.state(old / "sealed", changed, FILES)) == "with other source"
    assert len(records.read_run(old / "sealed").metrics["loss"]) == 6


def layer(x, w):
    """The function of the recording."""
    h = x @ w.T + jnp.tanh(x)
    return jax.nn.softmax(h - h.mean(-1, keepdims=True))


def test_a_recording_is_compared_with_the_function(old):
    rng = np.random.default_rng(0)
    x = rng.standard_normal((12, 16), np.float32)
    w = rng.standard_normal((16, 16), np.float32) / 4
    recording = noise.load_recording(old / "recording.npz")
    names = [x.path for x in recording.equations if x.primitive == "argument"]
    assert names == ["argument[0]", "argument[1]"]
    compare = noise.first_difference(layer, recording, draws=3)
    assert compare(jax.random.key(0), x, w) == ()
    assert compare(jax.random.key(0), x, 1.01 * w)


@pytest.mark.parametrize(
    ("test", "text"),
    [
        ("test_ulp", "ulp:max_ulps=1"),
        ("test_order", "reduction_order:granularity=element+stochastic_rounding"),
    ],
)
def test_kept_tolerances_are_used(old, test, text):
    """The specs are compared as noises, not as texts."""
    file = old / "test_kernel.noise.json"
    keeper, before = (
        StoredTolerance(old / "test_kernel.py", test, False),
        file.read_text(),
    )
    x = np.linspace(0, 1, 999, dtype=np.float32)
    kept = keeper(jnp.sum, x, spec=noise.parse(text), draws=4)
    (leaf,) = json.loads(before)[test][0]["leaves"].values()
    assert kept.tolerances.rtol == leaf["rtol"]
    assert file.read_text() == before
