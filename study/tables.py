"""Tables of study/pages, and numbers in its sentences, from committed records.

The parts of `JUDGED` have an answer, the parts of `DESCRIBED` have no verdict.
"""

import functools
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import scipy.stats

from prednet_jax import statistics
from prednet_jax.errors import UserError
from prednet_jax.records.verdict import Contrast
from prednet_jax.report import numbers
from prednet_jax.report.numbers import MISSING, change, significant
from prednet_jax.report.tables import markdown
from prednet_jax.report.verdict_text import difference, effect
from prednet_jax.statistics.redraws import SEPARATED
from study import judgement, machines, on_gpu, scatter, seed_records
from study.judgement import MODEL, MOMENTS, PRIMARY, Records, contrasts
from study.parts import CONTROL, FIXED, FIXED_ORDERS, NULL, PARTS, RANDOM, STALE
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


class Lazy(Mapping[str, Any]):
    """Values by name, each of which is made when it is first requested."""

    def __init__(self, names: Iterable[str], make: Callable[[str], Any]) -> None:
        self._names, self._make = dict.fromkeys(names), functools.cache(make)

    def __getitem__(self, name: str) -> Any:
        if name not in self._names:
            raise KeyError(name)
        return self._make(name)

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)


class Study:
    """The records in results/study, read when they are needed.

    `parts` are the records of each part that is shown; `verdicts` has the content of
    the verdict files of each judged part, by endpoint; the file of the part's own
    endpoint, its first, is verdict.json.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.parts = Lazy((*JUDGED, *DESCRIBED, *OTHERS), self._read)
        self.verdicts = Lazy(JUDGED, self._judged)

    @functools.cached_property
    def gpu(self) -> dict[str, statistics.Answered]:
        """The answers of part G, by arm."""
        return on_gpu.answers(self.folder / "G", self.parts)

    def _read(self, name: str) -> Records:
        found = seed_records.read(PARTS[name], self.folder / name)
        if len(found) < len(PARTS[name].seeds):
            raise UserError(f"{self.folder / name}: {len(found)} seeds; expected all")
        return found

    def _judged(self, name: str) -> Lazy:
        part, seeds = PARTS[name], self.parts[name]

        def verdict(endpoint: str) -> Record:
            if endpoint == part.endpoint:
                return judgement.judge(part, seeds)
            return judgement.describe(seeds, endpoint)

        return Lazy(judgement.endpoints(part), verdict)


Makers = dict[str, Callable[[], str]]


def makers(study: Study) -> Makers:
    """Returns how each table and each number in a sentence is made, by its mark."""
    parts, gpu = study.parts, study.folder / "G"
    made: Makers = {}
    for name in JUDGED:
        made |= _of_judged(study, name)
    for name in DESCRIBED:
        made |= _of_described(study, name)
    for name in PLANTED:
        made |= _of_planted(study, name)
    for name, part, arm in (
        ("B.order_1e4", "B", "order_10000"),
        ("B.order_1e6", "B", "order_1e+06"),
        ("C-digits.random", "C-digits", RANDOM),
        ("D.random", "D", RANDOM),
    ):
        made[name] = functools.partial(_of_control, parts, part, arm)
    for name in ("D", "E"):
        made[f"study-{name}-null"] = functools.partial(orders, name, parts)
    for name in ("H", "J"):
        made[f"G.{name}.same"] = functools.partial(on_gpu.same, gpu, name)
    for path in gpu.glob("J_*.json"):
        arm = path.stem.removeprefix("J_")
        made[f"G.{arm}"] = functools.partial(_of_gpu, study, arm)
    starts = machines.STARTS
    return made | {
        "study-B-null": lambda: described(study, "B-null"),
        "study-G": lambda: on_gpu.table(study.gpu),
        # The planned part and its repetition on other seeds, as one.
        "HJ.noise": lambda: _noise(judgement.answer((*parts["H"], *parts["J"]))),
        "H-digits.noise": lambda: _noise(judgement.answer(parts["H-digits"])),
        "study-D-plateau": lambda: plateau_ends(parts[PLATEAU]),
        "D-plateau.p": lambda: plateau_p(parts[PLATEAU]),
        **_together(
            ["study-E-machines", "E.apart"], lambda: machines.article(gpu, parts)
        ),
        **_together(
            [f"study-I-{start}machines" for start in starts],
            lambda: machines.blocks(parts["I"]),
        ),
        **_together(
            [*(f"I.{start}apart" for start in starts), "I.higher", "I.stale"],
            lambda: machines.values(parts["I"]),
        ),
        **_together(
            [f"{WINDOWS}.frozen", f"{WINDOWS}.held_out"],
            lambda: windows_values(parts[WINDOWS]),
        ),
        **_together(
            ["C.stale", "C.furthest", "C.behind"], lambda: spread_values(parts["C"])
        ),
    }


def _together(names: Iterable[str], make: Callable[[], Mapping[str, str]]) -> Makers:
    """Returns the texts that one function makes, as if each had its own function."""
    once = functools.cache(make)

    def text(name: str) -> str:
        return once()[name]

    return {name: functools.partial(text, name) for name in names}


def _of_judged(study: Study, name: str) -> Makers:
    part, parts, verdicts = PARTS[name], study.parts, study.verdicts

    def own() -> Record:
        return verdicts[name][part.endpoint]

    return {
        f"study-{name}-verdict": lambda: verdict(own()),
        f"study-{name}-contrasts": lambda: markdown(
            _in_units(own()), CONTRAST | _TESTS
        ),
        f"study-{name}-endpoints": lambda: endpoint_tables(parts[name], verdicts[name]),
        f"study-{name}-separation": lambda: separation(parts[name]),
        f"study-{name}-redraws": lambda: redraws_along(
            study.folder / name, parts[name], part.endpoint
        ),
        f"{name}.noise": lambda: _interval(own()["claims"][0]),
        f"{name}.redraws": lambda: redraw_limit(own()),
    }


def _of_described(study: Study, name: str) -> Makers:
    return {
        f"study-{name}": lambda: described(study, name),
        f"study-{name}-endpoints": lambda: other_endpoints(study.parts[name]),
        f"study-{name}-separation": lambda: separation(study.parts[name]),
    }


def _of_planted(study: Study, name: str) -> Makers:
    arms = dict.fromkeys(treatment.name for treatment in PARTS[name].treatments)
    return _together(
        [f"{name}.{arm}" for arm in arms],
        lambda: planted_values(name, study.parts[name], study.parts[PLANTED[name]]),
    )


def _of_gpu(study: Study, arm: str) -> str:
    return on_gpu.value(study.gpu[arm].effect)


def _of_control(parts: Mapping[str, Records], part: str, arm: str) -> str:
    """Returns the effect of an arm against float32, of the control's mean loss."""
    (contrast,) = contrasts(parts[part], PRIMARY, [(arm, CONTROL)])
    return effect(contrast)


