import json
import sys

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from prednet_jax import AutoencoderConfig, PredNetConfig, optimizers, tasks
from prednet_jax.errors import UserError
from prednet_jax.objectives import Method
from prednet_jax.training import keys
from tests.processes import ROOT

LOTTER = PredNetConfig(
    channels=(3, 6), height=24, width=32, r_channels=(2, 4), variant="lotter"
)
NETWORKS = f"expected {', '.join(tasks.NAMED)} or module:object"
CONFIGS = (LOTTER, PredNetConfig(), AutoencoderConfig(hidden=(4,)))


@pytest.mark.parametrize("config", CONFIGS)
def test_a_manifest_names_the_network(config):
    task = tasks.of(config)
    found = tasks.recorded(task.name, json.loads(json.dumps(task.network())))
    assert found == task
    assert task not in [tasks.of(other) for other in CONFIGS if other != config]


def test_settings_are_those_off_the_default():
    assert tasks.of(LOTTER).settings() == {
        "model": "prednet",
        "channels": (3, 6),
        "height": 24,
        "width": 32,
        "variant": "lotter",
        "r_channels": (2, 4),
    }
    # The channels come from the images.
    colour = tasks.of(AutoencoderConfig(channels=3, hidden=(4,)))
    assert colour.settings() == {"model": "autoencoder", "hidden": (4,)}


def test_each_has_the_optimiser_of_its_publication():
    watanabe, lotter = tasks.of(PredNetConfig()).adam(10), tasks.of(LOTTER).adam(10)
    assert [watanabe.at(update) for update in (1, 10)] == [1e-3, 1e-3]
    assert watanabe.eps == 1e-8
    rates = [lotter.at(update) for update in (1, 5, 6, 10)]
    np.testing.assert_allclose(rates, [1e-3] * 2 + [1e-4] * 2)
    assert lotter.eps == 1e-7


def test_a_convolution_is_replaced_where_there_is_one():
    task = tasks.of(LOTTER)
    assert task.with_convolution("im2col", where="auto").config.convolution == "im2col"
    assert task.with_convolution("im2col", where="xla") is task
    assert task.algorithms(np.dtype("float32"))["top_down_0"] == "folded"
    assert tasks.of(CONFIGS[1]).algorithms(jnp.float32, 8)["prediction_1"] == "mixed"
    assert task.algorithms(np.dtype("float64"))["gates_0"] == "im2col"
    dense = tasks.of(AutoencoderConfig())
    assert dense.with_convolution("im2col") is dense
    task.check(Method(objective="errors"))  # Which the autoencoder refuses.


def test_streams_of_keys_differ_by_name_and_seed():
    drawn = {
        tuple(jax.random.key_data(keys.derive(seed, name)).tolist())
        for seed in (0, 0, 1)
        for name in keys.PURPOSES
    }
    assert len(drawn) == 2 * len(keys.PURPOSES)


def test_a_task_from_elsewhere(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(ROOT / "tests" / "experiments"))
    (tmp_path / "broken_of_mine.py").write_text("import not_installed_anywhere")
    task = tasks.load("tiny_task:TINY")
    assert task.settings() == {"model": "tiny_task:TINY"}
    assert tasks.recorded("tiny_task:TINY", task.network()) is task
    for name, message in (
        ("tiny_task", NETWORKS),
        ("tiny_task:", NETWORKS),
        ("tiny_task:Tiny", "found <class"),
        ("tiny_task:YOURS", "found None"),
        ("not_there:TINY", "no module not_there"),
        (".tiny_task:TINY", NETWORKS),
        ("tiny_task.:TINY", NETWORKS),
    ):
        with pytest.raises(UserError, match=message):
            tasks.load(name)
    (tmp_path / "torn.py").write_text("def f(:")
    with pytest.raises(UserError, match=r"'torn:X': invalid syntax .torn.py, line 1"):
        tasks.load("torn:X")
    # What goes wrong when the module runs is its author's to see.
    with pytest.raises(ModuleNotFoundError, match="not_installed_anywhere"):
        tasks.load("broken_of_mine:MINE")


