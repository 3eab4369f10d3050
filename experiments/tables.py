"""Makes every table and figure of the documents anew, from committed records.

    python experiments/tables.py

Nothing is measured again. Writes what has changed, names it, and ends with status 1 if
anything had: then a document and its records disagreed.
"""

import functools
import sys
from pathlib import Path

import _cli

from prednet_jax import errors, records
from prednet_jax.report import document_tables as make
from prednet_jax.report import (
    documents,
    headline,
    noise_tables,
    reliability,
    speed,
)
from prednet_jax.studies import along_tables, study_figures, study_tables

ROOT = Path(__file__).resolve().parent.parent
sys.path.append(str(ROOT))
from chainer_reproduction import tables as chainer_tables  # noqa: E402

PUBLISHED = ROOT / "results" / "published"
STUDY = ROOT / "results" / "study"


def tables() -> dict[str, str]:
    """Each table, by the name that documents mark it with."""
    return {
        # What Chainer showed is made beside the code that recorded it.
        **chainer_tables.blocks(),
        **study_tables.blocks(STUDY, _study_verdicts()),
        **along_tables.blocks(STUDY / "F"),
        "verdict-rates": make.verdict_rates(_statistics("verdict_rates")),
        "interval-coverage": make.interval_coverage(_statistics("coverage")),
        "preset-quick": make.learning_curves(
            records.read_csv(PUBLISHED / "preset_quick.csv")
        ),
        "comparison": make.comparison(_published("verdict.json")),
        "comparison-again": make.again(
            _published("verdict.json"), _published("verdict_amd.json")
        ),
        **{
            f"faults-{of}": reliability.faults(part)
            for of, part in _published("reliability.json").items()
        },
        "hostile-inputs": make.hostile_inputs(_published("hostile_inputs.json")),
        "headline": headline.headline(
            records.read_csv(chainer_tables.RESULTS / "interventions_full.csv"),
            _published("verdict.json"),
            _study_verdicts().get("verdict.json"),
            _gradients(),
            _published("saddle_escape.json"),
            _published("noise_cost.json"),
        ),
        "backends": _backends(),
        "saddles": make.saddles(_published("saddle_escape.json")),
        "curvature": make.curvature(_published("probe_curvature.json")),
        "noise-cost": noise_tables.noise_cost(_published("noise_cost.json")),
        "noise-cost-160x120": noise_tables.noise_cost(
            _published("noise_cost_160x120.json")
        ),
        "noise-foreign": noise_tables.foreign_cost(
            {
                "default": _published("noise_foreign.json"),
                "tuned": _published("noise_foreign_tuned.json"),
            }
        ),
        "noise-tools": noise_tables.tools_cost(
            _published("noise_tools.json"), _published("noise_searches.json")
        ),
        "noise-accuracy": noise_tables.accuracy(_published("noise_accuracy.json")),
        "gradient-noise": noise_tables.gradient_noise(_gradients()),
    }


def figures() -> dict[Path, bytes]:
    """Each figure and each derived record, by its file."""
    made = {ROOT / name: drawn for name, drawn in chainer_tables.figures().items()}
    verdicts = _study_verdicts()
    drawn = study_figures.figures(STUDY, verdicts)
    made |= {ROOT / "docs" / "study" / name: svg for name, svg in drawn.items()}
    return made | {STUDY / k: records.json_bytes(v) for k, v in verdicts.items()}


@functools.cache
def _study_verdicts() -> dict[str, dict]:
    return study_tables.verdict_files(STUDY, _published("verdict.json"))


def _backends() -> str:
    """The table of the suite `backends`, or that it was not measured."""
    found = speed.load(PUBLISHED)
    return "Not measured yet." if found is None else speed.markdown_table(found)


def _gradients() -> dict[str, dict]:
    """What gradient_noise.py recorded, by network."""
    return {
        "PredNet": _published("gradient_noise_prednet.json"),
        "autoencoder": _published("gradient_noise_autoencoder.json"),
    }


def _statistics(name: str) -> list[dict]:
    return records.read_csv(ROOT / "results" / "statistics" / f"{name}.csv")


def _published(name: str) -> dict:
    return records.read_json(PUBLISHED / name)


def main(argv: list[str]) -> None:
    """Fills every document, draws every figure, and says what has changed."""
    del argv
    made, used, changed = tables(), set(), []
    pages = [p for p in (ROOT / "docs").rglob("*.md") if "_build" not in p.parts]
    for path in [ROOT / "README.md", *sorted(pages)]:
        old = path.read_text()
        try:
            used |= set(documents.names(old))
            new = documents.fill(old, made)
        except errors.UserError as error:
            raise errors.UserError(f"{path.relative_to(ROOT)}: {error}") from None
        if new != old:
            records.write_bytes(path, new.encode())
            changed.append(path)
    drawn = figures()
    for path, content in drawn.items():
        if not path.exists() or path.read_bytes() != content:
            records.write_bytes(path, content)
            changed.append(path)
    if unused := sorted(set(made) - used):
        raise errors.UserError(f"tables that no document shows: {', '.join(unused)}")
    print(f"{len(used)} tables, {len(drawn)} figures; {len(changed)} changed")
    for path in changed:
        print(f"changed: {path.relative_to(ROOT)}")
    raise SystemExit(1 if changed else 0)


if __name__ == "__main__":
    _cli.run(main)
