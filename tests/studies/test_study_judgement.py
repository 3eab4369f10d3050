"""From records of the long trainings to the verdict; the tests write the records."""

import numpy as np
import pytest

from prednet_jax import errors, records, statistics
from prednet_jax.studies import (
    agreement,
    described_parts,
    described_tables,
    judgement,
    parts,
    seed_records,
    study_tables,
)
from prednet_jax.studies.parts import PARTS

PART = PARTS["C"]
BESIDE = [pair for family in judgement.BESIDE for pair in family]
CONTROLS = {
    "theory_matched": True,
    "units_separated": True,
    "noise_can_help": statistics.Check(passed=True, figure="shown"),
}
DOSES = [
    {
        "seed": seed,
        "runs": [
            {"arm": "float32", "control": "float32", "dose": None}
            | {"last_frame_loss": 1.0 + seed / 100, "draw": 0},
            {"arm": "isotropic_100", "control": "float32", "dose": [100.0, "isotropic"]}
            | {"last_frame_loss": 1.5 + seed / 100, "draw": 0},
        ],
    }
    for seed in range(10)
]


def record(seed, effects, spread, apart):
    """One seed, as `follow` writes it."""
    rng = np.random.default_rng(seed)
    base = 1e-3 * (1 + 0.1 * rng.standard_normal())
    runs, noisy = [], []
    for treatment in PART.of_seed(seed):
        arm, name = treatment.arm, f"{treatment.arm}.{treatment.draw}"
        scatter = 0 if arm == "float32" else spread * rng.standard_normal()
        loss = base * (1 + effects.get(arm, 0.0)) + 1e-3 * scatter
        if treatment.noise != "none":
            noisy.append(name)
        runs.append(
            {
                "arm": arm,
                "draw": treatment.draw,
                "control": "float32",
                "dose": None,
                "diverged_at": None,
                "final_params_sha256": f"{seed}.{name}",
                "distance_over_travelled": {"3000": apart, "20": 0.0},
                "final_distance_from": {
                    other: 0.0 if other == name else 2 * apart for other in noisy
                }
                if treatment.noise != "none"
                else {},
                **dict.fromkeys(judgement.ENDPOINTS, loss),
                "plateau_left": 500,
                "parity": None if arm == "stale_targets" else 2000,
            }
        )
    about = {"git_commit": "abc", "versions": {"jax": "0"}, "programs": {}}
    about |= {"updates": 3000, "device": {"processor": "any"}}
    return about | {"seed": seed, "runs": runs}


# Enough for a firm answer; counting all patterns of 40 signs takes seconds a contrast.
ENOUGH, FEW = PART.seeds[:28], PART.seeds[:10]


def study(effects=None, spread=1e-4, apart=0.3, seeds=FEW):
    effects = {"stale_targets": 0.3} | (effects or {})
    return [record(seed, effects, spread, apart) for seed in seeds]


def verdict(found, **controls):
    return judgement.judge(found, DOSES, CONTROLS | controls)


def test_no_effect_is_refuted():
    found = verdict(study(seeds=ENOUGH))
    assert found["verdict"] == {"prednet": "refuted"}
    shown = [(row["treatment"], row["control"]) for row in found["contrasts"]]
    assert shown == [*judgement.QUESTIONS, *BESIDE]
    null = next(row for row in found["contrasts"] if row["treatment"] == judgement.NULL)
    assert null["p_holm"] == null["p_value"]
    details = found["details"]["prednet"]
    assert [q["result"]["p_holm_family"] for q in details["questions"]] == [
        "the 3 contrasts in question"
    ] * 3
    # Random against fixed order has a distance of its own.
    assert found["manipulations"]["reduction_order - float32"] == {
        "bits_differ": True,
        "distance_over_travelled": 0.3,
    }
    fixed = found["manipulations"]["reduction_order - reduction_order_run"]
    assert fixed["distance_over_travelled"] == pytest.approx(0.6)


