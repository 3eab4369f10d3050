"""Tables, numbers and the figure of docs/chainer*.md and docs/claims.md, from records.

`blocks()` returns Markdown by the name in the documents' marks (`<!-- table: NAME -->`
.. `<!-- end -->`), `numbers()` those in sentences, `figures()` the files by path. They
only read results/chainer/.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd

from chainer_reproduction import environments, judgement, plans
from prednet_jax import records
from prednet_jax.report import charts
from prednet_jax.report.documents import markdown

RESULTS = environments.ROOT / "results" / "chainer"
# The article compares 4 runs with 8; how often such a comparison is resampled.
DRAWS = 20_000
ARTICLE = (4, 8)
# The rows of the figure, and the runs that arms are compared with if it is not
# "target copied".
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
    """The table results/chainer/NAME.csv, as text."""
    return pd.DataFrame(records.read_csv(RESULTS / f"{name}.csv"))


def blocks() -> dict[str, str]:
    """Every block of the documents, by name."""
    other = read("others")
    made = {
        "recording": recording(read("recording")),
        "interventions": interventions(read("interventions_full")),
        "bisection": bisection(read("bisection")),
        "long": long_runs(read("long")),
        "agreement": agreement(read("agreement")),
        "transplant": transplanted(read("transplant")),
        "predictions": predictions(),
        "gaps": gaps(read("stale_runs")),
        "fingerprint": fingerprint(read("fingerprint")),
        "threads": threads(other[other["study"] == "threads"]),
        "others": f"{others(other)}\n\n{chance(other[other['study'] == 'seeds'])}",
    }
    return {f"chainer-{name}": block for name, block in made.items()}


def numbers() -> dict[str, str]:
    """How many of the pairs of runs have a higher loss as published than copied."""
    other = read("others")
    pairs = {
        "seeds": (other[other["study"] == "seeds"], "seed"),
        "videos": (other[other["study"] == "order"], "data_seed"),
        "full": (read("interventions_full"), "seed"),
        "long": (read("long"), "seed"),
    }
    made = {}
    for name, (rows, unit) in pairs.items():
        loss = rows.pivot(index=unit, columns="arm", values="mean_loss").astype(float)
        higher = loss["published"] > loss["target copied"]
        made[f"chainer.higher.{name}"] = f"{higher.sum()} of {len(higher)}"
    return made


def figures() -> dict[str, bytes]:
    """Every figure of the documents, by its path from the project's root."""
    rows = (
        records.read_csv(RESULTS / f"{name}.csv")
        for name in ("interventions_full", "bisection")
    )
    return {"docs/chainer.svg": figure(*rows)}


def figure(runs: plans.Rows, releases: plans.Rows) -> bytes:
    """Which changes of the published loop, or releases, lead to which weights, as SVG.

    A row per change or release, and a dot per seed: on the left if training ends in the
    weights of the run with copied targets, on the right if it does not.
    """
    columns = ["the weights of true targets", "other weights"]
    agreeing = agreements(runs) | {
        f"Chainer {release}: as published": [len(set(own.values())) == 1]
        for release, own in plans.ends(releases, "release").items()
    }
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


def agreements(runs: plans.Rows) -> dict[str, list[bool]]:
    """For each change, whether the weights of each seed agree."""
    finals = plans.ends(runs, "arm", "seed")
    found = {}
    for arm, words in WORDS.items():
        own = finals.get(arm, {})
        other = finals.get(COMPARED.get(arm, plans.COPIED), {})
        common = sorted(own.keys() & other.keys(), key=int)
        if common:
            agrees = [own[seed] == other[seed] for seed in common]
            found[f"Chainer 7.8.1: {words}"] = agrees
    return found


def recording(rows: pd.DataFrame) -> str:
    """Our training in Chainer compared with the recorded one."""
    words = {"copied": "copied", "aliased": "shared (as published, on a CPU)"}
    cells = {
        "target's buffer": lambda row: words[row["targets"]],
        "weight arrays equal bit for bit": "{arrays_equal} of {arrays}",
        "losses equal bit for bit": "{losses_equal} of {losses}",
        "worst distance / update": "{worst}",
    }
    return markdown(rows, cells)


