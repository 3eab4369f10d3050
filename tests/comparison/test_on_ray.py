"""Jobs on Ray: the resources they request, what is sent, what comes back."""

import dataclasses
import os
import subprocess
import sys
from pathlib import Path

import pytest
from test_execution import alive, job, wait_until

from prednet_jax import comparison
from prednet_jax.comparison import fingerprints, on_ray, receipts

DRIVER = Path(__file__).with_name("on_ray_driver.py")


def test_what_a_job_asks_of_a_machine(tmp_path):
    plain = job(tmp_path)
    gpu = dataclasses.replace(
        plain, arm=comparison.arm("gpu"), hardware="gpu:h200", threads=None
    )
    assert on_ray.demands(gpu) == {
        "num_cpus": 1,
        "num_gpus": 1,
        "resources": {"gpu:h200": 1},
    }
    four = dataclasses.replace(plain, hardware="threads:4", threads=4)
    assert on_ray.demands(four)["num_cpus"] == 4
    assert on_ray.demands(plain)["resources"] == {}


def test_what_no_machine_could_take_is_refused(tmp_path):
    four = dataclasses.replace(job(tmp_path), hardware="threads:4", threads=4)

    def machine(alive=True, **resources):
        return {"Alive": alive, "Resources": resources}

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
    (ended,) = filter(None, comparison.execute([here], processes=1))
    assert ended.error is None
    there = dataclasses.replace(here, folder=tmp_path / "there")
    source = fingerprints.source(there.script)
    sent = on_ray.launch(here)
    # Ray has other ideas of the environment; they reach no child.
    with monkeypatch.context() as worker:
        worker.setenv("OMP_NUM_THREADS", "1")
        found = on_ray.run_here(sent, on_ray._inside(there.script), source)
    assert found["status"] == 0
    received = on_ray._write(there, found)
    assert received == comparison.Ended(there)
    ours, theirs = (receipts.verified(one, 0) for one in (here, there))
    assert ours.metrics["loss"].tolist() == theirs.metrics["loss"].tolist()
    # Nothing in it tells where it was made.
    assert theirs.manifest["flags"]["workdir"] == "run"


@pytest.mark.fault("a machine has other source", "a job sent to it")
def test_a_machine_with_other_source_runs_nothing(tmp_path):
    """It refuses in one line and runs nothing."""
    asked = job(tmp_path)
    found = on_ray.run_here(on_ray.launch(asked), on_ray._inside(asked.script), "other")
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
