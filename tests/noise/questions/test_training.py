"""`training` and `curves`: bands of small trainings, faults, and recorded curves."""

import math
import tracemalloc

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from jax.experimental import checkify

from prednet_jax import noise
from prednet_jax.noise.questions import bands, sampling

UPDATES = 40
KEY = jax.random.key(0)


def loss_of(w, x, y):
    return jnp.mean((jnp.tanh(x @ w["a"]) @ w["b"] - y) ** 2)


def step(state, batch, rate=0.1):
    loss, grads = jax.value_and_grad(loss_of)(state["w"], *batch)
    w = jax.tree.map(lambda w, g: w - rate * g, state["w"], grads)
    norm = jnp.sqrt(sum(jnp.sum(g * g) for g in jax.tree.leaves(grads)))
    return {"w": w, "update": state["update"] + 1}, (loss, {"grad_norm": norm})


def state():
    random = np.random.default_rng(0)
    w = {"a": random.standard_normal((6, 8)), "b": random.standard_normal(8)}
    return {"w": jax.tree.map(jnp.float32, w), "update": 0}


def batch(update):
    random = np.random.default_rng(update)
    x = jnp.float32(random.standard_normal((16, 6)))
    return x, jnp.sin(3 * x[:, 0])


def trained(step=step, order=slice(None), updates=UPDATES):
    now, seen = state(), []
    run = jax.jit(step)
    for i in range(updates):
        now, (loss, more) = run(now, [x[order] for x in batch(i)])
        seen.append([float(loss), float(more["grad_norm"])])
    return np.array(seen).T


@pytest.fixture(scope="module")
def band():
    # What is no array may be in a batch too.
    batches = [{"xy": batch(i), "name": "train"} for i in range(UPDATES)]

    def named(state, batch):
        after, (loss, metrics) = step(state, batch["xy"])
        return after, (loss, metrics | {"weights": after["w"]["a"], "name": "a"})

    return noise.training(named, state(), batches)(KEY)


def test_the_band_has_the_curves_of_all_draws(band):
    assert band.losses.shape == (8, UPDATES)
    assert {n: x.shape for n, x in band.metrics.items()} == {"grad_norm": (8, UPDATES)}
    assert (band.losses.std(0) > 0).mean() > 0.8
    np.testing.assert_allclose(band.losses.mean(0), trained()[0], rtol=1e-5)
    assert "half width" in str(band)


@pytest.mark.parametrize("seed", range(4))
def test_another_order_of_rows_is_noise(band, seed):
    loss, norm = trained(order=np.random.default_rng(seed).permutation(16))
    assert band.compare(loss).answer == "noise"
    assert band.compare(loss, grad_norm=norm).answer == "noise"


def test_halves_of_a_batch_and_printed_digits_are_noise(band):
    def halves(state, batch):
        (_, (a, _)), (_, (b, _)) = (
            step(state, [x[rows] for x in batch]) for rows in (slice(8), slice(8, 16))
        )
        after, (_, more) = step(state, batch)
        return after, ((a + b) / 2, more)

    assert band.compare(trained(halves)[0]).answer == "noise"
    assert band.compare(np.round(trained()[0], 4)).answer == "noise"


@pytest.mark.parametrize("form", [".4f", ".5g", ".4e", ".7g"])
@pytest.mark.parametrize("kind", [float, np.float32])
def test_digits_of_a_printed_curve_are_its_precision(band, form, kind):
    loss = trained()[0]
    printed = np.array([float(format(x, form)) for x in loss], kind)
    assert band.compare(printed).answer == "noise"
    assert band.compare(1.01 * loss).first == 0


@pytest.mark.parametrize("form", [".1f", ".2f", ".4f", ".1e"])
def test_the_last_digit_may_be_the_only_one(form):
    """The logarithms of .149 and of .1 are far apart."""
    true = 1.49 * 0.97 ** np.arange(80)
    noisy = np.exp(1e-7 * np.random.default_rng(0).standard_normal((8, 80)))
    draws = np.float32(true * noisy)
    band = noise.Band(draws, {}, 0.0, 8, [{"loss": draws}], None)
    printed = np.array([float(format(x, form)) for x in true])
    assert band.compare(printed).answer == "noise"
    printed[50] = np.nan
    assert band.compare(printed).first == 50
    assert band.compare([float(format(1.5 * x, form)) for x in true]).first == 0


