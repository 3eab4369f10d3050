import pytest

from prednet_jax import keys
from prednet_jax.config import AutoencoderConfig, PredNetConfig


def test_defaults_are_the_published_network():
    config = PredNetConfig()
    assert config.channels == (3, 48, 96, 192)
    assert config.recurrent == config.channels
    assert config.size(3) == (15, 20)
    assert config.a_filters == (3, 3, 3)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"channels": ()}, "channels=()"),
        ({"channels": (3, 0)}, r"channels\[1\]=0"),
        ({"variant": "keras"}, "variant='keras': expected one of lotter, watanabe"),
        ({"height": 121}, "height=121: expected a multiple of 8"),
        ({"width": 0}, "width=0"),
        ({"r_channels": (3, 4)}, "expected 4 widths"),
        ({"a_filters": 2}, "2 is even"),
        ({"ahat_filters": (3, 3)}, "list of 4"),
        ({"pixel_max": 0.0}, "pixel_max=0.0"),
        ({"convolution": "fft"}, "convolution='fft': expected one of auto"),
    ],
)
def test_bad_values_are_named(values, message):
    with pytest.raises(ValueError, match=message.replace("()", r"\(\)")):
        PredNetConfig(**values)


def test_autoencoder_is_checked():
    assert AutoencoderConfig().pixels == 784
    with pytest.raises(ValueError, match="hidden"):
        AutoencoderConfig(hidden=())


def test_streams_differ_by_name_and_seed():
    import jax

    drawn = {
        (seed, name): tuple(jax.random.key_data(keys.stream(seed, name)).tolist())
        for seed in (0, 1)
        for name in keys.STREAMS
    }
    assert len(set(drawn.values())) == len(drawn)
    again = jax.random.key_data(keys.stream(0, "init")).tolist()
    assert tuple(again) == drawn[0, "init"]


@pytest.mark.parametrize("seed", [-1, 2**32, 1.5, True])
def test_bad_seed(seed):
    with pytest.raises(ValueError, match="seed="):
        keys.stream(seed, "init")


def test_bad_stream():
    with pytest.raises(ValueError, match="stream='weights'"):
        keys.stream(0, "weights")
