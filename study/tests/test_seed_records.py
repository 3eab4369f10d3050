import csv
import dataclasses
import functools
import json

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
import pytest

from prednet_jax import PredNetConfig, errors, noise
from study import dose, endpoints, parts, seed_records, seed_trainings
from study.parts import Part, RandomWindows, StudyArm


def trajectory(loss, weights=None, last=None, copy=0.1):
    loss = np.asarray(loss, float)
    return endpoints.Trajectory(
        curves={
            "loss": loss,
            "last_frame_loss": loss if last is None else np.asarray(last, float),
            "copy_last_frame_loss": np.full_like(loss, copy),
            "grad_norm": np.ones_like(loss),
        },
        weights=weights or {},
        held_out_loss=0.5,
        sha256="0",
        seconds=1.0,
    )


def test_endpoints_by_hand():
    falling = np.concatenate([np.full(400, 1.0), np.full(600, 0.01)])
    run = trajectory(falling, last=falling / 2)
    found = endpoints.endpoints(run, run, 1000)
    assert found["window_loss"] == pytest.approx(0.01)
    assert found["last_frame_loss"] == pytest.approx(0.005)
    assert found["over_copy"] == pytest.approx(0.1)
    # Geometric mean 0.1: 19 of 20 values at 0.01 and one at 1 are 0.0595, 18: 0.109.
    assert found["plateau_left"] == 419
    # 250 values, k of them 1: below 0.1 from k = 22 on (22 + 228 * 0.01 = 24.28).
    assert found["parity"] == 400 + 250 - 22
    assert found["diverged_at"] is None
    run = trajectory([1.0, np.nan])
    assert endpoints.endpoints(run, run, 500) == {"diverged_at": 2}

    dips = np.concatenate([np.full(300, 0.01), np.full(700, 1.0)])
    assert endpoints.first_below_for_good(dips, 50, 0.1) is None
    assert endpoints.first_below(dips, 50, 0.1) == 50
    assert endpoints.first_below(np.ones(100), 50, 0.1) is None


def test_parts_share_no_seed_and_controls_come_first():
    seen = set()
    for part in parts.PARTS.values():
        # Of another part, beside whose records these stand.
        nulls = "B-null", "D-plateau", "D-null", "E-null", "E-stale"
        again = part.name in (*nulls, "J-planted", "H-windows-planted")
        assert again == bool(seen & set(part.seeds)), part.name
        seen |= set(part.seeds)
        known = set()
        for treatment in part.treatments:
            known.add(treatment.name)
            assert part.control(treatment) in known, (part.name, treatment.name)
        names = [(t.name, t.draw) for t in part.treatments]
        assert len(set(names)) == len(names)
        assert part.snapshots[-1] == part.updates

    arms = {p.name: {t.name for t in p.treatments} for p in parts.PARTS.values()}
    lone = {name for name, of in arms.items() if parts.CONTROL not in of}
    assert lone == {"D-null", "E-stale"}
    part = parts.PARTS["C"]
    arms = [[t.name for t in part.of_seed(seed)] for seed in part.seeds]
    assert [("float64" in names) for names in arms] == [True] * 8 + [False] * 32
    with pytest.raises(errors.UserError, match="seed=1"):
        part.of_seed(1)


SHORT = "reduction_order:shortest=1"
TINY = Part(
    name="tiny",
    network=PredNetConfig(channels=(3,), height=8, width=8),
    window=2,
    updates=12,
    seeds=(11,),
    treatments=(
        StudyArm(name="float32"),
        StudyArm(name="reduction_order", noise=SHORT),
        StudyArm(name="reduction_order", noise=SHORT, draw=1),
        StudyArm(name="order_1e6", noise=SHORT, dose=(1e6, "order")),
    ),
)


READERS = (seed_records.stored, seed_records.curves)
ABOUT = {"git_commit": "abc", "versions": {"jax": "0"}, "device": {"processor": "one"}}


