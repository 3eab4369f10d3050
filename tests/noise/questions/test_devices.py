import functools
import itertools
import json

import chex
import jax
import numpy as np
import pytest
from flax import nnx
from jax import lax
from jax import numpy as jnp
from jax.experimental import pallas
from jax.sharding import AxisType
from jax.sharding import PartitionSpec as P

from prednet_jax import noise
from prednet_jax.noise.order import collectives
from tests.processes import python

KEY = jax.random.key(0)


def order(kind, **options):
    return noise.ReductionOrder(profile="collectives", collectives=kind, **options)


def terms(n, *shape, dtype=np.float32):
    return np.random.default_rng(n).standard_normal((n, *shape)).astype(dtype)


def total(kind, x):
    add = jax.jit(
        lambda x: collectives.add_terms(order(kind), x, jnp.zeros(2, jnp.uint32), 0)
    )
    return np.asarray(add(x))


def one_by_one(x, ranks):
    sum = x[ranks[0]]
    for rank in ranks[1:]:
        sum = sum + x[rank]
    return sum


# NCCL's functions, transcribed: src/graph/trees.cc at 5067397.
def parents_and_children(rank, n):
    bit = 1
    while bit < n and not bit & rank:
        bit <<= 1
    if rank == 0:
        return [bit >> 1] if n > 1 else []
    low = bit >> 1
    first = second = -1 if low == 0 else rank - low
    second = -1 if low == 0 else rank + low
    while second >= n:
        second = -1 if low == 0 else rank + low
        low >>= 1
    return [child for child in (first, second) if child != -1]


def over_tree(x, rank, role, n):
    """What a rank sends up; `role` says who sits at a place of the first tree."""
    sum = x[role(rank)]
    for child in parents_and_children(rank, n):
        sum = sum + over_tree(x, child, role, n)
    return sum


@pytest.mark.parametrize(
    ("n", "dtype"),
    [(3, np.float32), (5, np.float32), (64, np.float32), (6, jnp.bfloat16)],
)
def test_ring(n, dtype):
    """Buffers of a narrow type are rounded at each addition."""
    x = terms(n, 37, dtype=dtype)
    chunk = np.arange(37) // -(-37 // n)
    expected = [
        one_by_one(x[:, i], [(c + 1 + j) % n for j in range(n)])
        for i, c in enumerate(chunk)
    ]
    np.testing.assert_array_equal(total("ring", x).astype(dtype), np.array(expected))


@pytest.mark.parametrize("n", [3, 4, 7, 13, 14, 64])
def test_tree(n):
    x = terms(n, 6)
    found = total("tree", x)
    mirrored = (lambda r: (r + 1) % n) if n % 2 else (lambda r: n - 1 - r)
    np.testing.assert_array_equal(found[:3], over_tree(x, 0, lambda r: r, n)[:3])
    np.testing.assert_array_equal(found[3:], over_tree(x, 0, mirrored, n)[3:])


def test_random_orders_are_orders_and_differ_from_key_to_key():
    x = terms(5, 1)
    keys = (jnp.uint32([i, 7]) for i in range(20))
    drawn = order("random")
    sums = {collectives.add_terms(drawn, x, key, 0).item() for key in keys}
    possible = {one_by_one(x[:, 0], p).item() for p in itertools.permutations(range(5))}
    assert len(sums) > 1
    assert sums <= possible


# A network that is not PredNet.
PARAMS = {"w": terms(12, 24) / 4, "v": terms(24, 10) / 5}
X = terms(64, 12)


def loss(params, x):
    return jnp.mean((jnp.tanh(x @ params["w"]) @ params["v"]) ** 2)


step = jax.value_and_grad(loss)
SPECS = (P(), P("data"))


def averaged(params, x):
    value, gradient = step(params, x)
    return lax.pmean(value, "data"), jax.tree.map(
        lambda g: g / lax.axis_size("data"), gradient
    )


@pytest.mark.parametrize(("n", "kind"), [(1, "ring"), (16, "random"), (64, "tree")])
def test_any_mesh_computes_the_same_function(n, kind):
    whole = step(PARAMS, X)
    for fn in (step, averaged):
        run = noise.devices(fn, mesh={"data": n}, in_specs=SPECS, spec=order(kind))
        found = run(KEY, PARAMS, X)
        chex.assert_trees_all_close(found, whole, rtol=2e-5, atol=2e-6)


