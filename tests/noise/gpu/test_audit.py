import functools
import json
import os
import re

import jax
import numpy as np
import pytest
from flax import linen as nn
from jax import numpy as jnp
from jax.experimental import pallas
from jax.experimental.pallas import tpu as pltpu
from jax.sharding import AbstractMesh, NamedSharding, PartitionSpec

from prednet_jax import noise
from prednet_jax.noise.__main__ import main
from prednet_jax.noise.errors import NoiseError
from prednet_jax.noise.gpu.targets import CARDS
from tests.processes import ROOT

FILE = os.path.basename(__file__)


def S(*shape, dtype=jnp.float32, **keywords):  # noqa: N802
    return jax.ShapeDtypeStruct(shape, dtype, **keywords)


IDS = S(32, dtype=jnp.int32)


def line(function, number):
    """A line of a function, as entries name it; 1 is that after its head."""
    start = function.__code__.co_firstlineno
    return f"{FILE}:{start + number} in {function.__name__}"


def segments(x, ids):
    y = jnp.tanh(x)
    total = jax.ops.segment_sum(y, ids, num_segments=5)
    return jnp.sum(total, axis=1)


def counted(ids):
    return jnp.zeros(9, jnp.int32).at[ids].add(1)


def largest(x, ids):
    return jnp.zeros(9).at[ids].max(x[:, 0])


def once(x, ids):
    return jnp.zeros(64).at[ids].add(x[:, 1], unique_indices=True)


def product(x, w):
    return x @ w


def highest(image, kernel):
    """Its name says nothing about precision."""
    return jax.lax.conv_general_dilated(image, kernel, (1, 1), "SAME")


def one_hot(x, ids):
    return jax.nn.one_hot(ids, 5).T @ x


def pooled(image):
    windows = image[:, :, :8, :8].reshape(2, 4, 4, 2, 4, 2)
    return jax.grad(lambda w: jnp.sum(w.max((3, 5)) ** 2))(windows)


def twice(x, ids):
    """A function jitted before, and a library's inside."""
    a = jnp.var(x)
    b = jnp.var(x * 2)
    return jax.jit(segments)(x, ids) + a + b


def everything(x, ids, w, image, kernel):
    """All of them as one program, so that they are compiled once."""
    return (
        *[f(x, ids) for f in (segments, largest, once, one_hot, twice)],
        *[counted(ids), product(w, w), highest(image, kernel), pooled(image)],
    )


SHAPES = (S(32, 4), IDS, S(64, 64), S(2, 4, 64, 64), S(4, 4, 3, 3))


class Model(nn.Module):
    @nn.compact
    def __call__(self, ids, image):
        word = nn.Embed(50, 8)(ids)
        h = nn.Conv(8, (3, 3))(image)
        h = nn.max_pool(h, (2, 2), (2, 2))
        h = nn.LayerNorm()(h.reshape(h.shape[0], -1))
        return nn.Dense(8)(h) + word


def gradient(params, ids, image):
    def loss(params):
        return jnp.mean(Model().apply(params, ids, image) ** 2)

    return jax.grad(loss)(params)


@pytest.fixture(scope="module")
def report(compiler):
    jax.jit(segments).trace(S(32, 4), IDS)
    with jax.default_matmul_precision("default"):
        return noise.audit(everything, gpu="a100")(*SHAPES)


def entries(report, function):
    return [e for e in report.entries if e.source.endswith(f" in {function.__name__}")]


def test_an_atomic_and_its_line(report):
    atomic, *others = entries(report, segments)
    assert atomic[:4] == ("atomic", "scatter-add", line(segments, 2), "call")
    assert "compare-and-swap" in atomic.detail
    assert "atom" in report.compiled.ptx[atomic.kernel]
    summed = next(e for e in others if e.kind == "reduction")
    assert summed[:4] == ("reduction", "reduce_sum", line(segments, 3), "compilation")
    fixed = "a sum of 4: the kernel fixes the order"
    assert summed.detail == f"{fixed}; or autotuning takes Triton's"
    assert report.varies == "call"
    assert report.memory.arguments == sum(x.size * 4 for x in SHAPES)


