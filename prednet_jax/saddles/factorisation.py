"""Saddles of linear networks: matrix factorisation, deep linear, identical units.

All have the diagonal target M = diag(s), s_1 > s_2 > ... > 0, and one flat vector of
variables. They have the saddles of training: points at which one more rank, or the
second of two equal units, is still to be learnt (Baldi & Hornik 1989, Neural Networks
2:53; Fukumizu & Amari 2000, Neural Networks 13:317).
"""

import math
from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np

from prednet_jax.errors import UserError, whole
from prednet_jax.saddles.base import (
    Float64,
    SaddleFunction,
    stationary,
    unit,
)

_TARGET = (2.0, 1.0, 0.5)


def symmetric_factorisation(target: Sequence[float] = _TARGET) -> SaddleFunction:
    """|u u^T - M|^2 / 4 in u [n].

    At 0 the eigenvalues are -s_i. At +-sqrt(s_k) e_k they are 2 s_k, and s_k - s_i for
    i != k: k = 1 is the minimum, every other k a strict saddle.

    Args:
      target: diagonal of M, at least two values, descending, > 0.

    Raises:
      UserError: another target.
    """
    s = _descending(target)
    n = s.size
    half_rest = (np.sum(s**2) - s**2) / 4

    def fn(u: jax.Array) -> jax.Array:
        return jnp.sum((jnp.outer(u, u) - jnp.diag(jnp.asarray(s, u.dtype))) ** 2) / 4

    def spectrum(k: int) -> Float64:
        values = s[k] - s
        values[k] = 2 * s[k]
        return values

    points = [stationary(np.zeros(n), np.sum(s**2) / 4, -s)]
    for k in range(n):
        for sign in (1, -1):
            root = sign * math.sqrt(s[k]) * unit(n, k)[0]
            points.append(stationary(root, half_rest[k], spectrum(k)))
    return SaddleFunction(
        name="symmetric_factorisation",
        fn=fn,
        points=tuple(points),
        saddle=math.sqrt(s[1]) * unit(n, 1)[0],
        escape=unit(n, 0),
        curvature=s[0] - s[1],
        exit_value=(half_rest[0] + half_rest[1]) / 2,
        smoothness=2 * s[0],
        start=lambda rng: _towards_second(s, rng),
    )


def asymmetric_factorisation(target: Sequence[float] = _TARGET) -> SaddleFunction:
    """|u v^T - M|^2 / 2 in (u, v) [2 n].

    At 0 the eigenvalues are +-s_i. At u = v = sqrt(s_k) e_k they are 2 s_k, 0 (the
    rescaling u -> c u, v -> v/c) and s_k +- s_i.

    Args:
      target: diagonal of M, at least two values, descending, > 0.

    Raises:
      UserError: another target.
    """
    s = _descending(target)
    n = s.size
    half_rest = (np.sum(s**2) - s**2) / 2

    def fn(x: jax.Array) -> jax.Array:
        u, v = x[:n], x[n:]
        return jnp.sum((jnp.outer(u, v) - jnp.diag(jnp.asarray(s, x.dtype))) ** 2) / 2

    def spectrum(k: int) -> Float64:
        others = np.delete(s, k)
        return np.concatenate([[2 * s[k], 0.0], s[k] + others, s[k] - others])

    points = [stationary(np.zeros(2 * n), np.sum(s**2) / 2, np.append(s, -s))]
    for k in range(n):
        both = math.sqrt(s[k]) * np.tile(unit(n, k)[0], 2)
        points.append(stationary(both, half_rest[k], spectrum(k)))
    return SaddleFunction(
        name="asymmetric_factorisation",
        fn=fn,
        points=tuple(points),
        saddle=math.sqrt(s[1]) * np.tile(unit(n, 1)[0], 2),
        escape=unit(2 * n, 0, n).sum(0, keepdims=True) / math.sqrt(2),
        curvature=s[0] - s[1],
        exit_value=(half_rest[0] + half_rest[1]) / 2,
        smoothness=2 * s[0],
        start=lambda rng: np.tile(_towards_second(s, rng), 2),
    )


