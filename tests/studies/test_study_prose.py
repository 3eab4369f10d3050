"""Numbers in the sentences of README.md, of the paper and of docs/results.md.

`make tables` makes the tables. A number in a sentence is written by hand, so this test
makes the same words from the records and looks for them in the page.
"""

import csv
from pathlib import Path

import numpy as np
import pytest

from prednet_jax import records
from prednet_jax.statistics.proportions import excess_upper
from prednet_jax.studies import (
    along_tables,
    described_parts,
    judgement,
    seed_records,
    symmetric_findings,
)
from prednet_jax.studies.parts import DOSES, PARTS

ROOT = Path(__file__).resolve().parents[2]
STUDY = ROOT / "results" / "study"
RANDOM, FIXED, NULL = "reduction_order", "reduction_order_run", "convolution_im2col"


def _words(page):
    return " ".join((ROOT / page).read_text().split())


def _contrast(treatment, control="float32", endpoint=judgement.PRIMARY):
    found = records.read_json(STUDY / f"verdict_{endpoint}.json")["contrasts"]
    pair = (treatment, control)
    return next(c for c in found if (c["treatment"], c["control"]) == pair)


def _percent(contrast, name):
    return 100 * contrast[name] / contrast["control_mean"]


def _change(contrast):
    names = ("mean_difference", "ci_low", "ci_high")
    mean, low, high = (_percent(contrast, name) for name in names)
    return f"{mean:+.2f} % [{low:+.2f}, {high:+.2f}]"


def _largest(treatment):
    return f"{_percent(_contrast(treatment), 'max_abs_difference'):.0f} %"


@pytest.fixture(scope="module")
def part_c():
    return judgement.read(PARTS["C"], STUDY / "C")


def test_readme_and_paper_give_the_verdict_of_the_record():
    (word,) = records.read_json(STUDY / "verdict.json")["verdict"].values()
    assert f'study\'s verdict is "{word}"' in _words("README.md")
    assert f"By the rule the answer is **{word}**" in _words("docs/study/README.md")


def _excess(treatment):
    found = _contrast(treatment)
    return excess_upper(found["seeds_gaining"], found["seeds_losing"], found["n"])


def _excesses(words):
    """The words with the excess, in percent, of random and of fixed order."""
    return words.format(*(100 * _excess(treatment) for treatment in (RANDOM, FIXED)))


def test_readme_says_what_part_c_found(part_c):
    page = _words("README.md")
    assert f"random order changed the mean loss by {_change(_contrast(RANDOM))}" in page
    assert f"another fixed order by {_change(_contrast(FIXED))}" in page
    assert f"Single runs move by up to {_furthest_run(part_c)} under either" in page
    said = "exceed losing ones by up to {:.0f} (random order) or {:.0f} (fixed"
    assert _excesses(said) in page


def _of_draw(found, arm, draw):
    runs = [run for seed in found for run in seed["runs"]]
    return np.array(
        [
            run[judgement.PRIMARY]
            for run in runs
            if (run["arm"], run["draw"]) == (arm, draw)
        ]
    )


def _moves(found, arm, draw):
    """Differences of single runs, in percent of the mean without noise."""
    control = _of_draw(found, "float32", 0)
    return 100 * (_of_draw(found, arm, draw) - control) / control.mean()


def _furthest_run(found):
    """How far single runs move; the same, rounded, for both orders and the null."""
    furthest = {
        f"{max(abs(_moves(found, arm, draw)).max() for draw in range(draws)):.0f} %"
        for arm, draws in ((RANDOM, 2), (FIXED, 2), (NULL, 1))
    }
    (said,) = furthest
    return said


def test_paper_counts_the_seeds_that_gain_and_lose(part_c):
    def counts(contrast):
        return contrast["seeds_gaining"], contrast["seeds_losing"]

    def pair(contrast):
        return "{} and {}".format(*counts(contrast))

    page = _words("docs/study/README.md")
    assert f"({pair(_contrast(RANDOM))}, {pair(_contrast(FIXED))})" in page
    assert f"under the null ({pair(_contrast(NULL))})" in page
    gain, lose = counts(_contrast(RANDOM, FIXED))
    assert f"the random one gains in {gain} and loses in {lose}" in page
    random, fixed, null = map(_largest, (RANDOM, FIXED, NULL))
    assert f"by up to {random} (random), {fixed} (fixed) and {null} (null)" in page
    said = f"Single runs move by up to {_furthest_run(part_c)} of the mean loss"
    assert said in page
    (gain, lose), (more, fewer) = (
        [sum(m < -2), sum(m > 2)]
        for m in (_moves(part_c, RANDOM, draw) for draw in (0, 1))
    )
    said = f"random order gains in {gain} and loses in {lose}, the second gains in"
    assert f"{said} {more} and loses in {fewer}" in page


