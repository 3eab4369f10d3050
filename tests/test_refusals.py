"""Wrong values of the package's functions are named in one line.

Those of noise stand with its tests (tests/noise/), those of scripts in
tests/experiments/test_scripts.py.
"""

import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from prednet_jax import (
    data,
    init_params,
    noise,
    objectives,
    optimizers,
    predict,
    runs,
    saddles,
    tasks,
    train_windows,
    windows,
)
from prednet_jax.config import AutoencoderConfig, PredNetConfig
from prednet_jax.curvature import certify, extreme_eigenpairs
from prednet_jax.curvature.hessian import hessian_operator
from prednet_jax.models import convolution, prednet, sequences
from prednet_jax.objectives import Method
from prednet_jax.runs import sweeps
from prednet_jax.saddles import escape_theory, symmetric
from prednet_jax.statistics import (
    margin_from_losses,
    pair_by_seed,
    paired,
    redraws,
)
from prednet_jax.training import evaluation, keys, replicas
from prednet_jax.training.trainer import Trainer

KEY, ONE, TWO = jax.random.key(0), jnp.ones(1), jnp.ones(2)
NAN = jnp.asarray([1, jnp.nan])
CONFIG = PredNetConfig(channels=(1, 2), height=4, width=4)
LOTTER = PredNetConfig(channels=(1, 2), height=4, width=4, variant="lotter")
IMAGES = AutoencoderConfig(height=4, width=4, hidden=(3,))
PARAMS = init_params(CONFIG, KEY)
VIDEO = np.zeros((14, 4, 4, 1), np.float32)
FRAMES = jnp.asarray(VIDEO)[:, None]


class Silent:
    def __repr__(self):
        raise RuntimeError


def operator(params, scale=None):
    return hessian_operator(lambda p: jnp.sum(p["w"] ** 2), params, scale)


def convolve(algorithm, size):
    kernel = jnp.zeros((size, size, 2, 2))
    return convolution.conv2d(jnp.zeros((1, 4, 4, 2)), kernel, algorithm)


def escaped(gamma=1.0, learning_rate=0.1, momentum=0.0, sigma=1.0, c=1.0):
    growth = escape_theory.growth(gamma, learning_rate=learning_rate, momentum=momentum)
    noise = escape_theory.noise_projection(sigma, growth)
    escape_theory.updates_saved(c, noise, growth)


def escape_runs(of_gradient=lambda x: x, **changes):
    function = saddles.octopus_function()
    rules, options = [saddles.gradient_descent(0.1)], {"seeds": 1, "steps": 20}
    gradient = saddles.rotated_gradient(function)
    saddles.escape_runs(
        lambda key, *x: of_gradient(gradient(*x)), function, rules, **options | changes
    )


def rolled_out(extrapolate_from=2, **method):
    window, state = FRAMES[:5], prednet.initial_state(LOTTER, 1)
    method = Method(objective="errors", extrapolate_from=extrapolate_from, **method)
    params = init_params(LOTTER, KEY)
    objectives.window_loss(params, LOTTER, state, window, jnp.asarray(True), method)


def stepped(frames=FRAMES, **method):
    trainer = Trainer(CONFIG, method=Method(**method))
    trainer.step(trainer.init(PARAMS), frames, True)


errors_of_watanabe = functools.partial(stepped, objective="errors")


def gathered(loss, control="float32"):
    arms = {"float32": {"1": [loss]}, "reduction_order": {"1": [2.0, 2.0]}}
    return redraws.collect_redraws(arms, "reduction_order", control)


LEAK = Method(truncation_leak=True)
ERRORS, ORDER = Method(objective="errors"), noise.ReductionOrder()
LOSSES = {"a": {"1": [1.0, 3.0], "2": [3.0, 5.0]}}


def trained(params=PARAMS, config=CONFIG, window=4, **options):
    train_windows(params, config, VIDEO, window=window, **options)


units = functools.partial(sequences.units, PARAMS, CONFIG, FRAMES)
shown = functools.partial(predict, PARAMS, CONFIG)
octopus = functools.partial(saddles.octopus, 3)
eigenpairs = functools.partial(extreme_eigenpairs, jnp.sum, TWO, key=KEY)
moving = functools.partial(data.open_source, "moving_digits")
split = functools.partial(data.open_split, height=8, width=8, channels=3)
stream = functools.partial(data.schedule, 4, (0,), 2, 1)
margin = margin_from_losses

