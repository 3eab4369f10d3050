"""docs/noise/issues.md: each reproduction runs and gives the answer of the page."""

import re
from pathlib import Path

import jax
import pytest

PAGE = Path(__file__).parents[2] / "docs" / "noise" / "issues.md"
SECTIONS = re.split(r"^## ", PAGE.read_text(), flags=re.MULTILINE)
BLOCK = re.compile(r"^```python\n(.*?)^```", re.DOTALL | re.MULTILINE)


@pytest.fixture(scope="module")
def names():
    return {"__name__": "issues"}


@pytest.mark.parametrize("number", range(len(SECTIONS)))
def test_the_answer_is_that_of_the_page(number, names, capsys):
    # Lines are numbered as in one file of all blocks.
    codes = [BLOCK.search(section)[1] for section in SECTIONS]
    above = "\n" * sum(code.count("\n") + 1 for code in codes[:number])
    with jax.numpy_dtype_promotion("standard"):
        exec(compile(above + codes[number], "issues.py", "exec"), names)
    printed = capsys.readouterr().out.strip()
    if number:
        assert re.search(r"https://github.com/\S+/(issues|pull)/\d+", SECTIONS[number])
        (answer,) = re.findall(r"^Answer: (.*)", SECTIONS[number], re.MULTILINE)
        allowed = re.match(r"(`[^`]*`)( or `[^`]*`)*", answer)[0]
        assert printed in re.findall(r"`([^`]*)`", allowed)


def test_a_dozen_issues():
    assert len(SECTIONS) - 1 >= 12
