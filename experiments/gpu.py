"""Audits this project's own programs for GPUs that need not be there.

    python experiments/gpu.py

compiles the training step and the prediction of PredNet and of the autoencoder, one
factor at a time from one base program, for the article's GPUs (one card of each
architecture: others of it get the same kernels) and for A100, H100 and B200. Nothing
runs. `auto` would choose the algorithm of convolutions for this machine's CPU; on a GPU
it is `xla`, which is what is compiled here unless a factor says otherwise.

Writes --record after each program and takes up where it was. Beside it, sums.json says
what varies of every primitive that sums (benchmarks/gpu_sums.py). docs/gpu.md is made
from the record (experiments/tables.py).
"""

import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import _cli
import jax
import jax.numpy as jnp
from absl import flags

from prednet_jax import noise, records
from prednet_jax.config import AutoencoderConfig, PredNetConfig
from prednet_jax.noise.gpu import compilation, targets
from prednet_jax.objectives import Method
from prednet_jax.training import loop, truncated

sys.path.append(str(Path(__file__).resolve().parent.parent))
from benchmarks import gpu_sums

FLAGS = flags.FLAGS
flags.DEFINE_string("record", "results/gpu/audit.json", "Where to write.")

SIZES = {
    "24x32": {"height": 24, "width": 32, "channels": (3, 6, 12)},
    "64x48": {"height": 48, "width": 64, "channels": (3, 12, 24, 48)},
    "160x120": {"height": 120, "width": 160, "channels": (3, 48, 96, 192)},
}
# One card of each architecture of the article, then today's.
GPUS = ("gtx750ti", "gtx970", "gtx1080", "rtx2080ti", "a100", "h100", "b200")
FACTORS = (
    {"program": "prediction"},
    {"variant": "lotter"},
    {"targets": "stale"},
    {"leak": False},
    {"noise": "reduction_order"},
    {"convolution": "im2col"},
    {"deterministic": True},
    {"size": "64x48"},
    {"size": "160x120"},
)
BASE: dict[str, Any] = {
    "model": "prednet",
    "program": "step",
    "variant": "watanabe",
    "size": "24x32",
    "targets": "true",
    "leak": True,
    "noise": "none",
    "convolution": "xla",
    "deterministic": False,
}


def cases() -> list[dict[str, Any]]:
    """All programs to compile, the base program on every GPU first."""
    found = [{**BASE, "gpu": gpu} for gpu in GPUS]
    gpus = ("gtx1080", "rtx2080ti", "h100")
    for gpu in gpus:
        for program in ("step", "prediction"):
            fields = {"model": "autoencoder", "program": program}
            found.append({**BASE, **fields, "variant": "", "size": "", "gpu": gpu})
    found += [{**BASE, **each, "gpu": gpu} for each in FACTORS for gpu in gpus]
    # Would the smallest card of the article have held the article's size?
    return [*found, {**BASE, "size": "160x120", "gpu": "gtx750ti"}]


def built(case: dict[str, Any]) -> tuple[Any, tuple[Any, ...]]:
    """The function of a case and the shapes of its arguments."""
    if case["model"] == "autoencoder":
        network: Any = AutoencoderConfig()
        shape = (network.height, network.width, network.channels)
        frames, method = jax.ShapeDtypeStruct((10, 1, *shape), jnp.uint8), Method()
    else:
        network = PredNetConfig(
            **SIZES[case["size"]],
            variant=case["variant"],
            convolution=case["convolution"],
        )
        shape = (network.height, network.width, network.channels[0])
        frames = jax.ShapeDtypeStruct((11, 1, *shape), jnp.uint8)
        method = Method(targets=case["targets"], truncation_leak=case["leak"])
    params = jax.eval_shape(lambda: loop.initial_params(network, 0))
    if case["program"] == "prediction":
        return _prediction(network), (params, frames)
    optimizer = loop.default_optimizer(network, 100)
    spec = noise.parse(case["noise"]) if case["noise"] != "none" else None
    step = truncated.make_step(network, optimizer, method, noise=spec)
    state = jax.eval_shape(
        lambda p: truncated.initial_train_state(network, p, optimizer), params
    )
    first = jax.ShapeDtypeStruct((), jnp.bool_)
    return step, (state, frames, first, jax.random.key(0))


def _prediction(network: Any) -> Any:
    from prednet_jax import predict
    from prednet_jax.models import autoencoder

    def prediction(params: Any, frames: Any) -> Any:
        pixels = truncated.to_pixels(frames, jnp.float32)
        if isinstance(network, PredNetConfig):
            return predict(params, network, pixels)[0]
        frames = pixels.reshape(-1, *pixels.shape[2:])
        return autoencoder.reconstruct(params, network, frames)

    return prediction


def audited(case: dict[str, Any]) -> dict[str, Any]:
    """What the audit of a case says, as the record has it."""
    function, arguments = built(case)
    start = time.perf_counter()
    ask = noise.audit(
        function, gpu=case["gpu"], deterministic=case["deterministic"], advice=False
    )
    report = ask(*arguments)
    calls = Counter(
        e.detail.partition(": ")[0] for e in report.entries if e.kind == "library"
    )
    # XLA counts no operations of library calls: those of the program as written.
    flops = jax.jit(function).lower(*arguments).cost_analysis()["flops"]
    return {
        **case,
        "varies": report.varies,
        "kernels": report.kernels,
        "calls": dict(calls),
        "entries": dict(Counter(f"{e.kind} {e.varies}" for e in report.entries)),
        "lines": sorted(
            {f"{e.kind} {e.source}" for e in report.entries if e.varies == "call"}
        ),
        "memory": report.memory._asdict(),
        "flops": flops,
        "bytes": report.compiled.cost["bytes accessed"],
        "seconds": round(time.perf_counter() - start, 1),
    }


def main(argv: list[str]) -> None:
    """Audits what the record has not yet."""
    del argv
    file = Path(FLAGS.record)
    compilation.found_wheels()
    rows = records.read_json(file)["rows"] if file.exists() else []
    todo = cases()
    for number, case in enumerate(todo, 1):
        if any(all(row.get(k) == v for k, v in case.items()) for row in rows):
            continue
        row = audited(case)
        rows.append(row)
        _write(file, rows)
        print(
            f"{number}/{len(todo)}",
            *case.values(),
            row["varies"],
            row["kernels"],
            flush=True,
        )
    _write(file, rows)
    sums = {gpu: gpu_sums.measured(gpu) for gpu in gpu_sums.GPUS}
    records.write_json(file.with_name("sums.json"), {"jax": jax.__version__} | sums)


def _write(file: Path, rows: list[dict[str, Any]]) -> None:
    cards = {
        name: {
            "memory": card.memory,
            "bandwidth": card.bandwidth,
            "operations": card.operations,
        }
        for name, card in targets.CARDS.items()
    }
    file.parent.mkdir(parents=True, exist_ok=True)
    record = {"jax": jax.__version__, "base": BASE, "cards": cards, "rows": rows}
    records.write_json(file, record)


if __name__ == "__main__":
    _cli.run(main)
