"""The examples of README.md, of the site's pages and of docstrings run as they stand.

Pages of the noise tools have tests of their own in tests/noise.
"""

import ast
import doctest
import importlib
import json
import pkgutil
import re
import sys
import types
from pathlib import Path

import jax
import pytest

import prednet_jax
from study import __main__ as study
from tests.processes import ROOT

PAGES = (
    "install",
    "quickstart",
    "models",
    "from_keras",
    "data",
    "own_network",
    "training",
)
PAGES = ("README.md", *(f"docs/{name}.md" for name in PAGES))
PAGES = (*PAGES, "prednet_jax/noise/README.md")
#: Notebooks that take minutes; `make soak` runs them.
SLOW = [
    pytest.param(name, marks=pytest.mark.slow)
    for name in ("illusions", "surprise", "walk_limits", "noise/two_devices")
]
_BLOCK = re.compile(r"^```python\n(.*?)^```", re.DOTALL | re.MULTILINE)


@pytest.mark.parametrize("page", PAGES)
def test_examples_of_a_page_run(page, capsys):
    blocks = _BLOCK.findall((ROOT / page).read_text())
    assert blocks
    for number, block in enumerate(blocks, 1):
        # Each block stands alone: a reader copies one.
        exec(compile(block, f"{page}, block {number}", "exec"), {})


#: Pages whose examples other tests run, since these need a run or a compiler first.
ELSEWHERE = {
    "docs/noise.md": "tests/noise/test_pages.py",
    "docs/noise/audit.md": "tests/noise/gpu/test_audit.py",
    "docs/predict_and_evaluate.md": "tests/experiments/test_train.py",
    "study/pages/authors.md": "study/tests/test_authors.py",
}


def test_no_page_with_examples_and_no_notebook_is_skipped():
    tested = {*PAGES, *ELSEWHERE}
    for page, module in ELSEWHERE.items():
        assert Path(page).name in (ROOT / module).read_text(), page
    noise_tests = (ROOT / ELSEWHERE["docs/noise.md"]).read_text()
    names = set(re.findall(r"\"(\w+)\"", noise_tests))
    tested |= {f"docs/noise/{name}.md" for name in names}
    pages = [*written(ROOT / "docs", ".md"), *(ROOT / "study").rglob("*.md")]
    pages += [*ROOT.glob("*.md"), *(ROOT / "prednet_jax").rglob("*.md")]
    with_examples = {
        str(page.relative_to(ROOT)) for page in pages if _BLOCK.search(page.read_text())
    }
    assert with_examples <= tested
    docs = ROOT / "docs"
    notebooks = {
        str(page.relative_to(docs).with_suffix("")) for page in written(docs, ".ipynb")
    }
    assert notebooks == {"encoding", *(param.values[0] for param in SLOW)}


def test_the_readme_is_one_screen():
    text = (ROOT / "README.md").read_text()
    assert len(text.splitlines()) <= 110
    assert "\nmake compare " in text
    assert "\nmake test " in text
    prose = re.sub(r"^```.*?^```", "", text, flags=re.DOTALL | re.MULTILINE)
    prose = re.sub(r"`[^`]*`|\]\([^)]*\)", "", prose)
    assert len(re.findall(r"\d[\d.,]*", prose)) <= 8


def test_the_readme_prints_what_it_says(capsys):
    text = (ROOT / "README.md").read_text()
    example = _BLOCK.findall(text)[1]
    exec(compile(example, "README.md", "exec"), {})
    printed = capsys.readouterr().out
    said = re.search(r"^prints\n\n```\n(.*?)^```", text, re.DOTALL | re.MULTILINE)[1]
    columns = [answer.splitlines()[0].split() for answer in (printed, said)]
    assert columns[0] == columns[1]
    for answer in (printed, said):
        (result,) = re.findall(r"^result .*$", answer, re.MULTILINE)
        assert "bf16" in result.split()


