import jax
import jax.numpy as jnp
import numpy as np
import pytest

from prednet_jax import noise
from prednet_jax.noise import Identity, ReductionOrder, UlpPerturbation, variability
from prednet_jax.noise.questions.localize import localize, minimise
from prednet_jax.noise.variability import l2_distance
from tests.accuracy import planted

KEY = jax.random.key(2)


def test_ddmin_finds_the_set_that_was_hidden():
    for hidden in ({5}, {3, 17}, {0, 8, 9, 31}, set(range(32))):
        tested = []

        def explains(items, hidden=hidden, tested=tested):
            tested.append(items)
            return hidden <= set(items)

        assert set(minimise(range(32), explains)) == hidden
        if len(hidden) == 1:
            # Bisection: two tests at each of five levels at most.
            assert len(tested) <= 10


def chain(x):
    """Ten harmless steps around one that loses nine digits to cancellation."""
    for i in range(5):
        x = jnp.tanh(x) * np.float32(1.0 + 0.1 * i)
    x = (x + np.float32(4096.0)) - np.float32(4096.0)
    return jnp.tanh(jnp.tanh(x) * np.float32(0.5))


def test_the_cancelling_sum_is_found():
    x = jnp.linspace(0.1, 1.0, 50)
    report = localize(chain, UlpPerturbation())(KEY, x)
    (culprit,) = report.culprits
    assert culprit.primitive == "add"
    assert culprit.effect > 0.9 * report.effect
    assert report.rest < 0.01 * report.effect
    assert report.equations == 15
    assert report.settled
    assert "cannot tell" not in str(report)
    assert culprit.path in str(report)

    # The noise is the one that inject draws for this equation. The plain program rounds
    # elsewhere (a product contracted into the sum), which cancellation magnifies.
    noisy = noise.inject(chain, UlpPerturbation(), only=[culprit.path])
    keys = jax.random.split(KEY, 9)[:8]
    far = [l2_distance(noisy(key, x), jax.jit(chain)(x)) for key in keys]
    assert np.sqrt(np.mean(np.square(far))) == pytest.approx(culprit.effect, rel=0.25)


def test_the_cancelling_sum_of_a_tiny_result_is_found():
    """Of a result of 1e-160 in float64, whose squares are 0, no line was listed."""

    def tiny(x):
        return ((x + 4096.0) - 4096.0) * 1e-160

    with jax.enable_x64(True):
        x = jnp.linspace(0.1, 1.0, 50)
        (culprit,) = localize(tiny, UlpPerturbation())(KEY, x).culprits
    assert culprit.primitive == "add"
    assert 0 < culprit.effect < 1e-160


def test_what_is_not_listed_has_no_larger_effect_than_what_is():
    """Of two lines, one half of the change each, one was named and the other larger."""

    def twice(x):
        a = (x + np.float32(1024.0)) - np.float32(1024.0)
        b = (jnp.cos(x) + np.float32(1400.0)) - np.float32(1400.0)
        return a + b

    x = jnp.linspace(0.1, 1.0, 50)
    for seed in range(4):
        report = localize(twice, UlpPerturbation())(jax.random.key(seed), x)
        listed = np.sqrt(sum(c.effect**2 for c in report.culprits))
        assert report.rest <= 1.05 * listed, report
        assert {c.path for c in report.culprits} <= {"0:add", "3:add"}


def test_what_other_draws_do_not_confirm_is_said():
    """A comparison that few draws flip: with one draw, the search may meet none."""

    def fn(x):
        flips = jnp.cos(x) > np.float32(0.5403023)
        return jnp.sum(jnp.where(flips, x, -x)) + x[0] * x[1]

    spec = UlpPerturbation(primitives=("cos", "mul"))
    search = localize(fn, spec, samples=1)
    reports = [search(jax.random.key(i), jnp.ones(3)) for i in range(8)]
    assert not all(report.settled for report in reports)
    said = [("inconclusive" in str(report)) != report.settled for report in reports]
    assert all(said)


def test_paths_lead_into_loops_branches_and_gradients():
    """A dot in a scan whose output is blown up, found in the gradient."""

    def loss(w, x):
        def step(h, x):
            h = jnp.tanh(h @ w + x)
            return h, jax.lax.cond(h[0] > 0, lambda h: h * 2.0, lambda h: h * 3.0, h)

        h, ys = jax.lax.scan(step, jnp.zeros(16), x)
        return jnp.sum(ys) + 1e4 * jnp.sum(h @ w)

    a, b = jax.random.split(jax.random.key(1))
    w = jax.random.normal(a, (16, 16)) / 4
    x = jax.random.normal(b, (4, 16))
    spec = ReductionOrder(partials=3, granularity="element", shortest=1)
    report = localize(jax.grad(loss), spec, samples=2)(KEY, w, x)
    assert report.effect > 0
    assert 1 <= len(report.sets) <= 2
    assert report.rest < report.effect
    assert all("dot_general" in c.path for c in report.sets[0])
    assert any("scan" in c.path for c in report.culprits)


def test_no_effect_no_culprit():
    """Integers add exactly in any order."""
    x = jnp.arange(64, dtype=jnp.float32)
    report = localize(jnp.sum, ReductionOrder())(KEY, x)
    assert report.sets == ()
    assert report.effect == report.rest == 0
    assert report.equations == 1


def layers(ws, x):
    for i, w in enumerate(ws):
        with jax.named_scope(f"layer_{i}"):
            x = jnp.tanh(x @ w)
    return jnp.sum(x)


