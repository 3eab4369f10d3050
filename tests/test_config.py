import jax
import pytest

from prednet_jax.config import AutoencoderConfig, PredNetConfig
from prednet_jax.training import keys


def test_defaults_are_the_published_network():
    config = PredNetConfig()
    assert config.channels == config.recurrent == (3, 48, 96, 192)
    assert config.size(3) == (15, 20)
    assert config.a_filters == (3, 3, 3)
    assert AutoencoderConfig().pixels == 784


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"channels": ()}, r"channels=\(\)"),
        ({"channels": (3, 0)}, r"channels\[1\]=0"),
        ({"variant": "keras"}, "variant='keras': expected one of lotter, watanabe"),
        ({"height": 121}, "height=121: expected a multiple of 8"),
        ({"width": 0}, "width=0"),
        ({"r_channels": (3, 4)}, "expected 4 widths"),
        ({"a_filters": 2}, "2 is even"),
        ({"ahat_filters": (3, 3)}, "list of 4"),
        ({"pixel_max": 0.0}, "pixel_max=0.0"),
        ({"convolution": "fft"}, "convolution='fft': expected one of auto"),
        ({"hidden": ()}, "hidden"),
    ],
)
def test_bad_values_are_named(values, message):
    kind = AutoencoderConfig if "hidden" in values else PredNetConfig
    with pytest.raises(ValueError, match=message):
        kind(**values)


def test_streams_differ_by_name_and_seed_and_bad_ones_are_named():
    drawn = {
        tuple(jax.random.key_data(keys.stream(seed, name)).tolist())
        for seed in (0, 0, 1)
        for name in keys.STREAMS
    }
    assert len(drawn) == 2 * len(keys.STREAMS)
    for seed in (-1, 2**32, 1.5, True):
        with pytest.raises(ValueError, match="seed="):
            keys.stream(seed, "init")
    with pytest.raises(ValueError, match="stream='weights'"):
        keys.stream(0, "weights")
