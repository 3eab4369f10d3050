"""Figures of study/pages, from records: one dot per seed."""

import functools
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from prednet_jax.report import charts
from prednet_jax.report.charts import ROLES, Dots, Panel, Row
from prednet_jax.saddles import symmetric
from prednet_jax.statistics import MARGIN_FRACTION, collect_redraws, pair_by_seed
from study import judgement, machines
from study import tables as study_tables
from study.judgement import PRIMARY
from study.parts import ANSWER, CONTROL, FIXED_ORDERS
from study.tables import Study

BLUE = ROLES["treatment"]
_ARMS = {
    "float32": charts.MUTED,
    "float64": ROLES["gpu"],
    "shared": ROLES["descriptive"],
    "tile": BLUE,
    "run": ROLES["stale"],
}


def figures(study: Study) -> dict[str, Callable[[], Dots]]:
    """Returns how each figure of study/pages is made, by the name of its file."""
    made: dict[str, Callable[[], Dots]] = {
        "contrasts.svg": lambda: contrasts(study.verdicts[ANSWER.name][PRIMARY]),
        "machines.svg": lambda: machines.figure(study.parts["I"]),
        "on_gpu.svg": lambda: gpu(study.gpu),
    }
    for program in symmetric.PROGRAMS:
        draw = functools.partial(part_a, study.folder, program)
        made[f"saddle_{program}.svg"] = draw
    for name in study_tables.DESCRIBED:
        made[f"part_{name}.svg"] = functools.partial(_described, study, name)
    return made


def _described(study: Study, name: str) -> Dots:
    return against_control(name, study.parts[name])


def part_a(folder: Path, program: str) -> Dots:
    """Returns the figure of a program of part A, from its table of runs."""
    rows = symmetric.read(folder / "A" / "runs.csv")
    return saddle(effects(rows), program, rows[0].updates)


def effects(rows: Sequence[symmetric.SaddleRow]) -> list[dict[str, Any]]:
    """Returns every `arm` at every `delta` of every `program`, the symmetric one first.

    The result has per seed `separated_at`, and `over_control`, the final loss divided
    by float32's.
    """
    groups = dict.fromkeys((row.program, row.delta, row.arm) for row in rows)
    found = []
    for program, delta, arm in sorted(groups, key=lambda k: (k[0] == "ordinary", k[1])):
        runs, control = (_of(rows, program, name, delta) for name in (arm, CONTROL))
        pairs = zip(runs, control, strict=False)
        effect = {
            "program": program,
            "delta": delta,
            "arm": arm,
            "separated_at": [run.separated_at for run in runs],
            "over_control": [run.loss / other.loss for run, other in pairs],
        }
        found.append(effect)
    return found


def _of(
    rows: Sequence[symmetric.SaddleRow], program: str, arm: str, delta: float
) -> list[symmetric.SaddleRow]:
    group = [r for r in rows if (r.program, r.arm, r.delta) == (program, arm, delta)]
    return sorted(group, key=lambda row: row.seed)


def saddle(seeds: Sequence[Mapping[str, Any]], program: str, updates: int) -> Dots:
    """Plots part A: the update of separation and the final loss of every seed."""
    shown = [effect for effect in seeds if effect["program"] == program]
    losses = [loss for effect in shown for loss in effect["over_control"]]
    low, high = min(losses), max(losses)
    panels = (
        Panel("update of separation", 0, updates + 1, range(0, updates + 1, 1000)),
        Panel(
            "final loss over float32's at the same delta",
            min(low, 0.2),
            max(high, 1.2),
            [tick for tick in (0.25, 0.5, 1, 1.5, 2, 2.5) if tick <= max(high, 1.2)],
            zone=(1 - MARGIN_FRACTION, 1 + MARGIN_FRACTION),
        ),
    )
    rows = []
    for effect in shown:
        name = f"delta {effect['delta']:g}, {effect['arm']}"
        values = effect["separated_at"], effect["over_control"]
        rows.append(Row(name, _ARMS[effect["arm"]], values))
    alt = f"Part A, {program} program: a dot per seed; the right end means never."
    return Dots(alt, panels, rows)


def contrasts(record: Mapping[str, Any]) -> Dots:
    """Plots part `ANSWER`: the difference of every seed in per cent, and the mean."""
    arms = record["losses"][judgement.MODEL]
    question, *others = record["contrasts"]
    treatment, control = collect_redraws(arms, question["treatment"], FIXED_ORDERS).logs
    low, high = (100 * float(np.expm1(question[end])) for end in ("ci_low", "ci_high"))
    effect = Row(
        f"{question['treatment']} - {question['control'].replace('_', ' ')}",
        BLUE,
        [(100 * np.expm1(treatment - control)).tolist()],
        [(low, high)],
    )
    return _differences(
        f"Part {ANSWER.name}: difference of every seed between two arms",
        [effect, *(_difference(arms, contrast) for contrast in others)],
        "difference, % of the control's mean loss",
        "counts as none",
    )


def gpu(answers: Mapping[str, Any]) -> Dots:
    """Plots part G: the difference of every seed from the CPU's fixed orders."""
    rows = []
    for arm, answered in answers.items():
        treatment, control = answered.effect.runs.logs
        seeds = (100 * np.expm1(treatment - control)).tolist()
        rows.append(Row(f"{arm} - CPU", BLUE, [seeds]))
    return _differences(
        "Part G: difference of every seed between a GPU and a CPU",
        rows,
        "difference, % of the same seed's loss on a CPU",
        "counts as none",
    )


def against_control(name: str, seeds: judgement.Records) -> Dots:
    """Plots another part: how much every seed's loss differs from its own control's.

    In part B one control has most of the mean of all; in per cent of the mean the
    others would seem not to differ.
    """
    rows = []
    for contrast in study_tables.compared(seeds):
        arms = f"{contrast['treatment']} - {contrast['control']}"
        if ratios := contrast["ratios"]:
            rows.append(Row(arms, BLUE, [[100 * (ratio - 1) for ratio in ratios]]))
    return _differences(
        f"Part {name}: difference of every seed between two arms",
        rows,
        "difference, % of the same seed's control",
        "2 % on either side",
    )


def _difference(arms: Mapping[str, Any], contrast: Mapping[str, Any]) -> Row:
    """Returns a row with seeds and interval in per cent of the control's mean."""
    matched = pair_by_seed(arms, contrast["treatment"], contrast["control"])
    scale = 100 / matched.control.mean()
    ends = [contrast[end] for end in ("ci_low", "ci_high")]
    known = None not in ends and np.isfinite(ends).all()
    return Row(
        f"{contrast['treatment']} - {contrast['control']}",
        charts.MUTED,
        [(scale * (matched.treatment - matched.control)).tolist()],
        [(scale * ends[0], scale * ends[1]) if known else None],
    )


def _differences(alt: str, rows: Sequence[Row], title: str, grey: str) -> Dots:
    """Returns one panel, wide enough for all arms except distant ones."""
    margin = 100 * MARGIN_FRACTION
    panel = charts.around_zero(title, [row.values[0] for row in rows], margin)
    said = f"{alt}. Grey zone: {grey}. Triangles: beyond the ends."
    return Dots(said, (panel,), rows)
