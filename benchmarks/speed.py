"""The suites `step` and `foreign`: PredNet's speed, and noise's cost on other networks.

docs/noise/cost.md names the three networks that `foreign` trains, in Flax Linen.
"""

import json
import os
import resource
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import linen as nn

from prednet_jax import noise as noise_lib
from prednet_jax import process, tasks
from prednet_jax.config import PredNetConfig
from prednet_jax.errors import UserError, one_of
from prednet_jax.objectives import Method
from prednet_jax.training import keys, loop, replicas, truncated

SPECS = (*(f"reduction_order:granularity={g}" for g in ("tile", "element")), "ulp")
NETWORKS = ("transformer", "cnn", "mlp")
# A function that is compiled, and its arguments.
Step = tuple[Callable, tuple]


def timed(call: Callable[[], Any]) -> tuple[Any, np.ndarray]:
    """Returns the result of a call, and its wall and processor seconds."""
    start, used = time.perf_counter(), time.process_time()
    result = jax.block_until_ready(call())
    return result, np.array([time.perf_counter() - start, time.process_time() - used])


@dataclass
class TimedStep:
    """A compiled training step with its inputs; each call of `advance` is one window.

    Attributes:
        compiled: the program, `(state, *inputs) -> (state, metrics)`.
        state: the training's state, replaced by each call.
        inputs: frames `[T + 1, B, H, W, C]` uint8, whether they open a sequence, a key.
        facts: record of the step: sizes, algorithms, device, compile time.
    """

    compiled: Callable
    state: Any
    inputs: tuple
    facts: dict[str, Any]

    def advance(self) -> Any:
        """Trains on the window once more and returns the metrics."""
        self.state, metrics = self.compiled(self.state, *self.inputs)
        return metrics

    def seconds(self, repeats: int) -> tuple[float, float]:
        """Returns median wall and processor seconds of a window, after two untimed."""
        times = [timed(self.advance)[1] for _ in range(2 + repeats)]
        wall, used = np.median(times[2:], axis=0)
        return float(wall), float(used)


def prepare_step(
    config: PredNetConfig,
    window: int,
    batch: int,
    noise: str,
    precision: str,
    rematerialize: bool = False,
) -> TimedStep:
    """Compiles one training window as `train.py` does it; frames on the device."""
    if process.gpu_found() is None:
        process.split_cpu(replicas.most_devices(1, batch, process.available_threads()))
    layout = replicas.layout(1, batch, None if batch > 1 else jax.devices()[:1])
    network = tasks.of(config)
    dtype = process.set_precision(precision)
    spec = noise_lib.parse(noise)
    optimizer = tasks.of(config).optimizer(100)
    params = loop.prepare_params(loop.initial_params(config, 0), dtype, spec, 0)
    state = truncated.initial_train_state(config, params, optimizer, batch=batch)
    parameters = sum(x.size for x in jax.tree.leaves(params))
    shape = (window + 1, batch, config.height, config.width, config.channels[0])
    drawn = np.random.default_rng(0).integers(0, 256, shape, np.uint8)
    first, key = np.bool_(False), keys.derive(0, "noise")
    method = Method(rematerialize=rematerialize)
    if batch == 1:
        update = truncated.make_step(config, optimizer, method, noise=spec)
        program = truncated.jit_update(update)
        inputs = jax.device_put((drawn, first, key))
    else:
        program = replicas.compile_update(
            network, optimizer, method, spec, layout, "map"
        )
        state = layout.place_states([state])
        inputs = (
            layout.stack([drawn], replicas.BY_WINDOW),
            layout.stack([first], replicas.BY_REPLICA),
            layout.stack([jax.random.key_data(key)], replicas.BY_REPLICA),
        )
    compiled, (compiling, _) = timed(lambda: program.lower(state, *inputs).compile())
    facts = {
        "compile_seconds": float(compiling),
        "temporary_bytes": compiled.memory_analysis().temp_size_in_bytes,
        "parameters": parameters,
        "shape": [config.height, config.width, *config.channels],
        "window": window,
        "batch": batch,
        "noise": noise,
        "precision": precision,
        "devices": layout.mesh.size,
        "convolutions": network.algorithms(dtype, layout.streams),
        "device": process.description(),
    }
    return TimedStep(compiled, state, inputs, facts)