@pytest.mark.slow
def test_an_interrupted_seed_goes_on_to_the_record_of_an_undisturbed_one(
    tmp_path, monkeypatch
):
    seed_records.follow_seed(TINY, 11, tmp_path / "whole", ABOUT)
    trained, train, folder = [], seed_records.train, tmp_path / "two"

    def interrupted(part, treatment, seed):
        trained.append((treatment.name, treatment.draw))
        if len(trained) == 3:
            raise KeyboardInterrupt
        return train(part, treatment, seed)

    monkeypatch.setattr(seed_records, "train", interrupted)
    with pytest.raises(KeyboardInterrupt):
        seed_records.follow_seed(TINY, 11, folder, ABOUT)
    assert not seed_records.finished(TINY, folder)
    seed_records.follow_seed(TINY, 11, folder, ABOUT)
    assert trained[2:] == [("reduction_order", 1)] * 2 + [("order_1e6", 0)]
    assert not (folder / "unfinished").exists()
    path = folder / "seed_11.json"
    assert seed_records.finished(TINY, folder) == {11}
    record, whole = (
        json.loads((tmp_path / name / path.name).read_text())
        for name in ("two", "whole")
    )
    for run in (*record["runs"], *whole["runs"]):
        del run["seconds"]
    assert record == whole
    curves = [tmp_path / name / "seed_11.csv" for name in ("two", "whole")]
    assert curves[0].read_bytes() == curves[1].read_bytes()
    runs = {(run["arm"], run["draw"]): run for run in record["runs"]}
    assert len(runs) == len(TINY.treatments)
    prints = [run["final_params_sha256"] for run in runs.values()]
    assert len(set(prints)) == len(prints)
    assert all(run["diverged_at"] is None for run in runs.values())
    snapshots = list(runs["float32", 0]["distance_over_travelled"])
    assert snapshots == ["1", "2", "5", "6", "10", "12"]
    noise = runs["reduction_order", 0]["distance_over_travelled"]["12"]
    assert 0 < noise < 1e-4
    amplified = runs["order_1e6", 0]["distance_over_travelled"]["12"]
    assert amplified > 100 * noise
    assert runs["float32", 0]["distance_over_travelled"]["12"] == 0
    between = runs["reduction_order", 1]["final_distance_from"]
    assert set(between) == {"reduction_order.0", "reduction_order.1"}
    assert between["reduction_order.1"] == 0 < between["reduction_order.0"] < 1e-4
    assert runs["order_1e6", 0]["final_distance_from"] == {}
    rows = list(csv.DictReader(curves[0].read_text().splitlines()))
    assert len(rows) == len(TINY.treatments) + 1
    assert {row["update"] for row in rows} == {"12"}
    last = [row for row in rows if (row["arm"], row["draw"]) == ("float32", "0")]
    assert float(last[0]["loss"]) > 0


def test_packed_records_are_those_of_the_seeds(tmp_path, monkeypatch):
    weights = {update: np.full(2, 1.0 + update) for update in (0, *TINY.snapshots)}
    run = trajectory(np.linspace(1, 2, TINY.updates), weights)
    monkeypatch.setattr(seed_records, "train", lambda *_: run)
    part = dataclasses.replace(TINY, seeds=(11, 12), treatments=TINY.treatments[:2])
    for seed in part.seeds:
        seed_records.follow_seed(part, seed, tmp_path, ABOUT)
    before = [read(tmp_path) for read in READERS], seed_records.read(part, tmp_path)
    seed_records.pack(tmp_path)
    assert {p.name for p in tmp_path.iterdir()} == {"seeds.json", "curves.csv.xz"}
    assert seed_records.finished(part, tmp_path) == {11, 12}
    after = [read(tmp_path) for read in READERS], seed_records.read(part, tmp_path)
    assert after[0][0] == before[0][0]
    assert after[1] == before[1]
    pd.testing.assert_frame_equal(after[0][1], before[0][1])
    # Packing that was interrupted before the files of the seeds were removed.
    seed_records.follow_seed(part, 12, tmp_path, ABOUT)
    pd.testing.assert_frame_equal(seed_records.curves(tmp_path), before[0][1])
    seed_records.pack(tmp_path)
    assert {p.name for p in tmp_path.iterdir()} == {"seeds.json", "curves.csv.xz"}
    pd.testing.assert_frame_equal(seed_records.curves(tmp_path), before[0][1])
    (tmp_path / "seed_notes.json").write_text("mine")
    assert seed_records.read(part, tmp_path) == before[1]
    for name, content in (("curves.csv.xz", b"no"), ("seeds.json", b'{"seeds": 3}')):
        (tmp_path / name).write_bytes(content)
        with pytest.raises(errors.UserError, match=f"{name}: damaged.*expected"):
            seed_records.pack(tmp_path)
    with pytest.raises(errors.UserError, match="nothing: has no records"):
        seed_records.pack(tmp_path / "nothing")


