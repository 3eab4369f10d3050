"""Texts that users write (noise specs, flags): a mistake is named, nothing else fails.

FUZZ=N tries N thousand inputs (`make fuzz`).
"""

import sys
from pathlib import Path

import pytest
from absl import flags
from hypothesis import given
from hypothesis import strategies as st

from prednet_jax import noise

sys.path.insert(0, str(Path(__file__).parent))
sys.path.insert(0, str(Path(__file__).parents[2] / "experiments"))
import _flags
from fuzzing import amount, refused_on_one_line

WORDS = [
    *("none", "identity", "ulp", "gaussian", "reduction_order", "stochastic_rounding"),
    *("tf32", "bf16", "fp16", "monte_carlo", "partials", "granularity", "element"),
    *("tile", "shared", "scale", "max_ulps", "mantissa_bits", "profile", "xla_gpu"),
    *("schedule", "run", "call", "shortest", "seed", "1e-3", "8", "-1", "0", "1e999"),
    *("nan", "inf", "True", "false", "9" * 5000, "٣", "1_000", "0x10", ""),
]
JOINTS = [":", ",", "=", "+", " ", ";", ".", "\n", "@", "(", ")"]
SPECS = st.one_of(
    st.lists(st.sampled_from(WORDS + JOINTS), max_size=9).map("".join),
    st.text(max_size=30),
)


@amount(450)
@given(text=SPECS)
def test_noise_specs(text):
    with refused_on_one_line(noise.NoiseError):
        spec = noise.parse(text)
        assert noise.parse(noise.format(spec)) == spec


NUMBERS = st.one_of(
    st.integers(-3, 40).map(str),
    st.sampled_from(
        ["", " ", "1e3", "nan", "inf", "0x10", "9" * 5000, "３", "-0", "1_0"]
    ),
    st.text(max_size=5),
)
LISTED = ("channels", "r_channels", "hidden", "a_filters", "r_filters", "offset")
WORDS_OF = {
    "variant": ["lotter", "watanabe", "other", ""],
    "convolution": ["auto", "xla", "other", ""],
    "model": ["prednet", "autoencoder", "x", ":", "no:where", "a.b:c"],
    "data": ["walk", "digits", "", ".", "/dev/null", "no\0where"],
    "crop": ["center", "resize", "Center", ""],
    "precision": ["float32", "float64", "half", ""],
}
VALUES = (
    dict.fromkeys(LISTED, st.lists(NUMBERS, max_size=5).map(",".join))
    | dict.fromkeys(("height", "width", "pixel_max"), NUMBERS)
    | {name: st.sampled_from(words) for name, words in WORDS_OF.items()}
)


@pytest.fixture(scope="module", autouse=True)
def declared():
    """The shared flags, declared here unless another test has them already."""
    known = set(flags.FLAGS)
    if "channels" not in known:
        _flags.define_model_flags()
        _flags.define_data_flags()
        _flags.define_precision_flag()
    yield
    flags.FLAGS.unparse_flags()
    for name in set(flags.FLAGS) - known:
        delattr(flags.FLAGS, name)


def parse(*words):
    flags.FLAGS.unparse_flags()
    for name in flags.FLAGS:
        flags.FLAGS[name].unparse()
    flags.FLAGS(["train.py", *words])


@amount(200)
@given(
    values=st.lists(
        st.sampled_from(sorted(VALUES)), min_size=1, max_size=4, unique=True
    ).flatmap(lambda names: st.fixed_dictionaries({n: VALUES[n] for n in names}))
)
def test_flags(values):
    try:
        parse(*(f"--{name}={value}" for name, value in values.items()))
    except flags.Error:
        return  # `_cli` prints these as it prints a UserError.
    with refused_on_one_line():
        task = _flags.task()
        assert min(task.frame) > 0
        assert len(_flags.integers("offset")) < 9
        if "data" in values or "crop" in values:
            _flags.open_source(task, 0)
