from dataclasses import replace

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from prednet_jax import (
    PredNetConfig,
    Trainer,
    forecast,
    init_params,
    objectives,
    predict,
    tasks,
    train_windows,
    windows,
)
from prednet_jax.errors import UserError, log_once
from prednet_jax.models import prednet, sequences, step

SMALL = {"channels": (2, 3), "height": 4, "width": 6, "convolution": "xla"}


def network(variant, **options):
    config = PredNetConfig(variant=variant, **(SMALL | options))
    return config, init_params(config, jax.random.key(0))


def video(config, steps=4, batch=2, seed=1):
    shape = (steps, batch, config.height, config.width, config.channels[0])
    return jax.random.uniform(jax.random.key(seed), shape)


def test_published_parameter_counts():
    for variant, height, count in (
        ("lotter", 120, 6_915_948),
        ("watanabe", 120, 8_298_348),
        ("watanabe", 128, 8_390_508),
    ):
        config = PredNetConfig(variant=variant, height=height, width=160)
        assert tasks.of(config).weights == count


@pytest.mark.parametrize("variant", ["lotter", "watanabe"])
def test_frames_are_seen_one_after_the_other(variant):
    """Predictions come first, a carried state goes on, and no sequence sees another."""
    config, params = network(variant)
    frames = video(config)
    run = jax.jit(lambda f, s: predict(params, config, f, s))
    zero = prednet.initial_state(config, 2)
    whole, end = run(frames, zero)
    after, _ = run(frames.at[2].add(0.3), zero)
    np.testing.assert_array_equal(whole[:3], after[:3])
    assert np.abs(whole[3] - after[3]).max() > 1e-6
    first, state = run(frames[:2], zero)
    second, again = run(frames[2:], state)
    # Programs of different shapes may be fused differently: rounding only.
    near = {"rtol": 0, "atol": 1e-6}
    np.testing.assert_allclose(whole, jnp.concatenate([first, second]), **near)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, **near), end, again)
    alone, _ = run(frames[:, :1], prednet.initial_state(config, 1))
    np.testing.assert_allclose(whole[:, :1], alone, **near)


def test_predictions_are_clipped_and_gates_saturate():
    """The golden recordings neither clip nor saturate: large weights do."""
    config, params = network("lotter", pixel_max=0.25)
    params = jax.tree.map(lambda x: 20 * x, params)
    frames = video(config)
    names = ("prediction", "Ahat1")
    found, _ = jax.jit(lambda f: prednet.outputs(params, config, f, names))(frames)
    predictions, above = (found[name] for name in names)
    assert float(predictions.max()) == 0.25
    assert float(above.max()) > 0.25
    x = jnp.array([-2.5, -2.4999, 0.0, 2.5, 3.0, -3.0])
    expected = [0.0, 0.2 * -2.4999 + 0.5, 0.5, 1.0, 1.0, 0.0]
    np.testing.assert_allclose(step.hard_sigmoid(x), expected, atol=1e-7)
    slope = jax.vmap(jax.grad(step.hard_sigmoid))(x)
    np.testing.assert_allclose(slope, [0.2, 0.2, 0.2, 0.2, 0, 0])
    # At a tie the whole gradient passes, as in the published back ends.
    assert jax.grad(lambda x: step.clip_above(x, 1.0))(1.0) == 1.0


def test_initialisers_have_the_published_spread():
    config = PredNetConfig(channels=(8, 16), height=16, width=16)
    params = init_params(config, jax.random.key(0))
    kernel = np.asarray(params["gates_0"]["kernel"])
    # h and E are separate Chainer convolutions, each with its own fan-in; 3 % is
    # over four standard errors of the deviation at these counts.
    for part, fan_in in ((kernel[:, :, :8], 72), (kernel[:, :, 8:], 144)):
        assert part.std() * np.sqrt(fan_in) == pytest.approx(1, abs=0.06)
    peephole = np.asarray(params["gates_0"]["peephole"])
    assert peephole.std() * np.sqrt(8 * 256) == pytest.approx(1, abs=0.06)
    lotter = PredNetConfig(channels=(8, 16), height=16, width=16, variant="lotter")
    drawn = init_params(lotter, jax.random.key(0))
    limit = np.sqrt(6 / ((8 + 16 + 16) * 9 + 8 * 9))
    for name in ("gates_0", "top_down_0"):
        kernel = np.abs(np.asarray(drawn[name]["kernel"]))
        assert 0.98 * limit < kernel.max() <= limit
    assert "peephole" not in drawn["gates_0"]
    assert not np.asarray(drawn["gates_0"]["bias"]).any()
    with pytest.raises(TypeError, match="expected PredNetConfig"):
        init_params({"channels": 3}, jax.random.key(0))


