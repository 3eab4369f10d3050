import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from unittest.mock import Mock

import jax.numpy as jnp
import numpy as np
import pytest

from prednet_jax import noise
from prednet_jax.noise.__main__ import main
from prednet_jax.noise.questions import kept
from tests.processes import python

TESTS = """
import jax.numpy as jnp
import numpy as np

x = np.linspace(0, 1, 999, dtype=np.float32)

def test_right(noise_tolerance):
    noise_tolerance(jnp.sum, x, draws=4).assert_close(np.sum(x[::-1]))

def test_wrong(noise_tolerance):
    noise_tolerance(jnp.sum, x, draws=4).assert_close(np.sum(x[:-1]))

class TestByHand:
    def test_loose(self, noise_tolerance):
        noise_tolerance(jnp.sum, x, draws=4)
        np.testing.assert_allclose(np.sum(x), jnp.sum(x), rtol=1e-2)
"""


def test_the_fixture_keeps_what_it_measured_and_loads_jax_late(tmp_path, capsys):
    (tmp_path / "test_kernel.py").write_text(TESTS)
    (tmp_path / "conftest.py").write_text(
        "import sys\nassert 'prednet_jax.pytest_plugin' in sys.modules\n"
        "assert 'jax' not in sys.modules\n"
    )
    words = ("-m", "pytest", "-q", "-p", "prednet_jax.pytest_plugin")
    done = python(*words, folder=tmp_path, status=1)
    assert "1 failed, 2 passed" in done.stdout
    assert "times the tolerance" in done.stdout
    file = tmp_path / "test_kernel.noise.json"
    held = json.loads(file.read_text())
    assert set(held) == {"test_right", "test_wrong", "TestByHand::test_loose"}
    (entry,) = held["test_right"]
    default = "reduction_order:granularity=element,chain=terms+ulp:keep_exact=true"
    assert (entry["noise"], entry["failure"]) == (default, 1e-6)
    assert 0 < entry["leaves"]["result"]["rtol"] < 1e-4
    assert entry["leaves"]["result"]["size"] == pytest.approx(499.5)

    status = main(["tolerances", str(tmp_path)])
    text = capsys.readouterr().out
    assert status == 0
    first, last = text.splitlines()
    assert "test_kernel.py:16 TestByHand::test_loose: rtol 0.01, atol 0 is" in first
    assert "looser" in first
    assert last == "1 tolerances by hand: looser 1"


X = np.linspace(0, 1, 300, dtype=np.float32)


def keeper(tmp_path, renew=False):
    return kept.StoredTolerance(tmp_path / "test_a.py", "test_b", renew)


@pytest.mark.fault
def test_tests_that_measure_at_the_same_time_are_all_kept(tmp_path, monkeypatch):
    """One read the file before another wrote it, whose entry was lost."""
    reference = noise.noise_reference(jnp.sum, X, draws=3)
    monkeypatch.setattr(kept, "noise_reference", lambda *_, **__: reference)
    names = [f"test_{i}" for i in range(32)]
    with ThreadPoolExecutor(8) as pool:
        each = [kept.StoredTolerance(tmp_path / "test_a.py", n, False) for n in names]
        list(pool.map(lambda keep: keep(jnp.sum, X), each))
    assert sorted(json.loads((tmp_path / "test_a.noise.json").read_text())) == sorted(
        names
    )


@pytest.mark.fault
def test_a_file_that_cannot_be_read_or_written_is_named(tmp_path):
    (tmp_path / "test_a.noise.json").mkdir()
    with pytest.raises(noise.NoiseError, match="Is a directory: expected a file"):
        keeper(tmp_path)(jnp.sum, X, draws=3)
    with pytest.raises(noise.NoiseError, match="expected a file that can be written"):
        keeper(Path("/proc"))(jnp.sum, X, draws=3)
    (tmp_path / "test_c.py").mkdir()
    with pytest.raises(noise.NoiseError, match="Is a directory: expected a Python fi"):
        kept.compare(tmp_path)
    with pytest.raises(noise.NoiseError, match="expected a test file, or a folder of"):
        kept.compare("x" * 300)
    (tmp_path / "test_b.noise.json").write_text("[" * 100_000)
    with pytest.raises(noise.NoiseError, match="expected tolerances as pytest"):
        kept.read(tmp_path / "test_b.noise.json")


