"""Explanations: a constructed difference gets the rung that made it."""

import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from benchmarks import accuracy, noise_programs
from prednet_jax import noise
from prednet_jax.noise.questions.explain import NOT_MODELLED

KEY = jax.random.key(4)


def noisy(fn, text, seed, args):
    return noise.inject(fn, noise.parse(text))(jax.random.key(seed), *args)


def test_constructed_cases():
    assert accuracy.explained(["covariance"]) == (10, [])


@pytest.mark.slow
def test_130_constructed_cases():
    names = [*noise_programs.PRODUCTS, *noise_programs.SUMS]
    total, wrong = accuracy.explained(names)
    assert total == 130
    print(*wrong, sep="\n")
    assert len(wrong) <= 0.05 * total


def test_the_report_of_a_tree():
    def fn(x, w):
        return {"product": x @ w, "sum": [jnp.sum(x), x[0]]}

    x = noise_programs.normal(0, 16, 300)
    w = noise_programs.normal(1, 300, 4)
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
    fn, args = noise_programs.norm()
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
