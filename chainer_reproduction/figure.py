"""The figure of docs/chainer.md: which changes lead to which weights, as an SVG.

There is one row per change of the published loop or release of Chainer, and one dot per
seed. The dot is left if training ends in the weights of the run with copied targets,
and right if it does not.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from chainer_reproduction.plans import ends
from prednet_jax.report import charts
from prednet_jax.report.charts import ROLES

ALT = (
    "A dot per seed: whether training ends in the weights of true targets or in "
    "others, per change of the published loop and per release of Chainer."
)
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
    columns = ["the weights of true targets", "other weights"]
    dots = [
        {
            "row": line.words,
            "end": columns[0 if same else 1],
            "place": i - (line.agrees.count(same) - 1) / 2,
        }
        for line in lines
        for same in (True, False)
        for i in range(line.agrees.count(same))
    ]
    top = {"orient": "top", "labelAngle": 0, "titleAnchor": "start"}
    x = charts.names("end", sort=columns, title="Training ends in", axis=top)
    y = charts.names("row", axis={"grid": True, "labelColor": charts.INK})
    colours = {"domain": columns, "range": [ROLES["treatment"], ROLES["stale"]]}
    colour = charts.names("end", scale=colours, legend=None)
    place = charts.channel("place", domain=[-6, 6])
    encoding = {"x": x, "xOffset": place, "y": y, "color": colour}
    chart = {
        "width": 440,
        "height": {"step": 24},
        **charts.layer("circle", encoding, data=dots, size=110, opacity=1),
    }
    return charts.svg(chart, ALT)


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