def test_paper_says_by_how_much_gaining_seeds_may_exceed():
    page = _words("docs/study/README.md")
    said = "may exceed losing ones by {:.0f} in 100 (random order) or {:.0f} (fixed"
    assert _excesses(said) in page
    said = "losing seeds of {:.0f} (random order) or {:.0f} (fixed order) in 100"
    assert _excesses(said) in page


def test_paper_says_that_inconclusive_was_likely():
    page = _words("docs/study/README.md")
    pairs = (RANDOM, "float32"), (FIXED, "float32"), (RANDOM, FIXED)
    spreads = [c["sd_difference"] / c["margin"] for c in (_contrast(*p) for p in pairs)]
    said = "a standard deviation of {:.1f} to {:.1f} margins"
    assert said.format(min(spreads), max(spreads)) in page
    rates = (ROOT / "results" / "statistics" / "verdict_rates.csv").read_text()
    truth = ("no effect, all seeds apart, spread 1", "40")
    (row,) = (
        row
        for row in csv.DictReader(rates.splitlines())
        if (row["truth"], row["seeds"]) == truth
    )
    share = 100 * float(row["refuted"])
    assert f"a normal scatter of one margin, {share:.0f} in 100 are `refuted`" in page
    assert f"would not meet the bound either ({_excess(NULL):.2f})" in page


def test_paper_says_how_many_times_stale_targets_raise_the_loss(part_c):
    page = _words("docs/study/README.md")
    stale, control = (
        _of_arm(part_c, arm, judgement.PRIMARY) for arm in ("stale_targets", "float32")
    )
    ratios = stale / control
    assert f"to {min(ratios):.1f} to {max(ratios):.1f} times" in page
    assert "their mean is three times as high" in page
    assert 2.9 < stale.mean() / control.mean() < 3.1


def test_paper_says_how_part_c_ended(part_c):
    page = _words("docs/study/README.md")
    controls = [r for s in part_c for r in s["runs"] if r["arm"] == judgement.CONTROL]
    over = np.array([run["over_copy"] for run in controls])
    behind = sum(run["parity"] is None for run in controls)
    assert f"{behind} of the {len(over)} runs without noise do not beat" in page
    late = over[[run["parity"] is None for run in controls]].mean()
    said = f"their loss is {late:.2f} times that of copying in the mean, and that of"
    assert f"{said} all 40 is {over.mean():.2f} times" in page
    assert f"in {behind} of the 40 the network does not yet beat copying" in page
    left = np.mean([run["plateau_left"] for run in controls])
    assert f"The plateau is left at update {left:.0f} in the mean" in page


def test_paper_says_that_single_seeds_decide_the_held_out_loss(part_c):
    page = _words("docs/study/README.md")
    pairs = (RANDOM, "float32"), (FIXED, "float32"), (RANDOM, FIXED)
    found = [_contrast(*pair, endpoint="held_out_loss") for pair in pairs]
    random, fixed, between = (_percent(c, "mean_difference") for c in found)
    assert (
        f"differ by {random:+.0f} % (random order), {fixed:+.0f} % (fixed order) and "
        f"{between:+.0f} % (random against fixed), the medians by 0.1 %" in page
    )
    losses = judgement.losses(part_c, "held_out_loss")[judgement.MODEL]
    without = []
    for treatment, control in pairs:
        noisy, clean = (
            {seed: np.mean(draws) for seed, draws in losses[arm].items()}
            for arm in (treatment, control)
        )
        change = {seed: noisy[seed] - clean[seed] for seed in noisy}
        of_mean = np.median(list(change.values())) / np.mean(list(clean.values()))
        assert abs(of_mean) == pytest.approx(0.001, abs=5e-4)
        assert max(change, key=lambda seed: abs(change[seed])) == "8331"
        del change["8331"], clean["8331"]
        without.append(100 * sum(change.values()) / sum(clean.values()))
    said = "without it the means differ by {:+.1f}, {:+.1f} and {:+.1f} %"
    assert said.format(*without) in page
    ends = [(_percent(c, "ci_low"), _percent(c, "ci_high")) for c in found]
    assert all(low < 0 < high for low, high in ends)
    low, high = max(ends, key=lambda one: one[1] - one[0])
    assert f"the widest goes from {low:.0f} % to {high:+.0f} %" in page


