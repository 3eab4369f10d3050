"""Loops that end without noise, and never under it."""

import os
import signal
import subprocess
import sys
import time

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.experimental import io_callback
from jax.sharding import PartitionSpec as P

from prednet_jax import noise
from tests.accuracy.noise_programs import line_of
from tests.processes import ROOT

KEY, ULP = jax.random.key(0), noise.UlpPerturbation()
A = jnp.linspace(1.0, 3.0, 8)


def root(a):
    """Newton's method until two iterates are equal."""

    def unequal(carry):
        return jnp.any(carry[0] != carry[1])

    def step(carry):
        x, _ = carry
        return 0.5 * (x + a / x), x

    return lax.while_loop(unequal, step, (a, 2 * a))[0]  # endless


def root_within(a):
    """The same until an iterate is good enough."""

    def bad(x):
        return jnp.max(jnp.abs(x * x - a)) > 1e-3

    return lax.while_loop(bad, lambda x: 0.5 * (x + a / x), a)


TOOLS = {
    "inject": lambda: noise.inject(root, ULP)(KEY, A),
    "digits": lambda: noise.digits(root, ULP, draws=2)(KEY, A),
    "tolerance": lambda: noise.tolerance(root, ULP, draws=2)(KEY, A),
    "decisions": lambda: noise.decisions(root, ULP, draws=2)(KEY, A),
    "localize": lambda: noise.localize(root, ULP, samples=2)(KEY, A),
    "explain": lambda: noise.explain(root, root(A), root(A) * 1.000001)(KEY, A),
    "first_difference": lambda: noise.first_difference(root, noise.record(root)(A))(
        KEY, A
    ),
}


@pytest.mark.parametrize("tool", TOOLS)
def test_a_loop_that_noise_keeps_from_ending_is_named(tool, capfd):
    line = line_of(root, "endless")
    with pytest.raises(noise.NoiseError, match=f"^under this noise the loop at {line}"):
        TOOLS[tool]()
    assert capfd.readouterr().err == ""


def turned(x):
    return lax.while_loop(lambda x: jnp.any(x != 0), lambda x: -x, x)  # turning


ENDLESS = {
    "nan_rate": lambda: noise.nan_rate(turned, draws=2)(KEY, A),
    "explain": lambda: noise.explain(turned, A, 2 * A)(KEY, A),
    "tolerance": lambda: noise.tolerance(turned, draws=2)(KEY, A),
    "compare_logits": lambda: noise.compare_logits(turned, A, A)(KEY, A),
    "devices": lambda: noise.devices(turned, mesh={"d": 2}, in_specs=P("d"))(KEY, A),
}


@pytest.mark.parametrize("tool", ENDLESS)
def test_a_loop_that_never_ends_is_named(tool):
    """Tools that call the function itself first did not end either."""
    line = line_of(turned, "turning")
    with pytest.raises(noise.NoiseError, match=f"loop at {line}\\w+ does not converge"):
        ENDLESS[tool]()


@pytest.mark.parametrize("around", [jax.jit, lambda f: jax.vmap(f, (None, 0))])
def test_transformed_functions_end_as_well(around):
    noisy = around(noise.inject(root, ULP))
    with pytest.raises(jax.errors.JaxRuntimeError, match="under this noise the loop"):
        jax.block_until_ready(noisy(KEY, jnp.stack([A, A])))


def test_the_limit_is_a_choice():
    noisy = noise.inject(root, ULP)
    with noise.loop_limit(3), pytest.raises(noise.NoiseError, match="it ran 3 times"):
        noisy(KEY, A)
    with pytest.raises(noise.NoiseError, match="factor=0: expected a whole number"):
        noise.loop_limit(0).__enter__()


def test_loops_that_end_are_left_alone():
    within = noise.inject(root_within, ULP)(KEY, A)
    assert jnp.allclose(within, jnp.sqrt(A), atol=1e-2)

    def counted(x, n):
        return lax.fori_loop(0, n, lambda i, x: jnp.sin(x), x)

    noisy = noise.inject(counted, ULP)
    assert "debug_callback" not in str(jax.make_jaxpr(noisy)(KEY, A, 3))
    assert "debug_callback" in str(jax.make_jaxpr(noise.inject(root, ULP))(KEY, A))


