"""The transform among JAX's own: loops, branches, calls, derivatives, recomputation.

Every construct holds one sum with an order and stands in one program with the others,
compiled once for each way of combining noise and derivative.
"""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.custom_derivatives import linear_call
from jax.extend import core, linear_util

from prednet_jax import noise

ORDER = noise.ReductionOrder(partials=3, granularity="element")
KEYS = jax.random.split(jax.random.key(5), 6)
N = 30
W = jnp.asarray(np.random.default_rng(0).standard_normal((N, N)) / 5, jnp.float32)
X = jnp.asarray(np.random.default_rng(1).standard_normal(N), jnp.float32)


def layer(x):
    return jnp.tanh(W @ x)


@jax.custom_jvp
def wrong_jvp(x):
    return layer(x)


@wrong_jvp.defjvp
def _wrong_jvp_rule(primals, tangents):
    """Three times the tangent of the identity: a rule that nothing else would give."""
    return wrong_jvp(*primals), 3 * tangents[0]


@jax.custom_vjp
def wrong_vjp(x):
    return layer(x)


wrong_vjp.defvjp(lambda x: (wrong_vjp(x), x), lambda x, g: (3 * g * x,))


def closed_call(x):
    closed = jax.make_jaxpr(layer)(x)
    function, about = core.jaxpr_as_fun(closed), closed.jaxpr.debug_info
    call = linear_util.wrap_init(function, debug_info=about)
    bind = core.primitives.closed_call_p.bind
    return bind(x, subfuns=(call,), call_jaxpr=closed)[0]


def until_three(x):
    step = lambda state: (state[0] + 1, layer(state[1]))  # noqa: E731
    return lax.while_loop(lambda state: state[0] < 3, step, (0, x))[1]


def nested(x):
    def step(x, i):
        return lax.cond(i % 2 == 0, jax.checkpoint(layer), wrong_jvp, x), None

    return lax.scan(step, x, jnp.arange(3))[0]


DIFFERENTIABLE = {
    "jit": jax.jit(layer),
    "scan": lambda x: lax.scan(lambda x, _: (layer(x), layer(x)), x, None, length=3)[1],
    "scan reverse": lambda x: lax.scan(
        lambda c, w: (c, jnp.tanh(w @ x)),
        0,
        W.reshape(3, -1, N),
        reverse=True,
        unroll=2,
    )[1],
    "fori": lambda x: lax.fori_loop(0, 3, lambda _, x: layer(x), x),
    "cond": lambda x: lax.cond(x[0] > 0, layer, jnp.sin, jnp.abs(x)),
    "switch": lambda x: lax.switch(jnp.argmax(x[:1]) + 1, [jnp.sin, layer, jnp.cos], x),
    "remat": jax.checkpoint(layer),
    "custom_jvp": wrong_jvp,
    "custom_vjp": wrong_vjp,
    "vmap": lambda x: jax.vmap(lambda w: jnp.tanh(w @ x))(W),
    "nested": nested,
}
FORWARD = {**DIFFERENTIABLE, "while": until_three, "closed_call": closed_call}


def values(x):
    return {name: fn(x) for name, fn in FORWARD.items()}


def gradients(x, functions=DIFFERENTIABLE):
    return {
        name: jax.grad(lambda x, fn=fn: jnp.sum(jnp.sin(fn(x))))(x)
        for name, fn in functions.items()
    }


def gradients_after(key, x):
    """The derivative of the noisy functions."""
    noisy = {name: noise.inject(fn, ORDER) for name, fn in DIFFERENTIABLE.items()}
    of_key = {n: lambda x, fn=fn: fn(key, x) for n, fn in noisy.items()}
    return gradients(x, of_key)


WAYS = {
    "values": (noise.inject(values, ORDER), values),
    "inject(grad)": (noise.inject(gradients, ORDER), gradients),
    "grad(inject)": (gradients_after, gradients),
}


