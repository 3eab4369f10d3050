import math

import jax
import numpy as np
import pytest

from benchmarks import conv_lstm
from prednet_jax import data
from prednet_jax.errors import UserError
from prednet_jax.training import evaluation
from prednet_jax.training.trainer import Trainer

RNG = np.random.default_rng(0)


def test_scores_by_hand():
    truth = np.zeros((3, 8, 9, 1))
    guess = truth.copy()
    guess[1] = 0.1
    guess[2, 0, 0, 0] = 0.72
    found = evaluation.score(truth, guess)
    np.testing.assert_allclose(found.mse, [0, 0.01, 0.72**2 / 72])
    np.testing.assert_allclose(found.mae, [0, 0.1, 0.01])
    assert found.psnr[1] == pytest.approx(20)
    assert found.psnr[0] == math.inf
    assert found.ssim[0] == 1


def test_observed_and_extrapolated_frames_are_told_apart():
    count = np.arange(6.0).reshape(6, 1, 1, 1)
    assert evaluation.last_seen(count, None).ravel().tolist() == [0, 0, 1, 2, 3, 4]
    assert evaluation.last_seen(count, 3).ravel().tolist() == [0, 0, 1, 2, 2, 2]
    truth = RNG.random((6, 8, 8, 1))
    guess = evaluation.score(truth, RNG.random((6, 8, 8, 1)))
    copy = evaluation.score(truth, evaluation.last_seen(truth, 3))
    rows = evaluation.table(guess, copy, 3)
    assert [row["frame"] for row in rows] == [1, 2, 3, 4, 5]
    assert [row["observed"] for row in rows] == [True, True, False, False, False]
    means = evaluation.means(rows)
    assert means["observed"]["mse"] == pytest.approx(guess.mse[1:3].mean())
    assert means["extrapolated"]["copy_ssim"] == pytest.approx(copy.ssim[3:].mean())
    assert set(evaluation.means(evaluation.table(guess, copy, None))) == {"observed"}


def test_another_network_of_next_frames_is_scored_as_prednet_is():
    task = conv_lstm.ConvLstm(8, 8, 3, "walk")
    params = task.init_params(jax.random.key(0))
    source = data.open_source("walk", height=8, width=8, length=20)
    found = evaluation.evaluate(params, task, source, frames=10)
    shown = np.stack([source.read(0, 10), source.read(10, 20)], 1)
    expected = Trainer(task).evaluate(params, shown)
    assert found["observed"]["mse"] == pytest.approx(expected.loss, rel=1e-5)
    assert found["observed"]["ratio"] == pytest.approx(expected.ratio, rel=1e-5)
    with pytest.raises(UserError, match="extrapolate_from=5"):
        evaluation.evaluate(params, task, source, frames=10, extrapolate_from=5)


def test_pieces_can_be_skipped_and_the_first_of_all_sequences_come_first():
    source = data.open_split("walk", "test", sequences=3, height=8, width=8, channels=3)
    assert evaluation.pieces(source, 100, 4)[0] == [0, 300, 600, 100]
    assert evaluation.pieces(source, 100, 2, 2)[0] == [600, 100]
    with pytest.raises(UserError, match="after the first 2: it has 7"):
        evaluation.pieces(source, 100, 8, 2)
