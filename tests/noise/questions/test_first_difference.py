import functools
import inspect
import json
import math
import os
import sys
import time
from collections import OrderedDict

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from jax import lax
from jax.experimental import checkify

from prednet_jax import noise
from prednet_jax.noise import watch
from prednet_jax.noise.questions import alignment, recorder
from prednet_jax.noise.questions.distances import NoiseEffect, distance
from prednet_jax.noise.questions.elements import ElementNoise
from prednet_jax.noise.questions.first_difference import against
from prednet_jax.noise.questions.recorder import SAMPLES, Watch
from prednet_jax.noise.questions.recording import (
    BEFORE_SAMPLES,
    SAMPLE,
    WHOLE,
    Recording,
)
from prednet_jax.noise.questions.sampling import BoundCall
from prednet_jax.noise.sketch import COLUMNS, digest, sampled_positions, summary
from tests.accuracy.noise_programs import line_of

KEY = jax.random.key(0)
X = jax.random.normal(jax.random.key(1), (12, 16))
W = jax.random.normal(jax.random.key(2), (16, 16)) / 4


def layer(x, w, *, bug="", order=None):
    """A line each for a product, a residual, a normalisation and a gate."""
    a = lax.reduce_precision(x, 8, 10) if bug == "tf32" else x  # narrow
    if order is not None:
        a, w = a[:, order], w[:, order]
    h = a @ (w if bug == "transpose" else w.T)  # product
    if bug != "dropped":
        h = h + jnp.tanh(x)  # residual
    h = h - jnp.mean(h, axis=-1, keepdims=True)
    s = jnp.mean(h * h, axis=-1, keepdims=True)
    h = h * lax.rsqrt(s + (1e-3 if bug == "epsilon" else 1e-5))  # epsilon
    return jnp.tanh(h) * x


def lines_of(fn):
    lines, first = inspect.getsourcelines(fn)
    return dict(enumerate(lines, first))


def compare(fn, recording, *args, **options):
    return noise.first_difference(fn, recording, draws=3, **options)(KEY, *args)


@pytest.fixture(scope="module")
def recording():
    return noise.record(layer)(X, W)


def test_the_same_program_has_the_same_bits(recording):
    report = compare(layer, recording, X, W)
    assert report == report.differing == report.parted == ()
    assert report.compared == len(recording.equations)
    assert "beyond noise: none" in str(report)


# The line that each wrong program has wrong.
BLAMED = {"tf32": "narrow", "dropped": "residual", "epsilon": "epsilon"}
BLAMED |= {"transpose": "product"}


@pytest.mark.parametrize("bug", BLAMED)
def test_a_planted_line_comes_first(bug, recording):
    report = compare(lambda x, w: layer(x, w, bug=bug), recording, X, W)
    first = report[0]
    assert first.source == f"{line_of(layer, BLAMED[bug])}layer"
    assert first.difference > 5 * first.expected
    assert bool(report.parted) == (bug != "epsilon")
    if bug in ("dropped", "epsilon"):
        # And the other way round: the recorded program is the wrong one.
        wrong = noise.record(lambda x, w: layer(x, w, bug=bug))(X, W)
        assert compare(layer, wrong, X, W)[0].source == first.source


def test_another_order_is_no_alarm(recording):
    order = jax.random.permutation(jax.random.key(0), 16)
    report = compare(lambda x, w: layer(x, w, order=order), recording, X, W)
    assert report.differing
    assert report == (), report


def test_a_transpose_missing_on_a_symmetric_matrix_is_where_programs_part():
    symmetric = W + W.T
    known = noise.record(layer)(X, symmetric)
    report = compare(lambda x, w: layer(x, w, bug="transpose"), known, X, symmetric)
    assert report == ()
    assert "transpose" in report.parted[0].recorded
    assert "in layer" in str(report)


def test_another_formula_of_the_same_value_is_no_alarm():
    """A step paired with one that computes another thing, whose readers have no pair.

    Two versions of JAX write the derivative of tanh so; it was an alarm.
    """

    def recorded(x, w):
        h = jnp.tanh(x @ w)
        return jnp.sin(x * (jnp.float32(1) - h * h)) @ w

    def here(x, w):
        h = jnp.tanh(x @ w)
        half = x + x * h
        return jnp.sin(half * (jnp.float32(1) - h)) @ w

    report = compare(here, noise.record(recorded)(X, W), X, W)
    assert report == (), report
    assert report.parted


def test_the_first_step_of_a_loop():
    def loop(x, fault):
        def step(h, i):
            h = jnp.sin(h) * 1.5
            h = lax.cond(i % 2 == 0, lambda h: h + 1.0, lambda h: h * 0.5, h)
            h = lax.while_loop(lambda h: jnp.sum(h) > 3.0, lambda h: h * 0.7, h)
            h = h * jnp.where(i == 3, 1.0 + fault, 1.0)  # fault
            return h, jnp.sum(h)

        return lax.scan(step, x, jnp.arange(6))

    known = noise.record(functools.partial(loop, fault=0.0))(X[0])
    report = compare(functools.partial(loop, fault=1e-3), known, X[0])
    assert report[0].primitive == "select_n"
    assert report[0].step == (3,)
    assert report[0].source == f"{line_of(loop, 'fault')}step"
    # What comes earlier in the loop differs a step later.
    sine = next(one for one in report if one.primitive == "sin")
    assert sine.step == (4,)


@pytest.mark.parametrize("kind", ["scan", "while"])
def test_a_late_step_of_a_long_loop_is_blamed_on_the_loop(kind):
    """Beyond the steps that are kept: on what the loop gave, not on who read it."""

    def loop(x, late):
        def step(i, h):
            return jnp.sin(h) * jnp.where(i == 298, 1.0 + late, 1.5)

        stop = 300 if kind == "scan" else jnp.int32(300)
        h = lax.fori_loop(0, stop, step, x)  # long
        return jnp.tanh(h * 2.0)

    known = noise.record(loop)(X[0], 0.5)
    assert compare(loop, known, X[0], 0.5) == ()
    report = compare(lambda x: loop(x, 0.6), known, X[0])
    report = [one for one in report if one.primitive != "argument"]
    assert report[0].primitive == kind
    assert report[0].source == f"{line_of(loop, 'long')}loop"


def test_every_execution_is_seen_up_to_a_limit(monkeypatch):
    def fn(x):
        def step(c, i):
            c = c + 0.0
            n = lax.while_loop(lambda n: n < i, lambda n: n + 1, 0)
            return lax.cond(i > 1, lambda c: c * 2, lambda c: c, c), n

        return lax.scan(step, x, jnp.arange(4), reverse=True)

    for limit in (256, 3):
        monkeypatch.setattr(recorder, "EXECUTIONS", limit)
        seen = {e.path: e for e in noise.record(fn)(1.0 * jnp.ones(())).equations}
        of = {path.split(":", 2)[-1]: e for path, e in seen.items()}
        kept = min(4, limit)
        values = of["add"].values[:, 0]
        np.testing.assert_array_equal(values, [1.0, 2.0, 4.0, 4.0][:kept])
        (branch,) = (e for path, e in seen.items() if path.endswith("[1]/0:mul"))
        assert branch.steps.tolist() == [[0], [1]]
        (body,) = (e for path, e in seen.items() if path.endswith("while[body]/0:add"))
        counts = [s for s in body.steps.tolist() if s[0] == 0]
        assert len(counts) == 3
        # The steps of the loop around that are kept too.
        assert len(body.steps) == (6 if limit == 256 else 3)


