"""sweep.py: what it refuses, and whole sweeps through Ray that lose machines."""

import contextlib
import subprocess
import sys
import time
from pathlib import Path

import pytest

from prednet_jax import locks
from prednet_jax.runs import sweeps

HERE = Path(__file__).parent
SCRIPT = HERE.parents[1] / "experiments" / "sweep.py"
TINY = ("--channels=3,4", "--height=16", "--width=16", "--window=3", "--updates=5")


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--models=resnet"], "model='resnet'"),
        (["--seeds=a"], "--seeds=a: expected whole numbers"),
        (["--hardware=cpu,gpu:h200", "--arms=gpu"], "arm='gpu': no GPU found"),
        (["--arms=threads_9999"], "arm='threads_9999': threads=9999"),
        (["--data=/no/such/place"], "/no/such/place"),
        (["--retries=-1"], "--retries=-1"),
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
    """The merged result without what no two runs share."""
    parquet = pytest.importorskip("pyarrow.parquet")
    found = parquet.read_table(folder / sweeps.RESULT)
    return found.drop_columns(list(sweeps.TIMINGS))


def check(folder, undisturbed):
    """Every run once, and the same table bit for bit."""
    found = table(folder)
    keys = found.select(["model", "arm", "seed", "draw"]).to_pylist()
    assert len({tuple(key.values()) for key in keys}) == len(keys) == 6
    assert len(list(folder.glob("runs/*/*/*/seed_*/receipt.json"))) == 6
    assert found.equals(undisturbed)


def lines_below(pid):
    """Command lines of a process and those below it."""
    parents, lines = {}, {}
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            number = int(folder.name)
            state = (folder / "stat").read_text().rpartition(")")[2].split()
            parents[number] = int(state[1])
            lines[number] = (folder / "cmdline").read_text().replace("\0", " ")
    below = {pid}
    while more := {p for p, of in parents.items() if of in below} - below:
        below |= more
    return [lines[number] for number in below]


def at_work(process, counts):
    """Whether so many runs are being made below a process, within two minutes."""
    end = time.monotonic() + 120
    while time.monotonic() < end:
        if sum("leash.py" in line for line in lines_below(process.pid)) in counts:
            return True
        time.sleep(0.1)
    return False


SEEDS = "--seeds=0,1,2"


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    """The table of a sweep that nothing happened to."""
    pytest.importorskip("ray")
    folder = tmp_path_factory.mktemp("undisturbed")
    assert "6 runs" in ended(started(folder, SEEDS))
    return table(folder)


@pytest.mark.fault(
    "a node of a three-node cluster is killed",
    "in mid-sweep; then the sweep itself, and the same command again",
)
@pytest.mark.slow
def test_a_node_of_three_is_killed_and_an_interrupted_sweep_goes_on(
    tmp_path, undisturbed
):
    """Every run exactly once; the merged table is an undisturbed one, bit for bit."""
    with subprocess.Popen(
        [sys.executable, str(HERE / "three_nodes.py")],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as cluster:
        address = f"--address={cluster.stdout.readline().strip()}"
        sweep = started(tmp_path / "out", SEEDS, address)
        output = [sweep.stdout.readline()]
        while "[1/6]" not in output[-1]:
            assert output[-1], output
            output.append(sweep.stdout.readline())
        assert at_work(cluster, [3])
        cluster.stdin.write("\n")
        cluster.stdin.flush()
        assert cluster.stdout.readline() == "killed\n"
        assert at_work(cluster, range(3))
        ended(sweep)
        check(tmp_path / "out", undisturbed)
        again = ended(started(tmp_path / "out", SEEDS, address))
        assert "6 of 6 runs kept" in again
        check(tmp_path / "out", undisturbed)
        # Another one ends in the middle, and the same command goes on.
        sweep = started(tmp_path / "cut", SEEDS, address)
        while "[2/6]" not in (line := sweep.stdout.readline()):
            assert line
        sweep.kill()
        sweep.wait()
        sweep.stdout.close()
        again = ended(started(tmp_path / "cut", SEEDS, address))
        assert "of 6 runs kept" in again
        check(tmp_path / "cut", undisturbed)
        cluster.stdin.close()


@pytest.mark.parametrize(
    ("script", "seeds"),
    [("sweep.py", "--seeds=0,1"), ("compare_backends.py", "--seeds=2")],
)
def test_a_second_one_in_the_same_directory_is_refused(
    tmp_path, refused, script, seeds
):
    held = tmp_path / "held"
    with locks.hold(held):
        before = sorted(path.name for path in held.iterdir())
        refused("in use by process", script, f"--workdir={held}", seeds)
        assert sorted(path.name for path in held.iterdir()) == before
