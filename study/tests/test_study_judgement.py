import dataclasses

import numpy as np
import pytest

from prednet_jax import errors, records
from study import judgement, seed_records
from study import tables as study_tables
from study.parts import PARTS
from study.seed_records import Run, SeedRecord

PART = PARTS["C"]


def record(seed, effects, spread, apart, part=PART):
    """One seed, as `seed_records.read` gives it."""
    rng = np.random.default_rng(seed)
    base = 1e-3 * (1 + 0.1 * rng.standard_normal())
    runs, noisy = [], []
    for treatment in part.of_seed(seed):
        arm, name = treatment.name, f"{treatment.name}.{treatment.draw}"
        scatter = 0 if arm == "float32" else spread * rng.standard_normal()
        loss = base * (1 + effects.get(arm, 0.0)) + 1e-3 * scatter
        if treatment.only_noise:
            noisy.append(name)
        far = {other: 0.0 if other == name else 2 * apart for other in noisy}
        runs.append(
            Run(
                arm=arm,
                draw=treatment.draw,
                control="float32",
                diverged_at=None,
                final_params_sha256=f"{seed}.{name}",
                distance_over_travelled={"3000": apart, "20": 0.0},
                final_distance_from=far if treatment.only_noise else {},
                **dict.fromkeys(judgement.ENDPOINTS, loss),
                plateau_left=500,
                parity=None if arm == "stale_targets" else 2000,
            )
        )
    about = {"git_commit": "abc", "versions": {"jax": "0"}, "programs": {}}
    about |= {"device": {"processor": "any"}}
    return SeedRecord(seed=seed, updates=3000, runs=tuple(runs), about=about)


def changed(found, arm, draws=(0,), **fields):
    """The records with other fields in those runs of an arm, of every seed."""

    def new(run):
        chosen = run.arm == arm and run.draw in draws
        return dataclasses.replace(run, **fields) if chosen else run

    assert all(arm in {run.arm for run in s.runs} for s in found)
    return [dataclasses.replace(s, runs=tuple(map(new, s.runs))) for s in found]


# Enough for a firm answer; counting all patterns of 40 signs takes seconds a contrast.
ENOUGH, FEW = PART.seeds[:28], PART.seeds[:10]


def study(effects=None, spread=1e-4, apart=0.3, seeds=FEW):
    effects = {"stale_targets": 0.3} | (effects or {})
    return [record(seed, effects, spread, apart) for seed in seeds]


def test_no_effect_is_refuted():
    found = judgement.judge(PART, study(seeds=ENOUGH))
    assert found["verdict"] == {"prednet": "refuted"}
    shown = [(row["treatment"], row["control"]) for row in found["contrasts"]]
    described = [pair for family in judgement.DESCRIBED for pair in family]
    assert shown == [judgement.QUESTION, *described]
    assert found["contrasts"][0]["scale"] == "log"
    null = next(row for row in found["contrasts"] if row["treatment"] == judgement.NULL)
    assert null["p_holm"] == null["p_value"]
    details = found["details"]["prednet"]
    assert details["answer"] == "no effect within the margin"
    assert details["status"] == "after looking: part C"
    mixed = details["mixed_model"]["estimate"]
    assert mixed == pytest.approx(details["estimate"], abs=1e-3)
    # From float32 the distance is 0.3, from the other fixed orders 0.6.
    moved = found["manipulations"]["reduction_order - float32"]
    assert moved == {"bits_differ": True, "distance_over_travelled": 0.3}
    check = found["manipulation"]["prednet"]
    assert check["distance_over_travelled"] == pytest.approx((0.3 + 2 * 0.6) / 3)
    names = [claim["claim"] for claim in found["claims"]]
    assert names == [
        "random order of sums changes the loss",
        "stale targets raise the loss",
        "float32's own order changes the loss against all other orders",
    ]
    assert found["claims"][1]["answer"] == "yes"
    assert all(claim["published"] is None for claim in found["claims"])
    table = study_tables.verdict(found)
    assert table.startswith("**no effect within the margin**, after looking: ")


