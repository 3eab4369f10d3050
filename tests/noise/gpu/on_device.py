"""What varies on the GPU at hand, beside what the audit says without one.

    python tests/noise/gpu/on_device.py repeats FILE.json     # once a process
    python tests/noise/gpu/on_device.py sums FILE.npz         # outputs of `reductions`
    python tests/noise/gpu/on_device.py times FILE.json       # PredNet's step

`repeats` calls each program 20 times and writes how many outputs were different, and
the SHA-256 of the first: the forty functions of `test_held_back`, the `sums`, the
reductions of `calibration`, and gradients of PredNet. results/gpu/device.json is made
from such files.
"""

import hashlib
import json
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[3]))

import jax
import numpy as np
from jax import numpy as jnp

from prednet_jax import optimizers, tasks
from prednet_jax.config import PredNetConfig
from prednet_jax.objectives import Method
from prednet_jax.studies import calibration
from prednet_jax.training import loop, truncated
from tests.noise.gpu import reductions, sums, test_held_back

CALLS = 20
SIZES = {
    "24x32": (10, {"channels": (3, 6, 12), "height": 24, "width": 32}),
    "64x48": (20, {"channels": (3, 12, 24, 48), "height": 48, "width": 64}),
    "160x120": (20, {"channels": (3, 48, 96, 192), "height": 120, "width": 160}),
}


def drawn(shape, random):
    """An operand; whole numbers are below 5, which all functions take as an index."""
    if np.issubdtype(shape.dtype, np.integer):
        return random.integers(0, 5, shape.shape, np.int32)
    return jnp.asarray(random.standard_normal(shape.shape), shape.dtype)


def network(size, convolution):
    """PredNet, and its loss's operands: weights, carry, window, whether it is first."""
    window, sizes = SIZES[size]
    config = PredNetConfig(convolution=convolution, **sizes)
    task = tasks.of(config)
    params = loop.initial_params(config, 0)
    shape = (window + 1, 1, config.height, config.width, 3)
    frames = np.random.default_rng(0).random(shape, np.float32)
    carry = task.initial_carry(1, np.dtype(np.float32))
    return task, (params, carry, frames, np.bool_(False))


def gradient(size, convolution):
    """The gradient of a window of PredNet, and its operands."""
    task, operands = network(size, convolution)
    of = jax.grad(partial(task.loss, method=Method()), has_aux=True)
    return (lambda *x: of(*x)[0]), operands


def programs():
    """Name, function and operands of each."""
    random = np.random.default_rng(0)
    for i, (function, shapes) in enumerate(test_held_back.CASES):
        yield f"held_back_{i}", function, [drawn(shape, random) for shape in shapes]
    for name, function in sums.SUMS.items():
        if name != "psum":
            for shape in sums.SHAPES:
                x = random.standard_normal(shape, np.float32)
                yield f"{name}_{shape[0]}x{shape[1]}", function, [x]
    for name, (function, operands) in calibration.reductions(small=False).items():
        yield f"large {name}", function, operands
    for size in SIZES:
        for convolution in ("xla", "im2col"):
            yield f"gradient {size} {convolution}", *gradient(size, convolution)


def digest(tree):
    """SHA-256 of all numbers."""
    found = hashlib.sha256()
    for leaf in jax.tree.leaves(jax.device_get(tree)):
        found.update(np.ascontiguousarray(leaf).tobytes())
    return found.hexdigest()[:16]


def repeats():
    """Distinct outputs of `CALLS` calls, the first, and the furthest difference."""
    found = {}
    for name, function, operands in programs():
        highest = "highest" if name.startswith("gradient") else "default"
        with jax.default_matmul_precision(highest):
            program = jax.jit(function).lower(*operands).compile()
        outputs = [program(*operands) for _ in range(CALLS)]
        digests = [digest(output) for output in outputs]
        flat = [
            np.concatenate([np.ravel(x).astype(np.float64) for x in jax.tree.leaves(o)])
            for o in jax.device_get(outputs[:: CALLS - 1])
        ]
        norm = np.linalg.norm(flat[0]) or 1.0
        moved = np.linalg.norm(flat[1] - flat[0]) / norm
        found[name] = {"outputs": len(set(digests)), "first": digests[0]}
        found[name] |= {"moved": float(moved)}
    return found


def times():
    """Seconds of a training step on the device, median of ten after three."""

    def compiled(case):
        size, convolution, deterministic = case
        task, (params, _, frames, first) = network(size, convolution)
        optimizer = optimizers.chainer_adam()
        state = truncated.initial_train_state(task, params, optimizer)
        step = truncated.make_step(task, optimizer, Method())
        options = {"xla_gpu_deterministic_ops": True} if deterministic else None
        program = jax.jit(step, compiler_options=options)
        inputs = jax.device_put((state, frames, first, jax.random.key(0)))
        with jax.default_matmul_precision("highest"):
            return program.lower(*inputs).compile(), inputs

    cases = [(s, c, d) for s in SIZES for c in ("xla", "im2col") for d in (False, True)]
    with ThreadPoolExecutor(len(cases)) as pool:
        made = list(pool.map(compiled, cases))
    found = {}
    for case, (program, inputs) in zip(cases, made, strict=True):
        seconds = []
        for _ in range(13):
            start = time.perf_counter()
            jax.block_until_ready(program(*inputs))
            seconds.append(time.perf_counter() - start)
        name = "{} {}{}".format(*case[:2], " deterministic" if case[2] else "")
        found[name] = float(np.median(seconds[3:]))
        print(name, found[name], flush=True)
    return found


def main(mode, file):
    """Writes the file."""
    if mode in ("repeats", "times"):
        found = repeats() if mode == "repeats" else times()
        Path(file).write_text(json.dumps(found, indent=1) + "\n")
    else:
        made = {
            case.name: np.asarray(jax.jit(case.compiled_sum)(*case.drawn(0)))
            for case in reductions.CASES
        }
        np.savez(file, **made)
    print(mode, jax.devices()[0].device_kind, jax.__version__)


if __name__ == "__main__":
    main(*sys.argv[1:])
