"""`first_nan` and `nan_rate`: NaN and infinities with a known origin."""

import inspect

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import Mesh, PartitionSpec

from prednet_jax import noise

KEY = jax.random.key(0)


def line(fn, text):
    """The source of the only line of a function that has a text."""
    lines, first = inspect.getsourcelines(fn)
    (number,) = [i for i, x in enumerate(lines, first) if text in x]
    return f"test_nan.py:{number} in "


def root(x):
    return jnp.sqrt(x - 2).sum()


def in_a_loop(x):
    def body(carry, t):
        carry = carry - t
        return carry, jnp.log(carry)

    return lax.scan(body, x, jnp.arange(5.0))[1].sum()


def overflowing(x):
    def body(state):
        step, y = state
        return step + 1, y * y

    return lax.while_loop(lambda state: state[0] < 9, body, (0, x))[1]


def in_an_inner_loop(x):
    def body(state):
        step, y = state
        inner = lax.scan(lambda y, t: (y / (t - 2.0), None), y, jnp.arange(4.0))[0]
        return step + 1, inner

    return lax.while_loop(lambda state: state[0] < 2, body, (0, x))[1]


def in_a_branch(x):
    return lax.cond(x[0] > 0, lambda x: x / (x - x), lambda x: x, x)


@jax.custom_jvp
def custom(x):
    return jnp.log(x)


custom.defjvp(lambda primals, dots: (custom(*primals), dots[0] / primals[0]))


ORIGINS = {
    "an element": (root, [3.0, 1.0, 5.0], "sqrt", "NaN", ()),
    "a step of a scan": (in_a_loop, 5.0, "log", "NaN", (3,)),
    "a step of a while loop": (overflowing, 3.0, "mul", "infinity", (6,)),
    "a step of a loop in a while loop": (
        *(in_an_inner_loop, 3.0, "div", "infinity"),
        (0, 2),
    ),
    "a branch": (in_a_branch, [3.0, 1.0], "div", "infinity", ()),
    "a rule of one's own": (custom, 0.0, "log", "infinity", ()),
    "a derivative": (jax.grad(lambda x: jnp.sqrt(x)), 0.0, "div", "infinity", ()),
    "an infinity that was given": (jax.nn.softmax, [-np.inf] * 3, "sub", "NaN", ()),
}


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("name", ORIGINS)
def test_the_first_equation_is_named_with_its_step(name, compiled):
    fn, x, primitive, kind, step = ORIGINS[name]
    found = noise.first_nan(jax.jit(fn) if compiled else fn)(jnp.float32(x))
    assert (found.primitive, found.kind, found.step) == (primitive, kind, step)
    assert found.in_result


def test_the_line_and_the_operands_are_told():
    found = noise.first_nan(in_a_loop)(jnp.float32(5))
    assert found.source.startswith(line(in_a_loop, "jnp.log"))
    assert found.operands == ("-1",)
    assert noise.first_nan(root)(jnp.float32([3, 1])).operands == ("-1 at [1]",)


def test_a_finite_program_has_none():
    assert noise.first_nan(root)(jnp.float32([3, 4])) is None


def test_a_function_without_a_result_is_searched():
    def shows(x):
        jax.debug.callback(lambda y: None, jnp.log(x))

    assert noise.first_nan(shows)(jnp.float32(-1)).primitive == "log"
    with pytest.raises(noise.NoiseError, match="the result is None"):
        noise.nan_rate(shows)(KEY, jnp.float32(-1))


def test_a_nan_that_no_watched_equation_makes_is_told():
    """XLA may fuse a maximum and its derivative so that they make one."""

    def fn(x):
        return {"a": x, "b": x if isinstance(x, jax.core.Tracer) else x * np.nan}

    first = noise.first_nan(fn)(jnp.ones(3))
    assert first.path == "['b']"
    # An infinity that the program makes does not hide it.
    beside = noise.first_nan(lambda x: (fn(x), x / 0))(jnp.ones(3))
    assert (beside.path, beside.primitive) == ("[0]['b']", "compilation")
    assert "3 elements of a result that has none where equations" in str(first)
    report = str(noise.nan_rate(fn, noise.parse("ulp"))(KEY, jnp.ones(3)))
    assert "the run without noise gives one too" in report