@pytest.mark.parametrize("kind", [jnp.float16, jnp.bfloat16])
def test_a_curve_of_a_narrow_type_may_be_kept_in_a_wide_one(band, kind):
    loss = trained()[0]
    assert band.compare(loss.astype(kind).astype(float)).answer == "noise"
    assert band.compare((1.02 * loss).astype(kind).astype(float)).first == 0


@pytest.mark.parametrize("kind", [jnp.float16, jnp.bfloat16])
def test_a_curve_may_be_a_list_in_a_narrow_type(band, kind):
    assert band.compare([jnp.asarray(x, kind) for x in trained()[0]]).answer == "noise"
    assert noise.curves([[kind(1)], [kind(1.1)]], [[1], [1.1]]).answer == "cannot tell"


def adam(state, batch, rate=0.03):
    """Adam's 1 - 0.999^t in float32 is wrong by 1.3e-5, in the same way every time."""
    w, m, v, t = state
    loss, g = jax.value_and_grad(loss_of)(w, *batch)
    m = jax.tree.map(lambda m, g: 0.9 * m + 0.1 * g, m, g)
    v = jax.tree.map(lambda v, g: 0.999 * v + 0.001 * g * g, v, g)
    t = t + 1
    first, second = 1 - 0.9**t, 1 - 0.999**t

    def moved(w, m, v):
        return w - rate * (m / first) / (jnp.sqrt(v / second) + 1e-8)

    return (jax.tree.map(moved, w, m, v), m, v, t), loss


def test_a_training_in_float64_is_noise():
    zeros = jax.tree.map(jnp.zeros_like, state()["w"])
    begin = state()["w"], zeros, zeros, jnp.zeros(())
    batches = [batch(i) for i in range(80)]
    band = noise.training(adam, begin, batches)(KEY)

    def curve(step, begin, batches):
        run, now, losses = jax.jit(step), begin, []
        for xy in batches:
            now, loss = run(now, xy)
            losses.append(float(loss))
        return losses

    with jax.enable_x64(True):
        wide = jax.tree.map(lambda x: np.asarray(x, np.float64), (begin, batches))
        exact = curve(adam, *wide)
    found = band.compare(exact)
    assert found.answer == "noise"
    assert "in float64 leaves the band too" in found.note
    np.testing.assert_allclose(band._in_float64()[0]["loss"], exact, rtol=1e-10)

    def faster(state, batch):
        return adam(state, batch, jnp.where(state[3] < 10, 0.03, 0.030003))

    found = band.compare(curve(faster, begin, batches))
    assert found.answer == "beyond"
    assert 11 <= found.first < 20
    assert "float64" not in found.note


def test_losses_of_zero_are_compared():
    draws = np.zeros((8, 6), np.float32)
    draws[:, :2] = 1 + 1e-7 * np.random.default_rng(0).standard_normal((8, 2))
    band = noise.Band(draws, {}, 0.0, 8, [{"loss": draws}], None)
    curve = draws[0].astype(float)
    assert band.compare(curve).answer == "noise"
    curve[3] = 1e-9
    assert band.compare(curve).first == 3
    assert "half width" in str(band)


def test_a_metric_may_be_called_losses():
    draws = 1 + 1e-3 * np.random.default_rng(0).standard_normal((8, 6))
    kept = {"loss": draws, "losses": draws + 1}
    band = noise.Band(draws, {"losses": draws + 1}, 0.0, 8, [kept], None)
    assert band.compare(draws[0], losses=draws[0] + 1).answer == "noise"


def test_the_loss_is_no_metric():
    def named(state, batch):
        after, (loss, _) = step(state, batch)
        return after, (loss, {"loss": 2 * loss, 3: loss, "norm": loss})

    band = noise.training(named, state(), batch, updates=2)(KEY)
    np.testing.assert_allclose(band.losses[0], trained(updates=2)[0], rtol=1e-5)
    assert list(band.metrics) == [3, "norm"]
    with pytest.raises(noise.NoiseError, match=r"metric='a': .* 3, norm"):
        band.compare(band.losses[0], a=band.losses[0])


def test_a_loop_of_the_step_that_does_not_end_is_named():
    def root(state, batch):
        def moves(pair):
            return jnp.any(pair[0] != pair[1])

        x = jnp.abs(batch[1]) + 1
        end = jax.lax.while_loop(
            moves, lambda p: (0.5 * (p[0] + x / p[0]), p[0]), (x, 0 * x)
        )
        return state, jnp.sum(end[0])

    with pytest.raises(noise.NoiseError, match="does not converge"):
        noise.training(root, state(), batch, updates=3)(KEY)


