"""Tables of study/pages, and numbers in its sentences, from committed records.

The parts of `JUDGED` have an answer, the parts of `DESCRIBED` have no verdict.
"""

from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import scipy.stats

from prednet_jax import statistics
from prednet_jax.errors import UserError
from prednet_jax.report import numbers
from prednet_jax.report.documents import markdown
from prednet_jax.report.numbers import MISSING, change, significant
from prednet_jax.report.verdict_text import difference, effect
from prednet_jax.statistics.redraws import SEPARATED
from study import judgement, machines, on_gpu, seed_records
from study.judgement import MODEL, MOMENTS, PRIMARY, Records, contrasts
from study.parts import CONTROL, FIXED, NULL, PARTS, RANDOM, STALE
from study.seed_trainings import held_out_copying

JUDGED = tuple(name for name, part in PARTS.items() if part.status)
DESCRIBED = ("B", "C-digits", "C-noise", "H-digits", "D", "E")
#: One seed of part D again, under several orders.
PLATEAU = "D-plateau"
#: The network that has learned.
WINDOWS = "H-windows"
#: Planted effects, and the part whose seeds and fixed orders they share.
PLANTED = {"J-planted": "J", "H-windows-planted": WINDOWS}
OTHERS = (*PLANTED, PLATEAU, "B-null", "D-null", "E-null", "E-stale", "I")
Record = Mapping[str, Any]


def load(folder: Path) -> dict[str, Records]:
    """The records of each part shown, of results/study; UserError: one lacks seeds."""
    parts: dict[str, Records] = {}
    for name in (*JUDGED, *DESCRIBED, *OTHERS):
        parts[name] = found = seed_records.read(PARTS[name], folder / name)
        if len(found) < len(PARTS[name].seeds):
            raise UserError(f"{folder / name}: {len(found)} seeds; expected all")
    return parts


def judged(parts: Mapping[str, Records]) -> dict[str, dict[str, dict[str, Any]]]:
    """Each judged part of `load` by endpoint: what its verdict files hold.

    That of the part's own endpoint, its first, is verdict.json, the others
    verdict_<endpoint>.json.
    """
    made: dict[str, dict[str, dict[str, Any]]] = {}
    for part in (PARTS[name] for name in JUDGED):
        own, *others = judgement.endpoints(part)
        seeds = parts[part.name]
        made[part.name] = {own: judgement.judge(part, seeds)}
        made[part.name] |= {of: judgement.describe(seeds, of) for of in others}
    return made


def blocks(
    folder: Path,
    parts: Mapping[str, Records],
    verdicts: Mapping[str, Mapping[str, Record]],
) -> dict[str, str]:
    """Tables of study/pages, by the name in their mark `<!-- table: NAME -->`.

    `folder` is results/study, `parts` the result of `load`, `verdicts` of `judged`.
    """
    tables: dict[str, str] = {}
    for name in JUDGED:
        tables |= answer_tables(name, folder / name, parts[name], verdicts[name])
    for name in DESCRIBED:
        dead = without_gradient(folder / name, parts[name])
        tables[f"study-{name}"] = against_control(parts[name], dead)
        tables[f"study-{name}-endpoints"] = other_endpoints(parts[name])
        tables[f"study-{name}-separation"] = separation(parts[name])
    tables["study-D-plateau"] = plateau_ends(parts[PLATEAU])
    dead = without_gradient(folder / "B-null", parts["B-null"])
    tables["study-B-null"] = against_control(parts["B-null"], dead)
    tables |= {f"study-{name}-null": orders(name, parts) for name in ("D", "E")}
    tables["study-E-machines"], _ = machines.article(folder / "G", parts)
    return tables | machines.blocks(parts["I"]) | on_gpu.blocks(folder / "G", parts)


def answer_tables(
    name: str, folder: Path, seeds: Records, verdicts: Mapping[str, Record]
) -> dict[str, str]:
    """The tables of a judged part, with its verdicts by endpoint."""
    (own, primary), *others = verdicts.items()
    endpoints = [
        f"`{endpoint}`{_about(endpoint, seeds, of)}\n\n"
        + markdown(_in_units(of), CONTRAST)
        for endpoint, of in others
    ]
    in_units = markdown(_in_units(primary), CONTRAST | _TESTS)
    tables = [verdict(primary), in_units, "\n\n".join(endpoints)]
    tables += [separation(seeds), redraws_along(folder, seeds, own)]
    names = ("verdict", "contrasts", "endpoints", "separation", "redraws")
    return {f"study-{name}-{of}": t for of, t in zip(names, tables, strict=True)}


