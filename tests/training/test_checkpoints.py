import contextlib
import errno
import functools
import os
import shutil
from pathlib import Path
from unittest.mock import Mock

import chex
import numpy as np
import optax
import pytest

from prednet_jax.errors import RunError
from prednet_jax.files import FileError
from prednet_jax.training import checkpoints
from prednet_jax.training.truncated import TrainState

equal = functools.partial(chex.assert_trees_all_equal, strict=True)


def state(update=3, size=4):
    w = np.arange(3 * size, dtype=np.float32).reshape(3, size) / 7
    moments = optax.ScaleByAdamState(
        count=np.int32(update), mu={"w": w * 2}, nu={"w": w * w}
    )
    return TrainState({"w": w}, moments, (w[:1], None), np.int32(update))


def test_a_state_comes_back_bit_for_bit(tmp_path):
    checkpoints.save(tmp_path, state())
    assert checkpoints.updates(tmp_path) == [3]
    equal(checkpoints.restore(tmp_path, 3, state()), state())
    with pytest.raises(FileError, match=r"no such checkpoint; expected one of \[3\]"):
        checkpoints.restore(tmp_path, 4, state())
    with pytest.raises(FileError, match="not a state of this network"):
        checkpoints.restore(tmp_path, 3, state(size=5))


@pytest.mark.fault
@pytest.mark.parametrize(
    "name",
    [
        *("a[1]", "a*b", "a?b", "{a,b}", "a%20b", "~", "$HOME", "a\\b", "a\nb", "-x"),
        *(" a ", "日本", "gs:/b", "file:", "a#b|c;d", "\udcff", "x" * 255),
    ],
)
def test_a_path_is_no_pattern(tmp_path, name):
    """A checkpoint lies where it was to be saved, whatever the directory's name."""
    (tmp_path / name).mkdir(parents=True)
    folder = checkpoints.save(tmp_path / name, state())
    assert folder == tmp_path / name / "checkpoints" / "3"
    assert sorted(p.name for p in folder.parent.iterdir()) == ["3"]
    equal(checkpoints.restore(tmp_path / name, 3, state()), state())


@pytest.mark.fault
def test_a_directory_that_is_gone_or_cannot_be_written_ends_at_once(
    tmp_path, capfd, monkeypatch
):
    """A removed one was made again without its records; orbax hung without a right."""
    with pytest.raises(FileNotFoundError):
        checkpoints.save(tmp_path / "gone", state())
    assert not list(tmp_path.iterdir())
    made = Path.mkdir

    def refused(self, *args, **kwargs):
        if self.suffix == ".tmp":
            raise PermissionError(errno.EACCES, "Permission denied", str(self))
        made(self, *args, **kwargs)

    monkeypatch.setattr(Path, "mkdir", refused)
    with pytest.raises(PermissionError):
        checkpoints.save(tmp_path, state())
    assert "Traceback" not in capfd.readouterr().err


@pytest.mark.fault
def test_what_is_not_read_back_is_not_a_checkpoint(tmp_path, monkeypatch):
    checkpoints.save(tmp_path, state(2))
    read = checkpoints.ocp.StandardCheckpointer.restore

    def lost(self, *args, **kwargs):
        tree = read(self, *args, **kwargs)
        return tree | {"0000": np.zeros_like(tree["0000"])}

    monkeypatch.setattr(checkpoints.ocp.StandardCheckpointer, "restore", lost)
    with pytest.raises(RunError, match="read back is not what was saved"):
        checkpoints.save(tmp_path, state())
    assert [p.name for p in (tmp_path / "checkpoints").iterdir()] == ["2"]


@pytest.mark.fault
def test_a_flipped_bit_in_any_file_is_found_or_changes_nothing(tmp_path):
    """Never another state: refused, or what the bit stood for means nothing."""
    folder = checkpoints.save(tmp_path, state())
    rng = np.random.default_rng(0)
    found = flipped = 0
    for path in sorted(p for p in folder.rglob("*") if p.is_file()):
        whole = path.read_bytes()
        for place in rng.integers(0, len(whole), 8):
            damaged = bytearray(whole)
            damaged[place] ^= 1 << int(rng.integers(8))
            path.write_bytes(damaged)
            flipped += 1
            try:
                restored = checkpoints.restore(tmp_path, 3, state())
                equal(restored, state())
            except checkpoints.DamagedError:
                found += 1
        path.write_bytes(whole)
    # What changes nothing lies in digest.json alone: its white space, and its loss.
    assert flipped - 8 <= found <= flipped
    equal(checkpoints.restore(tmp_path, 3, state()), state())


@pytest.mark.fault
def test_a_file_beside_the_arrays_is_no_damage(tmp_path):
    """A file manager's made every checkpoint it was in damaged."""
    folder = checkpoints.save(tmp_path, state())
    for place in (folder, folder / "d"):
        (place / ".DS_Store").write_bytes(b"\0")
    equal(checkpoints.restore(tmp_path, 3, state()), state())
    next(p for p in (folder / "d").iterdir() if p.name != ".DS_Store").unlink()
    with pytest.raises(checkpoints.DamagedError):
        checkpoints.restore(tmp_path, 3, state())