def test_float64_agrees_with_float32():
    config, params = network("watanabe")
    frames = video(config)
    single, _ = predict(params, config, frames)
    with jax.enable_x64(True):
        wide = jax.tree.map(lambda x: jnp.asarray(x, jnp.float64), params)
        double, state = predict(wide, config, jnp.asarray(frames, jnp.float64))
        assert double.dtype == jnp.float64
        assert state.cell[0].dtype == jnp.float64
        mixed, _ = predict(wide, config, frames)  # Frames get the weights' precision.
        np.testing.assert_array_equal(mixed, double)
    # A few dozen float32 roundings of values below 1.
    np.testing.assert_allclose(single, double, rtol=0, atol=1e-6)


@pytest.mark.parametrize("variant", ["lotter", "watanabe_pytorch"])
def test_whole_numbers_and_the_order_of_axes_are_taken_as_named(variant):
    """uint8 is a fraction of 255; a layout is given, never guessed from a shape."""
    config, params = network(variant)
    whole = np.random.default_rng(0).integers(0, 256, (3, 3, 4, 6, 2), np.uint8)
    expected, state = predict(params, config, whole / np.float32(255))
    found, again = predict(params, config, whole)
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-6)
    chex.assert_trees_all_close(again, state, atol=1e-6)
    swapped, _ = predict(params, config, whole.swapaxes(0, 1), layout="NTHWC")
    np.testing.assert_array_equal(swapped.swapaxes(0, 1), found)
    assert not np.array_equal(swapped, found)
    first, _ = predict(params, config, whole.transpose(1, 0, 4, 2, 3), layout="ntchw")
    np.testing.assert_array_equal(first.transpose(1, 0, 3, 4, 2), found)


@pytest.mark.parametrize("variant", ["lotter", "watanabe"])
def test_exchanged_axes_and_what_belongs_to_other_networks_are_refused(variant, capfd):
    """One sequence as Keras has it, [1, T, ...], was T sequences of one frame."""
    config, params = network(variant)
    frames = video(config)  # [T, B, H, W, C]
    keras = frames[:, :1].swapaxes(0, 1)
    message = 'one frame of each of 4 sequences.*layout="NTHWC"'
    trainer = Trainer(config)
    log_once.cache_clear()
    for call in (
        lambda: predict(params, config, keras),
        lambda: sequences.units(params, config, keras),
        lambda: objectives.error_loss(params, config, keras),
        lambda: trainer.evaluate(params, keras),
        lambda: next(windows(keras, 2)),
    ):
        with pytest.raises(UserError, match=message):
            call()
    for _ in range(2):
        forecast(params, config, keras, 1)
    assert capfd.readouterr().err.count("layout=") == 1
    # One frame is enough for one sequence, with a state, and where the axes are named.
    state = None
    whole, end = predict(params, config, frames[:, :1])
    for t in range(len(frames)):
        found, state = predict(params, config, frames[t : t + 1, :1], state)
        np.testing.assert_allclose(found[0], whole[t], rtol=0, atol=1e-6)
    chex.assert_trees_all_close(state, end, atol=1e-6)
    many = sequences.units(params, config, frames[:1], ("R0",), layout="TBHWC")
    assert many["R0"].shape[:2] == (1, 2)
    other, wider = network(variant, channels=(2, 4))
    for call, message in (
        (lambda: predict(wider, config, frames), "params: .* of the same network"),
        (lambda: predict(params, other, frames), "params: .* of the same network"),
        (lambda: predict(params, config, frames, end), "state: .* are 2 sequences"),
        (lambda: predict(params, config, frames, "NTHWC"), "state: of another"),
        (lambda: train_windows(params, config, frames, window=2), "one stream"),
        (lambda: trainer.step(trainer.init(params), frames, True), r"\[T \+ 1, 1, H"),
        (lambda: predict(params, config, frames, layout="TBHW"), "such as TBHWC, NTH"),
        (lambda: predict(params, config, frames * 255), "divide them by 255"),
    ):
        with pytest.raises(UserError, match=message):
            call()
    bright = replace(config, pixel_max=255.0)
    with pytest.raises(UserError, match=r"pixel_max=255\.0: expected at most 1 for"):
        predict(params, bright, np.zeros(frames.shape, np.uint8))