def test_help_is_supported():
    help_ = {"reduction_order": -0.06, "reduction_order_run": -0.06}
    assert verdict(study(help_))["verdict"] == {"prednet": "supported"}


@pytest.mark.parametrize(
    ("found", "controls", "lacks"),
    [
        (study(apart=0.05), {}, "have not separated"),
        (study({"stale_targets": -0.1}), {}, "stale targets raise the loss"),
        (study({"convolution_im2col": 0.05}), {}, "A/A null shows a difference"),
        (study(), {"noise_can_help": None}, "not run: noise separates"),
        (study(), {}, "so the excess may be"),
    ],
)
def test_what_is_not_shown_is_inconclusive(found, controls, lacks):
    judged = verdict(found, **controls)
    assert judged["verdict"] == {"prednet": "inconclusive"}
    assert lacks in " ".join(judged["details"]["prednet"]["unmet_for_refuted"])


def test_without_part_b_the_gaussian_control_is_missing():
    judged = judgement.judge(study(), [], CONTROLS)
    lacking = " ".join(judged["details"]["prednet"]["unmet_for_refuted"])
    assert "not run: largest Gaussian rung" in lacking


def test_a_diverged_run_takes_its_seed_out():
    found = study()
    run = next(r for r in found[3]["runs"] if r["arm"] == "reduction_order")
    for name in (*judgement.ENDPOINTS, *judgement.MOMENTS):
        del run[name]
    run["diverged_at"] = 17
    judged = verdict(found)
    assert judged["verdict"] == {"prednet": "inconclusive"}
    sizes = {row["treatment"]: row["n"] for row in judged["contrasts"][:2]}
    assert sizes == {"reduction_order": 9, "reduction_order_run": 10}


def test_a_moment_that_is_never_reached_counts_as_after_the_last_update():
    found = study()
    parity = judgement.all_contrasts(found, "parity")
    made = judgement.describe(found, "parity", parity)
    assert made["manipulation"]["prednet"]["bits_differ"]
    rows = {row["treatment"]: row for row in made["contrasts"]}
    assert rows["stale_targets"]["treatment_mean"] == 3001
    assert rows["stale_targets"]["n"] == 10
    assert "| reduction_order - float32 | 10 |" in study_tables.other_contrasts(made)


@pytest.mark.parametrize(
    ("effects", "by", "begins"),
    [
        (
            {"reduction_order": -0.06},
            ("reduction_order - float32", "reduction_order - reduction_order_run"),
            "Supported: noise makes",
        ),
        (
            {"reduction_order_run": -0.06},
            ("reduction_order_run - float32",),
            "Supported for another order of sums, not for noise that changes",
        ),
        (
            {"reduction_order": -0.06, "reduction_order_run": -0.06},
            ("reduction_order - float32", "reduction_order_run - float32"),
            "Supported for another order of sums, not for noise that changes",
        ),
    ],
)
def test_help_that_a_fixed_order_gives_too_is_not_called_noise(effects, by, begins):
    judged = verdict(study(effects))
    assert judged["verdict"] == {"prednet": "supported"}
    details = judged["details"]["prednet"]
    assert details["supported_by"] == by
    assert details["sentence"].startswith(begins)


def test_an_inconclusive_verdict_lists_what_it_lacks():
    judged = verdict(study({"reduction_order_run": 0.06}))
    details = judged["details"]["prednet"]
    lines = study_tables.verdict(judged).splitlines()
    assert lines[0] == "**inconclusive**"
    for wanted in ("refuted", "supported"):
        (head,) = [line for line in lines if line.startswith(f"What `{wanted}` lacks")]
        start = lines.index(head) + 2
        for offset, one in enumerate(details[f"unmet_for_{wanted}"]):
            assert lines[start + offset] == f"- {one}"
    assert lines[-1].endswith("This is about emulated noise only: no GPU was used.")
    helped = study_tables.verdict(verdict(study({"reduction_order": -0.06})))
    assert helped.startswith("**supported**. Supported: noise makes prednet")


