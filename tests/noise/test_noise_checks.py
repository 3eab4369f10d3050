"""Checks that a program makes while it runs, and that fail under noise alone."""

import diffrax
import equinox
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental import io_callback

from prednet_jax import noise

KEY, ULP = jax.random.key(0), noise.UlpPerturbation()
X = jnp.linspace(0.1, 1.0, 64)
WORDS = "the gain must stay at one"


def refuse(changed):
    if np.any(changed):
        raise ValueError(WORDS)


def refuse_or_pass(x, changed):
    refuse(changed)
    return x


CHECKS = {
    "equinox": lambda y, bad: equinox.error_if(y, bad, WORDS),
    "pure_callback": lambda y, bad: jax.pure_callback(refuse_or_pass, y, y, bad),
    "io_callback": lambda y, bad: io_callback(refuse_or_pass, y, y, bad),
    "debug_callback": lambda y, bad: [y, jax.debug.callback(refuse, bad)][0],
}


def checked(kind):
    """A function whose check fails under noise only."""

    def fn(x):
        # Noise moves the two products apart, and the quotient from 2.
        gain = (x * 3.0) / (x * 1.5)
        return CHECKS[kind](jnp.sin(x) * gain, jnp.any(gain != 2.0))

    return fn


TOOLS = {
    "inject": lambda f: noise.inject(f, ULP)(KEY, X),
    "digits": lambda f: noise.digits(f, ULP)(KEY, X),
    "tolerance": lambda f: noise.tolerance(f, draws=2)(KEY, X),
    "decisions": lambda f: noise.decisions(f, ULP)(KEY, X),
    "explain": lambda f: noise.explain(f, f(X), f(X))(KEY, X),
    "first_difference": lambda f: noise.first_difference(f, noise.record(f)(X))(KEY, X),
    "localize": lambda f: noise.localize(f, ULP, samples=2)(KEY, X),
    "cancellations": lambda f: noise.cancellations(f)(X),
}


@pytest.mark.parametrize("tool", TOOLS)
@pytest.mark.parametrize("kind", CHECKS)
def test_a_check_that_fails_under_noise_is_named(tool, kind, capfd):
    """The tools ended in the traceback of the check, hundreds of lines long."""
    fn = checked(kind)
    jax.block_until_ready(jax.jit(fn)(X))
    if kind == "equinox" and tool != "inject":
        TOOLS[tool](fn)  # The questions leave such a check out.
    else:
        words = f"^a (check|function that the program calls) .*{WORDS}"
        if (tool, kind) == ("cancellations", "pure_callback"):
            words = "a part of it cannot be mapped"
        with pytest.raises(noise.NoiseError, match=words) as raised:
            TOOLS[tool](fn)
        assert "\n" not in str(raised.value)
    assert capfd.readouterr().err == ""


def test_an_error_on_the_host_is_no_check():
    """Any error was "a check of the function itself"; a local class had no line."""

    class RefusedError(Exception):
        pass

    for error, words in (
        (ZeroDivisionError("division"), "host raised ZeroDivisionError: division"),
        (ValueError(), r"host raised ValueError \("),
        (RefusedError("two\nlines"), r"host raised RefusedError: two \("),
        (AssertionError("x is 1"), "^a check of .* x is 1"),
    ):

        def fail(x, error=error):
            raise error

        def fn(x, fail=fail):
            return jax.pure_callback(fail, x, x)

        with pytest.raises(noise.NoiseError, match=words):
            noise.inject(fn, ULP)(KEY, X)


def test_a_check_that_noise_flips_is_a_decision():
    (found,) = [
        entry
        for entry in noise.decisions(checked("equinox"), ULP)(KEY, X)
        if entry.primitive == "cond"
    ]
    assert found.flipped > 0.5


def test_a_solve_with_times_has_digits():
    """Noise moved the last time beyond the end, where the solver saves nothing."""

    def solve(y):
        term = diffrax.ODETerm(lambda t, y, _: -y)
        save = diffrax.SaveAt(ts=jnp.linspace(0.0, 3.0, 5))
        return diffrax.diffeqsolve(term, diffrax.Euler(), 0.0, 3.0, 0.5, y, saveat=save)

    table = noise.digits_table(lambda y: solve(y).ys, ULP)(KEY, X[:2])
    assert table.elements.min() > 6
    assert "NaN" not in str(table)
