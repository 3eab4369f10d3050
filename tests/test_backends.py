"""Settings of the process that the scripts make before JAX computes."""

import types

import jax
import pytest

from prednet_jax import backends

# Seen to come with every compilation by
# tests/models/test_prednet.py::test_drawing_another_network_compiles_nothing_new.
COMPILED = "/jax/core/compile/backend_compile_duration"


@pytest.fixture
def listeners(monkeypatch):
    """What is registered meanwhile; it is taken back."""
    found = []
    monkeypatch.setattr(
        jax.monitoring, "register_event_duration_secs_listener", found.append
    )
    return found


def test_memory_of_a_long_compilation_is_given_back(monkeypatch, listeners):
    trimmed = []
    library = types.SimpleNamespace(malloc_trim=trimmed.append)
    monkeypatch.setattr(backends.ctypes, "CDLL", lambda name: library)
    backends.release_memory_of_compiling.__wrapped__()
    (compiled,) = listeners
    compiled(COMPILED, 0.2)
    compiled("/another/event", 5.0)
    assert trimmed == []
    compiled(COMPILED, 5.0)
    assert trimmed == [0]


def test_a_c_library_that_cannot_trim_is_left_alone(monkeypatch, listeners):
    monkeypatch.setattr(backends.ctypes, "CDLL", lambda name: types.SimpleNamespace())
    backends.release_memory_of_compiling.__wrapped__()
    assert listeners == []
