import contextlib
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from prednet_jax import PredNetConfig, files, records, runs, tasks
from prednet_jax.runs import comparison, executor, store
from prednet_jax.runs.jobs import split_finished, verified, write_receipt
from prednet_jax.runs.store import RunState, Status
from prednet_jax.training.settings import Settings

SCRIPT = Path(__file__).with_name("fake_train.py")
PREDNET = tasks.of(PredNetConfig(channels=(3, 4), height=16, width=16))
SIGNALS = (signal.SIGTERM, signal.SIGHUP, signal.SIGINT, signal.SIGKILL)

# Starts a job that goes on for ever, in as many forks of itself as there are folders.
PARENT = """
import os, signal, sys
from pathlib import Path
# Where the tests run in the background, Ctrl-C and hanging up may be ignored.
signal.signal(signal.SIGINT, signal.default_int_handler)
signal.signal(signal.SIGHUP, signal.SIG_DFL)
sys.path.insert(0, sys.argv[1])
from test_executor import job
from prednet_jax import runs

for place in sys.argv[2:]:
    pid = os.fork()
    if not pid:
        for _ in runs.execute([job(Path(place), "for_ever")], processes=1):
            pass
    print(pid, flush=True)
sys.stdin.read()
"""


def job(root, noise="none", seeds=(0, 1), threads=0, **changes):
    settings = Settings.layered(
        PREDNET.settings(), {"data": "walk", "updates": 5, "threads": threads}
    )
    return runs.Job(
        task=PREDNET,
        arm=runs.arm("float32"),
        seeds=seeds,
        folder=root,
        script=str(SCRIPT),
        settings=settings,
        **{"setting": f"noise={noise}"} | changes,
    )


def wait_until(condition, seconds=30):
    """Whether it came true within that time."""
    end = time.monotonic() + seconds
    while not (found := condition()) and time.monotonic() < end:
        time.sleep(0.05)
    return found


def alive(pid):
    """Whether a process runs; a zombie does not."""
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2][1] != "Z"
    return False


