import configparser
import importlib.metadata
import json
import os
import re
import sys

import jax
import pytest

from prednet_jax import errors
from prednet_jax.noise.errors import NoiseError
from prednet_jax.noise.gpu import compilation, targets
from prednet_jax.noise.order.profiles import excluded
from tests.noise.gpu import sums
from tests.processes import ROOT, python


def test_an_error_of_the_compiler_is_one_line(compiler):
    with pytest.raises(NoiseError, match="XLA's CUDA compiler") as caught:
        compilation.compiled_for([b""], "h100")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("version", [None, "0.1.0"])
def test_without_the_compiler_or_with_another(monkeypatch, tmp_path, version):
    monkeypatch.setattr(sys, "prefix", str(tmp_path))
    (tmp_path / "gpu-audit").mkdir()
    for name in ("jax_cuda12_plugin", "jax_cuda12_pjrt", "nvidia_cuda_nvcc_cu12"):
        folder = tmp_path / "gpu-audit" / f"{name}-{version}.dist-info"
        if version:
            folder.mkdir()
            (folder / "METADATA").write_text(f"Name: {name}\nVersion: {version}\n")
    said = (
        f"is {version}, with jax {jax.__version__}" if version else "is not installed"
    )
    with pytest.raises(NoiseError, match=f"{said}.* -m pip install ") as caught:
        compilation.compiled_for([b""], "h100")
    assert "\n" not in str(caught.value)


def test_a_compiler_that_writes_no_kernels_down_is_refused(tmp_path):
    """Without its kernels nothing would seem to vary."""
    launch = "000: kCustomKernel {} grid: [1, 1, 1] threads: [1, 1, 1]"
    sequence = tmp_path / "x.thunk_sequence.txt"
    sequence.write_text(launch.format("add"))
    (tmp_path / "x.thunk_metadata.txt").write_text("")
    (tmp_path / "answer.json").write_text('{"hlo": "", "memory": {}, "cost": {}}')
    with pytest.raises(NoiseError, match=r"kernels down; expected jax 0\.10\.2"):
        compilation._compiled(tmp_path)
    sequence.write_text(launch.format("topk"))  # It is never written.
    assert compilation._compiled(tmp_path).launches[0].kernel == "topk"


def test_cards():
    """Operations per second are those of NVIDIA's data sheets."""
    old = [1.4, 3.9, 8.9, 11.3, 7.2, 9.1, 13.4, 16.3]
    teraflops = [*old, 15.7, 19.5, 66.9, 66.9, 74.5, 82.6]
    found = [card.operations / 1e12 for card in targets.CARDS.values()]
    assert found == pytest.approx(teraflops, rel=0.01)


def test_the_extra_names_the_same_wheels():
    declared = configparser.ConfigParser()
    declared.read(ROOT / "setup.cfg")
    extra = declared["options.extras_require"]["gpu-audit"]
    assert compilation.WHEELS["nvidia-cuda-nvcc-cu12"] in extra
    # JAX's own extra has the plugin of JAX's version, which pip cannot know.
    (own,) = re.findall(r"^jax\[([\w-]+)\]$", extra, re.MULTILINE)
    wheels = [x for x in importlib.metadata.requires("jax") if f'"{own}"' in x]
    pinned = f"jax-cuda12-plugin<={jax.__version__},>={jax.__version__}"
    assert any(x.startswith(pinned) for x in wheels)


PLAIN = "import prednet_jax.noise, jax; print(jax.devices(), jax.default_backend())"


def test_the_plugin_in_the_environment_changes_no_answer(compiler, monkeypatch):
    """With the extra installed where JAX sees it, a process answers as it did."""
    if any(map(os.path.exists, errors._DRIVERS)):
        pytest.skip("a GPU is here")
    monkeypatch.delenv("JAX_PLATFORMS", raising=False)
    paths = [os.pathsep.join([str(ROOT), *folders]) for folders in ([], compiler)]
    done = [python("-c", PLAIN, PYTHONPATH=path) for path in paths]
    assert done[0].stdout == done[1].stdout == "[CpuDevice(id=0)] cpu\n"
    # Beside JAX the plugin's library still writes a few lines of its own (BUILD_NOTES).
    assert "Traceback" not in done[1].stderr


RECORD = json.loads((ROOT / "results" / "gpu" / "audit.json").read_text())
# Scripts have flags, which are for a process of their own.
AUDITED = """
import json, sys
sys.path.insert(0, "experiments")
import gpu
print(json.dumps([gpu.audited(case) for case in json.loads(sys.argv[1])]))
"""


def test_every_program_of_the_record_can_be_made():
    code = "import gpu; print(sum(bool(gpu.built(c)) for c in gpu.cases()))"
    path = os.pathsep.join([str(ROOT), str(ROOT / "experiments")])
    assert python("-c", code, PYTHONPATH=path).stdout == f"{len(RECORD['rows'])}\n"


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
    done = python("-c", AUDITED, json.dumps(cases))
    if jax.__version__ != RECORD["jax"]:
        pytest.skip(f"recorded with jax {RECORD['jax']}")
    for case, found in zip(cases, json.loads(done.stdout), strict=True):
        (row,) = [r for r in RECORD["rows"] if {k: r[k] for k in case} == case]
        # The record is older than the audit of single operations.
        found["entries"].pop("arithmetic device", None)
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
            varies = bool(VARYING & set(ways))
            # Left out: from sm_80 on a sum can get another kernel (docs/noise.md).
            known = (gpu, primitive) == ("h100", "reduce_sum")
            assert perturbed == (varies and not known), (name, primitive, ways)
            assert varies or not known


@pytest.mark.slow
def test_what_is_compiled_now_varies_as_the_record_says(compiler):
    with jax.numpy_dtype_promotion("standard"):
        assert (
            sums.measured("gtx1080") == json.loads(sums.RECORD.read_text())["gtx1080"]
        )
