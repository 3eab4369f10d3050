from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from prednet_jax import PredNetConfig, init_params
from prednet_jax.models import prednet, sequences

CONFIG = PredNetConfig(channels=(1, 2), height=4, width=4, convolution="shifted")
FRAMES = np.random.default_rng(0).random((13, 4, 4, 1)).astype(np.float32)


@pytest.mark.parametrize("variant", ["watanabe", "lotter"])
def test_predictions_and_maps_are_those_of_one_scan(variant):
    config = replace(CONFIG, variant=variant)
    params = init_params(config, jax.random.key(0))
    whole = jnp.asarray(FRAMES)[:, None]
    names = ("prediction", "E1")
    for k in (12, None):
        found, maps = sequences.predict_sequence(
            params, config, FRAMES, extrapolate_from=k, maps=("E1",)
        )
        expected, _ = prednet.outputs(params, config, whole, names, extrapolate_from=k)
        for name, value in (("prediction", found), ("E1", maps["E1"])):
            np.testing.assert_allclose(value, expected[name][:, 0], rtol=0, atol=1e-6)
    # Of a causal network the first predictions need no other frames.
    short, _ = sequences.predict_sequence(params, config, FRAMES[:7], maps=("E1",))
    np.testing.assert_allclose(short, expected["prediction"][:7, 0], rtol=0, atol=1e-6)
    # One program for every length and every place of extrapolation.
    assert sequences._program(config, ("E1",))._cache_size() == 1


def test_units_are_those_of_one_scan_for_every_sequence():
    params = init_params(CONFIG, jax.random.key(0))
    frames = np.random.default_rng(1).integers(0, 256, (13, 3, 4, 4, 1), np.uint8)
    found = sequences.units(params, CONFIG, frames, ("E0", "Ahat1"))
    assert list(found) == ["E0", "Ahat1"]
    expected, _ = prednet.outputs(params, CONFIG, frames, tuple(found))
    for name, value in found.items():
        np.testing.assert_allclose(value, expected[name], rtol=0, atol=1e-6)
    swapped = sequences.units(
        params, CONFIG, frames.swapaxes(0, 1), ("E0", "Ahat1"), layout="NTHWC"
    )
    np.testing.assert_array_equal(swapped["E0"].swapaxes(0, 1), found["E0"])
    parts = list(sequences.pieces(params, CONFIG, frames, ("E0", "Ahat1")))
    assert [len(part["E0"]) for part in parts] == [10, 3]