@pytest.mark.fault
@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="reads /proc")
def test_children_end_with_their_parent_however_it_ends(tmp_path):
    """Its children end too."""
    places = [tmp_path / number.name for number in SIGNALS]
    with subprocess.Popen(
        [sys.executable, "-c", PARENT, str(SCRIPT.parent), *map(str, places)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as starter:
        parents = [int(starter.stdout.readline()) for _ in places]
        started = [place / "process" for place in places]
        assert wait_until(lambda: all(f.exists() and f.read_text() for f in started))
        found = [int(file.read_text()) for file in started]
        assert all(map(alive, found))
        for number, parent in zip(SIGNALS, parents, strict=True):
            os.kill(parent, number)
        assert wait_until(lambda: not any(map(alive, found)))
        starter.stdin.close()


def test_closing_the_iterator_ends_the_children(tmp_path):
    both = [job(tmp_path / "a", "for_ever"), job(tmp_path / "b")]
    running = runs.execute(both, processes=2)
    assert next(running).job is both[1]
    started = tmp_path / "a" / "process"
    assert wait_until(lambda: started.exists() and started.read_text())
    running.close()
    with pytest.raises(ProcessLookupError):
        os.kill(int(started.read_text()), 0)


@pytest.mark.fault
def test_a_run_that_diverged_has_ended_and_the_other_seeds_go_on(tmp_path):
    """It has ended, the other seeds go on; nothing else ends early."""
    diverging = job(tmp_path, "diverges_at_0")
    (ended,) = runs.execute([diverging], processes=1)
    assert ended == runs.Ended(diverging)
    assert (tmp_path / "started.txt").read_text().split() == ["0", "1"]
    assert split_finished([diverging]) == ([], {RunState(Status.KEPT): 2})
    both = tuple(verified(diverging, seed) for seed in (0, 1))
    found = comparison.ArmRuns(diverging, both)
    np.testing.assert_array_equal(found.metric(2), [np.nan, 0.5])
    path = tmp_path / "seed_0" / records.METRICS
    path.write_text(path.read_text().replace("null", "0.5"))
    with pytest.raises(files.FileError, match="3 updates; expected 5"):
        write_receipt(diverging, 0)


@pytest.mark.fault
def test_an_interrupted_comparison_goes_on(tmp_path):
    """What had ended is kept, the rest is made; the error names the signal."""
    both = job(tmp_path)
    lost = job(tmp_path, "dies_at_1")
    (ended,) = runs.execute([lost], processes=1)
    assert isinstance(ended.error, runs.ProcessError)
    assert "status -9" in str(ended.error)
    states = {RunState(Status.KEPT): 1, RunState(Status.UNFINISHED): 1}
    assert split_finished([lost]) == ([lost.of(1)], states)
    shutil.rmtree(tmp_path)
    assert [ended.error for ended in runs.execute([both.of(0)], processes=1)] == [None]
    left, reasons = runs.split_finished([both])
    assert (left, runs.describe_reasons(reasons)) == ([both.of(1)], "1 of 2 runs kept")
    assert [ended.error for ended in runs.execute(left, processes=1)] == [None]
    assert split_finished([both]) == ([], {RunState(Status.KEPT): 2})
    assert (tmp_path / "started.txt").read_text().split() == ["0", "1"]


def test_only_the_runs_of_an_earlier_comparison_are_removed(tmp_path):
    """Other trainings may lie beside them: of a sweep, or by hand."""
    earlier = ("prednet/float64/seed_0", "prednet/float64/draw_1/seed_0")
    swept = "prednet/float32/0123456789ab/seed_0"
    ours = job(tmp_path / "runs/prednet/float32")
    for name in (*earlier, swept, "prednet/float32/seed_0"):
        (tmp_path / "runs" / name).mkdir(parents=True)
        (tmp_path / "runs" / name / store.RECEIPT).write_text("{}")
    for name in ("many/seed_0", "prednet/mine/seed_0"):
        (tmp_path / "runs" / name).mkdir(parents=True)
    runs.clear(tmp_path, [ours])
    left = {str(p.relative_to(tmp_path / "runs")) for p in tmp_path.rglob("seed_*")}
    others = {"prednet/float32/seed_0", "many/seed_0", "prednet/mine/seed_0"}
    assert left == {swept, *others}


@pytest.mark.fault
def test_a_run_that_is_not_whole_is_no_success(tmp_path):
    """Not taken for a run."""
    short = job(tmp_path, seeds=(0,))
    script = tmp_path / "forgets.py"
    script.write_text(SCRIPT.read_text().replace('int(flags["updates"])', "3"))
    other = runs.Job(**vars(short) | {"script": str(script)})
    (ended,) = runs.execute([other], processes=1)
    assert isinstance(ended.error, files.FileError)
    assert "3 updates; expected 5" in str(ended.error)


def test_a_child_has_the_variables_of_its_job_alone(tmp_path, monkeypatch):
    monkeypatch.setenv("XLA_FLAGS", "--xla_of_the_caller=1")
    monkeypatch.setenv("HOME", "/of/the/machine")
    asked = job(tmp_path).environment()
    assert asked["XLA_FLAGS"] == "--xla_of_the_caller=1"
    # Another process launches it, a worker of Ray.
    monkeypatch.setenv("XLA_FLAGS", "--xla_of_the_worker=1")
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.setenv("JAX_OPTIMIZATION_LEVEL", "O0")
    monkeypatch.setenv("RAY_JOB_ID", "7")
    found = executor.environment(asked)
    assert found["XLA_FLAGS"] == "--xla_of_the_caller=1"
    assert found["JAX_PLATFORMS"] == "cpu"
    assert found["HOME"] == "/of/the/machine"
    foreign = {"OMP_NUM_THREADS", "JAX_OPTIMIZATION_LEVEL", "RAY_JOB_ID"}
    assert not foreign & set(found)


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="no affinity masks")
def test_two_children_do_not_share_a_processor(tmp_path):
    mine = os.sched_getaffinity(0)
    with executor.processors(1) as one, executor.processors(1) as other:
        assert {int(one), int(other)} <= mine
        assert (one != other) == (len(mine) > 1)
        # More are asked for than are free: shared, and never waited for.
        with executor.processors(len(mine)) as every:
            assert set(map(int, every.split(","))) == mine
    (ended,) = runs.execute([job(tmp_path, seeds=(0,), threads=1)], processes=1)
    assert ended.error is None
    manifest = records.read_json(tmp_path / "seed_0" / records.MANIFEST)
    assert len(manifest["processors"]) == 1