A, B, _ = jax.random.split(jax.random.key(1), 3)
WS = list(jax.random.normal(A, (3, 32, 32)) / 6)
X = jax.random.normal(B, (8, 32))


def test_effects_of_layers_and_paths():
    spec = noise.ReductionOrder(partials=3)
    gradient = jax.grad(layers)
    listed = noise.coverage(gradient, spec)(WS, X).perturbed
    parts = ["layer_0", "layer_2", listed[0].path]
    found = localize(gradient, spec, samples=3, parts=parts)(KEY, WS, X)
    effects = {c.path: c.effect for c in found.culprits}
    assert set(effects) == set(parts)
    assert found.equations == len(listed)
    # The layer between is in no part.
    assert 0 < min(*effects.values(), found.rest) < found.effect
    only, clean = (noise.inject(gradient, spec, only=x) for x in (parts[2:], []))
    keys = jax.random.split(KEY, 4)[:3]
    far = [l2_distance(only(k, WS, X), clean(KEY, WS, X)) for k in keys]
    expected = np.sqrt(np.mean(np.square(far)))
    # Rounding of other programs is a few percent of one equation's effect.
    assert effects[listed[0].path] == pytest.approx(expected, rel=0.05)


def test_options_are_checked():
    for options, message in (
        ({"share": 0.0}, r"share=0.0: expected a number in \(0, 1\]"),
        ({"samples": 0}, "samples=0: expected a whole number"),
        ({"spec": Identity()}, "acts on a computation"),
        ({"spec": noise.GradientGaussian(0.1)}, "acts on a computation"),
        ({"parts": "layer_0"}, "expected a sequence of texts"),
        ({"parts": ["layer_9"]}, "acts on nothing in 'layer_9'"),
    ):
        with pytest.raises(noise.NoiseError, match=message):
            localize(layers, **{"spec": ReductionOrder(), **options})(KEY, WS, X)


def test_a_sum_into_a_mutable_array_is_switched_too():
    def fn(x):
        ref = jax.new_ref(jnp.zeros(3))
        jax.ref.addupdate(ref, np.array([0, 1, 1]), x)
        return ref[...] * 2.0

    report = localize(fn, UlpPerturbation(primitives=("addupdate",)))(KEY, X[0, :3])
    (culprit,) = report.culprits
    assert culprit.primitive == "addupdate"
    assert report.effect == culprit.effect > 0


@pytest.mark.parametrize("program", planted.ILL_CONDITIONED, ids=lambda p: p.__name__)
def test_the_planted_line_is_found(program):
    report = localize(program, UlpPerturbation())(jax.random.key(1), planted.X)
    # In the order of discovery: the last line may round as much as the planted one.
    worst = report.sets[0][0]
    assert worst.source.startswith(planted.marked(program)), (worst, report)
    # One line is to blame, and the rest of the program is not.
    assert {c.source for c in report.sets[0]} == {worst.source}
    assert report.rest < report.effect
    assert np.isfinite(report.effect)


ONE = {"x": jnp.array([1.0, -2.0, 0.0, 4.0]), "y": (jnp.array([[10.0]]),)}
TWO = {"x": jnp.array([1.0, -3.0, 0.0, 3.0]), "y": (jnp.array([[10.0]]),)}


def test_distances_by_hand():
    assert variability.v_ermv(ONE, TWO) == pytest.approx((0.5 + 0.25) / 5)
    assert variability.v_ermv(TWO, ONE) == pytest.approx((1 / 3 + 1 / 3) / 5)
    assert variability.v_c(ONE, TWO) == 2 / 5
    assert l2_distance(ONE, TWO) == pytest.approx(np.sqrt(2))
    assert l2_distance(3.0 + 0j, 4.0j) == pytest.approx(5)
    for other in ({"x": ONE["x"]}, {**ONE, "x": jnp.ones(3)}, {}):
        with pytest.raises(ValueError, match="expected the same"):
            variability.v_c(ONE, other)


def twice(x):
    """Two differences of which XLA computes one: what they add cancels."""
    a, b = ((x + np.float32(1024.0)) - np.float32(1024.0) for _ in range(2))
    return jnp.sum((a + 2 * x) * (b + 3 * x))


def test_equal_equations_are_one():
    """Each of two equal sums was named, with an effect that no run of theirs had."""

    def cancelled(x):
        a, b, c = (jnp.sum(x * np.float32(y), 0) for y in (1.1, 1.1, 1.2))
        return a - b + np.float32(1e-3) * c

    x = jax.random.normal(KEY, (2000, 4))
    report = localize(cancelled, ReductionOrder())(KEY, x)
    assert [c.path for c in report.culprits] == ["5:reduce_sum"]
    assert report.equations == 2

    def second(x):
        with jax.named_scope("first"):
            a = jnp.sum(x * np.float32(1.1), 0)
        with jax.named_scope("second"):
            return jnp.sum(x * np.float32(1.1), 0) - a

    effects = localize(second, ReductionOrder(), parts=["first", "second"])(KEY, x)
    assert [c.effect for c in effects.culprits] == [0, 0]


def test_only_perturbs_equations_that_compute_the_same():
    x = jnp.linspace(0.1, 1.0, 50)
    one, other, both = (
        noise.inject(twice, UlpPerturbation(), only=paths)(KEY, x)
        for paths in (["0:add"], ["2:add"], ["0:add", "2:add"])
    )
    assert one == other == both
    assert one != noise.inject(twice, UlpPerturbation(), only=[])(KEY, x)
