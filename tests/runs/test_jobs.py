import dataclasses
import os
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest
import test_executor

from prednet_jax import files, records, runs
from prednet_jax.data import digits
from prednet_jax.runs import jobs, store
from prednet_jax.runs.store import RunState, Status
from tests.processes import ROOT


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    folder = tmp_path_factory.mktemp("comparison")
    made = test_executor.job(folder, seeds=(3000, 3001))
    (ended,) = runs.execute([made], processes=1)
    assert ended == runs.Ended(made)
    return made


@pytest.fixture
def job(finished, tmp_path):
    shutil.copytree(finished.folder, tmp_path / "runs")
    return dataclasses.replace(finished, folder=tmp_path / "runs")


def lines(change):
    def alter(folder):
        path = folder / records.METRICS
        found = path.read_text().splitlines()
        path.write_text("\n".join(change(found)) + "\n")

    return alter


def without_end(folder):
    found = records.read_json(folder / records.MANIFEST)
    del found["final_params_sha256"]
    records.write_json(folder / records.MANIFEST, found)


def other_weights(folder):
    np.savez(folder / records.WEIGHTS, w=np.ones(1))


def torn(name):
    def alter(folder):
        path = folder / name
        path.write_bytes(path.read_bytes()[:-20])

    return alter


BROKEN = {
    "truncated": (lines(lambda x: x[:-1]), "4 updates; expected 5"),
    "no metrics": (lambda run: (run / records.METRICS).unlink(), "no such file"),
    "torn line": (torn(records.METRICS), "expected JSON lines"),
    "out of order": (lines(lambda x: x[::-1]), "expected updates 1, 2"),
    "text": (lines(lambda x: [y.replace("0.5", '"a"') for y in x]), "line 1"),
    "no loss": (lines(lambda x: [y.replace("loss", "lost") for y in x]), "loss"),
    "more updates": (lines(lambda x: [*x, x[0].replace("1", "6", 1)]), "6 updates"),
    "other weights": (other_weights, "expected final_params_sha256"),
    "torn manifest": (torn(records.MANIFEST), "expected a JSON file"),
}
ALTERED = {
    "another loss": lines(lambda x: [y.replace("0.5", "0.4") for y in x]),
    "no end": without_end,
    "torn receipt": torn(store.RECEIPT),
}


@pytest.mark.fault
@pytest.mark.parametrize("name", [*BROKEN, *ALTERED])
def test_the_judge_refuses_what_is_not_whole(job, name):
    """Refused in one line that names what; made again alone; it gets no receipt."""
    change, message = BROKEN.get(name) or (ALTERED[name], "")
    _, seed = job.seeds
    folder = job.run_folder(seed)
    jobs.verified(job, seed)
    change(folder)
    refusals = [lambda: jobs.verified(job, seed)]
    if name in BROKEN:
        refusals.append(lambda: jobs.write_receipt(job, seed))
    for refusal in refusals:
        with pytest.raises(files.FileError) as caught:
            refusal()
        assert str(folder) in str(caught.value)
        assert len(str(caught.value).splitlines()) == 1
    if name in BROKEN:
        assert message in str(caught.value)
    # It would be made again; the other seed would not.
    (missing,), reasons = jobs.split_finished([job])
    assert missing.seeds == (seed,)
    assert reasons[RunState(Status.KEPT)] == 1


def kept(job):
    missing, reasons = jobs.split_finished([job])
    return missing, {str(state): count for state, count in reasons.items()}


def test_runs_are_kept_while_nothing_that_decides_their_numbers_changes(
    job, monkeypatch
):
    assert kept(job) == ([], {"kept": 2})
    monkeypatch.setenv("JAX_COMPILATION_CACHE_DIR", "/another/place")
    elsewhere = dataclasses.replace(job, script=os.path.relpath(job.script))
    assert kept(elsewhere) == ([], {"kept": 2})
    changes = {
        "flags": dataclasses.replace(job, setting="learning_rate=1"),
        "flags and device": dataclasses.replace(
            job, settings=job.settings.replaced(threads=7)
        ),
    }
    for name, other in changes.items():
        assert kept(other) == ([other], {f"with other {name}": 2})
    monkeypatch.setenv("XLA_FLAGS", "--xla_cpu_enable_fast_math=true")
    assert kept(job)[1] == {"with other environment": 2}
    monkeypatch.undo()
    monkeypatch.setattr(jobs, "source", lambda *_: "other")
    assert kept(job)[1] == {"with other source": 2}
    monkeypatch.undo()
    monkeypatch.setattr(jobs, "_versions", lambda: {"jax": "9"})
    assert kept(job)[1] == {"with other versions": 2}