def answer_values(verdicts: Mapping[str, Mapping[str, Record]]) -> dict[str, str]:
    """Of each judged part its answer in percent, and how far two runs may differ."""
    made = {}
    for name in JUDGED:
        record = verdicts[name][PARTS[name].endpoint]
        made[f"{name}.noise"] = _noise(record["claims"][0])
        made[f"{name}.redraws"] = redraw_limit(record)
    return made


def _noise(effect: Record) -> str:
    ends = (100 * effect[of] for of in ("estimate", "low", "high"))
    return "{:+.2f} % [{:+.2f}, {:+.2f}]".format(*ends)


def redraw_limit(record: Record) -> str:
    """How far two runs of a new seed may differ; "-": it has too few seeds."""
    limit = record["details"][MODEL]["redraw_interval"]["limit"]
    return percent(np.inf if limit is None else limit)


def values(
    folder: Path,
    parts: Mapping[str, Records],
    verdicts: Mapping[str, Mapping[str, Record]],
) -> dict[str, str]:
    """Numbers in sentences, by the name in their mark: the part, and what it is.

    The arguments are those of `blocks`.
    """
    made = answer_values(verdicts) | machines.values(parts["I"])
    _, made["E.apart"] = machines.article(folder / "G", parts)
    made |= planted_values(parts) | windows_values(parts[WINDOWS])
    made |= on_gpu.values(folder / "G", parts)
    # The planned part and its repetition on other seeds, as one.
    effect_of_both = judgement.ask((*parts["H"], *parts["J"])).effect
    made["HJ.noise"] = _noise(effect_of_both.three)
    made["H-digits.noise"] = _noise(judgement.ask(parts["H-digits"]).effect.three)
    made["D-plateau.p"] = plateau_p(parts[PLATEAU])
    for part, arm, name in (
        ("B", "order_10000", "B.order_1e4"),
        ("B", "order_1e+06", "B.order_1e6"),
        ("C-digits", RANDOM, "C-digits.random"),
        ("D", RANDOM, "D.random"),
    ):
        (contrast,) = contrasts(parts[part], PRIMARY, [(arm, CONTROL)])
        made[name] = effect(contrast.as_dict())
    runs = pd.DataFrame(
        {"seed": seed.seed, **vars(run)} for seed in parts["C"] for run in seed.runs
    )
    alone = runs.pivot(index="seed", columns=["arm", "draw"], values=PRIMARY)
    control, stale = alone[CONTROL, 0], alone[STALE, 0]
    moves = 100 * alone[[RANDOM, FIXED, NULL]].sub(control, axis=0) / control.mean()
    parity = runs[runs.arm == CONTROL].parity
    return made | {
        "C.stale": "{:.1f} to {:.1f} times".format(*(stale / control).agg([min, max])),
        "C.furthest": f"{moves.abs().max().max():.0f} %",
        "C.behind": f"{parity.isna().sum()} of the {len(parity)}",
    }


def planted_values(parts: Mapping[str, Records]) -> dict[str, str]:
    """What the rule says of each planted effect; and float32, trained again for it."""
    made: dict[str, str] = {}
    for name, of in PLANTED.items():
        arms = {treatment.arm for treatment in PARTS[name].treatments}
        seeds = judgement.beside(parts[of], parts[name])
        for arm in arms - {CONTROL}:
            answered = judgement.ask(seeds, PARTS[of].endpoint, treatment=arm)
            effect_of_arm = _noise(answered.effect.three)
            made[f"{name}.{arm}"] = f"{effect_of_arm}: *{answered.answer}*"
        same = judgement.same_bits(parts[of], parts[name], CONTROL)
        made[f"{name}.{CONTROL}"] = f"{same} of {len(seeds)}"
    return made


