import json
import subprocess
import sys
from pathlib import Path

import jax
import pytest

from prednet_jax.noise.order.profiles import excluded
from tests.noise.gpu import sums

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


# One run and the next, or one compilation and the next, may differ.
VARYING = {"call", "compilation"}


@pytest.mark.parametrize("gpu", sums.GPUS)
def test_the_profile_perturbs_what_varies_and_nothing_else(gpu):
    rows = json.loads(sums.RECORD.read_text())[gpu]
    for name, primitives in rows.items():
        # A sum that XLA made into something else would be no evidence of sums; this
        # one is made of additions of whole arrays, which have no order.
        assert primitives or name == "associative_scan"
        for primitive, ways in primitives.items():
            perturbed = excluded("xla_gpu", primitive, {}, "") is None
            assert perturbed == bool(VARYING & set(ways)), (name, primitive, ways)


@pytest.mark.slow
def test_what_is_compiled_now_varies_as_the_record_says(compiler):
    with jax.numpy_dtype_promotion("standard"):
        assert (
            sums.measured("gtx1080") == json.loads(sums.RECORD.read_text())["gtx1080"]
        )
