"""Only complete records of the run that a job asks for are read."""

import dataclasses
import json
import shutil
from pathlib import Path

import numpy as np
import pytest

from prednet_jax import comparison, records, tasks
from prednet_jax.comparison import fingerprints, receipts
from prednet_jax.config import PredNetConfig

PREDNET = tasks.of(PredNetConfig(channels=(3, 4), height=16, width=16))
UPDATES = 5


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """A job of two seeds, ended."""
    plan = comparison.Design(
        root=tmp_path_factory.mktemp("comparison"),
        script=str(Path(__file__).with_name("fake_train.py")),
        tasks=(PREDNET,),
        seeds=2,
        updates=UPDATES,
    )
    (job, *_) = plan.runs()
    (ended,) = filter(None, comparison.execute([job], processes=1))
    assert ended == comparison.Ended(job)
    return job


@pytest.fixture
def job(finished, tmp_path):
    """The same, to be altered."""
    shutil.copytree(finished.folder, tmp_path / "runs")
    return dataclasses.replace(finished, folder=tmp_path / "runs")


def lines(change):
    def alter(folder):
        path = folder / records.METRICS
        found = path.read_text().splitlines()
        path.write_text("\n".join(change(found)) + "\n")

    return alter


def manifest(**changes):
    def alter(folder):
        path = folder / records.MANIFEST
        found = json.loads(path.read_text()) | changes
        path.write_text(json.dumps({k: v for k, v in found.items() if v is not None}))

    return alter


def flag(name, value):
    def alter(folder):
        path = folder / records.MANIFEST
        found = json.loads(path.read_text())
        found["flags"][name] = value
        path.write_text(json.dumps(found))

    return alter


def other_weights(folder):
    np.savez(folder / records.WEIGHTS, w=np.ones(1))


def torn(name):
    def alter(folder):
        path = folder / name
        path.write_bytes(path.read_bytes()[:-20])

    return alter


def gone(name):
    return lambda folder: (folder / name).unlink()


ALTERED = {
    "truncated": (lines(lambda x: x[:-1]), "4 updates; expected 5"),
    "empty": (gone(records.METRICS), "No such file"),
    "torn line": (torn(records.METRICS), "expected JSON lines"),
    "duplicated": (lines(lambda x: x + x[-1:]), "line 6: update 5; expected 6"),
    "doubled": (lines(lambda x: x + x), "line 6: update 1; expected 6"),
    "out of order": (lines(lambda x: x[::-1]), "line 1: update 5; expected 1"),
    "one line twice": (lines(lambda x: x[:1] + x[:1] + x[2:]), "line 2: update 1"),
    "NaN": (
        lines(lambda x: [y.replace("0.5", "NaN") for y in x]),
        "NaN; expected null",
    ),
    "text": (lines(lambda x: [y.replace("0.5", '"a"') for y in x]), "loss 'a'"),
    "no object": (lines(lambda x: ["3", *x[1:]]), "line 1: update 3"),
    "no loss": (lines(lambda x: [y.replace("loss", "lost") for y in x]), "loss"),
    "another loss": (lines(lambda x: [y.replace("0.5", "0.4") for y in x]), "SHA-256"),
    "not ended": (manifest(final_params_sha256=None), "final_params_sha256 is missing"),
    "no flags": (manifest(flags=None), "flags are missing"),
    "another seed": (manifest(seed=7), "seed 7; expected"),
    "another model": (manifest(model="autoencoder"), "model 'autoencoder'; expected"),
    "another time": (manifest(measured_parallelism=9), "SHA-256"),
    "another width": (flag("width", 32), "--width=32; expected --width=16"),
    "more updates": (flag("updates", 50), "--updates=50; expected --updates=5"),
    "other weights": (other_weights, "expected final_params_sha256"),
    "torn weights": (torn(records.WEIGHTS), "expected weights of a run"),
    "torn manifest": (torn(records.MANIFEST), "expected a JSON file"),
    "no receipt": (
        gone(receipts.RECEIPT),
        "receipt.json: missing; expected the receipt of",
    ),
    "no JSON receipt": (torn(receipts.RECEIPT), "expected a JSON file"),
}