def test_what_is_kept_is_not_measured_again(tmp_path):
    first = keeper(tmp_path)(jnp.sum, X, draws=3)
    # A function whose noise must not be measured counts its calls.
    fn = Mock(side_effect=jnp.sum)
    again = keeper(tmp_path)(fn, X, draws=3)
    assert fn.call_count == 1
    assert again.tolerances == first.tolerances
    # A second call in the same test has an entry of its own.
    one = keeper(tmp_path)
    one(fn, X, draws=3)
    assert one(lambda x: {"a": x @ x}, X, draws=3).tolerances["a"].rtol > 0
    (file,) = tmp_path.iterdir()
    entries = json.loads(file.read_text())["test_b"]
    assert [list(e["leaves"]) for e in entries] == [["result"], ["['a']"]]


def test_another_result_or_noise_asks_to_be_renewed(tmp_path):
    keeper(tmp_path)(jnp.sum, X, draws=3)
    for call in (
        lambda k: k(lambda x: {"a": jnp.sum(x)}, X, draws=3),
        lambda k: k(jnp.sum, X, draws=3, failure=1e-3),
        lambda k: k(jnp.sum, X, draws=3, spec=noise.UlpPerturbation()),
    ):
        with pytest.raises(noise.NoiseError, match="renew them by pytest --noise-up"):
            call(keeper(tmp_path))
        call(keeper(tmp_path, renew=True))
        call(keeper(tmp_path))
        keeper(tmp_path, renew=True)(jnp.sum, X, draws=3)


def test_a_broken_file_is_named(tmp_path):
    file = kept.tolerance_file_for(tmp_path / "test_a.py")
    file.write_text('{"test_b": [{"leaves": {"result": {}}}]}')
    with pytest.raises(noise.NoiseError, match=r"test_a\.noise\.json: expected toler"):
        keeper(tmp_path)(jnp.sum, X)
    fields = {"rtol": 0.1, "atol": 0.1, "noise": 1, "extrapolated": False}
    file.write_text(json.dumps({"test_b": [{"leaves": {"result": fields}}]}))
    with pytest.raises(noise.NoiseError, match="as pytest --noise-update writes"):
        kept.read(file)


HAND = """
import numpy as np
import pytest

def test_one(noise_tolerance):
    np.testing.assert_allclose(a, b, {rtol})
    np.testing.assert_allclose(a, b, *tolerance)

def test_two():
    assert a == pytest.approx(b, abs=1e-3)
    assert np.allclose(a, b, rtol=measured())
    assert isclose(a, b, rel_tol=1e-3)  # of math
"""


@pytest.mark.parametrize(
    ("rtol", "ratio", "verdict"),
    [
        ("1e-4", 10 * 10, "looser"),
        ("1e-6", 1, "within"),
        ("rtol=5e-7", 0.5, "tighter"),
        ("rtol=1e-6, atol=1e-6", 1 + 1 / 4, "within"),
        ("", 0.1, "tighter"),
    ],
)
def test_written_tolerances_against_the_measured(tmp_path, rtol, ratio, verdict):
    file = tmp_path / "test_hand.py"
    file.write_text(HAND.format(rtol=rtol).replace("b, )", "b)"))
    leaf = {"rtol": 1e-6, "atol": 0.0, "noise": 0.2, "extrapolated": True, "size": 4.0}
    entry = {"noise": "default", "failure": 1e-6, "leaves": {"result": leaf}}
    kept.tolerance_file_for(file).write_text(json.dumps({"test_one[3]": [entry]}))
    one, two, three, four = kept.compare(str(file)).written
    assert one.verdict == verdict
    assert one.ratio == pytest.approx(ratio)
    assert (Path(one.place).name, one.test) == ("test_hand.py:6", "test_one")
    assert (two.verdict, two.rtol, two.atol) == ("not measured", 0.0, 1e-3)
    assert three.verdict == "not read"
    assert (four.rtol, four.atol) == (1e-3, 0.0)
    assert kept.compare(str(tmp_path)) == kept.compare(str(file))


def test_what_is_no_python_is_refused_in_one_line(tmp_path, capsys):
    (tmp_path / "test_broken.py").write_text("def (")
    assert main(["tolerances", str(tmp_path)]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "test_broken.py: " in line
    assert "expected a Python file" in line


@pytest.mark.parametrize("number", [float("nan"), -1.0, 10**400, "1", None])
@pytest.mark.parametrize("name", ["rtol", "atol", "noise", "size"])
def test_what_is_no_tolerance_is_refused(tmp_path, name, number):
    """With NaN as a tolerance any result passed."""
    leaf = {"rtol": 0.0, "atol": 1.0, "noise": 0.1, "extrapolated": True, "size": 1.0}
    entry = {"noise": "ulp", "failure": 1e-6, "leaves": {"a": leaf | {name: number}}}
    file = tmp_path / "test_a.noise.json"
    file.write_text(json.dumps({"test_a": [entry]}))
    with pytest.raises(noise.NoiseError, match="expected tolerances as pytest"):
        kept.read(file)
