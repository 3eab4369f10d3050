"""The processes of a calibration end with the process that started them."""

import signal
import subprocess
import sys
import time

import pytest

PARENT = """
import multiprocessing, time
from prednet_jax.training import calibration

def work(pipe):
    calibration.end_with_the_parent()
    pipe.send_bytes(b"begun")
    time.sleep(20)

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
    parent = subprocess.Popen([sys.executable, "-c", PARENT], stdout=subprocess.PIPE)
    assert parent.stdout.readline() == b"begun\n"
    begun = time.monotonic()
    parent.send_signal(signal.SIGHUP)
    parent.stdout.read()  # Until the child has closed it as well.
    assert time.monotonic() - begun < 10
    parent.wait()
    parent.stdout.close()