def test_a_fixed_order_that_does_harm_makes_no_help_of_the_random_one():
    judged = verdict(study({"reduction_order_run": 0.06}))
    assert judged["verdict"] == {"prednet": "inconclusive"}
    assert judged["contrasts"][2]["verdict"] == "lower loss"


def diverge(run):
    for name in (*judgement.ENDPOINTS, *judgement.MOMENTS):
        run.pop(name, None)
    run["diverged_at"] = 17


def test_any_diverged_run_keeps_a_firm_answer_away():
    found = study(seeds=ENOUGH)
    diverge(next(r for r in found[3]["runs"] if r["arm"] == "stale_targets"))
    judged = verdict(found)
    assert judged["verdict"] == {"prednet": "inconclusive"}
    assert (
        "a run diverged on 1 of the seeds" in judged["details"]["prednet"]["sentence"]
    )


@pytest.mark.parametrize(
    ("arm", "diverged", "others"), [("stale_targets", 10, 10), ("float32", 0, 0)]
)
def test_an_arm_that_diverges_in_every_seed_leaves_all_rows(arm, diverged, others):
    found = study()
    for one in found:
        diverge(next(r for r in one["runs"] if r["arm"] == arm))
    table = described_tables.against_control(found, {})
    (row,) = [line for line in table.splitlines() if "stale_targets" in line]
    start = f"| stale_targets - float32 | 0 | {diverged} | 0, 0 | - | - | - |"
    assert row.startswith(start)
    assert f"| reduction_order - reduction_order_run | {others} |" in table


def test_three_seeds_have_a_range_and_no_interval():
    found = study(seeds=PART.seeds[:3])
    for one, factor in zip(found, (0.9, 1.3, 1.1), strict=True):
        runs = {run["arm"]: run for run in one["runs"]}
        base = runs["float32"]["last_frame_loss"]
        runs["stale_targets"]["last_frame_loss"] = factor * base
    table = described_tables.against_control(found, {})
    (row,) = [line for line in table.splitlines() if "stale_targets" in line]
    cells = row.split(" | ")
    assert cells[5] == "1.100 (0.900 to 1.300)"
    assert "[" not in cells[6]
    assert float(cells[6]) > 0


@pytest.mark.parametrize(("updates", "cell"), [(250, "-"), (251, "+100 %")])
def test_a_part_as_short_as_the_mean_of_parity_has_no_parity(updates, cell):
    found = study(seeds=PART.seeds[:3])
    for one in found:
        one["updates"] = updates
        for run in one["runs"]:
            reached = updates > 250 and run["arm"] == "float32"
            run["parity"] = 126 if reached else None
    lines = described_tables.other_endpoints(found).splitlines()
    (row,) = [line for line in lines if line.startswith("| stale_targets -")]
    assert row.strip("| ").split(" | ")[-1] == cell


def test_one_seed_that_decides_the_mean_does_not_decide_the_median():
    found = study()
    for run in found[0]["runs"]:
        run["last_frame_loss"] *= 1000
        if run["arm"] == "reduction_order":
            run["last_frame_loss"] *= 3
    (one,) = [
        one
        for one in described_parts.against_control(found)
        if (one.treatment, one.control) == ("reduction_order", "float32")
    ]
    assert one.result.treatment_mean > 2 * one.result.control_mean
    assert np.median(one.ratios) == pytest.approx(1, abs=0.02)
    table = described_tables.against_control(found, {"reduction_order": 2})
    (row,) = [t for t in table.splitlines() if "| reduction_order - float32 |" in t]
    cells = row.split(" | ")
    assert cells[1:4] == ["10", "0", "2, 0"]
    assert float(cells[4]) > 2
    assert float(cells[5].split()[0]) == pytest.approx(1, abs=0.02)