def test_the_newest_good_one_that_all_share(tmp_path, capsys):
    """Of several runs: a lost folder and a lost file; nothing is removed."""
    folders = [tmp_path / "a", tmp_path / "b"]
    for folder in folders:
        folder.mkdir()
        for update in (1, 2, 3):
            checkpoints.save(folder, state(update))
    like = [state(0)] * 2
    assert checkpoints.newest(folders, like, 9)[0] == 3
    assert checkpoints.newest(folders, like, 2)[0] == 2
    told = capsys.readouterr().err
    assert "checkpoints/3: metrics.jsonl has lines of 2 updates only; not used" in told
    for name in ("²", "٣", "007", "mine"):
        (folders[0] / "checkpoints" / name).mkdir()
    shutil.rmtree(folders[0] / "checkpoints/3")
    (folders[1] / "checkpoints/2/_METADATA").unlink()
    update, states = checkpoints.newest(folders, like, 9)
    assert update == 1
    equal(states[1], state(1))
    assert "b/checkpoints/2: damaged" in capsys.readouterr().err
    assert checkpoints.updates(folders[1]) == [1, 2, 3]
    checkpoints.remove_leftovers(folders[0], everything=True)
    assert checkpoints.newest(folders, like, 9) == (0, like)


@pytest.mark.fault
@pytest.mark.parametrize("unreadable", ["", "3", "3/_METADATA"])
def test_what_may_not_be_read_is_neither_absent_nor_damaged(
    tmp_path, monkeypatch, unreadable
):
    """The run began anew, and the lines of the checkpoints that it has were lost."""
    for update in (2, 3):
        checkpoints.save(tmp_path, state(update))
    place = tmp_path / "checkpoints" / unreadable
    allowed, listed = os.access, os.listdir
    assert place.exists()

    def listdir(path):
        if Path(path) == place:
            raise PermissionError(errno.EACCES, "Permission denied", str(path))
        return listed(path)

    # Root may read everything.
    monkeypatch.setattr(os, "listdir", listdir)
    monkeypatch.setattr(
        os, "access", lambda path, mode: Path(path) != place and allowed(path, mode)
    )
    with pytest.raises((FileError, PermissionError), match=r"may not be read|denied"):
        checkpoints.newest([tmp_path], [state(0)], 9)


def test_the_last_and_the_best_are_kept(tmp_path):
    for update, loss in enumerate((0.5, 0.1, 0.4, 0.2, 0.3), 1):
        checkpoints.save(tmp_path, state(update), loss=loss)
    checkpoints.prune(tmp_path, 5, 0)
    assert checkpoints.updates(tmp_path) == [1, 2, 3, 4, 5]
    checkpoints.prune(tmp_path, 5, 2, best=1)
    assert checkpoints.updates(tmp_path) == [2, 4, 5]
    # A run that went on before a damaged one has no other good one: later ones stay.
    checkpoints.prune(tmp_path, 4, 1)
    assert checkpoints.updates(tmp_path) == [4, 5]
    (tmp_path / "checkpoints/5/_METADATA").write_bytes(b"")
    checkpoints.save(tmp_path, state(5))  # A good one in place of a damaged one.
    equal(checkpoints.restore(tmp_path, 5, state()), state(5))
    checkpoints.prune(tmp_path, 5, 1)
    assert [p.name for p in (tmp_path / "checkpoints").iterdir()] == ["5"]


@pytest.mark.fault
def test_a_full_disk_leaves_the_older_checkpoint_alone(tmp_path, monkeypatch):
    """The older checkpoint is whole, and nothing else is left."""
    checkpoints.save(tmp_path, state())
    full = OSError(errno.ENOSPC, "No space left on device")
    monkeypatch.setattr("os.fsync", lambda fd: (_ for _ in ()).throw(full))
    with pytest.raises(OSError, match="No space left"):
        checkpoints.save(tmp_path, state(4))
    monkeypatch.undo()
    # What has no room is not begun: threads of orbax would write hundreds of lines.
    usage = shutil.disk_usage(tmp_path)._replace(free=100_000)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage)
    monkeypatch.delattr(checkpoints, "_checkpointer")
    with pytest.raises(OSError, match="No space left"):
        checkpoints.save(tmp_path, state(4))
    monkeypatch.undo()
    # Tensorstore has an error of its own, with the number of the system's.
    limit = ValueError("Failed to write: File too large [os_error_code='27']")
    with monkeypatch.context() as context:
        writer = Mock(save=Mock(side_effect=limit))
        opened = contextlib.nullcontext(writer)
        context.setattr(checkpoints, "_checkpointer", lambda: opened)
        with pytest.raises(OSError, match="File too large") as raised:
            checkpoints.save(tmp_path, state(4))
        assert raised.value.errno == errno.EFBIG
    equal(checkpoints.restore(tmp_path, 3, state()), state())
    assert [p.name for p in (tmp_path / "checkpoints").iterdir()] == ["3"]


@pytest.mark.fault
def test_what_an_interrupted_save_left_is_swept(tmp_path):
    """Never taken for a checkpoint, and removed by the next process."""
    checkpoints.save(tmp_path, state())
    (tmp_path / "checkpoints/.4.99.ab.tmp.orbax-checkpoint-tmp-0").mkdir()
    assert checkpoints.updates(tmp_path) == [3]
    checkpoints.remove_leftovers(tmp_path)
    assert [p.name for p in (tmp_path / "checkpoints").iterdir()] == ["3"]
