"""The profile `xla_gpu` agrees with what compiled programs say of each sum."""

import json
from pathlib import Path

import pytest

from benchmarks import gpu_sums
from prednet_jax.noise.order.profiles import excluded

RECORD = Path(__file__).parents[3] / "results" / "gpu" / "sums.json"
# One run and the next, or one compilation and the next, may differ.
VARYING = {"call", "compilation"}


@pytest.mark.skipif(not RECORD.exists(), reason="no record yet: make gpu")
@pytest.mark.parametrize("gpu", gpu_sums.GPUS)
def test_the_profile_perturbs_what_varies_and_nothing_else(gpu):
    rows = json.loads(RECORD.read_text())[gpu]
    assert list(rows) == [function.__name__ for function in gpu_sums.FUNCTIONS]
    for name, primitives in rows.items():
        # A sum that XLA made into something else would be no evidence of sums; this
        # one is made of additions of whole arrays, which have no order.
        assert primitives or name == "associative_scan"
        for primitive, ways in primitives.items():
            perturbed = excluded("xla_gpu", primitive, {}, "") is None
            assert perturbed == bool(VARYING & set(ways)), (name, primitive, ways)