def test_runs_without_gradient_are_counted_by_arm(tmp_path):
    rows = ["arm,draw,update,grad_norm", "copy_last_frame,0,50,"]
    rows += [f"a,{draw},25,0\na,{draw},50,{end}" for draw, end in enumerate("010")]
    rows += ["b,0,25,0", "b,0,50,1e-9"]
    paths = [tmp_path / f"seed_{seed}.json" for seed in (1, 2)]
    for path in paths:
        path.with_suffix(".csv").write_text("\n".join(rows) + "\n")
    assert seed_records.without_gradient(paths) == {"a": 4}


def test_the_other_endpoints_are_in_percent_of_the_control():
    found = study()
    for run in (run for one in found for run in one["runs"]):
        stale = run["arm"] == "stale_targets"
        run["over_copy"] = 3.0 if stale else 2.0
        run["held_out_loss"] = 1.0 if stale else 2.0
        run["parity"] = None if stale else 1000
    lines = described_tables.other_endpoints(found).splitlines()
    names = ["arm", "window_loss", "over_copy", "held_out_loss", "plateau_left"]
    assert lines[0] == f"| {' | '.join([*names, 'parity'])} |"
    (row,) = [line for line in lines if line.startswith("| stale_targets -")]
    cells = row.strip("| ").split(" | ")
    assert cells[2:4] == ["+50 % [+50, +50]", "-50 % [-50, -50]"]
    assert cells[5] == "+200 % [+200, +200]"


def test_a_control_that_diverged_in_every_seed_has_no_first_rung():
    found = dose_study({"order": {1.0: 0.0, 1e8: 0.1}})
    for one in found:
        one["runs"][0]["control"] = one["runs"][0]["arm"] = "float32_momentum"
        for run in one["runs"]:
            run["control"] = "float32_momentum"
        diverge(one["runs"][0])
        other = {"arm": "float32", "control": "float32", "dose": None, "draw": 0}
        one["runs"].append(other | {"diverged_at": None, "last_frame_loss": 1.0})
    first = described_parts.first_rung(
        found, "float32_momentum", "order", "last_frame_loss"
    )
    assert (first.factor, first.direction) == (None, 0)


def test_a_diverged_largest_rung_is_not_replaced_by_a_smaller_one():
    doses = dose_study({"isotropic": {1e4: 0.0, 1e8: None}})
    assert judgement.ladder(doses) == ()
    judged = judgement.judge(study(), doses, CONTROLS)
    lacking = " ".join(judged["details"]["prednet"]["unmet_for_refuted"])
    assert "not run: largest Gaussian rung" in lacking


def dose_study(effects):
    """Part B: the effect on the loss by kind and factor; None: every run diverged."""
    rng = np.random.default_rng(0)
    found = []
    for seed in range(10):
        base = 1.0 + seed / 100
        run = {"control": "float32", "draw": 0, "diverged_at": None}
        runs = [run | {"arm": "float32", "dose": None, "last_frame_loss": base}]
        for kind, by_factor in effects.items():
            for factor, effect in by_factor.items():
                one = run | {"arm": f"{kind}_{factor:g}", "dose": [factor, kind]}
                shift = 0.0 if effect in (None, "half") else effect
                loss = base + shift + 1e-3 * rng.standard_normal()
                runs.append(one | {"last_frame_loss": loss})
                if effect is None or (effect == "half" and seed % 2):
                    diverge(runs[-1])
        found.append({"seed": seed, "updates": 500, "runs": runs})
    return found


@pytest.mark.parametrize(
    ("effects", "factor", "direction"),
    [
        ({1.0: 0.0, 1e4: 0.0, 1e8: 0.0}, None, 0),
        ({1.0: 0.0, 1e4: 0.1, 1e8: 0.2}, 1e4, 1),
        ({1.0: -0.1, 1e4: 0.1, 1e8: 0.2}, 1e4, 1),
        ({1.0: -0.1, 1e4: -0.1, 1e8: -0.2}, 1.0, -1),
        ({1.0: 0.1, 1e4: 0.0, 1e8: None}, 1e8, 1),
        ({1.0: 0.0, 1e4: 0.2, 1e8: "half"}, 1e4, 1),
    ],
)
def test_the_first_rung_is_where_all_larger_ones_change_the_loss(
    effects, factor, direction
):
    found = dose_study({"order": effects})
    one = described_parts.first_rung(found, "float32", "order", "last_frame_loss")
    assert (one.factor, one.direction) == (factor, direction)


