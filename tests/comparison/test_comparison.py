"""The comparison: its design, how it reads runs, and when it refuses."""

import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from prednet_jax import comparison, device, noise, records, statistics, tasks
from prednet_jax.comparison import Role, contrasts, execution, judgement, reading
from prednet_jax.config import AutoencoderConfig, PredNetConfig
from prednet_jax.errors import UserError
from prednet_jax.report.tables import arms_list, text_table

CONTROLS = {"theory_matched": True, "units_separated": True}
PREDNET = tasks.of(PredNetConfig(channels=(3, 6, 12), height=24, width=32))
AUTOENCODER = tasks.of(AutoencoderConfig())
BOTH = (PREDNET, AUTOENCODER)


def design(root, tasks=BOTH, **options):
    return comparison.Design(root=root, script="train.py", tasks=tasks, **options)


def compare(*arguments):
    """The script, in a process of its own."""
    script = Path(__file__).parents[2] / "experiments" / "compare_backends.py"
    return subprocess.run(
        [sys.executable, str(script), *arguments],
        capture_output=True,
        text=True,
        check=False,
    )


def write_runs(job, losses, *, weights="same", end=None):
    """One run a seed whose loss is constant at `losses[seed]`."""
    for seed, loss in zip(job.seeds, losses, strict=True):
        folder = job.run_folder(seed)
        folder.mkdir(parents=True)
        records.write_json(
            folder / records.MANIFEST,
            {
                "model": job.model,
                "seed": seed,
                "initial_params_sha256": f"{weights}{seed}",
                "data_order_sha256": f"data{seed}",
                "final_params_sha256": end or f"{job.arm.name}{seed}",
                "noise": "none",
                "device": {"threads": 2, "kind": "some kind"},
                "measured_parallelism": 1.9,
                "versions": {"jax": "0"},
                "git_commit": "abc",
            },
        )
        writer = records.MetricsWriter(folder)
        for i in range(10):
            writer.write(update=i + 1, loss=float(loss), seconds=0.1)
        writer.close()


def simulated(
    root,
    *,
    treatment=0.0,
    stale=0.02,
    null=0.0,
    matched=None,
    rung=0.03,
    rungs=("gaussian_2.7e-7", "gaussian_1"),
):
    """A comparison whose arms differ from the control by known amounts.

    `matched` is the effect of gaussian_2.7e-7; None: that of the treatment.
    """
    plan = design(root, (PREDNET,), arms=("threads_1", *rungs, "stale_targets"))
    rng = np.random.default_rng(0)
    effect = {
        "float32": 0.0,
        "reduction_order": treatment,
        "threads_1": null,
        "gaussian_2.7e-7": treatment if matched is None else matched,
        "gaussian_1": rung,
        "stale_targets": stale,
    }
    for job in plan.pilot() + plan.runs():
        base = 0.1 + 0.01 * np.random.default_rng(job.seeds[0]).random(len(job.seeds))
        noise = 0.0 if job.arm.name in ("float32", "threads_1") else 1e-4
        jitter = noise * rng.standard_normal(len(job.seeds))
        write_runs(job, base + effect[job.arm.name] + jitter)
    return plan


def judged(plan, stall=None):
    pilots = {t.name: comparison.fix_margin(plan, t) for t in plan.tasks}
    asked = []

    def find_stall(job):
        asked.append((job.model, job.arm.name))
        return stall

    return comparison.judge(plan, pilots, CONTROLS, find_stall), asked


def test_no_effect_is_refuted(tmp_path):
    verdict, asked = judged(simulated(tmp_path))
    assert verdict["verdict"] == {"prednet": "refuted"}
    assert asked == []
    rows = {row["treatment"]: row for row in verdict["contrasts"]}
    assert rows["stale_targets"]["verdict"] == "higher loss"
    assert rows["reduction_order"]["verdict"] == "equivalent"
    assert rows["threads_1"]["bitwise_equal"] == 0
    families = {row["p_holm_family"] for row in verdict["contrasts"]}
    assert families == {"all 5 contrasts of prednet"}
    in_question = verdict["details"]["prednet"]["emulated"]
    assert in_question["p_holm_family"] == "the 1 contrast in question"
    assert in_question["p_holm"] == rows["reduction_order"]["p_value"]
    assert "emulated noise only" in verdict["details"]["prednet"]["sentence"]


def diverge(job, seed):
    """Makes the last loss of a run one that is not finite."""
    path = job.run_folder(seed) / records.METRICS
    lines = path.read_text().splitlines()
    lines[-1] = lines[-1].replace('"loss": 0', '"loss": null, "was": 0')
    path.write_text("\n".join(lines) + "\n")