def test_atomics_that_give_the_same_bits_or_are_none(report):
    """One-hot and reshape are what the page recommends in place of atomics."""
    exact = {counted: ["no"], largest: ["no"], once: [], one_hot: [], pooled: []}
    for fn, varies in exact.items():
        found = entries(report, fn)
        assert [e.varies for e in found if e.kind == "atomic"] == varies
        assert "call" not in {e.varies for e in found}


def test_each_advice_was_tried(report):
    flag, *others, precision = report.advice
    assert flag.left == precision.left == ()
    assert "deterministic_ops" in flag.change
    assert "highest" in precision.change
    assert any("unique_indices" in each.change for each in others)
    assert {each.left for each in others} == {None}
    assert "which may be slower; compiled again: none left" in str(report)
    assert "Not known without the device" in str(report)


def test_a_gpu_described_is_compiled_for(compiler):
    """XLA's own text of a card gives the program that its name gives."""
    text = CARDS["a100"].config()
    found = noise.audit(product, gpu=text, advise=False)(S(64, 64), S(64, 64))
    assert found.gpu == "described"
    assert str(found).startswith("the GPU described: ")
    (rounded,) = [e for e in found.entries if e.kind == "reduced_precision"]
    assert rounded.source == line(product, 1)


def test_tf32_since_ampere(report, compiler):
    """Of a convolution a library decides; its function's name says nothing."""
    assert "reduced_precision" in {e.kind for e in entries(report, product)}
    kinds = {(e.kind, e.source) for e in entries(report, highest)}
    assert kinds == {(k, line(highest, 2)) for k in ("library", "reduced_precision")}
    before = noise.audit(product, gpu="gtx1080")(S(64, 64), S(64, 64))
    (made,) = before.entries
    assert made[:4] == ("library", "dot_general", line(product, 1), "compilation")


def test_under_the_flag_none_is_left(compiler):
    report = noise.audit(everything, gpu="a100", deterministic=True)(*SHAPES)
    assert report.varies == "device"
    assert line(segments, 2) in {e.source for e in report.entries}


def test_equal_keys_of_a_sort_that_is_not_stable_have_no_order(compiler):
    """Its report was "the same bits everywhere"."""

    def places(x, stable):
        return jnp.argsort(x, stable=stable)

    for stable, varies in ((True, "no"), (False, "device")):
        fn = functools.partial(places, stable=stable)
        report = noise.audit(fn, advise=False)(S(64))
        assert report.varies == varies
        sources = [(e.primitive, e.source) for e in report.entries]
        assert sources == [("sort", line(places, 1))] * (not stable)


@pytest.mark.parametrize("fn", [jnp.abs, jnp.sign, lambda z: z * z[::-1]])
def test_an_operation_on_complex_numbers_is_several(fn, compiler):
    """The size of a complex number was "the same bits everywhere"."""
    report = noise.audit(fn, advise=False)(S(64, dtype=jnp.complex64))
    assert report.varies == "device"
    assert "complex" in report.entries[0].detail


def test_a_librarys_inside_names_the_line_that_calls_it(report):
    found = entries(report, twice)
    sources = {e.source for e in found if e.kind != "arithmetic"}
    assert sources == {line(twice, 2), line(twice, 3)}
    assert not [e for e in report.entries if "report" in e.source]


def test_a_network_of_flax(compiler):
    shapes = S(4, dtype=jnp.int32), S(4, 8, 8, 3)
    params = jax.eval_shape(Model().init, jax.random.key(0), *shapes)
    report = noise.audit(gradient, gpu="h100", advise=False)(params, *shapes)
    by_call = {(e.kind, e.primitive, e.source) for e in report.entries[:3]}
    call = Model.__call__
    assert by_call == {
        ("atomic", "scatter-add", line(call.__wrapped__, 2)),
        ("library", "conv_general_dilated", line(call.__wrapped__, 3)),
        ("atomic", "select_and_scatter_add", line(call.__wrapped__, 4)),
    }
    assert {e.varies for e in report.entries[3:]} <= {"compilation", "device"}
    library = next(e for e in report.entries if e.kind == "library")
    assert library.detail.startswith("cuDNN __cudnn$conv")