CASES = {
    "config": [
        (lambda: PredNetConfig(channels=()), r"channels=\(\)"),
        (lambda: PredNetConfig(channels=Silent()), "channels=a Silent: expected one"),
        (lambda: PredNetConfig(channels=(3, 0)), r"channels\[1\]=0"),
        (lambda: PredNetConfig(variant="keras"), "variant='keras': .* lotter, watana"),
        (lambda: PredNetConfig(height=121), "height=121: expected a multiple of 8"),
        (lambda: PredNetConfig(width=0), "width=0"),
        (lambda: PredNetConfig(r_channels=(3, 4)), "expected 4 widths"),
        (lambda: PredNetConfig(a_filters=2), "2 is even"),
        (lambda: PredNetConfig(ahat_filters=(3, 3)), "list of 4"),
        (lambda: PredNetConfig(pixel_max=0.0), "pixel_max=0.0"),
        (lambda: PredNetConfig(pixel_max=1e300), r"pixel_max=1e\+300: .* up to 3.4e38"),
        (lambda: PredNetConfig(convolution="fft"), "convolution='fft': .* auto"),
        (lambda: AutoencoderConfig(hidden=()), "hidden"),
        (lambda: keys.derive(2**32, "init"), "seed="),
        (lambda: keys.derive(0, "weights"), "purpose='weights'"),
        (lambda: optimizers.chainer_adam(0), "learning_rate=0"),
        (lambda: optimizers.chainer_adam(b1=1.0), "b1=1.0"),
        (lambda: optimizers.chainer_adam(eps=-1.0), "eps=-1.0"),
        (lambda: optimizers.clipped(optimizers.chainer_adam(), 0), "clip_gradient=0: "),
    ],
    "curvature": [
        (lambda: operator({"w": jnp.ones(2, jnp.int32)}), "int32: expected real arra"),
        (lambda: operator({"w": TWO.astype("bfloat16")}), "bfloat16: expected real"),
        (lambda: operator({"w": TWO, "b": TWO.astype("bfloat16")}), "bfloat16, float"),
        (lambda: operator({}), "no number: expected"),
        (lambda: operator({"w": TWO}, {"b": TWO}), "leaves of.*'b'.*'w'"),
        (lambda: operator({"w": TWO}, {"w": ONE}), r"\(1,\).*\(2,\)"),
        (lambda: operator({"w": TWO}, {"w": 0 * TWO}), "scale has 0.0: .* positive"),
        (lambda: operator({"a": TWO, "b": TWO}, {"a": TWO, "b": NAN}), "scale has nan"),
        (lambda: eigenpairs(steps=0), "steps=0.*at least 1"),
        (lambda: certify(jnp.sum, TWO.astype(int), key=KEY), "int32: expected real"),
        (lambda: certify(jnp.sum, TWO, key=KEY, starts=0), "starts=0"),
        (lambda: certify(jnp.linalg.norm, 0 * TWO, key=KEY), "nan.*finite second deri"),
    ],
    "data": [
        (lambda: data.schedule(10, (0,), 1, 5), "window=1.*at least 2"),
        (lambda: data.schedule(10, (0, 4), 7, 5), "window=7.*has 6 frames.*2 to 6"),
        (lambda: data.schedule(10, (0,), 5, -1), "updates=-1"),
        (lambda: stream(batch=0), "batch=0"),
        (lambda: stream(batch=5), "expected at most 4 streams"),
        (lambda: split("walk", "all"), "split='all'"),
        (lambda: split("walk", "train", sequences=0), "sequences=0"),
        (lambda: split("walk", "train", offset=(3, 0)), r"offset=\(3, 0\) with data"),
        (
            lambda: split("walk", "train", crop="resize"),
            "crop='resize'.*requested size",
        ),
        (lambda: moving(height=20, width=64), r"height=20, width=64.*28x28"),
    ],
    "models": [
        (lambda: shown(FRAMES[:, 0]), r"expected \[T, B, H, W, C\]"),
        (lambda: shown(FRAMES.astype(int)), "dtype int32: expected floa"),
        (lambda: shown(FRAMES + 254), "pixels from 0 to 25.*0 to 1, no NaN; divide"),
        (lambda: shown(FRAMES * np.nan), "from nan to nan: expected 0 to 1, no NaN"),
        (lambda: shown(FRAMES - 1), "pixels from -1 to 0: expected 0 to 1"),
        (lambda: shown(FRAMES, extrapolate_from=0), "extrapolate_from=0"),
        (lambda: shown(FRAMES, layout="THWC"), "such as TBHWC, NTHWC or"),
        (lambda: prednet.predict(CONFIG, PARAMS, FRAMES), "config=.*, after params"),
        (lambda: prednet.outputs(PARAMS, CONFIG, FRAMES, ("R7",)), "layer='R7'"),
        (lambda: prednet.outputs(PARAMS, CONFIG, FRAMES, ("loss",)), "layer='loss'"),
        (lambda: units(("E2",)), "layer='E2': expected R, A, .* number from 0 to 1"),
        (lambda: units("E0"), "layers='E0': expected a list such as"),
        (lambda: sequences.units(PARAMS, CONFIG, VIDEO), r"expected \[T, B, H, W, C\]"),
        (lambda: convolve("strip4", 5), "'strip4' with .* size 5: .* auto, xla, dir"),
    ],
    "saddles": [
        (lambda: escaped(learning_rate=0.0), "learning_rate=0.0"),
        (lambda: escaped(gamma=-1.0), "gamma=-1.0"),
        (lambda: escaped(momentum=1.0), "momentum=1.0"),
        (lambda: escaped(sigma=-1.0), "sigma=-1.0"),
        (lambda: escaped(c=-1.0), "projection=-1.0"),
        (lambda: escape_runs(forms=("tilted",)), "tilted"),
        (lambda: escape_runs(dtype="float64"), "jax_enable_x64"),
        (lambda: escape_runs(jnp.sum), r"gradient=.*: expected float32 of shape \(10,"),
        (lambda: escape_runs(steps=0), "steps=0"),
        (lambda: escape_runs(seeds=0), "seeds=0"),
        (lambda: escape_runs(dtype="float16"), "dtype='float16'"),
        (lambda: saddles.octopus(0), "dim=0"),
        (lambda: octopus(tau=math.nan), "tau=nan"),
        (lambda: octopus()(jnp.zeros(4)), r"float32\[4\]"),
        (lambda: octopus()(jnp.zeros(3, jnp.int32)), "int32"),
    ],
    "statistics": [
        (lambda: paired([1.0, 2.0], [1.0], margin=0.1), "2 seeds and control 1"),
        (lambda: paired([1.0, math.nan], TWO, margin=0.1), r"treatment\[1\] is nan"),
        (lambda: paired([1.0], [[[1.0]]], margin=0.1), "shape"),
        (lambda: paired([], [], margin=0.1), "at least one seed"),
        (lambda: paired([1.0], [1.0], margin=0.0), "margin=0.0"),
        (
            lambda: pair_by_seed(LOSSES | {"b": {"1": [None]}}, "a", "b"),
            "no seed with a fin",
        ),
        (lambda: margin(LOSSES, "gpu"), "control='gpu': expected one of"),
        (lambda: margin(LOSSES, "a", 0.0), "fraction=0.0"),
        (lambda: margin({"a": {"1": [0.0]}}, "a"), "mean loss of the control=0.0"),
        (lambda: gathered(1.0, "ulp"), "control='ulp': expected one of float32, red"),
        (lambda: gathered(None), "no seed with finite losses in both groups"),
        (lambda: gathered(0.0), "loss of seed 1"),
    ],
    "saddles from symmetry": [
        (lambda: symmetric.runs(["a"], ["tile"], [0.0], [1]), "'a': expected one of"),
        (lambda: symmetric.runs(["symmetric"], ["b"], [0], [1]), "'b': expected one"),
        (
            lambda: symmetric.SaddleDesign(updates=19),
            "updates=19: expected .* at least 20",
        ),
        (lambda: symmetric.symmetrise(PARAMS, CONFIG, blocks="same"), "blocks='same'"),
        (lambda: symmetric.split(PARAMS, CONFIG, -1e-3, KEY), "delta=-0.001"),
        (lambda: symmetric.split(PARAMS, CONFIG, 1.0, KEY), "delta=1.0"),
        (lambda: symmetric.split(PARAMS, CONFIG, math.nan, KEY), "delta=nan"),
    ],
    "training": [
        (lambda: trained(window=0), "window=0: expected a whole number, at least 1"),
        (lambda: trained(targets="old"), "targets='old': .* true, stale"),
        (lambda: trained(objective="l1"), "objective='l1'"),
        (lambda: trained(targets="stale", objective="errors"), "targets='stale'"),
        (lambda: rolled_out(extrapolate_from=0), "extrapolate_from=0"),
        (
            lambda: rolled_out(layer_weights=(1.0, 0.1)),
            "expected 0 for all layers except",
        ),
        (lambda: Trainer(LOTTER, method=LEAK), "'lotter': expected 'watanabe'"),
        (lambda: errors_of_watanabe(layer_weights=[1.0, 0.1]), "with variant 'watana"),
        (lambda: stepped(layer_weights=(2.0, 0.0)), "'errors', not 'squares'"),
        (lambda: stepped(FRAMES[..., [0, 0, 0]]), r"4, 3\): expected \[T, B, 4, 4, 1"),
        (lambda: stepped(FRAMES[:, :, :1, :1]), r"expected \[T, B, 4, 4, 1\]"),
        (lambda: stepped(FRAMES.astype(int)), "frames of int32: expected uint8, or fl"),
        (lambda: Trainer(CONFIG).evaluate({}, VIDEO[:, :2]), r"expected \[T, B, 4, 4"),
        (lambda: list(windows(VIDEO, 24)), "at least 24 with window=24"),
        (lambda: list(windows(VIDEO[0], 5)), r"expected \[T, H, W, C\]"),
        (lambda: list(windows(VIDEO + 254, 5)), "254: expected 0 to 1, no NaN"),
        (lambda: stepped(VIDEO[:, None] + 254), "254: expected 0 to 1, no NaN"),
        (lambda: Trainer(CONFIG).evaluate({}, VIDEO[:1]), "at least 2"),
        (lambda: Trainer(IMAGES, method=ERRORS), "only with prednet"),
        (lambda: trained({"w": ONE}, IMAGES), "model=autoencoder, which has no w"),
        (lambda: replicas.layout(0, 1), "replicas=0: .* whole number, at least 1"),
        (lambda: replicas.resolve_mode("pmap", "cpu", 1), "replica_mode='pmap'"),
        (lambda: evaluation.score(FRAMES[:, 0], np.zeros((2, 8, 8, 3))), "one shape"),
        (lambda: evaluation.score(*[np.zeros((2, 2, 8, 1))] * 2), "at least 3x3"),
    ],
}