def test_a_diverged_seed_of_the_pilot_is_left_out(tmp_path):
    plan = simulated(tmp_path)
    whole = comparison.fix_margin(plan, PREDNET).margin
    jobs = [job for job in plan.pilot() if job.arm.name == "stale_targets"]
    diverge(jobs[0], jobs[0].seeds[1])
    pilot = comparison.fix_margin(plan, PREDNET)
    margin = pilot.margin
    assert margin.n_control == margin.n_stale == whole.n_control - 1
    assert np.isfinite([margin.value, pilot.sd]).all()
    lost = {"seed": jobs[0].seeds[1], "reason": "loss not finite in stale_targets"}
    assert pilot.left_out == (lost,)
    recorded = judged(plan)[0]["margins"]["prednet"]
    assert recorded["pilot_left_out"] == [lost]
    assert f"without seed {lost['seed']} ({lost['reason']})" in recorded["origin"]
    for seed in jobs[0].seeds[2:]:
        diverge(jobs[0], seed)
    with pytest.raises(ValueError, match="1 of 4 seeds ended with a finite loss"):
        comparison.fix_margin(plan, PREDNET)


def test_a_diverged_seed_of_the_question_leaves_it_open(tmp_path):
    """Whether a seed diverges may depend on the noise: no firm answer without it."""
    plan = simulated(tmp_path)
    job = next(j for j in plan.runs() if j.arm.name == "reduction_order")
    diverge(job, job.seeds[3])
    verdict, _ = judged(plan)
    assert verdict["verdict"] == {"prednet": "inconclusive"}
    for lacks in ("unmet_for_refuted", "unmet_for_supported"):
        assert any("diverged" in s for s in verdict["details"]["prednet"][lacks])


def test_the_gpu_is_judged_against_its_own_default_only():
    row = statistics.paired([0.1, 0.2, 0.3], [0.1, 0.2, 0.25], margin=0.1)
    treatment = comparison.arm("gpu_deterministic")
    for name, counts in (("gpu", True), ("float32", False)):
        one = contrasts.Contrast(treatment, comparison.arm(name), row, {}, ())
        assert (judgement._gpu([one]) is not None) == counts


def test_a_gpu_arm_names_its_device(tmp_path, monkeypatch):
    monkeypatch.setattr(device, "gpu_found", lambda: "some GPU")
    plan = design(tmp_path, (PREDNET,), arms=("gpu",), seeds=2)
    for job in plan.pilot() + plan.runs():
        base = 0.02 if job.arm.name == "stale_targets" else 0.0
        write_runs(job, base + 0.01 * np.arange(len(job.seeds)))
    verdict, _ = judged(plan)
    devices = {arm["name"]: arm.get("gpu") for arm in verdict["arms"]}
    assert devices == {"float32": None, "reduction_order": None, "gpu": "some kind"}
    assert "on some kind" in arms_list(verdict["arms"])


def test_a_diverged_run_is_left_out_of_its_contrast_and_named(tmp_path):
    plan = simulated(tmp_path)
    whole, _ = judged(plan)
    job = next(j for j in plan.runs() if j.arm.name == "gaussian_1")
    diverge(job, job.seeds[3])
    verdict, _ = judged(plan)
    assert verdict["excluded"] == [
        {
            "model": "prednet",
            "treatment": "gaussian_1",
            "control": "float32",
            "seed": job.seeds[3],
            "reason": "loss not finite in gaussian_1",
        }
    ]
    assert "not finite" in verdict["design"]["exclusion_rule"]
    rows, before = (
        {row["treatment"]: row for row in v["contrasts"]} for v in (verdict, whole)
    )
    assert rows["gaussian_1"]["n"] == before["gaussian_1"]["n"] - 1
    assert rows["gaussian_1"]["n_excluded"] == 1
    # In both arms: the control's mean is of the same nine seeds.
    assert rows["gaussian_1"]["control_mean"] != before["gaussian_1"]["control_mean"]
    assert rows["stale_targets"]["n"] == before["stale_targets"]["n"]
    assert f"left out: seed {job.seeds[3]} of gaussian_1" in text_table(verdict)


