"""Jobs on Ray: the resources they request, what is sent, what comes back."""

import dataclasses
import os
import subprocess
import sys
import time
import types
import warnings
from pathlib import Path

import pytest
from test_executor import alive, job, wait_until

from prednet_jax import errors, runs
from prednet_jax.runs import on_ray
from prednet_jax.runs.jobs import source, verified

DRIVER = Path(__file__).with_name("on_ray_driver.py")


def test_a_dead_address_is_said_at_once():
    """Ray itself would say nothing for nine minutes."""
    pytest.importorskip("ray")
    begin = time.monotonic()
    for address in ("127.0.0.1:1", "ray://127.0.0.1:1", "[::1]:1", "127.0.0.1:70000"):
        with pytest.raises(errors.UserError, match="nothing answers there") as caught:
            on_ray.connect(address)
        assert len(str(caught.value).splitlines()) == 1
    assert time.monotonic() - begin < 30


def test_forks_of_ray_are_no_warning(monkeypatch):
    """JAX warns of forks, and Ray's own processes are programs of their own at once."""

    def init(**options):
        warnings.warn("os.fork() was called. JAX is", RuntimeWarning, stacklevel=1)
        raise ConnectionError("reached")

    monkeypatch.setitem(sys.modules, "ray", types.SimpleNamespace(init=init))
    with pytest.raises(errors.UserError, match="reached"):
        on_ray.connect(on_ray.LOCAL)


def test_what_no_machine_could_take_is_refused(tmp_path):
    four = dataclasses.replace(job(tmp_path), hardware="threads:4", threads=4)

    def machine(alive=True, **resources):
        return {"Alive": alive, "Resources": resources}

    gpu = dataclasses.replace(job(tmp_path), arm=runs.arm("gpu"), hardware="gpu:h200")
    assert on_ray.demands(gpu) == {
        "num_cpus": 1,
        "num_gpus": 1,
        "resources": {"gpu:h200": 1},
    }
    named = {"threads:4": 1}
    on_ray.check([four], [machine(CPU=1), machine(CPU=4, **named)], "here")
    for machines in (
        [],
        [machine(CPU=4)],
        [machine(CPU=2, **named)],
        # No single machine has both.
        [machine(CPU=4), machine(CPU=2, **named)],
        [machine(alive=False, CPU=4, **named)],
    ):
        with pytest.raises(ValueError, match="'here' has CPU=4, threads:4=1; expected"):
            on_ray.check([four], machines, "here")


def test_a_task_runs_the_same_child_and_sends_back_its_files(tmp_path, monkeypatch):
    here = job(tmp_path / "here", seeds=(0,))
    (ended,) = filter(None, runs.execute([here], processes=1))
    assert ended.error is None
    there = dataclasses.replace(here, folder=tmp_path / "there")
    sent = on_ray.launch(here)
    # Ray has other ideas of the environment; they reach no child.
    with monkeypatch.context() as worker:
        worker.setenv("OMP_NUM_THREADS", "1")
        found = on_ray.run_here(sent, source(there.script))
    assert found["status"] == 0
    received = on_ray._write(there, found)
    assert received == runs.Ended(there)
    ours, theirs = (verified(one, 0) for one in (here, there))
    assert ours.metrics["loss"].tolist() == theirs.metrics["loss"].tolist()
    # Nothing in it tells where it was made.
    assert theirs.manifest["flags"]["workdir"] == "run"


@pytest.mark.fault("a machine has other source", "a job sent to it")
def test_a_machine_with_other_source_runs_nothing(tmp_path):
    """It refuses in one line and runs nothing."""
    asked = job(tmp_path)
    found = on_ray.run_here(on_ray.launch(asked), "other")
    error = on_ray._write(asked, found).error
    assert "expected other, the same commit on every machine" in str(error)
    assert isinstance(error, ValueError)
    assert not list(tmp_path.iterdir())


@pytest.mark.fault("a Ray worker is killed", "SIGKILL while its run goes on")
@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="reads /proc")
def test_a_killed_worker_is_replaced_and_its_child_dies(tmp_path):
    """Its child ends and leaves nothing; every run is made once in the end."""
    pytest.importorskip("ray")
    first, temporary = tmp_path / "first", tmp_path / "tmp"
    temporary.mkdir()
    # Ray's own folder has sockets, whose paths have to be short.
    places = {"TMPDIR": str(temporary), "RAY_TMPDIR": "/tmp"}
    with subprocess.Popen(
        [sys.executable, str(DRIVER), str(tmp_path)],
        env=os.environ | places,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    ) as driver:
        assert wait_until(
            lambda: (first.exists() and first.read_text()) or driver.poll() is not None,
            120,
        )
        assert driver.poll() is None, driver.stdout.read()
        child, worker = map(int, first.read_text().split())
        assert alive(child)
        lost = Path(f"/proc/{child}/cwd").resolve()
        assert lost.parent == temporary
        os.kill(worker, 9)
        assert wait_until(lambda: not alive(child))
        assert wait_until(lambda: not lost.exists())
        output, _ = driver.communicate(timeout=240)
    assert driver.returncode == 0, output
    assert output.strip().endswith("every run once")


AGENTS = """
import subprocess, sys, time
sys.path.insert(0, sys.argv[1])
from prednet_jax.runs import on_ray

ray = on_ray.connect(on_ray.LOCAL)
guard = on_ray._guard()
print(*guard.args[5:], flush=True)
time.sleep(600)
"""


@pytest.mark.slow
def test_a_killed_local_sweep_leaves_no_processes():
    """Two of Ray's agents stayed for a minute."""
    pytest.importorskip("ray")
    with subprocess.Popen(
        [sys.executable, "-c", AGENTS, str(DRIVER.parent)],
        stdout=subprocess.PIPE,
        text=True,
    ) as sweep:
        pids = list(map(int, sweep.stdout.readline().split()))
        assert len(pids) > 3
        sweep.kill()
        assert wait_until(lambda: not any(map(alive, pids)), 20)