def windows_values(seeds: Records) -> dict[str, str]:
    """How well part H-windows predicts frozen, and what noise does to that."""
    losses = [run.held_out_loss for run in _runs(seeds, CONTROL)]
    ratio = np.mean(np.asarray(losses, float)) / held_out_copying(PARTS[WINDOWS])
    answered = judgement.ask(seeds, "held_out_loss")
    return {
        f"{WINDOWS}.frozen": f"{ratio:.2f}",
        f"{WINDOWS}.held_out": f"{_noise(answered.effect.three)}: *{answered.answer}*",
    }


def plateau_ends(seeds: Records) -> str:
    """When the runs of each arm leave the plateau, and their losses over float32's."""
    shown = pd.DataFrame(vars(run) for seed in seeds for run in seed.runs)
    control = shown.loc[shown.arm == CONTROL, PRIMARY].item()
    shown["end"] = [
        "never" if pd.isna(end) else f"{end:.0f}" for end in shown.plateau_left
    ]
    shown["loss"] = (shown[PRIMARY] / control).map("{:.3f}".format)
    shown = shown.groupby("arm", sort=False)[["end", "loss"]].agg(", ".join)
    shown.columns = ["plateau left at update", "loss over float32's"]
    return markdown(shown.reset_index())


def plateau_p(seeds: Records) -> str:
    """Whether random orders leave earlier: the exact one-sided test of ranks."""
    ends = pd.Series(
        [run.plateau_left or np.inf for run in seeds[0].runs],
        [run.arm for run in seeds[0].runs],
    ).rank()
    groups = ends[ends.index == RANDOM], ends[ends.index != RANDOM]
    # Exact, also with ties: there are fewer ways to draw the groups than resamples.
    method = scipy.stats.PermutationMethod()
    test = scipy.stats.mannwhitneyu(*groups, alternative="less", method=method)
    return numbers.probability(test.pvalue)


#: Columns that describe a contrast without a test, and those of its tests.
CONTRAST = {
    "contrast": "{treatment} - {control}",
    "n": "{n}",
    "mean, control": "{control_mean:sig4}",
    "difference [95 %]": difference,
    "of the control": "{percent:+.2f} %",
    "largest": "{max_abs_difference:sig}",
}
_TESTS = {
    "p (Holm)": "{p_holm:prob}",
    "p (equivalence)": "{tost_p:prob}",
    "finding": "{verdict}",
}


def _in_units(record: Record) -> pd.DataFrame:
    """Contrasts of a verdict file but those of a logarithm, also in percent."""
    frame = pd.DataFrame(c for c in record["contrasts"] if c.get("scale") != "log")
    return frame.assign(percent=100 * frame.mean_difference / frame.control_mean)


def _about(endpoint: str, seeds: Records, record: Record) -> str:
    """Random against fixed orders as the rule has it; how many runs reach a moment."""
    if endpoint not in MOMENTS:
        (logs,) = (c for c in record["contrasts"] if c.get("scale") == "log")
        of_rule = (logs[of] for of in ("mean_difference", "ci_low", "ci_high"))
        percent = change(*(100 * float(np.expm1(end)) for end in of_rule))
        return f"; random against fixed orders {percent}"
    ends = [getattr(run, endpoint) for run in _runs(seeds, CONTROL)]
    reached = len(ends) - ends.count(None)
    return f", reached by {reached} of {len(ends)} runs of {CONTROL}"


def _runs(seeds: Records, arm: str) -> list[seed_records.Run]:
    return [run for seed in seeds for run in seed.runs if run.arm == arm]


