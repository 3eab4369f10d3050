"""Parts D and E, larger networks, in sentences.

The module `prose` says why.
"""

import csv

import numpy as np
import pytest

from prednet_jax.studies import judgement
from prednet_jax.studies.parts import PARTS
from tests.studies.prose import (
    FIXED,
    RANDOM,
    STUDY,
    of_arm,
    words,
)


@pytest.fixture(scope="module")
def part_d():
    return judgement.read(PARTS["D"], STUDY / "D")


def test_pages_say_what_the_middle_size_shows(part_d):
    page, readme = words("docs/study/README.md"), words("README.md")
    parity = [run["parity"] for s in part_d for run in s["runs"][:1]]
    assert sum(update is not None for update in parity) == 5
    over = of_arm(part_d, "float32", "over_copy").mean()
    assert f"in the mean its loss is {over:.2f} of that of copying" in page
    check = judgement.manipulation(part_d, RANDOM, "float32")
    moved = f"{check.distance_over_travelled:.2f}".lstrip("0")
    assert f"it moved the final weights by {moved} of the way" in page
    (one,) = judgement.contrasts(part_d, judgement.PRIMARY, [(RANDOM, "float32")])
    values = one.mean_difference, one.ci_low, one.ci_high
    change = "{:+.1f} % [{:+.1f}, {:+.1f}]".format(
        *(100 * value / one.control_mean for value in values)
    )
    p = f"{one.p_value:.2f}".lstrip("0")
    assert f"The loss changes by {change} (p {p})" in page
    assert (one.seeds_gaining, one.seeds_losing) == (1, 2)
    assert f"random order changed the mean loss by {change}" in readme
    stale, control = (
        of_arm(part_d, arm, judgement.PRIMARY) for arm in ("stale_targets", "float32")
    )
    ratios = stale / control
    assert f"every seed, to {min(ratios):.1f} to {max(ratios):.1f} times" in page
    (held,) = judgement.contrasts(part_d, "held_out_loss", [(RANDOM, "float32")])
    values = held.mean_difference, held.ci_low, held.ci_high
    said = "The held-out loss cannot tell: {:+.0f} % [{:+.0f}, {:+.0f}]"
    assert said.format(*(100 * value / held.control_mean for value in values)) in page


def test_paper_names_the_seed_of_the_middle_size_that_leaves_the_plateau_late(part_d):
    page = words("docs/study/README.md")
    by_seed = {
        record["seed"]: {run["arm"]: run for run in record["runs"]} for record in part_d
    }
    late = by_seed.pop(8401)
    left = {arm: run["plateau_left"] for arm, run in late.items()}
    assert f"left late: at update {left['float32']} without noise" in page
    assert f"at {left[RANDOM]} with random order" in page
    assert f"and at {left['stale_targets']} with stale targets" in page
    noisy, clean = (late[arm][judgement.PRIMARY] for arm in (RANDOM, "float32"))
    lower = 100 * (1 - noisy / clean)
    mean = of_arm(part_d, "float32", judgement.PRIMARY).mean()
    of_mean = 100 * (clean - noisy) / mean
    said = (
        f"this seed's loss ends {lower:.1f} % lower ({of_mean:.1f} % of the mean loss)"
    )
    assert said in page
    apart = late[RANDOM]["distance_over_travelled"]["1000"]
    share = f"{apart:.2f}".lstrip("0")
    assert f"The two runs were {share} of the way apart by update 1000" in page
    others = [
        [runs[arm]["plateau_left"] for arm in ("float32", RANDOM)]
        for runs in by_seed.values()
    ]
    assert all(clean == noisy for clean, noisy in others)
    assert f"no noise, at {max(max(pair) for pair in others)} or before" in page


@pytest.fixture(scope="module")
def part_e():
    return judgement.read(PARTS["E"], STUDY / "E")


def _signed(percent):
    """With a sign, but for what rounds to 0."""
    return f"{percent:+.1f}" if abs(percent) >= 0.05 else "0.0"


