"""Values that are not arrays, mutable objects and donated arguments under `inject`."""

import functools

import diffrax
import equinox as eqx
import jax
import jax.numpy as jnp
import lineax
import numpy as np
import optax
import optimistix as optx
import pytest
from flax import linen, nnx

from prednet_jax import noise

KEY = jax.random.key(0)
ORDER = noise.ReductionOrder(granularity="element")
X = jax.random.normal(jax.random.key(1), (16, 40))
Y = jnp.sum(X, axis=1, keepdims=True)


@pytest.fixture(autouse=True)
def _promotion():
    with jax.numpy_dtype_promotion("standard"):
        yield


class Model(nnx.Module):
    """Has state that a step changes beside its parameters: statistics, dropout."""

    def __init__(self, rngs):
        self.inner = nnx.Linear(40, 8, rngs=rngs)
        self.statistics = nnx.BatchNorm(8, rngs=rngs)
        self.dropout = nnx.Dropout(0.1, rngs=rngs)
        self.outer = nnx.Linear(8, 1, rngs=rngs)

    def __call__(self, x):
        return self.outer(self.dropout(self.statistics(jnp.tanh(self.inner(x)))))


def made():
    model = Model(nnx.Rngs(0))
    return model, nnx.Optimizer(model, optax.adam(1e-2), wrt=nnx.Param)


def step(model, optimizer, x, y):
    def loss(model):
        return jnp.mean(jnp.square(model(x) - y))

    value, gradient = nnx.value_and_grad(loss)(model)
    optimizer.update(model, gradient)
    return value


def arrays(*objects):
    return [np.asarray(jax.device_get(_data(x))) for x in jax.tree.leaves(objects)]


def _data(x):
    return jax.random.key_data(x) if jnp.issubdtype(x.dtype, jax.dtypes.prng_key) else x


def after(train, updates=2):
    model, optimizer = made()
    for i in range(updates):
        train(i, model, optimizer, X, Y)
    return arrays(model, optimizer)


@pytest.mark.parametrize("wrapped", [step, nnx.jit(step)], ids=["plain", "nnx.jit"])
def test_a_step_that_mutates_nnx_objects_trains(wrapped):
    def train(spec):
        noisy = noise.inject(wrapped, spec)
        return after(lambda i, *args: noisy(jax.random.key(i), *args))

    expected = after(lambda i, *args: wrapped(*args))
    identical = train(noise.Identity())
    # Also under noise on results: some of those of the compiled step are keys.
    noisy = train(ORDER + noise.UlpPerturbation())
    for a, b in zip(expected, identical, strict=True):
        np.testing.assert_array_equal(a, b)
    assert any(np.any(a != b) for a, b in zip(expected, noisy, strict=True))
    for a, b in zip(expected, noisy, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-3, atol=1e-4)
    started = arrays(*made())
    moved = [np.max(np.abs(a - b)) for a, b in zip(started, noisy, strict=True)]
    assert max(moved) > 1e-3


@pytest.mark.parametrize("wrapped", [step, nnx.jit(step)], ids=["plain", "nnx.jit"])
def test_a_module_that_a_step_closes_over_cannot_be_trained(wrapped):
    model, optimizer = made()
    noisy = noise.inject(lambda x, y: wrapped(model, optimizer, x, y), ORDER)
    with pytest.raises(noise.NoiseError, match="mutates a Flax NNX object") as caught:
        noisy(KEY, X, Y)
    assert "nnx" in str(caught.value)


def test_a_change_of_structure_is_refused():
    def call(module, x):
        module.calls = 1
        return jnp.sum(x)

    model = nnx.Linear(4, 4, rngs=nnx.Rngs(0))
    with pytest.raises(noise.NoiseError, match="what a Flax NNX object consists of"):
        noise.inject(call, ORDER)(KEY, model, X)


def test_nnx_objects_come_back_as_themselves_or_new():
    def call(model, x):
        model.bias[...] = model.bias[...] + 1.0
        return model, nnx.Param(jnp.sum(model(x))), "done"

    model = nnx.Linear(40, 8, rngs=nnx.Rngs(0))
    same, total, text = noise.inject(call, ORDER)(KEY, model, X)
    assert same is model
    assert text == "done"
    np.testing.assert_array_equal(model.bias[...], np.ones(8))
    np.testing.assert_allclose(total[...], jnp.sum(model(X)), rtol=1e-4)


