"""Part F, curvature and a test function, in sentences.

The module `prose` says why.
"""

import pytest

from prednet_jax import records
from prednet_jax.studies import along_tables, judgement
from prednet_jax.studies.parts import PARTS
from tests.studies.prose import STUDY, of_arm, words


@pytest.fixture(scope="module")
def part_c():
    return judgement.read(PARTS["C"], STUDY / "C")


def test_paper_says_what_curvature_shows():
    page = words("docs/study/README.md")
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
    assert sum(one < 1 for one in reach) == 4
    assert "at four of the others it holds for less than one step" in page
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
    page = words("docs/study/README.md")
    *left, last = sorted(of_arm(part_c, "float32", "plateau_left"))
    assert last > 250 > left[-1]
    said = f"{len(left)} of {len(left) + 1} runs leave the plateau between updates"
    assert f"{said} {left[0]:.0f} and {left[-1]:.0f}, so the stop at 25" in page


def test_paper_says_when_noise_leaves_the_first_saddle_of_the_octopus():
    page = words("docs/study/README.md")
    groups = records.read_json(STUDY / "F" / "octopus.json")["groups"]
    none, element, shared, gaussian = (f"{g['escape_median']:.0f}" for g in groups)
    assert f"after {element} and {shared} steps instead of {none};" in page
    assert f"far larger, leaves it after {gaussian}." in page
