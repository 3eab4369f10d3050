"""Puts this folder on the path, for `small_programs`."""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parent))