def test_kinds_are_compared_at_equal_factors():
    effects = {1e4: 0.0, 1e8: 0.1}
    found = dose_study({"order": {1e4: 0.0, 1e8: 0.5}, "isotropic": effects})
    small, large = described_parts.against_isotropic(found, "float32")
    assert (small.treatment, small.control) == ("order_10000", "isotropic_10000")
    assert small.p_holm > 0.05
    assert large.mean_difference == pytest.approx(0.4, abs=1e-2)
    assert large.p_holm < 0.05


def test_separation_has_a_median_for_each_update():
    found = study()
    found[0]["runs"][1]["distance_over_travelled"] = {"3000": 0.01, "20": 0.0}
    lines = described_tables.separation(found).splitlines()
    assert lines[0].startswith("| arm | 20 | 3000 | runs at 0.1 or more at the end |")
    (row,) = [line for line in lines if line.startswith("| reduction_order |")]
    assert row == "| reduction_order | 0 | 0.30 | 19 of 20 |"


def test_records_are_read_whole_or_not_at_all(tmp_path):
    for one in study(seeds=PART.seeds[:2]):
        about = {name: None for name in seed_records.DECIDES} | one
        records.write_json(tmp_path / f"seed_{one['seed']}.json", about)
    assert len(judgement.read(PART, tmp_path)) == 2
    path = tmp_path / f"seed_{PART.seeds[1]}.json"
    cut = records.read_json(path)
    records.write_json(path, cut | {"threads": 4})
    with pytest.raises(errors.UserError, match="threads"):
        judgement.read(PART, tmp_path)
    records.write_json(path, cut | {"runs": cut["runs"][:-1]})
    with pytest.raises(errors.UserError, match="other runs"):
        judgement.read(PART, tmp_path)


def test_the_contrasts_in_question_are_arms_of_the_part():
    arms = {treatment.arm for treatment in PART.treatments}
    assert {arm for pair in judgement.QUESTIONS for arm in pair} <= arms
    assert {arm for pair in BESIDE for arm in pair} <= arms
    assert parts.CONTROL == "float32"


def test_seeds_made_again_agree_or_differ():
    published = study(spread=1e-2)
    error = max(
        max(a / b, b / a)
        for a, b in (
            (runs["convolution_im2col"], runs["float32"])
            for one in published
            for runs in [{r["arm"]: r["last_frame_loss"] for r in one["runs"]}]
        )
    )

    def judged(**changes):
        again = {**published[0], "runs": [dict(r) for r in published[0]["runs"]]}
        again["runs"][1].update(changes)
        return agreement.of_seeds([again], published)[1]

    loss = published[0]["runs"][1]["last_frame_loss"]
    assert judged().bits
    assert judged().error == pytest.approx(error)
    assert judged(final_params_sha256="new", last_frame_loss=loss * error * 0.999).holds
    assert not judged(
        final_params_sha256="new", last_frame_loss=loss * error * 1.01
    ).holds
    assert not judged(final_params_sha256="new", last_frame_loss=None).holds
    # A null that diverged does not make everything agree.
    run = next(r for r in published[4]["runs"] if r["arm"] == "convolution_im2col")
    diverge(run)
    assert np.isfinite(judged().error)
    with pytest.raises(errors.UserError, match="expected part C"):
        agreement.of_seeds(DOSES, DOSES)
    with pytest.raises(errors.UserError, match="seed"):
        agreement.of_seeds([{**published[0], "seed": 1}], published)
