"""Suites `noise`, `foreign` and `tools`: what noise and its tools cost.

They are measured on training steps: of PredNet (`noise`), and (`foreign`, `tools`) of
three networks in Flax Linen with Adam: a transformer of two blocks (width 128, 8 x 64
tokens), a residual CNN with GroupNorm (8 maps of 32 x 32 x 32) and an MLP (512 wide,
batch 256).
"""

import functools
import os
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np
import optax
from flax import linen as nn

from benchmarks import harness
from prednet_jax import noise as noise_lib
from prednet_jax.config import PredNetConfig
from prednet_jax.errors import one_of

TILE, ELEMENT = (f"reduction_order:granularity={g}" for g in ("tile", "element"))
PREDNET = ("reduction_order:granularity=shared", TILE, ELEMENT, "ulp")
SPECS = {"noise": (*PREDNET, "stochastic_rounding"), "foreign": (TILE, ELEMENT, "ulp")}
# Of the tools that ask how large noise is, and of those that ask where it comes from.
SPEC, SEARCHED = "reduction_order+stochastic_rounding", "reduction_order"
NETWORKS = ("transformer", "cnn", "mlp")
# A function that is compiled, and its arguments.
Step = tuple[Callable, tuple]


def noise(config: PredNetConfig, window: int, repeats: int) -> dict[str, Any]:
    """Noisy steps of PredNet against the clean one; `compare` says how."""
    clean = harness.training(config)
    frames = jax.device_put(harness.random_frames(config, window + 1, 1))
    arguments = clean.state, frames, jax.numpy.asarray(False), clean.key

    def step(text: str) -> Step:
        spec = None if text == "none" else noise_lib.parse(text)
        return clean._replace(noise=spec).update(), arguments

    rows = compare("prednet", step, SPECS["noise"], repeats, compilations=1)
    return {"suite": "noise", "rows": rows}


def foreign(networks: Sequence[str], noise: str, repeats: int) -> dict[str, Any]:
    """Noisy steps of other networks against the clean ones; `compare` says how.

    Args:
        networks: some of `NETWORKS`.
        noise: a noise spec as text; "none": each of `SPECS["foreign"]`.
        repeats: number of rounds.
    """
    rows = []
    for name in _checked(networks):
        clean, arguments = training_step(name)

        def step(text: str, clean=clean, arguments=arguments) -> Step:
            if text == "none":
                return clean, arguments[1:]
            return noise_lib.inject(clean, noise_lib.parse(text)), arguments

        specs = SPECS["foreign"] if noise == "none" else (noise,)
        rows += compare(name, step, specs, repeats)
    return {"suite": "foreign", "xla_flags": os.environ.get("XLA_FLAGS"), "rows": rows}


def compare(
    network: str,
    step: Callable[[str], Step],
    specs: Sequence[str],
    repeats: int,
    *,
    compilations: int = 2,
) -> list[dict[str, Any]]:
    """Times noisy training steps against the clean step; one row per noise.

    All programs run in one process and take turns. The time ratio of a noise is the
    median, over `repeats` rounds, of the noisy seconds over the clean seconds of the
    same round; the ratio of processor times is defined likewise. The compile ratio
    compares the processor time to trace and compile the two programs, one directly
    after the other, and the smallest time of each is taken.

    Args:
        network: its name.
        step: a new step under a noise, given as text; "none": the clean step.
        specs: the noises.
        repeats: number of rounds.
        compilations: how often each program is compiled.
    """
    _compiled(*step("none"))  # The first compilation has extra costs.
    programs: dict[str, harness.Program] = {}
    compile_ratios = {}
    for spec in specs:
        seconds: dict[str, list] = {"none": [], spec: []}
        for _ in range(compilations):
            for name, times in seconds.items():
                programs[name], spent = _compiled(*step(name))
                times.append(spent)
        compile_ratios[spec] = min(seconds[spec]) / min(seconds["none"])
    times = harness.turns(programs, repeats)
    rows = []
    for spec in specs:
        wall, processor = np.median(times[spec] / times["none"], axis=0)
        rows.append(
            {
                "network": network,
                "noise": spec,
                "clean_seconds": float(np.median(times["none"][:, 0])),
                "time_ratio": float(wall),
                "processor_ratio": float(processor),
                "compile_ratio": compile_ratios[spec],
            }
        )
        print(
            f"  {network:12s} {spec:36s} {wall:6.2f} x the clean step "
            f"({processor:.2f} x its processor time), "
            f"{compile_ratios[spec]:5.2f} x its trace and compile time",
            flush=True,
        )
    return rows