def test_the_tools_count_an_argument_that_comes_back_as_a_result():
    """`digits` and `tolerance` ended in a traceback: no run under noise had it."""

    class Counter(nnx.Module):
        def __init__(self):
            self.total = nnx.BatchStat(jnp.zeros(4))

    def add(counter, x):
        counter.total[...] += jnp.sum(jnp.sin(x), 0)
        return counter, jnp.sum(x)

    def add_to_state(state, x):
        return nnx.split(add(nnx.merge(nnx.graphdef(Counter()), state), x)[0])[1]

    x = jax.random.normal(KEY, (64, 4))
    state = nnx.split(Counter())[1]
    for fn, given, count in ((add, Counter(), 2), (add_to_state, state, 1)):
        rows = noise.digits_table(fn)(KEY, given, x).rows
        assert len(rows) == count
        assert rows[0].shape == (4,)
        assert 5 < rows[0].worst <= 7.3
        tolerances = jax.tree.leaves(noise.tolerance(fn)(KEY, given, x))
        assert 0 < tolerances[0].atol < 1e-4
        assert not jax.tree.leaves(given)[0].any()


def test_shared_variables_stay_shared():
    def call(a, b):
        a.kernel[...] = a.kernel[...] * 2.0
        return jnp.sum(b.kernel[...])

    a, b = (nnx.Linear(4, 4, rngs=nnx.Rngs(i)) for i in range(2))
    b.kernel = a.kernel
    before = float(jnp.sum(a.kernel[...]))
    found = noise.inject(call, ORDER)(KEY, a, b)
    assert float(found) == pytest.approx(2 * before, rel=1e-5)
    assert b.kernel is a.kernel


def test_what_is_no_array_comes_back_as_it_is():
    rest = {"f": jnp.tanh, "n": 3, "none": None, "h": np.float32(0.5)}

    def fn(x, name):
        return {"y": x @ x.T, "s": name, **rest}

    found, again = (noise.inject(fn, ORDER)(KEY, X, "relu") for _ in range(2))
    np.testing.assert_array_equal(found.pop("y"), again["y"])
    assert found == {"s": "relu", **rest}


def test_a_donated_argument_is_donated():
    def fn(x, y):
        return x + jnp.sum(x @ y.T)

    donating = jax.jit(fn, donate_argnums=0)
    for called in (donating, lambda x, y: donating(x, y) * 1.0):
        noisy = noise.inject(called, ORDER)
        for _ in range(2):
            x = jnp.array(X)
            found = noisy(KEY, x, X)
            assert x.is_deleted()
            assert not X.is_deleted()
            np.testing.assert_allclose(found, fn(X, X), rtol=1e-4)
    found = noise.inject(donating, ORDER)(KEY, jnp.array(X), X)
    expected = noise.inject(jax.jit(fn), ORDER)(KEY, X, X)
    np.testing.assert_array_equal(found, expected)


SHORT = noise.ReductionOrder(partials=3, granularity="element", shortest=1)
ROWS = jax.random.normal(jax.random.key(1), (8, 16))
SUMS = jnp.sum(jnp.sin(ROWS), axis=1, keepdims=True)


def square(prediction, y=SUMS):
    return jnp.mean(jnp.square(prediction - y))


def linen_step():
    """A training step with accumulation over two small batches (optax.MultiSteps)."""

    class Network(linen.Module):
        @linen.compact
        def __call__(self, x):
            x = linen.LayerNorm()(linen.relu(linen.Dense(12)(x)))
            return linen.Dense(1)(x)

    network = Network()
    params = network.init(KEY, ROWS)
    optimizer = optax.MultiSteps(optax.adamw(1e-2), every_k_schedule=2)

    @jax.jit
    def step(params, state, x, y):
        def micro(carry, batch):
            params, state = carry
            x, y = batch
            gradient = jax.grad(lambda p: square(network.apply(p, x), y))(params)
            updates, state = optimizer.update(gradient, state, params)
            return (optax.apply_updates(params, updates), state), None

        batches = (x.reshape(2, 4, 16), y.reshape(2, 4, 1))
        return jax.lax.scan(micro, (params, state), batches)[0][0]

    return step, (params, optimizer.init(params), ROWS, SUMS)


def equinox_step():
    """A step that returns its model: activations are no arrays, and come back."""
    model = eqx.nn.MLP(16, 1, 12, 1, key=KEY)

    @eqx.filter_jit
    def step(model, x, y):
        gradient = eqx.filter_grad(lambda m: square(jax.vmap(m)(x), y))(model)
        return eqx.apply_updates(model, jax.tree.map(lambda g: -0.1 * g, gradient))

    return step, (model, ROWS, SUMS)


