"""Forty functions on which the audit was not developed: which lines vary by call.

A comment `# call` marks a line whose floats a GPU combines in the order of arrival; no
other line does. Written after the audit's rules were fixed, from what JAX's
documentation says of indexed updates and of the gradients of indexed reads.
"""

import bisect
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

# Each with the shapes of its arguments. Twenty in which threads meet.
MEET = [
    (
        lambda x, ids: (
            segment_sum(x, ids, 7)  # call
            / jnp.maximum(segment_sum(jnp.ones(48, jnp.int32), ids, 7), 1)[:, None]
        ),
        (S(48, 6), IDS),
    ),
    (
        lambda table, ids: grad(
            lambda t: jnp.sum(jnp.tanh(t[ids]))  # call
        )(table),
        (S(30, 6), IDS),
    ),
    (
        lambda x, ids, v: x.at[ids].add(jnp.exp(v)),  # call
        (S(20), IDS, V),
    ),
    (
        lambda x, ids, v: x.at[ids // 9, ids % 9].add(v),  # call
        (S(9, 9), IDS, V),
    ),
    (
        lambda nodes, a, b, w: segment_sum(  # call
            jnp.sin(
                segment_sum(jnp.tanh(nodes[a] @ w), b, 12)[a]  # call
            ),
            b,
            12,
        ),
        (S(12, 5), IDS, IDS, S(5, 5)),
    ),
    (
        lambda x: grad(
            lambda x: jnp.sum(nn.max_pool(x, (3, 3), (2, 2)) ** 3)  # call
        )(x),
        (S(2, 12, 12, 3),),
    ),
    (
        lambda ids, v: jnp.bincount(ids, weights=v, length=11),  # call
        (IDS, V),
    ),
    (
        lambda x, v: jnp.histogram(x, jnp.linspace(0.0, 1, 9), weights=v)[0],  # call
        (V, V),
    ),
    (
        lambda x, ids: grad(
            lambda x: jnp.sum(jnp.cos(jnp.take_along_axis(x, ids, axis=1)))  # call
        )(x),
        (S(16, 10), I(16, 3)),
    ),
    (
        lambda x, ids: grad(
            lambda x: jnp.sum(jnp.take(x, ids, axis=1) ** 2)  # call
        )(x),
        (S(8, 30), IDS),
    ),
    (
        lambda x, ids, v: x.at[ids].multiply(v),  # call
        (S(20), IDS, V),
    ),
    (
        lambda x, ids, v: x.at[ids % 4, ids // 4 % 4, ids // 16 % 4].add(v),  # call
        (S(4, 4, 4), IDS, V),
    ),
    (
        lambda logits, labels: grad(
            lambda x: jnp.mean(
                jax.nn.logsumexp(x, axis=1) - x[jnp.arange(16), labels]  # call
            )
        )(logits),
        (S(16, 10), I(16)),
    ),
    (
        lambda x, ids, g: jnp.zeros((24, 6)).at[ids].add(x * g[..., None]),  # call
        (S(4, 12, 6), I(4, 12), S(4, 12)),
    ),
    (
        lambda x, ids, v: x.at[ids].add(v),  # call
        (S(20, dtype=jnp.bfloat16), IDS, S(48, dtype=jnp.bfloat16)),
    ),
    (
        lambda x, ids, v: x.at[ids].add(v),  # call
        (S(20, dtype=jnp.float16), IDS, S(48, dtype=jnp.float16)),
    ),
    (
        lambda rank, a, b: lax.fori_loop(
            0,
            10,
            lambda _, rank: 0.9 * jnp.zeros(12).at[b].add(rank[a]),  # call
            rank,
        ),
        (S(12), IDS, IDS),
    ),
    (
        lambda x, ids, v: jax.vmap(
            lambda x, ids, v: x.at[ids].add(v)  # call
        )(x, ids, v),
        (S(5, 20), I(5, 48), S(5, 48)),
    ),
    (
        lambda x, ids, v: lax.scan(
            lambda x, pair: (x.at[pair[0]].add(pair[1]), x[0]),  # call
            x,
            (ids, v),
        ),
        (S(20), I(6, 48), S(6, 48)),
    ),
    (
        lambda x, ids: x.at[ids].subtract(0.5 * jnp.sin(x[ids])),  # call
        (S(40), IDS),
    ),
]
# Twenty in which none do, or in which the order of arrival does not matter.
DO_NOT = [
    (lambda x, w: jnp.tanh(x @ w), (S(32, 32), S(32, 16))),
    (
        lambda q, k, v: jnp.einsum(
            "bts,bsd->btd", jax.nn.softmax(jnp.einsum("btd,bsd->bts", q, k)), v
        ),
        (S(2, 16, 8), S(2, 16, 8), S(2, 16, 8)),
    ),
    (
        lambda x: (x - x.mean(1, keepdims=True)) * lax.rsqrt(x.var(1)[:, None] + 1e-5),
        (S(16, 32),),
    ),
    (
        lambda x: grad(lambda x: jnp.sum(nn.avg_pool(x, (2, 2), (2, 2)) ** 2))(x),
        (S(2, 12, 12, 3),),
    ),
    (lambda x: jnp.cumsum(x, axis=1), (S(16, 70),)),
    (lambda x: jnp.sort(x, axis=1), (S(16, 40),)),
    (lambda ids: jnp.bincount(ids, length=11), (IDS,)),
    (lambda x, ids, v: x.at[ids].max(v), (S(20), IDS, V)),
    (lambda x, ids, v: segment_min(v, ids, 20) + x, (S(20), IDS, V)),
    (lambda x, ids, v: x.at[ids].add(v, unique_indices=True), (S(64), IDS, V)),
    (
        lambda table, ids: grad(
            lambda t: jnp.sum(jnp.tanh(jax.nn.one_hot(ids, 30) @ t))
        )(table),
        (S(30, 6), IDS),
    ),
    (
        lambda w, xs: grad(
            lambda w: jnp.sum(
                lax.scan(lambda h, x: (jnp.tanh(w @ h + x),) * 2, jnp.zeros(8), xs)[1]
                ** 2
            )
        )(w),
        (S(8, 8), S(10, 8)),
    ),
    (
        lambda x, y, start: lax.dynamic_update_slice(x, y, (start,)),
        (S(40), S(8), I()),
    ),
    (
        lambda x, start: grad(
            lambda x: jnp.sum(lax.dynamic_slice(x, (start,), (8,)) ** 2)
        )(x),
        (S(40), I()),
    ),
    (lambda x: jnp.abs(jnp.fft.rfft(x)), (S(4, 64),)),
    (lambda x: grad(lambda x: jnp.sum(jnp.sin(x[::3])))(x), (S(40),)),
    (
        lambda a, b: jnp.linalg.solve(a @ a.T + jnp.eye(16), b),
        (S(16, 16), S(16)),
    ),
    (lambda x: lax.top_k(x, 5), (S(16, 40),)),
    (
        lambda x: grad(lambda x: jnp.sum(x.reshape(2, 6, 2, 6, 2, 3).max((2, 4)) ** 2))(
            x
        ),
        (S(2, 12, 12, 3),),
    ),
    (
        lambda x, ids: jnp.take_along_axis(x, ids, axis=1) * 2,
        (S(8, 30), I(8, 4)),
    ),
]
CASES = MEET + DO_NOT
FILE = Path(__file__)


def marked(cases):
    """Lines at which threads meet, by the case that they stand in."""
    starts = [function.__code__.co_firstlineno for function, _ in CASES]
    found = {i: set() for i in map(CASES.index, cases)}
    for number, line in enumerate(FILE.read_text().splitlines(), 1):
        if line.endswith("  # call"):
            found.get(bisect.bisect(starts, number) - 1, set()).add(
                f"{FILE.name}:{number}"
            )
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
