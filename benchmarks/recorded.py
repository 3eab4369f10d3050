"""Programs with a bug to plant in each, for `first_difference`: one line is wrong.

`fault` names the bug; the line that it changes ends in its name. Nothing of these
programs was looked at when the constants of `first_difference` were chosen.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array, lax

from benchmarks.noise_programs import line_of
from prednet_jax.noise.questions import runs
from prednet_jax.noise.questions.first_difference import NOISE, against
from prednet_jax.noise.questions.recording import Recording, Watch
from prednet_jax.noise.specs import ReductionOrder, StochasticRounding, compose

FAULTS = ("dropped", "epsilon", "transpose", "tf32")


def _tf32(x: Array, fault: str) -> Array:
    return lax.reduce_precision(x, 8, 10) if fault == "tf32" else x  # tf32


def gated(p: Array, x: Array, fault: str) -> Array:
    """A gated recurrence over rows."""

    def step(h: Array, row: Array) -> tuple[Array, Array]:
        u = jax.nn.sigmoid(h @ p[0] + row)
        a = p[1] if fault == "transpose" else p[1].T  # transpose
        c = jnp.tanh(_tf32(u * h, fault) @ a)
        h = u * h + ((1 - u) * c if fault != "dropped" else 0.0)  # dropped
        m = jnp.sum(h**2)
        h = h / jnp.sqrt(m + (1e-3 if fault == "epsilon" else 1e-5))  # epsilon
        return h, jnp.sin(h)

    return jnp.mean(lax.scan(step, x[0], x)[1] ** 2)


def attention(p: Array, x: Array, fault: str) -> Array:
    """One head, with a residual and an RMS norm."""
    m = jnp.mean(x**2, axis=-1, keepdims=True)
    h = x * lax.rsqrt(m + (1e-3 if fault == "epsilon" else 1e-6))  # epsilon
    q, k = h @ p[0], h @ p[1]
    s = _tf32(q, fault) @ k.T / 4.0
    w = jax.nn.softmax(s, axis=-1)
    o = p[2] if fault == "transpose" else p[2].T  # transpose
    y = w @ h @ o
    y = y + (x if fault != "dropped" else 0.0)  # dropped
    return jnp.mean(jax.nn.gelu(y), axis=0)


def ridge(p: Array, x: Array, fault: str) -> Array:
    """Steps of gradient descent on a regularised least squares problem."""
    y = jnp.sin(x @ p[0])
    s = jnp.std(x, axis=0)
    z = x / (s + (1e-3 if fault == "epsilon" else 1e-6))  # epsilon
    a = z if fault == "transpose" and z.shape[0] == z.shape[1] else z.T  # transpose

    def body(i: Array, w: Array) -> Array:
        r = _tf32(z, fault) @ w - y
        g = a @ r / 16.0
        g = g + (0.1 * w if fault != "dropped" else 0.0)  # dropped
        return w - 0.1 * g

    return lax.fori_loop(0, 4, body, p[2])


def kernel(p: Array, x: Array, fault: str) -> Array:
    """A kernel density with a linear map of the points."""
    b = p[0] if fault == "transpose" else p[0].T  # transpose
    u = x @ b
    g = _tf32(u, fault) @ u.T
    n = jnp.diagonal(g)
    d = n[:, None] + (n[None, :] if fault != "dropped" else 0.0) - 2.0 * g  # dropped
    k = jnp.exp(-jnp.abs(d) / 8.0)
    t = jnp.sum(k, axis=1)
    return jnp.log(t + (1e-2 if fault == "epsilon" else 1e-6))  # epsilon


def mixture(p: Array, x: Array, fault: str) -> Array:
    """Two experts and a soft gate, the gradient of its loss."""

    def loss(p: Array) -> Array:
        gate = jax.nn.sigmoid(x @ p[0][:, :1])
        one = jnp.tanh(_tf32(x, fault) @ p[1])
        v = p[2] if fault == "transpose" else p[2].T  # transpose
        two = jnp.tanh(x @ v)
        y = gate * one + ((1 - gate) * two if fault != "dropped" else 0.0)  # dropped
        c = jnp.var(y, axis=1, keepdims=True)
        y = y / jnp.sqrt(c + (1e-3 if fault == "epsilon" else 1e-5))  # epsilon
        return jnp.mean(jnp.abs(y - x))

    return jax.grad(loss)(p)


PROGRAMS: tuple[Callable, ...] = (gated, attention, ridge, kernel, mixture)


def arguments(seed: int) -> tuple[Array, Array]:
    """Weights and data."""
    keys = jax.random.split(jax.random.key(seed), 2)
    p = jax.random.normal(keys[0], (3, 16, 16)) / 4
    return p, jax.random.normal(keys[1], (16, 16))


def marked(program: Callable, fault: str) -> str:
    """The line of a fault, as the beginning of a source."""
    return line_of(_tf32 if fault == "tf32" else program, fault)


# Other than the noise by which `first_difference` judges.
OTHER = compose(
    ReductionOrder(partials=7, granularity="tile", shortest=1), StochasticRounding()
)


def trials(
    programs: Sequence[Callable] = PROGRAMS, *, clean: int = 20, faulty: int = 5
) -> Iterator[dict[str, Any]]:
    """Every program with every fault and without, each at several arguments.

    Without a fault (`fault` ""), the runs are in another order. Yields also whether the
    answer is `right`, and the line that came `first`.
    """
    judged_by = runs.reaching(NOISE)
    for program in programs:
        args, clear = arguments(0), partial(program, fault="")
        good, other = Watch(clear, args, {}), Watch(clear, args, {}, OTHER)
        for fault in ("", *FAULTS):
            bad = partial(program, fault=fault)
            here = Watch(bad, args, {}) if fault else good
            noisy = Watch(bad, args, {}, judged_by)
            for seed in range(faulty if fault else clean):
                args, key = arguments(seed), jax.random.key(seed)
                there = (good if fault else other).run(key, args)
                recording = Recording(program.__name__, "", there)
                drawn = (noisy.run(k, args) for k in jax.random.split(key, 8))
                found = against(recording, here.run(key, args), drawn)
                first = found[0].source if found else ""
                right = first.startswith(marked(program, fault)) if fault else not found
                yield {
                    "program": program.__name__,
                    "fault": fault,
                    "seed": seed,
                    "right": right,
                    "first": first or str([str(one) for one in found.parted[:1]]),
                }


if __name__ == "__main__":
    named = {program.__name__: program for program in PROGRAMS}
    for name in sys.argv[1:]:
        if name not in named:
            sys.exit(f"{name}: expected some of {', '.join(named)}, or none for all")
    for trial in trials([named[name] for name in sys.argv[1:]] or PROGRAMS):
        print(json.dumps(trial), flush=True)
