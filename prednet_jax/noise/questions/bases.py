"""Takes another basis, or order, of vectors that a matrix does not determine.

Rounding decides which one a routine of a library returns. Vectors belong together if
their values are equal up to the error of the routine: the larger side of the matrix
times epsilon times the largest value, as in `numpy.linalg.matrix_rank`.
"""

import math
from collections.abc import Sequence

import numpy as np
from jax import Array
from jax import numpy as jnp

# What each routine may return otherwise, apart from signs.
BASES = {
    "eig": "the order of eigenvalues",
    "eigh": "a rotation of vectors of equal eigenvalues",
    "svd": "a rotation of vectors of equal or no singular values",
    "schur": "a rotation in each 2x2 block, the order of eigenvalues",
    "qr": "a rotation of columns beyond the rank",
}


def in_another_basis(name: str, results: Sequence[Array], which: Array) -> list[Array]:
    """Returns what a routine of `BASES` returns, in an equally right basis or order.

    Args:
        name: the name of the primitive.
        results: its results, of which those that were not asked for are missing.
        which: number that differs between the matrices of calls, uint32 [].
    """
    if name == "eig":
        return [
            _rolled(results[0], -1, which),
            *(_rolled(x, -2, which) for x in results[1:]),
        ]
    if name == "schur":
        tied = jnp.diagonal(results[0], -1, -2, -1) != 0
        form, *basis = [_rotated(x, -1, tied) for x in results]
        return [_rotated(form, -2, tied), *basis]
    if name == "eigh":
        vectors, values = results
        tied = _differences(values) <= _error(values, vectors)
        return [_rotated(vectors, -1, tied), values]
    if name == "svd":
        values, *both = results
        if not both:
            return [values]
        u, v = both
        error = _error(values, u, v)
        equal, zero = -_differences(values) <= error, values <= error
        tied = [_tied(equal, zero, n) for n in (u.shape[-1], v.shape[-2])]
        u, v = _rotated(u, -1, tied[0]), _rotated(v, -2, tied[1])
        # The null spaces of both sides have nothing in common.
        null = _tied(jnp.zeros_like(equal), zero, u.shape[-1])
        return [values, _rotated(u, -1, null), v]
    q, r, *order = results
    diagonal = jnp.abs(jnp.diagonal(r, 0, -2, -1))
    zero = jnp.cumsum(diagonal <= _error(diagonal, q, r), -1) > 0
    tied = _tied(zero[..., :-1], zero, q.shape[-1])
    rows = _rotated(r, -2, tied[..., : r.shape[-2] - 1])
    return [_rotated(q, -1, tied), rows, *order]


def _rolled(x: Array, batch: int, which: Array) -> Array:
    """Returns an array whose last axis begins with another element, in each of a batch.

    `batch` is the last axis that numbers the results of one matrix.
    """
    size, lead = x.shape[-1], x.shape[: x.ndim + batch]
    number = np.arange(math.prod(lead)).reshape(*lead, *[1] * -batch)
    first = 1 + (number + (which % 1024).astype(int)) % max(size - 1, 1)
    index = (np.arange(size) + first) % max(size, 1)
    return jnp.take_along_axis(x, jnp.broadcast_to(index, x.shape), -1)


def _error(values: Array, *factors: Array) -> Array:
    """Returns up to which size values are zero: the error of a routine."""
    size = max(max(x.shape[-2:]) for x in factors)
    largest = jnp.max(jnp.abs(values), -1, keepdims=True, initial=0)
    return size * jnp.finfo(values.dtype).eps * largest


def _differences(values: Array) -> Array:
    return values[..., 1:] - values[..., :-1]


def _tied(equal: Array, zero: Array, count: int) -> Array:
    """Returns which of `count` vectors belong to the next one, [..., count - 1].

    Args:
        equal: whether the value of a vector is equal to the next one.
        zero: whether it is zero. Vectors without a value belong together, and to the
            last vector with a value if this is zero.
        count: the number of vectors.
    """
    padding = [(0, 0)] * (zero.ndim - 1)
    padding.append((0, max(count - zero.shape[-1] - 1, 0)))
    parts = [equal | zero[..., :-1], zero[..., -1:]]
    tied = jnp.concatenate(parts, -1)[..., : count - 1]
    return jnp.pad(tied, padding, constant_values=True)


def _rotated(x: Array, axis: int, tied: Array) -> Array:
    """Rotates each two neighbouring vectors along an axis that are tied, by a radian.

    `tied` says of each vector but the last whether it belongs to the next one.
    """
    x, number = jnp.moveaxis(x, axis, -1), np.arange(x.shape[axis])
    if number.size < 2:
        return jnp.moveaxis(x, -1, axis)
    for start in 0, 1:
        is_first = (number - start) % 2 == 0
        other = np.where(is_first, number + 1, number - 1)
        exists = (other >= 0) & (other < number.size)
        low = np.where(exists, np.minimum(number, other), 0)
        sine = np.where(is_first, math.sin(1), -math.sin(1)).astype(x.real.dtype)
        turned = math.cos(1) * x + sine * x[..., np.where(exists, other, 0)]
        on = (tied[..., low] & exists)[..., None, :]
        x = jnp.where(on, turned, x)
    return jnp.moveaxis(x, -1, axis)
