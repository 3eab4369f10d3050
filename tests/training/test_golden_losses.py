"""Losses of a few updates against recorded ones: each network, each kind of arm.

`python -m tests.training.test_golden_losses` records the cases that the file lacks. To
record a case again, delete it there, in a commit that says why. Arms with noise also
check its size: how far their weights end from those of the same network without noise.
"""

import dataclasses
import functools
import json
import sys

import jax
import numpy as np
import pytest

from prednet_jax import PredNetConfig, Trainer, data, noise, records, tasks
from prednet_jax.config import AutoencoderConfig
from prednet_jax.objectives import OBJECTIVES, Method
from prednet_jax.training import loop
from tests.processes import ROOT

pytestmark = pytest.mark.optimized
GOLDEN = ROOT / "tests" / "golden" / "losses.json"
UPDATES = 4
_PREDNET = PredNetConfig(channels=(3, 4), height=8, width=8, convolution="xla")
_LEAKY = Method(truncation_leak=True)
_STALE = Method(targets="stale", truncation_leak=True)
NETWORKS = {
    "watanabe": (_PREDNET, _LEAKY),
    "lotter": (dataclasses.replace(_PREDNET, variant="lotter"), Method()),
    "autoencoder": (AutoencoderConfig(hidden=(12, 6, 12)), Method()),
}
# What an arm changes: the noise, the precision, the method, or the convolutions.
_ARMS = {
    "float32": {},
    "float64": {"dtype": "float64"},
    "stale_targets": {"method": _STALE},
    **{name: {"method": Method(objective=name)} for name in OBJECTIVES},
    "extrapolated": {"method": Method(objective="mse", extrapolate_from=1)},
    "convolution_auto": {"convolution": "auto"},
    "convolution_im2col": {"convolution": "im2col"},
    "reduction_order": {"noise": "reduction_order"},
    "reduction_order_run": {"noise": "reduction_order:schedule=run"},
    "ulp": {"noise": "ulp"},
    "reduced_precision": {"noise": "reduced_precision:format=bf16"},
    "gaussian_0.01": {"noise": "gradient_gaussian:scale=0.01"},
    "bit_flip": {"noise": "bit_flip:bit=22"},
}
# Of each kind one in `make test`.
QUICK = [
    *(("watanabe", arm) for arm in ("float32", "stale_targets", "reduction_order")),
    *(("lotter", arm) for arm in (*OBJECTIVES, "extrapolated")),
    *(("autoencoder", arm) for arm in _ARMS),
]
_OF_PREDNET_ALONE = ("convolution_", "extrapolated", "stale_targets", *OBJECTIVES)
CASES = [
    pytest.param(name, arm, marks=() if (name, arm) in QUICK else pytest.mark.slow)
    for name in NETWORKS
    for arm in _ARMS
    if name != "autoencoder" or not arm.startswith(_OF_PREDNET_ALONE)
    if name != "lotter" or (arm != "stale_targets" and "noise" not in _ARMS[arm])
]


def train(name, arm):
    """The losses and gradient norms of each update, and the final weights."""
    network, method = NETWORKS[name]
    changes = dict(_ARMS[arm])
    if "convolution" in changes:
        network = dataclasses.replace(network, convolution=changes["convolution"])
    spec = noise.parse(changes["noise"]) if "noise" in changes else None
    dtype = np.dtype(changes.get("dtype", "float32"))
    task = tasks.of(network)
    with jax.enable_x64(dtype == np.float64):
        source = data.open_source(task.data, seed=3, **tasks.frame_size(task))
        schedule = loop.frame_schedule(network, source, window=3, updates=UPDATES)
        optimizer = task.optimizer(UPDATES)
        trainer = Trainer(network, optimizer, changes.get("method", method), spec)
        drawn = loop.initial_params(network, 3)
        state = trainer.init(loop.prepare_params(drawn, dtype, spec, 3))
        steps = loop.train(trainer, state, source, schedule, seed=3)
        states, rows = zip(*steps, strict=True)
        numbers = [(row.loss, row.last_frame_loss, row.grad_norm) for row in rows]
        return np.array(numbers), records.vector(states[-1].params)


plain = functools.cache(train)


def distance(name, arm, weights):
    """Of the final weights from those without noise, over what training changed."""
    _, control = plain(name, "float32")
    start = records.vector(loop.initial_params(NETWORKS[name][0], 3))
    return float(np.linalg.norm(weights - control) / np.linalg.norm(control - start))


@pytest.mark.parametrize(("name", "arm"), CASES)
def test_losses_are_the_recorded_ones(name, arm):
    """Up to rounding: 1e-5 relative, of noise by the size of what it changes."""
    golden = json.loads(GOLDEN.read_text())[f"{name}/{arm}"]
    rows, weights = train(name, arm)
    found = distance(name, arm, weights)
    # Rounding of another order moves weights by 1e-6 of the way; and a loss by less.
    rtol = 1e-5 + (0.05 * golden["distance"] if "noise" in _ARMS[arm] else 0)
    np.testing.assert_allclose(rows, golden["rows"], rtol=rtol)
    if "noise" in _ARMS[arm]:
        assert golden["distance"] / 3 < found < 3 * golden["distance"]
    else:
        np.testing.assert_allclose(found, golden["distance"], rtol=0.02, atol=1e-4)


def main():
    """Records the cases that the file does not have."""
    made = records.read_json(GOLDEN) if GOLDEN.exists() else {}
    for name, arm in (case.values for case in CASES):
        if f"{name}/{arm}" in made:
            continue
        rows, weights = train(name, arm)
        made[f"{name}/{arm}"] = {
            "rows": [[float(f"{x:.8g}") for x in row] for row in rows],
            "distance": float(f"{distance(name, arm, weights):.4g}"),
        }
        print(name, arm, made[f"{name}/{arm}"]["distance"], flush=True)
        records.write_json(GOLDEN, made)


if __name__ == "__main__":
    sys.exit(main())
