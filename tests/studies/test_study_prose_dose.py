"""Part B, amplified noise, in sentences.

The module `prose` says why.
"""

import numpy as np
import pytest

from prednet_jax.studies import described_parts, judgement, seed_records
from prednet_jax.studies.parts import DOSES, PARTS
from tests.studies.prose import STUDY, of_arm, words


@pytest.fixture(scope="module")
def part_b():
    return judgement.read(PARTS["B"], STUDY / "B")


def _dose(found, kind, factor):
    """A factor of a kind of noise under Adam; Holm's correction is over its factors."""
    pairs = [(f"{kind}_{f:g}", judgement.CONTROL) for f in DOSES]
    made = judgement.contrasts(found, judgement.PRIMARY, pairs)
    return next(c for c in made if c.treatment == f"{kind}_{factor:g}")


def test_paper_says_from_which_factor_amplified_noise_matters(part_b):
    page = words("docs/study/README.md")
    adam = of_arm(part_b, "float32", "over_copy").mean()
    assert f"{adam:.1f} times that of copying the last frame. Under momentum" in page
    *nine, dead = sorted(of_arm(part_b, "float32_momentum", "over_copy"))
    assert f"{np.mean(nine):.1f} times in nine seeds" in page
    assert dead > 100
    first, below = _dose(part_b, "order", 1e6), _dose(part_b, "order", 1e4)
    change = 100 * first.mean_difference / first.control_mean
    assert f"which raises the loss by {change:.0f} %" in page
    ends = (100 * end / below.control_mean for end in (below.ci_low, below.ci_high))
    assert "one between {:+.1f} % and {:+.1f} % is not".format(*ends) in page


def test_paper_names_the_change_that_is_in_the_hypothesis_direction(part_b):
    page = words("docs/study/README.md")
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


def test_paper_counts_the_networks_that_noise_kills():
    page = words("docs/study/README.md")
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
    page = words("docs/study/README.md")
    runs = [r for s in part_b for r in s["runs"] if r["dose"] and r["dose"][0] == 1e8]
    never = {
        control: [r["plateau_left"] for r in runs if r["control"] == control]
        for control in ("float32", "float32_momentum")
    }
    adam, momentum = (f"{ends.count(None)} of {len(ends)}" for ends in never.values())
    assert f"{adam} runs under Adam and {momentum} under momentum never leave" in page


def test_paper_names_the_seed_that_order_noise_spoils(part_b):
    page = words("docs/study/README.md")
    compared = described_parts.against_control(part_b)
    ratios = next(c for c in compared if c.treatment == "order_10000_momentum").ratios
    *others, most = sorted(ratios)
    furthest = max(abs(ratio - 1) for ratio in others)
    assert f"one seed ends at {most:.0f} times its control's loss" in page
    assert f"others within {100 * furthest:.0f} % of theirs" in page


def test_readme_says_what_amplified_noise_does(part_b):
    page = words("README.md")
    for factor, said in ((1e6, "raises the loss by 27 % {}"), (1e4, "+0.5 % {}")):
        one = _dose(part_b, "order", factor)
        mean, low, high = (
            100 * value / one.control_mean
            for value in (one.mean_difference, one.ci_low, one.ci_high)
        )
        places = 0 if factor == 1e6 else 1
        assert f"{mean:.{places}f} %" in said
        assert said.format(f"[{low:+.{places}f}, {high:+.{places}f}]") in page