def test_paper_names_the_seeds_of_the_ordinary_program_that_move():
    page = _words("docs/study/README.md")
    rows = {
        (row.program, row.delta, row.arm, row.seed): row
        for row in symmetric_findings.read(STUDY / "A" / "runs.csv")
    }
    losses = [
        rows["ordinary", 0.0, "run", seed].loss
        / rows["ordinary", 0.0, "float32", seed].loss
        for seed in range(8100, 8105)
    ]
    least, most = 100 * (1 - max(losses)), 100 * (1 - min(losses))
    assert f"lower in all five, by {least:.1f} % to {most:.0f} %" in page
    assert sum(loss > 0.98 for loss in losses) == 2
    (tile, clean), (other_tile, other_clean) = (
        [rows["ordinary", 1e-6, arm, seed].separated_at for arm in ("tile", "float32")]
        for seed in (8100, 8104)
    )
    shared = rows["ordinary", 1e-6, "shared", 8100].separated_at
    said = f"(at {tile} instead of {clean}, at {other_tile} instead of {other_clean})"
    assert f"{said}, the first of them under shared order too ({shared})" in page


def test_paper_says_when_tile_order_leaves_the_saddle():
    page = _words("docs/study/README.md")
    rows = symmetric_findings.read(STUDY / "A" / "runs.csv")
    updates = [
        row.separated_at
        for row in rows
        if (row.program, row.delta, row.arm) == ("symmetric", 0.0, "tile")
    ]
    assert f"between updates {min(updates)} and {max(updates)}" in page


@pytest.fixture(scope="module")
def part_b():
    return judgement.read(PARTS["B"], STUDY / "B")


def _of_arm(found, arm, name):
    return np.array([r[name] for s in found for r in s["runs"] if r["arm"] == arm])


def _dose(found, kind, factor):
    """A factor of a kind of noise under Adam; Holm's correction is over its factors."""
    pairs = [(f"{kind}_{f:g}", judgement.CONTROL) for f in DOSES]
    made = judgement.contrasts(found, judgement.PRIMARY, pairs)
    return next(c for c in made if c.treatment == f"{kind}_{factor:g}")


def test_paper_says_from_which_factor_amplified_noise_matters(part_b):
    page = _words("docs/study/README.md")
    adam = _of_arm(part_b, "float32", "over_copy").mean()
    assert f"{adam:.1f} times that of copying the last frame. Under momentum" in page
    *nine, dead = sorted(_of_arm(part_b, "float32_momentum", "over_copy"))
    assert f"{np.mean(nine):.1f} times in nine seeds" in page
    assert dead > 100
    first, below = _dose(part_b, "order", 1e6), _dose(part_b, "order", 1e4)
    change = 100 * first.mean_difference / first.control_mean
    assert f"which raises the loss by {change:.0f} %" in page
    ends = (100 * end / below.control_mean for end in (below.ci_low, below.ci_high))
    assert "one between {:+.1f} % and {:+.1f} % is not".format(*ends) in page


def test_paper_names_the_change_that_is_in_the_hypothesis_direction(part_b):
    page = _words("docs/study/README.md")
    one = _dose(part_b, "isotropic", 1)
    share = one.mean_difference / one.control_mean
    p = f"{one.p_holm:.3f}".lstrip("0")
    assert (
        f"lowers the loss by {-100 * share:.2f} % (p {p}, Holm over its "
        f"{len(DOSES)} factors)" in page.replace("six factors", "6 factors")
    )
    distances = [
        judgement.manipulation(part_b, f"{kind}_100", "float32").distance_over_travelled
        for kind in ("isotropic", "order")
    ]
    said = "by {:.2f} of the way in the median, real noise by {:.3f}"
    assert said.format(*distances) in page


