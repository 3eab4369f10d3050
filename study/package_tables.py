"""Tables and figures of the package's documents, made from records.

Nothing is measured again. `make_tables` adds the study's tables and figures and writes
all of them.
"""

import functools
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from prednet_jax import records
from prednet_jax.records.verdict import Verdict
from prednet_jax.report.figures import seeds
from study import document_tables as make
from study import marks

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "results"
# Folders in docs/ that the site makes.
_GENERATED = {"_build", "study"}
# How a table is made from records, by the name that documents mark it with.
_TABLES: dict[str, tuple[Any, ...]] = {
    "comparison": (make.comparison, "published/verdict.json"),
    "saddles": (make.saddles, "published/saddle_escape.json"),
    "curvature": (make.curvature, "published/probe_curvature.json"),
    "noise-foreign": (
        make.foreign_cost,
        "published/noise_foreign.json",
        "published/noise_foreign_tuned.json",
    ),
    "noise-accuracy": (make.accuracy, "published/noise_accuracy.json"),
    "gpu-programs": (make.gpu_programs, "gpu/audit.json"),
    "gpu-steps": (make.gpu_steps, "gpu/step.json"),
    "gpu-windows": (make.gpu_windows, "gpu/windows.json"),
    "gpu-sums": (make.gpu_sums, "gpu/sums.json"),
}


def read(name: str) -> Any:
    """Reads a record below results/."""
    return records.read_json(RESULTS / name)


def makers() -> dict[str, Callable[[], str]]:
    """Returns how the text of each mark is made."""
    made: dict[str, Callable[[], str]] = {
        name: functools.partial(of_files, *recipe) for name, recipe in _TABLES.items()
    }
    return made | {
        "learned-10-10": learned_rollout,
        "learned": lambda: make.learned(shipped()),
        "learned-seeds": lambda: make.learned_seeds(learned_ratios()),
        "example-task": example_task,
    }


def of_files(make: Callable[..., str], *names: str) -> str:
    """Returns the table that a function makes of some records."""
    return make(*map(read, names))


def figures() -> dict[Path, Callable[[], bytes]]:
    """Returns how each figure is made, by its file."""
    docs = ROOT / "docs"
    return {
        docs / "comparison.svg": lambda: seeds(
            Verdict.from_json(read("published/verdict.json"))
        ).svg(),
        ROOT / "study" / "pages" / "gpu_lines.svg": lambda: make.gpu_lines(
            read("gpu/audit.json")
        ),
        docs / "learned.svg": lambda: make.learned_curves(learned_validation()),
    }


def shipped() -> dict[str, Any]:
    """Returns the records of the networks that the package has, by name."""
    paths = sorted((ROOT / "prednet_jax" / "pretrained").glob("*.json"))
    return {path.stem: records.read_json(path) for path in paths}


def example_task() -> str:
    """Returns the complete example of a task, as code."""
    task = (ROOT / "tests" / "experiments" / "tiny_task.py").read_text()
    return f"```python\n{task}```"


def learned() -> dict[str, Any]:
    """Returns each record of the learned networks, by the name it had as a file.

    `records.json` holds packed records; newer ones are separate files.
    """
    folder = RESULTS / "learned"
    made = read("learned/records.json")
    for path in sorted(folder.glob("*.json")):
        if path.name != "records.json":
            made[path.name] = records.read_json(path)
    for path in sorted(folder.glob("*.jsonl")):
        made[path.name] = [json.loads(line) for line in path.read_text().splitlines()]
    return made


def learned_rollout() -> str:
    """Returns the table of ten frames predicted from ten."""
    files = (f"digits-g_{split}_10_10.json" for split in ("test", "unseen"))
    made = learned()
    return make.rollout(*(made[file] for file in files))


def learned_validation() -> dict[str, Any]:
    """Returns the scores on `validation` along the training of each learned network."""
    made = {Path(name): rows for name, rows in learned().items()}
    return {name.stem: rows for name, rows in made.items() if name.suffix == ".jsonl"}


def learned_ratios() -> dict[str, dict[str, float]]:
    """Returns the MSE over copying's of each tested network, by split."""
    made, ratios, validated = learned(), {}, learned_validation()
    for file in sorted(made):
        name, ends, _ = file.partition("_test.json")
        if not ends:
            continue
        # The last line scores the final weights, as the other scores do.
        ratios[name] = {"validation": validated[name][-1]["ratio"]}
        for split in ("test", "unseen"):
            ratios[name][split] = made[f"{name}_{split}.json"]["observed"]["ratio"]
    return ratios


def pages() -> list[Path]:
    """Returns the documents that may have marks."""
    docs = ROOT / "docs"
    made = [
        path
        for path in docs.rglob("*.md")
        if not _GENERATED & {*path.relative_to(docs).parts}
    ]
    return [ROOT / "README.md", *sorted(made), *sorted((ROOT / "study").rglob("*.md"))]


def renew(
    texts: Mapping[str, Callable[[], str]],
    files: Mapping[Path, Callable[[], bytes]],
    only: list[str],
) -> bool:
    """Renews pages and files; returns whether nothing had changed.

    Marks are checked before anything is made. `only` are names of texts, and of files
    without their suffix. Without names all are renewed.
    """
    changed = marks.renew(pages(), texts, only=only, root=ROOT)
    for path, maker in files.items():
        if only and path.stem not in only:
            continue
        print(path.relative_to(ROOT), flush=True)
        content = maker()
        if not path.exists() or path.read_bytes() != content:
            records.write_bytes(path, content)
            changed.append(path)
    for path in changed:
        print(f"changed: {path.relative_to(ROOT)}")
    return not changed