def test_a_kept_training_comes_back_but_to_another_origin(tmp_path):
    facts = dict.fromkeys(seed_records.DECIDES)
    kept, arm = seed_records.KeptRuns(tmp_path, facts | ABOUT), StudyArm(name="float32")
    assert not kept.has(arm)
    kept.write(arm, trajectory([1.0, np.nan], {0: np.ones(2), 10: np.zeros(2)}))
    assert kept.has(arm)
    back = kept.read(arm)
    assert list(back.weights) == [0, 10]
    np.testing.assert_array_equal(back.curves["loss"], [1.0, np.nan])
    for change, name in (
        ({"device": {"processor": "two"}}, "processor"),
        ({"git_commit": "d"}, "git_commit"),
        ({"versions": {"jax": "1"}}, "versions"),
    ):
        with pytest.raises(errors.UserError, match=f"another {name}; remove it"):
            seed_records.KeptRuns(tmp_path, kept.about | change).has(arm)


@pytest.mark.slow
def test_a_seed_of_another_arithmetic_is_refused(tmp_path, monkeypatch):
    weights = {update: np.full(2, 1.0 + update) for update in (0, *TINY.snapshots)}
    run = trajectory(np.ones(TINY.updates), weights)
    monkeypatch.setattr(seed_records, "train", lambda *_: run)
    quick = dataclasses.replace(TINY, seeds=(11, 12), treatments=TINY.treatments[:2])
    seed_records.follow_seed(quick, 11, tmp_path, ABOUT)
    # Another commit of the same arithmetic goes on.
    first = seed_records.stored(tmp_path)[11]
    seed_records.check("seed 12", first | {"git_commit": "d"}, first)
    newer = ABOUT | {"versions": {"jax": "1"}}
    with pytest.raises(errors.UserError, match="another versions"):
        seed_records.follow_seed(quick, 12, tmp_path, newer)
    noisier = StudyArm(name="reduction_order", noise="reduction_order:partials=4")
    other = dataclasses.replace(quick, treatments=(quick.treatments[0], noisier))
    with pytest.raises(
        errors.UserError, match="noise of reduction_order than seed 11;"
    ):
        seed_records.follow_seed(other, 12, tmp_path, ABOUT)
    assert seed_records.finished(quick, tmp_path) == {11}


CONFIG = PredNetConfig(channels=(3,), height=8, width=8, convolution="shifted")
NOISY = [StudyArm(name="noisy", noise="ulp", draw=i) for i in (0, 1)]
LATE = StudyArm(name="late", rate=0.5, rate_change_update=2)
PART = Part(
    name="tiny",
    network=CONFIG,
    window=4,
    updates=4,
    random_windows=RandomWindows(batch=2, sequences=3, learning_rate=1e-2),
    seeds=(5, 6),
    treatments=(StudyArm(name="float32"), *NOISY, LATE),
)


@pytest.mark.parametrize("windows", [None, PART.random_windows])
def test_a_lost_network_has_no_held_out_loss(windows):
    """It would be that of white frames; `contrasts` leaves a seed without one out."""
    part = dataclasses.replace(PART, random_windows=windows)
    lost = {"gates_0": {"bias": np.full(3, np.nan)}}
    assert np.isnan(seed_trainings._held_out(part, lost))


