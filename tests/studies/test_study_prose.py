"""The verdict, part C, and another processor, in sentences.

The module `prose` says why.
"""

import csv

import numpy as np
import pytest

from prednet_jax import records
from prednet_jax.statistics.proportions import excess_upper
from prednet_jax.studies import judgement
from prednet_jax.studies.parts import PARTS
from tests.studies.prose import (
    FIXED,
    NULL,
    RANDOM,
    ROOT,
    STUDY,
    contrast,
    of_arm,
    percent,
    words,
)


def _change(one):
    names = ("mean_difference", "ci_low", "ci_high")
    mean, low, high = (percent(one, name) for name in names)
    return f"{mean:+.2f} % [{low:+.2f}, {high:+.2f}]"


def _largest(treatment):
    return f"{percent(contrast(treatment), 'max_abs_difference'):.0f} %"


@pytest.fixture(scope="module")
def part_c():
    return judgement.read(PARTS["C"], STUDY / "C")


def test_readme_and_paper_give_the_verdict_of_the_record():
    (word,) = records.read_json(STUDY / "verdict.json")["verdict"].values()
    assert f'study\'s verdict is "{word}"' in words("README.md")
    assert f"By the rule the answer is **{word}**" in words("docs/study/README.md")


def _excess(treatment):
    found = contrast(treatment)
    return excess_upper(found["seeds_gaining"], found["seeds_losing"], found["n"])


def _excesses(said):
    """The sentence with the excess, in percent, of random and of fixed order."""
    return said.format(*(100 * _excess(treatment) for treatment in (RANDOM, FIXED)))


def test_readme_says_what_part_c_found(part_c):
    page = words("README.md")
    assert f"random order changed the mean loss by {_change(contrast(RANDOM))}" in page
    assert f"another fixed order by {_change(contrast(FIXED))}" in page
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

    page = words("docs/study/README.md")
    assert f"({pair(contrast(RANDOM))}, {pair(contrast(FIXED))})" in page
    assert f"under the null ({pair(contrast(NULL))})" in page
    gain, lose = counts(contrast(RANDOM, FIXED))
    assert f"the random one gains in {gain} and loses in {lose}" in page
    random, fixed = map(_largest, (RANDOM, FIXED))
    assert f"seeds move by up to {random} (random) and {fixed} (fixed)" in page
    said = f"Single runs move by up to {_furthest_run(part_c)} of the mean loss"
    assert said in page
    (gain, lose), (more, fewer) = (
        [sum(m < -2), sum(m > 2)]
        for m in (_moves(part_c, RANDOM, draw) for draw in (0, 1))
    )
    said = f"random order gains in {gain} and loses in {lose}, the second gains in"
    assert f"{said} {more} and loses in {fewer}" in page


def test_paper_says_by_how_much_gaining_seeds_may_exceed():
    page = words("docs/study/README.md")
    said = "may exceed losing ones by {:.0f} in 100 (random order) or {:.0f} (fixed"
    assert _excesses(said) in page
    said = "losing seeds of {:.0f} (random order) or {:.0f} (fixed order) in 100"
    assert _excesses(said) in page


def test_paper_says_that_inconclusive_was_likely():
    page = words("docs/study/README.md")
    pairs = (RANDOM, "float32"), (FIXED, "float32"), (RANDOM, FIXED)
    spreads = [c["sd_difference"] / c["margin"] for c in (contrast(*p) for p in pairs)]
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
    page = words("docs/study/README.md")
    stale, control = (
        of_arm(part_c, arm, judgement.PRIMARY) for arm in ("stale_targets", "float32")
    )
    ratios = stale / control
    assert f"to {min(ratios):.1f} to {max(ratios):.1f} times" in page
    assert "their mean is three times as high" in page
    assert 2.9 < stale.mean() / control.mean() < 3.1


def test_paper_says_how_part_c_ended(part_c):
    page = words("docs/study/README.md")
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
    page = words("docs/study/README.md")
    pairs = (RANDOM, "float32"), (FIXED, "float32"), (RANDOM, FIXED)
    found = [contrast(*pair, endpoint="held_out_loss") for pair in pairs]
    random, fixed, between = (percent(c, "mean_difference") for c in found)
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
    ends = [(percent(c, "ci_low"), percent(c, "ci_high")) for c in found]
    assert all(low < 0 < high for low, high in ends)
    low, high = max(ends, key=lambda one: one[1] - one[0])
    assert f"the widest goes from {low:.0f} % to {high:+.0f} %" in page


def test_limits_count_seeds_that_hardly_part_and_processors(part_c):
    page = words("docs/study/README.md")
    for arm in (RANDOM, FIXED):
        near = sum(
            np.mean(
                [
                    run["distance_over_travelled"]["3000"]
                    for run in seed["runs"]
                    if run["arm"] == arm
                ]
            )
            < 0.1
            for seed in part_c
        )
        assert near == 5
    assert "In five of the 40 seeds of part C the orders had hardly parted" in page
    counts = []
    for name, found in (("C", part_c), ("D", judgement.read(PARTS["D"], STUDY / "D"))):
        amd = sum("AMD" in seed["device"]["processor"] for seed in found)
        counts.append(f"{amd} of {len(PARTS[name].seeds)}")
    assert f"({' and '.join(counts)} on AMD" in page


def test_paper_says_how_many_seeds_the_verdict_would_need():
    page = words("docs/study/README.md")
    details = records.read_json(STUDY / "verdict.json")["details"]["prednet"]
    assert f"{details['seeds_needed']} seeds would be needed" in page
    fixed = contrast(FIXED)
    gain, lose = fixed["seeds_gaining"], fixed["seeds_losing"]
    excess = (gain - lose) / fixed["n"]
    assert f"{gain} seeds gain and {lose} lose, an excess of {excess:.3f}," in page


def test_paper_says_what_moving_digits_show():
    page = words("docs/study/README.md")
    found = judgement.read(PARTS["C-digits"], STUDY / "C-digits")
    (one,) = judgement.contrasts(found, judgement.PRIMARY, [(RANDOM, "float32")])
    values = one.mean_difference, one.ci_low, one.ci_high
    shares = tuple(100 * value / one.control_mean for value in values)
    said = "{:+.2f} % [{:+.2f}, {:+.2f}]".format(*shares)
    assert f"Random order changes the loss by {said}, and stale targets triple" in page


def test_results_say_how_another_processor_differs():
    page = words("docs/results.md")
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
    changes = [percent(one, "mean_difference") for one in (random, null)]
    assert f"changes PredNet's mean loss by {changes[1]:.2f} % there" in page
    assert abs(changes[1]) > abs(changes[0])