def test_a_fault_is_found_at_the_update_that_it_changes(band):
    def late(state, batch):
        rate = jnp.where(state["update"] == 20, 0.1001, 0.1)
        return step(state, batch, rate)

    found = band.compare(trained(late)[0])
    assert (found.answer, found.first) == ("beyond", 21)
    assert found.ratio > 1
    assert "leaves the band at update 21" in str(found)
    # Of several curves, the one that tells first.
    of_norm = trained(late)
    of_norm[1, 5] *= 1.001
    found = band.compare(of_norm[0], grad_norm=of_norm[1])
    assert (found.quantity, found.first) == ("grad_norm", 5)


def test_more_draws_are_run_where_eight_do_not_decide():
    batches = [batch(i) for i in range(UPDATES)]
    near = noise.training(step, state(), batches, draws=4, most=8)(KEY)
    limit = bands._bounds(near.losses, near.losses[0], 0.0025)
    curve = limit.values(limit.center + 0.7 * limit.limit * limit.unit)
    found = near.compare(curve)
    assert found.draws == 8
    assert "4 more draws took" in found.note
    assert near.losses.shape == (4, UPDATES)


def test_a_curve_that_becomes_nan_is_beyond(band):
    loss = trained()[0]
    loss[30:] = np.nan
    found = band.compare(loss)
    assert (found.answer, found.first) == ("beyond", 30)
    assert "NaN or infinite from update 30 on" in found.note
    # No draw breaks, so that more draws would change nothing.
    assert found.draws == len(band.losses)
    assert "inf" not in str(found).replace("infinite", "")


def test_a_training_that_ends_in_nan_at_an_update_of_chance():
    """Where some draws have a NaN, a curve with or without one is noise."""
    draws = 1 + 1e-7 * np.random.default_rng(0).standard_normal((8, 20))
    draws[:3, 15:] = np.nan
    band = noise.Band(draws, {}, 0.0, 8, [{"loss": draws}], None)
    curve = np.ones(20)
    assert band.compare(curve).answer == "noise"
    curve[12:] = np.nan
    found = band.compare(curve)
    assert found.answer == "noise"
    assert "3 of 8 draws" in found.note
    draws[:, 15:] = np.nan
    assert band.compare(np.ones(20)).first == 15
    found = band.compare(curve)
    assert (found.answer, found.first) == ("beyond", 12)
    assert "from update 12 on, the draws from 15 to 15 on" in found.note
    assert "half widths" not in str(found)
    assert "loss: 8 of 8 draws NaN or infinite, from 15 on" in str(band)
    for begin in (14, 15, 16):
        curve = np.where(np.arange(20) < begin, 1.0, np.nan)
        assert band.compare(curve).answer == "noise"
    draws[:], curve[:] = np.nan, np.nan
    assert "relative" not in str(band.compare(curve))
    curve[:2] = 1
    assert band.compare(curve).first == 0


def test_a_loss_of_few_bits_is_compared_with_its_precision():
    draws = jnp.linspace(2, 1, 30).astype(jnp.bfloat16)
    draws = np.stack([draws] * 8)
    band = noise.Band(draws, {}, 0.0, 8, [{"loss": draws}], None)
    exact = np.linspace(2, 1, 30)
    assert band.compare(exact).answer == "noise"
    assert band.compare(1.1 * exact).first == 0


def test_losses_that_are_not_positive_are_compared_as_they_are():
    draws = np.random.default_rng(0).standard_normal((8, 30)) * 1e-3
    band = noise.Band(draws, {}, 0.0, 8, [{"loss": draws}], None)
    assert band.compare(draws[0] * 0).answer == "noise"
    assert band.compare(draws[0] + 0.1).first == 0


@pytest.mark.parametrize("draws", [8, 16, 64])
def test_few_equal_trainings_are_beyond(draws):
    """Growth from rounding to redraws, by a random factor."""
    random, t = np.random.default_rng(draws), np.arange(120)

    def curves(n):
        grown = 1e-6 * np.exp(t / 10) * random.standard_normal((n, 1))
        slow = np.cumsum(random.standard_normal((n, 120)), 1) / 10
        return np.exp(1e-7 * random.standard_normal((n, 120)) + np.tanh(grown) * slow)

    alarms = 0
    for _ in range(10):
        known = curves(draws)
        band = noise.Band(known, {}, 0.0, draws, [{"loss": known}], None)
        alarms += sum(band.compare(x).first is not None for x in curves(20))
    assert alarms <= 6


