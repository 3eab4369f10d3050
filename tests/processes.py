"""A pytest plugin: scripts in forks of one process, for the tests of every room."""

import contextlib
import functools
import json
import os
import signal
import subprocess
import sys
import time
import types
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SCRIPTS = ROOT / "experiments"

# Imports once what every script needs, then runs each command line in a fork of itself,
# which no backend has been started in. A request is one line of JSON, and so is each
# answer: ["start", argv, folder] -> process id; ["ended", id] -> whether it has;
# ["wait", id] -> [status, output, errors].
SERVER = """
import gc, json, os, runpy, signal, sys, tempfile, warnings
import optax, flax, absl.app
import prednet_jax.training.train_seeds, prednet_jax.runs.comparison
warnings.filterwarnings("ignore", message=".*fork.*")
sys.path.insert(0, sys.argv[1])
outputs = {}
# No fork looks through what was imported, neither on its way nor at its end.
gc.freeze()

def start(argv, folder):
    out, err = tempfile.TemporaryFile("w+"), tempfile.TemporaryFile("w+")
    sys.stdout.flush()
    child = os.fork()
    if not child:
        # In the background of a shell they may be ignored.
        signal.signal(signal.SIGINT, signal.default_int_handler)
        signal.signal(signal.SIGHUP, signal.SIG_DFL)
        os.dup2(out.fileno(), 1); os.dup2(err.fileno(), 2)
        if folder:
            os.chdir(folder)
        sys.argv = argv
        runpy.run_path(argv[0], run_name="__main__")
        sys.exit(0)
    outputs[child] = out, err
    return child

def ended(child):
    return os.waitid(os.P_PID, child, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None

def wait(child):
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    texts = []
    for file in outputs.pop(child):
        file.seek(0)
        texts.append(file.read())
        file.close()
    return [status, *texts]

for line in sys.stdin:
    name, *arguments = json.loads(line)
    print(json.dumps(globals()[name](*arguments)), flush=True)
"""


def python(
    *arguments, status=0, folder=ROOT, devices=1, executable=sys.executable, **variables
):
    """An interpreter of its own, for what is fixed when one starts, to its end."""
    if devices > 1:
        flag = f"--xla_force_host_platform_device_count={devices}"
        variables["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} {flag}"
    done = subprocess.run(
        [executable, *map(str, arguments)],
        capture_output=True,
        text=True,
        check=False,
        cwd=folder,
        env=os.environ | variables,
    )
    assert done.returncode == status, done.stdout + done.stderr
    return done


class Process:
    """A command in a fork of the server, going on."""

    def __init__(self, ask, pid):
        self.pid, self._ask, self._done = pid, ask, None

    def ended(self):
        return self._done is not None or self._ask("ended", self.pid)

    def send_signal(self, number):
        os.kill(self.pid, number)

    def wait(self):
        """Waits for its end; status and output as `subprocess.run` gives them."""
        if self._done is None:
            status, out, err = self._ask("wait", self.pid)
            self._done = types.SimpleNamespace(
                returncode=status, stdout=out, stderr=err
            )
        return self._done

    def kill(self):
        """SIGKILL, and waits for its end."""
        if self._done is None:
            self.send_signal(signal.SIGKILL)
        return self.wait()

    def wait_for_update(self, folder, update, seconds=600):
        """Waits until a run's metrics tell of an update."""
        path = folder / "metrics.jsonl"
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            if path.exists() and path.read_bytes().count(b"\n") >= update:
                return
            assert not self.ended(), self.wait()
            time.sleep(0.02)
        raise AssertionError(f"{folder}: no update {update} within {seconds} s")


@pytest.fixture(scope="session")
def started():
    """A context: a script in a process of its own, killed at the end of the block."""
    server = subprocess.Popen(
        [sys.executable, "-c", SERVER, str(SCRIPTS)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )

    def ask(*request):
        server.stdin.write(json.dumps(request) + "\n")
        server.stdin.flush()
        return json.loads(server.stdout.readline())

    @contextlib.contextmanager
    def start(script, *arguments, folder=None):
        argv = [str(SCRIPTS / script), *map(str, arguments)]
        process = Process(ask, ask("start", argv, folder and str(folder)))
        try:
            yield process
        finally:
            process.kill()

    with server:
        yield start
        server.stdin.close()


@pytest.fixture(scope="session")
def forked(started):
    """`forked(script, *arguments)`: a script run to its end, with the status asked."""

    def run(script, *arguments, folder=None, status=0):
        with started(script, *arguments, folder=folder) as process:
            done = process.wait()
        assert done.returncode == status, (arguments, done.stdout + done.stderr)
        return done

    return run


@pytest.fixture(scope="session")
def train(forked):
    """`train(*flags)`: a training that ends well."""
    return functools.partial(forked, "train.py", "--noprogress", "--noplot")


@pytest.fixture(scope="session")
def refused(forked):
    """`refused(message, script, *flags)`: it ends with a status and one line."""

    def check(message, script, *flags, folder=None, status=2):
        done = forked(script, *flags, folder=folder, status=status)
        assert message in done.stderr
        assert len(done.stderr.strip().splitlines()) == 1, done.stderr
        return done

    return check


@pytest.fixture(scope="session")
def whole(train, tmp_path_factory):
    """A run of six updates, with checkpoints at 2, 4 and 6."""
    from tests.experiments.runs_on_disk import TINY

    folder = tmp_path_factory.mktemp("whole") / "run"
    done = train(*TINY, f"--workdir={folder}", "--checkpoint_every=2")
    assert f"experiments/predict.py --weights={folder}" in done.stdout
    return folder
