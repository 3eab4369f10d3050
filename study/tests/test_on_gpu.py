import re

import jax
import numpy as np
import pytest

from prednet_jax import PredNetConfig, errors, records
from prednet_jax.training import loop
from study import judgement, on_gpu, seed_records, seed_trainings
from study.parts import FIXED_ORDERS, PARTS, Part, StudyArm
from tests.processes import ROOT

PART = Part(
    name="tiny",
    network=PredNetConfig(channels=(3, 4), height=8, width=8),
    window=3,
    updates=20,
    truncation_leak=True,
    seeds=(11, 12),
    treatments=(StudyArm(name="float32"),),
)


@pytest.fixture(scope="module")
def shown():
    return np.stack([on_gpu.rendered(PART, seed, PART.updates) for seed in PART.seeds])


@pytest.mark.slow
@pytest.mark.optimized  # As users compile: else the programs round differently.
@pytest.mark.parametrize(("arm", "close"), [("cpu", 0.0), ("gpu_stale", 1e-4)])
def test_seeds_in_one_program_train_as_each_alone(shown, arm, close, monkeypatch):
    """In the same bits one after the other; all at once they round otherwise."""
    monkeypatch.setattr(on_gpu, "CHUNK", 8)  # The last one is shorter.
    how = on_gpu.ARMS[arm]
    curves, weights = on_gpu.train(PART, how, PART.seeds, shown, PART.updates)
    for i, seed in enumerate(PART.seeds):
        alone = seed_trainings.train(PART, how, seed)
        last = alone.curves["last_frame_loss"]
        np.testing.assert_allclose(curves["last_frame_loss"][i], last, rtol=close)
        window = alone.curves["loss"]
        np.testing.assert_allclose(curves["window_loss"][i], window, rtol=1e-4)
        final = alone.weights[PART.updates]
        np.testing.assert_allclose(weights[i], final, rtol=close, atol=close)


def test_a_record_has_the_last_fifth_and_the_way_from_the_cpu():
    start = records.vector(loop.initial_params(PART.network, 11))
    curve = np.concatenate([np.full(16, 9.0), [1.0, 2.0, 3.0, 4.0]])
    weights, control = start + 3.0, start + 2.0
    rows = on_gpu.record(
        PART,
        (11, 12),
        {"x": np.stack([curve] * 2)},
        np.stack([weights] * 2),
        {11: control},
    )
    assert rows["11"]["x"] == rows["12"]["x"] == 2.5
    assert rows["11"]["distance_over_travelled"] == pytest.approx(0.5)
    assert "distance_over_travelled" not in rows["12"]
    assert rows["11"]["weights_sha256"] == rows["12"]["weights_sha256"]


@pytest.mark.parametrize(("arm", "rounded"), [("gpu", False), ("gpu_tf32", True)])
def test_products_are_rounded_only_where_the_arm_says_so(shown, arm, rounded):
    how = on_gpu.ARMS[arm]
    states = [seed_trainings.initial_state(PART, how, s) for s in PART.seeds]
    state = jax.tree.map(lambda *leaves: np.stack(leaves), *states)
    program = on_gpu._program(PART, how)
    text = program.lower(state, shown, np.arange(2)).as_text()
    products = re.findall(r"stablehlo\.dot_general.*", text)
    assert products
    assert all(("HIGHEST" in line) != rounded for line in products)


def test_five_percent_more_in_every_seed_is_found(tmp_path):
    folder = ROOT / "results" / "study"
    seeds = {p: seed_records.read(PARTS[p], folder / p) for p in ("H", "J")}
    measured = judgement.losses((*seeds["H"], *seeds["J"]), judgement.PRIMARY)
    for part, of in seeds.items():
        runs = {}
        for seed in of:
            fixed = [
                np.log(loss)
                for name in FIXED_ORDERS.arms
                for loss in measured[name][str(seed.seed)]
            ]
            row = {judgement.PRIMARY: 1.05 * np.exp(np.mean(fixed))}
            runs[str(seed.seed)] = row | {"distance_over_travelled": 0.5}
        made = {"arm": "gpu", "updates": 3000, "runs": runs}
        records.write_json(tmp_path / f"{part}_gpu.json", made)
    found = on_gpu.answers(tmp_path, seeds)["gpu"]
    assert found.effect.estimate == pytest.approx(0.05)
    assert len(found.effect.runs.seeds) == 100
    assert found.answer == "noise raises the loss"
    records.write_json(tmp_path / "J_gpu.json", made | {"updates": 100})
    with pytest.raises(errors.UserError, match="updates=100: expected one of 3000"):
        on_gpu.answers(tmp_path, seeds)
