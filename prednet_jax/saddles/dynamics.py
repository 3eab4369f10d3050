"""Runs from a saddle: when do they leave it, and when have they passed all saddles?

Gradient descent, heavy ball and Adam are one update:

    m <- beta m + kappa g          v <- b2 v + (1 - b2) g^2
    x <- x - eta m                                      (not adaptive)
    x <- x - eta m_hat/(sqrt(v_hat) + eps)              (Adam, Kingma & Ba 2015, alg. 1)

Gradient descent has beta = 0 and heavy ball beta > 0, both with kappa = 1. Adam has
beta = b1 and kappa = 1 - b1. A rule is a tuple of numbers, so that one vmapped program
runs all rules of a comparison.

A function is run in two forms: "aligned", in its own coordinates y, and "rotated", in
x = Q^T y with an orthogonal Q, where rounding errors reach every direction and the
product has sums that noise can reorder. Both forms compute that product; with Q = 1 it
is exact in every order of sums, so zeros stay zeros.
"""

import functools
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, Key

from prednet_jax.errors import UserError, check_int, expect, one_of
from prednet_jax.noise.rounding.error_free import guard
from prednet_jax.saddles.functions import SaddleFunction

#: A number, or an array of one number per rule.
Scalar = float | jax.Array


class Rule(NamedTuple):
    """One optimiser, or R of them if its leaves are arrays [R].

    The fields are, in order: eta, beta, kappa, b2, eps, and 1 for Adam or 0 for the
    others.
    """

    learning_rate: Scalar
    momentum: Scalar = 0.0
    dampening: Scalar = 1.0
    second_moment: Scalar = 0.0
    eps: Scalar = 1e-8
    adaptive: Scalar = 0.0


class RuleState(NamedTuple):
    """Means of the gradient and of its square, and the number of steps taken."""

    m: Float[Array, " dim"]
    v: Float[Array, " dim"]
    age: Int[Array, ""]


def gradient_descent(learning_rate: float) -> Rule:
    """Returns the rule of plain gradient descent."""
    return Rule(learning_rate)


def heavy_ball(learning_rate: float, momentum: float = 0.9) -> Rule:
    """Returns the rule of Polyak's momentum."""
    return Rule(learning_rate, momentum=momentum)


def adam(
    learning_rate: float, b1: float = 0.9, b2: float = 0.999, eps: float = 1e-8
) -> Rule:
    """Returns the rule of Adam with bias correction."""
    return Rule(learning_rate, b1, 1 - b1, b2, eps, adaptive=1.0)


def update(
    rule: Rule,
    x: Float[Array, " dim"],
    gradient: Float[Array, " dim"],
    state: RuleState,
) -> tuple[Float[Array, " dim"], RuleState]:
    """Makes one step of the optimiser, whose leaves are scalars."""
    r = Rule(*(jnp.asarray(value, x.dtype) for value in rule))
    # XLA may compute a b + c with one rounding (FMA) for some elements of an array and
    # two for others, which separates identical units in the optimiser's own step. The
    # compiler cannot know that this is zero.
    zero = jnp.minimum(state.age, 0).astype(jnp.uint32)
    m = guard(r.momentum * state.m, zero) + guard(r.dampening * gradient, zero)
    new = guard((1 - r.second_moment) * gradient**2, zero)
    v = guard(r.second_moment * state.v, zero) + new
    age = state.age + 1
    power = age.astype(x.dtype)
    m_hat = m / (1 - r.momentum**power)
    v_hat = v / (1 - r.second_moment**power)
    direction = jnp.where(r.adaptive > 0, m_hat / (jnp.sqrt(v_hat) + r.eps), m)
    return x - guard(r.learning_rate * direction, zero), RuleState(m, v, age)


#: Maps the key of a step, x [dim] and a rotation [dim, dim] to a gradient [dim].
Gradient = Callable[[jax.Array, jax.Array, jax.Array], jax.Array]
FORMS = ("aligned", "rotated")


class Escape(NamedTuple):
    """The outcome of a run; leading axes are rules, forms and seeds.

    Attributes:
      steps: first step at which the projection on the escape directions reached the
        radius (`escaped`); the number of steps of the run if it never did.
      arrival: first step at which the value was below the exit value (`arrived`); after
        it nothing changes.
      x: final variables.
      still: whether the last step, made before the arrival, changed no bit of x: the
        run has stopped for good, unless its gradient is noisy.
    """

    steps: Int[Array, ""]
    escaped: Bool[Array, ""]
    arrival: Int[Array, ""]
    arrived: Bool[Array, ""]
    x: Float[Array, " dim"]
    still: Bool[Array, ""]


def rotated_gradient(
    function: SaddleFunction,
) -> Callable[[jax.Array, jax.Array], jax.Array]:
    """Computes the gradient of fn(Q x) in x; noise is injected into this function."""
    return jax.grad(lambda x, rotation: function.fn(rotation @ x))