def interventions(runs: pd.DataFrame) -> str:
    """What each change does to the final weights, over all seeds."""
    finals = _pivot(runs, "arm", "seed", "final_sha256")
    rows = finals.reset_index()
    rows["meaning"] = [plans.ARMS[arm].meaning for arm in finals.index]
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


def bisection(runs: pd.DataFrame) -> str:
    """Final weights of both loops by release of Chainer."""
    finals = _pivot(runs, "release", "arm", "final_sha256")
    finals["gap"] = np.where(
        finals[plans.PUBLISHED] != finals[plans.COPIED], "yes", "no"
    )
    cells = {
        "Chainer": "{release}",
        **{arm: f"`{{{arm}:.12}}`" for arm in plans.PAIR},
        "gap": "{gap}",
    }
    return markdown(finals.reset_index(), cells)


def long_runs(runs: pd.DataFrame) -> str:
    """Loss of published and copied targets at 64x48, by seed."""
    loss = _pivot(runs, "seed", "arm", "mean_loss").astype(float)
    loss["ratio"] = loss[plans.PUBLISHED] / loss[plans.COPIED]
    cells = {
        "seed": "{seed}",
        "target copied": "{target copied:.5f}",
        "published": "{published:.5f}",
        "published / copied": "{ratio:.3f}",
    }
    return markdown(loss.reset_index(), cells)


def agreement(rows: pd.DataFrame) -> str:
    """Distances between trainings in JAX and in Chainer, by update."""
    distance = _pivot(rows, "update", "targets", "distance")
    distance["gap"] = _pivot(rows, "update", "targets", "gap")["true"]
    cells = {
        "updates": "{update}",
        "JAX true to Chainer copied": "{true}",
        "JAX stale to Chainer published": "{stale}",
        "Chainer published to Chainer copied": "{gap}",
    }
    return markdown(distance.reset_index(), cells)


def transplanted(runs: pd.DataFrame) -> str:
    """PyTorch with the buffer shared and copied."""
    by = ["network", "losses_per_update"]
    loss = runs.astype({"mean_loss": float}).groupby([*by, "target"], sort=False)
    rows = loss["mean_loss"].mean().unstack("target")
    rows["seeds"] = runs.groupby(by)["seed"].nunique()
    rows["held"] = [held for _, held in plans.check_transplant(runs.to_dict("records"))]
    rows["ratio"] = rows["shared"] / rows["copied"]

    def weights(row: Mapping[str, Any]) -> str:
        if not row["held"]:
            return "not as predicted"
        return "equal, bit for bit" if row["losses_per_update"] == "1" else "differ"

    cells = {
        "network": "{network}",
        "losses per update": "{losses_per_update}",
        "final weights, shared and copied": weights,
        "loss, shared / copied": "{ratio:.3f}",
        "seeds": "{seeds}",
    }
    return markdown(rows.reset_index(), cells)


def predictions() -> str:
    """Each prediction, what was measured, and whether it came true."""
    texts = records.read_json(RESULTS / "predictions.json")["predictions"]
    judged = judgement.judge(
        read("stale_runs"), read("stale_positions"), read("stale_horizons")
    )
    head = ["prediction", "measured", "seeds", "verdict"]
    rows = [(p["text"], *judged[p["id"]]) for p in texts]
    return markdown(pd.DataFrame(rows, columns=head))


def gaps(runs: pd.DataFrame) -> str:
    """The gap in every condition."""
    gap = judgement.gaps(runs)
    rows = runs[judgement.CONDITION].drop_duplicates()
    values = [gap.loc[tuple(condition)] for condition in rows.to_numpy()]
    intervals = np.exp([judgement.interval(seeds) for seeds in values])
    rows[["low", "middle", "high"]] = intervals
    rows["seeds"] = [len(seeds) for seeds in values]
    cells = {
        "window": "{window}",
        "speed": "{speed}",
        "rate": "{rate:g}",
        "loss, stale / true": "{middle:.3f}",
        "95 % interval": "{low:.3f} to {high:.3f}",
        "seeds": "{seeds}",
    }
    return markdown(rows.astype({"rate": float}), cells)


