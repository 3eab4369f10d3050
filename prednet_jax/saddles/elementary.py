"""Small functions with one saddle: quadratic-quartic, monkey, phase retrieval."""

import jax
import jax.numpy as jnp
import numpy as np

from prednet_jax.errors import whole
from prednet_jax.saddles.base import (
    Float64,
    SaddleFunction,
    stationary,
    unit,
)


def quadratic_quartic() -> SaddleFunction:
    """x^2/2 + y^4/4 - y^2/2: a strict saddle at 0 between minima at (0, +-1).

    The eigenvalues are (1, -1) at the saddle and (1, 2) at the minima, where the value
    is -1/4. It is the simplest function on which a zero component stays zero for ever.
    Up to the radius the quartic term changes the escape time by less than 1 % of a
    step.
    """

    def fn(x: jax.Array) -> jax.Array:
        return x[0] ** 2 / 2 + x[1] ** 4 / 4 - x[1] ** 2 / 2

    minima = tuple(
        stationary(np.array([0.0, y]), -0.25, np.array([1.0, 2.0])) for y in (1, -1)
    )
    return SaddleFunction(
        name="quadratic_quartic",
        fn=fn,
        points=(stationary(np.zeros(2), 0.0, np.array([1.0, -1.0])), *minima),
        saddle=np.zeros(2),
        escape=unit(2, 1),
        curvature=1.0,
        exit_value=-0.125,
        smoothness=2.0,
        start=lambda rng: np.array([rng.uniform(0.5, 1.0), 0.0]),
    )


def monkey() -> SaddleFunction:
    """x^3 - 3 x y^2: the monkey saddle, not strict (its Hessian at 0 is zero).

    From x > 0 and a small y, gradient flow moves to 0 as x = x0/(1 + 3 x0 t) while y
    grows as 1/x^2: the escape is algebraic, not exponential. The function is unbounded
    below.
    """

    def fn(x: jax.Array) -> jax.Array:
        return x[0] ** 3 - 3 * x[0] * x[1] ** 2

    return SaddleFunction(
        name="monkey",
        fn=fn,
        points=(stationary(np.zeros(2), 0.0, np.zeros(2)),),
        saddle=np.zeros(2),
        escape=unit(2, 1),
        curvature=0.0,
        exit_value=-0.5,
        smoothness=6.0,
        start=lambda rng: np.array([rng.uniform(0.5, 1.0), 0.0]),
    )


def phase_retrieval(dim: int = 6) -> SaddleFunction:
    """E[((a.x)^2 - (a.z)^2)^2]/4 over normal a, with signal z = e_1.

    In closed form it is (3 |x|^4 + 3 |z|^4 - 2 |x|^2 |z|^2 - 4 (x.z)^2)/4 (Sun, Qu &
    Wright 2018, Found. Comput. Math. 18:1131, real case). Its stationary points:

        maximum at 0                            eigenvalues -3 along z, -1 elsewhere
        minima at z and -z                      6 along z, 2 elsewhere
        strict saddles, x.z = 0, |x|^2 = 1/3    -2 along z, 2 along x, 0 elsewhere

    The value at the saddles is 2/3.

    Args:
      dim: number of variables, >= 2.

    Raises:
      UserError: dim below 2.
    """
    whole("dim", dim, 2)

    def fn(x: jax.Array) -> jax.Array:
        norm = jnp.sum(x**2)
        return (3 * norm**2 + 3 - 2 * norm - 4 * x[0] ** 2) / 4

    def start(rng: np.random.Generator) -> Float64:
        x = rng.normal(size=dim)
        x[0] = 0.0
        return x / np.linalg.norm(x) * rng.uniform(0.4, 0.7)

    z, across = unit(dim, 0)[0], unit(dim, 1)[0] / np.sqrt(3)
    return SaddleFunction(
        name="phase_retrieval",
        fn=fn,
        points=(
            stationary(np.zeros(dim), 0.75, np.append(-np.ones(dim - 1), -3)),
            stationary(across, 2 / 3, np.append(np.zeros(dim - 2), [2, -2])),
            stationary(z, 0.0, np.append(np.full(dim - 1, 2), 6)),
            stationary(-z, 0.0, np.append(np.full(dim - 1, 2), 6)),
        ),
        saddle=across,
        escape=unit(dim, 0),
        curvature=2.0,
        exit_value=1 / 3,
        smoothness=6.0,
        start=start,
    )