def test_predict_compiles_once_by_itself_and_is_a_part_of_a_compiled_function():
    config, params = network("watanabe", channels=(2, 5))
    frames = video(config)
    before = prednet._compiled._cache_size()
    for k in (None, None, 1, 2):
        predict(params, config, frames, extrapolate_from=k)
    # One program without extrapolation and one for each start of it.
    assert prednet._compiled._cache_size() == before + 2
    inside = jax.make_jaxpr(lambda f: predict(params, config, f)[0])(frames)
    assert "_predict" not in {e.params.get("name") for e in inside.eqns}
    outside = jax.make_jaxpr(lambda f: prednet._compiled(config, params, f, None, None))
    assert "_predict" in {e.params.get("name") for e in outside(frames).eqns}


CONFIG = PredNetConfig(channels=(1, 2), height=4, width=4, convolution="xla")
FRAMES = np.random.default_rng(0).random((13, 4, 4, 1)).astype(np.float32)


@pytest.mark.parametrize("variant", ["watanabe", "lotter"])
def test_predictions_and_maps_are_those_of_one_scan(variant):
    config = replace(CONFIG, variant=variant)
    params = init_params(config, jax.random.key(0))
    whole = jnp.asarray(FRAMES)[:, None]
    names = ("prediction", "E1")
    for k in (12, None):
        asked = {"extrapolate_from": k, "maps": ("E1",)}
        found, maps = sequences.predict_sequence(params, config, FRAMES, **asked)
        expected, _ = prednet.outputs(params, config, whole, names, extrapolate_from=k)
        for name, value in (("prediction", found), ("E1", maps["E1"])):
            np.testing.assert_allclose(value, expected[name][:, 0], rtol=0, atol=1e-6)
    # Of a causal network the first predictions need no other frames.
    short, _ = sequences.predict_sequence(params, config, FRAMES[:7], maps=("E1",))
    np.testing.assert_allclose(short, expected["prediction"][:7, 0], rtol=0, atol=1e-6)
    # One program for every length and every place of extrapolation.
    assert sequences._program(config, ("E1",))._cache_size() == 1


def test_units_are_those_of_one_scan_for_every_sequence():
    params = init_params(CONFIG, jax.random.key(0))
    frames = np.random.default_rng(1).integers(0, 256, (13, 3, 4, 4, 1), np.uint8)
    found = sequences.units(params, CONFIG, frames, ("E0", "Ahat1"))
    assert list(found) == ["E0", "Ahat1"]
    expected, _ = prednet.outputs(params, CONFIG, frames, tuple(found))
    for name, value in found.items():
        np.testing.assert_allclose(value, expected[name], rtol=0, atol=1e-6)
    other = frames.swapaxes(0, 1)
    swapped = sequences.units(params, CONFIG, other, ("E0",), layout="NTHWC")
    np.testing.assert_array_equal(swapped["E0"].swapaxes(0, 1), found["E0"])
    parts = list(sequences.pieces(params, CONFIG, frames, ("E0", "Ahat1")))
    assert [len(part["E0"]) for part in parts] == [10, 3]