def described(study: Study, name: str) -> str:
    """Tabulates every arm of a part against its control."""
    seeds = study.parts[name]
    return against_control(seeds, without_gradient(study.folder / name, seeds))


def endpoint_tables(seeds: Records, verdicts: Mapping[str, Record]) -> str:
    """Returns the contrasts of a judged part by every endpoint except its own."""
    _, *others = verdicts.items()
    tables = (
        f"`{name}`{_about(name, seeds, record)}\n\n"
        f"{markdown(_in_units(record), CONTRAST)}"
        for name, record in others
    )
    return "\n\n".join(tables)


def _noise(answered: statistics.Answered) -> str:
    return _interval(answered.effect.measured.to_json())


def _interval(effect: Record) -> str:
    ends = (100 * effect[name] for name in ("estimate", "low", "high"))
    return "{:+.2f} % [{:+.2f}, {:+.2f}]".format(*ends)


def redraw_limit(record: Record) -> str:
    """Returns how far two runs of a new seed may differ, or "-" with too few seeds."""
    return percent(record["details"][MODEL]["redraw_interval"]["limit"])


def spread_values(seeds: Records) -> dict[str, str]:
    """Returns how far single runs of part C are from their seed's float32."""
    runs = pd.DataFrame(
        {"seed": seed.seed, **vars(run)} for seed in seeds for run in seed.runs
    )
    alone = runs.pivot(index="seed", columns=["arm", "draw"], values=PRIMARY)
    control, stale = alone[CONTROL, 0], alone[STALE, 0]
    moves = 100 * alone[[RANDOM, FIXED, NULL]].sub(control, axis=0) / control.mean()
    parity = runs[runs.arm == CONTROL].parity
    return {
        "C.stale": "{:.1f} to {:.1f} times".format(*(stale / control).agg([min, max])),
        "C.furthest": f"{moves.abs().max().max():.0f} %",
        "C.behind": f"{parity.isna().sum()} of the {len(parity)}",
    }


