import linecache

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.extend import core
from jax.interpreters import ad, mlir
from jax.scipy.sparse.linalg import cg, gmres

from prednet_jax import noise
from prednet_jax.noise import specs
from prednet_jax.noise.order.partials import Cut
from prednet_jax.noise.rules import registry

KEYS = jax.random.split(jax.random.key(1), 3)
RNG = np.random.default_rng(0)
SQUARE = RNG.standard_normal((12, 12)).astype(np.float32)
MATRIX = SQUARE @ SQUARE.T + 12 * np.eye(12, dtype=np.float32)
RIGHT = RNG.standard_normal(12).astype(np.float32)
ORDER = noise.ReductionOrder(granularity="element")
ULP = noise.UlpPerturbation()


@pytest.fixture(scope="module")
def total():
    """A first-order primitive of a user's: the sum of a vector."""
    primitive = core.Primitive("tests_total")
    primitive.def_impl(jnp.sum)
    primitive.def_abstract_eval(lambda x: jax.core.ShapedArray((), x.dtype))
    mlir.register_lowering(primitive, mlir.lower_fun(jnp.sum, multiple_results=False))
    ad.deflinear2(primitive, lambda ct, x: (jnp.full(x.aval.shape, ct),))

    def cut(spec, params, x):
        assert params == {}
        if x.shape[0] < spec.partials:
            return "too short"

        def split(x):
            pieces = jnp.array_split(x, spec.partials)
            return None, [jnp.sum(piece) for piece in pieces]

        return Cut(spec.partials, split)

    noise.register_rule(primitive, noise.FirstOrder(cut=cut))
    return primitive


@pytest.fixture(scope="module")
def repeat():
    """A higher-order primitive of a user's: a program, several times."""
    primitive = core.Primitive("tests_repeat")
    primitive.multiple_results = True

    primitive.def_abstract_eval(lambda *xs, body, times: list(xs))

    def rule(call, words, operands):
        def step(i, xs):
            return call.body(words.at_step(i), xs)

        return lax.fori_loop(0, call.params["times"], step, list(operands))

    noise.register_rule(primitive, noise.HigherOrder(rule))
    return primitive


def test_a_first_order_primitive_of_the_users(total):
    x = RNG.standard_normal(1000).astype(np.float32)
    report = noise.coverage(total.bind, ORDER)(x)
    assert [e.reason for e in report.perturbed] == ["8 pieces in random order, element"]
    assert noise.coverage(total.bind, ORDER)(x[:5]).untouched[0].reason == "too short"
    for spec in (ORDER, ULP):
        noisy = noise.inject(total.bind, spec)
        found = {float(noisy(key, x)) for key in jax.random.split(KEYS[0], 20)}
        assert len(found) > 1
        np.testing.assert_allclose(list(found), x.sum(), 1e-4)
    gradient = jax.grad(lambda x: noise.inject(total.bind, ORDER)(KEYS[0], x))(x)
    np.testing.assert_array_equal(gradient, np.ones(1000))


def test_a_higher_order_primitive_of_the_users(repeat):
    x = jnp.asarray(RIGHT)

    def run(times):
        def fn(x):
            body = jax.make_jaxpr(lambda x: [x * np.float32(0.3)])(x)
            return repeat.bind(x, body=body, times=times)[0]

        return fn

    (entry,) = noise.coverage(run(3), ULP)(x).perturbed
    assert entry.path == "0:tests_repeat/0:mul"
    once, twice = (noise.inject(run(n), ULP)(KEYS[0], x) for n in (1, 2))
    plain, again = (y * np.float32(0.3) for y in (x, once))
    assert (once != plain).any()
    # The second time has noise of its own: not that of the first, applied again.
    steps = np.asarray(twice).view(np.int32) - np.asarray(again).view(np.int32)
    first = np.asarray(once).view(np.int32) - np.asarray(plain).view(np.int32)
    assert (steps != first).any()


def test_registration_refuses_what_it_cannot_take(total):
    other = core.Primitive("tests_other")
    for primitive, rule, message in (
        (total, noise.FirstOrder(), r"tests_total.*has one already"),
        (core.Primitive("scan"), noise.FirstOrder(), "has one already"),
        ("scan", noise.FirstOrder(), r"expected a jax\.extend\.core\.Prim"),
        (other, lambda x: x, r"expected a noise\.FirstOrder"),
    ):
        with pytest.raises(noise.NoiseError, match=message):
            noise.register_rule(primitive, rule)
    assert "tests_other" not in registry.RULES


