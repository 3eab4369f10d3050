import errno
import fcntl
import functools
import json
import os
import signal
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from pathlib import Path
from unittest.mock import Mock

import numpy as np
import pytest

from prednet_jax import files, records
from prednet_jax.errors import UserError


def test_fingerprint_sees_names_shapes_types_and_bytes():
    x = np.arange(6, dtype=np.float32)
    base = records.fingerprint({"a": {"w": x}, "b": x})
    assert base == records.fingerprint({"b": x.copy(), "a": {"w": x}})
    changed = x.copy()
    changed[0] = np.nextafter(np.float32(0), np.float32(1))
    for other in (
        {"a": {"v": x}, "b": x},
        {"a": {"w": x.reshape(2, 3)}, "b": x},
        {"a": {"w": x.astype(np.float64)}, "b": x},
        {"a": {"w": changed}, "b": x},
    ):
        assert records.fingerprint(other) != base


def write_run(folder, losses):
    folder.mkdir(parents=True)
    records.write_json(folder / "manifest.json", {"model": "prednet", "seed": 0})
    writer = records.MetricsWriter(folder)
    for i, loss in enumerate(losses):
        writer.write(update=i + 1, loss=np.float32(loss))
    writer.close()
    return records.read_run(folder)


def test_run_round_trips_every_bit(tmp_path):
    value = float(np.float32(0.1)) / 3
    run = write_run(tmp_path / "r", losses=(value, float("nan")))
    assert run.metrics["loss"][0] == np.float32(value)
    assert np.isnan(run.metrics["loss"][1])
    assert run.metrics["update"].tolist() == [1, 2]


def test_a_failed_write_leaves_the_old_file_alone(tmp_path, monkeypatch):
    path = tmp_path / "x.json"
    records.write_json(path, {"a": np.float64("inf"), "b": np.int64(3)})
    full = OSError(errno.ENOSPC, "No space left on device")
    monkeypatch.setattr(os, "fsync", lambda fd: (_ for _ in ()).throw(full))
    with pytest.raises(OSError, match="No space"):
        records.write_json(path, {"a": 1})
    assert json.loads(path.read_text()) == {"a": None, "b": 3}
    assert [p.name for p in tmp_path.iterdir()] == ["x.json"]


def test_files_that_belong_together_are_all_written_or_none(tmp_path, monkeypatch):
    """A disk that is full at the second one leaves no new file beside an old one."""
    files.write_files(tmp_path, {"scores": b"old", "pictures": b"old"})
    fsync, calls = os.fsync, []

    def full(descriptor):
        calls.append(descriptor)
        if len(calls) == 2:
            raise OSError(errno.ENOSPC, "No space left on device")
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space"):
        files.write_files(tmp_path, {"scores": b"new", "pictures": b"new"})
    found = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    assert found == {"scores": b"old", "pictures": b"old"}


@pytest.mark.fault
def test_threads_that_write_one_file_leave_a_whole_one(tmp_path):
    """Each writes aside, under a name of its own, although they share a process."""
    path, names = tmp_path / ("x" * 255), set()
    contents = [bytes([letter]) * 200_000 for letter in range(8)]
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(functools.partial(records.write_bytes, path), contents * 4))
    assert path.read_bytes() in contents
    names.update(files.aside(path) for _ in range(1000))
    assert len(names) == 1000
    assert [p.name for p in tmp_path.iterdir()] == [path.name]


@pytest.mark.fault
def test_a_path_that_cannot_be_written_is_refused(tmp_path):
    for path, message in (
        ("/proc/x", "/proc is no directory that can be written"),
        (tmp_path / "y" / ("é" * 128), "has 256 bytes; expected at most 255"),
        (f"{tmp_path}/a\0b", "a NUL byte is not allowed"),
        ("/dev/null/x", "/dev/null is no directory"),
        ("gs://bucket/run", "an address; expected a path of this machine"),
        ("FILE:///tmp/run", "an address"),
    ):
        with pytest.raises(files.FileError, match=message):
            files.check_writable(path)
    files.check_writable(tmp_path / ("é" * 127) / "z")
    files.check_writable(tmp_path / "gs:" / "run")
    assert not list(tmp_path.iterdir())
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(files.FileError, match="pipe: is no regular file"):
        records.write_bytes(tmp_path / "pipe", b"")
    assert [path.is_fifo() for path in tmp_path.iterdir()] == [True]


def test_a_directory_for_links_has_a_plain_name_too(tmp_path, monkeypatch):
    odd = tmp_path / "[1]"
    odd.mkdir()
    with files.plain_path(odd) as plain:
        assert plain.samefile(odd)
        assert "[" not in str(plain)
    monkeypatch.setattr("tempfile.tempdir", str(odd))
    with pytest.raises(files.FileError, match="set TMPDIR to"), files.plain_path(odd):
        pass


def test_metrics_can_be_continued(tmp_path):
    run = write_run(tmp_path / "r", losses=(3, 2, 1))
    writer = records.MetricsWriter(run.directory, keep=2)
    writer.write(update=3, loss=7)
    writer.close()
    assert records.read_run(run.directory).metrics["loss"].tolist() == [3, 2, 7]
    with pytest.raises(files.FileError, match="expected 9"):
        records.MetricsWriter(run.directory, keep=9)


