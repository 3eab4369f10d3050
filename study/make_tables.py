"""Makes every table, number and figure of the documents anew, from committed records.

    python -m study tables

Nothing is measured again. Writes what has changed, names it, and ends with status 1 if
anything had: then a document and its records disagreed.
"""

import argparse
import json
from pathlib import Path
from typing import Any

from prednet_jax import errors, records
from prednet_jax.report import documents
from prednet_jax.report.figures import seeds
from study import document_tables as make
from study import figures as study_figures
from study import tables as study_tables
from study.chainer import tables as chainer_tables
from study.judgement import PRIMARY
from study.parts import ANSWER, PARTS

ROOT = Path(__file__).resolve().parent.parent

RESULTS = ROOT / "results"
STUDY = RESULTS / "study"
#: Folders in docs/ that the site makes.
GENERATED = {"_build", "study"}
#: How a table is made from records, by the name that documents mark it with. Those of
#: the study and of Chainer are made beside the code that recorded them.
TABLES = {
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
    """A record below results/."""
    return records.read_json(RESULTS / name)


def tables(parts: dict[str, Any], verdicts: dict[str, dict]) -> dict[str, str]:
    """Each table, by name, of what `study_tables.load` and `.judged` returned."""
    shipped = sorted((ROOT / "prednet_jax" / "pretrained").glob("*.json"))
    networks = {path.stem: records.read_json(path) for path in shipped}
    task = (ROOT / "tests" / "experiments" / "tiny_task.py").read_text()
    # Of experiments that have ended, whose scripts commit 09c1a23 has.
    ended = documents.tables((RESULTS / "tables.md").read_text())
    return {
        **ended,
        **chainer_tables.blocks(),
        **study_tables.blocks(STUDY, parts, verdicts),
        **{name: made(*map(read, of)) for name, (made, *of) in TABLES.items()},
        "learned-10-10": make.rollout(
            *(learned()[f"digits-g_{split}_10_10.json"] for split in ("test", "unseen"))
        ),
        "learned": make.learned(networks),
        "learned-seeds": make.learned_seeds(learned_ratios()),
        "example-task": f"```python\n{task}```",
    }


def learned() -> dict[str, Any]:
    """Each record of the learned networks, by the name it had as a file.

    `records.json` holds those that are packed; newer ones are files of their own.
    """
    folder = RESULTS / "learned"
    made = read("learned/records.json")
    for path in sorted(folder.glob("*.json")):
        if path.name != "records.json":
            made[path.name] = records.read_json(path)
    for path in sorted(folder.glob("*.jsonl")):
        made[path.name] = [json.loads(line) for line in path.read_text().splitlines()]
    return made


def learned_validation() -> dict[str, list[dict[str, Any]]]:
    """The scores on `validation` along each training of a learned network, by name."""
    made = {Path(name): rows for name, rows in learned().items()}
    return {name.stem: rows for name, rows in made.items() if name.suffix == ".jsonl"}


def learned_ratios() -> dict[str, dict[str, float]]:
    """The MSE over that of copying, of each network that has a test, by split."""
    made, ratios, validated = learned(), {}, learned_validation()
    for file in sorted(made):
        name, ends, _ = file.partition("_test.json")
        if not ends:
            continue
        # The last line is of the final weights, which the other scores are of.
        ratios[name] = {"validation": validated[name][-1]["ratio"]}
        for split in ("test", "unseen"):
            ratios[name][split] = made[f"{name}_{split}.json"]["observed"]["ratio"]
    return ratios


def pages() -> list[Path]:
    """The documents that may have marks."""
    made = [p for p in (ROOT / "docs").rglob("*.md") if not GENERATED & {*p.parts}]
    return [ROOT / "README.md", *sorted(made), *sorted((ROOT / "study").rglob("*.md"))]


def figures(parts: dict[str, Any], verdicts: dict[str, dict]) -> dict[Path, bytes]:
    """Each figure and each derived record, by its file."""
    made = {ROOT / name: drawn for name, drawn in chainer_tables.figures().items()}
    compared = seeds(read("published/verdict.json"))
    made[ROOT / "docs" / "comparison.svg"] = compared.svg()
    made[ROOT / "docs" / "gpu_lines.svg"] = make.gpu_lines(read("gpu/audit.json"))
    made[ROOT / "docs" / "learned.svg"] = make.learned_curves(learned_validation())
    drawn = study_figures.figures(STUDY, parts, verdicts[ANSWER.name][PRIMARY])
    made |= {
        ROOT / "study" / "pages" / name: dots.svg() for name, dots in drawn.items()
    }
    for part, endpoints in verdicts.items():
        folder = STUDY if part == ANSWER.name else STUDY / part
        for endpoint, verdict in endpoints.items():
            suffix = "" if endpoint == PARTS[part].endpoint else f"_{endpoint}"
            made[folder / f"verdict{suffix}.json"] = records.json_bytes(verdict)
    return made


def command(args: argparse.Namespace) -> bool:
    """Makes every table, number and figure of the documents anew, from records.

    Nothing is measured again. Writes what has changed, names it, and ends with status 1
    if anything had: then a document and its records disagreed.
    """
    parts = study_tables.load(STUDY)
    verdicts = study_tables.judged(parts)
    made = tables(parts, verdicts) | study_tables.values(STUDY, parts, verdicts)
    used, changed = set(), []
    for path in pages():
        old = path.read_text()
        try:
            used |= documents.names(old)
            new = documents.fill(old, made)
        except errors.UserError as error:
            raise errors.UserError(f"{path.relative_to(ROOT)}: {error}") from None
        if new != old:
            records.write_bytes(path, new.encode())
            changed.append(path)
    drawn = figures(parts, verdicts)
    for path, content in drawn.items():
        if not path.exists() or path.read_bytes() != content:
            records.write_bytes(path, content)
            changed.append(path)
    if unused := sorted(set(made) - used):
        raise errors.UserError(f"made, and in no document: {', '.join(unused)}")
    print(f"{len(used)} texts, {len(drawn)} figures; {len(changed)} changed")
    for path in changed:
        print(f"changed: {path.relative_to(ROOT)}")
    return not changed