def test_predictions_are_compared_pixel_by_pixel(tmp_path):
    plan = simulated(tmp_path)
    for job in plan.runs():
        if job.arm.name in ("float32", "reduction_order"):
            for seed in job.seeds:
                predictions = np.full((2, 2, 2, 3), 0.5, np.float32)
                if job.arm.name != "float32":
                    predictions[0, 0, 0, 0] = 0.75
                np.savez(job.run_folder(seed) / "examples.npz", predictions=predictions)
    verdict, _ = judged(plan)
    rows = {row["treatment"]: row["variability"] for row in verdict["contrasts"]}
    assert rows["reduction_order"] == pytest.approx(
        {"v_ermv": 0.5 / 24, "v_c": 1 / 24, "l2": 0.25, "churn": 1 / 24}
    )
    assert rows["stale_targets"] is None


def test_the_opposite_can_be_shown(tmp_path):
    """Noise that helps, at a stall with negative curvature, is supported."""
    stall = statistics.Stall(
        stalled=True, negative_curvature=True, small_projection=True
    )
    verdict, asked = judged(simulated(tmp_path, treatment=-0.02), stall)
    assert asked == [("prednet", "float32")]
    assert verdict["verdict"] == {"prednet": "supported"}


def test_help_without_curvature_is_not_enough(tmp_path):
    verdict, asked = judged(simulated(tmp_path, treatment=-0.02))
    assert asked
    assert verdict["verdict"] == {"prednet": "inconclusive"}


def test_help_that_gaussian_noise_of_its_size_does_not_give_is_not_enough(tmp_path):
    """The matched rung stands for noise of that size, whatever larger rungs do."""
    stall = statistics.Stall(
        stalled=True, negative_curvature=True, small_projection=True
    )
    for matched, rungs, lacks in (
        (0.0, ("gaussian_2.7e-7", "gaussian_1"), "of the same size does not reproduce"),
        (None, ("gaussian_1",), "of the same size was not run"),
    ):
        plan = simulated(
            tmp_path / str(len(rungs)),
            treatment=-0.02,
            matched=matched,
            rung=-0.03,
            rungs=rungs,
        )
        verdict, _ = judged(plan, stall)
        assert verdict["verdict"] == {"prednet": "inconclusive"}
        (unmet,) = verdict["details"]["prednet"]["unmet_for_supported"]
        assert lacks in unmet


def test_the_matched_rung_is_none_of_the_ladders(tmp_path):
    """It is no control of sensitivity, and its help is no help of more noise."""
    plan = simulated(tmp_path, matched=-0.02, rungs=("gaussian_2.7e-7",))
    verdict, _ = judged(plan)
    details = verdict["details"]["prednet"]
    assert verdict["verdict"] == {"prednet": "inconclusive"}
    assert details["unmet_for_refuted"] == (
        "positive control not run: detection of the largest Gaussian rung",
    )
    assert details["more_noise_helps"] == ()


def test_a_blind_instrument_refutes_nothing(tmp_path):
    verdict, _ = judged(simulated(tmp_path, rung=0.0))
    assert verdict["verdict"] == {"prednet": "inconclusive"}
    lacks = " ".join(verdict["details"]["prednet"]["unmet_for_refuted"])
    assert "largest Gaussian rung" in lacks


def test_the_pilot_has_seeds_that_nothing_else_was_chosen_by(tmp_path):
    """Nor may it share any with the largest study."""
    looked_at = set(range(1000, 1010))
    plan = design(tmp_path, (PREDNET,), seeds=2000, pilot_seeds=4)
    main = {seed for job in plan.runs() for seed in job.seeds}
    for job in plan.pilot():
        assert job.seeds == (2000, 2001, 2002, 2003)
        assert not (looked_at | main) & set(job.seeds)
    with pytest.raises(ValueError, match=r"seeds=2001: expected .* 2 to 2000"):
        design(tmp_path, seeds=2001)


def test_margin_is_on_disk_before_the_runs(tmp_path):
    plan = simulated(tmp_path)
    pilot = comparison.fix_margin(plan, PREDNET)
    margin = pilot.margin
    written = records.read_json(tmp_path / "margin_prednet.json")
    assert written["value"] == margin.value
    assert written["pilot_sd_of_differences"] == pilot.sd
    assert written["pilot_left_out"] == []
    # Half the spread between seeds is smaller than a fifth of the gap of 0.02 here.
    assert margin.value == pytest.approx(min(margin.half_seed_sd, 0.004), rel=0.1)


def test_power_is_planned_before_the_runs(tmp_path):
    """The same number that the verdict weighs."""
    plan = simulated(tmp_path)
    pilot = comparison.fix_margin(plan, PREDNET)
    details = judged(plan)[0]["details"]["prednet"]
    assert pilot.planned_power(plan.seeds) == details["planned_power"] > 0.9
    assert pilot.planned_power(1) == 0


