"""Functions on which audit was not developed.

A comment `# call` marks a line whose floats a GPU combines in the order of arrival; no
other line does. Written after the audit's rules were fixed, from what JAX's
documentation says of indexed updates and of the gradients of indexed reads.
"""

import jax
from flax import linen as nn
from jax import lax
from jax import numpy as jnp

F = jnp.float32


def S(*shape, dtype=F):  # noqa: N802
    return jax.ShapeDtypeStruct(shape, dtype)


IDS = S(48, dtype=jnp.int32)
CASES = []


def case(*shapes):
    def add(function):
        CASES.append((function, shapes))
        return function

    return add


# Twenty in which threads meet.


@case(S(48, 6), IDS)
def segment_mean(x, ids):
    total = jax.ops.segment_sum(x, ids, num_segments=7)  # call
    count = jax.ops.segment_sum(jnp.ones(48, jnp.int32), ids, num_segments=7)
    return total / jnp.maximum(count, 1)[:, None].astype(F)


@case(S(30, 6), IDS)
def embedding(table, ids):
    def loss(table):
        return jnp.sum(jnp.tanh(table[ids]))  # call

    return jax.grad(loss)(table)


@case(S(20), IDS, S(48))
def accumulate(x, ids, values):
    scaled = jnp.exp(values)
    return x.at[ids].add(scaled)  # call


@case(S(9, 9), IDS, S(48))
def splat_plane(plane, ids, values):
    rows, columns = ids // 9, ids % 9
    return plane.at[rows, columns].add(values)  # call


@case(S(12, 5), S(48, dtype=jnp.int32), IDS, S(5, 5))
def message_passing(nodes, senders, receivers, w):
    sent = jnp.tanh(nodes[senders] @ w)
    first = jax.ops.segment_sum(sent, receivers, num_segments=12)  # call
    sent = jnp.sin(first[senders])
    return jax.ops.segment_sum(sent, receivers, num_segments=12)  # call


@case(S(2, 12, 12, 3))
def pooled_with_overlap(x):
    def loss(x):
        pooled = nn.max_pool(x, (3, 3), (2, 2))  # call
        return jnp.sum(pooled**3)

    return jax.grad(loss)(x)


@case(IDS, S(48))
def weighted_counts(ids, weights):
    return jnp.bincount(ids, weights=weights, length=11)  # call


@case(S(48), S(48))
def weighted_histogram(x, weights):
    edges = jnp.linspace(0.0, 1.0, 9)
    return jnp.histogram(x, bins=edges, weights=weights)[0]  # call


@case(S(16, 10), S(16, 3, dtype=jnp.int32))
def taken_along(x, ids):
    def loss(x):
        return jnp.sum(jnp.cos(jnp.take_along_axis(x, ids, axis=1)))  # call

    return jax.grad(loss)(x)


@case(S(8, 30), IDS)
def columns(x, ids):
    def loss(x):
        return jnp.sum(jnp.take(x, ids, axis=1) ** 2)  # call

    return jax.grad(loss)(x)


@case(S(20), IDS, S(48))
def multiplied(x, ids, factors):
    return x.at[ids].multiply(factors)  # call


@case(S(4, 4, 4), IDS, S(48))
def voxels(grid, ids, mass):
    i, j, k = ids % 4, ids // 4 % 4, ids // 16 % 4
    return grid.at[i, j, k].add(mass)  # call


@case(S(16, 10), S(16, dtype=jnp.int32))
def cross_entropy(logits, labels):
    def loss(logits):
        chosen = logits[jnp.arange(16), labels]  # call
        return jnp.mean(jax.nn.logsumexp(logits, axis=1) - chosen)

    return jax.grad(loss)(logits)


@case(S(4, 12, 6), S(4, 12, dtype=jnp.int32), S(4, 12))
def experts_combined(outputs, tokens, gates):
    empty = jnp.zeros((24, 6))
    return empty.at[tokens].add(outputs * gates[..., None])  # call


@case(S(20, dtype=jnp.bfloat16), IDS, S(48, dtype=jnp.bfloat16))
def in_bfloat16(x, ids, values):
    return x.at[ids].add(values)  # call


@case(S(20, dtype=jnp.float16), IDS, S(48, dtype=jnp.float16))
def in_float16(x, ids, values):
    return x.at[ids].add(values)  # call