@pytest.mark.parametrize("kind", ["ring", "tree", "sequential"])
def test_partial_sums_are_added_in_the_order_of_the_collective(kind):
    """A contraction over a sharded axis is one partial sum for each device."""
    x, w = terms(32, 40).T.copy(), terms(32, 3)

    def product(x, w):
        numbers = (((1,), (0,)), ((), ()))
        return lax.dot_general(x, w, numbers, out_sharding=P(None, None))

    specs = (P(None, "data"), P("data"))
    run = noise.devices(product, mesh={"data": 8}, in_specs=specs, spec=order(kind))
    part = jax.jit(jnp.dot)
    parts = [part(x[:, 4 * i : 4 * i + 4], w[4 * i : 4 * i + 4]) for i in range(8)]
    np.testing.assert_array_equal(run(KEY, x, w), total(kind, np.stack(parts)))


def test_a_mesh_of_two_axes_and_what_devices_say_to_each_other():
    def body(x):
        i, j = lax.axis_index("i"), lax.axis_index("j")
        right = lax.ppermute(x, "j", [(k, (k + 1) % 4) for k in range(4)])
        counts = lax.psum(jnp.int32(1), ("i", "j"))
        gathered = lax.all_gather(x, "i").sum(0)
        return right + i.astype(x.dtype), gathered * counts.astype(x.dtype), j[None]

    x = terms(8, 12)
    out = (P("i", "j"), P(None, "j"), P("j"))
    run = noise.devices(
        jax.shard_map(body, in_specs=P("i", "j"), out_specs=out, check_vma=False),
        mesh={"i": 2, "j": 4},
    )
    right, summed, index = run(KEY, x)
    np.testing.assert_array_equal(
        right, np.roll(x, 3, axis=1) + np.repeat(np.float32([[0], [1]]), 4, axis=0)
    )
    np.testing.assert_allclose(summed, 8 * (x[:4] + x[4:]), 1e-6)
    np.testing.assert_array_equal(index, range(4))


@pytest.mark.parametrize("pairs", [[(0, 3), (2, 1)], [(0, 1), (1, 2), (2, 3)], []])
def test_a_device_to_which_none_sends_gets_zeros(pairs):
    x = terms(8, 5)
    run = noise.devices(
        lambda x: lax.ppermute(x, "data", pairs),
        mesh={"data": 4},
        in_specs=P("data"),
        out_specs=P("data"),
    )
    expected = np.zeros_like(x).reshape(4, 2, 5)
    for source, target in pairs:
        expected[target] = x.reshape(4, 2, 5)[source]
    np.testing.assert_array_equal(run(KEY, x), expected.reshape(8, 5))


def test_a_permutation_of_two_axes_and_a_loop_over_a_sum_of_devices():
    x = terms(8, 5)
    run = noise.devices(
        lambda x: lax.ppermute(x, ("a", "b"), [(0, 1), (3, 0)]),
        mesh={"a": 2, "b": 2},
        in_specs=P(("a", "b")),
        out_specs=P(("a", "b")),
    )
    zeros = np.zeros((4, 5), np.float32)
    np.testing.assert_array_equal(run(KEY, x), [*x[6:], *x[:2], *zeros])

    def loop(x):
        return lax.while_loop(lambda c: c.sum() < 1e3, lambda c: c * c + 1, x)

    run = noise.devices(loop, mesh={"data": 8}, in_specs=P("data"))
    np.testing.assert_allclose(run(KEY, x), loop(x), 1e-6)


def test_a_sum_of_float16_is_rounded_at_each_device():
    x = terms(8, 5).astype(np.float16)
    run = noise.devices(
        lambda x: lax.psum(x, "data"),
        mesh={"data": 8},
        in_specs=P("data"),
        out_specs=P(None),
    )
    expected = functools.reduce(np.add, x)
    np.testing.assert_array_equal(run(KEY, x)[0], expected)


def rows(x):
    return lax.psum(x.sum(), "data") + x


def looked_up(params, x):
    return jnp.sum(params["w"][jnp.argmax(x, axis=1)])


def positions(params, x):
    return x, lax.axis_index("data")


OTHER = jax.shard_map(
    lambda params, x: lax.psum(x, "other"),
    mesh=jax.sharding.AbstractMesh((4,), ("other",)),
    in_specs=(P(), P("other")),
    out_specs=P(),
)


def grouped(p, x):
    w = jnp.ones((2, 12, 3))
    product = lax.ragged_dot(x, w, jnp.array([1, len(x) - 1]))
    return lax.psum(jnp.sum(product), "data")