def step(
    config: PredNetConfig,
    window: int,
    batch: int,
    repeats: int,
    noise: str,
    precision: str,
    torch_python: str | None,
    rematerialize: bool,
) -> dict[str, Any]:
    """Returns the median seconds of one training window, and its settings.

    With `torch_python`, `torch_prednet` is timed too, before and after, in a separate
    process on the same processors. `throughput_ratio` is our throughput divided by its
    median, and `processor_ratio` the same for processor seconds, which suffer less from
    other programs.
    """
    sizes = config, window, batch, repeats
    peers = [_peer(torch_python, *sizes)] if torch_python else []
    prepared = prepare_step(config, window, batch, noise, precision, rematerialize)
    seconds, used = prepared.seconds(repeats)
    compared: dict[str, Any] = {}
    if torch_python:
        peers.append(_peer(torch_python, *sizes))
        names = "seconds_per_window", "processor_seconds_per_window"
        wall, processor = (float(np.median([p[n] for p in peers])) for n in names)
        compared = {"throughput_ratio": wall / seconds, "torch": peers}
        compared["processor_ratio"] = processor / used
    return {
        "suite": "step",
        "seconds_per_window": seconds,
        "processor_seconds_per_window": used,
        "frames_per_second": window * batch / seconds,
        # ru_maxrss is in KiB on Linux.
        "peak_rss_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
        **prepared.facts,
        **compared,
    }


def _peer(python: str, config: PredNetConfig, *sizes: int) -> dict[str, Any]:
    """Returns the record that `torch_prednet` prints."""
    if shutil.which(python) is None:
        raise UserError(f"--torch_python={python}: expected a Python with PyTorch")
    script = Path(__file__).with_name("torch_prednet.py")
    # JAX has not started yet: it would take the GPU's memory.
    on_cpu = os.environ.get("JAX_PLATFORMS") == "cpu" or process.gpu_found() is None
    device = "cpu" if on_cpu else "cuda"
    numbers = (config.height, config.width, *sizes, *config.channels)
    command = [python, str(script), device, *map(str, numbers)]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise UserError(f"--torch_python={python}: {done.stderr.strip()[-300:]}")
    return json.loads(done.stdout.splitlines()[-1])


def foreign(networks: Sequence[str], noise: str, repeats: int) -> dict[str, Any]:
    """Compares networks' noisy with clean steps; `noise` "none": each of `SPECS`."""
    for name in networks:
        one_of("networks", name, NETWORKS)
    jax.config.update("jax_enable_compilation_cache", False)
    rows = []
    for name in networks:
        clean, arguments = training_step(name)

        def step(text: str, clean=clean, arguments=arguments) -> Step:
            if text == "none":
                return clean, arguments[1:]
            return noise_lib.inject(clean, noise_lib.parse(text)), arguments

        specs = SPECS if noise == "none" else (noise,)
        rows += compare(name, step, specs, repeats)
    return {"suite": "foreign", "xla_flags": os.environ.get("XLA_FLAGS"), "rows": rows}


