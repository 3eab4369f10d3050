"""docs/noise.md and docs/noise/: examples run and print what the pages show."""

import re

import jax
import pytest
from flax import linen as nn

from prednet_jax import noise
from tests.processes import ROOT

MAIN = (ROOT / "docs" / "noise.md").read_text()
FOLDER = ROOT / "docs" / "noise"
BLOCK = re.compile(r"^```python\n(.*?)^```", re.DOTALL | re.MULTILINE)
# What the example of a page prints, as a pattern.
EXPECTED = {
    "decisions": r"argmax (1\.0|0\.\d*[1-9]) decisions\.py:\d+ in predict",
    "gpu_order": r"(?s)\d\d% of the sums differ, by \d.*order of gtx1080's kernel",
    "invariance": r"one row at a time +differ .* beyond ",
    "devices": r"'w2': '(order|rounding)'\}\)\n.* \{'w1': 'beyond', 'w2': 'beyond'",
    "first_difference": r"beyond noise: none(?s:.*)first: mul .*:9 in block",
    "localize": r"(?s)localize\.py:9 in loss.*\nsub localize\.py:9 in loss \d\d",
    "nan": (
        r"log, step 3 of its loops \[nan\.py:11 in body\]: 1 element of -1\n(?s:.*)"
        r"runs under noise(?s:.*)sqrt \[nan\.py:20 in spread\]"
    ),
    # Why, how many digits, a formula, and a tolerance that the next line keeps to.
    "start": (
        r"beyond\n[67]\.\d\n[01]\.\d digits\n4\.\d% off, cause: rounding\n"
        r"False\nbf16\n"
    ),
    "trainings": (
        r"(?s)half width.*\nnoise: loss stays.*\nbeyond: loss leaves the band at"
        r" update 1,.*\nnoise: p .*\ncannot tell: p"
    ),
    "ports": (
        r"fc1 .* identical .*(?s:.*)another GELU: exact here.*ports\.py:24 in port"
        r"(?s:.*)another epsilon: 0\.001 here, 1e-05 there, at ports\.py:26"
        r"(?s:.*)in Flax: fc2 .*in __call__.*\nbound: fc2"
        r"(?s:.*)transposed(?s:.*)equal: False(?s:.*)cause: bf16"
    ),
}
# Figures depend on XLA's version and flags; rows, columns and words do not.
SHOWN = ("digits", "tolerance", "explain")


@pytest.fixture(autouse=True)
def _promotion():
    with jax.numpy_dtype_promotion("standard"):
        yield


def page(name):
    return (FOLDER / f"{name}.md").read_text()


def words(text):
    return re.findall(r"[A-Za-z_]{3,}", re.sub(r"[\d.]+e[+-]?\d+", "", text))


# They take longest; what their tools answer is tested in questions/.
SLOW = {"devices", "invariance"}


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=pytest.mark.slow if name in SLOW else ())
        for name in sorted({*EXPECTED, *SHOWN})
    ],
)
def test_the_examples_run(name, tmp_path, monkeypatch, capsys):
    program = "\n".join(BLOCK.findall(page(name)))
    # On networks that are not PredNet.
    assert "prednet" not in program.lower().replace("prednet_jax", "")
    # Source lines are those of a file.
    file = tmp_path / f"{name}.py"
    file.write_text(program)
    monkeypatch.chdir(tmp_path)
    exec(compile(program, str(file), "exec"), {"__name__": "example"})
    printed = capsys.readouterr().out
    if name in EXPECTED:
        assert re.search(EXPECTED[name], printed), printed
    else:
        (shown,) = re.findall(r"```\n\nprints.*?```\n(.*?)```", page(name), re.DOTALL)
        assert words(printed) == words(shown)


def test_five_lines_run_for_an_own_flax_model(capsys):
    block = r"```\n(import jax\nfrom prednet_jax import noise\n.*?)```"
    (shown,) = re.findall(block, page("digits"), re.DOTALL)
    assert len([line for line in shown.splitlines() if line]) <= 5
    model = nn.Dense(3)
    x = jax.numpy.linspace(0, 1, 8).reshape(2, 4)
    own = {"model": model, "x": x, "params": model.init(jax.random.key(1), x)}
    exec(shown, own)
    assert "float32[2, 3]" in capsys.readouterr().out


ISSUES = re.split(r"^## ", page("issues"), flags=re.MULTILINE)


def issues():
    """Each issue; slow are those whose tools earlier ones have shown."""
    shown = {"inject", "parse"}
    for number, text in enumerate(ISSUES[1:], 1):
        tools = set(re.findall(r"\bnoise\.([a-z_]+)\(", text)) - shown
        shown |= tools
        yield pytest.param(number, marks=() if tools else pytest.mark.slow)


@pytest.mark.parametrize("number", list(issues()))
def test_the_answer_to_an_issue_is_that_of_the_page(number, capsys):
    """The page begins with what all of its answers import."""
    names = {"__name__": "issues"}
    # Lines are numbered as in one file of all blocks.
    codes = [BLOCK.search(section)[1] for section in ISSUES]
    for i in (0, number):
        above = "\n" * sum(code.count("\n") + 1 for code in codes[:i])
        exec(compile(above + codes[i], "issues.py", "exec"), names)
    printed = capsys.readouterr().out.strip()
    (answer,) = re.findall(r"^Answer: (.*)", ISSUES[number], re.MULTILINE)
    allowed = re.match(r"(`[^`]*`)( or `[^`]*`)*", answer)[0]
    assert printed in re.findall(r"`([^`]*)`", allowed)


def test_every_issue_has_its_address_and_answer():
    for text in ISSUES[1:]:
        assert re.search(r"https://github.com/\S+/(issues|pull)/\d+", text)
        assert len(re.findall(r"^Answer: `", text, re.MULTILINE)) == 1
        compile(BLOCK.search(text)[1], "issues.py", "exec")


def test_the_examples_of_the_main_page_run_and_the_first_is_short(capsys):
    code, rule = BLOCK.findall(MAIN)
    exec(compile(rule, "docs/noise.md", "exec"), {})
    assert len([line for line in code.splitlines() if line.strip()]) <= 20
    assert "prednet" not in code.replace("prednet_jax", "")
    exec(compile(code, "docs/noise.md", "exec"), {})
    printed = capsys.readouterr().out
    # The gradient sums 512 products; most last bits depend on the order.
    assert float(re.search(r"V_c (\S+),", printed)[1]) > 0.2
    assert 0 < float(re.search(r"V_ermv (\S+)", printed)[1]) < 1e-5
    assert "dot_general" in printed
    assert "effect of all" in printed


def test_the_table_of_noises_names_every_kind_and_parses_to_it():
    table = page("noises").split("## The noises")[1].split("### ")[0]
    named = set()
    for line in table.splitlines():
        if not line.startswith("| `"):
            continue
        texts, kind = line.split("|")[1:3]
        named.add(re.search(r"`(\w+)", kind)[1])
        for text in re.findall(r"`([^`]+)`", texts):
            assert type(noise.parse(text)).__name__ == re.search(r"`(\w+)", kind)[1]
    kinds = {
        cls.__name__
        for cls in vars(noise).values()
        if isinstance(cls, type)
        and issubclass(cls, noise.NoiseSpec)
        and cls not in (noise.NoiseSpec, noise.Composition)
    }
    assert named == kinds
