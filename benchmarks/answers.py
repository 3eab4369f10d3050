"""How often two answers of `noise` are right: the nearer of two, and accuracies.

    python -m benchmarks.answers

prints one line for each. The programs here were written after the constants of the
tools stood, and no tool was run on them before.
"""

from collections.abc import Callable, Iterable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from benchmarks.noise_programs import normal, wide
from prednet_jax import noise
from prednet_jax.noise.questions.exact import exact
from prednet_jax.noise.questions.explain import NEARER, ladder, place
from prednet_jax.noise.questions.runs import Call

ORDER = noise.ReductionOrder(granularity="element")


def rotary(x, w):
    """Attention scores with rotated pairs."""
    q = (x @ w).reshape(len(x), 4, 8, 2)
    angle = jnp.arange(4.0)[:, None] / jnp.arange(1.0, 9.0)
    turned = q[..., 0] * jnp.cos(angle) - q[..., 1] * jnp.sin(angle)
    return jax.nn.softmax(jnp.einsum("bip,bjp->bij", turned, turned)).reshape(
        len(x), 16
    )


def lstm(x, w):
    """A recurrence with gates."""
    steps = x.reshape(len(x), 4, 16).swapaxes(0, 1)

    def step(carry, now):
        h, c = carry
        i, f, o, g = jnp.split(jnp.concatenate([now, h], 1) @ w, 4, axis=1)
        c = jax.nn.sigmoid(f) * c + jax.nn.sigmoid(i) * jnp.tanh(g)
        return (jax.nn.sigmoid(o) * jnp.tanh(c), c), None

    zero = jnp.zeros((len(x), 16))
    return lax.scan(step, (zero, zero), steps)[0][0]


def sinkhorn(x, w):
    """Scaling of rows and columns, of a matrix per example."""
    cost = jnp.abs(x @ w).reshape(len(x), 8, 8)

    def step(p, _):
        p = p / jnp.sum(p, 1, keepdims=True)
        return p / jnp.sum(p, 2, keepdims=True), None

    return lax.scan(step, jnp.exp(-cost), None, length=5)[0].reshape(len(x), 64)


def gram_schmidt(x, w):
    """Two orthogonal directions per example."""
    a, b = jnp.split((x @ w).reshape(len(x), 2, 32), 2, axis=1)
    a = a / jnp.sqrt(jnp.sum(a * a, -1, keepdims=True))
    b = b - jnp.sum(a * b, -1, keepdims=True) * a
    return (b / jnp.sqrt(jnp.sum(b * b, -1, keepdims=True)))[:, 0]


def rms_gated(x, w):
    """A gated block with RMS normalisation."""
    y = x * lax.rsqrt(jnp.mean(x * x, -1, keepdims=True) + np.float32(1e-6))
    a, b = jnp.split(y @ w, 2, axis=1)
    return jax.nn.silu(a) * b


def wavelet(x, w):
    """Haar's transform and a projection."""
    for _ in range(3):
        pairs = x.reshape(len(x), -1, 2)
        x = jnp.concatenate(
            [pairs.sum(2), pairs[:, :, 0] - pairs[:, :, 1]], 1
        ) * np.float32(0.70710678)
    return x @ w


W = normal(901, 64, 64, scale=0.2)
PROGRAMS: dict[str, tuple[Callable, Any]] = {
    f.__name__: (f, normal(902, 32, 64, scale=0.3) if f is lstm else W)
    for f in (rotary, lstm, sinkhorn, gram_schmidt, rms_gated, wavelet)
}
X = normal(900, 12, 64)


def nearer(
    names: Iterable[str] = tuple(PROGRAMS),
) -> tuple[int, list[tuple[str, str, str]]]:
    """Pairs, and those where `closer` is not what float64 says: program, both names.

    The oracle calls the function again on wide arguments.
    """
    total, wrong = 0, []
    for name in names:
        fn, w = PROGRAMS[name]
        plain = jax.jit(fn)(X, w)
        call = Call(fn, (X, w), {})
        rungs = ladder(call, jax.random.key(7), draws=2)
        reference = exact(call, jax.random.key(7))

        def noisy(text, seed, fn=fn, w=w):
            spec = noise.parse(text)
            return noise.inject(fn, spec)(jax.random.key(seed), X, w)

        with jax.enable_x64(True), jax.numpy_dtype_promotion("standard"):
            truth = np.asarray(fn(*wide((X, w))))
        for a, b in (
            (plain, noisy("bf16", 1)),
            (noisy("tf32", 2), plain),
            (noisy("ulp:max_ulps=8", 3), noisy("ulp", 4)),
            (noisy("reduction_order", 5), noisy("reduction_order+ulp", 6)),
            (plain, plain * np.float32(1 + 1e-6)),
        ):
            far = [
                float(np.linalg.norm(np.asarray(v, np.float64) - truth)) for v in (a, b)
            ]
            expected = "a" if far[0] < far[1] else "b"
            if max(far) < NEARER * min(far):
                expected = "neither"
            report = place(rungs, a, b, reference)
            total += 1
            if report.closer != expected:
                wrong.append((name, expected, str(report.closer)))
    return total, wrong


def accuracies(draws: int = 16, fresh: int = 400) -> tuple[float, float]:
    """How often a fresh run's accuracy is within what `decisions` says; and wanted.

    Answers are the larger of two sums of a result that differ by no more than their
    noise; four evaluations per program with keys of their own.
    """
    within = []
    for fn, w in PROGRAMS.values():

        def answers(x, w, fn=fn):
            y = fn(x, w)
            tie = y.sum(1) - y[:, ::-1].sum(1)
            return (tie > 0).astype(jnp.int32)

        x = normal(903, 64, 64)
        labels = np.ones(64, int)
        noisy = noise.inject(answers, ORDER)
        keys = jax.random.split(jax.random.key(8), fresh)
        found = np.stack([np.asarray(noisy(key, x, w)) for key in keys])
        for seed in range(4):
            search = noise.decisions(answers, ORDER, draws=draws, labels=labels)
            evaluation = search(jax.random.key(seed), x, w).evaluation
            assert evaluation is not None
            far = np.abs(np.mean(found == 1, 1) - evaluation.accuracy)
            within.append(np.mean(far <= evaluation.moved + 1e-9))
    return float(np.mean(within)), draws / (draws + 1)


if __name__ == "__main__":
    jax.config.update("jax_platforms", "cpu")
    print("accuracy within, and wanted", *accuracies(), flush=True)
    print("nearer", *nearer(), flush=True)