def planted_values(name: str, seeds: Records, fixed: Records) -> dict[str, str]:
    """Returns the rule's answers on planted effects, and float32 trained again.

    `fixed` are the records of the part with whose fixed orders they are compared.
    """
    both = judgement.merge_arms(fixed, seeds)
    endpoint = PARTS[PLANTED[name]].endpoint
    made = {}
    for arm in {treatment.name for treatment in PARTS[name].treatments} - {CONTROL}:
        answered = judgement.answer(both, endpoint, treatment=arm)
        made[f"{name}.{arm}"] = f"{_noise(answered)}: *{answered.answer}*"
    same = judgement.same_bits(fixed, seeds, CONTROL)
    return made | {f"{name}.{CONTROL}": f"{same} of {len(both)}"}


def windows_values(seeds: Records) -> dict[str, str]:
    """Returns the scores of part H-windows's frozen weights, with and without noise."""
    losses = [run.held_out_loss for run in _runs(seeds, CONTROL)]
    ratio = np.mean(np.asarray(losses, float)) / held_out_copying(PARTS[WINDOWS])
    answered = judgement.answer(seeds, "held_out_loss")
    return {
        f"{WINDOWS}.frozen": f"{ratio:.2f}",
        f"{WINDOWS}.held_out": f"{_noise(answered)}: *{answered.answer}*",
    }


def plateau_ends(seeds: Records) -> str:
    """Tabulates when each arm's runs leave the plateau, and losses over float32's."""
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
    """Tests whether random orders leave the plateau earlier, by ranks, exactly."""
    ends = pd.Series(
        [run.plateau_left or np.inf for run in seeds[0].runs],
        [run.arm for run in seeds[0].runs],
    ).rank()
    groups = ends[ends.index == RANDOM], ends[ends.index != RANDOM]
    # Exact, also with ties: there are fewer ways to draw the groups than resamples.
    method = scipy.stats.PermutationMethod()
    test = scipy.stats.mannwhitneyu(*groups, alternative="less", method=method)
    return numbers.probability(test.pvalue)


def _difference(row: Record) -> str:
    """Returns the difference of a row with the fields of a contrast."""
    return difference(Contrast.from_json(row)) if row["n"] else MISSING


#: Columns that describe a contrast without a test, and those of its tests.
CONTRAST = {
    "contrast": "{treatment} - {control}",
    "n": "{n}",
    "mean, control": "{control_mean:sig4}",
    "difference [95 %]": _difference,
    "difference of means over the control's mean": "{percent:+.2f} %",
    "largest": "{max_abs_difference:sig}",
}
_TESTS = {
    "p (Holm)": "{p_holm:prob}",
    "p (equivalence)": "{tost_p:prob}",
    "finding": "{verdict}",
}


def _in_units(record: Record) -> pd.DataFrame:
    """Returns a verdict file's contrasts, except logarithmic ones, also in percent."""
    frame = pd.DataFrame(c for c in record["contrasts"] if c.get("scale") != "log")
    return frame.assign(percent=100 * frame.mean_difference / frame.control_mean)