@pytest.fixture(scope="module")
def runs():
    return {(t.name, t.draw): seed_trainings.train(PART, t, 5) for t in PART.treatments}


@pytest.mark.slow
def test_a_part_of_random_windows_is_trained_as_every_other(runs):
    plain = runs["float32", 0]
    assert plain.ended(4)
    assert list(plain.weights) == [0, 1, 2, 4]
    other = seed_trainings.train(PART, PART.treatments[0], 6)
    assert other.sha256 != plain.sha256
    assert len({run.sha256 for run in runs.values()}) == 4


@pytest.mark.slow
def test_a_later_rate_changes_nothing_before(runs):
    plain, late = runs["float32", 0], runs["late", 0]
    np.testing.assert_array_equal(late.weights[2], plain.weights[2])
    np.testing.assert_array_equal(late.curves["loss"][:3], plain.curves["loss"][:3])
    step = [np.linalg.norm(r.weights[4] - r.weights[2]) for r in (plain, late)]
    assert 0.3 < step[1] / step[0] < 0.7


@pytest.mark.slow
def test_what_comes_before_a_later_rate_is_trained_once(runs, monkeypatch):
    made = []
    train = seed_trainings.loop.train

    def counted(*args, **more):
        for item in train(*args, **more):
            made.append(item[1].update)
            yield item

    monkeypatch.setattr(seed_trainings.loop, "train", counted)
    seed_trainings._before_fork.cache_clear()
    again = [seed_trainings.train(PART, t, 5) for t in (PART.treatments[0], LATE)]
    assert made == [1, 2, 3, 4, 3, 4]
    whole = runs["float32", 0], runs["late", 0]
    assert [run.sha256 for run in again] == [run.sha256 for run in whole]


TERMS = jax.random.normal(jax.random.key(0), (4096, 6))
SPEC = noise.ReductionOrder(granularity="element", tile=1, shortest=1)


def gradient(w):
    """A sum of many terms for each coordinate but the last, which has none."""
    terms = TERMS * jnp.tanh(w) * jnp.array([1, 1, 1, 1, 1, 0.0])
    return {"w": jnp.sum(terms, 0)}, "result"


@functools.cache
def draws(kind, factor, n=256):
    noisy = dose.amplified(SPEC, factor, kind)(lambda w: (gradient(w)[0], None))
    keys = jax.random.split(jax.random.key(1), n)
    w = jnp.ones(6)
    found = jax.jit(jax.vmap(lambda key: noisy(key, w)[0]["w"]))(keys)
    return np.asarray(found, np.float64), np.asarray(gradient(w)[0]["w"], np.float64)


@pytest.mark.slow
@pytest.mark.parametrize("kind", dose.KINDS)
def test_noise_has_mean_zero_and_the_size_asked_for(kind):
    found, plain = draws(kind, 1e3)
    assert (found[:, 5] != plain[5]).any() == (kind == "isotropic")
    xi, _ = draws("order", 1e3)
    deviations = found - plain
    size = np.sqrt((deviations**2).sum(1).mean())
    expected = np.sqrt(((xi - plain) ** 2).sum(1).mean())
    assert expected > 0
    np.testing.assert_allclose(size, expected, rtol=0.2)
    standard_error = size / np.sqrt(len(found))
    assert np.linalg.norm(deviations.mean(0)) < 4 * standard_error
    tenfold, _ = draws(kind, 1e4)
    ratio = np.linalg.norm(tenfold - plain) / np.linalg.norm(deviations)
    np.testing.assert_allclose(ratio, 10, rtol=0.05)


def test_the_result_is_that_of_the_plain_call():
    noisy = dose.amplified(SPEC, 1.0, "order")(gradient)
    assert noisy(jax.random.key(2), jnp.ones(6))[1] == "result"


@pytest.mark.parametrize(
    ("factor", "kind", "message"),
    [(0.0, "order", "factor=0.0: expected a finite"), (1.0, "sideways", "'sideways'")],
)
def test_other_noise_is_refused(factor, kind, message):
    with pytest.raises(errors.UserError, match=message):
        dose.amplified(SPEC, factor, kind)
