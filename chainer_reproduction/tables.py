"""The tables and the figure of docs/chainer*.md and docs/claims.md, from the records.

`blocks()` returns Markdown by the name in the documents' marks (`<!-- table: NAME -->`
.. `<!-- end -->`), `figures()` the files by path. Both only read results/chainer/.
"""

import numpy as np
import pandas as pd

from chainer_reproduction import environments, figure, judgement, plans
from prednet_jax import records
from prednet_jax.report import documents

RESULTS = environments.ROOT / "results" / "chainer"
# The article compares 4 runs with 8; how often such a comparison is resampled.
DRAWS = 20_000
ARTICLE = (4, 8)


def read(name: str) -> pd.DataFrame:
    """The table results/chainer/NAME.csv, as text."""
    return pd.DataFrame(records.read_csv(RESULTS / f"{name}.csv"))


def blocks() -> dict[str, str]:
    """Every block of the documents, by name."""
    other = read("others")
    frames = {
        "recording": recording(),
        "interventions": interventions(read("interventions_full")),
        "bisection": bisection(read("bisection")),
        "long": long_runs(read("long")),
        "agreement": agreement(read("agreement")),
        "transplant": transplanted(read("transplant")),
        "predictions": predictions(),
        "gaps": gaps(read("stale_runs")),
        "fingerprint": fingerprint(read("fingerprint")),
        "threads": threads(other),
        "others": others(other),
    }
    made = {f"chainer-{name}": markdown(frame) for name, frame in frames.items()}
    machine = ", ".join(sorted(set(other["processors"][other["study"] == "threads"])))
    made["chainer-threads"] += f"\n\nProcessors of the machine: {machine}."
    made["chainer-others"] += f"\n\n{chance(other[other['study'] == 'seeds'])}"
    return made


def figures() -> dict[str, bytes]:
    """Every figure of the documents, by its path from the project's root."""
    runs, releases = (
        records.read_csv(RESULTS / f"{name}.csv")
        for name in ("interventions_full", "bisection")
    )
    return {"docs/chainer.svg": figure.draw(runs, releases)}


def markdown(frame: pd.DataFrame) -> str:
    """A Markdown table of a data frame."""
    return documents.markdown(frame.astype(str))


def recording() -> pd.DataFrame:
    """Our training in Chainer compared with the recorded one."""
    rows = read("recording")
    words = {"copied": "copied", "aliased": "shared (as published, on a CPU)"}
    return pd.DataFrame(
        {
            "target's buffer": rows["targets"].map(words),
            "weight arrays equal bit for bit": rows["arrays_equal"]
            + " of "
            + rows["arrays"],
            "losses equal bit for bit": rows["losses_equal"] + " of " + rows["losses"],
            "worst distance / update": rows["worst"],
        }
    )


def interventions(runs: pd.DataFrame) -> pd.DataFrame:
    """What each change does to the final weights, over all seeds."""
    # One column per seed; arms in the order of the record.
    finals = runs.pivot(index="arm", columns="seed", values="final_sha256")
    finals = finals.loc[runs["arm"].unique()]
    return pd.DataFrame(
        {
            "arm": finals.index,
            "what is changed": [plans.ARMS[arm].meaning for arm in finals.index],
            "same weights as": [
                finals.index[(finals == ends).all(axis=1)][0]
                for _, ends in finals.iterrows()
            ],
            "seed 0": _short(finals["0"]),
            "seeds": finals.notna().sum(axis=1),
        }
    )


def bisection(runs: pd.DataFrame) -> pd.DataFrame:
    """Final weights of both loops by release of Chainer."""
    finals = runs.pivot(index="release", columns="arm", values="final_sha256")
    finals = finals.loc[runs["release"].unique()]
    differ = finals[plans.PUBLISHED] != finals[plans.COPIED]
    return pd.DataFrame(
        {
            "Chainer": finals.index,
            **{arm: _short(finals[arm]) for arm in plans.PAIR},
            "gap": np.where(differ, "yes", "no"),
        }
    )


def long_runs(runs: pd.DataFrame) -> pd.DataFrame:
    """Loss of published and copied targets at 64x48, by seed."""
    mean = runs.pivot(index="seed", columns="arm", values="mean_loss").astype(float)
    ratio = mean[plans.PUBLISHED] / mean[plans.COPIED]
    return pd.DataFrame(
        {
            "seed": mean.index,
            plans.COPIED: mean[plans.COPIED].map("{:.5f}".format),
            plans.PUBLISHED: mean[plans.PUBLISHED].map("{:.5f}".format),
            "published / copied": ratio.map("{:.3f}".format),
        }
    )


