"""Audits this project's own programs for GPUs that need not be there.

    make gpu-wheels && python experiments/gpu.py
    python experiments/gpu.py --record=runs/audit.json
    python -m prednet_jax.noise audit model:loss --args=x.npz      (your own program)

The question is which results may differ from call to call on a GPU, and why. The script
compiles the training step and the prediction of PredNet and of the autoencoder, one
factor at a time from one base program, for the article's GPUs (one card of each
architecture) and for A100, H100 and B200. Nothing runs. Convolutions are XLA's, as on a
GPU, unless a factor changes them. It takes minutes. --record is written after each
program, and the same command again continues from there.
"""

import dataclasses
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import _cli
import jax
import jax.numpy as jnp
from absl import flags

from prednet_jax import noise, predict, records, tasks
from prednet_jax.config import SIZES, AutoencoderConfig
from prednet_jax.noise.gpu import compilation, targets
from prednet_jax.objectives import Method
from prednet_jax.training import loop, truncated

FLAGS = flags.FLAGS
flags.DEFINE_string("record", "results/gpu/audit.json", "JSON file to write.")

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
AUTOENCODER = {"model": "autoencoder", "variant": "", "size": ""}
PREDICTION = {"program": "prediction"}
# Changes to the base program, tried on one card of each of three architectures.
FACTORS: tuple[dict[str, Any], ...] = (
    AUTOENCODER,
    AUTOENCODER | PREDICTION,
    PREDICTION,
    {"variant": "lotter", "leak": False},  # It has no truncation leak.
    {"targets": "stale"},
    {"leak": False},
    {"noise": "reduction_order"},
    {"convolution": "im2col"},
    {"deterministic": True},
    {"size": "64x48"},
    {"size": "160x120"},
)
# Cards on which each factor is tried.
FEW = ("gtx1080", "rtx2080ti", "h100")
# One card of each architecture of the article, then today's.
GPUS = ("gtx750ti", "gtx970", "gtx1080", "rtx2080ti", "a100", "h100", "b200")


def cases() -> list[dict[str, Any]]:
    """Returns all programs to compile, the base program on every GPU first."""
    return [
        *[{**BASE, "gpu": gpu} for gpu in GPUS],
        *[{**BASE, **each, "gpu": gpu} for each in FACTORS for gpu in FEW],
        # Would the smallest card of the article have held the article's size?
        {**BASE, "size": "160x120", "gpu": "gtx750ti"},
    ]


def built(case: dict[str, Any]) -> tuple[Any, tuple[Any, ...]]:
    """Returns the function of a case and the shapes of its arguments."""
    if case["model"] == "autoencoder":
        network: Any = AutoencoderConfig()
        count, method = 10, Method()
    else:
        settings = {name: case[name] for name in ("variant", "convolution")}
        network = dataclasses.replace(SIZES[case["size"]], **settings)
        count = 11
        method = Method(targets=case["targets"], truncation_leak=case["leak"])
    task = tasks.of(network)
    frames = jax.ShapeDtypeStruct((count, 1, *task.frame), jnp.uint8)
    params = jax.eval_shape(lambda: loop.initial_params(network, 0))

    def prediction(params: Any, frames: Any) -> Any:
        pixels = truncated.to_pixels(frames, jnp.float32)
        if case["model"] == "prednet":
            return predict(params, network, pixels)[0]
        return task.predict(params, pixels[:, 0])

    if case["program"] == "prediction":
        return prediction, (params, frames)
    optimizer = task.optimizer(100)
    spec = noise.parse(case["noise"])
    step = truncated.make_step(network, optimizer, method, noise=spec)
    state = jax.eval_shape(
        lambda p: truncated.initial_train_state(network, p, optimizer), params
    )
    first = jax.ShapeDtypeStruct((), jnp.bool_)
    return step, (state, frames, first, jax.random.key(0))


def audited(case: dict[str, Any]) -> dict[str, Any]:
    """Returns the audit of a case in the form of the record."""
    function, arguments = built(case)
    gpu, deterministic = case["gpu"], case["deterministic"]
    ask = noise.audit(function, gpu=gpu, deterministic=deterministic, advise=False)
    report = ask(*arguments)
    calls = Counter(
        e.detail.partition(": ")[0] for e in report.entries if e.kind == "library"
    )
    # XLA does not count operations of library calls, so the program's own are counted.
    flops = jax.jit(function).lower(*arguments).cost_analysis()["flops"]
    bare = {name: case[name] for name in BASE}
    shown = case["gpu"] in FEW and bare in (BASE, BASE | AUTOENCODER)
    return {
        **case,
        # Those of the figure.
        **({"lines": lines(report.entries)} if shown else {}),
        "varies": report.varies,
        "kernels": report.kernels,
        "calls": dict(calls),
        "entries": dict(Counter(f"{e.kind} {e.varies}" for e in report.entries)),
        "memory": report.memory._asdict(),
        "flops": flops,
        "bytes": report.compiled.cost["bytes accessed"],
    }


def lines(entries: Sequence[Any]) -> dict[str, str]:
    """Returns the sources of variation of each source line, in file order."""
    worst = {entry.source: entry.varies for entry in reversed(entries)}

    def place(source: str) -> tuple[str, int]:
        file, _, rest = source.partition(":")
        return file, int(rest.split()[0]) if rest else 0

    return {source: worst[source] for source in sorted(worst, key=place)}


def main() -> None:
    """Audits the programs that the record lacks."""
    file = Path(FLAGS.record)
    compilation.found_wheels()
    rows = records.read_json(file)["rows"] if file.exists() else []
    known = [{k: row.get(k) for k in (*BASE, "gpu")} for row in rows]
    fields = ("memory", "bandwidth", "operations")
    cards = {
        name: {field: getattr(card, field) for field in fields}
        for name, card in targets.CARDS.items()
    }
    head = {"jax": jax.__version__, "base": BASE, "cards": cards}
    file.parent.mkdir(parents=True, exist_ok=True)
    for case in (case for case in cases() if case not in known):
        row = audited(case)
        rows.append(row)
        records.write_json(file, {**head, "rows": rows})
        print(*case.values(), row["varies"], row["kernels"], flush=True)


if __name__ == "__main__":
    _cli.run(main)
