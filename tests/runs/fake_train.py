"""A stand-in for `train.py`, to test how it is started and what it leaves.

Writes the records of a run at once, or prints its process id and runs for ever.
"""

import hashlib
import json
import os
import sys
import time
from pathlib import Path

import numpy as np

LOSSES = ("loss", "last_frame_loss")
flags = dict(
    word.removeprefix("--").partition("=")[::2] for word in sys.argv[1:] if "=" in word
)
root = Path(flags["workdir"])
if flags.get("noise") == "for_ever":
    (root / "process").write_text(str(os.getpid()))
    time.sleep(600)
if name := flags.get("dump"):  # As XLA does, in the directory where it started.
    Path(name).write_text("")
# The first to come says who it is and goes on for ever.
if flags.get("waits_once"):
    try:
        with open(flags["waits_once"], "x") as first:
            first.write(f"{os.getpid()} {os.getppid()}")
        time.sleep(600)
    except FileExistsError:
        pass


def fingerprint(array):
    """As `records.fingerprint` of {"w": array}, without the package's imports."""
    found = hashlib.sha256(f"/w:{array.dtype.str}:{array.shape};".encode())
    found.update(array.tobytes())
    return found.hexdigest()


for seed in map(int, flags["seeds"].split(",")):
    folder = root / f"seed_{seed}"
    folder.mkdir(parents=True)
    with open(root / "started.txt", "a") as file:
        file.write(f"{seed}\n")
    if flags.get("noise") == f"dies_at_{seed}":
        os.kill(os.getpid(), 9)
    diverges = flags.get("noise") == f"diverges_at_{seed}"
    weights = np.asarray([float(seed)])
    updates = 3 if diverges else int(flags["updates"])
    losses = [0.5] * updates
    manifest = {
        "model": flags["model"],
        "seed": seed,
        "flags": flags,
        "initial_params_sha256": f"weights {seed}",
        "data_order_sha256": f"data {seed}",
        "processors": sorted(os.sched_getaffinity(0)),
        "wall_seconds": time.time(),
    }
    if diverges:
        losses[-1] = None
        manifest["failure"] = "update 3: loss nan"
    else:
        np.savez(folder / "weights.npz", w=weights)
        manifest["final_params_sha256"] = fingerprint(weights)
    lines = [
        json.dumps({"update": i + 1, "seconds": 0.1} | dict.fromkeys(LOSSES, loss))
        for i, loss in enumerate(losses)
    ]
    (folder / "metrics.jsonl").write_text("\n".join(lines) + "\n")
    (folder / "manifest.json").write_text(json.dumps(manifest))
    if diverges:
        sys.exit(f"seed {seed}: update 3: loss nan")
