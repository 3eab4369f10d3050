"""The worst draw found, and the effects of parts."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from prednet_jax import noise

KEY = jax.random.key(0)
ORDER = noise.ReductionOrder()


def layers(ws, x):
    for i, w in enumerate(ws):
        with jax.named_scope(f"layer_{i}"):
            x = jnp.tanh(x @ w)
    return jnp.sum(x)


A, B, C = jax.random.split(jax.random.key(1), 3)
WS = list(jax.random.normal(A, (3, 32, 32)) / 6)
X = jax.random.normal(B, (8, 32))


def test_it_is_worse_than_random_draws_and_can_be_replayed():
    spec = noise.UlpPerturbation()
    worst = noise.worst_case(layers, spec, draws=8)(KEY, WS, X)
    assert abs(worst.deviation) >= 1.5 * worst.random > 0
    assert worst.value == pytest.approx(worst.clean + worst.deviation, abs=0)
    paths = [e.path for e in noise.coverage(layers, spec)(WS, X).perturbed]
    assert list(worst.choices) == paths
    assert worst.evaluations <= 1 + 8 + 8 * len(paths)
    again = noise.replay(layers, spec, worst.choices)(KEY, WS, X)
    assert again == worst.value
    assert "furthest of the random draws" in str(worst)


def test_it_finds_the_worst_order_of_one_sum():
    """Of three pieces there are three results; the search meets the furthest."""
    x = jnp.asarray(np.random.default_rng(0).standard_normal(30), jnp.float32) * 1e3
    spec = noise.ReductionOrder(partials=3, shortest=1)
    clean = float(noise.inject(jnp.sum, spec, only=[])(KEY, x))
    pieces = [np.float32(jnp.sum(x[i : i + 10])) for i in (0, 10, 20)]
    results = {float((a + b) + c) for a, b, c in itertools.permutations(pieces)}
    worst = noise.worst_case(jnp.sum, spec, draws=24)(KEY, x)
    assert worst.clean == clean
    expected = max(abs(r - clean) for r in results)
    assert abs(worst.deviation) == pytest.approx(expected, rel=1e-3)


def test_exact_sums_have_no_worst_case():
    worst = noise.worst_case(jnp.sum, ORDER, draws=2)(KEY, jnp.arange(64.0))
    assert worst.deviation == worst.random == 0


def test_a_result_must_be_a_number():
    with pytest.raises(noise.NoiseError, match="expected one floating-point number"):
        noise.worst_case(jnp.sin, noise.UlpPerturbation())(KEY, X)
    with pytest.raises(noise.NoiseError, match="choices of 1 equations"):
        noise.replay(layers, ORDER, {"0:sin": 1})(KEY, WS, X)
    with pytest.raises(noise.NoiseError, match="draws=1"):
        noise.worst_case(layers, ORDER, draws=1)


def test_effects_of_layers_and_paths():
    spec = noise.ReductionOrder(partials=3)
    gradient = jax.grad(layers)
    parts = ["layer_0", "layer_2", ""]
    by_layer = noise.effects(gradient, spec, parts)(KEY, WS, X)
    assert [e.part for e in by_layer] == parts
    assert all(e.effect > 0 for e in by_layer)
    # Three products of a layer that has an input gradient; the first has none.
    assert [e.equations for e in by_layer[:2]] == [2, 3]
    listed = noise.coverage(gradient, spec)(WS, X).perturbed
    assert by_layer[2].equations == len(listed)
    # A path names one equation, and not those whose paths begin like it.
    (one,) = noise.effects(gradient, spec, [listed[0].path])(KEY, WS, X)
    assert one.equations == 1
    only = noise.inject(gradient, spec, only=[listed[0].path])
    clean = noise.inject(gradient, spec, only=[])(KEY, WS, X)
    far = [
        sum(
            float(jnp.sum((a - b) ** 2))
            for a, b in zip(only(k, WS, X), clean, strict=True)
        )
        for k in jax.random.split(KEY, 3)
    ]
    assert one.effect == pytest.approx(np.sqrt(np.mean(far)), rel=1e-3)


def test_a_part_that_is_not_there_is_refused():
    with pytest.raises(noise.NoiseError, match="acts on nothing in 'layer_9'"):
        noise.effects(layers, ORDER, ["layer_9"])(KEY, WS, X)
    with pytest.raises(noise.NoiseError, match="expected a sequence of texts"):
        noise.effects(layers, ORDER, "layer_0")
