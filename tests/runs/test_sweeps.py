"""A sweep: its runs, their folders, and the merged result."""

import dataclasses
import json
from pathlib import Path

import pytest

from prednet_jax import runs, tasks
from prednet_jax.config import AutoencoderConfig, PredNetConfig
from prednet_jax.runs import sweeps

PREDNET = tasks.of(PredNetConfig(channels=(3, 4), height=16, width=16))
SCRIPT = Path(__file__).with_name("fake_train.py")


def sweep(root, **changes):
    options = {
        "tasks": (PREDNET,),
        "arms": ("float32", "reduction_order"),
        "seeds": (0, 1),
        "updates": 5,
    }
    return sweeps.Sweep(root=root, script=str(SCRIPT), **options | changes)


def run(jobs):
    left, _ = runs.kept(jobs)
    ended = list(filter(None, runs.execute(left, processes=2)))
    assert not any(one.error for one in ended), ended
    return len(ended)


def merged(path):
    parquet = pytest.importorskip("pyarrow.parquet")
    return parquet.read_table(path).to_pylist()


def test_every_combination_is_one_run(tmp_path):
    both = (PREDNET, tasks.of(AutoencoderConfig()))
    plan = sweep(
        tmp_path,
        tasks=both,
        arms=("float32", "reduction_order", "threads_4", "gpu"),
        draws=2,
        hardware=("cpu", "threads:2", "gpu:h200"),
        settings=("", "learning_rate=0.01 window=5"),
    )
    jobs = plan.jobs()
    assert len({job.folder for job in jobs}) == len(jobs)
    assert all(len(job.seeds) == 1 for job in jobs)
    of_seed = [job for job in jobs if job.model == "prednet" and job.seeds == (1,)]
    assert len(jobs) == 4 * len(of_seed)
    found = {(j.arm.name, j.hardware, j.threads, j.draw, j.setting) for j in of_seed}
    places = [("", 1), ("threads:2", 2)]
    assert found == {
        *(
            (arm, *place, draw, setting)
            for arm, draw in (
                ("float32", 0),
                ("reduction_order", 0),
                ("reduction_order", 1),
            )
            for place in places
            for setting in plan.settings
        ),
        # An arm with threads of its own has them on any machine.
        *(("threads_4", "", 4, 0, setting) for setting in plan.settings),
        *(
            ("gpu", "gpu:h200", None, draw, setting)
            for setting in plan.settings
            for draw in (0, 1)
        ),
    }
    changed = next(job for job in of_seed if job.setting)
    assert changed.chosen["window"] == "5"
    assert changed.chosen["threads"] == "1"