def test_paper_says_how_many_seeds_the_verdict_would_need():
    page = _words("docs/study/README.md")
    details = records.read_json(STUDY / "verdict.json")["details"]["prednet"]
    assert f"{details['seeds_needed']} seeds would be needed" in page
    fixed = _contrast(FIXED)
    gain, lose = fixed["seeds_gaining"], fixed["seeds_losing"]
    excess = (gain - lose) / fixed["n"]
    assert f"{gain} seeds gain and {lose} lose, an excess of {excess:.3f}," in page


def test_paper_says_what_moving_digits_show():
    page = _words("docs/study/README.md")
    found = judgement.read(PARTS["C-digits"], STUDY / "C-digits")
    (one,) = judgement.contrasts(found, judgement.PRIMARY, [(RANDOM, "float32")])
    values = one.mean_difference, one.ci_low, one.ci_high
    shares = tuple(100 * value / one.control_mean for value in values)
    said = "{:+.2f} % [{:+.2f}, {:+.2f}]".format(*shares)
    assert f"Random order changes the loss by {said}, and stale targets triple" in page


def test_paper_counts_the_networks_that_noise_kills():
    page = _words("docs/study/README.md")
    paths = seed_records.finished(PARTS["B"], STUDY / "B")
    (lost,) = (
        seed
        for seed, path in paths.items()
        if "float32_momentum" in seed_records.without_gradient([path])
    )
    assert f"In the tenth, {lost}, the network dies" in page
    others = [path for seed, path in paths.items() if seed != lost]
    dead = seed_records.without_gradient(others)
    counts = {
        factor: [
            dead[f"{kind}_{factor}_momentum"]
            for kind in ("order", "coordinates", "isotropic")
        ]
        for factor in ("1e+06", "1e+08")
    }
    said = "{}, {} and {} have a gradient of exactly 0 in the end with noise of 1e6"
    assert said.format(*counts["1e+06"]) in page
    assert "and {}, {} and {} with 1e8".format(*counts["1e+08"]) in page
    assert all(arm.endswith("momentum") for arm in dead)


def test_paper_counts_the_runs_that_stay_on_the_plateau(part_b):
    page = _words("docs/study/README.md")
    runs = [r for s in part_b for r in s["runs"] if r["dose"] and r["dose"][0] == 1e8]
    never = {
        control: [r["plateau_left"] for r in runs if r["control"] == control]
        for control in ("float32", "float32_momentum")
    }
    adam, momentum = (f"{ends.count(None)} of {len(ends)}" for ends in never.values())
    assert f"{adam} runs under Adam and {momentum} under momentum never leave" in page


def test_paper_names_the_seed_that_order_noise_spoils(part_b):
    page = _words("docs/study/README.md")
    compared = described_parts.against_control(part_b)
    ratios = next(c for c in compared if c.treatment == "order_10000_momentum").ratios
    *others, most = sorted(ratios)
    furthest = max(abs(ratio - 1) for ratio in others)
    assert f"one seed ends at {most:.0f} times its control's loss" in page
    assert f"others within {100 * furthest:.0f} % of theirs" in page


def test_readme_says_what_amplified_noise_does(part_b):
    page = _words("README.md")
    for factor, words in ((1e6, "raises the loss by 27 % {}"), (1e4, "+0.5 % {}")):
        one = _dose(part_b, "order", factor)
        mean, low, high = (
            100 * value / one.control_mean
            for value in (one.mean_difference, one.ci_low, one.ci_high)
        )
        places = 0 if factor == 1e6 else 1
        assert f"{mean:.{places}f} %" in words
        assert words.format(f"[{low:+.{places}f}, {high:+.{places}f}]") in page


