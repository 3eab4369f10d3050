import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from scipy import stats

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


BITS = {
    "signbit": lambda x: jnp.signbit(x),
    "copysign": lambda x: jnp.copysign(1.0, x),
    "exponent": lambda x: jnp.frexp(x + 1.0)[1],
    "remainder": lambda x: jnp.mod(x + 1.0, 1.0),
    "arctan2": lambda x: jnp.arctan2(x, -1.0 - x),
    "log": lambda x: jnp.log(lax.complex(-1.0 - x, x)),
    "sqrt": lambda x: jnp.sqrt(lax.complex(-1.0 - x, x)),
    "arccos": lambda x: jnp.arccos(lax.complex(2.0 + x, x)),
    "arcsinh": lambda x: jnp.arcsinh(lax.complex(x, 2.0 + x)),
    "host": lambda x: jax.pure_callback(
        lambda x: np.sign(np.asarray(x)), jax.ShapeDtypeStruct(x.shape, x.dtype), x
    ),
    "carried": lambda x: lax.scan(
        lambda c, bits: (c, bits >> 31), 0, lax.bitcast_convert_type(x[:, 0], jnp.int32)
    )[1],
    "pooled": lambda x: jax.grad(
        lambda x: jnp.sum(
            lax.reduce_window(x, -jnp.inf, lax.max, (1, 2), (1, 2), "VALID")
        )
    )(x + jnp.zeros((6, 8)) * x),
}


@pytest.mark.parametrize("kind", BITS)
def test_bits_and_choices_of_floats_are_decisions(kind):
    """A sum that is zero but for its rounding has any sign."""

    def fn(x, w):
        h = x @ w
        return BITS[kind](h[:, :1] - h[:, 1:2])

    ulp = noise.UlpPerturbation()
    report = noise.decisions(fn, ulp, draws=6)(KEY, X, TIED)
    assert max(d.flipped for d in report) > 0


def test_bits_that_become_a_float_again_decide_nothing():
    def fn(x):
        bits = lax.bitcast_convert_type(x, jnp.int32)
        return lax.bitcast_convert_type(bits ^ 1, jnp.float32)

    assert len(noise.decisions(fn, ORDER, draws=1)(KEY, X)) == 0


def test_continuous_functions_decide_nothing():
    def far(x):  # Across the other axis there is no cut.
        near = jnp.sum(x, 1) - jnp.sum(x[:, ::-1], 1)
        one = jnp.ones_like(near)
        angles = jnp.arctan2(near, one), jnp.arctan2(-one, near)
        return angles, jnp.log(lax.complex(one, near)), jnp.arctan(one + near)

    assert not any(d.flipped for d in noise.decisions(far, ORDER, draws=2)(KEY, X))

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

        return lax.scan(step, 0.0, x)

    report = found(fn, X, TIED)
    for primitive in ("gt", "cond", "argmax"):
        assert report[primitive].flipped > 0
        assert report[primitive].elements == 6
        assert "scan" in report[primitive].path
        assert report[primitive].source.endswith(" in step")


def test_late_steps_of_a_loop_inside_of_a_while_loop_decide():
    def fn(x, w):
        h = x @ w
        tie = h[0, 0] - h[0, 1]

        def inner(y, t):
            return jnp.where(jnp.where(t == 2, tie, 1.0) > 0, y, -y), None

        def body(state):
            return state[0] + 1, lax.scan(inner, state[1], jnp.arange(4))[0]

        return lax.while_loop(lambda state: state[0] < 2, body, (0, 1.0))[1]

    report = found(fn, X, TIED, draws=12)
    assert report["gt"].flipped > 0
    assert report["gt"].elements == 8


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


def test_examples_that_flip_are_those_of_inject_with_exact_intervals():
    """Rows 2 and 4 tie; the others are clear."""
    x = X.at[jnp.array([0, 1, 3, 5]), 0].add(1e3)
    clear = TIED.at[0, 0].set(1.0).at[0, 1].set(-1.0)
    fn = lambda x, w: jnp.argmax((x @ w)[:, :2], axis=1)  # noqa: E731
    x = x.at[jnp.array([2, 4]), 0].set(0.0)
    report = noise.decisions(fn, ORDER, draws=9)(KEY, x, clear)
    (entry,) = report
    noisy, clean = noise.inject(fn, ORDER), jax.jit(fn)(x, clear)
    keys = jax.random.split(KEY, 9)
    counts = np.sum([np.asarray(noisy(k, x, clear) != clean) for k in keys], axis=0)
    assert {e.example for e in entry.examples} == {2, 4}
    for e in entry.examples:
        # Another compilation may decide a tie otherwise, for all draws.
        assert round(9 * e.flipped) in (counts[e.example], 9 - counts[e.example])
        exact = stats.binomtest(round(9 * e.flipped), 9).proportion_ci(0.95)
        assert (e.low, e.high) == pytest.approx(tuple(exact), abs=1e-9)
    assert "examples [" in str(report)