def scanned(p, x):
    zero = lax.pcast(jnp.zeros(12), "data", to="varying")
    total, _ = lax.scan(lambda c, row: (c + row, None), zero, x)
    return lax.psum(jnp.sum(total), "data")


def copied(x):
    def kernel(x, out):
        out[...] = x[...]

    shape = jax.ShapeDtypeStruct(x.shape, x.dtype)
    return pallas.pallas_call(kernel, out_shape=shape, interpret=True)(x)


def kernel(p, x):
    return lax.psum(jnp.sum(copied(x)), "data")


UNCHECKED = jax.shard_map(kernel, in_specs=SPECS, out_specs=P(), check_vma=False)


@pytest.mark.parametrize(
    ("fn", "factor"), [(grouped, 3), (scanned, 1), (UNCHECKED, 1)], ids=range(3)
)
def test_a_body_with_an_operation_that_explicit_axes_lack(fn, factor):
    run = noise.devices(fn, mesh={"data": 8}, in_specs=SPECS)
    np.testing.assert_allclose(run(KEY, PARAMS, X), factor * np.sum(X), 1e-4)


def test_an_error_of_the_function_itself_is_raised_as_it_is():
    def wrong(p, x):
        raise ValueError("too few rows")

    for fn in (wrong, lambda p, x: wrong(p, lax.psum(x, "data"))):
        with pytest.raises(ValueError, match="too few rows") as raised:
            noise.devices(fn, mesh={"data": 8}, in_specs=SPECS)(KEY, PARAMS, X)
        assert not isinstance(raised.value, noise.NoiseError)


def rows_of_sums(p, x):
    return jnp.float32(jax.ops.segment_sum(x.T, jnp.arange(12), 3).shape[1])


def kept(p, x):
    reference = jax.new_ref(x)
    reference[:, 0] = jnp.zeros(len(x))
    return jnp.sum(reference[...])


def averaged_reference(p, x):
    return lax.pmean(jnp.sum(jax.freeze(jax.new_ref(x))), "data")


def test_errors():
    for options, message in (
        ({"mesh": {"data": 7}}, r"args\[1\] of shape \(64, 12\).* 7 times"),
        ({"mesh": {"data": 0}}, r"mesh\['data'\]=0.*from 1 to"),
        ({"mesh": jax.sharding.AbstractMesh((8,), ("data",))}, r"Mesh its \.shape"),
        ({"in_specs": (P(), P("model"))}, "model of P.* not found in"),
        ({"in_specs": None}, "nothing is spread over mesh"),
        ({"fn": lambda params, x: rows(x)}, r"differs along data.*out_specs"),
        ({"fn": OTHER, "in_specs": None}, "expected shard_map without mesh="),
        (
            {"fn": lambda p, x: looked_up(p, x)},
            r"expected jax\.reshard.* out_sharding there",
        ),
        (
            {"fn": lambda p, x: x.reshape(4, 16, 12)},
            r"reshape is not supported.*expected jax\.reshard",
        ),
        (
            {"fn": lambda p, x: jax.ops.segment_sum(x.T, jnp.arange(12), 3)},
            r"expected jax\.reshard",
        ),
        (
            {
                "fn": lambda p, x: lax.psum(x, "data", axis_index_groups=[[0], [1]]),
                "mesh": {"data": 2},
            },
            "axis_index_groups of a collective.*check_vma=False",
        ),
        (
            {"fn": lambda p, x: lax.psum(x, "e")},
            "perhaps an axis of a collective that the mesh lacks",
        ),
        ({"fn": lambda p, x: lax.axis_index("e")}, "axes of mesh={'data': 8} alone"),
        ({"fn": grouped, "mesh": {"data": 1}}, "mapped over devices: ragged_dot vmap"),
        ({"fn": kernel}, "check_vma=True.*expected jax.shard_map with check_vma=False"),
        ({"fn": lambda p, x: copied(x)}, "Manual, got .*: expected jax.reshard"),
        # As a body it would have eight rows, and a result that does not vary.
        ({"fn": rows_of_sums}, "expected jax.reshard"),
        ({"fn": kept}, r"sharded ref .*: expected jax\.reshard"),
        (
            {"fn": averaged_reference},
            "new_ref: expected a shard_map without mutable arrays",
        ),
        ({"in_specs": P("data", "data")}, "duplicate entries"),
        ({"fn": positions, "out_specs": P("data")}, r"result\[1\] of shape \(\) over"),
        ({"fn": positions, "out_specs": (P("data"),)}, "structure of the result"),
        ({"fn": positions, "out_specs": (P("data"), P())}, r"result\[1\] differs"),
        ({"fn": positions, "out_specs": "data"}, "expected PartitionSpecs, or None"),
    ):
        given = {"fn": step, "mesh": {"data": 8}, "in_specs": SPECS} | options
        with pytest.raises(noise.NoiseError, match=message) as raised:
            noise.devices(**given)(KEY, PARAMS, X)
        assert "\n" not in str(raised.value)


