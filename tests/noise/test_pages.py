"""Pages of docs/noise: their examples run, on networks that are not PredNet."""

import re
from pathlib import Path

import jax
import pytest

FOLDER = Path(__file__).parents[2] / "docs" / "noise"
# What the example of a page prints, as a pattern.
EXPECTED = {
    "decisions": r"(?s)argmax (1\.0|0\.\d*[1-9]) decisions\.py:\d+ in predict"
    r".*accuracy 0\.\d{4}, numerics move it by ±0\.",
    "gpu_order": r"(?s)\d\d% of the sums differ, by \d.*order of gtx1080's kernel",
    "invariance": r"one row at a time +differ .* beyond .*invariance\.py:12 in __",
    "devices": r"(?s)\n +512 .*(order|rounding)\n.*\n +64 .* beyond\n",
    "first_difference": r"beyond noise: none(?s:.*)first: mul .*:9 in block",
    "localize": r"(?s)localize\.py:9 in loss.*encoder  \(equations: 1\)",
}
PAGES = [FOLDER / f"{name}.md" for name in EXPECTED]


def code(page):
    return "\n".join(
        re.findall(r"^```python\n(.*?)^```", page, re.DOTALL | re.MULTILINE)
    )


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_the_examples_run(page, tmp_path, monkeypatch, capsys):
    program = code(page.read_text())
    assert program
    assert "prednet" not in program.lower().replace("prednet_jax", "")
    # Source lines are those of a file.
    file = tmp_path / f"{page.stem}.py"
    file.write_text(program)
    monkeypatch.chdir(tmp_path)
    with jax.numpy_dtype_promotion("standard"):
        exec(compile(program, str(file), "exec"), {"__name__": "example"})
    printed = capsys.readouterr().out
    assert printed
    assert re.search(EXPECTED[page.stem], printed), printed