@pytest.mark.parametrize("task", BOTH, ids=lambda task: task.name)
def test_a_pilot_without_spread_fixes_no_margin(tmp_path, task):
    plan = design(tmp_path, (task,))
    for job in plan.pilot():
        write_runs(job, [0.1] * len(job.seeds))
    with pytest.raises(UserError, match=f"pilot of {task.name}: .*sd of 0.0.* fix a "):
        comparison.fix_margin(plan, task)


def test_arms_that_did_not_start_alike_are_refused(tmp_path):
    plan = simulated(tmp_path)
    job = next(j for j in plan.runs() if j.arm.name == "stale_targets")
    shutil.rmtree(job.folder)
    write_runs(job, [0.1] * len(job.seeds), weights="other")
    with pytest.raises(records.RecordError, match="initial_params_sha256"):
        judged(plan)


def test_commands_are_exact_and_gpu_arms_are_skipped_with_the_reason(
    tmp_path, monkeypatch
):
    monkeypatch.setattr(device, "gpu_found", lambda: None)
    plan = design(tmp_path, arms=("gpu", "threads_1"), seeds=2)
    assert plan.skipped == (("gpu", "no GPU found"),)
    names = [job.arm.name for job in plan.runs() if job.model == "prednet"]
    assert names == ["float32", "reduction_order", "threads_1"]
    words = shlex.split(plan.runs()[1].shown)
    assert words[0] == "JAX_PLATFORMS=cpu"
    assert "--noise=reduction_order" in words
    assert "--seeds=0,1" in words
    assert plan.seconds(plan.runs()) > plan.seconds(plan.runs()[:1]) > 0
    monkeypatch.setattr(device, "gpu_found", lambda: "some GPU")
    assert design(tmp_path, arms=("gpu",)).skipped == ()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"arms": ("magic",)}, "arm='magic': expected one of float32"),
        ({"tasks": ()}, "models="),
        (
            {"tasks": (PREDNET, PREDNET)},
            "models=prednet,prednet: expected",
        ),
        ({"seeds": 1}, "seeds=1: expected a whole number, from 2"),
        ({"last": 0.0}, "last=0.0"),
    ],
)
def test_bad_designs_are_named(tmp_path, options, message):
    with pytest.raises(ValueError, match=message):
        design(tmp_path, **options)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"arms": ("threads_9999",)},
            "arm='threads_9999': threads=9999: expected a whole number, from 1",
        ),
        ({"data": "wakl"}, "data: data='wakl': no such source or file; accepted are"),
        ({"images": "/no/such/place"}, "images: data='/no/such/place'"),
        (
            {"tasks": (tasks.of(PredNetConfig(channels=(5, 6))),)},
            r"data: channels=5: frames have 3 \(RGB\) or 1",
        ),
    ],
)
def test_what_a_run_would_refuse_is_refused_before(tmp_path, options, message):
    with pytest.raises(ValueError, match=message):
        comparison.check(design(tmp_path, **options))


def test_a_source_has_to_fill_one_window(tmp_path):
    np.savez(tmp_path / "few.npz", frames=np.zeros((6, 24, 32, 3), np.uint8))
    few = {"root": tmp_path / "out", "data": str(tmp_path / "few.npz")}
    with pytest.raises(ValueError, match="window=10: the longest sequence has 6"):
        comparison.check(design(**few))
    comparison.check(design(window=5, **few))
    assert not few["root"].exists()


