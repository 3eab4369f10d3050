"""What `process` sets before JAX computes, and that imports set nothing."""

import os
import subprocess
import sys
import types

import jax
import pytest

from prednet_jax import process
from prednet_jax.errors import UserError

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
    monkeypatch.setattr(process.ctypes, "CDLL", lambda name: library)
    process.release_memory_of_compiling.__wrapped__()
    (compiled,) = listeners
    compiled(COMPILED, 0.2)
    compiled("/another/event", 5.0)
    assert trimmed == []
    compiled(COMPILED, 5.0)
    assert trimmed == [0]


def test_a_c_library_that_cannot_trim_is_left_alone(monkeypatch, listeners):
    monkeypatch.setattr(process.ctypes, "CDLL", lambda name: types.SimpleNamespace())
    process.release_memory_of_compiling.__wrapped__()
    assert listeners == []


def python(code, **environment):
    """What a fresh process prints; in one of its own, since its environment is."""
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=False,
        env=os.environ | environment,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


YNN = "--xla_cpu_experimental_ynn_fusion_type"
EMITTERS = "--xla_cpu_use_fusion_emitters"
SCHEDULER = "--xla_cpu_scheduler_type"


def test_importing_sets_nothing_and_preparing_sets_the_measured_flags():
    code = (
        "import os; before = dict(os.environ); import sys; path = list(sys.path)\n"
        "import prednet_jax.process as p, prednet_jax.training.runs\n"
        "assert dict(os.environ) == before and sys.path == path\n"
        "p.prepare(); print(os.environ['XLA_FLAGS'])\n"
        "first = os.environ['XLA_FLAGS']; p.prepare()\n"
        "assert os.environ['XLA_FLAGS'] == first"
    )
    expected = {f"{YNN}=", f"{SCHEDULER}=CPU_SCHEDULER_TYPE_MEMORY_OPTIMIZED"}
    if jax.__version_info__ < (0, 11):
        expected.add(f"{EMITTERS}=false")
    assert set(python(code, XLA_FLAGS="")) == expected


def test_a_choice_of_xla_flags_stays():
    # Of a flag that every version here knows.
    chosen = f"{YNN}=LIBRARY_FUSION_TYPE_DOT"
    code = (
        "import os, prednet_jax.process as p\n"
        "p.prepare(); print(os.environ['XLA_FLAGS'])"
    )
    found = python(code, XLA_FLAGS=chosen)
    assert chosen in found
    assert f"{YNN}=" not in found


def test_threads_are_limited():
    code = (
        "from prednet_jax import device, process; process.prepare(threads=1);"
        "assert device.available_threads() == 1;"
        "assert device.measured_parallelism() < 1.1"
    )
    python(code)
    with pytest.raises(UserError, match="threads=1000"):
        process.limit_threads(1000)


def test_heaps_are_shared(monkeypatch):
    asked = []
    library = types.SimpleNamespace(mallopt=lambda *pair: asked.append(pair))
    monkeypatch.setattr(process.ctypes, "CDLL", lambda name: library)
    monkeypatch.setattr(process, "available_threads", lambda: 6)
    monkeypatch.setattr(process.sys, "platform", "linux")
    process.share_heap()
    assert asked == [(-8, 3)]  # M_ARENA_MAX of malloc.h
    monkeypatch.setattr(process.sys, "platform", "darwin")
    process.share_heap()
    assert len(asked) == 1
