"""Small trainings, other orders of their sums, and faults, for `noise.training`.

    python -m tests.accuracy.trainings --output=DIR --minutes=20
    python -m tests.accuracy.trainings --output=DIR --report

A network labels the tokens of padded sequences: statistics of the batch, a body,
dropout, a cross-entropy over the tokens that are there, AdamW with clipping and a
schedule, written out so that each fault is one changed line. Constants of the tool were
chosen on `PILOT`; rates are of `MEASURED`.
"""

import argparse
import functools
import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from statistics import NormalDist
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from prednet_jax import noise
from prednet_jax.noise import specs
from prednet_jax.noise.questions.training import NoisyTraining

ROWS, LENGTH, INPUTS, UNITS, CLASSES = 16, 8, 6, 16, 5
# Batches that are there; later updates see them again.
SEEN = 20
# Updates of the redraws that tell when a fault could be found: each is found before.
EARLY = 16
# The highest learning rate; noise grows where it is high.
RATE = 0.1


# What a right step computes with; each fault changes one. Numbers of the state, so that
# one compiled program is right or wrong.
RIGHT: dict[str, Any] = {
    "epsilon": 1e-8,
    "inside": 0.0,
    "correction": 1.0,
    "b2": 0.999,
    "decay": 1e-2,
    "coupled": 0.0,
    "biases": 0.0,
    "clip_halves": 0.0,
    "padded": 0.0,
    "unweighted": 0.0,
    "late": 0.0,
    "dropout": 0.1,
    "float16": 0.0,
    "stale": 0.0,
    "norm": 1e-5,
    "swapped": 0.0,
}
FAULTS: dict[str, tuple[str, float]] = {
    "epsilon of Adam": ("epsilon", 1e-6),
    "epsilon inside of the root": ("inside", 1),
    "no bias correction": ("correction", 0),
    "second moment .99": ("b2", 0.99),
    "coupled decay": ("coupled", 1),
    "decay of biases": ("biases", 1),
    "clipping before averaging": ("clip_halves", 1),
    "mean over padded tokens": ("padded", 1),
    "halves not weighted": ("unweighted", 1),
    "schedule off by one": ("late", 1),
    "no dropout": ("dropout", 0),
    "order of data": ("swapped", 1),
    "float16 weights": ("float16", 1),
    "stale statistics": ("stale", 1),
    "epsilon of the norm": ("norm", 1e-3),
}


class Recipe(NamedTuple):
    """In which order a step sums."""

    halves: bool = False
    wide: bool = False


def mlp(p, x, mask):
    return jnp.tanh(jnp.tanh(x @ p["a"]) @ p["b"])


def conv(p, x, mask):
    x = jax.nn.relu(x @ p["a"])
    windows = [jnp.roll(x, i, 1) for i in (-1, 0, 1)]
    return jax.nn.relu(jnp.concatenate(windows, -1) @ p["c"])


def attention(p, x, mask):
    x = x @ p["a"]
    q, k, v = (x @ p[name] for name in ("q", "k", "v"))
    scores = jnp.sum(q[:, :, None] * k[:, None], -1) / np.sqrt(UNITS).astype(x.dtype)
    scores = jax.nn.softmax(jnp.where(mask[:, None], scores, -1e9), -1)
    x = x + jnp.einsum("bij,bjd->bid", scores, v) @ p["b"]
    return x + jnp.tanh(x @ p["d"])


def recurrent(p, x, mask):
    def cell(h, x):
        gate = jax.nn.sigmoid(h @ p["q"] + x)
        h = gate * h + (1 - gate) * jnp.tanh(h @ p["b"] + x)
        return h, h

    rows = jnp.moveaxis(x @ p["a"], 1, 0)
    return jnp.moveaxis(lax.scan(cell, jnp.zeros_like(rows[0]), rows)[1], 0, 1)


def gated(p, x, mask):
    x = x @ p["a"]
    for name in ("b", "d"):
        y = x / jnp.sqrt(jnp.mean(x * x, -1, keepdims=True) + 1e-6)
        x = x + jax.nn.gelu(y @ p[name]) * (y @ p["q"])
    return x


def deep(p, x, mask):
    x = x @ p["a"]
    for name in "bdqk":
        scale = lax.rsqrt(jnp.var(x, -1, keepdims=True) + 1e-6)
        x = x + jax.nn.relu((x * scale) @ p[name])
    return x


PILOT: dict[str, Callable] = {"mlp": mlp, "conv": conv, "deep": deep}
MEASURED: dict[str, Callable] = {
    "attention": attention,
    "recurrent": recurrent,
    "gated": gated,
}