def test_a_harmless_infinity_before_is_not_the_cause():
    def masked(x):
        mask = (1e9 * x).astype(jnp.float16)  # Overflows, and exp makes it 0.
        return jnp.exp(-mask).astype(jnp.float32).sum() + jnp.sqrt(x[0] - 2)

    found = noise.first_nan(masked)(jnp.float32([1, 1]))
    assert found.source.startswith(line(masked, "jnp.sqrt"))


def test_a_cause_beside_another_is_still_the_first():
    found = noise.first_nan(lambda x: jnp.log(-x) + jnp.sqrt(-x))(jnp.float32(1))
    assert found.primitive == "log"


def masked(x):
    """A NaN at every step, of which the result reads those of step 3 and later."""
    return lax.scan(
        lambda c, t: (c, jnp.where(t < 3, 0.0, jnp.sqrt(c))), x, jnp.arange(7)
    )[1]


def masked_first(x):
    """A reversed loop over a padded row, and a loop inside of another."""

    def inner(i, t):
        return jnp.where((i == 1) & (t == 2), jnp.sqrt(x), 0.0)

    padded = lax.scan(
        lambda c, i: (c, lax.map(lambda t: inner(i, t), jnp.arange(4))),
        x,
        jnp.arange(6),
        reverse=True,
    )
    return padded[1]


def masked_longer(x):
    """A root in front of a logarithm, whose NaN is read two steps before."""

    def body(c, t):
        root = jnp.where(t < 4, 0.0, jnp.sqrt(c))
        return c, root + jnp.where(t < 2, 0.0, jnp.log(c))

    return jnp.sqrt(x) * jnp.zeros(0), lax.scan(body, x, jnp.arange(7))[1]


def masked_cause(x):
    """A NaN at every step; of that of step 2 alone the logarithm follows."""

    def body(c, t):
        failed = (t == 2) & jnp.isnan(jnp.sqrt(x - t))
        return jnp.where(failed, jnp.log(c - 2), c), None

    return lax.scan(body, jnp.float32(1), jnp.arange(7.0))[0]


@pytest.mark.parametrize(
    ("program", "primitive", "step"),
    [
        (masked, "sqrt", (3,)),
        (masked_first, "sqrt", (4, 2)),
        (masked_longer, "log", (2,)),
        (masked_cause, "sqrt", (2,)),
    ],
    ids=["loop", "loops", "equations", "cause"],
)
def test_the_first_execution_is_named_whose_nan_reaches_the_result(
    program, primitive, step
):
    found = noise.first_nan(program)(jnp.float32(-1))
    assert (found.primitive, found.step, found.in_result) == (primitive, step, True)


def test_the_step_under_noise_is_the_first_that_reaches_the_result():
    def spread(x):
        def body(c, t):
            variance = jnp.mean(c * c) - jnp.mean(c) ** 2
            return c * 1.1, jnp.where(t == 3, jnp.sqrt(variance), 0.0)

        return lax.scan(body, x, jnp.arange(5))[1]

    rate = noise.nan_rate(spread)(KEY, jnp.full(50, 1.1))
    assert [entry.step for entry in rate.entries] == [(3,)]


def test_what_the_result_does_not_read_is_told_as_such():
    def guarded(x):
        return jnp.where(x > 0, jnp.log(x), 0.0).sum()

    found = noise.first_nan(guarded)(jnp.float32([1, 0]))
    assert (found.primitive, found.in_result) == ("log", False)
    assert "the result of the function is finite" in str(found)


def test_an_argument_that_holds_one_is_named_and_no_masked_root():
    def masked_root(x):
        return x + jnp.where(x > 9, jnp.sqrt(x), 0.0)

    found = noise.first_nan(masked_root)(jnp.float32([-1, np.nan]))
    assert (found.primitive, found.in_result) == ("argument", True)


