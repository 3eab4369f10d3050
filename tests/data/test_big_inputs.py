"""Big inputs train in bounded memory: 200,000 pictures, a video of more than 2 GB.

    .venv/bin/python -m pytest -m slow -s tests/data/test_big_inputs.py

prints the peak of each process beside that of generated frames.
"""

import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import av
import numpy as np
import pytest
from PIL import Image

ROOT = Path(__file__).parents[2]
PICTURES = 200_000
VIDEO_BYTES = 2 * 2**30
# What a process may take beyond the one that trains on generated frames.
EXTRA = 2**29
TINY = (
    *("--channels=3,4", "--height=8", "--width=8", "--window=20", "--updates=20"),
    *("--convolution=shifted", "--seeds=0,1"),
)


def peak(workdir, data):
    """Bytes that training takes at most, and its seconds."""
    words = [sys.executable, str(ROOT / "experiments" / "train.py"), *TINY]
    start = time.perf_counter()
    process = subprocess.Popen([*words, f"--data={data}", f"--workdir={workdir}"])
    _, status, used = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    assert process.returncode == 0
    found, seconds = used.ru_maxrss * 1024, time.perf_counter() - start
    print(f"{data}: peak {found / 2**20:.0f} MiB, {seconds:.1f} s")
    return found


def pictures(folder):
    """A list of 200,000 small pictures, each a file of its own."""
    (folder / "images").mkdir()
    for i in range(50):
        pixels = np.random.default_rng(i).integers(0, 256, (8, 8, 3), np.uint8)
        Image.fromarray(pixels).save(folder / f"{i}.png")
    contents = [(folder / f"{i}.png").read_bytes() for i in range(50)]
    names = [f"images/{i}.png" for i in range(PICTURES)]
    for i, name in enumerate(names):
        (folder / name).write_bytes(contents[i % 50])
    (folder / "list.txt").write_text("\n".join(names))
    return folder / "list.txt"


def video(folder):
    """Noise, not compressed: 640x480, somewhat more than 2 GB."""
    path = folder / "video.avi"
    planes = np.random.default_rng(0).integers(0, 256, (8, 720, 640), np.uint8)
    with av.open(str(path), "w") as container:
        stream = container.add_stream("rawvideo", rate=25)
        stream.width, stream.height, stream.pix_fmt = 640, 480, "yuv420p"
        for i in range(VIDEO_BYTES // planes[0].size + 1):
            frame = av.VideoFrame.from_ndarray(planes[i % 8], format="yuv420p")
            container.mux(stream.encode(frame))
        container.mux(stream.encode())
    assert path.stat().st_size > VIDEO_BYTES
    return path


@pytest.mark.fault(
    "big inputs", "a list of 200,000 pictures, a video of more than 2 GB"
)
@pytest.mark.slow
@pytest.mark.parametrize("make", [pictures, video])
def test_memory_is_bounded(tmp_path, make):
    """At most 512 MiB more than with generated frames."""
    clean = peak(tmp_path / "walk", "walk")
    found = peak(tmp_path / "run", make(tmp_path))
    shutil.rmtree(tmp_path)  # pytest would keep them, and delete them later.
    assert found < clean + EXTRA
