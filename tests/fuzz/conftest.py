"""The fixture `forked`: runs a command in a fork of a process with all imports done."""

import importlib.util
from pathlib import Path

_PATH = Path(__file__).parents[1] / "experiments" / "conftest.py"
_SPEC = importlib.util.spec_from_file_location("experiments_conftest", _PATH)
_module = importlib.util.module_from_spec(_SPEC)
_SPEC.loader.exec_module(_module)
forked = _module.forked
