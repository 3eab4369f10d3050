"""Forty functions on which the audit was not developed: which lines vary by call.

A comment `# call` marks a line whose floats a GPU combines in the order of arrival; no
other line does. Written after the audit's rules were fixed, from what JAX's
documentation says of indexed updates and of the gradients of indexed reads.
"""

import bisect
import inspect
from pathlib import Path

import jax
import pytest
from flax import linen as nn
from jax import grad, lax
from jax import numpy as jnp
from jax.ops import segment_min, segment_sum

from prednet_jax import noise


def S(*shape, dtype=jnp.float32):  # noqa: N802
    return jax.ShapeDtypeStruct(shape, dtype)


def I(*shape):  # noqa: E743, N802
    return S(*shape, dtype=jnp.int32)


IDS = I(48)
V = S(48)


def of(*shapes):
    """A case: these shapes, and a function of them."""
    return lambda function: (function, shapes)


# Twenty in which threads meet.
MEET = [
    of(S(48, 6), IDS)(
        lambda x, ids: (
            segment_sum(x, ids, 7)  # call
            / jnp.maximum(segment_sum(jnp.ones(48, jnp.int32), ids, 7), 1)[:, None]
        )
    ),
    of(S(30, 6), IDS)(
        lambda x, ids: grad(lambda x: jnp.sum(jnp.tanh(x[ids])))(x)  # call
    ),
    of(S(20), IDS, V)(lambda x, ids, v: x.at[ids].add(jnp.exp(v))),  # call
    of(S(9, 9), IDS, V)(lambda x, ids, v: x.at[ids // 9, ids % 9].add(v)),  # call
    of(S(12, 5), IDS, IDS, S(5, 5))(
        lambda x, a, b, w: segment_sum(  # call
            jnp.sin(segment_sum(jnp.tanh(x[a] @ w), b, 12)[a]),  # call
            b,
            12,
        )
    ),
    of(S(2, 12, 12, 3))(
        grad(lambda x: jnp.sum(nn.max_pool(x, (3, 3), (2, 2)) ** 3))  # call
    ),
    of(IDS, V)(lambda ids, v: jnp.bincount(ids, weights=v, length=11)),  # call
    of(V, V)(
        lambda x, v: jnp.histogram(x, jnp.linspace(0.0, 1, 9), weights=v)[0]  # call
    ),
    of(S(16, 10), I(16, 3))(
        grad(lambda x, i: jnp.sum(jnp.cos(jnp.take_along_axis(x, i, 1))))  # call
    ),
    of(S(8, 30), IDS)(
        grad(lambda x, ids: jnp.sum(jnp.take(x, ids, axis=1) ** 2))  # call
    ),
    of(S(20), IDS, V)(lambda x, ids, v: x.at[ids].multiply(v)),  # call
    of(S(4, 4, 4), IDS, V)(
        lambda x, ids, v: x.at[ids % 4, ids // 4 % 4, ids // 16 % 4].add(v)  # call
    ),
    of(S(16, 10), I(16))(
        grad(
            lambda x, labels: jnp.mean(
                jax.nn.logsumexp(x, axis=1) - x[jnp.arange(16), labels]  # call
            )
        )
    ),
    of(S(4, 12, 6), I(4, 12), S(4, 12))(
        lambda x, ids, g: jnp.zeros((24, 6)).at[ids].add(x * g[..., None])  # call
    ),
    of(S(20, dtype=jnp.bfloat16), IDS, S(48, dtype=jnp.bfloat16))(
        lambda x, ids, v: x.at[ids].add(v)  # call
    ),
    of(S(20, dtype=jnp.float16), IDS, S(48, dtype=jnp.float16))(
        lambda x, ids, v: x.at[ids].add(v)  # call
    ),
    of(S(12), IDS, IDS)(
        lambda x, a, b: lax.fori_loop(
            0,
            10,
            lambda _, x: 0.9 * jnp.zeros(12).at[b].add(x[a]),  # call
            x,
        )
    ),
    of(S(5, 20), I(5, 48), S(5, 48))(
        jax.vmap(lambda x, ids, v: x.at[ids].add(v))  # call
    ),
    of(S(20), I(6, 48), S(6, 48))(
        lambda x, ids, v: lax.scan(
            lambda x, pair: (x.at[pair[0]].add(pair[1]), x[0]),  # call
            x,
            (ids, v),
        )
    ),
    of(S(40), IDS)(lambda x, i: x.at[i].subtract(0.5 * jnp.sin(x[i]))),  # call
]
# Twenty in which none do, or in which the order of arrival does not matter.
DO_NOT = [
    of(S(32, 32), S(32, 16))(lambda x, w: jnp.tanh(x @ w)),
    of(S(2, 16, 8), S(2, 16, 8), S(2, 16, 8))(
        lambda q, k, v: jnp.einsum(
            "bts,bsd->btd", jax.nn.softmax(jnp.einsum("btd,bsd->bts", q, k)), v
        )
    ),
    of(S(16, 32))(
        lambda x: (x - x.mean(1, keepdims=True)) * lax.rsqrt(x.var(1)[:, None] + 1e-5)
    ),
    of(S(2, 12, 12, 3))(grad(lambda x: jnp.sum(nn.avg_pool(x, (2, 2), (2, 2)) ** 2))),
    of(S(16, 70))(lambda x: jnp.cumsum(x, axis=1)),
    of(S(16, 40))(lambda x: jnp.sort(x, axis=1)),
    of(IDS)(lambda ids: jnp.bincount(ids, length=11)),
    of(S(20), IDS, V)(lambda x, ids, v: x.at[ids].max(v)),
    of(S(20), IDS, V)(lambda x, ids, v: segment_min(v, ids, 20) + x),
    of(S(64), IDS, V)(lambda x, ids, v: x.at[ids].add(v, unique_indices=True)),
    of(S(30, 6), IDS)(
        grad(lambda x, ids: jnp.sum(jnp.tanh(jax.nn.one_hot(ids, 30) @ x)))
    ),
    of(S(8, 8), S(10, 8))(
        grad(
            lambda w, xs: jnp.sum(
                lax.scan(lambda h, x: (jnp.tanh(w @ h + x),) * 2, xs[0], xs)[1] ** 2
            )
        )
    ),
    of(S(40), S(8), I())(lambda x, y, i: lax.dynamic_update_slice(x, y, (i,))),
    of(S(40), I())(grad(lambda x, i: jnp.sum(lax.dynamic_slice(x, (i,), (8,)) ** 2))),
    of(S(4, 64))(lambda x: jnp.abs(jnp.fft.rfft(x))),
    of(S(40))(grad(lambda x: jnp.sum(jnp.sin(x[::3])))),
    of(S(16, 16), S(16))(lambda a, b: jnp.linalg.solve(a @ a.T + jnp.eye(16), b)),
    of(S(16, 40))(lambda x: lax.top_k(x, 5)),
    of(S(2, 12, 12, 3))(
        grad(lambda x: jnp.sum(x.reshape(2, 6, 2, 6, 2, 3).max((2, 4)) ** 2))
    ),
    of(S(8, 30), I(8, 4))(lambda x, ids: jnp.take_along_axis(x, ids, axis=1) * 2),
]
CASES = MEET + DO_NOT
FILE = Path(__file__)


def marked(cases):
    """Lines at which threads meet, by the case that they stand in."""
    starts = [inspect.unwrap(f).__code__.co_firstlineno for f, _ in CASES]
    found = {i: set() for i in map(CASES.index, cases)}
    for number, line in enumerate(FILE.read_text().splitlines(), 1):
        case = bisect.bisect(starts, number) - 1
        if line.endswith("  # call") and case in found:
            found[case].add(f"{FILE.name}:{number}")
    return found


def lines(cases, gpu, deterministic):
    """Lines that vary by call; all functions are one program, compiled once."""

    def everything(*arguments):
        rest = iter(arguments)
        return [function(*(next(rest) for _ in shapes)) for function, shapes in cases]

    audit = noise.audit(everything, gpu=gpu, deterministic=deterministic, advise=False)
    with jax.numpy_dtype_promotion("standard"):  # as a user has it
        report = audit(*(shape for _, shapes in cases for shape in shapes))
    sources = {e.source for e in report.entries if e.varies == "call"}
    return {source.partition(" in ")[0] for source in sources}


def test_twenty_have_lines_and_twenty_none():
    found = [bool(lines) for lines in marked(CASES).values()]
    assert found == [True] * 20 + [False] * 20


@pytest.mark.parametrize(
    ("gpu", "cases"),
    [
        ("h100", CASES[::5]),
        pytest.param("h100", CASES, marks=pytest.mark.slow),
        pytest.param("gtx1080", CASES, marks=pytest.mark.slow),
    ],
    ids=["h100-sample", "h100-all", "gtx1080-all"],
)
def test_the_right_lines_and_no_others_and_none_under_the_flag(compiler, gpu, cases):
    assert lines(cases, gpu, False) == set().union(*marked(cases).values())
    assert lines(cases, gpu, True) == set()