@pytest.mark.parametrize("room", CASES)
def test_wrong_values_are_named_in_one_line(room):
    for call, message in CASES[room]:
        with pytest.raises(ValueError, match=message) as caught:
            call()
        assert "\n" not in str(caught.value)


NETWORK = (tasks.of(CONFIG),)


def test_bad_comparisons_and_sweeps_are_named(tmp_path):
    for kind, changes, message in (
        (runs.Design, {"arms": ("magic",)}, "arm='magic': expected one of float32"),
        (runs.Design, {"arms": ("noise:magic",)}, "arm='noise:magic': .*kind 'magic'"),
        (runs.Design, {"arms": ("noise:none",)}, "arm='noise:none': expected a noise"),
        (runs.Design, {"tasks": ()}, "models="),
        (runs.Design, {"tasks": NETWORK * 2}, "models=prednet,prednet: expected"),
        (runs.Design, {"seeds": 0}, "seeds=0: expected a whole number, at least 1"),
        (runs.Design, {"last": 0.0}, "last=0.0"),
        (runs.Design, {"margin": 1.0}, "margin=1.0"),
        (runs.Design, {"first_seed": -1}, "first_seed=-1"),
        (sweeps.Sweep, {"arms": ("magic",)}, "arm='magic': expected one of"),
        (sweeps.Sweep, {"arms": ()}, "arms=: expected at least one"),
        (sweeps.Sweep, {"seeds": (1, 1)}, "seeds=1,1: .* at least one, each once"),
        (sweeps.Sweep, {"threads": 0}, "threads=0"),
        (sweeps.Sweep, {"settings": ("window",)}, "setting='window': window; expected"),
        (sweeps.Sweep, {"settings": ("seeds=1",)}, "setting='seeds=1': seeds=1; expe"),
        (sweeps.Sweep, {"settings": ("--window=1",)}, "expected name=value"),
        (sweeps.Sweep, {"settings": ("data='a b",)}, "expected closed quotes"),
        (sweeps.Sweep, {"settings": ("lr=1 lr=2",)}, "lr=2; .* of train.py, each"),
        (sweeps.Sweep, {"settings": ("targets=true",)}, "the arm stale_targets sets"),
        (sweeps.Sweep, {"window": 1}, "window=1"),
    ):
        given = {"root": tmp_path, "script": "train.py", "tasks": NETWORK, "updates": 5}
        if kind is sweeps.Sweep:
            given |= {"arms": ("float32", "stale_targets"), "seeds": (0, 1)}
        with pytest.raises(ValueError, match=message):
            kind(**given | changes)
    wrong = ("threads_0", "gaussian_", "gaussian_x", "gaussian_0", "gaussian_1e999")
    for name in (*wrong, "convolution_", "convolution_foo", "convolution_auto"):
        with pytest.raises(ValueError, match=f"arm='{name}'"):
            runs.arm(name)
