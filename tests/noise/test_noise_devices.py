"""Noise inside shard_map, on four devices: in a process that is forced to have them."""

import json

import pytest

from tests.processes import python

PROGRAM = r"""
import json

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import PartitionSpec as P

from prednet_jax import noise

mesh = jax.make_mesh((4,), ("i",), axis_types=(jax.sharding.AxisType.Auto,))
order = noise.ReductionOrder(granularity="element", partials=4)
keys = jax.random.split(jax.random.key(0), 8)
x = jnp.asarray(np.random.default_rng(0).standard_normal((64, 5)), jnp.float32)
same = jnp.tile(x[:16], (4, 1))


def mapped(check):
    def local(x):
        rows = jnp.sum(x, axis=0)
        return lax.psum(rows, "i"), rows[None]

    return jax.shard_map(
        local, mesh=mesh, in_specs=P("i"), out_specs=(P(), P("i")), check_vma=check
    )


found = {}
for check in (True, False):
    fn = mapped(check)
    run = jax.jit(noise.inject(fn, order))
    total, rows = jax.device_get(run(keys[0], same))
    totals = np.stack([run(key, x)[0] for key in keys])
    exact = np.asarray(x, np.float64).sum(0)
    size = np.abs(np.asarray(x, np.float64)).sum(0)
    whole = jnp.round(4 * x)
    gradient = jax.jit(
        noise.inject(jax.grad(lambda x: jnp.sum(jnp.sin(fn(x)[0]))), order)
    )
    plain = jax.grad(lambda x: jnp.sum(jnp.sin(fn(x)[0])))(x)
    copies = [
        np.asarray(shard.data) for shard in run(keys[1], x)[0].addressable_shards
    ]
    report = noise.coverage(fn, order)(x)
    found[str(check)] = {
        "devices": len({row.tobytes() for row in rows}),
        "keys": len({total.tobytes() for total in totals}),
        "again": bool(np.array_equal(run(keys[0], x)[0], totals[0])),
        # 64 terms in float32; u = 2^-24.
        "bound": bool(np.all(np.abs(totals - exact) <= 64 * 2.0**-24 * size)),
        "integers": bool(np.array_equal(run(keys[0], whole)[0], whole.sum(0))),
        "replicated": len({copy.tobytes() for copy in copies}),
        "copies": len(copies),
        "gradient": bool(np.allclose(gradient(keys[0], x), plain, 1e-5, 1e-5)),
        "perturbed": sorted({e.primitive.split("_inv")[0] for e in report.perturbed}),
    }

# A data-parallel step with recomputation, in the forms that JAX checks what varies in.
w = jnp.asarray(np.random.default_rng(1).standard_normal((5, 5)), jnp.float32)


def step(w, x):
    def loss(w):
        hidden = jax.checkpoint(lambda w, x: jnp.tanh(x @ w))(w, x)
        return lax.pmean(jnp.sum(hidden), "i")

    return jax.grad(loss)(w)


step = jax.shard_map(step, mesh=mesh, in_specs=(P(), P("i")), out_specs=P())
found["recomputed"] = [
    bool(np.allclose(noise.inject(step, spec)(keys[0], w, x), step(w, x), 1e-4, 1e-5))
    for spec in (order, noise.UlpPerturbation())
]

# Explicit shardings: results, their types, and the bits that all on one device gives.
explicit = jax.make_mesh((4,), ("i",), axis_types=(jax.sharding.AxisType.Explicit,))
spread = jax.device_put(x, jax.NamedSharding(explicit, P("i")))
functions = {
    "sum": lambda x: jnp.sum(x, 0),
    "dot": lambda x: x @ w,
    "gradient": jax.grad(lambda x: jnp.sum(jnp.tanh(x @ w) ** 2)),
    "cumsum": lambda x: jnp.cumsum(x, 1),
}
found["explicit"] = {}
for granularity in ("tile", "element", "shared"):
    spec = noise.ReductionOrder(granularity=granularity, tile=2, partials=4)
    for name, fn in functions.items():
        with jax.set_mesh(explicit):
            run = jax.jit(noise.inject(fn, spec))
            one, *others = [run(key, spread) for key in keys]
            same_type = jax.typeof(one) == jax.typeof(jax.jit(fn)(spread))
        found["explicit"][f"{name} {granularity}"] = [
            same_type,
            any(bool(np.any(one != other)) for other in others),
            bool(np.allclose(one, fn(x), 1e-4, 1e-5)),
        ]

# Explicit axes of which a shard_map makes some manual.
kinds = (jax.sharding.AxisType.Explicit,) * 2
both = jax.make_mesh((2, 2), ("i", "j"), axis_types=kinds)


def rows(x):
    return lax.psum(jnp.sum(x @ w, 0), "i")


partly = jax.shard_map(
    rows, mesh=both, in_specs=P("i"), out_specs=P(), axis_names={"i"}
)
found["partly manual"] = []
for over in (P("i"), P(("i", "j"))):
    with jax.set_mesh(both):
        placed = jax.device_put(x, jax.NamedSharding(both, over))
        total = jax.jit(noise.inject(partly, order))(keys[0], placed)
    right = np.allclose(total, (x @ w).sum(0), 1e-4, 1e-4)
    found["partly manual"].append(bool(right))
print(json.dumps(found))
"""


@pytest.fixture(scope="module")
def found():
    printed = python("-c", PROGRAM, devices=4).stdout
    return json.loads(printed.splitlines()[-1])


@pytest.mark.parametrize("check_vma", ["True", "False"])
def test_sums_within_and_over_devices(found, check_vma):
    measured = found[check_vma]
    # Without check_vma JAX does not say what varies, and all devices draw the same.
    assert (measured.pop("devices") > 1) == (check_vma == "True")
    assert measured.pop("keys") > 1
    assert measured == {
        "again": True,
        "bound": True,
        "integers": True,
        "replicated": 1,
        "copies": 4,
        "gradient": True,
        "perturbed": ["psum", "reduce_sum"],
    }


def test_recomputation_on_a_mesh(found):
    """The barrier before a recomputation must not make weights vary over the mesh."""
    assert found["recomputed"] == [True, True]


def test_explicit_shardings(found):
    assert found["partly manual"] == [True, True]
    assert len(found["explicit"]) == 12
    for name, right in found["explicit"].items():
        assert right == [True, True, True], name
