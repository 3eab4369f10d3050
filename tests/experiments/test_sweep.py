"""sweep.py: what it refuses, and whole sweeps through Ray that lose machines."""

import subprocess
import sys
from pathlib import Path

import pytest

from prednet_jax import files
from prednet_jax.runs import sweeps

HERE = Path(__file__).parent
SCRIPT = HERE.parents[1] / "experiments" / "sweep.py"
TINY = ("--channels=3,4", "--height=16", "--width=16", "--window=3", "--updates=5")


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--models=resnet"], "model='resnet'"),
        (["--seeds=a"], "--seeds=a: expected whole numbers"),
        (["--arms=gpu"], "arm='gpu': no GPU found"),
        (["--arms=threads_9999"], "arm='threads_9999': threads=9999"),
        (["--data=/no/such/place"], "/no/such/place"),
        (["--setting=nonsense=1"], "nonsense: expected a flag that train.py --help"),
        (["--setting=updates=7", "--updates=20"], "--updates is given too"),
    ],
)
def test_what_cannot_run_is_refused_before_anything_is_written(
    refused, tmp_path, flags, message
):
    refused(message, "sweep.py", *flags, f"--workdir={tmp_path}/out", "--dry_run")
    assert not list(tmp_path.iterdir())


def test_the_commands_are_exact(forked, tmp_path):
    done = forked("sweep.py", *TINY, f"--workdir={tmp_path}/out", "--dry_run")
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert len(lines) == 4
    assert all("--updates=5" in line and "--threads=1" in line for line in lines)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("script", "seeds"),
    [("sweep.py", "--seeds=0,1"), ("compare_backends.py", "--seeds=2")],
)
def test_a_second_one_in_the_same_directory_is_refused(
    tmp_path, refused, script, seeds
):
    held = tmp_path / "held"
    with files.hold(held):
        before = sorted(path.name for path in held.iterdir())
        refused("in use by process", script, f"--workdir={held}", seeds)
        assert sorted(path.name for path in held.iterdir()) == before


def started(folder, *flags):
    return subprocess.Popen(
        [sys.executable, str(SCRIPT), *TINY, f"--workdir={folder}", *flags],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def ended(process):
    output, _ = process.communicate(timeout=600)
    assert process.returncode == 0, output
    return output


def table(folder):
    """Every run once, without what no two runs share."""
    parquet = pytest.importorskip("pyarrow.parquet")
    assert len(list(folder.glob("runs/*/*/*/seed_*/receipt.json"))) == 6
    found = parquet.read_table(folder / sweeps.RESULT)
    return found.drop_columns(list(sweeps.TIMINGS))


def read_until(process, mark):
    while mark not in (line := process.stdout.readline()):
        assert line


@pytest.mark.fault(
    "a node of a three-node cluster is killed",
    "in mid-sweep; then the sweep itself, and the same command again",
)
@pytest.mark.slow
def test_a_node_of_three_is_killed_and_an_interrupted_sweep_goes_on(tmp_path):
    """Every run exactly once; the merged table is an undisturbed one, bit for bit."""
    pytest.importorskip("ray")
    seeds = "--seeds=0,1,2"
    assert "6 runs" in ended(started(tmp_path / "whole", seeds))
    with subprocess.Popen(
        [sys.executable, str(HERE / "three_nodes.py")],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as cluster:
        address = f"--address={cluster.stdout.readline().strip()}"
        sweep = started(tmp_path / "out", seeds, address)
        read_until(sweep, "[1/6]")
        cluster.stdin.write("\n")
        cluster.stdin.flush()
        assert cluster.stdout.readline() == "killed\n"
        read_until(sweep, "[3/6]")
        sweep.kill()
        sweep.communicate()
        assert "of 6 runs kept" in ended(started(tmp_path / "out", seeds, address))
        assert table(tmp_path / "out").equals(table(tmp_path / "whole"))
        cluster.stdin.close()