@pytest.mark.parametrize("way", WAYS)
def test_noise_enters_every_construct_and_keeps_its_rule(way):
    noisy, plain = (jax.jit(fn) for fn in WAYS[way])
    found = jax.device_get([noisy(key, X) for key in KEYS])
    again = jax.device_get(noisy(KEYS[0], X))
    for name, expected in jax.device_get(plain(X)).items():
        results = [one[name] for one in found]
        np.testing.assert_array_equal(results[0], again[name])
        # The wrong rules of custom_jvp and custom_vjp are kept: 1e-4 is far above the
        # errors of chains of three layers, far below a factor of three.
        for result in results:
            np.testing.assert_allclose(result, expected, 1e-4, 1e-4, err_msg=name)
        different = len({result.tobytes() for result in results})
        # The derivative by these rules sees the perturbed value in sin'.
        assert different > 1, f"no noise in {name}, {way}"


def test_nothing_chosen_is_bitwise_the_plain_function():
    """Every construct rebuilt by the interpreter, without noise in any equation."""
    quiet = jax.jit(noise.inject(values, ORDER, only=()))
    expected = jax.jit(values)(X)
    jax.tree.map(np.testing.assert_array_equal, quiet(KEYS[0], X), dict(expected))


def half_square(b, x):
    """Its derivative by b is the sum itself, as it was when it was squared."""
    return 0.5 * (jnp.sum(x) + b) ** 2


def disagreements(step):
    """For how many keys the sum behind the value is not the one of the gradient."""
    x = W.ravel()
    found = [step(key, np.float32(1), x) for key in jax.random.split(KEYS[0], 16)]
    return sum(bool(value != 0.5 * slope**2) for value, slope in found)


def test_recomputation_repeats_the_noise_or_draws_afresh():
    kept = jax.value_and_grad(half_square)
    again = jax.value_and_grad(jax.checkpoint(half_square))
    # Eight pieces: three of this sum give the same number in any order.
    order = noise.ReductionOrder(shortest=1)
    noisy = noise.inject(jax.checkpoint(half_square), order)

    def after(key, b, x):
        return jax.value_and_grad(lambda b: noisy(key, b, x))(b)

    assert disagreements(jax.jit(noise.inject(kept, order))) == 0
    assert disagreements(jax.jit(after)) == 0
    # An execution of its own, with its own atomics.
    assert disagreements(jax.jit(noise.inject(again, order))) > 0


def test_an_unknown_higher_order_primitive_names_itself():
    def unknown(x):
        return linear_call(lambda r, x: x.sum(), lambda r, t: t + 0 * X, (), x)

    def inside(x):
        return lax.scan(lambda c, _: (c + unknown(x), None), 0.0, None, length=2)[0]

    for spec in (ORDER, noise.UlpPerturbation()):
        refused = noise.UnsupportedPrimitiveError
        with pytest.raises(refused, match=r"'linear_.*at '.*scan"):
            noise.inject(inside, spec)(KEYS[0], X)
    # Without noise there is nothing to enter.
    assert noise.inject(unknown, noise.Identity())(KEYS[0], X) == unknown(X)


SPECS = [
    noise.ReductionOrder(),
    noise.StochasticRounding(),
    noise.MonteCarlo("mca"),
    noise.UlpPerturbation(),
    noise.Gaussian(1e-3),
    noise.ReducedPrecision("bf16"),
]


@jax.jit
def compared(x, i):
    best = jnp.argmax(x, axis=1)
    picked = jnp.take_along_axis(x, best[:, None], axis=1)
    floats = jnp.max(x), jnp.min(x, 0), picked, jnp.sort(x, 0), -x, jnp.abs(x)
    more = jnp.maximum(x, 0), x > 0, x.reshape(-1)[::-1], best, jnp.sum(i), i @ i.T
    return *floats, *more, jnp.cumsum(i, 0), jnp.zeros(3, int).at[i[0]].add(1)


@pytest.mark.parametrize("spec", SPECS, ids=lambda spec: type(spec).__name__)
def test_comparisons_and_integers_are_untouched(spec):
    i = jnp.arange(9, dtype=jnp.int32).reshape(3, 3) % 3
    arguments = (W[:6, :4], i)
    found = noise.inject(compared, spec)(KEYS[0], *arguments)
    for one, expected in zip(found, compared(*arguments), strict=True):
        np.testing.assert_array_equal(one, expected)


# The RMS of relative Gaussian noise is a sum of XLA's, whose order vmap may change.
ABSOLUTE = noise.Gaussian(1e-3, relative=False)


