import types

import jax
import pytest

from prednet_jax import process
from prednet_jax.errors import UserError
from tests.processes import python

# Seen to come with every compilation by
# tests/training/test_trainer.py::test_nothing_is_compiled_again.
COMPILED = "/jax/core/compile/backend_compile_duration"


def test_memory_of_a_long_compilation_is_given_back(monkeypatch):
    trimmed, listeners = [], []
    library = types.SimpleNamespace(malloc_trim=trimmed.append)
    monkeypatch.setattr(process.ctypes, "CDLL", lambda name: library)
    name = "register_event_duration_secs_listener"
    monkeypatch.setattr(jax.monitoring, name, listeners.append)
    process.release_memory_of_compiling.__wrapped__()
    (compiled,) = listeners
    compiled(COMPILED, 0.2)
    compiled("/another/event", 5.0)
    assert trimmed == []
    compiled(COMPILED, 5.0)
    assert trimmed == [0]


YNN = "--xla_cpu_experimental_ynn_fusion_type"


def test_importing_sets_nothing_and_preparing_sets_the_measured_flags():
    code = (
        "import os; before = dict(os.environ); import sys; path = list(sys.path)\n"
        "import prednet_jax.process as p, prednet_jax.training.train_seeds\n"
        "assert dict(os.environ) == before and sys.path == path\n"
        "p.prepare(); print(os.environ['XLA_FLAGS'])\n"
        "first = os.environ['XLA_FLAGS']; p.prepare()\n"
        "assert os.environ['XLA_FLAGS'] == first\n"
        # A choice of a user stays.
        "os.environ['XLA_FLAGS'] = chosen = p.YNN + '=LIBRARY_FUSION_TYPE_DOT'\n"
        "p.prepare(); assert chosen in os.environ['XLA_FLAGS'].split()\n"
        "assert p.YNN + '=' not in os.environ['XLA_FLAGS'].split()"
    ).replace("p.YNN", repr(YNN))
    scheduler = "--xla_cpu_scheduler_type=CPU_SCHEDULER_TYPE_MEMORY_OPTIMIZED"
    expected = {f"{YNN}=", scheduler}
    if jax.__version_info__ < (0, 11):
        expected.add("--xla_cpu_use_fusion_emitters=false")
    assert set(python("-c", code, XLA_FLAGS="").stdout.split()) == expected


def test_threads_are_limited():
    code = (
        "import time, jax; from prednet_jax import process as p; p.prepare(threads=1)\n"
        "assert p.available_threads() == 1\n"
        "x, f = jax.numpy.ones((512, 512)), jax.jit(lambda x: x @ x / 512)\n"
        "wall, used = time.perf_counter(), time.process_time()\n"
        "while time.perf_counter() < wall + 0.3: x = f(x).block_until_ready()\n"
        "assert time.process_time() - used < 1.1 * (time.perf_counter() - wall)"
    )
    python("-c", code)
    with pytest.raises(UserError, match="threads=1000"):
        process.limit_threads(1000)


def test_processes_beside_each_other_get_other_processors():
    code = (
        "import os, sys; from prednet_jax import process;"
        "process.limit_threads(1, int(sys.argv[1])); print(os.sched_getaffinity(0))"
    )
    masks = [python("-c", code, first).stdout for first in "012"]
    count = process.available_threads()
    assert len(set(masks)) == min(count, 3)


SLURM = {"SLURM_STEP_NODELIST": "n[1-2]", "SLURM_NTASKS": "8", "SLURM_PROCID": "3"}
OMPI = {"OMPI_COMM_WORLD_SIZE": "4", "OMPI_COMM_WORLD_RANK": "2"}
K8S = {"KUBERNETES_SERVICE_HOST": "10.0.0.1", "JOB_COMPLETION_INDEX": "1"}


@pytest.mark.parametrize(
    ("variables", "expected"),
    [
        (SLURM, ("slurm", 8, 3)),
        (OMPI, ("ompi", 4, 2)),
        (K8S, ("k8s", None, 1)),
        # Alone, in the shell of an allocation, in a pod that is no Job's.
        (SLURM | {"SLURM_NTASKS": "1"}, None),
        ({"SLURM_NTASKS": "8"}, None),
        ({"KUBERNETES_SERVICE_HOST": "10.0.0.1"}, None),
        ({}, None),
    ],
)
def test_what_a_launcher_says_of_a_process(monkeypatch, variables, expected):
    for name in (*SLURM, *OMPI, *K8S):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert process.launched() == expected


def test_a_launcher_is_known_to_jax_by_its_name(monkeypatch):
    """Its values go through `jax.distributed`, which is not asked to detect anew."""
    seen = {}
    monkeypatch.setattr(jax.distributed, "initialize", seen.update)
    process.join_launched(process.Launched("slurm", 8, 3))
    assert seen == {"cluster_detection_method": "slurm"}

    # Open MPI 5 does not say where process 0 is; JAX looks for that here.
    for error in (ValueError("not defined"), KeyError("OMPI_MCA_orte_hnp_uri")):

        def fail(error=error, **_):
            raise error

        monkeypatch.setattr(jax.distributed, "initialize", fail)
        with pytest.raises(ValueError, match=r"ompi: not joined .*coordinator=host"):
            process.join_launched(process.Launched("ompi", 4, 2))


@pytest.mark.parametrize(
    ("device", "has"),
    [
        ({"platform": "cpu"}, False),
        ({"platform": "gpu", "compute_capability": "7.5"}, False),
        ({"platform": "gpu", "compute_capability": "9.0"}, True),
    ],
)
def test_which_devices_have_tf32(monkeypatch, device, has):
    """The first card with TF32 is the A100, of compute capability 8.0."""
    monkeypatch.setattr(jax, "local_devices", lambda: [types.SimpleNamespace(**device)])
    assert process.has_tf32() == has
