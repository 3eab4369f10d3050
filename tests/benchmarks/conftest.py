"""Puts the root on the path, since `benchmarks/` is not an installed package."""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parents[2]))