@pytest.mark.parametrize(
    "spec", [*SPECS[1:4], ABSOLUTE], ids=lambda spec: type(spec).__name__
)
def test_elementwise_noise_is_decided_by_the_key(spec):
    """Jitted, called, mapped over keys; anew at each step of a loop."""

    def fn(x):
        return lax.scan(lambda c, _: (c, jnp.tanh(x) * x), 0, None, length=3)[1]

    run = noise.inject(fn, spec)
    x = X[:24]
    mapped = np.asarray(jax.jit(jax.vmap(run, (0, None)))(KEYS[:3], x))
    np.testing.assert_array_equal(jax.jit(run)(KEYS[0], x), mapped[0])
    np.testing.assert_array_equal(run(KEYS[0], x), mapped[0])
    assert np.any(mapped[0] != mapped[1])
    assert np.any(mapped[0, 0] != mapped[0, 1])


def test_bad_keys_are_refused():
    for tool, key, message in (
        (noise.inject, 7, "key of type int: expected one PRNG"),
        # The key forgotten: its place is taken by the first argument.
        (noise.inject, X, "the arguments of the function come after"),
        (noise.digits, {"x": X}, "key of type dict"),
        (noise.inject, KEYS, r"uint32 \[n\]"),
        (noise.inject, jnp.zeros(2), r"float32 and shape \(2,\)"),
    ):
        with pytest.raises(ValueError, match=message):
            tool(layer, ORDER)(key, X)


@dataclasses.dataclass(frozen=True)
class Options:
    scale: float


@pytest.mark.parametrize("spec", [ORDER, noise.Identity()], ids=["order", "none"])
def test_arguments_that_are_no_arrays_reach_the_function(spec):
    def scaled(options, x, key=None, *, sign=1.0):
        assert isinstance(sign, float)
        return jnp.copysign(layer(x).sum() * options.scale, sign) + float(key is None)

    run = noise.inject(scaled, spec)
    one = run(KEYS[0], Options(2.0), X, key=KEYS[1])
    assert abs(run(KEYS[0], Options(4.0), X, key=KEYS[1])) == 2 * abs(one)
    # A keyword of the function's own, and zeros that are equal and not the same.
    np.testing.assert_allclose(run(KEYS[0], Options(2.0), X), one + 1, 1e-6)
    signs = [run(KEYS[0], Options(2.0), X, KEYS[1], sign=s) for s in (0.0, -0.0)]
    assert signs[0] == -signs[1] > 0


def test_equal_arguments_compile_once_and_others_are_refused():
    """To compile anew at each call would take seconds, in silence."""
    traced = []

    def scaled(options, x):
        traced.append(options)
        return x * options.scale

    class Unhashable:
        __hash__ = None

    run = noise.inject(scaled, noise.UlpPerturbation())
    for scale in (2.0, 2.0, 3.0):
        run(KEYS[0], Options(scale), X)
    assert traced == [Options(2.0), Options(3.0)]
    with pytest.raises(
        noise.NoiseError, match=r"Unhashable.*expected arrays, or an object"
    ):
        run(KEYS[0], Unhashable(), X)


@pytest.mark.parametrize("spec", SPECS, ids=lambda spec: type(spec).__name__)
def test_results_are_as_weakly_typed_as_the_functions(spec):
    run = noise.inject(lambda x: (jnp.sin(x), jnp.sum(X) + x), spec)
    weak, strong = run(KEYS[0], jnp.asarray(2.0))
    assert jax.typeof(weak).weak_type
    assert not jax.typeof(strong).weak_type


BOUNDED = noise.MonteCarlo("pb", virtual_precision=20)


@pytest.mark.parametrize("spec", [*SPECS[1:5], BOUNDED], ids=noise.format)
def test_both_parts_of_complex_results_are_perturbed(spec):
    z = lax.complex(X, X[::-1])
    found = noise.inject(lambda z: z * z + jnp.exp(z), spec)(KEYS[0], z)
    clean = z * z + jnp.exp(z)
    for part in (np.real, np.imag):
        assert np.any(part(found) != part(clean))
    np.testing.assert_allclose(found, clean, 1e-2, 1e-2)
    # The parts of numbers on the diagonal would move alike if they shared their draws.
    y = lax.complex(X, X)
    moved = np.asarray(noise.inject(lambda y: y + y, spec)(KEYS[0], y))
    assert np.any(moved != 2 * np.asarray(y))
    assert np.any(moved.real != moved.imag)