def test_pages_say_what_the_article_s_size_shows(part_e):
    page, readme = words("docs/study/README.md"), words("README.md")
    clean, random, fixed, stale = (
        of_arm(part_e, arm, judgement.PRIMARY)
        for arm in ("float32", RANDOM, FIXED, "stale_targets")
    )
    orders = 100 * np.stack([random / clean - 1, fixed / clean - 1])
    said = ["{}, {} and {} %".format(*map(_signed, one)) for one in orders]
    assert f"no noise the loss changes by {said[0]} with random order" in page
    assert f"and by {said[1]} with a fixed one" in page
    assert f"random order changed the loss of the single seeds by {said[0]}" in readme
    assert f"a fixed order by {said[1]}, too few" in readme
    said = (
        f"loss of single seeds changes by {orders.min():.1f} to {orders.max():+.1f} %"
    )
    assert said in page
    between = "{}, {} and {} %".format(*map(_signed, 100 * (random / fixed - 1)))
    assert f"Random against fixed order it changes by {between}. In" in page
    differences = np.stack([random - clean, fixed - clean, random - fixed])
    assert abs(differences).max() < 0.02 * clean.mean()
    times = stale / clean
    assert "to {:.1f}, {:.1f} and {:.1f} times".format(*times) in page
    assert "to {:.1f}, {:.1f} and {:.1f} times".format(*times) in readme
    least, most = 100 * (times.min() - 1), 100 * (times.max() - 1)
    assert f"stale targets raise it by {least:.0f} to {most:.0f} %" in page
    assert (100 * (times - 1) / abs(orders).max(axis=0)).min() > 20
    over = of_arm(part_e, "float32", "over_copy")
    assert "loss is {:.1f}, {:.1f} and {:.1f} times that of".format(*over) in page
    held = [
        100 * (run["held_out_loss"] / record["runs"][0]["held_out_loss"] - 1)
        for record in part_e
        for run in record["runs"]
        if run["arm"] in (RANDOM, FIXED)
    ]
    assert f"held-out loss changes by {min(held):.0f} % to {max(held):+.0f} %" in page
    assert held[2] * held[3] < 0


def test_paper_says_how_far_noise_moves_the_weights_at_the_article_s_size(part_e):
    page = words("docs/study/README.md")
    noisy = [r for s in part_e for r in s["runs"] if r["arm"] in (RANDOM, FIXED)]
    early, late = (
        [run["distance_over_travelled"][update] for run in noisy]
        for update in ("100", "250")
    )
    low, high, lower, upper = (
        f"{end:.2f}".lstrip("0")
        for ends in (early, late)
        for end in (min(ends), max(ends))
    )
    assert f"either order is {low} to {high} of the way from float32, after 250" in page
    assert f"updates {lower} to {upper}, in every seed" in page
    between = [
        run["final_distance_from"][f"{FIXED}.0"]
        for run in noisy
        if run["arm"] == RANDOM
    ]
    low, high = (f"{end:.2f}".lstrip("0") for end in (min(between), max(between)))
    assert f"orders are then {low} to {high} from each other" in page


def test_paper_says_where_the_plateau_is_left_at_the_article_s_size(part_e):
    page = words("docs/study/README.md")
    left = [
        {run["plateau_left"] for run in seed["runs"] if run["arm"] != "stale_targets"}
        for seed in part_e
    ]
    assert all(len(one) == 1 for one in left)
    first, second, third = (one.pop() for one in left)
    assert f"leaves the plateau at update {first}, the second at {second}." in page
    assert f"(Its `plateau_left` of {third} says nothing" in page
    with (STUDY / "E" / "seed_8502.csv").open() as file:
        rows = [row for row in csv.DictReader(file) if row["arm"] == "float32"]
    curve = np.array([float(row["loss"]) for row in rows])
    assert f"{curve.min():.2f} and {curve.max():.2f}".replace("0.", ".") in page
    end = next(run for run in part_e[2]["runs"] if run["arm"] == "float32")
    fall = 100 * (1 - end["window_loss"] / curve[0])
    assert f"the last fifth is {fall:.0f} % below the first 25 updates" in page
    near = [
        run["distance_over_travelled"]["50"]
        for run in part_e[1]["runs"]
        if run["arm"] in (RANDOM, FIXED)
    ]
    (said,) = {f"{one:.3f}".lstrip("0") for one in near}
    assert f"at update 50 its orders are still only {said} of the way" in page
    stale = {s["seed"]: s["runs"][-1]["plateau_left"] for s in part_e}
    assert stale[8500] is None
