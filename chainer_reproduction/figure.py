"""The figure of docs/chainer.md: which changes lead to which weights, as an SVG.

There is one row per change of the published loop or release of Chainer, and one dot per
seed. The dot is left if training ends in the weights of the run with copied targets,
and right if it does not. The bytes of the file are the same on every machine.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from chainer_reproduction.plans import ends

WIDTH, ROW, TOP, LABEL = 760, 24, 62, 400
SAME, OTHER = "#1b6ca8", "#c0392b"
# The run that an arm is compared with, if it is not "target copied".
COMPARED = {
    "static": "static, target copied",
    "window 1": "window 1, target copied",
}
WORDS = {
    "published": "as published, on a CPU",
    "input copied": "input copied",
    "remade": "parameters and state re-made",
    "both copied": "input and target copied",
    "difference kept": "loss keeps its difference, as before 3.0.0rc1",
    "remade, target copied": "all that a GPU copies",
    "static": "as published, every frame the same",
    "window 1": "as published, an update after every frame",
}


class Line(NamedTuple):
    """A row of the figure.

    Attributes:
        words: what was run.
        agrees: for each seed, whether the weights agree.
    """

    words: str
    agrees: list[bool]


def draw(runs: Sequence[Mapping[str, str]], releases: Sequence[Mapping]) -> bytes:
    """Draws the figure.

    Args:
        runs: rows of results/chainer/interventions_full.csv.
        releases: rows of results/chainer/bisection.csv.

    Returns:
        The SVG.
    """
    lines = [*of_arms(runs), *of_releases(releases)]
    height = TOP + ROW * len(lines) + 14
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" '
        'font-family="sans-serif" font-size="14">',
        f'<rect width="{WIDTH}" height="{height}" fill="white"/>',
        f'<text x="{_middle(True)}" y="22" text-anchor="middle">the weights of</text>',
        f'<text x="{_middle(True)}" y="40" text-anchor="middle">true targets</text>',
        f'<text x="{_middle(False)}" y="22" text-anchor="middle">other weights</text>',
        '<text x="16" y="40">Training ends in</text>',
    ]
    for i, line in enumerate(lines):
        y = TOP + ROW * i
        if i % 2 == 0:
            parts.append(
                f'<rect x="8" y="{y}" width="{WIDTH - 16}" height="{ROW}" '
                'fill="#f3f3f3"/>'
            )
        parts.append(f'<text x="16" y="{y + 17}">{line.words}</text>')
        parts += _dots(line.agrees, y + ROW // 2)
    return "\n".join([*parts, "</svg>\n"]).encode()


def of_arms(runs: Sequence[Mapping[str, str]]) -> list[Line]:
    """One row per change, in the order of `WORDS`."""
    finals = ends(runs, "arm", "seed")
    lines = []
    for arm, words in WORDS.items():
        other = finals.get(COMPARED.get(arm, "target copied"), {})
        own = finals.get(arm, {})
        common = sorted(own.keys() & other.keys(), key=int)
        if common:
            agrees = [own[seed] == other[seed] for seed in common]
            lines.append(Line(f"Chainer 7.8.1: {words}", agrees))
    return lines


def of_releases(rows: Sequence[Mapping[str, str]]) -> list[Line]:
    """One row per release, with the loop as published."""
    finals = ends(rows, "release")
    return [
        Line(f"Chainer {release}: as published", [len(set(own.values())) == 1])
        for release, own in finals.items()
    ]


def _middle(same: bool) -> int:
    return LABEL + (WIDTH - LABEL) // 4 + (0 if same else (WIDTH - LABEL) // 2)


def _dots(agrees: Sequence[bool], y: int) -> list[str]:
    """The seeds that agree in the left column, the others in the right one."""
    parts = []
    for same, colour in ((True, SAME), (False, OTHER)):
        count = agrees.count(same)
        for i in range(count):
            x = _middle(same) + 16 * i - 8 * (count - 1)
            parts.append(f'<circle cx="{x}" cy="{y}" r="6" fill="{colour}"/>')
    return parts
