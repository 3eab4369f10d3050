import contextlib
import dataclasses
import json
import os
import signal
import subprocess
import sys
import time
import types
from pathlib import Path

import pytest
from test_executor import PREDNET, SCRIPT, alive, job, wait_until

from prednet_jax import AutoencoderConfig, errors, runs, tasks
from prednet_jax.runs import sweeps
from prednet_jax.runs.jobs import absolute, setting_flags, source, verified


def sweep(root, **changes):
    options = {"tasks": (PREDNET,), "arms": ("float32", "reduction_order")}
    options |= {"seeds": (0, 1), "updates": 5}
    return sweeps.Sweep(root=root, script=str(SCRIPT), **options | changes)


def run(jobs):
    left, _ = runs.split_finished(jobs)
    ended = list(runs.execute(left, processes=2))
    assert not any(one.error for one in ended), ended
    return len(ended)


def merged(path):
    parquet = pytest.importorskip("pyarrow.parquet")
    return parquet.read_table(path).to_pylist()


def test_every_combination_is_one_run(tmp_path):
    both = (PREDNET, tasks.of(AutoencoderConfig()))
    named = ("float32", "threads_4", "gpu")
    texts = ("", "learning_rate=0.01 window=5 init_weights=runs/first")
    jobs = sweep(tmp_path, tasks=both, arms=named, settings=texts).jobs()
    assert len({job.folder for job in jobs}) == len(jobs) == 2 * 2 * 3 * 2
    changed = jobs[1].flags
    assert (jobs[1].setting, changed["window"]) == (texts[1], "5")
    assert changed["init_weights"] == os.path.abspath("runs/first")
    threads = {"float32": 1, "threads_4": 4, "gpu": None}
    assert {job.arm.name: job.threads for job in jobs} == threads
    assert jobs[0].flags["threads"] == "1"