def verdict(record: Record) -> str:
    """The answer of verdict.json, and what stands beside it, in percent of the loss."""
    of = record["details"][MODEL]
    mixed, ratio, seeds = of["mixed_model"], of["scatter_ratio"], of["seed_spread"]
    apart = record["manipulation"][MODEL]["distance_over_travelled"]

    def shown(of: Record, *names: str) -> str:
        return change(*(100 * of[name] for name in names))

    ends = ("estimate", "low", "high")
    ends_90 = ("estimate", "low_90", "high_90")
    raw = ("raw", "raw_low", "raw_high")
    limit = redraw_limit(record)
    rows = {
        "random against fixed orders": shown(of, *ends),
        "the same, 90 % interval of the equivalence test": shown(of, *ends_90),
        "the same, difference of the mean losses": shown(of, *raw),
        "the same, mixed model": shown(mixed, *ends),
        "p: sign flip; permutation within seeds; equivalence": "; ".join(
            numbers.probability(of[p]) for p in ("p_value", "permutation_p", "tost_p")
        ),
        **{
            f"{claim['claim']}: {claim['answer']}": shown(claim, *ends)
            for claim in record["claims"][1:]
        },
        "effect from seed to seed, standard deviation; at most": (
            f"{100 * seeds['sd']:.2f} %; {100 * seeds['upper']:.2f} %"
        ),
        "scatter of a seed's runs, standard deviation": f"{100 * of['scatter']:.2f} %",
        "scatter of random over that of fixed orders": (
            f"{ratio['ratio']:.2f} [{ratio['low']:.2f}, {ratio['high']:.2f}], "
            f"p {numbers.probability(ratio['p_value'])}"
        ),
        "two runs of a new seed differ by less than, in 95 of 100": limit,
        "distance / travelled": significant(apart, 2),
    }
    for known in of.get("known_answers", ()):
        said = "is" if known["holds"] else f"**is not** ({known['answer']})"
        what = f"{known['arm']}, must be `{known['expected']}`: {said}"
        rows[what] = shown(known, *ends)
    table = markdown(pd.DataFrame(list(rows.items()), columns=["what", "found"]))
    word = f"(verdict.json, of noise that lowers the loss: `{of['verdict']}`)"
    return f"**{of['answer']}**, {of['status']} {word}\n\n{table}"


def pairs(seeds: Records) -> list[tuple[str, str]]:
    """Every arm of a part and its control; random and fixed order if both were run."""
    controls = {run.arm: run.control for run in seeds[0].runs}
    made = [(arm, control) for arm, control in controls.items() if arm != control]
    return made + [(RANDOM, FIXED)] * ({RANDOM, FIXED} <= controls.keys())


def compared(seeds: Records) -> list[dict[str, Any]]:
    """The two arms of each of `pairs`, without correction for the number of arms.

    Each has the fields of a contrast (missing if no seed ended in both); `ratios`, the
    arm's loss over the control's in each seed that ended in both (a seed with a high
    loss decides both means, but only one of these); `over`, the same of the means;
    `distance`; `over_copy`, mean over the arm's runs; and `diverged`, their number.
    """
    losses = judgement.losses(seeds, PRIMARY)
    rows = []
    for arm, control in pairs(seeds):
        runs, moved = _runs(seeds, arm), judgement.manipulation(seeds, arm, control)
        ended = [run.over_copy for run in runs if run.diverged_at is None]
        row: dict[str, Any] = {
            "treatment": arm,
            "control": control,
            "n": 0,
            **dict.fromkeys(("mean_difference", "over", "p_value")),
            "ratios": (),
            "distance": moved and moved.distance_over_travelled,
            "over_copy": float(np.mean(np.asarray(ended, float))) if ended else None,
            "diverged": len(runs) - len(ended),
        }
        for result in contrasts(seeds, PRIMARY, [(arm, control)]):
            row |= result.as_dict()
            row["over"] = result.treatment_mean / result.control_mean
            both = statistics.match(losses, arm, control)
            row["ratios"] = tuple((both.treatment / both.control).tolist())
        rows.append(row)
    return rows