def initial(name: str, fault: str = "", wide: bool = False) -> dict[str, Any]:
    """The state before the first update."""
    random = np.random.default_rng(len(name))
    shapes = {"a": (INPUTS, UNITS), "c": (3 * UNITS, UNITS), "out": (UNITS, CLASSES)}
    shapes |= {letter: (UNITS, UNITS) for letter in "bdqkv"}
    params = {
        n: np.float32(random.standard_normal(s) / np.sqrt(s[0]))
        for n, s in shapes.items()
    }
    params["bias"] = np.zeros(CLASSES, np.float32)
    zeros = jax.tree.map(np.zeros_like, params)
    stats = np.zeros(INPUTS, np.float32), np.ones(INPUTS, np.float32)
    knobs = {n: np.float32(x) for n, x in RIGHT.items()}
    if fault:
        knob, value = FAULTS[fault]
        knobs[knob] = np.float32(value)
    state = {"params": params, "m": zeros, "v": zeros, "stats": stats, "knobs": knobs}
    if wide:
        state = jax.tree.map(lambda x: x.astype(np.float64), state)
    key = np.array([0, 1], np.uint32)
    return jax.tree.map(jnp.asarray, state | {"update": np.int32(0), "key": key})


def batches(name: str, updates: int, fault: str = "", rows: int = 0) -> list[Any]:
    """What each update sees, its rows in the order numbered `rows`."""
    random = np.random.default_rng(7 + len(name))
    teacher = random.standard_normal((2 * INPUTS, CLASSES))
    order = np.arange(ROWS)
    if rows:
        order = np.random.default_rng(rows).permutation(ROWS)
    many = []
    for _ in range(min(updates, SEEN)):
        x = np.float32(random.standard_normal((ROWS, LENGTH, INPUTS)) * 2 + 1)
        near = np.concatenate([x, np.roll(x, 1, 1)], -1)
        scores = 4 * np.tanh(near @ teacher) + random.gumbel(
            size=(ROWS, LENGTH, CLASSES)
        )
        lengths = random.integers(3, LENGTH + 1, ROWS)
        mask = np.arange(LENGTH) < lengths[:, None]
        arrays = x, mask, np.int32(np.argmax(scores, -1))
        many.append((*(a[order] for a in arrays), np.int32(order)))
    many = [many[i % SEEN] for i in range(updates)]
    if fault == "order of data":
        many[3], many[4] = many[4], many[3]
    return many


