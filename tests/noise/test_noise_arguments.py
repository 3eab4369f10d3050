"""Wrong arguments of the tools are named in one line, and never taken for a default."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from prednet_jax import noise

KEY, ULP = jax.random.key(0), noise.UlpPerturbation()
X = np.ones(3, np.float32)
GRADIENT = noise.GradientGaussian(0.1)
LAYERS = {"y": X}


def layers(names):
    noise.compare_layers(lambda x: {"y": x}, LAYERS, names=names)


CASES = [
    (lambda: noise.inject(None, ULP), "fn=None: expected a function of arrays"),
    (lambda: noise.digits("f", ULP)(KEY, X), "fn='f': expected a function of arrays"),
    (lambda: noise.coverage(3, ULP)(X), "fn=3: expected a function"),
    (lambda: noise.record(X)(X), "fn=array.* expected a function"),
    (lambda: noise.compare_logits(None, X, X)(KEY, X), "fn=None: expected a functi"),
    (lambda: noise.digits(jnp.sum, 0)(KEY, X), "spec=0: expected a noise spec"),
    (lambda: noise.tolerance(jnp.sum, "")(KEY, X), "spec='': expected a noise spec"),
    (lambda: noise.explain(jnp.sum, 10**30, 3.0)(KEY, X), "whole number beyond 64 bit"),
    (
        lambda: noise.digits(jnp.sum, draws=2**31)(KEY, X),
        "draws=2147483648: .* 10485",
    ),
    (lambda: noise.localize(jnp.sum, ULP, samples=2**31), "samples=2147483648: .* 104"),
    (lambda: noise.localize(jnp.sum, ULP, parts=[1]), r"parts=\[1\]: expected a seq"),
    (lambda: noise.localize(jnp.sum, ULP, parts=3), "parts=3: expected a sequence"),
    (lambda: noise.inject(jnp.sum, ULP, only=np.array(3)), r"only=array\(3\): expec"),
    (lambda: noise.inject(jnp.sum, ULP, run_key="x"), "key of type str: expected one"),
    (lambda: noise.noise_reference(jnp.sum, X, seed=0.5), "seed=0.5: expected a whole"),
    (lambda: noise.noise_reference(jnp.sum, X, seed=10**30), "seed=1000.*whole number"),
    (lambda: noise.tolerance_table(3), "result is int: expected what noise.tolerance"),
    (lambda: noise.perturb_tree(GRADIENT, KEY, {"a": "x"}), r"tree\['a'\] is str: exp"),
    (lambda: noise.ReductionOrder(granularity=np.ones(2)), r"granularity=array\(.* ti"),
    (lambda: noise.devices(jnp.sum, mesh={"d": 2**31}), r"mesh\['d'\]=2147483648: ex"),
    (lambda: noise.training(3, X, [X]), "step=3: expected a function"),
    (lambda: noise.training(jnp.add, X, 3), "batches=3: expected a list"),
    (lambda: layers(3), "names=3: expected a dictionary of names here and in the"),
    (lambda: layers({"y": 1}), "names={'y': 1}: expected a dictionary"),
]


@pytest.mark.fault
@pytest.mark.parametrize(("call", "words"), CASES, ids=[words for _, words in CASES])
def test_a_wrong_argument_is_named(call, words):
    with pytest.raises(noise.NoiseError, match=words) as raised:
        call()
    assert "\n" not in str(raised.value)