def test_help_that_every_order_but_float32_gives_is_not_called_noise():
    fixed = ("reduction_order_run", "convolution_im2col")
    effects = dict.fromkeys(("reduction_order", *fixed), -0.06)
    judged = judgement.judge(PART, study(effects))
    # A quarter of the control group is float32, so a quarter of it is left.
    assert judged["details"]["prednet"]["estimate"] == pytest.approx(-0.015, abs=2e-3)
    assert judged["verdict"] != {"prednet": "supported"}
    other = judged["claims"][2]
    assert other["answer"] == "yes"
    assert other["estimate"] == pytest.approx(1 / 0.94 - 1, abs=0.01)


def test_help_is_supported_if_runs_have_separated():
    judged = judgement.judge(PART, study({"reduction_order": -0.06}))
    assert judged["verdict"] == {"prednet": "supported"}
    judged = judgement.judge(PART, study(apart=0.01))
    assert judged["verdict"] == {"prednet": "inconclusive"}
    assert judged["details"]["prednet"]["answer"] == "cannot tell"


def test_a_diverged_run_takes_its_seed_out():
    found = study()
    found[3:4] = changed(found[3:4], "reduction_order", **DIVERGED)
    judged = judgement.judge(PART, found)
    assert judged["verdict"] == {"prednet": "inconclusive"}
    sizes = {row["treatment"]: row["n"] for row in judged["contrasts"][1:3]}
    assert sizes == {"reduction_order": 9, "reduction_order_run": 10}
    assert judged["details"]["prednet"]["excluded"] == 1
    # A moment that is never reached counts as after the last update.
    (row,) = judgement.contrasts(found, "parity", [("stale_targets", "float32")])
    assert (row.treatment_mean, row.n) == (3001, 10)


DIVERGED = dict.fromkeys((*judgement.ENDPOINTS, *judgement.MOMENTS))
DIVERGED |= {"diverged_at": 17}


@pytest.mark.parametrize(
    ("arm", "diverged", "others"), [("stale_targets", 10, 10), ("float32", 0, 0)]
)
def test_an_arm_that_diverges_in_every_seed_leaves_all_rows(arm, diverged, others):
    found = changed(study(), arm, **DIVERGED)
    table = study_tables.against_control(found, {})
    (row,) = [line for line in table.splitlines() if "stale_targets" in line]
    start = f"| stale_targets - float32 | 0 | {diverged} | 0, 0 | - | - | - |"
    assert row.startswith(start)
    assert f"| reduction_order - reduction_order_run | {others} |" in table


def write(folder, seed):
    about = dict.fromkeys(seed_records.DECIDES) | seed.about
    runs = [dataclasses.asdict(run) for run in seed.runs]
    record = about | {"seed": seed.seed, "updates": seed.updates, "runs": runs}
    folder.mkdir(exist_ok=True)
    records.write_json(folder / f"seed_{seed.seed}.json", record)
    # Random orders have a tenth more in the curves.
    curves = [
        {"arm": run.arm, "draw": run.draw, "update": update}
        | {judgement.PRIMARY: 1.1 if run.arm == "reduction_order" else 1.0}
        for run in seed.runs
        for update in range(600, 3001, 600)
    ]
    records.write_bytes(folder / f"seed_{seed.seed}.csv", records.csv_bytes(curves))


def test_records_are_read_whole_or_not_at_all(tmp_path):
    for seed in study(seeds=PART.seeds[:2]):
        write(tmp_path, seed)
    assert len(seed_records.read(PART, tmp_path)) == 2
    path = tmp_path / f"seed_{PART.seeds[1]}.json"
    cut = records.read_json(path)
    records.write_json(path, cut | {"threads": 4})
    with pytest.raises(errors.UserError, match="threads"):
        seed_records.read(PART, tmp_path)
    records.write_json(path, cut | {"runs": cut["runs"][:-1]})
    with pytest.raises(errors.UserError, match="other runs"):
        seed_records.read(PART, tmp_path)


