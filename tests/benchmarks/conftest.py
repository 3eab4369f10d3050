"""`benchmarks/` is no part of the installed package."""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parents[2]))
