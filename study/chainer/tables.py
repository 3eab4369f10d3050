"""Tables and the figure of study/pages/chainer*.md from results/chainer/."""

import pandas as pd

from prednet_jax import records
from prednet_jax.report import charts
from prednet_jax.report.tables import markdown
from study.chainer import trainings

RESULTS = trainings.ROOT / "results" / "chainer"
# Rows of the figure, and the reference of an arm if it is not "target copied".
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
COMPARED = {arm: f"{arm}, target copied" for arm in ("static", "window 1")}


def read(name: str) -> pd.DataFrame:
    """Returns the table results/chainer/NAME.csv, as text."""
    return pd.DataFrame(records.read_csv(RESULTS / f"{name}.csv"))


def blocks() -> dict[str, str]:
    """Returns every table of the documents, by the name in its mark."""
    return {
        "chainer-recording": recording(read("recording")),
        "chainer-interventions": interventions(read("interventions_full")),
        "chainer-long": long_runs(read("long")),
    }


def recording(rows: pd.DataFrame) -> str:
    """Compares our training in Chainer with the recorded one."""
    words = {"copied": "copied", "aliased": "shared (as published, on a CPU)"}
    cells = {
        "target's buffer": lambda row: words[row["targets"]],
        "weight arrays equal bit for bit": "{arrays_equal} of {arrays}",
        "losses equal bit for bit": "{losses_equal} of {losses}",
        "worst distance / update": "{worst}",
    }
    return markdown(rows, cells)


def interventions(runs: pd.DataFrame) -> str:
    """Tabulates the effect of each change on the final weights, over all seeds."""
    finals = runs.pivot_table("final_sha256", "arm", "seed", "first", sort=False)
    rows = finals.reset_index()
    rows["meaning"] = [trainings.ARMS[arm].meaning for arm in finals.index]
    rows["same"] = [
        finals.index[(finals == end).all(axis=1)][0] for _, end in finals.iterrows()
    ]
    rows["seeds"] = len(finals.columns)
    cells = {
        "arm": "{arm}",
        "what is changed": "{meaning}",
        "same weights as": "{same}",
        "seed 0": "`{0:.12}`",
        "seeds": "{seeds}",
    }
    return markdown(rows, cells)


def long_runs(runs: pd.DataFrame) -> str:
    """Tabulates the loss of published and copied targets at 64x48, by seed."""
    loss = runs.pivot_table("mean_loss", "seed", "arm", "first", sort=False)
    loss = loss.astype(float)
    loss["ratio"] = loss[trainings.PUBLISHED] / loss[trainings.COPIED]
    cells = {
        "seed": "{seed}",
        "target copied": "{target copied:.5f}",
        "published": "{published:.5f}",
        "published / copied": "{ratio:.3f}",
    }
    return markdown(loss.reset_index(), cells)


def figures() -> dict[str, bytes]:
    """Returns every figure of the documents, by its path from the project's root."""
    runs = records.read_csv(RESULTS / "interventions_full.csv")
    releases = records.read_csv(RESULTS / "bisection.csv")
    return {"study/pages/chainer.svg": figure(runs, releases)}


def figure(runs: list[dict[str, str]], releases: list[dict[str, str]]) -> bytes:
    """Plots which changes of the published loop, or releases, lead to which weights.

    A row per change or release, and a dot per seed: on the left if training ends in the
    weights of the run with copied targets, on the right if it does not.
    """
    columns = ["the weights of true targets", "other weights"]
    finals, agreeing = trainings.ends(runs, "arm", "seed"), {}
    for arm, words in WORDS.items():
        other = finals[COMPARED.get(arm, trainings.COPIED)]
        agrees = [end == other[seed] for seed, end in finals[arm].items()]
        agreeing[f"Chainer 7.8.1: {words}"] = agrees
    for release, own in trainings.ends(releases, "release").items():
        agreeing[f"Chainer {release}: as published"] = [len(set(own.values())) == 1]
    dots = [
        {
            "row": words,
            "end": columns[not same],
            "place": i - (agrees.count(same) - 1) / 2,
        }
        for words, agrees in agreeing.items()
        for same in (True, False)
        for i in range(agrees.count(same))
    ]
    top = {"orient": "top", "labelAngle": 0, "titleAnchor": "start"}
    roles = [charts.ROLES["treatment"], charts.ROLES["stale"]]
    encoding = {
        "x": charts.names("end", sort=columns, title="Training ends in", axis=top),
        "xOffset": charts.channel("place", domain=[-6, 6]),
        "y": charts.names("row", axis={"grid": True, "labelColor": charts.INK}),
        "color": charts.names(
            "end", scale={"domain": columns, "range": roles}, legend=None
        ),
    }
    size = {"width": 440, "height": {"step": 24}}
    chart = size | charts.layer("circle", encoding, data=dots, size=110, opacity=1)
    return charts.svg(
        chart,
        "A dot per seed: whether training ends in the weights of true targets or in "
        "others, per change of the published loop and per release of Chainer.",
    )
