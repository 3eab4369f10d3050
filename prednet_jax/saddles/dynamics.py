"""Runs from a saddle: when do they leave it, and when have they passed all saddles?

A run works on x = Q^T y, where y are the aligned coordinates, in which the saddle and
its escape directions are known. In the aligned form Q is the identity. Both forms
compute the same matrix product; with the identity it is exact in every order of sums,
so zeros stay zeros.
"""

import functools
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, Key

from prednet_jax.errors import UserError, one_of
from prednet_jax.saddles.base import SaddleFunction, random_rotation
from prednet_jax.saddles.optimizers import Rule, initial, update

#: Maps the key of a step, x [dim] and a rotation [dim, dim] to a gradient [dim].
Gradient = Callable[[jax.Array, jax.Array, jax.Array], jax.Array]
FORMS = ("aligned", "rotated")


class Escape(NamedTuple):
    """The outcome of a run; leading axes are rules, forms and seeds.

    Attributes:
      steps: first step at which the projection on the escape directions reached the
        radius; the number of steps of the run if it never did.
      escaped: whether it did.
      arrival: first step at which the value was below the exit value; the number of
        steps of the run if it never was.
      arrived: whether it was.
      early: [2] the projections after `settle` - 1 and after `settle` steps.
      x: [dim] final variables; they do not change after the arrival.
      still: whether the last step, made before the arrival, changed no bit of x: the
        run has stopped for good, unless its gradient is noisy.
    """

    steps: Int[Array, ""]
    escaped: Bool[Array, ""]
    arrival: Int[Array, ""]
    arrived: Bool[Array, ""]
    early: Float[Array, "2"]
    x: Float[Array, "dim"]
    still: Bool[Array, ""]


def rotated_gradient(
    function: SaddleFunction,
) -> Callable[[jax.Array, jax.Array], jax.Array]:
    """Maps x and Q to the gradient of fn(Q x) in x; noise is injected into this."""
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
    settle: int = 10,
    fresh: bool = True,
) -> Escape:
    """Runs all rules x forms x seeds in one vmapped, compiled program.

    A seed fixes the start, the rotation and the noise key; they are the same for all
    rules, noises and precisions.

    Args:
      gradient: the gradient of fn(Q x), with its noise; see `Gradient`.
      function: the function, in its aligned form.
      rules: the optimisers.
      forms: "aligned", "rotated", or both.
      seeds: number of seeds, >= 1.
      first_seed: the first seed, >= 0.
      steps: steps of each run, > settle.
      dtype: "float32" or "float64"; the latter needs jax_enable_x64.
      settle: step at which the early projection is recorded, >= 1.
      fresh: whether the gradient gets a new key at each step. False: one key for the
        whole run, like an order of sums that autotuning has chosen once.

    Returns:
      Leaves [rules, forms, seeds, ...] as numpy arrays.

    Raises:
      UserError: an unknown form or dtype, no rule, no seed, float64 without x64, or
        steps or settle out of range.
    """
    if not 1 <= settle < steps:
        raise UserError(f"settle={settle}, steps={steps}: expected 1 <= settle < steps")
    unknown = set(forms) - set(FORMS)
    if unknown or not forms:
        raise UserError(f"forms={forms}: expected some of {', '.join(FORMS)}")
    one_of("dtype", dtype, ("float32", "float64"))
    if jax.dtypes.canonicalize_dtype(dtype) != dtype:
        raise UserError(f"dtype={dtype!r}: expected float32, or jax_enable_x64 set")
    if not rules or seeds < 1 or first_seed < 0:
        raise UserError(
            f"{len(rules)} rules, {seeds} seeds from {first_seed}: expected at least "
            "one of each, from 0 on"
        )

    options = {
        "steps": steps,
        "settle": settle,
        "fresh": fresh,
        # If no rule perturbs, no point of the ball has to be drawn at each step.
        "perturbed": any(float(rule.radius) > 0 for rule in rules),
    }
    chosen = range(first_seed, first_seed + seeds)
    starts, rotations = _settings(function, forms, chosen)
    stacked = Rule(*(jnp.asarray(values, dtype) for values in zip(*rules, strict=True)))
    # The key of a seed does not depend on how many seeds there are.
    keys = jax.random.split(jax.random.key(0), chosen.stop)[first_seed:]
    one = functools.partial(_run, gradient, function, options)
    over_seeds = jax.vmap(one, (None, 0, 0, 0))
    over_forms = jax.vmap(over_seeds, (None, 0, 0, None))
    over_rules = jax.vmap(over_forms, (0, None, None, None))
    record = jax.jit(over_rules)(
        stacked, jnp.asarray(starts, dtype), jnp.asarray(rotations, dtype), keys
    )
    return jax.tree.map(np.asarray, record)


def _run(
    gradient: Gradient,
    function: SaddleFunction,
    options: dict,
    rule: Rule,
    x: Float[Array, "dim"],
    rotation: Float[Array, "dim dim"],
    key: Key[Array, ""],
) -> Escape:
    """One run of one rule from x, in the run's own coordinates."""
    steps, fresh = options["steps"], options["fresh"]
    saddle = jnp.asarray(function.saddle, x.dtype)
    directions = jnp.asarray(function.escape, x.dtype)
    noise_root, jolt_root = jax.random.split(key)

    def observe(x):
        y = rotation @ x
        projection = jnp.sqrt(jnp.sum((directions @ (y - saddle)) ** 2))
        return projection, function.fn(y) < function.exit_value

    def step(carry, t):
        x, state, record, last = carry
        noise_key = jax.random.fold_in(noise_root, t) if fresh else noise_root
        ball_key = jax.random.fold_in(jolt_root, t) if options["perturbed"] else None
        moved, new_state = update(
            rule, x, gradient(noise_key, x, rotation), state, ball_key
        )
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
            jnp.where(
                t + 1 == options["settle"], jnp.stack([last, projection]), record.early
            ),
            x,
            still,
        )
        return (x, state, record, projection), None

    budget = jnp.int32(steps)
    record = Escape(
        budget,
        jnp.array(False),
        budget,
        jnp.array(False),
        jnp.zeros(2, x.dtype),
        x,
        jnp.array(False),
    )
    carry = (x, initial(rule, x), record, observe(x)[0])
    (_, _, record, _), _ = jax.lax.scan(step, carry, jnp.arange(steps, dtype=jnp.int32))
    return record


def _settings(
    function: SaddleFunction, forms: tuple[str, ...], seeds: range
) -> tuple[np.ndarray, np.ndarray]:
    """Starts [forms, seeds, dim] and rotations [forms, seeds, dim, dim]."""
    starts, rotations = [], []
    for seed in seeds:
        rng = np.random.default_rng(seed)
        y = function.start(rng)
        turned = random_rotation(function.dim, rng)
        chosen = [np.eye(function.dim) if f == "aligned" else turned for f in forms]
        rotations.append(chosen)
        starts.append([q.T @ y for q in chosen])
    return np.swapaxes(np.array(starts), 0, 1), np.swapaxes(np.array(rotations), 0, 1)