def test_sum_over_devices_that_nobody_wrote(compiler):
    """A spec inside of the function; XLA's metadata call the sum a transposition."""
    mesh = AbstractMesh((8,), ("data",))

    def gradient(w, x):
        x = jax.lax.with_sharding_constraint(x, PartitionSpec("data"))
        return jax.grad(lambda w: jnp.sum(jnp.tanh(x @ w) ** 2))(w)

    whole = NamedSharding(mesh, PartitionSpec())
    audit = noise.audit(gradient, devices=8, advise=False)
    report = audit(S(64, 32, sharding=whole), S(16, 64))
    (summed,) = [e for e in report.entries if e.kind == "collective"]
    assert summed.detail.startswith("all-reduce over ")
    assert "inserted by the partitioner" in summed.detail
    assert (summed.primitive, summed.varies) == ("dot_general", "device")
    assert summed.source.partition(" ")[0] == line(gradient, 2).partition(" ")[0]


def test_collectives_written_and_joined(compiler):
    """Whatever name XLA launches them under; one all-reduce of gradients has none."""
    mesh = AbstractMesh((8,), ("data",))
    spec = PartitionSpec("data")
    rows, whole = (NamedSharding(mesh, x) for x in (spec, PartitionSpec()))

    def exchanged(x):
        y = jax.lax.psum_scatter(x, "data", tiled=True)
        z = jax.lax.all_to_all(x, "data", 1, 1, tiled=True)
        return y, z, jax.lax.pmax(jnp.sin(x), "data")

    def summed(x):
        a = jax.lax.psum(jnp.sin(x), "data")
        b = jax.lax.psum(jnp.cos(x[:1]), "data")
        return a, b

    def gradients(v, w, x):
        def loss(v, w):
            hidden = jnp.tanh(x @ v)
            return jnp.sum((hidden @ w) ** 2)

        options = {"mesh": mesh, "in_specs": spec, "out_specs": PartitionSpec()}
        return jax.shard_map(summed, **options)(x), jax.grad(loss, (0, 1))(v, w)

    def found(fn, *args):
        report = noise.audit(fn, devices=8, advise=False)(*args)
        return {e[1:4] for e in report.entries if e.kind == "collective"}

    spread = jax.shard_map(exchanged, mesh=mesh, in_specs=spec, out_specs=spec)
    with jax.sharding.use_abstract_mesh(mesh):
        assert found(spread, S(64, 64)) == {
            ("reduce_scatter", line(exchanged, 1), "device"),
            ("all_to_all", line(exchanged, 2), "no"),
            ("pmax", line(exchanged, 3), "no"),
        }
    shapes = [S(64, 64, sharding=whole), S(64, 32, sharding=whole)]
    first = gradients.__code__.co_firstlineno
    assert found(gradients, *shapes, S(16, 64, sharding=rows)) == {
        ("psum_invariant", line(summed, 1), "device"),
        ("psum_invariant", line(summed, 2), "device"),
        ("dot_general", f"{FILE}:{first + 2} in loss", "device"),
        ("dot_general", f"{FILE}:{first + 3} in loss", "device"),
    }