def agreement(rows: pd.DataFrame) -> pd.DataFrame:
    """Distances between trainings in JAX and in Chainer, by update."""
    both = rows.pivot(index="update", columns="targets")
    both = both.loc[rows["update"].unique()]
    return pd.DataFrame(
        {
            "updates": both.index,
            "JAX true to Chainer copied": both["distance", "true"],
            "JAX stale to Chainer published": both["distance", "stale"],
            "Chainer published to Chainer copied": both["gap", "true"],
        }
    )


def transplanted(runs: pd.DataFrame) -> pd.DataFrame:
    """PyTorch with the buffer shared and copied."""
    held = dict(plans.check_transplant(runs.to_dict("records")))
    rows = []
    for (network, losses), case in runs.groupby(
        ["network", "losses_per_update"], sort=False
    ):
        gap = int(losses) > 1
        expected = f"{network}, {losses} losses per update: {'a' if gap else 'no'} gap"
        words = "differ" if gap else "equal, bit for bit"
        loss = case["mean_loss"].astype(float).groupby(case["target"]).mean()
        rows.append(
            {
                "network": network,
                "losses per update": losses,
                "final weights, shared and copied": words
                if held[expected]
                else "not as predicted",
                "loss, shared / copied": f"{loss['shared'] / loss['copied']:.3f}",
                "seeds": case["seed"].nunique(),
            }
        )
    return pd.DataFrame(rows)


def predictions() -> pd.DataFrame:
    """Each prediction, what was measured, and whether it came true."""
    texts = records.read_json(RESULTS / "predictions.json")["predictions"]
    judged = judgement.judge(
        read("stale_runs"), read("stale_positions"), read("stale_horizons")
    )
    head = ["prediction", "measured", "seeds", "verdict"]
    return pd.DataFrame([(p["text"], *judged[p["id"]]) for p in texts], columns=head)


def gaps(runs: pd.DataFrame) -> pd.DataFrame:
    """The gap in every condition."""
    gap = judgement.gaps(runs)
    rows = []
    for condition in (
        runs[judgement.CONDITION].drop_duplicates().itertuples(index=False)
    ):
        values = gap.loc[tuple(condition)]
        low, middle, high = np.exp(judgement.interval(values))
        rows.append(
            {
                "window": condition.window,
                "speed": condition.speed,
                "rate": f"{float(condition.rate):g}",
                "loss, stale / true": f"{middle:.3f}",
                "95 % interval": f"{low:.3f} to {high:.3f}",
                "seeds": len(values),
            }
        )
    return pd.DataFrame(rows)


def fingerprint(horizons: pd.DataFrame) -> pd.DataFrame:
    """How often models are called stale, by a limit from other seeds."""
    slopes = judgement.slope(judgement.errors_by_model(horizons))
    rows = []
    for (targets, window, rate), calls in judgement.called_stale(slopes).groupby(
        ["targets", "window", "rate"]
    ):
        low, high = judgement.proportion(calls)
        rows.append(
            {
                "trained with": f"{targets} targets, window {window}, "
                f"rate {float(rate):g}",
                "models": len(calls),
                "called stale": calls.sum(),
                "95 % interval of the rate": f"{low:.2f} to {high:.2f}",
            }
        )
    return pd.DataFrame(rows).sort_values("trained with")


def threads(runs: pd.DataFrame) -> pd.DataFrame:
    """Final weights and losses by the number of threads of the BLAS."""
    both = runs[runs["study"] == "threads"].pivot(index="threads", columns="arm")
    return pd.DataFrame(
        {
            "threads": both.index,
            **{arm: _short(both["final_sha256", arm]) for arm in plans.PAIR},
            **{
                head: both["mean_loss", arm].astype(float).map("{:.6f}".format)
                for head, arm in zip(
                    ("loss, published", "copied"), plans.PAIR, strict=True
                )
            },
        }
    )


def others(runs: pd.DataFrame) -> pd.DataFrame:
    """By other explanation: how much copied runs vary, compared with the gap."""
    rows = []
    for study, arms in runs.groupby("study", sort=False):
        loss = arms["mean_loss"].astype(float).groupby(arms["arm"])
        mean, low, high = loss.mean(), loss.min(), loss.max()
        varies = high[plans.COPIED] / low[plans.COPIED]
        gap = mean[plans.PUBLISHED] / mean[plans.COPIED]
        rows.append(
            {
                "explanation": study,
                "runs": loss.size()[plans.COPIED],
                "copied targets: largest / smallest loss": f"{varies:.6f}",
                "published / copied": f"{gap:.6f}",
            }
        )
    return pd.DataFrame(rows)


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


def _short(final: pd.Series) -> pd.Series:
    """Hashes of final weights as the documents show them."""
    return "`" + final.str[:12] + "`"