def test_parts_of_a_rule_of_another_type_are_named():
    """Registered, they would end in Python's error, or not be seen by `coverage`."""
    for kind, given in (
        (noise.FirstOrder, {"rounds": "no"}),
        (noise.FirstOrder, {"cut": 5}),
        (noise.FirstOrder, {"left_alone": None}),
        (noise.HigherOrder, {"run": 5}),
        (noise.HigherOrder, {"run": list, "programs": ()}),
        (noise.HigherOrder, {"run": list, "axes": None}),
        (noise.HigherOrder, {"run": list, "joins": 1}),
    ):
        with pytest.raises(noise.NoiseError, match=rf"{[*given][-1]}=.*: expected"):
            kind(**given)


def test_a_cut_that_returns_nothing_is_named():
    """The sum would be neither perturbed nor untouched for `coverage`."""
    primitive = core.Primitive("tests_no_cut")
    primitive.def_abstract_eval(lambda x: jax.core.ShapedArray((), x.dtype))
    noise.register_rule(primitive, noise.FirstOrder(cut=lambda *shapes: None))
    with pytest.raises(noise.NoiseError, match="the cut of tests_no_cut=None: expect"):
        noise.coverage(primitive.bind, ORDER)(RIGHT)


RESULTS = {
    "an array": lambda x: x * 2,
    "no array": lambda x: ["two"],
    "too many": lambda x: [x, x],
    "a narrow type": lambda x: [x.astype(jnp.float16)],
    "a wide type": lambda x: [x.astype(jnp.float64)],
    "a number": lambda x: [jnp.float32(1)],
    "transposed": lambda x: [x.T],
}


@pytest.mark.parametrize("case", RESULTS)
def test_a_rule_whose_results_are_not_those_of_the_primitive_is_named(case):
    """They were used: a program that broadcasts took a transposed array for its own."""
    primitive = core.Primitive(f"tests_results_{case}")
    primitive.def_abstract_eval(lambda x: jax.core.ShapedArray(x.shape, x.dtype))
    given = noise.HigherOrder(lambda call, words, xs: RESULTS[case](*xs))
    noise.register_rule(primitive, given)
    noisy = noise.inject(lambda x: primitive.bind(x).sum(), ULP)
    named = rf"{primitive.name} \(run=<function .*: expected \[float32\[1,12\]\]"
    named = pytest.raises(noise.NoiseError, match=named)
    with jax.enable_x64(case == "a wide type"), named:
        noisy(KEYS[0], RIGHT[None])


@pytest.mark.parametrize("pieces", [1, 2, 4])
def test_a_cut_with_another_number_of_pieces_is_named(pieces):
    """Two pieces in place of three gave the sum 0."""
    primitive = core.Primitive(f"tests_{pieces}_pieces")
    primitive.def_abstract_eval(lambda x: jax.core.ShapedArray((), x.dtype))

    def split(x):
        return None, [jnp.sum(x)] * pieces

    rule = noise.FirstOrder(cut=lambda spec, params, x: Cut(3, split))
    noise.register_rule(primitive, rule)
    with pytest.raises(noise.NoiseError, match=r"\(\)\]: expected 3 partial sums"):
        noise.inject(primitive.bind, ORDER)(KEYS[0], RIGHT)


SOLVERS = {
    "solve": jnp.linalg.solve,
    "cg": lambda a, b: cg(a, b, maxiter=30)[0],
    "gmres": lambda a, b: gmres(a, b, restart=12)[0],
    "custom": lambda a, b: lax.custom_linear_solve(
        lambda x: a @ x,
        b,
        solve=lambda _, b: jnp.linalg.inv(a) @ b,
        transpose_solve=lambda _, b: jnp.linalg.inv(a).T @ b,
    ),
}