@case(S(12), S(48, dtype=jnp.int32), IDS)
def page_rank(rank, senders, receivers):
    def step(_, rank):
        return 0.9 * jnp.zeros(12).at[receivers].add(rank[senders])  # call

    return lax.fori_loop(0, 10, step, rank)


@case(S(5, 20), S(5, 48, dtype=jnp.int32), S(5, 48))
def batched(x, ids, values):
    def one(x, ids, values):
        return x.at[ids].add(values)  # call

    return jax.vmap(one)(x, ids, values)


@case(S(20), S(6, 48, dtype=jnp.int32), S(6, 48))
def streamed(x, ids, values):
    def step(x, inputs):
        return x.at[inputs[0]].add(inputs[1]), x[0]  # call

    return lax.scan(step, x, (ids, values))


@case(S(40), IDS)
def subtracted(x, ids):
    halves = 0.5 * jnp.sin(x[ids])
    return x.at[ids].subtract(halves)  # call


# Twenty in which none do, or in which the order of arrival does not matter.


@case(S(32, 32), S(32, 16))
def product(x, w):
    return jnp.tanh(x @ w)


@case(S(2, 16, 8), S(2, 16, 8), S(2, 16, 8))
def attention(q, k, v):
    scores = jnp.einsum("btd,bsd->bts", q, k)
    return jnp.einsum("bts,bsd->btd", jax.nn.softmax(scores), v)


@case(S(16, 32))
def layer_norm(x):
    centred = x - x.mean(1, keepdims=True)
    return centred * lax.rsqrt(x.var(1, keepdims=True) + 1e-5)


@case(S(2, 12, 12, 3))
def average_pooled(x):
    return jax.grad(lambda x: jnp.sum(nn.avg_pool(x, (2, 2), (2, 2)) ** 2))(x)


@case(S(16, 70))
def running_sum(x):
    return jnp.cumsum(x, axis=1)


@case(S(16, 40))
def sorted_rows(x):
    return jnp.sort(x, axis=1)


@case(IDS)
def counts(ids):
    return jnp.bincount(ids, length=11)


@case(S(20), IDS, S(48))
def maxima(x, ids, values):
    return x.at[ids].max(values)


@case(S(20), IDS, S(48))
def segment_minima(x, ids, values):
    return jax.ops.segment_min(values, ids, num_segments=20) + x


@case(S(64), IDS, S(48))
def promised_unique(x, ids, values):
    return x.at[ids].add(values, unique_indices=True)


@case(S(30, 6), IDS)
def one_hot_embedding(table, ids):
    def loss(table):
        return jnp.sum(jnp.tanh(jax.nn.one_hot(ids, 30) @ table))

    return jax.grad(loss)(table)


@case(S(8, 8), S(10, 8))
def recurrent(w, xs):
    def loss(w):
        def step(h, x):
            h = jnp.tanh(w @ h + x)
            return h, h

        return jnp.sum(lax.scan(step, jnp.zeros(8), xs)[1] ** 2)

    return jax.grad(loss)(w)


@case(S(40), S(8), S(dtype=jnp.int32))
def window_written(x, y, start):
    return lax.dynamic_update_slice(x, y, (start,))


@case(S(40), S(dtype=jnp.int32))
def window_read(x, start):
    return jax.grad(lambda x: jnp.sum(lax.dynamic_slice(x, (start,), (8,)) ** 2))(x)


@case(S(4, 64))
def spectrum(x):
    return jnp.abs(jnp.fft.rfft(x))


@case(S(40))
def strided(x):
    return jax.grad(lambda x: jnp.sum(jnp.sin(x[::3])))(x)


@case(S(16, 16), S(16))
def solved(a, b):
    return jnp.linalg.solve(a @ a.T + jnp.eye(16), b)


@case(S(16, 40))
def best(x):
    return lax.top_k(x, 5)


@case(S(2, 12, 12, 3))
def pooled_by_reshape(x):
    def loss(x):
        return jnp.sum(x.reshape(2, 6, 2, 6, 2, 3).max((2, 4)) ** 2)

    return jax.grad(loss)(x)


@case(S(8, 30), S(8, 4, dtype=jnp.int32))
def looked_up(x, ids):
    return jnp.take_along_axis(x, ids, axis=1) * 2
