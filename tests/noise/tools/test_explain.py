"""Explanations: a constructed difference gets the rung that made it."""

import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import small_programs

from prednet_jax import noise
from prednet_jax.noise.tools.explain import NOT_MODELLED, RUNGS, place
from prednet_jax.noise.tools.ladder import ladder

KEY = jax.random.key(4)
PROGRAMS = small_programs.SEEN | small_programs.HELD_OUT
QUICK = ("covariance",)
PRODUCTS = (
    "mlp", "attention", "convolution", "recurrent", "block",
    "similarity", "gated", "pooled", "covariance", "mixture",
)  # fmt: skip
SUMS = ("norm", "softmax", "total", "density", "segments")
ORDERS = ("reduction_order", "reduction_order:granularity=element,partials=12")
ROUNDINGS = ("ulp", "stochastic_rounding")


def noisy(fn, text, seed, args):
    return noise.inject(fn, noise.parse(text))(jax.random.key(seed), *args)


def without_a_term(args):
    """The first argument with a zero in the place of its last column."""
    first, *rest = args
    if isinstance(first, list | tuple):
        dropped = [w.at[..., -1].set(0) for w in first]
        return type(first)(dropped), *rest
    return first.at[..., -1].set(0), *rest


def cases(name, fn, args):
    """(rung, a, b): ten for programs with products, of which six for the others."""
    plain = jax.jit(fn)(*args)
    yield "order", noisy(fn, ORDERS[0], 1, args), plain
    yield "order", noisy(fn, ORDERS[1], 2, args), noisy(fn, ORDERS[1], 3, args)
    yield "rounding", plain, noisy(fn, ROUNDINGS[0], 4, args)
    yield "rounding", noisy(fn, ROUNDINGS[1], 5, args), noisy(fn, ROUNDINGS[1], 6, args)
    yield "beyond", fn(*without_a_term(args)), plain
    yield "beyond", jax.tree.map(lambda x: x * np.float32(1.01), plain), plain
    if name in PRODUCTS:
        for format in ("tf32", "bf16"):
            yield format, noisy(fn, format, 7, args), plain
            # On another device, sums have another order too.
            there = noisy(fn, f"{format}+reduction_order", 8, args)
            yield format, there, noisy(fn, ORDERS[0], 9, args)


def count(names):
    """How many cases there are, and those that are named wrongly."""
    total, wrong = 0, []
    for name in names:
        fn, args = PROGRAMS[name]()
        measured = ladder(fn, KEY, args, {}, draws=8)
        for rung, a, b in cases(name, fn, args):
            total += 1
            found = place(measured, a, b).leaves
            assert {leaf.rung for leaf in found} <= set(RUNGS)
            if not all(right(leaf, rung) for leaf in found):
                wrong.append((name, rung, *found))
    return total, wrong


def right(leaf, rung):
    """Named so, or by a rung whose range overlaps; or noise left it as it was."""
    return rung in leaf.plausible or rung == leaf.rung or leaf.rung == "identical"


def test_constructed_cases():
    total, wrong = count(QUICK)
    assert total == 10
    assert wrong == []


@pytest.mark.slow
def test_130_constructed_cases():
    total, wrong = count([*PRODUCTS, *SUMS])
    assert total == 130
    print(*wrong, sep="\n")
    assert len(wrong) <= 0.05 * total


def test_the_report_of_a_tree():
    def fn(x, w):
        return {"product": x @ w, "sum": [jnp.sum(x), x[0]]}

    x = small_programs.normal(0, 16, 300)
    w = small_programs.normal(1, 300, 4)
    here = fn(x, w)
    there = {
        "product": noisy(lambda x, w: x @ w, "bf16", 1, (x, w)),
        "sum": [jnp.sum(x[:, :-1]), x[0]],
    }
    report = noise.explain(fn, here, there, draws=3)(KEY, x, w)
    expected = {"product": "bf16", "sum": ["beyond", "identical"]}
    assert report.rung == expected
    by_path = {leaf.path: leaf for leaf in report.leaves}
    product = by_path["['product']"]
    assert product.ratios["bf16"] == pytest.approx(1, abs=0.01)
    assert product.ratios["tf32"] > 4
    total = by_path["['sum'][0]"]
    assert total.ratios["tf32"] is None
    assert total.ratios["order"] is None or total.ratios["order"] > 4
    assert total.reason == "larger than all"
    text = str(report)
    assert NOT_MODELLED in text
    assert all(path in text for path in by_path)
    json.dumps(report.to_json(), allow_nan=False)


def test_one_leaf_gives_a_string_and_equal_results_are_identical():
    x = jnp.asarray([1.0, np.nan, -0.0, np.inf])
    fn = lambda x: x * np.float32(2.0)  # noqa: E731
    same = noise.explain(fn, fn(x), np.asarray([2.0, np.nan, 0.0, np.inf]), draws=2)
    report = same(KEY, x)
    assert report.rung == "identical"
    assert report.leaves[0].difference == 0
    broken = noise.explain(fn, fn(x), jnp.asarray([2.0, 1.0, 0.0, np.inf]), draws=2)
    assert broken(KEY, x).rung == "beyond"
    assert broken(KEY, x).leaves[0].reason == "finite in one of the two alone"
    json.dumps(broken(KEY, x).to_json(), allow_nan=False)


def test_one_wrong_element_of_many_is_beyond():
    """Its RMS over the leaf is small; its size is not."""
    fn, args = PROGRAMS["norm"]()
    plain = jax.jit(fn)(*args)
    wrong = plain.at[3, 5].add(np.float32(1e-4))
    assert noise.explain(fn, wrong, plain, draws=3)(KEY, *args).rung == "beyond"


@pytest.mark.parametrize(
    ("a", "b", "message"),
    [
        (np.ones(3), np.ones(4), "a has shape"),
        (np.ones(3), [np.ones(3)], "a is"),
        (np.ones(3), np.ones(3), "b has shape"),
    ],
)
def test_what_is_no_result_is_refused(a, b, message):
    with pytest.raises(noise.NoiseError, match=message):
        noise.explain(jnp.sum, a, b)(KEY, jnp.ones(8))


def test_draws_are_checked():
    with pytest.raises(noise.NoiseError, match="draws=1: expected an integer"):
        noise.explain(jnp.sum, 1.0, 1.0, draws=1)
