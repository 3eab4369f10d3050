"""Runs two stand-ins for a training through Ray; the first waits to be killed.

python on_ray_driver.py FOLDER
"""

import dataclasses
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

from test_executor import job

from prednet_jax import process, runs
from prednet_jax.runs import sweeps

root = Path(sys.argv[1])
jobs = [
    dataclasses.replace(found, setting=f"waits_once={root}/first")
    for found in (job(root / f"job_{i}", seeds=(i,), threads=1) for i in range(2))
]
# One worker at a time: each imports what a run needs.
process.available_threads = lambda: 1
ended = list(sweeps.execute(jobs))
assert sorted(one.job.seeds for one in ended) == [(0,), (1,)], ended
assert not any(one.error for one in ended), ended
assert not runs.split_finished(jobs)[0]
print("every run once")
