"""The suite `foreign`: noise on networks other than PredNet.

It measures training steps (forward, backward, Adam) of three common networks, written
with Flax Linen: a transformer of two blocks (width 128, 8 x 64 tokens), a residual CNN
with GroupNorm (8 maps of 32 x 32 x 32) and an MLP (512 wide, batch 256).
"""

import os
from collections.abc import Callable

import jax
import numpy as np
import optax
from flax import linen as nn

from benchmarks import noise as compared
from prednet_jax import noise as noise_lib
from prednet_jax.errors import one_of

SPECS = (
    "reduction_order:granularity=tile",
    "reduction_order:granularity=element",
    "ulp",
)
NAMES = ("transformer", "cnn", "mlp")


def run(config: object, *, networks: list[str], noise: str, repeats: int) -> dict:
    """Compares steps of each network; `noise.compare` says how.

    Args:
        config: a PredNet, as all suites get it; not used.
        networks: some of `NAMES`.
        noise: a noise spec as text; "none": each of `SPECS`.
        repeats: number of rounds.

    Returns:
        A JSON object; `rows` has one entry per network and noise.

    Raises:
        UserError: a network or a noise is unknown.
    """
    del config
    for name in networks:
        one_of("networks", name, NAMES)
    specs = SPECS if noise == "none" else (noise,)
    jax.config.update("jax_enable_compilation_cache", False)
    rows = []
    for name in networks:
        step, arguments = training_step(name)

        def under(spec: str, step=step, arguments=arguments) -> compared.Step:
            if spec == "none":
                return step, arguments[1:]
            return noise_lib.inject(step, noise_lib.parse(spec)), arguments

        rows += compared.compare(name, under, specs, repeats)
    return {"suite": "foreign", "xla_flags": os.environ.get("XLA_FLAGS"), "rows": rows}


def training_step(name: str) -> tuple[Callable, tuple]:
    """A training step and its arguments.

    Args:
        name: one of `NAMES`.

    Returns:
        `step(params, moments, inputs, targets)`, which returns new parameters, new
        moments and the loss; and the tuple (noise key, params, moments, inputs,
        targets).
    """
    network, inputs, targets = _networks()[name]()
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

    return step, (
        jax.random.key(1),
        params,
        optimizer.init(params),
        jax.numpy.asarray(inputs),
        jax.numpy.asarray(targets),
    )


def _networks() -> dict[str, Callable]:
    """Constructors by name, which return a network, inputs and integer targets."""

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

    random = np.random.default_rng(0)

    def normal(*shape):
        return random.standard_normal(shape, np.float32)

    return {
        "transformer": lambda: (
            Transformer(),
            random.integers(0, 256, (8, 64)),
            random.integers(0, 256, (8, 64)),
        ),
        "cnn": lambda: (Cnn(), normal(8, 32, 32, 3), random.integers(0, 10, 8)),
        "mlp": lambda: (Mlp(), normal(256, 784), random.integers(0, 10, 256)),
    }
