"""What an audit says of programs whose kernels are known."""

import json
import os
import re
from pathlib import Path

import jax
import numpy as np
import pytest
from flax import linen as nn
from jax import numpy as jnp
from jax.sharding import AbstractMesh, NamedSharding, PartitionSpec

from prednet_jax import noise
from prednet_jax.noise.__main__ import main
from prednet_jax.noise.errors import NoiseError

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
    return jnp.zeros(9).at[ids].max(x)


def once(x, ids):
    return jnp.zeros(64).at[ids].add(x, unique_indices=True)


def product(x, w):
    return x @ w


def written(x, ids):
    return jnp.zeros(9).at[ids].set(x)


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


def test_an_atomic_and_its_line(compiler):
    report = noise.audit(segments, gpu="a100")(S(32, 4), IDS)
    atomic, *others = report.entries
    assert atomic.kind == "atomic"
    assert atomic.primitive == "scatter-add"
    assert atomic.source == line(segments, 2)
    assert atomic.varies == report.varies == "call"
    assert "compare-and-swap" in atomic.detail
    assert "atom" in report.compiled.ptx[atomic.kernel]
    (summed,) = [e for e in others if e.kind == "reduction"]
    assert summed[:4] == ("reduction", "reduce_sum", line(segments, 3), "device")
    assert "4 terms" in summed.detail
    assert report.memory.arguments == 32 * 4 * 4 + 32 * 4
    # The flag was tried, and the table says what it leaves.
    assert report.advice[0].left == ()
    assert "compiled again, nothing varies from call to call" in str(report)


def test_under_the_flag_none_is_left(compiler):
    report = noise.audit(segments, gpu="a100", deterministic=True)(S(32, 4), IDS)
    assert report.varies == "device"
    assert line(segments, 2) in {e.source for e in report.entries}


@pytest.mark.parametrize(
    ("fn", "args", "varies"),
    [(counted, (IDS,), "no"), (largest, (S(32), IDS), "no"), (once, (S(32), IDS), "")],
    ids=lambda x: getattr(x, "__name__", ""),
)
def test_atomics_that_give_the_same_bits(compiler, fn, args, varies):
    report = noise.audit(fn, gpu="a100", advice=False)(*args)
    assert report.varies == "no"
    found = [e.varies for e in report.entries if e.kind == "atomic"]
    assert found == [varies] * bool(varies)


@pytest.mark.parametrize(("gpu", "rounded"), [("gtx1080", 0), ("h100", 1)])
def test_tf32_since_ampere(compiler, gpu, rounded):
    report = noise.audit(product, gpu=gpu)(S(64, 64), S(64, 64))
    found = [e for e in report.entries if e.kind == "reduced_precision"]
    assert len(found) == rounded
    assert {e.source for e in report.entries} == {line(product, 1)}
    assert {e.primitive for e in report.entries} == {"dot_general"}
    assert report.varies == "compilation"
    if rounded:
        assert report.advice[-1].left == ()
        assert "highest" in report.advice[-1].change
        assert "no operand is rounded to TF32 any more" in str(report)


def test_a_network_of_flax(compiler):
    shapes = S(4, dtype=jnp.int32), S(4, 8, 8, 3)
    params = jax.eval_shape(Model().init, jax.random.key(0), *shapes)
    report = noise.audit(gradient, gpu="h100", advice=False)(params, *shapes)
    by_call = {(e.kind, e.primitive, e.source) for e in report.entries[:3]}
    call = Model.__call__
    assert by_call == {
        ("atomic", "scatter-add", line(call.__wrapped__, 2)),
        ("library", "conv_general_dilated", line(call.__wrapped__, 3)),
        ("atomic", "select_and_scatter_add", line(call.__wrapped__, 4)),
    }
    assert {e.varies for e in report.entries[3:]} <= {"compilation", "device"}
    library = next(e for e in report.entries if e.kind == "library")
    assert "docs.nvidia.com" in library.detail


def test_another_formulation_has_no_atomics(compiler):
    """What the table recommends in place of atomics has none."""

    def one_hot(x, ids):
        return jax.nn.one_hot(ids, 5).T @ x

    def pooled(x):
        windows = x.reshape(2, 4, 2, 4, 2, 3)
        return jax.grad(lambda w: jnp.sum(w.max((2, 4)) ** 2))(windows)

    for fn, args in ((one_hot, (S(32, 4), IDS)), (pooled, (S(2, 8, 8, 3),))):
        report = noise.audit(fn, gpu="h100", advice=False)(*args)
        assert not [e for e in report.entries if e.kind == "atomic"]


def test_a_jitted_function_traced_before_elsewhere(compiler):
    """Inside, lines are its own; a library's inside names the line that calls it."""
    jitted = jax.jit(segments)
    jitted.trace(S(32, 4), IDS)

    def twice(x, ids):
        a = jnp.var(x)
        b = jnp.var(x * 2)
        return jitted(x, ids) + a + b

    report = noise.audit(twice, gpu="a100", advice=False)(S(32, 4), IDS)
    sources = {e.source for e in report.entries}
    assert {line(segments, 2), line(twice, 1), line(twice, 2)} <= sources
    assert not [source for source in sources if "test_a_jitted" in source]


