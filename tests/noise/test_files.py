"""Files of noise are whole, whoever writes them at the same time."""

from concurrent.futures import ThreadPoolExecutor

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from prednet_jax import noise
from prednet_jax.noise import files


@pytest.mark.fault
def test_threads_that_write_one_file_leave_a_whole_one(tmp_path):
    """They share the process, whose id alone once made the name of the part."""
    path = tmp_path / ("x" * 255)
    contents = [bytes([letter]) * 100_000 for letter in range(8)]
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda content: files.write_whole(path, content), contents * 8))
    assert path.read_bytes() in contents
    assert [p.name for p in tmp_path.iterdir()] == [path.name]


@pytest.mark.fault
def test_two_threads_that_save_one_recording_leave_one_that_reads(tmp_path):
    recording = noise.record(lambda x: jnp.sin(x) @ x)(jax.random.normal(KEY, (64, 64)))
    for _ in range(10):
        with ThreadPoolExecutor(2) as pool:
            list(pool.map(recording.save, [tmp_path / "r[1].npz"] * 2))
        loaded = noise.load_recording(tmp_path / "r[1].npz")
        assert len(loaded.equations) == len(recording.equations)
    assert [p.name for p in tmp_path.iterdir()] == ["r[1].npz"]


@pytest.mark.fault
def test_a_write_that_fails_leaves_the_old_file_alone(tmp_path, monkeypatch):
    path = tmp_path / "x"
    files.write_whole(path, b"old")
    full = OSError(28, "No space left on device")
    monkeypatch.setattr("os.replace", lambda *_: (_ for _ in ()).throw(full))
    with pytest.raises(noise.NoiseError, match="No space"):
        files.write_whole(path, b"new")
    assert [p.read_bytes() for p in tmp_path.iterdir()] == [b"old"]
    monkeypatch.undo()
    recording = noise.record(jnp.sum)(np.ones(3, np.float32))
    for place in (f"{tmp_path}/a\0b", tmp_path / "no" / "x", "/proc/x"):
        with pytest.raises(noise.NoiseError, match="expected a file that can be writ"):
            recording.save(place)


KEY = jax.random.key(0)