def test_batches_may_be_a_function_and_the_state_an_nnx_object():
    def nnx_step(model, batch):
        x, y = batch

        def loss(model):
            return jnp.mean((model(x)[:, 0] - y) ** 2)

        value, grads = nnx.value_and_grad(loss)(model)
        nnx.update(
            model, jax.tree.map(lambda w, g: w - 0.1 * g, nnx.state(model), grads)
        )
        return model, value

    model = nnx.Linear(6, 1, rngs=nnx.Rngs(0))
    before = np.array(model.kernel[...])
    band = noise.training(nnx_step, model, batch, updates=5, draws=4)(KEY)
    assert band.losses.shape == (4, 5)
    assert band.losses[0, -1] != band.losses[0, 0]
    np.testing.assert_array_equal(model.kernel[...], before)


def test_a_step_may_have_checks_whose_error_is_dropped():
    """Their numbers differ in each trace, but no result depends on them."""

    def checked(state, batch):
        _, after = checkify.checkify(step, errors=checkify.float_checks)(state, batch)
        return after

    curves = [
        noise.training(each, state(), batch, updates=2, draws=4)(KEY).losses
        for each in (checked, step)
    ]
    np.testing.assert_allclose(*curves, rtol=1e-5)


COUNTER = iter(range(1000))


def impure(state, batch):
    return step(state, batch, 0.1 + next(COUNTER))


def impure_inside(state, batch):
    factors = np.full(8, 1 + next(COUNTER), np.float32)
    after, told = step(state, batch)
    b = jax.jit(lambda b: b * factors)(after["w"]["b"])
    return after | {"w": after["w"] | {"b": b}}, told


def reads_numbers(state, batch):
    return state, jnp.float32(float(batch[0][0, 0]))


MODEL = nnx.Linear(2, 2, rngs=nnx.Rngs(0))


def closes_over_an_object(state, batch):
    MODEL.bias[...] = MODEL.bias[...] + jnp.mean(batch[1])
    return state, jnp.sum(MODEL.bias[...])


STEPS = {
    "free of objects": (closes_over_an_object, "expected a pure function"),
    "pure": (impure, "two traces give two programs; .* whose counters"),
    "pure inside": (impure_inside, "two traces give two programs"),
    "traceable": (reads_numbers, "JAX cannot trace it .* expected a pure function"),
    "with a loss": (lambda state, batch: state, r"expected \(state, loss\)"),
    "of one loss": (lambda s, b: (s, b[0]), r"the loss is float32\[16, 6\]"),
    "of one shape": (
        lambda s, b: (s | {"update": b[0]}, jnp.float32(1)),
        r"array 0 of its state has shape \[\] before and \[16, 6\] after",
    ),
    "of one structure": (
        lambda s, b: ({"w": s["w"]}, jnp.float32(1)),
        "expected the same leaves, of",
    ),
}


@pytest.mark.parametrize("name", STEPS)
def test_a_step_is(name):
    wrong, message = STEPS[name]
    with pytest.raises(noise.NoiseError, match=message):
        noise.training(wrong, state(), [batch(0)])(KEY)


def test_curves_of_other_lengths_are_refused(band):
    with pytest.raises(noise.NoiseError, match=r"\[3\]: .* the 40 updates"):
        band.compare([1.0, 2.0, 3.0])
    with pytest.raises(noise.NoiseError, match=r"metric='norm': .* grad_norm"):
        band.compare(np.ones(UPDATES), norm=np.ones(UPDATES))
    with pytest.raises(noise.NoiseError, match="one number for each update"):
        band.compare([1.0, [2.0, 3.0]])
    for batches in ([], {"x": np.ones(3)}, "text"):
        with pytest.raises(noise.NoiseError, match="batches="):
            noise.training(step, state(), batches)
    with pytest.raises(noise.NoiseError, match="updates=3: expected at most 2,"):
        noise.training(step, state(), [batch(0)] * 2, updates=3)


def recorded(n, shift=0.0, seed=0):
    random = np.random.default_rng([n, seed])
    own = random.standard_normal((n, 1)) + 0.3 * random.standard_normal((n, 50))
    return np.exp(1 - np.arange(50) / 50 + shift + 0.01 * own)