def test_paper_says_what_curvature_shows():
    page = _words("docs/study/README.md")
    folder = STUDY / "F"
    stops = [
        stop
        for seed in along_tables.SEEDS_PROBED
        for path in along_tables.probe_paths(folder, seed)
        for stop in records.read_json(path)["rows"]
    ]
    assert all(stop["preconditioned"]["negative_curvature_proved"] for stop in stops)
    tried = [stop["preconditioned"]["finite_difference"] for stop in stops]
    reach = [
        one["reach"] / stop["escape"]["step_length"]
        for one, stop in zip(tried, stops, strict=True)
        if one["verdict"] == "agrees"
    ]
    assert f"at all {len(stops)} stops, the early ones too" in page
    assert f"At {len(reach)} of them differences of the loss agree" in page
    assert f"for {min(reach):.1f} to {max(reach):.1f} steps" in page
    others = [
        (stop["update"], one["curvature"] / one["expected"])
        for one, stop in zip(tried, stops, strict=True)
        if one["verdict"] == "disagrees"
    ]
    ratios = [ratio for _, ratio in others]
    assert len(others) == len(stops) - len(reach) == 10
    assert f"are {min(ratios):.1f} to {max(ratios):.1f} times as large" in page
    early = [stop["update"] <= 100 for stop in stops]
    assert sum(update <= 100 for update, _ in others) == 8
    assert f"eight of these ten are among the {sum(early)} stops" in page
    escapes = [stop["escape"] for stop in stops]
    growth = [100 * (escape["growth_per_update"] - 1) for escape in escapes]
    assert f"by {min(growth):.0f} % to {max(growth):.0f} % per update" in page
    by_verdict = {
        verdict: [
            stop["escape"]
            for one, stop in zip(tried, stops, strict=True)
            if one["verdict"] == verdict
        ]
        for verdict in ("agrees", "disagrees")
    }
    most, least = (
        [choose(one[name] for one in ends) for ends in by_verdict.values()]
        for choose, name in ((max, "updates_saved"), (min, "noise_for_one_update"))
    )
    assert "noise would save less than 3e-10 updates at the 17 stops" in page
    assert 2e-10 < most[0] < 3e-10
    assert f"have to be {100 * least[0]:.1f} % of the gradient or more" in page
    assert "the same formula gives less than 2e-8 updates and" in page
    assert 1e-8 < most[1] < 2e-8
    assert f"and {100 * least[1]:.1f} % of the gradient or more." in page
    cosine = max(abs(escape["step_cosine"]) for escape in escapes)
    assert f"cosine of {cosine:.2f} at most".replace("0.", ".") in page


def test_paper_says_which_stops_are_on_the_plateau(part_c):
    page = _words("docs/study/README.md")
    *left, last = sorted(_of_arm(part_c, "float32", "plateau_left"))
    assert last > 250 > left[-1]
    said = f"{len(left)} of {len(left) + 1} runs leave the plateau between updates"
    assert f"{said} {left[0]:.0f} and {left[-1]:.0f}, so the stop at 25" in page


def test_paper_says_when_noise_leaves_the_first_saddle_of_the_octopus():
    page = _words("docs/study/README.md")
    groups = records.read_json(STUDY / "F" / "octopus.json")["groups"]
    none, element, shared, gaussian = (f"{g['escape_median']:.0f}" for g in groups)
    assert f"after {element} and {shared} steps instead of {none};" in page
    assert f"far larger, leaves it after {gaussian}." in page


@pytest.fixture(scope="module")
def part_d():
    return judgement.read(PARTS["D"], STUDY / "D")


def test_pages_say_what_the_middle_size_shows(part_d):
    page, readme = _words("docs/study/README.md"), _words("README.md")
    parity = [run["parity"] for s in part_d for run in s["runs"][:1]]
    assert sum(update is not None for update in parity) == 5
    over = _of_arm(part_d, "float32", "over_copy").mean()
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
        _of_arm(part_d, arm, judgement.PRIMARY) for arm in ("stale_targets", "float32")
    )
    ratios = stale / control
    assert f"every seed, to {min(ratios):.1f} to {max(ratios):.1f} times" in page
    (held,) = judgement.contrasts(part_d, "held_out_loss", [(RANDOM, "float32")])
    values = held.mean_difference, held.ci_low, held.ci_high
    said = "The held-out loss cannot tell: {:+.0f} % [{:+.0f}, {:+.0f}]"
    assert said.format(*(100 * value / held.control_mean for value in values)) in page


