"""What the runs of `saddle_escape` show, in sentences computed from its groups."""

import math

import numpy as np
from scipy import stats

from prednet_jax.studies.saddle_escape import CASE, QUIET, Group, cases, differs


def findings(groups: list[Group]) -> list[str]:
    """The findings, each computed from the groups.

    Args:
        groups: the result of `saddle_escape.compare`.

    Returns:
        One or two sentences per entry; an entry without runs is left out.
    """
    noises = list(dict.fromkeys(g["noise"] for g in groups if g["noise"] != QUIET))
    found = [*_without_noise(groups)]
    found += [_with_noise(groups, name) for name in noises]
    found += _identical_units(groups)
    found += _stopped(groups, noises)
    found += _theory(groups)
    return found


def _without_noise(groups: list[Group]) -> list[str]:
    found = []
    for form, what in (
        ("aligned", "determinism at a saddle that rounding cannot reach"),
        ("rotated", "rounding alone"),
    ):
        parts = []
        for precision in dict.fromkeys(g["precision"] for g in groups):
            mine = _select(groups, form=form, precision=precision, noise=QUIET)
            if mine:
                parts.append(f"{_count(mine, 'escaped')} leave in {precision}")
        if parts:
            found.append(f"{form}, no noise ({what}): {', '.join(parts)}.")
    pairs = [
        (one[QUIET]["escape_median"], other["escape_median"])
        for key, one in cases(groups).items()
        if key[2:] == ("rotated", "float32") and key[1] != "adam"
        for other in [_twin(groups, key, precision="float64")]
        if other and math.isfinite(one[QUIET]["escape_median"])
    ]
    if pairs:
        ratios = [double / single for single, double in pairs]
        found.append(
            "rotated, no noise: float64 takes "
            f"{min(ratios):.1f} to {max(ratios):.1f} times as many steps as float32 "
            "(Adam aside)."
        )
    return found


def _with_noise(groups: list[Group], name: str) -> str:
    """In which cases a noise changes when, or whether, runs leave the first saddle."""
    by_case = cases(groups)
    parts = []
    for form in dict.fromkeys(g["form"] for g in groups):
        pairs = [
            (same[name], same[QUIET])
            for k, same in by_case.items()
            if k[2] == form and name in same
        ]
        changed = [one for one, _ in pairs if differs(one, "escape")]
        text = f"{form}, {len(changed)} of {len(pairs)} cases differ from no noise"
        ratios = [
            one["escape_median"] / twin["escape_median"]
            for one, twin in pairs
            if math.isfinite(twin["escape_median"])
            and math.isfinite(one["escape_median"])
        ]
        newly = [one for one, twin in pairs if not any(twin["escaped"])]
        newly = [one for one in newly if differs(one, "escape")]
        if newly:
            functions = ", ".join(dict.fromkeys(one["function"] for one in newly))
            text += f" ({len(newly)} leave where determinism never does: {functions})"
        if ratios:
            text += f", median time {min(ratios):.2f} to {max(ratios):.2f} times"
        parts.append(text)
    return f"{name}, leaving the first saddle: {'; '.join(parts)}."


def _identical_units(groups: list[Group]) -> list[str]:
    mine = _select(groups, function="identical_units", form="aligned")
    if not mine:
        return []
    names = dict.fromkeys(g["noise"] for g in mine)
    parts = [f"{n} {_count(_select(mine, noise=n), 'escaped')}" for n in names]
    return [f"identical units, aligned, runs that separate: {'; '.join(parts)}."]


def _stopped(groups: list[Group], noises: list[str]) -> list[str]:
    """Runs that left the first saddle and stopped at a later one."""

    def counts(name: str, key: tuple[str, ...]) -> tuple[int, int]:
        group = cases(groups)[key][name]
        left = np.array(group["escaped"])
        return int((left & ~np.array(group["arrived"])).sum()), int(left.sum())

    found = []
    for key, same in cases(groups).items():
        stopped, left = counts(QUIET, key)
        if not left:
            continue
        others = [counts(name, key)[0] for name in noises if name in same]
        if all(other == stopped for other in others):
            continue
        parts = [f"no noise {stopped} of {left}"]
        for name in noises:
            if name not in same:
                continue
            other, total = counts(name, key)
            table = np.array([[stopped, left - stopped], [other, total - other]])
            p = stats.fisher_exact(table).pvalue
            parts.append(f"{name} {other} of {total} (p {p:.2g})")
        found.append(
            "had left the first saddle and not passed the last when the steps ran out "
            f"({', '.join(key)}): {'; '.join(parts)}; Fisher's exact p against no "
            "noise, not corrected."
        )
    return found


def _theory(groups: list[Group]) -> list[str]:
    found = []
    pairs = _predicted(groups, ("gradient_descent", "heavy_ball"))
    if pairs.size:
        error = np.abs(pairs[1] - pairs[0])
        near = error <= np.maximum(2.0, 0.05 * pairs[0])
        found.append(
            f"theory, gradient descent and heavy ball: {pairs.shape[1]} escapes, "
            f"median error {np.median(error):.1f} steps; {np.mean(near):.0%} within "
            "2 steps or 5 %."
        )
    ratios = [
        group["escape_median"] / group["predicted_median"]
        for group in groups
        if group["optimizer"] == "adam" and group["noise"] == QUIET
        if all(map(math.isfinite, (group["escape_median"], _expected(group))))
    ]
    if ratios:
        found.append(
            "theory, Adam without noise: leaves in "
            f"{min(ratios):.1f} to {max(ratios):.1f} times radius / rate (medians), "
            "whatever the projection."
        )
    never = [
        left
        for g in groups
        for p, left in zip(g["predicted_steps"], g["escaped"], strict=True)
        if p == math.inf
    ]
    if never:
        found.append(
            f"theory expects {len(never)} runs never to leave: {sum(never)} did."
        )
    return found


def _expected(group: Group) -> float:
    found = group["predicted_median"]
    return math.inf if found is None else found


def _predicted(groups: list[Group], optimizers: tuple[str, ...]) -> np.ndarray:
    """[2, n]: predicted and measured steps of runs that left with a prediction."""
    pairs = [
        pair
        for g in groups
        if g["optimizer"] in optimizers
        for *pair, left in zip(
            g["predicted_steps"], g["escape_steps"], g["escaped"], strict=True
        )
        if left and pair[0] is not None and math.isfinite(pair[0])
    ]
    return np.array(pairs, float).reshape(-1, 2).T


def _select(groups: list[Group], **wanted: str) -> list[Group]:
    return [g for g in groups if all(g[k] == v for k, v in wanted.items())]


def _twin(groups: list[Group], key: tuple[str, ...], **change: str) -> Group | None:
    wanted = dict(zip(CASE, key, strict=True)) | {"noise": QUIET} | change
    return next(iter(_select(groups, **wanted)), None)


def _count(groups: list[Group], happened: str) -> str:
    done = sum(sum(g[happened]) for g in groups)
    return f"{done} of {sum(len(g[happened]) for g in groups)}"
