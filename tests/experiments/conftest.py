"""Fixtures that the tests of several scripts share."""

import json
import subprocess
import sys
import types
from pathlib import Path

import pytest

SCRIPTS = Path(__file__).parents[2] / "experiments"

# Imports once what every script needs, then runs each command line in a fork of itself,
# which no backend has been started in.
SERVER = """
import io, json, os, runpy, sys, tempfile, warnings
import optax, flax, absl.app
import prednet_jax.training.runs, prednet_jax.comparison, prednet_jax.studies
warnings.filterwarnings("ignore", message=".*fork.*")
sys.path.insert(0, sys.argv[1])
for line in sys.stdin:
    argv = json.loads(line)
    out, err = tempfile.TemporaryFile("w+"), tempfile.TemporaryFile("w+")
    sys.stdout.flush()
    child = os.fork()
    if not child:
        os.dup2(out.fileno(), 1); os.dup2(err.fileno(), 2)
        sys.argv = argv
        runpy.run_path(argv[0], run_name="__main__")
        sys.exit(0)
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    out.seek(0); err.seek(0)
    print(json.dumps([status, out.read(), err.read()]), flush=True)
"""


@pytest.fixture(scope="session")
def forked():
    """`forked(script, *arguments)`: what a script says that ends before it computes."""
    server = subprocess.Popen(
        [sys.executable, "-c", SERVER, str(SCRIPTS)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )

    def run(script, *arguments):
        argv = [str(SCRIPTS / script), *map(str, arguments)]
        server.stdin.write(json.dumps(argv) + "\n")
        server.stdin.flush()
        status, out, err = json.loads(server.stdout.readline())
        return types.SimpleNamespace(returncode=status, stdout=out, stderr=err)

    with server:
        yield run
        server.stdin.close()


@pytest.fixture
def refused(forked):
    """`refused(message, script, *flags)`: it ends with status 2 and one line."""

    def check(message, script, *flags):
        done = forked(script, *flags)
        assert done.returncode == 2, done.stdout + done.stderr
        assert message in done.stderr
        assert len(done.stderr.strip().splitlines()) == 1
        return done

    return check