def diffrax_solution():
    @jax.jit
    def solve(w, start):
        term = diffrax.ODETerm(lambda t, y, w: jnp.tanh(w @ y))
        times = (0.0, 1.0, 0.25)
        return diffrax.diffeqsolve(
            term, diffrax.Heun(), *times, start, w, max_steps=8
        ).ys

    return solve, (jax.random.normal(KEY, (16, 16)) / 4, ROWS[0])


PROGRAMS = [linen_step, equinox_step, diffrax_solution]


def numbers(tree):
    return [np.asarray(x, np.float64) for x in jax.tree.leaves(tree) if eqx.is_array(x)]


@pytest.mark.parametrize("make", PROGRAMS, ids=lambda make: make.__name__)
def test_program(make):
    fn, args = make()

    def copies():
        """New arrays for each call, which may donate them."""
        return jax.tree.map(lambda x: jnp.array(x) if eqx.is_array(x) else x, args)

    plain = fn(*copies())
    same = noise.inject(fn, noise.Identity())(KEY, *copies())
    noisy = noise.inject(fn, SHORT)(KEY, *copies())
    assert jax.tree.structure(noisy) == jax.tree.structure(plain)
    for a, b in zip(numbers(plain), numbers(same), strict=True):
        np.testing.assert_array_equal(a, b)
    others = [x for x in jax.tree.leaves(plain) if not eqx.is_array(x)]
    assert [x for x in jax.tree.leaves(noisy) if not eqx.is_array(x)] == others
    # Of all leaves together: some gradients are zero but for rounding.
    a, b = (np.concatenate([x.ravel() for x in numbers(t)]) for t in (plain, noisy))
    assert 0 < np.linalg.norm(a - b) <= 1e-3 * np.linalg.norm(a)
    assert noise.coverage(fn, SHORT)(*args).perturbed


def test_noise_enters_the_linear_solver_of_a_newton_method():
    """It is a primitive of Lineax, inside a while loop of Optimistix."""

    def root(a):
        solver = optx.Newton(rtol=1e-4, atol=1e-4)
        start = 2 * jnp.ones_like(a)
        return optx.root_find(lambda y, a: y**2 - a, solver, start, args=a).value

    a = jnp.linspace(1.0, 3.0, 3)
    noisy = noise.inject(root, noise.UlpPerturbation())(jax.random.key(0), a)
    np.testing.assert_allclose(noisy, jnp.sqrt(a), rtol=1e-3)


def test_vmap_of_noise_in_a_linear_solver():
    """Lineax marks the results of its solver, and the mark refused to be mapped."""
    a = jax.random.normal(jax.random.key(0), (3, 3)) + 4 * jnp.eye(3)
    b = jnp.arange(1.0, 4.0)

    def solve(a, b):
        return lineax.linear_solve(lineax.MatrixLinearOperator(a), b).value

    noisy = noise.inject(solve, noise.UlpPerturbation())
    many = jax.vmap(noisy, (0, None, None))(
        jax.random.split(jax.random.key(0), 4), a, b
    )
    np.testing.assert_allclose(many, np.tile(solve(a, b), (4, 1)), rtol=1e-3)
    assert len(np.unique(np.asarray(many), axis=0)) > 1
    assert noise.cancellations(solve)(a, b).error > 0
    mapped = noise.coverage(jax.vmap(solve, (0, None)), noise.UlpPerturbation())
    assert any("triangular" in e.path for e in mapped(jnp.stack([a, a]), b).perturbed)


def test_a_bound_module_may_be_an_argument():
    module = linen.Dense(3)
    bound = module.bind(module.init(KEY, X))
    assert (noise.digits(lambda module, x: module(x))(KEY, bound, X) > 4).all()


@pytest.mark.parametrize(
    "ask",
    [
        lambda f, *given: noise.digits(f)(KEY, *given),
        lambda f, *given: noise.tolerance(f)(KEY, *given),
        lambda f, *given: noise.record(f)(*given),
        lambda f, *given: noise.first_nan(f)(*given),
    ],
)
def test_a_mutable_array_of_the_caller_is_refused(ask):
    """Each run added to it: `digits` were .6, where 7 are right."""

    def counted(ref, x):
        ref[...] += jnp.sin(x)
        return jnp.sum(ref[...])

    ref = jax.new_ref(jnp.ones(3))
    with pytest.raises(noise.NoiseError, match=r"a mutable array \(jax.Ref\)"):
        ask(counted, ref, jnp.arange(3.0))
    with pytest.raises(noise.NoiseError, match="makes a mutable one itself"):
        ask(functools.partial(counted, ref), jnp.arange(3.0))
    np.testing.assert_array_equal(ref[...], np.ones(3))
