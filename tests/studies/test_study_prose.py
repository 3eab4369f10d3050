"""Numbers in the sentences of README.md and docs/study/README.md, against the records.

`make tables` makes the tables. A number in a sentence is written by hand, so this test
makes the same words from the records and looks for them in the page.
"""

from pathlib import Path

import numpy as np
import pytest

from prednet_jax import records
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


def _largest():
    questions = [_contrast(RANDOM), _contrast(FIXED), _contrast(RANDOM, FIXED)]
    return max(_percent(c, "max_abs_difference") for c in questions)


@pytest.fixture(scope="module")
def part_c():
    return judgement.read(PARTS["C"], STUDY / "C")


def test_readme_and_paper_give_the_verdict_of_the_record():
    (word,) = records.read_json(STUDY / "verdict.json")["verdict"].values()
    assert f'study\'s verdict is "{word}"' in _words("README.md")
    assert f"beforehand the answer is **{word}**" in _words("docs/study/README.md")


def test_readme_says_what_part_c_found():
    page = _words("README.md")
    assert f"random order changed the mean loss by {_change(_contrast(RANDOM))}" in page
    assert f"another fixed order by {_change(_contrast(FIXED))}" in page
    assert f"Single seeds move by up to {_largest():.0f} %" in page


def test_paper_counts_the_seeds_that_gain_and_lose():
    def counts(contrast):
        return contrast["seeds_gaining"], contrast["seeds_losing"]

    def pair(contrast):
        return "{} and {}".format(*counts(contrast))

    page = _words("docs/study/README.md")
    assert f"({pair(_contrast(RANDOM))}, {pair(_contrast(FIXED))})" in page
    assert f"under the null ({pair(_contrast(NULL))})" in page
    gain, lose = counts(_contrast(RANDOM, FIXED))
    assert f"the random one gains in {gain} and loses in {lose}" in page


def test_paper_says_how_part_c_ended(part_c):
    page = _words("docs/study/README.md")
    controls = [r for s in part_c for r in s["runs"] if r["arm"] == judgement.CONTROL]
    over = np.array([run["over_copy"] for run in controls])
    behind = sum(run["parity"] is None for run in controls)
    assert f"{behind} of the {len(over)} runs without noise do not beat" in page
    assert f"their loss stays {100 * (over.mean() - 1):.0f} % above it" in page
    left = np.mean([run["plateau_left"] for run in controls])
    assert f"The plateau is left at update {left:.0f} in the mean" in page


def test_paper_names_the_largest_of_the_other_differences():
    page = _words("docs/study/README.md")
    random, fixed, between = (
        _percent(_contrast(*pair, endpoint="held_out_loss"), "mean_difference")
        for pair in ((RANDOM,), (FIXED,), (RANDOM, FIXED))
    )
    assert (
        f"{-random:.0f} % lower under random order, {fixed:.0f} % higher under a fixed "
        f"one, so {-between:.0f} % between the two" in page
    )


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
        for stop in records.read_json(folder / f"probe_{seed}.json")["rows"]
    ]
    assert all(stop["preconditioned"]["negative_curvature_proved"] for stop in stops)
    tried = [stop["preconditioned"]["finite_difference"] for stop in stops]
    reach = [
        one["reach"] / stop["escape"]["step_length"]
        for one, stop in zip(tried, stops, strict=True)
        if one["verdict"] == "agrees"
    ]
    assert f"at all {len(stops)} stops. At {len(reach)} of them" in page
    assert f"for {min(reach):.1f} to {max(reach):.1f} steps" in page
    escapes = [stop["escape"] for stop in stops]
    growth = [100 * (escape["growth_per_update"] - 1) for escape in escapes]
    assert f"by {min(growth):.0f} % to {max(growth):.0f} % per update" in page
    most = max(escape["updates_saved"] for escape in escapes)
    assert f"at most {most:.0e} updates" in page
    needed = min(escape["noise_for_one_update"] for escape in escapes)
    assert f"have to be {100 * needed:.1f} % of the gradient or more" in page