def test_a_mistake_of_the_function_is_told_of_its_whole_arrays():
    """As a body of a shard_map it would have parts of them."""
    run = noise.devices(lambda p, x: x + jnp.ones(7), mesh={"data": 8}, in_specs=SPECS)
    with pytest.raises(ValueError, match=r"\(64, 12\)"):
        run(KEY, PARAMS, X)


def test_an_argument_without_arrays():
    run = noise.devices(lambda x, y: 2 * x, mesh={"data": 8}, in_specs=SPECS[::-1])
    np.testing.assert_array_equal(run(KEY, X, None), 2 * X)


def test_a_body_with_a_lookup_in_a_table():
    """JAX's question where the rows lie ended it, although a body answers that."""
    run = noise.devices(
        lambda p, x: lax.psum(looked_up(p, x), "data"), mesh={"data": 8}, in_specs=SPECS
    )
    np.testing.assert_allclose(run(KEY, PARAMS, X), looked_up(PARAMS, X), 1e-5)


def test_a_table_over_numbers_of_devices():
    def fn(params, x):
        chosen = jnp.argmax(x @ params["w"], axis=1)
        return loss(params, x), x * 2.0, chosen, jax.random.key(0)

    mesh = {"data": (1, 16), "model": 2}
    table = noise.devices_table(fn, mesh=mesh, in_specs=SPECS, draws=2)
    one, many = table(KEY, PARAMS, X).rows
    assert (one.devices, many.devices) == (2, 32)
    assert one.same_bits
    assert many.rung in ("identical", "order", "rounding")
    assert many.loss == pytest.approx(float(loss(PARAMS, X)), rel=1e-5)
    assert many.norm == pytest.approx(np.linalg.norm(2 * X), rel=1e-5)
    assert one.flipped == many.flipped == 0
    with pytest.raises(noise.NoiseError, match="expected several sizes of one axis"):
        noise.devices_table(fn, mesh={"data": 8})


def test_a_body_says_how_its_results_lie():
    run = noise.devices(rows, mesh={"data": 8}, in_specs=P("data"), out_specs=P("data"))
    np.testing.assert_allclose(run(KEY, X), X.sum() + X, 1e-4, 1e-4)


def test_a_mutable_module_trains_as_without_devices():
    def train(model, x):
        value, gradient = nnx.value_and_grad(lambda m: jnp.mean(m(x) ** 2))(model)
        model.kernel[...] -= 0.1 * gradient.kernel[...]
        return value

    one, many = (nnx.Linear(12, 3, rngs=nnx.Rngs(0)) for _ in range(2))
    value = train(one, X)
    run = noise.devices(train, mesh={"data": 16}, in_specs=(None, P("data")))
    np.testing.assert_allclose(run(KEY, many, X), value, 1e-5)
    np.testing.assert_allclose(many.kernel[...], one.kernel[...], 1e-5, 1e-6)


def on_devices(count, function):
    """What a function of this file gives in a process with so many CPU devices."""
    module = "tests.noise.questions.test_devices"
    code = f"import json, {module} as t; print(json.dumps(t.{function.__name__}()))"
    return json.loads(python("-c", code, devices=count).stdout.splitlines()[-1])


def same(a, b):
    leaves = zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True)
    return all(np.array_equal(np.asarray(x), np.asarray(y)) for x, y in leaves)


def scattered(x):
    groups = [[0, 2, 4, 6], [1, 3, 5, 7]]
    return (
        lax.psum_scatter(x, "data", scatter_dimension=1, tiled=True),
        lax.psum_scatter(x[0, :8], "data")[None],
        lax.psum(x, "data", axis_index_groups=groups),
        lax.psum_scatter(x, "data", axis_index_groups=groups, tiled=True),
        lax.all_gather(x, "data").sum(0),
        lax.psum(x.astype(jnp.bfloat16), "data"),
    )


