"""The examples of README.md, of the site's pages and of docstrings run as they stand.

Pages of the noise tools have tests of their own in tests/noise.
"""

import doctest
import importlib
import pkgutil
import re
from pathlib import Path

import pytest

import prednet_jax
from chainer_reproduction import __main__ as chainer_reproduction
from prednet_jax import records
from prednet_jax.report import documents
from prednet_jax.studies import judgement, study_tables
from tests.processes import ROOT

PAGES = ("models", "data", "own_network", "training")
PAGES = ("README.md", *(f"docs/{name}.md" for name in PAGES))
_BLOCK = re.compile(r"^```python\n(.*?)^```", re.DOTALL | re.MULTILINE)


@pytest.mark.parametrize("page", PAGES)
def test_examples_of_a_page_run(page, capsys):
    blocks = _BLOCK.findall((ROOT / page).read_text())
    assert blocks
    for number, block in enumerate(blocks, 1):
        # Each block stands alone: a reader copies one.
        exec(compile(block, f"{page}, block {number}", "exec"), {})


def test_tables_numbers_and_figures_are_those_of_the_records(monkeypatch):
    """As `make tables` makes them, which judges the study anew, too."""
    monkeypatch.syspath_prepend(str(ROOT / "experiments"))
    import tables

    def recorded(part, endpoint):
        folder = tables.STUDY if part == tables.ANSWER.name else tables.STUDY / part
        own = tables.PARTS[part].endpoint
        suffix = "" if endpoint == own else f"_{endpoint}"
        return records.read_json(folder / f"verdict{suffix}.json")

    parts = study_tables.load(tables.STUDY)
    verdicts = {
        part: {e: recorded(part, e) for e in judgement.endpoints(tables.PARTS[part])}
        for part in study_tables.JUDGED
        if part in parts
    }
    made = tables.tables(parts, verdicts) | study_tables.values(
        tables.STUDY, parts, verdicts
    )
    made |= tables.passages((ROOT / "README.md").read_text())
    pages = [p for p in (ROOT / "docs").rglob("*.md") if "_build" not in p.parts]
    for path in [ROOT / "README.md", *pages]:
        assert documents.fill(path.read_text(), made) == path.read_text(), path
    for path, content in tables.figures(parts, verdicts).items():
        assert path.read_bytes() == content, path


def test_examples_of_docstrings_run():
    tried = 0
    for module in pkgutil.walk_packages(prednet_jax.__path__, "prednet_jax."):
        source = importlib.util.find_spec(module.name).origin
        if ">>> " in Path(source).read_text():
            failed, count = doctest.testmod(importlib.import_module(module.name))
            assert not failed, module.name
            tried += count
    assert tried


def test_every_page_is_in_the_table_of_contents():
    docs = ROOT / "docs"
    pages = [p for p in docs.rglob("*") if p.suffix in (".md", ".ipynb")]
    pages = [p for p in pages if "_build" not in p.parts]
    text = "".join((docs / name).read_text() for name in ("index.md", "api.md"))
    trees = re.findall(r"{toctree}.*?```", text, re.DOTALL)
    listed = set(re.findall(r"^[\w/]+$", "".join(trees), re.MULTILINE))
    names = {str(p.relative_to(docs).with_suffix("")) for p in pages}
    assert names - {"index"} == listed


def test_commands_of_the_documents_name_scripts_that_are_there():
    for page in [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")]:
        named = re.findall(
            r"(?<!/)(?:experiments|benchmarks|tests|prednet_jax/noise)/[\w/]+\.py",
            page.read_text(),
        )
        missing = {name for name in named if not (ROOT / name).exists()}
        called = re.findall(r"-m chainer_reproduction\s+(\w+)", page.read_text())
        missing |= set(called) - set(chainer_reproduction.COMMANDS)
        assert not missing, page


def test_pages_read_as_well_on_github_as_on_the_site():
    """An include is text of another page on the site and raw markup on GitHub."""
    for page in (ROOT / "docs").rglob("*.md"):
        assert not re.search(r"\{(literal)?include\}", page.read_text()), page


def test_the_version_stands_in_one_place():
    for name in ("CITATION.cff", "CHANGELOG.md", "README.md"):
        assert not re.search(
            r"^(version|## ).*\d+\.\d+\.\d+", (ROOT / name).read_text(), re.M
        )
