import csv
import json

import jax
import numpy as np
import pytest

from prednet_jax.config import PredNetConfig
from prednet_jax.errors import UserError
from prednet_jax.studies import symmetric
from prednet_jax.studies.symmetric import Design, Row, Run


@pytest.fixture
def _restored():
    """A run sets the precision of the process."""
    names = ("jax_enable_x64", "jax_default_matmul_precision")
    before = {name: getattr(jax.config, name) for name in names}
    yield
    for name, value in before.items():
        jax.config.update(name, value)


def test_runs_of_a_study():
    programs = list(symmetric.PROGRAMS)
    arms = [arm for arm in symmetric.ARMS if arm != "blocks"]
    planned = symmetric.runs(programs, arms, list(symmetric.DELTAS), [1, 2])
    # Three arms at every delta and two at zero; a whole seed first.
    assert len(planned) == len(set(planned)) == 2 * 2 * (3 * 6 + 2)
    assert {run.seed for run in planned[:40]} == {1}
    assert {r.delta for r in planned if r.arm in symmetric.AT_ZERO} == {0.0}


@pytest.mark.usefixtures("_restored")
def test_row_of_a_split_run_and_the_start_in_float64():
    config = PredNetConfig(channels=(3, 4), r_channels=(2, 4), height=8, width=8)
    design = Design(config=config, window=2, updates=60)
    row = symmetric.measure(Run("symmetric", "float32", 0.1, 1), design)
    assert row["separated_at"] == row["unequal_at"] == 1
    assert row["asymmetry_20"] == pytest.approx(0.2, rel=0.3)
    losses = [row[f"loss_{i:02d}"] for i in range(1, 21)]
    assert row["final_loss"] == pytest.approx(np.mean(losses[-4:]))
    assert losses[-1] < losses[0]
    assert row["initial_params_sha256"] != row["final_params_sha256"]
    starts = [
        symmetric.start(Run("ordinary", arm, 0.0, 1), design)["gates_1"]["kernel"]
        for arm in ("float32", "float64", "float32")
    ]
    assert [kernel.dtype for kernel in starts] == ["f4", "f8", "f4"]
    np.testing.assert_array_equal(starts[0], starts[1])


def test_script_makes_each_run_once(forked, refused, tmp_path):
    words = ("symmetric_start.py", "--updates=20", "--programs=symmetric", "--seeds=1")
    words += ("--arms=float32", f"--workdir={tmp_path}")
    done = forked(*words, "--deltas=0")
    assert done.returncode == 0, done.stdout + done.stderr
    table = tmp_path / "runs.csv"
    (row,) = csv.DictReader(table.read_text().splitlines())
    assert row["unequal_at"] == row["separated_at"] == ""
    assert row["unequal_weights"] == "0"
    before = table.read_bytes()
    done = forked(*words, "--deltas=0")
    assert "1 runs, 1 of them finished" in done.stdout
    assert table.read_bytes() == before
    manifest = json.loads((tmp_path / "manifest.json").read_text())
    assert manifest["design"]["updates"] == 20
    assert manifest["device"]["threads"] == 1
    # Another design has no place in this table.
    refused("another updates", *words, "--deltas=0", "--updates=40")
    refused("--deltas=small: expected numbers", *words, "--deltas=small")


def test_effects_are_relative_to_float32_of_the_same_seed():
    rows = [
        Row(program, arm, delta, seed, 700 + seed, False, loss * (1 + seed), 3000)
        for program in ("ordinary", "symmetric")
        for delta in (0.0, 0.1)
        for arm, loss in (("float32", 3.0), ("tile", 1.5))
        for seed in (1, 0)
    ]
    found = symmetric.effects(rows)
    names = [(e["program"], e["delta"], e["arm"]) for e in found]
    assert names[:3] == [
        ("symmetric", 0.0, "float32"),
        ("symmetric", 0.0, "tile"),
        ("symmetric", 0.1, "float32"),
    ]
    assert found[1]["separated_at"] == [700, 701]
    assert found[1]["over_control"] == [0.5, 0.5]


def test_rows_are_read_as_they_were_written(tmp_path):
    path = tmp_path / "runs.csv"
    names = "program,arm,delta,seed,updates,separated_at,unequal_at,final_loss"
    line = "ordinary,tile,1e-08,8100,3000,,1,0.004"
    path.write_text(f"{names}\n{line}\n")
    expected = Row("ordinary", "tile", 1e-8, 8100, 3001, False, 0.004, 3000)
    assert symmetric.read(path) == [expected]
    path.write_text(f"{names}\n{line.replace('0.004', 'nan')}\n")
    with pytest.raises(UserError, match="diverged"):
        symmetric.read(path)
    path.write_text(f"{names}\n{line}\n{line}\n")
    with pytest.raises(UserError, match="twice"):
        symmetric.read(path)