def test_a_record_names_no_module_that_was_not_written_for_this_package(
    tmp_path, monkeypatch
):
    """A manifest may be somebody else's: a module is read before it is imported."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "folder").mkdir()
    for name in ("stranger.py", "folder/__init__.py", "folder/inner.py"):
        (tmp_path / name).write_text("raise SystemExit('imported')")
    says = '"""\nWe import\nimport prednet_jax is not needed\n'
    says += 'from prednet_jax we took nothing\n"""\n1 / 0'
    (tmp_path / "says_so.py").write_text(says)
    for name in (
        *("says_so:X", "stranger:X"),
        *("folder:X", "folder.inner:X", "folder.missing:X"),
        *("antigravity:fly", "os:system", "sys:exit", "not_there:X"),
    ):
        with pytest.raises(UserError, match=f"model='{name}': expected prednet"):
            tasks.recorded(name, {})
    assert "antigravity" not in sys.modules
    (tmp_path / "with_others.py").write_text("import numpy,prednet_jax")
    tasks.check_recorded("with_others:X")
    # A folder without __init__, of which nothing has been imported.
    (tmp_path / "outer" / "within").mkdir(parents=True)
    (tmp_path / "outer" / "within" / "own.py").write_text("import prednet_jax")
    tasks.check_recorded("outer.within.own:X")
    for bad in ([], "a", 3):
        with pytest.raises(UserError, match="expected the settings of prednet"):
            tasks.recorded("prednet", bad)


def test_the_number_of_weights_is_known_without_drawing_them():
    for config in (
        PredNetConfig(channels=(3, 4, 5), height=8, width=12, r_channels=(2, 3, 4)),
        PredNetConfig(channels=(3, 4), height=8, width=8, variant="lotter"),
        AutoencoderConfig(height=4, width=6, channels=3, hidden=(5, 2)),
    ):
        task = tasks.of(config)
        params = task.init_params(keys.derive(0, "init"))
        assert task.weights == sum(leaf.size for leaf in jax.tree.leaves(params))


def by_hand(gradients, rate=1e-3, b1=0.9, b2=0.999, eps=1e-8):
    """Chainer's update in float64, transcribed from the formula."""
    x = m = v = 0.0
    for t, g in enumerate(gradients, 1):
        m += (1 - b1) * (g - m)
        v += (1 - b2) * (g * g - v)
        lr = rate * np.sqrt(1 - b2**t) / (1 - b1**t)
        x -= lr * m / (np.sqrt(v) + eps)
    return x


def run(optimizer, gradients):
    x = jnp.zeros(())
    state = optimizer.init(x)
    for g in gradients:
        updates, state = optimizer.update(jnp.float32(g), state, x)
        x = optax.apply_updates(x, updates)
    return float(x)


# Small gradients, where epsilon and its place matter: sqrt(v) is near eps.
GRADIENTS = (3e-7, -1e-7, 2e-7, 5e-8)


def test_epsilon_is_added_before_the_bias_correction():
    found = run(optimizers.chainer_adam(), GRADIENTS)
    # float32 rounding of a few operations.
    assert found == pytest.approx(by_hand(GRADIENTS), rel=1e-5)
    # optax.adam itself mixes dtypes.
    with jax.numpy_dtype_promotion("standard"):
        other = run(optax.adam(1e-3, eps=1e-8), GRADIENTS)
        plain = run(optax.adam(1e-3, eps=0.0), (1.0, -0.5, 0.25))
    assert abs(other - found) > 0.05 * abs(found)
    found = run(optimizers.chainer_adam(eps=0.0), (1.0, -0.5, 0.25))
    assert found == pytest.approx(plain, rel=1e-5)


def test_schedule_is_counted_from_zero():
    schedule = optimizers.lotter_schedule(4)
    flat = run(optimizers.chainer_adam(1e-3), (1.0, 1.0))
    cut = run(optimizers.chainer_adam(schedule), (1.0, 1.0, 1.0))
    assert cut == pytest.approx(flat - 1e-4, rel=1e-3)