def fingerprint(horizons: pd.DataFrame) -> str:
    """How often models are called stale, by a limit from other seeds."""
    slopes = judgement.slope(judgement.errors_by_model(horizons))
    calls = judgement.called_stale(slopes).groupby(["targets", "window", "rate"])
    rows = calls.agg(models="size", stale="sum").reset_index()
    rows[["low", "high"]] = [judgement.proportion(models) for _, models in calls]
    cells = {
        "trained with": "{targets} targets, window {window}, rate {rate:g}",
        "models": "{models}",
        "called stale": "{stale}",
        "95 % interval of the rate": "{low:.2f} to {high:.2f}",
    }
    # As text: window 10 between 1 and 2, as published.
    return markdown(rows.astype({"rate": float}), cells)


def threads(runs: pd.DataFrame) -> str:
    """Final weights and losses by the number of threads of the BLAS."""
    rows = _pivot(runs, "threads", "arm", "final_sha256")
    loss = _pivot(runs, "threads", "arm", "mean_loss").astype(float)
    rows[["stale loss", "true loss"]] = loss[list(plans.PAIR)]
    cells = {
        "threads": "{threads}",
        **{arm: f"`{{{arm}:.12}}`" for arm in plans.PAIR},
        "loss, published": "{stale loss:.6f}",
        "copied": "{true loss:.6f}",
    }
    machine = ", ".join(sorted(set(runs["processors"])))
    table = markdown(rows.reset_index(), cells)
    return f"{table}\n\nProcessors of the machine: {machine}."


def others(runs: pd.DataFrame) -> str:
    """By other explanation: how much copied runs vary, compared with the gap."""
    loss = runs.astype({"mean_loss": float}).groupby(["study", "arm"], sort=False)
    size = loss["mean_loss"].agg(["size", "mean", "min", "max"]).unstack("arm")
    rows = pd.DataFrame({"runs": size["size", plans.COPIED]})
    rows["varies"] = size["max", plans.COPIED] / size["min", plans.COPIED]
    rows["gap"] = size["mean", plans.PUBLISHED] / size["mean", plans.COPIED]
    cells = {
        "explanation": "{study}",
        "runs": "{runs}",
        "copied targets: largest / smallest loss": "{varies:.6f}",
        "published / copied": "{gap:.6f}",
    }
    return markdown(rows.reset_index(), cells)


def chance(runs: pd.DataFrame) -> str:
    """How often 4 runs against 8 show as large a gap without any bug."""
    loss = runs["mean_loss"].astype(float)
    copied = loss[runs["arm"] == plans.COPIED].to_numpy()
    gap = loss[runs["arm"] == plans.PUBLISHED].mean() / copied.mean()
    few, many = ARTICLE
    # RandomState draws the same numbers in every version of NumPy.
    draw = np.random.RandomState(0)
    ratios = np.empty(DRAWS)
    for i in range(DRAWS):
        chosen = copied[draw.permutation(len(copied))[: few + many]]
        ratios[i] = chosen[:few].mean() / chosen[few:].mean()
    share = np.mean(ratios >= gap)
    return (
        f"Four runs against eight, drawn {DRAWS} times from the {len(copied)} seeds "
        f"with copied targets: in {100 * share:.1f} % the four had a mean loss at "
        f"least {gap:.4f} times that of the eight, which is the ratio of published to "
        "copied over the same seeds."
    )


def _pivot(rows: pd.DataFrame, index: str, columns: str, values: str) -> pd.DataFrame:
    """`DataFrame.pivot` with the rows in the order in which they stand."""
    made = rows.pivot(index=index, columns=columns, values=values)
    return made.loc[rows[index].unique()]