def _compiled(step: Callable, arguments: tuple) -> tuple[harness.Program, float]:
    """Compiles a step; the program and the processor seconds."""

    def fresh(*args: Any) -> Any:  # A new function, so that JAX compiles it again.
        return step(*args)

    program, (_, processor) = harness.timed(
        lambda: jax.jit(fresh).lower(*arguments).compile()
    )
    return ((lambda _: program(*arguments)), None), float(processor)


def tools(networks: Sequence[str], repeats: int, searches: bool) -> dict[str, Any]:
    """Times the tools of `noise` against the plain training step of each network.

    Args:
        networks: some of `NETWORKS`.
        repeats: runs of the compiled plain step, of which the median counts.
        searches: measure those that switch single equations on and off, under
            `SEARCHED`, instead of digits, tolerance and explain under `SPEC`.

    Returns:
        `rows`, one per network and tool. `first`: wall time of a tool's first call over
        that of tracing, compiling and running the plain step once; `again`: of a second
        call over one run of the compiled step (None for those that compile at every
        call). `_processor`: the same of processor time, which a busy machine disturbs
        less.
    """
    rows = []
    for name in _checked(networks):
        rows += _tools(name, repeats, searches)
    return {
        "suite": "tools",
        "noise": SEARCHED if searches else SPEC,
        "xla_flags": os.environ.get("XLA_FLAGS"),
        "rows": rows,
    }


def _tools(name: str, repeats: int, searches: bool) -> list[dict[str, Any]]:
    """The rows of one network."""
    step, (key, *arguments) = training_step(name)
    # The first compilation has extra costs.
    jax.block_until_ready(jax.jit(lambda *a: step(*a))(*arguments))
    plain = jax.jit(lambda *a: step(*a))
    result, compiling = harness.timed(lambda: plain(*arguments))
    run = (lambda _: plain(*arguments)), None
    running = np.median(harness.turns({"": run}, repeats, warm_up=0)[""], axis=0)
    spec = noise_lib.parse(SEARCHED if searches else SPEC)
    if searches:
        measures = {
            "localize": noise_lib.localize(step, spec),
            "decisions": noise_lib.decisions(step, spec),
        }
    else:
        measures = {
            "digits": noise_lib.digits(step, spec),
            "tolerance": noise_lib.tolerance(step, spec),
            "explain": noise_lib.explain(step, result, result),
        }
    rows = []
    for tool, measure in measures.items():
        call = functools.partial(measure, key, *arguments)
        first = harness.timed(call)[1] / compiling
        # The others compile at every call.
        once = tool not in ("digits", "tolerance")
        again = [None, None] if once else list(harness.timed(call)[1] / running)
        rows.append(
            {
                "network": name,
                "tool": tool,
                "plain_compile_seconds": float(compiling[0]),
                "plain_run_seconds": float(running[0]),
                "first": float(first[0]),
                "first_processor": float(first[1]),
                "again": again[0],
                "again_processor": again[1],
            }
        )
        said = f"  {name:12s} {tool:10s} first {first[0]:6.1f} x compiling and one run"
        print(said, flush=True)
    return rows


def _checked(networks: Sequence[str]) -> Sequence[str]:
    for name in networks:
        one_of("networks", name, NETWORKS)
    jax.config.update("jax_enable_compilation_cache", False)
    return networks


def training_step(name: str) -> tuple[Callable, tuple]:
    """A training step of one of `NETWORKS`, and its arguments.

    Returns:
        `step(params, moments, inputs, targets)`, which returns new parameters, new
        moments and the loss; and the tuple (noise key, params, moments, inputs,
        targets).
    """
    network, inputs, targets = _network(name)
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

    moments = optimizer.init(params)
    arrays = map(jax.numpy.asarray, (inputs, targets))
    return step, (jax.random.key(1), params, moments, *arrays)


def _network(name: str) -> tuple[nn.Module, np.ndarray, np.ndarray]:
    """A network, inputs and integer targets."""

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

    class Mlp(nn.Module):
        @nn.compact
        def __call__(self, x):
            for _ in range(2):
                x = nn.relu(nn.Dense(512)(x))
            return nn.Dense(10)(x)

    network, shape, outputs, targets = {
        "transformer": (Transformer(), None, 256, (8, 64)),
        "cnn": (Cnn(), (8, 32, 32, 3), 10, 8),
        "mlp": (Mlp(), (256, 784), 10, 256),
    }[name]
    random = np.random.default_rng(0)
    if shape is None:
        inputs = random.integers(0, 256, (8, 64))
    else:
        inputs = random.standard_normal(shape, np.float32)
    return network, inputs, random.integers(0, outputs, targets)
