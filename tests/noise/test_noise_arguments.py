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


DAYS = np.array([1, 2], "m8[D]")
PAIRS = np.zeros(2, [("a", "f4")])


class Several:
    """As a table of pandas: no hash, and a text of several lines."""

    __hash__ = None

    def __repr__(self):
        return "0    1.0\n1    2.0"


class Silent:
    def __repr__(self):
        raise RuntimeError


SERIES = Several()


def forgets(x):
    """Forgets to return what it computes: its tolerance passed everything."""
    return None, [] * len(x)


def decisions(labels):
    noise.decisions(lambda x: jnp.eye(3) * x, ULP, labels=labels)(KEY, X)


def layers(names):
    noise.compare_layers(lambda x: {"y": x}, LAYERS, names=names)


CASES = [
    (lambda: noise.inject(None, ULP), "fn=None: expected a function of arrays"),
    (lambda: noise.audit(jnp.sum, gpu=Silent())(X), "gpu=a Silent: expected one of"),
    (lambda: noise.Composition((ULP, Silent())), "specs holds a Silent: expected"),
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
    (lambda: noise.explain(jnp.sum, DAYS, DAYS)(KEY, X), "timedelta64.*expected numb"),
    (lambda: noise.explain(jnp.sum, DAYS[0], 1.0)(KEY, X), "timedelta64.*expected nu"),
    (
        lambda: noise.explain(jnp.sum, PAIRS, PAIRS)(KEY, X),
        "is array.*expected numbers",
    ),
    (
        lambda: noise.inject(jnp.sum, ULP)(KEY, SERIES),
        "argument 0  *1.0 1  *2.0: exp",
    ),
    (lambda: decisions([[1, 2], [3]]), "labels: expected integers or booleans"),
    (lambda: decisions(KEY), "labels: expected integers or booleans"),
    (lambda: noise.invariance(jnp.sin, seed=None)(X), "seed=None: expected a whole"),
    (lambda: noise.invariance(jnp.sin, seed=10**400)(X), "seed=1000.*whole number"),
    (lambda: noise.invariance(jnp.sin, batch=memoryview(b"a"))(X), "batch=<memory at"),
    (lambda: noise.UlpPerturbation(DAYS[0]), "max_ulps=.*: expected a whole number"),
    (lambda: noise.Gaussian(DAYS[0]), "scale=.*: expected a finite number"),
    (lambda: noise.digits(jnp.sum, PAIRS)(KEY, X), "spec=array.*a noise spec"),
    (lambda: noise.training(jnp.add, X, DAYS[0]), "batches=.*timedelta.*: expected a"),
    (
        lambda: noise.devices(jnp.sum, mesh={"d": 1}, in_specs=SERIES)(KEY, X),
        "in_specs holds 0  *1.0 1  *2.0: expected PartitionSpecs",
    ),
    *(
        (lambda tool=tool: tool(forgets)(KEY, X), r"the result is \(None, \[\]\): exp")
        for tool in (noise.digits, noise.tolerance)
    ),
    (lambda: noise.noise_reference(forgets, X), r"the result is \(None, \[\]\): expec"),
    (
        lambda: noise.explain(forgets, forgets(X), forgets(X))(KEY, X),
        r"the result is \(None, \[\]\): expected numbers",
    ),
    (
        lambda: noise.invariance(forgets)(X),
        r"the result is \(None, \[\]\): expected num",
    ),
    (lambda: noise.load_recording(9), "path=9: expected the path of a file"),
    (lambda: noise.record(jnp.sin)(X).save(None), "path=None: expected the path of"),
    (lambda: noise.invariance(jnp.sin, batch=Silent())(X), "batch=a Silent: expected"),
]


@pytest.mark.fault
@pytest.mark.parametrize(("call", "words"), CASES, ids=[words for _, words in CASES])
def test_a_wrong_argument_is_named(call, words):
    with pytest.raises(noise.NoiseError, match=words) as raised:
        call()
    assert "\n" not in str(raised.value)


def test_arrays_of_another_order_of_bytes_are_taken():
    """As files of other machines have them; they ended in a TypeError of JAX."""
    there = X.astype(X.dtype.newbyteorder())

    def fn(x):
        return x * 2

    assert noise.inject(fn, ULP)(KEY, there).dtype == np.float32
    assert noise.digits(fn, ULP, draws=2)(KEY, there).shape == X.shape
    report = noise.first_difference(fn, noise.record(fn)(there))(KEY, X)
    assert len(report) == 0
    digits = noise.digits(lambda x: {"y": x * 3, "there": there})(KEY, X)
    assert digits["there"].shape == X.shape
