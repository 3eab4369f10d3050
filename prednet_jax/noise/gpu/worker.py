"""Runs XLA's CUDA compiler in a separate process.

    python -P worker.py REQUEST FOLDER...

reads FOLDER/module.mlirbc, compiles it for the GPU that the request (JSON) describes,
and writes FOLDER/answer.json; PTX and the sequence of kernels are among what XLA dumps
into FOLDER. Nothing of this package is imported, so its imports cannot matter here.
"""

import json
import sys
from pathlib import Path

import jax
import numpy as np
from jax._src import compiler
from jax._src.interpreters import mlir
from jax._src.lib import _jax
from jax._src.lib.mlir import ir
from jax.experimental import topologies


def compile_in(folder: Path, devices: np.ndarray) -> None:
    """Compiles the program in a folder, for devices [1, count]."""
    client, count = devices[0, 0].client, devices.size
    with mlir.make_ir_context():
        module = ir.Module.parse((folder / "module.mlirbc").read_bytes())
    options = compiler.get_compile_options(
        1, count, devices, {"xla_dump_to": str(folder)}, backend=client
    )
    compiled = compiler.backend_compile_and_load(
        client, module, _jax.DeviceList(tuple(devices[0])), options, []
    )
    (hlo,) = compiled.hlo_modules()
    stats = compiled.get_compiled_memory_stats()
    kinds = ("argument", "output", "alias", "temp")
    # The compile-only client has no cost model; that of the CPU counts the same text.
    cost = _jax.hlo_module_cost_analysis(jax.devices("cpu")[0].client, hlo)
    answer = {
        "hlo": hlo.to_string(),
        "memory": {kind: getattr(stats, f"{kind}_size_in_bytes") for kind in kinds},
        # A program that only copies has no entry for the number of operations.
        "cost": {name: cost.get(name, 0.0) for name in ("flops", "bytes accessed")},
    }
    (folder / "answer.json").write_text(json.dumps(answer))


def main(request: str, *folders: str) -> None:
    """Compiles the programs in the folders."""
    asked = json.loads(request)
    count = asked["devices"]
    topology = topologies.get_topology_desc(
        "gpu", "cuda", target_config=asked["target"], topology=f"1x1x{count}"
    )
    for folder in folders:
        compile_in(Path(folder), np.array(topology.devices[:count]).reshape(1, count))


if __name__ == "__main__":
    main(*sys.argv[1:])
