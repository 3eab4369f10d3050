"""A comparison of arms: its design, its execution, its judgement; sweeps of many runs.

An arm is a process of its own, since threads and XLA's flags are per process; what the
processes share is on disk. The way of the data: design -> jobs -> runs on disk ->
losses by seed and noise draw -> contrasts -> verdict. A sweep goes the same way as far
as the runs, here (`execute`) or on many machines (`on_ray.execute`), and ends in a
table.
"""

from prednet_jax.comparison.arms import NAMES, Arm, Role, arm
from prednet_jax.comparison.checks import check
from prednet_jax.comparison.design import Design
from prednet_jax.comparison.execution import Ended, ProcessError, clear, execute
from prednet_jax.comparison.jobs import Job
from prednet_jax.comparison.judgement import judge
from prednet_jax.comparison.receipts import kept, said

__all__ = [
    "NAMES",
    "Arm",
    "Design",
    "Ended",
    "Job",
    "ProcessError",
    "Role",
    "arm",
    "check",
    "clear",
    "execute",
    "judge",
    "kept",
    "said",
]
