"""How often `noise.explain` takes a factor for a format, and a format for none.

    python -m tests.accuracy.factors --seeds=3

Factors inside of eight functions are faults, and `beyond` is right. Operands of
products in a format are right by its name. The constants were chosen on other
functions (`narrow.py`, `gpu_tools.py`, and an attention).
"""

import argparse
from collections import Counter
from collections.abc import Callable, Iterator

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from prednet_jax import noise
from prednet_jax.noise.questions.explain import classify
from prednet_jax.noise.questions.reference import MATRIX_PRODUCTS, NoiseReference
from prednet_jax.noise.questions.sampling import BoundCall

KEY = jax.random.key(0)
PLACES = 2
FACTORS = (0.9, 0.97, 0.997, 1.001, 1.01, 1.03, 1.1, 1.2)
FORMATS = {"tf32": ("tf32", "fp16"), "bf16": ("bf16",), "fp8": ("fp8",)}

Normal = Callable[..., np.ndarray]
# A function of its input and of the factors of its places, [PLACES].
Program = Callable[[np.ndarray, np.ndarray], jax.Array]


def convolutions(normal: Normal) -> tuple[Program, np.ndarray]:
    """Two convolutions with a residual."""
    first, second = normal(3, 3, 4, 8) / 6, normal(3, 3, 8, 4) / 8

    def fn(x, f):
        same = {"window_strides": (1, 1), "padding": "SAME"}
        axes = "NHWC", "HWIO", "NHWC"
        y = lax.conv_general_dilated(x, first, dimension_numbers=axes, **same)
        y = jax.nn.gelu(f[0] * y)
        y = lax.conv_general_dilated(y, second, dimension_numbers=axes, **same)
        return x + jnp.tanh(f[1] * y)

    return fn, normal(2, 6, 6, 4)


def recurrent(normal: Normal) -> tuple[Program, np.ndarray]:
    """A gated recurrent unit over six steps."""
    w, u = normal(8, 36) / 3, normal(12, 36) / 4

    def fn(x, f):
        def step(h, x):
            (r, z, n), (a, b, c) = (jnp.split(v, 3, -1) for v in (x @ w, h @ u))
            r, z = jax.nn.sigmoid(f[0] * (r + a)), jax.nn.sigmoid(z + b)
            return (1 - z) * jnp.tanh(n + f[1] * r * c) + z * h, None

        return lax.scan(step, jnp.zeros((4, 12)), x)[0]

    return fn, normal(6, 4, 8)


def normalised(normal: Normal) -> tuple[Program, np.ndarray]:
    """Six equal layers, each normalised."""
    layers = normal(6, 20, 20) / 4

    def fn(x, f):
        for i, w in enumerate(layers):
            x = x + jax.nn.relu(jax.nn.standardize(x) * (f[i // 4] if i % 3 else 1) @ w)
        return x

    return fn, normal(10, 20)


def logits(normal: Normal) -> tuple[Program, np.ndarray]:
    """Log-probabilities of tokens, whose embedding is their last layer, too."""
    table, w = normal(30, 16) / 4, normal(16, 16) / 4

    def fn(x, f):
        x = jax.nn.one_hot(jnp.arange(9) * 3, 30) @ table * f[0] + x
        return jax.nn.log_softmax(f[1] * jnp.tanh(x @ w) @ table.T)

    return fn, normal(9, 16)


def regression(normal: Normal) -> tuple[Program, np.ndarray]:
    """Ridge regressions by Cholesky's method, one for each target."""
    targets = normal(40, 6)

    def fn(x, f):
        gram = x.T @ x + f[0] * jnp.eye(10)
        return jax.scipy.linalg.solve(gram, f[1] * (x.T @ targets), assume_a="pos")

    return fn, normal(40, 10)


def batched(normal: Normal) -> tuple[Program, np.ndarray]:
    """Products of batches of matrices that one side shares."""
    w, v = normal(5, 8, 12) / 3, normal(12, 8) / 3

    def fn(x, f):
        return jnp.cos(f[0] * jnp.einsum("bij,hjk->bhik", x, w)) @ v * jnp.exp(f[1] / 4)

    return fn, normal(3, 4, 8)


def tied(normal: Normal) -> tuple[Program, np.ndarray]:
    """The gradient of an autoencoder whose two layers share their weights."""
    x = normal(16, 14)

    def fn(w, f):
        def loss(w):
            code = jax.nn.sigmoid(f[0] * (x @ w))
            return jnp.mean((f[1] * (code @ w.T) - x) ** 2)

        return jax.grad(loss)(w)

    return fn, normal(14, 10) / 3


def iterated(normal: Normal) -> tuple[Program, np.ndarray]:
    """Five products with one matrix in a loop, each damped."""
    w = normal(18, 18) / 5

    def fn(x, f):
        def step(_, y):
            return f[0] * jnp.tanh(y @ w) + x / 2

        return lax.fori_loop(0, 5, step, x) * jnp.sin(f[1] + x)

    return fn, normal(7, 18)


PROGRAMS = (
    *(convolutions, recurrent, normalised, logits),
    *(regression, batched, tied, iterated),
)


def pairs(fn: Program, x: np.ndarray) -> Iterator[tuple[str, np.ndarray, tuple]]:
    """Yields results with a fault or a format: the kind, and the right answers."""
    ones = np.ones(PLACES, np.float32)
    plain = np.asarray(fn(x, ones))
    compiled = jax.jit(fn)
    for place in range(PLACES):
        for factor in FACTORS:
            f = ones.copy()
            f[place] = factor
            yield "factor", np.asarray(compiled(x, f)), ("beyond",)
    steps = BoundCall(fn, (x, ones), {}).equations()
    products = [step.path for step in steps if step.name in MATRIX_PRODUCTS]
    for name, right in FORMATS.items():
        spec = noise.parse(name)
        narrow = np.asarray(noise.inject(fn, spec)(KEY, x, ones))
        yield "format of all products", narrow, right
        rows = np.arange(len(plain)).reshape(-1, *[1] * (plain.ndim - 1))
        yield "in half of the rows", np.where(rows % 2, narrow, plain), right
        both = noise.compose(spec, noise.ReductionOrder())
        yield (
            "and in another order",
            np.asarray(noise.inject(fn, both)(KEY, x, ones)),
            right,
        )
        if len(products) > 1:
            only = noise.inject(fn, spec, only=products[-1:])
            yield "in the last product", np.asarray(only(KEY, x, ones)), right


def main() -> None:
    """Prints, by kind, how many pairs were asked about, and the wrong answers."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--draws", type=int, default=8)
    args = parser.parse_args()
    asked: Counter[str] = Counter()
    wrong: Counter[tuple[str, str]] = Counter()
    for seed in range(args.seeds):
        for program in PROGRAMS:
            drawn = np.random.default_rng(seed)
            fn, x = program(lambda *n, d=drawn: d.standard_normal(n).astype("f4"))
            call = BoundCall(fn, (x, np.ones(PLACES, np.float32)), {})
            reference = NoiseReference(call, KEY, draws=args.draws)
            for kind, result, right in pairs(fn, x):
                rung = classify(reference, result, call.result()).rung
                asked[kind] += 1
                if rung not in right:
                    wrong[kind, rung] += 1
                    print(f"{program.__name__} {seed}: {kind}: {rung}", flush=True)
    for kind, count in asked.items():
        answers = {rung: n for (k, rung), n in wrong.items() if k == kind}
        print(f"{kind}: {count} asked, wrong {sum(answers.values())} {answers or ''}")


if __name__ == "__main__":
    main()
