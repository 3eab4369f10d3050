"""Gradient descent, heavy ball, Adam and perturbed gradient descent as one update.

    m <- beta m + kappa g          v <- b2 v + (1 - b2) g^2
    x <- x - eta m                                      (not adaptive)
    x <- x - eta m_hat/(sqrt(v_hat) + eps)              (Adam, Kingma & Ba 2015, alg. 1)

Gradient descent has beta = 0 and heavy ball beta > 0, both with kappa = 1; Adam has
beta = b1, kappa = 1 - b1. A rule is a tuple of numbers, not a function, so that a whole
comparison of rules is one vmapped program.

Perturbed gradient descent (Jin, Ge, Netrapalli, Kakade & Jordan 2017, arXiv 1703.00887,
algorithm 2) adds a uniform point of the ball of radius r where |g| <= threshold and
more than `wait` steps have passed since the last one. Its gradient step follows in
the next call, from the perturbed point.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, Key

from prednet_jax.errors import decay, positive, whole

#: A number, or an array of one number a rule.
Scalar = float | jax.Array


class Rule(NamedTuple):
    """One optimiser; stacked leaves [R] make R of them.

    Attributes:
      learning_rate: eta.
      momentum: beta, or b1 of Adam.
      dampening: kappa, the weight of a new gradient in m.
      second_moment: b2 of Adam.
      eps: of Adam.
      adaptive: 1 for Adam, else 0.
      radius: of the perturbation; 0 for none.
      threshold: gradient norm at or below which it is applied.
      wait: steps between two perturbations.
    """

    learning_rate: Scalar
    momentum: Scalar = 0.0
    dampening: Scalar = 1.0
    second_moment: Scalar = 0.0
    eps: Scalar = 1e-8
    adaptive: Scalar = 0.0
    radius: Scalar = 0.0
    threshold: Scalar = 0.0
    wait: Scalar = 0.0


class RuleState(NamedTuple):
    """Of one run: m [dim], v [dim], steps taken, steps since the last perturbation."""

    m: Float[Array, "dim"]
    v: Float[Array, "dim"]
    age: Int[Array, ""]
    since: Float[Array, ""]


def gradient_descent(learning_rate: float) -> Rule:
    """Plain steps, x <- x - eta g."""
    positive("learning_rate", learning_rate)
    return Rule(learning_rate)


def heavy_ball(learning_rate: float, momentum: float = 0.9) -> Rule:
    """Polyak's momentum; `momentum` in [0, 1)."""
    positive("learning_rate", learning_rate)
    decay("momentum", momentum)
    return Rule(learning_rate, momentum=momentum)


def adam(
    learning_rate: float, b1: float = 0.9, b2: float = 0.999, eps: float = 1e-8
) -> Rule:
    """Adam with bias correction; `b1` and `b2` in [0, 1)."""
    positive("learning_rate", learning_rate)
    positive("eps", eps)
    decay("b1", b1)
    decay("b2", b2)
    return Rule(learning_rate, b1, 1 - b1, b2, eps, adaptive=1.0)


def perturbed_gradient_descent(
    learning_rate: float, *, radius: float, threshold: float, wait: int
) -> Rule:
    """Jin et al. 2017; `radius`, `threshold` > 0, `wait` >= 0 steps."""
    positive("learning_rate", learning_rate)
    positive("radius", radius)
    positive("threshold", threshold)
    whole("wait", wait, 0)
    return Rule(learning_rate, radius=radius, threshold=threshold, wait=float(wait))


def initial(rule: Rule, x: Float[Array, "dim"]) -> RuleState:
    """The state before the first step; a perturbation may come at once."""
    wait = jnp.asarray(rule.wait, x.dtype)
    return RuleState(jnp.zeros_like(x), jnp.zeros_like(x), jnp.int32(0), wait + 1)


def update(
    rule: Rule,
    x: Float[Array, "dim"],
    gradient: Float[Array, "dim"],
    state: RuleState,
    key: Key[Array, ""] | None,
) -> tuple[Float[Array, "dim"], RuleState]:
    """One step.

    Args:
      rule: the optimiser, scalar leaves.
      x: variables.
      gradient: at `x`.
      state: before the step.
      key: consumed by the perturbation; None where no rule has one, which saves the
        drawing of a point at each step.

    Returns:
      Variables and state after the step.
    """
    r = Rule(*(jnp.asarray(value, x.dtype) for value in rule))
    zero = jnp.minimum(state.age, 0)
    m = _rounded(r.momentum * state.m, zero) + _rounded(r.dampening * gradient, zero)
    new = _rounded((1 - r.second_moment) * gradient**2, zero)
    v = _rounded(r.second_moment * state.v, zero) + new
    age = state.age + 1
    power = age.astype(x.dtype)
    m_hat = m / (1 - r.momentum**power)
    v_hat = v / (1 - r.second_moment**power)
    direction = jnp.where(r.adaptive > 0, m_hat / (jnp.sqrt(v_hat) + r.eps), m)
    stepped = x - _rounded(r.learning_rate * direction, zero)
    if key is None:
        return stepped, RuleState(m, v, age, state.since + 1)

    small = jnp.sum(gradient**2) <= r.threshold**2
    perturb = (r.radius > 0) & small & (state.since > r.wait)
    jolted = x + r.radius * _in_unit_ball(key, x)
    state = RuleState(
        jnp.where(perturb, state.m, m),
        jnp.where(perturb, state.v, v),
        jnp.where(perturb, state.age, age),
        jnp.where(perturb, jnp.zeros_like(state.since), state.since + 1),
    )
    return jnp.where(perturb, jolted, stepped), state


def _rounded(product: jax.Array, zero: jax.Array) -> jax.Array:
    """A product rounded before it is added, in every compilation.

    XLA may contract a b + c to one rounding, and not for all elements of an array
    alike: two identical units then part in the optimiser's own step (heavy ball under a
    shared order did, within 50 steps). The compiler cannot see that `zero` is zero.
    """
    bits = jnp.int32 if product.dtype == jnp.float32 else jnp.int64
    hidden = jax.lax.bitcast_convert_type(product, bits) ^ zero.astype(bits)
    return jax.lax.bitcast_convert_type(hidden, product.dtype)


def _in_unit_ball(key: Key[Array, ""], x: Float[Array, "dim"]) -> Float[Array, "dim"]:
    direction_key, length_key = jax.random.split(key)
    direction = jax.random.normal(direction_key, x.shape, x.dtype)
    length = jax.random.uniform(length_key, (), x.dtype) ** (1 / x.size)
    return length * direction / jnp.sqrt(jnp.sum(direction**2))