def _about(endpoint: str, seeds: Records, record: Record) -> str:
    """Describes random against fixed orders, or how many runs reach a moment."""
    if endpoint not in MOMENTS:
        (logs,) = (c for c in record["contrasts"] if c.get("scale") == "log")
        of_rule = (logs[name] for name in ("mean_difference", "ci_low", "ci_high"))
        percent = change(*(100 * float(np.expm1(end)) for end in of_rule))
        return f"; random against fixed orders {percent}"
    ends = [getattr(run, endpoint) for run in _runs(seeds, CONTROL)]
    reached = len(ends) - ends.count(None)
    return f", reached by {reached} of {len(ends)} runs of {CONTROL}"


def _runs(seeds: Records, arm: str) -> list[seed_records.Run]:
    return [run for seed in seeds for run in seed.runs if run.arm == arm]


def verdict(record: Record) -> str:
    """Returns the answer of verdict.json and its statistics, in percent of the loss."""
    details = record["details"][MODEL]
    mixed, ratio, seeds = (
        details["mixed_model"],
        details["scatter_ratio"],
        details["seed_spread"],
    )
    apart = record["manipulation"][MODEL]["distance_over_travelled"]

    def shown(details: Record, *names: str) -> str:
        return change(*(100 * details[name] for name in names))

    ends = ("estimate", "low", "high")
    ends_90 = ("estimate", "low_90", "high_90")
    raw = ("raw", "raw_low", "raw_high")
    limit = redraw_limit(record)
    rows = {
        "effect of random against fixed orders": shown(details, *ends),
        "the same, with the 90 % interval of the equivalence test": shown(
            details, *ends_90
        ),
        "the same, as a difference of mean losses": shown(details, *raw),
        "the same, by a mixed model": shown(mixed, *ends),
        "p of the sign flip; permutation within seeds; equivalence": "; ".join(
            numbers.probability(details[p])
            for p in ("p_value", "permutation_p", "tost_p")
        ),
        **{
            f"{claim['claim']}: {claim['answer']}": shown(claim, *ends)
            for claim in record["claims"][1:]
        },
        "standard deviation of the effect from seed to seed; its upper bound": (
            f"{100 * seeds['sd']:.2f} %; {100 * seeds['upper']:.2f} %"
        ),
        "standard deviation of the runs of a seed": (
            f"{100 * details['scatter']:.2f} %"
        ),
        "scatter of random orders, divided by the scatter of fixed orders": (
            f"{ratio['ratio']:.2f} [{ratio['low']:.2f}, {ratio['high']:.2f}], "
            f"p {numbers.probability(ratio['p_value'])}"
        ),
        "largest difference of two runs of a new seed, in 95 of 100 pairs": limit,
        "distance of runs, divided by the distance travelled": significant(apart, 2),
    }
    for known in details.get("known_answers", ()):
        said = "found" if known["holds"] else f"**not found** ({known['answer']})"
        what = f"{known['arm']}, whose answer must be `{known['expected']}`: {said}"
        rows[what] = shown(known, *ends)
    table = markdown(pd.DataFrame(list(rows.items()), columns=["what", "found"]))
    claim = "In verdict.json the claim that noise lowers the loss is"
    stated = f"{details['status']}. {claim} `{details['verdict']}`."
    return f"**{details['answer']}**, {stated}\n\n{table}"


def pairs(seeds: Records) -> list[tuple[str, str]]:
    """Returns each arm of a part with its control; and random with fixed order."""
    controls = {run.arm: run.control for run in seeds[0].runs}
    made = [(arm, control) for arm, control in controls.items() if arm != control]
    return made + [(RANDOM, FIXED)] * ({RANDOM, FIXED} <= controls.keys())


