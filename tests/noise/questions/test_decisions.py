"""Which decisions noise flips, and where."""

import jax
import jax.numpy as jnp
from jax import lax

from prednet_jax import noise

KEY = jax.random.key(0)
ORDER = noise.ReductionOrder(granularity="element")
X = jax.random.normal(jax.random.key(1), (6, 300))
W = jax.random.normal(jax.random.key(2), (300, 4))
# The first two columns tie: any noise decides between them.
TIED = W.at[:, 1].set(W[:, 0])


def found(fn, *args, spec=ORDER, draws=6):
    report = noise.decisions(fn, spec, draws=draws)(KEY, *args)
    return {d.primitive: d for d in report}


def test_a_tie_flips_and_a_clear_case_does_not():
    def fn(x, w):
        h = jnp.abs(x @ w)
        far = jnp.asarray([1.0, 1.0, 0.0, 0.0])
        return jnp.argmax(h * far, axis=1), jnp.argmin(h - far[::-1] * 1e3, axis=1)

    tied = found(fn, X, TIED)
    assert tied["argmax"].flipped > 0.5
    assert tied["argmax"].elements == 6
    assert 0 < tied["argmax"].share < 1
    assert tied["argmax"].source.startswith("test_decisions.py:")
    assert tied["argmax"].source.endswith(" in fn")
    assert found(fn, X, W)["argmax"].flipped == 0


def test_every_kind_of_decision():
    def fn(x, w):
        h = x @ w
        apart = h[:, 0] - h[:, 1]
        return {
            "sort": jnp.sort(h, axis=1),
            "top_k": lax.top_k(h, 2),
            "lt": jnp.where(h[:, 0] < h[:, 1], 1.0, 2.0),
            "eq": h[:, 0] == h[:, 1],
            "sign": jnp.sign(apart),
            "floor": jnp.floor(apart),
            "convert_element_type": (1e6 * apart).astype(int),
            "round": jnp.round(1e6 * apart),
        }

    with jax.numpy_dtype_promotion("standard"):
        report = found(fn, X, TIED)
        kinds = jax.eval_shape(fn, X, TIED)
    # How often depends on XLA's flags.
    assert all(report[primitive].flipped > 0.1 for primitive in kinds)


def test_continuous_functions_decide_nothing():
    def fn(x, w):
        return jnp.sum(jnp.clip(jnp.maximum(x @ w, 0.0), -1.0, 1.0))

    assert noise.decisions(fn, ORDER, draws=2)(KEY, X, TIED) == ()
    # Their derivatives do.
    assert noise.decisions(jax.grad(fn), ORDER, draws=2)(KEY, X, TIED)


def test_decisions_inside_loops_and_branches():
    def fn(x, w):
        def step(count, row):
            h = row @ w
            up = lax.cond(h[0] > h[1], lambda: 1.0, lambda: -1.0)
            return count + up, jnp.argmax(h)

        count, best = lax.scan(step, 0.0, x)
        return count, best

    report = found(fn, X, TIED)
    for primitive in ("gt", "cond", "argmax"):
        assert report[primitive].flipped > 0
        assert report[primitive].elements == 6
        assert "scan" in report[primitive].path
        assert report[primitive].source.endswith(" in step")


def test_the_number_of_steps_of_a_loop_is_a_decision():
    """Halved until it is no more than a bound that noise moves about an eighth."""

    def fn(x, w):
        h = x @ w
        bound = 0.125 + h[0, 0] - h[0, 1]
        return lax.while_loop(lambda c: c > bound, lambda c: c / 2.0, 8.0)

    report = found(fn, X, TIED, draws=12)
    assert report["while"].flipped > 0
    assert report["while"].elements == 1
    # An integer loop counter decides nothing by itself.
    assert {d for d in report if d != "while"} == {"gt"}
