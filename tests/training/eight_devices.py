"""Run by test_replicas.py in a process with eight CPU devices; prints JSON."""

import dataclasses
import json
import sys
from pathlib import Path

import jax
import numpy as np

from prednet_jax import data
from prednet_jax.training import loop, replicas, truncated
from prednet_jax.training.trainer import Trainer

sys.path.append(str(Path(__file__).parents[1] / "experiments"))
# What is compared is where the work lies.
from tiny_task import TINY as CONFIG

OPTIMIZER = CONFIG.optimizer(10)
METHOD = truncated.Method()
UPDATES, SEEDS = 3, 4


def source(seed):
    walk = data.open_source("walk", height=8, width=8, channels=3, seed=seed)
    return dataclasses.replace(walk, length=90)


def start(seed, batch):
    params = loop.initial_params(CONFIG, seed)
    return truncated.initial_train_state(CONFIG, params, OPTIMIZER, batch=batch)


def together(count, batch, devices, mode="map"):
    """Final weights and losses of each replica, `[N, ...]`."""
    place = replicas.layout(count, batch, jax.devices()[:devices])
    config = replicas.resolve_network(CONFIG, mode)
    update = replicas.compile_update(config, OPTIMIZER, METHOD, None, place, mode)
    runs = []
    for seed in range(count):
        schedule = loop.frame_schedule(
            CONFIG, source(seed), window=3, updates=UPDATES, batch=batch
        )
        runs.append(loop.SeedRun(seed, start(seed, batch), source(seed), schedule))
    losses = []
    pair = replicas.many_seeds(update, place, runs)
    for states, lines in loop.train_runs(runs, pair):
        losses.append([line.loss for line in lines])
        params = jax.tree.map(np.array, states.params)
    return np.array(losses).T, params


def alone():
    """The same seeds through the usual loop, one after the other."""
    trainer = Trainer(CONFIG, OPTIMIZER, METHOD)
    losses, params = [], []
    for seed in range(SEEDS):
        schedule = loop.frame_schedule(CONFIG, source(seed), window=3, updates=UPDATES)
        steps = loop.train(trainer, start(seed, 1), source(seed), schedule, seed=seed)
        trained = [(line.loss, jax.tree.map(np.array, s.params)) for s, line in steps]
        losses.append([loss for loss, _ in trained])
        params.append(trained[-1][1])
    return np.array(losses), jax.tree.map(lambda *x: np.stack(x), *params)


def distance(one, other):
    """The largest difference of losses, relative, and of weights."""
    losses = np.abs(one[0] / other[0] - 1).max()
    weights = jax.tree.map(lambda a, b: np.abs(a - b).max(), one[1], other[1])
    return [float(losses), float(max(jax.tree.leaves(weights)))]


if __name__ == "__main__":
    single = alone()
    found = {
        "devices": jax.device_count(),
        "vmap": distance(together(SEEDS, 1, 4, "vmap"), single),
        "batch": distance(together(2, 4, 8), together(2, 4, 1)),
        # Guards against a comparison of a thing with itself.
        "other_seeds": float(np.ptp(single[0][:, -1])),
    }
    print(json.dumps(found))
