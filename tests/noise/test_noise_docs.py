"""What docs/noise.md shows is true: its example runs, its specs parse."""

import re
from pathlib import Path

import pytest

from prednet_jax import noise

PAGE = (Path(__file__).parent.parent.parent / "docs" / "noise.md").read_text()


def test_the_example_runs_and_is_short(capsys):
    (code,) = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    assert len([line for line in code.splitlines() if line.strip()]) <= 20
    assert "prednet" not in code.replace("prednet_jax", "")
    names: dict = {}
    exec(compile(code, "docs/noise.md", "exec"), names)
    printed = capsys.readouterr().out
    differing = float(re.search(r"V_c (\S+),", printed)[1])
    relative = float(re.search(r"V_ermv (\S+)", printed)[1])
    # The gradient sums 512 products; most last bits depend on the order.
    assert differing > 0.2
    assert 0 < relative < 1e-5
    assert "dot_general" in printed
    assert "effect of all" in printed


def rows():
    table = PAGE.split("## The noises")[1].split("### ")[0]
    lines = [line for line in table.splitlines() if line.startswith("| `")]
    return [line.split("|")[1:3] for line in lines]


@pytest.mark.parametrize(("texts", "kind"), rows(), ids=lambda cell: cell.strip())
def test_the_table_of_noises_parses_to_the_classes_it_names(texts, kind):
    name = re.search(r"`(\w+)", kind)[1]
    for text in re.findall(r"`([^`]+)`", texts):
        assert type(noise.parse(text)).__name__ == name


def test_the_table_names_every_kind():
    named = {re.search(r"`(\w+)", kind)[1] for _, kind in rows()}
    kinds = {
        cls.__name__
        for cls in vars(noise).values()
        if isinstance(cls, type)
        and issubclass(cls, noise.NoiseSpec)
        and cls not in (noise.NoiseSpec, noise.Composition)
    }
    assert named == kinds


def test_every_path_the_page_names_exists():
    root = Path(__file__).parent.parent.parent
    for path in re.findall(r"\b(?:prednet_jax|experiments|tests)/[\w/]+\.py", PAGE):
        assert (root / path).is_file(), path
