import errno
import os
from pathlib import Path

import pytest

from tests.processes import ROOT, SCRIPTS, python

WEIGHTS = ROOT / "tests" / "golden" / "chainer_tiny" / "initial.model.npz"


def test_flags_that_contradict_the_weights(refused, tmp_path):
    words = ("train.py", f"--workdir={tmp_path}/run", f"--init_weights={WEIGHTS}")
    for flag in ("--channels=3,4,6,16", "--variant=lotter"):
        assert str(WEIGHTS) in refused(f"{flag}: expected ", *words, flag).stderr
    assert not (tmp_path / "run").exists()


def test_what_is_no_directory_is_refused(refused, tmp_path):
    """It trained into the current directory, and made a directory named ~."""
    (tmp_path / "link").symlink_to(tmp_path / "nowhere")
    for workdir, message in (
        ("", "--workdir=: expected a directory"),
        ("~/../dev/null/x", f"--workdir={Path.home()}/../dev/null/x: "),
        (f"{tmp_path}/link/run", "link is no directory"),
    ):
        words = ("train.py", "--updates=1", f"--workdir={workdir}")
        refused(message, *words, folder=tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["link"]


@pytest.mark.parametrize("early", [True, False])
def test_an_interrupt_while_a_script_imports_is_one_line(tmp_path, early):
    """Early: while absl is imported, which is the first that takes long."""
    code = "import _cli; raise KeyboardInterrupt()"
    if early:
        (tmp_path / "absl.py").write_text("raise KeyboardInterrupt()")
    path = f"{SCRIPTS}:{tmp_path}"
    done = python("-c", code, status=130, PYTHONPATH=path)
    assert done.stderr == "-c: interrupted\n"


def test_control_codes_of_a_name_do_not_reach_the_terminal(refused, tmp_path):
    folder = tmp_path / "\x1b[31mred\x07"
    folder.mkdir()
    done = refused(
        r"\x1b[31mred\x07", "train.py", f"--workdir={tmp_path}/run", f"--data={folder}"
    )
    assert "\x1b" not in done.stderr


@pytest.mark.fault("the disk is full", "ENOSPC of a file that is written")
def test_a_full_disk_is_one_line(monkeypatch):
    """Status 1 and a line that names the file and says what to make fewer."""
    monkeypatch.syspath_prepend(str(SCRIPTS))
    import _cli

    full = OSError(errno.ENOSPC, "No space left on device", "runs/x")
    monkeypatch.setattr(_cli, "FLAGS", ["keep_checkpoints"])
    said, status = _cli._ending(full)
    assert status == 1
    assert said.startswith("the disk is full (runs/x): expected room, or fewer --keep_")


def test_a_pipe_instead_of_a_manifest_is_refused(refused, tmp_path):
    os.mkfifo(tmp_path / "manifest.json")
    (tmp_path / "weights.npz").write_bytes(b"")
    words = (f"--weights={tmp_path}", f"--workdir={tmp_path}/out")
    refused("manifest.json: is a pipe", "predict.py", *words)