def test_a_planned_part_has_its_answer(tmp_path, monkeypatch):
    part = dataclasses.replace(PARTS["H"], seeds=range(8600, 8620))
    monkeypatch.setitem(PARTS, "H", part)
    monkeypatch.setattr(study_tables, "JUDGED", ("H",))
    for others in ("DESCRIBED", "OTHERS"):
        monkeypatch.setattr(study_tables, others, ())
    effects = {"stale_targets": 2.0, "order_1e+07": 0.5, "planted_rate_0.4": 0.04}
    effects["planted_rate_0.85"] = 0.01
    made = [record(s, effects, 1e-6, 0.3, part) for s in part.seeds]
    for seed in made:
        with pytest.raises(errors.UserError, match="seeds; expected all"):
            study_tables.Study(tmp_path).parts["H"]
        write(tmp_path / "H", seed)
    makers = study_tables.makers(study_tables.Study(tmp_path))
    redraws = makers["study-H-redraws"]()
    assert redraws.count("\n") == 1 + 5
    assert "| 2401 to 3000 | 10.0 % | 10.0 % |" in redraws
    answer = makers["study-H-verdict"]()
    assert "first run: part H; confirmed by its controls. In verdict.json" in answer
    assert answer.count("`noise raises the loss`: found |") == 3
    assert "planted_rate_0.85, whose answer must be `above 0`: found |" in answer
    assert "| stale_targets - float32 | 20 |" in makers["study-H-contrasts"]()
    endpoints = makers["study-H-endpoints"]()
    assert "`held_out_loss`; random against fixed orders" in endpoints
    assert "of 80 |" in makers["study-H-separation"]()
    assert makers["H.noise"]().startswith(("+0.0", "-0.0"))
    assert makers["H.redraws"]() in answer
    weak = changed(made, "stale_targets", last_frame_loss=1e-3)
    status = judgement.judge(part, weak)["details"]["prednet"]["status"]
    assert status.endswith("unconfirmed, by stale_targets")


def test_a_network_that_has_learned_is_judged_by_its_training_loss():
    part = PARTS["H-windows"]
    effects = {"stale_targets": 2.0, "planted_rate_0": 0.04}
    seeds = [record(seed, effects, 1e-4, 0.3, part) for seed in part.seeds]
    # The last frame, which other parts are judged by, says the opposite of everything.
    for arm, loss in (("reduction_order", 1), ("planted_rate_0", 1e-9)):
        seeds[:12] = changed(seeds[:12], arm, last_frame_loss=loss)
    found = judgement.judge(part, seeds)
    assert found["design"]["metric"] == {"prednet": "window_loss"}
    assert "confirmed by its controls" in found["details"]["prednet"]["status"]
    assert found["details"]["prednet"]["answer"] == "no effect within the margin"


def test_a_planted_effect_is_compared_with_the_fixed_orders_of_another_part():
    effects, some = {"planted_rate_0.2": 0.04}, PARTS["J-planted"].seeds[:12]
    others = [record(s, effects, 1e-4, 0.3, PARTS["J-planted"]) for s in some]
    others = changed(others, "float32", last_frame_loss=1.0)
    of_j = [record(seed, {}, 1e-4, 0.3, PARTS["J"]) for seed in PARTS["J"].seeds]
    both = judgement.merge_arms(of_j, others)
    assert len(both) == 12
    assert both[0].runs == (*of_j[0].runs, *others[0].runs[1:])
    answered = judgement.answer(both, treatment="planted_rate_0.2")
    assert answered.answer == "noise raises the loss"
    # The records of these tests name a run by seed, arm and draw.
    assert judgement.same_bits(of_j, others, "float32") == 12
    others[0].about["initial_params_sha256"] = "other"
    with pytest.raises(errors.UserError, match="seed 8740 differs"):
        judgement.merge_arms(of_j, others)


def test_the_ends_of_a_plateau_are_ranked():
    """Four random orders before five others: one way in 126; "never" is last."""
    seeds = [record(8401, {}, 0.1, 0.5, PARTS["D-plateau"])]
    found = [
        changed(seeds, "reduction_order", range(4), plateau_left=update)
        for update in (400, 500, None)
    ]
    assert [study_tables.plateau_p(one) for one in found] == ["0.0079", "1", "1"]
    assert "| never, never, never, never |" in study_tables.plateau_ends(found[-1])