def make_step(name: str, recipe: Recipe, updates: int) -> Callable:
    """The training step of a network."""
    body = (PILOT | MEASURED)[name]
    real = jnp.float64 if recipe.wide else jnp.float32

    def summed(params, x, mask, y, kept, stats, knobs):
        mean, variance = stats
        x = (x - mean) / jnp.sqrt(variance + knobs["norm"])
        hidden = body(params, x, mask) * kept
        logits = jax.nn.log_softmax(hidden @ params["out"] + params["bias"])
        each = -jnp.take_along_axis(logits, y[..., None], -1)[..., 0]
        weights = jnp.where(mask, 1, knobs["padded"]).astype(each.dtype)
        return jnp.sum(each * weights), jnp.sum(weights)

    def clipped(grads):
        norm = jnp.sqrt(sum(jnp.sum(g * g) for g in jax.tree.leaves(grads)))
        scale = jnp.minimum(1, 0.5 / norm).astype(real)
        return jax.tree.map(lambda g: g * scale, grads), norm

    def step(state, batch):
        x, mask, y, order = batch
        knobs = state["knobs"]
        x, key = x.astype(real), jax.random.wrap_key_data(state["key"])
        key = jax.random.fold_in(key, state["update"])
        kept = jax.random.uniform(key, (ROWS, LENGTH, UNITS), jnp.float32)
        kept = (kept >= knobs["dropout"]).astype(real) / (1 - knobs["dropout"])
        kept = kept[order]
        count = jnp.sum(mask).astype(real)
        mean = jnp.sum(x * mask[..., None], (0, 1)) / count
        centred = (x - mean) * mask[..., None]
        now = mean, jnp.sum(centred * centred, (0, 1)) / count
        stale = knobs["stale"] > 0
        stats = [
            jnp.where(stale, a, b) for a, b in zip(state["stats"], now, strict=True)
        ]

        def grad(rows):
            def total(p):
                return summed(p, *(a[rows] for a in (x, mask, y, kept)), stats, knobs)

            return jax.value_and_grad(total, has_aux=True)(state["params"])

        halves = [slice(None, ROWS // 2), slice(ROWS // 2, None)]
        parts = [grad(rows) for rows in (halves if recipe.halves else [slice(None)])]
        whole = sum(n for (_, n), _ in parts)
        loss = sum(value for (value, _), _ in parts) / whole
        total = None
        for (_, n), g in parts:
            g = jax.tree.map(lambda g, n=n: g / n, g)
            share = n / whole
            if recipe.halves:
                share = jnp.where(knobs["unweighted"] > 0, 0.5, share)
                less = clipped(g)[0]
                kind = functools.partial(jnp.where, knobs["clip_halves"] > 0)
                g = jax.tree.map(kind, less, g)
            g = jax.tree.map(lambda g, share=share: share * g, g)
            total = g if total is None else jax.tree.map(jnp.add, total, g)
        grads, norm = clipped(total)
        t = (state["update"] + 1).astype(real)
        late = t + knobs["late"]
        rate = RATE * jnp.minimum(1, late / 10) * jnp.cos(1.4 * late / updates)

        def moved(p, g, m, v):
            decay = knobs["decay"] * (1 if p.ndim > 1 else knobs["biases"])
            g = g + knobs["coupled"] * decay * p
            m = 0.9 * m + 0.1 * g
            v = knobs["b2"] * v + (1 - knobs["b2"]) * g * g
            right = knobs["correction"] > 0
            a = m / jnp.where(right, 1 - 0.9**t, 1)
            b = v / jnp.where(right, 1 - knobs["b2"] ** t, 1)
            epsilon, inside = knobs["epsilon"], knobs["inside"]
            root = jnp.sqrt(b + inside * epsilon) + (1 - inside) * epsilon
            p = p - rate * (a / root + (1 - knobs["coupled"]) * decay * p)
            narrow = p.astype(jnp.float16).astype(real)
            return jnp.where(knobs["float16"] > 0, narrow, p), m, v

        new = {
            n: moved(p, grads[n], state["m"][n], state["v"][n])
            for n, p in state["params"].items()
        }
        params, m, v = ({n: x[i] for n, x in new.items()} for i in range(3))
        after = {"params": params, "m": m, "v": v, "stats": now}
        after = state | after | {"update": state["update"] + 1}
        return after, (loss, {"grad_norm": norm})

    return step


@functools.cache
def compiled(name: str, recipe: Recipe, updates: int) -> Callable:
    """The step of a network, compiled."""
    return jax.jit(make_step(name, recipe, updates))


def curve(
    name: str, recipe: Recipe, updates: int, fault: str = "", rows: int = 0
) -> np.ndarray:
    """The losses of one training [updates]."""
    with jax.enable_x64(recipe.wide), jax.numpy_dtype_promotion("standard"):
        step, losses = compiled(name, recipe, updates), []
        state = initial(name, fault, recipe.wide)
        for batch in batches(name, updates, fault, rows):
            state, (loss, _) = step(state, batch)
            losses.append(loss)
        return np.array(losses)


def variants() -> list[tuple[str, Recipe, int]]:
    """Trainings that differ in the order of their sums alone: 100.

    Rows of the batches in other orders, gradients of two halves that are averaged, and
    float64.
    """
    recipes = (Recipe(), 55), (Recipe(halves=True), 35), (Recipe(wide=True), 10)
    return [
        (f"{recipe} {rows}", recipe, rows)
        for recipe, count in recipes
        for rows in range(count)
    ]


def noisy(name: str, updates: int, halves: bool) -> Callable[..., np.ndarray]:
    """`draw(fault, draws)`: first losses of trainings under noise [draws, EARLY]."""
    step = make_step(name, Recipe(halves=halves), updates)
    program = None

    def draw(fault: str = "", draws: int = 64) -> np.ndarray:
        nonlocal program
        with jax.numpy_dtype_promotion("standard"):
            state, many = initial(name, fault), batches(name, updates, fault)[:EARLY]
            program = program or NoisyTraining(step, state, many[0], specs.default())
            program.arrays = jax.tree.leaves(state)
            keys = jax.random.split(jax.random.key(len(fault)), draws)
            return program.curves(keys, enumerate(many))["loss"]

    return draw


def detectable(faulty: np.ndarray, clean: np.ndarray) -> dict[str, int | None]:
    """The first updates at which tests with 64 redraws a side have a power of .8.

    `curve`: of one faulty curve against the clean ones, at level .01 for all updates
    together; `update`: at level .01 for each; `sides`: of 64 curves against 64.
    """
    x, y = np.log(faulty), np.log(clean)
    center, scatter = y.mean(0), y.std(0, ddof=1) + 6e-8
    far = np.abs(x - center) / scatter
    both = np.sqrt((x.var(0, ddof=1) + scatter**2) / 2)
    effect = np.abs(x.mean(0) - center) / both * np.sqrt(len(x) / 2)
    normal = NormalDist().inv_cdf
    whole, one = (-normal(0.005 / n) for n in (x.shape[1], 1))
    powers = {
        "curve": np.mean(far > whole, 0) >= 0.8,
        "update": np.mean(far > one, 0) >= 0.8,
        "sides": effect > one - normal(0.2),
    }
    return {n: int(np.argmax(p)) if p.any() else None for n, p in powers.items()}


def measure(
    name: str, folder: Path, updates: int, until: float, other: Path | None
) -> None:
    """Writes a line for each curve and fault of a network that has none yet."""
    file = folder / f"{name}.jsonl"
    lines = file.read_text().splitlines() if file.exists() else []
    done = {(x["kind"], x["label"]) for x in map(json.loads, lines)}

    def write(kind: str, label: str, **facts: Any) -> None:
        facts = {"network": name, "kind": kind, "label": label, **facts}
        with file.open("a") as out:
            out.write(json.dumps(facts | {"jax": jax.__version__}) + "\n")

    with jax.numpy_dtype_promotion("standard"):
        step = make_step(name, Recipe(), updates)
        about = step, initial(name), batches(name, updates)
        band = noise.training(*about)(jax.random.key(1))
    flags = os.environ.get("XLA_FLAGS", "")
    for label, recipe, rows in variants():
        label = f"{label} {flags}".strip()
        if ("clean", label) in done or time.monotonic() > until:
            continue
        loss = curve(name, recipe, updates, rows=rows)
        found = band.compare(loss)._asdict()
        write("clean", label, **found, curve=[float(x) for x in loss])
    if other is not None:
        for line in (other / file.name).read_text().splitlines():
            x = json.loads(line)
            label = f"{x['label']} {x['jax']}"
            if x["kind"] == "clean" and ("version", label) not in done:
                write("version", label, **band.compare(x["curve"])._asdict())
    draw, clean = noisy(name, updates, halves=True), None
    for fault in FAULTS:
        if ("fault", fault) in done or time.monotonic() > until:
            continue
        clean = draw() if clean is None else clean
        loss = curve(name, Recipe(halves=True), updates, fault=fault)
        found = band.compare(loss)._asdict()
        write("fault", fault, **found, **detectable(draw(fault), clean))


def report(folder: Path) -> dict[str, Any]:
    """The rates of all lines of a folder."""
    files = sorted(folder.glob("*.jsonl"))
    lines = [json.loads(x) for file in files for x in file.read_text().splitlines()]
    rates: dict[str, Any] = {}
    for kind in ("clean", "version"):
        some = [x for x in lines if x["kind"] == kind]
        alarms = [(x["network"], x["label"]) for x in some if x["answer"] == "beyond"]
        rates[kind] = {"curves": len(some), "alarms": alarms}
    faults = [x for x in lines if x["kind"] == "fault"]

    def late(test: str) -> list[Any]:
        return [
            (x["network"], x["label"], x["first"], x[test])
            for x in faults
            if x[test] is not None and (x["first"] is None or x["first"] > x[test])
        ]

    missed = [(x["network"], x["label"]) for x in faults if x["first"] is None]
    rates["faults"] = {"cases": len(faults), "missed": missed}
    for test in ("curve", "update", "sides"):
        rates["faults"][f"later than by {test}"] = late(test)
    rates["faults"]["draws"] = sum(x["draws"] for x in faults) / max(1, len(faults))
    return rates


def main() -> None:
    """Measures some networks, or reports."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--networks", default=",".join(MEASURED))
    parser.add_argument("--updates", type=int, default=250)
    parser.add_argument("--minutes", type=float, default=30)
    parser.add_argument("--other", type=Path, help="curves of another version of JAX")
    parser.add_argument("--report", action="store_true")
    options = parser.parse_args()
    options.output.mkdir(parents=True, exist_ok=True)
    until = time.monotonic() + 60 * options.minutes
    for name in [] if options.report else options.networks.split(","):
        measure(name, options.output, options.updates, until, options.other)
    print(json.dumps(report(options.output), indent=1))


if __name__ == "__main__":
    main()
