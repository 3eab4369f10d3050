"""Makes the tables and figures of the documents, including the study's.

`package_tables` has the package's tables. Records of a part are read, and a part is
judged, when the first text needs it.
"""

import argparse
import functools
from collections.abc import Callable
from pathlib import Path

from prednet_jax import records
from prednet_jax.report.charts import Dots
from study import figures as study_figures
from study import judgement, marks
from study import package_tables as package
from study import tables as study_tables
from study.chainer import tables as chainer_tables
from study.parts import ANSWER, PARTS

ROOT = package.ROOT
STUDY = package.RESULTS / "study"


def makers(study: study_tables.Study) -> study_tables.Makers:
    """Returns how the text of each mark in a document is made."""
    # Of experiments that have ended, whose scripts commit 09c1a23 has.
    ended = marks.tables((package.RESULTS / "tables.md").read_text())
    fixed = ended | chainer_tables.blocks()
    made = {name: functools.partial(str, text) for name, text in fixed.items()}
    return made | package.makers() | study_tables.makers(study)


def figures(study: study_tables.Study) -> dict[Path, Callable[[], bytes]]:
    """Returns how each figure and each derived record is made, by its file."""
    pages = ROOT / "study" / "pages"
    made = package.figures()
    for file, drawn in chainer_tables.figures().items():
        made[ROOT / file] = functools.partial(bytes, drawn)
    for name, draw in study_figures.figures(study).items():
        made[pages / name] = functools.partial(_svg, draw)
    for part in study_tables.JUDGED:
        folder = STUDY if part == ANSWER.name else STUDY / part
        for endpoint in judgement.endpoints(PARTS[part]):
            suffix = "" if endpoint == PARTS[part].endpoint else f"_{endpoint}"
            path = folder / f"verdict{suffix}.json"
            made[path] = functools.partial(_verdict, study, part, endpoint)
    return made


def _svg(draw: Callable[[], Dots]) -> bytes:
    return draw().svg()


def _verdict(study: study_tables.Study, part: str, endpoint: str) -> bytes:
    return records.json_bytes(study.verdicts[part][endpoint])


def command(args: argparse.Namespace) -> bool:
    """Makes every table, number and figure of the documents anew, from records.

    Nothing is measured again. Writes and names the files that changed, and ends with
    status 1 if there were any: then a document and its records disagreed. With names,
    makes only these.
    """
    study = study_tables.Study(STUDY)
    texts, files = makers(study), figures(study)
    marks.check_names(args.name, [*texts, *(path.stem for path in files)])
    return package.renew(texts, files, args.name)