def compare(
    network: str, step: Callable[[str], Step], specs: Sequence[str], repeats: int
) -> Iterator[dict[str, Any]]:
    """Measures noisy training steps against the clean step; yields a row per noise.

    All programs run in one process and take turns, so that other load slows all of them
    equally. The time ratio is the median, over rounds, of noisy over clean seconds of
    one round. The compile ratio compares processor time to trace and compile, the
    smaller of two.
    """
    _compiled(*step("none"))  # The first compilation has extra costs.
    programs: dict[str, Callable] = {}
    compile_ratios = {}
    for spec in specs:
        seconds: dict[str, list] = {"none": [], spec: []}
        for _ in range(2):
            for name, spent in seconds.items():
                programs[name], processor = _compiled(*step(name))
                spent.append(processor)
        compile_ratios[spec] = min(seconds[spec]) / min(seconds["none"])
    rounds = [
        {name: timed(run)[1] for name, run in programs.items()}
        for _ in range(1 + repeats)
    ]
    times = {name: np.array([x[name] for x in rounds[1:]]) for name in programs}
    for spec in specs:
        wall, processor = np.median(times[spec] / times["none"], axis=0)
        row = {
            "network": network,
            "noise": spec,
            "clean_seconds": float(np.median(times["none"][:, 0])),
            "time_ratio": float(wall),
            "processor_ratio": float(processor),
            "compile_ratio": compile_ratios[spec],
        }
        print(json.dumps(row), flush=True)
        yield row


def _compiled(step: Callable, arguments: tuple) -> tuple[Callable, float]:
    """Compiles a step and binds its arguments; also returns the processor seconds."""

    def fresh(*args: Any) -> Any:  # A new function, so that JAX compiles it again.
        return step(*args)

    program, (_, processor) = timed(lambda: jax.jit(fresh).lower(*arguments).compile())
    return lambda: program(*arguments), float(processor)


def training_step(name: str) -> Step:
    """Returns a training step of one of `NETWORKS`, and its arguments after the key."""
    random = np.random.default_rng(0)
    inputs: np.ndarray
    if name == "transformer":
        network, outputs, targets = Transformer(), 256, (8, 64)
        inputs = random.integers(0, 256, (8, 64))
    else:
        mlp = name == "mlp"
        network, outputs, targets = MLP if mlp else Cnn(), 10, 256 if mlp else 8
        inputs = random.standard_normal((256, 784) if mlp else (8, 32, 32, 3), "f4")
    arrays = jnp.asarray(inputs), jnp.asarray(random.integers(0, outputs, targets))
    params = network.init(jax.random.key(0), inputs)
    optimizer = optax.adam(1e-3)

    def loss(params, inputs, targets):
        logits = network.apply(params, inputs)
        cost = optax.softmax_cross_entropy_with_integer_labels(logits, targets)
        return cost.mean()

    def step(params, moments, inputs, targets):
        value, gradient = jax.value_and_grad(loss)(params, inputs, targets)
        updates, moments = optimizer.update(gradient, moments, params)
        return optax.apply_updates(params, updates), moments, value

    return step, (jax.random.key(1), params, optimizer.init(params), *arrays)


# ruff: noqa: D101, D102 (the networks that the module names)


class Block(nn.Module):
    @nn.compact
    def __call__(self, x):
        y = nn.LayerNorm()(x)
        x = x + nn.MultiHeadDotProductAttention(num_heads=4)(y, y)
        y = nn.LayerNorm()(x)
        return x + nn.Dense(128)(nn.gelu(nn.Dense(512)(y)))


class Transformer(nn.Module):
    @nn.compact
    def __call__(self, tokens):
        x = nn.Embed(256, 128)(tokens)
        x = x + self.param("place", nn.initializers.normal(0.02), (64, 128))
        for _ in range(2):
            x = Block()(x)
        return nn.Dense(256)(nn.LayerNorm()(x))


class Residual(nn.Module):
    @nn.compact
    def __call__(self, x):
        y = nn.Conv(32, (3, 3), use_bias=False)(nn.relu(nn.GroupNorm(8)(x)))
        return x + nn.Conv(32, (3, 3), use_bias=False)(nn.relu(nn.GroupNorm(8)(y)))


class Cnn(nn.Module):
    @nn.compact
    def __call__(self, x):
        x = nn.Conv(32, (3, 3))(x)
        for _ in range(2):
            x = Residual()(x)
        return nn.Dense(10)(nn.GroupNorm(8)(x).mean((1, 2)))


MLP = nn.Sequential([nn.Dense(512), nn.relu, nn.Dense(512), nn.relu, nn.Dense(10)])