def test_an_argument_that_holds_one_is_named():
    def scaled(params, x):
        return params["w"] * x

    found = noise.first_nan(scaled)({"w": jnp.float32([1, np.nan])}, jnp.float32(2))
    assert (found.primitive, found.path) == ("argument", "argument[0]['w']")


WEIGHTS = np.float32([1, np.nan, 2])
CONSTANTS = {
    "a number": lambda x: x + jnp.nan,
    "an array": lambda x: x * WEIGHTS,
    "inside a call": lambda x: jax.jit(lambda y: (y + WEIGHTS).sum())(x),
    "inside a loop": lambda x: lax.scan(lambda c, _: (c * WEIGHTS, None), x, None, 3),
}


@pytest.mark.parametrize("name", CONSTANTS)
def test_a_constant_that_holds_one_is_named(name):
    found = noise.first_nan(CONSTANTS[name])(jnp.arange(3.0))
    assert found.source.startswith("test_nan.py:")
    assert found.kind == "NaN"
    assert "element" in str(found)
    assert "of a constant" in str(found)


def test_the_search_of_jax_for_a_nan_does_not_end_the_tools():
    with jax.debug_nans(True), jax.debug_infs(True):
        assert noise.first_nan(jnp.log)(jnp.float32(-1)).primitive == "log"
        assert noise.nan_rate(jnp.log, draws=2)(KEY, jnp.float32(-1)).fraction == 1
        exact = noise.explain(jnp.log, jnp.nan, jnp.nan)(KEY, jnp.float32(-1))
        assert exact.rung == "identical"


def variance(x):
    return jnp.sqrt(jnp.mean(x * x) - jnp.mean(x) ** 2)


def test_the_share_of_runs_in_which_noise_makes_a_nan():
    report = noise.nan_rate(variance)(KEY, jnp.full(64, 1.1))
    assert 0.2 < report.low < report.fraction < report.high < 1
    (entry,) = report.entries
    assert entry.primitive == "sqrt"
    assert entry.fraction == report.fraction
    assert entry.source.startswith(line(variance, "jnp.sqrt"))
    again = noise.nan_rate(jax.jit(variance))(KEY, jnp.full(64, 1.1))
    assert again.fraction > 0.2


def test_infinities_that_are_meant_do_not_count():
    def logits(x):
        return jax.nn.log_softmax(jnp.where(x > 1, x, -jnp.inf))

    report = noise.nan_rate(logits, draws=4)(KEY, jnp.arange(4.0))
    assert (report.fraction, report.entries, report.clean) == (0.0, (), None)


def test_operands_have_the_digits_of_their_type_and_a_matrix_has_no_element():
    entry = noise.first_nan(jnp.arccos)(np.float32(1.0000001))
    assert "of 1.0000001" in str(entry)
    indefinite = np.array([[1, 2], [2, 1]], "f4")
    assert " at [" not in str(noise.first_nan(jnp.linalg.cholesky)(indefinite))


def test_values_that_are_the_same_on_all_devices_stay_so():
    mesh, spec = Mesh(np.array(jax.devices()[:1]), ("d",)), PartitionSpec("d")

    def total(x):
        def local(x):
            logs = lax.psum(jnp.log(x), "d")
            return lax.cond(logs[0] > 0, lambda: logs, lambda: 2 * logs)

        return jax.shard_map(
            local, mesh=mesh, in_specs=spec, out_specs=PartitionSpec()
        )(x)

    assert noise.first_nan(total)(jnp.full(3, 2.0)) is None
    found = noise.first_nan(total)(jnp.array([1.0, -1.0, 2.0]))
    assert found.primitive == "log"
    assert noise.first_nan(total)(jnp.array([1.0, jnp.nan, 2.0])).path == "argument[0]"


def test_a_nan_that_keeps_a_loop_from_ending_is_found():
    """The loop ends where two iterates are equal, and a NaN equals nothing."""

    def body(iterates):
        x, _ = iterates
        return jnp.sqrt(x - 1), x

    def iterate(x):
        return lax.while_loop(lambda both: both[0] != both[1], body, (x, x + 1))[0]

    entry = noise.first_nan(iterate)(np.float32(0.5))
    assert (entry.primitive, entry.step) == ("sqrt", (0,))

    # Without a NaN the loop is named.
    def turn(x):
        return lax.while_loop(lambda y: y != 0, lambda y: -y, x)

    with pytest.raises(noise.NoiseError, match="does not converge"):
        noise.first_nan(turn)(np.float32(0.5))


