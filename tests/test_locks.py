"""A directory held by one process at a time; the other one is a real process."""

import errno
import fcntl
import os
import signal
import subprocess
import sys
import threading
from contextlib import nullcontext

import pytest

from prednet_jax import files

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


@pytest.mark.fault("the process that holds a directory ends", "killed by SIGKILL")
def test_a_lock_refuses_the_second_process_and_dies_with_the_first(tmp_path, holder):
    """A second one is refused while it lives, and free to enter afterwards."""
    folder = tmp_path / "run"
    for refused in (lambda: files.check_unlocked(folder), files.hold(folder).__enter__):
        with pytest.raises(
            files.LockedError, match=f"run: in use by process {holder.pid}"
        ):
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
    with pytest.raises(files.LockedError), files.hold(new, tmp_path / "run"):
        pass
    assert not (tmp_path / "a").exists()


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
    assert ("nothing guards" in capsys.readouterr().err) is not refused
