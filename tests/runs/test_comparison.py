import dataclasses
import itertools
import json
import shutil
import zlib

import numpy as np
import pytest

from prednet_jax import files, process, records, runs, statistics, tasks
from prednet_jax.config import AutoencoderConfig, PredNetConfig
from prednet_jax.records.verdict import Verdict
from prednet_jax.report.verdict_text import text_table
from prednet_jax.runs import comparison
from prednet_jax.runs.jobs import write_receipt

PREDNET = tasks.of(PredNetConfig(channels=(3, 6, 12), height=24, width=32))
AUTOENCODER = tasks.of(AutoencoderConfig())
ARMS = ("threads_1", "gaussian_1", "stale_targets")


@pytest.fixture(autouse=True)
def _start_at_zero(monkeypatch):
    """Initial weights that stand for those of a network."""
    start = {"w": np.zeros(3)}
    monkeypatch.setattr(comparison.loop, "initial_params", lambda task, seed: start)


def design(root, task=PREDNET, arms=ARMS, seeds=21):
    return runs.Design(
        root=root,
        script="train.py",
        tasks=(task,),
        arms=arms,
        seeds=seeds,
        updates=10,
        image_updates=10,
    )


def write_runs(job, losses, *, changed="", end=(3.0, 4.0)):
    """One run per seed whose loss is constant at `losses[seed]`."""
    for seed, loss in zip(job.seeds, losses, strict=True):
        # Other bits in every run, at no distance.
        name = f"{job.arm.name}{job.draw}{seed}".encode()
        params = {"w": np.asarray([*end, 1e-300 * zlib.crc32(name)])}
        folder = job.run_folder(seed)
        folder.mkdir(parents=True)
        records.write_json(
            folder / records.MANIFEST,
            {
                "model": job.model,
                "seed": seed,
                "flags": job.flags,
                "initial_params_sha256": f"{seed}{changed == 'initial_params'}",
                "data_order_sha256": f"{seed}{changed == 'data_order'}",
                "final_params_sha256": records.fingerprint(params),
                "noise": "none",
                "device": {"threads": 2, "kind": "some kind"},
                "processor_seconds_per_second": 1.9,
                "versions": {"jax": "0"},
                "git_commit": "abc",
            },
        )
        records.write_tree(folder / records.WEIGHTS, params)
        writer = records.MetricsWriter(folder)
        for i in range(10):
            value = float(loss)
            writer.write(update=i + 1, loss=0.0, last_frame_loss=value, seconds=0.1)
        writer.close()
        write_receipt(job, seed)


def simulated(root, *, task=PREDNET, arms=ARMS, seeds=21, **effects):
    """Arms that differ from the control, at about 0.1, by known amounts."""
    plan = design(root, task, arms, seeds)
    rng = np.random.default_rng(0)
    defaults = {"stale_targets": 0.02, "gaussian_1": 0.03}
    base = 0.1 + 0.01 * np.random.default_rng(1).random(seeds)
    for job in plan.runs():
        name = job.arm.name
        size = 0.0 if name == "float32" else 1e-4
        jitter = size * rng.standard_normal(seeds)
        effect = effects.get(name, defaults.get(name, 0.0))
        end = (3.0, 5.0) if name == "reduction_order" else (3.0, 4.0)
        write_runs(job, base + effect + jitter, end=end)
    return plan


def judge(*arguments):
    return comparison.judge(*arguments).to_json()


def test_no_effect_is_refuted(tmp_path):
    verdict = judge(simulated(tmp_path))
    assert verdict["verdict"] == {"prednet": "refuted"}
    rows = {(row["treatment"], row["control"]): row for row in verdict["contrasts"]}
    assert rows["stale_targets", "float32"]["verdict"] == "higher loss"
    assert rows["reduction_order", "float32"]["verdict"] == "equivalent"
    assert rows["threads_1", "float32"]["bitwise_equal"] == 0
    question = rows["reduction_order", "fixed_orders"]
    assert question["verdict"] == "equivalent"
    assert question["p_holm"] == question["p_value"]
    families = {row["p_holm_family"] for row in verdict["contrasts"]}
    assert families == {"all 4 contrasts of prednet", None}
    found = verdict["manipulation"]["prednet"]
    assert found == {"bits_differ": True, "distance_over_travelled": 0.2}
    claims = {claim["claim"]: claim for claim in verdict["claims"]}
    assert verdict["together"] == []
    noise = claims["random order of sums changes the loss"]
    assert noise["answer"] == "no effect within the margin"
    assert noise["low"] < noise["estimate"] < noise["high"]
    stale = claims["stale targets raise the loss"]
    assert stale["answer"] == "yes"
    # 0.02 of a loss between 0.1 and 0.11.
    assert stale["estimate"] == pytest.approx(0.19, abs=0.01)