def test_paths_are_whole_and_names_win(tmp_path, monkeypatch):
    """Runs start in other directories."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", "/home/me")
    (tmp_path / "walk").mkdir()
    for given, whole in {
        "walk": "walk",
        "./walk": f"{tmp_path}/walk",
        "kitti:test": f"{tmp_path}/kitti:test",
        "~/film.mp4": "/home/me/film.mp4",
    }.items():
        assert sweeps.absolute(given) == whole
    first, *_ = sweep(tmp_path, settings=("init_weights=runs/first window=5",)).jobs()
    assert first.chosen["init_weights"] == f"{tmp_path}/runs/first"
    assert first.chosen["window"] == "5"


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"arms": ("magic",)}, "arm='magic': expected one of"),
        ({"arms": ()}, "arms=: expected at least one"),
        ({"seeds": (1, 1)}, "seeds=1,1: expected at least one, each once"),
        ({"draws": 0}, "draws=0"),
        ({"threads": 0}, "threads=0"),
        ({"hardware": ("tpu",)}, "hardware='tpu': expected cpu, gpu, gpu:NAME"),
        ({"hardware": ("threads:0",)}, "hardware='threads:0'"),
        ({"hardware": ("gpu",)}, "hardware=gpu: none for arm float32; expected cpu"),
        ({"arms": ("gpu",), "hardware": ("cpu",)}, "none for arm gpu; expected gpu"),
        ({"settings": ("window",)}, "setting='window': window; expected name=value"),
        ({"settings": ("seeds=1",)}, "setting='seeds=1': seeds=1; expected name=value"),
        ({"settings": ("--window=1",)}, "expected name=value"),
        ({"window": 1}, "window=1"),
    ],
)
def test_bad_sweeps_are_named(tmp_path, changes, message):
    with pytest.raises(ValueError, match=message):
        sweep(tmp_path, **changes)


def test_a_sweep_goes_on_and_grows_and_loses_nothing(tmp_path):
    jobs = sweep(tmp_path, seeds=(0,)).jobs()
    assert run(jobs[:1]) == 1
    assert run(jobs) == 1
    assert run(jobs) == 0
    more = sweep(tmp_path).jobs()
    assert run(more) == 2
    # Other flags make other runs, beside those that are there.
    longer = sweep(tmp_path, updates=6).jobs()
    assert run(longer) == 4
    assert runs.kept(more + longer) == ([], {"kept": 8})


def test_the_merged_result_does_not_depend_on_the_order_of_events(tmp_path):
    plans = [sweep(tmp_path / name) for name in ("a", "b")]
    tables = []
    for plan, backwards in zip(plans, (False, True), strict=True):
        jobs = plan.jobs()
        run(jobs[::-1] if backwards else jobs)
        path = plan.root / sweeps.RESULT
        sweeps.merge(path, [sweeps.row(job, 0.2) for job in jobs])
        tables.append(merged(path))
    for rows in tables:
        for found in rows:
            for name in sweeps.TIMINGS:
                found.pop(name)
            manifest = json.loads(found["manifest"])
            assert not set(sweeps.TIMINGS) & set(manifest)
            # Without Ray it names the directory of the run; the last is the fake's own.
            manifest["flags"].pop("workdir")
            manifest.pop("processors")
            found["manifest"] = manifest
    assert tables[0] == tables[1]
    first = tables[0][0]
    assert (first["model"], first["arm"], first["seed"]) == ("prednet", "float32", 0)
    assert (first["loss"], first["diverged_at"], first["draw"]) == (0.5, None, 0)
    assert json.loads(first["settings"])["updates"] == "5"
    assert len({found["fingerprint"] for found in tables[0]}) == 4
    assert first["final_params_sha256"] == first_manifest(plans[0])


def first_manifest(plan):
    (folder,) = (plan.root / "runs" / "prednet" / "float32").glob("*/seed_0")
    return json.loads((folder / "manifest.json").read_text())["final_params_sha256"]


def test_a_run_that_diverged_has_a_row_and_no_endpoints(tmp_path):
    (job, *_) = sweep(tmp_path).jobs()
    lost = dataclasses.replace(job, flags=(*job.flags, "--noise=diverges_at_0"))
    assert run([lost]) == 1
    found = sweeps.row(lost, 0.2)
    assert found["diverged_at"] == 3
    assert found["loss"] is found["final_params_sha256"] is None
    sweeps.merge(tmp_path / sweeps.RESULT, [found])
    assert merged(tmp_path / sweeps.RESULT)[0]["diverged_at"] == 3


def test_the_summary_counts_runs_and_takes_means(tmp_path):
    jobs = sweep(tmp_path).jobs()
    row = {"loss": 0.25, "wall_seconds": 2.0}
    diverged = {"loss": None, "wall_seconds": 4.0}
    found = sweeps.summary(jobs, {jobs[0]: row, jobs[1]: row, jobs[3]: diverged})
    heads = [line.split() for line in found.splitlines()]
    assert heads[1] == ["prednet", "float32", "1/2", "0.25", "2"]
    assert heads[2] == ["prednet", "reduction_order", "2/2", "0.25", "3"]


def test_progress_is_lines(capsys, monkeypatch):
    monkeypatch.setattr("prednet_jax.runs.executor._PATIENCE", 0.0)
    with runs.Progress(4, 1) as progress:
        progress.ended("prednet float32 seed 1: failed")
        progress.beat()
    first, second = capsys.readouterr().out.splitlines()
    assert first.startswith("[2/4] prednet float32 seed 1: failed (")
    assert second.startswith("[2/4] running (")
