"""The profile `xla_gpu` agrees with what compiled programs say of each sum."""

import json
from pathlib import Path

import pytest

from prednet_jax.noise.order.profiles import excluded

# Made by benchmarks/gpu_sums.py of commit 09c1a23.
RECORD = Path(__file__).parents[3] / "results" / "gpu" / "sums.json"
# One run and the next, or one compilation and the next, may differ.
VARYING = {"call", "compilation"}


@pytest.mark.parametrize("gpu", ["gtx1080", "rtx2080ti", "h100"])
def test_the_profile_perturbs_what_varies_and_nothing_else(gpu):
    rows = json.loads(RECORD.read_text())[gpu]
    for name, primitives in rows.items():
        # A sum that XLA made into something else would be no evidence of sums; this
        # one is made of additions of whole arrays, which have no order.
        assert primitives or name == "associative_scan"
        for primitive, ways in primitives.items():
            perturbed = excluded("xla_gpu", primitive, {}, "") is None
            assert perturbed == bool(VARYING & set(ways)), (name, primitive, ways)