def test_the_control_is_every_fixed_order(tmp_path):
    arms = ("convolution_im2col", "reduction_order_run", "threads_1")
    verdict = judge(simulated(tmp_path, arms=arms, seeds=8))
    losses = verdict["losses"]["prednet"]
    fixed = [
        np.mean([np.log(losses[arm][seed]) for arm in ("float32", *arms[:2])])
        for seed in losses["float32"]
    ]
    noisy = [np.mean(np.log(draws)) for draws in losses["reduction_order"].values()]
    row = verdict["contrasts"][-1]
    assert (row["control"], row["n"]) == ("fixed_orders", 8)
    d = np.subtract(noisy, fixed)
    assert row["mean_difference"] == pytest.approx(d.mean())
    signs = np.array(list(itertools.product((-1, 1), repeat=8)))
    p = np.mean(np.abs(signs @ d) >= abs(d.sum()) - 1e-12)
    assert row["p_value"] == pytest.approx(p)


def test_a_repetition_stands_beside_the_study(tmp_path):
    """Two seeds alone fix nothing; the study, without an effect, answers with them."""
    study = judge(simulated(tmp_path / "study"))
    plan = design(tmp_path / "again", seeds=2, arms=("stale_targets",))
    plan = dataclasses.replace(plan, first_seed=9000)
    for job in plan.runs():
        effect = 0.02 if job.arm.name == "stale_targets" else 0.0
        end = (3.0, 5.0) if job.arm.name == "reduction_order" else (3.0, 4.0)
        effect += 1e-5 * job.draw
        write_runs(job, [0.1 + effect, 0.105 + effect], end=end)
    verdict = judge(plan, study["losses"])
    assert verdict["verdict"] == {"prednet": "inconclusive"}
    stale, noise = verdict["claims"]
    names = "claim model answer estimate low high published predicted holds"
    assert set(stale) == set(names.split())
    assert stale["answer"] == "yes"
    assert stale["low"] is stale["high"] is None
    for claim, before in zip(verdict["claims"], study["claims"], strict=True):
        names = ("estimate", "low", "high")
        assert claim["published"] == {name: before[name] for name in names}
        low, high = claim["predicted"]
        assert claim["holds"] == (low <= claim["estimate"] <= high)
    assert stale["holds"]
    assert noise["answer"] == "no effect within the margin"
    assert [both["seeds"] for both in verdict["together"]] == [23, 23]


def test_every_contrast_can_be_recomputed_from_the_losses(tmp_path):
    plan = simulated(tmp_path)
    job = next(j for j in plan.runs() if j.arm.name == "gaussian_1")
    diverge(job, job.seeds[3])
    path = tmp_path / "verdict.json"
    records.write_json(path, judge(plan))
    verdict = records.read_json(path)
    margin = verdict["margins"]["prednet"]["value"]
    rows = [row for row in verdict["contrasts"] if row["control"] == "float32"]
    pairs = [(row["treatment"], row["control"]) for row in rows]
    losses = verdict["losses"]["prednet"]
    again = statistics.contrasts_from_losses(losses, pairs, margin, model="prednet")
    for row, result in zip(rows, again, strict=True):
        for name in ("n", "mean_difference", "p_value", "p_holm", "tost_p"):
            assert row[name] == pytest.approx(getattr(result, name), rel=1e-12)


def diverge(job, seed):
    """A run whose last loss is not finite, trained to its end all the same."""
    folder = job.run_folder(seed)
    path = folder / records.METRICS
    *lines, last = path.read_text().splitlines()
    lines.append(json.dumps(json.loads(last) | {"last_frame_loss": None}))
    path.write_text("\n".join(lines) + "\n")
    params = {"w": np.full(3, np.nan)}
    records.write_tree(folder / records.WEIGHTS, params)
    manifest = records.read_json(folder / records.MANIFEST)
    end = {"final_params_sha256": records.fingerprint(params)}
    records.write_json(folder / records.MANIFEST, manifest | end)
    write_receipt(job, seed)


