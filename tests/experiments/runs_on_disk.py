"""Tiny trainings, and what they leave on disk."""

import json
import os

from tensorboardX.proto import event_pb2

TINY = ("--channels=3,4", "--height=8", "--width=8", "--window=4", "--updates=6")
TINY += ("--convolution=xla",)


def snapshot(folder):
    """Every path below a directory, its bytes, and when it was last written."""
    return {
        str(path.relative_to(folder)): (
            os.stat(path).st_mtime_ns,
            path.read_bytes() if path.is_file() else None,
        )
        for path in sorted(folder.rglob("*"))
    }


def metrics(folder, name="metrics.jsonl"):
    """The metrics without the wall time, which is no result."""
    lines = (folder / name).read_text().splitlines()
    rows = [json.loads(line) for line in lines]
    return [{k: v for k, v in row.items() if k != "seconds"} for row in rows]


def events(folder):
    """Scalars of a run's TensorBoard files: {name: [(update, value)]}."""
    found = {}
    for path in sorted(folder.glob("events.out.tfevents.*")):
        content = path.read_bytes()
        while content:
            # A record: its length, a checksum, the event, a checksum.
            size = int.from_bytes(content[:8], "little")
            event = event_pb2.Event.FromString(content[12 : 12 + size])
            for value in event.summary.value:
                row = (event.step, value.simple_value)
                found.setdefault(value.tag, []).append(row)
            content = content[16 + size :]
    return found


def manifest(folder):
    return json.loads((folder / "manifest.json").read_text())


def saved(folder):
    return sorted(int(path.name) for path in (folder / "checkpoints").glob("[0-9]*"))


def flip_a_bit(folder):
    files = (path for path in folder.rglob("*") if path.is_file())
    path = max(files, key=lambda path: path.stat().st_size)
    content = bytearray(path.read_bytes())
    content[len(content) // 3] ^= 1
    path.write_bytes(content)


def assert_equal_runs(one, other):
    """Every number of two runs, and their last weights, bit for bit."""
    assert metrics(one) == metrics(other)
    for field in ("initial_params_sha256", "data_order_sha256", "final_params_sha256"):
        assert manifest(one)[field] == manifest(other)[field], field
