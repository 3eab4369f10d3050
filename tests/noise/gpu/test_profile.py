import json

import jax
import pytest

from prednet_jax.noise.order.profiles import excluded
from tests.noise.gpu import sums

# One run and the next, or one compilation and the next, may differ.
VARYING = {"call", "compilation"}


@pytest.mark.parametrize("gpu", sums.GPUS)
def test_the_profile_perturbs_what_varies_and_nothing_else(gpu):
    rows = json.loads(sums.RECORD.read_text())[gpu]
    for name, primitives in rows.items():
        # A sum that XLA made into something else would be no evidence of sums; this
        # one is made of additions of whole arrays, which have no order.
        assert primitives or name == "associative_scan"
        for primitive, ways in primitives.items():
            perturbed = excluded("xla_gpu", primitive, {}, "") is None
            assert perturbed == bool(VARYING & set(ways)), (name, primitive, ways)


@pytest.mark.slow
def test_what_is_compiled_now_varies_as_the_record_says(compiler):
    with jax.numpy_dtype_promotion("standard"):
        assert (
            sums.measured("gtx1080") == json.loads(sums.RECORD.read_text())["gtx1080"]
        )
