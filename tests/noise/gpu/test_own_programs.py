import json
import subprocess
import sys
from pathlib import Path

import jax
import pytest

ROOT = Path(__file__).parents[3]
RECORD = json.loads((ROOT / "results" / "gpu" / "audit.json").read_text())
# Scripts have flags, which are for a process of their own.
AUDITED = """
import json, sys
sys.path.insert(0, "experiments")
import gpu
print(json.dumps([gpu.audited(case) for case in json.loads(sys.argv[1])]))
"""
AUTOENCODER = {"model": "autoencoder", "variant": "", "size": ""}
PREDICTION = {"program": "prediction"}
KEPT = ("varies", "kernels", "calls", "entries", "memory")


@pytest.mark.parametrize(
    ("gpu", "changes"),
    [
        ("h100", [{}, AUTOENCODER]),
        ("gtx1080", [PREDICTION, AUTOENCODER]),
        ("rtx2080ti", [PREDICTION, AUTOENCODER]),
        pytest.param("gtx1080", [{}], marks=pytest.mark.slow),
        pytest.param("rtx2080ti", [{}], marks=pytest.mark.slow),
    ],
)
def test_programs_are_those_of_the_record(compiler, gpu, changes):
    cases = [{**RECORD["base"], **each, "gpu": gpu} for each in changes]
    done = subprocess.run(
        [sys.executable, "-c", AUDITED, json.dumps(cases)],
        cwd=ROOT,
        check=True,
        capture_output=True,
        text=True,
    )
    for case, found in zip(cases, json.loads(done.stdout), strict=True):
        (row,) = [r for r in RECORD["rows"] if {k: r[k] for k in case} == case]
        if jax.__version__ == RECORD["jax"]:
            assert {k: found[k] for k in KEPT} == {k: row[k] for k in KEPT}
