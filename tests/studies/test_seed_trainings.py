import numpy as np
import pytest

from prednet_jax import PredNetConfig
from prednet_jax.studies import seed_trainings
from prednet_jax.studies.parts import Part, RandomWindows, Treatment

CONFIG = PredNetConfig(channels=(3,), height=8, width=8, convolution="shifted")
NOISY = [Treatment(arm="noisy", noise="ulp", draw=i) for i in (0, 1)]
LATE = Treatment(arm="late", rate=0.5, rate_from=2)
PART = Part(
    name="tiny",
    network=CONFIG,
    window=4,
    updates=4,
    random_windows=RandomWindows(batch=2, sequences=3, learning_rate=1e-2),
    seeds=(5, 6),
    treatments=(Treatment(arm="float32"), *NOISY, LATE),
)


@pytest.fixture(scope="module")
def runs():
    return {(t.arm, t.draw): seed_trainings.train(PART, t, 5) for t in PART.treatments}


def test_a_part_of_random_windows_is_trained_as_every_other(runs):
    plain = runs["float32", 0]
    assert plain.ended(4)
    assert list(plain.weights) == [0, 1, 2, 4]
    other = seed_trainings.train(PART, PART.treatments[0], 6)
    assert other.sha256 != plain.sha256
    assert len({run.sha256 for run in runs.values()}) == 4
    assert len(set(seed_trainings.programs(PART, 5).values())) == 3


def test_a_later_rate_changes_nothing_before(runs):
    plain, late = runs["float32", 0], runs["late", 0]
    np.testing.assert_array_equal(late.weights[2], plain.weights[2])
    np.testing.assert_array_equal(late.curves["loss"][:3], plain.curves["loss"][:3])
    step = [np.linalg.norm(r.weights[4] - r.weights[2]) for r in (plain, late)]
    assert 0.3 < step[1] / step[0] < 0.7


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
    assert [run.sha256 for run in again] == [
        runs["float32", 0].sha256,
        runs["late", 0].sha256,
    ]