def test_collectives_that_nobody_wrote(compiler):
    """A contraction over a sharded axis; eight devices that are not there."""
    mesh = AbstractMesh((8,), ("x",))

    def rows(spec):
        return NamedSharding(mesh, PartitionSpec(*spec))

    report = noise.audit(product, gpu="h100", devices=8, advice=False)(
        S(16, 64, sharding=rows((None, "x"))), S(64, 16, sharding=rows(("x", None)))
    )
    (summed,) = [e for e in report.entries if e.kind == "collective"]
    assert summed.detail.startswith("all-reduce over ")
    assert "inserted by the partitioner" in summed.detail
    assert (summed.varies, summed.source) == ("device", line(product, 1))
    assert summed.primitive == "dot_general"


def test_sum_over_devices_of_a_gradient(compiler):
    """XLA's metadata call it a transposition; it is the product's sum."""
    mesh = AbstractMesh((8,), ("data",))
    rows, whole = (NamedSharding(mesh, PartitionSpec(*x)) for x in (("data",), ()))

    def gradient(w, x):
        return jax.grad(lambda w: jnp.sum(jnp.tanh(x @ w) ** 2))(w)

    report = noise.audit(gradient, devices=8, advice=False)(
        S(64, 32, sharding=whole), S(16, 64, sharding=rows)
    )
    (summed,) = [e for e in report.entries if e.kind == "collective"]
    assert (summed.primitive, summed.source.partition(" ")[0]) == (
        "dot_general",
        line(gradient, 1).partition(" ")[0],
    )


def test_collectives_that_were_written(compiler):
    """Whatever name XLA launches them under."""
    mesh = AbstractMesh((4, 2), ("data", "model"))
    rows = PartitionSpec("data")

    def exchanged(x):
        y = jax.lax.psum_scatter(x, "data", tiled=True)
        z = jax.lax.all_to_all(x, "data", 1, 1, tiled=True)
        return y, z, jax.lax.pmax(jnp.sin(x), "data")

    def spread(x):
        return jax.shard_map(exchanged, mesh=mesh, in_specs=rows, out_specs=rows)(x)

    with jax.sharding.use_abstract_mesh(mesh):  # no argument names it
        report = noise.audit(spread, devices=8, advice=False)(S(16, 64))
    found = [e for e in report.entries if e.kind == "collective"]
    assert {e[1:4] for e in found} == {
        ("reduce_scatter", line(exchanged, 1), "device"),
        ("all_to_all", line(exchanged, 2), "no"),
        ("pmax", line(exchanged, 3), "no"),
    }
    assert "inserted by the partitioner" not in str(report)


def test_collectives_that_xla_joins(compiler):
    """One all-reduce of all gradients has no name of its own."""
    mesh = AbstractMesh((8,), ("data",))
    rows, whole = (NamedSharding(mesh, PartitionSpec(*x)) for x in (("data",), ()))

    def summed(x):
        a = jax.lax.psum(jnp.sin(x), "data")
        b = jax.lax.psum(jnp.cos(x[:1]), "data")
        return a, b

    def gradients(v, w, x):
        def loss(v, w):
            hidden = jnp.tanh(x @ v)
            return jnp.sum((hidden @ w) ** 2)

        spread = jax.shard_map(
            summed, mesh=mesh, in_specs=PartitionSpec("data"), out_specs=PartitionSpec()
        )
        return spread(x), jax.grad(loss, (0, 1))(v, w)

    report = noise.audit(gradients, devices=8, advice=False)(
        S(64, 64, sharding=whole), S(64, 32, sharding=whole), S(16, 64, sharding=rows)
    )
    found = {e[1:3] for e in report.entries if e.kind == "collective"}
    first = gradients.__code__.co_firstlineno
    assert found == {
        ("psum_invariant", line(summed, 1)),
        ("psum_invariant", line(summed, 2)),
        ("dot_general", f"{FILE}:{first + 2} in loss"),
        ("dot_general", f"{FILE}:{first + 3} in loss"),
    }


def test_specs_inside_a_function(compiler):
    def constrained(x):
        return jax.lax.with_sharding_constraint(jnp.sin(x), PartitionSpec("x")).sum()

    report = noise.audit(constrained, devices=4, advice=False)(S(64, 8))
    assert "collective" in {e.kind for e in report.entries}


def test_what_remains_of_two_writes_is_not_guessed(compiler):
    report = noise.audit(written, gpu="a100", advice=False)(S(32), IDS)
    assert report.varies == "no"
    assert any(line(written, 1) in note for note in report.notes)


