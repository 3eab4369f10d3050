"""The examples in docs/noise/ run, and their results are those shown."""

import re
from pathlib import Path

import jax
import pytest
from flax import linen as nn

ROOT = Path(__file__).parents[3]
PAGES = sorted((ROOT / "docs" / "noise").glob("*.md"))
EXAMPLES = [p for p in PAGES if p.stem in ("digits", "tolerance", "explain")]


@pytest.mark.parametrize("page", EXAMPLES, ids=lambda p: p.stem)
def test_the_example_prints_what_the_page_shows(page, capsys):
    text = page.read_text()
    code, shown = re.search(
        r"```python\n(.*?)```\n\nprints.*?```\n(.*?)```", text, re.DOTALL
    ).groups()
    with jax.numpy_dtype_promotion("standard"):  # as a user has it
        exec(compile(code, str(page), "exec"), {"__name__": page.stem})
    printed = capsys.readouterr().out
    # Figures depend on XLA's version and flags; rows, columns and words do not.
    assert words(printed) == words(shown)


def words(text):
    return re.findall(r"[A-Za-z_]{3,}", re.sub(r"[\d.]+e[+-]?\d+", "", text))


def test_each_page_is_linked_and_links_to_files_that_exist():
    main = (ROOT / "docs" / "noise.md").read_text()
    for page in PAGES:
        assert f"noise/{page.name}" in main, page.name
        for link in re.findall(r"\]\((?!https?:)([^)#:]+)", page.read_text()):
            assert (page.parent / link).is_file(), (page.name, link)


def test_five_lines_run_for_an_own_flax_model(capsys):
    (shown,) = re.findall(
        r"```\n(import jax\nfrom prednet_jax import noise\n.*?)```",
        (ROOT / "docs" / "noise" / "digits.md").read_text(),
        re.DOTALL,
    )
    assert len([line for line in shown.splitlines() if line]) <= 5
    model = nn.Dense(3)
    x = jax.numpy.linspace(0, 1, 8).reshape(2, 4)
    own = {"model": model, "x": x, "params": model.init(jax.random.key(1), x)}
    exec(shown, own)
    assert "float32[2, 3]" in capsys.readouterr().out