@pytest.mark.fault(
    "records of a comparison are altered",
    "metrics, manifest, weights or receipt truncated, doubled, edited or lost",
)
@pytest.mark.parametrize("name", ALTERED)
def test_the_judge_refuses_what_is_not_whole(job, name):
    """Refused in one line that names what; made again alone."""
    alter, message = ALTERED[name]
    place = job.run_folder(job.seeds[1])
    receipts.verified(job, job.seeds[1])
    alter(place)
    with pytest.raises(records.RecordError) as caught:
        receipts.verified(job, job.seeds[1])
    assert message in str(caught.value)
    assert str(place) in str(caught.value)
    assert len(str(caught.value).splitlines()) == 1
    # It would be made again; the other seed would not.
    (left,), reasons = receipts.kept([job])
    assert left.seeds == job.seeds[1:]
    assert reasons["kept"] == 1


@pytest.mark.fault(
    "records of another job", "flags that are not those of the comparison"
)
def test_a_run_of_another_job_is_refused(job):
    """Refused in one line with the flag and both values."""
    other = dataclasses.replace(job, flags=(*job.flags, "--window=4"))
    with pytest.raises(records.RecordError, match="--window=10; expected --window=4"):
        receipts.verified(other, job.seeds[0])


def test_runs_are_kept_while_nothing_that_decides_their_numbers_changes(
    job, monkeypatch
):
    assert receipts.kept([job]) == ([], {"kept": 2})
    monkeypatch.setenv("JAX_COMPILATION_CACHE_DIR", "/another/place")
    elsewhere = dataclasses.replace(job, script=str(job.script))
    assert receipts.kept([elsewhere]) == ([], {"kept": 2})
    changes = {
        "flags": dataclasses.replace(job, flags=(*job.flags, "--learning_rate=1")),
        "device": dataclasses.replace(job, threads=1),
    }
    for name, other in changes.items():
        assert receipts.kept([other]) == ([other], {f"with other {name}": 2})
    monkeypatch.setenv("XLA_FLAGS", "--xla_cpu_enable_fast_math=true")
    assert receipts.kept([job])[1] == {"with other environment": 2}
    monkeypatch.undo()
    monkeypatch.setattr(fingerprints, "source", lambda script: "other")
    assert receipts.kept([job])[1] == {"with other source": 2}
    monkeypatch.undo()
    monkeypatch.setattr(fingerprints, "_versions", lambda: {"jax": "9"})
    assert receipts.kept([job])[1] == {"with other versions": 2}


def test_other_content_at_the_same_path_is_another_run(job, tmp_path, monkeypatch):
    """Frames, weights of a file, weights of a run."""
    monkeypatch.chdir(tmp_path)
    run = tmp_path / "first"
    run.mkdir()
    seen = {
        "data=frames.npz": lambda n: np.savez(
            "frames.npz", frames=np.full((9, 16, 16, 3), n, np.uint8)
        ),
        "init_weights=w.model": lambda n: Path("w.model").write_bytes(bytes([n])),
        "init_weights=first": lambda n: records.write_json(
            run / records.MANIFEST, {"final_params_sha256": str(n)}
        ),
    }
    for flag, write in seen.items():
        other = dataclasses.replace(job, flags=(*job.flags, f"--{flag}"))
        found = []
        for content in (1, 2, 1):
            write(content)
            # Of one process the content is read once.
            fingerprints._frames.cache_clear()
            fingerprints._weights.cache_clear()
            found.append(fingerprints.contents(other, 0)["files"])
        assert found[0] == found[2] != found[1], flag


def test_every_source_file_counts(tmp_path, monkeypatch):
    package, script = tmp_path / "package", tmp_path / "scripts" / "train.py"
    (package / "room").mkdir(parents=True)
    script.parent.mkdir()
    files = [package / "a.py", package / "room" / "b.py", script]
    files.append(script.with_name("_flags.py"))
    for file in files:
        file.write_text("1")
    monkeypatch.setattr(fingerprints, "PACKAGE", package)
    found = {fingerprints.source.__wrapped__(str(script))}
    for file in files:
        file.write_text("2")
        found.add(fingerprints.source.__wrapped__(str(script)))
    assert len(found) == 1 + len(files)
    (package / "notes.txt").write_text("no source")
    assert fingerprints.source.__wrapped__(str(script)) in found


def test_what_becomes_of_runs_is_said():
    reasons = receipts.Counter
    assert receipts.said(reasons({"new": 4})) is None
    assert receipts.said(reasons(kept=12, unfinished=1, new=3)) == (
        "12 of 16 runs kept; made again: 1 unfinished"
    )
    assert receipts.said(reasons({"with other source": 2})) == (
        "0 of 2 runs kept; made again: 2 with other source"
    )