def test_noise_can_be_audited_too(compiler):
    """Its equations are evaluated by noise: they have no lines of the user."""
    noisy = noise.inject(product, noise.ReductionOrder(shortest=1))
    key = jax.random.key(0)
    report = noise.audit(noisy, gpu="a100", advice=False)(key, S(64, 64), S(64, 64))
    assert {e.source for e in report.entries} == {""}


def test_a_callback_names_its_equation(compiler):
    def asks(x):
        y = x * 2
        return jax.pure_callback(np.sin, S(4), y)

    with pytest.raises(NoiseError, match="pure_callback") as caught:
        noise.audit(asks)(S(4))
    assert line(asks, 2) in str(caught.value)


def test_a_print_calls_python_too(compiler):
    def says(x):
        jax.debug.print("{}", x)
        return x

    with pytest.raises(NoiseError, match=r"debug_print .* it calls Python"):
        noise.audit(says)(S(4))


def test_a_kernel_that_cannot_be_compiled_is_named(compiler):
    def foreign(x):
        y = jnp.sin(x)
        return jax.ffi.ffi_call("of_nobody", S(4))(y)

    with pytest.raises(NoiseError, match="ffi_call") as caught:
        noise.audit(foreign)(S(4))
    assert line(foreign, 2) in str(caught.value)


@pytest.mark.parametrize("fn", [lambda x: x, lambda x: x[::-1]])
def test_a_program_that_only_copies(compiler, fn):
    report = noise.audit(fn)(S(4))
    assert report.varies == "no"
    assert report.compiled.cost["flops"] == 0


def test_a_name_says_nothing_about_precision(compiler):
    def highest(x, kernel):
        return jax.lax.conv_general_dilated(x, kernel, (1, 1), "SAME")

    shapes = S(2, 4, 64, 64), S(4, 4, 3, 3)
    report = noise.audit(jax.jit(highest), gpu="a100")(*shapes)
    (rounded,) = [e for e in report.entries if e.kind == "reduced_precision"]
    assert rounded.source == line(highest, 1)
    assert "float32 operands may be rounded to TF32" in str(report)
    assert report.advice[-1].left == ()


def test_errors_of_the_function_itself_stay(compiler):
    with pytest.raises(TypeError, match="dot_general"):
        noise.audit(product)(S(3, 4), S(5, 6))


@pytest.mark.parametrize(
    ("keywords", "said"),
    [
        ({"gpu": "gtx1081"}, "gpu='gtx1081': expected one of gtx750ti"),
        ({"devices": -1}, "devices=-1"),
        ({"deterministic": "yes"}, "deterministic='yes'"),
        ({"time_limit": -1}, "time_limit=-1"),
    ],
)
def test_bad_options(keywords, said):
    with pytest.raises(NoiseError, match=said):
        noise.audit(product, **keywords)


def test_a_mesh_of_another_size():
    sharding = NamedSharding(AbstractMesh((8,), ("x",)), PartitionSpec("x"))
    with pytest.raises(NoiseError, match="devices=2: expected 8"):
        noise.audit(product, devices=2)(S(64, 64, sharding=sharding), S(64, 64))


@pytest.fixture
def module(tmp_path, monkeypatch):
    (tmp_path / "audited.py").write_text(
        "import jax\n\n\ndef total(x, ids):\n"
        "    return jax.ops.segment_sum(x, ids, num_segments=3)\n"
    )
    ids = np.zeros(8, np.int32)
    np.savez(tmp_path / "batch.npz", np.ones((8, 2), np.float32), ids)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)


def test_the_command(compiler, module, capsys):
    command = ["audit", "audited:total", "--args=batch.npz", "--gpu=gtx970"]
    assert main([*command, "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer["gpu"] == "gtx970"
    assert answer["varies"] == "call"
    assert answer["entries"][0]["source"] == "audited.py:5 in total"
    assert set(answer["memory"]) == {"arguments", "results", "temporaries"}
    assert "noise" not in answer
    assert main([*command, "--deterministic"]) == 0
    assert "GeForce GTX 970 (sm_52)" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (["--gpu=none"], "gpu='none': expected one of gtx750ti"),
        (["--noise=ulp"], "--noise=ulp: expected no noise"),
        (["--devices=0"], "devices=0"),
    ],
)
def test_the_command_refuses_in_one_line(module, capsys, flags, said):
    assert main(["audit", "audited:total", "--args=batch.npz", *flags]) == 2
    error = capsys.readouterr().err
    assert said in error
    assert error.count("\n") == 1


def test_the_page_prints_what_it_shows(compiler, capsys):
    page = (Path(__file__).parents[3] / "docs" / "noise" / "audit.md").read_text()
    code, shown = re.search(
        r"```python\n(.*?)```\n\nprints.*?```\n(.*?)```", page, re.DOTALL
    ).groups()
    with jax.numpy_dtype_promotion("standard"):  # as a user has it
        exec(compile(code, "audit.py", "exec"), {"__name__": "audit"})
    assert capsys.readouterr().out == shown
