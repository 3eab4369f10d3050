import configparser
import os
import re
import subprocess
import sys
from pathlib import Path

import jax
import pytest
from jax import numpy as jnp

from prednet_jax import errors
from prednet_jax.noise.errors import NoiseError
from prednet_jax.noise.gpu import compilation, targets


def summed(x, ids):
    product = jnp.tanh(x) @ x.T
    return jax.ops.segment_sum(product, ids, num_segments=5)  # the line


LINE = summed.__code__.co_firstlineno + 2
SHAPES = (
    jax.ShapeDtypeStruct((64, 64), jnp.float32),
    jax.ShapeDtypeStruct((64,), jnp.int32),
)


@pytest.fixture(scope="module")
def compiled(compiler):
    return compilation.compiled_for([compilation.lower(summed, *SHAPES)], "h100")[0]


def test_kernels_launches_and_source_lines(compiled):
    kernels = {launch.kernel for launch in compiled.launches if launch.kernel}
    assert kernels == set(compiled.ptx)
    assert all(".target sm_90" in text for text in compiled.ptx.values())
    names = {launch.instruction for launch in compiled.launches}
    assert all(f"%{name} = " in compiled.hlo for name in names)
    assert compiled.memory["argument"] == 64 * 64 * 4 + 64 * 4
    assert compiled.memory["output"] == 5 * 64 * 4
    assert compiled.cost["flops"] > 2 * 64**3
    assert f"line={LINE} " in compiled.hlo
    assert os.path.basename(__file__) in compiled.hlo
    assert 'op_name="jit(summed)/scatter-add"' in compiled.hlo


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


def test_cards():
    """Operations per second are those of NVIDIA's data sheets."""
    old = [1.4, 3.9, 8.9, 11.3, 7.2, 9.1, 13.4, 16.3]
    teraflops = [*old, 15.7, 19.5, 66.9, 74.5, 82.6]
    found = [card.operations / 1e12 for card in targets.CARDS.values()]
    assert found == pytest.approx(teraflops, rel=0.01)


def test_the_extra_names_the_same_wheels():
    declared = configparser.ConfigParser()
    declared.read(Path(__file__).parents[3] / "setup.cfg")
    extra = declared["options.extras_require"]["gpu-audit"]
    assert re.findall(r"^([\w-]+)", extra, re.MULTILINE) == list(compilation.WHEELS)
    assert compilation.WHEELS["nvidia-cuda-nvcc-cu12"] in extra


PLAIN = "import prednet_jax.noise, jax; print(jax.devices(), jax.default_backend())"


def test_the_plugin_in_the_environment_changes_no_answer(compiler):
    """With the extra installed where JAX sees it, a process answers as it did."""
    if any(map(os.path.exists, errors._DRIVERS)):
        pytest.skip("a GPU is here")
    environment = {k: v for k, v in os.environ.items() if k != "JAX_PLATFORMS"}
    package = str(Path(__file__).parents[3])
    done = [
        subprocess.run(
            [sys.executable, "-c", PLAIN],
            env=environment | {"PYTHONPATH": os.pathsep.join([package, *folders])},
            capture_output=True,
            text=True,
            check=True,
        )
        for folders in ([], compiler)
    ]
    assert done[0].stdout == done[1].stdout == "[CpuDevice(id=0)] cpu\n"
    # Beside JAX the plugin's library still writes a few lines of its own (BUILD_NOTES).
    assert "Traceback" not in done[1].stderr