@pytest.mark.parametrize("scores", [True, False])
def test_the_accuracy_of_an_evaluation_set(scores):
    def fn(x, w):
        h = x @ w
        return h if scores else jnp.argmax(h, axis=1)

    x = jax.random.normal(jax.random.key(5), (50, 300))
    w = TIED.at[:, 2:].set(0.0)
    labels = jnp.zeros(50, jnp.int32)
    found = noise.decisions(fn, ORDER, draws=6, labels=labels)(KEY, x, w).evaluation
    assert 0 < found.moved < 1
    assert (found.probability, found.total) == (6 / 7, 50)
    assert all(0 < e.low < e.flipped <= e.high <= 1 for e in found.examples)
    text = str(found)
    assert text.startswith(f"accuracy {found.accuracy:.4f}, numerics move it by ±")
    assert f"answers that flip: {len(found.examples)} of 50" in text


def test_a_loop_of_unknown_length_inside_of_one_of_known_length():
    def fn(x):
        def count(x):
            return lax.while_loop(
                lambda c: c[0] < 2, lambda c: (c[0] + x, c[1] + 1), (x, 0)
            )

        return lax.map(count, x)

    assert found(fn, jnp.linspace(0.3, 0.9, 4))["while"].elements == 4


def test_what_answers_no_labels_is_refused():
    for fn, labels, message in (
        (lambda x: x[:, 0], np.zeros(6, int), r"is float32\[6\], with labels \[6\]"),
        (lambda x: x[:, :1], np.zeros(6, int), r"is float32\[6, 1\], with labels"),
        (lambda x: x, np.zeros((6, 4)), r"labels of type float64 and shape \(6, 4\)"),
        (lambda x: jnp.log(x.at[2].set(-1.0)), np.zeros(6, int), "of example 2 hold"),
        (lambda x: x[:, :3], np.full(6, 3), r"labels\[0\]=3: expected classes from 0"),
        (lambda x: x[:, :3], np.full(6, -1), r"labels\[0\]=-1: expected classes"),
    ):
        with pytest.raises(noise.NoiseError, match=message):
            noise.decisions(fn, ORDER, draws=1, labels=labels)(KEY, jnp.abs(X))


def test_decisions_on_a_routines_result_flip():
    """The sign of a singular determinant never flipped: nothing moves an argument."""
    u, _, v = np.linalg.svd(jax.random.normal(KEY, (6, 6)))
    m = np.float32(u @ np.diag([1, 1, 1, 1, 1, 1e-9]) @ v)
    report = noise.decisions(lambda m: jnp.linalg.det(m) > 0)(KEY, m)
    assert 0.1 < report[0].flipped < 0.9
    apart = noise.decisions(lambda m: jnp.linalg.det(m) > 0)(KEY, u)
    assert all(decision.flipped == 0 for decision in apart)


def test_noise_does_not_act_on_what_the_host_decides():
    """Whole numbers from the host moved by an ulp, and became others."""

    def whole(x):
        shape = jax.ShapeDtypeStruct(x.shape, x.dtype)
        return jax.pure_callback(np.floor, shape, 2 * x).astype(int)

    report = noise.decisions(whole)(KEY, jnp.float32([1.1, 2.2, 3.3]))
    assert [decision.flipped for decision in report] == [0, 0]


def test_a_noise_that_is_asked_for_is_all_there_is():
    u, _, v = np.linalg.svd(jax.random.normal(KEY, (6, 6)))
    m = np.float32(u @ np.diag([1, 1, 1, 1, 1, 1e-9]) @ v)
    spec = noise.parse("ulp:primitives=exp")
    report = noise.decisions(lambda m: jnp.linalg.det(m) > 0, spec)(KEY, m)
    assert all(decision.flipped == 0 for decision in report)
