"""Puts the weights of a run into the package, for prednet_jax.pretrained.

    python experiments/ship_weights.py --run=runs/walk --name=walk
    python experiments/ship_weights.py --run=runs/walk --name=walk --overwrite
    python experiments/ship_weights.py --run=runs/mine --name=mine --folder=runs/shipped

Writes NAME.npz, the arrays in float32, and NAME.json: the network, the run's command,
commit and data, the file's SHA-256, the licence, and scores of the frozen weights: the
run's own on the split validation, if it was validated, and scores on the splits test
and unseen, which were not used to choose anything (protocol and splits: evaluate.py).
"""

import shlex
from pathlib import Path
from typing import Any

import _cli
import _inherited
import jax
import numpy as np
from absl import flags

from prednet_jax import data, files, process, records, tasks, weights
from prednet_jax.errors import UserError, expect
from prednet_jax.training import evaluation

FLAGS = flags.FLAGS
flags.DEFINE_string("run", None, "Directory of a run of train.py.", required=True)
flags.DEFINE_string("name", None, "Name for prednet_jax.pretrained.", required=True)
flags.DEFINE_integer("sequences", 64, "Sequences of each split that are scored.", 1)
flags.DEFINE_integer("skip", 0, "Sequences of each split left out before these.", 0)
flags.DEFINE_string("folder", str(weights.SHIPPED), "Directory to write.")
flags.DEFINE_bool("overwrite", False, "Replace a network of that name.")
# Flags that do not affect the trained weights, and the autoencoder's flags.
_LEFT_OUT = ("resume", "overwrite", "progress", "profile", "hidden")


def main() -> None:
    """Checks the flags, scores the network, writes its files, and prints the scores."""
    process.prepare(cache=True)
    folder, run = Path(FLAGS.folder), Path(FLAGS.run)
    expect(FLAGS.name.isidentifier(), "--name", FLAGS.name, "a name such as walk")
    path = folder / f"{FLAGS.name}.npz"
    if path.exists() and not FLAGS.overwrite:
        raise UserError(
            f"--name={FLAGS.name}: {path} exists; expected another name, or --overwrite"
        )
    task, params = weights.load_task(run)
    if task.name != "prednet":
        raise UserError(f"--run={run}: a run of {task.name}; expected a run of prednet")
    manifest = records.read_json(run / records.MANIFEST)
    params = jax.tree.map(lambda x: np.asarray(x, np.float32), params)
    made_by = " && ".join(commands(run, f"runs/{FLAGS.name}"))
    found = scores(run, manifest, task, params)
    folder.mkdir(parents=True, exist_ok=True)
    records.write_tree(path, params)
    about = {
        "name": FLAGS.name,
        "model": task.name,
        "network": task.network(),
        "parameters": sum(leaf.size for leaf in jax.tree.leaves(params)),
        "sha256": files.digest(path),
        "command": made_by,
        **{name: manifest.get(name) for name in ("git_commit", "versions", "data")},
        "licence": "MIT",
        "scores": found,
    }
    records.write_json(path.with_suffix(".json"), about)
    for split, of in found.items():
        ratio = of["ratio"] if "ratio" in of else of["observed"]["ratio"]
        print(f"{split}: {ratio:.3f} of copying")
    print(f"{path}: {path.stat().st_size} bytes")


def scores(run: Path, manifest: dict, task: Any, params: dict) -> dict[str, Any]:
    """Returns the last row of validation.jsonl, and scores on the unused splits."""
    rows = records.read_validation(run)
    found: dict[str, Any] = {"validation": rows[-1]} if rows else {}
    sizes = tasks.frame_size(task)
    name = manifest["flags"].get("data") or task.data
    for split in ("test", "unseen") if name in data.NAMES else ("test",):
        source = data.open_split(name, split, **sizes)
        found[split] = {"data": source.name, "skip": FLAGS.skip} | evaluation.evaluate(
            params, task, source, count=FLAGS.sequences, skip=FLAGS.skip
        )
    return found


def commands(run: Path, workdir: str) -> list[str]:
    """Returns the command of such a run, with every flag that its manifest records.

    If the run started from other weights, these supply the network. If they are those
    of another run, its command comes first.
    """
    given = records.read_json(run / records.MANIFEST)["flags"] | {"workdir": workdir}
    earlier: list[str] = []
    if given.get("init_weights"):
        given = {k: v for k, v in given.items() if k not in _inherited.NETWORK}
    before = Path(given.get("init_weights") or "")
    if (before / records.MANIFEST).is_file():
        first = f"{workdir}_first"
        earlier = commands(before, first)
        given |= {"init_weights": first}
    words = ["python", "experiments/train.py"]
    for name, value in given.items():
        if value is not None and name not in _LEFT_OUT:
            text = ",".join(map(str, value)) if isinstance(value, list) else value
            words.append(f"--{name}={text}")
    return [*earlier, shlex.join(words)]


if __name__ == "__main__":
    _cli.run(main)