def test_other_content_at_the_same_path_is_another_run(job, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    run, begun = tmp_path / "first", tmp_path / "begun"
    for folder in (run, begun):
        folder.mkdir()
        records.write_json(folder / records.MANIFEST, {})

    def write_frames(n):
        np.savez("frames.npz", frames=np.full((9, 16, 16, 3), n, np.uint8))

    seen = {
        "data=frames.npz": write_frames,
        "validation_data=frames.npz": write_frames,
        "data=mnist": lambda n: monkeypatch.setattr(
            digits, "mnist", lambda: digits.digits()._replace(fingerprint=str(n))
        ),
        "init_weights=w.model": lambda n: Path("w.model").write_bytes(bytes([n])),
        "init_weights=first": lambda n: records.write_json(
            run / records.MANIFEST, {"final_params_sha256": str(n)}
        ),
        # A run that is not finished, after `n` updates.
        "init_weights=begun": lambda n: monkeypatch.setattr(
            jobs.weights, "load_task", lambda _: (None, {"w": np.full(1, n)})
        ),
    }
    for flag, write in seen.items():
        other = dataclasses.replace(job, setting=flag)
        found = []
        for content in (1, 2, 1):
            write(content)
            # Of one process the content is read once.
            jobs._frames.cache_clear()
            jobs._weights.cache_clear()
            found.append(jobs.facts(other, 0)["files"])
        assert found[0] == found[2] != found[1], flag


def test_of_a_folder_of_parts_the_held_out_frames_count(job, tmp_path):
    """Another part was read, and a folder without `train` was refused."""
    named, inside = tmp_path / "named", tmp_path / "inside"
    for folder, first, setting in (
        (named, "test", f"validation_data={named}"),
        (inside, "train", f"data={inside} validate_every=5"),
    ):
        folder.mkdir()
        found = []
        for part, content in ((first, 1), ("val", 1), ("val", 2), ("test", 2)):
            np.save(folder / f"{part}.npy", np.full((9, 16, 16, 3), content, np.uint8))
            jobs._frames.cache_clear()
            if (folder / "val.npy").exists():
                facts = jobs.facts(dataclasses.replace(job, setting=setting), 0)
                found.append(facts["files"]["validation_data"])
        assert found[0] != found[1] == found[2]


def test_a_list_may_name_frames_outside_of_its_folder(job, tmp_path):
    """The setting said so, and was refused."""
    np.save(tmp_path / "frames.npy", np.zeros((9, 16, 16, 3), np.uint8))
    (tmp_path / "lists").mkdir()
    path = tmp_path / "lists" / "frames.txt"
    path.write_text("../frames.npy")
    setting = f"data={path} allow_outside=true"
    assert jobs.facts(dataclasses.replace(job, setting=setting), 0)["files"]


def test_frames_are_read_in_the_layout_of_the_setting(job, tmp_path):
    path = tmp_path / "frames.npy"
    np.save(path, np.zeros((6, 9, 3, 16, 16), np.uint8))
    with pytest.raises(ValueError, match="choose one by --layout="):
        jobs.facts(dataclasses.replace(job, setting=f"data={path}"), 0)
    setting = f"data={path} layout=NTCHW"
    assert jobs.facts(dataclasses.replace(job, setting=setting), 0)["files"]


def test_every_source_file_counts(tmp_path, monkeypatch):
    package, script = tmp_path / "package", tmp_path / "scripts" / "train.py"
    (package / "room").mkdir(parents=True)
    script.parent.mkdir()
    files = [package / "a.py", package / "room" / "b.py", script]
    files.append(script.with_name("_flags.py"))
    for file in files:
        file.write_text("1")
    monkeypatch.setattr(jobs, "PACKAGE", package)
    found = {jobs.source.__wrapped__(str(script))}
    for file in files:
        file.write_text("2")
        found.add(jobs.source.__wrapped__(str(script)))
    assert len(found) == 1 + len(files)
    (package / "notes.txt").write_text("no source")
    assert jobs.source.__wrapped__(str(script)) in found


def test_what_becomes_of_runs_is_said():
    def said(**counts):
        return jobs.describe_reasons(
            {RunState(Status[name]): n for name, n in counts.items()}
        )

    assert said(NEW=4) is None
    assert said(KEPT=12, UNFINISHED=1, NEW=3) == (
        "12 of 16 runs kept; made again: 1 unfinished"
    )
    other = {RunState(Status.OTHER_FACTS, "source"): 2}
    assert jobs.describe_reasons(other) == (
        "0 of 2 runs kept; made again: 2 with other source"
    )


FACTS = {"updates": 5, "sizes": (3, 4), "source": "a"}


def test_the_order_of_facts_does_not_count_and_their_fingerprint_does(tmp_path):
    assert store.key(FACTS) == store.key(dict(reversed(FACTS.items()))) != store.key({})
    folder = tmp_path / "run"
    assert str(store.state(folder, FACTS, [])) == "new"
    folder.mkdir()
    store.write_receipt(folder, FACTS, [])
    assert str(store.state(folder, FACTS, [])) == "kept"
    other = FACTS | {"source": "b", "updates": 6}
    assert str(store.state(folder, other, [])) == "with other updates and source"
    with pytest.raises(files.FileError, match="run: with other contents; expected"):
        store.verify(folder, {"updates": 5}, [])


ADD = """
import sys
from pathlib import Path
from prednet_jax.runs import store
for seed in range(int(sys.argv[2]), int(sys.argv[2]) + 20):
    store.add_row(Path(sys.argv[1]) / "runs.csv", {"seed": seed, "name": "x" * 1000})
"""


def test_two_processes_add_rows_to_one_table(started, tmp_path):
    script = tmp_path / "add.py"
    script.write_text(ADD)
    with started(script, tmp_path, 0) as one, started(script, tmp_path, 20) as other:
        assert one.wait().returncode == other.wait().returncode == 0
    rows = records.read_csv(tmp_path / "runs.csv")
    assert sorted(int(row["seed"]) for row in rows) == list(range(40))
    assert {row["name"] for row in rows} == {"x" * 1000}


def test_no_record_says_where_it_was_made():
    """Part A's manifest named the directory of a compilation cache."""
    listing = ["git", "ls-files", "results/*.json"]
    names = subprocess.check_output(listing, cwd=ROOT, text=True).split()
    assert len(names) > 50
    for name in names:
        assert "CACHE_DIR" not in (ROOT / name).read_text(), name
    variables = {"NPROC": "1", "JAX_COMPILATION_CACHE_DIR": "/tmp/x"}
    assert records.of_numbers(variables) == {"NPROC": "1"}