@pytest.mark.parametrize("notebook", ["encoding", *SLOW])
def test_a_notebook_runs(notebook, monkeypatch, tmp_path):
    """Its cells one after the other; `make docs` runs all of them in Jupyter."""
    monkeypatch.syspath_prepend(tmp_path)
    display = types.ModuleType("IPython.display")
    for name in ("Image", "SVG", "Markdown"):
        setattr(display, name, lambda content: content)
    monkeypatch.setitem(sys.modules, "IPython", types.ModuleType("IPython"))
    monkeypatch.setitem(sys.modules, "IPython.display", display)
    cells = json.loads((ROOT / "docs" / f"{notebook}.ipynb").read_text())["cells"]
    names = {}
    for number, cell in enumerate(cells):
        if cell["cell_type"] == "code":
            source = "".join(cell["source"])
            magic, name, body = re.match(
                r"(%%writefile (\S+)\n)?(.*)", source, re.S
            ).groups()
            if magic:
                (tmp_path / name).write_text(body)
                continue
            code = compile(source, f"{notebook}, cell {number}", "exec")
            # Flax's own pooling mixes types.
            with jax.numpy_dtype_promotion("standard"):
                exec(code, names)


def test_examples_of_docstrings_run():
    tried = 0
    for module in pkgutil.walk_packages(prednet_jax.__path__, "prednet_jax."):
        source = importlib.util.find_spec(module.name).origin
        if ">>> " in Path(source).read_text():
            failed, count = doctest.testmod(importlib.import_module(module.name))
            assert not failed, module.name
            tried += count
    assert tried > 20


#: Folders of docs/ that `make docs` makes.
_MADE = {"_build", "study"}


def written(folder, *suffixes):
    """The pages of a folder that stand in the repository."""
    pages = (p for p in folder.rglob("*") if p.suffix in suffixes)
    return sorted(p for p in pages if not _MADE & set(p.relative_to(folder).parts))


def test_every_page_is_in_the_table_of_contents():
    docs, study = ROOT / "docs", ROOT / "study"
    pages = written(docs, ".md", ".ipynb")
    listed = set()
    for folder in ("", "api/"):
        text = (docs / folder / "index.md").read_text()
        trees = "".join(re.findall(r"{toctree}.*?```", text, re.DOTALL))
        listed |= {folder + n for n in re.findall(r"^[\w/]+$", trees, re.MULTILINE)}
    names = {str(p.relative_to(docs).with_suffix("")) for p in pages}
    # The site shows the study's pages in docs/study (docs/conf.py).
    of_study = [study / "README.md", *(study / "pages").glob("*.md")]
    names |= {str(p.relative_to(ROOT).with_suffix("")) for p in of_study}
    assert names - {"index"} == listed


def test_commands_of_the_documents_name_scripts_that_are_there():
    pages = [ROOT / "README.md", *written(ROOT / "docs", ".md")]
    for page in [*pages, *(ROOT / "study").rglob("*.md")]:
        text = page.read_text()
        named = re.findall(
            r"(?<!/)(?:experiments|benchmarks|tests|study|prednet_jax/noise)/[\w/]+"
            r"\.py(?![^`\n]*`? at commit)",
            text,
        )
        missing = {name for name in named if not (ROOT / name).exists()}
        called = re.findall(r"-m study\s+(\w+)", text)
        missing |= set(called) - set(study.COMMANDS)
        assert not missing, page


def _flags(*files):
    """The texts and annotated fields of files, by which they may define flags."""
    found = set()
    for node in (n for file in files for n in ast.walk(ast.parse(file.read_text()))):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            found.add(node.value.removeprefix("--").split("=")[0])
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            found.add(node.target.id)
    return found