def test_a_write_reaches_the_disk_before_its_name_does(tmp_path, monkeypatch):
    """Content, then name, then the folder: what a power failure leaves is whole."""
    seen = []
    fsync, replace = os.fsync, os.replace
    monkeypatch.setattr(os, "fsync", lambda fd: (seen.append("fsync"), fsync(fd)))
    named = lambda *a: (seen.append(Path(a[0]).name), replace(*a))  # noqa: E731
    monkeypatch.setattr(os, "replace", named)
    records.write_bytes(tmp_path / "x", b"1")
    records.write_bytes(tmp_path / "x", b"2")
    assert [name for name in seen if name == "fsync"] == ["fsync"] * 4
    assert seen[0] == seen[2] == "fsync"
    # Two writers at once would not take each other's file.
    assert seen[1] != seen[4]


HOLDER = """
import sys, time
from prednet_jax import files
with files.hold(sys.argv[1]):
    print("held", flush=True)
    time.sleep(600)
"""


@pytest.fixture
def holder(tmp_path):
    """A process that holds `tmp_path/run`."""
    other = subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(tmp_path / "run")],
        stdout=subprocess.PIPE,
        text=True,
    )
    with other:
        assert other.stdout.readline() == "held\n"
        yield other
        other.kill()


@pytest.mark.fault
def test_a_lock_refuses_the_second_process_and_dies_with_the_first(tmp_path, holder):
    """A second one is refused while it lives, and free to enter afterwards."""
    folder = tmp_path / "run"
    for refused in (lambda: files.check_unlocked(folder), files.hold(folder).__enter__):
        message = f"run: in use by process {holder.pid}"
        with pytest.raises(UserError, match=message):
            refused()
    holder.send_signal(signal.SIGKILL)
    holder.wait()
    assert (folder / files.LOCK).exists()
    files.check_unlocked(folder)
    with files.hold(folder):
        assert (folder / files.LOCK).exists()
    # It was empty, but another one's.
    assert list(folder.iterdir()) == []


def test_all_are_held_or_none_and_a_refusal_makes_nothing(tmp_path, holder):
    new = tmp_path / "a" / "b"
    with pytest.raises(UserError), files.hold(new, tmp_path / "run"):
        pass
    assert not (tmp_path / "a").exists()


def test_a_lock_that_cannot_be_removed_does_not_hide_the_error(tmp_path, monkeypatch):
    denied = PermissionError(errno.EACCES, "Permission denied")

    def fail():
        with files.hold(tmp_path / "r"):
            monkeypatch.setattr("os.unlink", Mock(side_effect=denied))
            raise UserError("mine")

    with pytest.raises(UserError, match="mine"):
        fail()
    monkeypatch.undo()
    with files.hold(tmp_path / "r"):  # It was released.
        pass


def test_one_process_can_hold_again_what_it_gave_back(tmp_path):
    """Nothing is left behind but what was written; a check makes nothing."""
    files.check_unlocked(tmp_path / "never")
    for _ in range(3):
        with files.hold(tmp_path / "r"):
            (tmp_path / "r" / "file").touch()
    assert [path.name for path in (tmp_path / "r").iterdir()] == ["file"]
    with files.hold(tmp_path / "empty"):
        pass
    assert [path.name for path in tmp_path.iterdir()] == ["r"]


def test_a_second_one_can_wait(tmp_path, holder):
    threading.Timer(0.3, holder.kill).start()
    with files.hold(tmp_path / "run", wait=True):
        assert holder.wait(timeout=5) == -signal.SIGKILL


@pytest.mark.parametrize(
    ("number", "refused"), [(errno.ENOLCK, False), (errno.ENOSPC, True)]
)
def test_a_file_system_without_locks_is_said(
    tmp_path, monkeypatch, capsys, number, refused
):
    def refuses(*args):
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(fcntl, "flock", refuses)
    outcome = pytest.raises(OSError, match="No space") if refused else nullcontext()
    with outcome, files.hold(tmp_path):
        pass
    assert ("cannot be locked" in capsys.readouterr().err) is not refused


@pytest.mark.parametrize(
    "line", ["[1]", "null", '{"x": 1}', "[" * 100_000, '{"update"']
)
def test_scores_skip_a_line_that_is_none_and_metrics_end_there(tmp_path, line):
    """They were tracebacks when a run continued."""
    scores = {"loss": 0.5, "copy_last_frame_loss": 0.25, "ratio": 2.0}
    first, second = ({"update": update, **scores} for update in (1, 2))
    for name in (records.VALIDATION, records.METRICS):
        text = f"{json.dumps(first)}\n{line}\n{json.dumps(second)}\n"
        (tmp_path / name).write_text(text)
    assert records.read_validation(tmp_path) == [first, second]
    assert len(records.metrics_lines(tmp_path / records.METRICS)) == 1


def test_a_pipe_in_place_of_metrics_is_refused(tmp_path):
    """It waited for a writer."""
    os.mkfifo(tmp_path / records.METRICS)
    with pytest.raises(UserError, match=r"metrics\.jsonl: is a pipe"):
        records.metrics_lines(tmp_path / records.METRICS)
