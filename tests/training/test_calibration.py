"""The processes of a calibration end with the process that started them."""

import subprocess
import sys

import pytest

PARENT = """
import multiprocessing, time
from prednet_jax.training import calibration

def work(pipe):
    calibration.end_with_the_parent()
    pipe.send_bytes(b"begun")
    time.sleep(20)
    print("went on", flush=True)

if __name__ == "__main__":
    here, there = multiprocessing.Pipe()
    child = multiprocessing.get_context("fork").Process(target=work, args=(there,))
    child.start()
    here.recv_bytes()
    print("begun", flush=True)
    time.sleep(20)
"""


@pytest.mark.fault
def test_a_process_ends_with_its_parent():
    """After SIGHUP or a second Ctrl-C it went on for minutes."""
    command = [sys.executable, "-c", PARENT]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as parent:
        assert parent.stdout.readline() == b"begun\n"
        parent.kill()
        # The output ends when the child has closed it as well.
        assert parent.stdout.read() == b""