def test_the_values_of_a_program_reach_the_host_together(monkeypatch):
    """A callback takes a third of a millisecond at each step of a loop."""
    sent, callback = [], jax.debug.callback

    def counted(*args, **kwargs):
        sent.append(args)
        return callback(*args, **kwargs)

    def step(c, _):
        for _ in range(10):
            c = jnp.tanh(c) * 2
        return c, jnp.sum(c)

    monkeypatch.setattr(jax.debug, "callback", counted)
    recorded = noise.record(lambda x: lax.scan(step, x, length=3))(X)
    inside = [e for e in recorded.equations if e.within == "scan"]
    assert len(inside) == 21
    assert all(len(e.steps) == 3 and np.all(e.norms > 0) for e in inside)
    # One for the argument, one for the body, one for the loop and two for the results.
    assert len(sent) <= 5


def test_an_error_below_a_step_of_a_narrow_format_is_listed_before_the_format():
    def network(bug):
        def fn(x, w):
            h = bug(x @ w)
            return h.astype(jnp.float8_e4m3fn).astype(jnp.float32)

        return fn

    def wrong(h):
        return h * jnp.float32(1.03)

    few = X[:5, :6], W[:6, :4]
    known = noise.record(network(lambda h: h))(*few)
    report = noise.first_difference(network(wrong), known)(KEY, *few)
    assert report[0].primitive == "mul"
    assert report[0].source.endswith(" in wrong")


