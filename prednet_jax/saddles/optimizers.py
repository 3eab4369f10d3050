"""Gradient descent, heavy ball, Adam and perturbed gradient descent as one update.

    m <- beta m + kappa g          v <- b2 v + (1 - b2) g^2
    x <- x - eta m                                      (not adaptive)
    x <- x - eta m_hat/(sqrt(v_hat) + eps)              (Adam, Kingma & Ba 2015, alg. 1)

Gradient descent has beta = 0 and heavy ball beta > 0, both with kappa = 1. Adam has
beta = b1 and kappa = 1 - b1. A rule is a tuple of numbers, not a function, so that one
vmapped program runs all rules of a comparison.

Perturbed gradient descent (Jin, Ge, Netrapalli, Kakade & Jordan 2017, arXiv 1703.00887,
algorithm 2) adds a point drawn uniformly from the ball of radius r if |g| <= threshold
and more than `wait` steps have passed since the last perturbation. The gradient step
from the perturbed point follows in the next call.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, Key

from prednet_jax.errors import decay, positive, whole

#: A number, or an array of one number per rule.
Scalar = float | jax.Array


class Rule(NamedTuple):
    """One optimiser, or R of them if its leaves are arrays [R].

    Attributes:
      learning_rate: eta.
      momentum: beta, or b1 of Adam.
      dampening: kappa, the weight of a new gradient in m.
      second_moment: b2 of Adam.
      eps: Adam's epsilon.
      adaptive: 1 for Adam, else 0.
      radius: radius of the perturbation; 0: none.
      threshold: gradient norm at or below which the perturbation is applied.
      wait: least number of steps between two perturbations.
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
    """State of an optimiser.

    Attributes:
      m: running mean of the gradient.
      v: running mean of its square.
      age: steps taken.
      since: steps since the last perturbation.
    """

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
    """The state before the first step, which may already be perturbed."""
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
      rule: the optimiser, with scalar leaves.
      x: the variables.
      gradient: the gradient at `x`.
      state: the state before the step.
      key: consumed by the perturbation; None if no rule perturbs, so that no point is
        drawn.

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
    """Makes XLA round a product before it is added.

    XLA may compute a b + c with one rounding (FMA) for some elements of an array and
    two for others. Two identical units then separate in the optimiser's own step; heavy
    ball under a shared order did so within 50 steps. The exclusive or with `zero`
    prevents it, since the compiler cannot know that this is zero.
    """
    bits = jnp.int32 if product.dtype == jnp.float32 else jnp.int64
    hidden = jax.lax.bitcast_convert_type(product, bits) ^ zero.astype(bits)
    return jax.lax.bitcast_convert_type(hidden, product.dtype)


def _in_unit_ball(key: Key[Array, ""], x: Float[Array, "dim"]) -> Float[Array, "dim"]:
    direction_key, length_key = jax.random.split(key)
    direction = jax.random.normal(direction_key, x.shape, x.dtype)
    length = jax.random.uniform(length_key, (), x.dtype) ** (1 / x.size)
    return length * direction / jnp.sqrt(jnp.sum(direction**2))
