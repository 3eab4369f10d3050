"""Settings of the process that the scripts make before JAX computes."""

import types

import jax

from prednet_jax import backends

# Seen to come with every compilation by
# tests/models/test_prednet.py::test_drawing_another_network_compiles_nothing_new.
COMPILED = "/jax/core/compile/backend_compile_duration"


def test_memory_of_a_long_compilation_is_given_back(monkeypatch):
    trimmed = []
    library = types.SimpleNamespace(malloc_trim=trimmed.append)
    monkeypatch.setattr(backends.ctypes, "CDLL", lambda name: library)
    backends.release_memory_of_compiling.__wrapped__()
    jax.monitoring.record_event_duration_secs(COMPILED, 0.2)
    assert trimmed == []
    jax.monitoring.record_event_duration_secs(COMPILED, 5.0)
    assert trimmed == [0]


def test_a_c_library_that_cannot_trim_is_left_alone(monkeypatch):
    monkeypatch.setattr(backends.ctypes, "CDLL", lambda name: types.SimpleNamespace())
    backends.release_memory_of_compiling.__wrapped__()