def test_a_nan_that_keeps_a_loop_from_running_is_the_cause_of_what_follows():
    """The loop makes the same NaN, which is not seen until the first one is replaced.

    So does the adaptive solver `odeint` of JAX with a NaN in the equation.
    """

    def rate(y):
        return jnp.sqrt(y)

    def solve(y):
        def body(state):
            now, _, step, y = state
            ahead = step * rate(y)
            taken = jnp.abs(ahead) < 5
            after = jnp.where(taken, now + step, now), now, step + 0 * ahead
            return *after, jnp.where(taken, y + ahead, y)

        start = jnp.float32(0), jnp.float32(0), 0.25 + 0 * rate(y), y
        loop = lax.while_loop(lambda s: (s[0] < 1) & (s[2] > 0), body, start)
        return loop[3] / (loop[0] - loop[1])

    entry = noise.first_nan(solve)(np.float32(-2))
    assert entry.source.startswith(line(rate, "jnp.sqrt"))
    assert (entry.kind, entry.step) == ("NaN", ())
    assert noise.first_nan(solve)(np.float32(2)) is None


def test_a_function_that_computes_in_float64_inside():
    def root(x):
        with jax.enable_x64(True):
            return jnp.sqrt(x.astype(jnp.float64) - 2)

    assert noise.first_nan(root)(jnp.float32([3, 1])).primitive == "sqrt"


def test_numbers_of_float64_are_told_in_all_digits():
    """The logarithm of -1e-300 was a NaN "of -0", and the product of 1e200 of inf."""
    tried = {
        "-1e-300": lambda x: jnp.log(-x * 1e-300),
        "1.0000000000001": lambda x: jnp.arcsin(x + 1e-13),
        "1.79e+308": lambda x: jnp.sum(jnp.full(2, 1.79e308) * x),
    }
    with jax.enable_x64(True):
        found = {told: noise.first_nan(fn)(1.0) for told, fn in tried.items()}
    assert [entry.operands for entry in found.values()] == [(told,) for told in found]


def test_a_frozen_reference_is_followed():
    def frozen(x):
        kept = jax.new_ref(jnp.zeros(3))
        kept[...] = jnp.log(x)
        return jax.freeze(kept)

    x = np.float32([1, -1, 2])
    assert noise.first_nan(frozen)(x).primitive == "log"
    assert noise.first_nan(frozen)(abs(x)) is None


def test_a_nan_that_a_reference_holds_has_the_line_that_made_it():
    def summed(x):
        total = jax.new_ref(jnp.zeros(3))

        def add(i, carry):
            total[...] += jnp.log(x) * (i + 1)
            return carry

        lax.fori_loop(0, 4, add, 0)
        total[...] = total[...] * 2
        return total[:2] + total[1:]

    x = np.float32([1, -1, 2])
    entry = noise.first_nan(summed)(x)
    assert entry.source.startswith(line(summed, "jnp.log"))
    assert (entry.primitive, entry.step, entry.in_result) == ("log", (0,), True)
    assert noise.first_nan(summed)(abs(x)) is None
    assert noise.nan_rate(summed, draws=4)(KEY, x).entries[0].primitive == "log"
    assert noise.nan_rate(summed, draws=4)(KEY, abs(x)).fraction == 0

    def held(x):
        return jax.new_ref(x)[...] * 2

    assert noise.first_nan(held)(np.float32([np.nan, 1])).primitive == "argument"


def test_the_first_of_several_elements_is_shown_at_its_place():
    x = jnp.arange(12.0).reshape(3, 4).at[1, 2].set(-7).at[2, 1].set(-9)
    assert "2 elements of -7 at [1, 2]" in str(noise.first_nan(jnp.sqrt)(x))