@pytest.mark.parametrize("name", SOLVERS)
def test_linear_solvers_run_under_noise(name):
    solver = SOLVERS[name]
    exact = np.linalg.solve(MATRIX.astype(np.float64), RIGHT)
    report = noise.coverage(solver, ORDER + ULP)(MATRIX, RIGHT)
    assert any("custom_linear_solve[solve]/" in e.path for e in report.perturbed)
    # The direct solver has no sums, and the loops of gmres take long to compile.
    for spec in (ULP,) if name in ("solve", "gmres") else (ORDER, ULP):
        noisy = noise.inject(solver, spec)
        found = [noisy(key, MATRIX, RIGHT) for key in KEYS]
        assert (found[0] != found[1]).any()
        for x in found:
            np.testing.assert_allclose(x, exact, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("name", ["solve", "cg"])
def test_linear_solvers_have_derivatives_under_noise(name):
    def loss(a, b):
        return jnp.sum(SOLVERS[name](a, b) ** 2)

    expected = jax.grad(loss, (0, 1))(MATRIX, RIGHT)
    noisy = noise.inject(loss, ULP)
    outside = jax.grad(lambda a, b: noisy(KEYS[0], a, b), (0, 1))(MATRIX, RIGHT)
    inside = noise.inject(jax.grad(loss, (0, 1)), ULP)(KEYS[0], MATRIX, RIGHT)
    for found in (outside, inside):
        for value, wanted in zip(found, expected, strict=True):
            assert (value != wanted).any()
            np.testing.assert_allclose(value, wanted, rtol=1e-2, atol=1e-5)


def test_the_derivative_of_a_solver_is_taken_at_the_noisy_solution():
    """With dx = A^-1 (db - dA x), x perturbed and nothing else."""
    spec = noise.Gaussian(1e-2)
    noisy = noise.inject(SOLVERS["custom"], spec)
    change = RNG.standard_normal((12, 12)).astype(np.float32)

    def of_matrix(a):
        return noisy(KEYS[0], a, RIGHT)

    x, dx = jax.jvp(of_matrix, (MATRIX,), (change,))
    np.testing.assert_allclose(dx, np.linalg.solve(MATRIX, -change @ x), 1e-3, 1e-5)
    assert np.abs(x - np.linalg.solve(MATRIX, RIGHT)).max() > 1e-4


MODEL = """
import jax
import jax.numpy as jnp
from jax import lax

def layer(x, w):
    x = jax.nn.softplus(x @ w)
    return jnp.mean(x)

def loss(x, w):
    def body(carry, row):
        return carry + layer(row, w), None
    return lax.scan(body, 0.0, x)[0]
"""


def test_entries_name_the_line_of_the_users_file(tmp_path):
    x = np.ones((3, 16), np.float32)
    # JAX keeps its own functions traced; the first caller must not be named instead.
    jax.nn.softplus(jnp.ones(4))
    jnp.mean(jax.nn.softplus(jnp.ones(4)))
    path, names = tmp_path / "model.py", {}
    path.write_text(MODEL)
    linecache.checkcache(str(path))
    exec(compile(MODEL, str(path), "exec"), names)
    loss = names["loss"]
    for fn in (loss, jax.grad(loss, argnums=1), jax.jit(loss)):
        report = noise.coverage(fn, ORDER + ULP)(x, SQUARE[:4].reshape(16, 3))
        assert {e.source.split(":")[0] for e in report.perturbed} == {"model.py"}
        products = {e.source for e in report.perturbed if e.primitive == "dot_general"}
        assert products == {"model.py:7 in layer"}
        assert "model.py:7 in layer" in str(report)
    sums = [e for e in report.perturbed if e.primitive == "reduce_sum"]
    assert {e.source for e in sums} == {"model.py:8 in layer"}


def test_a_product_with_a_converted_sign_or_mask_is_exact():
    """Diffrax multiplies its times by the direction: the last one was never reached."""
    x = jax.random.normal(jax.random.key(1), (40,))

    def product(x, n):
        return x * n.astype(x.dtype)

    noisy = noise.inject(product, noise.UlpPerturbation())

    def moved(n):
        n = jnp.asarray(n)
        return int(np.sum(np.asarray(noisy(jax.random.key(0), x, n) != product(x, n))))

    mask = jnp.arange(40) % 2 == 0
    assert [moved(n) for n in (1, -1, 0, mask)] == [0, 0, 0, 0]
    assert moved(3) > 10
    assert moved(1.0) > 10
    noisy = noise.inject(product, specs.default())
    assert [moved(n) for n in (1.0, 4, -0.5, mask)] == [0, 0, 0, 0]
    # Noise that rounds the factor, or to fewer bits, or that is no rounding.
    for spec in (
        noise.Gaussian(1e-3),
        noise.StochasticRounding(11),
        noise.MonteCarlo("mca"),
    ):
        other = noise.inject(product, spec)(jax.random.key(0), x, jnp.asarray(1))
        assert np.count_nonzero(other != x) > 5, spec