def test_what_xla_does_not_compile_is_named(compiler):
    """Callbacks and prints, which call Python, and kernels of others."""

    def asks(x):
        y = x * 2
        return jax.pure_callback(np.sin, S(4), y)

    def says(x):
        jax.debug.print("{}", x)
        return x

    def foreign(x):
        y = jnp.sin(x)
        return jax.ffi.ffi_call("of_nobody", S(4))(y)

    def of_cpus(x):
        y = jnp.outer(x, x)
        return jax.lax.linalg.hessenberg(y)[0]

    def of_tpus(x):
        def kernel(x, y):
            y[...] = pltpu.roll(x[...], 1, 0)

        options = {"compiler_params": pltpu.CompilerParams()}
        return pallas.pallas_call(kernel, S(4), **options)(x)

    equations = {
        **{asks: ("pure_callback", 2), says: ("debug_print", 1)},
        **{foreign: ("ffi_call", 2), of_cpus: ("hessenberg", 2)},
        of_tpus: ("pallas_call", 5),
    }
    for fn, (name, number) in equations.items():
        with pytest.raises(NoiseError, match=name) as caught:
            noise.audit(fn)(S(4))
        assert line(fn, number) in str(caught.value)
        assert "\n" not in str(caught.value)


def test_errors_of_the_function_itself_stay():
    with pytest.raises(TypeError, match="dot_general"):
        noise.audit(product)(S(3, 4), S(5, 6))


def test_bad_options():
    for keywords, said in (
        ({"gpu": "gtx1081"}, "gpu='gtx1081': expected one of gtx750ti"),
        ({"devices": -1}, "devices=-1"),
        ({"deterministic": "yes"}, "deterministic='yes'"),
        ({"time_limit": 0}, "time_limit=0: expected a finite"),
        ({"devices": 2}, "devices=2: expected 8"),
    ):
        sharding = NamedSharding(AbstractMesh((8,), ("x",)), PartitionSpec("x"))
        with pytest.raises(NoiseError, match=said):
            noise.audit(product, **keywords)(S(64, 64, sharding=sharding), S(64, 64))


def test_the_command(compiler, tmp_path, monkeypatch, capsys):
    (tmp_path / "audited.py").write_text(
        "import jax\n\n\ndef total(x, ids):\n"
        "    return jax.ops.segment_sum(x, ids, num_segments=3)\n"
    )
    ids = np.zeros(8, np.int32)
    np.savez(tmp_path / "batch.npz", np.ones((8, 2), np.float32), ids)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    command = ["audit", "audited:total", "--args=batch.npz", "--gpu=gtx970"]
    assert main([*command, "--deterministic", "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert (answer["gpu"], answer["varies"]) == ("gtx970", "device")
    assert answer["entries"][0]["source"] == "audited.py:5 in total"
    assert set(answer["memory"]) == {"arguments", "results", "temporaries"}
    assert "noise" not in answer
    for flag in ("--devices=0", "--time_limit=0.01"):
        assert main([*command, flag]) == 2
        assert f"{flag[2:]}: " in capsys.readouterr().err


def test_the_page_prints_what_it_shows(compiler, capsys):
    page = (ROOT / "docs" / "noise" / "audit.md").read_text()
    block = r"```python\n(.*?)```\n\nprints.*?```\n(.*?)```"
    code, shown = re.search(block, page, re.DOTALL).groups()
    with jax.numpy_dtype_promotion("standard"):  # as a user has it
        exec(compile(code, "audit.py", "exec"), {"__name__": "audit"})
    assert capsys.readouterr().out == shown


SINGLE = {
    "exp": (lambda x: jnp.exp(x), "exponential: each platform"),
    "sin": (lambda x: jnp.sin(x), "sine: each platform"),
    "fused": (lambda x: x * 1.1 + 0.3, "by compilers that treat fused"),
    "tiny": (lambda x: x * 1e-30, "below the smallest normal"),
}


@pytest.mark.parametrize("name", SINGLE)
def test_single_operations_differ_between_devices(compiler, name):
    """Exact they are not: `the same bits everywhere` was said of all of them."""
    fn, detail = SINGLE[name]
    found = noise.audit(fn, gpu="h100")(S(64))
    assert found.varies == "device"
    assert detail in found.entries[0].detail


def test_copies_and_integers_have_the_same_bits_everywhere(compiler):
    copied = noise.audit(lambda x: jnp.maximum(x, 0.0)[::-1], gpu="h100")(S(64))
    whole = noise.audit(lambda x: x * 2 + 1, gpu="h100")(S(64, dtype="int32"))
    assert copied.varies == whole.varies == "no"
