"""Numbers in sentences of README.md and docs/study, from the records of the study.

A document marks each with its name: the part, and what it is.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from prednet_jax import records
from prednet_jax.studies import (
    judgement,
    seed_records,
    study_tables,
    symmetric_findings,
)
from prednet_jax.studies.described_tables import in_percent
from prednet_jax.studies.dose import KINDS
from prednet_jax.studies.judgement import CONTROL, FIXED, NULL, PRIMARY, RANDOM, STALE
from prednet_jax.studies.parts import PARTS


def values(folder: Path, endpoints: Mapping[str, Mapping[str, Any]]) -> dict[str, str]:
    """Every number, by name.

    Args:
        folder: the directory results/study.
        endpoints: the result of `study_tables.judged`.
    """
    names = ("B", "C", "C-digits", "D", "E")
    parts = {name: seed_records.read(PARTS[name], folder / name) for name in names}
    runs = {name: frame(part) for name, part in parts.items()}
    made = saddle(folder) | along(folder / "F")
    for part, arm, endpoint, name in (
        ("B", "order_10000", PRIMARY, "B.order_1e4"),
        ("B", "order_1e+06", PRIMARY, "B.order_1e6"),
        ("C-digits", RANDOM, PRIMARY, "C-digits.random"),
        ("D", RANDOM, PRIMARY, "D.random"),
        ("D", RANDOM, "held_out_loss", "D.random.held_out"),
    ):
        (one,) = judgement.contrasts(parts[part], endpoint, [(arm, CONTROL)])
        made[name] = in_percent(one.as_dict())
    paths = seed_records.finished(PARTS["B"], folder / "B")
    return (
        made
        | doses(runs["B"], paths)
        | long_trainings(runs["C"], endpoints)
        | middle_size(runs["D"])
        | article_size(runs["E"])
    )


def frame(found: Sequence[Mapping[str, Any]]) -> pd.DataFrame:
    """The runs of a part, a row each; fields of records in records joined by dots."""
    return pd.json_normalize(
        [{"seed": record["seed"]} | run for record in found for run in record["runs"]]
    )


def by_seed(runs: pd.DataFrame, name: str = PRIMARY) -> pd.DataFrame:
    """An endpoint by seed (rows) and arm (columns), mean over the draws."""
    return runs.pivot_table(name, "seed", "arm")


def long_trainings(
    runs: pd.DataFrame, endpoints: Mapping[str, Mapping[str, Any]]
) -> dict[str, str]:
    """Part C."""
    noise = endpoints[PRIMARY]["claims"][0]
    ends = (100 * noise[name] for name in ("estimate", "low", "high"))
    made = {"C.noise": "{:+.2f} % [{:+.2f}, {:+.2f}]".format(*ends)}
    short = {RANDOM: "random", FIXED: "fixed"}
    for one in endpoints["held_out_loss"]["contrasts"]:
        treatment, control = short.get(one["treatment"]), short.get(one["control"])
        if treatment:
            name = f"{treatment}-{control}" if control else treatment
            made[f"C.{name}.held_out"] = in_percent(one)
    alone = runs.pivot(index="seed", columns=["arm", "draw"], values=PRIMARY)
    control = alone[CONTROL, 0]
    moves = 100 * alone[[RANDOM, FIXED, NULL]].sub(control, axis=0) / control.mean()
    quiet = runs[runs.arm == CONTROL]
    behind = quiet[quiet.parity.isna()]
    return made | {
        "C.stale": times(runs),
        "C.furthest": f"{moves.abs().max().max():.0f} %",
        "C.behind": f"{len(behind)} of the {len(quiet)}",
        "C.behind.over_copying": f"{behind.over_copy.mean():.2f}",
        "C.over_copying": f"{quiet.over_copy.mean():.2f}",
        "C.plateau_left": f"{quiet.plateau_left.mean():.0f}",
    }


def times(runs: pd.DataFrame) -> str:
    """Loss with stale targets over that of the control, from seed to seed."""
    losses = by_seed(runs)
    found = losses[STALE] / losses[CONTROL]
    return f"{found.min():.1f} to {found.max():.1f} times"


def middle_size(runs: pd.DataFrame) -> dict[str, str]:
    """Part D, and its seed that leaves the plateau late."""
    late = runs[runs.seed == 8401].set_index("arm")
    noisy, clean = late[PRIMARY][RANDOM], late[PRIMARY][CONTROL]
    quiet = runs[runs.arm == CONTROL]
    of_mean = (clean - noisy) / quiet[PRIMARY].mean()
    return {
        "D.stale": times(runs),
        "D.over_copying": f"{quiet.over_copy.mean():.2f}",
        "D.late.clean": f"{late.plateau_left[CONTROL]:.0f}",
        "D.late.random": f"{late.plateau_left[RANDOM]:.0f}",
        "D.late.stale": f"{late.plateau_left[STALE]:.0f}",
        "D.late.lower": f"{100 * (1 - noisy / clean):.1f} %",
        "D.late.lower_of_mean": f"{100 * of_mean:.1f} %",
        "D.late.apart": f"{late['distance_over_travelled.1000'][RANDOM]:.2f}",
    }


def article_size(runs: pd.DataFrame) -> dict[str, str]:
    """Part E, whose three seeds are named one by one."""
    losses = by_seed(runs)
    made = {"E.over_copying.seeds": _listed(by_seed(runs, "over_copy")[CONTROL], ".1f")}
    for name, arm, control in (
        ("random", RANDOM, CONTROL),
        ("fixed", FIXED, CONTROL),
        ("random-fixed", RANDOM, FIXED),
    ):
        change = (100 * (losses[arm] / losses[control] - 1)).round(1) + 0.0
        made[f"E.{name}.seeds"] = f"{_listed(change, '+.1f')} %".replace("+0.0", "0.0")
    times = losses[STALE] / losses[CONTROL]
    made["E.stale.seeds"] = f"{_listed(times, '.1f')} times"
    noisy = runs[runs.arm.isin([RANDOM, FIXED])]
    for update in (100, 250):
        apart = noisy[f"distance_over_travelled.{update}"]
        made[f"E.apart.{update}"] = f"{apart.min():.2f} to {apart.max():.2f}"
    between = runs[runs.arm == RANDOM][f"final_distance_from.{FIXED}.0"]
    made["E.apart.orders"] = f"{between.min():.2f} to {between.max():.2f}"
    return made


def _listed(numbers: pd.Series, form: str) -> str:
    *first, last = (format(number, form) for number in numbers)
    return f"{', '.join(first)} and {last}"


def doses(runs: pd.DataFrame, paths: Mapping[int, Path]) -> dict[str, str]:
    """Part B: runs that stay on the plateau, and networks that noise kills.

    Seed 8204 dies without noise and is left out; `paths` are the records of the seeds.
    """
    dead = seed_records.without_gradient(paths[seed] for seed in paths if seed != 8204)
    largest = runs[runs.arm.str.contains("1e+08", regex=False)]
    stay = largest.groupby("control").plateau_left.agg(
        lambda left: f"{left.isna().sum()} of {len(left)}"
    )
    made = {
        "B.stay.adam": stay[CONTROL],
        "B.stay.momentum": stay[f"{CONTROL}_momentum"],
    }
    for power in (6, 8):
        counts = (dead[f"{kind}_1e+0{power}_momentum"] for kind in KINDS)
        made[f"B.dead.1e{power}"] = "{}, {} and {}".format(*counts)
    return made


def saddle(folder: Path) -> dict[str, str]:
    """Part A."""
    rows = pd.DataFrame(symmetric_findings.read(folder / "A" / "runs.csv"))
    start = rows[rows.delta == 0]
    tile = start[(start.program == "symmetric") & (start.arm == "tile")].separated_at
    ordinary = start[start.program == "ordinary"]
    losses = ordinary.pivot(index="seed", columns="arm", values="loss")
    lower = 100 * (1 - losses["run"] / losses[CONTROL])
    return {
        "A.tile.left": f"{tile.min()} and {tile.max()}",
        "A.run.lower": f"{lower.min():.1f} % to {lower.max():.0f} %",
    }


def along(folder: Path) -> dict[str, str]:
    """Part F: curvature at every stop, and the octopus function."""
    stops = study_tables.stops(folder)
    difference = "preconditioned.finite_difference"
    agrees = stops[f"{difference}.verdict"] == "agrees"
    ratio = stops[f"{difference}.curvature"] / stops[f"{difference}.expected"]
    ratio = ratio[~agrees]
    proved = stops["preconditioned.negative_curvature_proved"]
    growth = 100 * (stops["escape.growth_per_update"] - 1)
    needed = 100 * stops["escape.noise_for_one_update"]
    groups = records.read_json(folder / "octopus.json")["groups"]
    none, *orders, gaussian = (f"{one['escape_median']:.0f}" for one in groups)
    return {
        "F.proved": f"{proved.sum()} of {len(stops)}",
        "F.agree": f"{agrees.sum()}",
        "F.reach": f"{stops.reach.min():.1f} to {stops.reach.max():.1f}",
        "F.ratio": f"{ratio.min():.1f} to {ratio.max():.1f}",
        "F.growth": f"{growth.min():.0f} % to {growth.max():.0f} %",
        "F.needed": f"{needed[agrees].min():.1f} %",
        "F.needed_others": f"{needed[~agrees].min():.1f} %",
        "F.cosine": f"{stops['escape.step_cosine'].abs().max():.2f}",
        "F.octopus.orders": " and ".join(orders),
        "F.octopus.none": none,
        "F.octopus.gaussian": gaussian,
    }