def test_flags_of_the_documents_commands_are_there():
    package = _flags(*ROOT.glob("experiments/_*.py"), *ROOT.glob("prednet_jax/**/*.py"))
    pages = [*written(ROOT / "docs", ".md"), *(ROOT / "study").rglob("*.md")]
    pages += [ROOT / n for n in ("README.md", "CONTRIBUTING.md", "BUILD_NOTES.md")]
    of_scripts, tried, missing = {}, 0, []
    for page in pages:
        # A table says by which command its record was made then.
        text = re.sub(r"<!-- table.*?<!-- end", "", page.read_text(), flags=re.DOTALL)
        commands = re.findall(
            r"python (?:-m )?([\w./]+)([^`\n#]*--[^`\n#]*)", text.replace("\\\n", " ")
        )
        for name, flags in commands:
            path = ROOT / name.removesuffix(".py").replace(".", "/")
            file = path.with_suffix(".py")
            file = file if file.exists() else path / "__main__.py"
            if not file.exists():
                continue
            if file not in of_scripts:
                shared = set() if "accuracy" in file.parts else package
                of_scripts[file] = _flags(file) | shared
            for flag in re.findall(r"--(\w+)", flags):
                tried += 1
                if not {flag, flag.removeprefix("no")} & of_scripts[file]:
                    missing.append(f"{page.name}: {name} --{flag}")
    assert tried > 200
    assert not missing


def test_pages_read_as_well_on_github_as_on_the_site():
    """An include is text of another page on the site and raw markup on GitHub."""
    for page in [*written(ROOT / "docs", ".md"), *(ROOT / "study").rglob("*.md")]:
        assert not re.search(r"\{(literal)?include\}", page.read_text()), page


def headings(page):
    """Returns the names by which GitHub and the site link the headings of a page."""
    text = re.sub(r"^(```|~~~).*?^\1", "", page.read_text(), flags=re.S | re.M)
    titles = re.findall(r"^#+ (.+)$", text, re.M)
    titles = [re.sub(r"\[(.*?)\]\(.*?\)", r"\1", title) for title in titles]
    return {re.sub(r"[^\w -]", "", t.lower()).replace(" ", "-") for t in titles}


def test_links_lead_to_files_and_headings_that_are_there():
    pages = [*written(ROOT / "docs", ".md"), *(ROOT / "study").rglob("*.md")]
    pages += [ROOT / n for n in ("README.md", "CONTRIBUTING.md", "BUILD_NOTES.md")]
    wrong = []
    for page in pages:
        links = re.findall(r"\]\(([\w./-]*)(?:#([^)\s]+))?\)", page.read_text())
        for name, heading in links:
            target = (page.parent / name).resolve() if name else page
            found = target.exists()
            if found and heading and target.suffix == ".md":
                found = heading in headings(target)
            wrong += [] if found else [f"{page.name}: {name}#{heading}"]
    assert not wrong


def test_files_and_names_of_the_maintainers_pages_are_there():
    tree = [p for p in ROOT.rglob("*") if not {".venv", ".git"} & {*p.parts}]
    paths = [f"/{p.relative_to(ROOT)}" for p in tree]
    code = " ".join(p.read_text() for p in tree if p.suffix in (".py", ".cfg"))
    words = {*re.findall(r"\w+", code)}
    missing = []
    for page in ("CONTRIBUTING.md", "BUILD_NOTES.md", "prednet_jax/noise/README.md"):
        text = (ROOT / page).read_text()
        text = re.sub(r"^```.*?^```", "", text, flags=re.DOTALL | re.MULTILINE)
        for name in {*re.findall(r"`([\w./]+)`", text)} - {"mymodule.py", "vX.Y.Z"}:
            ends = (f"/{name.rstrip('/')}", f"/{name}.py")
            is_file = "/" in name or name.endswith((".py", ".json", ".md"))
            there = any(path.endswith(ends) for path in paths)
            if not there and (is_file or not {*name.split(".")} <= words):
                missing.append(name)
    assert not missing


def test_the_version_stands_in_one_place():
    for name in ("CITATION.cff", "CHANGELOG.md", "README.md"):
        assert not re.search(
            r"^(version|## ).*\d+\.\d+\.\d+", (ROOT / name).read_text(), re.M
        )
