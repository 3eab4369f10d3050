"""Loops that end without noise, and never under it."""

import os
import signal
import subprocess
import sys
import time

import jax
import jax.numpy as jnp
import pytest
from jax import lax

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
        "    return np.float32(1)\n"
        "def endless():\n"
        "    step = lambda x: x + 1e-30\n"
        "    loop = lambda x: jax.lax.while_loop(lambda x: x > 0, step, x)\n"
        "    like = jax.ShapeDtypeStruct((), np.float32)\n"
        "    return jax.jit(loop)(jax.pure_callback(begin, like))\n"
    )
    command = [sys.executable, "-m", "prednet_jax.noise", "record", "model:endless"]
    with subprocess.Popen(
        [*command, "--output=run.npz"],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
    ) as child:
        while not (tmp_path / "running").exists():
            assert child.poll() is None
            time.sleep(0.1)
        child.send_signal(signal.SIGINT)
        assert child.wait(10) == -signal.SIGINT