def compared():
    """Whether eight real devices give the bits of one."""
    mesh = jax.make_mesh((8,), ("data",), axis_types=(AxisType.Auto,))
    kinds = [("random", "element"), ("tree", "tile"), ("ring", "tile")]
    outs = (*[P("data")] * 5, P())
    programs = {
        "step": (averaged, (PARAMS, X), SPECS, P(), True),
        "unchecked": (averaged, (PARAMS, X), SPECS, P(), False),
        "scattered": (scattered, (terms(32, 16),), P("data"), outs, False),
    }
    found = {}
    for name, (fn, args, ins, out, check) in programs.items():
        options = {"in_specs": ins, "out_specs": out, "check_vma": check}
        real = jax.shard_map(fn, mesh=mesh, **options)
        here = jax.shard_map(fn, **options)
        one = noise.devices(here, mesh={"data": 8})(KEY, *args)
        found[f"{name}, XLA"] = same(jax.jit(real)(*args), one)
        specs = [order(kind, granularity=g) for kind, g in kinds[: 3 if check else 1]]
        # What each device draws for itself is what it draws on the mesh.
        specs.append(noise.StochasticRounding(primitives=("dot_general", "psum")))
        for spec in specs:
            noisy = noise.inject(real, spec)(KEY, *args)
            one = noise.devices(here, mesh={"data": 8}, spec=spec)(KEY, *args)
            found[f"{name}, {spec}"] = same(noisy, one)
    explicit = jax.make_mesh((8,), ("data",), axis_types=(AxisType.Explicit,))

    def compiled(fn, specs, *args):
        with jax.set_mesh(explicit):
            placed = [
                jax.device_put(x, jax.NamedSharding(explicit, spec))
                for x, spec in zip(args, specs, strict=True)
            ]
            return jax.device_get(jax.jit(fn)(*placed))

    # One operand alone is sharded: gathered if it is no larger than the result.
    for m, k, n in ((64, 16, 8), (8, 128, 8), (64, 64, 64), (16, 64, 256)):
        for specs in ((P(None, "data"), P()), (P(), P("data"))):
            args = terms(m, k), terms(k, n)
            run = noise.devices(jnp.matmul, mesh={"data": 8}, in_specs=specs)
            real = compiled(jnp.matmul, specs, *args)
            found[f"{m}, {k}, {n}, {specs}"] = same(real, run(KEY, *args))
    real = compiled(step, SPECS, PARAMS, X)
    one = noise.devices(step, mesh={"data": 8}, in_specs=SPECS)(KEY, PARAMS, X)
    near = jax.tree.map(lambda a, b: bool(np.allclose(a, b, 1e-5, 1e-6)), real, one)
    return found | {"explicit, close": all(jax.tree.leaves(near))}


def test_eight_real_devices_give_the_same_bits():
    found = on_devices(8, compared)
    assert len(found) == 20
    assert [name for name, right in found.items() if not right] == []


def wrong_on_one_of_two():
    """What is blamed for a factor, or a NaN, that only the second device makes."""
    mesh = jax.make_mesh((2,), ("i",), axis_types=(AxisType.Auto,))
    specs = {"in_specs": P("i"), "out_specs": P(), "check_vma": False}

    def total(factor):
        def local(x):
            h = x * jnp.where(lax.axis_index("i") == 1, factor, 1.0)
            return jnp.tanh(lax.psum(jnp.sqrt(h), "i"))

        return jax.shard_map(local, mesh=mesh, **specs)

    x = jnp.abs(X)
    report = noise.first_difference(total(2.0), noise.record(total(1.0))(x))(KEY, x)
    nan = noise.first_nan(total(-1.0))(x)
    return [(e.primitive, e.step) for e in (report[0], nan)]


def test_a_fault_on_one_device_comes_before_what_others_compute_from_it():
    """The sum over devices was listed first, as the first device computes it too."""
    found = on_devices(2, wrong_on_one_of_two)
    assert found == [["select_n", [1]], ["sqrt", [1]]]