def escape_runs(
    gradient: Gradient,
    function: SaddleFunction,
    rules: list[Rule],
    *,
    forms: tuple[str, ...] = FORMS,
    seeds: int,
    first_seed: int = 0,
    steps: int,
    dtype: str = "float32",
    fresh: bool = True,
) -> Escape:
    """Runs all rules x forms x seeds in one vmapped program; leaves are numpy arrays.

    Args:
      gradient: the gradient of fn(Q x), with its noise; see `Gradient`.
      function: the function, in its aligned form.
      rules: the optimisers.
      forms: "aligned", "rotated", or both.
      seeds: number of seeds, from `first_seed` >= 0. A seed fixes the start, the
        rotation and the noise key, for all rules, noises and precisions.
      first_seed: the first seed.
      steps: steps of each run, >= 1.
      dtype: "float32" or "float64"; the latter needs jax_enable_x64.
      fresh: whether the gradient gets a new key at each step. Otherwise one key serves
        the whole run, like an order of sums that autotuning has chosen once.
    """
    check_int("steps", steps, 1)
    check_int("seeds", seeds, 1)
    check_int("first_seed", first_seed, 0)
    one_of("dtype", dtype, ("float32", "float64"))
    for form in forms:
        one_of("forms", form, FORMS)
    if jax.dtypes.canonicalize_dtype(dtype) != dtype:
        raise UserError(f"dtype={dtype!r}: expected float32, or jax_enable_x64 set")
    chosen = range(first_seed, first_seed + seeds)
    starts, rotations = _settings(function, forms, chosen)
    stacked = Rule(*(jnp.asarray(values, dtype) for values in zip(*rules, strict=True)))
    # The key of a seed does not depend on how many seeds there are.
    keys = jax.random.split(jax.random.key(0), chosen.stop)[first_seed:]
    over_runs = functools.partial(_run, gradient, function, steps, fresh)
    # Over seeds, forms and rules.
    for axes in ((None, 0, 0, 0), (None, 0, 0, None), (0, None, None, None)):
        over_runs = jax.vmap(over_runs, axes)
    record = jax.jit(over_runs)(
        stacked, jnp.asarray(starts, dtype), jnp.asarray(rotations, dtype), keys
    )
    return jax.tree.map(np.asarray, record)


def _run(
    gradient: Gradient,
    function: SaddleFunction,
    steps: int,
    fresh: bool,
    rule: Rule,
    x: Float[Array, " dim"],
    rotation: Float[Array, "dim dim"],
    key: Key[Array, ""],
) -> Escape:
    saddle = jnp.asarray(function.saddle, x.dtype)
    directions = jnp.asarray(function.escape, x.dtype)
    noise_root = jax.random.split(key)[0]

    def observe(x):
        y = rotation @ x
        projection = jnp.sqrt(jnp.sum((directions @ (y - saddle)) ** 2))
        return projection, function.fn(y) < function.exit_value

    def step(carry, t):
        x, state, record = carry
        noise_key = jax.random.fold_in(noise_root, t) if fresh else noise_root
        slope = gradient(noise_key, x, rotation)
        like = (getattr(slope, n, None) == getattr(x, n) for n in ("shape", "dtype"))
        expect(all(like), "gradient", slope, f"{x.dtype} of shape {x.shape}")
        moved, new_state = update(rule, x, slope, state)
        still = jnp.all(moved == x) & ~record.arrived
        # Nothing changes after the arrival, as some functions are unbounded below.
        x, state = jax.tree.map(
            lambda new, old: jnp.where(record.arrived, old, new),
            (moved, new_state),
            (x, state),
        )
        projection, below = observe(x)
        out = projection >= function.radius
        record = Escape(
            jnp.where(out & ~record.escaped, t + 1, record.steps),
            record.escaped | out,
            jnp.where(below & ~record.arrived, t + 1, record.arrival),
            record.arrived | below,
            x,
            still,
        )
        return (x, state, record), None

    budget, no = jnp.int32(steps), jnp.array(False)
    record = Escape(budget, no, budget, no, x, no)
    initial = RuleState(jnp.zeros_like(x), jnp.zeros_like(x), jnp.int32(0))
    carry, counter = (x, initial, record), jnp.arange(steps, dtype=jnp.int32)
    (_, _, record), _ = jax.lax.scan(step, carry, counter)
    return record


def _settings(
    function: SaddleFunction, forms: tuple[str, ...], seeds: range
) -> tuple[np.ndarray, np.ndarray]:
    """Returns starts [forms, seeds, dim] and rotations [forms, seeds, dim, dim]."""
    starts, rotations = [], []
    for seed in seeds:
        rng = np.random.default_rng(seed)
        y = function.start(rng)
        # Uniform (Mezzadri 2007, Not. AMS 54:592).
        q, r = np.linalg.qr(rng.normal(size=(function.dim, function.dim)))
        turned = q * np.sign(np.diag(r))
        chosen = [np.eye(function.dim) if f == "aligned" else turned for f in forms]
        rotations.append(chosen)
        starts.append([q.T @ y for q in chosen])
    return np.swapaxes(np.array(starts), 0, 1), np.swapaxes(np.array(rotations), 0, 1)