def redraws_along(folder: Path, seeds: Records, endpoint: str = PRIMARY) -> str:
    """How far two runs of a seed may differ in each fifth of the training.

    The runs are those with a fixed or a random order; `folder` has their curves. The
    endpoint is one whose curve is recorded: the last frame's or the window's loss.
    """
    curve = {PRIMARY: PRIMARY, "window_loss": "loss"}[endpoint]
    curves = seed_records.curves(folder)
    curves = curves[curves.seed.isin([seed.seed for seed in seeds])]
    orders = [*statistics.fixed_orders(curves.arm.unique()), RANDOM]
    curves = curves[curves.arm.isin(orders)]
    length = seeds[0].updates // 5
    curves["end"] = -(-curves["update"] // length) * length
    rows = []
    for end, of in curves.groupby("end"):
        runs = of.groupby(["seed", "arm", "draw"])[curve].mean().groupby("seed")
        limit = statistics.redraw_interval([losses.to_numpy() for _, losses in runs])
        rows.append({"end": end, "start": end - length + 1} | limit._asdict())
    cells = {
        "updates": "{start} to {end}",
        "two runs of a new seed, 95 of 100": lambda row: percent(row["limit"]),
        "two runs at hand, 95 of 100": lambda row: percent(row["observed"]),
    }
    return markdown(pd.DataFrame(rows), cells)


def percent(fraction: float) -> str:
    """A change of the loss with one decimal; "-": there is no limit to it."""
    return f"{100 * fraction:.1f} %" if np.isfinite(fraction) else MISSING


def without_gradient(folder: Path, seeds: Records) -> Counter[str]:
    """Number of runs of each arm whose gradient is exactly 0 in the last row.

    Such a network is dead. Noise of the order of sums is 0 there too.
    """
    curves = seed_records.curves(folder)
    curves = curves[curves.seed.isin([seed.seed for seed in seeds])]
    last = curves.groupby(["seed", "arm", "draw"], sort=False).tail(1)
    return Counter(last.arm[last.grad_norm == 0])


def against_control(seeds: Records, dead: Mapping[str, int]) -> str:
    """Every arm of a part against its control; `dead` is of `without_gradient`."""

    def middle(row: Record) -> str:
        of = row["ratios"]
        return (
            f"{np.median(of):.3f} ({min(of):.3f} to {max(of):.3f})" if of else MISSING
        )

    def still(row: Record) -> str:
        return f"{dead.get(row['treatment'], 0)}, {dead.get(row['control'], 0)}"

    cells = {
        "arm": "{treatment} - {control}",
        "n": "{n}",
        "diverged": "{diverged}",
        "runs without gradient at the end: arm, control": still,
        "loss over the control's": "{over:.3f}",
        "median of the seeds (lowest to highest)": middle,
        "difference [95 %]": difference,
        "p, uncorrected": "{p_value:prob}",
        "arm's loss over copying": "{over_copy:sig}",
        "distance / travelled": "{distance:.2g}",
    }
    return markdown(pd.DataFrame(compared(seeds)), cells)


def orders(name: str, parts: Mapping[str, Records]) -> str:
    """A part's orders, and those of its null part, against its float32, by seed."""
    more = {of.seed: of.runs for of in parts[f"{name}-null"]}
    rows: list[dict[str, Any]] = []
    for of in parts[name]:
        control, *others = of.runs
        shown = {run.arm: run for run in others if run.arm != STALE}
        shown |= {f"{run.arm}, {name}-null": run for run in more.get(of.seed, ())}
        losses = np.array(
            [r.last_frame_loss for r in (control, *shown.values())], float
        )
        over = [f"{100 * of:+.1f} %" for of in losses[1:] / losses[0] - 1]
        rows.append({"seed": of.seed} | dict(zip(shown, over, strict=True)))
    return markdown(pd.DataFrame(rows).fillna(MISSING))


def other_endpoints(seeds: Records) -> str:
    """The endpoints that do not decide, in percent of the control's mean."""
    table = pd.DataFrame(index=pd.Index(pairs(seeds)))
    table["arm"] = [" - ".join(pair) for pair in table.index]
    for name in (*judgement.ENDPOINTS[1:], *MOMENTS):
        cells = {
            (contrast.treatment, contrast.control): effect(contrast.as_dict())
            for contrast in contrasts(seeds, name, list(table.index))
        }
        table[name] = [cells.get(pair, MISSING) for pair in table.index]
    return markdown(table)


def separation(seeds: Records) -> str:
    """How far each arm is from its control along the training; medians over seeds."""
    frame = pd.DataFrame(
        {"arm": run.arm, **run.distance_over_travelled}
        for seed in seeds
        for run in seed.runs
        if run.arm != run.control
    )
    updates = sorted(frame.columns.drop("arm"), key=int)
    by_arm = frame.groupby("arm", sort=False)
    table = by_arm[updates].median()
    table["runs"] = by_arm.size()
    table["apart"] = (frame[updates[-1]] >= SEPARATED).groupby(frame.arm).sum()
    cells = {"arm": "{arm}"} | {update: f"{{{update}:sig2}}" for update in updates}
    cells[f"runs at {SEPARATED:g} or more at the end"] = "{apart} of {runs}"
    return markdown(table.reset_index(), cells)