def perturbed():
    """Noise on four real devices: what it perturbs, and results beside the plain."""
    mesh = jax.make_mesh((4,), ("i",), axis_types=(AxisType.Auto,))
    element = noise.ReductionOrder(granularity="element", partials=4)
    keys = jax.random.split(KEY, 8)
    x, w = terms(64, 5), terms(5, 5)
    found = {}

    def local(x):
        rows = jnp.sum(x, axis=0)
        return lax.psum(rows, "i"), rows[None]

    for check in (True, False):
        options = {"in_specs": P("i"), "out_specs": (P(), P("i")), "check_vma": check}
        fn = jax.shard_map(local, mesh=mesh, **options)
        run = jax.jit(noise.inject(fn, element))
        derivative = jax.grad(lambda x, fn=fn: jnp.sum(jnp.sin(fn(x)[0])))
        gradient = jax.jit(noise.inject(derivative, element))(keys[0], x)
        rows = jax.device_get(run(keys[0], np.tile(x[:16], (4, 1))))[1]
        totals = np.stack([run(key, x)[0] for key in keys])
        copies = run(keys[1], x)[0].addressable_shards
        names = {e.primitive for e in noise.coverage(fn, element)(x).perturbed}
        found[str(check)] = {
            "devices": len({row.tobytes() for row in rows}),
            "keys": len({total.tobytes() for total in totals}),
            "replicated": len({np.asarray(c.data).tobytes() for c in copies}),
            "copies": len(copies),
            "gradient": bool(np.allclose(gradient, derivative(x), 1e-5, 1e-5)),
            "perturbed": sorted(name.split("_inv")[0] for name in names),
        }

    # A data-parallel step with recomputation, where JAX checks what varies.
    def recomputed(w, x):
        def loss(w):
            hidden = jax.checkpoint(lambda w, x: jnp.tanh(x @ w))(w, x)
            return lax.pmean(jnp.sum(hidden), "i")

        return jax.grad(loss)(w)

    fn = jax.shard_map(recomputed, mesh=mesh, in_specs=(P(), P("i")), out_specs=P())
    found["recomputed"] = [
        bool(np.allclose(noise.inject(fn, spec)(keys[0], w, x), fn(w, x), 1e-4, 1e-5))
        for spec in (element, noise.UlpPerturbation())
    ]

    # Explicit shardings: types, differing bits, and what one device gives.
    explicit = jax.make_mesh((4,), ("i",), axis_types=(AxisType.Explicit,))
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
    both = jax.make_mesh((2, 2), ("i", "j"), axis_types=(AxisType.Explicit,) * 2)
    options = {"in_specs": P("i"), "out_specs": P(), "axis_names": {"i"}}
    total = lambda x: lax.psum(jnp.sum(x @ w, 0), "i")  # noqa: E731
    partly = jax.shard_map(total, mesh=both, **options)
    found["partly manual"] = []
    for over in (P("i"), P(("i", "j"))):
        with jax.set_mesh(both):
            placed = jax.device_put(x, jax.NamedSharding(both, over))
            summed = jax.jit(noise.inject(partly, element))(keys[0], placed)
        right = np.allclose(summed, (x @ w).sum(0), 1e-4, 1e-4)
        found["partly manual"].append(bool(right))
    return found


@pytest.fixture(scope="module")
def found():
    return on_devices(4, perturbed)


@pytest.mark.parametrize("check_vma", ["True", "False"])
def test_sums_within_and_over_devices(found, check_vma):
    measured = found[check_vma]
    # Without check_vma JAX does not say what varies, and all devices draw the same.
    assert (measured.pop("devices") > 1) == (check_vma == "True")
    assert measured.pop("keys") > 1
    assert measured.pop("perturbed") == ["psum", "reduce_sum"]
    assert measured == {"replicated": 1, "copies": 4, "gradient": True}


def test_recomputation_on_a_mesh(found):
    """The barrier before a recomputation must not make weights vary over the mesh."""
    assert found["recomputed"] == [True, True]


def test_explicit_shardings(found):
    assert found["partly manual"] == [True, True]
    assert len(found["explicit"]) == 12
    for name, right in found["explicit"].items():
        assert right == [True, True, True], name


def test_each_device_computes_its_own_rows():
    """Another program than that of the whole batch, and so other bits."""
    w, x = terms(1000, 96), terms(64, 1000)

    def layer(w, x):
        return x @ w

    specs = (P(), P("data"))
    over = noise.devices(layer, mesh={"data": 64}, in_specs=specs)(KEY, w, x)
    alone = [jax.jit(layer)(w, rows) for rows in np.split(x, 64)]
    np.testing.assert_array_equal(over, np.concatenate(alone))
    several = {"data": (1, 64)}
    table = noise.devices_table(layer, mesh=several, in_specs=specs)(KEY, w, x)
    same = np.array_equal(jax.jit(layer)(w, x), np.concatenate(alone))
    assert table.rows[1].same_bits == same