def test_paths_are_whole_and_names_win(tmp_path, monkeypatch):
    """Runs start in other directories."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", "/home/me")
    (tmp_path / "walk").mkdir()
    for given, whole in {
        "walk": "walk",
        "./walk": f"{tmp_path}/walk",
        "~/film.mp4": "/home/me/film.mp4",
    }.items():
        assert absolute(given) == whole
    setting = "init_weights={} validation_data=v.npy profile=walk".format
    # As train.py reads them: a file comes before the name of a network.
    for given, whole in {
        "'my run'": f"{tmp_path}/my run",
        "walk": f"{tmp_path}/walk",
        "walk_64": "walk_64",
        "digits": f"{tmp_path}/digits",
    }.items():
        assert setting_flags(setting(given)) == {
            "init_weights": whole,
            "validation_data": f"{tmp_path}/v.npy",
            "profile": f"{tmp_path}/walk",
        }


def test_a_sweep_goes_on_and_its_result_does_not_depend_on_the_order(tmp_path):
    plans = [sweep(tmp_path / name) for name in ("a", "b")]
    first, *rest = plans[0].jobs()
    assert [run([first]), run([first, *rest]), run([first])] == [1, 3, 0]
    assert run(plans[1].jobs()[::-1]) == 4
    # Other flags make other runs, beside those that are there.
    longer = sweep(tmp_path / "a", updates=6).jobs()
    assert not {job.folder for job in longer} & {job.folder for job in rest}
    tables = []
    for plan in plans:
        path = plan.root / sweeps.RESULT
        sweeps.merge(path, [sweeps.row(job, 0.2) for job in plan.jobs()])
        tables.append(merged(path))
        for found in tables[-1]:
            manifest = json.loads(found["manifest"])
            assert not set(sweeps.TIMINGS) & set(manifest)
            for name in sweeps.TIMINGS:
                found.pop(name)
            # Without Ray it names the directory of the run; the last is the fake's own.
            manifest["flags"].pop("workdir")
            manifest.pop("processors")
            found["manifest"] = manifest
    assert tables[0] == tables[1]
    row = tables[0][0]
    assert (row["model"], row["arm"], row["seed"]) == ("prednet", "float32", 0)
    assert (row["loss"], row["diverged_at"]) == (0.5, None)
    assert json.loads(row["settings"])["updates"] == "5"
    assert len({found["fingerprint"] for found in tables[0]}) == 4
    told = verified(first, 0).manifest.final_params_sha256
    assert row["final_params_sha256"] == told
    assert row["setting"] == ""


def test_a_run_that_diverged_has_a_row_and_no_endpoints(tmp_path):
    (job, *_) = sweep(tmp_path).jobs()
    lost = dataclasses.replace(job, setting="noise=diverges_at_0")
    assert run([lost]) == 1
    found = sweeps.row(lost, 0.2)
    assert found["loss"] is found["final_params_sha256"] is None
    sweeps.merge(tmp_path / sweeps.RESULT, [found])
    assert merged(tmp_path / sweeps.RESULT)[0]["diverged_at"] == 3


def test_a_dead_address_is_said_at_once():
    """Ray itself would say nothing for nine minutes."""
    pytest.importorskip("ray")
    begin = time.monotonic()
    for address in ("127.0.0.1:1", "ray://127.0.0.1:1", "[::1]:1", "127.0.0.1:70000"):
        with pytest.raises(errors.UserError, match="no Ray answers there") as caught:
            sweeps.connect(address)
        assert len(str(caught.value).splitlines()) == 1
    assert time.monotonic() - begin < 30


def test_a_task_on_the_path_is_found_by_the_child(tmp_path, monkeypatch):
    """The sweep itself found it there; every run ended with status 2 before."""
    monkeypatch.setenv("PYTHONPATH", "/mine:/others")
    one = job(tmp_path)
    named = dataclasses.replace(one, task=types.SimpleNamespace(name="mine:task"))
    start = sweeps.executor.launch(one, "run")
    monkeypatch.setattr(sweeps.executor, "launch", lambda *_: start)
    path = sweeps.launch(named).environment["PYTHONPATH"]
    assert path.split(os.pathsep) == [os.getcwd(), "/mine", "/others"]


@pytest.mark.fault
def test_a_task_runs_the_same_child_and_sends_back_its_files(tmp_path, monkeypatch):
    """A machine with other source refuses in one line and runs nothing."""
    here = job(tmp_path / "here", seeds=(0,))
    assert run([here]) == 1
    there = dataclasses.replace(here, folder=tmp_path / "there")
    sent = sweeps.launch(here)
    refused = sweeps.receive(there, sweeps.run_here(sent, "other")).error
    assert "expected other, the same commit on every machine" in str(refused)
    assert not there.folder.exists()
    # Ray has other ideas of the environment; they reach no child.
    sent = dataclasses.replace(sent, arguments=(*sent.arguments, "--dump=beside"))
    with monkeypatch.context() as worker:
        worker.setenv("OMP_NUM_THREADS", "1")
        found = sweeps.run_here(sent, source(there.script))
    assert found.status == 0
    assert sweeps.receive(there, found) == runs.Ended(there)
    ours, theirs = (verified(one, 0) for one in (here, there))
    assert ours.metrics["loss"].tolist() == theirs.metrics["loss"].tolist()
    # Nothing in it tells where it was made.
    assert theirs.manifest.flags["workdir"] == "run"
    assert not list(tmp_path.rglob("beside"))


@contextlib.contextmanager
def driven(folder):
    """Yields a process that executes jobs through Ray, a child and its worker."""
    pytest.importorskip("ray")
    first = folder / "first"
    with subprocess.Popen(
        [sys.executable, Path(__file__).with_name("on_ray_driver.py"), folder],
        # Ray's own folder has sockets, whose paths have to be short.
        env=os.environ | {"RAY_TMPDIR": "/tmp"},
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
        yield driver, child, worker


@pytest.mark.fault
@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="reads /proc")
def test_sigterm_is_an_interruption(tmp_path):
    """Ray printed the stack of its own code, and ended seconds later."""
    with driven(tmp_path) as (driver, child, _):
        driver.send_signal(signal.SIGTERM)
        output, _ = driver.communicate(timeout=60)
        assert wait_until(lambda: not alive(child))
    assert driver.returncode == -signal.SIGINT, output
    assert output.strip().endswith("KeyboardInterrupt")
    assert "SIGTERM received" not in output


@pytest.mark.fault
@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="reads /proc")
def test_a_killed_worker_is_replaced_and_its_child_dies(tmp_path):
    """Its child ends; every run is made once in the end."""
    with driven(tmp_path) as (driver, child, worker):
        os.kill(worker, 9)
        assert wait_until(lambda: not alive(child))
        output, _ = driver.communicate(timeout=240)
    assert driver.returncode == 0, output
    assert output.strip().endswith("every run once")


def test_a_run_that_no_machine_can_take_is_named(tmp_path, monkeypatch):
    nodes = [{"Alive": True, "Resources": {"CPU": 2.0}}]
    ray = types.SimpleNamespace(nodes=lambda: nodes, shutdown=lambda: None)
    monkeypatch.setattr(sweeps, "connect", lambda address: ray)
    with pytest.raises(errors.UserError, match=r"no machine .* has {'CPU': 9999"):
        list(sweeps.execute([job(tmp_path, threads=9999)], address="auto"))
