"""How often `noise.compare_layers` is right about ports of PyTorch models.

    python tests/accuracy/ports_torch.py --output=DIR --seeds=16   # where PyTorch is
    python -m tests.accuracy.port_accuracy --recordings=DIR --output=FILE.jsonl

Each recording is compared with its port without a fault, and those of seed 0 with each
fault that the port has. A fault is found if the first layer beyond noise has its
statement among its lines. One JSON line a case; those in the file are not repeated.
"""

import argparse
import ast
import json
import re
import time
from pathlib import Path

import jax
import numpy as np

from prednet_jax import noise
from tests.accuracy import ports

# The constants of `compare_layers` were chosen with these networks alone.
SEEN = ("mlp", "cnn", "attention", "lstm")
UNSEEN = ("gru", "unet", "llama", "vit")
SOURCE = Path(ports.__file__)


def planted() -> dict[str, list[tuple[str, range]]]:
    """Returns for each network its faults, and the lines of their statements."""
    text = SOURCE.read_text()
    statements = [n for n in ast.walk(ast.parse(text)) if isinstance(n, ast.stmt)]
    functions = [n for n in ast.parse(text).body if hasattr(n, "name")]
    found: dict[str, list[tuple[str, range]]] = {n: [] for n in SEEN + UNSEEN}
    for number, line in enumerate(text.splitlines(), 1):
        marked = re.match(r"\s*# fault: (.+)", line)
        if marked:
            after = [n for n in statements if n.lineno > number]
            start = min(n.lineno for n in after)
            end = max(n.end_lineno or 0 for n in after if n.lineno == start)
            (inside,) = [f for f in functions if f.lineno < number < f.end_lineno]
            network = inside.name.strip("_").lower()
            found[network].append((marked[1], range(start, end + 1)))
    return found


def load(path: Path) -> tuple[list, dict, dict]:
    """Returns inputs, weights and layers of a recording."""
    with np.load(path) as held:
        parts: dict[str, dict] = {"input": {}, "weights": {}, "layers": {}}
        for name in held.files:
            kind, _, rest = name.partition("/")
            parts[kind][rest] = held[name]
    inputs = [parts["input"][str(i)] for i in range(len(parts["input"]))]
    return inputs, parts["weights"], parts["layers"]


def ask(network: str, path: Path, fault: str = "") -> noise.Layers:
    """Returns the report of one port against one recording."""
    inputs, weights, layers = load(path)
    port = getattr(ports, network)
    arrays = jax.tree.map(jax.numpy.asarray, (weights, inputs))
    compare = noise.compare_layers(lambda w, x: port(w, *x, fault=fault), layers)
    with jax.numpy_dtype_promotion("standard"):
        return compare(jax.random.key(0), *arrays)


def judged(network: str, path: Path, fault: str, lines: range) -> dict:
    """Returns one case as a record."""
    start = time.perf_counter()
    report = ask(network, path, fault)
    found = [int(m[1]) for x in report.lines if (m := re.match(r"ports\.py:(\d+) ", x))]
    ratios = [x.ratio or 0.0 for x in report.layers if not x.is_beyond]
    return {
        "network": network,
        "recording": path.stem,
        "fault": fault,
        "layers": len(report.layers),
        "beyond": [x.name for x in report.layers if x.is_beyond],
        "rung": report.first.rung if report.first else "",
        "hint": report.first.hint if report.first else "",
        "lines": len(report.lines),
        "right": bool(set(found) & set(lines)) if fault else report.first is None,
        "ratio": max(ratios, default=0.0),
        "seconds": round(time.perf_counter() - start, 1),
    }


def main() -> None:
    """Tries every case that the file does not have yet, and prints the rates."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--recordings", type=Path, required=True)
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--networks", default=",".join(SEEN + UNSEEN))
    parser.add_argument("--seeds", type=int, default=1000, help="at most, a network")
    parser.add_argument("--minutes", type=float, default=1e6, help="stop after so many")
    options = parser.parse_args()
    done = []
    if options.output.exists():
        done = [json.loads(line) for line in options.output.read_text().splitlines()]
    known = {(x["recording"], x["fault"]) for x in done}
    faults, end = planted(), time.monotonic() + 60 * options.minutes
    cases = []
    for network in options.networks.split(","):
        for seed in range(options.seeds):
            path = options.recordings / f"{network}_{seed}.npz"
            if path.exists():
                cases += [(network, path, "", range(0))]
                own = faults[network] if seed == 0 else []
                cases += [(network, path, *fault) for fault in own]
    for network, path, fault, lines in sorted(cases, key=lambda c: c[2] == ""):
        if (path.stem, fault) not in known and time.monotonic() < end:
            case = judged(network, path, fault, lines)
            print(json.dumps(case), flush=True)
            with options.output.open("a") as file:
                file.write(json.dumps(case) + "\n")
            done.append(case)
    for title, networks in (("seen", SEEN), ("not seen", UNSEEN)):
        own = [x for x in done if x["network"] in networks]
        found = [x["right"] for x in own if x["fault"]]
        quiet = [x["right"] for x in own if not x["fault"]]
        print(
            f"{title}: right lines {sum(found)} of {len(found)}; "
            f"no alarm in {sum(quiet)} of {len(quiet)}"
        )


if __name__ == "__main__":
    main()