def test_what_is_asked_for_in_vain_is_said():
    for options, message in (
        ({"only": ["0:dot_general", "0:dot_generall"]}, "at '0:dot_generall'"),
        # A name is no path, and a path no name.
        ({"only": ["dot_general"]}, "nothing to perturb at 'dot_general'"),
        ({"primitives": ("0:dot_general",)}, "nothing to perturb at '0:dot_general'"),
        ({"primitives": ("tanh", "bogus")}, "nothing to perturb at 'bogus'"),
        ({"only": "0:dot_general"}, "only='0:dot_general': expected a collection"),
    ):
        spec = noise.UlpPerturbation(primitives=options.pop("primitives", None))
        with pytest.raises(ValueError, match=message):
            noise.inject(layer, spec, **options)(KEYS[0], X)
        # A primitive that a function happens not to hold is no slip.
        quiet = noise.inject(layer, noise.UlpPerturbation(primitives=("erf",)))
        np.testing.assert_array_equal(quiet(KEYS[0], X), jax.jit(layer)(X))


def test_noise_enters_a_function_that_enables_wide_types_inside():
    """An equation was evaluated in the types of the caller, which JAX refused."""

    def fn(x):  # [30] -> [30]
        with jax.enable_x64(True):
            wide = x.astype(jnp.float64)
            matrix = W.astype(jnp.float64)
            wide = lax.scan(lambda c, _: (jnp.sin(matrix @ c), c), wide, length=2)[0]
            return wide, wide.astype(jnp.float32)

    noisy, clean = noise.inject(fn, noise.UlpPerturbation())(KEYS[0], X), fn(X)
    assert noisy[0].dtype == np.float64
    assert 0 < np.abs(noisy[0] - clean[0]).max() < 1e-15
    assert noise.explain(fn, clean, noisy)(KEYS[1], X).rung[0] in ("order", "rounding")
    assert not noise.first_difference(fn, noise.record(fn)(X))(KEYS[1], X)


def test_nothing_of_a_trace_outlives_it():
    """Derivative rules held its values, and JAX's check of leaks did not return."""

    def fn(x):
        steps = lax.scan(lambda c, row: (c + jnp.sum(row), c), 0.0, x)[0]
        return jnp.sum(jax.nn.relu(x @ x.T)) + steps + jax.checkpoint(jnp.sum)(x)

    noisy = noise.inject(jax.grad(fn), noise.parse("reduction_order+ulp"))
    with jax.checking_leaks():
        noisy(jax.random.key(0), jnp.ones((8, 16)))


ROWS = jnp.asarray(np.random.default_rng(2).standard_normal((4, 8)), jnp.float32)
BY_ROW = (jax.sharding.PartitionSpec("x"),)


def recorded_again(fn):
    return noise.first_difference(fn, noise.record(fn)(ROWS), draws=2)(KEYS[0], ROWS)


@pytest.mark.parametrize(
    "ask",
    [
        lambda fn: noise.decisions(fn, draws=1)(KEYS[0], ROWS),
        lambda fn: noise.first_nan(fn)(ROWS),
        lambda fn: noise.cancellations(fn, key=KEYS[0], draws=1)(ROWS),
        recorded_again,
        lambda fn: noise.invariance(fn)(ROWS),
        lambda fn: noise.devices(fn, mesh={"x": 2}, in_specs=BY_ROW)(KEYS[0], ROWS),
    ],
    ids=["decisions", "first_nan", "cancellations", "difference", "rows", "devices"],
)
def test_tools_answer_while_jax_looks_for_leaks(ask):
    """They keep values of their own traces, and JAX's search did not return."""

    def fn(x):
        powers = lax.scan(lambda c, _: (c * x, jnp.sum(c)), x, None, length=3)[0]
        return jnp.sum(jnp.maximum(powers, 0), axis=1)

    with jax.checking_leaks():
        ask(fn)