def deep_linear(depth: int = 3, target: Sequence[float] = (1.0, 0.5)) -> SaddleFunction:
    """|W_depth ... W_1 - M|^2 / 2 in the matrices [depth, n, n], flattened.

    For depth >= 3 the Hessian at 0 is zero, so that saddle is not strict. At the
    balanced minimum, W_l = diag(a) with a_i = s_i^(1/depth), the `depth` variables at
    matrix entry (i, j) have the eigenvalue sum_l (a_i^(depth-1-l) a_j^l)^2 once and the
    eigenvalue 0 depth - 1 times.

    Args:
      depth: number of matrices, >= 3.
      target: diagonal of M, at least two values, descending, > 0.

    Raises:
      UserError: an argument out of range.
    """
    whole("depth", depth, 3)
    s = _descending(target)
    n = s.size
    dim = depth * n * n

    def fn(x: jax.Array) -> jax.Array:
        layers = x.reshape(depth, n, n)
        product = layers[0]
        for layer in layers[1:]:
            product = layer @ product
        return jnp.sum((product - jnp.diag(jnp.asarray(s, x.dtype))) ** 2) / 2

    a = s ** (1 / depth)
    level = np.arange(depth)
    modes = [
        np.sum((left ** (depth - 1 - level) * right**level) ** 2)
        for left in a
        for right in a
    ]
    minimum = np.tile(np.diag(a), (depth, 1, 1)).ravel()

    def start(rng: np.random.Generator) -> Float64:
        # One layer has the opposite sign, so the product is negative and shrinks to 0.
        signs = np.ones(depth)
        signs[1] = -1
        scale = rng.uniform(0.4, 0.6)
        return (signs[:, None, None] * scale * np.eye(n)).ravel()

    together = np.zeros((depth, n, n))
    together[:2, 0, 0] = 1 / math.sqrt(2)
    return SaddleFunction(
        name="deep_linear",
        fn=fn,
        points=(
            stationary(np.zeros(dim), np.sum(s**2) / 2, np.zeros(dim)),
            stationary(
                minimum, 0.0, np.concatenate([modes, np.zeros(dim - len(modes))])
            ),
        ),
        saddle=np.zeros(dim),
        escape=together.reshape(1, dim),
        curvature=0.0,
        exit_value=float(np.sum(s**2)) / 4,
        smoothness=depth * float(s[0]) ** 2,
        start=start,
    )


def identical_units(pairs: int = 1) -> SaddleFunction:
    """A network x -> V^T W x whose hidden units all start identical.

    The loss is |(V^T W) X - M X|^2 / 2 with W, V [units, n], units = 2 pairs, s =
    (2, 1) and white inputs X [n, 96], X X^T = 1, so that every weight gradient is a sum
    over the inputs. Identical units have identical gradients. They learn rank one
    together and stop at w = v = sqrt(s_1/units) e_1.

    Directions q (x) e_i with q orthogonal to (1 .. 1) separate the units. Along them
    the eigenvalues are s_i and -s_i for i >= 2, and 0 twice, each `units` - 1 times.
    Along directions that keep the units identical they are 2 s_1, 0 and s_1 +- s_i.

    Only noise that differs between units leaves this saddle. Units k and k + pairs lie
    `pairs` rows apart: with one order per tile of `pairs` rows their noise differs.

    Args:
      pairs: half the number of hidden units, >= 1.

    Raises:
      UserError: pairs below 1.
    """
    whole("pairs", pairs, 1)
    s = np.array([2.0, 1.0])
    n, units = s.size, 2 * pairs
    dim = 2 * units * n
    # X is fixed and dense: orthonormal rows.
    inputs = np.linalg.qr(np.random.default_rng(0).normal(size=(96, n)))[0].T

    def fn(x: jax.Array) -> jax.Array:
        w, v = split_units(x, units)
        data = jnp.asarray(inputs, x.dtype)
        wanted = jnp.asarray(s[:, None] * inputs, x.dtype)
        return jnp.sum((v.T @ (w @ data) - wanted) ** 2) / 2

    alike = math.sqrt(s[0] / units)
    saddle = np.tile(alike * unit(n, 0), (2 * units, 1)).ravel()
    together = np.concatenate([[2 * s[0], 0.0], s[0] + s[1:], s[0] - s[1:]])
    apart = np.concatenate([[0.0, 0.0], s[1:], -s[1:]])
    # q: an orthonormal basis of the vectors [units] whose sum is zero.
    contrasts = np.linalg.svd(np.ones((1, units)))[2][1:]
    escape = np.zeros((units - 1, 2, units, n))
    escape[:, :, :, 1] = contrasts[:, None] / math.sqrt(2)

    def start(rng: np.random.Generator) -> Float64:
        # w = v for all units; otherwise they would differ in scale at the saddle.
        one = alike * np.append(rng.uniform(0.5, 1.0), rng.uniform(-0.3, 0.3, n - 1))
        return np.tile(one, 2 * units)

    rest = float(np.sum(s[1:] ** 2)) / 2
    return SaddleFunction(
        name="identical_units",
        fn=fn,
        points=(
            stationary(
                saddle, rest, np.concatenate([together, np.tile(apart, units - 1)])
            ),
        ),
        saddle=saddle,
        escape=escape.reshape(units - 1, dim),
        curvature=float(s[1]),
        exit_value=rest / 2,
        smoothness=2 * float(s[0]),
        start=start,
    )


def split_units(x: jax.Array, units: int) -> tuple[jax.Array, jax.Array]:
    """W and V, each [units, n], of the flat variables of `identical_units`."""
    both = x.reshape(2, units, -1)
    return both[0], both[1]


def _towards_second(s: Float64, rng: np.random.Generator) -> Float64:
    """A start from which gradient descent goes to the saddle sqrt(s_2) e_2."""
    u = rng.uniform(-0.3, 0.3, s.size)
    u[0], u[1] = 0.0, math.sqrt(s[1]) * rng.uniform(0.5, 1.0)
    return u


def _descending(target: Sequence[float]) -> Float64:
    s = np.asarray(target, np.float64)
    if s.ndim != 1 or s.size < 2 or not (np.isfinite(s).all() and s[-1] > 0):
        raise UserError(f"target={target}: expected at least two values above 0")
    if not (np.diff(s) < 0).all():
        raise UserError(f"target={target}: expected values that descend")
    return s