def test_an_interrupt_ends_a_command(tmp_path):
    """While a compiled program runs, Python's own handler does not."""
    (tmp_path / "model.py").write_text(
        "import jax, numpy as np\n"
        "def begin():\n"
        "    open('running', 'w').close()\n"
        "    return np.int32(1)\n"
        "def endless():\n"
        "    step = lambda x: x % 7 + 1\n"
        "    loop = lambda x: jax.lax.while_loop(lambda x: x > 0, step, x)\n"
        "    like = jax.ShapeDtypeStruct((), np.int32)\n"
        "    return jax.jit(loop)(jax.pure_callback(begin, like))\n"
    )
    command = [sys.executable, "-m", "prednet_jax.noise", "record", "model:endless"]
    with subprocess.Popen(
        [*command, "--output=run.npz"],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
    ) as child:
        try:
            while not (tmp_path / "running").exists():
                assert child.poll() is None
                time.sleep(0.1)
            child.send_signal(signal.SIGINT)
            assert child.wait(10) == -signal.SIGINT
        finally:  # Tests that a shell starts in the background ignore interrupts.
            child.kill()


@pytest.mark.parametrize("tool", ["digits", "explain", "decisions", "tolerance"])
def test_an_interrupt_of_a_callback_is_an_interrupt(tool):
    """It was an error of the function, which `explain` left out, and went on."""
    calls = []

    def interrupted(x):
        calls.append(x)
        if len(calls) > 4:
            raise KeyboardInterrupt
        return x

    def called(x):
        like = jax.ShapeDtypeStruct(x.shape, x.dtype)
        return jax.pure_callback(interrupted, like, x) @ x

    x = jnp.ones((4, 4))
    given = (called, x, x) if tool == "explain" else (called,)
    with pytest.raises(KeyboardInterrupt):
        getattr(noise, tool)(*given)(KEY, x)
    assert len(calls) == 5


def reflected(v):
    """Ends only if the sum of thirds is 1 exactly, and else goes to and fro."""
    return to_and_fro(v @ jnp.ones(3))


def to_and_fro(total):
    def step(carry):
        return total - carry[0], carry[0]

    start = jnp.float32(0.5), jnp.float32(0)
    return lax.while_loop(lambda c: c[0] != c[1], step, start)[0]  # to and fro


THIRDS = jnp.full(3, 1 / 3)


def test_a_loop_that_noise_starts_elsewhere_is_named():
    """No noise acts inside, and without noise it does not end from there either."""
    noisy = noise.inject(reflected, noise.UlpPerturbation(primitives=("dot_general",)))
    line = line_of(to_and_fro, "to and fro")
    words = rf"loop at {line}\w+ does not converge: it ran 100 times the . steps after"

    def several():
        for key in jax.random.split(KEY, 16):
            noisy(key, THIRDS)

    with pytest.raises(noise.NoiseError, match=f"^under this noise the {words}"):
        several()


def shrinking(v, inner):
    """Ends after some steps, each of which needs the result of another loop."""
    total = v @ jnp.ones(3)

    def step(x):
        return 0.5 * x * inner(total)

    return lax.while_loop(lambda x: x > 1e-2, step, jnp.float32(1))


@pytest.mark.parametrize("around", [lambda f: f, jax.jit, jax.checkpoint])
def test_a_loop_in_a_loop_that_noise_starts_elsewhere_is_named(around):
    """The run without noise of the loop around it did not end."""
    dots = noise.UlpPerturbation(primitives=("dot_general",))
    noisy = noise.inject(lambda v: shrinking(v, around(to_and_fro)), dots)
    line = line_of(to_and_fro, "to and fro")

    def several():
        for key in jax.random.split(KEY, 16):
            noisy(key, THIRDS)

    with pytest.raises(noise.NoiseError, match=f"loop at {line}"):
        several()


