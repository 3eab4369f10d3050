"""Python in a process of its own, for what is fixed when JAX starts."""

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def python(*arguments, devices=1, **variables):
    """What the interpreter prints, run in the root of the repository."""
    flags = f"--xla_force_host_platform_device_count={devices}"
    variables["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} {flags}"
    done = subprocess.run(
        [sys.executable, *arguments],
        capture_output=True,
        text=True,
        check=False,
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": str(ROOT)} | variables,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout
