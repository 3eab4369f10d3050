"""Runs from a symmetric start: what a row holds, and the script that makes them."""

import csv
import json

import jax
import numpy as np
import pytest

from prednet_jax.config import PredNetConfig
from prednet_jax.errors import UserError
from prednet_jax.studies import symmetric_runs
from prednet_jax.studies.symmetric_runs import Design, Run

TINY = ("symmetric_start.py", "--updates=20", "--programs=symmetric", "--seeds=1")


@pytest.fixture(autouse=True)
def _restored():
    """A run sets the precision of the process."""
    names = ("jax_enable_x64", "jax_default_matmul_precision")
    before = {name: getattr(jax.config, name) for name in names}
    yield
    for name, value in before.items():
        jax.config.update(name, value)


def design(**changes):
    # One size for all tests: programs are compiled once for each design.
    config = PredNetConfig(channels=(3, 4), r_channels=(2, 4), height=8, width=8)
    usual = {"config": config, "window": 2, "updates": 200, "tile": 1}
    return Design(**usual | changes)


def test_runs_of_a_study():
    found = symmetric_runs.runs(
        ["ordinary", "symmetric"],
        list(symmetric_runs.ARMS),
        [0.0, 1e-6, 1e-3],
        [1, 2],
    )
    # Three arms at every delta and three at zero.
    assert len(found) == len(set(found)) == 2 * 2 * (3 * 3 + 3)
    assert {run.seed for run in found[:24]} == {1}  # a whole seed first
    assert {r.delta for r in found if r.arm in symmetric_runs.AT_ZERO} == {0.0}
    for names in (["other"], ["tile"]), (["symmetric"], ["other"]):
        with pytest.raises(UserError, match="'other': expected one of"):
            symmetric_runs.runs(*names, deltas=[0.0], seeds=[1])


def test_designs_that_are_refused():
    for changes, message in (
        ({"tile": 2}, "tile=2: expected a whole number, from 1 to 1"),
        ({"updates": 30}, "updates=30: expected a multiple of 20"),
        ({"window": 1}, "window=1"),
    ):
        with pytest.raises(UserError, match=message):
            design(**changes)


def test_float64_starts_from_the_same_weights():
    narrow = symmetric_runs.start(Run("ordinary", "float32", 0.0, 1), design())
    wide = symmetric_runs.start(Run("ordinary", "float64", 0.0, 1), design())
    kernel = np.asarray(wide["gates_1"]["kernel"])
    symmetric_runs.start(Run("ordinary", "float32", 0.0, 1), design())  # sets it back
    assert kernel.dtype == np.float64
    np.testing.assert_array_equal(narrow["gates_1"]["kernel"], kernel)


def test_row_of_a_split_run():
    row = symmetric_runs.measure(Run("symmetric", "float32", 0.1, 1), design())
    assert row["separated_at"] == row["unequal_at"] == 1
    assert row["asymmetry_20"] == pytest.approx(0.2, rel=0.3)
    losses = [row[f"loss_{i:02d}"] for i in range(1, 21)]
    assert row["final_loss"] == pytest.approx(np.mean(losses[-4:]))
    assert losses[-1] < losses[0]
    assert row["initial_params_sha256"] != row["final_params_sha256"]


def test_theory_of_a_split_that_grows():
    found = symmetric_runs.theory(design(), 1, delta=1e-4, at=80, until=200, draws=4)
    assert 0.002 < found["rate"] < 0.02  # it doubles in these updates
    r = np.exp(found["rate"])
    impulse = found["kick"] * r / (r - 0.9)
    c_sigma = 0.6745 * impulse / np.sqrt(r**2 - 1)
    assert found["c_sigma"] == pytest.approx(c_sigma, rel=1e-3)
    assert found["useful"] == pytest.approx(found["c_sigma"] / np.sqrt(r**2 - 1))
    assert 1e-12 < found["kick"] < 1e-6  # the size of rounding
    orders = np.log10(found["initial"] / found["useful"])
    assert found["orders"] == pytest.approx(orders)
    with pytest.raises(UserError, match="at=1, until=3: asymmetry"):
        symmetric_runs.theory(design(), 1, delta=0.1, at=1, until=3, draws=2)


def rows(table):
    return list(csv.DictReader(table.read_text().splitlines()))


def test_script_makes_each_run_once(forked, refused, tmp_path):
    arguments = (*TINY, "--arms=float32", f"--workdir={tmp_path}")
    done = forked(*arguments, "--deltas=0")
    assert done.returncode == 0, done.stdout + done.stderr
    table = tmp_path / "runs.csv"
    (row,) = rows(table)
    assert row["unequal_at"] == row["separated_at"] == ""
    assert row["unequal_weights"] == "0"
    before = table.read_bytes()
    done = forked(*arguments, "--deltas=0,1e-2")
    assert "2 runs, 1 of them finished" in done.stdout
    assert table.read_bytes().startswith(before)
    assert len(rows(table)) == 2
    manifest = json.loads((tmp_path / "manifest.json").read_text())
    assert manifest["design"]["updates"] == 20
    assert manifest["device"]["threads"] == 1
    # Another design has no place in this table.
    refused("another updates", *arguments, "--deltas=0", "--updates=40")
    assert len(rows(table)) == 2
    # Nor has an arm that the table's manifest does not name.
    del manifest["design"]["noise"]["blocks"]
    (tmp_path / "manifest.json").write_text(json.dumps(manifest))
    blocks = ("--arms=blocks", "--deltas=0", f"--workdir={tmp_path}")
    refused("arm='blocks': expected one of", *TINY, *blocks)
    new = tmp_path / "new"
    message = "--deltas=small: expected numbers"
    refused(message, *TINY, "--deltas=small", f"--workdir={new}")
    for between in ("5", "5,40", "5,5"):
        message = f"--between={between}: expected two updates, as 400,600, in rising"
        refused(message, *TINY, "--theory", f"--between={between}", f"--workdir={new}")
    assert not new.exists()