def test_the_run_without_noise_changes_and_shows_nothing():
    shown = []

    def steps(x):
        count = jax.new_ref(jnp.float32(0))

        def step(x):
            count[...] = count[...] + 1
            jax.debug.callback(lambda x: shown.append(float(x)), x)
            return x * 0.5

        return lax.while_loop(lambda x: x > 1e-3, step, x), count[...]

    x = jnp.float32(1)
    np.testing.assert_allclose(noise.inject(steps, ULP)(KEY, x), steps(x), rtol=1e-5)
    jax.effects_barrier()
    assert len(shown) == 2 * 10


def creeping(x):
    """Ends at once in float32; float64 has the small steps, 1e16 of them."""
    small = jnp.float32(1e-9)
    return lax.while_loop(lambda x: x + small != x, lambda x: x + small, x)  # creeps


def test_a_loop_that_does_not_end_in_float64_is_named():
    line, x = line_of(creeping, "creeps"), jnp.float32(1)
    report = noise.explain(creeping, creeping(x), creeping(x) * 1.5)(KEY, x)
    assert report.rung == "beyond"
    assert f"not computed in float64: in float64 the loop at {line}" in str(report)
    table = noise.digits_table(creeping)(KEY, x)
    assert f"not compared with float64: in float64 the loop at {line}" in str(table)


def test_a_loop_that_never_ends_is_not_recorded():
    """Each of its steps would be sent to the host."""

    def passes_one(x):
        return lax.while_loop(lambda t: t != 1, lambda t: t + x, 0.0)

    with pytest.raises(noise.NoiseError, match=r"loop at .* does not converge"):
        noise.record(passes_one)(jnp.float32(0.1))


def test_a_loop_that_does_not_end_for_padded_rows_is_named():
    def roots(x):
        start = x + 1, x
        return lax.while_loop(
            lambda c: jnp.any(c[0] != c[1]),
            lambda c: (0.5 * (c[0] + x / c[0]), c[0]),
            start,
        )[0]

    rows = jnp.array([[1.0], [4.0], [9.0]])
    with pytest.raises(
        noise.NoiseError, match=r"^called padded to 4 rows: in this way"
    ):
        noise.invariance(jax.vmap(roots))(rows)
    with pytest.raises(noise.NoiseError, match=r"^called compiled: in this way"):
        noise.invariance(jax.vmap(to_and_fro))(rows[:, 0])


def test_a_loop_that_does_not_end_from_a_layer_of_the_reference_is_named():
    def layers(v):
        return {"thirds": v * 1, "loop": reflected(v)}

    there = layers(THIRDS) | {"thirds": THIRDS * 1.01}
    with pytest.raises(noise.NoiseError, match=r"^from the reference's values"):
        noise.compare_layers(layers, there)(KEY, THIRDS)


def test_elements_of_a_batch_stop_on_their_own():
    """They would never be accepted all at the same step."""

    def accepted(key):
        def draw(carry):
            key, this = jax.random.split(carry[0])
            return key, jax.random.uniform(this)

        return lax.while_loop(lambda c: c[1] < 0.9, draw, (key, 0.0))[1]

    keys = jax.random.split(KEY, 64)
    noisy = noise.inject(jax.vmap(accepted), ULP)(KEY, keys)
    assert jnp.allclose(noisy, jax.vmap(accepted)(keys), rtol=1e-5)


def test_a_loop_that_may_change_the_host_runs_once():
    calls = []

    def counted(x):
        def step(y):
            io_callback(lambda: calls.append(1), None)
            return 0.5 * y

        return lax.while_loop(lambda y: y > 0.1, step, x)

    for run in (noise.inject(counted, ULP), lambda _, x: noise.record(counted)(x)):
        calls.clear()
        jax.block_until_ready(run(KEY, jnp.float32(1)))
        jax.effects_barrier()
        assert len(calls) == 4