def test_sets_of_curves():
    same = noise.curves(recorded(9), recorded(9, seed=1))
    assert same.answer == "noise"
    assert same.p_value > 0.01
    assert 0.005 < same.detectable < 0.03
    other = noise.curves(recorded(5), recorded(5, 0.05, 1))
    assert (other.answer, other.p_value) == ("beyond", pytest.approx(2 / 252))
    pairs = noise.curves(recorded(8), recorded(8) * 1.001, paired=True)
    assert (pairs.answer, pairs.p_value) == ("beyond", pytest.approx(2 / 256))


@pytest.mark.parametrize(("count", "paired"), [(1, False), (4, False), (7, True)])
def test_few_curves_cannot_tell_and_say_what_would(count, paired):
    told = noise.curves(recorded(count), recorded(count, 0.0, 1), paired=paired)
    assert told.answer == "cannot tell"
    assert "five a side" in told.note
    assert (told.p_value is None) == (count == 1)


def test_scattered_curves_say_how_many_are_needed():
    a, b = (recorded(5, seed=s) ** 10 for s in (0, 1))
    told = noise.curves(a, b)
    assert told.answer == "cannot tell"
    assert "curves a side" in told.note


def test_sets_that_do_not_decide_ask_for_more_curves_than_they_have():
    told = noise.curves(recorded(8), recorded(8, 0.0, 1))
    assert told.answer == "cannot tell"
    count = int(told.note.split("about ")[1].split()[0])
    assert 8 < count < 40


def test_long_curves_fit_into_memory():
    a, b = (np.exp(np.random.default_rng(s).normal(0, 0.1, (8, 5000))) for s in (0, 1))
    tracemalloc.start()
    assert noise.curves(a, b).answer == "noise"
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 1e8  # The statistics of all relabellings are 5e8 bytes.


@pytest.mark.parametrize("paired", [False, True])
def test_many_curves_fit_into_memory_and_say_how_far_they_are(
    paired, monkeypatch, capsys
):
    """All relabellings of 2 x 20,000 curves took 90 s and more, in silence."""
    monkeypatch.setattr(sampling, "_SILENCE", 0.01)
    a, b = (np.exp(np.random.default_rng(s).normal(0, 1, (2000, 3))) for s in (0, 1))
    tracemalloc.start()
    assert noise.curves(a, b, paired=paired).p_value > 0.01
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 2e8  # The weights of all relabellings are 3e8 or 6e8 bytes.
    assert "of 20000 relabellings" in capsys.readouterr().err


def test_the_level_of_curves_is_exact():
    alarms = sum(
        noise.curves(recorded(5, seed=2 * s), recorded(5, seed=2 * s + 1)).answer
        == "beyond"
        for s in range(300)
    )
    assert alarms <= 8


@pytest.mark.parametrize(
    "x",
    [
        np.array(["2020-01-01"] * 8, "M8[D]"),
        np.ones(8, object),
        np.ma.array(np.ones(8), mask=np.arange(8) > 6),
        np.ones(8, complex),
    ],
    ids=lambda x: str(x.dtype),
)
def test_curves_of_what_is_no_real_number_are_refused(band, x):
    for ask in (lambda: noise.curves(x, np.ones(8)), lambda: band.compare(x)):
        with pytest.raises(noise.NoiseError, match=r"expected (real )?numbers"):
            ask()


def test_curves_that_cannot_be_compared_are_refused():
    good = recorded(5)
    bad = good.copy()
    bad[2, 7] = np.nan
    for a, b, message in (
        (good, good[:, :9], r"\[5, 50\] and b of shape \[5, 9\]"),
        (good, [], "one or more"),
        (good, bad, r"b\[2\] is nan at update 7: .*noise.first_nan"),
        (good, [[1.0], [1.0, 2.0]], "curves of one length"),
    ):
        with pytest.raises(noise.NoiseError, match=message):
            noise.curves(a, b)
    with pytest.raises(noise.NoiseError, match="one pair a seed"):
        noise.curves(good, good[:4], paired=True)


def test_a_whole_number_in_all_updates_is_no_rounded_one():
    """100 was taken for a number of two digits, so 96 was the same."""
    curve = np.full(20, 100.0, np.float32)
    assert bands._precision(curve).max() <= 0.5


def test_curves_of_any_ratio_are_compared():
    """The relative change was too large for Python's own function."""
    a = np.exp(0.01 * np.random.default_rng(0).normal(size=(8, 5)))
    assert noise.curves(1e-5 * a, 1e305 * a).change == math.inf