def test_diverged_seeds_of_the_question_are_left_out_up_to_one_in_twenty(tmp_path):
    """Whether a seed diverges may depend on the noise: no firm answer without many."""
    plan = simulated(tmp_path)
    job = next(j for j in plan.runs() if j.arm.name == "reduction_order")
    diverge(job, job.seeds[3])
    once = judge(plan)
    assert once["verdict"] == {"prednet": "refuted"}
    diverge(job, job.seeds[4])
    assert judge(plan)["verdict"] == {"prednet": "inconclusive"}


def test_a_diverged_run_is_left_out_of_its_contrast_and_named(tmp_path):
    plan = simulated(tmp_path)
    whole = judge(plan)
    job = next(j for j in plan.runs() if j.arm.name == "gaussian_1")
    diverge(job, job.seeds[3])
    verdict = judge(plan)
    about = {"model": "prednet", "treatment": "gaussian_1", "control": "float32"}
    about |= {"seed": job.seeds[3], "reason": "loss not finite in gaussian_1"}
    assert verdict["excluded"] == [about]
    assert "not finite" in verdict["design"]["exclusion_rule"]
    rows, before = (
        {row["treatment"]: row for row in v["contrasts"]} for v in (verdict, whole)
    )
    assert rows["gaussian_1"]["n"] == before["gaussian_1"]["n"] - 1
    assert rows["gaussian_1"]["n_excluded"] == 1
    # In both arms: the control's mean is of the same seeds.
    assert rows["gaussian_1"]["control_mean"] != before["gaussian_1"]["control_mean"]
    assert rows["stale_targets"]["n"] == before["stale_targets"]["n"]
    assert f"left out: seed {job.seeds[3]} of gaussian_1" in text_table(
        Verdict.from_json(verdict)
    )

    # An arm that diverged on every seed has no contrast; the others are judged.
    plan = simulated(tmp_path / "every", seeds=3)
    job = next(j for j in plan.runs() if j.arm.name == "gaussian_1")
    for seed in job.seeds:
        diverge(job, seed)
    verdict = judge(plan)
    rows = {row["treatment"] for row in verdict["contrasts"]}
    assert rows == {"reduction_order", "threads_1", "stale_targets"}
    left_out = [(row["treatment"], row["seed"]) for row in verdict["excluded"]]
    assert left_out == [("gaussian_1", seed) for seed in job.seeds]
    assert verdict["verdict"] == {"prednet": "inconclusive"}


def test_stale_targets_are_no_claim_about_the_autoencoder(tmp_path):
    """One image per update has no next frame: stale targets cannot move it."""
    verdict = judge(simulated(tmp_path, task=AUTOENCODER, stale_targets=0.0))
    assert verdict["verdict"] == {"autoencoder": "refuted"}
    assert len(verdict["claims"]) == 1

    # Equal losses are the same bits.
    plan = design(tmp_path / "same", AUTOENCODER, (), 3)
    for job in plan.runs():
        write_runs(job, [0.1, 0.2, 0.3])
    verdict = judge(plan)
    (claim,) = verdict["claims"]
    assert (claim["answer"], claim["estimate"], claim["low"]) == ("same bits", 0, None)


def test_runs_that_are_altered_or_did_not_start_alike_are_refused(tmp_path):
    plan = simulated(tmp_path, seeds=3)
    job = next(j for j in plan.runs() if j.arm.name == "stale_targets")
    for changed in ("initial_params", "data_order"):
        shutil.rmtree(job.folder)
        write_runs(job, [0.1] * len(job.seeds), changed=changed)
        with pytest.raises(files.FileError, match=f"{changed}_sha256"):
            judge(plan)
    (job.run_folder(job.seeds[1]) / records.WEIGHTS).unlink()
    with pytest.raises(files.FileError, match=r"altered since .weights\.npz"):
        judge(plan)


def test_a_gpu_arm_names_its_device(tmp_path, monkeypatch):
    monkeypatch.setattr(process, "gpu_found", lambda: "some GPU")
    plan = simulated(tmp_path, arms=("gpu", "gpu_deterministic"), seeds=2)
    verdict = judge(plan)
    devices = {arm["name"]: arm.get("gpu") for arm in verdict["arms"]}
    assert devices["float32"] is None
    assert devices["gpu"] == "some kind"
    pairs = [(row["treatment"], row["control"]) for row in verdict["contrasts"]]
    assert ("gpu", "float32") in pairs
    # The GPU's noise is asked about: default less deterministic algorithms.
    noise, gpu = pairs[-2:]
    assert (noise[1], gpu) == ("fixed_orders", ("gpu", "gpu_deterministic"))
    names = [claim["claim"] for claim in verdict["claims"]]
    assert names[-1] == "a GPU's own noise changes the loss"