def test_a_loop_inside_of_a_while_loop_is_recorded_with_all_its_steps():
    def fn(x):
        def body(state):
            step, y = state
            return step + 1, lax.scan(lambda y, _: (y * 0.5, None), y, length=3)[0]

        return lax.while_loop(lambda state: state[0] < 40, body, (0, x))[1]

    recorded = noise.record(fn)(jnp.float32(1)).equations
    (inner,) = [e for e in recorded if e.path.endswith("scan/0:mul")]
    # At most 256 values are kept: as many steps of each loop as leave room for both.
    assert inner.steps.tolist() == [[i, j] for i in range(40) for j in range(3)]


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int32", "bool"])
def test_a_digest_knows_the_bits_and_the_size_of_a_difference(dtype):
    rng = np.random.default_rng(0)
    x = jnp.asarray(3 * rng.standard_normal((WHOLE // 16, 33))).astype(dtype)
    summarized = map(np.asarray, summary(x, SAMPLE))
    hashed, signed, squares, tops, unbounded, sample = summarized
    wide = np.asarray(x.astype("float32"), np.float64)
    np.testing.assert_allclose(squares.sum(), np.sum(wide**2), rtol=1e-5)
    assert tops.max() == np.abs(wide).max()
    assert not unbounded.any()
    assert len(signed) == COLUMNS
    np.testing.assert_array_equal(
        sample, wide.ravel()[sampled_positions(x.size, SAMPLE)]
    )
    other = x.at[7, 5].set(jnp.logical_not(x[7, 5]).astype(dtype))
    assert (np.asarray(digest(other)[0]) != hashed).sum() == 1
    if dtype == "float32":
        d = np.asarray(rng.standard_normal(x.shape) * 1e-2, np.float32)
        moved = np.asarray(digest(x + d)[1])
        far = np.linalg.norm(moved - signed) / np.linalg.norm(d)
        assert 0.7 < far < 1.3
        broken = x.at[0, 0].set(np.nan).at[0, 1].set(-1e30)
        assert np.asarray(digest(broken)[4]).sum() == 2**10 + 1
        assert np.isfinite(digest(broken)[1]).all()


def test_a_file_is_read_on_another_machine(recording, tmp_path):
    file = tmp_path / "run.npz"
    recording.save(file)
    again = noise.load_recording(file)
    for a, b in zip(recording.equations, again.equations, strict=True):
        for name in vars(a):
            np.testing.assert_array_equal(getattr(a, name), getattr(b, name), name)
    assert str(again) == str(recording)
    # With NumPy and JSON alone.
    with np.load(file) as held:
        about = json.loads(str(held["about"]))
    assert "dot_general" in [e["primitive"] for e in about["equations"]]
    assert os.listdir(tmp_path) == ["run.npz"]


def test_what_changes_when_it_is_traced_is_no_noise():
    """Each noisy run had another random number: 67 % were within noise."""
    random = np.random.default_rng(0)

    def fn(x):
        return jnp.tanh(x) * np.float32(random.random())

    report = noise.first_difference(fn, noise.record(fn)(X))(KEY, X)
    assert report[0].primitive == "mul"
    assert report[0].expected < 1e-6


def test_a_host_that_changes_from_call_to_call_is_no_noise():
    """Every tool but `tolerance` took its random numbers for noise."""
    random = np.random.default_rng(0)

    def host(x):
        return np.float32(random.random()) * x

    def fn(x):
        return jax.pure_callback(host, jax.ShapeDtypeStruct(x.shape, x.dtype), x * 3)

    tools = [
        noise.digits(fn),
        noise.explain(fn, X, X),
        noise.decisions(fn),
        noise.nan_rate(fn),
        noise.first_difference(fn, noise.record(fn)(X)),
    ]
    for tool in tools:
        with pytest.raises(noise.NoiseError, match="another result when it is called"):
            tool(KEY, X)


def test_what_is_no_recording_is_named(recording, tmp_path):
    file, other = tmp_path / "run.npz", tmp_path / "other.npz"
    recording.save(file)
    whole = file.read_bytes()
    np.savez(other, X)
    for data in (whole[: len(whole) // 2], b"", other.read_bytes(), None):
        file.unlink() if data is None else file.write_bytes(data)
        with pytest.raises(noise.NoiseError, match=r"run\.npz: expected a recording"):
            noise.load_recording(file)
    with pytest.raises(noise.NoiseError, match="of another program"):
        compare(lambda x: jnp.sin(x).sum(), recording, X)
    shapes = r"^argument\[0\] has the shape \(3, 16\), and \(12, 16\) in the rec"
    with pytest.raises(noise.NoiseError, match=shapes):
        compare(layer, recording, X[:3], W)
    with pytest.raises(noise.NoiseError, match="nothing to record"):
        noise.record(lambda: jax.debug.print("no array"))()
    with pytest.raises(noise.NoiseError, match=r"no/run\.npz.*No such file"):
        recording.save(tmp_path / "no" / "run.npz")
    with pytest.raises(noise.NoiseError, match=r"expected what noise\.record"):
        noise.first_difference(layer, "run.npz")


def test_nan_on_one_side_alone_is_infinitely_far(recording):
    report = compare(lambda x, w: layer(x.at[0, 0].set(jnp.nan), w), recording, X, W)
    assert report[0].difference == np.inf
    assert "not finite in the same way" in str(report)
    both = X.at[0, 0].set(jnp.nan)
    known = noise.record(layer)(both, W)
    assert compare(layer, known, both, W) == ()


@pytest.mark.parametrize("size", [8, 200, 2 * WHOLE])
def test_what_one_of_the_two_runs_alone_computes_is_passed_over(size):
    def branched(x, s):
        return lax.cond(s > 0, lambda x: (x * 2.5 + 1).sum(), lambda x: x.sum() - 1, x)

    x = jnp.linspace(1, 2, size)
    for one, other in [np.float32([1, -1]), np.float32([-1, 1])]:
        report = compare(branched, noise.record(branched)(x, one), x, other)
        assert "gt" in [entry.primitive for entry in report]


def scores(x, w):
    h = jnp.tanh(x @ w)
    return jnp.mean(h * h, axis=-1)


LAST_LINES = {
    "negated": lambda y: -y,
    "times a half": lambda y: y * 0.5,
    "bfloat16": lambda y: y.astype(jnp.bfloat16),
    "reversed": lambda y: y[::-1],
    "sliced": lambda y: y[:6],
    "a column": lambda y: y[:, None],
    "two": lambda y: (y, y),
    "tripled": lambda y: jnp.where(y > 0, 3 * y, y),
    "interpolated": lambda y: jnp.interp(jnp.linspace(0, 1, 5), y, y),
}


@pytest.mark.parametrize("change", LAST_LINES)
def test_a_change_of_the_last_line_is_never_passed_over(change):
    """Either program is the changed one; a far result was dropped without a pair."""

    def changed(x, w):
        return LAST_LINES[change](scores(x, w))

    for one, other in ((scores, changed), (changed, scores)):
        report = compare(other, noise.record(one)(X, W), X, W)
        assert "result" in [entry.primitive for entry in report], report


def test_a_sum_in_the_place_of_a_mean_and_another_function():
    def summed(x, w):
        return jnp.sum(jnp.tanh(x @ w) ** 2, axis=-1)

    def other(x, w):
        return jnp.cos(jnp.sum(x, axis=-1))

    known = noise.record(scores)(X, W)
    for fn in (summed, other):
        assert compare(fn, known, X, W)[-1].primitive == "result"


def test_a_factor_that_another_line_makes_good_is_listed_with_a_note():
    def scaled_late(x):
        return jnp.sin(jnp.mean(x * 0.5, 0) * 8)

    recording = noise.record(scaled_late)(X)
    compared = noise.first_difference(lambda x: jnp.sin(jnp.mean(x * 4, 0)), recording)
    assert {found.note for found in compared(KEY, X)} == {
        "what is computed of it agrees"
    }


def test_the_line_that_makes_such_a_factor_has_the_note_too():
    """The first line of the report was a product that another line makes good."""
    w = W[:, :5]
    recording = noise.record(lambda x: jnp.sin((x @ w).T * 2))(X)
    report = compare(lambda x: jnp.sin(((x * 2) @ w).T), recording, X)
    assert [found.primitive for found in report] == ["mul", "dot_general", "transpose"]
    assert all("what is computed of it agrees" in found.note for found in report)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_a_factor_is_found_in_a_narrow_type(dtype):
    """Where noise is large, readers of a wrong value hardly differ beyond it."""

    def attention(x, w, factor):
        logits = x @ w @ x.T
        if factor != 1:
            logits = logits * jnp.asarray(factor, logits.dtype)  # factor
        return jax.nn.softmax(logits, axis=-1) @ x

    x, w = X.astype(dtype), W.astype(dtype)
    known = noise.record(lambda x, w: attention(x, w, 1))(x, w)
    report = compare(lambda x, w: attention(x, w, 1.1), known, x, w)
    assert report, report
    assert report[0].source.startswith(line_of(attention, "factor"))


def probed(x, w, change):
    h = jnp.tanh(x @ w) + jnp.asarray(1.5, x.dtype)
    h = h * jnp.asarray(change.get("factor", 1), h.dtype)  # probed
    h = h.at[5, 7].multiply(jnp.asarray(change.get("element", 1), h.dtype))  # probed
    h = h + jnp.asarray(change.get("shift", 0), h.dtype)  # probed
    return jnp.where(h > 0, h, h * jnp.asarray(0.5, h.dtype)) @ w


CHANGES = [("factor", 1.05), ("element", 2.0), ("shift", 0.06)]


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_small_changes_are_found_at_the_noise_that_elements_have(dtype):
    """All were within five times the noise of the whole array."""
    x, w = X.astype(dtype), W.astype(dtype)
    for change in CHANGES:
        known = noise.record(probed)(x, w, {})
        report = compare(lambda x, w, c=change: probed(x, w, dict([c])), known, x, w)
        assert report, change
        line = report[0].source.split(" in ")[0].rpartition(":")[2]
        assert "# probed" in lines_of(probed)[int(line)], (change, report)
        assert compare(lambda x, w: probed(x, w, {}), known, x, w) == ()


def test_values_that_are_all_zero_here_are_judged():
    """They divided by the smallest number, which warned of an overflow."""
    fn = lambda x: (x * 2) * 3  # noqa: E731
    recording = noise.record(fn)(np.full(8, 5, np.float32))
    assert noise.first_difference(fn, recording)(KEY, np.zeros(8, np.float32))


def test_a_call_that_returns_a_python_number_is_recorded():
    """A solve of diffrax ended in an AttributeError."""
    number = jax.jit(lambda x: (x, 1))
    fn = lambda x: jnp.sin(number(x)[0]) * jnp.float32(number(x)[1])  # noqa: E731
    known = noise.record(fn)(X)
    assert compare(fn, known, X) == ()


def test_a_mask_hides_nothing():
    """A distance is relative to the whole value, of which such a mask is most."""

    def masked(x, w, factor):
        h = jnp.where(jnp.eye(12, dtype=bool), -1e9, x @ x.T * factor)
        return jax.nn.softmax(h, axis=-1) @ x

    known = noise.record(lambda x, w: masked(x, w, 1.0))(X, W)
    report = compare(lambda x, w: masked(x, w, 1.001), known, X, W)
    assert "select_n" in [entry.primitive for entry in report], report


def test_a_decision_that_nothing_follows_is_no_alarm():
    """In the gradient of a maximum an element is compared with itself, rounded anew."""

    def fn(x, w, tie):
        h = x @ w
        top = jnp.max(h, axis=-1, keepdims=True)
        equal = (h == top * tie).astype(jnp.float32)
        return jnp.sum(jnp.exp(h - top), axis=-1) + 0.0 * jnp.sum(equal)

    known = noise.record(fn)(X, W, jnp.float32(1))
    report = compare(fn, known, X, W, jnp.float32(1 + 2**-23))
    assert report == (), report
    assert "eq" in [entry.primitive for entry in report.differing]


def test_another_formula_inside_a_loop_is_no_alarm():
    """Two versions of JAX write the derivative of tanh so, inside a scan."""

    def steps(derivative):
        def fn(x, w):
            def step(h, _):
                h = jnp.tanh(h @ w)
                return derivative(h) @ w, jnp.sum(h)

            return lax.scan(step, x, None, length=3)

        return fn

    recorded = steps(lambda h: jnp.sin(h) * (jnp.float32(1) - h * h))
    here = steps(lambda h: (jnp.sin(h) + jnp.sin(h) * h) * (jnp.float32(1) - h))
    report = compare(here, noise.record(recorded)(X, W), X, W)
    assert report == (), report
    assert report.parted


def test_arrays_of_objects_have_their_own_names():
    """A mean that differs was blamed on the scale, a dropout key on the input."""

    class Net(nnx.Module):
        def __init__(self, rngs):
            self.norm = nnx.BatchNorm(16, rngs=rngs)
            self.drop = nnx.Dropout(0.5, rngs=rngs)
            self.out = nnx.Linear(16, 4, rngs=rngs)

        def __call__(self, x):
            return self.out(self.drop(self.norm(x)))

    def call(net, x):
        return net(x)

    def other(change):
        net = Net(nnx.Rngs(0))
        change(net)
        return net

    def mean(net):
        net.norm.mean[...] = net.norm.mean[...] + 1.0

    def kernel(net):
        net.out.kernel[...] = net.out.kernel[...] * 1.5

    known = noise.record(call)(other(lambda net: None), X)
    for change, name in ((mean, "mean"), (kernel, "kernel")):
        report = compare(call, known, other(change), X)
        assert report[0].primitive == "argument"
        assert name in report[0].path
    report = compare(call, known, other(lambda net: None), X + 1)
    assert report[0].path == "argument[1]"


def test_a_decision_of_this_program_alone_hides_no_wrong_elements():
    """The smallest tenth, wrong by a tenth, was within noise after a new threshold."""
    x = jax.random.normal(jax.random.key(1), (8, 32))

    def weights(x):
        return jax.nn.softmax(6 * x)

    def wrong(x):
        found = weights(x)
        return jnp.where(found <= 1e-5, found * 1.1, found)

    recording = noise.record(weights)(x)
    report = noise.first_difference(wrong, recording, draws=4)(jax.random.key(0), x)
    assert report[-1].path == "result", str(report)


def test_an_element_that_is_zero_here_alone_is_found():
    """Noise never moves a zero, so that nothing told how far it may be."""
    x = jax.random.normal(jax.random.key(1), (32, 32), jnp.bfloat16)

    def squares(x):
        return x @ x.T

    sizes = np.abs(np.asarray(squares(x), float)).ravel()
    typical = int(np.argsort(sizes)[sizes.size // 2])

    def zeroed(x):
        return squares(x).ravel().at[typical].set(0).reshape(32, 32)

    report = compare(zeroed, noise.record(squares)(x), x)
    assert report
    assert report[-1].path == "result"


def test_a_decision_that_nothing_reads_is_no_fault():
    """Derivatives leave some, such as an `eq`, and versions of JAX leave others."""

    def above(limit):
        def fn(x):
            x > limit  # noqa: B015
            return jnp.tanh(x)

        return fn

    report = compare(above(0.5), noise.record(above(0.0))(X), X)
    assert not report
    assert not report.differing


DAMAGED = {
    "hashes": lambda x: x[:0],
    "values": lambda x: x[:, :-1],
    "steps": lambda x: x.astype(float),
    "norms": lambda x: x * np.nan,
    "largest": lambda x: x[None],
}


@pytest.mark.parametrize("name", DAMAGED)
def test_a_file_with_one_damaged_array_is_refused(name, recording, tmp_path):
    file = tmp_path / "run.npz"
    recording.save(file)
    with np.load(file) as held:
        arrays = dict(held)
    arrays[f"3/{name}"] = DAMAGED[name](arrays[f"3/{name}"])
    np.savez(file, **arrays)
    with pytest.raises(noise.NoiseError, match="it is damaged"):
        noise.load_recording(file)


@pytest.mark.parametrize("name", ["path", "dtype", "source"])
def test_a_recorded_name_that_is_no_text_is_refused(name, recording, tmp_path):
    file = tmp_path / "run.npz"
    recording.save(file)
    with np.load(file) as held:
        arrays = dict(held)
    about = json.loads(str(arrays["about"]))
    about["equations"][-1][name] = {"a": 1}
    np.savez(file, **(arrays | {"about": json.dumps(about)}))
    with pytest.raises(noise.NoiseError, match="a name that is no text"):
        noise.load_recording(file)


def test_a_chain_of_scalars_compiles_once():
    """The host reads each value: XLA computed the whole chain for each of them."""

    def steps(x):
        for _ in range(100):
            x = jnp.nextafter(x, jnp.float32(2)) * jnp.float32(1.01)
        return x

    start = time.process_time()
    jax.block_until_ready(jax.jit(steps)(jnp.float32(1)))
    plain = time.process_time() - start
    start = time.process_time()
    noise.record(steps)(jnp.float32(1))
    assert time.process_time() - start < 30 * plain


def test_an_argument_with_other_bits_is_listed_however_little_it_differs():
    x = np.random.default_rng(0).standard_normal((8, 384)).astype("f4")
    other = x.copy()
    other[3, 7] = np.nextafter(x[3, 7], np.float32(9))
    recording = noise.record(jnp.sin)(x)
    found = noise.first_difference(jnp.sin, recording)(jax.random.key(0), other)
    assert [e.path for e in found.differing][:1] == ["argument[0]"]


def test_a_result_a_little_further_than_all_runs_gets_more_runs(monkeypatch):
    """Rows in another order: 13 values on the way were listed, though no result was."""
    draw = np.random.RandomState
    x, y = draw(25).randn(30, 4), draw(115).randn(30)
    args = [jnp.asarray(a, jnp.float32) for a in (x, draw(75).randn(4), y)]

    def gradient(step):
        def of(x, w, y):
            x, y = x[::step], y[::step]

            def loss(w):
                return jnp.sum(jax.nn.softplus(x @ w) - y * (x @ w))

            return jax.value_and_grad(loss)(w)

        return of

    recording = noise.record(gradient(-1))(*args)

    def listed(further):
        monkeypatch.setattr(module, "_MORE", further)
        return list(noise.first_difference(gradient(1), recording)(KEY, *args))

    module = sys.modules["prednet_jax.noise.questions.first_difference"]
    assert listed(0)
    assert not listed(3)


def test_a_decision_that_noise_takes_in_few_runs_gets_more_runs(monkeypatch):
    """A step that a solver refuses in one run of ten looked like a fault."""
    x = jnp.asarray(np.random.default_rng(1).standard_normal(3000), jnp.float32)

    def fn(x, limit):
        return jnp.where(jnp.sum(x) < limit, x, -x)[:8]

    order = noise.parse("reduction_order:granularity=element")
    noisy = jax.jit(jax.vmap(noise.inject(lambda x: jnp.sum(x), order), (0, None)))
    sums = np.asarray(noisy(jax.random.split(KEY, 200), x))
    args = x, min(s for s in sums if np.mean(sums < s) > 0.08)
    watch = Watch(BoundCall(fn, args, {}), order)
    runs = (watch.run(key) for key in jax.random.split(KEY, 200))
    other = next(run for run in runs if run[-1].values[0, 0] == x[0])
    recording = Recording("fn", "noise", tuple(other))
    module = sys.modules[noise.first_difference.__module__]

    def listed(further):
        monkeypatch.setattr(module, "_MORE", further)
        compare = noise.first_difference(fn, recording, spec=order)
        return [len(compare(jax.random.key(i), *args)) for i in (2, 3)]

    assert all(listed(0))
    assert not any(listed(3))


def test_a_step_of_a_loop_that_no_noisy_run_takes_is_not_judged():
    """It counted as a step without noise: a decision in a solver's last step."""
    effect = NoiseEffect(np.ones((2, 3)), 1e-7)
    taken, away = np.array([True, False]), np.array([[2e-7] * 3, [0.7] * 3])
    for _ in range(8):
        effect.see(np.array([1e-7, 0]), away * taken[:, None] / 2, taken)
    judged = effect.judge(np.array([2e-7, 0.7]), away)
    assert (judged.over <= 1).all()
    assert judged.agrees.tolist() == [False, True]
    assert effect.judge(np.array([0.7, 0.0]), away[::-1]).over[0] > 1
    effect.see(np.array([1e-7, 1e-7]), away * 0)
    assert effect.judge(np.array([2e-7, 0.7]), away).over[1] > 1


def test_an_infinity_that_noise_makes_too_is_judged_without_a_warning():
    """The difference was divided by its noise, both infinite."""
    effect, none = NoiseEffect(np.ones((1, 1)), 1e-7), np.zeros((1, 1))
    effect.see(np.array([1e-7]), none)
    assert effect.judge(np.array([np.inf]), none).over == np.inf
    effect.see(np.array([np.inf]), none)
    judged = effect.judge(np.array([np.inf]), none)
    assert judged.over == 0
    assert judged.agrees


def test_what_a_decision_chose_is_not_listed_if_nothing_comes_of_it():
    """A step of a solver's trust region, chosen twice: the first choice was listed."""

    def fn(x, limit):
        chosen = jnp.where(jnp.sum(x) < limit, x, 2 * x)
        return jnp.where(jnp.sum(x) < 0, chosen, x)

    def watched(limit):
        call = BoundCall(fn, (jnp.abs(X), jnp.float32(limit)), {})
        return Watch(call, None).run(KEY)

    # The sum is 152. No argument differs: the decision has noise.
    here, there = watched(100), watched(200)
    equations = [
        a if a.primitive == "argument" else b for a, b in zip(here, there, strict=True)
    ]
    recording = Recording("fn", "noise", tuple(equations))
    found = against(recording, here, [here] * 8)
    assert not found
    assert [e.primitive for e in found.differing] == ["lt", "select_n"]


def test_one_number_differs_from_another_as_the_other_does_from_it():
    """As the whole value, whichever of the two is the larger one.

    The size of the first step of JAX's `odeint` is such a number: it is computed from
    an estimate of an error that is nothing but noise.
    """
    draws = np.array([0.62, 0.02, 0.03, 0.01, 0.02, 0.04, 0.01, 0.03])

    def judged(value, other, noise):
        effect = NoiseEffect(np.full((1, 1), value), 1e-7)
        for away in noise:
            far = np.abs(away) / max(value, value + away)
            effect.see(np.array([far]), np.full((1, 1), away))
        away = other - value
        far = np.array([np.abs(away) / max(value, other)])
        return effect.judge(far, np.full((1, 1), away))

    assert judged(1.0, 2.3, -draws).over[0] <= 1
    assert judged(1.0, 2.3, -draws / 2).over[0] > 1


def _through_a_solve(matrix, x, limit):
    return jnp.linalg.solve(matrix @ matrix.T, x)


def _through_a_loop(matrix, x, limit):
    """A loop whose predicate and whose body each read something from outside."""

    def body(state):
        count, x = state
        return count + 1, 0.5 * jnp.sin(matrix @ x)

    return lax.while_loop(lambda state: state[0] < limit, body, (limit - 3, x))[1]


@pytest.mark.parametrize("through", [_through_a_solve, _through_a_loop])
def test_what_a_body_gets_is_known_to_come_from_the_line_before(through):
    """The line was listed after all of the body, if its value is read again later."""

    def function(factor, matrix, x, limit):
        x = jnp.tanh(x)
        x = x if factor is None else x * factor
        return through(matrix, x, limit), jnp.sum(x)

    matrix = 0.1 * jax.random.normal(KEY, (6, 6)) + jnp.eye(6)
    args = matrix, X[0, :6], jnp.float32(3)
    recording = noise.record(functools.partial(function, None))(*args)
    planted = functools.partial(function, np.float32(1.03))
    report = noise.first_difference(planted, recording)(KEY, *args)
    assert report[0].path == "1:mul"


@pytest.mark.parametrize(
    "shape", [(1025,), (33, 1, 64), (64, 1024), (128, 128), (768, 2304), (2000, 2000)]
)
def test_a_sample_is_spread_over_rows_and_columns(shape):
    positions = sampled_positions(math.prod(shape), SAMPLE)
    for axis, size in enumerate(shape):
        met = len(np.unique(np.unravel_index(positions, shape)[axis]))
        # As many as random positions meet; each row and column of a small matrix.
        wanted = size if size <= 128 else 0.9 * size * (1 - math.exp(-SAMPLE / size))
        assert met >= wanted


SMALL_PARTS = {"row": np.s_[3], "column": np.s_[:, 5], "element": np.s_[3, 4]}


@pytest.mark.parametrize("part", SMALL_PARTS)
@pytest.mark.parametrize("rows", [64, 16])
def test_errors_in_elements_far_smaller_than_the_others(rows, part):
    """A row 1e6 times smaller, wrong by 50 %, was within noise, with 64 rows."""
    x = jax.random.uniform(KEY, (rows, 32), minval=0.5).at[SMALL_PARTS[part]].set(1e-6)

    def wrong(x):
        y = jnp.sin(x)
        return jnp.where(jnp.abs(x) < 1e-5, 1.5 * y, y)

    report = compare(wrong, noise.record(jnp.sin)(x), x)
    # The element is not in the sample.
    missed = rows == 64 and part == "element"
    assert bool(report) != missed, report
    assert not missed or "far smaller than the others may not be seen" in str(report)


def test_half_of_a_bfloat16_array_is_judged_by_its_own_noise():
    """Ten times smaller and wrong by 20 %, it was within the noise of the others."""
    x, w = (jax.random.normal(k, (32, 32), "bfloat16") for k in jax.random.split(KEY))
    scale = jnp.where(jnp.arange(32)[:, None] < 16, 1, 0.1).astype("bfloat16")
    factor = jnp.where(scale < 1, 1.2, 1).astype("bfloat16")
    recording = noise.record(lambda x: (x @ w) * scale)(x)
    compared = noise.first_difference(lambda x: (x @ w) * scale * factor, recording)
    assert "result" in [one.path for one in compared(KEY, x)]
    assert not noise.first_difference(lambda x: (x @ w) * scale, recording)(KEY, x)


def test_assert_close_judges_half_of_a_bfloat16_array_by_its_own_noise():
    """It was within ten times the noise of the other half."""
    x, w = (jax.random.normal(k, (32, 32), "bfloat16") for k in jax.random.split(KEY))
    scale = jnp.where(jnp.arange(32)[:, None] < 16, 1, 0.03).astype("bfloat16")
    factor = jnp.where(scale < 1, 1.5, 1).astype("bfloat16")
    fn = lambda x: (jnp.sin(x @ w) @ w) * scale  # noqa: E731
    reference = noise.noise_reference(fn, x)
    reference.assert_close(fn(x))
    with pytest.raises(AssertionError, match="elements outside"):
        reference.assert_close(fn(x) * factor)


@pytest.mark.parametrize("wrong", [1.5, 0.0])
def test_a_column_of_a_bfloat16_array_is_judged_by_its_own_noise(wrong):
    """Wrong by 50 % or zero, and ten times smaller, it was within noise."""
    keys = jax.random.split(KEY)
    x, w = (jax.random.normal(k, (16, 16), "bfloat16") / 4 for k in keys)
    scale = jnp.where(jnp.arange(16) == 5, 0.1, 1).astype("bfloat16")
    factor = jnp.where(scale < 1, wrong, 1).astype("bfloat16")
    fn = lambda x: (jnp.sin(x @ w) @ w) * scale  # noqa: E731
    reordered = (jnp.sin(x[:, ::-1] @ w[::-1]) @ w) * scale
    reference = noise.noise_reference(fn, x)
    reference.assert_close(reordered)
    with pytest.raises(AssertionError, match="elements outside"):
        reference.assert_close(fn(x) * factor)
    causes = [noise.explain(fn, fn(x), y)(KEY, x) for y in (fn(x) * factor, reordered)]
    assert causes[0].rung == "beyond", causes[0]
    assert causes[1].rung in ("identical", "order", "rounding"), causes[1]
    changed = noise.first_difference(lambda x: fn(x) * factor, noise.record(fn)(x))
    assert changed(KEY, x)
    assert not noise.first_difference(fn, noise.record(fn)(x))(KEY, x)


def test_a_single_small_element_of_a_bfloat16_array_is_found_or_said():
    """Three times smaller than the others, it was within noise, silently."""
    keys = jax.random.split(KEY)
    x, w = (jax.random.normal(k, (16, 16), "bfloat16") / 4 for k in keys)
    at = (jnp.arange(16) == 5) & (jnp.arange(16)[:, None] == 3)
    scale = jnp.where(at, 0.3, 1).astype("bfloat16")
    fn = lambda x: (jnp.sin(x @ w) @ w) * scale  # noqa: E731
    recording, reference = noise.record(fn)(x), noise.noise_reference(fn, x)
    said = "elements close to the limit, not resolved: 1 of 256"
    for wrong, is_found in ((-1, True), (0.45, False)):
        factor = jnp.where(at, wrong, 1).astype("bfloat16")
        cause = noise.explain(fn, fn(x), fn(x) * factor)(KEY, x)
        assert (cause.rung == "beyond") == is_found, cause
        assert (said in str(cause)) != is_found
    for wrong, is_found in ((-1, True), (0.5, False)):
        other = lambda x, f=wrong: fn(x) * jnp.where(at, f, 1).astype("bfloat16")  # noqa: E731
        changed = noise.first_difference(other, recording)(KEY, x)
        assert bool(changed) == is_found, changed
        assert (said in str(changed)) != is_found
    with pytest.raises(AssertionError, match="1 of 256 elements outside"):
        reference.assert_close(fn(x) * jnp.where(at, -1, 1).astype("bfloat16"))


def test_a_dropped_term_is_named_and_not_what_it_was_made_of():
    """Values that only the dropped term read had no counterpart, and came first."""

    def model(p, x, dropped):
        gate = jax.nn.sigmoid(x @ p[0])
        v = p[1].T
        two = jnp.tanh(x @ v)
        return gate + (0.0 if dropped else (1 - gate) * two)  # the fault

    args = jax.random.normal(KEY, (2, 8, 8)), jax.random.normal(KEY, (4, 8))
    recording = noise.record(functools.partial(model, dropped=False))(*args)
    report = noise.first_difference(functools.partial(model, dropped=True), recording)(
        KEY, *args
    )
    lines, first = inspect.getsourcelines(model)
    at = first + next(i for i, line in enumerate(lines) if "the fault" in line)
    assert f":{at} " in report[0].source, report


def test_noise_whose_square_is_no_number_is_no_division_by_zero():
    """The RMS over the runs was 0 where the largest deviation was not."""
    effect = ElementNoise(np.zeros(16), 2.0**-52)
    for _ in range(8):
        effect.see(np.full(16, 1e-170))
    assert not (effect.ratios(np.full(16, 1e-170), 5) > 1).any()


def test_the_text_of_a_line_is_not_that_of_its_caller(recording):
    """Lines without a file had the text of the calling line, and looked the same."""
    gone: dict = {}
    exec(compile("def inner(x):\n    return x * 2", "gone.py", "exec"), gone)
    inside = noise.record(lambda x: jax.jit(gone["inner"])(x))(jnp.ones(3)).equations
    (product,) = [e for e in inside if e.primitive == "mul"]
    assert (product.source, product.text) == ("gone.py:2 in inner", "")
    assert all(e.text for e in recording.equations if e.source)


def test_a_recording_without_samples_is_read(tmp_path):
    x = jnp.linspace(1, 2, 3 * WHOLE)
    noise.record(jnp.sin)(x).save(tmp_path / "new.npz")
    with np.load(tmp_path / "new.npz") as held:
        arrays = {name: held[name] for name in held if not name.endswith("/sample")}
    about = json.loads(str(arrays["about"])) | {"version": BEFORE_SAMPLES}
    for equation in about["equations"]:
        del equation["text"]
    np.savez(tmp_path / "old.npz", **arrays | {"about": json.dumps(about)})
    recording = noise.load_recording(tmp_path / "old.npz")
    assert not compare(jnp.sin, recording, x)
    assert compare(lambda x: jnp.sin(x) * 2, recording, x)
    # In either direction.
    (new, *_), (old, *_) = noise.record(jnp.sin)(x).equations, recording.equations
    assert not distance(new, old).away.any()
    assert not distance(old, new).away.any()


def test_a_branch_that_is_not_taken_is_read_back(tmp_path):
    x = jnp.linspace(1, 2, 3 * WHOLE)
    known = noise.record(lambda x: lax.cond(x[0] > 5, jnp.sin, jnp.cos, x))(x)
    known.save(tmp_path / "run.npz")
    again = noise.load_recording(tmp_path / "run.npz")
    (sine,) = [e for e in again.equations if e.primitive == "sin"]
    assert sine.sample.shape == (0, SAMPLE)


def test_samples_in_long_loops_are_small():
    def fn(x):
        return lax.scan(lambda y, _: (jnp.sin(y), None), x, None, length=200)

    (sine,) = [
        e
        for e in noise.record(fn)(jnp.ones(2 * WHOLE)).equations
        if e.primitive == "sin"
    ]
    assert sine.sample.shape == (200, SAMPLES // 200)


def test_an_argument_an_ulp_off_is_not_the_cause_of_a_factor():
    """It was the first entry: noise never moves an argument."""
    x = X[:8, :8]
    known = noise.record(lambda x: x * 1.5)(x)
    moved = x.at[0, 0].set(np.nextafter(x[0, 0], np.float32(9)))
    report = noise.first_difference(lambda x: x * 2.0, known)(KEY, moved)
    assert [one.primitive for one in report] == ["mul", "result"]
    assert [one.primitive for one in report.differing] == ["argument"]


@pytest.mark.parametrize("changed", [None, "w", "b", "z"])
def test_arguments_and_results_in_another_order_are_compared_by_their_names(changed):
    """A leaf of a dictionary with other order of keys was blamed on what reads it."""

    def block(p):
        out = jnp.tanh(p["z"]) @ p["w"] + p["b"]
        return type(p)([("out", out), ("b", jnp.sin(p["b"]))])

    params = OrderedDict(z=X[:3], w=W, b=X[3])
    recording = noise.record(block)(params)
    here = {**params, changed: params[changed] * 1.1} if changed else dict(params)
    report = compare(block, recording, here)
    assert report.parted == ()
    assert [one.path for one in report if one.primitive == "argument"] == (
        [f"argument[0]['{changed}']"] if changed else []
    )
    assert bool(report) == bool(changed)
    assert not report or report[0].primitive == "argument"


def test_an_argument_of_another_name_or_type_is_compared():
    recording = noise.record(lambda x, w: x @ w)(X, w=W)
    (first, *_) = compare(lambda x, w: x @ w, recording, X, W * 1.1)
    assert first.path == "argument[1]"
    # A port has other names, which are in another order.
    recording = noise.record(lambda p: p["left"] - p["right"])(
        {"left": W, "right": W.T}
    )
    ported = lambda p: p["b"] - p["a"]  # noqa: E731
    assert not compare(ported, recording, {"a": W.T, "b": W})
    (first, *_) = compare(ported, recording, {"a": W.T, "b": W * 1.1})
    assert first.path == "argument[0]['b']"
    recording = noise.record(lambda x, w: x @ w)(X, w=W)
    narrow = W.astype(jnp.bfloat16)
    report = compare(lambda x, w: x @ w.astype(jnp.float32), recording, X, narrow)
    assert report[0].note == "bfloat16[16,16] here, float32[16,16] in the recording"


@pytest.mark.parametrize("ulps", [1, 2])
def test_an_argument_ulps_off_is_the_cause_of_what_a_subtraction_leaves(ulps):
    """The subtraction of nearby numbers is exact, and its result was blamed."""
    x = np.full((3, 4), 1 + 4 * 2.0**-23, np.float32)
    other = x.copy()
    other[1, 2] += np.float32(ulps * 2.0**-23)
    recording = noise.record(lambda x: jnp.sin((x - 1) * 3e6))(x)
    report = noise.first_difference(lambda x: jnp.sin((x - 1) * 3e6), recording)
    first, second, *_ = report(KEY, other)
    assert (first.primitive, second.primitive) == ("argument", "sub")


def test_loops_share_the_executions_that_are_kept():
    assert watch._steps_kept(256, [3, 1 << 32]) == [3, 85]
    assert watch._steps_kept(256, [1 << 32, 3]) == [85, 3]
    assert watch._steps_kept(256, [100, 100]) == [16, 16]
    assert watch._steps_kept(256, [1000]) == [256]
    assert watch._steps_kept(None, [1000, 7]) == [1000, 7]


def _in_a_scan(change, w, x):
    def step(h, _):
        return change(h @ w), jnp.sum(h)

    return lax.scan(step, x, None, length=4)


def _in_a_while(change, w, x):
    body = lambda state: (state[0] + 1, change(state[1] @ w))  # noqa: E731
    return lax.while_loop(lambda state: state[0] < 4, body, (0, x))


def _in_loops(change, w, x):
    inner = lambda _, h: change(h @ w)  # noqa: E731
    return lax.fori_loop(0, 2, lambda _, h: lax.fori_loop(0, 2, inner, h), x)


def _in_a_branch(change, w, x):
    return lax.cond(x[0, 0] < 9, lambda x: change(x @ w), lambda x: x, x) @ w


def _before_other_lines(change, w, x):
    return jnp.sum(jnp.sin(change(x @ w)) ** 2)


def _damped(h):
    return jnp.tanh(h)


@pytest.mark.parametrize(
    "through",
    [_in_a_scan, _in_a_while, _in_loops, _in_a_branch, _before_other_lines],
)
def test_a_line_that_one_version_alone_has_comes_before_its_readers(through):
    """In a loop the next step was blamed, and next to a dropped call its reader."""
    x = jax.random.normal(KEY, (8, 8))
    args = x / 3, x.T
    plain = functools.partial(through, lambda h: h)
    damped = functools.partial(through, _damped)
    for here, there in ((damped, plain), (plain, damped)):
        report = noise.first_difference(here, noise.record(there)(*args))(KEY, *args)
        assert report[0].primitive == "tanh", report


def _near_factors(h, _):
    h = h * 1.3  # first
    h = h * 1.01  # second
    h = h * 1.02  # third
    return h, None


def _two_near_factors(h, _):
    h = h * 1.3  # first
    h = h * 1.02  # third
    return h, None


def _three_factors(h, _):
    h = h * 1.3  # first
    h = h * 0.6  # second
    h = h * 1.2  # third
    return h, None


def _two_factors(h, _):
    h = h * 1.3  # first
    h = h * 1.2  # third
    return h, None


@pytest.mark.parametrize(
    ("bodies", "dtype"),
    [
        ((_three_factors, _two_factors), "float32"),
        ((_three_factors, _two_factors), "bfloat16"),
        ((_near_factors, _two_near_factors), "float32"),
    ],
)
def test_a_dropped_line_is_told_from_an_unchanged_one_like_it(bodies, dtype):
    """The line after it was paired with it, and blamed."""
    x = jax.random.normal(KEY, (8, 8), dtype)
    plain, dropped = (lambda x, f=f: lax.scan(f, x, None, length=3)[0] for f in bodies)
    for here, there in ((dropped, plain), (plain, dropped)):
        report = noise.first_difference(here, noise.record(there)(x))(KEY, x)
        name = bodies[0].__name__
        assert report[0].source == f"{line_of(bodies[0], 'second')}{name}"


def test_zeros_have_no_factor():
    """0 / 0 was a warning, such as for the first step of a loop from zeros."""
    zeros = np.zeros(16)
    assert not alignment.same_up_to_a_factor(zeros, zeros)


def test_equal_terms_in_another_order_are_no_alarm():
    """Values near each other are not the same value with another factor."""
    x = 1 + jax.random.uniform(KEY, (8, 8)) / 10
    mean = lambda x: jnp.mean(jnp.sqrt(x))  # noqa: E731
    flipped = lambda x: jnp.mean(jnp.sqrt(jnp.flip(x)))  # noqa: E731
    assert not compare(flipped, noise.record(mean)(x), x)


@pytest.mark.parametrize("in_loop", [False, True])
def test_values_that_nothing_reads_are_not_listed(in_loop):
    """The counters of checks whose error is dropped came before the fault."""

    def version(factor):
        def step(x):
            y = factor(x @ x.T)
            checkify.check(jnp.all(y < 1e6), "large")
            return jnp.tanh(y)

        def fn(x):
            if not in_loop:
                return checkify.checkify(step)(x)[1]
            loop = checkify.checkify(
                lambda x: lax.scan(lambda c, _: (step(c), 0), x, length=2)
            )
            return jax.jit(loop)(x)[1][0]

        return fn

    x = jax.random.normal(KEY, (4, 4))
    known = noise.record(version(lambda y: y))(x)
    assert not noise.first_difference(version(lambda y: y), known)(KEY, x).differing
    report = noise.first_difference(version(lambda y: 1.03 * y), known)(KEY, x)
    assert report[0].primitive == "mul"
    assert not {entry.primitive for entry in report} & {"select_n", "or", "not"}


def test_an_argument_that_nothing_reads_is_not_listed():
    """It came before the fault, and alone where nothing was wrong."""
    x = jax.random.normal(KEY, (4, 4))
    known = noise.record(lambda x, mask: x @ x)(x, x > 0)
    compare = noise.first_difference(lambda x, mask: x @ x, known)
    assert not compare(KEY, x, x < 0)
    compare = noise.first_difference(lambda x, mask: 1.03 * (x @ x), known)
    assert compare(KEY, x, x < 0)[0].primitive == "mul"


def test_tools_do_not_look_at_what_nothing_reads():
    """A logarithm, a rounding and a difference that no result needs were listed."""

    def fn(x):
        _ = jnp.log(x - 100), jnp.round(x, 7), x[0] + 1e-7 - x[0]
        return jnp.sin(x)

    x = jax.random.normal(KEY, (8,))
    assert noise.first_nan(fn)(x) is None
    assert not noise.cancellations(fn)(x)
    assert "decisions: 0" in str(noise.decisions(fn, draws=2)(KEY, x))


def test_python_numbers_among_results_are_compared_by_name():
    """A number that differed gave an empty report, and took the names of the others."""

    def results(number, **others):
        return lambda x: {"number": number, "y": x * np.float32(1.1)} | others

    x = jnp.arange(3.0)
    recording = noise.record(results(1.5))(x)
    for fn, paths in (
        (results(1.5), []),
        (results(1.7), ["result['number']"]),
        (results(1.5, count=True), ["result['count']"]),
    ):
        report = noise.first_difference(fn, recording)(KEY, x)
        assert [entry.path for entry in report] == paths


def test_values_that_are_equal_in_the_first_step_have_no_factor():
    """The product of [x, h] was listed: h begins with zeros, and x @ w is the same."""
    w, v = jax.random.normal(KEY, (2, 6, 6)) / 3

    def apart(x):
        step = lambda h, x: (jnp.tanh(x @ w + h @ v), None)  # noqa: E731
        return lax.scan(step, jnp.zeros(6), x)[0]

    def joined(x):
        both = jnp.concatenate([w, v])
        step = lambda h, x: (jnp.tanh(jnp.concatenate([x, h]) @ both), None)  # noqa: E731
        return lax.scan(step, jnp.zeros(6), x)[0]

    assert not compare(joined, noise.record(apart)(X[:, :6]), X[:, :6])


def test_a_result_of_many_elements_agrees_if_it_is_hardly_further_than_noise():
    """All draws of the noise were .95 to 1.06 of their RMS away, and the result 1.1."""
    x = jax.random.normal(jax.random.key(30), (2, 8, 8, 4))
    w = jax.random.normal(jax.random.key(31), (3, 3, 4, 6)) / 6

    def layer(x, w):
        names = ("NHWC", "HWIO", "NHWC")
        return lax.conv_general_dilated(x, w, (1, 1), "SAME", dimension_numbers=names)

    def reversed_layer(x, w):
        return layer(x[:, ::-1, ::-1], w[::-1, ::-1])[:, ::-1, ::-1]

    find = noise.first_difference(reversed_layer, noise.record(layer)(x, w))
    assert not find(jax.random.key(2), x, w)


def test_numbers_above_1e18_that_differ_have_a_note():
    """A wrong factor was "within noise", without a word."""
    recording = noise.record(lambda x: x * np.float32(1e30))(X)
    report = compare(lambda x: x * np.float32(2e30), recording, X)
    assert {entry.note for entry in report.differing} == {
        "numbers above 1e18 differ, by how much is not known"
    }
    # Next to such a number, others are compared as always.
    recording = noise.record(lambda x: jnp.append(jnp.tanh(x), np.float32(1e30)))(X)
    report = compare(lambda x: jnp.append(jnp.sin(x), np.float32(1e30)), recording, X)
    notes = [entry.note for entry in (*report, *report.differing)]
    assert not any("1e18" in note for note in notes)


def test_values_reach_the_host_in_few_arrays(monkeypatch):
    """JAX copies each operand of a callback: twenty took half of a recording."""
    counts, callback = [], jax.debug.callback

    def counted(note, *given, **options):
        counts.append(len(jax.tree.leaves(given)))
        return callback(note, *given, **options)

    monkeypatch.setattr(jax.debug, "callback", counted)

    def loop(x):
        return lax.fori_loop(0, 3, lambda i, x: jnp.sin(x) * i.astype(x.dtype), x)

    noise.record(loop)(jnp.ones(4))
    # One for each of three types, and the steps of the loop.
    assert max(counts) <= 4


@pytest.mark.parametrize("size", [16, WHOLE])
def test_a_part_of_a_complex_number_below_its_rounding_is_judged_by_the_number(size):
    """The rest 5e-9 |z| that roundings leave of an imaginary part was beyond noise."""
    x = 1 + jnp.abs(jax.random.normal(KEY, (size,)))

    def with_part(part):
        return lambda x: lax.complex(jnp.cos(x), 0 * x) * np.complex64(1 + 1j * part)

    recording = noise.record(with_part(5e-9))(x)
    assert not compare(with_part(-2e-8), recording, x)
    assert not compare(with_part(0), recording, x)
    # Smaller parts, and larger ones, are no rests of roundings.
    for part in (1e-2, 1e-6, 1e-20):
        recording = noise.record(with_part(part))(x)
        assert compare(with_part(1.1 * part), recording, x), part


def test_one_number_of_another_formula_has_no_factor():
    """Any number is another one times a factor."""

    def scaled(shift):
        def fn(x):
            total = jnp.sum(x) + np.float32(shift)
            return jnp.sin(x) * (total if shift == 0 else total - np.float32(shift))

        return fn

    assert not compare(scaled(1), noise.record(scaled(0))(X), X)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_a_recording_rounds_where_a_port_computes_in_float32(dtype):
    """4 of 100 numbers were beyond noise: the roundings of the recorded gelu."""
    x = jax.random.normal(KEY, (10, 10)).astype(dtype)

    def port(x, factor=1.0):
        y = jax.nn.gelu(x.astype(jnp.float32)).astype(dtype)
        return y.at[3, 4].multiply(jnp.asarray(factor, dtype))

    recording = noise.record(jax.nn.gelu)(x)
    assert not compare(port, recording, x)
    assert compare(functools.partial(port, factor=1.2), recording, x)
    # The same roundings here have noise of this size.
    assert not compare(jax.nn.gelu, noise.record(port)(x), x)
    # A recording by the same program has no roundings of its own.
    tiny = x.at[3, 4].set(0.01)
    wrong = functools.partial(port, factor=1.2)
    assert compare(wrong, noise.record(functools.partial(port, factor=1.0))(tiny), tiny)


def test_a_recording_rounds_where_a_port_computes_in_float64():
    with jax.enable_x64(True):
        x = jax.random.normal(KEY, (10, 10), np.float32).astype(jnp.bfloat16)

        def port(x):
            return jax.nn.gelu(x.astype(np.float64)).astype(jnp.bfloat16)

        assert not compare(port, noise.record(jax.nn.gelu)(x), x)


def test_a_python_number_among_the_arguments_is_the_first_difference():
    """The line that uses it came first."""

    def step(x, rate, *, seed=2**70):
        return x - rate * jnp.sin(x)

    recording = noise.record(step)(X, 2.0)
    assert compare(step, recording, X, 3.0)[0].path == "argument[1]"
    assert not compare(step, recording, X, 2.0)


def test_masks_that_have_one_effect_have_a_note():
    """Four rows of infinities had none, although the results were equal."""

    def masked(fill):
        mask = jnp.tril(jnp.ones((12, 12), bool))
        return lambda x: jax.nn.softmax(jnp.where(mask, x @ x.T, fill)) @ x

    report = compare(masked(-np.inf), noise.record(masked(-1e9))(X), X)
    assert {entry.note for entry in report} == {"what is computed of it agrees"}


def test_python_numbers_of_another_type_and_beyond_float32():
    """The row of 1.0 for 1 did not say why it is there; 1e300 was a warning."""

    def scaled(x, factor, most):
        return x * factor

    recording = noise.record(scaled)(X, 1, 1e300)
    (entry,) = compare(scaled, recording, X, 1.0, 1e300)
    assert entry.note.startswith("float32[] here, int32[] in the recording; ")
    assert entry.note.endswith("what is computed of it agrees")
