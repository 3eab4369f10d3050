"""The package imports fast: a source imports its libraries when it is opened."""

import subprocess
import sys

HEAVY = ("PIL", "av", "skimage", "sklearn", "tensorflow_datasets", "tensorflow")


def test_data_imports_nothing_heavy():
    code = (
        "import sys; before = set(sys.modules); import prednet_jax.data; "
        f"print([name for name in {HEAVY} if name in set(sys.modules) - before])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "[]"