def test_the_root_is_a_directory(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(ValueError, match="file: a file; expected a directory"):
        comparison.check(design(tmp_path / "file"))


@pytest.mark.parametrize(
    ("flags", "named"),
    [
        (["--arms=ulp,convolution_foo"], "convolution_foo"),
        (["--arms=threads_9999"], "threads_9999"),
        (["--images=/no/such/place"], "/no/such/place"),
        (["--data=/no/such/place", "--dry_run"], "/no/such/place"),
        (["--models=resnet"], "model='resnet'"),
        (["--height=25"], "height=25"),
    ],
)
def test_a_refused_comparison_leaves_the_earlier_one(tmp_path, flags, named):
    (tmp_path / "runs").mkdir()
    for kept in ("verdict.json", "report.html", "runs/kept"):
        (tmp_path / kept).write_text("earlier")
    before = sorted(tmp_path.rglob("*"))
    done = compare(f"--workdir={tmp_path}", *flags)
    assert done.returncode == 2, done.stdout
    assert done.stdout == ""
    assert named in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1
    assert sorted(tmp_path.rglob("*")) == before


def test_a_failing_arm_is_named(tmp_path):
    script = tmp_path / "fails.py"
    script.write_text("import sys; print('broken on purpose'); sys.exit(3)")
    plan = comparison.Design(root=tmp_path / "out", script=str(script), tasks=BOTH)
    failed = r"float32 .* status 3 \(broken on purpose\)"
    with pytest.raises(execution.ProcessError, match=failed):
        comparison.execute(plan.runs()[0])


def test_arms_by_pattern():
    rung = comparison.arm("gaussian_0.1")
    assert rung.flags == ("--noise=gradient_gaussian:scale=0.1",)
    assert (rung.role, rung.scale) == (Role.GAUSSIAN, 0.1)
    assert comparison.arm("threads_2").flags == ("--threads=2",)
    assert comparison.arm("convolution_shifted").flags == ("--convolution=shifted",)
    assert comparison.arm("reduction_order_element").flags == (
        "--noise=reduction_order:granularity=element",
    )
    assert comparison.arm("threads_2").threads == 2
    run = comparison.arm("reduction_order_run")
    assert run.flags == ("--noise=reduction_order:schedule=run",)
    assert noise.parse(run.flags[0].partition("=")[2]).schedule == "run"
    for bad in (
        "threads_0",
        "gaussian_",
        "gaussian_x",
        "gaussian_0",
        "gaussian_1e999",
        "convolution_",
        "convolution_foo",
    ):
        with pytest.raises(ValueError, match=f"arm='{bad}'"):
            comparison.arm(bad)


def test_plateaus():
    flat = np.concatenate([np.full(60, 1.0), np.linspace(1, 0.1, 40)])
    assert 10 <= reading.stalled_at(flat) <= 60
    falling = 0.95 ** np.arange(100)
    assert reading.stalled_at(falling) is None
    # A plateau that is never left is an end, not a stall.
    assert reading.stalled_at(np.full(100, 1.0)) is None


@pytest.mark.parametrize(
    ("scales", "matched"),
    [
        ((5e-8, 2.7e-7), (5e-8, 2.7e-7)),
        ((2.7e-7,), (2.7e-7, 2.7e-7)),
        ((1e-5, 1e-6), (None, 1e-6)),
        ((), (None, None)),
    ],
)
def test_the_matched_rung_is_that_of_the_network(scales, matched):
    """PredNet's noise was measured as 5e-8 of the gradient, the other's as 2.5e-7."""
    row = statistics.paired([0.1, 0.2, 0.3], [0.1, 0.2, 0.25], margin=0.1)
    control = comparison.arm("float32")
    made = []
    for scale in scales:
        arm = comparison.arm(f"gaussian_{scale:g}")
        labelled = row.labelled(
            model="m", treatment=arm.name, control="float32", metric="m"
        )
        made.append(contrasts.Contrast(arm, control, labelled, {}, ()))
    for task, scale in zip(BOTH, matched, strict=True):
        found, ladder = judgement.rungs(task, made)
        name = found and found.treatment
        assert name == (scale and f"gaussian_{scale:g}")
        assert scale not in [rung for rung, _ in ladder]
        assert len(ladder) == len(scales) - (scale is not None)


@pytest.mark.slow
def test_whole_comparison_of_the_autoencoder(tmp_path):
    """The script itself: every process, the verdict, the report."""
    done = compare(
        "--models=autoencoder",
        "--arms=stale_targets,gpu",
        "--seeds=2",
        "--pilot_seeds=2",
        "--image_updates=20",
        f"--workdir={tmp_path}/out",
    )
    assert done.returncode == 0, done.stdout + done.stderr
    verdict = records.read_json(tmp_path / "out" / "verdict.json")
    rows = {row["treatment"]: row for row in verdict["contrasts"]}
    assert rows["stale_targets"]["bitwise_equal"] == 2
    assert rows["stale_targets"]["mean_difference"] == 0
    assert rows["reduction_order"]["bitwise_equal"] == 0
    printed = done.stdout
    said = printed.index("power to call a zero effect equivalent with 2 seeds: ")
    assert printed.index("margin of autoencoder: ") < said
    assert said < printed.index("] runs autoencoder")
    assert verdict["verdict"]["autoencoder"] == "inconclusive"
    assert verdict["controls"]["theory_matched"] is True
    assert verdict["controls"]["units_separated"] is True
    noises = {arm["name"]: arm["noise"] for arm in verdict["arms"] if "noise" in arm}
    assert noises["float32"] == "none"
    assert noise.parse(noises["reduction_order"]) == noise.ReductionOrder()
    assert "granularity=tile" in noises["reduction_order"]
    if device.gpu_found() is None:
        assert "skipped gpu: no GPU found" in done.stdout
    assert (tmp_path / "out" / "report.html").is_file()