def compared(seeds: Records) -> list[dict[str, Any]]:
    """Compares the arms of each of `pairs`, without correction for their number.

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
            row |= result.to_json()
            row["over"] = result.treatment_mean / result.control_mean
            both = statistics.pair_by_seed(losses, arm, control)
            row["ratios"] = tuple((both.treatment / both.control).tolist())
        rows.append(row)
    return rows


def redraws_along(folder: Path, seeds: Records, endpoint: str = PRIMARY) -> str:
    """Returns how far two runs of a seed may differ in each fifth of the training.

    The runs are those with a fixed or a random order; `folder` has their curves. The
    endpoint is one whose curve is recorded: the last frame's or the window's loss.
    """
    curve = {PRIMARY: PRIMARY, "window_loss": "loss"}[endpoint]
    curves = seed_records.curves(folder)
    curves = curves[curves.seed.isin([seed.seed for seed in seeds])]
    curves = curves[curves.arm.isin([*FIXED_ORDERS.arms, RANDOM])]
    length = seeds[0].updates // 5
    curves["end"] = -(-curves["update"] // length) * length
    rows = []
    for end, fifth in curves.groupby("end"):
        runs = fifth.groupby(["seed", "arm", "draw"])[curve].mean().groupby("seed")
        limit = scatter.redraw_interval([losses.to_numpy() for _, losses in runs])
        rows.append({"end": end, "start": end - length + 1} | limit._asdict())
    cells = {
        "updates": "{start} to {end}",
        "two runs of a new seed, 95 of 100": lambda row: percent(row["limit"]),
        "two runs at hand, 95 of 100": lambda row: percent(row["observed"]),
    }
    return markdown(pd.DataFrame(rows), cells)


def percent(fraction: float) -> str:
    """Returns a change of the loss with one decimal; "-" without a limit."""
    return f"{100 * fraction:.1f} %" if np.isfinite(fraction) else MISSING


def without_gradient(folder: Path, seeds: Records) -> Counter[str]:
    """Counts the runs of each arm whose gradient is exactly 0 in the last row.

    Such a network is dead. Noise of the order of sums is 0 there too.
    """
    curves = seed_records.curves(folder)
    curves = curves[curves.seed.isin([seed.seed for seed in seeds])]
    last = curves.groupby(["seed", "arm", "draw"], sort=False).tail(1)
    return Counter(last.arm[last.grad_norm == 0])


def against_control(seeds: Records, dead: Mapping[str, int]) -> str:
    """Compares each arm with its control; `dead` is of `without_gradient`."""

    def middle(row: Record) -> str:
        ratios = row["ratios"]
        return (
            f"{np.median(ratios):.3f} ({min(ratios):.3f} to {max(ratios):.3f})"
            if ratios
            else MISSING
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
        "difference [95 %]": _difference,
        "p, uncorrected": "{p_value:prob}",
        "arm's loss over copying": "{over_copy:sig}",
        "distance / travelled": "{distance:.2g}",
    }
    return markdown(pd.DataFrame(compared(seeds)), cells)


def orders(name: str, parts: Mapping[str, Records]) -> str:
    """Compares a part's orders, and its null part's, with its float32, by seed."""
    more = {record.seed: record.runs for record in parts[f"{name}-null"]}
    rows: list[dict[str, Any]] = []
    for record in parts[name]:
        control, *others = record.runs
        shown = {run.arm: run for run in others if run.arm != STALE}
        shown |= {f"{run.arm}, {name}-null": run for run in more.get(record.seed, ())}
        losses = np.array(
            [r.last_frame_loss for r in (control, *shown.values())], float
        )
        over = [f"{100 * ratio:+.1f} %" for ratio in losses[1:] / losses[0] - 1]
        rows.append({"seed": record.seed} | dict(zip(shown, over, strict=True)))
    return markdown(pd.DataFrame(rows).fillna(MISSING))


def other_endpoints(seeds: Records) -> str:
    """Returns the endpoints that do not decide, in percent of the control's mean."""
    table = pd.DataFrame(index=pd.Index(pairs(seeds)))
    table["arm"] = [" - ".join(pair) for pair in table.index]
    for name in (*judgement.ENDPOINTS[1:], *MOMENTS):
        cells = {
            (contrast.treatment, contrast.control): effect(contrast)
            for contrast in contrasts(seeds, name, list(table.index))
        }
        table[name] = [cells.get(pair, MISSING) for pair in table.index]
    return markdown(table)


def separation(seeds: Records) -> str:
    """Returns how far each arm is from its control; medians over seeds."""
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