@pytest.mark.parametrize("variant", ["lotter", "watanabe"])
def test_the_future_is_what_predict_extrapolates_and_continues(variant):
    """Before, the last frame was the end: padding with any frames was the way on."""
    config, params = network(variant)
    frames, near = video(config), {"rtol": 0, "atol": 1e-6}
    for seen in (1, 4):
        future, state = forecast(params, config, frames[:seen], 3)
        for anything in (video(config, 3, seed=5), jnp.ones_like(frames[:3])):
            padded = jnp.concatenate([frames[:seen], anything])
            whole, end = predict(params, config, padded, extrapolate_from=seen)
            np.testing.assert_array_equal(future, whole[seen:])
            chex.assert_trees_all_equal(state, end)
    # Both parts of a long future are one; so is one that begins at a carried state.
    first, state = forecast(params, config, frames, 1)
    second, last = forecast(params, config, frames[:0], 2, state)
    np.testing.assert_allclose(future, jnp.concatenate([first, second]), **near)
    chex.assert_trees_all_close(end, last, atol=1e-6)
    again, _ = predict(params, config, frames[:2], state, extrapolate_from=0)
    np.testing.assert_allclose(again, second, **near)
    _, carried = predict(params, config, frames[:3])
    found, _ = forecast(params, config, frames[3:], 3, carried)
    np.testing.assert_allclose(found, future, **near)
    swapped, _ = forecast(params, config, frames.swapaxes(0, 1), 3, layout="NTHWC")
    np.testing.assert_array_equal(swapped.swapaxes(0, 1), future)
    slope = jax.grad(lambda f: forecast(params, config, f, 1)[0].sum())(frames)
    assert np.abs(slope[0]).max() > 0


@pytest.mark.parametrize("variant", ["lotter", "watanabe"])
def test_what_the_network_sees_instead_of_a_frame(variant):
    """`watanabe`: the prediction of this frame; `lotter`: of the frame before."""
    config, params = network(variant)
    frames = np.array(video(config, 5))
    whole, _ = predict(params, config, frames, extrapolate_from=3)
    for t in (3, 4):
        frames[t] = whole[t if variant == "watanabe" else t - 1]
    seen, _ = predict(params, config, frames)
    np.testing.assert_allclose(whole, seen, rtol=0, atol=1e-6)


def test_a_future_that_nothing_leads_to_is_refused():
    config, params = network("watanabe")
    frames = video(config)
    for k in (4, 5):
        message = f"extrapolate_from={k} with 4 frames: expected less than 4; .*forec"
        with pytest.raises(UserError, match=message):
            predict(params, config, frames, extrapolate_from=k)
        with pytest.raises(UserError, match=message):
            sequences.units(params, config, frames, extrapolate_from=k)
    for frames_, steps, message in (
        (frames[:0], 2, "from no frames: expected at least one, or a state"),
        (frames, 0, "steps=0: expected a whole number, at least 1"),
        (frames[0], 2, r"expected \[T, B, H, W, C\]"),
    ):
        with pytest.raises(UserError, match=message):
            forecast(params, config, frames_, steps)
    with pytest.raises(UserError, match=r"_from=0: expected .* at least 1"):
        predict(params, config, frames, extrapolate_from=0)


def test_units_of_both_forms_are_lined_up_by_what_they_have_seen():
    """At index t, R of `lotter` had not seen frame t, and R of `watanabe` had."""
    rng = np.random.default_rng(2)
    frames = rng.random((11, 1, 4, 4, 1)).astype(np.float32)
    names = ("R0", "R1", "Ahat0", "E0", "A1")
    for variant in ("lotter", "watanabe"):
        config = replace(CONFIG, variant=variant)
        params = init_params(config, jax.random.key(0))
        other = frames.copy()
        other[6] = 1 - other[6]
        times = sequences.unit_times(config, names)
        assert times["R0"] == times["Ahat0"] == -(config.pass_order == "lotter")
        for align in ("frame", "seen"):
            found, changed = (
                sequences.units(params, config, shown, names, align=align)
                for shown in (frames, other)
            )
            for name in names:
                assert len(found[name]) == 11
                differs = np.abs(found[name] - changed[name]).max(axis=(1, 2, 3, 4))
                first = 6 - times[name] * (align == "frame")
                assert np.flatnonzero(differs)[0] == first, (variant, align, name)
        # Here the units are aligned by what they have seen.
        future, _ = forecast(params, config, frames, 1)
        np.testing.assert_allclose(found["Ahat0"][-1:], future, rtol=0, atol=1e-6)
    with pytest.raises(UserError, match="align='time': expected one of frame, seen"):
        sequences.units(params, config, frames, names, align="time")