def test_paper_names_the_seed_of_the_middle_size_that_leaves_the_plateau_late(part_d):
    page = _words("docs/study/README.md")
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
    mean = _of_arm(part_d, "float32", judgement.PRIMARY).mean()
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
    page, readme = _words("docs/study/README.md"), _words("README.md")
    clean, random, fixed, stale = (
        _of_arm(part_e, arm, judgement.PRIMARY)
        for arm in ("float32", RANDOM, FIXED, "stale_targets")
    )
    orders = 100 * np.stack([random / clean - 1, fixed / clean - 1])
    said = ["{}, {} and {} %".format(*map(_signed, one)) for one in orders]
    assert f"The loss changes by {said[0]} with random order" in page
    assert f"and by {said[1]} with a fixed one" in page
    assert f"random order changed the loss by {said[0]} in the single seeds" in readme
    assert f"loss changes by {orders.min():.1f} to {orders.max():+.1f} %" in page
    assert orders.min() > -0.2
    assert [int(np.argmax(one)) for one in orders] == [0, 1]
    assert [int(sum(one > 2)) for one in orders] == [1, 1]
    times = stale / clean
    assert "to {:.1f}, {:.1f} and {:.1f} times".format(*times) in page
    assert "to {:.1f}, {:.1f} and {:.1f} times".format(*times) in readme
    least, most = 100 * (times.min() - 1), 100 * (times.max() - 1)
    assert f"stale targets raise it by {least:.0f} to {most:.0f} %" in page
    assert (100 * (times - 1) / abs(orders).max(axis=0)).min() > 20
    over = _of_arm(part_e, "float32", "over_copy")
    assert "loss is {:.1f}, {:.1f} and {:.1f} times that of".format(*over) in page
    held = [
        100 * (run["held_out_loss"] / record["runs"][0]["held_out_loss"] - 1)
        for record in part_e
        for run in record["runs"]
        if run["arm"] in (RANDOM, FIXED)
    ]
    assert f"held-out loss differs by {min(held):.0f} % to {max(held):+.0f} %" in page


def test_paper_says_how_far_noise_moves_the_weights_at_the_article_s_size(part_e):
    page = _words("docs/study/README.md")
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
    assert f"the weights by {low} to {high} of the way, after 250 by {lower} to" in page
    assert f"{lower} to {upper}, in every seed" in page


def test_paper_says_where_the_plateau_is_left_at_the_article_s_size(part_e):
    page = _words("docs/study/README.md")
    left = [
        {run["plateau_left"] for run in seed["runs"] if run["arm"] != "stale_targets"}
        for seed in part_e
    ]
    assert all(len(one) == 1 for one in left)
    first, second, third = (one.pop() for one in left)
    assert f"leaves the plateau at update {first}, the second at {second}." in page
    assert f"(Its `plateau_left` of {third} says nothing" in page
    with open(STUDY / "E" / "seed_8502.csv") as file:
        curve = [
            float(row["loss"])
            for row in csv.DictReader(file)
            if row["arm"] == "float32"
        ]
    assert 1 - curve[-1] / curve[0] == pytest.approx(1 / 3, abs=0.02)
    stale = {s["seed"]: s["runs"][-1]["plateau_left"] for s in part_e}
    assert stale[8500] is None


def test_results_say_how_another_processor_differs():
    page = _words("docs/results.md")
    here, there = (
        records.read_json(ROOT / "results" / "published" / name)
        for name in ("verdict.json", "verdict_amd.json")
    )
    differ = {}
    for arm, seeds in here["losses"]["prednet"].items():
        other = there["losses"]["prednet"][arm]
        differ[arm] = max(abs(other[s][0] / seeds[s][0] - 1) for s in seeds)
    same = {arm for arm, largest in differ.items() if largest == 0}
    assert same == {RANDOM, FIXED}
    assert f"differ by up to {100 * max(differ.values()):.1f} %, except" in page
    assert here["losses"]["autoencoder"] == there["losses"]["autoencoder"]
    random, null = there["contrasts"][:2]
    assert (random["treatment"], null["treatment"]) == (RANDOM, "threads_1")
    changes = [_percent(one, "mean_difference") for one in (random, null)]
    assert f"changes PredNet's mean loss by {changes[1]:.2f} % there" in page
    assert abs(changes[1]) > abs(changes[0])
