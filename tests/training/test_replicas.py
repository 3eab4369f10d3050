import json
from pathlib import Path
from types import SimpleNamespace

from prednet_jax import PredNetConfig
from prednet_jax.training import loop, replicas, run_recorder
from prednet_jax.training.interruption import Interruption
from prednet_jax.training.settings import RecordSettings
from tests.processes import python


def test_no_replica_drops_a_checkpoint_before_all_have_saved():
    """Killed in between, they would have no update in common."""
    calls = []

    def keeper(name):
        return SimpleNamespace(
            folder=name,
            see=lambda *_: calls.append(f"save {name}"),
            prune=lambda: calls.append(f"prune {name}"),
            close=lambda: None,
        )

    line = SimpleNamespace(update=1, loss=1.0, copy_last_frame_loss=None)
    run_recorder.record_training(
        SimpleNamespace(updates=9, records=RecordSettings(checkpoint_every=1)),
        {0: keeper("a"), 1: keeper("b")},
        iter([(None, [line, line])]),
        loop.Pair(None, iter(()), None),
        Interruption(),
        done=0,
        name="tiny",
    )
    assert calls == ["save a", "save b", "prune a", "prune b"]


def test_devices_change_nothing_but_rounding():
    """Losses to 1e-5 relative: 64 x 3 float32 terms, summed in another order.

    Weights to 2e-5: three steps of Adam of 1e-3 each. Adam's first step is the sign of
    the gradient, which amplifies rounding where a gradient is near zero.
    """
    done = python(Path(__file__).with_name("eight_devices.py"), devices=8)
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["devices"] == 8
    assert found["other_seeds"] > 1e-4
    for name, meaning in (
        ("vmap", "4 replicas on 4 devices against 4 single runs, another algorithm"),
        ("batch", "2 replicas of 4 streams on 8 devices against one"),
    ):
        losses, weights = found[name]
        assert losses < 1e-5, meaning
        assert weights < 2e-5, meaning


def test_devices_divide_the_work():
    work = {(8, 1, 8): (8, 1), (10, 1, 2): (2, 1), (1, 4, 2): (1, 2)}
    work |= {(4, 2, 8): (4, 2), (3, 1, 2): None, (1, 1, 1): (1, 1)}
    assert {asked: replicas.shares(*asked) for asked in work} == work
    assert replicas.most_devices(10, 1, 6) == 5
    assert replicas.most_devices(1, 6, 4) == 3
    assert replicas.most_devices(4, 1, 4, processes=2) == 2


def test_auto_is_a_batched_product_only_under_vmap():
    config = PredNetConfig(channels=(3, 4), height=8, width=8)
    assert replicas.resolve_mode("auto", "cpu", 2) == "map"
    assert replicas.resolve_mode("auto", "gpu", 2) == "vmap"
    # A batch of one run needs no axis of replicas.
    assert replicas.resolve_mode("auto", "gpu", 1) == "map"
    assert replicas.resolve_network(config, "map").config is config
    assert replicas.resolve_network(config, "vmap").config.convolution == "im2col"
